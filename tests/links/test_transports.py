"""Sockets when many connect at once, and how errors name their addresses."""

from __future__ import annotations

import os
import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from runtime.links.transports import Connection, SocketNetwork, with_address


async def test_all_that_have_connected_are_accepted_in_a_few_passes_of_the_scheduler() -> None:
    count, passes, counting = 100, 0, False
    accepted: list[Connection] = []
    all_accepted = trio.Event()

    class Passes(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += counting

    async def accept(connection: Connection) -> None:
        accepted.append(connection)
        if len(accepted) == count:
            all_accepted.set()

    trio.lowlevel.add_instrument(Passes())
    path = f"unix:@understudy-test-{os.urandom(8).hex()}"
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        await nursery.start(SocketNetwork().listen, path, accept)
        counting = True
        for client in clients:
            client.connect("\0" + path.removeprefix("unix:@"))
        with trio.fail_after(60):
            await all_accepted.wait()
        assert passes < count / 4
        nursery.cancel_scope.cancel()
    for each in (*accepted, *clients):
        each.close()  # type: ignore[attr-defined]


async def test_a_unix_socket_whose_listener_has_no_room_is_connected_when_it_has() -> None:
    name = f"understudy-test-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + name)
        listener.listen(0)
        waiting: list[socket.socket] = []
        while True:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.setblocking(False)
            try:
                client.connect("\0" + name)
            except BlockingIOError:
                client.close()
                break
            waiting.append(client)
        connections: list[Connection] = []
        connected = trio.Event()

        async def connect() -> None:
            connections.append(await SocketNetwork().connect(f"unix:@{name}"))
            connected.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await wait_all_tasks_blocked()
            assert not connections, "there was no room for it"
            accepted = [listener.accept()[0] for _ in waiting]
            with trio.fail_after(60):
                await connected.wait()
        peer = listener.accept()[0]
        assert connections[0].send_some((b"hello",)) == 5
        assert peer.recv(5) == b"hello"
        for each in (*waiting, *accepted, peer, *connections):
            each.close()  # type: ignore[attr-defined]


async def test_a_unix_socket_that_nobody_listens_at_is_refused_at_once() -> None:
    with trio.fail_after(60), pytest.raises(ConnectionRefusedError):
        await SocketNetwork().connect(f"unix:@understudy-test-{os.urandom(8).hex()}")


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("refused", "127.0.0.1:740: refused"),
        ("the handshake with 127.0.0.1:740 failed", "the handshake with 127.0.0.1:740 failed"),
        ("sent on to 127.0.0.1:7400", "127.0.0.1:740: sent on to 127.0.0.1:7400"),
    ],
)
def test_a_reason_names_its_address_once(reason: str, shown: str) -> None:
    assert with_address("tcp:127.0.0.1:740", reason) == shown
