"""`understudy list methods`: rates and durations by method."""

from __future__ import annotations

import json

import pytest
import trio
from click.testing import CliRunner

from actors import Actor, method
from runtime import open_node
from runtime.command_line.main import main


class Echo(Actor):
    @method
    async def echo(self, value: int) -> int:
        return value


async def test_methods_are_listed_with_their_rates_and_durations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SECRET", "a secret of these tests")
    async with open_node("one") as node, trio.open_nursery() as nursery:
        echo = await node.spawn(Echo)

        async def call() -> None:
            while True:
                await echo.echo(1)

        async def listed(*words: str) -> str:
            given = ["list", "methods", "--seconds", "0.2", "--address", node.address, *words]
            done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, given))
            assert done.exit_code == 0, done.output
            return str(done.output)

        nursery.start_soon(call)
        (row,) = json.loads(await listed("--json"))["methods"]
        assert (row["class"], row["method"]) == (f"{__name__}:Echo", "echo")
        assert row["rate"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["turn_ms"] > 0
        assert row["value"] > 0
        assert row["not_executed"] == row["unknown"] == 0
        heading, line = (await listed()).splitlines()
        assert heading.split()[:4] == ["class", "method", "rate", "p50_ms"]
        assert "echo" in line
        assert json.loads(await listed("--json", "--filter", "p99_ms>60000"))["methods"] == []
        nursery.cancel_scope.cancel()
