"""The codec: values to the control part and segments of a frame, and back.

CBOR (RFC 8949) by cbor2, within bounds: only complete items, only definite lengths, only tags of
our own and large integers, keys whose hashes a peer cannot make collide, a limit on depth, and
nothing after the item. Types beyond CBOR's travel under tags; classes are found again by import
path, in modules that are imported already, and accepted only if they carry the mark of `@message`,
or are enums: bytes never name code to run.

Promises: what decodes equals what was encoded, in value and in type, with nothing shared with it;
what cannot keep that promise is refused when it is encoded. Any bytes at all decode to a value, a
DecodeError or a ProtocolError.

The file has three parts: `PlainWriter`, which walks the values of users and turns them into what
CBOR can express; the readers, one for each tag, which build values from decoded content; and
`Codec`, which joins them, with bounds. `runtime.wire.keys` checks keys of dicts and sets, and
`runtime.wire.refusals` says why a type is refused, and what to send instead.

cbor2 ignores bytes after the item, so the control part is decoded as the first of two items, of
which the second is a sentinel that peers cannot guess: one comparison then says that the first
ended where it should.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from itertools import chain, islice
from types import NoneType
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
from cbor2 import CBORTag, dump, dumps, loads

from actors.converters import Converter, converter_at, converter_of
from actors.errors import DecodeError, EncodeError, ProtocolError
from actors.messages import MessageType, import_path, message_type
from actors.short_repr import short_repr
from runtime.user_errors import guarded, is_interrupt, summary_of, text_of
from runtime.wire import classes
from runtime.wire.arrays import ONE_ITEM, TWO_ITEMS
from runtime.wire.exceptions import args_of, build, fields_of, notes_of
from runtime.wire.frames import Buffer, Outgoing, ReceivedSegment, Segment, writable
from runtime.wire.keys import check_keys, distinct
from runtime.wire.refusals import refusal
from runtime.wire.shared_objects import MOST_COPIES, SharedObjects
from runtime.wire.standard_types import (
    BY_PATH,
    BY_TYPE,
    StandardType,
    UnsendableError,
    fields_and_notes,
    named_tuple,
    named_tuple_fields,
)
from runtime.wire.tags import (
    ARGUMENTS,
    ARRAY,
    BUILTIN_TAGS,
    DATE,
    DATETIME,
    DECIMAL,
    ENUM,
    FROZENSET,
    IDENTIFIER,
    MESSAGE,
    OWN_TAGS,
    PAIRS,
    SCALAR,
    SEGMENT,
    SET,
    SPILLED,
    TIME,
    TIMEDELTA,
    TUPLE,
)

if TYPE_CHECKING:
    import numpy

__all__ = ["ALIKE_FOR_ALL", "MAX_IN_PLACE", "MAX_SEGMENTS", "SCALARS", "Codec", "Extension"]


# From values to what CBOR can express.
#
# Plain types keep their exact type through tags of our own. Large bytes-like values become
# segments, uncopied. Anything that is not plain data, registered with `@message` or an extension is
# refused, with the path to it: a value that arrived as a slightly different one (a subclass of dict
# as a dict) would be a bug that shows only between nodes. `Codec` turns the result into bytes, and
# decodes.

SCALARS = frozenset({NoneType, bool, int, float, str})
"""Exact types that CBOR expresses without a tag and without a copy."""


ALIKE_FOR_ALL = SCALARS | {bytes}
"""Exact types whose values are encoded alike for every peer: they need no `Outgoing`."""


_ROWS = frozenset({list})
"""The exact type of an item that may itself be a row of scalars."""


MAX_SEGMENTS = 128
"""The number of segments that one value may use. Further buffers are written in place, so many
arrays are slower but never refused.
"""


MANY_ITEMS = 64 * 1024
"""Objects of a value, roughly, from which the walk writes each object only once, and the size is
estimated before anything is encoded. It must take a fraction of a second to come there: the event
loop waits. Below, the same object may be written many times, which costs less than to look.
"""


UNBOUNDED_ITEMS = 64
"""Objects of a value, roughly, up to which cbor2 writes it at once. A larger one is written in
parts, so that it is given up as soon as there are too many bytes; that costs a microsecond more.
"""


FEW_ITEMS = 16
"""Scalars of a container that are not counted: the container itself, which is, costs more."""


MOST_SORTED_COPIES = MOST_COPIES // 16
"""Containers of a set that is sorted which are copies of others."""


COUNTED_TEXTS = UNBOUNDED_ITEMS << 4
"""Items of a container up to which the characters of its texts are counted: a value with more of
them is written in parts anyway.
"""


LONG_TEXTS = 64 * 1024
"""Characters in the texts of a value from which it is written in parts."""


_MOST_IN_ROWS = 16 * 1024 * 1024
"""Scalars in a list of lists that is handed over as it is."""


Step = Callable[["PlainWriter", Any, int], object]


CONVERTED = "converted"
"""Follows the content of a value that a converter made, so that a process without that converter
can say what it lacks.
"""


_NO_DEFAULT: Final = object()


_KEYS = frozenset({str, bytes})
"""Exact types of keys that a decoder accepts without counting: their hashes are keyed, so a peer
cannot make many collide.
"""


ARRAY_KINDS = "biufcSUMmV"
"""numpy's kinds of dtypes whose elements are plain bytes."""


