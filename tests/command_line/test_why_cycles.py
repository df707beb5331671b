"""`understudy why` on a cluster in which two actors on two nodes wait for each other."""

from __future__ import annotations

import json

import pytest
import trio
from click.testing import CliRunner, Result

from actors import Actor, method
from runtime import open_node
from runtime.command_line.main import main
from runtime.node import internals_of
from tests.waiting import until


class Side(Actor):
    def __init__(self) -> None:
        self.may_go_on = trio.Event()

    @method
    async def ask(self, other: str) -> None:
        await self.may_go_on.wait()
        await (await self.node.lookup(other, Side)).answer()

    @method
    async def answer(self) -> int:
        return 1

    @method(concurrent=True)
    async def go_on(self) -> None:
        self.may_go_on.set()


async def test_a_cycle_of_two_actors_on_two_nodes_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SECRET", "a secret of these tests")
    async with (
        open_node("one") as one,
        open_node("two", join=one.address) as two,
        trio.open_nursery() as nursery,
    ):
        left = await one.options(name="left", on="one").spawn(Side)
        right = await one.options(name="right", on="two").spawn(Side)
        cells = [
            internals_of(node).endpoint.host.cells[name]
            for node, name in ((one, "left"), (two, "right"))
        ]

        async def why(*words: str) -> Result:
            given = ["why", *words, "--address", one.address]
            return await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, given))

        # Neither method waits for its own call: two callers each have a turn of one of them.
        nursery.start_soon(left.ask, "right")
        nursery.start_soon(right.ask, "left")
        await until(
            lambda: [len(cell.running) for cell in cells], "both run", lambda found: found == [1, 1]
        )
        await left.go_on()
        await right.go_on()
        await until(
            lambda: [cell.waiting for cell in cells], "both wait", lambda found: found == [1, 1]
        )
        told = await why("--json")
        assert told.exit_code == 1, told.output
        (cycle,) = json.loads(told.output)["cycles"]
        assert sorted(cycle) == ["left", "right"]
        told = await why("left")
        assert told.exit_code == 1, told.output
        assert "left.ask on one runs" in told.output
        assert "awaits right.answer, which waits in the mailbox of right on two" in told.output
        assert "none of them can go on" in told.output
        nursery.cancel_scope.cancel()
