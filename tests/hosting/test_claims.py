"""Calls that arrive while a node claims the name of the actor that they are for."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from actors import Actor, SpawnOptions
from actors.errors import NameTakenError
from runtime import open_node
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.awaited_claims import AwaitedClaim, AwaitedClaims
from runtime.hosting.host import ActorHost, NameClaims
from runtime.node import internals_of

NAME = "speaker"


class Speaker(Actor):
    """An actor with a name."""


class Look(trio.abc.Instrument):
    """Has a call wait for the claim, and looks before each step of a task: once the actor's cell is
    there, a call that arrives must not be run before the one that waits.
    """

    def __init__(self, host: ActorHost, handled: list[int]) -> None:
        self.host = host
        self.handled = handled
        self.claim: AwaitedClaim | None = None
        self.seen = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.claim is None:
            self.claim = self.host.awaited_claims.by_name.get(NAME)
            if self.claim is None:
                return
            self.claim.calls.append(partial(self.handled.append, 1))
        if NAME in self.host.cells and not self.handled:
            self.seen += 1
            assert self.host.awaited_claims.takes(NAME)


async def test_a_call_that_arrives_when_the_cell_is_there_does_not_overtake_those_that_wait() -> (
    None
):
    async with open_node() as node:
        handled: list[int] = []
        look = Look(internals_of(node).host, handled)
        trio.lowlevel.add_instrument(look)
        try:
            await node.options(name=NAME).spawn(Speaker)
            await trio.testing.wait_all_tasks_blocked()
        finally:
            trio.lowlevel.remove_instrument(look)
        assert handled == [1]
        assert look.seen
        assert not look.host.awaited_claims.by_name


class TwoClaims:
    """Claims of one name that end when the test says so."""

    def __init__(self) -> None:
        self.ends = [trio.Event(), trio.Event()]
        self.begun = 0

    async def claim(self, *asked: object) -> int:
        """The first one succeeds, the second one fails."""
        number, self.begun = self.begun, self.begun + 1
        await self.ends[number].wait()
        if number:
            raise NameTakenError("it is taken")
        return 7


@pytest.mark.parametrize("first", [0, 1], ids=["success first", "failure first"])
async def test_calls_that_wait_for_two_claims_are_handled_once_after_the_one_that_succeeds(
    first: int,
) -> None:
    async with open_node() as node, trio.open_nursery() as nursery:
        host, claims, handled = internals_of(node).host, TwoClaims(), list[int]()
        host.claims = lambda: cast("NameClaims", claims)

        async def claim() -> None:
            with suppress(NameTakenError):
                await host._claim(
                    NAME, ActorStart(Speaker, "module:Speaker", SpawnOptions(name=NAME)), None
                )

        for _ in range(2):
            nursery.start_soon(claim)
            await trio.testing.wait_all_tasks_blocked()
        host.awaited_claims.add(NAME, partial(handled.append, 1))
        claims.ends[first].set()
        await trio.testing.wait_all_tasks_blocked()
        assert handled == ([] if first else [1])
        claims.ends[1 - first].set()
        await trio.testing.wait_all_tasks_blocked()
        assert handled == [1]
        assert not host.awaited_claims.by_name


async def test_calls_that_wait_for_a_claim_are_handled_when_the_node_has_left() -> None:
    """The claim may end too late for that, or never, where the store does not answer."""
    handled: list[int] = []
    async with trio.open_nursery() as nursery:
        claims = AwaitedClaims(nursery, ())
        claim = claims.begin(NAME)
        for number in range(3):
            claims.add(NAME, partial(handled.append, number))
        claims.close()
        assert handled == [0, 1, 2]
        assert not claims.takes(NAME)
        claims.end(NAME, claim, succeeded=False)
    assert handled == [0, 1, 2]