class PlainWriter:
    """A walk over one value. It appends to `segments`. If `careful`, it checks each text, to find
    the one that UTF-8 cannot encode.
    """

    __slots__ = (
        "careful",
        "left",
        "max_depth",
        "segments",
        "shared",
        "steps",
        "text",
        "threshold",
    )

    def __init__(
        self,
        steps: dict[type, Step],
        segments: list[Buffer],
        threshold: int,
        max_depth: int,
        careful: bool,
    ) -> None:
        self.steps = steps
        self.segments = segments
        self.threshold = threshold
        self.max_depth = max_depth
        self.careful = careful
        self.left = MANY_ITEMS
        self.text = 0
        """Characters of the texts so far, each of which takes at least a byte."""
        self.shared: SharedObjects | None = None
        """What was written for objects, from `MANY_ITEMS` of them on."""

    def write(self, value: object, depth: int) -> object:
        """Return what cbor2 is to encode for `value`, which is `depth` containers deep. Raises
        UnsendableError.
        """
        kind = type(value)
        if kind in SCALARS:
            if kind is str:
                self.text += len(cast("str", value))
                if self.careful:
                    check_text(cast("str", value))
            return value
        if depth >= self.max_depth:
            raise UnsendableError(
                f"nests deeper than {self.max_depth} levels, or contains itself; send it flat, "
                "for example as a list of links"
            )
        left = self.left = self.left - 1
        if left >= 0:
            return self.steps[kind](self, value, depth + 1)
        if self.shared is None:
            self.shared = SharedObjects()
        return self.shared.write(self, self.steps[kind], value, depth + 1)

    def write_all(self, items: Sequence[object], depth: int) -> list[object]:
        """Apply `write` to each item, with its index in the path of a refused value."""
        if not self.careful:
            found = items if isinstance(items, list) else list(items)
            # The list of the caller itself is handed to cbor2, uncopied. If another thread changes
            # it before cbor2 has read it, the list that is sent is the changed one; cbor2 refuses
            # objects all the same, because it knows none of the types of users.
            if SCALARS.issuperset(map(type, found)):
                self.count_scalars(found)
                return cast("list[object]", found)
            # Batches of items are lists of lists, with thousands of them.
            if (
                depth < self.max_depth
                and _ROWS.issuperset(map(type, found))
                and self._are_rows(cast("list[list[object]]", found))
            ):
                return cast("list[object]", found)
        return self.write_each(items, depth)

    def count_scalars(self, items: Collection[object]) -> None:
        """Count scalars that are handed over as they are."""
        if len(items) > FEW_ITEMS:
            self.left -= len(items) >> 4
        if len(items) <= COUNTED_TEXTS:
            self._count_texts(items)

    def _count_texts(self, items: Iterable[object]) -> None:
        self.text += sum(len(one) for one in items if type(one) is str)

    def _are_rows(self, rows: list[list[object]]) -> bool:
        """Return True if each row holds nothing but scalars, and they are few enough."""
        first = islice(chain.from_iterable(rows), FEW_ITEMS)
        if not SCALARS.issuperset(map(type, first)):
            return False
        # One row may be there a million times, an empty one as well.
        count = len(rows) + sum(map(len, rows))
        if count > FEW_ITEMS:
            self.left -= count >> 4
            if count > _MOST_IN_ROWS or not SCALARS.issuperset(
                map(type, chain.from_iterable(rows))
            ):
                return False
        if count <= COUNTED_TEXTS:
            self._count_texts(chain.from_iterable(rows))
        return True

    def write_each(self, items: Sequence[object], depth: int) -> list[object]:
        """Like `write_all`, without a look at whether all are scalars."""
        if len(items) > FEW_ITEMS:
            self.left -= len(items) >> 2
        written: list[object] = []
        try:
            for item in items:
                written.append(self.write(item, depth))
        except UnsendableError as error:
            raise error.at(f"[{len(written)}]") from None
        return written

    def write_fields(self, fields: Mapping[str, object], depth: int) -> dict[str, object]:
        """Apply `write` to each value of a map whose keys are texts, with `.name` in the path of a
        refused value.
        """
        if len(fields) > FEW_ITEMS:
            self.left -= len(fields) >> 2
        written: dict[str, object] = {}
        for name, value in fields.items():
            try:
                if self.careful:
                    check_text(name)
                written[name] = self.write(value, depth)
            except UnsendableError as error:
                raise error.at(f".{name}") from None
        return written

    def raw(self, data: Buffer) -> object:
        """Encode bytes: in place while they are small, as a segment from the threshold on."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size < self.threshold or len(self.segments) >= MAX_SEGMENTS:
            self.left -= size >> 8
            # A copy: what is encoded in place may not change until cbor2 has read it.
            return bytes(data)
        if isinstance(data, memoryview):
            data = data.cast("B") if data.c_contiguous else bytes(data)
        self.segments.append(data)
        return CBORTag(SEGMENT, len(self.segments) - 1)


def check_text(text: str) -> None:
    """Raise UnsendableError for a text that UTF-8 cannot encode."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsendableError(
            f"is a text with a lone surrogate ({text[error.start]!a} at {error.start}), which "
            "UTF-8 cannot encode; send it as bytes"
        ) from None


