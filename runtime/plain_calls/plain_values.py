"""Plain values: what clients without the application's classes send and get.

None, booleans, numbers, text, bytes, lists, and dictionaries with text as keys, as CBOR. Results of
other types are written as these: dates, decimals, UUIDs, paths, fractions and network addresses as
text, enums as their values, messages and named tuples as dictionaries of their fields, what has a
converter as what that sends. What has no such form, and what could be mistaken for it, is a
dictionary with one key that begins with a dollar sign:

    {"$pairs": [[key, value], ...]}   a dictionary with keys that are no text
    {"$dict": {...}}                  a dictionary with one key that begins with a dollar sign
    {"$actor": name}                  a handle
    {"$reference": text}              a reference; its value stays where it is
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, NoReturn, cast
from uuid import UUID

import cbor2

from actors.class_names import qualified_name
from actors.converters import converter_of
from actors.errors import DecodeError, EncodeError
from actors.handle import Handle
from actors.messages import message_type
from actors.reference import Reference
from runtime.user_errors import guarded, repr_of, summary_of
from runtime.wire.arrays import TWO_ITEMS
from runtime.wire.exceptions import fields_of
from runtime.wire.plain_writer import check_text
from runtime.wire.standard_types import EXCEPTIONS, TEXTS, UnsendableError, named_tuple_fields
from runtime.wire.tags import BUILTIN_TAGS

MOST_DEPTH = 32
"""Containers within containers, as on the wire between nodes."""

MOST_INTEGER_BITS = 8192
"""Of a whole number: converting one to decimal digits takes time that grows with its square."""

FEW_CONTAINERS = 16 * 1024
"""Containers of a value from which those that are met again are counted."""

MOST_COPIES = 64 * 1024
"""Containers that may be met again after that: each is written anew."""

MOST_ITEMS = 1_000_000
"""Values and keys in a body, its containers included: reading so many holds up other threads for a
tenth of a second.
"""

MOST_CONTAINERS = 256 * 1024
"""Lists and dictionaries among them. They are much dearer: the collector of Python goes through all
there are again and again. Eight million empty lists, which are 8 MB, would take ten seconds.
"""

_AS_IT_IS = frozenset({NoneType, bool, float, str, bytes})

_END_TEXT = "understudy: the end of a plain value"
_END = cbor2.dumps(_END_TEXT)

_DICTIONARIES = frozenset({OrderedDict, Counter, defaultdict})


def encoded(value: object) -> bytes:
    """The value as CBOR, the same bytes for equal values. Raises EncodeError, which names the path
    to what has no plain form.
    """
    return encoded_plain(plain(value, "result", 0))


def encoded_plain(value: object) -> bytes:
    """The same for what is plain already, as a request is that was read from JSON."""
    try:
        return cbor2.dumps(value, canonical=True)
    except (cbor2.CBOREncodeError, UnicodeError, ValueError) as error:
        # Text with half of a surrogate pair, which no UTF-8 can say. Only now, so that what can be
        # written is not looked through, is it searched for.
        plain(value, "body", 0)
        raise EncodeError(f"this cannot be written as CBOR: {error}") from None


def _steps() -> tuple[int, ...]:
    """By the first byte of an item of CBOR: how many bytes it and its argument have; negative for a
    long string, whose argument is the number of bytes that follow; 0 for what plain data does not
    have: items without a length, and their end.
    """
    found: list[int] = []
    for first in range(256):
        major, short = first >> 5, first & 0x1F
        is_string = major in (2, 3)
        if short < 24:
            found.append(1 + short if is_string else 1)
        elif short < 28:
            size = 1 + (1 << (short - 24))
            found.append(-size if is_string else size)
        else:
            found.append(0)
    return tuple(found)


_STEPS = _steps()


def too_many_items() -> DecodeError:
    """The error for a body of too many values."""
    return DecodeError(
        f"this has more than {MOST_ITEMS:,} values and keys, or more than {MOST_CONTAINERS:,} "
        "lists and dictionaries; send large arrays as bytes, or in parts"
    )


def check_items(data: bytes) -> None:
    """Raises DecodeError for CBOR of too many items, before anything is built of them: that cannot
    be interrupted, and holds up all threads. Goes from item to item, and so takes no more time than
    the bound allows.
    """
    if len(data) <= MOST_CONTAINERS:
        # An item has a byte at least.
        return
    at, end, items, containers = 0, len(data), 0, 0
    while at < end:
        first = data[at]
        step = _STEPS[first]
        if step > 0:
            at += step
            if 0x80 <= first < 0xC0:
                containers += 1
        elif step < 0:
            # One that is longer than the data ends this loop, and is refused by the decoder.
            at += int.from_bytes(data[at + 1 : at - step]) - step
        else:
            raise DecodeError(f"this is not CBOR of plain data: byte {first:#04x} at {at}")
        items += 1
        if items > MOST_ITEMS or containers > MOST_CONTAINERS:
            raise too_many_items()


def decoded(data: bytes) -> object:
    """Decode plain CBOR. Raises DecodeError for anything else."""
    try:
        # As the first of two items, the second of which is known: cbor2 ignores what follows an
        # item, and so what follows the first is seen.
        pair: object = cbor2.loads(
            TWO_ITEMS + data + _END,
            max_depth=MOST_DEPTH + 1,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            semantic_decoders=dict.fromkeys(BUILTIN_TAGS, _refuse_tag),
            tag_hook=_refuse_tag,
        )
    except Exception as error:
        raise DecodeError(f"this is not CBOR of plain data: {error}") from None
    if type(pair) is not list or len(pair) != 2 or pair[1] != _END_TEXT:
        raise DecodeError("this is not a single item of CBOR: something follows it, or is missing")
    check_plain(pair[0], 0)
    return pair[0]


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("tags are not plain data")


def check_plain(value: object, depth: int = 0) -> None:
    """Raises DecodeError for what a decoder gives beyond plain data: keys that are no text,
    undefined, huge numbers, too deep a nesting.
    """
    kind = type(value)
    if depth > MOST_DEPTH:
        raise DecodeError(f"plain data nests no deeper than {MOST_DEPTH} levels")
    if kind is dict:
        for key, one in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise DecodeError(f"the keys of plain data are text, not {type(key).__name__}")
            check_plain(one, depth + 1)
    elif kind is list:
        for one in value:  # type: ignore[attr-defined]
            check_plain(one, depth + 1)
    elif kind is int:
        if value.bit_length() > MOST_INTEGER_BITS:  # type: ignore[attr-defined]
            raise DecodeError(f"a whole number has more than {MOST_INTEGER_BITS} bits")
    elif kind not in _AS_IT_IS:
        raise DecodeError(f"{kind.__name__} is not plain data")


class _RefusedError(Exception):
    """A value has no plain form. `steps` lead from it outwards to the whole value: its path is made
    only of what is refused, since to make it for each value would be most of the work.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []


