"""The founding node is killed and started again on its data directory, while the others
carry on.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import DirectoryUnavailableError, JoinError, LeaseLostError, StoreMismatchError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.free_addresses import free_address
from tests.started_programs import started
from tests.waiting import until

SECRET = "a secret of the tests with a founder that is killed"


@attrs.frozen
class Founder:
    """A live founding node in a process of its own."""

    name: str
    incarnation: int
    address: str
    process: trio.Process


@asynccontextmanager
async def founder(directory: Path, listen: str = "", where: str = "") -> AsyncIterator[Founder]:
    """Start one, and kill it at the end of the block. By default it listens at any port of an
    address that no other process uses, so that its port is free when it comes back.
    """
    listen = listen or f"{free_address().rpartition(':')[0]}:0"
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
    async with founder(tmp_path, free_address(), where="container") as first:
        before = first
    for _ in range(3):
        async with founder(tmp_path, first.address, where="container") as again:
            assert (again.name, again.address) == (first.name, first.address)
            assert again.incarnation > before.incarnation
            before = again


@pytest.mark.timeout(240)
async def test_a_founder_that_comes_back_at_other_addresses_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod of Kubernetes that is replaced. One worker has joined by the founder's name, the
    other by that worker.
    """
    real, leads_to = socket.getaddrinfo, ["127.0.0.2"]

    def found(host: object, *rest: object, **options: object) -> object:
        return real(leads_to[0] if host == "founder.test" else host, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with trio.fail_after(200):
        async with AsyncExitStack() as stack:
            async with founder(tmp_path, "127.0.0.2:0") as first:
                before, port = first, first.address.rpartition(":")[2]
                open_worker = partial(open_node, listen="127.0.0.1:0", secret=SECRET)
                one = await stack.enter_async_context(
                    open_worker("one", join=f"founder.test:{port}")
                )
                two = await stack.enter_async_context(open_worker("two", join=one.address))
                ledger = await one.options(name="ledger").spawn(Ledger)
                assert await ledger.enter() == 1
            for number in range(3, 6):
                leads_to[0] = f"127.0.0.{number}"
                async with founder(tmp_path, f"{leads_to[0]}:{port}") as again:
                    assert again.address == f"{leads_to[0]}:{port}"
                    assert (again.name, again.incarnation > before.incarnation) == (
                        first.name,
                        True,
                    )
                    before = again
                    for worker in (one, two):
                        found_there = await worker.lookup("ledger", Ledger)
                        assert await found_there.enter() > 1
                        await worker.wait_for(3)
            async with founder(tmp_path, f"127.0.0.2:{port}"):
                leads_to[0] = "127.0.0.2"
                await stack.aclose()


@pytest.mark.timeout(120)
async def test_a_cluster_at_the_address_of_a_member_that_is_gone_says_nothing_about_the_store(
    tmp_path: Path,
) -> None:
    open_here = partial(open_node, listen="127.0.0.1:0", secret=SECRET)
    leave, left = trio.Event(), trio.Event()

    async def live(  # noqa: ASYNC114  it is startable, and started right below
        join: str, task_status: trio.TaskStatus[str]
    ) -> None:
        async with open_here("one", join=join) as one:
            task_status.started(one.address)
            await leave.wait()
        left.set()

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            async with founder(tmp_path) as first:
                join = first.address
                place = await nursery.start(live, join)
                two = await stack.enter_async_context(open_here("two", join=place))
                leave.set()
                await left.wait()
                # Of another cluster, at the address by which `two` has joined.
                opening = open_node("other", listen=place, secret=SECRET)
                other = await stack.enter_async_context(opening)
            refused = internals_of(other).endpoint.peers.refused
            await until(
                lambda: sum(count for _, count in refused),
                "`two` has sought its store there, and was refused",
                lambda count: count > 1,
            )
            async with founder(tmp_path):
                assert await (await two.options(name="ledger").spawn(Ledger)).enter() == 1
                assert not two.asked_to_leave.is_set()
                await stack.aclose()


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
