"""What an actor takes of its node counts from its placement on, and no longer than until it has
been stopped, however late the watch of the names reports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import NoPlacementError, RemoteError
from actors.options import Placement
from runtime import open_node
from runtime.membership.lookups import Lookups
from runtime.membership.names import Names
from runtime.membership.restart_intents import NAMES
from runtime.node import Node, internals_of
from runtime.store.interface import Store, WatchBatch
from tests.waiting import until

SECRET = "a secret for the tests of resources"
GPU = {"gpu": 1.0}


class Quiet(Actor):
    pass


class Ending(Actor):
    """One that ends when it is asked to."""

    @method
    async def end(self) -> None:
        raise SystemExit(0)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes with one GPU each."""
    async with (
        open_node("here", secret=SECRET, resources=GPU) as here,
        open_node("there", join=here.address, secret=SECRET, resources=GPU) as there,
    ):
        await here.wait_for(2)
        yield here, there


@pytest.fixture
def node(nodes: tuple[Node, Node]) -> Node:
    """The first of them."""
    return nodes[0]


class HeldWatch:
    """The watch of a node's names: reports nothing after the next change."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store: Store = internals_of(node).store
        self._poll = self._store.poll
        self.go_on = trio.Event()
        monkeypatch.setattr(self._store, "poll", self._held)

    async def _held(self, prefix: str, from_revision: int) -> WatchBatch:
        batch = await self._poll(prefix, from_revision)
        if prefix == NAMES:
            await self.go_on.wait()
        return batch


def has_reported(node: Node, epoch: int) -> bool:
    """True once the watch of the node's names has reported the claim of this epoch."""
    lookups = internals_of(node).lookups
    return lookups.is_following and not lookups.will_report(epoch)


async def held(node: Node, monkeypatch: pytest.MonkeyPatch) -> HeldWatch:
    # One placement with resources, so that the loads are known, and one change, after which the
    # watch asks again, and is held.
    first = await node.options(name="first", resources=GPU, on="here").spawn(Quiet)
    await until(lambda: has_reported(node, first.address.epoch), "the claim is reported")
    watch = HeldWatch(node, monkeypatch)
    await node.stop(first)
    return watch