@attrs.frozen
class Extension:
    """A type that a higher room adds to the codec: an instance of `type` is sent as `tag` around
    the result of `to_plain`.

    `to_plain` also gets the segments of the message and may add to them; they are an `Outgoing` if
    the message goes to a peer, and a plain list if the value is only copied. `from_plain` gets the
    result of `to_plain` back. It may raise DecodeError; any other exception only for what
    `to_plain` never returns.
    """

    tag: int
    type: type
    to_plain: Callable[[Any, list[Buffer]], object]
    from_plain: Callable[[Any], object]


def steps_for(extensions: Iterable[Extension]) -> dict[type, Step]:
    """Return the table of writers by exact type. A new type is examined once, and its writer is
    remembered.
    """
    return _Steps(tuple(extensions))


class _Steps(dict[type, Step]):
    # Bounded by the classes of this process that can be sent: a type that is refused is not
    # remembered, and decoding does not come here.

    def __init__(self, extensions: tuple[Extension, ...]) -> None:
        super().__init__(_STEPS)
        self._extensions = extensions

    def __missing__(self, kind: type) -> Step:
        step = self._find(kind)
        if step is None:
            raise UnsendableError(refusal(kind, _EXACT))
        self[kind] = step
        return step

    def _find(self, kind: type) -> Step | None:
        # Extensions first: their types are sent by reference, whatever else they could be sent as.
        for extension in self._extensions:
            if issubclass(kind, extension.type):
                return _extension_step(extension)
        # Exact marks and types, and no `issubclass`: a subclass would arrive as its base.
        described = message_type(kind)
        if described is not None:
            return _step_of_mark(described)
        if converter_of(kind) is not None:
            return _converter_step(kind)
        standard = BY_TYPE.get(kind)
        if standard is not None:
            return _standard_step(standard)
        if named_tuple_fields(kind) is not None:
            return None if "<locals>" in kind.__qualname__ else _named_tuple_step(kind)
        if issubclass(kind, Enum):
            return (
                None
                if "<locals>" in kind.__qualname__
                else _enum_step(import_path(kind), issubclass(kind, Flag))
            )
        # Whose values there are, has been imported; importing it here would slow every start.
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if kind is numpy.ndarray:
                return _write_array
            if issubclass(kind, numpy.generic):
                return _write_numpy_scalar
        return None


def _extension_step(extension: Extension) -> Step:
    def step(writer: PlainWriter, value: object, depth: int) -> object:
        if writer.shared is not None and type(writer.segments) is Outgoing:
            writer.shared.on_extension()
        return CBORTag(
            extension.tag, writer.write(extension.to_plain(value, writer.segments), depth)
        )

    return step


def _standard_step(standard: StandardType) -> Step:
    path, parts = standard.path, standard.parts
    if parts is None:
        return _exception_step(path)

    def step(writer: PlainWriter, value: object, depth: int) -> object:
        # A list of items is the level of `value` itself. A dict is one more, because one with pairs
        # takes three levels of CBOR, as many as a decoder accepts for each.
        written = [
            writer.write_all(cast("list[object]", part), depth)
            if type(part) is list
            else writer.write(part, depth)
            for part in parts(value)
        ]
        return CBORTag(MESSAGE, [path, *written])

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


def _sparse_step(
    path: str, fields: tuple[tuple[str, str], ...], defaults: Mapping[str, object]
) -> Step:
    def step(writer: PlainWriter, value: object, depth: int) -> object:
        written: dict[str, object] = {}
        for name, argument in fields:
            item = getattr(value, name)
            default = defaults.get(argument, _NO_DEFAULT)
            # Also by type: True equals 1.
            if item is default or (type(item) is type(default) and item == default):
                continue
            try:
                written[argument] = writer.write(item, depth)
            except UnsendableError as error:
                raise error.at(f".{name}") from None
        return CBORTag(MESSAGE, [path, written])

    return step


def _later_step(message_step: Step, names: tuple[str, ...]) -> Step:
    # Fields that the constructor does not take. One that was never set is left out.
    def step(writer: PlainWriter, value: object, depth: int) -> object:
        tag = cast("CBORTag", message_step(writer, value, depth))
        found = {name: getattr(value, name) for name in names if hasattr(value, name)}
        tag.value[1].update(writer.write_fields(found, depth))
        return tag

    return step


def _step_of_mark(described: MessageType) -> Step:
    if described.is_exception:
        return _exception_step(described.path)
    if described.defaults:
        return _sparse_step(described.path, described.fields, described.defaults)
    step = _message_step(described.path, described.fields)
    if described.is_model:
        return _model_step(step, described.fields)
    return _later_step(step, described.later) if described.later else step


def _model_step(message_step: Step, fields: tuple[tuple[str, str], ...]) -> Step:
    # Besides its fields a pydantic model may have values of any name, and it knows which fields
    # were given, and which have their defaults: `model_dump(exclude_unset=True)` needs that.
    def step(writer: PlainWriter, value: Any, depth: int) -> object:
        tag = cast("CBORTag", message_step(writer, value, depth))
        given = value.model_fields_set
        unset = [name for name, _ in fields if name not in given]
        extra = writer.write_fields(value.model_extra or {}, depth)
        return CBORTag(MESSAGE, [*tag.value, [unset, extra]])

    return step


