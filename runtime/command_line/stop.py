"""`understudy stop`: make a node leave, or stop an actor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    NodeUnreachableError,
    OutcomeUnknownError,
    StoreError,
)
from actors.identifiers import NodeId
from actors.method import Address
from actors.supervision import ExitReason
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import NODE_SECONDS, Member, inspection, no_such_node, why
from runtime.command_line.units import Number, Text
from runtime.environment import Process, SystemEnvironment, process_start
from runtime.membership.cluster_client import ClusterClient, contact_facts
from runtime.observation.open_calls import read_calls
from runtime.printable import MOST_NAMED, many

STOP_SECONDS = 60.0
"""How long what is asked may take. A supervisor ends when its children have: those of a pool may
take 30 s. A node drains for 10 s; its program may do more before it leaves.
"""

ASK_SECONDS = 10.0
"""How long a node may take to take note that it is to leave."""

LOOK_SECONDS = 0.1
"""Between two looks whether a node has left."""

OTHERS_ASKED_EVERY = 10
"""At every such look another node is asked as well: one that was killed on its way says nothing."""


@click.command(epilog="Example:  understudy stop w1        understudy stop --actor counter")
@click.argument("name", type=Text())
@click.option("--actor", is_flag=True, help="NAME is an actor, not a node.")
@click.option(
    "--timeout",
    type=Number(min=0),
    default=STOP_SECONDS,
    show_default=True,
    help="Seconds to wait until it has stopped. 0: only ask a node.",
)
@cluster_options
def stop(name: str, actor: bool, timeout: float, chosen: ChosenCluster, as_json: bool) -> None:
    """Ask the node NAME to drain and leave, or stop the actor NAME, and wait until it has. A
    supervisor restarts its actor as the child's restart type says.

    The exit status is 1 if it has not stopped in time.
    """
    if actor and not timeout:
        raise click.BadParameter(
            "a stop of an actor is always waited for; give more than 0 seconds",
            param_hint="'--timeout'",
        )
    trio.run(_stop_actor if actor else _stop_node, name, timeout, chosen)
    what, done = ("actor", "has stopped") if actor else ("node", "has left the cluster")
    click.echo(
        json.dumps({"stopped": name, "kind": what, "ended": bool(timeout)})
        if as_json
        else f"{what} {name} {done if timeout else 'was asked to stop'}"
    )


async def _stop_actor(name: str, seconds: float, chosen: ChosenCluster) -> None:
    async with connect(chosen, "operator") as client:
        try:
            found = (await client.lookup(name, seconds)).address
        except ActorNotFoundError:
            if any(member["name"] == name for member in client.status["members"]):
                raise ActorNotFoundError(
                    f"there is no actor called {name!r} in the cluster, but a node: to make that "
                    "leave, leave out --actor",
                    actor=name,
                ) from None
            raise
        service = client.endpoint.node_service(found.node, found.incarnation)
        reason = ExitReason("stopped", "by the command line")
        try:
            with _answering(f"actor {name}", found.node, seconds):
                await service.options(timeout=seconds).stop_actor(name, found.epoch, reason)
        except OutcomeUnknownError as error:
            unknown = error
        else:
            return
        # The node may have been silent, or the actor takes longer.
        doing = await _doing(client, found)
        if doing is None:
            raise unknown
        if doing:
            raise click.ClickException(
                f"actor {name} was asked to stop, and has not stopped within {seconds:g} s: "
                f"{doing}. `understudy stack {name}` shows where its tasks wait; run this "
                "command again to wait longer, with another --timeout"
            )


async def _doing(client: ClusterClient, actor: Address) -> str | None:
    """What an actor does that has been asked to stop, as a clause; "" if it has stopped meanwhile;
    None if its node does not answer.
    """
    member = {"name": actor.node, "incarnation": actor.incarnation}
    try:
        facts: dict[str, Any] | None = await inspection(client, member).actor(actor.name)
    except CallError:
        return None
    if facts is None or facts["epoch"] != actor.epoch:
        return ""
    running = [call for call in read_calls(actor.node, facts) if call.state == "running"]
    if not running:
        return "no call of it runs; its on_stop has not returned, or children of it have not ended"
    shown = (
        call.method + ("" if call.seconds is None else f" for {call.seconds:.1f} s")
        for call in running[:MOST_NAMED]
    )
    more = len(running) - MOST_NAMED
    return f"it runs {', '.join(shown)}" + (f", and {many(more, 'more call')}" if more > 0 else "")


async def _stop_node(name: str, seconds: float, chosen: ChosenCluster) -> None:
    async with connect(chosen, "operator") as client:
        members: list[Member] = client.status["members"]
        member = next((one for one in members if one["name"] == name), None)
        if member is None:
            hint = ""
            with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
                await client.lookup(name)
                hint = f", but an actor: to stop that, give --actor {name}"
            raise no_such_node(name, members, hint)
        service = client.endpoint.node_service(name, member["incarnation"])
        with _answering(f"node {name}", name, ASK_SECONDS):
            await service.options(timeout=ASK_SECONDS).leave_cluster()
        if not seconds:
            return
        with trio.move_on_after(seconds) as limit:
            await _left(client, member)
        if limit.cancelled_caught:
            raise click.ClickException(
                f"node {name} was asked to stop, and has not left the cluster within {seconds:g} "
                f"s: `understudy stack {name}` shows what runs there. A program of your own leaves "
                "when the block of its node ends, for which it waits for `node.asked_to_leave`"
            )


async def _left(client: ClusterClient, member: Member) -> None:
    """Wait until the node has left. Its farewell ends the link to it; of one that ends without a
    word the other nodes learn, or this machine knows it.
    """
    environment = SystemEnvironment()
    peers, identity = client.endpoint.peers, NodeId(member["name"], member["incarnation"])
    is_here = bool(member["host"]) and member["host"] == environment.process().host
    started = process_start(member["pid"]) if is_here else ""
    process = Process(member["host"], member["pid"], started)
    looks = 0
    while identity in peers.links and not environment.has_ended(process):
        await trio.sleep(LOOK_SECONDS)
        looks += 1
        if looks % OTHERS_ASKED_EVERY == 0:
            await _ask_others(client, identity)


async def _ask_others(client: ClusterClient, identity: NodeId) -> None:
    """Have another node say who the members are. Of those that are gone the links end."""
    other = next((one for one in client.status["members"] if one["name"] != identity.name), None)
    if other is None:
        return
    service = client.endpoint.node_service(other["name"], other["incarnation"])
    # The node that is asked may be gone, too, with the store.
    with suppress(CallError):
        client.follow((await contact_facts(service.options(timeout=NODE_SECONDS)))["members"])


@contextmanager
def _answering(what: str, node: str, seconds: float) -> Iterator[None]:
    """Say of a node that does not answer whether `what` may have been stopped all the same."""
    try:
        yield
    except (CallTimeoutError, NodeUnreachableError, DeadlineExceededError) as error:
        cls, outcome = (
            (OutcomeUnknownError, "may be stopping all the same")
            if isinstance(error, OutcomeUnknownError)
            else (NodeUnreachableError, "was not stopped")
        )
        text = f"{what} {outcome}: node {node} did not answer: {why(error, seconds)}"
        raise cls(text, node=node) from error
