"""How each type of value is written and read; the tables behind the codec.

Our tags are taken from a range that IANA has not assigned. Types are matched exactly: a subclass of a plain type would lose what makes it one, so it is refused unless
it is an enumeration, a registered message or an extension.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

import attrs
import cbor2

from actors.errors import DecodeError, EncodeError, ProtocolError
from actors.messages import import_path, message_type
from runtime.wire.frames import Buffer

TUPLE = 64_000
LISTED_MAP = 64_001
SET = 64_002
FROZENSET = 64_003
DATETIME = 64_004
DATE = 64_005
TIME = 64_006
TIMEDELTA = 64_007
DECIMAL = 64_008
UUID_TAG = 64_009
ENUM = 64_010
MESSAGE = 64_011
ERROR = 64_012
ARRAY = 64_013
SEGMENT = 64_014
PAYLOAD = 64_015
ARGUMENTS = 64_016
NUMPY_SCALAR = 64_017

REFUSED_TAGS = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 52, 54, 55799)
"""Built-in decoders of cbor2 that are switched off: shared references make cycles, tag 35 compiles regular expressions, 4 takes huge exponents."""

SMALL = frozenset({int, float, bool, type(None)})
SCALARS = SMALL | {str, bytes}


@attrs.frozen
class Extension:
    """A type that a node adds: `to_plain` makes data of an instance, `from_plain` an instance of that data. Matched by isinstance."""

    tag: int
    type: type
    to_plain: Callable[[Any], object]
    from_plain: Callable[[Any], object]


class Encoding:
    """Turns values into what cbor2 encodes as we want it."""

    def __init__(self, extensions: tuple[Extension, ...], segment_threshold: int, max_depth: int) -> None:
        self._extensions = extensions
        self._threshold = segment_threshold
        self._max_depth = max_depth

    def dumps(self, value: object, segments: list[Buffer], path: str) -> bytes:
        """The CBOR item of `value`."""
        plain = self._plain(value, segments, path, 0)
        try:
            return cbor2.dumps(plain)
        except UnicodeEncodeError as error:
            raise EncodeError(f"a str in {path} has lone surrogates, which is no text: {error}; send bytes instead", path=path) from None
        except (cbor2.CBOREncodeError, ValueError, TypeError, OverflowError) as error:
            raise EncodeError(f"{path} cannot be sent: {error}", path=path) from None

    def _plain(self, value: Any, segments: list[Buffer], path: str, depth: int) -> object:
        kind = type(value)
        if kind in SMALL or kind is str:
            return value
        if depth > self._max_depth:
            raise EncodeError(f"{path} is nested deeper than {self._max_depth} levels, or contains itself; send it flat", path=path)
        if kind is bytes:
            return self._bytes(value, segments)
        if kind is list:
            return self._items(value, segments, path, depth)
        if kind is dict:
            return self._map(value, segments, path, depth)
        if kind is tuple:
            return cbor2.CBORTag(TUPLE, self._items(value, segments, path, depth))
        convert = _CONVERSIONS.get(kind)
        if convert is not None:
            tag, to_plain = convert
            return cbor2.CBORTag(tag, to_plain(value))
        if kind is set or kind is frozenset:
            return cbor2.CBORTag(SET if kind is set else FROZENSET, self._items(list(value), segments, path, depth))
        if kind is bytearray or kind is memoryview:
            return self._bytes(value if kind is bytearray else memoryview(value).cast("B"), segments)
        return self._object(value, kind, segments, path, depth)

    def _bytes(self, value: Buffer, segments: list[Buffer]) -> object:
        if len(value) < self._threshold:
            return bytes(value)
        segments.append(value)
        return cbor2.CBORTag(SEGMENT, len(segments) - 1)

    def _items(self, values: Any, segments: list[Buffer], path: str, depth: int) -> list[object]:
        # At C speed: most lists hold scalars only.
        if _LEAVES.issuperset(map(type, values)):
            return list(values)
        return [self._plain(item, segments, f"{path}[{index}]", depth + 1) for index, item in enumerate(values)]

    def _map(self, value: dict[Any, Any], segments: list[Buffer], path: str, depth: int) -> object:
        if _KEYS.issuperset(map(type, value)):
            if _LEAVES.issuperset(map(type, value.values())):
                return value
            return {key: self._plain(item, segments, f"{path}[{key!r}]", depth + 1) for key, item in value.items()}
        pairs = [
            [self._plain(key, segments, f"{path} (key {key!r})", depth + 1), self._plain(item, segments, f"{path}[{key!r}]", depth + 1)]
            for key, item in value.items()
        ]
        return cbor2.CBORTag(LISTED_MAP, pairs)

    def _object(self, value: Any, kind: type, segments: list[Buffer], path: str, depth: int) -> object:
        described = message_type(kind)
        if described is not None:
            if described.is_exception:
                args = [self._plain(item, segments, f"{path}.args[{index}]", depth + 1) for index, item in enumerate(value.args)]
                return cbor2.CBORTag(ERROR, [described.path, args])
            fields = {
                argument: self._plain(getattr(value, name), segments, f"{path}.{name}", depth + 1) for name, argument in described.fields
            }
            return cbor2.CBORTag(MESSAGE, [described.path, fields])
        for extension in self._extensions:
            if isinstance(value, extension.type):
                return cbor2.CBORTag(extension.tag, self._plain(extension.to_plain(value), segments, path, depth + 1))
        if isinstance(value, Enum):
            return cbor2.CBORTag(ENUM, [import_path(kind), value.name])
        if kind.__module__.partition(".")[0] == "numpy":
            return self._numpy(value, segments, path)
        raise EncodeError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent; send plain data, or mark the class with @message if it is "
            "an attrs class, a dataclass or an exception",
            path=path,
        )

    def _numpy(self, value: Any, segments: list[Buffer], path: str) -> object:
        numpy: Any = sys.modules["numpy"]
        if isinstance(value, numpy.generic):
            array = numpy.asarray(value)
            tag = NUMPY_SCALAR
        elif type(value) is numpy.ndarray:
            array = numpy.ascontiguousarray(value).reshape(value.shape)
            tag = ARRAY
        else:
            raise EncodeError(f"{path} is a {type(value).__qualname__} of numpy, which cannot be sent; send an array", path=path)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise EncodeError(f"{path} is an array of dtype {array.dtype}, which cannot be sent; send numbers, booleans, dates or fixed-size text", path=path)
        data = memoryview(array.reshape(-1).view("uint8")) if array.size else b""
        if len(data) < self._threshold:
            return cbor2.CBORTag(tag, [array.dtype.str, list(array.shape), bytes(data)])
        # By number, not as bytes: the receiver lays the array over the buffer that the segment was received into.
        segments.append(data)
        return cbor2.CBORTag(tag, [array.dtype.str, list(array.shape), len(segments) - 1])


_LEAVES = SMALL | {str}
_KEYS = frozenset({str})


def _time_of_day(value: datetime.time) -> object:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise EncodeError(f"the time {value!r} has a time zone without a fixed offset; send a datetime, or the time without it")
    return value.isoformat()


_CONVERSIONS: dict[type, tuple[int, Callable[[Any], object]]] = {
    datetime.datetime: (DATETIME, lambda value: [value.isoformat(), value.fold]),
    datetime.date: (DATE, lambda value: value.isoformat()),
    datetime.time: (TIME, _time_of_day),
    datetime.timedelta: (TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: (DECIMAL, str),
    UUID: (UUID_TAG, lambda value: value.bytes),
}


def plain_decoders(find_class: Callable[[str], type], segment: Callable[[object], Buffer]) -> dict[int, Callable[[Any, bool], Any]]:
    """The readers of our tags. They get the tagged item decoded; what they raise besides our own errors counts as malformed."""

    def enum(value: Any, immutable: bool) -> object:
        path, name = value
        found = find_class(path)
        if not issubclass(found, Enum):
            raise DecodeError(f"{path} is no Enum here")
        if name not in found.__members__:
            raise DecodeError(f"{path} has no member {name!r} here")
        return found[name]

    def message(value: Any, immutable: bool) -> object:
        path, fields = value
        found = find_class(path)
        described = message_type(found)
        if described is None or described.is_exception:
            raise DecodeError(f"{path} is not marked with @message here, so it is not accepted")
        known = {argument for _, argument in described.fields}
        try:
            return found(**{name: item for name, item in fields.items() if name in known})
        except (TypeError, ValueError) as error:
            raise DecodeError(f"{path} does not take what was sent: {error}") from error

    def error(value: Any, immutable: bool) -> object:
        path, args = value
        found = find_class(path)
        described = message_type(found)
        if described is None or not described.is_exception:
            raise DecodeError(f"{path} is not an exception marked with @message here, so it is not accepted")
        made = cast("type[Exception]", found).__new__(cast("type[Exception]", found), *args)
        made.args = tuple(args)
        return made

    def array(value: Any, immutable: bool) -> object:
        import numpy

        text, shape, data = value
        dtype = numpy.dtype(text)
        if dtype.hasobject:
            raise ProtocolError(f"an array of dtype {text!r}")
        return numpy.frombuffer(segment(data) if isinstance(data, int) else data, dtype=dtype).reshape(shape)

    return {
        TUPLE: lambda value, immutable: tuple(value),
        LISTED_MAP: lambda value, immutable: {key: item for key, item in value},
        SET: lambda value, immutable: set(value),
        FROZENSET: lambda value, immutable: frozenset(value),
        DATETIME: lambda value, immutable: datetime.datetime.fromisoformat(value[0]).replace(fold=value[1]),
        DATE: lambda value, immutable: datetime.date.fromisoformat(value),
        TIME: lambda value, immutable: datetime.time.fromisoformat(value),
        TIMEDELTA: lambda value, immutable: datetime.timedelta(*value),
        DECIMAL: lambda value, immutable: Decimal(value),
        UUID_TAG: lambda value, immutable: UUID(bytes=value),
        ENUM: enum,
        MESSAGE: message,
        ERROR: error,
        ARRAY: array,
        NUMPY_SCALAR: lambda value, immutable: cast("Any", array(value, immutable))[()],
        SEGMENT: lambda value, immutable: bytes(segment(value)),
    }

