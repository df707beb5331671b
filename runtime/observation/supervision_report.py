"""What one node knows of the supervision of its actors, for the tree of the cluster. Bounded: each
supervisor lists its first children, and every list says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import trio

from actors.supervisor import Supervisor, SupervisorStatus
from runtime.hosting.cell import ActorCell
from runtime.hosting.host import ActorHost
from runtime.observation.actor_listing import actor_row
from runtime.observation.kept_answers import KeptAnswer
from runtime.observation.slices import in_slices
from runtime.supervision.supervisor_work import SupervisionWork

MOST_SUPERVISORS = 500
"""Supervisors of one report, those that started first."""

MOST_CHILDREN = 2000
"""Children that the supervisors of a node list, all together. Supervisors with few children list
all of them; the others share what is left.
"""

MOST_SUPERVISED = 2000
"""Supervised actors of which a node tells what it knows."""

MOST_LOOSE = 200
"""Actors without a supervisor that are listed."""

MOST_DEATHS = 200
"""Ends of children, the latest of all supervisors. They have tracebacks, so they are large."""

WORK = 100
"""Supervisors and children that are looked at before other tasks of the node have a turn."""


class SupervisionReport:
    """The supervision on one node. `now`: its clock."""

    def __init__(self, host: ActorHost, now: Callable[[], float]) -> None:
        self._host = host
        self._now = now
        self._answer = KeptAnswer(self._make, now)

    async def read(self) -> dict[str, Any]:
        """`actors`: supervisors, supervised actors and some others, each a row. `statuses`: what
        the supervisors say, by name. `left_out`: how many of what kind are not in it. Kept for a
        while, see `KeptAnswer`.
        """
        return await self._answer.read()

    async def _make(self) -> tuple[dict[str, Any], float]:
        chosen = _Chosen(self._host.supervisors)
        cells = [cell for cell in self._host.cells.values() if not cell.system]
        spent = await in_slices(cells, chosen.add, self._now)
        statuses = await self._statuses(chosen.supervisors)
        rows = [self._row(cell) for cell in chosen.cells]
        deaths = [death for one in statuses.values() for death in one.deaths]
        answer = {
            "actors": rows,
            "statuses": _with_latest_deaths(statuses),
            "left_out": {
                **chosen.left_out,
                "deaths": max(0, len(deaths) - MOST_DEATHS),
            },
        }
        return answer, spent

    async def _statuses(self, supervisors: Sequence[ActorCell]) -> dict[str, SupervisorStatus]:
        works = {
            cell.address.name: work
            for cell in supervisors
            if cell.started and (work := _work_of(cell)) is not None
        }
        shares = shared_out({name: work.child_count for name, work in works.items()})
        found: dict[str, SupervisorStatus] = {}
        done = 0
        for name, work in works.items():
            # It may have ended since it was counted; its work has a status all the same.
            found[name] = work.status(shares[name])
            done += 1 + shares[name]
            if done >= WORK:
                done = 0
                await trio.lowlevel.checkpoint()
        return found

    def _row(self, cell: ActorCell) -> dict[str, Any]:
        since = cell.supervises_since
        age = self._now() - since if since is not None else None
        return {**actor_row(cell, self._host.supervisors), "age": age}


class _Chosen:
    """The actors of which a report tells, of which a slice at a time is added."""

    def __init__(self, owners: Mapping[str, str]) -> None:
        self._owners = owners
        self.supervisors: list[ActorCell] = []
        self._supervised: list[ActorCell] = []
        self._loose: list[ActorCell] = []
        self.left_out = {"supervisors": 0, "supervised": 0, "loose": 0}

    @property
    def cells(self) -> list[ActorCell]:
        return [*self.supervisors, *self._supervised, *self._loose]

    def add(self, cells: Sequence[ActorCell]) -> None:
        for cell in cells:
            if type(cell.instance).supervises is True:
                self._choose(cell, self.supervisors, "supervisors", MOST_SUPERVISORS)
            elif cell.address.name in self._owners:
                self._choose(cell, self._supervised, "supervised", MOST_SUPERVISED)
            else:
                self._choose(cell, self._loose, "loose", MOST_LOOSE)

    def _choose(self, cell: ActorCell, chosen: list[ActorCell], kind: str, most: int) -> None:
        if len(chosen) < most:
            chosen.append(cell)
        else:
            self.left_out[kind] += 1


def shared_out(counts: Mapping[str, int], most: int = MOST_CHILDREN) -> dict[str, int]:
    """How many children each supervisor lists, by the number that it has: `most` in all."""
    shares: dict[str, int] = {}
    left = most
    # The smallest first: what they do not use of their share is left for the larger ones.
    for place, (name, count) in enumerate(sorted(counts.items(), key=lambda pair: pair[1])):
        shares[name] = min(count, left // (len(counts) - place))
        left -= shares[name]
    assert left >= 0, "no more is listed than there is room for"
    return shares


def _work_of(cell: ActorCell) -> SupervisionWork | None:
    # Not `isinstance`, which reads `__class__`: that is user code.
    instance = cell.ready_instance
    is_one = issubclass(type(instance), Supervisor)
    work = cast("Supervisor", instance)._work if is_one else None
    return work if isinstance(work, SupervisionWork) else None


def _with_latest_deaths(statuses: dict[str, SupervisorStatus]) -> dict[str, SupervisorStatus]:
    """The same with the latest `MOST_DEATHS` of all ends of children."""
    latest = sorted(
        ((death.at, name) for name, one in statuses.items() for death in one.deaths), reverse=True
    )[:MOST_DEATHS]
    kept = dict.fromkeys(statuses, 0)
    for _, name in latest:
        kept[name] += 1
    assert sum(kept.values()) <= MOST_DEATHS
    # Each supervisor has its own in the order of their times, so the latest are its last ones.
    return {
        name: attrs.evolve(one, deaths=one.deaths[len(one.deaths) - kept[name] :])
        for name, one in statuses.items()
    }
