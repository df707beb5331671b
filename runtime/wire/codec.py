"""The codec: values to the control part and segments of a frame, and back.

CBOR (RFC 8949) by cbor2, within bounds: only complete items, only definite lengths, only tags of our own and large integers, keys whose
hashes nobody can make collide, a limit on depth, and nothing after the item. Types beyond CBOR's travel under tags (`values`); classes
are found again by import path, in modules that are imported already, and accepted only if they carry the mark of `@message`, or are
enums: bytes never name code to run.

Promises: what decodes equals what was encoded, in value and in type, with nothing shared with it; what cannot keep that promise is
refused when it is encoded. Any bytes at all decode to a value, a DecodeError or a ProtocolError.

cbor2 ignores bytes after the item, so the control part is decoded as the first of two items, of which the second is a sentinel that
peers cannot guess: one comparison then says that the first ended where it should.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import attrs
from cbor2 import CBORTag, dumps, loads

from actors.errors import DecodeError, EncodeError, ProtocolError
from runtime.user_errors import is_interrupt, summary_of, text_of
from runtime.wire import classes
from runtime.wire.frames import Buffer, Outgoing
from runtime.wire.readers import ContentReader, content_readers, segment_readers
from runtime.wire.segments import Segment
from runtime.wire.values import (
    ARGUMENTS,
    ARRAY,
    MESSAGE,
    OWN_TAGS,
    SCALARS,
    SEGMENT,
    SPILLED,
    TUPLE,
    Extension,
    PlainWriter,
    UnsendableError,
    steps_for,
)

__all__ = ["Codec", "Extension"]

MAX_IN_PLACE = 64 * 1024
"""Bytes from which an encoded value leaves the control part and becomes a segment of its own."""

REFUSED_TAGS = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000, 55_799)
"""Tags that cbor2 decodes by itself, among them regular expressions, e-mails and references that make cycles. None is sent by us."""


_Callback = Callable[[Any, bool], object]


@attrs.frozen
class _Arguments:
    """Positional and keyword arguments of a call, as decoded."""

    args: tuple[object, ...]
    kwargs: dict[str, object]


class Codec:
    """Encodes and decodes what users send.

    Parameters: `extensions` besides the types of `values`; `sentinel`, 8 bytes that peers cannot guess; `segment_threshold` in bytes,
    from which bytes-like values travel as segments; `max_depth` of containers in a value; `max_payload`, the bytes that an encoded value
    may have apart from its segments.
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
        # A container of ours takes at most three levels of CBOR (tag, array, map); the rest is for the call around the arguments.
        self._wire_depth = 3 * max_depth + 12
        self._max_payload = max_payload
        self._steps = steps_for(extensions)
        self._classes: dict[str, type] = {}
        readers = {tag: _refuser(tag) for tag in REFUSED_TAGS} | content_readers(self.find_class) | {ARGUMENTS: _read_arguments}
        for extension in extensions:
            if extension.tag in OWN_TAGS or extension.tag in readers or extension.tag in (2, 3):
                raise ValueError(f"the tag {extension.tag} of the extension for {extension.type.__name__} is taken; choose another")
            readers[extension.tag] = extension.from_plain
        self._readers = {tag: _callback(reader) for tag, reader in readers.items()}
        self._without_segments = self._decoders(())

    def encode(self, value: object, segments: list[Buffer], path: str = "value") -> bytes:
        """The CBOR item for `value`; what travels beside it is appended to `segments`, uncopied: leave it unchanged until it is sent.

        Raises EncodeError, with the way to what is refused, which begins with `path`. `segments` may have grown then; drop them.
        """
        if type(value) in SCALARS:
            try:
                return self._bounded(dumps(value), segments, path)
            except UnicodeEncodeError:
                pass
        return self._encode(lambda writer: writer.write(value, 0), segments, path)

    def encode_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object], segments: list[Buffer]) -> bytes:
        """The CBOR item for the arguments of a call. Raises EncodeError like `encode`; paths begin with `args[0]` or the keyword."""
        if not kwargs:
            encoded = self.encode_scalars(args)
            if encoded is not None:
                return encoded
            return self._encode(lambda writer: writer.write_all(args, 0), segments, "args")
        try:
            positional = self._encode_plain(lambda writer: writer.write_all(args, 0), segments, "args")
            keywords = self._encode_plain(lambda writer: writer.write_fields(kwargs, 0), segments, "")
        except EncodeError as error:
            if error.path.startswith("."):
                raise EncodeError(str(error)[1:], path=error.path[1:]) from None
            raise
        head = b"\xd9" + ARGUMENTS.to_bytes(2, "big") + b"\x82"
        return self._completed(head + positional + keywords, segments, "args")

    def encode_scalars(self, args: tuple[object, ...]) -> bytes | None:
        """Like `encode_arguments`, for the hot path: arguments that are all plain and small; None for others."""
        if not SCALARS.issuperset(map(type, args)):
            return None
        try:
            # One call of one number is two bytes, and building a list for cbor2 would cost as much as encoding it.
            encoded = b"\x81" + dumps(args[0]) if len(args) == 1 else dumps(args)
        except UnicodeEncodeError:
            return None
        return encoded if len(encoded) <= MAX_IN_PLACE else None

    def decode(self, control: bytes, segments: Sequence[Segment] = ()) -> object:
        """The value of a control part.

        Arrays lie over the segments given, uncopied and writable where those are; bytes are those of a `ReceivedSegment`, uncopied, too.
        Raises ProtocolError for bytes that no peer of ours sends, DecodeError for values that this process cannot build (a class that
        cannot be imported, or is not marked).
        """
        decoders = self._decoders(segments) if segments else self._without_segments
        return self._load(control, decoders)

    def decode_shared(self, control: bytes, segments: Sequence[Buffer]) -> object:
        """Like `decode`, for bytes that others read as well, now or later: all arrays are read-only, and those in segments lie over
        them.
        """
        take = _taker(segments)
        readers = self._readers | {tag: _callback(reader) for tag, reader in segment_readers(take, shared=True).items()}
        return self._load(control, readers | {SPILLED: _callback(self._spilled(take, readers))})

    def decode_arguments(self, item: object) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments, from what an item made by `encode_arguments` decoded to. Raises ProtocolError."""
        if type(item) is list:
            return tuple(cast("list[object]", item)), {}
        if type(item) is _Arguments:
            return item.args, item.kwargs
        raise ProtocolError(f"the arguments of a call came as {type(item).__name__}")

    def copy(self, value: object, path: str = "value") -> object:
        """`value` as the other side of the wire would get it, with nothing shared that can change. Raises EncodeError like `encode`."""
        kind = type(value)
        if kind is bytes or (kind in SCALARS and (kind is not str or cast("str", value).isascii())):
            return value
        segments: list[Buffer] = []
        control = self.encode(value, segments, path)
        return self.decode(control, [segment if type(segment) is bytes else bytearray(segment) for segment in segments])

    def refusing(self, kind: type, why: str) -> Codec:
        """One like this that does not encode what is a `kind`: its EncodeError says where it is, and `why`."""

        def refuse(writer: PlainWriter, value: object, depth: int) -> NoReturn:
            raise UnsendableError(why)

        codec = copy.copy(self)
        codec._steps = copy.copy(self._steps)
        codec._steps[kind] = refuse
        return codec

    def size_of(self, value: object) -> int | None:
        """How many bytes `value` takes; None if `encode` refuses it."""
        segments: list[Buffer] = []
        try:
            return len(self.encode(value, segments)) + sum(map(len, segments))
        except EncodeError:
            return None

    def peek_number(self, control: bytes) -> int:
        """The number with which the array of a call, reply or error begins, when the rest cannot be decoded. Raises ProtocolError."""
        if len(control) >= 6 and 0x80 < control[0] <= 0x97:
            if control[1] == 0x1A:
                return int.from_bytes(control[2:6], "big")
            if control[1] == 0x1B and len(control) >= 10:
                return int.from_bytes(control[2:10], "big")
        raise ProtocolError("a control part that does not begin with a number")

    def skim(self, control: bytes, segments: Sequence[Segment], see: Callable[[str, object], None]) -> object:
        """Lists, maps, texts and numbers of a control part; what is tagged is the content of its tag, and nothing is built of it.

        `see` is called with the path and the fields of each message in it. Raises ProtocolError.
        """

        def message(content: Any) -> object:
            if type(content) is list and len(content) > 1 and type(content[0]) is str:
                see(content[0], content[1])
            return None

        def spilled(index: object) -> object:
            if type(index) is not int or not 0 <= index < len(segments) or len(segments[index]) > self._max_payload:
                raise ProtocolError("an encoded value that is not there, or too large")
            return self._load(bytes(segments[index]), inner)

        inner: dict[int, _Callback] = {tag: _callback(lambda content: None) for tag in self._readers} | {
            tag: self._readers[tag] for tag in REFUSED_TAGS
        }
        inner |= {
            SEGMENT: inner[MESSAGE],
            ARRAY: inner[MESSAGE],
            SPILLED: _callback(_refuser(SPILLED)),
            ARGUMENTS: _callback(lambda content: content),
            TUPLE: _callback(lambda content: content),
            MESSAGE: _callback(message),
        }
        return self._load(control, inner | {SPILLED: _callback(spilled)})

    def find_class(self, path: str) -> type:
        """The class at `module:qualified.name`, of a module that is imported already, or DecodeError. See `classes.find_class`."""
        found = self._classes.get(path)
        if found is None:
            found = self._classes[path] = classes.find_class(path)
        return found

    def _encode(self, write: Callable[[PlainWriter], object], segments: list[Buffer], path: str) -> bytes:
        return self._completed(self._encode_plain(write, segments, path), segments, path)

    def _completed(self, encoded: bytes, segments: list[Buffer], path: str) -> bytes:
        bounded = self._bounded(encoded, segments, path)
        if type(segments) is Outgoing:
            segments.complete()
        return bounded

    def _encode_plain(self, write: Callable[[PlainWriter], object], segments: list[Buffer], path: str) -> bytes:
        count = len(segments)
        try:
            try:
                return dumps(write(PlainWriter(self._steps, segments, self._threshold, self._max_depth, False)))
            except UnicodeEncodeError:
                # Rare enough to walk twice: the first walk trusts texts, this one finds the path.
                del segments[count:]
                return dumps(write(PlainWriter(self._steps, segments, self._threshold, self._max_depth, True)))
        except UnsendableError as error:
            place = path + "".join(reversed(error.steps))
            raise EncodeError(f"{place} {error.text}", path=place) from None
        except BaseException as error:  # noqa: ASYNC103  no checkpoint: user code that runs in a walk (a property, a time zone) has raised
            if is_interrupt(error):
                raise
            raise EncodeError(f"{path} cannot be sent: looking at it raised {summary_of(error)}", path=path) from error  # noqa: ASYNC104

    def _bounded(self, encoded: bytes, segments: list[Buffer], path: str) -> bytes:
        """`encoded` itself while it is small; else a reference to it, now the last segment."""
        if len(encoded) <= MAX_IN_PLACE:
            return encoded
        if len(encoded) > self._max_payload:
            raise EncodeError(
                f"{path} takes {len(encoded)} bytes and may take {self._max_payload}; "
                "send its bulk as bytes or numpy arrays, which travel beside it, or in several calls",
                path=path,
            )
        segments.append(encoded)
        return dumps(CBORTag(SPILLED, len(segments) - 1))

    def _load(self, control: bytes, decoders: Mapping[int, _Callback]) -> object:
        try:
            pair: object = loads(
                b"\x82" + control + self._tail,
                max_depth=self._wire_depth,
                allow_indefinite=False,
                allow_duplicate_keys=False,
                strict_hashable_types=True,
                semantic_decoders=decoders,
                tag_hook=_refuse_tag,
            )
        # Whatever bytes can provoke in a decoder is the peer's fault, and must not end more than its connection.
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            if is_interrupt(error):
                raise
            _raise_cause(error)  # noqa: ASYNC104
        value, sentinel = cast("list[object]", pair)
        # Its type first: what else may stand there can have an equality of its own (an array has).
        if type(sentinel) is not bytes or sentinel != self._sentinel:
            raise ProtocolError("the control part of a frame holds more, or less, than one item")
        return value

    def _decoders(self, segments: Sequence[Segment]) -> dict[int, _Callback]:
        """Callbacks for one decoding."""
        take = _taker(segments)
        readers = self._readers | {tag: _callback(reader) for tag, reader in segment_readers(take).items()}
        return readers | {SPILLED: _callback(self._spilled(take, readers))}

    def _spilled(self, take: Callable[[object], Segment], readers: Mapping[int, _Callback]) -> ContentReader:
        """The reader of an encoded value that is a segment itself, in which there is no other such."""
        inner = {**readers, SPILLED: _callback(_refuser(SPILLED))}

        def spilled(index: object) -> object:
            segment = take(index)
            if len(segment) > self._max_payload:
                raise ProtocolError(f"an encoded value of {len(segment)} bytes, where {self._max_payload} are allowed")
            return self._load(bytes(segment), inner)

        return spilled


def _taker(segments: Sequence[Segment]) -> Callable[[object], Segment]:
    """Gives out each segment once, so that a short message cannot stand for much memory."""
    left: list[Segment | None] = list(segments)

    def take(index: object) -> Segment:
        if type(index) is not int or not 0 <= index < len(left):
            raise ProtocolError(f"a reference to segment {index!r}, where there are {len(left)}")
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
    if type(args) is not list or type(kwargs) is not dict or not all(type(name) is str for name in kwargs):
        raise ProtocolError("the arguments of a call are a list and a map")
    return _Arguments(tuple(args), kwargs)


def _raise_cause(error: BaseException) -> NoReturn:
    """What a callback of ours raised inside cbor2, or a ProtocolError for all else."""
    cause: BaseException | None = error
    while cause is not None:
        if issubclass(type(cause), DecodeError | ProtocolError):
            raise cause
        cause = cause.__cause__
    raise ProtocolError(f"a control part that cannot be decoded: {text_of(error)}") from None
