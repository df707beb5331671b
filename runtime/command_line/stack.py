"""`understudy stack`: what the tasks and threads of a node, or of one actor, are doing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import trio

import runtime
from actors.errors import CallError, NodeUnreachableError
from runtime.command_line.actor_places import find_actor
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import Member, ask_nodes, inspection, why
from runtime.command_line.units import Text
from runtime.membership.cluster_client import ClusterClient, unreached
from runtime.printable import many, plain

RUNTIME = str(Path(runtime.__file__).parent)

NOTHING: dict[str, Any] = {"tasks": [], "tasks_left_out": 0, "threads": [], "threads_left_out": 0}


@click.command(epilog="Example:  understudy stack counter        understudy stack w1 --all")
@click.argument("name", type=Text())
@click.option("--all", "show_all", is_flag=True, help="Also the runtime's own tasks.")
@cluster_options
def stack(name: str, show_all: bool, chosen: ChosenCluster, as_json: bool) -> None:
    """Show where the tasks of the node or actor NAME wait, line by line, and what its threads
    run. Needs no right to trace the process.
    """
    facts = trio.run(_ask, name, chosen)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        lines = _lines(facts, show_all=show_all)
        click.echo("\n".join(plain(line.expandtabs()) for line in lines))


async def _ask(name: str, chosen: ChosenCluster) -> dict[str, Any]:
    async with connect(chosen, "observer") as client:
        members = {member["name"]: member for member in client.status["members"]}
        member = members.get(name)
        actor = None
        if member is None:
            actor, member = name, await find_actor(client, name, or_node=True)
        failure: CallError | None = None
        answer: dict[str, Any] = {}
        try:
            answer = await inspection(client, member).stacks(actor)
        except CallError as error:
            failure = error
        if failure is not None:
            blocked = await _blocked(client, member)
            if blocked is None:
                reasons = why(failure, unreached=unreached(client, member))
                raise NodeUnreachableError(
                    f"node {member['name']} did not answer: {reasons}", node=member["name"]
                ) from failure
            answer = {"blocked": blocked}
        return {"node": member["name"], "pid": member["pid"], "actor": actor, **NOTHING, **answer}


async def _blocked(client: ClusterClient, member: Member) -> dict[str, Any] | None:
    """What blocks the loop of a member that does not answer, as the other member with the
    latest report says; `told` is the name of that member.
    """
    place = member["name"], member["incarnation"]
    others = [one for one in client.status["members"] if one["name"] != member["name"]]
    answers = await ask_nodes(client, lambda one: inspection(client, one).blocked(*place), others)
    found = [{**facts, "told": node} for node, facts in answers.by_node.items() if facts]
    return min(found, key=lambda facts: facts["age"], default=None)


def _lines(facts: dict[str, Any], *, show_all: bool) -> list[str]:
    actor = facts["actor"]
    lines = [f"node {facts['node']}, pid {facts['pid']}"]
    if "blocked" in facts:
        return [*lines, "", *_of_blocked(facts["blocked"], show_all)]
    hidden = 0
    for task in facts["tasks"]:
        # A task of an isolated actor on its node is the runtime's, which looks after the process.
        of_runtime = not task["actor"] or ("process" in facts and not task["method"])
        if of_runtime and not show_all:
            hidden += 1
            continue
        lines += ["", _title(task), *_frames(task["stack"], show_all)]
    process = facts.get("process")
    if process is not None:
        lines += ["", *_of_process(actor, process, show_all)]
    elif actor is not None and not facts["tasks"]:
        lines += ["", f"{actor} runs nothing and has no tasks of its own"]
    for thread in facts["threads"]:
        if thread["actor"] == actor or (actor is None and (thread["actor"] or show_all)):
            what = f"{thread['actor']} in " if thread["actor"] else ""
            lines += [
                "",
                f"{what}thread {thread['thread']}",
                *_frames(_of_method(thread, show_all), show_all),
            ]
    lines += _left_out(facts, hidden)
    return lines


def _of_blocked(facts: dict[str, Any], show_all: bool) -> list[str]:
    return [
        f"its event loop has been blocked for {facts['seconds']:.1f} s by "
        f"{plain(facts['who'])}, as "
        f"node {facts['told']} heard {facts['age']:.1f} s ago: nothing else on the node runs",
        *_frames(_below_runtime(facts["stack"], show_all), show_all),
    ]


def _of_process(actor: str, process: dict[str, Any], show_all: bool) -> list[str]:
    """What an isolated actor's own process tells."""
    lines = [f"in the process of {actor}:"]
    if process.get("silent"):
        lines[0] = (
            f"in the process of {actor}, whose event loop does not answer ({process['silent']}):"
        )
    for task in process["tasks"]:
        lines += ["", _title(task), *_frames(task["stack"], show_all)]
    for thread in process["threads"]:
        if process.get("silent") or thread["actor"] or show_all:
            stack = _below_runtime(thread["stack"], show_all)
            lines += ["", f"thread {thread['thread']}", *_frames(stack, show_all)]
    if len(lines) > 1:
        return lines
    if process.get("silent"):
        return [*lines, "  its threads do not answer either, so what they run is not known"]
    return [*lines, f"  {actor} runs nothing, and has no tasks"]


def _below_runtime(stack: list[list[Any]], show_all: bool) -> list[list[Any]]:
    """A stack of a whole thread, from the last line of the runtime on that runs a user's code."""
    if show_all:
        return stack
    last = max((n for n, line in enumerate(stack) if line[0].startswith(RUNTIME)), default=-1)
    return stack[last + 1 :] or stack


def _title(task: dict[str, Any]) -> str:
    if not task["actor"]:
        return f"task {task['task']}"
    if not task["method"]:
        return f"a task of {task['actor']} ({task['task']})"
    seconds = task["seconds"]
    since = "" if seconds is None else f", for {seconds:.1f} s"
    return f"{task['actor']}.{task['method']}{since}"


def _frames(stack: list[list[Any]], show_all: bool) -> list[str]:
    """The lines of a stack; those of the runtime below a user's own as one, unless all are
    wanted.
    """
    lines: list[str] = []
    folded = False
    for file, line, function, source in stack:
        if not show_all and file.startswith(RUNTIME):
            if not folded:
                lines.append(f"  in the runtime: {function}")
            folded = True
            continue
        folded = False
        lines.append(f"  {file}:{line} in {function}" if file else f"  ... {function}")
        if source:
            lines.append(f"      {source}")
    return lines or ["  (it is about to run)"]


def _of_method(thread: dict[str, Any], show_all: bool) -> list[list[Any]]:
    """The stack of a thread, from where a plain method of an actor begins."""
    stack: list[list[Any]] = thread["stack"]
    if show_all or not thread["actor"]:
        return stack
    first = next((n for n, line in enumerate(stack) if line[0].startswith(RUNTIME)), -1)
    return stack[first + 1 :]


def _left_out(facts: dict[str, Any], hidden: int) -> list[str]:
    lines: list[str] = []
    if hidden:
        lines += ["", f"{many(hidden, 'task')} of the runtime are not shown: --all shows them"]
    if facts["tasks_left_out"]:
        lines += [f"{many(facts['tasks_left_out'], 'more task')} are left out"]
    if facts["threads_left_out"]:
        lines += [f"{many(facts['threads_left_out'], 'more thread')} are left out"]
    return lines
