"""From values to what CBOR can say: the half of the codec that walks what users send.

Plain types keep their exact type through tags of our own; large bytes-like values leave the walk as segments, uncopied. What is not
plain data, not registered with `@message` and not an extension is refused, with the path that leads to it: a value that arrived as
something slightly different (a namedtuple as a tuple, an OrderedDict as a dict) would be a bug that shows only between nodes.

Left to `codec`: turning the result into bytes, and all of decoding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import NoneType
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
from cbor2 import CBORTag

from actors.messages import import_path, message_type
from runtime.wire.exceptions import args_of, fields_of, notes_of
from runtime.wire.frames import Buffer

if TYPE_CHECKING:
    import numpy

ARGUMENTS, SPILLED, SEGMENT, ARRAY, SCALAR, MESSAGE, ENUM = range(64_000, 64_007)
TUPLE, PAIRS, SET, FROZENSET = range(64_010, 64_014)
DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, IDENTIFIER = range(64_020, 64_026)
OWN_TAGS = frozenset(range(64_000, 64_032))
"""Tags of the codec itself, from the range that IANA hands out first come, first served. Extensions use others."""

SCALARS = frozenset({NoneType, bool, int, float, str})
"""Exact types that CBOR says by itself, without a tag and without a copy."""

_KEYS = frozenset({str, bytes})
"""Exact types of keys that a decoder takes safely: their hashes are keyed, so nobody can make many collide."""

MAX_SEGMENTS = 128
"""Segments that one value may use. Those beyond are written in place, so that many arrays are slower but never refused."""

ARRAY_KINDS = "biufcSUMmV"
"""numpy's kinds of dtypes that are nothing but their bytes."""

_ADVICE = "send plain data, or register an attrs class, dataclass or exception with @message"

Step = Callable[["PlainWriter", Any, int], object]


@attrs.frozen
class Extension:
    """A type that a room above teaches the codec: instances of `type` travel as `tag` around what `to_plain` makes of them.

    `to_plain` is given the segments of the message as well, to which it may add; these are an `Outgoing` if it goes to a peer, and not
    if the value is only copied. `from_plain` gets what it made again, and raises anything but DecodeError only for what it never makes.
    """

    tag: int
    type: type
    to_plain: Callable[[Any, list[Buffer]], object]
    from_plain: Callable[[Any], object]


class UnsendableError(Exception):
    """Raised within a walk; `steps` lead from the refused value out to the one given. Becomes an EncodeError."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []

    def at(self, step: str) -> UnsendableError:
        """The same, one step further out."""
        self.steps.append(step)
        return self


class PlainWriter:
    """One walk over one value. Appends to `segments`; `careful` looks at each text, to find the one that UTF-8 cannot say."""

    __slots__ = ("careful", "max_depth", "segments", "steps", "threshold")

    def __init__(self, steps: dict[type, Step], segments: list[Buffer], threshold: int, max_depth: int, careful: bool) -> None:
        self.steps = steps
        self.segments = segments
        self.threshold = threshold
        self.max_depth = max_depth
        self.careful = careful

    def write(self, value: object, depth: int) -> object:
        """What cbor2 encodes for `value`, which lies `depth` containers deep. Raises UnsendableError."""
        kind = type(value)
        if kind in SCALARS:
            if self.careful and kind is str:
                _check_text(cast("str", value))
            return value
        if depth >= self.max_depth:
            raise UnsendableError(
                f"nests deeper than {self.max_depth} levels, or contains itself; send it flat, for example as a list of links"
            )
        return self.steps[kind](self, value, depth + 1)

    def write_all(self, items: Iterable[object], depth: int) -> list[object]:
        """`write` for each item, with its index in the path of what is refused."""
        if not self.careful:
            found = items if isinstance(items, list) else list(items)
            if SCALARS.issuperset(map(type, found)):
                return cast("list[object]", found)
        written: list[object] = []
        try:
            for item in items:
                written.append(self.write(item, depth))
        except UnsendableError as error:
            raise error.at(f"[{len(written)}]") from None
        return written

    def write_fields(self, fields: Mapping[str, object], depth: int) -> dict[str, object]:
        """`write` for each value of a map whose keys are texts, with `.name` in the path of what is refused."""
        written: dict[str, object] = {}
        for name, value in fields.items():
            try:
                if self.careful:
                    _check_text(name)
                written[name] = self.write(value, depth)
            except UnsendableError as error:
                raise error.at(f".{name}") from None
        return written

    def raw(self, data: Buffer) -> object:
        """Bytes: in place while they are small, as a segment from the threshold on."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size < self.threshold or len(self.segments) >= MAX_SEGMENTS:
            return bytes(data)
        if isinstance(data, memoryview):
            data = data.cast("B") if data.c_contiguous else bytes(data)
        self.segments.append(data)
        return CBORTag(SEGMENT, len(self.segments) - 1)


