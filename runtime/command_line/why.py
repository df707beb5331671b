"""`understudy why`: the chain of calls that an actor waits for, over all nodes."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

import attrs
import click
import trio

from actors.errors import ActorNotFoundError, CallError, MethodNotFoundError
from runtime.command_line.actor_places import find_actor
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import Answers, ask_nodes, inspection
from runtime.command_line.units import Text
from runtime.membership.cluster_client import ClusterClient
from runtime.near_names import nearest
from runtime.observation.open_calls import OpenCall, WaitGraph, WaitStep, read_awaited, read_calls
from runtime.printable import plain


@click.command(epilog="Example:  understudy why counter        understudy why counter.add")
@click.argument("target", metavar="[ACTOR|CALL]", required=False, type=Text())
@cluster_options
def why(target: str | None, chosen: ChosenCluster, as_json: bool) -> None:
    """Say what ACTOR waits for: the call that it runs, the call that this one awaits, and so on,
    over all nodes. CALL, as ACTOR.METHOD: the same for a call of this method, which may also wait
    in the mailbox. Without either: find the cycles of actors that wait for each other. Exit status
    1 if there is a cycle, or a node does not answer.
    """
    subject, graph, answers = trio.run(_ask, target, chosen)
    queued: list[OpenCall] = []
    if subject is None:
        steps: list[WaitStep] = []
        cycles = list(graph.cycles())
    else:
        if subject.method and not graph.runs(subject.actor, subject.method):
            queued = graph.waits(subject.actor, subject.method)
        # What a call in the mailbox waits for is whatever its actor runs.
        steps, cycle = graph.explain(subject.actor, "" if queued else subject.method)
        cycles = [cycle] if cycle else []
    if as_json:
        facts: dict[str, Any] = {
            "actor": subject.actor if subject is not None else None,
            "method": subject.method if subject is not None else None,
            "waits": attrs.asdict(queued[0]) if queued else None,
            "steps": [attrs.asdict(step) for step in steps],
            "cycles": cycles,
            "left_out_by_nodes": answers.left_out,
            "silent": answers.silent,
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(
            "\n".join(map(plain, wait_lines(subject, queued, steps, cycles, answers.silent)))
        )
        answers.warn()
    raise SystemExit(1 if cycles or answers.silent else 0)


class WaitSubject(NamedTuple):
    """An actor, or its calls of one method; "" for all. `node`: where the actor is. `paused`: it
    runs nothing because its node's lease is in doubt.
    """

    actor: str
    method: str
    node: str
    paused: bool = False


async def _ask(
    target: str | None, chosen: ChosenCluster
) -> tuple[WaitSubject | None, WaitGraph, Answers]:
    async with connect(chosen, "observer") as client:
        subject = None if target is None else await _subject_of(client, target)
        answers = await ask_nodes(client, lambda member: inspection(client, member).calls())
        calls = [
            call for node, report in answers.by_node.items() for call in read_calls(node, report)
        ]
        graph = WaitGraph(
            calls,
            [
                call
                for node, report in answers.by_node.items()
                for call in read_awaited(node, report)
            ],
        )
        if (
            subject is not None
            and not graph.runs(subject.actor, subject.method)
            and subject.node not in answers.silent
        ):
            subject = await _looked_at(client, subject)
    answers.left_out = {
        node: report["left_out"] for node, report in answers.by_node.items() if report["left_out"]
    }
    return subject, graph, answers


async def _looked_at(client: ClusterClient, subject: WaitSubject) -> WaitSubject:
    """The subject with what its node says of it. Raises MethodNotFoundError, with the nearest name,
    if the actor has no method of that name: of a mistyped one it would be right, and misleading, to
    say that no call of it runs or waits.
    """
    member = next(one for one in client.status["members"] if one["name"] == subject.node)
    try:
        facts: dict[str, Any] | None = await inspection(client, member).actor(subject.actor)
    except CallError:
        # What its node has said before is shown all the same.
        return subject
    if facts is not None and facts["paused"]:
        subject = subject._replace(paused=True)
    # Of an actor that has just ended or moved, and of a node of an earlier version, it is unknown.
    methods: list[str] = (facts or {}).get("methods", [])
    if not subject.method or not methods or subject.method in methods:
        return subject
    near = nearest(subject.method, methods)
    raise MethodNotFoundError(
        f"{subject.actor} has no @method {subject.method!r}; it offers: {', '.join(methods)}"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        actor=subject.actor,
        method=subject.method,
    )


async def _subject_of(client: ClusterClient, target: str) -> WaitSubject:
    """What the user names. Raises ActorNotFoundError."""
    try:
        # First as a whole: names of actors may have dots.
        member = await find_actor(client, target)
    except ActorNotFoundError:
        actor, _, method = target.rpartition(".")
        if not actor or not method:
            raise
        # Of `actor.method` the actor is the part that can be mistyped: the error is about that.
        member = await find_actor(client, actor)
        return WaitSubject(actor, method, member["name"])
    return WaitSubject(target, "", member["name"])


def wait_lines(
    subject: WaitSubject | None,
    queued: list[OpenCall],
    steps: list[WaitStep],
    cycles: list[list[str]],
    silent: Collection[str],
) -> list[str]:
    """What is printed. `silent`: the nodes that did not answer."""
    lines: list[str] = []
    if queued:
        first = queued[0]
        lines.append(
            f"{first.text} waits in the mailbox of {first.actor} on {first.node}{_time(first)}"
        )
    for step in steps:
        lines.append(f"{step.running.text} on {step.running.node} runs{_time(step.running)}")
        if step.waits_for is None:
            known = " that a node which answered knows of" if silent else ""
            lines.append(
                f"  and awaits no call{known}: `understudy stack "
                f"{step.running.actor}` shows the line where it waits"
            )
            continue
        awaited = step.waits_for
        if awaited.state == "sent":
            lines.append(_sent(awaited, silent))
        elif awaited.state == "running":
            lines.append(f"  and awaits {awaited.text}, which runs on {awaited.node}")
        else:
            lines.append(
                f"  and awaits {awaited.text}, which waits in the mailbox of {awaited.actor} on "
                f"{awaited.node}{_time(awaited)}"
            )
    if subject is not None and subject.node in silent:
        lines.append(
            f"what {subject.actor} runs is not known: it is on node {subject.node}, which did not "
            "answer"
        )
    elif subject is not None and subject.paused:
        lines.append(
            f"{subject.actor} is paused: the lease of its node {subject.node} is in doubt, see "
            "`understudy status`"
        )
    elif subject is not None and not steps and not queued:
        lines.append(
            f"{subject.actor} has no call of {subject.method}: none runs, and none waits"
            if subject.method
            else f"{subject.actor} runs nothing: it waits for calls"
        )
    for cycle in cycles:
        # Of a named one its calls stand above.
        more = "" if subject is not None else f"; `understudy why {cycle[0]}` shows their calls"
        lines.append(f"cycle: {' -> '.join([*cycle, cycle[0]])}: none of them can go on{more}")
    if subject is None and not cycles:
        lines.append(
            "no actors wait for each other in a cycle"
            + (", as far as the nodes that answered know" if silent else "")
        )
    return lines


def _sent(call: OpenCall, silent: Collection[str]) -> str:
    """The line about a call that only the node which made it knows."""
    if call.node in silent:
        return (
            f"  and awaits {call.text} on {call.node}, which did not answer: `understudy stack "
            f"{call.node}` shows what blocks it"
        )
    return (
        f"  and awaits {call.text} on {call.node}, which reports no such call: it is under way, or "
        "the connection between the two nodes is down, see `understudy list links`"
    )


def _time(call: OpenCall) -> str:
    return "" if call.seconds is None else f", for {call.seconds:.1f} s"
