"""Mutated frames from peers that have proven themselves; see `proven`. `make fuzz` tries a
million.
"""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import cbor2
import pytest

from tests.wire.corpus import capture
from tests.wire.fuzz import BrokenPromiseError
from tests.wire.proven import GROWTH_BYTES, SLOW_SECONDS, fuzz
from tests.wire.shaper import Shaper, parse


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("frames", "seed"), [(200, 0), pytest.param(50_000, 1, marks=pytest.mark.long)]
)
def test_a_frame_of_a_proven_peer_costs_it_the_link_and_nobody_anything(
    frames: int, seed: int
) -> None:
    report = fuzz(frames, seed)
    assert report.frames >= frames
    assert report.healthy > 0
    assert report.calls_made > 0
    assert report.growth < GROWTH_BYTES, report
    assert report.slowest < SLOW_SECONDS, report


def forgets_nobody(self: object, peer: object) -> None:
    """As a node was once that is told of the ends of members alone."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("place", "mistake", "found"),
    [
        ("runtime.node.node.Node._departed", {"new": forgets_nobody}, "the node keeps"),
    ],
)
def test_the_fuzzer_finds_mistakes(place: str, mistake: dict[str, Any], found: str) -> None:
    # Frames are captured before the mistake is made.
    frames = capture()
    with (
        patch(place, **mistake),
        patch("tests.wire.proven.SETTLE_SECONDS", 25.0),
        pytest.raises(BrokenPromiseError, match=f"(?s)seed 1, after [0-9]+ frames.*{found}"),
    ):
        fuzz(3_000, 1, frames)


def test_what_is_made_of_a_frame_depends_on_the_seed_alone() -> None:
    controls = [frame.control for frame in capture() if frame.kind == 1]

    def shaped(seed: int) -> list[bytes]:
        shaper = Shaper(random.Random(seed))
        return [shaper.control(control) for control in controls for _ in range(20)]

    first = shaped(1)
    for seed in range(2, 10):
        shaped(seed)
    assert shaped(1) == first


def test_values_are_changed_and_nearly_all_can_still_be_read() -> None:
    shaper = Shaper(random.Random(1))
    controls = [frame.control for frame in capture() if frame.kind == 1]
    changed = [(control, shaper.control(control)) for control in controls for _ in range(20)]
    assert sum(one != other for one, other in changed) > len(changed) * 0.9
    unreadable = 0
    for _, control in changed:
        try:
            parse(control)
        except cbor2.CBORDecodeError:
            # A tag that has a content of the wrong type, for example a big number that is no text
            # of bytes.
            unreadable += 1
    assert unreadable < len(changed) * 0.05
