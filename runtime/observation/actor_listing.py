"""The actors of one node as rows of a table, filtered, sorted and cut on the node. So a question
about a hundred thousand actors costs the node a scan in slices, and one short answer.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import trio

from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.host import ActorHost
from runtime.isolation.actor_proxy import proxy_of
from runtime.near_names import nearest
from runtime.observation.conditions import (
    MOST_CONDITIONS,
    MOST_WANTED,
    Condition,
    check_column,
)
from runtime.observation.roles import POOL, members_of, role_of
from runtime.observation.slices import SLICE, in_slices

MOST_ROWS = 2000
"""Rows of one answer."""

MOST_COMPARED = 20_000
"""Names among which one answer looks for those that are like another."""

MOST_WINDOWS = 4
"""Windows that are measured at the same time: each keeps a number for each actor that was called.
Further ones wait.
"""

LONGEST_WINDOW = 3600.0

Row = dict[str, Any]
Value = Callable[[ActorCell], Any]

COLUMNS: Final = ("name", "node", "class", "epoch", "waiting", "running", "served", "supervisor")
"""What actors can be filtered and sorted by."""

TOP_COLUMNS: Final = ("waiting", "wait", "turn", "rate", "restarts")
"""What `top` sorts by, the greatest first."""


def actor_row(cell: ActorCell, supervisors: Mapping[str, str]) -> Row:
    """Describe an actor in one row. `supervisors`: for whom actors were started, by name.

    `role`: what the runtime has it for, "" for an actor of a user; a pool has its `members`, None
    while it is being constructed.
    """
    address, proxy = cell.address, proxy_of(cell)
    role = role_of(address.class_path)
    row = {
        "name": address.name,
        "class": address.class_path,
        "role": role,
        "epoch": address.epoch,
        "registered": address.registered,
        "waiting": cell.waiting,
        "running": len(cell.running),
        "served": cell.served,
        "started": cell.started,
        "supervises": type(cell.instance).supervises is True,
        "supervisor": supervisors.get(address.name, ""),
        "pid": proxy.pid if proxy is not None else None,
    }
    if role == POOL:
        row["members"] = members_of(cell.ready_instance)
    return row


class ActorListing:
    """Answers questions about all actors of a node. `now` is its clock."""

    def __init__(self, host: ActorHost, node: str, now: Callable[[], float]) -> None:
        self._host = host
        self._node = node
        self._now = now
        self._windows = trio.CapacityLimiter(MOST_WINDOWS)

    async def select(self, conditions: Iterable[Condition], sort: str, most: int) -> Row:
        """The actors for which the conditions hold, sorted by a column, `-COLUMN` with the greatest
        first: at most `most` of them, and `MOST_ROWS`. `count`: of how many.

        Raises ValueError for a column that there is not, and for too many conditions.
        """
        wanted = list(conditions)
        if len(wanted) > MOST_CONDITIONS:
            raise ValueError(f"one question has at most {MOST_CONDITIONS} conditions")
        for column in (sort.removeprefix("-"), *(one.column for one in wanted)):
            check_column(column, COLUMNS)
        values = self._values()
        tests = [(values[one.column], one.holds) for one in wanted]
        best = BestRows(min(most, MOST_ROWS), descending=sort.startswith("-"))
        value = values[sort.removeprefix("-")]

        def look(cells: Sequence[ActorCell]) -> None:
            best.add(
                (value(cell), cell)
                for cell in cells
                if all(holds(read(cell)) for read, holds in tests)
            )

        await in_slices(self._cells(), look, self._now)
        return {"actors": await self._rows(best, self._row), "count": best.count}

    async def top(self, sort: str, seconds: float, most: int) -> Row:
        """The actors that have most to do, at most `most` and `MOST_ROWS` of them. `sort`: one of
        `TOP_COLUMNS`. `rate`: calls served per second of the window, which lasts `seconds`. `wait`:
        seconds that the oldest call in the mailbox has waited. `turn`: for which the longest
        running call has run.

        `restarts`: how often supervisors of this node have restarted children in the window, by
        name, at most `MOST_ROWS` of them; `restarts_left_out` counts the others. The children may
        be on other nodes, so with `sort="restarts"` there are no rows: see `named`.
        """
        check_column(sort, TOP_COLUMNS)
        async with self._windows:
            restarts = self._host.counts.restarted.copy()
            # By cell, and not by name: an actor that is started anew in the window counts from 0.
            before: dict[ActorCell, int] = {}
            await in_slices(
                self._cells(),
                lambda cells: before.update((one, one.served) for one in cells if one.served),
                self._now,
            )
            began = self._now()
            await trio.sleep(min(seconds, LONGEST_WINDOW))
            best = BestRows(min(most, MOST_ROWS), descending=True)
            restarted = self._host.counts.restarted.since(restarts)
            listed = dict(heapq.nlargest(MOST_ROWS, restarted.items(), key=lambda pair: pair[1]))
            answer = {"restarts": listed, "restarts_left_out": len(restarted) - len(listed)}
            if sort == "restarts":
                return {"actors": [], "count": 0, **answer}

            def rate(cell: ActorCell) -> float:
                # One that was started within the window has served all of its calls in it.
                return (cell.served - before.get(cell, 0)) / max(1e-3, self._now() - began)

            value: Value = {
                "waiting": lambda cell: cell.waiting,
                "wait": lambda cell: longest_wait(cell, self._now()),
                "turn": lambda cell: longest_turn(cell, self._now()),
                "rate": rate,
            }[sort]
            await in_slices(
                self._cells(),
                lambda cells: best.add((value(cell), cell) for cell in cells),
                self._now,
            )

            def row(cell: ActorCell) -> Row:
                return {**self._timed_row(cell), "rate": rate(cell)}

            return {"actors": await self._rows(best, row), "count": best.count, **answer}

    def named(self, names: Iterable[str]) -> list[Row]:
        """Rows of those of these names that actors here have, of the first `MOST_ROWS` names, with
        `wait` and `turn` of `top`.
        """
        return [
            self._timed_row(self._host.cells[name])
            for name in self.present(itertools.islice(names, MOST_ROWS))
        ]

    async def near(self, name: str, most: int = 3) -> list[str]:
        """The names of actors here that are most like this one, of `MOST_COMPARED`: first those
        that end in it, as `top/a` does for `a`. Names that were given are looked at before those
        that were made up, which no user types.
        """
        found: list[str] = []
        if len(name) > MOST_WANTED:
            # No name is as long, and comparing takes time for each character.
            return found

        def look(cells: Sequence[ActorCell]) -> None:
            names = [cell.address.name for cell in cells]
            found[:] = nearest(name, [*found, *names], most)

        every = self._cells()
        cells = [cell for cell in every if cell.address.registered][:MOST_COMPARED]
        if len(cells) < MOST_COMPARED:
            others = (cell for cell in every if not cell.address.registered)
            cells += itertools.islice(others, MOST_COMPARED - len(cells))
        # To compare names takes ten times as long as to look at an actor.
        for start in range(0, len(cells), SLICE // 10):
            look(cells[start : start + SLICE // 10])
            await trio.lowlevel.checkpoint()
        return found

    def present(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that actors here have."""
        cells = self._host.cells
        return [name for name in names if name in cells and not cells[name].system]

    async def _rows(self, best: BestRows, row: Callable[[ActorCell], Row]) -> list[Row]:
        rows: list[Row] = []
        await in_slices(best.taken(), lambda cells: rows.extend(map(row, cells)), self._now)
        return rows

    def _timed_row(self, cell: ActorCell) -> Row:
        wait, turn = longest_wait(cell, self._now()), longest_turn(cell, self._now())
        return {**self._row(cell), "wait": wait, "turn": turn}

    def _row(self, cell: ActorCell) -> Row:
        return {**actor_row(cell, self._host.supervisors), "node": self._node}

    def _cells(self) -> list[ActorCell]:
        # All at once, and quick: actors start and end between the slices.
        return [cell for cell in self._host.cells.values() if not cell.system]

    def _values(self) -> dict[str, Value]:
        """Return the functions that read the value of each column from an actor."""
        supervisors = self._host.supervisors
        values: dict[str, Value] = {
            "name": lambda cell: cell.address.name,
            "node": lambda cell: self._node,
            "class": lambda cell: cell.address.class_path,
            "epoch": lambda cell: cell.address.epoch,
            "waiting": lambda cell: cell.waiting,
            "running": lambda cell: len(cell.running),
            "served": lambda cell: cell.served,
            "supervisor": lambda cell: supervisors.get(cell.address.name, ""),
        }
        assert tuple(values) == COLUMNS
        return values


