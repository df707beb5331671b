"""The format of frames about calls: flags, and the items of their control parts.

    CALL      [number, actor, epoch, method, arguments, remaining seconds, first number,
              [reference, version], chain, context, attempt]; the last six only where there is any
    SEND      the same, without a deadline; its number is its place in the order of the peer's calls
    REPLY     [number, value, depth]; the last only where the CALL asks for it
    ERROR     [number, code, description]
    CANCEL    [number]
    ITEM      [number, value]
    CREDIT    [number, items consumed in all]
    FORGET    [watermark, [number, ...], watermark of all peers]

The first number of a CALL is that of the first attempt that may have run. It is present if it
differs from the number, or if that attempt was made to another epoch of the actor: it identifies
the call over all attempts. Below the watermark of all peers every call has ended, wherever it was
made.

The depth of a REPLY: how many other calls the actor has, that wait or run.

The chain of a CALL that is made by a method: a text, see `runtime.hosting.chains`. The context of
a CALL or SEND: a text, see `actors.call_context`. The attempt: a number, where it is not the first.

Arrays, not maps: they are encoded for every call. More items than we know are ignored: a newer peer
may send them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import cbor2

from actors.call_context import MOST_TEXT, CallContext
from actors.errors import ProtocolError
from actors.short_repr import short_repr
from runtime.hosting.chains import Chain
from runtime.hosting.held_bytes import HeldBytes
from runtime.wire.arrays import (
    ARRAY,
    EMPTY_ARRAY,
    NULL,
    SHORT_HEAD,
    SHORT_NUMBER,
    SHORT_NUMBERS,
    array_head,
    float_number,
    long_number,
    number_pair,
    short_number,
    with_item,
)
from runtime.wire.codec import Codec
from runtime.wire.frames import HEADER, LIMITS, Buffer, Kind, encode_frame

KEEP_RESULT = 1
"""Flag of a CALL: the result stays at the callee, under the number of a reference that the caller
has made.
"""

REPEATABLE = 2
"""Flag of a CALL: it may be sent again with the same number, so its outcome is recorded until the
caller confirms it.
"""

REPEAT = 4
"""Flag of a CALL: it was sent before."""

STREAM = 8
"""Flag of a CALL: it is answered item by item, and by a REPLY without a value at the end."""

TENTATIVE = 16
"""Flag of a CALL whose result stays: it may be made again if the method raises, so what that raises
is not its outcome yet.
"""

TELL_DEPTH = 32
"""Flag of a CALL: its REPLY may say how many other calls the actor has."""

SHORT_REST = 4096
"""Replies with up to this many bytes may say more beside their value; see `with_depth`."""

UNCHECKED_REST = 128 * 1024
"""Frames with up to this many bytes after their number are within the limits of any peer; longer
ones are checked before they are sent.
"""
assert LIMITS.control >= UNCHECKED_REST + 16

_CALL, _REPLY, _ITEM = int(Kind.CALL), int(Kind.REPLY), int(Kind.ITEM)
"""For the hot path: in CPython 3.11 the attribute of an enum costs as much as packing a header."""

MAX_NUMBER = 1 << 64
"""The numbers of calls are below this."""


class CallRequest(NamedTuple):
    """A CALL or SEND, decoded. `remaining` is in seconds, infinite without a deadline; `first` is
    the call's first number, 0 for none.

    `kept`: the number of the reference to its result, and the version in which the caller holds it.
    `held_bytes`: not of the frame: what its arguments take here, where that is counted.
    """

    number: int
    actor: str
    epoch: int
    method: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    remaining: float
    first: int = 0
    kept: tuple[int, int] = (0, 0)
    chain: Chain | None = None
    context: CallContext | None = None
    attempt: int = 1
    held_bytes: HeldBytes | None = None


def numbered_frame(
    kind: int,
    length: int,
    number: int,
    rest: bytes,
    segments: Sequence[Buffer] = (),
    flags: int = 0,
) -> bytes:
    """The head of a frame whose control part is an array of `length` items: `number`, and those
    that are encoded in `rest`.

    Raises EncodeError if the frame is larger than any peer would accept.
    """
    if number < SHORT_NUMBERS and not segments and len(rest) <= UNCHECKED_REST:
        # The hot path. 6: the bytes of the array's head and of its number.
        return (
            SHORT_HEAD.pack(kind, flags, 0, 6 + len(rest), ARRAY + length, SHORT_NUMBER, number)
            + rest
        )
    return encode_frame(kind, array_head(length, number) + rest, segments, flags)


def call_frame(
    number: int,
    flags: int,
    prefix: bytes,
    arguments: bytes,
    segments: Sequence[Buffer],
    remaining: float | None,
    first: int = 0,
    kept: tuple[int, int] | None = None,
    chain: Chain | None = None,
    context: CallContext | None = None,
    attempt: int = 1,
) -> bytes:
    """The head of a CALL. `prefix`: actor, epoch and method, encoded; `remaining`: seconds until
    the deadline; `first`, `kept`, `chain`, `context`, `attempt`: see `CallRequest`.

    Raises EncodeError if the frame is larger than any peer would accept.
    """
    if first or kept is not None or chain is not None or context is not None or attempt > 1:
        length, later = _later_items(remaining, first, kept, chain, context, attempt)
    elif remaining is not None:
        length, later = 6, float_number(remaining)
    else:
        length, later = 5, b""
    size = len(prefix) + len(arguments) + len(later)
    if number < SHORT_NUMBERS and not segments and size <= UNCHECKED_REST:
        # As in `numbered_frame`, but long arguments are copied once.
        head = SHORT_HEAD.pack(_CALL, flags, 0, 6 + size, ARRAY + length, SHORT_NUMBER, number)
        return b"".join((head, prefix, arguments, later))
    return numbered_frame(_CALL, length, number, prefix + arguments + later, segments, flags)


def _later_items(
    remaining: float | None,
    first: int,
    kept: tuple[int, int] | None,
    chain: Chain | None,
    context: CallContext | None,
    attempt: int,
) -> tuple[int, bytes]:
    """Return how many items the CALL has in all, and those after its arguments, encoded: up to the
    last that there is, with null for what is missing before it.
    """
    items = NULL if remaining is None else float_number(remaining)
    items += long_number(first) if first else NULL
    if chain is None and context is None and attempt == 1:
        return (7, items) if kept is None else (8, items + number_pair(*kept))
    items += NULL if kept is None else number_pair(*kept)
    items += NULL if chain is None else chain.sent
    if attempt > 1:
        items += NULL if context is None else context_item(context)
        return 11, items + short_number(attempt)
    return (9, items) if context is None else (10, items + context_item(context))


def context_item(context: CallContext) -> bytes:
    """The context as CBOR. Encoded once: what a method is called with, it sends with each call of
    its own.
    """
    sent = context.sent
    if not sent:
        text = context.text
        sent = context.sent = cbor2.dumps(text) if text else NULL
    return sent


def send_control(
    number: int, prefix: bytes, arguments: bytes, context: CallContext | None, attempt: int = 1
) -> bytes:
    """The control part of a SEND."""
    if context is None and attempt == 1:
        return array_head(5, number) + prefix + arguments
    later = 4 * NULL + (NULL if context is None else context_item(context))
    if attempt == 1:
        return array_head(10, number) + prefix + arguments + later
    return array_head(11, number) + prefix + arguments + later + short_number(attempt)


def as_repeat(frame: bytes) -> bytes:
    """The head of a CALL frame with the flag of a repeat."""
    return bytes((frame[0], frame[1] | REPEAT)) + frame[2:]


def cancel_frame(number: int) -> bytes:
    """Encode a CANCEL of the call with this number."""
    return numbered_frame(Kind.CANCEL, 1, number, b"")


def reply_frame(number: int, value: bytes, segments: Sequence[Buffer]) -> bytes:
    """The head of a REPLY; `value` is encoded. Raises EncodeError if the frame is larger than any
    peer would accept.
    """
    return numbered_frame(_REPLY, 2, number, value, segments)


def error_frame(number: int, encoded: bytes, segments: Sequence[Buffer] = ()) -> bytes:
    """The head of an ERROR; `encoded`: its code and its description. Raises EncodeError if the
    frame is larger than any peer would accept.
    """
    return numbered_frame(Kind.ERROR, 3, number, encoded, segments)


def with_depth(frame: bytes, depth: int) -> bytes:
    """Return a short REPLY without segments with the number of other calls of its actor added. Any
    other frame is returned as it is, because that number is only a hint.
    """
    kind, _, segments, length = HEADER.unpack_from(frame)
    if kind != Kind.REPLY or segments or length > SHORT_REST:
        return frame
    return with_item(frame, short_number(depth))


def item_frame(number: int, value: bytes, segments: Sequence[Buffer]) -> tuple[bytes, int]:
    """The head of an ITEM, and the size of it all as credit counts it; `value` is encoded. Raises
    EncodeError for too large a frame.
    """
    frame = numbered_frame(_ITEM, 2, number, value, segments)
    size = len(frame) - HEADER.size - 4 * len(segments) + sum(map(len, segments))
    return frame, size


def credit_frame(number: int, consumed: int) -> bytes:
    """Encode a CREDIT: the reader has consumed `consumed` items of a stream in all."""
    return numbered_frame(Kind.CREDIT, 2, number, long_number(consumed))


def forget_frame(watermark: int, beyond: list[int], everywhere: int) -> bytes:
    """Encode a FORGET: its three items. There are seldom numbers beyond the watermark."""
    numbers = cbor2.dumps(beyond) if beyond else EMPTY_ARRAY
    return numbered_frame(Kind.FORGET, 3, watermark, numbers + long_number(everywhere))


class ReadContexts:
    """Makes the contexts of calls that have arrived. Calls of one trace come one after the other
    with the same text: they share one object, which is read, and encoded for the calls that the
    methods make, once.
    """

    __slots__ = ("_last", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._last = CallContext()

    def read(self, text: str) -> CallContext:
        """The context of this text, which never changes."""
        if text != self._text:
            self._last, self._text = CallContext(text), text
        return self._last


def request(
    parts: Any, codec: Codec, contexts: ReadContexts, held_bytes: HeldBytes | None = None
) -> CallRequest:
    """The items of a CALL or SEND, checked. Raises ProtocolError."""
    if type(parts) is not list or len(parts) < 5:
        raise ProtocolError("a call is an array of at least five items")
    items: list[object] = parts
    number, name, epoch, method = items[:4]
    if not (
        type(number) is int
        and isinstance(name, str)
        and type(epoch) is int
        and isinstance(method, str)
    ):
        raise ProtocolError("a call begins with number, name, epoch and method")
    if not 0 <= number < MAX_NUMBER:
        raise ProtocolError(f"{number} is not the number of a call")
    args, kwargs = codec.decode_arguments(items[4])
    remaining = math.inf
    if len(items) > 5 and items[5] is not None:
        seconds = items[5]
        if not isinstance(seconds, float) or math.isnan(seconds):
            raise ProtocolError("a call's remaining time is a number of seconds")
        remaining = seconds
    first, kept = 0, (0, 0)
    if len(items) > 6 and items[6] is not None:
        first = _number(items[6])
    if len(items) > 7 and items[7] is not None:
        pair = items[7]
        if type(pair) is not list or len(pair) != 2:
            raise ProtocolError("the reference of a CALL must be two numbers")
        kept = (_number(pair[0]), _number(pair[1]))
    chain = None
    if len(items) > 8 and items[8] is not None:
        if type(items[8]) is not str:
            raise ProtocolError("a chain of calls is a text")
        chain = Chain(items[8])
    context: CallContext | None = None
    attempt = 1
    if len(items) > 9:
        # What is malformed is left out: neither is part of what the call asks for, so a mistake
        # there does not end the call.
        text = items[9]
        if type(text) is str and 0 < len(text) <= MOST_TEXT:
            context = contexts.read(text)
        if len(items) > 10:
            attempt = _attempt_of(items[10])
    # Past the class's own constructor, which is written in Python.
    return tuple.__new__(
        CallRequest,
        (
            number,
            name,
            epoch,
            method,
            args,
            kwargs,
            remaining,
            first,
            kept,
            chain,
            context,
            attempt,
            held_bytes,
        ),
    )


def _attempt_of(value: object) -> int:
    return value if type(value) is int and 0 < value < SHORT_NUMBERS else 1


def _number(value: object) -> int:
    if type(value) is not int or not 0 < value < MAX_NUMBER:
        raise ProtocolError(f"{short_repr(value)} is not the number of a call")
    return value


def answer_items(answer: object, least: int) -> list[Any]:
    """The items of an answer, of which the first is a call's number. Raises ProtocolError."""
    if type(answer) is not list or len(answer) < least or type(answer[0]) is not int:
        raise ProtocolError(f"an answer is an array of {least} items that begins with a number")
    return answer


def confirmation(parts: object) -> tuple[int, list[int], int]:
    """Return the watermark, the numbers beyond it and the watermark of all peers of a FORGET; the
    last is 0 if the frame has none. Raises ProtocolError.
    """
    if type(parts) is not list or len(parts) < 2:
        raise ProtocolError("a confirmation is an array of two items")
    items: list[object] = parts
    watermark, beyond, everywhere = *items[:2], items[2] if len(items) > 2 else 0
    if (
        type(watermark) is not int
        or type(beyond) is not list
        or any(type(number) is not int for number in cast("list[object]", beyond))
    ):
        raise ProtocolError("a confirmation is a number and a list of numbers")
    if type(everywhere) is not int:
        raise ProtocolError("a confirmation's watermark of all peers is a number")
    return watermark, cast("list[int]", beyond), everywhere


def own_copies(segments: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Segments as a link may keep them until they are acknowledged: what their owner could change
    meanwhile is copied.
    """
    return tuple(segment if isinstance(segment, bytes) else bytes(segment) for segment in segments)