@pytest.mark.parametrize("together", [False, True])
async def test_the_next_placement_finds_no_room_where_an_actor_has_just_started(
    node: Node, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    watch = await held(node, monkeypatch)
    if together:
        pair = await node.options(resources=GPU).spawn_many(Quiet, [(), ()], names=["a", "b"])
    else:
        pair = [await node.options(name=name, resources=GPU).spawn(Quiet) for name in "ab"]
    assert {handle.address.node for handle in pair} == {"here", "there"}
    for _ in range(3):
        with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
            await node.options(name="c", resources=GPU).spawn(Quiet)
    watch.go_on.set()
    await until(lambda: has_reported(node, pair[1].address.epoch), "the claims are reported")
    with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
        await node.options(name="c", resources=GPU).spawn(Quiet)
    watch.go_on = trio.Event()
    await node.stop(pair[0])
    third = await node.options(name="c", resources=GPU).spawn(Quiet)
    assert third.address.node == pair[0].address.node


@pytest.mark.parametrize("together", [False, True])
async def test_what_an_actor_has_taken_is_free_once_it_was_stopped_before_its_claim_is_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    watch = await held(node, monkeypatch)
    if together:
        pair = await node.options(resources=GPU).spawn_many(Quiet, [(), ()])
    else:
        pair = [await node.options(resources=GPU).spawn(Quiet) for _ in range(2)]
    assert not has_reported(node, pair[0].address.epoch)
    await node.stop(pair[0])
    third = await node.options(resources=GPU).spawn(Quiet)
    assert third.address.node == pair[0].address.node
    watch.go_on.set()
    await until(lambda: has_reported(node, third.address.epoch), "the claims are reported")
    with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
        await node.options(resources=GPU).spawn(Quiet)
    internals_of(node).check_invariants()


@pytest.mark.parametrize("together", [False, True])
async def test_an_actor_without_a_name_takes_its_resources_until_it_ends(
    node: Node, together: bool
) -> None:
    if together:
        pair = await node.options(resources=GPU).spawn_many(Quiet, [(), ()])
    else:
        pair = [await node.options(resources=GPU).spawn(Quiet) for _ in range(2)]
    assert {handle.address.node for handle in pair} == {"here", "there"}
    with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
        await node.options(resources=GPU).spawn(Quiet)
    with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
        await node.options(resources=GPU, on=pair[0].address.node).spawn(Quiet)
    await node.stop(pair[0])
    third = await node.options(resources=GPU).spawn(Quiet)
    assert third.address.node == pair[0].address.node


@pytest.mark.parametrize("together", [False, True])
async def test_actors_without_names_are_spread_in_turn_and_packed_on_one_node(
    node: Node, together: bool
) -> None:
    async def started(placement: Placement) -> list[str]:
        options = node.options(placement=placement)
        if together:
            # One by one as well: no node has all first turns.
            found = [(await options.spawn_many(Quiet, [()]))[0] for _ in range(3)]
            found += await options.spawn_many(Quiet, [(), (), ()])
        else:
            found = [await options.spawn(Quiet) for _ in range(6)]
        return [handle.address.node for handle in found]

    assert sorted(await started("spread")) == ["here"] * 3 + ["there"] * 3
    assert len(set(await started("pack"))) == 1


async def test_two_actors_that_are_spread_at_the_same_moment_go_to_two_nodes(node: Node) -> None:
    found: list[str] = []

    async def start() -> None:
        handle = await node.options(placement="spread").spawn(Quiet)
        found.append(handle.address.node)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(start)
    assert sorted(found) == ["here", "here", "there", "there"]


# The ends of actors that this node has not seen yet: others have stopped them, or they have ended
# by themselves.


async def supervised(node: Node, on: str | None) -> Any:
    child = ChildSpec.of("child", Quiet).changed(resources=GPU, on=on)
    await node.options(name="top").spawn(Supervisor, [child])
    return await node.lookup("top/child")


def gpu(node: Node, on: str | None) -> Any:
    return node.options(resources=GPU, on=on)


AGAIN: dict[str, Callable[[Node, str | None], Awaitable[Any]]] = {
    "alone": lambda node, on: gpu(node, on).spawn(Quiet),
    "with a constructor": lambda node, on: gpu(node, on).spawn(Ending),
    "found or started": lambda node, on: gpu(node, on).options(name="again").get_or_spawn(Quiet),
    "many": lambda node, on: gpu(node, on).spawn_many(Quiet, [()]),
    "as a child": supervised,
}


@pytest.mark.parametrize("on", [None, "there"])
@pytest.mark.parametrize("again", AGAIN)
async def test_what_was_stopped_by_another_node_is_free_at_once(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, again: str, on: str | None
) -> None:
    here, there = nodes
    watch = await held(here, monkeypatch)
    pair = await here.options(resources=GPU).spawn_many(Quiet, [(), ()])
    last = next(handle for handle in pair if handle.address.node == "there")
    await there.stop(last)
    options = gpu(here, on)
    with trio.fail_after(20):
        found = await AGAIN[again](here, on)
    handle = found[0] if isinstance(found, list) else found
    assert handle.address.node == "there"
    # Now both are taken, and are known to be.
    for count in (1, 2):
        with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
            await options.spawn_many(Quiet, [()] * count)
    with pytest.raises(NoPlacementError, match="node there has 0 gpu left of 1"):
        await options.spawn(Quiet)
    watch.go_on.set()


async def test_what_has_ended_by_itself_is_free_at_once(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = nodes
    await held(here, monkeypatch)
    pair = await here.options(resources=GPU).spawn_many(Ending, [(), ()])
    for _ in range(3):
        ending = pair.pop()
        with pytest.raises(RemoteError):
            await ending.end()
        await here.wait_ended(ending)
        pair.append(await here.options(resources=GPU).spawn(Ending))


async def test_of_many_none_is_started_where_not_all_find_room(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the names are not followed, and the loads are read for each placement."""
    here, there = nodes
    monkeypatch.setattr(Lookups, "is_following", False)
    first = await there.options(on="there", resources=GPU).spawn(Quiet)
    with pytest.raises(NoPlacementError, match="has 0 gpu left of 1"):
        await here.options(resources=GPU).spawn_many(Quiet, [(), ()])
    (one,) = await here.options(resources=GPU).spawn_many(Quiet, [()])
    assert (first.address.node, one.address.node) == ("there", "here")


async def test_a_full_cluster_is_asked_and_its_names_are_not_read_for_each_start(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = nodes
    await here.options(resources=GPU).spawn_many(Quiet, [(), ()])
    reads = 0
    owners = Names.owners

    async def counted(self: Names) -> Any:
        nonlocal reads
        reads += 1
        return await owners(self)

    monkeypatch.setattr(Names, "owners", counted)
    for _ in range(3):
        with pytest.raises(NoPlacementError, match="stop an actor that takes it"):
            await here.options(resources=GPU).spawn(Quiet)
    assert reads == 0
