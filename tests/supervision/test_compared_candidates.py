"""Candidates that compare themselves with the singleton that runs, while that one ends."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorStartError
from actors.handle import Handle
from runtime import open_node
from runtime.supervision.singletons import CandidateComparison

SECRET = "a secret for the tests of candidates"
NAME = "leader"
begun: trio.Event
asked: trio.Event
fails: trio.Event


class Leader(Actor, CandidateComparison):
    """Fails to start on the node "here", after another candidate has begun to compare."""

    @classmethod
    async def compare(cls, running: Handle, args: tuple[object, ...]) -> None:
        asked.set()
        await cast("Leader", running).where()

    async def on_start(self) -> None:
        if self.node.name == "here":
            begun.set()
            await fails.wait()
            raise ValueError("no such device")

    @method
    async def where(self) -> str:
        return self.node.name


async def test_a_candidate_does_not_wait_for_the_answer_of_one_that_it_has_to_start() -> None:
    global begun, asked, fails
    begun, asked, fails = trio.Event(), trio.Event(), trio.Event()
    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET) as there,
        trio.open_nursery() as nursery,
    ):
        await there.wait_for(2)

        async def fail() -> None:
            with pytest.raises(ActorStartError, match="no such device"):
                await here.options(name=NAME).singleton(Leader)

        async def stand() -> None:
            await there.options(name=NAME).singleton(Leader)

        nursery.start_soon(fail)
        with trio.fail_after(30):
            await begun.wait()
            nursery.start_soon(stand)
            await asked.wait()
            fails.set()
            while True:
                try:
                    leader = await there.lookup(NAME, Leader)
                    assert await leader.where() == "there"
                    break
                except ActorStartError:
                    await trio.sleep(0.01)