def _named_tuple_step(kind: type) -> Step:
    path = import_path(kind)

    def step(writer: PlainWriter, value: tuple[object, ...], depth: int) -> object:
        # A subclass without `__slots__` may have been given attributes.
        if getattr(value, "__dict__", None):
            raise UnsendableError(
                f"is a {path} with attributes besides its fields, which would be lost; make them "
                "fields"
            )
        names = named_tuple_fields(kind) or ()
        return CBORTag(
            MESSAGE, [path, writer.write_fields(dict(zip(names, value, strict=True)), depth)]
        )

    return step


def _converter_step(kind: type) -> Step:
    def step(writer: PlainWriter, value: object, depth: int) -> object:
        # Looked up for each value: a notebook may register the class anew.
        converter = converter_of(kind)
        if converter is None:
            raise UnsendableError(refusal(kind, _EXACT))
        plain = guarded(lambda: converter.to_plain(value), _converter_failed)
        try:
            written = writer.write(plain, depth)
        except UnsendableError as error:
            raise error.at(" (as converted)") from None
        return CBORTag(MESSAGE, [converter.path, written, CONVERTED])

    return step


def _converter_failed(error: BaseException) -> NoReturn:
    raise UnsendableError(f"cannot be sent: its converter raised {summary_of(error)}")


def _enum_step(path: str, is_flag: bool) -> Step:
    # Members of a Flag may be combinations, which have no name in the class.
    def step(writer: PlainWriter, value: Enum, depth: int) -> object:
        return CBORTag(ENUM, [path, value.value if is_flag else value.name])

    return step


def _write_bytes(writer: PlainWriter, value: Buffer, depth: int) -> object:
    return writer.raw(value)


def _write_list(writer: PlainWriter, value: list[object], depth: int) -> object:
    return writer.write_all(value, depth)


def _write_tuple(writer: PlainWriter, value: tuple[object, ...], depth: int) -> object:
    return CBORTag(TUPLE, writer.write_all(value, depth))


def _write_dict(writer: PlainWriter, value: dict[object, object], depth: int) -> object:
    # Other keys travel as pairs, so that the reader can count equal hashes before it builds a dict.
    in_place = _KEYS.issuperset(map(type, value))
    if in_place and not writer.careful and SCALARS.issuperset(map(type, value.values())):
        writer.count_scalars(value.values())
        return value
    if not in_place:
        check_keys(value)
    if len(value) > FEW_ITEMS:
        writer.left -= len(value) >> 2
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


def _write_set(writer: PlainWriter, value: set[object] | frozenset[object], depth: int) -> object:
    check_keys(value)
    if len(value) > FEW_ITEMS:
        writer.left -= len(value) >> 2
    try:
        items = [writer.write(item, depth) for item in value]
    except UnsendableError as error:
        raise error.at("{...}") from None
    return CBORTag(SET if type(value) is set else FROZENSET, items)


def _sorted_set_step(most: int) -> Step:
    def step(writer: PlainWriter, value: set[object] | frozenset[object], depth: int) -> object:
        tag = cast("CBORTag", _write_set(writer, value, depth))
        # Before the members are encoded to be compared, which is done for the sets within a set as
        # well, once for each level: so fewer copies are allowed than in `Codec._refuse_copies`.
        if writer.shared is not None and (weight := writer.shared.weight_of(tag)) is not None:
            size, copies = weight
            if size > most or copies > MOST_SORTED_COPIES:
                raise UnsendableError(
                    f"is a set that would arrive with {copies} copies of its containers, in at "
                    f"least {size} bytes; send each once, and indices of them"
                )
        return CBORTag(tag.tag, sorted(tag.value, key=dumps))

    return step


def _write_datetime(writer: PlainWriter, value: datetime, depth: int) -> object:
    zone = value.tzinfo
    # A named zone keeps its name, so that arithmetic follows its rules. Any other zone is sent as
    # its offset at that moment.
    key = zone.key if type(zone) is ZoneInfo else None
    return CBORTag(
        DATETIME, [(value.replace(tzinfo=None) if key else value).isoformat(), value.fold, key]
    )


def _write_time(writer: PlainWriter, value: time, depth: int) -> object:
    zone = value.tzinfo
    key = zone.key if type(zone) is ZoneInfo else None
    if zone is not None and key is None and value.utcoffset() is None:
        raise UnsendableError(
            "is a time in a zone that has neither a name nor a fixed offset; send a datetime, or "
            "use zoneinfo.ZoneInfo"
        )
    return CBORTag(
        TIME, [(value.replace(tzinfo=None) if key else value).isoformat(), value.fold, key]
    )


def _write_array(writer: PlainWriter, value: numpy.ndarray[Any, Any], depth: int) -> object:
    import numpy

    if (
        value.dtype.kind not in ARRAY_KINDS
        or value.dtype.fields is not None
        or value.dtype.hasobject
    ):
        raise UnsendableError(
            f"is a numpy array of dtype {value.dtype}, whose elements are not plain bytes; send "
            "one array for each field, or a list"
        )
    shape = list(value.shape)
    # Datetime arrays do not offer their memory as a buffer; a view of bytes does.
    data = (
        numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8).data
        if value.nbytes >= writer.threshold
        else value.tobytes()
    )
    raw = writer.raw(data)
    # By its index and not as a reference: a reference would be decoded to bytes before the array
    # could use the memory.
    return CBORTag(ARRAY, [value.dtype.str, shape, raw.value if isinstance(raw, CBORTag) else raw])


