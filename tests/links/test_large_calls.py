"""Large payloads between real nodes: whole over connections that are cut, and never in the way of
small calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from actors import Actor, RetryPolicy, method
from runtime.links.link import Link
from runtime.links.session import PARTS_BYTES
from runtime.links.transfers import PART
from runtime.links.transports import Connection, SocketConnection, SocketNetwork
from runtime.node import internals_of
from runtime.wire.frames import Buffer, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Peer
from tests.links.test_resume import CuttingNetwork, Fragile, pair
from tests.waiting import until

MEBIBYTE = 1024 * 1024
SIZE = 64 * MEBIBYTE


class Echo(Actor):
    """Gives back what it gets."""

    def __init__(self) -> None:
        self.count = 0

    @method
    async def echo(self, data: Any) -> Any:
        self.count += 1
        return data

    @method(idempotent=True)
    async def read(self, size: int) -> bytes:
        self.count += 1
        return bytes(size)

    @method(concurrent=True)
    async def seen(self) -> int:
        return self.count


class RandomlyCuttingNetwork(CuttingNetwork):
    """Cuts after anything between a few and many bytes, so that both requests and acknowledgements
    of answers are hit.
    """

    async def connect(self, address: str) -> Connection:
        # Both ends may dial at once, so nothing is changed for the time of a dial.
        connection: Any = await SocketNetwork.connect(self, address)
        connection.__class__ = Fragile
        if self.cutting:
            connection.budget = int(10 ** self.draw.uniform(2.8, 7.3))
            self.cuts += 1
        self.latest = connection
        return connection


@pytest.mark.parametrize("seed", range(3))
async def test_large_bytes_and_arrays_come_back_equal_over_connections_that_are_cut(
    seed: int,
) -> None:
    numpy = pytest.importorskip("numpy")
    network = RandomlyCuttingNetwork(random.Random(seed), 0, 0)
    data = random.Random(seed).randbytes(MEBIBYTE + 1) * (SIZE // MEBIBYTE)
    array = numpy.frombuffer(data[:SIZE], dtype="<u8").reshape(-1, 64)
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            home, away = await pair(nursery, network)
            echo = await home.options(name="echo").spawn(Echo)
            from_away = await away.lookup("echo", Echo)
            network.cutting = True
            assert network.latest is not None
            network.latest.close()

            async def check_bytes() -> None:
                assert await from_away.echo(data) == data

            async def check_array() -> None:
                got = await from_away.echo(array)
                assert got.dtype == array.dtype
                assert numpy.array_equal(got, array)
                got[0, 0] = 1

            async def check_small() -> None:
                for number in range(50):
                    assert await from_away.echo(number) == number

            async with trio.open_nursery() as callers:
                for check in (check_bytes, check_array, check_small):
                    callers.start_soon(check)
            assert await echo.seen() == 52
            assert network.cuts >= 2
            nursery.cancel_scope.cancel()


class Metered(SocketConnection):
    """Takes no more bytes than its network has granted."""

    network: MeteredNetwork

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        first = memoryview(buffers[0])[: self.network.granted]
        count = super().send_some((first,)) if first else 0
        self.network.granted -= count
        return count

    async def wait_writable(self) -> None:
        while not self.network.granted:
            await self.network.more.wait()
        await super().wait_writable()


class MeteredNetwork(CuttingNetwork):
    """Connections that are dialled send what was granted, and then wait."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), 0, 0)
        self.granted = 1 << 40
        self.more = trio.Event()

    def grant(self, count: int) -> None:
        self.granted += count
        self.more.set()
        self.more = trio.Event()

    async def connect(self, address: str) -> Connection:
        connection: Any = await SocketNetwork.connect(self, address)
        connection.__class__ = Metered
        connection.network = self
        return connection


class Scripted:
    """A connection that takes everything, and gives what the test tells it to."""

    def __init__(self) -> None:
        self.taken = 0
        self.tell, self._told = trio.open_memory_channel[bytes](10)

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        count = sum(map(len, buffers))
        self.taken += count
        return count

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        return await self._told.receive()

    def let_others_receive(self, act: Callable[[bytes], None]) -> None:
        return None

    def close(self) -> None:
        pass


async def test_a_transfer_larger_than_the_window_goes_on_with_each_acknowledgement() -> None:
    connection = Scripted()
    receiver = SimpleNamespace(handlers={}, link_ended=lambda link, reason: None)
    link = Link(Peer(name="peer", incarnation=1, role="node"), cast("Any", receiver))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            link.open(cast("Any", connection), 0)
            nursery.start_soon(link.run, connection, FrameReader(), [])  # type: ignore[arg-type]
            data = bytes(SIZE)
            link.post(encode_frame(Kind.CALL, b"", [data]), (data,))
            acknowledged = 0
            while connection.taken < SIZE:
                before = connection.taken
                await trio.testing.wait_all_tasks_blocked()
                assert before < connection.taken <= acknowledged + PARTS_BYTES + PART + 10_000
                acknowledged = connection.taken
                await connection.tell.send(
                    encode_frame(Kind.ACK, link.session.written.to_bytes(8, "big"))
                )
            await link.flushed()
            nursery.cancel_scope.cancel()


async def test_a_small_call_is_answered_before_an_earlier_large_one_has_arrived() -> None:
    network = MeteredNetwork()
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            home, away = await pair(nursery, network)
            await home.options(name="large").spawn(Echo)
            await home.options(name="small").spawn(Echo)
            large, small = await away.lookup("large", Echo), await away.lookup("small", Echo)
            assert [await large.echo(0), await small.echo(0)] == [0, 0]
            answered = False

            async def call_large() -> None:
                assert len(await large.echo(bytes(SIZE))) == SIZE

            async def call_small() -> None:
                nonlocal answered
                assert await small.echo(1) == 1
                answered = True

            async with trio.open_nursery() as callers:
                network.granted = 2 * MEBIBYTE
                callers.start_soon(call_large)
                await until(
                    lambda: not network.granted, "the connection has taken all it may", every=0
                )
                callers.start_soon(call_small)
                granted = 0
                while not answered:
                    if not network.granted:
                        network.grant(1_000)
                        granted += 1_000
                    await trio.lowlevel.checkpoint()
                assert granted < PART + 10_000, (
                    "the small call waited for more than the part that was being written"
                )
                network.grant(1 << 40)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mebibytes", [8, 24], ids=["kept on record", "too large for a record"])
async def test_an_answer_that_takes_longer_than_an_attempt_is_sent_once_and_arrives(
    mebibytes: int,
) -> None:
    network, size = MeteredNetwork(), mebibytes * MEBIBYTE
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            home, away = await pair(nursery, network)
            echo = await home.options(name="echo", on="away").spawn(Echo)
            assert await echo.seen() == 0
            policy = RetryPolicy(
                max_retries=10_000,
                initial_delay=0.001,
                max_delay=0.001,
                attempt_timeout=0.005,
                budget=None,
            )
            host = internals_of(away).host
            sizes: list[int] = []

            async def read() -> None:
                sizes.append(len(await echo.read.options(retry=policy)(size)))

            async with trio.open_nursery() as callers:
                network.granted = 2 * MEBIBYTE
                callers.start_soon(read)
                await until(lambda: host.counts.repeats >= 5, "the call was repeated")
                assert not sizes
                network.granted = 0
                network.grant(2 * size)
            assert (sizes, await echo.seen()) == ([size], 1)
            assert network.granted > size // 2, "no repeat was answered with a copy"
            nursery.cancel_scope.cancel()
