"""`understudy timeline`: what all nodes do in the next seconds, as a file for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import trio

from actors.errors import NotExecutedError
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.files import unpacked, written_whole
from runtime.command_line.node_answers import NODE_SECONDS, Answers, Member, ask_nodes, inspection
from runtime.command_line.units import Number, PathName
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.recordings import MOST_SECONDS
from runtime.observation.timeline import NodeRecording, Timeline, estimate_clock
from runtime.printable import many, plain

ANSWERS = 8
"""How often a node is asked for its clock before the recording, and again after it."""

MOST_BYTES = 256 * 1024 * 1024
"""Of one node's recording, when it is uncompressed."""

KINDS = {
    "turn": "turn",
    "call": "call",
    "post": "message",
    "start": "start",
    "end": "end",
    "pause": "pause",
}


@click.command(epilog="Example:  understudy timeline --seconds 5 -o run.json")
@click.option("--seconds", type=Number(min=0.1, max=MOST_SECONDS), default=10.0, show_default=True)
@click.option(
    "--output",
    "-o",
    type=PathName(path_type=Path, dir_okay=False),
    default=Path("timeline.json"),
    show_default=True,
    help="The file for Perfetto.",
)
@cluster_options
def timeline(seconds: float, output: Path, chosen: ChosenCluster, as_json: bool) -> None:
    """Record what all nodes do in the next seconds, and write a file for https://ui.perfetto.dev:
    the turns and calls of actors, their starts and ends, and pauses of event loops. Nodes record
    only while this command runs. Exit status 1 if a node does not answer.
    """
    with written_whole(output) as file:
        recordings, answers = trio.run(_ask, seconds, chosen)
        drawn = Timeline(recordings)
        facts = _facts(drawn, recordings, answers)
        json.dump(drawn.trace(facts), file)
    facts = {"file": str(output), **facts}
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))
    if not as_json:
        answers.warn()
    raise SystemExit(1 if answers.silent else 0)


async def _ask(seconds: float, chosen: ChosenCluster) -> tuple[list[NodeRecording], Answers]:
    async with connect(chosen, "operator") as client:

        async def record(member: Member) -> NodeRecording:
            return await _record(client, member, seconds)

        answers = await ask_nodes(client, record)
    return [answers.by_node[node] for node in sorted(answers.by_node)], answers


async def _record(client: ClusterClient, member: Member, seconds: float) -> NodeRecording:
    """The recording of one node. Raises CallError if there is none."""
    service = inspection(client, member)
    before = await _read_clock(service)
    packed: bytes = await service.options(timeout=seconds + 2 * NODE_SECONDS).record(seconds)
    if not packed:
        raise NotExecutedError("another timeline is being recorded there")
    clock = estimate_clock([*before, *await _read_clock(service)])
    recording: dict[str, Any] = unpacked(packed, member["name"], MOST_BYTES)
    return NodeRecording(member["name"], member["incarnation"], member["pid"], clock, recording)


async def _read_clock(service: Any) -> list[tuple[float, float, float]]:
    samples: list[tuple[float, float, float]] = []
    for _ in range(ANSWERS):
        sent = trio.current_time()
        clock: float = await service.clock()
        samples.append((sent, clock, trio.current_time()))
    return samples


def _facts(drawn: Timeline, recordings: list[NodeRecording], answers: Answers) -> dict[str, Any]:
    return {
        "nodes": {
            one.node: {
                "incarnation": one.incarnation,
                "pid": one.pid,
                "clock_error_seconds": one.clock.error,
                "seconds": one.facts["ended"] - one.facts["began"],
                "events": len(one.facts["events"]),
                "left_out": one.facts["left_out"],
                "left_out_of_other_actors": one.facts["left_out_of_other_actors"],
            }
            for one in recordings
        },
        "events": drawn.counts,
        "connected_calls": drawn.flows,
        "left_out_for_lack_of_tracks": drawn.without_track,
        "silent": answers.silent,
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    counted = ", ".join(
        many(facts["events"][kind], word) for kind, word in KINDS.items() if kind in facts["events"]
    )
    lines = [
        f"{facts['file']} opens in https://ui.perfetto.dev",
        f"  {counted or 'nothing happened'}; {many(facts['connected_calls'], 'call')} connected "
        "with the turns that served them",
    ]
    for node, counts in facts["nodes"].items():
        lines.append(
            f"  node {plain(node)}: {many(counts['events'], 'event')} in "
            f"{counts['seconds']:.1f} s, "
            f"clock within {counts['clock_error_seconds'] * 1e3:.2f} ms"
        )
        if counts["left_out"]:
            lines.append(f"    {many(counts['left_out'], 'later event')} left out")
        if counts["left_out_of_other_actors"]:
            count = many(counts["left_out_of_other_actors"], "event")
            lines.append(f"    {count} of further actors left out")
    if facts["left_out_for_lack_of_tracks"]:
        lines.append(
            f"  {many(facts['left_out_for_lack_of_tracks'], 'slice')} left out: an actor did too "
            "much at once"
        )
    return lines
