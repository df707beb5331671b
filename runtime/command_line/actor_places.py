"""Finds the node of an actor, or says what is still known of a name that is gone."""

from __future__ import annotations

import difflib
from contextlib import suppress

import trio

from actors.errors import ActorNotFoundError, CallError, StoreError
from runtime.command_line.ends import ends_of
from runtime.command_line.node_answers import Member, ask_nodes, inspection
from runtime.identifiers import NodeId
from runtime.logs.archive import archived_lines, archived_nodes
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.node_queries import ask_for_tree
from runtime.printable import plain

MOST_ENDED = 20
"""Nodes that have ended whose last lines are searched for an actor that is gone."""

STORE_SECONDS = 1.0
"""How long the store may take to say where an actor is: then all nodes are asked."""

MOST_REASON = 200
"""Characters of the reason of an end."""


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
    """What is still known of `name`, as a clause: how it ended, if it was an actor and did not end
    in order; a node that has ended, or an actor that has logged on one; "" if nothing.
    """
    ends = await ends_of(client, name)
    if ends:
        last = ends[-1]
        reason = f"{last['kind']}: {last['reason']}".partition("\n")[0][:MOST_REASON]
        return f"; it ended on {last['node']} at {iso(last['time'])[:-6]}Z, {reason}"
    alive = {(one["name"], one["incarnation"]) for one in client.status["members"]}
    with trio.move_on_after(STORE_SECONDS), suppress(StoreError, CallError):
        gone = [one for one in await archived_nodes(client.store) if tuple(one.node) not in alive]
        # The latest first.
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
