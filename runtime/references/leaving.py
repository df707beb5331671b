"""An owner that leaves the cluster in order: its values go to nodes that stay.

The new owner gets the value with the registers of its holders, tells these, and only then says that it is done: so the old one may end at
any moment without a holder believing that the value went with it, unless it did. Who asks the old owner meanwhile is told of the new one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from actors.errors import CallError, UnderstudyError
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity
from runtime.references.owned import OwnValues
from runtime.references.table import ReferenceTable

AT_ONCE = 8
"""Values that travel side by side."""

SETTLE_SECONDS = 2.0
"""How long to wait for those to whom references were handed on to register themselves."""

logger = logging.getLogger("understudy.references")


class Leaving:
    """See the module. `service(node, incarnation)` gives a handle of a node's `ReferenceService`."""

    def __init__(self, table: ReferenceTable, values: OwnValues, service: Callable[[str, int], Any]) -> None:
        self._table = table
        self._values = values
        self._service = service

    async def hand_over(self, staying: Callable[[], Sequence[Identity]]) -> int:
        """Give each value that others hold to one of the nodes that stay, a holder if there is one; returns how many could not be given."""
        turns = itertools.count()
        lost = 0
        limiter = trio.CapacityLimiter(AT_ONCE)

        async def give(anchor: Anchor, holders: tuple[Identity, ...]) -> None:
            nonlocal lost
            async with limiter:
                nodes = staying()
                first = [holder for holder in holders if holder in nodes]
                start = next(turns) % max(1, len(nodes))
                others = [node for node in (*nodes[start:], *nodes[:start]) if node not in first]
                for node in (*first, *others):
                    if await self._give(anchor, node):
                        return
                lost += 1

        # Who has just got a reference may not be registered yet.
        with trio.move_on_after(SETTLE_SECONDS):
            while self._table.hands_on:  # noqa: ASYNC110  the garbage collector tells, and no event
                await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            for anchor in self._table.own():
                holders = self._table.holders(anchor)
                if holders and anchor.is_settled:
                    nursery.start_soon(give, anchor, holders)
        return lost

    async def _give(self, anchor: Anchor, node: Identity) -> bool:
        identity = anchor.identity
        outcome = await self._values.outcome(anchor)
        try:
            await self._service(*node).adopt(list(identity), outcome, self._table.registers(identity), anchor.maker, anchor.site)
        except (CallError, UnderstudyError) as error:
            logger.info("value %s could not be given to node %s: %s", identity, node[0], error)
            return False
        self._table.given(anchor, node)
        return True
