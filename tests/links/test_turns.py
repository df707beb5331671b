"""Turns of dials: a few at a time, and an address that is silent holds nobody up for long."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from runtime.links.dial_turns import CONNECT_SECONDS, MOST_DIALS, SHAKE_SECONDS, DialTurns


@pytest.fixture
def autojump() -> MockClock:
    return MockClock(autojump_threshold=0)


class Dials:
    """Dials that take their turns."""

    def __init__(self) -> None:
        self.turns = DialTurns(trio.current_time, random.Random(1).random)
        self.open = 0
        self.most = 0
        self.done = 0

    async def dial(self, connecting: float, shaking: float) -> None:
        await self.turns.wait()
        with self.turns.begin() as turn:
            self.open += 1
            self.most = max(self.most, self.open)
            await trio.sleep(connecting)
            self.turns.on_connected(turn)
            await trio.sleep(shaking)
            self.open -= 1
        self.done += 1


async def test_a_few_dials_are_open_at_once_and_all_of_them_end(autojump: MockClock) -> None:
    dials = Dials()
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(dials.dial, 0.0, 0.01)
    assert dials.done == 100
    assert dials.most == MOST_DIALS
    assert not dials.turns._waiting
    assert not dials.turns._turns


@pytest.mark.parametrize(
    ("connecting", "shaking", "seconds"), [(60.0, 0.0, CONNECT_SECONDS), (0.0, 60.0, SHAKE_SECONDS)]
)
async def test_addresses_that_are_silent_hold_others_up_for_one_turn(
    autojump: MockClock, connecting: float, shaking: float, seconds: float
) -> None:
    dials, began = Dials(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3 * MOST_DIALS):
            nursery.start_soon(dials.dial, connecting, shaking)
        await wait_all_tasks_blocked()
        with trio.fail_after(4 * seconds):
            await dials.dial(0.0, 0.0)
        assert dials.done == 1
        assert trio.current_time() - began <= 3 * seconds + 1e-6
        nursery.cancel_scope.cancel()


async def test_dials_that_are_cancelled_while_they_wait_leave_their_room_to_others(
    autojump: MockClock,
) -> None:
    dials, draw = Dials(), random.Random(2)
    scopes: list[trio.CancelScope] = []

    async def dial() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await dials.dial(0.0, draw.choice((0.0, 0.01, 0.3)))

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(dial)
        for _ in range(300):
            await trio.sleep(0.003)
            draw.choice(scopes).cancel()
    assert not dials.turns._waiting
    assert not dials.turns._turns
    assert not dials.turns._timed
