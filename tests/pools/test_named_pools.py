"""Pools with names while the node that opens one dies at any moment, while those that stand for it
die, and while others open a pool of the same name.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import trio

from actors import Actor, UnderstudyError, method
from actors.errors import ActorNotFoundError, ClassMismatchError
from runtime.pools.member_plan import PoolSize
from runtime.pools.pool import Pool
from runtime.pools.supervisor import KEEPER, MEMBER, PoolSupervisor
from runtime.simulation import Simulation, simulate
from tests.live_pair import Pair
from tests.waiting import until

PATIENCE = 40.0
"""Virtual seconds: a node is known to be dead after one lease of 5 s."""


def seeds(quick: int, all: int) -> Any:
    """The first few in every run of the tests, the others in long ones."""
    more = pytest.param(range(quick, all), marks=pytest.mark.long)
    return pytest.mark.parametrize("seeds", [range(quick), more], ids=["quick", "long"])


class Worker(Actor):
    """Takes some time for an item."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    @method(idempotent=True)
    async def run(self, item: int) -> int:
        await trio.sleep(0.01)
        return item + self.offset

    @method(idempotent=True)
    async def run_slowly(self, item: int) -> int:
        await trio.sleep(0.1)
        return item

    @method
    async def where(self) -> str:
        return self.node.name


class Other(Worker):
    """Another class."""


class Slow(Worker):
    """Takes long to start."""

    async def on_start(self) -> None:
        await trio.sleep(SLOW_START)

    @method
    async def end(self) -> None:
        self.nursery.start_soon(self._fail)

    async def _fail(self) -> None:
        raise RuntimeError("a member that is to end")


SLOW_START = 15.0

KINDS: dict[str, type[Worker]] = {"worker": Worker, "other": Other}


class Opener(Actor):
    """Opens a pool on its node. Says which class it is of: its own, or that of another one."""

    opened: ClassVar[list[str]] = []

    @method
    async def open(self, kind: str, size: int) -> str:
        try:
            await self.node.pool("jobs", KINDS[kind], size=size)
        except ClassMismatchError:
            return "mismatch"
        self.opened.append(kind)
        return kind

    @method
    async def open_slow(self) -> None:
        await self.node.pool("jobs", Slow, size=1)


async def works(pool: Pool[Worker] | Pool[Slow]) -> None:
    with trio.fail_after(PATIENCE):
        assert [one async for one in pool.map(Worker.run, range(6))] == list(range(6))


async def members_that_live(supervisor: PoolSupervisor) -> list[str]:
    """Also those that the pool does not know, and those that end after their items."""
    return [child.id for child in await supervisor.children() if child.id.startswith(MEMBER)]


async def has(simulation: Simulation, pool: Pool[Worker], size: int) -> None:
    """The pool has so many members in the end, no more and no fewer; and no others live, of an
    earlier incarnation of its supervisor or of another pool.
    """
    supervisor = await simulation.node.lookup("jobs", PoolSupervisor)
    with trio.fail_after(PATIENCE):
        async with supervisor.watch_members() as views:
            async for view in views:
                if len(view.members) == size:
                    break
    await until(
        lambda: members_that_live(supervisor),
        f"{size} members live",
        lambda found: len(found) == size,
        seconds=PATIENCE,
        every=0.5,
    )
    await pool.ready(size)


async def opened_and_killed(simulation: Simulation) -> None:
    """The node that opens a pool dies as soon as the pool is open."""
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    await opener.open("worker", 2)
    simulation.kill("node-2", restart_after=60.0)
    await works(await simulation.node.lookup_pool("jobs", Worker))


@seeds(2, 60)
def test_a_pool_survives_the_death_of_its_node_right_after_it_was_opened(seeds: range) -> None:
    simulate(opened_and_killed, seeds=seeds, faults=[])


