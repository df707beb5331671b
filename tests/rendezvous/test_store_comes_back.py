"""A store that is away for a moment: the round goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from runtime import open_node
from runtime.rendezvous.interface import RendezvousInfo
from runtime.rendezvous.parameters import RendezvousConnectionError, RendezvousParameters
from runtime.rendezvous.registry import OpenableHandler, create_handler
from runtime.testing import open_etcd
from tests.etcd import needs_etcd
from tests.free_addresses import free_address
from tests.waiting import until


def make(backend: str, endpoint: str) -> OpenableHandler:
    return create_handler(RendezvousParameters(backend, endpoint, "job", 1, 2, last_call_timeout=0))


async def is_set(info: RendezvousInfo, key: str) -> bool:
    """Set a key; False if nobody knows whether that was done, or nobody answers."""
    try:
        await info.store.set(key, b"1")
    except RendezvousConnectionError:
        await trio.sleep(0.1)
        return False
    return True


async def test_agents_go_on_when_the_node_with_the_store_comes_back_on_its_directory(
    tmp_path: Path,
) -> None:
    async with open_node("founder", data_dir=tmp_path / "store") as node:
        address = node.address
    async with trio.open_nursery() as nursery:
        leave, left = trio.Event(), trio.Event()

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            async with open_node("founder", listen=address, data_dir=tmp_path / "store"):
                task_status.started()
                await leave.wait()
            left.set()

        await nursery.start(serve)
        async with make("understudy", address) as handler:
            info = await handler.next_rendezvous()
            await info.store.set("before", b"1")
            leave.set()
            await left.wait()
            leave = trio.Event()
            await nursery.start(serve)
            with trio.fail_after(40):
                await info.store.set("after", b"2")
                assert await info.store.multi_get(["before", "after"]) == [b"1", b"2"]
                with trio.move_on_after(1) as scope:
                    await handler.wait_change(info.round)
                assert scope.cancelled_caught
                assert (await handler.next_rendezvous()).round == info.round + 1
        leave.set()


@needs_etcd
async def test_agents_go_on_when_a_member_of_etcd_is_killed() -> None:
    async with open_etcd(3) as server, make("etcd", server.address) as handler:
        info = await handler.next_rendezvous()
        for index in range(3):
            server.kill(index)
            with trio.fail_after(40):
                # A member that was just started again may not count yet: for a moment, most of them
                # may be away.
                while not await is_set(info, f"after {index}"):
                    pass
            await server.start(index)
            await server.ready()
        assert await info.store.list_keys() == ["after 0", "after 1", "after 2"]
        assert not await handler.is_closed()
        with trio.move_on_after(0.5) as scope:
            await handler.wait_change(info.round)
        assert scope.cancelled_caught


@needs_etcd
async def test_agents_of_a_cluster_over_etcd_need_none_of_its_nodes_once_they_are_in() -> None:
    async with open_etcd(1) as server, trio.open_nursery() as nursery:
        leave = trio.Event()
        addresses: list[str] = []

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            async with open_node(store=server.address) as node:
                addresses.append(node.address)
                task_status.started()
                await leave.wait()

        await nursery.start(serve)
        async with make("understudy", addresses[0]) as handler:
            info = await handler.next_rendezvous()
            leave.set()
            await trio.sleep(0.5)
            await info.store.set("key", b"1")
            assert (await handler.next_rendezvous()).round == info.round + 1


async def waited_for(log: pytest.LogCaptureFixture, text: str) -> None:
    """Until it has been said that an agent is waited for."""
    await until(lambda: text in log.text, f"the log says {text!r}")


async def test_a_node_that_is_started_a_little_later_is_waited_for_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = free_address()
    async with trio.open_nursery() as nursery:
        opened = trio.Event()

        async def come() -> None:
            async with make("understudy", address) as handler:
                assert (await handler.next_rendezvous()).world_size == 1
            opened.set()

        nursery.start_soon(come)
        await waited_for(caplog, "Connection refused")
        assert "trying again for 30 s" in caplog.text
        async with open_node(listen=address):
            with trio.fail_after(60):
                await opened.wait()
    assert caplog.text.count("trying again") == 1, "once is enough"


@pytest.mark.long
@needs_etcd
async def test_an_etcd_that_is_away_is_waited_for_by_who_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        open_etcd(1) as server,
        open_node(store=server.address) as node,
        trio.open_nursery() as nursery,
    ):
        opened: list[str] = []
        done = trio.Event()

        async def come(backend: str, endpoint: str) -> None:
            # Without patience for an endpoint at which nobody answers: the node does.
            patience = 0 if backend == "understudy" else 30
            async with create_handler(
                RendezvousParameters(backend, endpoint, backend, 1, 2, connect_timeout=patience)
            ):
                opened.append(backend)
                if len(opened) == 2:
                    done.set()

        server.kill(0)
        nursery.start_soon(come, "etcd", server.address)
        nursery.start_soon(come, "understudy", node.address)
        await waited_for(caplog, "the rendezvous of 'etcd' at")
        await waited_for(caplog, "the rendezvous of 'understudy' at")
        await server.start(0)
        with trio.fail_after(60):
            await done.wait()
