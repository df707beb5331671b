"""References as arguments: which parameters of a method take the reference, and which its value.

The annotation says it. A parameter that is annotated as a `Reference` (or with one inside, as in `list[Reference[int]]`), as `object` or
`Any`, or not at all, takes what the caller gave. Any other takes the value, so a reference that comes for it is fetched before the method
starts, where the method runs: the value goes from its owner to its user, and not by way of the caller. Only whole arguments are looked at,
as in Ray: a reference inside a list stays one.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import attrs

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