def _write_numpy_scalar(writer: PlainWriter, value: numpy.generic, depth: int) -> object:
    if (
        value.dtype.kind not in ARRAY_KINDS
        or value.dtype.fields is not None
        or value.dtype.hasobject
    ):
        raise UnsendableError(
            f"is a numpy scalar of dtype {value.dtype}, which is not plain bytes; send its .item()"
        )
    return CBORTag(SCALAR, [value.dtype.str, value.tobytes()])


def _shown(key: object) -> str:
    """Format a key for a path. Only for types whose repr is certain to be harmless."""
    if type(key) in SCALARS or type(key) is bytes:
        text = repr(key)
        return text if len(text) <= 60 else f"{text[:56]}..."
    return f"<{type(key).__name__}>"


_STEPS: Mapping[type, Step] = {
    bytes: _write_bytes,
    bytearray: _write_bytes,
    memoryview: _write_bytes,
    list: _write_list,
    tuple: _write_tuple,
    dict: _write_dict,
    set: _write_set,
    frozenset: _write_set,
    datetime: _write_datetime,
    date: lambda writer, value, depth: CBORTag(DATE, value.isoformat()),
    time: _write_time,
    timedelta: lambda writer, value, depth: CBORTag(
        TIMEDELTA, [value.days, value.seconds, value.microseconds]
    ),
    Decimal: lambda writer, value, depth: CBORTag(DECIMAL, str(value)),
    UUID: lambda writer, value, depth: CBORTag(IDENTIFIER, value.bytes),
}


_EXACT = frozenset({*_STEPS, *SCALARS})
"""Plain types, of which a subclass is refused."""


# From decoded CBOR back to values: the content of each of our tags is checked, then the value is
# built.
#
# Each reader gets content that is decoded and has no other owner. Readers raise DecodeError for
# what this process cannot build, and ProtocolError (or TypeError, ValueError for shapes that do not
# fit) for what no peer of ours sends.

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


MAX_IN_PLACE = 96 * 1024
"""Bytes from which an encoded value leaves the control part and becomes a segment. Of bytes as an
argument and result, measured in turn: in place, a call with 64 KiB takes a third less processor
time than with a segment in shared memory, one with 128 KiB a tenth less, one with 200 KiB a fifth
more.
"""


_LONGEST_BYTES = MAX_IN_PLACE - 16
"""With their heads, and that of the arguments, these are within `MAX_IN_PLACE`."""


def is_in_place(value: object) -> bool:
    """Return True if cbor2 encodes `value` as it is, so that no walk over it is needed."""
    kind = type(value)
    return kind in SCALARS or (kind is bytes and len(cast("bytes", value)) <= _LONGEST_BYTES)


_QUALIFIED_NAME = cast("Any", vars(type)["__qualname__"])


_Callback = Callable[[Any, bool], object]


class _TooManyBytesError(Exception):
    """Ends the encoding of a value that is too large."""


class _BoundedParts:
    """A file that cbor2 writes to, some kilobytes at a time, as long as there are not too many."""

    __slots__ = ("left", "written")

    def __init__(self, most: int) -> None:
        self.left = most
        self.written: list[bytes] = []

    def writable(self) -> bool:
        """True: cbor2 asks."""
        return True

    def write(self, part: bytes) -> int:
        """Keep a part. Raises _TooManyBytesError at the first that is too much."""
        self.left -= len(part)
        if self.left < 0:
            # What was written is of no use, and may be as much as is allowed.
            self.written.clear()
            raise _TooManyBytesError
        self.written.append(part)
        return len(part)


@attrs.frozen
class _Arguments:
    """The positional and keyword arguments of a call, as decoded."""

    args: tuple[object, ...]
    kwargs: dict[str, object]


