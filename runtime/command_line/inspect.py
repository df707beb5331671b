"""`understudy inspect`: all that is known of one actor."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import click
import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    MethodNotFoundError,
    NodeUnreachableError,
    NotAllowedError,
)
from runtime.command_line.actor_places import find_actor
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.ends import ends_of
from runtime.command_line.node_answers import inspection, why
from runtime.command_line.units import Text, size
from runtime.logs.formats import iso
from runtime.membership.cluster_client import unreached
from runtime.observation.open_calls import OpenCall, read_calls
from runtime.printable import many, plain

SHOWN_CALLS = 10

SHOWN_ENDS = 5
"""Ends of earlier epochs, the latest; `--json` has their tracebacks."""


@click.command(epilog="Example:  understudy inspect counter --json")
@click.argument("actor", type=Text())
@cluster_options
def inspect(actor: str, chosen: ChosenCluster, as_json: bool) -> None:
    """Show where ACTOR is, what it runs since when and for which caller, and what waits in its
    mailbox.
    """
    facts = trio.run(_ask, actor, chosen)
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


async def _ask(actor: str, chosen: ChosenCluster) -> dict[str, Any]:
    async with connect(chosen, "observer") as client:
        member = await find_actor(client, actor)
        ends: list[dict[str, Any]] = []
        failures: list[CallError] = []
        facts: dict[str, Any] | None = None
        state: dict[str, Any] | None = None
        saved: dict[str, Any] | None = None

        async def ask_all_nodes() -> None:
            try:
                ends.extend(await ends_of(client, actor))
            except CallError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            # Beside the rest: it waits for all nodes that do not answer.
            nursery.start_soon(ask_all_nodes)
            try:
                facts = await inspection(client, member).actor(actor)
                state = await _or_unknown(inspection(client, member).state(actor))
                saved = await _or_unknown(inspection(client, member).saved_size(actor))
            except CallError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
    if failures:
        reasons = why(failures[0], unreached=unreached(client, member))
        raise NodeUnreachableError(
            f"{actor} is on node {member['name']}, which did not answer: {reasons}",
            node=member["name"],
        ) from failures[0]
    if facts is None:
        # Between the two questions the actor has ended or moved.
        raise ActorNotFoundError(
            f"{actor} has just left node {member['name']}: try again in a moment", actor=actor
        )
    return {
        **facts,
        "saved_bytes": saved and saved["bytes"],
        "saved_problem": saved and saved["problem"],
        "ends": ends[-SHOWN_ENDS:],
        "actor_state": state,
    }


async def _or_unknown(answer: Awaitable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The answer of a node; None from a node of an earlier version, which has no such question.
    Raises CallError.
    """
    with suppress(MethodNotFoundError, NotAllowedError):
        return await answer
    return None


def _lines(facts: dict[str, Any]) -> list[str]:
    calls = read_calls(facts["node"], facts)
    running = [call for call in calls if call.state == "running"]
    waiting = [call for call in calls if call.state == "waiting"]
    lines = [
        f"{plain(facts['name'])}: {plain(facts['class'])}",
        f"  node        {facts['node']} (incarnation {facts['incarnation']})"
        + (f", in a process of its own, pid {facts['pid']}" if facts["pid"] else ""),
        f"  epoch       {facts['epoch']}" + ("" if facts["registered"] else ", no registered name"),
        f"  supervisor  {plain(facts['supervisor']) or '-'}",
        f"  state       {_state(facts)}",
        f"  served      {many(facts['served'], 'call')}",
        f"  mailbox     {facts['waiting']} of {facts['mailbox_limit']:,} calls"
        # A node of an earlier version does not say it.
        + (f", {facts['given_up']:,} given up by their callers" if facts.get("given_up") else "")
        + (
            ""
            if facts["oldest_seconds"] is None
            else f", the oldest waits for {facts['oldest_seconds']:.1f} s"
        ),
    ]
    if facts.get("argument_bytes"):
        held, limit = size(facts["argument_bytes"]), size(facts["mailbox_bytes"])
        lines.append(f"  arguments   {held} of {limit}")
    if facts["saved_bytes"] is not None:
        lines.append(f"  saved       {size(facts['saved_bytes'])}")
    elif facts["saved_problem"]:
        lines.append(f"  saved       not known: {plain(facts['saved_problem'])}")
    lines += _state_lines(facts["actor_state"])
    for end in facts["ends"]:
        lines.append(
            f"  ended       {iso(end['time'])[:-6]}Z on {plain(end['node'])}, epoch "
            f"{end.get('epoch')}: {plain(end['kind'])}: {plain(end['reason'])[:200]}"
        )
    for heading, found in (("runs", running), ("waits", waiting)):
        lines += [f"  {heading:<10}  {_call(call)}" for call in found[:SHOWN_CALLS]]
        if len(found) > SHOWN_CALLS:
            lines.append(f"  {'':<10}  and {len(found) - SHOWN_CALLS} more")
    return lines


def _state(facts: dict[str, Any]) -> str:
    if not facts["started"]:
        return "starting: on_start has not returned"
    if facts["paused"]:
        return "paused: its node's lease is in doubt, see `understudy status`"
    return "up"


def _state_lines(state: dict[str, Any] | None) -> list[str]:
    """What the actor says of its state, indented; why it says nothing; nothing without the hook."""
    if state is None or (state["text"] is None and not state["problem"]):
        return []
    if state["text"] is None:
        return [f"  says        {plain(state['problem'])}"]
    first, *others = state["text"].splitlines() or [""]
    cut = ["and more, which is not shown"] if state["is_cut"] else []
    return [f"  says        {plain(first)}", *(f"{'':14}{plain(one)}" for one in [*others, *cut])]


def _call(call: OpenCall) -> str:
    parts = [call.method]
    if call.seconds is not None:
        parts.append(f"for {call.seconds:.1f} s")
    if call.caller is not None:
        parts.append(f"called by {plain('.'.join(call.caller))}")
    elif call.from_node:
        parts.append(f"called from {plain(call.from_node)}")
    if call.left is not None:
        parts.append(f"{call.left:.1f} s until its deadline")
    return ", ".join(parts)
