"""Asks all nodes of a cluster the same thing, side by side: none delays the others, and those that
do not answer are named.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import attrs
import click
import trio

from actors.errors import CallError, NodeNotFoundError, NodeUnreachableError, NotAllowedError
from runtime.membership.cluster_client import ClusterClient, unreached
from runtime.observation.inspection_service import inspection_of
from runtime.printable import many, plain

NODE_SECONDS = 3.0
"""How long a node may take to answer."""

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
            answers.silent[member["name"]] = why(error, unreached=unreached(client, member))
            if isinstance(error, NotAllowedError):
                refusals.append(error)

    async with trio.open_nursery() as nursery:
        for member in client.status["members"] if members is None else members:
            nursery.start_soon(ask, member)
    if refusals and not answers.by_node:
        raise refusals[0]
    return answers


def no_such_node(name: str, members: Iterable[Member], hint: str = "") -> NodeNotFoundError:
    """The error for the name of a node that is none of the members. `hint`: what to do instead; by
    default the nearest of their names, or all of them.
    """
    names = [member["name"] for member in members]
    near = difflib.get_close_matches(name, names, n=1)
    nearest = f"; did you mean {near[0]!r}?" if near else f"; its nodes are: {', '.join(names)}"
    return NodeNotFoundError(
        f"there is no node called {name!r} in the cluster{hint or nearest}", node=name
    )


def why(error: CallError, seconds: float = NODE_SECONDS, unreached: str = "") -> str:
    """Why a node has not answered within `seconds`, and what that may mean; of other errors the
    first line. `unreached`: at which addresses it is not reached, if that is known.
    """
    if unreached and isinstance(error, TimeoutError | NodeUnreachableError):
        return f"it cannot be reached from here ({unreached})"
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