async def killed_while_it_opens(simulation: Simulation) -> None:
    """The node that opens a pool dies at some moment. Then the pool is there, or its name is free:
    in both cases the next node that opens it has it.
    """
    Opener.opened.clear()
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    async with trio.open_nursery() as nursery:

        async def open_it() -> None:
            try:
                await opener.open("worker", 2)
            except UnderstudyError as error:
                simulation.note(f"its node has died: {error}")

        nursery.start_soon(open_it)
        await trio.sleep(0.05 * simulation.random.random())
        simulation.kill("node-2", restart_after=20.0 * simulation.random.random())
    if Opener.opened:
        await works(await simulation.node.lookup_pool("jobs", Worker))
    with trio.fail_after(PATIENCE):
        pool = await simulation.node.pool("jobs", Worker, size=3)
    await works(pool)
    size = pool._members.view.size.least
    # Where it had not returned yet, the other node may stand for it or not.
    assert size == 2 or (size == 3 and not Opener.opened)
    await has(simulation, pool, size)
    await pool.stop()


@seeds(3, 100)
def test_whenever_the_node_that_opens_a_pool_dies_another_one_can_open_it(seeds: range) -> None:
    simulate(killed_while_it_opens, seeds=seeds, faults=[])


async def resized_and_killed(simulation: Simulation) -> None:
    """The node of the supervisor dies when the pool has another size."""
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    await opener.open("worker", 2)
    pool = await simulation.node.lookup_pool("jobs", Worker)
    await pool.resize(3)
    simulation.kill("node-2", restart_after=60.0)
    await works(pool)
    await has(simulation, pool, 3)


async def all_that_stand_for_it(simulation: Simulation) -> None:
    """One node after the other dies that has the supervisor, or stands for it."""
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    await opener.open("worker", 2)
    pool = await simulation.node.lookup_pool("jobs", Worker)
    await pool.resize(3)
    for _ in range(4):
        place = (await simulation.node.lookup("jobs", PoolSupervisor)).address.node
        victims = [place] if place in ("node-2", "node-3", "node-4") else ["node-3", "node-4"]
        for victim in victims:
            simulation.kill(victim, restart_after=15.0)
        await works(pool)
        # Time for another one to stand for it.
        await trio.sleep(20.0)
    await has(simulation, pool, 3)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(20)])
def test_a_pool_survives_all_that_stood_for_it_one_after_the_other(seeds: range) -> None:
    simulate(all_that_stand_for_it, seeds=seeds, nodes=4, faults=[])


async def all_that_stand_for_it_while_it_starts(simulation: Simulation) -> None:
    """Its only member ends with its node, and while its successor starts another one, all nodes die
    that stood for it when it had one.
    """
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    await opener.open_slow()
    pool = await simulation.node.lookup_pool("jobs", Slow)
    supervisor = await simulation.node.lookup("jobs", PoolSupervisor)

    async def places() -> list[str]:
        children = await supervisor.children()
        return [one.node for one in children if one.id.startswith(KEEPER) and one.node is not None]

    keepers = await until(
        places, "two nodes stand for it", lambda found: len(found) == 2, seconds=PATIENCE
    )
    await pool.choose().end()
    for victim in ("node-2", *keepers):
        if victim != "node-1":
            simulation.kill(victim, restart_after=300.0)
            # It is known to be dead after a lease, and a member starts for longer.
            await trio.sleep(8.0)
    await works(pool)


@seeds(6, 60)
def test_a_pool_survives_all_that_stood_for_it_before_it_had_a_member_again(seeds: range) -> None:
    simulate(all_that_stand_for_it_while_it_starts, seeds=seeds, nodes=5, faults=[])


async def two_at_once(simulation: Simulation) -> None:
    """Two nodes open a pool of one name at once, with different classes. One of them has it, the
    other is told; and so it stays when the first one dies.
    """
    Opener.opened.clear()
    openers = [
        await simulation.node.options(on=node).spawn(Opener) for node in ("node-2", "node-3")
    ]
    said: dict[str, str] = {}

    async def open_it(number: int, kind: str) -> None:
        said[kind] = await openers[number].open(kind, number + 2)

    async with trio.open_nursery() as nursery:
        for number, kind in enumerate(KINDS):
            nursery.start_soon(open_it, number, kind)
    assert sorted(said.values()) == sorted(["mismatch", *Opener.opened])
    (kind,) = Opener.opened
    first, number = KINDS[kind], list(KINDS).index(kind)
    other = KINDS[next(each for each in KINDS if each != kind)]
    simulation.kill(f"node-{number + 2}", restart_after=30.0)
    pool = await simulation.node.lookup_pool("jobs", first)
    await works(pool)
    await has(simulation, pool, number + 2)
    with pytest.raises(ClassMismatchError):
        await simulation.node.pool("jobs", other, size=1)


