"""CBOR that is written and read by hand: the control parts of frames about calls.

Each call and each answer is an array that begins with a number. An encoder would cost as much as
the rest of such a frame. CBOR (RFC 8949, section 3): 0x80 + n begins an array of n < 24 items,
0xa0 + n a map of n pairs, 0x60 + n a text of n bytes, 0x78 a text whose length is the next byte;
0x1a begins a number of four bytes, 0x1b one of eight, 0xfb a float of eight; 0xf6 is null.
"""

from __future__ import annotations

import struct

from actors.errors import ProtocolError
from runtime.wire.frames import HEADER

ARRAY = 0x80
MAP = 0xA0
MOST_ITEMS = 23
"""Arrays, maps and texts of more have another head."""

SHORT_NUMBER = 0x1A

SHORT_NUMBERS = 1 << 32
"""Numbers below this are written with four bytes, others with eight."""

NULL = b"\xf6"
EMPTY_ARRAY = b"\x80"
EMPTY_MAP = b"\xa0"

ONE_ITEM = b"\x81"
TWO_ITEMS = b"\x82"
"""The heads of arrays whose items are encoded already."""

ARRAY_HEADS = tuple(bytes((ARRAY + length,)) for length in range(MOST_ITEMS + 1))
"""The head of an array, by its length."""

SHORT_HEAD = struct.Struct(HEADER.format + "BBI")
"""The header of a frame without segments, and the head of its array, whose first item is a short
number: in one step, for the hot path.
"""

_TEXT = 0x60
_LONG_TEXT = 0x78
_FLOAT = struct.Struct("!Bd")


def array_head(length: int, number: int) -> bytes:
    """The beginning of an array of `length` (< 24) items whose first is `number`."""
    if number < SHORT_NUMBERS:
        return b"%c\x1a%b" % (ARRAY + length, number.to_bytes(4, "big"))
    return b"%c\x1b%b" % (ARRAY + length, number.to_bytes(8, "big"))


def short_number(number: int) -> bytes:
    """A number as an item of five bytes; one that is too large for that becomes the largest."""
    return b"\x1a" + min(number, SHORT_NUMBERS - 1).to_bytes(4, "big")


def long_number(number: int) -> bytes:
    """A number as an item of nine bytes."""
    return b"\x1b" + number.to_bytes(8, "big")


def number_pair(first: int, second: int) -> bytes:
    """An array of two numbers, nine bytes each."""
    return b"\x82\x1b%b\x1b%b" % (first.to_bytes(8, "big"), second.to_bytes(8, "big"))


def float_number(number: float) -> bytes:
    """A float as an item of nine bytes."""
    return _FLOAT.pack(0xFB, number)


def with_item(frame: bytes, item: bytes) -> bytes:
    """Return a frame without segments, whose array has fewer than 23 items, with one more."""
    kind, flags, _, length = HEADER.unpack_from(frame)
    head = HEADER.pack(kind, flags, 0, length + len(item))
    return b"%b%c%b%b" % (head, frame[HEADER.size] + 1, frame[HEADER.size + 1 :], item)


def first_number(control: bytes) -> int:
    """Return the number at the beginning of a control part whose rest cannot be decoded. Raises
    ProtocolError.
    """
    # Every node writes it with four or eight bytes, however small it is.
    if len(control) >= 6 and ARRAY < control[0] <= ARRAY + MOST_ITEMS:
        if control[1] == SHORT_NUMBER:
            return int.from_bytes(control[2:6], "big")
        if control[1] == 0x1B and len(control) >= 10:
            return int.from_bytes(control[2:10], "big")
    raise ProtocolError("a control part that does not begin with a number")


def first_text(encoded: bytes, at: int) -> bytes:
    """Return the text of at most 255 bytes that is the first item of the array at `at`; b"" for
    what is anything else, is cut short, or is written in another way.
    """
    head = encoded[at : at + 3]
    if len(head) < 3 or not ARRAY < head[0] <= ARRAY + MOST_ITEMS:
        return b""
    if _TEXT < head[1] <= _TEXT + MOST_ITEMS:
        begin, size = at + 2, head[1] - _TEXT
    elif head[1] == _LONG_TEXT:
        begin, size = at + 3, head[2]
    else:
        return b""
    text = encoded[begin : begin + size]
    return text if len(text) == size else b""


def after_short_number(control: bytes, length: int) -> bytes:
    """Return what follows the number in an array of `length` items; b"" for another array, and for
    a number that is not short.
    """
    return control[6:] if control[:2] == bytes((ARRAY + length, SHORT_NUMBER)) else b""
