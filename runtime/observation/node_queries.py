"""Queries a cluster for its tree of supervision: all nodes in parallel, each for at most a second,
and the store for what no node tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import trio

from actors.errors import (
    CallError,
    MethodNotFoundError,
    NodeUnreachableError,
    NotAllowedError,
    StoreError,
)
from actors.identifiers import NodeId
from actors.method import Address
from actors.supervisor import SupervisorStatus
from runtime.calls.endpoint import RpcEndpoint
from runtime.membership.names import Names
from runtime.observation.inspection_service import inspection_of
from runtime.observation.tree import CLUSTER, KnownActor, Tree, assemble

SECONDS = 1.0
"""Seconds that one answer may take."""

MOST_ASKED = 1000
"""Names that the store is asked for one by one."""

MOST_NAMES = 10_000
"""Names among which those of silent nodes are looked for: the store keeps them by name, and not by
node.
"""

WORDS = {
    "supervisors": "more supervisors",
    "deaths": "earlier ends of children",
    "loose": "more actors without a supervisor",
}
"""What a node may leave out, in words."""


class _NodeQueries:
    """One round of questions, and the answers to it."""

    def __init__(self, endpoint: RpcEndpoint, names: Names) -> None:
        self._endpoint = endpoint
        self._names = names
        self.owners: list[tuple[Address, str]] = []
        """What the store has of actors whose nodes do not answer: their addresses, and for whom
        they were started.
        """
        self.reports: dict[NodeId, dict[str, Any]] = {}
        self.silent: dict[NodeId, str] = {}
        self.statuses: dict[str, SupervisorStatus | str] = {}
        self.problems: list[str] = []
        self.unread: list[str] = []
        """What the store was not asked for, one sentence each."""

    async def ask_node(self, node: NodeId) -> None:
        service = inspection_of(self._endpoint, *node)
        try:
            try:
                self.reports[node] = await service.options(timeout=SECONDS).supervision()
            except (MethodNotFoundError, NotAllowedError):
                # A node of an earlier version; or one that tells a client no more than its status.
                status = self._endpoint.node_service(*node).options(timeout=SECONDS).status
                rows = (await status())["actors"]
                self.reports[node] = {"actors": rows, "statuses": {}, "left_out": {}}
        except CallError as error:
            self.silent[node] = _why(error)
            self.problems.append(f"node {node[0]} does not answer: {_why(error)}")

    async def ask_names(self) -> None:
        """Ask the store for what no node has reported: the actors of nodes that do not answer, and
        supervisors that are on no node that was asked.
        """
        missing = self._missing()
        if not missing and not self.silent:
            return
        try:
            with trio.fail_after(SECONDS):
                # First those that are known by name: they are found among any number of names.
                if missing:
                    found = await self._names.owned(sorted(missing)[:MOST_ASKED])
                    self.owners = list(found.values())
                if self.silent:
                    await self._ask_for_silent()
        except trio.TooSlowError:
            self.problems.append(
                f"the store did not answer within {SECONDS:g} s: what silent nodes run is not shown"
            )
        except StoreError as error:
            self.problems.append(f"the store could not be asked: {_first_line(error)}")

    def _missing(self) -> set[str]:
        """Supervisors that no node has reported; if nodes are silent, also the children that other
        nodes' supervisors have on them.
        """
        reported = {actor["name"] for report in self.reports.values() for actor in report["actors"]}
        named = {
            actor["supervisor"] for report in self.reports.values() for actor in report["actors"]
        }
        silent = {node.name for node in self.silent}
        for report in self.reports.values():
            for status in report["statuses"].values():
                named |= {
                    child.name for child in getattr(status, "children", ()) if child.node in silent
                }
        return named - reported - {"", CLUSTER}

    async def _ask_for_silent(self) -> None:
        known = {address.name for address, _ in self.owners}
        owners, more = await self._names.first_owners(MOST_NAMES)
        self.owners += [
            (address, owner.supervisor)
            for address, owner in owners
            if address.node_id in self.silent and address.name not in known
        ]
        if more:
            self.unread.append(
                f"of the names in the store, the first {MOST_NAMES:,} were searched for actors of "
                "silent nodes"
            )

    def known(self) -> list[KnownActor]:
        """The actors: what their nodes tell, and what the store has of the others."""
        found: dict[str, KnownActor] = {}
        for (node, incarnation), report in self.reports.items():
            for actor in report["actors"]:
                before = found.get(actor["name"])
                if before is not None and before.epoch > actor["epoch"]:
                    # It has moved while the nodes were asked.
                    continue
                found[actor["name"]] = KnownActor(
                    name=actor["name"],
                    node=node,
                    incarnation=incarnation,
                    epoch=actor["epoch"],
                    class_path=actor["class"],
                    registered=actor["registered"],
                    supervisor=actor["supervisor"],
                    **{name: actor[name] for name in ("supervises", "started", "waiting", "age")},
                )
        for address, supervisor in self.owners:
            if address.name not in found or found[address.name].epoch < address.epoch:
                found[address.name] = KnownActor(
                    name=address.name,
                    node=address.node,
                    incarnation=address.incarnation,
                    epoch=address.epoch,
                    class_path=address.class_path,
                    supervisor=supervisor,
                )
        return list(found.values())

    def take_statuses(self, known: Iterable[KnownActor]) -> None:
        """Take over what supervisors say; for those whose nodes do not answer, why they do not."""
        actors = list(known)
        parents = {actor.supervisor for actor in actors}
        for actor in actors:
            identity = NodeId(actor.node, actor.incarnation)
            report = self.reports.get(identity)
            if report is None and (actor.supervises or actor.name in parents):
                self.statuses[actor.name] = self._silence(identity)
            elif report is not None and actor.name in report["statuses"]:
                self.statuses[actor.name] = report["statuses"][actor.name]

    def _silence(self, node: NodeId) -> str:
        if node in self.silent:
            return f"its node {node[0]} does not answer: {self.silent[node]}"
        return f"its node {node[0]} is not a member of the cluster"

    def left_out(self) -> list[str]:
        """Return what nodes have left out of their answers, one sentence each."""
        return [
            f"node {node} left out {count:,} {WORDS[what]}"
            for (node, _), report in sorted(self.reports.items())
            for what, count in report["left_out"].items()
            if count and what in WORDS
        ] + self.unread


async def ask_for_tree(
    endpoint: RpcEndpoint, names: Names, members: Iterable[NodeId], cluster: str
) -> Tree:
    """The tree of the cluster as it is now. `members`: the names and incarnations of its nodes.

    A node that does not answer within a second is shown as such, with what others know of it, and
    delays no other. Takes about two seconds at most.
    """
    questions = _NodeQueries(endpoint, names)
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(questions.ask_node, member)
    await questions.ask_names()
    known = questions.known()
    questions.take_statuses(known)
    return assemble(
        cluster, known, questions.statuses, sorted(questions.problems), questions.left_out()
    )


async def ask_for_actors(
    endpoint: RpcEndpoint, members: Iterable[NodeId]
) -> dict[str, list[dict[str, Any]]]:
    """Ask each of these nodes for its actors, and return the answers by the name of the node: of
    the supervisors, and of those with most calls. One that does not answer within a second is left
    out.
    """
    found: dict[str, list[dict[str, Any]]] = {}

    async def ask(member: NodeId) -> None:
        with suppress(CallError):
            service = endpoint.node_service(*member).options(timeout=SECONDS)
            found[member.name] = (await service.status())["actors"]

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(ask, member)
    return found


def _why(error: CallError) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came within {SECONDS:g} s"
    if isinstance(error, NodeUnreachableError):
        # Its own text counts the attempts, for the author of a call.
        return "no connection to it could be made"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
