"""References: values that stay with the node that made them, and can be named, waited for, fetched
and worked with from anywhere.

The semantics are those of RRef in torch.distributed.rpc and of Ray's ObjectRef; how owners count
the holders of their values is in `runtime.references`.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import attrs

from actors.class_names import qualified_name
from actors.errors import BadArgumentsError
from actors.foreign_names import HasForeignNames, names_for_references
from actors.html import card
from actors.keywords import misplaced, names_keywords, why_unfit
from actors.options import SpawnChanges
from actors.process_bound import ProcessBound
from actors.retry import check_number

R = TypeVar("R")


T = TypeVar("T")

_KEPT = re.compile(r"\b(Reference|Any|object)\b")

_NO_PARAMETERS: Final = inspect.Signature()
"""That of a class without a constructor."""

CONSTRUCTORS_KEPT = 256
"""Signatures of constructors that are kept: to make one for each start was a quarter of the
caller's time for a start that travels with others.
"""


class ReferencedValue(Protocol):
    """One node's knowledge of one value. The value is held for as long as this lives.

    An interface because `actors` never imports `runtime`, which has `ReferenceState`.
    """

    @property
    def identity(self) -> tuple[str, int, int]:
        """The node that made the reference, that node's incarnation, and a number."""
        ...

    @property
    def owner(self) -> str:
        """Name of the node that keeps the value."""
        ...

    @property
    def has_failed(self) -> bool:
        """True if it is known that there is no value."""
        ...


class ReferenceSource(Protocol):
    """The runtime's side of all `Reference`s on one node. `state` is what the runtime has
    made the reference with.

    An interface because `actors` never imports `runtime`, which has `ReferenceManager`.
    """

    def fetch(self, state: Any) -> Coroutine[Any, Any, object]:
        """Bring the value here."""
        ...

    def local_value(self, state: Any) -> object:
        """The value, if it is here."""
        ...

    def call(
        self, state: Any, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, object]:
        """Run a method of the value where it is."""
        ...

    def call_and_keep(
        self, state: Any, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, Reference[object]]:
        """Like `call`, and leave the result there."""
        ...

    def wait_some(
        self, states: Sequence[Any], count: int, timeout: float | None
    ) -> Coroutine[Any, Any, frozenset[int]]:
        """Wait until `count` of the references with these `states` have outcomes, or for `timeout`
        seconds; return the indices in `states` of those that have. A `count` of 0 asks those who
        know, and waits for nothing else.
        """
        ...


