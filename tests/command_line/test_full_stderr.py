"""A node whose stderr is a pipe that nobody reads: calls go on, its lease is kept, and it ends."""

from __future__ import annotations

import logging
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio

from actors import Actor, method
from runtime import open_node
from tests.command_line.shell import Shell
from tests.metrics.scraping import scrape
from tests.waiting import until


class Talker(Actor):
    """Logs as much as it is asked to."""

    @method
    async def log(self, size: int) -> int:
        logging.getLogger("talker").error("x" * size)
        return size


@pytest.mark.cluster
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("killed"),
        # Each of its processes waits for a second for a reader.
        pytest.param("asked to leave", marks=pytest.mark.long),
    ],
)
async def test_a_node_whose_stderr_nobody_reads_goes_on(shell: Shell, end: str) -> None:
    secret = shell.place / "secret"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    with trio.fail_after(50):
        worker = await _go_on(shell, secret)
        if end == "asked to leave":
            worker.send_signal(signal.SIGTERM)
            wait = partial(worker.wait, 30)
            assert await trio.to_thread.run_sync(wait, abandon_on_cancel=True) == 0


async def _go_on(shell: Shell, secret: Path) -> subprocess.Popen[str]:
    """A node whose stderr is full, and has been long enough for its lease to be renewed."""
    options = ("--name", "w1", "--listen", "127.0.0.1:0", "--metrics", "0")
    worker, told = await trio.to_thread.run_sync(
        partial(shell.start_node, *options, "--secret-file", str(secret))
    )

    async def renewals() -> float:
        found = await scrape(told["metrics"])
        return found.get("understudy_lease_renewal_seconds_count", {}).get((), 0)

    async with open_node("test", join=told["address"], secret="5e" * 32) as node:
        there = node.options(on="w1")
        talker = await there.spawn(Talker)
        # Its lines come through the node.
        apart = await there.options(isolation="process").spawn(Talker)
        for size in (10 * 2**20, *(50_000,) * 100):
            assert await talker.log(size) == size
            assert await apart.log(size) == size
        # The pipe holds 64 KiB: since long, nothing more is written.
        before = await renewals()
        await until(renewals, "the lease is renewed", lambda found: found > before, every=0.2)
    return worker
