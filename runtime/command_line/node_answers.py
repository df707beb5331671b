"""Asks all nodes of a cluster the same thing, side by side: none delays the others, and those that
do not answer are named.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import click
import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    NodeUnreachableError,
    NotAllowedError,
    StoreError,
)
from runtime.command_line.units import many
from runtime.identifiers import NodeId
from runtime.logs.archive import archived_lines, archived_nodes
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.inspection_service import inspection_of
from runtime.observation.node_queries import ask_for_tree
from runtime.printable import plain

NODE_SECONDS = 3.0
"""How long a node may take to answer."""

MOST_ENDED = 20
"""Nodes that have ended whose last lines are searched for an actor that is gone."""

STORE_SECONDS = 1.0
"""How long the store may take to say where an actor is: then all nodes are asked."""

T = TypeVar("T")

Member = dict[str, Any]


@attrs.define
class Answers:
    """What the nodes have said, by their names. `silent`: why the others have not. `left_out`: how
    much those left out whose answers would have been too long, counted in `thing`. `problems`:
    what else could not be read, one sentence each; `notes`: what else is not shown.
    """

    by_node: dict[str, Any] = attrs.field(factory=dict)
    silent: dict[str, str] = attrs.field(factory=dict)
    left_out: dict[str, int] = attrs.field(factory=dict)
    thing: str = "call"
    problems: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)

    @property
    def status(self) -> int:
        """The exit status of a command that shows them: 1 if anything is missing."""
        return 1 if self.silent or self.problems else 0

    def warn(self) -> None:
        """Tell on stderr who has not answered, or not in full."""
        for node, reason in sorted(self.silent.items()):
            click.echo(plain(f"node {node} did not answer: {reason}"), err=True)
        for node, count in sorted(self.left_out.items()):
            text = f"node {node} left out {many(count, f'more {self.thing}')}"
            click.echo(plain(text), err=True)
        for text in (*self.problems, *self.notes):
            click.echo(plain(text), err=True)


async def ask_nodes(
    client: ClusterClient,
    question: Callable[[Member], Awaitable[Any]],
    members: Iterable[Member] | None = None,
) -> Answers:
    """Ask the members, all of them by default. Raises `NotAllowedError` if none has answered, and
    one says that this command has no right to ask.
    """
    answers = Answers()
    refusals: list[NotAllowedError] = []

    async def ask(member: Member) -> None:
        try:
            answers.by_node[member["name"]] = await question(member)
        except CallError as error:
            answers.silent[member["name"]] = why(error)
            if isinstance(error, NotAllowedError):
                refusals.append(error)

    async with trio.open_nursery() as nursery:
        for member in client.status["members"] if members is None else members:
            nursery.start_soon(ask, member)
    if refusals and not answers.by_node:
        raise refusals[0]
    return answers


def why(error: CallError, seconds: float = NODE_SECONDS) -> str:
    """Why a node has not answered within `seconds`, and what that may mean; of other errors the
    first line.
    """
    if isinstance(error, TimeoutError):
        return (
            f"nothing came within {seconds:g} s; its process may be stopped, its machine cut "
            "off, or its event loop blocked by an actor's method (`understudy stack` with the "
            "node's name shows it)"
        )
    if isinstance(error, NodeUnreachableError):
        # Its own text counts the attempts, for the author of a call.
        return (
            "no connection to it could be made; its process may be stopped, or its machine cut off"
        )
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def inspection(client: ClusterClient, member: Member, seconds: float = 0.0) -> Any:
    """The inspection service of a member, which has `seconds` and `NODE_SECONDS` to answer."""
    service = inspection_of(client.endpoint, member["name"], member["incarnation"])
    return service.options(timeout=seconds + NODE_SECONDS)


async def find_actor(client: ClusterClient, name: str, *, or_node: bool = False) -> Member:
    """The member on which an actor is, also one that is no registered name and is known to its
    node only. Raises ActorNotFoundError, with what its supervisor says of it, or with the nearest
    name there is. `or_node`: the user may have meant a node, and there is none of that name.
    """
    members: dict[str, Member] = {one["name"]: one for one in client.status["members"]}
    with trio.move_on_after(STORE_SECONDS), suppress(StoreError, CallError):
        # Without the store, which may be on a node that is blocked, the nodes are asked alone.
        address = await client.names.find(name)
        if address is not None and address.node in members:
            return members[address.node]
    answers = await ask_nodes(client, lambda member: inspection(client, member).present([name]))
    for node, found in answers.by_node.items():
        if found:
            return members[node]
    text = f"no actor called {name!r} is on a node that answers"
    if or_node:
        text = f"{text}, and no node has that name"
    if supervised := await _state_of_child(client, name):
        raise ActorNotFoundError(f"{text}: {supervised}", actor=name)
    alike = await ask_nodes(client, lambda member: inspection(client, member).near(name))
    names = {one for found in alike.by_node.values() for one in found}
    if or_node:
        names |= members.keys()
    near = difflib.get_close_matches(name, sorted(names), n=1)
    if near:
        text = f"{text}; did you mean {near[0]!r}?"
    if answers.silent:
        text = f"{text} ({', '.join(sorted(answers.silent))} did not answer)"
    raise ActorNotFoundError(f"{text}{await _ended(client, name)}", actor=name)


async def _ended(client: ClusterClient, name: str) -> str:
    """What the store still has of `name`, as a clause: a node that has ended, or an actor that has
    logged on one; "" if nothing.
    """
    alive = {(one["name"], one["incarnation"]) for one in client.status["members"]}
    with trio.move_on_after(STORE_SECONDS), suppress(StoreError, CallError):
        gone = [one for one in await archived_nodes(client.store) if tuple(one.node) not in alive]
        # The latest first: an earlier one was told of when it was the latest.
        for one in reversed(gone):
            if one.node.name == name:
                return (
                    f"; node {name} has ended: it wrote its last lines at {iso(one.until)[:-6]}Z, "
                    f"and `understudy logs {name}` shows them"
                )
        for one in reversed(gone[-MOST_ENDED:]):
            if any(line.actor == name for line in await archived_lines(client.store, one.node)):
                return (
                    f"; node {one.node.name}, on which it ran, has ended: `understudy logs {name}` "
                    "shows its last lines"
                )
    return ""


async def _state_of_child(client: ClusterClient, name: str) -> str:
    """What its supervisor says of a child that has no actor at the moment; "" if nobody does."""
    members = [NodeId(one["name"], one["incarnation"]) for one in client.status["members"]]
    tree = await ask_for_tree(client.endpoint, client.names, members, client.status["cluster"])
    for supervisor in tree.walk():
        for child in supervisor.children:
            if child.name == name and child.node is None:
                last = "" if child.last_exit is None else f"; last exit: {child.last_exit}"
                return plain(f"its supervisor {supervisor.name} says {child.state}{last}")
    return ""
