"""Sockets when many connect at once, and how errors name their addresses."""

from __future__ import annotations

import os
import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from runtime.links import transports
from runtime.links.credentials import client_context
from runtime.links.spinner import Spinner
from runtime.links.tls import TlsConnection
from runtime.links.transports import Connection, SocketConnection, SocketNetwork, with_address
from tests.limits import out_of_descriptors
from tests.waiting import until


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


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_a_connection_whose_descriptor_code_of_users_has_closed_is_closed_without_an_error(
    encrypted: bool,
) -> None:
    ours, theirs = socket.socketpair()
    spinner = Spinner(lambda: 0.0)
    below = SocketConnection(ours, spinner)
    below._spin.seconds, spinner.on = 0.001, 1
    connection = TlsConnection(below, client_context()) if encrypted else below
    os.close(below.descriptor)
    connection.close()
    assert below.descriptor < 0
    assert spinner.on == 0
    connection.close()
    theirs.close()


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


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses."""
    real = socket.getaddrinfo

    def found(host: str, port: int, *args: object, **kwargs: object) -> list[object]:
        if host != "a-name.test":
            return real(host, port, *args, **kwargs)  # type: ignore[arg-type, return-value]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)


async def test_a_name_whose_first_address_refuses_or_is_silent_is_connected_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    async def accept(connection: Connection) -> None:
        connection.close()
        await trio.lowlevel.checkpoint()

    with socket.socket() as silent:
        silent.bind(("127.0.0.3", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            # They fill its queue: who dials next hears nothing.
            one.setblocking(False)
            one.connect_ex(("127.0.0.3", port))
        async with trio.open_nursery() as nursery:
            await nursery.start(SocketNetwork().listen, f"127.0.0.4:{port}", accept)
            for first in ("127.0.0.2", "127.0.0.3"):
                resolve(monkeypatch, first, "127.0.0.4")
                with trio.fail_after(30):
                    connected = await SocketNetwork().connect(f"a-name.test:{port}")
                assert isinstance(connected, transports.SocketConnection)
                assert connected.peer_address() == ("127.0.0.4", port)
                connected.close()
            nursery.cancel_scope.cancel()
        for one in waiting:
            one.close()
    resolve(monkeypatch, "127.0.0.2", "127.0.0.5")
    with pytest.raises(OSError, match=r"127\.0\.0\.2"):
        await SocketNetwork().connect(f"a-name.test:{port}")


async def test_a_listener_listens_at_the_ipv6_address_of_a_name_that_has_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.getaddrinfo

    def only_ipv6(host: object, port: object, *args: object, **kwargs: object) -> object:
        name = "::1" if host == "a-name.test" else host
        return real(name, port, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", only_ipv6)

    async def accept(connection: Connection) -> None:
        connection.close()
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(SocketNetwork().listen, "a-name.test:0", accept)
        assert bound.startswith("tcp:[::1]:")
        (await SocketNetwork().connect(bound)).close()
        nursery.cancel_scope.cancel()


async def test_a_listener_without_descriptors_goes_on_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    accepted = trio.Event()

    async def accept(connection: Connection) -> None:
        accepted.set()
        connection.close()
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(SocketNetwork().listen, "127.0.0.1:0", accept)
        with socket.socket() as client:
            with out_of_descriptors():
                client.connect(("127.0.0.1", int(bound.rpartition(":")[2])))
                await until(lambda: caplog.records, "it is said")
                for _ in range(3):
                    await wait_all_tasks_blocked()
                assert not accepted.is_set()
            with trio.fail_after(30):
                await accepted.wait()
        nursery.cancel_scope.cancel()
    (line,) = caplog.messages
    assert line.startswith(bound.removeprefix("tcp:"))
    assert "Too many open files" in line
    assert "LimitNOFILE" in line
