"""Listings of references, for `understudy refs` and `understudy status`.

Each node reports what it owns as plain data. Here reports are parsed, and those of all nodes are
merged into one list. No I/O and no clock. Nodes of an earlier version report less.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import trio

import actors
from actors.identifiers import NodeId, ReferenceId
from runtime.references.manager import ReferenceManager
from runtime.references.table import ReferenceState

MOST_LISTED = 1000
"""The number of values that one node lists, the largest first. Also the number of values of other
nodes for which it reports where they were made.
"""


PUT = "put"
"""The method that is listed for a value that no call has made."""


VALUE_METHOD = "@references.call_and_keep"
"""The method that is listed for the results of `reference.call.method.remote()`."""

STATES_IN_A_ROW = 10_000
"""References that are looked at before the other tasks of the event loop have their turns."""

OURS = (f"{Path(actors.__file__).parent}/", f"{Path(__file__).parents[1]}/")

TRIO = f"{Path(trio.__file__).parent}/"


@attrs.frozen
class Totals:
    """The references of one node in numbers; part of `understudy status`.

    `owned`: its own values that are held. `bytes`: their size, as far as they exist; of these,
    `memory` bytes are in memory, which may hold `memory_limit`, and `disk` bytes on disk. `held`:
    values of other nodes to which it has references. `fetched_bytes`: bytes of cached copies of
    these.
    """

    owned: int
    bytes: int
    memory: int
    memory_limit: int
    disk: int
    held: int
    fetched_bytes: int


@attrs.frozen
class ListedValue:
    """One referenced value.

    `size`: in bytes, None if there is no value. `state`: "making", "there" or "failed". `holders`:
    names of the other nodes that hold it; if there are none, only its owner holds it, or a message
    that is being sent. `age`: seconds since its owner first knew of it. `method`: what made it,
    "put" if it was not a call. `site`: file and line in the program, empty if that was not traced.
    """

    owner: str
    reference: str
    size: int | None
    state: str
    holders: tuple[str, ...]
    age: float
    method: str
    site: str = ""


@attrs.frozen
class ListedSum:
    """Listed values of the same origin, added up: of one owner and one maker, held by the same
    nodes, made at the same place. `age`: that of the oldest, in seconds.
    """

    owner: str
    values: int
    bytes: int
    age: float
    holders: tuple[str, ...]
    method: str
    site: str


@attrs.frozen
class OwnerTotals:
    """The listing of one node. `left_out`, `left_out_bytes`: number and bytes of smaller values
    that it does not list. `problem`: why the node did not report; empty if it did. `traces`:
    whether it records where values are made.
    """

    node: str
    values: int = 0
    bytes: int = 0
    left_out: int = 0
    left_out_bytes: int = 0
    traces: bool = False
    problem: str = ""


def _within_limits(most: int) -> int:
    return max(1, min(most, MOST_LISTED))


@attrs.define
class OwnerReport:
    """A node's report of its own values and of those of others that it holds, from one part after
    the other. At most `most` values are listed, the largest ones.
    """

    most: int = attrs.field(converter=_within_limits)
    values: int = 0
    bytes: int = 0
    largest: list[ReferenceState] = attrs.field(factory=list)
    sites: dict[str, str] = attrs.field(factory=dict)

    def add(self, own: Collection[ReferenceState], held: Iterable[ReferenceState]) -> None:
        """Add some values of the node itself, and some of others."""
        self.values += len(own)
        self.bytes += sum(state.size for state in own)
        self.largest = heapq.nlargest(self.most, [*self.largest, *own], attrgetter("size"))
        for state in held:
            if len(self.sites) >= MOST_LISTED:
                break
            if state.site:
                self.sites[named(state.identity)] = state.site

    def plain(
        self, holders: Callable[[ReferenceState], Iterable[NodeId]], now: float, *, traces: bool
    ) -> dict[str, Any]:
        """Return the report as it is sent. `now`: seconds on the clock of the node."""
        listed = [
            {
                "reference": named(state.identity),
                "size": state.stored.size if state.stored is not None else None,
                "state": listed_state(state),
                "holders": sorted({name for name, _ in holders(state)}),
                "age": now - state.made,
                "method": state.maker or PUT,
                "site": state.site,
            }
            for state in self.largest
        ]
        return {
            "values": self.values,
            "bytes": self.bytes,
            "left_out": self.values - len(self.largest),
            "left_out_bytes": self.bytes - sum(state.size for state in self.largest),
            "traces": traces,
            "listed": listed,
            "sites": self.sites,
        }


def named(identity: ReferenceId) -> str:
    """Format a reference for display: its maker, the maker's incarnation, and a number."""
    return "{}.{}.{}".format(*identity)


def listed_state(state: ReferenceState) -> str:
    """Return the state of a value at its owner."""
    if state.stored is not None:
        return "there"
    return "failed" if state.is_settled else "making"


