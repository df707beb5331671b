"""From values to what CBOR can express.

Plain types keep their exact type through tags of our own. Large bytes-like values become segments,
uncopied. Anything that is not plain data, registered with `@message` or an extension is refused,
with the path to it: a value that arrived as a slightly different one (a subclass of dict as a dict)
would be a bug that shows only between nodes. `runtime.wire.codec` turns the result into bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from itertools import chain, islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
from cbor2 import CBORTag, dumps

from actors.converters import converter_of
from actors.messages import MessageType, import_path, message_type
from runtime.user_errors import guarded, summary_of
from runtime.wire.exceptions import args_of, fields_of, notes_of, stand_in_of
from runtime.wire.frames import Buffer, Outgoing
from runtime.wire.keys import check_keys
from runtime.wire.refusals import refusal
from runtime.wire.shared_objects import MOST_COPIES, SharedObjects
from runtime.wire.standard_types import BY_TYPE, StandardType, UnsendableError, named_tuple_fields
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

if TYPE_CHECKING:
    import numpy


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


UNBOUNDED_ITEMS = 16
"""Objects of a value, roughly, up to which cbor2 writes it at once. A larger one is written in
parts, so that it is given up as soon as there are too many bytes; that costs most of a microsecond.
"""


FEW_ITEMS = 16
"""Scalars of a container that are not counted: the container itself, which is, costs more."""


MOST_SORTED_COPIES = MOST_COPIES // 16
"""Containers of a set that is sorted which are copies of others."""


_MOST_IN_ROWS = 16 * 1024 * 1024
"""Scalars in a list of lists that is handed over as it is."""


Step = Callable[["PlainWriter", Any, int], object]


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

    __slots__ = ("careful", "left", "max_depth", "segments", "shared", "steps", "threshold")

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
        self.shared: SharedObjects | None = None
        """What was written for objects, from `MANY_ITEMS` of them on."""

    @property
    def is_small(self) -> bool:
        """True while so little was written that cbor2 may encode it at once."""
        return self.left > MANY_ITEMS - UNBOUNDED_ITEMS

    def write(self, value: object, depth: int) -> object:
        """Return what cbor2 is to encode for `value`, which is `depth` containers deep. Raises
        UnsendableError.
        """
        kind = type(value)
        if kind in SCALARS:
            if self.careful and kind is str:
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
                if len(found) > FEW_ITEMS:
                    self.left -= len(found) >> 4
                return cast("list[object]", found)
            # Batches of items are lists of lists, with thousands of them.
            if (
                depth < self.max_depth
                and _ROWS.issuperset(map(type, found))
                and self._are_rows(cast("list[list[object]]", found))
            ):
                return cast("list[object]", found)
        return self.write_each(items, depth)

    def _are_rows(self, rows: list[list[object]]) -> bool:
        """Return True if each row holds nothing but scalars, and they are few enough."""
        first = islice(chain.from_iterable(rows), FEW_ITEMS)
        if not SCALARS.issuperset(map(type, first)):
            return False
        # One row may be there a million times, an empty one as well.
        count = len(rows) + sum(map(len, rows))
        if count <= FEW_ITEMS:
            return True
        self.left -= count >> 4
        return count <= _MOST_IN_ROWS and SCALARS.issuperset(map(type, chain.from_iterable(rows)))

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
        stand_in = stand_in_of(kind)
        if stand_in is not None:
            # Not remembered: such a class may be made anew for each of its instances.
            path = _exception_path(stand_in.original)
            return _exception_step(path, stand_in.fields_of, stand_in.notes_of)
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


def _exception_path(cls: type[BaseException]) -> str:
    """Return the path of a class of exceptions. Raises UnsendableError if it cannot be sent."""
    described, standard = message_type(cls), BY_TYPE.get(cls)
    if described is not None:
        return described.path
    if standard is not None:
        return standard.path
    raise UnsendableError(refusal(cls, _EXACT))


def _exception_step(
    path: str,
    fields_of: Callable[[BaseException], dict[str, object]] = fields_of,
    notes_of: Callable[[BaseException], list[str]] = notes_of,
) -> Step:
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
        if len(value) > FEW_ITEMS:
            writer.left -= len(value) >> 4
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


def sorted_set_step(most: int) -> Step:
    """Return the step that sorts the members of a set by their encoding, so that equal sets give
    equal bytes. `most`: bytes that a set may have with copies of the same containers.
    """

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
