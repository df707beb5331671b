"""`understudy stop`: make a node leave, or stop an actor."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import click
import trio

from actors.errors import NodeNotFoundError
from actors.supervision import ExitReason
from runtime.command_line.connect import cluster_options, connect


@click.command(epilog="Example:  understudy stop w1        understudy stop --actor counter")
@click.argument("name")
@click.option("--actor", is_flag=True, help="NAME is an actor, not a node.")
@cluster_options
def stop(
    name: str, actor: bool, address: str, cluster: str, secret_file: Path | None, as_json: bool
) -> None:
    """Ask the node NAME to drain and leave, or stop the actor NAME. A supervisor restarts its actor
    as the child's restart type says.
    """
    trio.run(_stop, name, actor, address, cluster, secret_file)
    what = "actor" if actor else "node"
    click.echo(
        json.dumps({"stopped": name, "kind": what})
        if as_json
        else f"{what} {name} was asked to stop"
    )


async def _stop(
    name: str, actor: bool, address: str, cluster: str, secret_file: Path | None
) -> None:
    async with connect(address, cluster, secret_file, "operator") as client:
        if actor:
            found = (await client.lookup(name)).address
            service = client.endpoint.node_service(found.node, found.incarnation)
            await service.options(timeout=20.0).stop_actor(
                name, found.epoch, ExitReason("stopped", "by the command line")
            )
            return
        for member in client.status["members"]:
            if member["name"] == name:
                await (
                    client.endpoint.node_service(name, member["incarnation"])
                    .options(timeout=10.0)
                    .leave_cluster()
                )
                return
        names = [member["name"] for member in client.status["members"]]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; its nodes are: {', '.join(names)}"
        raise NodeNotFoundError(f"there is no node called {name!r} in the cluster{hint}", node=name)
