"""What a change of one member costs in a pool of many: it must not grow with their number, or the
event loop of the pool's node stands still while the pool starts, shrinks or ends.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from runtime.pools.members import PoolMembers
from runtime.pools.supervisor import PoolView
from runtime.simulation import Simulation, simulate
from runtime.supervision.supervisor_work import SupervisionWork
from tests.pools.actors_used import Squares
from tests.waiting import until

MANY = 300


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often all members of a pool were listed, and how often its users have got them all."""
    found: Counter[str] = Counter()
    status, see = SupervisionWork.status, PoolMembers.see

    def noted_status(self: SupervisionWork, most: int | None = None) -> object:
        found["listed"] += 1
        return status(self, most)

    def noted_see(self: PoolMembers, view: PoolView) -> None:
        found["seen"] += 1
        see(self, view)

    monkeypatch.setattr(SupervisionWork, "status", noted_status)
    monkeypatch.setattr(PoolMembers, "see", noted_see)
    return found


def test_all_members_are_neither_listed_nor_sent_for_each_that_changes(done: Counter[str]) -> None:
    async def grows_and_shrinks(simulation: Simulation) -> None:
        pool = await simulation.node.pool("many", Squares, size=1)
        await pool.resize(MANY)
        with trio.fail_after(60):
            await pool.ready(MANY)
        assert [item async for item in pool.map(Squares.square, range(5))] == [0, 1, 4, 9, 16]
        await pool.resize(2)
        await until(lambda: len(pool.members()), "it has shrunk", lambda count: count == 2)
        await pool.stop()

    simulate(grows_and_shrinks, seeds=[1], faults=())
    assert done["listed"] < 10, done
    assert done["seen"] < MANY / 4, done