class Codec:
    """Encodes and decodes the values of users.

    `extensions`: further types. `sentinel`: 8 bytes that peers cannot guess. `segment_threshold`:
    bytes from which bytes-like values become segments. `max_depth`: of nested containers.
    `max_payload`: bytes that an encoded value may have without its segments.
    """

    def __init__(
        self,
        extensions: Sequence[Extension] = (),
        *,
        sentinel: bytes,
        segment_threshold: int = 16 * 1024,
        max_depth: int = 32,
        max_payload: int = 64 * 1024 * 1024,
    ) -> None:
        if len(sentinel) != 8:
            raise ValueError(f"the sentinel has 8 bytes, not {len(sentinel)}")
        self._sentinel = sentinel
        self._tail = b"\x48" + sentinel
        self._threshold = segment_threshold
        self._max_depth = max_depth
        # A container takes at most three levels of CBOR (tag, array, map). The rest is for the call
        # around the arguments.
        self._wire_depth = 3 * max_depth + 12
        self._max_payload = max_payload
        self._steps = steps_for(extensions)
        self._classes: dict[str, type] = {}
        readers = (
            {tag: _refuser(tag) for tag in BUILTIN_TAGS}
            | content_readers(self.find_class)
            | {ARGUMENTS: _read_arguments}
        )
        for extension in extensions:
            if extension.tag in OWN_TAGS or extension.tag in readers or extension.tag in (2, 3):
                raise ValueError(
                    f"the tag {extension.tag} of the extension for {extension.type.__name__} is "
                    "taken; choose another"
                )
            readers[extension.tag] = extension.from_plain
        self._readers = {tag: _callback(reader) for tag, reader in readers.items()}
        self._without_segments = self._decoders(())
        self._skimming = self._skimmers()

    def encode(self, value: object, segments: list[Buffer], path: str = "value") -> bytes:
        """Return the CBOR item for `value`. Large buffers are appended to `segments`, uncopied: do
        not change them until they are sent.

        Raises EncodeError with the path to the refused value, which begins with `path`. `segments`
        may have grown then; drop them.
        """
        if is_in_place(value) and not (type(value) is str and len(value) > self._max_payload):
            try:
                encoded = dumps(value)
                # Inline, for the hot path.
                if len(encoded) <= MAX_IN_PLACE:
                    return encoded
                return self._beside(encoded, segments, path)
            except UnicodeEncodeError:
                # The walk below says where in the text the lone surrogate is.
                pass
        return self._encode(lambda writer: writer.write(value, 0), segments, path)

    def encode_arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], segments: list[Buffer]
    ) -> bytes:
        """Return the CBOR item for the arguments of a call. Raises EncodeError like `encode`; paths
        begin with `args[0]` or the keyword.
        """
        if not kwargs:
            encoded = self.encode_scalars(args)
            if encoded is not None:
                return encoded
            return self._encode(lambda writer: writer.write_each(args, 0), segments, "args")
        try:
            positional = self._encode_plain(
                lambda writer: writer.write_each(args, 0), segments, "args"
            )
            keywords = self._encode_plain(
                lambda writer: writer.write_fields(kwargs, 0), segments, ""
            )
        except EncodeError as error:
            # A keyword is a field of nothing: its path begins with its name, without the dot.
            if error.path.startswith("."):
                raise EncodeError(str(error)[1:], path=error.path[1:]) from None
            raise
        # A tag of two bytes, then an array of two items that are encoded already: to encode them
        # once more, as one item, would cost as much again.
        head = b"\xd9" + ARGUMENTS.to_bytes(2, "big") + TWO_ITEMS
        return self._completed(head + positional + keywords, segments, "args")

    def encode_scalars(self, args: tuple[object, ...]) -> bytes | None:
        """Like `encode_arguments`, for the hot path: encodes arguments that are all plain and
        small, bytes included; returns None for others.
        """
        # One call of one number is two bytes, and building a list for cbor2 would cost as much as
        # encoding it.
        alone = len(args) == 1
        if not (
            (alone and type(args[0]) in SCALARS)
            or SCALARS.issuperset(map(type, args))
            or all(map(is_in_place, args))
        ):
            return None
        for one in args:
            if type(one) is str and len(one) > MAX_IN_PLACE:
                # It may have gigabytes: the walk says so before it is encoded.
                return None
        try:
            encoded = ONE_ITEM + dumps(args[0]) if alone else dumps(args)
        except UnicodeEncodeError:
            return None
        return encoded if len(encoded) <= MAX_IN_PLACE else None

    def decode(self, control: bytes, segments: Sequence[Segment] = ()) -> object:
        """Decode the value of a control part. Arrays use the memory of the given segments,
        uncopied, and writable where that is. Bytes of a `ReceivedSegment` are not copied either.

        Raises ProtocolError for bytes that no peer of ours sends, and DecodeError for values that
        this process cannot build (a class that cannot be imported, or is not marked).
        """
        decoders = self._decoders(segments) if segments else self._without_segments
        return self._load(control, decoders)

    def decode_stored(self, encoded: bytes, segments: Sequence[Segment] = ()) -> object:
        """Like `decode`, for a record of the store. Raises DecodeError, and never ProtocolError:
        other nodes, or other programs with access to an etcd, have written it, so there is no
        connection to close for bytes that are not ours.
        """
        try:
            return self.decode(encoded, segments)
        except ProtocolError as error:
            raise DecodeError(f"a record in the store is none of ours: {text_of(error)}") from None

    def decode_shared(self, control: bytes, segments: Sequence[Buffer]) -> object:
        """Like `decode`, for bytes that others read too, now or later: all arrays are read-only,
        and those in segments use their memory.
        """
        take = _taker(segments)
        readers = self._readers | {
            tag: _callback(reader) for tag, reader in segment_readers(take, shared=True).items()
        }
        return self._load(control, readers | {SPILLED: _callback(self._spilled(take, readers))})

    def decode_arguments(self, item: object) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return positional and keyword arguments from the decoded result of `encode_arguments`.
        Raises ProtocolError.
        """
        if type(item) is list:
            return tuple(cast("list[object]", item)), {}
        if type(item) is _Arguments:
            return item.args, item.kwargs
        raise ProtocolError(f"the arguments of a call came as {type(item).__name__}")

    def copy(self, value: object, path: str = "value") -> object:
        """Return `value` as the other side of the wire would get it; nothing that can change is
        shared. Raises EncodeError like `encode`.
        """
        kind = type(value)
        if kind is bytes or (kind in SCALARS and (kind is not str or cast("str", value).isascii())):
            return value
        segments: list[Buffer] = []
        control = self.encode(value, segments, path)
        try:
            return self.decode(
                control,
                [segment if type(segment) is bytes else bytearray(segment) for segment in segments],
            )
        except ProtocolError as error:
            # There is no peer here that has sent it: the value is to blame.
            raise EncodeError(f"{path} cannot be sent: it would arrive as {error}") from None

    def refusing(self, kind: type, why: str) -> Codec:
        """Return a codec like this one that refuses instances of `kind`: its EncodeError says where
        one is, and `why`.
        """

        def refuse(writer: PlainWriter, value: object, depth: int) -> NoReturn:
            raise UnsendableError(why)

        codec = copy.copy(self)
        codec._steps = copy.copy(self._steps)
        codec._steps[kind] = refuse
        return codec

    def reproducible(self) -> Codec:
        """Return a codec like this one that encodes equal sets to equal bytes. The iteration order
        of sets differs from process to process, so they are sorted.
        """
        codec = copy.copy(self)
        codec._steps = copy.copy(self._steps)
        codec._steps[set] = codec._steps[frozenset] = _sorted_set_step(self._max_payload)
        return codec

    def size_of(self, value: object) -> int | None:
        """Return the bytes that `value` takes; None if `encode` refuses it."""
        segments: list[Buffer] = []
        try:
            return len(self.encode(value, segments)) + sum(map(len, segments))
        except EncodeError:
            return None

    def skim(
        self, control: bytes, segments: Sequence[Segment], see: Callable[[str, object], None]
    ) -> object:
        """Decode only the lists, maps, texts and numbers of a control part. A tag becomes its
        content, and no object is built. `see` is called with the path and the fields of each
        message in it. Raises ProtocolError.
        """

        def message(content: Any) -> object:
            if type(content) is list and len(content) > 1 and type(content[0]) is str:
                see(content[0], content[1])
            return None

        def spilled(index: object) -> object:
            if (
                type(index) is not int
                or not 0 <= index < len(segments)
                or len(segments[index]) > self._max_payload
            ):
                raise ProtocolError("a reference to an encoded value that is missing or too large")
            return self._load(bytes(segments[index]), inner)

        inner = self._skimming | {MESSAGE: _callback(message)}
        return self._load(control, inner | {SPILLED: _callback(spilled)})

    def _skimmers(self) -> dict[int, _Callback]:
        """The callbacks of `skim`, but for those of messages and of encoded values in segments."""
        nothing, content = _callback(lambda content: None), _callback(lambda content: content)
        return (
            dict.fromkeys(self._readers, nothing)
            | {tag: self._readers[tag] for tag in BUILTIN_TAGS}
            | dict.fromkeys((SEGMENT, ARRAY), nothing)
            | dict.fromkeys((ARGUMENTS, TUPLE), content)
            | {SPILLED: _callback(_refuser(SPILLED))}
        )

    def find_class(self, path: str) -> type:
        """Return the class at `module:qualified.name`, of a module that is imported already, as
        `classes.find_class` does. Raises DecodeError.
        """
        found = self._classes.get(path)
        if found is None:
            found = classes.find_class(path)
            # A class may contain itself, as those of ctypes do, and is then found by endlessly many
            # paths. A peer can name them all; only the one that is the class's own is remembered.
            if path.endswith(f":{_QUALIFIED_NAME.__get__(found)}"):
                self._classes[path] = found
        return found

    def _encode(
        self, write: Callable[[PlainWriter], object], segments: list[Buffer], path: str
    ) -> bytes:
        return self._completed(self._encode_plain(write, segments, path), segments, path)

    def _completed(self, encoded: bytes, segments: list[Buffer], path: str) -> bytes:
        if len(encoded) > MAX_IN_PLACE:
            encoded = self._beside(encoded, segments, path)
        if type(segments) is Outgoing:
            segments.complete()
        return encoded

    def _encode_plain(
        self, write: Callable[[PlainWriter], object], segments: list[Buffer], path: str
    ) -> bytes:
        # What came before belongs to others: a second walk takes back only its own segments.
        count = len(segments)
        try:
            try:
                return self._walk(write, segments, path, False)
            except UnicodeEncodeError:
                # Rare, so a second walk is affordable: the first one does not check texts, this one
                # finds the path of the bad one.
                del segments[count:]
                return self._walk(write, segments, path, True)
        except EncodeError:
            raise
        except UnsendableError as error:
            place = path + "".join(reversed(error.steps))
            raise EncodeError(f"{place} {error.text}", path=place) from None
        except BaseException as error:  # noqa: ASYNC103
            # No checkpoint: user code that runs in a walk (a property, a time zone) has raised.
            if is_interrupt(error):
                raise
            raise EncodeError(  # noqa: ASYNC104
                f"{path} cannot be sent: looking at it raised {summary_of(error)}", path=path
            ) from error

    def _walk(
        self,
        write: Callable[[PlainWriter], object],
        segments: list[Buffer],
        path: str,
        careful: bool,
    ) -> bytes:
        writer = PlainWriter(self._steps, segments, self._threshold, self._max_depth, careful)
        plain = write(writer)
        if writer.shared is not None:
            # The caller of `encode_arguments` finds out which of them it is.
            self._refuse_copies(plain, writer.shared, path or "args")
        if writer.text > self._max_payload:
            # Before they are encoded: some texts may have gigabytes.
            raise self._too_large(f"at least {writer.text}", path or "args")
        if writer.left > MANY_ITEMS - UNBOUNDED_ITEMS and writer.text < LONG_TEXTS:
            return dumps(plain)
        parts = _BoundedParts(self._max_payload)
        try:
            dump(plain, cast("IO[bytes]", parts))
        except _TooManyBytesError:
            raise self._too_large(f"more than {self._max_payload}", path or "args") from None
        return b"".join(parts.written)

    def _refuse_copies(self, plain: object, shared: SharedObjects, path: str) -> None:
        """Raise EncodeError for a value that cbor2 would write for too long: it writes an object as
        often as it is there, perhaps 2**32 times.
        """
        weight = shared.weight_of(plain)
        if weight is None:
            return
        size, copies = weight
        if size > self._max_payload:
            raise self._too_large(f"at least {size}", path)
        if copies > MOST_COPIES:
            raise EncodeError(
                f"{path} holds the same containers again and again, and would arrive with "
                f"{copies} copies, where {MOST_COPIES} are allowed; send each once, and indices of "
                "them",
                path=path,
            )

    def _too_large(self, size: str, path: str) -> EncodeError:
        return EncodeError(
            f"{path} takes {size} bytes and may take {self._max_payload}; send its bulk as bytes "
            "or numpy arrays, which travel beside it, or in several calls. An object that a value "
            "holds several times is sent as often",
            path=path,
        )

    def _beside(self, encoded: bytes, segments: list[Buffer], path: str) -> bytes:
        """Return a reference to `encoded`, which becomes the last segment."""
        if len(encoded) > self._max_payload:
            raise self._too_large(str(len(encoded)), path)
        # Appended last, so that the indices of the segments inside it hold.
        segments.append(encoded)
        return dumps(CBORTag(SPILLED, len(segments) - 1))

    def _load(self, control: bytes, decoders: Mapping[int, _Callback]) -> object:
        try:
            # Ask for two items: cbor2 ignores bytes after a single one.
            pair: object = loads(
                b"".join((TWO_ITEMS, control, self._tail)),
                max_depth=self._wire_depth,
                allow_indefinite=False,
                allow_duplicate_keys=False,
                strict_hashable_types=True,
                semantic_decoders=decoders,
                tag_hook=_refuse_tag,
            )
        # Any error that bytes can cause in a decoder is the peer's fault, and must end only its
        # connection.
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            if is_interrupt(error):
                raise
            _raise_cause(error)  # noqa: ASYNC104
        value, sentinel = cast("list[object]", pair)
        # Compare the type first: another object may define its own equality (an array does).
        if type(sentinel) is not bytes or sentinel != self._sentinel:
            raise ProtocolError("the control part of a frame holds more, or less, than one item")
        return value

    def _decoders(self, segments: Sequence[Segment]) -> dict[int, _Callback]:
        """The callbacks for one decoding."""
        take = _taker(segments)
        readers = self._readers | {
            tag: _callback(reader) for tag, reader in segment_readers(take).items()
        }
        return readers | {SPILLED: _callback(self._spilled(take, readers))}

    def _spilled(
        self, take: Callable[[object], Segment], readers: Mapping[int, _Callback]
    ) -> ContentReader:
        """Return the reader of an encoded value that is a segment. Such a value cannot contain
        another one, or the depth of nesting would be without a bound.
        """

        def spilled(index: object) -> object:
            segment = take(index)
            if len(segment) > self._max_payload:
                raise ProtocolError(
                    f"an encoded value of {len(segment)} bytes, where {self._max_payload} are "
                    "allowed"
                )
            inner = {**readers, SPILLED: _callback(_refuser(SPILLED))}
            return self._load(bytes(segment), inner)

        return spilled


def _taker(segments: Sequence[Segment]) -> Callable[[object], Segment]:
    """Hands out each segment once, so that a short message cannot make this process build much
    memory.
    """
    left: list[Segment | None] = list(segments)

    def take(index: object) -> Segment:
        if type(index) is not int or not 0 <= index < len(left):
            raise ProtocolError(
                f"a reference to segment {short_repr(index)}, where there are {len(left)}"
            )
        segment = left[index]
        if segment is None:
            raise ProtocolError(f"a second reference to segment {index}")
        left[index] = None
        return segment

    return take


def _callback(reader: ContentReader) -> _Callback:
    return lambda content, immutable: reader(content)


def _refuser(tag: int) -> ContentReader:
    def refuse(content: Any) -> NoReturn:
        raise ProtocolError(f"the tag {tag} in a control part")

    return refuse


def _refuse_tag(tag: CBORTag, immutable: bool) -> NoReturn:
    raise ProtocolError(f"the tag {tag.tag} in a control part")


def _read_arguments(content: Any) -> _Arguments:
    args, kwargs = content
    if (
        type(args) is not list
        or type(kwargs) is not dict
        or not all(type(name) is str for name in kwargs)
    ):
        raise ProtocolError("the arguments of a call are a list and a map")
    return _Arguments(tuple(args), kwargs)


def _raise_cause(error: BaseException) -> NoReturn:
    """Raise the error that one of our callbacks raised inside cbor2, which wraps it; for any other,
    raise a ProtocolError.
    """
    cause: BaseException | None = error
    while cause is not None:
        if issubclass(type(cause), DecodeError | ProtocolError):
            raise cause
        cause = cause.__cause__
    raise ProtocolError(f"a control part that cannot be decoded: {text_of(error)}") from None
