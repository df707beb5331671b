"""TLS over connections that take and give as little as they like."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence

import attrs
import pytest
import trio

from runtime.links.credentials import client_context, server_context
from runtime.links.tls import RECORD, TlsConnection
from runtime.links.transports import Connection
from runtime.wire.certificates import RANDOM_BYTES, SelfSigned, certificate_hash, self_signed
from runtime.wire.handshake import Channel

IDENTITY: SelfSigned = self_signed("understudy", random.Random(3).randbytes(RANDOM_BYTES))


@attrs.define(eq=False)
class Wire:
    """One end of a connection in memory. `most` draws how many bytes a send takes; `cut` bytes
    leave, then it breaks; `change` is the number of the byte that arrives changed.
    """

    channel = Channel()
    draw: random.Random
    most: int = 1 << 30
    cut: float = float("inf")
    change: int = -1
    sent: int = 0
    tried: int = 0
    content: bytearray = attrs.field(factory=bytearray)
    changed: trio.Event = attrs.field(factory=trio.Event)
    other: Wire | None = None
    ended: bool = False
    at_most_waiting: int = 1 << 30

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        assert self.other is not None
        if self.ended or self.other.ended:
            raise ConnectionResetError("cut")
        data = b"".join(buffers)
        room = max(0, self.at_most_waiting - len(self.other.content))
        taken = bytearray(data[: min(room, self.draw.randint(0, self.most))])
        if self.sent <= self.change < self.sent + len(taken):
            taken[self.change - self.sent] ^= 0x20
        self.tried += len(taken)
        left = int(min(self.cut - self.sent, len(taken)))
        self.sent += left
        self.other.content += taken[:left]
        if self.sent >= self.cut:
            self.ended = self.other.ended = True
        self.other._notify()
        return left

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        assert self.other is not None
        while len(self.other.content) >= self.at_most_waiting and not self.ended:
            await self.other.changed.wait()

    async def receive(self) -> bytes:
        return await self._arrived(64 * 1024)

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self._arrived(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def _arrived(self, room: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.content and not self.ended:
            await self.changed.wait()
        count = self.draw.randint(1, room) if self.most >= 1 << 30 else min(self.most, room)
        data = bytes(self.content[:count])
        del self.content[:count]
        self._notify()
        return data

    def let_others_receive(self, act: Callable[[bytes], None]) -> None:
        return None

    def close(self) -> None:
        self.ended = True
        assert self.other is not None
        self.other.ended = True
        self._notify()
        self.other._notify()


def pair(seed: int, most: int = 1 << 30, waiting: int = 1 << 30) -> tuple[Wire, Wire]:
    draw = random.Random(seed)
    near, far = (Wire(draw, most, at_most_waiting=waiting) for _ in range(2))
    near.other, far.other = far, near
    return near, far


def ends(near: Wire, far: Wire) -> tuple[TlsConnection, TlsConnection]:
    return (
        TlsConnection(near, client_context()),
        TlsConnection(far, server_context(IDENTITY), IDENTITY.certificate),
    )


async def opened(near: Wire, far: Wire) -> tuple[TlsConnection, TlsConnection]:
    client, server = ends(near, far)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.shake_hands)
            nursery.start_soon(server.shake_hands)
    return client, server


async def send(connection: Connection, buffers: list[bytes], draw: random.Random) -> None:
    """As links send: what was not taken comes first the next time, more may be added to it, and
    nothing comes that waits for nobody.
    """
    out: list[memoryview] = []
    left = [memoryview(buffer) for buffer in buffers]
    while left or out:
        while left and draw.random() < 0.6:
            out.append(left.pop(0))
        if not out:
            continue
        count = connection.send_some(out)
        if not count:
            await connection.wait_writable()
        while count:
            step = min(count, len(out[0]))
            out[0] = out[0][step:]
            count -= step
            if not out[0]:
                out.pop(0)


async def test_both_ends_know_the_same_certificate() -> None:
    client, server = await opened(*pair(0))
    assert client.channel == server.channel == Channel(certificate_hash(IDENTITY.certificate))


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 12))]
)
async def test_all_that_is_sent_arrives_once_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    most = draw.choice((7, 1000, 100_000, 1 << 30))
    client, server = await opened(*pair(seed, most, draw.choice((100, 5000, 1 << 30))))
    sizes = [draw.choice((5, 40, 700, RECORD, RECORD + 1, 40_000)) for _ in range(12)]
    if most > 7:
        sizes.append(700_000)
    buffers = [draw.randbytes(size) for size in sizes]
    expected, found = b"".join(buffers), bytearray()

    async def read(connection: Connection) -> None:
        while len(found) < len(expected):
            if draw.random() < 0.5:
                found.extend(await connection.receive())
            else:
                place = memoryview(bytearray(draw.choice((1, 100, 50_000, 300_000))))
                found.extend(place[: await connection.receive_into(place)])

    writer, reader = draw.sample((client, server), 2)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, writer, buffers, draw)
            nursery.start_soon(read, reader)
    assert found == expected


async def test_what_is_left_to_send_is_never_reported_as_taken() -> None:
    near, far = pair(4)
    client, server = await opened(near, far)
    near.at_most_waiting = 10
    data = b"x" * 100
    taken = client.send_some([data])
    assert 0 < taken < len(data), "the caller has to come back"
    assert client.send_some([data[taken:]]) == 0
    near.at_most_waiting = 1 << 30
    assert client.send_some([data[taken:], b"more"]) == 1 + len(b"more")
    with trio.fail_after(60):
        found = await server.receive()
        while len(found) < 104:
            found += await server.receive()
    assert found == data + b"more"


async def failed(connection: TlsConnection, failures: list[type[Exception]]) -> None:
    try:
        await connection.shake_hands()
    except Exception as error:
        failures.append(type(error))


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in (1, 2))]
)
async def test_a_handshake_that_is_cut_at_any_byte_is_an_error_at_once(first: int) -> None:
    # Each third byte from `first`, for the time that handshakes take.
    near, far = pair(5)
    await opened(near, far)
    for side, whole in enumerate((near.sent, far.sent)):
        assert whole > 50
        for cut in range(first, whole, 3):
            wires = pair(cut)
            wires[side].cut = cut
            failures: list[type[Exception]] = []
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for connection in ends(*wires):
                        nursery.start_soon(failed, connection, failures)
            # A signature may be shorter than in the first handshake: then nothing was cut.
            assert failures or wires[side].tried <= cut
            assert all(issubclass(each, (EOFError, OSError)) for each in failures)


async def test_a_record_that_is_cut_at_any_byte_is_the_end_of_the_stream() -> None:
    near, far = pair(5)
    client, _ = await opened(near, far)
    before = near.sent
    client.send_some([b"y" * 50])
    record = near.sent - before
    for cut in range(1, min(record, 70)):
        near, far = pair(5)
        client, server = await opened(near, far)
        near.cut = near.sent + cut
        taken = 0
        try:
            taken = client.send_some([b"y" * 50])
        except ConnectionResetError:
            pass
        with trio.fail_after(60):
            assert await server.receive() == b"", "half a record is none"
        assert taken < 50


async def test_a_changed_byte_is_an_error() -> None:
    for place in range(0, 60, 7):
        near, far = pair(6)
        client, server = await opened(near, far)
        near.change = near.sent + place
        client.send_some([b"z" * 50])
        near.ended = far.ended = True
        try:
            with trio.fail_after(60):
                found = await server.receive()
        except ssl.SSLError:
            found = b""
        assert found == b"", "what was changed is never taken for what was sent"


@pytest.mark.parametrize("how", ["changed", "said to be the end"])
async def test_what_comes_before_the_end_is_received_before_it(how: str) -> None:
    near, far = pair(8, 1 << 20)
    client, server = await opened(near, far)
    client.send_some([b"before"])
    if how == "changed":
        near.change = near.sent + 10
        client.send_some([b"never"])
    else:
        with pytest.raises(ssl.SSLError):
            client.tls.unwrap()
        near.send_some([client._outgoing.read()])
    with trio.fail_after(60):
        assert await server.receive() == b"before"
        # The connection below stays open.
        if how == "changed":
            for _ in range(2):
                with pytest.raises(ssl.SSLError):
                    await server.receive()
        else:
            assert await server.receive() == b""


async def test_a_client_that_sends_no_end_of_handshakes_is_given_up() -> None:
    near, far = pair(7)
    server = TlsConnection(far, server_context(IDENTITY), IDENTITY.certificate)
    # Records of a ClientHello of 16 MiB, which no OpenSSL takes, and before that harmless ones.
    near.send_some([b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(1 << 20)])
    with trio.fail_after(60), pytest.raises(ssl.SSLError, match="excessive message size"):
        await server.shake_hands()
    # One that OpenSSL takes, in so many records that they are longer than any handshake.
    near, far = pair(7)
    server = TlsConnection(far, server_context(IDENTITY), IDENTITY.certificate)
    message = b"\x01\x01\xff\xff" + bytes(30_000)
    near.send_some([b"".join(b"\x16\x03\x01\x00\x01%c" % one for one in message)])
    with trio.fail_after(60), pytest.raises(ssl.SSLError, match="a TLS handshake of more than"):
        await server.shake_hands()
