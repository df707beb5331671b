"""`understudy list deaths`: what is left out of it, and what is not."""

from __future__ import annotations

import pytest
import trio
from click.testing import CliRunner

from actors import Actor, method
from runtime import open_node
from runtime.command_line.main import main
from runtime.observation.supervision_report import MOST_LOOSE


class Mortal(Actor):
    @method
    async def die(self) -> None:
        raise SystemExit(1)


async def test_the_deaths_of_actors_that_are_not_shown_are_listed_and_nothing_is_said_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SECRET", "a secret of these tests")
    async with open_node("one") as node:
        mortals = await node.spawn_many(Mortal, [()] * (MOST_LOOSE + 2))
        with pytest.raises(Exception, match="SystemExit"):
            await mortals[-1].die()
        await node.wait_ended(mortals[-1])

        given = ["list", "deaths", "--address", node.address]
        done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, given))
        assert done.exit_code == 0, done.output
        assert "SystemExit: 1" in done.stdout
        assert done.stderr == ""
