"""Mutated frames against what reads them; see `fuzz`. `make long` tries a million, and so does
`make fuzz`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import DecodeError, ProtocolError
from runtime.calls.protocol import ReadContexts, request
from runtime.links.transfers import Reassembly
from runtime.wire.codec import Codec
from runtime.wire.frames import LIMITS, Frame, FrameReader, Kind
from tests.wire.corpus import capture, missing_kinds
from tests.wire.fuzz import GROWTH_BYTES, BrokenPromiseError, Mutator, flat, fuzz

corpus = cast("Callable[[], list[Frame]]", functools.cache(capture))


def test_the_corpus_has_every_kind_of_frame_and_is_the_same_every_time() -> None:
    assert missing_kinds(corpus()) == set()
    assert capture() == corpus()


def test_a_seed_leads_to_the_same_bytes_again() -> None:
    one, other = (Mutator(random.Random(3), corpus()) for _ in range(2))
    assert [one.run_of() for _ in range(100)] == [other.run_of() for _ in range(100)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("frames", "seed"),
    [
        (10_000, 0),
        *(pytest.param(50_000, seed, marks=pytest.mark.long) for seed in range(2)),
        *(pytest.param(200_000, seed, marks=pytest.mark.long) for seed in range(2, 7)),
    ],
)
def test_mutated_frames_break_the_protocol_and_nothing_else(frames: int, seed: int) -> None:
    report = fuzz(frames, seed)
    assert report.growth < GROWTH_BYTES, report
    assert min(report.kinds.values()) >= frames // 20, report


@pytest.mark.parametrize(
    "place",
    [
        "runtime.links.link.Reassembly.take",
        "runtime.calls.dispatch.request",
        "runtime.wire.handshake._facts",
    ],
)
def test_the_fuzzer_finds_what_raises_something_else(place: str) -> None:
    # Frames are captured before the mistake is made.
    sound = corpus()
    with (
        patch(place, side_effect=ZeroDivisionError),
        patch("tests.wire.fuzz.capture", return_value=sound),
        pytest.raises(BrokenPromiseError, match=r"seed 0, input [0-9]+"),
    ):
        fuzz(2_000, 0)


def read(data: bytes, cuts: list[int]) -> None:
    """What a link and its handlers do with bytes, without their node."""
    reader, reassembly, codec = FrameReader(), Reassembly(), Codec(sentinel=b"sentinel")
    reassembly.on_connected(LIMITS)
    reader.place = reassembly.place
    try:
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            piece = data[start:stop]
            while piece:
                buffer = reader.receive_buffer()
                if buffer is None:
                    frames, size = reader.feed(piece), len(piece)
                else:
                    size = min(len(buffer), len(piece))
                    buffer[:size] = piece[:size]
                    frames = reader.filled(size)
                piece = piece[size:]
                for frame in frames:
                    whole = (
                        reassembly.take(frame)
                        if frame.kind in (Kind.BEGIN, Kind.PART, Kind.ABANDON)
                        else frame
                    )
                    if whole is not None:
                        value = codec.decode(whole.control, whole.segments)
                        if whole.kind in (Kind.CALL, Kind.SEND):
                            request(value, codec, ReadContexts())
    except (ProtocolError, DecodeError):
        pass


@given(st.data())
def test_any_bytes_near_real_frames_are_read_or_refused(data: st.DataObject) -> None:
    """A small version that hypothesis can shrink."""
    frames = data.draw(
        st.lists(
            st.sampled_from([frame for frame in corpus() if len(frame.control) < 300]),
            min_size=1,
            max_size=4,
        )
    )
    content = bytearray(b"".join(map(flat, frames)))
    for _ in range(data.draw(st.integers(0, 6))):
        start = data.draw(st.integers(0, len(content)))
        content[start : start + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=12))
    read(bytes(content), sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4))))
