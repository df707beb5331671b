"""The founding node is killed and started again on its data directory, while the others
carry on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import DirectoryUnavailableError, JoinError, LeaseLostError, StoreMismatchError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.testing import Platform
from runtime.timings import Timings
from tests.started_programs import started

SECRET = "a secret of the tests with a founder that is killed"


@attrs.frozen
class Founder:
    """A live founding node in a process of its own."""

    name: str
    incarnation: int
    address: str
    process: trio.Process


@asynccontextmanager
async def founder(
    directory: Path, listen: str = "127.0.0.1:0", where: str = ""
) -> AsyncIterator[Founder]:
    """Start one, and kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.cluster.founder_process", str(directory), listen, where]
    environment = {**os.environ, "UNDERSTUDY_SECRET": SECRET}
    async with started(command, env=environment) as (process, line):
        name, incarnation, address = line.split()
        yield Founder(name, int(incarnation), address, process)


class Ledger(Actor):
    """Tells whether it was started anew, and saves."""

    def __init__(self) -> None:
        self.entries = 0

    @method
    async def enter(self) -> int:
        self.entries += 1
        await self.save(self.entries)
        return self.entries

    @method(concurrent=True)
    async def count(self) -> int:
        return self.entries

    @method
    async def kept(self) -> object:
        return await self.saved()


@pytest.mark.timeout(240)
async def test_nodes_carry_on_while_the_founder_is_killed_and_comes_back(tmp_path: Path) -> None:
    with trio.fail_after(100):
        async with founder(tmp_path) as first:
            before = first
            joining = open_node("worker", join=first.address, secret=SECRET)
            worker = await joining.__aenter__()
            ledger = await worker.options(name="ledger").spawn(Ledger)
            unnamed = await worker.spawn(Ledger)
            assert await ledger.enter() == 1
        for number in range(2, 5):
            # Nobody serves the store; what needs none goes on.
            assert await unnamed.count() == 0
            async with founder(tmp_path) as again:
                assert again.name == before.name
                assert again.address == before.address
                assert again.incarnation > before.incarnation
                before = again
                assert await ledger.enter() == number, (
                    "the actor was not started anew, and its state was saved"
                )
                found = await worker.lookup("ledger", Ledger)
                assert await found.kept() == number
                both = sorted([(again.name, again.incarnation), ("worker", worker.incarnation)])
                async for members in worker.watch_members():
                    if [(member.name, member.incarnation) for member in members] == both:
                        break
                async with open_node("late", join=again.address, secret=SECRET) as late:
                    assert await (await late.lookup("ledger", Ledger)).count() == number
                await worker.wait_gone("late")
        await joining.__aexit__(None, None, None)


@pytest.mark.timeout(120)
async def test_a_founder_in_containers_comes_back_at_the_same_address_however_often_it_is_killed(
    tmp_path: Path,
) -> None:
    """The lease of the one before is loaded from the disk anew at each start, and nothing but the
    lock of the directory proves its end. Its address answers: the new one listens there.
    """
    async with founder(tmp_path, where="container") as first:
        before = first
    for _ in range(3):
        async with founder(tmp_path, first.address, where="container") as again:
            assert (again.name, again.address) == (first.name, first.address)
            assert again.incarnation > before.incarnation
            before = again


@pytest.mark.timeout(120)
async def test_a_founder_that_comes_back_without_its_store_is_no_longer_ours(
    tmp_path: Path,
) -> None:
    async with founder(tmp_path / "one") as first:
        joining = open_node("worker", join=first.address, secret=SECRET)
        worker = await joining.__aenter__()
        await worker.options(name="ledger").spawn(Ledger)
    async with founder(tmp_path / "other", first.address):
        with trio.fail_after(60):
            await worker.asked_to_leave.wait()
        with pytest.raises(
            LeaseLostError, match=r"counts node .* as dead: the store was begun anew"
        ):
            await joining.__aexit__(None, None, None)


@pytest.mark.timeout(120)
async def test_while_the_founder_is_away_the_store_is_away_and_no_name_is_said_not_to_exist(
    tmp_path: Path,
) -> None:
    platform = Platform(environment=SystemEnvironment(Timings(store_call=2.5)))
    async with founder(tmp_path) as first:
        joining = open_node("worker", join=first.address, secret=SECRET, platform=platform)
        worker = await joining.__aenter__()
    with pytest.raises(
        DirectoryUnavailableError,
        match="ledger could not be looked up, so it may still be running: the store cannot be "
        "reached",
    ):
        await worker.lookup("ledger")
    await joining.__aexit__(None, None, None)


async def test_a_store_of_another_cluster_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with open_node("here", cluster="one", secret=SECRET, data_dir=tmp_path) as node:
        await node.options(name="ledger").spawn(Ledger)
    with pytest.raises(StoreMismatchError, match=r"belongs to the cluster 'one', not to 'other'"):
        async with open_node("here", cluster="other", secret=SECRET, data_dir=tmp_path):
            pass
    with pytest.raises(StoreMismatchError, match="another secret"):
        async with open_node("here", cluster="one", secret="not that secret", data_dir=tmp_path):
            pass
    async with open_node("here", cluster="one", secret=SECRET, data_dir=tmp_path) as again:
        assert again.incarnation > node.incarnation


async def test_a_node_that_joins_has_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave data_dir out"):
        async with open_node(join="127.0.0.1:1", data_dir=tmp_path):
            pass


async def test_a_founder_that_is_away_when_a_node_joins_is_a_clear_error(tmp_path: Path) -> None:
    async with founder(tmp_path) as first:
        pass
    with pytest.raises(JoinError, match=f"no node answers at {first.address}"):
        async with open_node("late", join=first.address, secret=SECRET):
            pass
