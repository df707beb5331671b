"""Endpoints that are none, stores that go away, records that nobody wrote: the error, and what it
says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.rendezvous.handler import StoreHandler
from runtime.rendezvous.machine import Keys
from runtime.rendezvous.parameters import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    RendezvousStateError,
)
from runtime.rendezvous.registry import OpenableHandler, create_handler
from runtime.timings import Timings
from tests.free_addresses import free_address

QUICK = {
    "keep_alive_interval": 0.3,
    "keep_alive_max_attempt": 3,
    "last_call_timeout": 0,
    "close_timeout": 1,
    "connect_timeout": 0,
    "join_timeout": 20,
}


def make(backend: str, endpoint: str | Path, **options: Any) -> OpenableHandler:
    return create_handler(
        RendezvousParameters(backend, f"{endpoint}", "job", 1, 2, **{**QUICK, **options}),
        # Stores that do not answer are given up sooner.
        SystemEnvironment(Timings(store_call=1.0, etcd_attempt=1.0)),
    )


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The address of a server that speaks some other protocol."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await stream.send_all(answer)
                async for _ in stream:
                    await stream.send_all(answer)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("backend", ["understudy", "etcd"])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 64,
    ],
)
async def test_who_speaks_another_protocol_is_no_endpoint(backend: str, answer: bytes) -> None:
    async with answering(answer) as address:
        # At once, however long an endpoint is waited for at which nobody answers; but a line that
        # HTTP might begin with is no answer yet.
        patience = 0 if backend == "etcd" and answer.startswith(b"SSH") else 1000
        with (
            trio.fail_after(40),
            pytest.raises(
                RendezvousConnectionError, match=f"'job' at '{address}' cannot be reached"
            ),
        ):
            async with make(backend, address, connect_timeout=patience, join_timeout=1000):
                pass


@pytest.mark.parametrize("backend", ["understudy", "etcd"])
async def test_an_address_without_a_listener_is_no_endpoint(backend: str) -> None:
    address = free_address()
    with trio.fail_after(40), pytest.raises(RendezvousConnectionError, match=address):
        async with make(backend, address):
            pass


async def test_of_several_endpoints_the_first_that_answers_is_used() -> None:
    nobody = free_address()
    async with open_node() as node, make("understudy", f"{nobody}, {node.address}") as handler:
        assert (await handler.next_rendezvous()).world_size == 1
    with pytest.raises(RendezvousConnectionError, match=r"no node answers .*; no node answers"):
        async with make("understudy", f"{nobody},{nobody}"):
            pass


async def test_another_cluster_is_refused() -> None:
    async with open_node(cluster="ours") as node:
        with pytest.raises(RendezvousConnectionError, match="cluster"):
            async with make("understudy", node.address, cluster="theirs"):
                pass


async def test_another_secret_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ours")
    secret.chmod(0o600)
    async with open_node(secret="ours") as node:
        async with make("understudy", node.address, secret_file=str(secret)) as handler:
            assert (await handler.next_rendezvous()).world_size == 1
        secret.write_text("theirs")
        with pytest.raises(RendezvousConnectionError, match="secret"):
            async with make("understudy", node.address, secret_file=str(secret)):
                pass


async def test_a_directory_that_cannot_be_made_is_no_endpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousConnectionError, match=r"cannot use the directory .*file/job"):
        async with make("file", tmp_path / "file"):
            pass


async def test_a_file_that_nobody_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "state.000000000001").write_bytes(b"garbage")
    with pytest.raises(
        RendezvousStateError, match=r"state\.000000000001 is not the store of a rendezvous"
    ):
        async with make("file", tmp_path):
            pass


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"{}", b"\xff\x00"])
async def test_a_state_that_nobody_wrote_is_refused(tmp_path: Path, garbage: bytes) -> None:
    async with make("file", tmp_path) as handler, make("file", tmp_path) as other:
        info = await handler.next_rendezvous()
        store = cast("StoreHandler", handler)._store
        await store.put(Keys("job").state, garbage)
        with pytest.raises(
            RendezvousStateError, match=r"rendezvous/job/control/state.* cannot be understood"
        ):
            await other.next_rendezvous()
        with pytest.raises(RendezvousStateError):
            await other.is_closed()
        with pytest.raises(RendezvousStateError):
            await handler.wait_change(info.round)
        assert not await other.shutdown()


async def test_an_agent_whose_store_is_gone_hears_that_it_is_cut_off_before_its_lease_ends(
    tmp_path: Path,
) -> None:
    async with (
        open_node() as node,
        make("understudy", node.address, heartbeat_timeout=0.5) as handler,
    ):
        info = await handler.next_rendezvous()
        host = cast("StoreHandler", handler)
        # What the node has of it ends as if the store had been away for the lease's time.
        await host._store.revoke(host._presence.lease)
        with trio.fail_after(60):
            change = await handler.wait_change(info.round)
        assert change.left == info.participants
        again = await handler.next_rendezvous()
        assert (again.round, again.world_size) == (info.round + 1, 1)
        assert again.participants != info.participants


async def test_a_store_that_ends_is_an_error_for_who_joins_and_a_change_for_who_works() -> None:
    async with trio.open_nursery() as nursery:
        addresses: list[str] = []
        up, over = trio.Event(), trio.Event()

        async def serve() -> None:
            async with open_node() as node:
                addresses.append(node.address)
                up.set()
                await over.wait()

        nursery.start_soon(serve)
        await up.wait()
        async with make("understudy", addresses[0], heartbeat_timeout=0.5) as handler:
            info = await handler.next_rendezvous()
            over.set()
            with trio.fail_after(60):
                assert (await handler.wait_change(info.round)).left == info.participants
            with trio.fail_after(60), pytest.raises(RendezvousConnectionError):
                await handler.next_rendezvous()
            with pytest.raises(RendezvousError):
                await handler.is_closed()
            assert not await handler.shutdown()
