"""The codec: values to the control part and segments of a frame, and back.

CBOR (RFC 8949) by cbor2, within bounds: only complete items, only definite lengths, only tags of
our own and large integers, keys whose hashes a peer cannot make collide, a limit on depth, and
nothing after the item. Types beyond CBOR's travel under tags; classes are found again by import
path, in modules that are imported already, and accepted only if they carry the mark of `@message`,
or are enums: bytes never name code to run.

Promises: what decodes equals what was encoded, in value and in type, with nothing shared with it;
what cannot keep that promise is refused when it is encoded. Any bytes at all decode to a value, a
DecodeError or a ProtocolError.

`runtime.wire.plain_writer` turns values into what CBOR can express, `runtime.wire.content_readers`
builds values from what CBOR has decoded, and this file joins them, within bounds.

cbor2 ignores bytes after the item, so the control part is decoded as the first of two items, of
which the second is a sentinel that peers cannot guess: one comparison then says that the first
ended where it should.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn, cast

import attrs
from cbor2 import CBORTag, dump, dumps, loads

from actors.errors import DecodeError, EncodeError, ProtocolError
from actors.short_repr import short_repr
from runtime.user_errors import is_interrupt, summary_of, text_of
from runtime.wire import classes
from runtime.wire.arrays import ONE_ITEM, TWO_ITEMS
from runtime.wire.content_readers import ContentReader, content_readers, segment_readers
from runtime.wire.frames import Buffer, Outgoing, Segment
from runtime.wire.plain_writer import SCALARS, Extension, PlainWriter, sorted_set_step, steps_for
from runtime.wire.shared_objects import MOST_COPIES, SharedObjects
from runtime.wire.standard_types import UnsendableError
from runtime.wire.tags import (
    ARGUMENTS,
    ARRAY,
    BUILTIN_TAGS,
    DATETIME,
    ENUM,
    MESSAGE,
    OWN_TAGS,
    SEGMENT,
    SPILLED,
    TIME,
    TUPLE,
    head_of,
)
from runtime.wire.unreadable import UnreadablePlace, UnreadableSearch

MAX_IN_PLACE = 96 * 1024
"""Bytes from which an encoded value leaves the control part and becomes a segment. Of bytes as an
argument and result, measured in turn: in place, a call with 64 KiB takes a third less processor
time than with a segment in shared memory, one with 128 KiB a tenth less, one with 200 KiB a fifth
more.
"""


_LONGEST_BYTES = MAX_IN_PLACE - 16
"""With their heads, and that of the arguments, these are within `MAX_IN_PLACE`."""

_ARGUMENTS_HEAD = head_of(ARGUMENTS) + TWO_ITEMS
"""What the arguments of a call begin with, if it has keyword arguments."""

_BUILT_HEADS = tuple(map(head_of, (MESSAGE, ENUM, DATETIME, TIME)))
"""What values begin with that depend on the classes, or the time zones, of the process that reads
them.
"""

_QUALIFIED_NAME = cast("Any", vars(type)["__qualname__"])

_Callback = Callable[[Any, bool], object]


def is_in_place(value: object) -> bool:
    """Return True if cbor2 encodes `value` as it is, so that no walk over it is needed. Raises
    what the metaclass of its class raises when it is asked for a hash.
    """
    kind = type(value)
    return kind in SCALARS or (kind is bytes and len(cast("bytes", value)) <= _LONGEST_BYTES)


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
        self._extensions = frozenset(extension.tag for extension in extensions)
        self._extension_heads = tuple(map(head_of, sorted(self._extensions)))
        self._without_segments = self._decoders(())
        self._skimming = self._skimmers()

    def encode(self, value: object, segments: list[Buffer], path: str = "value") -> bytes:
        """Return the CBOR item for `value`. Large buffers are appended to `segments`, uncopied: do
        not change them until they are sent.

        Raises EncodeError with the path to the refused value, which begins with `path`. `segments`
        may have grown then; drop them.
        """
        try:
            encoded = dumps(value) if is_in_place(value) else None
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            # A metaclass has raised when it was asked for a hash, or there is a lone surrogate: the
            # walk below comes there again, and says what is wrong, and where.
            if is_interrupt(error):
                raise
            encoded = None
        if encoded is None:
            return self._encode(lambda writer: writer.write(value, 0), segments, path)
        # Inline, for the hot path.
        if len(encoded) <= MAX_IN_PLACE:
            return encoded
        return self._beside(encoded, segments, path)

    def encode_by_itself(self, value: object) -> bytes | None:
        """Return the CBOR item for `value` if another process may be unable to build something in
        it, such as a message. So the reader of several values can decode each by itself, at any
        time.

        Returns None for other values, for those with segments, and for those with values of
        extensions, which are to be decoded in the frame that they arrive with. Raises EncodeError.
        """
        segments: list[Buffer] = []
        encoded = self.encode(value, segments)
        if segments or not any(head in encoded for head in _BUILT_HEADS):
            return None
        # May be found in the bytes of a text as well: then the value is encoded by itself for
        # nothing, or is not.
        return None if any(head in encoded for head in self._extension_heads) else encoded

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
        # An array of two items that are encoded already: to encode them once more, as one item,
        # would cost as much again.
        return self._completed(_ARGUMENTS_HEAD + positional + keywords, segments, "args")

    def encode_scalars(self, args: tuple[object, ...]) -> bytes | None:
        """Like `encode_arguments`, for the hot path: encodes arguments that are all plain and
        small, bytes included; returns None for others.
        """
        # One call of one number is two bytes, and building a list for cbor2 would cost as much as
        # encoding it.
        alone = len(args) == 1
        try:
            if not (
                (alone and type(args[0]) in SCALARS)
                or SCALARS.issuperset(map(type, args))
                or all(map(is_in_place, args))
            ):
                return None
            # Bytes may be long: the head in front of them would cost a copy of them.
            one = alone and type(args[0]) is not bytes
            encoded = ONE_ITEM + dumps(args[0]) if one else dumps(args)
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            # As in `encode`: the caller's walk says what is wrong.
            if is_interrupt(error):
                raise
            return None  # noqa: ASYNC104
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

    def arguments_in(self, item: object) -> Sequence[object]:
        """Return the positional arguments in an item that `find_unreadable` has found; empty if it
        is none of a call.
        """
        if type(item) is _Arguments:
            return item.args
        return cast("list[object]", item) if type(item) is list else ()

    def copy(self, value: object, path: str = "value") -> object:
        """Return `value` as the other side of the wire would get it; nothing that can change is
        shared. Raises EncodeError like `encode`.
        """
        kind = type(value)
        # Inline, for the hot path; see `is_one_of`.
        if kind is bytes or (
            type(kind) is type
            and kind in SCALARS
            and (kind is not str or cast("str", value).isascii())
        ):
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
        codec._steps[set] = codec._steps[frozenset] = sorted_set_step(self._max_payload)
        return codec

    def size_of(self, value: object) -> int | None:
        """Return the bytes that `value` takes; None if `encode` refuses it."""
        segments: list[Buffer] = []
        try:
            return len(self.encode(value, segments)) + sum(map(len, segments))
        except EncodeError:
            return None

    def find_unreadable(
        self, error: DecodeError, control: bytes, segments: Sequence[Segment] = ()
    ) -> UnreadablePlace | None:
        """Return where in a control part the value is for which `decode` has raised `error`; None
        if it cannot be found. What comes before it is built once more: for answers to errors only.
        """
        search = UnreadableSearch()
        take = _taker(segments)
        readers = self._readers | {
            tag: _callback(reader) for tag, reader in segment_readers(take).items()
        }
        # Handles and references are not read again: that they have arrived is noted elsewhere.
        guarded = dict.fromkeys(self._extensions, _callback(lambda content: None)) | {
            tag: search.guarded(readers[tag])
            for tag in readers.keys() - self._extensions - {ARGUMENTS}
        }
        guarded[ARGUMENTS] = readers[ARGUMENTS]
        try:
            found = self._load(
                control, guarded | {SPILLED: _callback(self._spilled(take, guarded))}
            )
        except (DecodeError, ProtocolError):
            return None
        # User code that builds values may raise something else the second time.
        if search.error is None or str(search.error) != str(error):
            return None
        steps = search.steps_in(found, _of_arguments)
        return None if steps is None else UnreadablePlace(found, steps)

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
        if writer.is_small:
            return dumps(plain)
        # To count the characters of its texts first would take longer than the parts do.
        parts = _BoundedParts(self._max_payload)
        try:
            dump(plain, cast("IO[bytes]", parts))
        except _TooManyBytesError:
            raise self._too_large(f"more than {self._max_payload}", path or "args") from None
        written = parts.written
        return written[0] if len(written) == 1 else b"".join(written)

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
            failure = _failure_in(error)  # noqa: ASYNC104
        else:
            value, sentinel = cast("list[object]", pair)
            # Compare the type first: another object may define its own equality (an array does).
            if type(sentinel) is not bytes or sentinel != self._sentinel:
                raise ProtocolError(
                    "the control part of a frame holds more, or less, than one item"
                )
            return value
        # Not in the handler: cbor2's error has this one as its cause, and it would have cbor2's as
        # its context. Such a circle, with the bytes in its frames, waits for the cyclic collector.
        try:
            raise failure
        finally:
            # No circle with this frame, which the traceback has.
            del failure

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


def _of_arguments(value: object) -> object:
    if type(value) is _Arguments:
        places: dict[object, object] = dict(enumerate(value.args))
        return places | value.kwargs
    return value


def _failure_in(error: BaseException) -> BaseException:
    """Return the error that one of our callbacks raised inside cbor2, which wraps it; a
    ProtocolError for any other.
    """
    cause: BaseException | None = error
    while cause is not None:
        if issubclass(type(cause), DecodeError | ProtocolError):
            return cause
        cause = cause.__cause__
    return ProtocolError(f"a control part that cannot be decoded: {text_of(error)}")
