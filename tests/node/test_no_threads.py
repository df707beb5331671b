"""A node whose system grants no further thread: that costs a call, or a start, and not the node."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorStartError, NotExecutedError, RemoteError
from runtime import open_node
from runtime.links.transports import Connection, SocketNetwork
from runtime.store.etcd.gateway import EtcdConnection, NotSentError
from runtime.tcp_connector import TcpConnector
from tests.limits import out_of_threads
from tests.live_pair import SECRET, Pair


class Plain(Actor):
    """Runs in threads."""

    def __init__(self) -> None:
        self.count = 0

    @method
    def add(self) -> int:
        self.count += 1
        return self.count

    @method
    async def add_twice(self) -> int:
        self.count += 1
        return await self.add()

    @method(concurrent=True)
    def beside(self) -> str:
        return "beside"


class OnLoop(Actor):
    """Needs none."""

    @method
    async def answer(self) -> int:
        return 42


async def test_a_plain_method_is_not_executed_and_the_next_call_is(pair: Pair, where: str) -> None:
    plain = await pair.here.options(on=where).spawn(Plain)
    loop = await pair.here.options(on=where).spawn(OnLoop)
    with out_of_threads():
        for call in (plain.add, plain.beside):
            with pytest.raises(NotExecutedError, match=r"not run.*no further thread"):
                await call()
        # The method itself has begun, and has changed something.
        with pytest.raises(RemoteError, match="no further thread"):
            await plain.add_twice()
        assert await loop.answer() == 42
    assert await plain.add() == 2
    assert await plain.beside() == "beside"


async def test_a_start_fails_and_says_why(pair: Pair, where: str) -> None:
    with out_of_threads(), pytest.raises(ActorStartError, match="no further thread"):
        await pair.here.options(on=where).spawn(Plain)
    plain = await pair.here.options(on=where).spawn(Plain)
    assert await plain.add() == 1


async def test_names_are_looked_up_while_threads_of_users_block_and_fail_without_any() -> None:
    async def accept(connection: Connection) -> None:
        connection.close()
        await trio.lowlevel.checkpoint()

    limiter = trio.to_thread.current_default_thread_limiter()
    async with trio.open_nursery() as nursery:
        network = SocketNetwork()
        bound = await nursery.start(network.listen, "127.0.0.1:0", accept)
        address = bound.replace("127.0.0.1", "localhost")
        borrowers = [object() for _ in range(int(limiter.total_tokens))]
        for borrower in borrowers:
            limiter.acquire_on_behalf_of_nowait(borrower)
        try:
            with trio.fail_after(20):
                (await network.connect(address)).close()
            with out_of_threads(), pytest.raises(OSError, match="no further thread"):
                await network.connect(address)
        finally:
            for borrower in borrowers:
                limiter.release_on_behalf_of(borrower)
        nursery.cancel_scope.cancel()


async def test_a_member_of_an_etcd_is_not_reached_by_its_name() -> None:
    with out_of_threads(), pytest.raises(NotSentError, match="no further thread"):
        await EtcdConnection.opened("localhost", 2379, None, TcpConnector())


async def test_a_store_on_disk_goes_on(tmp_path: Path) -> None:
    async with open_node("founder", secret=SECRET, data_dir=tmp_path) as node:
        with out_of_threads():
            loop = await node.options(name="kept").spawn(OnLoop)
            assert await loop.answer() == 42
    async with open_node("founder", secret=SECRET, data_dir=tmp_path) as node:
        assert await (await node.options(name="kept").spawn(OnLoop)).answer() == 42


class Squares(Actor):
    """A plain method for pools."""

    @method(idempotent=True)
    def square(self, number: int) -> int:
        return number * number


async def test_a_map_over_a_pool_ends_with_an_item_that_was_not_executed(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    assert [item async for item in pool.map(Squares.square, range(3))] == [0, 1, 4]
    with (
        out_of_threads(),
        trio.fail_after(60),
        pytest.raises(NotExecutedError, match="no further thread"),
    ):
        assert not [item async for item in pool.map(Squares.square, range(20))]
    assert [item async for item in pool.map(Squares.square, range(3))] == [0, 1, 4]
