"""Large frames in parts, on links without an event loop: whatever is cut, delayed or interleaved,
bytes out are bytes in, in order.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import ProtocolError
from runtime.links import outbound, session, transfers
from runtime.links.link import Link
from runtime.links.transfers import (
    MOST_BYTES,
    MOST_TRANSFERS,
    QueuedFrame,
    Reassembly,
    Ticket,
    Transfers,
)
from runtime.links.transports import Connection
from runtime.wire import frames as frames_module
from runtime.wire.frames import (
    HEADER,
    LIMITS,
    Buffer,
    Frame,
    FrameReader,
    Kind,
    Limits,
    ReceivedSegment,
    encode_frame,
)
from runtime.wire.handshake import Peer
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(Transfers, Reassembly)


PART, WHOLE, DIRECT = 50, 80, 16
"""Sizes small enough for hypothesis to try every place to cut."""


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "PART", PART)
        patch.setattr(transfers, "WHOLE", WHOLE)
        patch.setattr(outbound, "WHOLE", WHOLE)
        patch.setattr(session, "PARTS_BYTES", 3 * PART)
        patch.setattr(frames_module, "DIRECT_SIZE", DIRECT)
        patch.setattr(session, "ACKNOWLEDGE_BYTES", 2 * PART)
        yield


class Pipe:
    """A `Connection` into a list of bytes: takes as much as it is told to."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.budget = 0

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)[: self.budget]
        self.bytes += data
        self.budget -= len(data)
        return len(data)

    def close(self) -> None:
        pass


