"""Finds the node of an actor, or says what is still known of a name that is gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from actors.errors import ActorNotFoundError, CallError, StoreError
from actors.identifiers import NodeId
from runtime.command_line.ends import ends_of
from runtime.command_line.node_answers import NODE_SECONDS, Member, ask_nodes, inspection
from runtime.logs.archive import ArchivedNode, archived_lines, archived_nodes
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.near_names import nearest
from runtime.observation.node_queries import ask_for_tree
from runtime.printable import one_of, plain

MOST_ENDED = 20
"""Nodes that have ended whose last lines are searched for an actor that is gone."""

STORE_SECONDS = 0.3
"""How long the store is asked alone where an actor is. Then the nodes are asked beside it."""

MOST_REASON = 200
"""Characters of the reason of an end."""


async def find_actor(client: ClusterClient, name: str, *, or_node: bool = False) -> Member:
    """The member on which an actor is, also one that is no registered name and is known to its
    node only. Raises ActorNotFoundError, with what its supervisor says of it, or with the nearest
    name there is. `or_node`: the user may have meant a node, and there is none of that name.

    Takes little more than `NODE_SECONDS`: everything is asked side by side, because a node that is
    stopped may be that of the store, and each question would wait for it.
    """
    search = _ActorSearch(client, name)
    async with trio.open_nursery() as nursery:
        search.found = nursery.cancel_scope.cancel
        for question in (search.ask_store, search.ask_nodes, search.ask_for_more):
            nursery.start_soon(question)
    if search.member is not None:
        return search.member
    text = f"no actor called {name!r} is on a node that answers"
    if or_node:
        text = f"{text}, and no node has that name"
    if search.child:
        raise ActorNotFoundError(f"{text}: {search.child}{search.silence}", actor=name)
    if or_node:
        search.alike |= search.members.keys()
    near = nearest(name, sorted(search.alike - {name}))
    if name in search.alike and name not in search.members:
        # Asked for names like this one, a node has given this one itself.
        text = f"{text}, but one knew it a moment ago: it has ended or moves; ask again"
    elif name in search.members:
        # Where a name of a node will do, it has been taken for one already.
        text = (
            f"{name!r} is a node, and no actor that answers has this name: "
            f"`understudy stack {name}` shows what its tasks do, and "
            f"`understudy list actors --filter node={name}` its actors"
        )
    elif near:
        text = f"{text}; did you mean {near[0]!r}?"
    # Of a name that was probably mistyped it only distracts where else it may have been.
    guess = "" if near else search.guess
    raise ActorNotFoundError(f"{text}{search.silence}{search.end or guess}", actor=name)


async def names_alike(client: ClusterClient, name: str) -> set[str]:
    """Names of actors that are like this one, or it itself, of the nodes that answer. Each node
    compares a bounded number of names.
    """
    answers = await ask_nodes(client, lambda member: inspection(client, member).near(name))
    return {one for found in answers.by_node.values() for one in found}


class _ActorSearch:
    """One search for an actor: the questions, and what is known by their answers."""

    def __init__(self, client: ClusterClient, name: str) -> None:
        self._client = client
        self._name = name
        self.members: dict[str, Member] = {one["name"]: one for one in client.status["members"]}
        self.member: Member | None = None
        """Where the actor is."""
        self.found: Callable[[], object] = lambda: None
        """Called once that is known: nothing else needs to be asked."""
        self.child = ""
        self.end = ""
        """What is known of its end, as a clause."""
        self.guess = ""
        """The same of the last node to die, on which it may have been."""
        self.alike: set[str] = set()
        """Names of actors like the one that was asked for."""
        self._store_is_silent = False
        self._store_answered = trio.Event()
        self._silent: set[str] = set()

    @property
    def silence(self) -> str:
        """Who has not answered and may have the actor, as a clause; "" if all have answered."""
        if not self._silent:
            return "; the store did not answer" if self._store_is_silent else ""
        store = ", and neither did the store" if self._store_is_silent else ""
        return f"; it may be on {one_of(self._silent)}, which did not answer{store}"

    async def ask_store(self) -> None:
        """Ask where the name is: without the store the nodes are asked alone."""
        try:
            with trio.fail_after(NODE_SECONDS):
                address = await self._client.names.find(self._name)
        except (StoreError, CallError, trio.TooSlowError):
            self._store_is_silent = True
            return
        if address is not None and address.node in self.members:
            self._is_on(address.node)
        self._store_answered.set()

    async def ask_nodes(self) -> None:
        """Ask the nodes which of them has it. One that has it is enough."""

        async def ask(member: Member) -> None:
            if await inspection(self._client, member).present([self._name]):
                self._is_on(member["name"])

        await self._after_the_store()
        self._silent |= (await ask_nodes(self._client, ask)).silent.keys()

    async def ask_for_more(self) -> None:
        """Ask what is known of a name that is nowhere."""

        async def ask_supervisors() -> None:
            self.child = await _state_of_child(self._client, self._name)

        async def ask_for_names() -> None:
            self.alike |= await names_alike(self._client, self._name)

        async def ask_for_its_end() -> None:
            self.end, self.guess = await _ended(self._client, self._name)

        await self._after_the_store()
        async with trio.open_nursery() as nursery:
            for question in (ask_supervisors, ask_for_names, ask_for_its_end):
                nursery.start_soon(question)

    async def _after_the_store(self) -> None:
        # The store knows most actors that are asked for, and the nodes are many.
        with trio.move_on_after(STORE_SECONDS):
            await self._store_answered.wait()

    def _is_on(self, node: str) -> None:
        self.member = self.members[node]
        self.found()


async def _ended(client: ClusterClient, name: str) -> tuple[str, str]:
    """What is still known of `name`, as a clause: how it ended, if it was an actor and did not end
    in order; or a node that has ended and has that name, or on which an actor of that name has
    logged. As another clause, the last node that did not end in order. "" for what is not known.
    """
    ends: list[dict[str, Any]] = []
    archived = ("", "")

    async def ask_for_ends() -> None:
        ends.extend(await ends_of(client, name))

    async def ask_archive() -> None:
        nonlocal archived
        with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
            archived = await _archived(client, name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_for_ends)
        nursery.start_soon(ask_archive)
    if ends:
        last = ends[-1]
        reason = f"{last['kind']}: {last['reason']}".partition("\n")[0][:MOST_REASON]
        return f"; it ended on {last['node']} at {iso(last['time'])[:-6]}Z, {reason}", ""
    return archived


async def _archived(client: ClusterClient, name: str) -> tuple[str, str]:
    """What the store has of nodes that have ended tells of `name`, as the clauses of `_ended`."""
    alive = {(one["name"], one["incarnation"]) for one in client.status["members"]}
    gone = [one for one in await archived_nodes(client.store) if tuple(one.node) not in alive]
    # The last to end first.
    gone.sort(key=lambda one: -one.latest)
    for one in gone:
        if one.node.name == name:
            return f"; node {name} has ended: {_last_of(one)}", ""
    lately = gone[:MOST_ENDED]
    for one in lately:
        if any(line.actor == name for line in await archived_lines(client.store, one.node)):
            return (
                f"; node {one.node.name}, on which it ran, has ended: `understudy logs {name}` "
                "shows its last lines"
            ), ""
    # An actor that has logged nothing, and that no supervisor knows, leaves no more behind. What
    # was on a node that left in order has ended in order, and clients have no actors.
    last = next((one for one in lately if not (_has_left(one) or one.calls_only)), None)
    if last is None:
        return "", ""
    return "", (
        f"; node {last.node.name} (incarnation {last.node.incarnation}) has ended, and it may have "
        f"been there: {_last_of(last)}"
    )


def _has_left(node: ArchivedNode) -> bool:
    """True if it is known to have ended in order."""
    return node.end is not None and node.end.how == "left"


def _last_of(node: ArchivedNode) -> str:
    """When a node has ended, and where its last lines are, as a clause."""
    parts = []
    if node.end is not None:
        why = node.end.reason and f", {node.end.reason}"
        parts.append(f"it {node.end.how} at {iso(node.end.at)[:-6]}Z{why}")
    if node.until is None:
        parts.append("it wrote no lines")
    else:
        parts.append(
            f"it wrote its last lines at {iso(node.until)[:-6]}Z, and `understudy logs "
            f"{node.node.name}` shows them"
        )
    return "; ".join(parts)


async def _state_of_child(client: ClusterClient, name: str) -> str:
    """What its supervisor says of a child that has no actor at the moment; "" if none answers."""
    members = [NodeId(one["name"], one["incarnation"]) for one in client.status["members"]]
    tree = await ask_for_tree(client.endpoint, client.names, members, client.status["cluster"])
    for supervisor in tree.walk():
        for child in supervisor.children:
            if child.name == name and child.node is None:
                last = "" if child.last_exit is None else f"; last exit: {child.last_exit}"
                return plain(f"its supervisor {supervisor.name} says {child.state}{last}")
    return ""
