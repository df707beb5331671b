"""Texts and numbers of exactly Python's own types.

A member of a `StrEnum`, a number of numpy's or any other subclass of `str`, `int` and `float` is
welcome as an option, and becomes the plain value: what the runtime compares, keeps in tables and
sends to other nodes has no methods of the user's.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import attrs

T = TypeVar("T")


def exact(value: T) -> T:
    """Return the plain `str`, `int` or `float` for a value of a subclass; any other value as it is.
    Runs no code of the value's own.
    """
    kind: type = type(value)
    if kind is str or kind is int or kind is float or value is None:
        return value
    given = cast("Any", value)
    if issubclass(kind, str):
        return cast("T", str.__str__(given))
    if issubclass(kind, int) and kind is not bool:
        return cast("T", int.__int__(given))
    return cast("T", float.__float__(given) if issubclass(kind, float) else given)


def exact_fields(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Make the values of all fields without a converter exact: for `field_transformer` of attrs."""
    return [
        field.evolve(converter=exact) if field.init and field.converter is None else field
        for field in fields
    ]
