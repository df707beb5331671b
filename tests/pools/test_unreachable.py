"""Pools while the caller cannot reach the node of a member, and all others can: other members are
taken, and no item runs twice for it that must not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import attrs
import pytest
import trio
import trio.testing

from actors import Actor, method
from actors.errors import NodeUnreachableError
from runtime import open_node
from runtime.node import Node, internals_of
from runtime.pools.pool import Pool
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of
from runtime.testing import Platform
from tests.breakable_network import BreakableNetwork
from tests.live_pair import SECRET, open_pair
from tests.pools.actors_used import Squares
from tests.waiting import until

ITEMS = 40


@attrs.frozen
class Divided:
    """A pool as `there` sees it, with members there and on `beyond`, which it can be cut off from.
    Another node has opened it, and keeps the store.
    """

    there: Node
    pool: Pool[Squares]
    cut: Callable[[], None]
    heal: Callable[[], None]


@asynccontextmanager
async def open_divided() -> AsyncIterator[Divided]:
    near, far = BreakableNetwork(), BreakableNetwork()
    async with (
        open_pair(None, Platform(network=near)) as pair,
        open_node(
            "beyond", join=pair.here.address, secret=SECRET, platform=Platform(network=far)
        ) as beyond,
    ):
        there = pair.there
        await there.wait_for(3)
        await beyond.wait_for(3)
        addresses = {member.name: member.addresses for member in there.members()}

        def cut() -> None:
            near.cut(*addresses["beyond"])
            far.cut(*addresses["there"])

        def heal() -> None:
            near.refused.clear()
            far.refused.clear()

        await pair.here.pool("squares", Squares, per_node=1)
        pool = await (await there.lookup_pool("squares", Squares)).ready(2)
        yield Divided(there, pool, cut, heal)


async def is_unreachable(node: Node) -> None:
    await until(node.unreachable, "beyond is out of reach", lambda names: names == ("beyond",))


def is_cut_off(node: Node) -> bool:
    """True once its connection to beyond has broken."""
    links = internals_of(node).endpoint.peers.links
    return any(link.peer.name == "beyond" and not link.connected for link in links.values())


def place(member: Squares) -> str:
    node: str = member.address.node
    return node


async def test_members_whose_node_cannot_be_reached_are_passed_over() -> None:
    async with open_divided() as divided:
        pool = divided.pool
        keys = {key: pool.choose("hash", key=key) for key in range(60)}
        assert {place(member) for member in keys.values()} == {"there", "beyond"}
        assert {answer.value for answer in await pool.call_all(Squares.where)} == {
            "there",
            "beyond",
        }
        divided.cut()
        with trio.fail_after(60):
            await is_unreachable(divided.there)
            assert len(pool.members()) == 2
            for routing in ("least-loaded", "round-robin", "random", "hash"):
                chosen = {place(pool.choose(routing, key=key)) for key in range(60)}
                assert chosen == {"there"}
            answers = {place(one.member): one for one in await pool.call_all(Squares.where)}
            assert answers["there"].value == "there"
            assert isinstance(answers["beyond"].error, NodeUnreachableError)
            for item in range(12):
                reference = await pool.submit(Squares.square, item)
                assert await reference.fetch() == item * item
            divided.heal()
            await until(divided.there.unreachable, "it is reached", lambda names: not names)
            assert keys == {key: pool.choose("hash", key=key) for key in keys}, "as before"


async def test_if_no_member_can_be_reached_a_call_waits_for_one() -> None:
    network = BreakableNetwork()
    async with open_pair(Platform(network=network)) as pair:
        # The node that opens it gets no member while another has room.
        pool = await (await pair.here.pool("squares", Squares, size=1)).ready(1)
        assert await pool.choose().where() == "there"
        network.take_down()
        with trio.fail_after(60):
            await until(pair.here.unreachable, "it is out of reach")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(everywhere, pool)
                await trio.testing.wait_all_tasks_blocked()
                network.up = True


async def everywhere(pool: Pool[Squares]) -> None:
    """Calls of a pool whose only member is out of reach."""
    assert await pool.choose("hash", key=1).where() == "there"
    assert await (await pool.submit(Squares.where)).fetch() == "there"


@pytest.mark.parametrize("linked", [False, True], ids=["never reached", "reached before"])
@pytest.mark.parametrize("alone", [False, True], ids=["in batches", "alone"])
async def test_items_that_were_not_sent_go_to_members_that_can_be_reached(
    linked: bool, alone: bool
) -> None:
    async with open_divided() as divided:
        pool = divided.pool
        if linked:
            assert len(await pool.call_all(Squares.where)) == 2
        # At once: nothing is known about the node yet, and its member gets an item.
        divided.cut()
        if linked:
            await until(lambda: is_cut_off(divided.there), "the connection is lost")
        with trio.fail_after(60):
            found = [
                result
                async for result in pool.map(
                    Squares.note, range(ITEMS), timeout=50.0 if alone else None
                )
            ]
            assert [item for _, item in found] == list(range(ITEMS))
            assert len({name for name, _ in found}) == 1
            divided.heal()
            await until(divided.there.unreachable, "it is reached", lambda names: not names)
            ran = [answer.value or [] for answer in await pool.call_all(Squares.noted)]
        assert Counter(item for items in ran for item in items) == Counter(range(ITEMS)), (
            "what was taken back has not run"
        )


class Books:
    """What the members of one simulation have run: they all live in this process."""

    ran: ClassVar[Counter[tuple[str, int]]] = Counter()


class Slow(Actor):
    """Takes a second for an item, and writes it down."""

    @method
    async def once(self, item: int) -> int:
        Books.ran["once", item] += 1
        await trio.sleep(1.0)
        return item

    @method(idempotent=True)
    async def often(self, item: int) -> int:
        Books.ran["often", item] += 1
        await trio.sleep(1.0)
        return item


@asynccontextmanager
async def map_while_divided(
    simulation: Simulation, work: Callable[[int], int]
) -> AsyncIterator[tuple[list[int], Callable[[], None]]]:
    """A map that has lost the sight of one of its members while each of them has an item: what it
    has given so far, and what ends the partition. At the end the map is over.
    """
    Books.ran.clear()
    pool = await (await simulation.node.pool("jobs", Slow, per_node=1)).ready(3)
    found: list[int] = []

    async def run() -> None:
        results = pool.map(work, range(ITEMS), ordered=False)
        async for result in results:
            found.append(result)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)  # noqa: ASYNC113  waited for below
        await until(lambda: len(found) >= 8, "it is under way", seconds=60.0)
        await trio.sleep(0.5)
        heal = simulation.partition([simulation.node.name], [simulation.nodes[-1]])
        yield found, heal
    assert sorted(found) == list(range(ITEMS))


async def waits_for_what_was_sent(simulation: Simulation) -> None:
    async with map_while_divided(simulation, Slow.once) as (found, heal):
        await until(lambda: len(found) == ITEMS - 1, "all others are done", seconds=100.0)
        await trio.sleep(10 * cluster_of(simulation).timings.lease)
        assert len(found) == ITEMS - 1, "what was sent may have run: it is not repeated"
        heal()
    assert set(Books.ran.values()) == {1}


async def repeats_what_was_sent(simulation: Simulation) -> None:
    async with map_while_divided(simulation, Slow.often) as (found, heal):
        await until(lambda: len(found) == ITEMS, "all are done without it", seconds=100.0)
        heal()
    assert sorted(Books.ran.values()) == [1] * (ITEMS - 1) + [2]


def test_an_item_that_was_sent_is_waited_for() -> None:
    simulate(waits_for_what_was_sent, seeds=range(3), faults=())


def test_an_item_that_was_sent_is_repeated_with_leave() -> None:
    simulate(repeats_what_was_sent, seeds=range(3), faults=())