class _Containers:
    """The containers of one value, as they are met. 25 lists, each of which holds the next one
    twice, are met 2**25 times: such a value is refused.
    """

    __slots__ = ("_copies", "_few", "_met")

    def __init__(self) -> None:
        self._few = FEW_CONTAINERS
        self._copies = 0
        self._met: dict[int, object] = {}
        """By their ids, which stay theirs because the objects are kept."""

    def meet(self, value: object) -> None:
        """Note one. Raises _RefusedError for one copy too many."""
        if self._few:
            self._few -= 1
            return
        if id(value) not in self._met:
            self._met[id(value)] = value
            return
        self._copies += 1
        if self._copies > MOST_COPIES:
            raise _RefusedError(
                f" is met again after {MOST_COPIES} containers that were met before, so that "
                "the value would arrive with as many copies; send each once, and indices of them"
            )


def plain(value: Any, path: str, depth: int) -> object:
    """The value as plain data. Raises EncodeError, which names the path to what has none."""
    try:
        return _plain(value, depth, _Containers())
    except _RefusedError as error:
        path += "".join(reversed(error.steps))
        raise EncodeError(f"{path}{error.text}", path=path) from None


def _plain(value: Any, depth: int, met: _Containers) -> object:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind in _AS_IT_IS:
        return value
    if kind is int:
        if value.bit_length() > MOST_INTEGER_BITS:
            raise _RefusedError(f" has more than {MOST_INTEGER_BITS} bits")
        return value
    if depth >= MOST_DEPTH:
        raise _RefusedError(f" nests deeper than {MOST_DEPTH} levels")
    met.meet(value)
    if kind is list or kind is tuple or kind is deque:
        return _plain_list(value, depth + 1, met)
    if kind is set or kind is frozenset:
        return [_step(" (a member)", one, depth + 1, met) for one in value]
    if kind is dict or kind in _DICTIONARIES:
        return _plain_dict(value, depth + 1, met)
    writer = _WRITERS.get(kind)
    if writer is not None:
        written = writer(value)
        # A path of files may have bytes that are no text.
        return _text(written) if type(written) is str else written
    return _plain_object(value, kind, depth + 1, met)