class Reference(HasForeignNames, ProcessBound, Generic[R]):
    """Names a value that its owner node keeps for as long as any live node has a reference to it.

    It can be used before the value is there, and sent in messages like any value. References to the
    same value are equal. What is fetched is a copy: numpy arrays in it are read-only, because they
    may lie in memory that others read as well.
    """

    __slots__ = ("__weakref__", "_source", "_state")

    _elsewhere = "pass it in a call, or fetch its value and pickle that"
    _foreign_names = names_for_references("await ")

    def __init__(self, state: ReferencedValue, source: ReferenceSource) -> None:
        self._state = state
        self._source = source

    @property
    def owner(self) -> str:
        """Name of the node that keeps the value. It changes when that node leaves and hands its
        values to another.
        """
        return self._state.owner

    @property
    def call(self) -> RemoteValue:
        """The value's own methods, run where it is: `await reference.call.mean()`; see
        `RemoteValue`.
        """
        return RemoteValue(self._state, self._source)

    async def fetch(self) -> R:
        """The value, copied here, once there is one. A second fetch on this node finds it here, as
        long as there is room for it.

        Raises what the producing call raised, `OwnerDiedError` when the value was lost with its
        node, `ReferenceReleasedError` when the process that handed the reference on ended before it
        was registered here, and `DecodeError` when this process cannot read the value.
        """
        return cast("R", await self._source.fetch(self._state))

    def local_value(self) -> R:
        """The value, on its owner only, and only if it is there. Raises `NotTheOwnerError`,
        `ReferenceNotReadyError`, or what the producing call raised.
        """
        return cast("R", self._source.local_value(self._state))

    @property
    def has_failed(self) -> bool:
        """True if this process knows that there is no value: the call has raised, or the owner has
        died. Never waits; after `wait_any` it is known of those that are done. `fetch` raises why.
        """
        return self._state.has_failed

    async def ready(self) -> bool:
        """True if the outcome is there, value or error: `fetch` would not wait for it. Raises
        nothing for an owner that died: that is one.
        """
        return bool(await self._source.wait_some([self._state], 0, None))

    def as_value(self) -> R:
        """This reference, as type checkers should see it where a method takes the value: `await
        stage.scale(reference.as_value(), 2.0)`.

        A parameter whose annotation is not a `Reference` gets the value: it is fetched where the
        method runs, before it starts.
        """
        return cast("R", self)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Reference)
            and self._state.identity == cast("Reference[object]", other)._state.identity
        )

    def __hash__(self) -> int:
        return hash(self._state.identity)

    def __repr__(self) -> str:
        maker, incarnation, number = self._state.identity
        return f"<reference {maker}.{incarnation}.{number} owned by {self.owner}>"

    def _repr_html_(self) -> str:
        """Return the facts that are known here as HTML for notebooks. Fetches nothing."""
        maker, incarnation, number = self._state.identity
        return card(
            "reference",
            f"{maker}.{incarnation}.{number}",
            [("kept by", self.owner), ("made by", maker)],
        )


class RemoteMethod:
    """One method of a referenced value."""

    __slots__ = ("_name", "_source", "_state")

    def __init__(self, state: ReferencedValue, source: ReferenceSource, name: str) -> None:
        self._state = state
        self._source = source
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> Awaitable[Any]:
        """Run it where the value is, and bring the result here."""
        return self._source.call(self._state, self._name, args, kwargs)

    def remote(self, *args: object, **kwargs: object) -> Awaitable[Reference[Any]]:
        """Run it where the value is, and leave the result there."""
        return self._source.call_and_keep(self._state, self._name, args, kwargs)


class RemoteValue:
    """The methods of a referenced value: `await reference.call.sum()`, or `await
    reference.call.sum.remote()` for a reference to the result.

    They run in a worker thread of the owner, on a copy: what they change in the value is lost.
    Callable are the public methods of classes marked with `@message`, those of Python's plain
    types, and those of numpy arrays that only compute; others raise `AttributeError`.
    """

    __slots__ = ("_source", "_state")

    def __init__(
        self, state: ReferencedValue | None = None, source: ReferenceSource | None = None
    ) -> None:
        if state is None or source is None:
            # `reference.call.__init__()` and `reference.call.__class__()` are found in this object,
            # and not asked of `__getattr__`.
            raise _not_public("__init__")
        self._state = state
        self._source = source

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise _not_public(name)
        return RemoteMethod(self._state, self._source, name)


def _not_public(name: str) -> AttributeError:
    return AttributeError(
        f"{name} is not public, and only public methods of a referenced value can be called"
    )


Split = tuple[list[Reference[T]], list[Reference[T]]]
"""Those that are done, and those that are not, each in the order given."""


@names_keywords
async def wait_any(
    references: Iterable[Reference[T]], *, count: int = 1, timeout: float | None = None
) -> Split[T]:
    """Wait until at least `count` of the references have outcomes, values or errors, and return
    (done, not done); all that have are done.

    After `timeout` seconds, or with fewer references than `count`, fewer are done; nothing is
    raised for that. All of them must be of one node, as they are outside simulations. Raises
    ValueError for a `count` below one, or a negative `timeout`, and TypeError for what is not a
    reference.
    """
    given = _listed(references, "wait_any")
    if count < 1:
        raise ValueError(f"count, of references to wait for, must be at least 1, not {count}")
    if timeout is not None and timeout != math.inf:
        check_number("timeout", timeout)
    if not given:
        return [], []
    states = [reference._state for reference in given]
    # One question for all of them: any node can wait for references to values of any other.
    done = await given[0]._source.wait_some(states, min(count, len(given)), timeout)
    return [each for index, each in enumerate(given) if index in done], [
        each for index, each in enumerate(given) if index not in done
    ]


