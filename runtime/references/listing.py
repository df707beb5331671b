"""Listings: what people see of references. Each node says what it owns; here that becomes facts, and those of all nodes one list.

No I/O and no clock. What a node says is plain data, and says less where the node is of an earlier version.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from runtime.references.claims import Identity, ReferenceId

if TYPE_CHECKING:
    from runtime.references.anchors import Anchor

MOST_LISTED = 1000
"""How many values one node lists at most, the largest first; and of how many values of others it says where they were made."""

PUT = "put"
"""By which method a value was made that nobody has called a method for."""

VALUE_METHOD = "@references.call_and_keep"
"""What makes the results of `reference.call.method.remote()`."""


@attrs.frozen
class Totals:
    """How much one node has to do with references; part of `understudy status`.

    `owned`: its own values that somebody holds. `bytes`: of those, as far as they are there; of these, `memory` is in memory, which may be
    `memory_limit`, and `disk` was written to disk. `held`: values of other nodes that it has references to. `fetched_bytes`: of fetched
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
    """One referenced value. `size`: in bytes, None if there is no value. `state`: "making", "there" or "failed".

    `holders`: names of the other nodes that hold it; if there are none, its owner does, or has it in a message under way. `age`: seconds
    since its owner first heard of it. `method`: what made it, "put" if nothing was called. `site`: file and line in the program, empty
    where that was not traced.
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
class Owner:
    """What one node lists in all. `left_out`, `left_out_bytes`: values that are smaller than those that it lists.

    `problem`: why it says nothing, empty if it does. `traces`: whether it notes where values are made.
    """

    node: str
    values: int = 0
    bytes: int = 0
    left_out: int = 0
    left_out_bytes: int = 0
    traces: bool = False
    problem: str = ""


def report(
    own: Collection[Anchor],
    holders: Callable[[Anchor], Iterable[Identity]],
    held: Iterable[Anchor],
    now: float,
    most: int,
    *,
    traces: bool,
) -> dict[str, Any]:
    """What a node says: of its `own` values, and of those of others that it holds. `now`: seconds on its clock."""
    # There may be a hundred thousand, and nothing else runs meanwhile.
    size = sum(map(size_of, own))
    largest = heapq.nlargest(max(1, min(most, MOST_LISTED)), own, size_of)
    listed = [
        {
            "reference": named(anchor.identity),
            "size": anchor.kept.size if anchor.kept is not None else None,
            "state": state(anchor),
            "holders": sorted({name for name, _ in holders(anchor)}),
            "age": now - anchor.made,
            "method": anchor.maker or PUT,
            "site": anchor.site,
        }
        for anchor in largest
    ]
    sites: dict[str, str] = {}
    for anchor in held:
        if len(sites) >= MOST_LISTED:
            break
        if anchor.site:
            sites[named(anchor.identity)] = anchor.site
    return {
        "values": len(own),
        "bytes": size,
        "left_out": len(own) - len(largest),
        "left_out_bytes": size - sum(map(size_of, largest)),
        "traces": traces,
        "listed": listed,
        "sites": sites,
    }


def size_of(anchor: Anchor) -> int:
    """Bytes of a value at its owner, as far as they are there."""
    kept = anchor.kept
    return kept.size if kept is not None else 0


def named(identity: ReferenceId) -> str:
    """A reference as people read it: its maker, that node's incarnation, and a number."""
    return "{}.{}.{}".format(*identity)


def state(anchor: Anchor) -> str:
    """Of a value, at its owner."""
    if anchor.kept is not None:
        return "there"
    return "failed" if anchor.is_settled else "making"


class Listing:
    """What all nodes of a cluster have said, put together."""

    def __init__(self) -> None:
        self._values: list[ListedValue] = []
        self._sites: dict[str, str] = {}
        self._owners: dict[str, Owner] = {}

    def add(self, node: str, said: Mapping[str, Any]) -> None:
        """What `node` has said; see `report`."""
        self._owners[node] = Owner(
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
        self._owners[node] = Owner(node, problem=problem)

    def values(self, node: str | None = None) -> list[ListedValue]:
        """The values, of one node or of all, the largest first. Where one was made may be known to its owner, or to who called for it."""
        found = [
            attrs.evolve(value, site=value.site or self._sites.get(value.reference, ""))
            for value in self._values
            if node in (None, value.owner)
        ]
        return sorted(found, key=lambda value: (-(value.size or 0), value.owner, -value.age, value.reference))

    def owners(self, node: str | None = None) -> list[Owner]:
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
                else {key: item for key, item in attrs.asdict(owner).items() if key != "problem"} | {"answers": True}
                for owner in owners
            ],
            "total": {"values": sum(owner.values for owner in owners), "bytes": sum(owner.bytes for owner in owners)},
        }