def _step(step: str, value: Any, depth: int, met: _Containers) -> object:
    """The value as plain data, `step` being the last one to it."""
    try:
        return _plain(value, depth, met)
    except _RefusedError as error:
        error.steps.append(step)
        raise


def _text(text: str) -> str:
    try:
        check_text(text)
    except UnsendableError as error:
        raise _RefusedError(f" {error}") from None
    return text


def _plain_list(value: Iterable[Any], depth: int, met: _Containers) -> object:
    found: list[object] = []
    try:
        for one in value:
            # The most common ones without a call: millions of numbers hold up the event loop.
            kind = type(one)
            if (
                kind is float
                or (kind is str and one.isascii())
                or (kind is int and one.bit_length() <= MOST_INTEGER_BITS)
            ):
                found.append(one)
            else:
                found.append(_plain(one, depth, met))
    except _RefusedError as error:
        error.steps.append(f"[{len(found)}]")
        raise
    return found


def _plain_dict(value: dict[Any, Any], depth: int, met: _Containers) -> object:
    for key in value:
        if type(key) is not str:
            return _plain_pairs(value, depth, met)
        if not key.isascii():
            _step(" (a key)", key, depth, met)
    found: dict[str, object] = {}
    key = ""
    try:
        for key, one in value.items():
            found[key] = _plain(one, depth, met)
    except _RefusedError as error:
        error.steps.append(f"[{key!r}]")
        raise
    marked = len(found) == 1 and next(iter(found)).startswith("$")
    return {"$dict": found} if marked else found


def _plain_pairs(value: dict[Any, Any], depth: int, met: _Containers) -> object:
    return {
        "$pairs": [
            [_step(" (a key)", key, depth, met), _step("[...]", one, depth, met)]
            for key, one in value.items()
        ]
    }


def _plain_object(value: Any, kind: type, depth: int, met: _Containers) -> object:
    if isinstance(value, Enum):
        return _plain(value.value, depth, met)
    if issubclass(kind, Handle):
        return {"$actor": value.name}
    if issubclass(kind, Reference):
        return {"$reference": repr_of(value)}
    described = message_type(kind)
    if described is not None:
        # Attributes of users' classes may be properties that raise anything.
        fields = guarded(
            lambda: (
                fields_of(value)
                if described.is_exception
                else {name: getattr(value, name) for name, _ in described.fields}
            ),
            lambda error: _refuse(f": its fields cannot be read: {summary_of(error)}"),
        )
        return {name: _step(f".{name}", one, depth, met) for name, one in fields.items()}
    names = named_tuple_fields(kind)
    if names is not None:
        pairs = zip(names, cast("tuple[object, ...]", value), strict=True)
        return {name: _step(f".{name}", one, depth, met) for name, one in pairs}
    converter = converter_of(kind)
    if converter is not None:
        sent = guarded(
            lambda: converter.to_plain(value),
            lambda error: _refuse(f": its converter raised {summary_of(error)}"),
        )
        return _plain(sent, depth, met)
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        listed = value.tolist()
        # Those that Python has no number for, such as longdouble, return themselves.
        if type(listed) is not kind:
            return _plain(listed, depth, met)
    if kind in (bytearray, memoryview):
        return bytes(value)
    raise _RefusedError(f" is a {qualified_name(kind)}, which has no plain form")


def _refuse(text: str) -> NoReturn:
    raise _RefusedError(text)


def _isoformat(value: date | time) -> str:
    return value.isoformat()


_WRITERS: dict[type, Callable[[Any], object]] = {
    datetime: _isoformat,
    date: _isoformat,
    time: _isoformat,
    timedelta: timedelta.total_seconds,
    Decimal: str,
    UUID: str,
    complex: lambda value: {"real": value.real, "imag": value.imag},
    range: lambda value: {"start": value.start, "stop": value.stop, "step": value.step},
    **dict.fromkeys(EXCEPTIONS, summary_of),
    **dict.fromkeys(TEXTS, str),
}