@names_keywords
async def wait_all(references: Iterable[Reference[T]], *, timeout: float | None = None) -> Split[T]:
    """Wait until all references have outcomes, values or errors, or until `timeout` seconds have
    passed. Returns those that have one, and those that have none yet.
    """
    given = _listed(references, "wait_all")
    return await wait_any(given, count=max(1, len(given)), timeout=timeout)


def _listed(references: Iterable[Reference[T]], function: str) -> list[Reference[T]]:
    """The references in a list. Raises TypeError for anything else, which would fail later, in code
    that is not the caller's.
    """
    if not isinstance(references, Iterable):
        raise TypeError(
            f"{function} takes references in a list, as in {function}([first, second]), and not "
            f"one object of type {type(references).__name__}"
        )
    given = list(references)
    for index, reference in enumerate(given):
        if not isinstance(reference, Reference):
            raise TypeError(
                f"{function} takes references, as `await handle.method.remote(...)` and `await "
                f"node.put(value)` return them; item {index} is of type {type(reference).__name__}"
            )
    return given


# Arguments: whether they fit a method or constructor, what their parameters are called, and which
# are wanted as values.
#
# References as arguments: which parameters of a method take the reference, and which its value. The
# annotation says it. A parameter that is annotated as a `Reference` (or with one inside, as in
# `list[Reference[int]]`), as `object` or `Any`, or not at all, takes what the caller gave. Any
# other takes the value, so a reference that comes for it is fetched before the method starts, where
# the method runs: the value goes from its owner to its user, and not by way of the caller. Only
# whole arguments are looked at, as in Ray: one inside a list stays one.

Needs = tuple[tuple[int | str, Reference[Any]], ...]
"""References to be fetched before a method starts, each with the place of its argument: an index,
or a name.
"""


@attrs.frozen
class ByValue:
    """The arguments that a method takes as values. `rest`, `others`: those of `*args` and
    `**kwargs`.
    """

    positional: tuple[bool, ...] = ()
    rest: bool = False
    named: dict[str, bool] = attrs.field(factory=dict)
    others: bool = False

    def needs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Needs | None:
        """The references among these arguments that are to be fetched."""
        found: list[tuple[int | str, Reference[Any]]] = []
        for index, argument in enumerate(args):
            if isinstance(argument, Reference) and (
                self.positional[index] if index < len(self.positional) else self.rest
            ):
                found.append((index, argument))
        for name, argument in kwargs.items():
            if isinstance(argument, Reference) and self.named.get(name, self.others):
                found.append((name, argument))
        return tuple(found) or None


def by_value(function: Callable[..., Any], *, of_actor: bool = True) -> ByValue:
    """Read from the annotations of a method which arguments it takes as values; of a function that
    belongs to no actor with `of_actor` False.
    """
    try:
        hints: dict[str, object] = typing.get_type_hints(function)
    except Exception:  # a name that only type checkers see, or anything else: the text has to do
        hints = dict(getattr(function, "__annotations__", {}))
    positional: list[bool] = []
    named: dict[str, bool] = {}
    rest = others = False
    # Without the first parameter of a method, which is the actor.
    for name, parameter in list(inspect.signature(function).parameters.items())[int(of_actor) :]:
        wanted = name in hints and not _takes_references(hints[name])
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = wanted
        elif parameter.kind is parameter.VAR_KEYWORD:
            others = wanted
        else:
            if parameter.kind is not parameter.KEYWORD_ONLY:
                positional.append(wanted)
            if parameter.kind is not parameter.POSITIONAL_ONLY:
                named[name] = wanted
    return ByValue(tuple(positional), rest, named, others)


