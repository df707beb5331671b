"""The codec: values to bytes and back, data only.

Plain data, registered messages, enums, arrays and the extensions that a node adds (handles, references) become one CBOR item; large bytes and arrays go
beside it as segments, uncopied. Decoding uses the safe settings only: bounded depth, no indefinite lengths, no duplicate keys, an
allowlist of tags, the whole input consumed. What cannot be sent is refused at the sender, with the path to it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import cbor2

from actors.errors import DecodeError, EncodeError, ProtocolError
from runtime.wire.frames import Buffer
from runtime.wire.values import (
    ARGUMENTS,
    PAYLOAD,
    REFUSED_TAGS,
    SCALARS,
    SMALL,
    Encoding,
    Extension,
    plain_decoders,
)

__all__ = ["Codec", "Extension"]

PAYLOAD_THRESHOLD = 64 * 1024
"""Bytes of an encoded value from which it travels as a segment of its own, decoded with the larger limit."""


@attrs.frozen
class _Arguments:
    args: list[object]
    kwargs: dict[str, object]


class Codec:
    """Encodes and decodes for one node. `sentinel`: 8 bytes that no peer can guess; they show that an item was consumed to its end.

    `segment_threshold`: bytes from which bytes and arrays travel beside the control part. `max_depth`: nesting that is sent and accepted.
    `max_payload`: bytes of a value that travels as a segment of its own.
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
            raise ValueError(f"the sentinel must be 8 bytes, not {len(sentinel)}")
        self._sentinel = sentinel
        self._end = b"\x48" + sentinel
        self._max_depth = max_depth
        self._max_payload = max_payload
        self._encoding = Encoding(tuple(extensions), segment_threshold, max_depth)
        self._classes: dict[str, type] = {}
        self._segments: Sequence[Buffer] = ()
        decoders: dict[int, Callable[[Any, bool], Any]] = {tag: _refuse(tag) for tag in REFUSED_TAGS}
        decoders |= plain_decoders(self.find_class, self._segment)
        decoders[ARGUMENTS] = _arguments
        decoders[PAYLOAD] = self._payload
        for extension in extensions:
            decoders[extension.tag] = _from_plain(extension.from_plain)
        # Tags and messages nest inside our own arrays, so what the user may nest is what is left.
        self._loads = functools.partial(
            cbor2.loads,
            max_depth=4 * max_depth,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            semantic_decoders=decoders,
            tag_hook=_unknown_tag,
        )

    def encode(self, value: object, segments: list[Buffer], path: str = "value") -> bytes:
        """The CBOR item of `value`; what travels beside it is appended to `segments`. Raises EncodeError with the path to what cannot be sent."""
        kind = type(value)
        if kind in SMALL or (kind is str and len(cast("str", value)) < 1024):
            try:
                return cbor2.dumps(value)
            except UnicodeEncodeError as error:
                raise EncodeError(f"{path} is a str with lone surrogates, which is no text: {error}; send bytes instead", path=path) from None
        first = len(segments)
        encoded = self._encoding.dumps(value, segments, path)
        if len(encoded) < PAYLOAD_THRESHOLD:
            return encoded
        if len(encoded) > self._max_payload:
            raise EncodeError(f"{path} takes {len(encoded)} bytes, {self._max_payload} are allowed; send it in parts, or as bytes or arrays", path=path)
        segments.append(encoded)
        return cbor2.dumps(cbor2.CBORTag(PAYLOAD, [len(segments) - 1, first]))

    def encode_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object], segments: list[Buffer]) -> bytes:
        """The arguments of a call: an array, or with keywords a tag of an array and a map."""
        count = len(args)
        if not kwargs:
            if count == 1 and type(args[0]) in SMALL:
                return b"\x81" + cbor2.dumps(args[0])
            if count <= 8 and SMALL.issuperset(map(type, args)):
                return bytes((0x80 + count,)) + b"".join(map(cbor2.dumps, args))
        if not kwargs and count < 24:
            return bytes((0x80 + count,)) + b"".join([self.encode(value, segments, f"args[{index}]") for index, value in enumerate(args)])
        listed = [self.encode(value, segments, f"args[{index}]") for index, value in enumerate(args)]
        named = [cbor2.dumps(name) + self.encode(value, segments, name) for name, value in kwargs.items()]
        return b"%b\x82%b%b%b%b" % (_tag_head(ARGUMENTS), _head(0x80, count), b"".join(listed), _head(0xA0, len(named)), b"".join(named))

    def decode(self, control: bytes, segments: Sequence[Buffer] = ()) -> object:
        """The value of one CBOR item. Raises ProtocolError if it is malformed, DecodeError if a class in it cannot be had here."""
        self._segments = segments
        try:
            items = self._loads(b"\x82" + control + self._end)
        except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError, AttributeError, KeyError, IndexError) as error:
            raise _cause(error) from None
        finally:
            self._segments = ()
        if items[1] != self._sentinel:
            raise ProtocolError("bytes after the end of a CBOR item")
        return items[0]

    def decode_arguments(self, item: object) -> tuple[tuple[object, ...], dict[str, object]]:
        """The decoded fifth item of a call as arguments. Raises ProtocolError if it is none."""
        if type(item) is list:
            return tuple(cast("list[object]", item)), {}
        if isinstance(item, _Arguments):
            return tuple(item.args), item.kwargs
        raise ProtocolError("the arguments of a call are an array")

    def copy(self, value: object, path: str = "value") -> object:
        """What the other side would get: nothing mutable is shared with `value`."""
        if type(value) in SCALARS:
            return value
        segments: list[Buffer] = []
        encoded = self.encode(value, segments, path)
        return self.decode(encoded, [bytes(segment) if isinstance(segment, bytes) else bytearray(segment) for segment in segments])

    def encodable(self, value: object) -> bool:
        """True if `value` can be sent."""
        try:
            self.encode(value, [])
        except EncodeError:
            return False
        return True

    def peek_number(self, control: bytes) -> int:
        """The number that a call's or answer's array begins with, for when the rest cannot be decoded."""
        if len(control) >= 6 and control[1] == 0x1A:
            return int.from_bytes(control[2:6], "big")
        if len(control) >= 10 and control[1] == 0x1B:
            return int.from_bytes(control[2:10], "big")
        raise ProtocolError("a call or answer without a number")

    def find_class(self, path: str) -> type:
        """The class at `module:Qualified.Name`, imported if need be. Raises DecodeError if there is none."""
        found = self._classes.get(path)
        if found is None:
            found = self._classes[path] = _import(path)
        return found

    def _segment(self, index: object) -> Buffer:
        if not isinstance(index, int) or not 0 <= index < len(self._segments):
            raise ProtocolError(f"a value refers to segment {index!r}; the frame has {len(self._segments)}")
        return self._segments[index]

    def _payload(self, value: Any, immutable: bool) -> object:
        index, _ = value
        return self._loads(bytes(self._segment(index)))


