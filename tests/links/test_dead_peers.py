"""What a dead peer held is freed at once: by the count of its references, not when the cyclic
collector comes.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator

import cbor2
import pytest
import trio
import trio.testing

from actors import Actor, method
from actors.identifiers import NodeId
from runtime.links.link import Link
from runtime.links.settlement import SettlementAnswerKind
from runtime.node import Node, internals_of
from runtime.wire.frames import Kind, encode_frame
from tests.live_pair import Pair
from tests.node.test_strangers import dial, introduction, offer, shake_hands
from tests.waiting import until

HELD = 200_000
"""Bytes that each peer makes the node hold: arguments of calls that run and that wait, and answers
that it does not read.
"""


class Holder(Actor):
    """Holds what it is given."""

    @method(concurrent=True)
    async def hold(self, value: bytes) -> bytes:
        await trio.sleep_forever()
        return value

    @method(concurrent=True)
    async def echo(self, value: bytes) -> bytes:
        return value

    @method(concurrent=True)
    async def fail(self, value: bytes) -> bytes:
        raise ValueError(value)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The cyclic collector does nothing."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def hold_and_die(node: Node, number: int) -> weakref.ref[Link]:
    """A peer that makes calls, a repeatable one among them, leaves the answers unread and is gone.
    Its link leads to all that it held.
    """
    name = f"client-{number}"
    value = bytes(HELD // 4)
    # A CALL of a method that waits, one that answers, one that raises, and a repeatable one that
    # waits.
    calls = [(0, "hold"), (0, "echo"), (0, "fail"), (2, "hold")]
    async with await dial(node) as stream:
        reader = await shake_hands(stream, introduction(name=name))
        assert await offer(stream, reader, 1) == SettlementAnswerKind.ACCEPTED
        for index, (flags, which) in enumerate(calls, 1):
            control = cbor2.dumps([index, "holder", 0, which, [value]])
            frame = bytearray(encode_frame(Kind.CALL, control))
            frame[1] = flags
            await stream.send_all(frame)
        cell = internals_of(node).cells["holder"]
        await until(lambda: len(cell.running) >= 2, "both calls run", every=0.001)
        link = weakref.ref(
            next(link for link in internals_of(node).links.values() if link.peer.name == name)
        )
    incarnation = introduction().peer.incarnation
    internals_of(node).endpoint.on_peer_ended(NodeId(name, incarnation), "ended by the test")
    await until(lambda: not cell.running, "no call runs any more", every=0.001)
    # What was cancelled takes a few steps to end.
    await trio.testing.wait_all_tasks_blocked(0.005)
    return link


async def test_the_link_of_a_dead_peer_is_gone_without_the_cyclic_collector(
    pair: Pair, uncollected: None
) -> None:
    await pair.here.options(name="holder").spawn(Holder)
    with trio.fail_after(60):
        for number in range(10):
            link = await hold_and_die(pair.here, number)
            assert link() is None


@pytest.mark.parametrize(
    "peers",
    [20, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)])],
    ids=["20", "1000"],
)
async def test_no_bytes_are_left_of_what_dead_peers_held(
    pair: Pair, uncollected: None, peers: int
) -> None:
    await pair.here.options(name="holder").spawn(Holder)
    for number in range(5):
        await hold_and_die(pair.here, number)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(5, 5 + peers):
            await hold_and_die(pair.here, number)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # They held 200 kB each. A few hundred bytes a peer are remembered of it for those who ask late.
    assert grown < 2 * HELD + 5_000 * peers
