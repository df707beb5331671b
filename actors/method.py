"""What may be called from outside: the `@method` decorator and the typed call that it makes
possible.

Only decorated methods can be called on a handle. On a handle, `handle.add` is a `BoundMethod`:
calling it makes a remote call, `.options(...)` gives a changed copy, `.send(...)` a one-way call,
`.remote(...)` a call whose result stays where it was made. Where the method is an async generator,
it is a `BoundStream`, and calling it gives a `Stream`. Inside the actor, `self.add(1)` is an
ordinary call that runs within the current turn.

The typing (a descriptor over ParamSpec) was checked to accept right and refuse wrong arguments
under mypy --strict and basedpyright.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
)
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import attrs

from actors.documentation import OfInstance, documented_as, reads_as
from actors.errors import BadArgumentsError
from actors.foreign_names import (
    HasForeignNames,
    NotAwaited,
    names_for_methods,
    names_for_streams,
)
from actors.identifiers import ActorId, NodeId
from actors.keywords import misplaced, names_keywords, unknown_keyword, why_unfit
from actors.messages import message
from actors.options import NO_CALL_OPTIONS, CallChanges, CallOptions
from actors.peers import PeerRole, checked_allow
from actors.process_bound import ProcessBound
from actors.reference import ByValue, Reference, by_value, taken
from actors.short_repr import short_repr

if TYPE_CHECKING:
    from concurrent.futures import Future

    from actors.blocking import BlockingReference, BlockingStream

# Streams: what a caller holds of an async-generator method while its items come.
#
# A generator method of an actor runs where the actor is; its items come to the caller one by one,
# and the generator is held up when the caller is slow.

T = TypeVar("T")

P = ParamSpec("P")

R = TypeVar("R")

InThread = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Runs blocking code beside the event loop."""

Fits = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Raises BadArgumentsError for arguments that fit the signature of a method and no more
than that.
"""

_NOT_REPEATED = (
    "is a stream, and streams are never repeated: the reader has already acted on the items that "
    "it got. Give the method a parameter for the position to start at, and call it again from "
    "there"
)

MOST_DECORATORS = 20
"""Above one another on one method; a chain of `__wrapped__` may be endless."""


class StreamChanges(TypedDict, total=False):
    """The keywords that `options(...)` of a stream method takes: `timeout`, in seconds, covers the
    whole stream.
    """

    timeout: float | None


class Stream(AsyncIterator[T]):
    """The items that a generator method of an actor yields: once, and in order.

    Nothing is asked of the actor before the first item is. Then the generator runs, ahead of the
    reader by 32 items or 4 MiB at most, and holds its actor's turn until it ends, unless its method
    is concurrent.

    Asking for an item raises what a call would raise: `NotExecutedError` where the generator
    certainly never ran, `RemoteError` where it raised, `OutcomeUnknownError` where it broke off;
    always after the items that had arrived before. The stream is over then. It is also over when
    the reader is cancelled while it waits for an item, as an async generator would be.

    The generator is closed, which runs its `finally` blocks, as soon as the reader stops: leaves
    `async with`, calls `aclose`, or drops the stream. One task reads a stream at a time; a second
    one gets `trio.BusyResourceError`.
    """

    __slots__ = ()

    @abstractmethod
    async def __anext__(self) -> T:
        """Wait for the next item. Raises StopAsyncIteration when the generator has returned, and
        whenever the stream is over.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Read no more: have the generator closed. Does not wait until it is. A stream that
        is over may be closed again.
        """

    async def __aenter__(self) -> Self:
        """The stream itself, closed when the block is left."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # to a type checker it is neither

        def __await__(self):
            raise TypeError(
                "a stream is not awaited: read it with `async for item in ...`, or `async with`"
            )

        def __iter__(self):
            raise TypeError("a stream is read with `async for item in ...`, and not with `for`")