def steps_for(extensions: Iterable[Extension]) -> dict[type, Step]:
    """How each type is written, found by exact type; types seen for the first time are looked at once and remembered."""
    return _Steps(tuple(extensions))


class _Steps(dict[type, Step]):
    def __init__(self, extensions: tuple[Extension, ...]) -> None:
        super().__init__(_STEPS)
        self._extensions = extensions

    def __missing__(self, kind: type) -> Step:
        step = self._find(kind)
        if step is None:
            raise UnsendableError(_refusal(kind))
        self[kind] = step
        return step

    def _find(self, kind: type) -> Step | None:
        for extension in self._extensions:
            if issubclass(kind, extension.type):
                return _extension_step(extension)
        described = message_type(kind)
        if described is not None:
            return _exception_step(described.path) if described.is_exception else _message_step(described.path, described.fields)
        if issubclass(kind, Enum):
            return None if "<locals>" in kind.__qualname__ else _enum_step(import_path(kind), issubclass(kind, Flag))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if kind is numpy.ndarray:
                return _array
            if issubclass(kind, numpy.generic):
                return _numpy_scalar
        return None


def _extension_step(extension: Extension) -> Step:
    def step(writer: PlainWriter, value: object, depth: int) -> object:
        return CBORTag(extension.tag, writer.write(extension.to_plain(value, writer.segments), depth))

    return step


def _message_step(path: str, fields: tuple[tuple[str, str], ...]) -> Step:
    def step(writer: PlainWriter, value: object, depth: int) -> object:
        written: dict[str, object] = {}
        for name, argument in fields:
            try:
                written[argument] = writer.write(getattr(value, name), depth)
            except UnsendableError as error:
                raise error.at(f".{name}") from None
        return CBORTag(MESSAGE, [path, written])

    return step


def _exception_step(path: str) -> Step:
    def step(writer: PlainWriter, value: BaseException, depth: int) -> object:
        try:
            args = writer.write_all(list(args_of(value)), depth)
        except UnsendableError as error:
            raise error.at(".args") from None
        fields, notes = writer.write_fields(fields_of(value), depth), notes_of(value)
        return CBORTag(MESSAGE, [path, args, fields, notes] if fields or notes else [path, args])

    return step


def _enum_step(path: str, is_flag: bool) -> Step:
    # Members of a Flag may be combinations, which have no name of their own in the class.
    def step(writer: PlainWriter, value: Enum, depth: int) -> object:
        return CBORTag(ENUM, [path, value.value if is_flag else value.name])

    return step


def _bytes(writer: PlainWriter, value: Buffer, depth: int) -> object:
    return writer.raw(value)


def _list(writer: PlainWriter, value: list[object], depth: int) -> object:
    return writer.write_all(value, depth)


def _tuple(writer: PlainWriter, value: tuple[object, ...], depth: int) -> object:
    return CBORTag(TUPLE, writer.write_all(value, depth))


def _dict(writer: PlainWriter, value: dict[object, object], depth: int) -> object:
    in_place = _KEYS.issuperset(map(type, value))
    if in_place and not writer.careful and SCALARS.issuperset(map(type, value.values())):
        return value
    written: dict[object, object] = {}
    pairs: list[object] = []
    for key, item in value.items():
        plain_key = key
        if not in_place or writer.careful:
            try:
                plain_key = writer.write(key, depth)
            except UnsendableError as error:
                raise error.at(".keys()") from None
        try:
            plain = writer.write(item, depth)
        except UnsendableError as error:
            raise error.at(f"[{_shown(key)}]") from None
        if in_place:
            written[key] = plain
        else:
            pairs += (plain_key, plain)
    return written if in_place else CBORTag(PAIRS, pairs)


