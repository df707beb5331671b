"""Listings: what people see of references. Each node says what it owns; here that becomes facts,
and those of all nodes one list.

No I/O and no clock. What a node says is plain data, and says less where the node is of an earlier
version.
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
from runtime.identifiers import NodeId
from runtime.references.manager import ReferenceManager
from runtime.references.table import ReferenceId, ReferenceState

MOST_LISTED = 1000
"""How many values one node lists at most, the largest first; and of how many values of others it
says where they were made.
"""


PUT = "put"
"""The method listed for a value that no call has made."""


VALUE_METHOD = "@references.call_and_keep"
"""What makes the results of `reference.call.method.remote()`."""


@attrs.frozen
class Totals:
    """How much one node has to do with references; part of `understudy status`.

    `owned`: the number of its own values that are held. `bytes`: of those, as far as they are
    there; of these, `memory` is in memory, which may be `memory_limit`, and `disk` was written to
    disk. `held`: values of other nodes that it has references to. `fetched_bytes`: of fetched
    values that are kept for the next who asks.
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
    """One referenced value. `size`: in bytes, None if there is no value. `state`: "making", "there"
    or "failed".

    `holders`: names of the other nodes that hold it; if there are none, its owner does, or has it
    in a message under way. `age`: seconds since its owner first heard of it. `method`: what made
    it, "put" if nothing was called. `site`: file and line in the program, empty where that was not
    traced.
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
class OwnerTotals:
    """What one node lists in all. `left_out`, `left_out_bytes`: values that are smaller than those
    that it lists.

    `problem`: why it says nothing, empty if it does. `traces`: whether it notes where values are
    made.
    """

    node: str
    values: int = 0
    bytes: int = 0
    left_out: int = 0
    left_out_bytes: int = 0
    traces: bool = False
    problem: str = ""


def report(
    own: Collection[ReferenceState],
    holders: Callable[[ReferenceState], Iterable[NodeId]],
    held: Iterable[ReferenceState],
    now: float,
    most: int,
    *,
    traces: bool,
) -> dict[str, Any]:
    """What a node says: of its `own` values, and of those of others that it holds. `now`: seconds
    on its clock.
    """
    # There may be a hundred thousand, and nothing else runs meanwhile.
    size = sum(state.size for state in own)
    largest = heapq.nlargest(max(1, min(most, MOST_LISTED)), own, attrgetter("size"))
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
        for state in largest
    ]
    sites: dict[str, str] = {}
    for state in held:
        if len(sites) >= MOST_LISTED:
            break
        if state.site:
            sites[named(state.identity)] = state.site
    return {
        "values": len(own),
        "bytes": size,
        "left_out": len(own) - len(largest),
        "left_out_bytes": size - sum(state.size for state in largest),
        "traces": traces,
        "listed": listed,
        "sites": sites,
    }


def named(identity: ReferenceId) -> str:
    """A reference as people read it: its maker, that node's incarnation, and a number."""
    return "{}.{}.{}".format(*identity)


def listed_state(state: ReferenceState) -> str:
    """Of a value, at its owner."""
    if state.stored is not None:
        return "there"
    return "failed" if state.is_settled else "making"


class Listing:
    """What all nodes of a cluster have said, put together."""

    def __init__(self) -> None:
        self._values: list[ListedValue] = []
        self._sites: dict[str, str] = {}
        self._owners: dict[str, OwnerTotals] = {}

    def add(self, node: str, said: Mapping[str, Any]) -> None:
        """What `node` has said; see `report`."""
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
        """`node` does not answer, for that reason."""
        self._owners[node] = OwnerTotals(node, problem=problem)

    def values(self, node: str | None = None) -> list[ListedValue]:
        """The values, of one node or of all, the largest first. Where one was made may be known to
        its owner, or to who called for it.
        """
        found = [
            attrs.evolve(value, site=value.site or self._sites.get(value.reference, ""))
            for value in self._values
            if node in (None, value.owner)
        ]
        return sorted(
            found, key=lambda value: (-(value.size or 0), value.owner, -value.age, value.reference)
        )

    def owners(self, node: str | None = None) -> list[OwnerTotals]:
        """The nodes by name, or that one."""
        return [owner for name, owner in sorted(self._owners.items()) if node in (None, name)]

    def facts(self, node: str | None = None) -> dict[str, Any]:
        """All of it as plain data."""
        owners = self.owners(node)
        return {
            "values": [attrs.asdict(value) for value in self.values(node)],
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


# What a node says of its references, in sums and one by one.


def listing(references: ReferenceManager, most: int) -> dict[str, Any]:
    """Up to `most` values of this node, and where it has made others; see `report`."""
    return report(
        references.own(),
        references.table.holders,
        references.others(),
        references.now(),
        most,
        traces=references.site is not None,
    )


def totals(references: ReferenceManager) -> Totals:
    """How much this node has to do with references."""
    own = references.own()
    store = references.value_store
    return Totals(
        owned=len(own),
        bytes=sum(state.size for state in own),
        memory=store.in_memory,
        memory_limit=store.limit,
        disk=store.on_disk,
        held=len(references.others()),
        fetched_bytes=references.fetcher.cached_bytes,
    )


# Sites: where in a user's program a value was made.

OURS = (f"{Path(actors.__file__).parent}/", f"{Path(__file__).parents[1]}/")


TRIO = f"{Path(trio.__file__).parent}/"


def calling_site() -> str:
    """Return file and line of the user code that called into the runtime, as `/home/me/job.py:12`;
    empty if no user code is on this stack.

    The first frame outside of `actors` and `runtime` counts. Where trio's frames come first, the
    task began with a call of the runtime, so that what follows is only who runs the event loop.
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
