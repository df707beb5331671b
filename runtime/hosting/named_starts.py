"""Starts of many named actors on one node, whose names are claimed together."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from actors.actor import Actor
from actors.errors import (
    ActorStartError,
    NodeDrainingError,
    NoPlacementError,
    StoreError,
    UnderstudyError,
)
from actors.method import Address
from actors.options import SpawnOptions
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.allocations import Allocation
from runtime.hosting.awaited_claims import AwaitedClaim
from runtime.hosting.host import ActorHost
from runtime.hosting.starts import starts_at_once

CLAIMED_TOGETHER = 64
"""Names in one request to the store. Other tasks run between two of them."""


PENDING = ActorStartError("it has not been started")
"""The outcome of a start before its name is claimed."""


@attrs.frozen(eq=False)
class _NamedStart:
    """A name that is about to be claimed, for the actor at `place` in its message."""

    place: int
    name: str
    allocation: Allocation | None
    over: trio.Event
    awaited: AwaitedClaim


def may_be_claimed_together(
    cls: type[Actor], options: SpawnOptions, rows: Sequence[tuple[object, ...]]
) -> bool:
    """True for actors of which nothing runs but their names' claims when they start."""
    return options.isolation == "none" and starts_at_once(cls) and not any(rows)


@attrs.frozen(eq=False)
class NamedStarts:
    """Starts actors that are alike on the node of `host`. Those that have started are in
    `started`, also if a start is cancelled.
    """

    host: ActorHost
    start: ActorStart
    started: list[Address]

    async def start_each(self, names: Sequence[str]) -> list[Address | Exception]:
        """Start an actor for each name; returns its address, or what `ActorHost.start` raises."""
        outcomes: list[Address | Exception] = []
        for begin in range(0, len(names), CLAIMED_TOGETHER):
            outcomes += await self._start_part(names[begin : begin + CLAIMED_TOGETHER])
        return outcomes

    async def _start_part(self, names: Sequence[str]) -> list[Address | Exception]:
        host = self.host
        if host.draining:
            text = f"node {host.node.name} is leaving the cluster and starts no actors"
            return [NodeDrainingError(text, node=host.node.name) for _ in names]
        outcomes: list[Address | Exception] = []
        claims: list[_NamedStart] = []
        refused: list[int] = []
        for place, name in enumerate(names):
            # Before the claim, which other nodes see: what is refused here leaves no trace there.
            try:
                allocation = host.allocations.take(name, self.start.options.resources)
            except NoPlacementError as error:
                outcomes.append(error)
                refused.append(place)
                continue
            outcomes.append(PENDING)
            # Both before the claim, because others may see it before its answer is here.
            over, awaited = host.starts.announce(name), host.awaited_claims.begin(name)
            claims.append(_NamedStart(place, name, allocation, over, awaited))
        if claims:
            await self._claim_and_start(claims, outcomes)
        for place in refused:
            # Alone: it may be an actor of its own name that has what is missing, or a start of that
            # name whose claim is under way.
            try:
                address = await host.start(self.start, names[place])
            except UnderstudyError as error:
                outcomes[place] = error
            else:
                self.started.append(address)
                outcomes[place] = address
        return outcomes

    async def _claim_and_start(
        self, claims: Sequence[_NamedStart], outcomes: list[Address | Exception]
    ) -> None:
        """Claim these names and start their actors; `outcomes` has a place for each."""
        host, start = self.host, self.start
        names = [one.name for one in claims]
        epochs: Sequence[int | Exception] = ()
        try:
            try:
                epochs = await host.claims().claim_many(
                    names, start.class_path, start.options.resources
                )
            except StoreError as error:
                epochs = [error] * len(names)
            finally:
                for one in claims[len(epochs) :]:
                    host.awaited_claims.end(one.name, one.awaited, succeeded=False)
                    host.allocations.give_back(one.allocation)
            # Shielded: a name that is claimed and not started would stay taken. Nothing is waited
            # for in here, but the store if a start fails, which is bounded.
            with trio.CancelScope(shield=True):
                for one, epoch in zip(claims, epochs, strict=True):
                    host.awaited_claims.end(one.name, one.awaited, succeeded=isinstance(epoch, int))
                    if isinstance(epoch, Exception):
                        host.allocations.give_back(one.allocation)
                        outcomes[one.place] = epoch
                        continue
                    # No await since the claim has ended: the cell is there before a call looks for
                    # it.
                    try:
                        address = await host.start_claimed(one.name, epoch, start, one.allocation)
                    except UnderstudyError as error:
                        outcomes[one.place] = error
                    else:
                        self.started.append(address)
                        outcomes[one.place] = address
        finally:
            for one in claims:
                host.starts.on_over(one.name, one.over)
