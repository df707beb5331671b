"""Large segments in shared memory: what arrives is what was sent, nothing is used again while it
is read, and everything comes back.
"""

from __future__ import annotations

import gc
import os
import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.errors import ProtocolError
from runtime.environment import SystemEnvironment
from runtime.links.link import Link
from runtime.links.loans import (
    IDLE_BEATS,
    LOAN_BYTES,
    MOST_LOAN_BYTES,
    ArenaFlag,
    Borrower,
    Lending,
    LendingPools,
)
from runtime.wire.frames import HEADER, Buffer, Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Peer

MEBIBYTE = 1024 * 1024


def parsed(frame: bytes, segments: tuple[Buffer, ...] = ()) -> Frame:
    """A frame as the other side reads it."""
    (found,) = FrameReader().feed(frame + b"".join(map(bytes, segments)))
    return found


class Side:
    """One end of a link: what it posts waits in `out` until the other end is given it."""

    def __init__(self, limit: int = 64 * MEBIBYTE) -> None:
        self.out: deque[Frame] = deque()
        self.lending = Lending(
            LendingPools(SystemEnvironment(), limit),
            lambda frame: self.out.append(parsed(frame)),
            os.getpid(),
        )
        self.lending.lender.begin()
        self.got: deque[Frame] = deque()

    def send(self, *segments: Buffer, ticket: object = None) -> bool:
        """Post a frame with these segments; True if something of it was lent."""
        frame = encode_frame(Kind.CALL, b"call", segments)
        lent = self.lending.lender.lend(frame, segments)
        if lent is None:
            self.out.append(parsed(frame, segments))
            return False
        loan, head, rest = lent
        self.lending.lender.on_posted(loan, loan if ticket is None else cast("Any", ticket))
        self.out.append(parsed(head, rest))
        return True

    def take(self, frame: Frame) -> None:
        """The other end's frame has arrived."""
        if frame.kind in (Kind.ARENA, Kind.LOAN, Kind.RETURNED):
            whole = self.lending.on_frame(frame)
            if whole is not None:
                self.got.append(whole)
        else:
            self.got.append(frame)


def deliver(sender: Side, receiver: Side) -> None:
    """All that waits, both ways, until nothing does."""
    while sender.out or receiver.out:
        while sender.out:
            receiver.take(sender.out.popleft())
        while receiver.out:
            sender.take(receiver.out.popleft())


def acquainted(limit: int = 64 * MEBIBYTE) -> tuple[Side, Side]:
    """Two ends of which the second has mapped what the first lends for segments of 1 MiB."""
    sender, receiver = Side(limit), Side(limit)
    assert not sender.send(bytes(MEBIBYTE)), "nothing is lent before the peer has mapped it"
    deliver(sender, receiver)
    receiver.got.clear()
    return sender, receiver


