"""Moving the values of a node that leaves the cluster to nodes that stay.

The new owner receives the value with the registers of its holders, notifies the holders, and
answers only then. So the old owner may end at any moment, and no holder takes the value for lost
unless it is. Nodes that ask the old owner meanwhile are referred to the new one.

The new owner may leave as well before its answer has arrived. Then no node is left that could
repeat the answer, and the old owner must not give the value to a third node. So later owners notify
all earlier ones, as they notify holders, before they answer the node that gave them the value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import trio

from actors.errors import OutcomeUnknownError, UnderstudyError
from actors.identifiers import NodeId, ReferenceId
from actors.own_logger import own_logger
from runtime.references.owned_values import OwnedValues
from runtime.references.table import Effect, ReferenceState, ReferenceTable

AT_ONCE = 8
"""How many values are moved at the same time."""


WITHOUT_A_TURN = 1_000
"""Values without a holder that are passed over before the other tasks have their turns."""


SETTLE_SECONDS = 2.0
"""How many seconds to wait until the receivers of forwarded references have registered."""


HAND_OVER_RETRY_SECONDS = 0.05
"""Seconds until a node that may have taken a value is asked again."""


logger = own_logger("understudy.references")


class HandOver:
    """Moves the values of a node that leaves to nodes that stay. `service(node, incarnation)` gives
    a handle of a node's `ReferenceService`; `apply` and `tidy` are those of the `ReferenceManager`.
    """

    def __init__(
        self,
        table: ReferenceTable,
        apply: Callable[[Iterable[Effect]], None],
        tidy: Callable[[], bool],
        values: OwnedValues,
        service: Callable[[str, int], Any],
    ) -> None:
        self._table = table
        self._apply = apply
        self._tidy = tidy
        self._values = values
        self._service = service

    async def hand_over(self, staying: Callable[[], Sequence[NodeId]]) -> int:
        """Move each value that other nodes hold to a node that stays, preferably a holder. Returns
        the number of values that could not be moved.
        """
        turns = itertools.count()
        lost = 0
        tried: set[ReferenceId] = set()

        async def give(state: ReferenceState, holders: tuple[NodeId, ...]) -> bool:
            nodes = staying()
            first = [holder for holder in holders if holder in nodes]
            # Round robin, so that the values of one node do not all go to the same node.
            start = next(turns) % max(1, len(nodes))
            others = [node for node in (*nodes[start:], *nodes[:start]) if node not in first]
            for node in (*first, *others):
                if await self._give(state, node):
                    return True
            return False

        async def give_some(states: Iterator[ReferenceState]) -> None:
            nonlocal lost
            for state in states:
                tried.add(state.identity)
                # Without a holder the value may end with this node.
                if holders := self._table.holders(state):
                    lost += not await give(state, holders)
                elif len(tried) % WITHOUT_A_TURN == 0:
                    await trio.lowlevel.checkpoint()

        # The receivers of recently forwarded references may not be registered yet, so their values
        # would look as if no node held them.
        with trio.move_on_after(SETTLE_SECONDS):
            while self._has_open_forks():  # noqa: ASYNC110
                # Only the garbage collector's notes show it: no event does.
                await trio.sleep(0.01)
        try:
            # Other nodes that leave may move values to this node before they learn that it leaves
            # as well.
            while states := [
                state for state in self._own() if state.is_settled and state.identity not in tried
            ]:
                left = iter(states)
                async with trio.open_nursery() as nursery:
                    # Not a task for each: there may be a million values.
                    for _ in range(min(AT_ONCE, len(states))):
                        nursery.start_soon(give_some, left)
        finally:
            # From now on values that others offer are refused: this node moves no more values on.
            self._values.take_nothing_over()
        return lost

    def _has_open_forks(self) -> bool:
        self._tidy()
        return self._table.has_open_forks

    def _own(self) -> list[ReferenceState]:
        self._tidy()
        return self._table.own()

    async def _give(self, state: ReferenceState, node: NodeId) -> bool:
        identity = state.identity
        outcome = await self._values.outcome(state)
        registers: list[tuple[str, int, int]] | None = None
        owner: NodeId | None = None
        # A holder that registers during the move gets the answer that this node is the owner. So
        # the next owner must know this holder as well: send the registers again if they changed.
        while (latest := self._table.registers(identity)) != registers:
            registers = latest
            owner = await self._taken_by(state, node, outcome, registers)
            if owner is None:
                return False
        assert owner is not None
        # No await since the registers were compared: a holder that registers from now on is sent to
        # the next owner.
        self._apply(self._table.on_given(state, owner))
        return True

    async def _taken_by(
        self,
        state: ReferenceState,
        node: NodeId,
        outcome: object,
        registers: list[tuple[str, int, int]],
    ) -> NodeId | None:
        """Return the owner: `node`, or a node to which it has moved the value; None if this node
        still owns it.
        """
        identity = state.identity
        givers = [list(giver) for giver in (self._table.identity, *self._table.givers(identity))]
        while True:
            if self._table.has_ended(node):
                # It may have had the value and moved it on. Then the next owner has notified this
                # node before that one ended.
                taker = self._table.taker(identity)
                if taker is None:
                    return None
                node = taker
            try:
                name, incarnation = await self._service(*node).adopt(
                    list(identity), outcome, registers, state.maker, state.site, givers
                )
                taker = NodeId(name, incarnation)
                return taker if taker != self._table.identity else None
            except OutcomeUnknownError as error:
                # That node may own the value now, and a value must not have two owners. So ask the
                # same node again.
                logger.info(
                    "value %s was offered to node %s, and the outcome is not known yet: %s",
                    identity,
                    node[0],
                    error,
                )
            except UnderstudyError as error:
                logger.info("value %s could not be moved to node %s: %s", identity, node[0], error)
                return None
            await trio.sleep(HAND_OVER_RETRY_SECONDS)
