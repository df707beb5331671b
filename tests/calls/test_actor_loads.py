"""What is known of the load of an actor, and what hostile replies may say."""

from __future__ import annotations

import gc

import pytest

from actors.identifiers import ActorId
from runtime.calls.actor_loads import KNOWN_SECONDS, ActorLoads
from runtime.calls.protocol import SHORT_REST, reply_frame, with_depth
from runtime.wire.codec import Codec
from runtime.wire.frames import HEADER, FrameReader, Kind

ACTOR = ActorId("actor", 3)


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_own_calls_count_at_once_and_those_of_others_as_the_latest_reply_says() -> None:
    clock = Clock()
    loads = ActorLoads(clock)
    load = loads.of(ACTOR)
    for _ in range(3):
        load.on_begun()
    assert load.depth == 3
    # Two of the seven are this node's own: the third is the one that is answered.
    loads.on_depth(ACTOR, 7)
    load.on_ended()
    assert load.depth == 2 + 5
    loads.on_depth(ACTOR, 0)
    assert load.depth == 2


def test_what_a_reply_has_said_is_forgotten_so_that_a_busy_actor_is_tried_again() -> None:
    clock = Clock()
    loads = ActorLoads(clock)
    load = loads.of(ACTOR)
    loads.on_depth(ACTOR, 50)
    clock.seconds += KNOWN_SECONDS * 0.9
    assert load.depth == 50
    clock.seconds += KNOWN_SECONDS * 0.2
    assert load.depth == 0


@pytest.mark.parametrize("told", [-1, 1.5, "9", None, True, [], 2**70])
def test_what_a_peer_says_of_an_actor_is_a_number_or_ignored(told: object) -> None:
    loads = ActorLoads(Clock())
    load = loads.of(ACTOR)
    loads.on_depth(ACTOR, told)
    assert load.depth == 0
    loads.on_depth(ActorId("of no pool", 1), 4)


def test_a_load_is_one_for_all_that_follow_it_and_goes_with_the_last_of_them() -> None:
    loads = ActorLoads(Clock())
    first, second = loads.of(ACTOR), loads.of(ACTOR)
    assert first is second
    first.on_begun()
    del first, second
    gc.collect()
    assert loads.of(ACTOR).depth == 0


def test_a_reply_says_a_depth_beside_its_value() -> None:
    codec = Codec(sentinel=bytes(8))
    frame = with_depth(reply_frame(9, codec.encode(["value"], []), ()), 12)
    reader = FrameReader()
    (read,) = reader.feed(frame)
    assert read.kind == Kind.REPLY
    assert codec.decode(read.control, read.segments) == [9, ["value"], 12]


def test_long_replies_and_those_with_segments_say_none() -> None:
    value = b"\x59\x20\x00" + bytes(8192)
    for frame in (reply_frame(9, value, ()), reply_frame(9, b"\xf6", (b"segment",))):
        assert with_depth(frame, 12) == frame
    assert HEADER.unpack_from(reply_frame(9, value, ()))[3] > SHORT_REST
