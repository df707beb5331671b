"""Watches and links while simulated nodes are killed, stopped and cut off: one notice for each
watch, and no half of a link is left.
"""

from __future__ import annotations

import pytest
import trio

from actors import Actor, Ended, Handle, UnderstudyError, method
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.faults import KINDS
from runtime.simulation.runs import WITHOUT_DISK, Scenario, cluster_of
from tests.waiting import until
from tests.watching.actors_used import Partner, Watched

PATIENCE = 60.0

SEEDS = (
    range(2),
    pytest.param(range(2, 5), marks=pytest.mark.long),
    *(pytest.param(range(first, first + 5), marks=pytest.mark.long) for first in range(5, 40, 5)),
)
"""The first of ten."""


class Witness(Actor):
    """Watches, and counts what it is told for each watch."""

    def __init__(self) -> None:
        self.told: dict[int, list[Ended]] = {}
        self.watches: dict[int, object] = {}

    async def on_ended(self, notice: Ended) -> None:
        self.told.setdefault(notice.watch, []).append(notice)

    @method(concurrent=True)
    async def look_at(self, handle: Watched) -> int:
        watch = await self.watch(handle)
        self.watches[watch.number] = watch
        return watch.number

    @method
    async def look_away(self, number: int) -> bool:
        """True if there was no notice before."""
        self.watches[number].cancel()  # type: ignore[attr-defined]
        return number not in self.told

    @method
    async def counts(self) -> dict[int, int]:
        return {number: len(notices) for number, notices in self.told.items()}

    @method
    async def kinds(self) -> set[str]:
        return {notice.reason.kind for notices in self.told.values() for notice in notices}


async def watches(simulation: Simulation) -> None:
    node = simulation.node
    witness = await node.spawn(Witness)
    watched: list[Watched] = []
    wanted: set[int] = set()
    unwanted: set[int] = set()

    async def try_one() -> None:
        kind = simulation.random.random()
        name = f"w{simulation.random.randrange(5)}" if kind < 0.5 else None
        try:
            with trio.move_on_after(10):
                options = node.options(
                    name=name, on=simulation.random.choice((*simulation.nodes, node.name))
                )
                one = await (options.get_or_spawn(Watched) if name else options.spawn(Watched))
                watched.append(one)
            for _ in range(simulation.random.randrange(1, 3)):
                if watched:
                    wanted.add(await witness.look_at(simulation.random.choice(watched)))
            if wanted and simulation.random.random() < 0.3:
                number = simulation.random.choice(sorted(wanted))
                if await witness.look_away(number):
                    wanted.discard(number)
                    unwanted.add(number)
            if watched and simulation.random.random() < 0.4:
                with trio.move_on_after(10):
                    await node.stop(simulation.random.choice(watched))
        except UnderstudyError:
            # The store or a node is away: whatever was asked for, something else is next.
            await trio.sleep(0.1)

    for _ in range(40):
        await try_one()
        await trio.sleep(simulation.random.random())
    await simulation.calm()
    for one in watched:
        await node.stop(one)
    with trio.move_on_after(PATIENCE):
        await until(
            witness.counts, "all notices are there", lambda got: not set(got) < wanted, every=0.5
        )
    await trio.sleep(PATIENCE)
    counts = await witness.counts()
    assert wanted <= set(counts), f"no notice for {sorted(wanted - set(counts))}"
    assert not unwanted & set(counts), (
        f"notices for {sorted(unwanted & set(counts))}, which nobody wanted any more"
    )
    assert all(count == 1 for count in counts.values()), counts
    await check_nothing_is_left(simulation)


async def check_nothing_is_left(simulation: Simulation) -> None:
    for name, machine in cluster_of(simulation).machines.items():
        process = machine.live
        assert process is not None
        assert process.node is not None
        loads = internals_of(process.node).watcher.loads()
        assert not any(loads.values()), f"{name}: {loads}"


async def links(simulation: Simulation) -> None:
    node = simulation.node
    pairs: list[tuple[Partner, Partner]] = []
    for number in range(20):
        try:
            with trio.move_on_after(10):
                places = [
                    simulation.random.choice((*simulation.nodes, node.name)) for _ in range(2)
                ]
                one, other = [await node.options(on=place).spawn(Partner) for place in places]
                await one.tie(other)
                pairs.append((one, other))
        except UnderstudyError:
            await trio.sleep(0.1)
        if pairs and number % 3 == 0:
            with trio.move_on_after(5):
                try:
                    await simulation.random.choice(pairs)[0].crash.options(timeout=1)()
                except UnderstudyError:
                    pass
        await trio.sleep(simulation.random.random())
    await simulation.calm()
    await trio.sleep(PATIENCE)
    for pair in pairs:
        alive = [await answers(one) for one in pair]
        assert alive[0] == alive[1], f"of {pair} one lives: {alive}"
    for one, other in pairs:
        if await answers(one):
            with pytest.raises(UnderstudyError):
                await one.crash()
            assert (await node.wait_ended(other)).reason.kind in ("raised", "no such actor")
    await trio.sleep(PATIENCE)
    await check_nothing_is_left(simulation)


async def answers(partner: Partner) -> bool:
    assert isinstance(partner, Handle)
    try:
        await partner.ping.options(timeout=20)()
    except UnderstudyError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_each_watch_gives_one_notice_whatever_happens_to_the_nodes(seeds: range) -> None:
    simulate(watches, seeds=seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_no_half_of_a_link_is_left_whatever_happens_to_the_nodes(seeds: range) -> None:
    # A node that leaves in order stops its actors normally, and that is nothing to those they are
    # linked to.
    simulate(
        links,
        seeds=seeds,
        faults=[kind for kind in KINDS if kind not in ("leave", WITHOUT_DISK)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [watches, links])
def test_under_node_deaths_alone_as_well(scenario: Scenario) -> None:
    simulate(scenario, seeds=range(100, 102), faults=["crash"])