@attrs.frozen
class MethodDefinition:
    """A callable method as the runtime sees it: the function and the flags it was marked with.

    `idempotent`: running it twice does no harm, so the runtime may repeat a call whose outcome is
    unknown. `concurrent`: runs beside other calls of the same actor instead of in turn.
    `reentrant`: while it waits for a call that it has made, calls that come back to its actor by
    that very chain run beside it. `in_thread`: a plain `def`; runs in a worker thread, so that it
    may block. `stream`: an async generator; its items travel one by one. `options`: how it is
    called where the call does not say otherwise. `fits`: looks at the arguments besides, at the
    caller (with None for the actor) and before it runs. `http`: the HTTP gateway may call it.
    `allow`: the roles that may call it besides nodes; None: those that may call methods in general.
    """

    name: str
    function: Callable[..., Any]
    idempotent: bool = False
    concurrent: bool = False
    in_thread: bool = False
    stream: bool = False
    options: CallOptions = NO_CALL_OPTIONS
    reentrant: bool = False
    fits: Fits | None = None
    http: bool = False
    allow: frozenset[PeerRole] | None = None

    @functools.cached_property
    def by_value(self) -> ByValue:
        """The arguments that it takes as values where callers give references."""
        return by_value(self.function)

    @property
    def is_known(self) -> bool:
        """False if only its name is known here, and neither its class nor what it takes."""
        return self.function is not unknown_method

    @property
    def signature(self) -> inspect.Signature:
        """Its signature without the actor itself."""
        signature = inspect.signature(self.function)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    @functools.cached_property
    def arity(self) -> tuple[int, int]:
        """The least and the greatest number of positional arguments that fit. No number lies
        between them if the arguments need a further check.
        """
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        if self.fits is not None or any(
            one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters
        ):
            # No number of arguments lies between these two, so `check` always looks.
            return sys.maxsize, 0
        positional = [
            one
            for one in parameters
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        most = (
            sys.maxsize
            if any(one.kind is one.VAR_POSITIONAL for one in parameters)
            else len(positional)
        )
        return sum(one.default is one.empty for one in positional), most

    def refusal(
        self, actor: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> BadArgumentsError | None:
        """The error for arguments that do not fit, which names the parameter; None if they fit.

        Its caller raises it: the traceback then ends with the method that the user has called.
        """
        try:
            inspect.signature(self.function).bind(None, *args, **kwargs)
        except TypeError as error:
            why = why_unfit(error, self.signature, kwargs)
            text = f"{actor}.{self.name} was not called: {why}; it takes {taken(self.signature)}"
            if option := misplaced(kwargs, self.signature, CallChanges.__annotations__):
                text += f". Options stand before the call: {self.name}.options({option}=...)(...)"
            return BadArgumentsError(text, actor=actor, method=self.name)
        if self.fits is not None:
            self.fits(None, args, kwargs)
        return None

    def run(
        self,
        instance: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        in_thread: InThread,
    ) -> Coroutine[Any, Any, object]:
        """The coroutine of one run on `instance`; a plain `def` runs through `in_thread`. Raises
        TypeError if the arguments do not fit.
        """
        if self.fits is not None:
            self.fits(instance, args, kwargs)
        if self.in_thread:
            # Refused here and not in the thread, where a TypeError would be the method's own.
            inspect.signature(self.function).bind(instance, *args, **kwargs)
            # Not abandoned on cancellation: the actor must not take its next message while one
            # still runs in a thread.
            return in_thread(functools.partial(self.function, instance, *args, **kwargs))
        coroutine: Coroutine[Any, Any, object] = self.function(instance, *args, **kwargs)
        return coroutine

    def items(
        self, instance: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AsyncGenerator[object, None]:
        """The generator of one run of a stream on `instance`. Raises TypeError if the arguments do
        not fit.
        """
        generator: AsyncGenerator[object, None] = self.function(instance, *args, **kwargs)
        return generator


def unknown_method(*args: object, **kwargs: object) -> object:
    """Stands for the function of a method whose class is not known here. Raises TypeError."""
    raise TypeError(
        "this handle was looked up without its class; the method can be run only on the actor's "
        "node"
    )


class Caller(Protocol):
    """Carries out calls for handles; the runtime's side of this module.

    An interface because `actors` never imports `runtime`, which has `CallClient`.
    """

    def call(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object], /
    ) -> Coroutine[Any, Any, R]:
        """Make the call and wait for its outcome."""
        ...

    def send(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, None]:
        """Hand the call to the connection and do not wait for an outcome."""
        ...

    def remote(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call and keep its result with its owner."""
        ...

    def stream(
        self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Stream[T]:
        """The items of a generator method; nothing happens before the first is asked for."""
        ...


@message
@attrs.frozen
class Address:
    """The place of an actor, as far as the holder knows.

    `registered` actors are found again by `name` when they have moved; others end with their node's
    incarnation. `epoch` 0 means any epoch. `class_path` is `module:Class`. Raises TypeError for
    fields of other types: peers send these.
    """

    name: str
    node: str
    incarnation: int
    epoch: int = 0
    class_path: str = ""
    registered: bool = False

    @property
    def node_id(self) -> NodeId:
        """The node's incarnation where the actor is, as far as the holder knows."""
        return NodeId(self.node, self.incarnation)

    @property
    def actor_id(self) -> ActorId:
        """The epoch of the actor that is addressed, 0 for any."""
        return ActorId(self.name, self.epoch)

    def __attrs_post_init__(self) -> None:
        # One check of all fields: validators of each would take longer than all the rest, and a
        # node makes an address for each actor that it starts or hears of.
        if not (
            type(self.name) is type(self.node) is type(self.class_path) is str
            and type(self.incarnation) is type(self.epoch) is int
            and type(self.registered) is bool
        ):
            self._check_types()

    def _check_types(self) -> None:
        kinds = {"name": str, "node": str, "incarnation": int, "epoch": int, "class_path": str}
        for field, kind in {**kinds, "registered": bool}.items():
            value = getattr(self, field)
            if not isinstance(value, kind):
                raise TypeError(
                    f"{field!r} of an Address is {short_repr(value)}, not of type {kind!r}"
                )


def _name_of(bound: Bound) -> str:
    return bound._definition.name


def _signature_of(bound: Bound) -> inspect.Signature:
    definition = bound._definition
    # Of a handle that was looked up without its class it takes anything, as far as is known here.
    return definition.signature if definition.is_known else inspect.signature(unknown_method)


def _documentation_of(bound: Bound) -> str | None:
    return bound._definition.function.__doc__ if bound._definition.is_known else None


class Bound(HasForeignNames, ProcessBound):
    """The base of every method that is bound to one actor, whether a call gives a value or a
    stream. Its attributes are for the runtime's side, see `Caller`.
    """

    __slots__ = (
        "_address",
        "_caller",
        "_counted",
        "_definition",
        "_load",
        "_moved",
        "_options",
        "_route",
    )

    # What a prompt shows of it, and completes.
    __name__ = OfInstance(_name_of)
    __signature__ = OfInstance(_signature_of)

    def __init__(
        self, caller: Caller, address: Address, definition: MethodDefinition, options: CallOptions
    ) -> None:
        self._caller = caller
        self._address = address
        self._definition = definition
        self._options = options
        self._route: object = None
        """Where the caller found the actor last: a cache for the caller only."""
        self._moved = False
        """True once the actor was not where `address` says."""
        self._load: object = None
        """Where the caller counts the calls to the actor, if it does."""
        self._counted: object = None
        """Where the caller counts how the calls of the method end, while it does."""

    def __get__(self, instance: object, owner: type) -> Self:
        """The same. With this Python counts it among the routines, of which `help()` shows the
        signature and the docstring.
        """
        return self

    def _refusal(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> BadArgumentsError | None:
        """The error for arguments that do not fit the method; None if they fit."""
        # Most calls are right, and their number says so: binding them all would make a call a good
        # deal slower.
        least, most = self._definition.arity
        if kwargs or not least <= len(args) <= most:
            return self._definition.refusal(self._address.name, args, kwargs)
        return None

    def __repr__(self) -> str:
        return f"<method {self._address.name}.{self._definition.name} on {self._address.node}>"


@reads_as(_documentation_of)
class BoundMethod(Bound, NotAwaited, Generic[P, R]):
    """A method of one actor, ready to be called from anywhere. Cheap; keep it or make it anew."""

    __slots__ = ()

    _foreign_names = names_for_methods("await ")
    _awaited_instead = "the method was not called: await handle.method(...), with parentheses"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call and wait for the outcome: the value, or one of the three errors of `actors.errors`.

        Raises BadArgumentsError at once, before anything is sent, for arguments that do not fit the
        method as the handle's class has it.
        """
        # Inline, for the hot path; see `_refusal`.
        least, most = self._definition.arity
        if kwargs or not least <= len(args) <= most:
            refusal = self._definition.refusal(self._address.name, args, kwargs)
            if refusal is not None:
                raise refusal
        return self._caller.call(self, args, kwargs)

    @documented_as(CallOptions)
    @names_keywords
    def options(self, **changes: Unpack[CallChanges]) -> BoundMethod[P, R]:
        """Return the same method with other call options, for example `options(timeout=2.0)`."""
        changed = BoundMethod[P, R](
            self._caller,
            self._address,
            self._definition,
            CallOptions(**changes).over(self._options),
        )
        # A copy is often made for one call: without the route, each would look the actor up again.
        changed._route, changed._moved = self._route, self._moved
        changed._counted = self._counted
        return changed

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]:
        """Call one way: returns when the connection has taken the message; the outcome stays
        unknown.

        At most once, in order with other calls from this node. It follows an actor that has moved,
        or was restarted, but what an actor had taken and not begun ends with it. An exception in
        the method is logged where the actor runs.
        """
        if (refusal := self._refusal(args, kwargs)) is not None:
            raise refusal
        return self._caller.send(self, args, kwargs)

    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Reference[R]]:
        """Call and leave the result with its owner; returns a `Reference` to wait for, to fetch it
        by, or to hand on.

        It returns when the call was handed to the owner's connection, long before the value is
        there: the outcome of the call, errors included, becomes known through the reference. Only
        its own `timeout` limits the call, and no deadline of the caller. Until the reference is
        handed on, the call is made again like any that certainly did not run; then it stays with
        the owner that was named.
        """
        if (refusal := self._refusal(args, kwargs)) is not None:
            raise refusal
        return self._caller.remote(self, args, kwargs)


@reads_as(_documentation_of)
class BoundStream(Bound, NotAwaited, Generic[P, T]):
    """A generator method of one actor, ready to be called from anywhere. Cheap; keep it or make it
    anew.
    """

    __slots__ = ()

    _foreign_names = names_for_streams("async for")

    _awaited_instead = (
        "the method is a stream and is not awaited: async for item in handle.method(...)"
    )

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            raise TypeError(
                "the method was not called: async for item in handle.method(...), with parentheses"
            )

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        """The items: `async for item in handle.scan(1)`, or `async with handle.scan(1) as items`.
        Raises BadArgumentsError like a call.
        """
        if (refusal := self._refusal(args, kwargs)) is not None:
            raise refusal
        return self._caller.stream(self, args, kwargs)

    @names_keywords
    def options(self, **changes: Unpack[StreamChanges]) -> BoundStream[P, T]:
        """The same method with other options, for example `options(timeout=60.0)`, which covers the
        whole stream.
        """
        if "retry" in changes:
            raise TypeError(f"{self._definition.name} {_NOT_REPEATED}")
        changed = BoundStream[P, T](
            self._caller,
            self._address,
            self._definition,
            CallOptions(**changes).over(self._options),
        )
        changed._route, changed._moved = self._route, self._moved
        return changed

    def send(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse a one-way call: the items would have no reader. Raises TypeError."""
        raise TypeError(
            f"{self._definition.name} is a stream and cannot be sent one way: it would have no "
            "reader; use `async for`"
        )

    def remote(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to keep a result: a stream has no one result. Raises TypeError."""
        raise TypeError(
            f"{self._definition.name} is a stream and has no one result that could stay with its "
            "owner; use `async for`"
        )


class OwnMethod(Generic[P, R]):
    """A method seen from inside its own actor: calling it runs it here and now, within the current
    turn.
    """

    __slots__ = ("_definition", "_instance")

    def __init__(self, instance: object, definition: MethodDefinition) -> None:
        self._instance = instance
        self._definition = definition

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the method as an ordinary function of this object."""
        return cast(
            "Coroutine[Any, Any, R]",
            self._definition.run(self._instance, args, kwargs, self._in_thread),
        )

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await cast("Any", self._instance)._hosted().in_thread(function)

    def __getattr__(self, attribute: str) -> object:
        # `self.add.send(1)` puts a message to oneself into the mailbox: the way of the handle.
        # the instance is any actor, known only by duck typing here
        handle = getattr(self._instance, "handle")  # noqa: B009
        return getattr(getattr(handle, self._definition.name), attribute)


class Marked:
    """The attribute that `@method` leaves in a class, for a method of any kind."""

    def __init__(self, definition: MethodDefinition) -> None:
        self.definition = definition
        function = definition.function
        self.__doc__ = function.__doc__
        # For `help()`, which shows it as the function that it is.
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__wrapped__ = function
        # Beside `@abstractmethod`, in either order, the class is abstract for `abc.ABC`.
        self.__isabstractmethod__: bool = getattr(
            definition.function, "__isabstractmethod__", False
        )

    def _called_on_the_class(self) -> TypeError:
        name = self.definition.function.__qualname__
        return TypeError(
            f"{name} was looked up on the class, which has no actor to call; call it on a handle, "
            "from spawn, lookup or a message"
        )


class Method(Marked, Generic[P, R]):
    """The descriptor of an ordinary method.

    Looked up on an actor or on its handle it is a `BoundMethod`. Looked up on the class it is the
    method itself, whose types are those of a blocking call: a blocking handle (`runtime.blocking`)
    is to a type checker the class of its actor, so `counter.add(5)` is an `int` there. No other
    type that is made of a class alone has the methods of the class with other results. The class
    itself has no actor to call, and says so with a TypeError.
    """

    @overload
    def __get__(self, instance: None, owner: type) -> Method[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundMethod[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Method[P, R] | BoundMethod[P, R]:
        if instance is None:
            return self
        # To the type checker an actor and its handle look alike; both kinds of method are called
        # and awaited in the same way.
        return cast("BoundMethod[P, R]", OwnMethod[P, R](instance, self.definition))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """At the blocking door: call, and block until the outcome is there: the value, or one of
        the three errors.
        """
        raise self._called_on_the_class()

    @documented_as(CallOptions)
    def options(self, **changes: Unpack[CallChanges]) -> Method[P, R]:
        """At the blocking door: the same method with other call options."""
        raise self._called_on_the_class()

    @documented_as(BoundMethod.send)
    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """At the blocking door: call one way."""
        raise self._called_on_the_class()

    @documented_as(BoundMethod.remote)
    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingReference[R]:
        """At the blocking door: call and leave the result with its owner."""
        raise self._called_on_the_class()

    def future(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """At the blocking door: call and do not block. The future gets the outcome; to cancel it
        cancels the call where it runs. Its callbacks run in the thread of the connections, which
        they must not hold up.
        """
        raise self._called_on_the_class()


class StreamMethod(Marked, Generic[P, T]):
    """The descriptor of a generator method; on the class it has the types of the blocking door, as
    `Method` has.
    """

    @overload
    def __get__(self, instance: None, owner: type) -> StreamMethod[P, T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundStream[P, T]: ...
    def __get__(
        self, instance: object | None, owner: type
    ) -> StreamMethod[P, T] | BoundStream[P, T]:
        if instance is None:
            return self
        # Inside its actor a stream is the ordinary async generator; see `Method`.
        return cast("BoundStream[P, T]", OwnMethod[P, object](instance, self.definition))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingStream[T]:
        """At the blocking door: the items, one by one: `for item in handle.scan(1)`."""
        raise self._called_on_the_class()

    @documented_as(BoundStream.options)
    def options(self, **changes: Unpack[StreamChanges]) -> StreamMethod[P, T]:
        """At the blocking door: the same method with other options."""
        raise self._called_on_the_class()


def _why_no_function(given: object) -> str:
    if isinstance(given, staticmethod | classmethod):
        kind = type(given).__name__
        return (
            f"@method: {given.__func__.__qualname__} is a {kind}, which has no actor; take away "
            f"@{kind} and let it have `self`, or leave it without @method"
        )
    if isinstance(given, property):
        return "@method: callers call methods, and read no properties; take away @property"
    return f"@method decorates a function, not {short_repr(given)}; make it the outermost decorator"


def hides_mark(member: object) -> bool:
    """Return True for what other decorators have made of a marked method, whose mark is no longer
    seen.
    """
    for _ in range(MOST_DECORATORS):
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, property):
            member = member.fget
        else:
            # As `functools.wraps` leaves it. Not by `getattr`, which may run code of the user's.
            try:
                member = object.__getattribute__(member, "__dict__").get("__wrapped__")
            except AttributeError:
                return False
        if isinstance(member, Marked):
            return True
    return False


M = TypeVar("M", bound=Marked)


def fitting(fits: Fits) -> Callable[[M], M]:
    """Return a decorator of the runtime's own methods that checks their arguments before a call;
    see `MethodDefinition`.
    """

    def decorate(marked: M) -> M:
        marked.definition = attrs.evolve(marked.definition, fits=fits)
        return marked

    return decorate


class MethodDecorator(Protocol):
    """`@method(...)` with flags: only for type checkers, as a callable with overloads has no other
    type.
    """

    # The overlap is meant: what the last overload takes includes generators, and the first that
    # fits is chosen.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Any, P], AsyncIterator[T]], /
    ) -> StreamMethod[P, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Awaitable[R]], /
    ) -> Method[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Method[P, R]: ...


@overload
def method(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[Any, P], AsyncIterator[T]], /
) -> StreamMethod[P, T]: ...


@overload
def method(function: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Method[P, R]: ...


@overload
def method(function: Callable[Concatenate[Any, P], R], /) -> Method[P, R]: ...


@overload
def method(
    *,
    idempotent: bool = False,
    concurrent: bool = False,
    reentrant: bool = False,
    http: bool = False,
    allow: tuple[PeerRole, ...] | None = None,
    **options: Unpack[CallChanges],
) -> MethodDecorator: ...


def method(
    function: Callable[..., Any] | None = None,
    /,
    *,
    idempotent: bool = False,
    concurrent: bool = False,
    reentrant: bool = False,
    http: bool = False,
    allow: tuple[PeerRole, ...] | None = None,
    **options: Unpack[CallChanges],
) -> Any:
    """Mark a method of an `Actor` as callable from outside.

    `async def` runs on the node's event loop; plain `def` runs in a worker thread, so it may block.
    An `async def` that yields, annotated as `AsyncIterator[...]` or `AsyncGenerator[...]`, is a
    stream. One call, or stream, runs at a time per actor, in order.

    - `idempotent`: running it twice does no harm. A `RetryPolicy` may then repeat a call of unknown
      outcome.
    - `concurrent`: it runs beside the other methods of its actor.
    - `reentrant`: its turn is open to calls that it waits for itself. Where it awaits another
      actor, and that one calls back, the call back runs beside it instead of being refused with
      `CallCycleError` (call-chain reentrancy, as Orleans has it).
    - `http`: clients may call it through the HTTP gateway (`understudy gateway`).
    - `allow`: the roles of certificates that may call it, by default `("operator", "client")`.
      Nodes may always call it, because they can run any code; others are refused with
      `NotAllowedError`.
    - `timeout`: seconds that each call of it may take, all its attempts included.
    - `retry`: a `RetryPolicy` for each call of it.

    Raises TypeError for what cannot be a method, and for a stream that is to be repeated;
    ValueError for a role that there is not.
    """
    for option in options:
        if option not in CallChanges.__annotations__:
            known = [*inspect.signature(method).parameters][1:-1]
            raise unknown_keyword("@method", option, [*known, *CallChanges.__annotations__])

    def decorate(function: Callable[..., Any]) -> Marked:
        _check_function(function)
        stream = inspect.isasyncgenfunction(function)
        if stream and (idempotent or options.get("retry") is not None):
            raise TypeError(f"@method: {function.__qualname__} {_NOT_REPEATED}")
        kind: type[Marked] = StreamMethod[..., Any] if stream else Method[..., Any]
        return kind(
            MethodDefinition(
                name=function.__name__,
                function=function,
                idempotent=idempotent,
                concurrent=concurrent,
                in_thread=not (stream or inspect.iscoroutinefunction(function)),
                stream=stream,
                # The shared object where nothing was said: callers tell the short way by it.
                options=CallOptions(**options) if options else NO_CALL_OPTIONS,
                reentrant=reentrant,
                http=http,
                allow=checked_allow(allow, function.__qualname__),
            )
        )

    return decorate if function is None else decorate(function)


def _check_function(function: Callable[..., Any]) -> None:
    """Raise TypeError for what cannot be a method."""
    if not inspect.isfunction(function):
        raise TypeError(_why_no_function(function))
    if not (function.__code__.co_argcount or function.__code__.co_flags & inspect.CO_VARARGS):
        raise TypeError(
            f"@method: {function.__qualname__} takes no `self`, so it could not be called on "
            "an actor; write `self` as its first parameter"
        )
    if inspect.isgeneratorfunction(function):
        raise TypeError(
            f"@method: {function.__qualname__} is a plain generator, which would hold up its "
            "node while it makes an item; "
            "make it an `async def` to stream its items, or return a list"
        )
