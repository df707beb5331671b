"""Saving from a process of an actor's own: the node commits the state, and with it the call that led to it."""

from __future__ import annotations

from typing import Any, cast

import attrs

from runtime.environment import Environment
from runtime.hosting.cell import Cell
from runtime.hosting.once import Once
from runtime.hosting.workers import Workers
from runtime.isolation.surroundings import NodeNextDoor


class SavedNextDoor(Once):
    """Asks the node. Only the node knows whose call it is that runs; here it is known whether it is the one whose turn it is."""

    def __init__(self, next_door: NodeNextDoor, workers: Workers, environment: Environment) -> None:
        # Nothing is recorded in this process, so nothing of the store's is asked for but what the node next door does.
        super().__init__(lambda: cast("Any", next_door), workers, environment)
        self._next_door = next_door

    async def save(self, cell: Cell, state: object, answer: object) -> None:
        """See `Once.save`. The calls of concurrent methods are not recorded."""
        job = self.job_running(cell)
        answers = () if answer is attrs.NOTHING else (answer,)
        in_turn = job is not None and not job.definition.concurrent
        await self._next_door.save_with(cell.address.name, cell.address.epoch, state, answers, in_turn=in_turn)
