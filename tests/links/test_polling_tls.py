"""Polling in the reader's place over TLS: what a task receives is decrypted there, and the reader
finds the rest.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import AsyncIterator, Sequence

import attrs
import pytest
import trio

from runtime.links.credentials import client_context, server_context
from runtime.links.spinner import Spinner
from runtime.links.tls import RECORD, TlsConnection
from runtime.links.transports import SocketConnection
from runtime.wire.certificates import RANDOM_BYTES, self_signed
from tests.links.test_polling import AlwaysOn, turns


class HeldBack(SocketConnection):
    """Keeps what it is to send, for the test to send as it likes."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.held: bytearray | None = None

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        if self.held is None:
            return super().send_some(buffers)
        self.held += b"".join(buffers)
        return sum(map(len, buffers))


@attrs.define
class Scene:
    """A TLS connection that spins, and its other end."""

    ours: TlsConnection
    theirs: TlsConnection
    wire: HeldBack
    """Below `theirs`."""
    spinner: Spinner
    acted: list[bytes] = attrs.field(factory=list)
    read: list[object] = attrs.field(factory=list)
    whole: bytearray = attrs.field(factory=bytearray)
    """What came to either, in this order."""

    def act(self, data: bytes) -> None:
        """Act upon what a task has received that polled."""
        self.acted.append(data)
        self.whole += data

    async def reader(self) -> None:
        """Read until the end, as a link does."""
        try:
            while data := await self.ours.receive():
                self.read.append(data)
                self.whole += data
            self.read.append(b"")
        except (OSError, trio.ClosedResourceError) as error:
            self.read.append(error)

    async def poll(self, size: int) -> None:
        """Poll until so many bytes were acted upon."""
        await self.spinner.poll(lambda: sum(map(len, self.acted)) >= size)

    def encrypted(self, data: bytes) -> bytes:
        """The records with `data`, which are not sent."""
        self.wire.held = bytearray()
        view = memoryview(data)
        while view:
            view = view[self.theirs.send_some([view]) :]
        held, self.wire.held = bytes(self.wire.held), None
        return held

    async def send(self, data: bytes) -> None:
        """Send `data` as it is."""
        view = memoryview(data)
        while view:
            view = view[self.wire.send_some([view]) :]
            await turns()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("runtime.links.spinner.MOST_ROUNDS", 1 << 40)
    monkeypatch.setattr("runtime.links.spinner.Spin", AlwaysOn)
    near, far = socket.socketpair()
    spinner, wire = Spinner(lambda: 0.0), HeldBack(far)
    identity = self_signed("understudy", random.Random(3).randbytes(RANDOM_BYTES))
    ours = TlsConnection(SocketConnection(near, spinner), client_context())
    theirs = TlsConnection(wire, server_context(identity), identity.certificate)
    found = Scene(ours, theirs, wire, spinner)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.shake_hands)
            nursery.start_soon(theirs.shake_hands)
        ours.let_others_receive(found.act)
        yield found
    ours.close()
    theirs.close()


async def test_records_that_come_in_parts_are_acted_upon_once_and_in_order(scene: Scene) -> None:
    draw = random.Random(1)
    data = draw.randbytes(3 * RECORD + 700)
    records = scene.encrypted(data) + scene.encrypted(b"last")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.reader)
        await turns()
        while records:
            size = draw.choice((1, 4, 5, 30, 3000, 40_000))
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    # In one part a task polls, in another the reader receives.
                    if draw.random() < 0.7:
                        inner.start_soon(scene.poll, 1 << 30)
                        await turns()
                    await scene.send(records[:size])
                    scope.cancel()
            records = records[size:]
            await turns()
        scene.theirs.close()
    assert scene.whole == data + b"last"
    assert scene.acted, "the task that polls has received some"
    assert len(scene.read) > 1, "and the reader"


async def test_half_a_record_is_left_to_the_reader(scene: Scene) -> None:
    record = scene.encrypted(b"whole")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.reader)
        await turns()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(scene.poll, 1)
                await turns()
                await scene.send(record[:9])
                scope.cancel()
        assert not scene.acted
        await scene.send(record[9:])
        await turns()
        assert scene.read == [b"whole"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["changed", "cut", "said to be the end"])
async def test_the_end_of_what_can_be_decrypted_is_met_by_both(scene: Scene, how: str) -> None:
    first = scene.encrypted(b"before")
    if how == "said to be the end":
        with pytest.raises(ssl.SSLError):
            scene.theirs.tls.unwrap()
        record = bytearray(scene.theirs._outgoing.read())
    else:
        record = bytearray(scene.encrypted(b"never"))
    if how == "changed":
        record[-1] ^= 1
    elif how == "cut":
        del record[-1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.reader)
        await turns()
        nursery.start_soon(scene.poll, 1 << 30)
        await turns()
        await scene.send(first + record)
        if how == "cut":
            scene.theirs.close()
        # Both end by themselves: nothing is left that polls or waits.
    assert scene.acted == [b"before"]
    (met,) = scene.read
    if how == "changed":
        assert isinstance(met, ssl.SSLError), "the reason, as where the reader had received it"
    else:
        assert met == b"" or isinstance(met, trio.ClosedResourceError)
    assert scene.spinner.current is None
