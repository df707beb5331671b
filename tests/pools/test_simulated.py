"""Maps over pools while simulated nodes are killed, stopped, blocked and cut off: each item has one
result, the right one, and runs twice only if that is allowed.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
import trio

from actors import Actor, UnderstudyError, method
from actors.errors import OutcomeUnknownError, PoisonedItemError
from runtime.pools.map_schedule import MapSchedule
from runtime.simulation import Simulation, SimulationError, simulate

ITEMS = 120
PATIENCE = 600.0

SEEDS = (0, *(pytest.param(first, marks=pytest.mark.long) for first in range(5, 500, 5)))
"""The first of five."""


class Books:
    """What the members of one simulation have run: they all live in this process."""

    ran: ClassVar[Counter[tuple[str, int]]] = Counter()


class Worker(Actor):
    """Takes some time for an item, and writes it down."""

    PACE = 0.002
    """Virtual seconds that an item takes, for each of up to six units."""

    @method
    async def once(self, item: int) -> int:
        Books.ran["once", item] += 1
        await trio.sleep(self.PACE * (item % 7))
        return item * item

    @method(idempotent=True)
    async def often(self, item: int) -> int:
        Books.ran["often", item] += 1
        await trio.sleep(0.002 * (item % 7))
        return item * item

    @method(idempotent=True)
    async def here(self, value: int) -> tuple[int, str]:
        await trio.sleep(0.001)
        return value, self.node.name


async def maps(simulation: Simulation) -> None:
    Books.ran.clear()
    node = simulation.node
    ordered = bool(simulation.random.randrange(2))
    try:
        with trio.fail_after(PATIENCE):
            pool = await node.pool("jobs", Worker, size=4)
            for name, bound in (("once", Worker.once), ("often", Worker.often)):
                results = pool.map(bound, range(ITEMS), on_error="return", ordered=ordered)
                found: list[object] = []
                async for result in results:
                    found.append(result)
                    if len(found) == ITEMS // 2:
                        await pool.resize(simulation.random.randrange(1, 7))
                judge(name, found, ordered=ordered)
    except UnderstudyError as error:
        # The scenario's own node may lose its place, and the store may be away: then the map ends
        # with that, and what ran was allowed to.
        simulation.note(f"the maps ended early: {error}")
        if isinstance(error, TimeoutError):
            raise
    assert all(count == 1 for (name, _), count in Books.ran.items() if name == "once"), [
        (item, count) for (name, item), count in Books.ran.items() if name == "once" and count > 1
    ]
    await simulation.calm()


def judge(name: str, found: list[object], *, ordered: bool) -> None:
    """One result for each item, and each the right one."""
    assert len(found) == ITEMS, f"{name}: {len(found)} results"
    values = [value for value in found if isinstance(value, int)]
    errors = [error for error in found if not isinstance(error, int)]
    assert all(isinstance(error, OutcomeUnknownError) for error in errors), errors
    if name == "often":
        assert all(isinstance(error, PoisonedItemError) for error in errors), errors
    assert set(values) <= {item * item for item in range(ITEMS)}
    assert len(set(values)) == len(values)
    if ordered:
        assert values == sorted(values)
        assert all(
            value == index * index for index, value in enumerate(found) if isinstance(value, int)
        )
    for item in range(ITEMS):
        if item * item in values:
            assert Books.ran[name, item] >= 1


async def local_work(simulation: Simulation) -> None:
    """References that members have made are run by the members on the same nodes."""
    async with await simulation.node.pool("jobs", Worker, size=4) as pool:
        await pool.ready(4)
        made = [await pool.submit(Worker.often, item) for item in range(40)]
        owners = {reference.owner for reference in made}
        assert len(owners) > 1
        found = [one async for one in pool.map(Worker.here, made)]  # type: ignore[arg-type]
        assert found == [(item * item, made[item].owner) for item in range(40)]
        kept = [one async for one in pool.map(Worker.often, range(8), keep=True)]
        assert {one.owner for one in kept} <= owners, "with their members"
        fetched = [await one.fetch() for one in kept]
        assert fetched == [item * item for item in range(8)]


def test_an_item_that_is_a_reference_runs_where_its_value_is() -> None:
    simulate(local_work, seeds=range(3), faults=[])


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_each_item_of_a_map_ends_once_and_runs_twice_only_if_allowed(first: int) -> None:
    simulate(maps, seeds=range(first, first + 5))


@pytest.mark.slow
def test_a_map_that_repeats_what_may_have_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: every map repeats what may have run."""
    plain = MapSchedule.__init__

    def careless(self: MapSchedule, **options: object) -> None:
        plain(self, **(options | {"repeats": True}))  # type: ignore[arg-type]

    monkeypatch.setattr(MapSchedule, "__init__", careless)
    # So long that most crashes meet a member at work.
    monkeypatch.setattr(Worker, "PACE", 0.1)
    with pytest.raises(SimulationError):
        simulate(maps, seeds=range(40), faults=["crash"])