@seeds(2, 60)
def test_of_two_nodes_that_open_different_pools_of_one_name_one_gets_an_error(
    seeds: range,
) -> None:
    simulate(two_at_once, seeds=seeds, faults=[])


async def two_alike_at_once(simulation: Simulation) -> None:
    """Two nodes open a pool of one name at once, with different sizes. Both have the same pool, and
    it keeps its size when the node of its supervisor dies, though both stand for it.
    """
    openers = [
        await simulation.node.options(on=node).spawn(Opener) for node in ("node-2", "node-3")
    ]
    async with trio.open_nursery() as nursery:
        for number, opener in enumerate(openers):
            nursery.start_soon(opener.open, "worker", number + 2)
    supervisor = await simulation.node.lookup("jobs", PoolSupervisor)
    size = (await supervisor.view()).size.least
    simulation.kill(supervisor.address.node, restart_after=30.0)
    pool = await simulation.node.lookup_pool("jobs", Worker)
    await works(pool)
    await has(simulation, pool, size)


@seeds(2, 60)
def test_a_pool_that_two_nodes_have_opened_at_once_keeps_its_size_when_it_moves(
    seeds: range,
) -> None:
    simulate(two_alike_at_once, seeds=seeds, faults=[])


KEEPERS_OF = {"node-2": "node-4", "node-3": "node-5"}
"""Where another node stands for a pool, by the node of its supervisor."""


async def refused_and_left_alone(simulation: Simulation) -> None:
    """Of two nodes that open different pools at the same time the one is refused. All that stand
    for the other pool die: then the name is free, and the refused pool is not there.
    """
    Opener.opened.clear()
    openers = [await simulation.node.options(on=place).spawn(Opener) for place in KEEPERS_OF]
    said: dict[str, str] = {}

    async def open_it(number: int, kind: str) -> None:
        said[kind] = await openers[number].open(kind, 1)

    async with trio.open_nursery() as nursery:
        for number, kind in enumerate(KINDS):
            nursery.start_soon(open_it, number, kind)
    assert sorted(said.values()) == sorted(["mismatch", *Opener.opened])
    (kind,) = Opener.opened
    number = list(KINDS).index(kind)
    first = f"node-{number + 2}"
    supervisor = await simulation.node.lookup("jobs", PoolSupervisor)
    assert supervisor.address.node == first
    died = {first, KEEPERS_OF[first]}
    for place in died:
        simulation.kill(place, restart_after=60.0)
    places: set[str] = set()

    async def is_free() -> bool:
        try:
            found: Any = await simulation.node.lookup("jobs")
        except ActorNotFoundError:
            return True
        places.add(found.address.node)
        return False

    await until(is_free, "the name is free", seconds=PATIENCE, every=0.1)
    assert places <= died, "what was refused is not started"
    other = next(each for each in KINDS if each != kind)
    assert await openers[1 - number].open(other, 1) == other


@seeds(4, 60)
def test_a_pool_that_was_refused_is_not_started_when_all_that_stand_for_the_other_have_died(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others(self: PoolSupervisor) -> list[str]:
        place = KEEPERS_OF.get(self.node.name)
        return [] if place is None else [place]

    monkeypatch.setattr(PoolSupervisor, "_others", others)
    simulate(refused_and_left_alone, seeds=seeds, nodes=5, faults=[])


async def without_the_store(simulation: Simulation) -> None:
    """The store's node is away for 20 s while a map runs."""
    pool = await simulation.node.pool("jobs", Worker, size=3)
    await pool.ready(3)
    found: list[int] = []
    async for result in pool.map(Worker.run_slowly, range(1000)):
        found.append(result)
        if len(found) == 50:
            simulation.kill("node-1", restart_after=20.0)
    assert found == list(range(1000))
    await has(simulation, await simulation.node.lookup_pool("jobs", Worker), 3)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(10)])
def test_a_map_goes_on_while_the_store_is_away(seeds: range) -> None:
    simulate(without_the_store, seeds=seeds, faults=[])


async def resized_while_it_moves(simulation: Simulation) -> None:
    """The pool gets its new size, whenever it is asked for while another node takes over."""
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    await opener.open("worker", 2)
    pool = await simulation.node.lookup_pool("jobs", Worker)
    simulation.kill("node-2", restart_after=30.0)
    await trio.sleep(8.0 * simulation.random.random())
    with trio.fail_after(PATIENCE):
        await pool.resize(4)
    await has(simulation, pool, 4)


