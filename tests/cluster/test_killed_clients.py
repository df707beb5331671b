"""A process on this machine that has joined as a client and is killed: the kernel reports which
process is at the other end of a Unix socket, so nodes know at once that it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from actors import Actor, method
from runtime import Node, open_node
from runtime.environment import Process, SystemEnvironment
from runtime.membership.members import PROOF_DELAYS
from runtime.node import internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.waiting import until

pytestmark = pytest.mark.cluster

SECRET = "a secret for the tests of clients"

CLIENT = """
    import sys

    import trio

    from runtime import open_node


    async def main(address: str, secret: str) -> None:
        async with open_node(join=address, secret=secret, role="client") as node:
            waiter = await node.lookup("waiter")
            kept = await waiter.word.remote()
            print(await kept.fetch(), flush=True)
            print(await waiter.wait(), flush=True)


    trio.run(main, *sys.argv[1:])
"""


class Waiter(Actor):
    """Waits until it is told to go on, and knows how many calls of it were cancelled."""

    def __init__(self) -> None:
        self.goes_on = trio.Event()
        self.waiting = 0
        self.cancelled = 0

    @method(concurrent=True)
    async def wait(self) -> str:
        self.waiting += 1
        try:
            await self.goes_on.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return "went on"

    @method(concurrent=True)
    async def word(self) -> str:
        return "kept"


class Looking(SystemEnvironment):
    """Counts how often it was asked whether a process has ended. A client would be given up after
    hours.
    """

    def __init__(self) -> None:
        super().__init__(Timings(client_leases=10_000.0))
        self.looks = 0

    def has_ended(self, process: Process) -> bool:
        self.looks += 1
        return super().has_ended(process)


@asynccontextmanager
async def called(
    environment: Looking, script: Path
) -> AsyncIterator[tuple[Node, Waiter, trio.Process]]:
    """A node whose actor a client process waits for."""
    await trio.Path(script).write_text(textwrap.dedent(CLIENT))
    async with open_node("here", secret=SECRET, platform=Platform(environment=environment)) as node:
        handle = await node.options(name="waiter").spawn(Waiter)
        waiter = internals_of(node).cells[handle.address.name].instance
        assert isinstance(waiter, Waiter)
        client = await trio.lowlevel.open_process(
            [sys.executable, str(script), node.address, SECRET], stdout=subprocess.PIPE
        )
        try:
            await until(lambda: waiter.waiting == 1, "the client's call runs")
            yield node, waiter, client
        finally:
            client.kill()
            with trio.move_on_after(10, shield=True):
                await client.wait()


@pytest.mark.timeout(120)
async def test_what_a_killed_client_has_is_given_back_at_once(tmp_path: Path) -> None:
    async with called(Looking(), tmp_path / "client.py") as (node, waiter, client):
        assert len(internals_of(node).references) == 1
        client.kill()
        await until(lambda: waiter.cancelled == 1, "its call was cancelled")
        await until(lambda: len(internals_of(node).references) == 0, "its reference was released")
        assert internals_of(node).links == {}


@pytest.mark.timeout(120)
async def test_a_closed_connection_of_a_client_that_lives_is_no_death(tmp_path: Path) -> None:
    environment = Looking()
    async with called(environment, tmp_path / "client.py") as (node, waiter, client):
        [link] = internals_of(node).links.values()
        # It cannot dial again, nor does it seem to live in any other way.
        os.kill(client.pid, signal.SIGSTOP)
        looked = environment.looks
        link.drop_connection()
        await until(
            lambda: environment.looks >= looked + len(PROOF_DELAYS), "all looks found it alive"
        )
        assert waiter.cancelled == 0
        assert link.ended is None
        os.kill(client.pid, signal.SIGCONT)
        await link.connected_again()
        waiter.goes_on.set()
        assert client.stdout is not None
        said = b"".join([part async for part in client.stdout])
        assert said.split() == [b"kept", b"went", b"on"]
