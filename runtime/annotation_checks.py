"""The arguments and answers of the runtime's own services, checked against their annotations where
they have come from a peer.

The arguments and answers of a service go on to what serves the whole node: tables, tasks, other
nodes. A number in the place of a name would raise there, where it is not expected, and perhaps much
later. Methods of users need no such check: an exception that they raise ends only a call.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, cast

import attrs

from actors.messages import message_type
from actors.method import Address
from actors.options import CallOptions, SpawnOptions
from actors.retry import RetryPolicy

Check = Callable[[object], bool]

_SEQUENCES = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)

_CHECKED_WHEN_MADE = frozenset[type]({Address, CallOptions, RetryPolicy, SpawnOptions})
"""Messages whose constructors check the types of all their fields: nothing is left to look at."""


def check_arguments(
    function: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    """Raises TypeError, which names the parameter, for arguments of a method that are not what its
    annotations say.

    Too many of them, or too few, are for the call itself to refuse.
    """
    checks = _checks(function)
    for (name, check), value in zip(checks.items(), args, strict=False):
        if not check(value):
            raise TypeError(
                f"{function.__name__}() was given a {name} of another type, or with another in "
                f"it: {type(value).__name__}"
            )
    for name, value in kwargs.items():
        if name in checks and not checks[name](value):
            raise TypeError(
                f"{function.__name__}() was given a {name} of another type, or with another in "
                f"it: {type(value).__name__}"
            )


def fits_answer(function: Callable[..., Any], answer: object) -> bool:
    """Return whether a method may have returned this value, by its annotation."""
    return _answer_check(function)(answer)


@attrs.frozen
class ArgumentTypes:
    """Says, in an `Annotated` list, what stands at which place of it: a tuple that travels as a
    list.
    """

    parts: tuple[Any, ...]

    @classmethod
    def of(cls, *parts: Any) -> ArgumentTypes:
        """One of these."""
        return cls(parts)


@functools.cache
def _answer_check(function: Callable[..., Any]) -> Check:
    return check_of(typing.get_type_hints(function, include_extras=True)["return"])


@functools.cache
def _checks(function: Callable[..., Any]) -> dict[str, Check]:
    """Return the checks by the names of the parameters, in their order, but for the first, which is
    the service.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    return {
        name: check_of(hints[name]) for name in list(inspect.signature(function).parameters)[1:]
    }


@functools.cache
def check_of(annotation: Any) -> Check:
    """Return the check of decoded values by an annotation. Raises TypeError for an annotation that
    cannot be checked.
    """
    if annotation is Any or annotation is object:
        return _anything
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        rows = [one for one in parts[1:] if isinstance(one, ArgumentTypes)]
        return _row([check_of(part) for part in rows[0].parts]) if rows else check_of(parts[0])
    if origin is Union or origin is types.UnionType:
        return _any_of([check_of(part) for part in parts])
    if origin is Literal:
        return _one_of(parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        return _row([check_of(part) for part in parts])
    if annotation in _SEQUENCES or origin in _SEQUENCES:
        return _sequence(check_of(parts[0]) if parts else _anything)
    if annotation in _MAPPINGS or origin in _MAPPINGS:
        return _mapping(*(map(check_of, parts) if parts else (_anything, _anything)))
    if annotation is float:
        # An int is a whole number of seconds.
        return _ExactTypes(frozenset({float, int}))
    if isinstance(origin, type):
        # A generic class, such as a Reference[object]: what it holds is not looked at.
        annotation = origin
    if not isinstance(annotation, type):
        raise TypeError(f"{annotation!r} says nothing that could be checked of an argument")
    if message_type(annotation) is not None and attrs.has(annotation):
        return _message(annotation)
    return _ExactTypes(frozenset({annotation}))


def _anything(value: object) -> bool:
    return True


@attrs.frozen
class _ExactTypes:
    """Exactly one of these types: True is no number of an incarnation."""

    types: frozenset[type]

    def __call__(self, value: object) -> bool:
        return type(value) in self.types


def _one_of(constants: tuple[object, ...]) -> Check:
    kinds = frozenset(map(type, constants))
    pairs = frozenset((type(one), one) for one in constants)

    # By its type first: what a peer sends need not have a hash.
    return lambda value: type(value) in kinds and (type(value), value) in pairs


def _any_of(checks: Sequence[Check]) -> Check:
    """One question for all exact types: `str | None` is the most common annotation."""
    exact = frozenset[type]().union(
        *(check.types for check in checks if isinstance(check, _ExactTypes))
    )
    others = [check for check in checks if not isinstance(check, _ExactTypes)]
    if not others:
        return _ExactTypes(exact)
    return lambda value: type(value) in exact or any(check(value) for check in others)


def _sequence(check: Check) -> Check:
    return lambda value: (
        type(value) in (list, tuple) and all(map(check, cast("Sequence[object]", value)))
    )


def _row(checks: Sequence[Check]) -> Check:
    def check(value: object) -> bool:
        if type(value) not in (list, tuple):
            return False
        items = cast("Sequence[object]", value)
        return len(items) == len(checks) and all(
            check(item) for check, item in zip(checks, items, strict=True)
        )

    return check


def _mapping(key: Check, item: Check) -> Check:
    return lambda value: (
        type(value) is dict
        and all(
            key(one) and item(other) for one, other in cast("dict[object, object]", value).items()
        )
    )


def _message(cls: type) -> Check:
    """Return a check that a value is of this class or of a derived one, and that its fields are
    what they say.
    """
    fields: dict[str, Check] = {}
    is_checked = cls in _CHECKED_WHEN_MADE

    def check(value: object) -> bool:
        if is_checked and type(value) is cls:
            return True
        if not isinstance(value, cls):
            return False
        if not fields:
            # Not before it is needed: a class may have itself in a field.
            hints = typing.get_type_hints(cls, include_extras=True)
            fields.update((field.name, check_of(hints[field.name])) for field in attrs.fields(cls))
        return all(fits(getattr(value, name)) for name, fits in fields.items())

    return check
