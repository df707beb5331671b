"""Answers of calls that have waited at an actor: they leave together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from actors import Actor, method
from runtime.links.transports import SocketConnection
from runtime.node import internals_of
from runtime.wire.frames import Buffer
from tests.live_pair import Pair
from tests.waiting import until

CALLS = 100


class Gate(Actor):
    """Its calls wait behind the first one, until another opens it."""

    def __init__(self) -> None:
        self.opened = trio.Event()

    @method
    async def wait(self) -> None:
        await self.opened.wait()

    @method
    async def read(self) -> int:
        return 16

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()


async def test_answers_behind_a_receive_of_one_frame_leave_together(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = await pair.here.options(on="there").spawn(Gate)
    sends = 0
    send_some = SocketConnection.send_some

    def counted(self: SocketConnection, buffers: Sequence[Buffer]) -> int:
        nonlocal sends
        sends += 1
        return send_some(self, buffers)

    answers: list[int] = []

    async def read() -> None:
        answers.append(await gate.read())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait)
        cell = internals_of(pair.there).cells[gate.address.name]
        await until(lambda: bool(cell.running), "the first call runs")
        for _ in range(CALLS):
            nursery.start_soon(read)
        await until(lambda: len(cell.mailbox or ()) == CALLS, "the others wait")
        monkeypatch.setattr(SocketConnection, "send_some", counted)
        # Its frame arrives alone, and its answer leaves at once.
        await gate.open()
    assert answers == CALLS * [16]
    assert 1 < sends <= CALLS // 5
