"""From decoded CBOR back to values: the content of each of our tags is checked, then the value is
built.

Each reader gets content that is decoded and has no other owner. Readers raise DecodeError for what
this process cannot build, and ProtocolError (or TypeError, ValueError for shapes that do not fit)
for what no peer of ours sends.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, NoReturn, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from actors.converters import Converter, converter_at
from actors.errors import DecodeError, ProtocolError
from actors.messages import MessageType, message_type
from runtime.user_errors import guarded, is_interrupt, summary_of
from runtime.wire.exceptions import build
from runtime.wire.frames import Buffer, ReceivedSegment, Segment, writable
from runtime.wire.keys import distinct
from runtime.wire.standard_types import BY_PATH, fields_and_notes, named_tuple, named_tuple_fields
from runtime.wire.tags import (
    ARRAY,
    CONVERTED,
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


MAX_DIMENSIONS = 64
"""Dimensions of an array: numpy's own limit. Multiplying the lengths of millions of dimensions
would take hours.
"""


_DTYPE = re.compile(r"[<>|=][biufcSUMmV]\d{1,9}(\[\d{0,9}[A-Za-zμ]{1,2}\])?")


def segment_readers(
    take: Callable[[object], Segment], *, shared: bool = False
) -> dict[int, ContentReader]:
    """Return the readers for the tags that may refer to a segment. `take` hands out a segment by
    its index; large received segments are not copied. `shared`: arrays are read-only, because
    others read their memory as well.
    """
    memory = _read_only if shared else writable
    return {
        SEGMENT: lambda content: bytes(take(content)),
        ARRAY: lambda content: _read_array(content, take, memory),
    }


def content_readers(find_class: Callable[[str], type]) -> dict[int, ContentReader]:
    """Return the readers for the other tags. `find_class` finds a class by its import path."""
    return {
        SCALAR: _read_numpy_scalar,
        MESSAGE: lambda content: _read_message(content, find_class),
        ENUM: lambda content: _read_enum(content, find_class),
        TUPLE: lambda content: tuple(_read_list(content)),
        PAIRS: _read_pairs,
        SET: lambda content: set(distinct(_read_list(content))),
        FROZENSET: lambda content: frozenset(distinct(_read_list(content))),
        DATETIME: _read_datetime,
        DATE: date.fromisoformat,
        TIME: _read_time,
        TIMEDELTA: lambda content: timedelta(*_read_integers(content, 3)),
        DECIMAL: _read_decimal,
        IDENTIFIER: lambda content: UUID(bytes=content),
    }


def _read_list(content: Any) -> list[object]:
    if type(content) is not list:
        raise ProtocolError(f"expected a list, got a {type(content).__name__}")
    return content


def _read_integers(content: Any, count: int) -> list[int]:
    items = _read_list(content)
    integers = [item for item in items if type(item) is int]
    if len(items) != count or len(integers) != count:
        raise ProtocolError(f"anything but {count} integers where {count} integers belong")
    return integers


def _read_text(content: Any) -> str:
    if type(content) is not str:
        raise ProtocolError(f"expected a text, got a {type(content).__name__}")
    return content


def _read_pairs(content: Any) -> dict[object, object]:
    items = _read_list(content)
    if len(items) % 2:
        raise ProtocolError("a key without a value")
    return dict(zip(distinct(items[::2]), items[1::2], strict=True))


def _read_zoned(content: Any) -> tuple[str, bool, ZoneInfo | None]:
    text, fold, key = _read_list(content)
    if type(fold) is not int or fold not in (0, 1):
        raise ProtocolError("a fold that is neither 0 nor 1")
    if key is None:
        return _read_text(text), bool(fold), None
    try:
        # ZoneInfo itself refuses a key that leads out of its folder, and keeps only a few zones.
        return _read_text(text), bool(fold), ZoneInfo(_read_text(key))
    except (KeyError, OSError, ValueError) as error:
        raise DecodeError(
            f"the time zone {key!r} is not known here; install the tzdata package on this node"
        ) from error


def _read_datetime(content: Any) -> datetime:
    text, fold, zone = _read_zoned(content)
    found = datetime.fromisoformat(text).replace(fold=fold)
    return found if zone is None else found.replace(tzinfo=zone)


def _read_time(content: Any) -> time:
    text, fold, zone = _read_zoned(content)
    found = time.fromisoformat(text).replace(fold=fold)
    return found if zone is None else found.replace(tzinfo=zone)


def _read_decimal(content: Any) -> Decimal:
    try:
        # Exact and linear in the digits: the precision of the context holds for arithmetic alone.
        return Decimal(_read_text(content))
    except ArithmeticError as error:
        raise ProtocolError("a text that is not a decimal number") from error


def _read_enum(content: Any, find_class: Callable[[str], type]) -> Enum:
    path, name = _read_list(content)
    cls = find_class(_read_text(path))
    if not issubclass(cls, Enum):
        raise DecodeError(f"{path} is not an Enum here; run the same code on both nodes")
    if issubclass(cls, Flag):
        if type(name) is int:
            try:
                return cls(name)
            except ValueError as error:
                raise DecodeError(
                    f"{path} has no flags {name} here; run the same code on both nodes"
                ) from error
    elif type(name) is str:
        member = cls.__members__.get(name)
        if member is not None:
            return member
    raise DecodeError(f"{path} has no member {name!r} here; run the same code on both nodes")


def _read_message(content: Any, find_class: Callable[[str], type]) -> object:
    name, fields, *more = _read_list(content)
    path = _read_text(name)
    standard = BY_PATH.get(path)
    if standard is not None:
        return standard.build(fields, *more)
    if more and type(more[0]) is str and more[0] == CONVERTED:
        return _read_converted(path, fields)
    cls = find_class(path)
    mark = message_type(cls)
    try:
        if mark is None:
            names = named_tuple_fields(cls)
            if names is None:
                raise DecodeError(
                    f"{path} is not marked with @message here, so nothing of it is built from bytes"
                )
            return named_tuple(cls, names, fields)
        if mark.is_exception:
            return build(
                cast("type[BaseException]", cls),
                tuple(_read_list(fields)),
                *fields_and_notes(more),
            )
        # The class's own constructor and validators, which are user code, run here.
        return _build_message(cls, mark, fields, more)
    except (DecodeError, ProtocolError):
        raise
    except BaseException as error:  # noqa: ASYNC103  no checkpoint
        if is_interrupt(error):
            raise
        raise DecodeError(  # noqa: ASYNC104
            f"{path} could not be built from what was sent ({summary_of(error)})"
        ) from None


def _read_converted(path: str, plain: object) -> object:
    converter = converter_at(path)
    if converter is None:
        raise DecodeError(
            f"{path} has no converter in the process that was to read it; call "
            "actors.register_converter(...) at the top of a module that it imports, for example "
            "that of the actor's class"
        )
    found = guarded(
        lambda: converter.from_plain(plain), functools.partial(_not_converted, converter)
    )
    if type(found) is not converter.cls:
        raise DecodeError(
            f"the converter of {path} did not build one from what was sent, but a "
            f"{type(found).__qualname__}"
        )
    return found


def _not_converted(converter: Converter, error: BaseException) -> NoReturn:
    raise DecodeError(
        f"the converter of {converter.path} could not build one from what was sent "
        f"({summary_of(error)})"
    )


def _build_message(cls: type, mark: MessageType, fields: object, more: list[Any]) -> object:
    """Build a message. Fields that this side does not know are ignored; those that the peer does
    not know get their defaults. So versions of a class can differ.
    """
    if type(fields) is not dict:
        raise ProtocolError("a message whose fields are not a map")
    known: dict[str, object] = {
        argument: fields[argument] for _, argument in mark.fields if argument in fields
    }
    if not mark.is_model:
        if mark.of_sent is not None and (common := mark.of_sent(known)) is not None:
            return common
        built: object = cls(**known)
        for name in mark.later:
            if name in fields:
                # Frozen classes refuse the ordinary way.
                object.__setattr__(built, name, fields[name])
        return built
    unset, extra = more[0] if more else ([], {})
    if type(extra) is not dict or any(type(name) is not str for name in _read_list(unset)):
        raise ProtocolError("a model whose further values are not a map")
    found: Any = cls(**known, **extra)
    found.model_fields_set.difference_update(cast("list[str]", unset))
    return found


def _read_numpy_scalar(content: Any) -> object:
    dtype, data = _read_list(content)
    if type(data) is not bytes:
        raise ProtocolError("a numpy scalar without its bytes")
    return _build_array(dtype, [], bytearray(data))[()]


def _read_array(
    content: Any, take: Callable[[object], Segment], memory: Callable[[Segment], Buffer]
) -> object:
    dtype, shape, data = _read_list(content)
    # Users write into arrays. Whether they can must not depend on how the bytes happened to arrive,
    # so a read-only buffer is copied.
    return _build_array(
        dtype, _read_list(shape), memory(data if type(data) is bytes else take(data))
    )


def _read_only(segment: Segment) -> Buffer:
    return (
        bytes(segment) if isinstance(segment, ReceivedSegment) else memoryview(segment).toreadonly()
    )


def _build_array(dtype: object, shape: list[Any], buffer: Buffer) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise DecodeError(
            "a numpy value cannot be read here, because numpy is not installed; install it on "
            "this node"
        ) from error
    if not _DTYPE.fullmatch(_read_text(dtype)):
        raise ProtocolError("a dtype that is not plain")
    found = numpy.dtype(_read_text(dtype))
    # Both bounds come before the product, which would be slow without them.
    if len(shape) > MAX_DIMENSIONS or any(
        type(length) is not int or not 0 <= length <= sys.maxsize for length in shape
    ):
        raise ProtocolError("an array with a shape that no array has")
    if math.prod(shape) * found.itemsize != len(buffer):
        raise ProtocolError("an array whose shape does not fit its bytes")
    if not len(buffer) or not memoryview(buffer).readonly:
        return numpy.ndarray(shape, found, buffer)
    # numpy.ndarray would look through the view at the object behind it, which may be writable.
    return numpy.frombuffer(buffer, found).reshape(shape)
