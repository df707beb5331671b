"""Arguments: whether they fit a method or constructor, what their parameters are called, and which are wanted as values.

References as arguments: which parameters of a method take the reference, and which its value. The annotation says it. A parameter that is
annotated as a `Reference` (or with one inside, as in `list[Reference[int]]`), as `object` or `Any`, or not at all, takes what the caller
gave. Any other takes the value, so a reference that comes for it is fetched before the method starts, where the method runs: the value goes
from its owner to its user, and not by way of the caller. Only whole arguments are looked at, as in Ray: one inside a list stays one.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from actors.errors import BadArgumentsError
from actors.reference import Reference

Needs = tuple[tuple[int | str, Reference[Any]], ...]
"""References to be fetched before a method starts, each with the place of its argument: an index, or a name."""

_KEPT = re.compile(r"\b(Reference|Any|object)\b")


@attrs.frozen
class ByValue:
    """Which arguments of a method are wanted as values. `rest`, `others`: those of `*args` and `**kwargs`."""

    positional: tuple[bool, ...] = ()
    rest: bool = False
    named: dict[str, bool] = attrs.field(factory=dict)
    others: bool = False

    def needs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Needs | None:
        """The references among these arguments that are to be fetched."""
        found: list[tuple[int | str, Reference[Any]]] = []
        for index, argument in enumerate(args):
            if isinstance(argument, Reference) and (self.positional[index] if index < len(self.positional) else self.rest):
                found.append((index, argument))
        for name, argument in kwargs.items():
            if isinstance(argument, Reference) and self.named.get(name, self.others):
                found.append((name, argument))
        return tuple(found) or None


def by_value(function: Callable[..., Any]) -> ByValue:
    """What the annotations of a method say."""
    try:
        hints: dict[str, object] = typing.get_type_hints(function)
    except Exception:  # a name that only type checkers see, or anything else: the text has to do
        hints = dict(function.__annotations__)
    positional: list[bool] = []
    named: dict[str, bool] = {}
    rest = others = False
    # Without the first parameter, which is the actor.
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
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
    return typing.get_origin(annotation) is Reference or any(_takes_references(part) for part in typing.get_args(annotation))


def taken(signature: inspect.Signature) -> str:
    """The parameters in one line: `(first, second=..., *rest, key)`. No default is shown: its repr is code of the user's."""
    shown: list[str] = []
    starred = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        starred = starred or one.kind is one.VAR_POSITIONAL
        shown.append(f"{stars}{one.name}{'' if one.default is one.empty else '=...'}")
    return f"({', '.join(shown)})"


def constructor(cls: type) -> inspect.Signature | None:
    """What the constructor of `cls` takes, without `self`. None if that cannot be read, or is anything at all.

    A decorated constructor is what its decorator made of it: what that wraps may be called with other arguments.
    """
    init: Any = inspect.getattr_static(cls, "__init__")
    if init is object.__init__:
        return inspect.Signature() if inspect.getattr_static(cls, "__new__") is vars(object)["__new__"] else None
    if not inspect.isfunction(init) or "__signature__" in vars(init):
        return None
    try:
        signature = inspect.signature(init, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        return None
    return signature.replace(parameters=parameters[1:], return_annotation=inspect.Signature.empty)


def check_constructor(
    cls: type, args: Sequence[object], kwargs: Mapping[str, object], what: str, *, partly: bool = False
) -> Mapping[str, object]:
    """Raises BadArgumentsError, which names the parameter, for arguments that the constructor of `cls` does not take.

    `what`: what is not started then. `partly`: others may be added. Returns the arguments by their parameters, as far as those are known.
    """
    signature = constructor(cls)
    if signature is None:
        return {}
    try:
        return (signature.bind_partial if partly else signature.bind)(*args, **kwargs).arguments
    except TypeError as error:
        raise BadArgumentsError(
            f"{what} was not started: {error}; the constructor of {cls.__qualname__} takes {taken(signature)}", method="__init__"
        ) from None


def places(signature: inspect.Signature | None, args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Each argument with the name of its parameter; one of `*rest` is `rest[0]`, one that has no parameter `args[0]`."""
    parameters = list(signature.parameters.values()) if signature is not None else []
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), None)
    for index, argument in enumerate(args):
        if index < len(positional):
            yield positional[index], argument
        else:
            yield (f"args[{index}]" if rest is None else f"{rest}[{index - len(positional)}]"), argument
    yield from kwargs.items()
