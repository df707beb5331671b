"""From what CBOR said back to values: the content of each tag of ours, checked and built.

Each reader gets content that is decoded already and belongs to nobody else. Readers raise DecodeError for what this process cannot
build, ProtocolError (or TypeError, ValueError, for shapes that do not fit) for what no peer of ours sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from actors.errors import DecodeError, ProtocolError
from actors.messages import MessageType, message_type
from runtime.user_errors import is_interrupt, summary_of
from runtime.wire.exceptions import build
from runtime.wire.frames import Buffer
from runtime.wire.segments import ReceivedSegment, Segment, writable
from runtime.wire.values import (
    ARRAY,
    DATE,
    DATETIME,
    DECIMAL,
    ENUM,
    FROZENSET,
    IDENTIFIER,
    MESSAGE,
    PAIRS,
    SCALAR,
    SEGMENT,
    SET,
    TIME,
    TIMEDELTA,
    TUPLE,
)

ContentReader = Callable[[Any], object]

MAX_COLLISIONS = 64
"""Keys of one dict or set that may share hashes with others. Honest data has next to none; a peer that could make thousands of integers
collide would make building the dict take the square of their number."""

_DTYPE = re.compile(r"[<>|=][biufcSUMmV]\d{1,9}(\[\d{0,9}[A-Za-zμ]{1,2}\])?")


def segment_readers(take: Callable[[object], Segment], *, shared: bool = False) -> dict[int, ContentReader]:
    """A reader for each tag that may refer to a segment; `take` hands out a segment by its index. What was received large is not copied.

    `shared`: arrays are read-only, because others read their memory as well.
    """
    memory = _read_only if shared else writable
    return {SEGMENT: lambda content: bytes(take(content)), ARRAY: lambda content: _array(content, take, memory)}


def content_readers(find_class: Callable[[str], type]) -> dict[int, ContentReader]:
    """A reader for each tag that stands for itself; `find_class` finds a class by its import path."""
    return {
        SCALAR: _numpy_scalar,
        MESSAGE: lambda content: _message(content, find_class),
        ENUM: lambda content: _enum(content, find_class),
        TUPLE: lambda content: tuple(_list(content)),
        PAIRS: _pairs,
        SET: lambda content: set(_distinct(_list(content))),
        FROZENSET: lambda content: frozenset(_distinct(_list(content))),
        DATETIME: _datetime,
        DATE: date.fromisoformat,
        TIME: _time,
        TIMEDELTA: lambda content: timedelta(*_integers(content, 3)),
        DECIMAL: _decimal,
        IDENTIFIER: lambda content: UUID(bytes=content),
    }


def _list(content: Any) -> list[object]:
    if type(content) is not list:
        raise ProtocolError(f"a {type(content).__name__} where a list belongs")
    return content


def _integers(content: Any, count: int) -> list[int]:
    items = _list(content)
    integers = [item for item in items if type(item) is int]
    if len(items) != count or len(integers) != count:
        raise ProtocolError(f"anything but {count} integers where {count} integers belong")
    return integers


def _text(content: Any) -> str:
    if type(content) is not str:
        raise ProtocolError(f"a {type(content).__name__} where a text belongs")
    return content


def _distinct(keys: Collection[object]) -> Collection[object]:
    """`keys`, if a dict or set of them is built in linear time and keeps each of them."""
    try:
        hashes = len(set(map(hash, keys)))
        different = len(set(keys)) if len(keys) - hashes <= MAX_COLLISIONS else 0
    except BaseException as error:  # noqa: ASYNC103  no checkpoint: keys may be messages, whose `__hash__` and `__eq__` are user code
        if is_interrupt(error):
            raise
        if all(message_type(type(key)) is None for key in keys):
            raise  # noqa: ASYNC104  a list, or what else no peer of ours sends as a key
        raise DecodeError(f"a key cannot be used as one here: its hash, or a comparison, raised {summary_of(error)}") from None  # noqa: ASYNC104
    if len(keys) - hashes > MAX_COLLISIONS:
        raise ProtocolError(f"{len(keys)} keys with only {hashes} hashes")
    if different != len(keys):
        raise ProtocolError("a key that occurs twice")
    return keys


def _pairs(content: Any) -> dict[object, object]:
    items = _list(content)
    if len(items) % 2:
        raise ProtocolError("a key without a value")
    return dict(zip(_distinct(items[::2]), items[1::2], strict=True))


def _zoned(content: Any) -> tuple[str, bool, ZoneInfo | None]:
    text, fold, key = _list(content)
    if type(fold) is not int or fold not in (0, 1):
        raise ProtocolError("a fold that is neither 0 nor 1")
    if key is None:
        return _text(text), bool(fold), None
    try:
        return _text(text), bool(fold), ZoneInfo(_text(key))
    except (KeyError, OSError, ValueError) as error:
        raise DecodeError(f"the time zone {key!r} is not known here; install the tzdata package on this node") from error


def _datetime(content: Any) -> datetime:
    text, fold, zone = _zoned(content)
    found = datetime.fromisoformat(text).replace(fold=fold)
    return found if zone is None else found.replace(tzinfo=zone)


def _time(content: Any) -> time:
    text, fold, zone = _zoned(content)
    found = time.fromisoformat(text).replace(fold=fold)
    return found if zone is None else found.replace(tzinfo=zone)


def _decimal(content: Any) -> Decimal:
    try:
        return Decimal(_text(content))
    except ArithmeticError as error:
        raise ProtocolError("a decimal number that is none") from error


def _enum(content: Any, find_class: Callable[[str], type]) -> Enum:
    path, name = _list(content)
    cls = find_class(_text(path))
    if not issubclass(cls, Enum):
        raise DecodeError(f"{path} is no Enum here")
    if issubclass(cls, Flag):
        if type(name) is int:
            try:
                return cls(name)
            except ValueError as error:
                raise DecodeError(f"{path} has no flags {name} here; run the same code on both nodes") from error
    elif type(name) is str:
        member = cls.__members__.get(name)
        if member is not None:
            return member
    raise DecodeError(f"{path} has no member {name!r} here; run the same code on both nodes")


def _message(content: Any, find_class: Callable[[str], type]) -> object:
    path, fields, *more = _list(content)
    cls = find_class(_text(path))
    mark = message_type(cls)
    if mark is None:
        raise DecodeError(f"{path} is not marked with @message here, so nothing of it is built from bytes")
    args: list[object] = _list(fields) if mark.is_exception else []
    if not mark.is_exception and type(fields) is not dict:
        raise ProtocolError("a message whose fields are not a map")
    set_besides, notes = _besides(more)
    try:
        if mark.is_exception:
            return build(cast("type[BaseException]", cls), tuple(args), set_besides, notes)
        # The class's own constructor and validators run here.
        return _instance(cls, mark, cast("dict[object, object]", fields))
    except BaseException as error:  # noqa: ASYNC103  no checkpoint
        if is_interrupt(error):
            raise
        raise DecodeError(f"{path} could not be built from what was sent ({summary_of(error)})") from None  # noqa: ASYNC104


def _instance(cls: type, mark: MessageType, fields: dict[object, object]) -> object:
    """Fields that this side does not know are ignored, those that the peer does not know take their defaults."""
    return cls(**{argument: fields[argument] for _, argument in mark.fields if argument in fields})


def _besides(more: list[Any]) -> tuple[dict[str, object], list[str]]:
    """What an exception has besides its args: its fields and notes."""
    fields, notes = more[:2] if len(more) > 1 else ({}, [])
    if type(fields) is not dict or not all(type(name) is str for name in fields) or any(type(note) is not str for note in _list(notes)):
        raise ProtocolError("an exception whose fields are not a map, or whose notes are not texts")
    return fields, notes


def _numpy_scalar(content: Any) -> object:
    dtype, data = _list(content)
    if type(data) is not bytes:
        raise ProtocolError("a numpy scalar without its bytes")
    return _ndarray(dtype, [], bytearray(data))[()]


def _array(content: Any, take: Callable[[object], Segment], memory: Callable[[Segment], Buffer]) -> object:
    dtype, shape, data = _list(content)
    # Users write into arrays: whether they can must not depend on how the bytes happened to arrive.
    return _ndarray(dtype, _list(shape), memory(data if type(data) is bytes else take(data)))


def _read_only(segment: Segment) -> Buffer:
    return bytes(segment) if isinstance(segment, ReceivedSegment) else memoryview(segment).toreadonly()


def _ndarray(dtype: object, shape: list[Any], buffer: Buffer) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise DecodeError("a numpy value cannot be read here, because numpy is not installed; install it on this node") from error
    if not _DTYPE.fullmatch(_text(dtype)):
        raise ProtocolError("a dtype that is not plain")
    found = numpy.dtype(_text(dtype))
    if any(type(length) is not int or length < 0 for length in shape) or math.prod(shape) * found.itemsize != len(buffer):
        raise ProtocolError("an array whose shape does not fit its bytes")
    if not len(buffer) or not memoryview(buffer).readonly:
        return numpy.ndarray(shape, found, buffer)
    # numpy.ndarray would look behind the view for what it is a view of, which may be writable.
    return numpy.frombuffer(buffer, found).reshape(shape)