class Side:
    """One end of a link, driven by hand in place of the tasks that read and write."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, tuple[bytes, ...]]] = []
        self.ended = False
        self.link = Link(Peer(name="peer", incarnation=1, role="node"), self)
        self.pipe = Pipe()
        self.reader = FrameReader()

    @property
    def handlers(self) -> dict[int, Any]:
        return {Kind.CALL: self.on_frame}

    def on_frame(self, link: Link, frame: Frame) -> None:
        self.seen.append((frame.control, tuple(bytes(segment) for segment in frame.segments)))

    def link_ended(self, link: Link, reason: str) -> None:
        self.ended = True

    def write(self, count: int) -> None:
        """What the writing task does, until the pipe has taken `count` more bytes or nothing is
        left.
        """
        self.pipe.budget = count
        link = self.link
        while (link._out or link._next_posts()) and link._flush(cast("Connection", self.pipe)):
            pass

    def read(self, pipe: Pipe, count: int) -> None:
        """What the reading task does, with the next `count` bytes of the other side."""
        while count and pipe.bytes:
            buffer = self.reader.receive_buffer()
            size = min(count, len(pipe.bytes), 10_000 if buffer is None else len(buffer))
            data = bytes(pipe.bytes[:size])
            del pipe.bytes[:size]
            count -= size
            if buffer is None:
                self.link.on_frames(self.reader.feed(data), size)
            else:
                buffer[:] = data + bytes(buffer[size:])
                self.link.on_frames(self.reader.filled(size), size)


def connect(sides: tuple[Side, Side]) -> None:
    """A new connection; whatever was on the way on the last one is lost."""
    received = [side.link.session.acknowledgement() for side in sides]
    for side, peer_received in zip(sides, reversed(received), strict=True):
        side.link._connection = None
        side.pipe = Pipe()
        side.reader = FrameReader()
        side.link.open(cast("Connection", side.pipe), peer_received)
        side.link._reassembly.on_connected(side.reader.limits)
        side.reader.place = side.link._reassembly.place


def settle(sides: tuple[Side, Side]) -> None:
    """Write, read and acknowledge until nothing moves any more."""
    for _ in range(2_000):
        before = [
            (len(side.seen), side.link.session.acknowledged, side.link.session.received)
            for side in sides
        ]
        for here, there in (sides, sides[::-1]):
            here.write(1 << 20)
            there.read(here.pipe, 1 << 20)
            there.link.acknowledge()
        if before == [
            (len(side.seen), side.link.session.acknowledged, side.link.session.received)
            for side in sides
        ]:
            return
    raise AssertionError("it never settles")


@attrs.define
class Posted:
    """One frame as it was posted."""

    control: bytes
    segments: tuple[bytes, ...]
    memory: list[bytearray]
    lane: Hashable
    ticket: Ticket
    abandoned: bool = False

    def scribble(self) -> None:
        for memory in self.memory:
            memory[:] = b"\xff" * len(memory)


def post(
    side: Side, number: int, sizes: Sequence[int], control_size: int, lane: Hashable, changing: bool
) -> Posted:
    chance = random.Random(number)
    control = b"%04d" % number + chance.randbytes(control_size)
    segments = tuple(chance.randbytes(size) for size in sizes)
    memory = [bytearray(segment) for segment in segments] if changing else []
    given: tuple[Buffer, ...] = tuple(map(memoryview, memory)) if changing else segments
    ticket = side.link.post(encode_frame(Kind.CALL, control, given), given, lane=lane)
    return Posted(control, segments, memory, lane, ticket)


def check(posted: list[Posted], seen: list[tuple[bytes, tuple[bytes, ...]]]) -> None:
    """All that was posted arrived once, and in order within each lane; what was abandoned
    did not.
    """
    expected = {frame.control: frame for frame in posted if not frame.abandoned}
    assert sorted(control for control, _ in seen) == sorted(expected)
    for control, segments in seen:
        assert segments == expected[control].segments
    for lane in {frame.lane for frame in posted} - {None}:
        in_lane = [frame.control for frame in posted if frame.lane == lane and not frame.abandoned]
        assert [control for control, _ in seen if expected[control].lane == lane] == in_lane


STEPS = st.one_of(
    st.tuples(
        st.just("post"),
        st.integers(0, 1),
        st.lists(st.one_of(st.integers(0, 40), st.integers(0, 400)), max_size=6),
        st.integers(0, 150),
        st.sampled_from([None, None, "a", "b"]),
        st.booleans(),
    ),
    st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 200)),
    st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 200)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("acknowledge"), st.integers(0, 1)),
    st.tuples(st.just("abandon"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.just("own"), st.integers(0, 1), st.integers(0, 30)),
)


@settings(max_examples=max(150, settings().max_examples))
@given(
    before=st.lists(STEPS.filter(lambda step: step[0] in ("post", "abandon", "own")), max_size=4),
    steps=st.lists(STEPS, max_size=60),
)
def test_frames_arrive_whole_once_and_in_the_order_of_their_lane_whatever_happens(
    before: list[Any], steps: list[Any]
) -> None:
    sides = (Side(), Side())
    posted: tuple[list[Posted], list[Posted]] = ([], [])
    count = 0
    for index, step in enumerate([*before, ("cut",), *steps]):
        if step[0] == "cut":
            connect(sides)
            continue
        name, which, *rest = step
        side, mine = sides[which], posted[which]
        if name == "post":
            count += 1
            mine.append(post(side, count, *rest))
        elif name == "write" and index > len(before):
            side.write(rest[0])
        elif name == "read":
            side.read(sides[1 - which].pipe, rest[0])
        elif name == "acknowledge":
            side.link.acknowledge()
        elif name in ("abandon", "own") and mine:
            frame = mine[rest[0] % len(mine)]
            if name == "own":
                side.link.own(frame.ticket)
                frame.scribble()
            elif side.link.abandon(frame.ticket):
                assert side.link.certainly_not_received(frame.ticket)
                frame.abandoned = True
                frame.scribble()
    for repeat in range(2):
        if repeat == 0:
            connect(sides)
        settle(sides)
    check(posted[0], sides[1].seen)
    check(posted[1], sides[0].seen)
    for side in sides:
        assert not side.link._transfers.unfinished
        assert not side.link._lanes
        assert (
            side.link._transfers._unsent
            == side.link._transfers._small_bytes
            == side.link._transfers._frames
            == 0
        )
        assert side.link._reassembly._bytes == 0
        assert side.link.session._parts_bytes == side.link.session._kept_bytes == 0


def opened() -> tuple[Side, Side]:
    sides = (Side(), Side())
    connect(sides)
    return sides


@pytest.mark.parametrize("receive_directly", [True, False])
def test_a_transfer_survives_a_cut_at_each_of_its_bytes(receive_directly: bool) -> None:
    for cut in range(500):
        sides = opened()
        if not receive_directly:
            sides[1].reader.place = None
        frame = post(sides[0], 1, [0, 200, 3, 0], 100, None, changing=False)
        after = post(sides[0], 2, [], 0, None, changing=False)
        sides[0].write(cut)
        sides[1].read(sides[0].pipe, cut)
        connect(sides)
        settle(sides)
        check([frame, after], sides[1].seen)


def test_small_frames_overtake_a_large_one_and_those_of_its_lane_wait() -> None:
    sides = opened()
    posted = [
        post(sides[0], 1, [1_000], 0, "lane", changing=False),
        post(sides[0], 2, [], 0, "lane", changing=False),
        post(sides[0], 3, [], 0, "other", changing=False),
        post(sides[0], 4, [5], 0, None, changing=False),
        post(sides[0], 5, [300], 0, "lane", changing=False),
        post(sides[0], 6, [], 0, "lane", changing=False),
    ]
    sides[0].write(100)
    small = post(sides[0], 7, [], 0, "other", changing=False)
    settle(sides)
    check([*posted, small], sides[1].seen)
    assert [int(control[:4]) for control, _ in sides[1].seen] == [3, 4, 7, 1, 2, 5, 6]


def test_large_frames_take_turns() -> None:
    sides = opened()
    posted = [
        post(sides[0], number, [size], 0, number, changing=False)
        for number, size in ((1, 2_000), (2, 100), (3, 1_000))
    ]
    settle(sides)
    check(posted, sides[1].seen)
    assert [int(control[:4]) for control, _ in sides[1].seen] == [2, 3, 1]


def test_a_large_frame_never_uses_up_the_room_of_small_ones() -> None:
    sides = opened()
    post(sides[0], 1, [100_000], 0, None, changing=False)
    sides[0].write(1 << 20)
    assert sides[0].link.has_room
    assert len(sides[0].pipe.bytes) < 5 * PART + 100, "more than the window is on the way"
    sides[1].read(sides[0].pipe, 1 << 20)
    sides[1].write(1 << 20)
    sides[0].read(sides[1].pipe, 1 << 20)
    sides[0].write(1 << 20)
    assert sides[0].pipe.bytes, "an acknowledgement makes room for more parts"


def test_there_is_no_room_while_too_much_waits_behind_a_large_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "OVERTAKEN_FRAMES", 10)
    sides = opened()
    post(sides[0], 1, [1_000], 0, "lane", changing=False)
    for number in range(2, 12):
        assert sides[0].link.has_room
        post(sides[0], number, [], 0, "lane", changing=False)
    assert not sides[0].link.has_room
    settle(sides)
    assert sides[0].link.has_room
    assert len(sides[1].seen) == 11


def test_large_frames_are_only_taken_while_few_of_them_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "QUEUED_BYTES", 1_500)
    waiting = Transfers()
    waiting.add([encode_frame(Kind.CALL, b"", [bytes(1_000)]), bytes(1_000)], 1_012, None)
    assert waiting.takes(10_000)
    waiting.add([encode_frame(Kind.CALL, b"", [bytes(1_000)]), bytes(1_000)], 1_012, None)
    assert not waiting.takes(10_000)
    assert waiting.takes(WHOLE)
    assert waiting.has_room


def test_more_transfers_are_never_begun_than_the_peer_accepts() -> None:
    sides = opened()
    posted = [
        post(sides[0], number, [200], 0, None, changing=False)
        for number in range(3 * MOST_TRANSFERS)
    ]
    settle(sides)
    check(posted, sides[1].seen)


def test_a_frame_of_as_many_segments_as_are_allowed_arrives() -> None:
    sides = opened()
    posted = [
        post(
            sides[0], 1, [number % 3 for number in range(LIMITS.segments)], 0, None, changing=False
        )
    ]
    settle(sides)
    check(posted, sides[1].seen)


def test_frames_around_the_size_that_is_sent_whole_arrive() -> None:
    sides = opened()
    posted = [
        post(sides[0], size, [size], 0, "lane", changing=True)
        for size in range(WHOLE - 40, WHOLE + 2 * PART)
    ]
    settle(sides)
    check(posted, sides[1].seen)
    assert any(isinstance(frame.ticket, int) for frame in posted)
    assert any(isinstance(frame.ticket, QueuedFrame) for frame in posted)


def test_a_frame_posted_before_the_session_counts_as_sent() -> None:
    sides = (Side(), Side())
    tickets = [
        sides[0].link.post(encode_frame(Kind.CALL, b"1")),
        post(sides[0], 2, [500], 0, None, changing=False).ticket,
    ]
    assert all(map(sides[0].link.certainly_not_received, tickets))
    connect(sides)
    assert all(map(sides[0].link.certainly_not_received, tickets))
    settle(sides)
    assert len(sides[1].seen) == 2
    assert not any(map(sides[0].link.certainly_not_received, tickets))
    assert sides[0].link.certainly_not_received(0)


def test_a_large_frame_is_certainly_not_received_until_its_last_part_is_written() -> None:
    sides = opened()
    frame = post(sides[0], 1, [120], 0, None, changing=False)
    for _ in range(200):
        sides[0].write(1)
        if sides[0].link.certainly_not_received(frame.ticket):
            sides[1].read(sides[0].pipe, 1 << 20)
            assert sides[1].seen == []
    assert not sides[0].link.certainly_not_received(frame.ticket)
    assert not sides[0].link.abandon(frame.ticket)
    settle(sides)
    check([frame], sides[1].seen)


def test_an_abandoned_transfer_frees_the_memory_of_its_peer_and_its_lane() -> None:
    sides = opened()
    post_of_lane = [
        post(sides[0], number, [size], 0, "lane", changing=False)
        for number, size in ((1, 5_000), (2, 0), (3, 200))
    ]
    sides[0].write(100)
    sides[1].read(sides[0].pipe, 1 << 20)
    assert sides[1].link._reassembly._bytes > 5_000
    assert sides[0].link.abandon(post_of_lane[0].ticket)
    assert sides[0].link.abandon(post_of_lane[0].ticket), "twice is no error"
    post_of_lane[0].abandoned = True
    settle(sides)
    check(post_of_lane, sides[1].seen)
    assert sides[1].link._reassembly._bytes == 0


def test_a_goodbye_waits_for_the_transfers_before_it() -> None:
    sides = opened()
    frame = post(sides[0], 1, [1_000], 0, None, changing=False)
    sides[0].link.say_goodbye()
    settle(sides)
    check([frame], sides[1].seen)
    assert sides[1].ended


def test_a_frame_that_crosses_a_goodbye_is_not_taken_and_its_sender_knows_that() -> None:
    leaving, staying = sides = opened()
    before = post(staying, 1, [], 0, None, changing=False)
    staying.write(1 << 20)
    leaving.read(staying.pipe, 1 << 20)
    # Both are on their way, and the second is a large one of which a part was written.
    crossing = post(staying, 2, [], 0, None, changing=False)
    large = post(staying, 3, [10_000], 0, None, changing=False)
    staying.write(150)
    leaving.link.say_goodbye()
    leaving.write(1 << 20)
    leaving.read(staying.pipe, 1 << 20)
    staying.read(leaving.pipe, 1 << 20)
    check([before], leaving.seen)
    assert staying.link.peer_left
    assert staying.link.peer_ended
    assert not staying.link.certainly_not_received(before.ticket)
    assert staying.link.certainly_not_received(crossing.ticket)
    assert staying.link.certainly_not_received(large.ticket)
    assert leaving.link.session.received == 1
    assert sides[0].link.ended is None


@pytest.mark.parametrize("count", [2, 1 << 40])
def test_a_goodbye_that_has_what_was_never_sent_breaks_the_protocol(count: int) -> None:
    sides = opened()
    post(sides[0], 1, [], 0, None, changing=False)
    frame = Frame(Kind.GOODBYE, 0, count.to_bytes(8, "big"), ())
    with pytest.raises(ProtocolError, match=f"goodbye with frame {count} as the last"):
        sides[0].link.on_frames([frame], 0)


def test_a_goodbye_of_an_earlier_version_does_not_say_what_was_taken() -> None:
    sides = opened()
    frame = post(sides[0], 1, [], 0, None, changing=False)
    sides[0].write(1 << 20)
    sides[0].link.on_frames([Frame(Kind.GOODBYE, 0, b"", ())], 0)
    assert sides[0].link.peer_left
    assert not sides[0].link.certainly_not_received(frame.ticket)


def test_the_end_of_a_link_says_of_each_frame_whether_it_may_have_arrived() -> None:
    sides = opened()
    sent = post(sides[0], 1, [100], 0, None, changing=False)
    sides[0].write(1 << 20)
    unfinished = [post(sides[0], number, [10_000], 0, "lane", changing=False) for number in (2, 3)]
    behind = post(sides[0], 4, [], 0, "lane", changing=False)
    sides[0].write(150)
    sides[1].read(sides[0].pipe, 1 << 20)
    for side in sides:
        side.link.end("the test says so")
    link = sides[0].link
    assert not link.certainly_not_received(sent.ticket)
    for frame in (*unfinished, behind):
        assert link.certainly_not_received(frame.ticket)
        assert link.abandon(frame.ticket)
    assert not link._transfers.unfinished
    assert sides[1].link._reassembly._bytes == 0
    assert link.certainly_not_received(
        post(sides[0], 5, [10_000], 0, "lane", changing=False).ticket
    )


def layout(kind: int, sizes: Sequence[int], control: int = 0, count: int | None = None) -> bytes:
    return HEADER.pack(kind, 0, len(sizes) if count is None else count, control) + struct.pack(
        f"!{len(sizes)}I", *sizes
    )


def begin(identity: bytes, described: bytes, segments: tuple[bytes, ...] = ()) -> Frame:
    return Frame(Kind.BEGIN, 0, identity + described, segments)


def part(identity: bytes, *segments: bytes) -> Frame:
    return Frame(Kind.PART, 0, identity, segments)


ONE, TWO = b"0001", b"0002"


@pytest.mark.parametrize(
    "garbage",
    [
        [begin(b"", b"")],
        [begin(ONE, b"\x01")],
        [begin(ONE, layout(Kind.CALL, [1]) + b"x")],
        [begin(ONE, layout(Kind.CALL, [1], count=2))],
        [begin(ONE, layout(Kind.CALL, []))],
        [begin(ONE, layout(Kind.CALL, [0, 0]))],
        [begin(ONE, layout(Kind.CALL, [10]), (b"x",))],
        [begin(ONE, layout(Kind.PING, [10]))],
        [begin(ONE, layout(Kind.BEGIN, [10]))],
        [begin(ONE, layout(Kind.PART, [10]))],
        [begin(ONE, layout(Kind.CALL, [2**32 - 1, 2**32 - 1]))],
        [begin(ONE, layout(Kind.CALL, [LIMITS.frame]))],
        [begin(ONE, layout(Kind.CALL, [1], control=LIMITS.control + 1))],
        [begin(ONE, layout(Kind.CALL, [1] * (LIMITS.segments + 1)))],
        [begin(ONE, layout(Kind.CALL, [10])), begin(ONE, layout(Kind.CALL, [10]))],
        [begin(ONE, layout(Kind.CALL, [10])), part(ONE, bytes(11))],
        [begin(ONE, layout(Kind.CALL, [10])), part(ONE, bytes(6)), part(ONE, bytes(6))],
        [begin(ONE, layout(Kind.CALL, [10])), part(ONE, b"")],
        [begin(ONE, layout(Kind.CALL, [10])), part(ONE)],
        [begin(ONE, layout(Kind.CALL, [10])), part(ONE, b"1", b"2")],
        [begin(ONE, layout(Kind.CALL, [10])), part(TWO, b"1")],
        [begin(ONE, layout(Kind.CALL, [10])), part(b"", b"1")],
        [part(ONE, b"1")],
        [begin(ONE, layout(Kind.CALL, [1])), part(ONE, b"1"), part(ONE, b"1")],
        [Frame(Kind.ABANDON, 0, ONE, ())],
        [begin(ONE, layout(Kind.CALL, [10])), Frame(Kind.ABANDON, 0, ONE, (b"x",))],
        [begin(ONE, layout(Kind.CALL, [10])), Frame(Kind.ABANDON, 0, ONE, ()), part(ONE, b"1")],
        [begin(b"%04d" % number, layout(Kind.CALL, [1])) for number in range(MOST_TRANSFERS + 1)],
        [
            begin(b"%04d" % number, layout(Kind.CALL, [LIMITS.frame - 12]))
            for number in range(MOST_BYTES // LIMITS.frame + 1)
        ],
        [Frame(31, 0, b"", ())],
    ],
)
def test_what_no_peer_of_ours_sends_breaks_the_protocol_and_costs_no_memory(
    garbage: list[Frame],
) -> None:
    reassembly = Reassembly()
    tracemalloc.start()
    try:
        for frame in garbage[:-1]:
            reassembly.take(frame)
        with pytest.raises(ProtocolError):
            reassembly.take(garbage[-1])
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 11])
def test_a_part_that_does_not_fit_is_refused_before_it_is_received(size: int) -> None:
    reassembly = Reassembly()
    reassembly.take(begin(ONE, layout(Kind.CALL, [10])))
    with pytest.raises(ProtocolError):
        reassembly.place(ONE, size)
    with pytest.raises(ProtocolError):
        reassembly.place(TWO, 5)


def test_the_limits_of_a_link_hold_for_what_is_put_together() -> None:
    reassembly = Reassembly()
    reassembly.on_connected(Limits(control=10, frame=1_000, segments=2))
    for described in (
        layout(Kind.CALL, [1], control=11),
        layout(Kind.CALL, [1, 1, 1]),
        layout(Kind.CALL, [989]),
    ):
        with pytest.raises(ProtocolError):
            reassembly.take(begin(ONE, described))
    reassembly.take(begin(ONE, layout(Kind.CALL, [988])))


def test_memory_is_taken_as_bytes_arrive_and_not_when_they_are_announced() -> None:
    reassembly = Reassembly()
    tracemalloc.start()
    try:
        reassembly.take(begin(ONE, layout(Kind.CALL, [60_000] * 1_000)))
        assert tracemalloc.get_traced_memory()[1] < 200_000
        reassembly.take(part(ONE, bytes(1_000)))
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


def test_a_received_frame_is_not_copied() -> None:
    # A hundred and sixty parts: a copy of half of it would show among what else is allocated.
    size = 8_000
    data = random.Random(1).randbytes(size)
    for count, as_bytes in ((DIRECT, True), (DIRECT, False), (size, True), (size, False)):
        sides = opened()
        done = 0

        def take(link: Link, frame: Frame, as_bytes: bool = as_bytes) -> None:
            nonlocal done
            first, second = frame.segments
            assert isinstance(first, ReceivedSegment)
            assert isinstance(second, ReceivedSegment)
            assert bytes(first) is bytes(first), "nothing else holds the memory"
            assert bytes(first) == data
            if as_bytes:
                assert bytes(second) is bytes(second)
                done += 1
                return
            # Traced only here: every allocation of the transfer would be looked up as well.
            tracemalloc.start()
            try:
                second.writable()[0] ^= 0xFF
                assert bytes(second.writable()[:2]) == bytes([data[0] ^ 0xFF, data[1]])
                assert tracemalloc.get_traced_memory()[1] < size // 2
            finally:
                tracemalloc.stop()
            done += 1

        sides[1].link._handlers = {Kind.CALL: take}
        sides[0].link.post(encode_frame(Kind.CALL, b"", [data, data]), (data, data))
        while not done:
            sides[0].write(count)
            sides[1].read(sides[0].pipe, 1 << 20)
            sides[1].link.acknowledge()
            sides[1].write(1 << 20)
            sides[0].read(sides[1].pipe, 1 << 20)


@pytest.mark.parametrize("size", [40, 500])
def test_the_owner_of_memory_may_change_it_once_the_link_owns_a_copy(size: int) -> None:
    for written in range(0, size, 7):
        sides = opened()
        frame = post(sides[0], 1, [size], 0, None, changing=True)
        sides[0].write(written)
        sides[0].link.own(frame.ticket)
        frame.scribble()
        settle(sides)
        check([frame], sides[1].seen)


def test_a_bytearray_can_be_changed_and_resized_as_soon_as_it_was_posted() -> None:
    sides = opened()
    for size in (20, 1_000):
        data = bytearray(b"x" * size)
        sides[0].link.post(encode_frame(Kind.CALL, b"", [data]), (data,))
        data[:] = b"changed, and of another size"
        settle(sides)
        assert sides[1].seen.pop() == (b"", (b"x" * size,))


def test_memory_of_any_format_is_sent_as_its_bytes() -> None:
    sides = opened()
    for count in (1, 5):
        data = memoryview(bytearray(range(248)) * count).cast("Q")
        sides[0].link.post(encode_frame(Kind.CALL, b"", [data]), (data,))
        settle(sides)
        assert sides[1].seen.pop() == (b"", (bytes(data),))


def test_mutated_streams_of_transfers_give_frames_or_a_protocol_error_and_nothing_else() -> None:
    seed = 20_261_122
    chance = random.Random(seed)
    sides = opened()
    for number in range(3):
        post(sides[0], number, [100, 30], 20, None, changing=False)
        sides[0].write(60)
    sides[0].write(1 << 20)
    stream = bytes(sides[0].pipe.bytes)
    broken = 0
    for _ in range(10_000):
        mutated = bytearray(stream)
        for _ in range(chance.randint(1, 3)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        there = opened()[1]
        there.pipe.bytes = mutated
        try:
            there.read(there.pipe, chance.randrange(1, 2 * len(mutated)))
        except ProtocolError:
            broken += 1
    assert 1_000 < broken < 10_000
