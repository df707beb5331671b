"""`understudy call`: call a method of a named actor from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import click
import trio

from actors.errors import MethodNotFoundError
from runtime.command_line.connect import cluster_options, connect


def _value(text: str) -> object:
    """An argument as JSON, or as text where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command(epilog="Example:  understudy call counter add 5")
@click.argument("actor")
@click.argument("method")
@click.argument("arguments", nargs=-1)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Seconds to wait.")
@cluster_options
def call(
    actor: str, method: str, arguments: tuple[str, ...], timeout: float, address: str, cluster: str, secret_file: Path | None, as_json: bool
) -> None:
    """Call METHOD of ACTOR and print what it returns. Arguments are JSON where they can be read as that, text otherwise."""
    result = trio.run(_call, actor, method, [_value(text) for text in arguments], timeout, address, cluster, secret_file)
    click.echo(json.dumps(result, default=repr) if as_json else result)


async def _call(
    actor: str, method: str, arguments: list[object], timeout: float, address: str, cluster: str, secret_file: Path | None
) -> object:
    async with connect(address, cluster, secret_file) as client:
        handle = await client.lookup(actor)
        try:
            bound = getattr(handle.options(timeout=timeout), method)
        except AttributeError as error:
            raise MethodNotFoundError(str(error), actor=actor, method=method) from None
        result: object = await bound(*arguments)
        return result
