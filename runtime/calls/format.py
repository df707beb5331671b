"""What frames about calls look like: flags, and the items of their control parts.

    CALL      [number, actor, epoch, method, arguments, remaining seconds]    the last one only where there is a deadline
    SEND      the same, number 0
    REPLY     [number, value]
    ERROR     [number, code, description]
    CANCEL    [number]
    FORGET    [watermark, [number, ...]]

Arrays, not maps, and their heads written by hand: they are encoded for every call. More items than we know are ignored: a newer peer may
send them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

from actors.errors import ProtocolError
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer

KEEP_RESULT = 1
"""Flag of a CALL: the result stays with its owner, the answer is a reference to it."""

REPEATABLE = 2
"""Flag of a CALL: it may be sent again under its number, so what comes of it is recorded until it is confirmed."""

REPEAT = 4
"""Flag of a CALL: it was sent before."""

MAX_NUMBER = 1 << 64
"""The numbers of calls are below this."""


class Request(NamedTuple):
    """A CALL or SEND, decoded. `remaining` is in seconds, infinite without a deadline."""

    number: int
    actor: str
    epoch: int
    method: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    remaining: float


def array_head(length: int, number: int) -> bytes:
    """The beginning of a CBOR array of `length` (< 24) items whose first is `number`."""
    if number < 0x1_0000_0000:
        return b"%c\x1a%b" % (0x80 + length, number.to_bytes(4, "big"))
    return b"%c\x1b%b" % (0x80 + length, number.to_bytes(8, "big"))


def request(parts: object, codec: Codec) -> Request:
    """The items of a CALL or SEND, checked. Raises ProtocolError."""
    if type(parts) is not list or len(parts) < 5:
        raise ProtocolError("a call is an array of at least five items")
    items = cast("list[object]", parts)
    number, name, epoch, method = items[:4]
    if not (type(number) is int and isinstance(name, str) and type(epoch) is int and isinstance(method, str)):
        raise ProtocolError("a call begins with number, name, epoch and method")
    if not 0 <= number < MAX_NUMBER:
        raise ProtocolError(f"{number} is no number of a call")
    args, kwargs = codec.decode_arguments(items[4])
    remaining = math.inf
    if len(items) > 5 and items[5] is not None:
        seconds = items[5]
        if not isinstance(seconds, float) or math.isnan(seconds):
            raise ProtocolError("a call's remaining time is a number of seconds")
        remaining = seconds
    return Request(number, name, epoch, method, args, kwargs, remaining)


def answer_items(answer: object, least: int) -> list[Any]:
    """The items of an answer, of which the first is a call's number. Raises ProtocolError."""
    if type(answer) is not list or len(answer) < least or type(answer[0]) is not int:
        raise ProtocolError(f"an answer is an array of {least} items that begins with a number")
    return answer


def confirmation(parts: object) -> tuple[int, list[int]]:
    """Watermark and numbers of a FORGET. Raises ProtocolError."""
    if type(parts) is not list or len(parts) < 2:
        raise ProtocolError("a confirmation is an array of two items")
    watermark, beyond = cast("list[object]", parts)[:2]
    if type(watermark) is not int or type(beyond) is not list or any(type(number) is not int for number in cast("list[object]", beyond)):
        raise ProtocolError("a confirmation is a number and a list of numbers")
    return watermark, cast("list[int]", beyond)


def kept(segments: list[Buffer]) -> tuple[Buffer, ...]:
    """Segments as a link may keep them until they are acknowledged: what their owner could change meanwhile is copied."""
    return tuple(segment if type(segment) is bytes else bytes(segment) for segment in segments)
