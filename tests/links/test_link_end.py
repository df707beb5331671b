"""The end of a link while something is just arriving on it."""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
import trio
import trio.testing

from actors import Actor, OutcomeUnknownError, method
from actors.errors import NodeUnreachableError
from runtime.links.link import Link
from runtime.links.transfers import WHOLE
from runtime.links.transports import Connection
from runtime.node import internals_of
from runtime.wire.frames import Attachment, Buffer, Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Peer
from tests.live_pair import Pair
from tests.waiting import until


class Counter(Actor):
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    @method
    async def add(self) -> int:
        self.calls += 1
        return self.calls


class Wire:
    """A `Connection` whose bytes come when the test says so, however often its reader is cancelled:
    the kernel had them already.
    """

    def __init__(self) -> None:
        self.sent = bytearray()
        self.arrived = bytearray()
        self.arrival = trio.Event()

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self.sent += data
        return len(data)

    async def wait_writable(self) -> None:
        raise AssertionError("it always takes everything")

    async def receive(self) -> bytes:
        buffer = bytearray(65_536)
        return bytes(buffer[: await self.receive_into(memoryview(buffer))])

    async def receive_into(self, buffer: memoryview) -> int:
        with trio.CancelScope(shield=True):
            while not self.arrived:
                await self.arrival.wait()
                self.arrival = trio.Event()
        size = min(len(buffer), len(self.arrived))
        buffer[:size] = self.arrived[:size]
        del self.arrived[:size]
        return size

    def arrive(self, data: bytes) -> None:
        self.arrived += data
        self.arrival.set()

    def let_others_receive(self, act: Callable[[bytes], None]) -> None:
        return None

    def close(self) -> None:
        pass


class Side:
    """Takes the frames of a link, and says when they came."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.link = Link(Peer(name="peer", incarnation=1, role="node"), self)
        self.wire = Wire()

    @property
    def handlers(self) -> dict[int, Any]:
        return {Kind.CALL: self.on_frame}

    def on_frame(self, link: Link, frame: Frame) -> None:
        self.story.append("frame")

    def link_ended(self, link: Link, reason: str) -> None:
        self.story.append("ended")

    async def run(self) -> None:
        connection = cast("Connection", self.wire)
        self.link.open(connection, 0)
        await self.link.run(connection, FrameReader(), [])


@pytest.mark.parametrize("size", [10, 3 * WHOLE], ids=["a small frame", "parts of a large one"])
async def test_nothing_is_acted_upon_after_the_end_though_it_had_arrived_by_then(size: int) -> None:
    sender, receiver = Side(), Side()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        nursery.start_soon(receiver.run)
        await trio.testing.wait_all_tasks_blocked()
        data = bytes(size)
        sender.link.post(encode_frame(Kind.CALL, b"", [data]), (data,))
        await trio.testing.wait_all_tasks_blocked()
        # A first piece, so that the receiver is in the middle of it; the rest comes in one pass
        # with the end.
        first = len(sender.wire.sent) // 2
        receiver.wire.arrive(bytes(sender.wire.sent[:first]))
        await trio.testing.wait_all_tasks_blocked()
        receiver.wire.arrive(bytes(sender.wire.sent[first:]))
        receiver.link.end("over")
        await trio.testing.wait_all_tasks_blocked()
        assert receiver.story == ["ended"]
        sender.link.end("over")
        sender.wire.arrive(b"anything")


class Unclosable(Wire):
    """A connection whose end meets an error."""

    def close(self) -> None:
        raise OSError(errno.EBADF, "it was closed already")


async def test_a_link_goes_on_over_another_connection_when_the_last_could_not_be_closed() -> None:
    side = Side()
    side.wire = Unclosable()

    async def run() -> None:
        with pytest.raises(OSError, match="closed already"):
            await side.run()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            side.link.drop_connection()
            # Its reader is shielded.
            side.wire.arrive(b"anything")
            await side.link.disconnected()
        assert not side.link.connected
        side.link.check_invariants()
        side.wire = Wire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(side.run)
            await trio.testing.wait_all_tasks_blocked()
            assert side.link.connected
            side.link.end("over")
            side.wire.arrive(b"anything")


@pytest.mark.parametrize("size", [10, 3 * WHOLE], ids=["a small frame", "parts of a large one"])
async def test_what_was_posted_and_not_acknowledged_is_freed_with_the_link(size: int) -> None:
    """Handles and routes may refer to a link that has ended for long."""
    side = Side()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.run)
        await trio.testing.wait_all_tasks_blocked()
        try:
            post_and_end(side, size)
        finally:
            # The reader of the wire is shielded.
            side.wire.arrive(b"anything")


def post_and_end(side: Side, size: int) -> None:
    """What a link keeps of a message goes when it ends."""
    data, attachment, held = bytes(size), Attachment(), Held()
    attachment.held.append(held)
    gone = weakref.ref(held)
    side.link.post(encode_frame(Kind.CALL, b"", [data, attachment]), (data, attachment))
    del held, attachment
    assert gone() is not None, "it may have to be sent again"
    assert side.link.backlog >= size
    assert side.link.backlog_frames > 0
    side.link.end("over")
    assert (side.link.backlog, side.link.backlog_frames) == (0, 0)
    assert gone() is None
    side.link.check_invariants()


class Held:
    """What a message keeps alive."""


async def test_a_link_that_has_ended_leaves_its_successor_in_the_table(pair: Pair) -> None:
    here, there = internals_of(pair.here), internals_of(pair.there)
    counter = await pair.here.options(on="there").spawn(Counter)
    assert await counter.add() == 1
    peers = there.endpoint.peers
    old = peers.links[here.endpoint.identity]
    assert old.connected
    # As when the peer has begun another session: the successor is made before what carried the old
    # one has ended.
    peers.give_up(old, "the test has given it up")
    successor = peers.passive_link(old.peer)
    assert successor is not old
    # Not executed, or executed: the old session is over, and the peer lives.
    with suppress(NodeUnreachableError, OutcomeUnknownError):
        await counter.add()
    await until(lambda: successor.connected, "the peer has come back on the successor")
    assert peers.links[here.endpoint.identity] is successor
    assert await counter.add() in (2, 3)
    assert peers.links[here.endpoint.identity] is successor
