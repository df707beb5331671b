"""An overview of one node: its facts, the actors that matter most, and sums by class. Dashboards
ask for it every second, so its size and its cost are bounded however many actors there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import trio

from runtime.environment import Environment
from runtime.hosting.cell import ActorCell
from runtime.hosting.host import ActorHost
from runtime.isolation.actor_proxy import ActorProxy

MOST_ACTORS = 200
"""Actors that an overview lists: supervisors first, then those with most calls."""

MOST_CLASSES = 100
"""Classes of actors for which it has sums."""

MOST_LINKS = 200

SLICE = 1000
"""Actors that are looked at before other tasks of the node have a turn."""

REST = 100
"""An overview is kept for so many times as long as it took to make. So all dashboards together take
at most a hundredth of a node's event loop.
"""

Actors = dict[str, Any]


class Overviews:
    """Makes the overviews of one node. `facts`: those about the node itself, without its actors."""

    def __init__(
        self, host: ActorHost, environment: Environment, facts: Callable[[], dict[str, object]]
    ) -> None:
        self._host = host
        self._environment = environment
        self._facts = facts
        self._lock = trio.Lock()
        self._kept: Actors = {}
        self._keep_until = 0.0

    async def read(self) -> dict[str, Any]:
        """An overview. Its part about actors may be as old as `REST` times the time it took."""
        async with self._lock:
            if not self._kept or self._environment.now() >= self._keep_until:
                await self._renew()
        facts: dict[str, Any] = self._facts()
        links: list[dict[str, Any]] = facts["links"]
        return {
            **facts,
            "links": links[:MOST_LINKS],
            "links_left_out": max(0, len(links) - MOST_LINKS),
            **self._kept,
        }

    async def _renew(self) -> None:
        cells = [cell for cell in self._host.cells.values() if not cell.system]
        spent = 0.0
        summary = ActorsSummary()
        for start in range(0, len(cells), SLICE):
            began = self._environment.now()
            summary.add(cells[start : start + SLICE])
            spent += self._environment.now() - began
            await trio.lowlevel.checkpoint()
        self._kept = summary.as_plain(self._host.supervisors)
        self._keep_until = self._environment.now() + REST * spent


class ActorsSummary:
    """The actors of a node, of which a part at a time is added."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[ActorCell] = []
        self._classes: dict[str, list[int]] = {}

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

    def as_plain(self, supervisors: dict[str, str]) -> Actors:
        """As plain data. `supervisors`: for whom actors were started, by name."""
        names = ("actors", "waiting", "running", "served")
        return {
            "actors": [_told(cell, supervisors) for cell in self._first],
            "actor_count": self._count,
            "actors_left_out": self._count - len(self._first),
            "classes": {
                path or "other classes": dict(zip(names, sums, strict=True))
                for path, sums in self._classes.items()
            },
        }


def _weight(cell: ActorCell) -> tuple[bool, int, int]:
    return (
        getattr(cell.instance, "supervises", False) is True,
        cell.waiting + len(cell.running),
        cell.served,
    )


def _told(cell: ActorCell, supervisors: dict[str, str]) -> dict[str, Any]:
    instance = cell.instance
    return {
        "name": cell.address.name,
        "class": cell.address.class_path,
        "epoch": cell.address.epoch,
        "registered": cell.address.registered,
        "waiting": cell.waiting,
        "running": len(cell.running),
        "served": cell.served,
        "started": cell.started,
        "supervises": getattr(instance, "supervises", False) is True,
        "supervisor": supervisors.get(cell.address.name, ""),
        "pid": instance.pid if isinstance(instance, ActorProxy) else None,
    }
