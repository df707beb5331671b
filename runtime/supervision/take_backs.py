"""Take-backs: what a node has started for a task that has no handle of it is stopped again.

A take-back is a one-way call: once it is on a link, it arrives, or the other node has ended. One
that a link has no room for in the time that its task can wait is owed: it is sent by the node
itself, however long the two nodes are cut off from each other. Without it the actor would run on
for ever, because no task knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from actors.errors import ActorNotFoundError, CallError, NodeDiedError, NodeDrainingError
from actors.identifiers import NodeId
from actors.own_logger import own_logger

MOST_OWED = 1024
"""Take-backs that are owed at once: so many starts are remembered by their nodes in any case."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts to send one, after those that have failed."""

logger = own_logger("understudy.supervision")


class TakeBacks:
    """The take-backs of one node. `is_gone(node)`: True once that incarnation has ended, and with
    it what it has started. `seconds`: for which a task waits for its own. What is owed is sent by
    tasks in `nursery`.
    """

    def __init__(
        self, nursery: trio.Nursery, is_gone: Callable[[NodeId], bool], seconds: float
    ) -> None:
        self._nursery = nursery
        self._is_gone = is_gone
        self._seconds = seconds
        self._has_dropped = False
        self.owed = 0
        """How many are owed."""

    async def send(self, node: NodeId, method: Any, *args: object) -> None:
        """Call a method of a node's service one way, by which it stops what it has started, or
        starts yet. Waits for a short time, and raises nothing, so that no error takes the place of
        the one that is being raised.
        """
        sent = False
        with trio.CancelScope(shield=True), trio.move_on_after(self._seconds):
            sent = await _is_sent(method, args)
        if not sent:
            self.owe(node, method, *args)

    def owe(self, node: NodeId, method: Any, *args: object) -> None:
        """Have the method called one way, as soon as that is possible."""
        if self._is_gone(node) or self._nursery.cancel_scope.cancel_called:
            return
        if self.owed >= MOST_OWED:
            if not self._has_dropped:
                self._has_dropped = True
                logger.warning(
                    "what node %s has started for tasks that were cancelled may run on: %d such "
                    "messages wait for their nodes already, and no further ones are kept",
                    node.name,
                    self.owed,
                )
            return
        self.owed += 1
        self._nursery.start_soon(self._deliver, node, method, args, name="take-back")

    async def _deliver(self, node: NodeId, method: Any, args: tuple[object, ...]) -> None:
        pause = FIRST_PAUSE
        try:
            while not self._is_gone(node) and not await _is_sent(method, args):
                await trio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            self.owed -= 1


async def _is_sent(method: Any, args: tuple[object, ...]) -> bool:
    """Return True if the message is on its way, or its node is known to have ended."""
    with suppress(CallError):
        try:
            await method.send(*args)
        except (ActorNotFoundError, NodeDiedError, NodeDrainingError):
            pass
        return True
    return False
