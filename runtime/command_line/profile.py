"""`understudy profile`: where a node, or one actor, spends its time, as a file for speedscope."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
import trio

from actors.errors import CallError, NodeUnreachableError
from runtime.command_line.actor_places import find_actor
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.files import unpacked, written_whole
from runtime.command_line.node_answers import NODE_SECONDS, inspection, why
from runtime.command_line.units import Number, PathName, Text
from runtime.hosting.profiler import MOST_RATE, MOST_SECONDS
from runtime.membership.cluster_client import unreached
from runtime.printable import plain

SHOWN = 10
"""Functions of the summary."""

MOST_BYTES = 512 * 1024 * 1024
"""Of the file, when it is uncompressed."""


@click.command(epilog="Example:  understudy profile w1 --seconds 5 -o w1.speedscope.json")
@click.argument("name", type=Text())
@click.option("--seconds", type=Number(min=0.1, max=MOST_SECONDS), default=10.0, show_default=True)
@click.option(
    "--rate",
    type=click.IntRange(min=1, max=MOST_RATE),
    default=100,
    show_default=True,
    help="Samples in a second.",
)
@click.option(
    "--output",
    "-o",
    type=PathName(path_type=Path, dir_okay=False),
    help="The file for speedscope. Default: NAME.speedscope.json.",
)
@cluster_options
def profile(
    name: str,
    seconds: float,
    rate: int,
    output: Path | None,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Sample what the threads of the node or actor NAME run, and write a file for
    https://www.speedscope.app.
    """
    path = output or Path(f"{name.replace('/', '-')}.speedscope.json")
    with written_whole(path) as file:
        recording = trio.run(_ask, name, seconds, rate, chosen)
        recording["file"]["name"] = name
        json.dump(recording["file"], file)
    facts = {
        "file": str(path),
        **recording["facts"],
        "functions": [
            {"function": function, "seconds": spent}
            for function, spent in _own_times(recording["file"]).most_common(SHOWN)
        ],
    }
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


async def _ask(name: str, seconds: float, rate: int, chosen: ChosenCluster) -> dict[str, Any]:
    async with connect(chosen, "operator") as client:
        members = {member["name"]: member for member in client.status["members"]}
        member = members.get(name)
        actor = ""
        if member is None:
            actor, member = name, await find_actor(client, name, or_node=True)
        problem = ""
        service, waited = inspection(client, member), NODE_SECONDS
        try:
            # A silent node is reported before the time of a profile has passed.
            await service.present([])
            waited = seconds + 2 * NODE_SECONDS
            service = service.options(timeout=waited)
            packed: bytes = await service.profile(seconds, rate, actor)
            if not packed and actor:
                state = await service.options(timeout=NODE_SECONDS).state(actor)
                problem = (state or {}).get("problem", "")
        except CallError as error:
            reasons = why(error, waited, unreached(client, member))
            raise NodeUnreachableError(
                f"node {member['name']} did not answer: {reasons}",
                node=member["name"],
            ) from error
    if not packed:
        problem = problem or "another profile of it is being taken, or its process has ended"
        raise click.ClickException(f"{name} cannot be profiled now: {plain(problem)}")
    recording: dict[str, Any] = unpacked(packed, member["name"], MOST_BYTES)
    return recording


def _own_times(file: dict[str, Any]) -> Counter[str]:
    """Seconds by function, counted where it was the innermost."""
    frames = file["shared"]["frames"]
    spent: Counter[str] = Counter()
    for thread in file["profiles"]:
        for stack, weight in zip(thread["samples"], thread["weights"], strict=True):
            frame = frames[stack[-1]]
            place = f" ({frame['file']}:{frame['line']})" if "file" in frame else ""
            spent[f"{frame['name']}{place}"] += weight
    return spent


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{facts['samples']} samples; {facts['file']} opens in https://www.speedscope.app"]
    for thread in facts["threads"]:
        if thread["busy"]:
            lines.append(
                f"  thread {plain(thread['thread'])}: {thread['busy']:.1f} s busy, "
                f"{thread['idle']:.1f} s idle"
            )
    lines += [f"  {one['seconds']:7.2f} s  {plain(one['function'])}" for one in facts["functions"]]
    return lines if len(lines) > 1 else [*lines, "  nothing ran"]
