"""Actors of the test of room, importable in node processes."""

from __future__ import annotations

from typing import cast

import trio

from actors import Actor, method
from actors.errors import NoPlacementError
from runtime.node import Node, internals_of
from tests.waiting import until


class Model(Actor):
    """Takes a GPU."""

    def __init__(self, number: int) -> None:
        self.number = number

    @method(idempotent=True)
    async def place(self) -> str:
        return self.node.name


class Placer(Actor):
    """Starts models from its node, wherever there is room."""

    @method(concurrent=True)
    async def place(self, count: int) -> tuple[list[Model], list[str]]:
        """Return the models that have started, and what the errors of the others say."""
        options = self.node.options(resources={"gpus": 1})
        started: list[Model] = []
        refused: list[str] = []

        async def start(number: int) -> None:
            try:
                started.append(await options.spawn(Model, number))
            except NoPlacementError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(start, number)
        return started, refused

    @method
    async def hear_of(self, epoch: int) -> None:
        """Return when this node has heard of all names up to this epoch."""
        lookups = internals_of(cast("Node", self.node)).lookups
        await until(
            lambda: lookups.is_following and not lookups.will_report(epoch), "it is reported"
        )
