"""Calls of one node to one actor start in the order in which they were made, also when they have to
wait for it. On a virtual clock.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, Supervisor, method
from actors.errors import ActorNotFoundError, UnderstudyError
from runtime.links.deferred_posts import MOST_UNWRITTEN
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of

SEEDS = pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.long)], ids=["quick", "long"]
)
CALLS = 20
POLICY = RetryPolicy(max_retries=5, initial_delay=0.01, budget=None)


class Roll(Actor):
    """Calls the roll of those who have called it in this life."""

    def __init__(self, start: float = 0.0) -> None:
        self.start = start
        self.seen: list[int] = []

    async def on_start(self) -> None:
        await trio.sleep(self.start)

    @method
    async def note(self, number: int) -> None:
        self.seen.append(number)

    @method
    async def hold(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @method(concurrent=True)
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)

    async def explode(self) -> None:
        raise RuntimeError("as asked")

    @method
    async def numbers(self, number: int) -> list[int]:
        self.seen.append(number)
        return self.seen

    @method(concurrent=True, idempotent=True)
    async def stay(self) -> None:
        await trio.sleep(0.2)

    @method(concurrent=True)
    async def roll(self) -> list[int]:
        return self.seen


class Scroll(Roll):
    """A roll that is read item by item."""

    @method
    async def unroll(self, number: int):
        self.seen.append(number)
        yield number


async def one_after_another(roll: Scroll, draw: random.Random) -> set[int]:
    """Make the calls in their order, each in a task of its own, in all the ways in which a call can
    be made; which must have been heard.
    """
    answered: set[int] = set()

    async def call(how: str, number: int, made: trio.Event) -> None:
        # Whatever the way, the call is made in the first step of its task.
        made.set()
        if how == "send":
            await roll.note.send(number)
        elif how == "stream":
            async for _ in roll.unroll(number):
                pass
        elif how == "remote":
            await (await roll.note.remote(number)).fetch()
        elif how == "policy":
            await roll.note.options(retry=POLICY)(number)
        elif how == "timeout":
            await roll.note.options(timeout=60.0)(number)
        else:
            await roll.note(number)
        answered.add(number)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                made = trio.Event()
                nursery.start_soon(
                    call,
                    draw.choice(("call", "policy", "timeout", "send", "stream", "remote")),
                    number,
                    made,
                )
                await made.wait()
                if draw.random() < 0.3:
                    await trio.sleep(draw.choice((0.0, 0.001, 0.02, 0.2)))
    return answered


async def check_order(roll: Scroll, draw: random.Random) -> None:
    answered = await one_after_another(roll, draw)
    seen = [number for number in await roll.roll() if number >= 0]
    assert seen == sorted(seen)
    assert answered <= set(seen)


async def supervised(simulation: Simulation, start: float) -> Scroll:
    child = ChildSpec.of("roll", Scroll, start).changed(on="node-2")
    await simulation.node.options(name="tree").spawn(Supervisor, [child], intensity=20)
    return await simulation.node.lookup("tree/roll", Scroll)


async def during_a_restart(simulation: Simulation) -> None:
    roll = await supervised(simulation, simulation.random.choice((0.0, 0.3, 2.0)))
    await roll.note(-1)
    await roll.crash()
    await trio.sleep(simulation.random.choice((0.0, 0.01, 0.1)))
    await check_order(roll, simulation.random)


async def mail_of_one_that_ends(simulation: Simulation) -> None:
    roll = await supervised(simulation, simulation.random.choice((0.0, 0.3)))

    async def hold() -> None:
        with pytest.raises(UnderstudyError):
            await roll.hold(20.0)

    numbers: list[list[int]] = []

    async def call(number: int) -> None:
        numbers.append(await roll.numbers(number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await trio.sleep(0.1)
        for number in range(CALLS):
            nursery.start_soon(call, number)
            await (
                trio.testing.wait_all_tasks_blocked()
            ) if number % 7 == 0 else await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)
        await roll.crash()
    assert max(numbers, key=len) == list(range(CALLS))


async def first_contact(simulation: Simulation) -> None:
    spawner = await simulation.node.options(name="roll", on="node-2").spawn(Scroll)
    assert spawner is not None
    node = cluster_of(simulation).live("node-3")
    assert node is not None
    roll = await node.lookup("roll", Scroll)
    await check_order(roll, simulation.random)


async def killed_node(simulation: Simulation) -> None:
    """Those that wait for a name whose node has died."""
    child = ChildSpec.of("roll", Scroll)
    await simulation.node.options(name="tree").spawn(
        Supervisor, [child.changed(on=None)], intensity=10
    )
    roll = await simulation.node.lookup("tree/roll", Scroll)
    for name in simulation.nodes:
        if name == roll.address.node and name != "node-1":
            simulation.kill(name)
    await trio.sleep(simulation.random.random())
    async with trio.open_nursery() as nursery:
        for number in range(CALLS):
            nursery.start_soon(partial(roll.note.options(timeout=60.0), number))
            await trio.sleep(0.001)
    assert await roll.roll() == list(range(CALLS))


async def refusals_on_their_way(simulation: Simulation) -> None:
    """Calls that begin about when the next life is there: some are on their way to the last one
    when that is found, by the first that is refused, or by one that was with the actor when that
    ended and is repeated.
    """
    roll = await supervised(simulation, 0.0)
    path = cluster_of(simulation).network.path("node-2", "scenario")
    path.delay, path.jitter = 0.04, 0.0

    async def call(number: int) -> None:
        with suppress(UnderstudyError):
            await (roll.note.send if one_way and number % 3 else roll.note)(number)

    async def stay() -> None:
        await roll.stay.options(retry=POLICY)()

    for one_way in (False, True) * 5:
        async with trio.open_nursery() as nursery:
            if simulation.random.random() < 0.5:
                nursery.start_soon(stay)
            await trio.sleep(0.1)
            await roll.crash()
            await trio.sleep(simulation.random.uniform(0.0, 0.1))
            for number in range(CALLS):
                nursery.start_soon(call, number)
                await trio.sleep(simulation.random.choice((0.0, 0.001, 0.01, 0.03)))
        seen = await roll.roll()
        assert seen == sorted(seen), one_way


async def one_way_calls_only(simulation: Simulation) -> None:
    """No awaited call tells the caller that the actor has ended, here or on another node, and is
    there again, in the same place or elsewhere.
    """
    for name, place in (("here", "node-1"), ("there", "node-2"), ("moved", "node-2")):
        child = ChildSpec.of("roll", Scroll, simulation.random.choice((0.0, 1.0)))
        child = child.changed(on=None if name == "moved" else place)
        await simulation.node.options(name=name).spawn(Supervisor, [child], intensity=20)
        roll = await simulation.node.lookup(f"{name}/roll", Scroll)
        await roll.note.send(-1)
        await roll.roll()
        if name == "moved":
            node = cluster_of(simulation).live(roll.address.node)
            assert node is not None
            if node.name != "node-1":
                node.leave()
        else:
            await roll.crash()
        # The actor takes no more by then.
        await trio.sleep(0.1)
        sent = roll.note
        for number in range(CALLS):
            await sent.send(number)
            await trio.sleep(simulation.random.choice((0.0, 0.001, 0.1)))
        await trio.sleep(15.0)
        again = await simulation.node.lookup(f"{name}/roll", Scroll)
        assert await again.roll() == list(range(CALLS)), name


async def found_meanwhile(simulation: Simulation) -> None:
    """One-way calls come back when an awaited call, made before them, has found the next life."""
    roll = await supervised(simulation, 0.0)
    other = await simulation.node.lookup("tree/roll", Scroll)
    await roll.note(-1)
    await other.roll()
    path = cluster_of(simulation).network.path("node-2", "scenario")
    path.delay, path.jitter = 0.04, 0.0
    await roll.crash()
    # The actor takes no more by then.
    await trio.sleep(0.3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.roll)
        for number in range(CALLS):
            await roll.note.send(number)
            await trio.sleep(simulation.random.choice((0.001, 0.004, 0.01)))
    await trio.sleep(15.0)
    assert await other.roll() == list(range(CALLS))


@SEEDS
@pytest.mark.parametrize(
    "story",
    [
        found_meanwhile,
        during_a_restart,
        mail_of_one_that_ends,
        first_contact,
        killed_node,
        refusals_on_their_way,
        one_way_calls_only,
    ],
    ids=lambda story: story.__name__,
)
@pytest.mark.parametrize("most_unwritten", [MOST_UNWRITTEN, 2], ids=["", "crowded"])
def test_calls_start_in_the_order_in_which_they_were_made(
    story: object, seeds: range, most_unwritten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With so few frames to be written at a time, nearly all of them wait for their turns.
    monkeypatch.setattr("runtime.links.outbound.MOST_UNWRITTEN", most_unwritten)
    simulate(story, seeds=seeds, faults=())  # type: ignore[arg-type]


async def given_up(simulation: Simulation) -> None:
    child = ChildSpec.of("roll", Scroll).changed(on="node-2")
    tree = await simulation.node.options(name="tree").spawn(Supervisor, [child], intensity=0)
    roll = await simulation.node.lookup("tree/roll", Scroll)
    errors: list[UnderstudyError] = []

    async def call(number: int) -> None:
        with pytest.raises(ActorNotFoundError) as caught:
            await roll.note(number)
        errors.append(caught.value)

    await roll.crash()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                nursery.start_soon(call, number)
    assert len(errors) == len(set(map(id, errors))) == CALLS
    assert {error.method for error in errors} == {"note"}  # type: ignore[attr-defined]
    assert not internals_of(simulation.node).caller.lines.all
    assert tree is not None


@SEEDS
def test_each_caller_that_waits_for_a_lost_actor_has_an_error_of_its_own(seeds: range) -> None:
    simulate(given_up, seeds=seeds, faults=())


async def impatient(simulation: Simulation) -> None:
    """Whoever gives up leaves the line; the others keep their places."""
    roll = await supervised(simulation, 1.0)
    await roll.crash()
    await trio.sleep(0.1)
    async with trio.open_nursery() as nursery:
        for number in range(CALLS):
            nursery.start_soon(call_with_patience, roll, number)
            await trio.sleep(0.001)
    seen = [number for number in await roll.roll() if number % 3]
    assert seen == [number for number in range(CALLS) if number % 3]
    assert not internals_of(simulation.node).caller.lines.all


async def call_with_patience(roll: Scroll, number: int) -> None:
    with trio.move_on_after(30.0 if number % 3 else 0.2):
        await roll.note(number)


@SEEDS
def test_who_gives_up_leaves_the_line_to_the_others(seeds: range) -> None:
    simulate(impatient, seeds=seeds, faults=())
