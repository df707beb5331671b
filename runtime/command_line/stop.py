"""`understudy stop`: make a node leave, or stop an actor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
import trio

from actors.errors import (
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    NodeUnreachableError,
    OutcomeUnknownError,
    StoreError,
)
from actors.supervision import ExitReason
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import NODE_SECONDS, no_such_node, why

ACTOR_SECONDS = 60.0
"""How long an actor may take to stop. A supervisor ends when its children have: those of a pool may
take 30 s.
"""

ASK_SECONDS = 10.0
"""How long a node may take to take note that it is to leave."""


@click.command(epilog="Example:  understudy stop w1        understudy stop --actor counter")
@click.argument("name")
@click.option("--actor", is_flag=True, help="NAME is an actor, not a node.")
@cluster_options
def stop(name: str, actor: bool, chosen: ChosenCluster, as_json: bool) -> None:
    """Ask the node NAME to drain and leave, or stop the actor NAME. A supervisor restarts its actor
    as the child's restart type says.
    """
    trio.run(_stop, name, actor, chosen)
    what = "actor" if actor else "node"
    click.echo(
        json.dumps({"stopped": name, "kind": what})
        if as_json
        else f"{what} {name} was asked to stop"
    )


async def _stop(name: str, actor: bool, chosen: ChosenCluster) -> None:
    async with connect(chosen, "operator") as client:
        if actor:
            found = (await client.lookup(name)).address
            service = client.endpoint.node_service(found.node, found.incarnation)
            reason = ExitReason("stopped", "by the command line")
            with _answering(f"actor {name}", found.node, ACTOR_SECONDS):
                await service.options(timeout=ACTOR_SECONDS).stop_actor(name, found.epoch, reason)
            return
        for member in client.status["members"]:
            if member["name"] == name:
                service = client.endpoint.node_service(name, member["incarnation"])
                with _answering(f"node {name}", name, ASK_SECONDS):
                    await service.options(timeout=ASK_SECONDS).leave_cluster()
                return
        hint = ""
        with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
            await client.lookup(name)
            hint = f", but an actor: to stop that, give --actor {name}"
        raise no_such_node(name, client.status["members"], hint)


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