class BestRows:
    """The first of all that is added, in the order of their values; those without a value, which is
    None, come last. Keeps at most about twice `most`.
    """

    def __init__(self, most: int, *, descending: bool) -> None:
        self._most = max(0, most)
        self._descending = descending
        self._kept: list[tuple[bool, Any, ActorCell]] = []
        self.count = 0
        """How many were added."""

    def add(self, valued: Iterable[tuple[Any, ActorCell]]) -> None:
        """Add some, each with its value."""
        before = len(self._kept)
        self._kept += (
            ((value is None) is not self._descending, value, cell) for value, cell in valued
        )
        self.count += len(self._kept) - before
        if len(self._kept) > 2 * self._most + SLICE:
            self._cut()
        assert len(self._kept) <= 2 * self._most + SLICE, "what is kept is bounded"

    def taken(self) -> list[ActorCell]:
        """The first `most`, in their order."""
        self._cut()
        return [cell for _, _, cell in self._kept]

    def _cut(self) -> None:
        # Stable: of equal ones, those that were added first come first. The flag before the value
        # keeps None from being compared with values.
        self._kept.sort(key=lambda one: one[:2], reverse=self._descending)
        del self._kept[self._most :]
        assert len(self._kept) <= min(self._most, self.count)


def longest_wait(cell: ActorCell, now: float) -> float | None:
    """Seconds that the oldest call in the mailbox has waited; None if none waits."""
    oldest = next(
        (invocation for invocation in cell.mailbox or () if not invocation.cancelled), None
    )
    return None if oldest is None else _seconds(oldest.queued_at, now)


def longest_turn(cell: ActorCell, now: float) -> float | None:
    """Seconds for which the longest running call has run; None if none runs."""
    running: tuple[Invocation, ...] = cell.running
    return max((_seconds(invocation.suspended_at, now) for invocation in running), default=None)


def _seconds(since: float, now: float) -> float:
    # 0 where it has only just begun.
    return now - since if since else 0.0
