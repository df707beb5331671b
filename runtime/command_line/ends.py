"""How actors ended lately, as their nodes remember it, and the store for nodes that have ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from actors.errors import CallError, StoreError
from runtime.command_line.node_answers import NODE_SECONDS, Member, ask_nodes
from runtime.logs.archive import archived_ends
from runtime.logs.service import logs_of
from runtime.membership.cluster_client import ClusterClient


async def ends_of(client: ClusterClient, actor: str = "") -> list[dict[str, Any]]:
    """The latest ends that were not in order, of one actor if it is named, each once, the oldest
    first. Nodes that do not answer, and a store that does not, are left out.
    """
    found: dict[tuple[object, object], dict[str, Any]] = {}

    async def ask(member: Member) -> list[dict[str, Any]]:
        service = logs_of(client.endpoint, member["name"], member["incarnation"])
        answer: list[dict[str, Any]] = await service.options(timeout=NODE_SECONDS).ends(actor)
        return answer

    async def ask_store() -> None:
        # What the nodes say is shown without it; that it is away, `understudy status` tells.
        with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
            archived.extend(await archived_ends(client.store))

    archived: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_store)
        answers = await ask_nodes(client, ask)
    for end in archived:
        if not actor or end["name"] == actor:
            found[end["name"], end.get("epoch")] = end
    for ends in answers.by_node.values():
        for end in ends:
            found[end["name"], end.get("epoch")] = end
    return sorted(found.values(), key=lambda end: float(end["time"]))