def _set(writer: PlainWriter, value: set[object] | frozenset[object], depth: int) -> object:
    try:
        items = [writer.write(item, depth) for item in value]
    except UnsendableError as error:
        raise error.at("{...}") from None
    return CBORTag(SET if type(value) is set else FROZENSET, items)


def _datetime(writer: PlainWriter, value: datetime, depth: int) -> object:
    zone = value.tzinfo
    # A named zone keeps its name, so that arithmetic goes on by its rules; any other is sent as the offset that it has at that moment.
    key = zone.key if type(zone) is ZoneInfo else None
    return CBORTag(DATETIME, [(value.replace(tzinfo=None) if key else value).isoformat(), value.fold, key])


def _time(writer: PlainWriter, value: time, depth: int) -> object:
    zone = value.tzinfo
    key = zone.key if type(zone) is ZoneInfo else None
    if zone is not None and key is None and value.utcoffset() is None:
        raise UnsendableError("is a time in a zone that has neither a name nor a fixed offset; send a datetime, or use zoneinfo.ZoneInfo")
    return CBORTag(TIME, [(value.replace(tzinfo=None) if key else value).isoformat(), value.fold, key])


def _array(writer: PlainWriter, value: numpy.ndarray[Any, Any], depth: int) -> object:
    import numpy

    if value.dtype.kind not in ARRAY_KINDS or value.dtype.fields is not None or value.dtype.hasobject:
        raise UnsendableError(
            f"is a numpy array of dtype {value.dtype}, whose elements are not plain bytes; send one array for each field, or a list"
        )
    shape = list(value.shape)
    # Datetimes do not offer their memory as a buffer, bytes do.
    data = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8).data if value.nbytes >= writer.threshold else value.tobytes()
    raw = writer.raw(data)
    # By its index rather than as a reference, which would be decoded to bytes before the array is laid over it.
    return CBORTag(ARRAY, [value.dtype.str, shape, raw.value if isinstance(raw, CBORTag) else raw])


def _numpy_scalar(writer: PlainWriter, value: numpy.generic, depth: int) -> object:
    if value.dtype.kind not in ARRAY_KINDS or value.dtype.fields is not None or value.dtype.hasobject:
        raise UnsendableError(f"is a numpy scalar of dtype {value.dtype}, which is not plain bytes; send its .item()")
    return CBORTag(SCALAR, [value.dtype.str, value.tobytes()])


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsendableError(
            f"is a text with a lone surrogate ({text[error.start]!a} at {error.start}), which UTF-8 cannot say; send it as bytes"
        ) from None


def _shown(key: object) -> str:
    """A key as it reads in a path; only of types whose repr is certain to be harmless."""
    if type(key) in SCALARS or type(key) is bytes:
        text = repr(key)
        return text if len(text) <= 60 else f"{text[:56]}..."
    return f"<{type(key).__name__}>"


def _refusal(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = f"is a {name}, which cannot be sent"
    if issubclass(kind, Enum):
        return f"{text}: the class is defined inside a function, where no other process can import it; move it to the top of its module"
    for base in kind.__mro__[1:]:
        if base in _STEPS or base in SCALARS:
            return f"{text}: it is a subclass of {base.__name__} and would arrive as a plain one; convert it with {base.__name__}(...)"
        if base.__module__ == "numpy" and base.__name__ == "ndarray":
            return f"{text}: it is a subclass of numpy.ndarray; convert it with numpy.asarray(...)"
        if message_type(base) is not None:
            return f"{text}: the mark of {base.__qualname__} does not hold for its subclasses; mark it with @message as well"
    return f"{text}; {_ADVICE}"


_STEPS: Mapping[type, Step] = {
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _set,
    frozenset: _set,
    datetime: _datetime,
    date: lambda writer, value, depth: CBORTag(DATE, value.isoformat()),
    time: _time,
    timedelta: lambda writer, value, depth: CBORTag(TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    Decimal: lambda writer, value, depth: CBORTag(DECIMAL, str(value)),
    UUID: lambda writer, value, depth: CBORTag(IDENTIFIER, value.bytes),
}
