"""An owner that leaves the cluster in order: its values go to nodes that stay.

The new owner gets the value with the registers of its holders, tells these, and only then says that it is done: so the old one may end at
any moment without a holder believing that the value went with it, unless it did. Who asks the old owner meanwhile is told of the new one.

The new owner may leave as well, before its answer has arrived: then nobody is left who could repeat it, and the value must not go to yet
another node. So owners that follow tell the earlier ones, like holders, before they answer the one that they have it from.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from actors.errors import OutcomeUnknownError, UnderstudyError
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity, ReferenceId
from runtime.references.owned import OwnValues
from runtime.references.table import ReferenceTable

AT_ONCE = 8
"""Values that travel side by side."""

SETTLE_SECONDS = 2.0
"""How long to wait for those to whom references were handed on to register themselves."""

AGAIN_SECONDS = 0.05
"""Until a node that may have taken a value is asked again."""

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
        tried: set[ReferenceId] = set()
        try:
            # Others may leave as well, and give what they have to this node before they know of that.
            while anchors := [anchor for anchor in self._table.own() if anchor.is_settled and anchor.identity not in tried]:
                async with trio.open_nursery() as nursery:
                    for anchor in anchors:
                        tried.add(anchor.identity)
                        if holders := self._table.holders(anchor):
                            nursery.start_soon(give, anchor, holders)
        finally:
            self._values.takes_over = False
        return lost

    async def _give(self, anchor: Anchor, node: Identity) -> bool:
        identity = anchor.identity
        outcome = await self._values.outcome(anchor)
        registers: list[tuple[str, int, int]] | None = None
        owner: Identity | None = None
        # Who registers itself meanwhile is told that this node is the owner, so the next one has to know of it as well.
        while (latest := self._table.registers(identity)) != registers:
            registers = latest
            owner = await self._taken_by(anchor, node, outcome, registers)
            if owner is None:
                return False
        assert owner is not None
        self._table.given(anchor, owner)
        return True

    async def _taken_by(self, anchor: Anchor, node: Identity, outcome: object, registers: list[tuple[str, int, int]]) -> Identity | None:
        """Who has the value now: `node`, or one to which that has given it on; None if this node has it still."""
        identity = anchor.identity
        givers = [list(giver) for giver in (self._table.identity, *self._table.givers(identity))]
        while True:
            if self._table.has_ended(node):
                # It may have had the value, and given it on: who has it now has told this node before that one ended.
                taker = self._table.taker(identity)
                if taker is None:
                    return None
                node = taker
            try:
                name, incarnation = await self._service(*node).adopt(list(identity), outcome, registers, anchor.maker, anchor.site, givers)
                return (name, incarnation) if (name, incarnation) != self._table.identity else None
            except OutcomeUnknownError as error:
                # It may have the value now, and nobody else is to have it beside it: so it is asked again.
                logger.info("whether value %s was given to node %s is not known yet: %s", identity, node[0], error)
            except UnderstudyError as error:
                logger.info("value %s could not be given to node %s: %s", identity, node[0], error)
                return None
            await trio.sleep(AGAIN_SECONDS)
