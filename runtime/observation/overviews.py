"""An overview of one node: its facts, the actors that matter most, and sums by class. Dashboards
ask for it every second, so its size and its cost are bounded however many actors there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runtime.environment import Environment
from runtime.hosting.cell import ActorCell
from runtime.hosting.host import ActorHost
from runtime.observation.actor_listing import actor_row
from runtime.observation.followed_rows import AnsweredRows
from runtime.observation.kept_answers import KeptAnswer
from runtime.observation.slices import in_slices
from runtime.processes.process_memory import memory_mib

MOST_ACTORS = 200
"""Actors that an overview lists: supervisors first, then those with most calls."""

MOST_CLASSES = 100
"""Classes of actors for which it has sums."""

MOST_LINKS = 200

Actors = dict[str, Any]


class Overviews:
    """Makes the overviews of one node. `facts`: those about the node itself, without its actors."""

    def __init__(
        self, host: ActorHost, environment: Environment, facts: Callable[[], dict[str, object]]
    ) -> None:
        self._host = host
        self._environment = environment
        self._facts = facts
        self._actors = KeptAnswer(self._summarize, environment.now)
        self._answered = AnsweredRows()

    async def read(self) -> dict[str, Any]:
        """An overview. Its part about actors is kept for a while, see `KeptAnswer`."""
        actors = await self._actors.read()
        facts: dict[str, Any] = self._facts()
        links: list[dict[str, Any]] = facts["links"]
        return {
            **facts,
            "links": links[:MOST_LINKS],
            "links_left_out": max(0, len(links) - MOST_LINKS),
            "memory_mib": memory_mib(),
            "time": self._environment.wall_time(),
            **actors,
        }

    async def read_since(self, seen: int) -> dict[str, Any]:
        """The same, with an answer of `AnsweredRows` in place of the actors: most of them have not
        changed since the overview a second before, and to write all of them takes most of the time.
        """
        found = await self.read()
        found["actors"] = self._answered.answer(found["actors"], seen)
        return found

    async def _summarize(self) -> tuple[Actors, float]:
        cells = [cell for cell in self._host.cells.values() if not cell.system]
        summary = ActorsSummary()
        spent = await in_slices(cells, summary.add, self._environment.now)
        return summary.as_plain(self._host.supervisors), spent


class ActorsSummary:
    """The actors of a node, of which a part at a time is added."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[ActorCell] = []
        self._classes: dict[str, list[int]] = {}

    @property
    def first(self) -> list[ActorCell]:
        """The actors that matter most, `MOST_ACTORS` of them."""
        return self._first

    def add(self, cells: Iterable[ActorCell]) -> None:
        """Look at some more."""
        cells = list(cells)
        self._count += len(cells)
        self._first = heapq.nlargest(MOST_ACTORS, [*self._first, *cells], key=_weight)
        for cell in cells:
            path = cell.address.class_path
            sums = self._classes.get(path)
            if sums is None:
                # What is beyond the bound is summed under one name.
                path = path if len(self._classes) < MOST_CLASSES else ""
                sums = self._classes.setdefault(path, [0, 0, 0, 0])
            sums[0] += 1
            sums[1] += cell.waiting
            sums[2] += len(cell.running)
            sums[3] += cell.served
        assert len(self._classes) <= MOST_CLASSES + 1
        assert len(self._first) <= min(MOST_ACTORS, self._count)

    def as_plain(self, supervisors: dict[str, str]) -> Actors:
        """As plain data. `supervisors`: for whom actors were started, by name."""
        names = ("actors", "waiting", "running", "served")
        return {
            "actors": [actor_row(cell, supervisors) for cell in self._first],
            "actor_count": self._count,
            "actors_left_out": self._count - len(self._first),
            "classes": {
                path or "other classes": dict(zip(names, sums, strict=True))
                for path, sums in self._classes.items()
            },
        }


def busiest_first(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of actors in the order in which an overview lists them."""
    return sorted(
        rows,
        key=lambda row: (row["supervises"], row["waiting"] + row["running"], row["served"]),
        reverse=True,
    )


def _weight(cell: ActorCell) -> tuple[bool, int, int]:
    return (
        type(cell.instance).supervises is True,
        cell.waiting + len(cell.running),
        cell.served,
    )
