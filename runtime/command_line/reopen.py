"""`understudy reopen`: let agents of a job that was closed come together again."""

from __future__ import annotations

import json
from typing import Any

import click
import trio

from runtime.command_line.units import Text
from runtime.elastic.settings import parse_pairs
from runtime.rendezvous.handler import StoreHandler
from runtime.rendezvous.parameters import RendezvousParameters, back_end_of
from runtime.rendezvous.registry import create_handler


@click.command(epilog="Example:  understudy reopen --rdzv-endpoint 127.0.0.1:7400 --rdzv-id job-17")
@click.option(
    "--rdzv-backend",
    default="",
    help="The back-end that the job's agents use. Default: the one that the endpoint belongs to.",
)
@click.option(
    "--rdzv-endpoint",
    type=Text(),
    required=True,
    metavar="HOST:PORT",
    help="Endpoint of the rendezvous.",
)
@click.option("--rdzv-id", type=Text(), required=True, help="The job's id.")
@click.option("--rdzv-conf", default="", metavar="KEY=VALUE,...", help="Options of the rendezvous.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON whether it was closed.")
def reopen(
    rdzv_backend: str, rdzv_endpoint: str, rdzv_id: str, rdzv_conf: str, as_json: bool
) -> None:
    """Open the rendezvous of a job again that was closed because the job had failed, finished or
    was shut down.

    Agents that are started then form the next round, with the job's store as it was. Nothing
    happens to a rendezvous that is open, or that is not there.
    """
    try:
        backend = rdzv_backend or back_end_of(rdzv_endpoint)
        options: dict[str, Any] = dict(parse_pairs("--rdzv-conf", rdzv_conf))
        if backend == "static":
            # The rank does not matter here, because this command takes part in no round.
            options = {"rank": "0", **options}
        handler = create_handler(
            RendezvousParameters(backend, rdzv_endpoint, rdzv_id, 1, 1, **options)
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not isinstance(handler, StoreHandler):
        raise click.UsageError(
            f"the rendezvous back-end {backend!r} has no way to open a rendezvous again"
        )
    was_closed = trio.run(_reopen, handler)
    if as_json:
        click.echo(json.dumps({"run_id": rdzv_id, "was_closed": was_closed}))
    else:
        said = "is open again" if was_closed else "was not closed, or is not there"
        click.echo(f"the rendezvous of {rdzv_id!r} {said}")


async def _reopen(handler: StoreHandler) -> bool:
    async with handler:
        return await handler.reopen()