def test_a_lent_frame_arrives_whole_and_writable_and_its_source_may_change_at_once() -> None:
    sender, receiver = acquainted()
    source = bytearray(b"a" * MEBIBYTE)
    small = b"small"
    assert sender.send(small, memoryview(source), b"", memoryview(source)[: MEBIBYTE // 2])
    source[:] = b"b" * MEBIBYTE
    deliver(sender, receiver)
    frame = receiver.got.popleft()
    assert (frame.kind, frame.control) == (Kind.CALL, b"call")
    first, whole, empty, _ = frame.segments
    assert (first, empty) == (small, b"")
    assert isinstance(whole, memoryview)
    assert whole == b"a" * MEBIBYTE
    whole[0] = 0
    assert whole[0] == 0


def test_memory_comes_back_when_the_last_view_ends_and_is_used_again() -> None:
    sender, receiver = acquainted()
    for _ in range(100):
        assert sender.send(bytes(MEBIBYTE))
        deliver(sender, receiver)
        receiver.got.clear()
        receiver.lending.borrower.give_back()
        deliver(sender, receiver)
    assert not sender.lending.lender.open_loans
    assert not receiver.lending.borrower.borrowed
    # One hundred frames in turn, and the memory of one or two.
    assert sender.lending.lender.loaned_bytes == 100 * MEBIBYTE
    assert sender.lending.lender._pool.allocated <= 2 * MEBIBYTE


def test_part_of_a_frame_keeps_all_of_it() -> None:
    sender, receiver = acquainted()
    assert sender.send(b"x" * MEBIBYTE)
    deliver(sender, receiver)
    (segment,) = receiver.got.popleft().segments
    part = cast("memoryview", segment)[100:200]
    del segment
    receiver.lending.borrower.give_back()
    deliver(sender, receiver)
    assert sender.lending.lender.open_loans == 1
    for _ in range(10):
        sender.send(b"y" * MEBIBYTE)
    assert part == b"x" * 100
    del part
    receiver.lending.borrower.give_back()
    assert receiver.out[-1].kind == Kind.RETURNED


@pytest.mark.parametrize("size", [LOAN_BYTES - 1, MOST_LOAN_BYTES + 1])
def test_small_and_very_large_segments_are_not_lent(size: int) -> None:
    sender, receiver = Side(), Side()
    for _ in range(2):
        assert not sender.send(bytes(size))
        deliver(sender, receiver)


def test_a_receiver_that_keeps_everything_is_sent_the_rest_over_the_socket() -> None:
    sender, receiver = acquainted(8 * MEBIBYTE)
    lent = [sender.send(bytes([number]) * MEBIBYTE) for number in range(20)]
    deliver(sender, receiver)
    assert lent == [True] * 8 + [False] * 12
    for number, frame in enumerate(receiver.got):
        assert bytes(cast("Any", frame.segments[0])) == bytes([number]) * MEBIBYTE
    receiver.got.clear()
    del frame
    receiver.lending.borrower.give_back()
    deliver(sender, receiver)
    assert sender.send(bytes(MEBIBYTE))


def test_all_links_of_a_node_share_one_limit() -> None:
    pools = LendingPools(SystemEnvironment(), 4 * MEBIBYTE)
    first, second = pools.open(), pools.open()
    blocks = [pools.take(first, MEBIBYTE) for _ in range(3)]
    assert all(blocks)
    assert pools.take(second, MEBIBYTE)
    kept = [pools.take(second, MEBIBYTE), pools.take(second, MEBIBYTE)]
    assert None in kept


def test_an_abandoned_frame_gives_its_memory_back() -> None:
    sender, receiver = acquainted()
    ticket = object()
    assert sender.send(bytes(MEBIBYTE), ticket=ticket)
    sender.out.clear()
    sender.lending.lender.on_abandoned(ticket)
    sender.lending.lender.on_abandoned("of another frame")
    assert not sender.lending.lender.open_loans
    assert sender.send(bytes(MEBIBYTE))
    deliver(sender, receiver)
    assert len(receiver.got) == 1


def test_memory_is_not_used_again_after_the_end_of_the_link_while_the_peer_reads() -> None:
    sender, receiver = acquainted()
    assert sender.send(b"x" * MEBIBYTE)
    deliver(sender, receiver)
    (segment,) = receiver.got.popleft().segments
    descriptors = len(os.listdir("/proc/self/fd"))
    sender.lending.lender.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors
    receiver.lending = cast("Any", None)
    gc.collect()
    assert segment == b"x" * MEBIBYTE


def test_idle_memory_goes_back_to_the_kernel() -> None:
    sender, receiver = acquainted()
    assert sender.lending.lender._pool.allocated
    for _ in range(IDLE_BEATS + 1):
        sender.lending.on_beat()
        deliver(sender, receiver)
    assert not sender.lending.lender._pool.allocated
    # The arena is closed: the next segment announces another one.
    assert not sender.send(bytes(MEBIBYTE))
    deliver(sender, receiver)
    assert sender.send(bytes(MEBIBYTE))


def test_memory_that_was_closed_before_its_announcement_arrived_ends_no_lending() -> None:
    sender, receiver = Side(), Side()
    assert not sender.send(bytes(MEBIBYTE))
    # The connection was down for so long.
    for _ in range(IDLE_BEATS + 1):
        sender.lending.on_beat()
    deliver(sender, receiver)
    assert not sender.send(bytes(MEBIBYTE)), "other memory is announced"
    deliver(sender, receiver)
    assert sender.send(bytes(MEBIBYTE))


class CountingReceiver:
    """Takes calls, and notes with how many frames each came."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self.handlers: dict[int, Callable[[Link, Frame], None]] = {Kind.CALL: self._on_call}

    def _on_call(self, link: Link, frame: Frame) -> None:
        self.found.append(link.batch)

    def link_ended(self, link: Link, reason: str) -> None:
        """Is not asked."""


async def test_a_call_beside_returned_memory_counts_as_alone() -> None:
    receiver = CountingReceiver()
    link = Link(Peer(name="peer", incarnation=1, role="node"), cast("Any", receiver))
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=True)
    call, returned = Frame(Kind.CALL, 0, b"", ()), Frame(Kind.RETURNED, 0, b"", ())
    for frames in ([call], [returned, call], [returned, call, call]):
        link.on_frames(frames, 1)
    # Its answer is sent at once, as that of a call which comes alone.
    assert receiver.found == [1, 1, 2, 2]


def link_to_peer() -> Link:
    return Link(Peer(name="peer", incarnation=1, role="node"), cast("Any", CountingReceiver()))


def posts_of(link: Link) -> list[Frame]:
    """All that was posted on a link so far."""
    return [parsed(bytes(head), tuple(rest)) for head, *rest in link.session.resume(0)]


def announced(link: Link) -> bool:
    """True if large segments that are posted now are announced to the peer, or lent."""
    segment = bytes(MEBIBYTE)
    link.post(encode_frame(Kind.CALL, b"call", [segment]), (segment,))
    return any(frame.kind == Kind.ARENA for frame in posts_of(link))


ACKNOWLEDGEMENT = Frame(Kind.ACK, 0, bytes(8), ())


async def test_who_has_dialled_lends_at_once() -> None:
    link = link_to_peer()
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=True)
    assert announced(link)


async def test_who_was_dialled_borrows_at_once_and_lends_from_the_first_frame_on() -> None:
    link = link_to_peer()
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=False)
    assert link.lending is not None
    assert not announced(link)
    # A part of a frame.
    link.on_frames([], 1)
    assert not announced(link)
    link.on_frames([ACKNOWLEDGEMENT], 1)
    assert announced(link)


async def test_the_answer_to_the_first_frame_may_be_lent() -> None:
    found: list[bool] = []
    receiver = CountingReceiver()
    receiver.handlers = {Kind.CALL: lambda link, frame: found.append(announced(link))}
    link = Link(Peer(name="peer", incarnation=1, role="node"), cast("Any", receiver))
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=False)
    link.on_frames([Frame(Kind.CALL, 0, b"", ())], 1)
    assert found == [True]


class Silent:
    """A connection over which nothing comes, and that ends at once."""

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return b""

    def let_others_receive(self, act: object) -> None:
        """Only the reader receives."""

    def close(self) -> None:
        """Nothing is open."""


async def test_a_frame_over_a_later_connection_does_not_begin_lending() -> None:
    link = link_to_peer()
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=False)
    connection: Any = Silent()
    link.open(connection, 0)
    link.check_invariants()
    await link.run(connection, FrameReader(), [])
    link.check_invariants()
    # The peer has given up that dial, and has come over TCP.
    link.on_frames([ACKNOWLEDGEMENT], 1)
    assert not announced(link)
    # And again over a connection that shows it.
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=False)
    link.on_frames([ACKNOWLEDGEMENT], 1)
    assert announced(link)


async def test_an_end_that_does_not_borrow_declines_and_is_lent_nothing() -> None:
    sender, link = Side(), link_to_peer()
    assert not sender.send(bytes(MEBIBYTE))
    announcement = sender.out.popleft()
    link.on_frames([announcement], 1)
    (answer,) = posts_of(link)
    assert (answer.kind, answer.flags) == (Kind.ARENA, ArenaFlag.REFUSED)
    sender.take(answer)
    assert not sender.send(bytes(MEBIBYTE))
    # The memory that was announced is closed then.
    for _ in range(IDLE_BEATS + 1):
        sender.lending.on_beat()
    for frame in sender.out:
        link.on_frames([frame] if frame.kind == Kind.ARENA else [], 1)
    assert [frame.flags for frame in sender.out if frame.kind == Kind.ARENA] == [ArenaFlag.CLOSED]
    assert len(posts_of(link)) == 1


async def test_what_arrives_about_memory_behind_the_end_of_the_link_is_dropped() -> None:
    sender, receiver = acquainted()
    sender.send(bytes(MEBIBYTE))
    link = link_to_peer()
    link.share_memory(LendingPools(SystemEnvironment()), os.getpid(), dialled=True)
    link.end("ended by the test")
    link.on_frames(list(sender.out), 1)
    assert posts_of(link) == []
    deliver(sender, receiver)


async def test_what_its_owner_may_change_is_posted_as_it_was() -> None:
    link = Link(Peer(name="peer", incarnation=1, role="node"), cast("Any", CountingReceiver()))
    memory = bytearray(b"before" * 4000)
    frame = encode_frame(Kind.REPLY, b"reply", [memory])
    link.post(frame, (memoryview(memory),), changing=True)
    link.post(frame, (memoryview(memory),))
    memory[:6] = b"after!"
    copied, shared = link.session.resume(0)
    assert bytes(copied[1]).startswith(b"before")
    assert bytes(shared[1]).startswith(b"after!")


def test_a_peer_that_cannot_map_is_lent_nothing_and_asked_once() -> None:
    sender, receiver = Side(), Side()
    assert not sender.send(bytes(MEBIBYTE))
    announcement = sender.out.popleft()
    number, descriptor, _ = struct.unpack("!II16s", announcement.control)
    wrong = struct.pack("!II16s", number, descriptor, b"another's key...")
    receiver.take(announcement._replace(control=wrong))
    assert receiver.out[-1].flags == ArenaFlag.REFUSED
    deliver(sender, receiver)
    for _ in range(3):
        assert not sender.send(bytes(MEBIBYTE))
    deliver(sender, receiver)
    assert len(receiver.got) == 4


def loan(*places: tuple[int, int, int, int], number: int = 9, count: int | None = None,
         segments: tuple[int, ...] = (MEBIBYTE,), head: bytes | None = None) -> Frame:  # fmt: skip
    """A LOAN frame as a peer may write it. `places`: segment, arena, offset and size."""
    sizes = struct.pack(f"!{len(segments)}I", *segments)
    if head is None:
        head = HEADER.pack(Kind.CALL, 0, len(segments), 4) + sizes + b"call"
    written = b"".join(struct.pack("!HIQQ", *place) for place in places)
    many = len(places) if count is None else count
    return Frame(Kind.LOAN, 0, struct.pack("!QH", number, many) + written + head, ())


HOSTILE = {
    "no number": Frame(Kind.LOAN, 0, b"x", ()),
    "no places": loan(),
    "more places than there are": loan((0, 1, 4096, MEBIBYTE), count=60_000),
    "unknown memory": loan((0, 7, 4096, MEBIBYTE)),
    "the header of the memory": loan((0, 1, 0, MEBIBYTE)),
    "beyond the end": loan((0, 1, 1 << 40, MEBIBYTE)),
    "an offset that overflows": loan((0, 1, (1 << 64) - 1, MEBIBYTE)),
    "longer than the memory": loan((0, 1, 4096, 1 << 60), segments=(1 << 30,)),
    "another size than the frame says": loan((0, 1, 4096, MEBIBYTE - 1)),
    "a segment that the frame has not": loan((5, 1, 4096, MEBIBYTE)),
    "one segment twice": loan((0, 1, 4096, MEBIBYTE), (0, 1, 4096, MEBIBYTE)),
    "a segment that did not come": loan((0, 1, 4096, MEBIBYTE), segments=(MEBIBYTE, 5)),
    "a loan of a loan": loan(
        (0, 1, 4096, MEBIBYTE),
        head=HEADER.pack(Kind.LOAN, 0, 1, 0) + struct.pack("!I", MEBIBYTE),
    ),
    "a handshake": loan(
        (0, 1, 4096, MEBIBYTE),
        head=HEADER.pack(Kind.HELLO, 0, 1, 0) + struct.pack("!I", MEBIBYTE),
    ),
    "a head that is cut": loan((0, 1, 4096, MEBIBYTE), head=b"\1"),
    "a control part that is cut": loan(
        (0, 1, 4096, MEBIBYTE),
        head=HEADER.pack(Kind.CALL, 0, 1, 99) + struct.pack("!I", MEBIBYTE),
    ),
    "memory without an answer": Frame(Kind.ARENA, ArenaFlag.MAPPED, b"", ()),
    "memory announced twice": Frame(
        Kind.ARENA, ArenaFlag.ANNOUNCED, struct.pack("!II16s", 1, 1, b""), ()
    ),
    "memory with an unknown flag": Frame(Kind.ARENA, 200, bytes(24), ()),
    "memory with segments": Frame(Kind.ARENA, ArenaFlag.ANNOUNCED, bytes(24), (b"x",)),
    "what was not lent": Frame(Kind.RETURNED, 0, bytes(8), ()),
    "half a number": Frame(Kind.RETURNED, 0, bytes(7), ()),
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
def test_frames_that_lie_are_refused_and_harm_nothing(frame: Frame) -> None:
    sender, receiver = acquainted()
    with pytest.raises(ProtocolError):
        receiver.take(frame)
    receiver.lending.borrower.give_back()
    receiver.out.clear()
    assert not receiver.lending.borrower.borrowed
    assert sender.send(b"x" * MEBIBYTE)
    deliver(sender, receiver)
    assert receiver.got.popleft().segments[0] == b"x" * MEBIBYTE


UNASKED = {
    **{name: frame for name, frame in HOSTILE.items() if name != "memory announced twice"},
    "an answer": Frame(Kind.ARENA, ArenaFlag.MAPPED, bytes(4), ()),
    "a refusal": Frame(Kind.ARENA, ArenaFlag.REFUSED, bytes(4), ()),
    "an announcement that is cut": Frame(Kind.ARENA, ArenaFlag.ANNOUNCED, bytes(23), ()),
    "nothing returned": Frame(Kind.RETURNED, 0, b"", ()),
}


@pytest.mark.parametrize("frame", UNASKED.values(), ids=UNASKED.keys())
async def test_an_end_that_does_not_borrow_refuses_all_but_announcements(frame: Frame) -> None:
    link = link_to_peer()
    with pytest.raises(ProtocolError, match="about shared memory"):
        link.on_frames([frame], 1)
    assert posts_of(link) == []


def test_random_bytes_in_frames_of_loans_are_refused() -> None:
    draw = random.Random(1)
    for _ in range(3_000):
        _, receiver = borrower_alone()
        kind = draw.choice((Kind.ARENA, Kind.LOAN, Kind.RETURNED))
        control = draw.randbytes(draw.choice((0, 4, 8, 10, 24, 32, 60)))
        try:
            receiver.on_frame(Frame(kind, draw.randrange(5), control, ()))
        except ProtocolError:
            continue
        assert kind in (Kind.ARENA, Kind.RETURNED)


def borrower_alone() -> tuple[Borrower, Lending]:
    """One end, whose answers go nowhere."""
    lending = Lending(LendingPools(SystemEnvironment(), MEBIBYTE), lambda frame: None, os.getpid())
    return lending.borrower, lending


class Conversation(RuleBasedStateMachine):
    """Two ends that send, receive, read, write, keep and drop in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = Side(4 * MEBIBYTE), Side(4 * MEBIBYTE)
        self.expected: tuple[deque[int], deque[int]] = deque(), deque()
        """What each side is to get, in order: the byte of the frame."""
        self.held: list[tuple[Any, int]] = []

    @rule(way=st.booleans(), byte=st.integers(0, 255), large=st.booleans())
    def send(self, way: bool, byte: int, large: bool) -> None:
        source = bytearray([byte]) * (LOAN_BYTES * 3 if large else LOAN_BYTES)
        self.sides[way].send(memoryview(source))
        # Its owner may change it from now on, in shared memory; sent bytes were copied by `parsed`.
        source[:] = bytes(len(source))
        self.expected[not way].append(byte)

    @rule(way=st.booleans())
    def arrive(self, way: bool) -> None:
        if self.sides[way].out:
            self.sides[not way].take(self.sides[way].out.popleft())
        got = self.sides[not way].got
        while got:
            byte = self.expected[not way].popleft()
            self.held.append((got.popleft().segments[0], byte))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), byte=st.integers(0, 255))
    def write(self, data: st.DataObject, byte: int) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        segment, _ = self.held[index]
        if isinstance(segment, memoryview):
            segment[:] = bytes([byte]) * len(segment)
            self.held[index] = segment, byte

    @rule(way=st.booleans())
    def beat(self, way: bool) -> None:
        self.sides[way].lending.on_beat()

    @invariant()
    def nothing_that_is_held_has_changed(self) -> None:
        for segment, byte in self.held:
            content = bytes(segment)
            assert content[0] == content[-1] == content[len(content) // 2] == byte
        for side in self.sides:
            side.lending.lender.check_invariants()

    def teardown(self) -> None:
        self.held.clear()
        for _ in range(3):
            for side in self.sides:
                side.lending.borrower.give_back()
            deliver(*self.sides)
            for side in self.sides:
                side.got.clear()
        assert [side.lending.lender.open_loans for side in self.sides] == [0, 0]
        assert [side.lending.borrower.borrowed for side in self.sides] == [0, 0]


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
