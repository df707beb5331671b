"""Nodes that leave in order: what runs on them moves, and what does not has no reason to end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors import Actor, ChildSpec, Supervisor, UnderstudyError, method
from actors.errors import NodeDrainingError
from actors.supervision import ExitReason
from runtime import open_node
from runtime.node import Node, internals_of
from tests.live_pair import open_pair
from tests.waiting import until

SECRET = "a secret for the tests of leaving"


class Worker(Actor):
    """Says where it lives, and which life it is."""

    @method(concurrent=True, idempotent=True)
    async def life(self) -> tuple[str, int]:
        return self.node.name, self.epoch


@attrs.define
class Member:
    """A node that stays until it is told to leave."""

    node: Node | None = None
    joined: trio.Event = attrs.field(factory=trio.Event)
    leave: trio.Event = attrs.field(factory=trio.Event)
    left: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen
class Cluster:
    """The founder, and nodes that can be told to leave one by one; those called a, b and d are
    where a branch may be.
    """

    here: Node
    nursery: trio.Nursery
    members: dict[str, Member] = attrs.field(factory=dict)

    async def join(self, name: str) -> None:
        """Open a node, and wait until it has joined."""
        member = self.members[name] = Member()
        self.nursery.start_soon(self._live, name, member)
        await member.joined.wait()

    async def leave(self, name: str) -> None:
        """Close a node in order, and wait until it has left."""
        self.members[name].leave.set()
        await self.members[name].left.wait()

    def node(self, name: str) -> Node:
        """One of the others."""
        node = self.members[name].node
        assert node is not None
        return node

    async def _live(self, name: str, member: Member) -> None:
        labels = {"moves": "here"} if name in "abd" else {}
        async with open_node(
            name, join=self.here.address, secret=SECRET, labels=labels
        ) as member.node:
            member.joined.set()
            await member.leave.wait()
        member.left.set()


@asynccontextmanager
async def cluster(*names: str) -> AsyncIterator[Cluster]:
    async with open_node("here", secret=SECRET) as here, trio.open_nursery() as nursery:
        found = Cluster(here, nursery)
        for name in names:
            await found.join(name)
        await here.wait_for(1 + len(names))
        yield found
        for member in found.members.values():
            member.leave.set()


async def life(node: Node, name: str) -> tuple[str, int]:
    while True:
        try:
            return await (await node.lookup(name, Worker)).life()
        except UnderstudyError:
            await trio.sleep(0.01)


async def test_a_supervisor_whose_node_leaves_moves_and_its_children_elsewhere_go_on() -> None:
    async with cluster("a", "b", "c") as it:
        leaves = [
            ChildSpec.of("near", Worker).changed(on="here"),
            ChildSpec.of("far", Worker).changed(on="c"),
        ]
        branch = ChildSpec.of("branch", Supervisor, leaves, intensity=0).changed(
            labels={"moves": "here"}
        )
        top = await it.here.options(name="top").spawn(Supervisor, [branch], intensity=0)
        before = {id: await life(it.here, f"top/branch/{id}") for id in ("near", "far")}
        # Both leave at once, so the first move may be to where nothing starts any more. Not one
        # restart is allowed here: a move is none.
        (status,) = await top.children()
        first = str(status.node)
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(it.leave, name)
        await it.join("d")
        children = await until(
            top.children,
            "the first child runs on the node that stays",
            lambda found: found[0].state == "running" and found[0].node not in ("a", "b"),
        )
        status = children[0]
        assert (first in ("a", "b"), status.node) == (True, "d")
        assert {id: await life(it.here, f"top/branch/{id}") for id in before} == before


async def test_a_singleton_of_a_leaving_node_moves_and_keeps_its_children() -> None:
    async with cluster("a", "b", "c") as it:
        specs = [
            ChildSpec.of("steady", Worker).changed(on="c"),
            ChildSpec.of("local", Worker).changed(on="here"),
        ]
        for name in ("a", "b"):
            root = (
                await it.node(name).options(name="root").singleton(Supervisor, specs, intensity=0)
            )
        first = root.address.node
        before = {id: await life(it.here, f"root/{id}") for id in ("steady", "local")}
        await it.leave(first)
        found = await until(
            lambda: it.here.lookup("root", Supervisor),
            "the root has moved",
            lambda root: root.address.node != first,
        )
        assert found.address.node == ({"a", "b"} - {first}).pop()
        assert (await found.count()).active == 2
        assert {id: await life(it.here, f"root/{id}") for id in before} == before


class SlowToStop(Worker):
    """Leaves its supervisor the time to hear of the end of another."""

    async def on_stop(self, reason: ExitReason) -> None:
        await trio.sleep(0.05)


async def test_a_supervisor_that_leaves_with_its_node_counts_no_restarts_of_its_children(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "understudy")
    async with cluster("a") as it:
        specs = [ChildSpec.of(f"child-{number}", SlowToStop).changed(on="a") for number in range(5)]
        await it.node("a").options(name="top", on="a").spawn(Supervisor, specs, intensity=0)
        await it.leave("a")
    assert [
        record.getMessage() for record in caplog.records if "restarts within" in record.getMessage()
    ] == []
    assert [
        record.getMessage() for record in caplog.records if "started again" in record.getMessage()
    ] == []


class Partner(Worker):
    """Linked to another."""

    @method
    async def tie(self, name: str) -> None:
        await self.link(await self.node.lookup(name, Worker))


@pytest.mark.parametrize("linker", ["stays", "moves"])
async def test_a_leaving_node_that_moves_an_actor_stops_nothing_that_is_linked_to_it(
    linker: str,
) -> None:
    async with cluster("a", "b") as it:
        here = it.here
        stays = await here.options(name="stays").spawn(Partner)
        moves = ChildSpec.of("moves", Partner).changed(name="moves", labels={"moves": "here"})
        await here.options(name="top").spawn(Supervisor, [moves], intensity=0)
        before = await life(here, "moves")
        await (await here.lookup(linker, Partner)).tie("moves" if linker == "stays" else "stays")
        await it.leave(before[0])
        await until(lambda: life(here, "moves"), "it has moved", lambda now: now != before)
        # One that had been stopped by the link would be gone by now: the link is told of the end
        # before the move begins.
        assert await stays.life() == ("here", stays.address.epoch)


async def test_a_node_that_stops_its_actors_and_has_not_left_starts_no_singleton_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The founder of a local cluster keeps the store meanwhile. Another candidate starts it."""
    caplog.set_level(logging.INFO)
    with trio.fail_after(60):
        async with open_pair() as pair:
            await pair.here.options(name="single").singleton(Worker)
            await internals_of(pair.here).stop_actors()
            # The only candidate so far: it would have started it again at once.
            await until(lambda: "no longer stands for" in caplog.text, "its candidate stands down")
            assert "single" not in internals_of(pair.here).cells
            moved = await pair.there.options(name="single").singleton(Worker)
            assert (await moved.life())[0] == "there"
            with pytest.raises(NodeDrainingError, match="starts no singletons"):
                await pair.here.options(name="another").singleton(Worker)
