"""Frames survive any cut of the stream, and headers beyond the limits are refused before anything
is allocated for them.
"""

from __future__ import annotations

import ctypes
import random
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import EncodeError, ProtocolError
from runtime.wire.frames import (
    CRASHES_ON_VIEWS,
    DIRECT_SIZE,
    HEADER,
    LIMITS,
    UNPROVEN,
    Buffer,
    Frame,
    FrameReader,
    Kind,
    Limits,
    ReceivedSegment,
    encode_frame,
)

LARGE = bytes(range(256)) * (DIRECT_SIZE // 256 + 3)


def sent(kind: int, control: bytes, segments: list[Buffer], flags: int = 0) -> bytes:
    """All bytes of a frame, as a link puts them on the connection."""
    return encode_frame(kind, control, segments, flags) + b"".join(
        bytes(segment) for segment in segments
    )


def plain(frames: list[Frame]) -> list[tuple[int, int, bytes, list[bytes]]]:
    return [
        (frame.kind, frame.flags, frame.control, [bytes(segment) for segment in frame.segments])
        for frame in frames
    ]


def received(reader: FrameReader, data: bytes, piece: int) -> list[Frame]:
    """Deliver as a link does: into the reader's buffer where it offers one, else by `feed`; `piece`
    bytes at most at a time.
    """
    frames: list[Frame] = []
    position = 0
    while position < len(data):
        buffer = reader.receive_buffer()
        size = (
            min(piece, len(data) - position)
            if buffer is None
            else min(piece, len(data) - position, len(buffer))
        )
        chunk = data[position : position + size]
        position += size
        if buffer is None:
            frames += reader.feed(chunk)
        else:
            buffer[:size] = chunk
            frames += reader.filled(size)
    return frames


def address_of(data: bytes) -> int | None:
    return ctypes.cast(data, ctypes.c_void_p).value  # type: ignore[arg-type]


def test_a_stream_gives_the_same_frames_wherever_it_is_cut() -> None:
    stream = (
        sent(Kind.CALL, b"first", [], 3)
        + sent(Kind.PING, b"", [])
        + sent(Kind.REPLY, b"control", [b"one", b"", bytearray(b"three")])
        + sent(Kind.SEND, b"", [b""])
    )
    whole = plain(FrameReader().feed(stream))
    assert whole == [
        (1, 3, b"first", []),
        (32, 0, b"", []),
        (2, 0, b"control", [b"one", b"", b"three"]),
        (5, 0, b"", [b""]),
    ]
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert plain(reader.feed(stream[:cut]) + reader.feed(stream[cut:])) == whole, cut


def test_a_large_segment_may_be_cut_anywhere_near_its_edges() -> None:
    stream = sent(Kind.CALL, b"c", [b"small", LARGE, b"after"]) + sent(Kind.PING, b"", [])
    expected = [(1, 0, b"c", [b"small", LARGE, b"after"]), (32, 0, b"", [])]
    edges = [*range(60), *range(len(stream) - 40, len(stream))]
    for cut in edges:
        reader = FrameReader()
        assert plain(reader.feed(stream[:cut]) + reader.feed(stream[cut:])) == expected, cut
        reader = FrameReader()
        assert (
            plain(reader.feed(stream[:cut]) + received(reader, stream[cut:], 70_000)) == expected
        ), cut


@given(
    frames=st.lists(
        st.tuples(
            st.sampled_from(list(Kind)),
            st.integers(0, 255),
            st.binary(max_size=40),
            st.lists(
                st.one_of(
                    st.binary(max_size=40),
                    st.integers(DIRECT_SIZE - 2, DIRECT_SIZE + 2).map(lambda n: LARGE[:n]),
                ),
                max_size=4,
            ),
        ),
        max_size=5,
    ),
    piece=st.integers(1, 70_000),
)
def test_frames_come_back_as_they_were_sent_in_pieces_of_any_size(
    frames: list[tuple[Kind, int, bytes, list[Buffer]]], piece: int
) -> None:
    stream = b"".join(
        sent(kind, control, segments, flags) for kind, flags, control, segments in frames
    )
    got = received(FrameReader(), stream, max(piece, len(stream) // 3000))
    assert plain(got) == [
        (kind, flags, control, [bytes(s) for s in segments])
        for kind, flags, control, segments in frames
    ]


def test_a_large_segment_is_received_into_the_buffer_that_is_handed_out() -> None:
    reader = FrameReader()
    assert reader.feed(sent(Kind.CALL, b"c", [LARGE])[: -len(LARGE)]) == []
    buffer = reader.receive_buffer()
    assert buffer is not None
    assert len(buffer) == len(LARGE)
    buffer[:] = LARGE
    where = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    (frame,) = reader.filled(len(LARGE))
    (segment,) = frame.segments
    assert isinstance(segment, ReceivedSegment)
    assert bytes(segment) is bytes(segment)
    assert bytes(segment) == LARGE
    # Where the collector crashes on views of it, a copy is made.
    assert CRASHES_ON_VIEWS or address_of(bytes(segment)) == where
    assert reader.receive_buffer() is None


def test_a_small_segment_and_the_space_between_frames_offer_no_buffer() -> None:
    reader = FrameReader()
    assert reader.receive_buffer() is None
    reader.feed(encode_frame(Kind.CALL, b"", [b"1234"]))
    assert reader.receive_buffer() is None
    with pytest.raises(ValueError, match="not asked for"):
        reader.filled(1)


def test_more_bytes_than_were_asked_for_cannot_be_filled() -> None:
    reader = FrameReader()
    reader.feed(encode_frame(Kind.CALL, b"", [LARGE]))
    with pytest.raises(ValueError, match="not asked for"):
        reader.filled(len(LARGE) + 1)


@pytest.mark.parametrize(
    ("limits", "header"),
    [
        (LIMITS, HEADER.pack(1, 0, 0, LIMITS.control + 1)),
        (LIMITS, HEADER.pack(1, 0, 0, 2**32 - 1)),
        (LIMITS, HEADER.pack(1, 0, LIMITS.segments + 1, 0)),
        (LIMITS, HEADER.pack(1, 0, 1, 0) + struct.pack("!I", LIMITS.frame)),
        (LIMITS, HEADER.pack(1, 0, 2, 0) + struct.pack("!II", 2**32 - 1, 2**32 - 1)),
        (UNPROVEN, HEADER.pack(40, 0, 0, UNPROVEN.control + 1)),
        (UNPROVEN, HEADER.pack(40, 0, 1, 0)),
    ],
)
def test_a_header_beyond_the_limits_is_refused_before_anything_is_allocated(
    limits: Limits, header: bytes
) -> None:
    for cut in range(len(header)):
        reader = FrameReader(limits)
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError, match="connection must be closed"):
                reader.feed(header[:cut]) + reader.feed(header[cut:])
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()
        with pytest.raises(ProtocolError, match="after a broken frame"):
            reader.feed(sent(Kind.PING, b"", []))
        assert reader.receive_buffer() is None


def test_limits_may_be_widened_once_the_peer_is_proven() -> None:
    reader = FrameReader(UNPROVEN)
    assert len(reader.feed(sent(Kind.PROOF, b"x" * 4096, []))) == 1
    reader.limits = LIMITS
    assert plain(reader.feed(sent(Kind.CALL, b"x" * 5000, [b"s"]))) == [(1, 0, b"x" * 5000, [b"s"])]


def test_frames_at_the_limits_are_sent_and_read() -> None:
    control = b"c" * LIMITS.control
    segments: list[Buffer] = [b"s"] * LIMITS.segments
    assert plain(FrameReader().feed(sent(Kind.CALL, control, segments))) == [
        (1, 0, control, [b"s"] * LIMITS.segments)
    ]


def test_what_no_peer_would_accept_is_refused_where_it_is_sent() -> None:
    with pytest.raises(EncodeError, match=r"262145 bytes and may have 262144.*numpy arrays"):
        encode_frame(Kind.CALL, b"c" * (LIMITS.control + 1))
    with pytest.raises(EncodeError, match="1025 segments"):
        encode_frame(Kind.CALL, b"", [b""] * (LIMITS.segments + 1))
    half = memoryview(bytearray(LIMITS.frame // 2)).cast("Q")
    with pytest.raises(EncodeError, match=r"134217728 bytes.*several smaller calls"):
        encode_frame(Kind.CALL, b"", [half, half])


def test_a_stream_of_single_bytes_costs_no_more_than_its_length() -> None:
    def cost(size: int) -> float:
        stream = sent(Kind.CALL, b"c" * size, [b"s" * 60_000])
        begun = time.process_time()
        reader = FrameReader()
        count = sum(len(reader.feed(stream[i : i + 1])) for i in range(len(stream)))
        assert count == 1
        return time.process_time() - begun

    # Quadratic cost would be sixteen times as much (and several seconds); the bound leaves room for
    # a busy machine.
    assert min(cost(240_000) for _ in range(2)) < 12 * max(cost(60_000) for _ in range(2))


def test_mutated_streams_give_frames_or_a_protocol_error_and_nothing_else() -> None:
    seed = 20_261_121
    chance = random.Random(seed)
    stream = (
        sent(Kind.CALL, b"control part", [b"a segment"])
        + sent(Kind.REPLY, b"another", [])
        + sent(Kind.ACK, b"12345678", [])
    )
    limits = Limits(control=1000, frame=200_000, segments=4)
    for round_number in range(20_000):
        mutated = bytearray(stream)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        reader = FrameReader(limits)
        cut = chance.randrange(len(mutated))
        try:
            got = reader.feed(bytes(mutated[:cut])) + reader.feed(bytes(mutated[cut:]))
        except ProtocolError:
            continue
        assert all(len(frame.control) <= 1000 and len(frame.segments) <= 4 for frame in got), (
            seed,
            round_number,
        )