def _import(path: str) -> type:
    module_name, colon, name = path.partition(":")
    if not colon or not name or not module_name:
        raise DecodeError(f"{path!r} is no import path; expected module:Class")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever importing a user's module raises
        raise DecodeError(f"{path} cannot be imported here: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise DecodeError(f"{path} is no class")
    return found


def _cause(error: BaseException) -> Exception:
    """What lies behind a decoder's error: one of ours if a hook raised it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DecodeError | ProtocolError):
            return cause
        cause = cause.__cause__
    return ProtocolError(f"a malformed CBOR item: {error}")


def _refuse(tag: int) -> Callable[[Any, bool], Any]:
    def refuse(value: Any, immutable: bool) -> Any:
        raise ProtocolError(f"CBOR tag {tag} is not accepted")

    return refuse


def _unknown_tag(tag: cbor2.CBORTag, immutable: bool) -> Any:
    raise ProtocolError(f"CBOR tag {tag.tag} is not accepted")


def _from_plain(convert: Callable[[Any], object]) -> Callable[[Any, bool], object]:
    return lambda value, immutable: convert(value)


def _arguments(value: Any, immutable: bool) -> _Arguments:
    args, kwargs = value
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise ProtocolError("malformed arguments")
    return _Arguments(args, dict(kwargs))


def _head(major: int, count: int) -> bytes:
    if count < 24:
        return bytes((major + count,))
    if count < 256:
        return bytes((major + 24, count))
    return bytes((major + 26,)) + count.to_bytes(4, "big")


def _tag_head(tag: int) -> bytes:
    return b"\xd9" + tag.to_bytes(2, "big")

