"""Overviews of a node: bounded in size and in cost, however many actors there are."""

from __future__ import annotations

import trio

from actors import Actor, method
from runtime import open_node
from runtime.node import internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.observation.overviews import MOST_ACTORS, ActorsSummary


class Idle(Actor):
    """Does nothing."""

    @method
    async def touch(self) -> None:
        """Count one call."""


async def test_an_overview_counts_all_actors_and_lists_the_busiest() -> None:
    async with open_node("one", secret="a secret of these tests") as node:
        async with trio.open_nursery() as nursery:
            for _ in range(MOST_ACTORS + 50):
                nursery.start_soon(node.spawn, Idle)
        busy = await node.options(name="busy").spawn(Idle)
        for _ in range(3):
            await busy.touch()
        asked = inspection_of(internals_of(node).endpoint, node.name, node.incarnation)
        found = await asked.overview()
        assert found["actor_count"] == MOST_ACTORS + 51
        assert len(found["actors"]) == MOST_ACTORS
        assert found["actors_left_out"] == 51
        assert found["actors"][0]["name"] == "busy"
        [(path, sums)] = found["classes"].items()
        assert (path.endswith(":Idle"), sums["actors"], sums["served"]) == (
            True,
            MOST_ACTORS + 51,
            3,
        )
        assert "members" not in found
        told = (await asked.overview(True))["members"]
        assert [one["name"] for one in told] == ["one"]


def test_classes_beyond_the_bound_are_summed_together() -> None:
    class Cell:
        """What a summary reads of an actor cell."""

        def __init__(self, number: int) -> None:
            self.address = self
            self.class_path = f"m:C{number}"
            self.name, self.epoch, self.registered = f"a{number}", 1, True
            self.instance = self.ready_instance = Idle()
            self.started = True
            self.waiting, self.running, self.served = 1, (), 2

    summary = ActorsSummary()
    summary.add([Cell(number) for number in range(500)])  # type: ignore[misc]
    classes = summary.as_plain({})["classes"]
    assert len(classes) == 101
    assert classes["other classes"] == {"actors": 400, "waiting": 400, "running": 0, "served": 800}
