"""A flood of calls keeps neither the rest of the loop nor the store waiting."""

from __future__ import annotations

import trio

from actors import Actor, method
from runtime import open_node
from runtime.hosting.workers import CHECKPOINT_EVERY
from runtime.membership.remote_store import StoreService
from runtime.node import Node, internals_of

CALLS = 4000
SECRET = "a secret for the tests of floods"


class Flooded(Actor):
    """Counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    @method(concurrent=True)
    async def run(self) -> None:
        self.runs += 1


async def flood(node: Node, nursery: trio.Nursery) -> Flooded:
    """Make calls of a concurrent method, and return the actor: none of them has run yet."""
    handle = await node.options(name="flooded").spawn(Flooded)
    actor = internals_of(node).endpoint.host.cells["flooded"].instance
    assert isinstance(actor, Flooded)
    for _ in range(CALLS):
        nursery.start_soon(handle.run)
    return actor


async def test_calls_of_concurrent_methods_let_the_loop_go_on_as_others_do() -> None:
    async with open_node("alone", secret=SECRET) as node, trio.open_nursery() as nursery:
        actor = await flood(node, nursery)
        longest = before = 0
        while actor.runs < CALLS:
            await trio.lowlevel.checkpoint()
            longest, before = max(longest, actor.runs - before), actor.runs
        # trio draws the order of a pass: one worker may come last in it, and first in the next.
        assert 0 < longest <= 2 * CHECKPOINT_EVERY


async def test_the_store_answers_before_the_calls_of_a_flood_that_were_made_earlier() -> None:
    async with open_node("alone", secret=SECRET) as node:
        endpoint = internals_of(node).endpoint
        service = next(
            cell for cell in endpoint.host.cells.values() if type(cell.instance) is StoreService
        )
        store = endpoint.make_handle(service.address)
        async with trio.open_nursery() as nursery:
            actor = await flood(node, nursery)
            # The callers make their calls, before a worker runs the first.
            await trio.lowlevel.checkpoint()
            await store.get("a key")
            assert actor.runs < CALLS / 4
        assert actor.runs == CALLS