def _takes_references(annotation: object) -> bool:
    if isinstance(annotation, str):
        return _KEPT.search(annotation) is not None
    if annotation is Any or annotation is object or annotation is Reference:
        return True
    return typing.get_origin(annotation) is Reference or any(
        _takes_references(part) for part in typing.get_args(annotation)
    )


def taken(signature: inspect.Signature) -> str:
    """The parameters in one line: `(first, /, second=..., *rest, key)`. No default is shown: its
    repr is code of the user's.
    """
    shown: list[str] = []
    slashed = True
    starred = False
    for one in signature.parameters.values():
        if one.kind is one.POSITIONAL_ONLY:
            slashed = False
        elif not slashed:
            shown.append("/")
            slashed = True
        if one.kind is one.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = (
            "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        )
        starred = starred or one.kind is one.VAR_POSITIONAL
        shown.append(f"{stars}{one.name}{'' if one.default is one.empty else '=...'}")
    if not slashed:
        shown.append("/")
    return f"({', '.join(shown)})"


def constructor(cls: type) -> inspect.Signature | None:
    """Return the signature of the constructor of `cls`, without `self`. None if that cannot be
    read, or is anything at all.

    A decorated constructor is what its decorator made of it: what that wraps may be called with
    other arguments.
    """
    found: Any = cls
    if type(cls) is type and found.__init__ is object.__init__ and found.__new__ is object.__new__:
        # Most classes of actors have no constructor, and looking past all descriptors takes long.
        return _NO_PARAMETERS
    init: Any = inspect.getattr_static(cls, "__init__")
    if init is object.__init__:
        return (
            _NO_PARAMETERS
            if inspect.getattr_static(cls, "__new__") is vars(object)["__new__"]
            else None
        )
    if not inspect.isfunction(init) or "__signature__" in vars(init):
        return None
    return _without_self(init, init.__code__)


@functools.lru_cache(maxsize=CONSTRUCTORS_KEPT)
def _without_self(init: FunctionType, code: CodeType) -> inspect.Signature | None:
    """The signature of a constructor without its first parameter. `code`: that of the function,
    which a notebook replaces when it loads a module again.
    """
    try:
        signature = inspect.signature(init, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        return None
    return signature.replace(parameters=parameters[1:], return_annotation=inspect.Signature.empty)


def check_constructor(
    cls: type,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    what: str | None,
    *,
    partly: bool = False,
) -> Mapping[str, object]:
    """Raises BadArgumentsError, which names the parameter, for arguments that the constructor of
    `cls` does not take.

    `what`: what is not started then, None for an actor of the class. `partly`: others may be
    added. Returns the arguments by their parameters, as far as those are known.
    """
    signature = constructor(cls)
    if signature is None or not (args or kwargs or signature.parameters):
        return {}
    try:
        return (signature.bind_partial if partly else signature.bind)(*args, **kwargs).arguments
    except TypeError as error:
        text = (
            f"{what or f'an actor of class {qualified_name(cls)}'} was not started: "
            f"{why_unfit(error, signature, kwargs)}; "
            f"the constructor of {qualified_name(cls)} takes {taken(signature)}"
        )
        if option := misplaced(kwargs, signature, SpawnChanges.__annotations__):
            text += f". Options stand before the start: node.options({option}=...).spawn(...)"
        raise BadArgumentsError(text, method="__init__") from None


def places(
    signature: inspect.Signature | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """Each argument with the name of its parameter; one of `*rest` is `rest[0]`, one that has no
    parameter `args[0]`.
    """
    parameters = list(signature.parameters.values()) if signature is not None else []
    positional = [
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), None)
    for index, argument in enumerate(args):
        if index < len(positional):
            yield positional[index], argument
        else:
            yield (
                (f"args[{index}]" if rest is None else f"{rest}[{index - len(positional)}]"),
                argument,
            )
    yield from kwargs.items()
