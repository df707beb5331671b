"""Members at whose addresses no node answers: each has one clear error, costs a bounded number of
dials and log lines, and disturbs no other link.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import DeadlineExceededError
from actors.method import Address
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links.peers import LINES_OF_PEER, WARNED_AFTER
from runtime.membership.members import PREFIX
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.live_pair import SECRET
from tests.node.test_strangers import answer_with, introduction, keep_silent, other_end
from tests.waiting import until

Handler = Callable[[trio.SocketStream], Awaitable[None]]


class Adder(Actor):
    @method
    async def add(self, number: int) -> int:
        return number + 1


async def garbage(stream: trio.SocketStream) -> None:
    """What is no frame, whatever follows."""
    await stream.send_all(b"\xff" * 16 + os.urandom(1000))


async def closes(stream: trio.SocketStream) -> None:
    """Says nothing, and goes."""


async def leaves(stream: trio.SocketStream) -> None:
    """Goes when it was asked."""
    await stream.receive_some()


async def lies(stream: trio.SocketStream) -> None:
    """A node of another name."""
    me = introduction(name="another")
    await answer_with(attrs.evolve(me, peer=attrs.evolve(me.peer, role="node")))(stream)


BAD: dict[str, tuple[Handler, str]] = {
    "garbage": (garbage, "which no node sends"),
    "closes": (closes, "closed the connection"),
    "leaves": (leaves, "closed the connection"),
    "silent": (keep_silent, "did not go on with the handshake"),
    "liar": (lies, "node 'another'"),
}


@asynccontextmanager
async def bad_members(node: Node, dials: Counter[str]) -> AsyncIterator[dict[str, int]]:
    """Members of these names, by their incarnations."""
    store, incarnations = internals_of(node).store, dict[str, int]()
    lease = await store.grant(600)

    def counted(name: str, handler: Handler) -> Handler:
        async def handle(stream: trio.SocketStream) -> None:
            dials[name] += 1
            async with stream:
                await handler(stream)

        return handle

    async with AsyncExitStack() as stack:
        for name, (handler, _) in BAD.items():
            address = await stack.enter_async_context(other_end(counted(name, handler)))
            record = attrs.evolve(
                internals_of(node).registration.record,
                name=name,
                addresses=(f"tcp:{address}",),
                host="far",
                lease=lease,
            )
            value = internals_of(node).endpoint.codec.encode(record, [])
            incarnations[name] = await store.put(f"{PREFIX}{name}", value, lease)
        yield incarnations


@pytest.mark.slow
async def test_members_at_whose_addresses_no_node_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "understudy.links")
    dials: Counter[str] = Counter()
    errors: dict[str, DeadlineExceededError] = {}
    # Long enough for the liar's handshake on a busy machine; the silent one uses it up each time.
    timings = Timings(handshake=0.5, redial_most=0.2)
    platform = Platform(environment=SystemEnvironment(timings))

    def warned() -> set[str]:
        text = "has not been reached yet"
        return {name for name in BAD if f"node {name} {text}" in caplog.text}

    async def call(node: Node, name: str, incarnation: int) -> None:
        address = Address("nobody", name, incarnation)
        handle = internals_of(node).endpoint.make_handle(address, Adder)
        with pytest.raises(DeadlineExceededError) as caught:
            await handle.add.options(timeout=5.0)(1)
        errors[name] = caught.value

    async with (
        open_node("here", secret=SECRET, platform=platform) as here,
        open_node("there", join=here.address, secret=SECRET, platform=platform) as there,
        bad_members(here, dials) as incarnations,
    ):
        await here.wait_for(2 + len(BAD))
        adder = await here.options(on="there").spawn(Adder)
        async with trio.open_nursery() as nursery:
            for name, incarnation in incarnations.items():
                nursery.start_soon(call, here, name, incarnation)
            await until(warned, "a warning for each", lambda found: found == BAD.keys())
            assert await adder.add(1) == 2
        for name, (_, why) in BAD.items():
            assert "did not run and will not. Node " in str(errors[name])
            assert f"{name} is not reached: 127.0.0.1:" in str(errors[name])
            assert why in str(errors[name])
            # As many as the pauses between them allow, and not as many as there may be.
            assert WARNED_AFTER <= dials[name] < 400
            lines = [one for one in caplog.messages if f"settle with {name}:" in one]
            assert 0 < len(lines) <= LINES_OF_PEER
        own = [link for link in internals_of(here).links.items() if link[0].name == there.name]
        assert [link.counters.connections for _, link in own] == [1]