@seeds(2, 40)
def test_a_pool_can_be_resized_while_it_moves(seeds: range) -> None:
    simulate(resized_while_it_moves, seeds=seeds, faults=[])


async def lives(simulation: Simulation) -> None:
    """A pool has as many members as it should have: after it was opened and resized, where a node
    has joined, and after a node of members has died, and then that of its supervisor.
    """
    simulation.kill("node-3", restart_after=10.0)
    opener = await simulation.node.options(on="node-2").spawn(Opener)
    await opener.open("worker", 2)
    pool = await simulation.node.lookup_pool("jobs", Worker)
    await pool.resize(6)
    await answers(pool, 6, {"node-1", "node-3", "scenario"})
    await pool.resize(4)
    await answers(pool, 4, {"node-1", "node-3", "scenario"})
    simulation.kill("node-3", restart_after=15.0)
    await answers(pool, 4, {"node-1", "scenario"})
    await answers(pool, 4, {"node-1", "node-3", "scenario"})
    simulation.kill("node-2", restart_after=60.0)
    await works(pool)
    await answers(pool, 4, {"node-1", "node-3", "scenario"})


async def answers(pool: Pool[Worker], size: int, places: set[str]) -> None:
    """In the end the pool has so many members, all of which answer, on these nodes."""
    with trio.fail_after(PATIENCE):
        while True:
            found = await pool.call_all(Worker.where)
            if len(found) == size and {answer.value for answer in found} == places:
                return
            await trio.sleep(0.5)


@seeds(1, 20)
def test_a_pool_has_the_members_that_it_should_have(seeds: range) -> None:
    simulate(lives, seeds=seeds, faults=[])


async def opened_under_faults(simulation: Simulation) -> None:
    """A node that crashes as others do opens a pool, again and again."""
    Opener.opened.clear()
    for _ in range(3):
        try:
            opener = await simulation.node.options(on="node-2").spawn(Opener)
            with trio.fail_after(PATIENCE):
                await opener.open("worker", 2)
        except UnderstudyError as error:
            simulation.note(f"the pool was not opened: {error}")
    await simulation.calm()
    with trio.fail_after(PATIENCE):
        pool = await simulation.node.pool("jobs", Worker, size=2)
    await works(pool)
    await has(simulation, pool, 2)


@seeds(4, 100)
def test_a_pool_is_there_or_can_be_opened_whatever_happens_to_who_opens_it(seeds: range) -> None:
    simulate(opened_under_faults, seeds=seeds, faults=["crash"])


async def test_a_pool_that_was_stopped_leaves_no_size_to_the_next_of_its_name(pair: Pair) -> None:
    async with await pair.here.pool("jobs", Worker, size=1) as pool:
        await pool.resize(3)
        await pool.ready(3)
    with pytest.raises(ActorNotFoundError):
        await pair.there.lookup_pool("jobs", Worker)
    async with await pair.here.pool("jobs", Worker, 5, size=1) as pool:
        assert (await pool._members.supervisor.view()).size.least == 1
        assert [one async for one in pool.map(Worker.run, range(3))] == [5, 6, 7]


class Earlier(Actor):
    """Leaves behind what a pool of an earlier version has saved."""

    @method
    async def write(self) -> None:
        await self.save(PoolSize.of(3))


async def test_what_an_earlier_version_has_left_behind_counts_for_nothing(pair: Pair) -> None:
    earlier = await pair.here.options(name="jobs").spawn(Earlier)
    await earlier.write()
    await pair.here.stop(earlier)
    async with await pair.here.pool("jobs", Worker, size=1) as pool:
        assert (await pool._members.supervisor.view()).size.least == 1


async def test_a_pool_that_is_there_is_found_as_it_is(pair: Pair) -> None:
    async with await pair.here.pool("jobs", Worker, size=1):
        again = await pair.there.pool("jobs", Worker, 7, size=4)
        assert (await again._members.supervisor.view()).size.least == 1
        assert [one async for one in again.map(Worker.run, range(3))] == [0, 1, 2]
        with pytest.raises(ClassMismatchError):
            await pair.there.pool("jobs", Other, size=1)
