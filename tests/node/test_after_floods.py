"""What a flood of calls leaves in a node once it is over: nothing of ours. What the process keeps
resident is freed memory that malloc has not given back.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter

import cbor2
import pytest
import trio

from actors import Actor, method
from runtime import open_node
from runtime.calls.protocol import REPEATABLE, call_frame
from runtime.wire.frames import Kind, encode_frame
from tests.authority import Authority, node_uri
from tests.node.raw_peer import RawPeer, frames
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")

CALLS = 1_000
SIZE = 8_000


class Echo(Actor):
    """Has an answer as long as what it is asked, and its answers are recorded."""

    @method(concurrent=True, idempotent=True)
    async def echo(self, text: str) -> str:
        return text


def ours() -> Counter[str]:
    """How many objects there are of each class of the runtime's."""
    gc.collect()
    return Counter(
        f"{type(one).__module__}.{type(one).__qualname__}"
        for one in gc.get_objects()
        # Some test has a class whose `__module__` is no text.
        if str(type(one).__module__).partition(".")[0] in ("actors", "runtime")
    )


async def flood(raw: RawPeer, first: int) -> None:
    """Calls whose answers are read, but not acknowledged before all have come."""
    text = cbor2.dumps(["x" * SIZE])
    prefix = b"".join(map(cbor2.dumps, ("echo", 0, "echo")))
    numbers = range(first, first + CALLS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            raw.send,
            b"".join(call_frame(one, REPEATABLE, prefix, text, (), None) for one in numbers),
        )
        answers = 0
        while answers < CALLS:
            # Others acknowledge what has arrived.
            answers += (await raw.next()).kind == Kind.REPLY
    await raw.send(encode_frame(Kind.ACK, (first + CALLS - 1).to_bytes(8, "big")))
    stood, _ = await raw.stands_after(frames(Kind.FORGET, [first + CALLS, [], 0]))
    assert stood


async def test_a_flood_leaves_no_objects_and_no_bytes(authority: Authority) -> None:
    async with open_node("here", tls=authority.tls(node_uri("here"))) as here:
        await here.options(name="echo", mailbox_limit=10 * CALLS).spawn(Echo)
        raw = await RawPeer.connect(here, authority.tls(node_uri("mallory", role="client")))
        # What is made once, by the first call, is there.
        await flood(raw, 1)
        before = ours()
        tracemalloc.start()
        try:
            bytes_before, _ = tracemalloc.get_traced_memory()
            await flood(raw, 1 + CALLS)

            def left() -> Counter[str]:
                return ours() - before

            # The acknowledgement of the node, and what its tasks have in hand, take a moment.
            await until(left, "no object is left", lambda found: found.total() < 20, every=0.05)
            gc.collect()
            bytes_after, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most - bytes_before > CALLS * SIZE, "it was a flood"
        assert bytes_after - bytes_before < CALLS * SIZE // 20
        raw.close()
