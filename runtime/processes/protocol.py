"""The messages between a fork server and its parent over their socket pair, and the framing of a
child's report pipe. Pure: bytes in, messages out, and back.

Each message is a 4-byte length and a CBOR array: the number of the message's type in `_TYPES`, then
its fields. Both ends run the same program on the same machine, so there are no versions. The file
descriptors of a `StartProcess` travel with its first byte (SCM_RIGHTS): the write ends of the
child's output pipe and of its report pipe, in this order.
"""

from __future__ import annotations

import struct
from typing import Any, cast

import attrs
import cbor2

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_REPORT_BYTES = 64 * 1024
"""The limit for one report of a child. A child may write anything to its pipe, and a random length
would make the parent collect up to 4 GiB.
"""

DESCRIPTORS_PER_START = 2
_LENGTH = struct.Struct("!I")


@attrs.frozen
class SetUp:
    """Parent to warm process, first message: what to import. `main_path` is None if there is no
    main module that can be imported.

    Arguments and paths are bytes (`os.fsencode`), because they need not be UTF-8.
    """

    argv: list[bytes]
    preload: list[str]
    main_name: str | None
    main_path: bytes | None


@attrs.frozen
class StartProcess:
    """Parent to warm process: fork a child that calls `target` (`module:function`)."""

    number: int
    name: str
    target: str
    argument: bytes


@attrs.frozen
class Signal:
    """Parent to warm process: signal a child. It goes this way because only the warm process, which
    reaps its children, knows that the pid is still the child's.
    """

    number: int
    signum: int


@attrs.frozen
class Begun:
    """Warm process to parent, its first message: its pid. The process that the parent has started
    is the outer process.
    """

    pid: int


@attrs.frozen
class ServerReady:
    """Warm process to parent: everything is imported."""


@attrs.frozen
class SetUpFailed:
    """Warm process to parent, its last message: importing `what` failed. `unguarded_line`: the line
    at which the main script starts processes when it is imported, or 0. `reason`: what was raised,
    as `Type: text, at file:line`.
    """

    what: str
    traceback: str
    unguarded_line: int = 0
    reason: str = ""


@attrs.frozen
class Started:
    """Warm process to parent: the child exists."""

    number: int
    pid: int


@attrs.frozen
class Refused:
    """Warm process to parent: the child could not be forked."""

    number: int
    reason: str


@attrs.frozen
class Exited:
    """Warm process to parent: the child ended and is reaped; `status` is the wait status."""

    number: int
    status: int


Message = (
    SetUp | StartProcess | Signal | Begun | ServerReady | SetUpFailed | Started | Refused | Exited
)

_TYPES: tuple[type[Message], ...] = (
    SetUp,
    StartProcess,
    Signal,
    Begun,
    ServerReady,
    SetUpFailed,
    Started,
    Refused,
    Exited,
)


def encode_frame(body: bytes, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return `body` with its length in front. Raises ValueError beyond `limit` bytes."""
    if len(body) > limit:
        raise ValueError(f"a message of {len(body)} bytes is larger than the limit of {limit}")
    return _LENGTH.pack(len(body)) + body


def encode(message: Message) -> bytes:
    """Encode a message. Raises ValueError beyond `MAX_MESSAGE_BYTES`."""
    return encode_frame(
        cbor2.dumps([_TYPES.index(type(message)), *attrs.astuple(message, recurse=False)])
    )


def decode(body: bytes) -> Message:
    """Decode the body of a frame."""
    number, *fields = cast("list[Any]", cbor2.loads(body))
    message: Message = _TYPES[number](*fields)
    return message


class MessageReader:
    """Bytes in, complete bodies of at most `limit` bytes out."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that `data` completes. Raises ValueError if a frame announces more than
        the limit.
        """
        self._buffer += data
        bodies = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._limit:
                raise ValueError(
                    f"a message of {length} bytes is larger than the limit of {self._limit}"
                )
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return bodies