class Listing:
    """The merged reports of all nodes of a cluster."""

    def __init__(self) -> None:
        self._values: list[ListedValue] = []
        self._sites: dict[str, str] = {}
        self._owners: dict[str, OwnerTotals] = {}

    def add(self, node: str, said: Mapping[str, Any]) -> None:
        """Add the report of `node`; see `OwnerReport`."""
        self._owners[node] = OwnerTotals(
            node,
            said.get("values", 0),
            said.get("bytes", 0),
            said.get("left_out", 0),
            said.get("left_out_bytes", 0),
            said.get("traces", False),
        )
        self._sites |= said.get("sites", {})
        for value in said.get("listed", ()):
            self._values.append(
                ListedValue(
                    node,
                    value["reference"],
                    value["size"],
                    value["state"],
                    tuple(value["holders"]),
                    value["age"],
                    "a method of a value" if value["method"] == VALUE_METHOD else value["method"],
                    value["site"],
                )
            )

    def silent(self, node: str, problem: str) -> None:
        """Record that `node` did not answer, and why."""
        self._owners[node] = OwnerTotals(node, problem=problem)

    def values(self, node: str | None = None) -> list[ListedValue]:
        """Return the values of one node or of all, the largest first. The place where one was made
        is known to its owner or to its caller.
        """
        found = [
            attrs.evolve(value, site=value.site or self._sites.get(value.reference, ""))
            for value in self._values
            if node in (None, value.owner)
        ]
        return sorted(
            found, key=lambda value: (-(value.size or 0), value.owner, -value.age, value.reference)
        )

    def sums(self, node: str | None = None) -> list[ListedSum]:
        """Return the values of one node or of all, added up by their origin, the most bytes first:
        what leaks is one line.
        """
        alike: dict[tuple[Any, ...], list[ListedValue]] = {}
        for value in self.values(node):
            origin = (value.owner, value.holders, value.method, value.site)
            alike.setdefault(origin, []).append(value)
        found = [
            ListedSum(
                owner,
                len(values),
                sum(value.size or 0 for value in values),
                max(value.age for value in values),
                holders,
                method,
                site,
            )
            for (owner, holders, method, site), values in alike.items()
        ]
        return sorted(found, key=lambda one: (-one.bytes, -one.values, one.owner, one.method))

    def owners(self, node: str | None = None) -> list[OwnerTotals]:
        """Return the nodes ordered by name, or only the given one."""
        return [owner for name, owner in sorted(self._owners.items()) if node in (None, name)]

    def facts(self, node: str | None = None, *, summed: bool = False) -> dict[str, Any]:
        """Return everything as plain data; `summed`: the values added up by their origin."""
        owners = self.owners(node)
        return {
            **(
                {"sums": [attrs.asdict(one) for one in self.sums(node)]}
                if summed
                else {"values": [attrs.asdict(value) for value in self.values(node)]}
            ),
            "nodes": [
                {"node": owner.node, "answers": False, "problem": owner.problem}
                if owner.problem
                else {key: item for key, item in attrs.asdict(owner).items() if key != "problem"}
                | {"answers": True}
                for owner in owners
            ],
            "total": {
                "values": sum(owner.values for owner in owners),
                "bytes": sum(owner.bytes for owner in owners),
            },
        }


# A node's own references, in numbers and one by one.


async def listing(references: ReferenceManager, most: int) -> dict[str, Any]:
    """Return up to `most` values of this node, and where it has made others; see `OwnerReport`."""
    table, found = references.table, OwnerReport(most)
    for states in table.parts(STATES_IN_A_ROW):
        own = [state for state in states if table.is_counted(state.identity)]
        found.add(own, [state for state in states if state.owner_id != table.identity])
        await trio.lowlevel.checkpoint()
    return found.plain(table.holders, references.now(), traces=references.is_traced)


def totals(references: ReferenceManager) -> Totals:
    """Return the numbers of this node. Nothing is counted for it: there may be a million values,
    and pages ask for this every second.
    """
    store = references.value_store
    return Totals(
        owned=len(references),
        bytes=store.in_memory + store.on_disk,
        memory=store.in_memory,
        memory_limit=store.limit,
        disk=store.on_disk,
        held=references.table.borrowed,
        fetched_bytes=references.fetcher.cached_bytes,
    )


# Sites: where in a user's program a value was made.


def calling_site() -> str:
    """Return file and line of the user code that called into the runtime, as `/home/me/job.py:12`;
    empty if no user code is on this stack.

    The first frame outside of `actors` and `runtime` counts. If trio's frames come first, the
    runtime started the task, and the frames below only run the event loop.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(TRIO):
            return ""
        if not path.startswith(OURS):
            return f"{path if path.startswith('<') else Path(path).absolute()}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
