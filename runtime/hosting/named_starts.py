"""Starts of many named actors on one node, whose names are claimed together."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from actors.actor import Actor
from actors.errors import NodeDrainingError, StoreError, UnderstudyError
from actors.method import Address
from actors.options import SpawnOptions
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.host import ActorHost
from runtime.hosting.starts import starts_at_once

CLAIMED_TOGETHER = 64
"""Names in one request to the store. Other tasks run between two of them."""


def may_be_claimed_together(
    cls: type[Actor], options: SpawnOptions, rows: Sequence[tuple[object, ...]]
) -> bool:
    """True for actors of which nothing runs but their names' claims when they start."""
    return options.isolation == "none" and starts_at_once(cls) and not any(rows)


async def start_named(
    host: ActorHost, names: Sequence[str], start: ActorStart, started: list[Address]
) -> list[Address | Exception]:
    """Start an actor for each name; returns its address, or what `ActorHost.start` raises. Those
    that have started are in `started` also if this is cancelled.
    """
    outcomes: list[Address | Exception] = []
    for begin in range(0, len(names), CLAIMED_TOGETHER):
        part = names[begin : begin + CLAIMED_TOGETHER]
        outcomes += await _start_part(host, part, start, started)
    return outcomes


async def _start_part(
    host: ActorHost, names: Sequence[str], start: ActorStart, started: list[Address]
) -> list[Address | Exception]:
    if host.draining:
        text = f"node {host.node.name} is leaving the cluster and starts no actors"
        return [NodeDrainingError(text, node=host.node.name) for _ in names]
    # Both before the claim, because others may see it before its answer is here.
    announced = [(name, host.starts.announce(name)) for name in names]
    claims = [(name, host.awaited_claims.begin(name)) for name in names]
    epochs: Sequence[int | Exception] = ()
    outcomes: list[Address | Exception] = []
    try:
        try:
            epochs = await host.claims().claim_many(
                names, start.class_path, start.options.resources
            )
        except StoreError as error:
            epochs = [error] * len(names)
        finally:
            for name, claim in claims[len(epochs) :]:
                host.awaited_claims.end(name, claim, succeeded=False)
        # Shielded: a name that is claimed and not started would stay taken. Nothing is waited for
        # in here, but the store if a start fails, which is bounded.
        with trio.CancelScope(shield=True):
            for (name, claim), epoch in zip(claims, epochs, strict=True):
                host.awaited_claims.end(name, claim, succeeded=isinstance(epoch, int))
                if isinstance(epoch, Exception):
                    outcomes.append(epoch)
                    continue
                # No await since the claim has ended: the cell is there before a call looks for it.
                try:
                    address = await host.start_claimed(name, epoch, start)
                except UnderstudyError as error:
                    outcomes.append(error)
                else:
                    started.append(address)
                    outcomes.append(address)
    finally:
        for name, over in announced:
            host.starts.on_over(name, over)
    return outcomes
