"""`understudy why`: the chain of calls that an actor waits for, over all nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from runtime.command_line.connect import cluster_options, connect
from runtime.command_line.node_answers import Answers, ask_nodes, find_actor, inspection
from runtime.observation.open_calls import OpenCall, WaitGraph, WaitStep, read_calls
from runtime.printable import plain


@click.command(epilog="Example:  understudy why counter        understudy why")
@click.argument("actor", required=False)
@cluster_options
def why(
    actor: str | None, address: str, cluster: str, secret_file: Path | None, as_json: bool
) -> None:
    """Say what ACTOR waits for: the call that it runs, the call that this one awaits, and so on,
    over all nodes. Without ACTOR: find the cycles of actors that wait for each other. Exit status 1
    if there is a cycle, or a node does not answer.
    """
    graph, answers = trio.run(_ask, actor, address, cluster, secret_file)
    if actor is None:
        steps: list[WaitStep] = []
        cycles = list(graph.cycles())
    else:
        steps, cycle = graph.explain(actor)
        cycles = [cycle] if cycle else []
    if as_json:
        facts: dict[str, Any] = {
            "actor": actor,
            "steps": [attrs.asdict(step) for step in steps],
            "cycles": cycles,
            "left_out_by_nodes": answers.left_out,
            "silent": answers.silent,
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(map(plain, _lines(actor, steps, cycles))))
        answers.warn()
    raise SystemExit(1 if cycles or answers.silent else 0)


async def _ask(
    actor: str | None, address: str, cluster: str, secret_file: Path | None
) -> tuple[WaitGraph, Answers]:
    async with connect(address, cluster, secret_file, "observer") as client:
        if actor is not None:
            await find_actor(client, actor)
        answers = await ask_nodes(client, lambda member: inspection(client, member).calls())
    calls = [call for node, told in answers.by_node.items() for call in read_calls(node, told)]
    answers.left_out = {
        node: told["left_out"] for node, told in answers.by_node.items() if told["left_out"]
    }
    return WaitGraph(calls), answers


def _lines(actor: str | None, steps: list[WaitStep], cycles: list[list[str]]) -> list[str]:
    lines: list[str] = []
    for step in steps:
        lines.append(f"{step.running.text} on {step.running.node} runs{_time(step.running)}")
        if step.waits_for is None:
            lines.append(
                "  and awaits no call: `understudy stack "
                f"{step.running.actor}` shows the line where it waits"
            )
            continue
        awaited = step.waits_for
        if awaited.state == "running":
            lines.append(f"  and awaits {awaited.text}, which runs on {awaited.node}")
        else:
            lines.append(
                f"  and awaits {awaited.text}, which waits in the mailbox of {awaited.actor} on "
                f"{awaited.node}{_time(awaited)}"
            )
    if actor is not None and not steps:
        lines.append(f"{actor} runs nothing: it waits for calls")
    for cycle in cycles:
        lines.append(f"cycle: {' -> '.join([*cycle, cycle[0]])}: none of them can go on")
    if actor is None and not cycles:
        lines.append("no actors wait for each other in a cycle")
    return lines


def _time(call: OpenCall) -> str:
    return "" if call.seconds is None else f", for {call.seconds:.1f} s"
