"""Frames of calls with arguments of any length are those of their items."""

from __future__ import annotations

import cbor2
import pytest

from runtime.calls.protocol import UNCHECKED_REST, call_frame, reply_frame
from runtime.wire.codec import Codec
from runtime.wire.frames import LIMITS, FrameReader, Kind

PREFIX = b"".join(map(cbor2.dumps, ("actor", 7, "method")))
HEADS = 64
"""Bytes that the heads of all items take together at most."""

SIZES = [
    edge + more
    for edge in (0, UNCHECKED_REST)
    for more in (-HEADS, -1, 0, 1, HEADS)
    if edge + more >= 0
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", [1, (1 << 32) - 1, 1 << 32])
@pytest.mark.parametrize("remaining", [None, 2.5])
@pytest.mark.parametrize("attempt", [1, 3])
def test_a_call_of_any_length_is_the_frame_of_its_items(
    size: int, number: int, remaining: float | None, attempt: int
) -> None:
    sent = b"x" * size
    frame = call_frame(number, 1, PREFIX, cbor2.dumps([sent]), (), remaining, attempt=attempt)
    (read,) = FrameReader(LIMITS).feed(frame)
    assert (read.kind, read.flags, read.segments) == (Kind.CALL, 1, ())
    items = cbor2.loads(read.control)
    assert items[:5] == [number, "actor", 7, "method", [sent]]
    rest = {1: [] if remaining is None else [remaining], 3: [remaining, *4 * [None], attempt]}
    assert items[5:] == rest[attempt]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", [1, 1 << 32])
def test_an_answer_of_any_length_is_the_frame_of_its_items(size: int, number: int) -> None:
    sent = b"x" * size
    (read,) = FrameReader(LIMITS).feed(reply_frame(number, cbor2.dumps(sent), ()))
    assert cbor2.loads(read.control) == [number, sent]


@pytest.mark.parametrize("size", [0, 1, 23, 24, 255, 256, 65_535, 65_536, 90_000])
def test_bytes_that_are_the_only_argument_are_encoded_as_others_are(size: int) -> None:
    sent = b"x" * size
    assert Codec(sentinel=bytes(8)).encode_scalars((sent,)) == cbor2.dumps([sent])
