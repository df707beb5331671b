"""Types of the standard library that travel as they are, besides those that have tags of their own.

Each travels as messages do: the path of its class and its parts. So a node of an earlier version,
which does not know such a path, refuses the one value and not the connection. The path is a name of
this table and not looked up among the modules: nothing is imported for it but the standard
library's own module of the type, and no other class can be meant.

Bounded: what a constructor computes with is checked before it is called, because a peer chooses it.
Only exact types are in the table, so that nothing arrives as a slightly different type.
"""

from __future__ import annotations

import builtins
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PosixPath, PurePosixPath
from types import MappingProxyType
from typing import Any, cast

import attrs

from actors.errors import DecodeError, ProtocolError
from runtime.wire.exceptions import build

MAX_INTEGER_BITS = 8192
"""Bits of the numbers of a Fraction: their greatest common divisor takes time that grows with the
square of their size.
"""

MAX_ADDRESS = 256
"""Characters of a network address."""

FACTORIES = (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
"""The functions with which a defaultdict may make its values with: data, because any other function
would be code.
"""

EXCEPTIONS = sorted(
    {
        cls
        for cls in vars(builtins).values()
        if isinstance(cls, type)
        and issubclass(cls, Exception)
        and not issubclass(cls, ExceptionGroup)
    },
    key=lambda cls: cls.__name__,
)
"""The builtin exceptions, by their args and fields as those with `@message`. A group holds other
exceptions, perhaps of any class, and is refused.
"""


_PATHS = (PosixPath, PurePosixPath)

_ADDRESSES = (
    *(IPv4Address, IPv4Interface, IPv4Network),
    *(IPv6Address, IPv6Interface, IPv6Network),
)

TEXTS: tuple[type, ...] = (*_PATHS, *_ADDRESSES, Fraction)
"""Types that a text says in full, and whose constructors take that text."""

_FACTORIES_BY_NAME = {cls.__name__: cls for cls in FACTORIES}


class UnsendableError(Exception):
    """A value cannot be sent. The codec makes an EncodeError of it. `steps` lead from the refused
    value outwards to the whole value.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []

    def at(self, step: str) -> UnsendableError:
        """Return the error with the next outer step."""
        self.steps.append(step)
        return self


@attrs.frozen
class StandardType:
    """How instances of exactly `type` travel: `path`, then what `parts` gives for a value, which
    the codec writes. An exception has no `parts`: all classes of them are written in one way.
    `build` makes the value of these parts as they were decoded, and ignores further ones.

    `parts` raises UnsendableError. `build` raises DecodeError for what this process cannot build,
    and ProtocolError, TypeError or ValueError for what no node sends.
    """

    type: type
    path: str
    parts: Callable[[Any], list[object]] | None
    build: Callable[..., object]


def named_tuple_fields(cls: type) -> tuple[str, ...] | None:
    """The names of the fields of a class of named tuples; None for any other class."""
    names: object = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    if type(names) is not tuple or any(type(name) is not str for name in names):
        return None
    return cast("tuple[str, ...]", names)


def named_tuple(cls: type, names: tuple[str, ...], fields: object) -> object:
    """Build a named tuple. As with messages, fields that this side does not know are ignored, and
    those that the peer does not know get their defaults. Raises DecodeError.
    """
    if type(fields) is not dict:
        raise ProtocolError("a named tuple whose fields are not a map")
    values: dict[str, object] = {**getattr(cls, "_field_defaults", {}), **fields}
    missing = [name for name in names if name not in values]
    if missing:
        raise DecodeError(
            f"{cls.__module__}:{cls.__qualname__} has a field {missing[0]} here that was not sent, "
            "and no default for it; run the same code on both nodes"
        )
    # As `_make` does it: no constructor of the class's own runs.
    return tuple.__new__(cls, [values[name] for name in names])


def fields_and_notes(parts: Sequence[Any]) -> tuple[dict[str, object], list[str]]:
    """Read what an exception has in addition to its args: its fields and notes."""
    fields, notes = parts[:2] if len(parts) > 1 else ({}, [])
    if (
        type(fields) is not dict
        or not all(type(name) is str for name in fields)
        or type(notes) is not list
        or any(type(note) is not str for note in cast("list[object]", notes))
    ):
        raise ProtocolError("an exception whose fields are not a map, or whose notes are not texts")
    return fields, cast("list[str]", notes)


def _of_type(content: Any, kind: type) -> Any:
    if type(content) is not kind:
        raise ProtocolError(f"expected a {kind.__name__}, got a {type(content).__name__}")
    return content


def _complex_parts(value: complex) -> list[object]:
    return [value.real, value.imag]


def _complex(real: object, imag: object, *_: object) -> complex:
    return complex(_of_type(real, float), _of_type(imag, float))


def _range_parts(value: range) -> list[object]:
    numbers = [value.start, value.stop, value.step]
    if not all(_fits_64_bits(number) for number in numbers):
        raise UnsendableError("is a range beyond 64 bits; send its start, stop and step")
    return [numbers]


def _range(numbers: object, *_: object) -> range:
    # The length of a range takes a division, and so do its hash and its comparisons.
    start, stop, step = (_of_type(number, int) for number in _of_type(numbers, list))
    if not all(map(_fits_64_bits, (start, stop, step))):
        raise ProtocolError("a range beyond 64 bits")
    return range(start, stop, step)


def _fits_64_bits(number: Any) -> bool:
    # The numbers of a range may be objects of users with `__index__`: those are kept as they are.
    return type(number) in (int, bool) and number.bit_length() <= 63


def _fraction_parts(value: Fraction) -> list[object]:
    numbers = value.as_integer_ratio()
    if max(number.bit_length() for number in numbers) > MAX_INTEGER_BITS:
        raise UnsendableError(
            f"is a Fraction of more than {MAX_INTEGER_BITS} bits; send its .as_integer_ratio()"
        )
    return [list(numbers)]


def _fraction(numbers: object, *_: object) -> Fraction:
    above, below = (_of_type(number, int) for number in _of_type(numbers, list))
    if max(above.bit_length(), below.bit_length()) > MAX_INTEGER_BITS or below <= 0:
        raise ProtocolError("a fraction of more digits than a node sends, or without a divisor")
    return Fraction(above, below)


def _deque_parts(value: deque[object]) -> list[object]:
    return [list(value), value.maxlen]


def _deque(items: object, limit: object = None, *_: object) -> deque[object]:
    return deque(_of_type(items, list), None if limit is None else _of_type(limit, int))


def _mapping_parts(value: dict[object, object]) -> list[object]:
    # As a plain dict in the same order, with the bounds on depth and keys of one.
    return [dict(value)]


def _ordered_dict(content: object, *_: object) -> OrderedDict[object, object]:
    return OrderedDict(_of_type(content, dict))


def _counter(content: object, *_: object) -> Counter[object]:
    return Counter(_of_type(content, dict))


def _default_dict_parts(value: defaultdict[object, object]) -> list[object]:
    factory = value.default_factory
    if factory is not None and factory not in FACTORIES:
        raise UnsendableError(
            "is a defaultdict whose factory is code of its own; send dict(...) of it"
        )
    name = None if factory is None else cast("type", factory).__name__
    return [dict(value), name]


def _default_dict(
    content: object, factory: object = None, *_: object
) -> defaultdict[object, object]:
    return defaultdict(
        None if factory is None else _FACTORIES_BY_NAME[_of_type(factory, str)],
        _of_type(content, dict),
    )


def _text_parts(value: object) -> list[object]:
    return [str(value)]


def _path_of(cls: type) -> Callable[..., object]:
    return lambda text, *_: cls(_of_type(text, str))


def _address_of(cls: type) -> Callable[..., object]:
    def read(text: object, *_: object) -> object:
        if len(_of_type(text, str)) > MAX_ADDRESS:
            raise ProtocolError("a network address of more characters than any has")
        return cls(text)

    return read


def _address_parts(value: object) -> list[object]:
    text = str(value)
    # The scope of an IPv6 address may be a text of any length.
    if len(text) > MAX_ADDRESS:
        raise UnsendableError(f"is a network address of more than {MAX_ADDRESS} characters")
    return [text]


def _exception_of(cls: type[Exception]) -> Callable[..., object]:
    return lambda args, *more: build(cls, tuple(_of_type(args, list)), *fields_and_notes(more))


# The paths are those of the modules that define the types in Python 3.11: of later versions, some
# have moved a class to a private module (`pathlib._local`).
_TABLE: tuple[StandardType, ...] = (
    StandardType(complex, "builtins:complex", _complex_parts, _complex),
    StandardType(range, "builtins:range", _range_parts, _range),
    StandardType(deque, "collections:deque", _deque_parts, _deque),
    StandardType(OrderedDict, "collections:OrderedDict", _mapping_parts, _ordered_dict),
    StandardType(Counter, "collections:Counter", _mapping_parts, _counter),
    StandardType(defaultdict, "collections:defaultdict", _default_dict_parts, _default_dict),
    StandardType(Fraction, "fractions:Fraction", _fraction_parts, _fraction),
    *(StandardType(cls, f"pathlib:{cls.__name__}", _text_parts, _path_of(cls)) for cls in _PATHS),
    *(
        StandardType(cls, f"ipaddress:{cls.__name__}", _address_parts, _address_of(cls))
        for cls in _ADDRESSES
    ),
    *(
        StandardType(cls, f"builtins:{cls.__name__}", None, _exception_of(cls))
        for cls in EXCEPTIONS
    ),
)

BY_TYPE = MappingProxyType({each.type: each for each in _TABLE})
"""The table, by the exact type."""

BY_PATH = MappingProxyType({each.path: each for each in _TABLE})
"""The table, by the path that is sent."""
