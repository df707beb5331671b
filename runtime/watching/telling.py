"""The word of ends: how what ends here is told to the nodes that want to know, and how other nodes are reached at all."""

from __future__ import annotations

from collections import deque

import attrs
import trio

from actors.errors import CallError, StoreError
from actors.supervision import ExitReason
from runtime.calls.station import Station
from runtime.membership.members import Members
from runtime.watching.service import WATCHING_SERVICE, Told, WatchingService
from runtime.watching.tables import Node

ASK_AGAIN = 0.1
"""Seconds between two attempts to reach a node that lives and does not answer."""

MOST_TOGETHER = 200
MOST_CHARACTERS = 30_000
MOST_TRACEBACK = 20_000
"""Of what is told in one call: a message has its limits. The end of a traceback says most."""


class Others:
    """The other nodes, as one sees and reaches them."""

    def __init__(self, station: Station, members: Members) -> None:
        self._station = station
        self._members = members

    async def pause(self) -> None:
        """Wait before another attempt, or until the members change."""
        with trio.move_on_after(ASK_AGAIN):
            await self._members.wait_changed()

    def service(self, node: Node) -> WatchingService:
        """That of a node."""
        service: WatchingService = self._station.system_handle(WatchingService, WATCHING_SERVICE, *node)
        return service

    def is_gone(self, node: Node) -> bool:
        """True if that incarnation has certainly ended; one that is newer than our view may only just have come."""
        if self._members.is_dead(node):
            return True
        seen = self._members.find(node[0])
        return (seen is None or seen.member.incarnation != node[1]) and self._members.revision >= node[1]

    async def has_ended(self, node: Node) -> bool:
        """Like `is_gone`, by what the store says now. An incarnation is a revision of the store: one that is beyond its latest was never
        given to anybody, whatever a peer has said, and would be waited for without end.
        """
        if not self.is_gone(node) and self._members.revision < node[1]:
            try:
                await self._members.caught_up(node[1])
            except (CallError, StoreError):
                return False
            return self.is_gone(node) or self._members.revision < node[1]
        return self.is_gone(node)


class Telling:
    """What has ended on this node and is still to be told to others: in order, until each has heard of it or is no more."""

    def __init__(self, others: Others, here: Node, nursery: trio.Nursery) -> None:
        self._others = others
        self._here = here
        self._nursery = nursery
        self._untold: dict[Node, deque[Told]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._untold.values()))

    def tell(self, node: Node, end: Told) -> None:
        """Tell a node of one end, soon."""
        untold = self._untold.get(node)
        if untold is not None:
            untold.append(end)
        elif not self._others.is_gone(node):
            self._untold[node] = deque([end])
            self._nursery.start_soon(self._tell_all, node, name=f"ends for {node[0]}")

    async def _tell_all(self, node: Node) -> None:
        untold = self._untold[node]
        try:
            while untold and not await self._others.has_ended(node):
                some = _some(untold)
                try:
                    await self._others.service(node).tell(some, *self._here)
                except (CallError, StoreError):
                    await self._others.pause()
                else:
                    for _ in some:
                        untold.popleft()
        finally:
            del self._untold[node]


def short(reason: ExitReason) -> ExitReason:
    """The reason, in a length that can be told."""
    if len(reason.text) + len(reason.traceback) <= MOST_TRACEBACK:
        return reason
    return attrs.evolve(reason, text=reason.text[: MOST_TRACEBACK // 2], traceback=reason.traceback[-MOST_TRACEBACK // 2 :])


def _some(untold: deque[Told]) -> list[Told]:
    """As many of the first as one call can tell of."""
    some: list[Told] = []
    size = 0
    for name, epoch, reason in untold:
        size += len(name) + len(reason.text) + len(reason.traceback)
        if some and (size > MOST_CHARACTERS or len(some) >= MOST_TOGETHER):
            break
        some.append((name, epoch, reason))
    return some
