"""Clients that send more before they have an answer: a few requests are answered, a flood of them
is not, and that the client goes is seen in any case.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
import pytest
import trio

from runtime.gateway import server
from runtime.gateway.requests import Message, Receive, Scope, Send
from runtime.gateway.server import AHEAD_BYTES, Application, ServerLimits, serve
from runtime.http_connections import ConnectionLimit
from runtime.strict_http import MOST_PIPELINED, StrictConnection
from tests.gateway.conftest import World

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing resets the connection."""


def call(method: str, body: bytes = b"{}") -> bytes:
    """A call of the counter."""
    head = f"POST /v1/actors/counter/{method} HTTP/1.1\r\nHost: localhost\r\n"
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + length).encode() + body


@asynccontextmanager
async def served(application: Application) -> AsyncIterator[trio.SocketStream]:
    """A client's connection to the server of an application."""
    async with trio.open_nursery() as nursery:
        listen = "127.0.0.1:0"
        where = await nursery.start(serve, application, listen, ServerLimits(), trio.Event())
        async with await trio.open_tcp_stream("127.0.0.1", int(where.rpartition(":")[2])) as one:
            yield one
        nursery.cancel_scope.cancel()


async def answer(send: Send) -> None:
    """Answer a request."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 1000})


async def test_few_requests_at_once_are_answered_however_often(world: World) -> None:
    few = MOST_PIPELINED - 1
    async with world.http.connect() as one:
        for total in range(few, 6 * few, few):
            await one.stream.send_all(call("add") * few)
            received = b""
            while not received.endswith(b"\r\n\r\n%d" % total):
                part = await one.stream.receive_some(65536)
                assert part, "the connection stays"
                received += part
        assert b"connection: close" not in received.lower()
    assert (await world.http.call("counter", "read")).json == 5 * few


async def test_of_many_requests_at_once_few_run_and_the_last_says_so(world: World) -> None:
    received = await world.http.raw(call("add") * 200)
    assert received.count(b"HTTP/1.1 200") == MOST_PIPELINED
    assert received.lower().count(b"connection: close") == 1
    last = received.rpartition(b"HTTP/1.1 200")[2]
    assert b"connection: close" in last.lower()
    assert last.endswith(b"\r\n\r\n%d" % MOST_PIPELINED)
    assert (await world.http.call("counter", "read")).json == MOST_PIPELINED


async def test_no_request_begins_whose_client_takes_no_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    first, gone, ended = trio.Event(), trio.Event(), trio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        first.set()
        await gone.wait()
        await answer(send)

    async def blind(self: server._BoundedStream) -> None:
        await trio.sleep_forever()

    async def close(self: server._BoundedStream) -> None:
        await aclose(self)
        ended.set()

    aclose = server._BoundedStream.aclose
    monkeypatch.setattr(server._BoundedStream, "aclose", close)
    # Only the answer that cannot be sent says that the client has gone.
    monkeypatch.setattr(server._BoundedStream, "until_gone", blind)
    with trio.fail_after(60):
        async with served(application) as one:
            await one.send_all(GET * 5)
            await first.wait()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            await trio.aclose_forcefully(one)
            gone.set()
            await ended.wait()
    assert begun == ["/"]


@pytest.mark.parametrize("how", ["closes", "resets", "ends what it sends"])
@pytest.mark.parametrize(
    "more",
    [b"", b"\r\n", call("add"), b"x" * (2 * AHEAD_BYTES + 10_000)],
    ids=["nothing", "a line", "a call", "more than is read"],
)
async def test_a_client_that_goes_is_noticed_whatever_it_has_sent(
    world: World, more: bytes, how: str
) -> None:
    with trio.fail_after(60):
        async with world.http.connect() as one:
            await one.stream.send_all(call("add_slowly", b'{"word": "a"}'))
            await world.counter.wait_for("a begun")
            await one.stream.send_all(more)
            if how == "ends what it sends":
                await one.stream.send_eof()
            else:
                if how == "resets":
                    one.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                await one.stream.aclose()
            await world.counter.wait_for("a cancelled")
    # What it had sent behind the call has not run.
    assert (await world.http.call("counter", "read")).json == 1


async def test_what_is_read_ahead_is_answered_in_its_turn(world: World) -> None:
    large = call("echo", b'["%s"]' % (b"y" * 3 * AHEAD_BYTES))
    with trio.fail_after(60):
        async with world.http.connect() as one, trio.open_nursery() as nursery:
            await one.stream.send_all(call("add_slowly", b'{"word": "a"}'))
            await world.counter.wait_for("a begun")
            # In pieces that do not end where requests end, and more than is read ahead.
            sent = (
                call("add") + large + call("add").replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            )
            for start in range(0, 300, 7):
                await one.stream.send_all(sent[start : start + 7])
            nursery.start_soon(one.stream.send_all, sent[301:])
            await world.counter.note_word("a may end")
            received = b""
            while part := await one.stream.receive_some(65536):
                received += part
    bodies = [part.partition(b"HTTP/1.1")[0] for part in received.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"1", b"2", b'"%s"' % (b"y" * 3 * AHEAD_BYTES), b"3"]


async def test_pipelined_requests_begin_one_at_each_turn_of_the_loop() -> None:
    turns, limit = trio.Lock(), ConnectionLimit(100)
    begun = most = 0

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        return

    async def ask() -> None:
        http = StrictConnection(1024)
        http.receive_data(GET * 2)
        for _ in range(2):
            http.next_event()
            http.next_event()
            if not http.is_pipelined:
                http.send(h11.Response(status_code=204, headers=[]))
                http.send(h11.EndOfMessage())
                http.start_next_cycle()
        with limit.admit() as connection:
            assert connection is not None
            asked = server._BoundedApplication(application, ServerLimits(), connection, http, turns)
            await asked({"type": "http"}, receive, send)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        while begun < 50:
            before = begun
            await trio.lowlevel.checkpoint()
            most = max(most, begun - before)
    # Two, as tasks of one turn run in any order.
    assert most <= 2


async def test_the_kernel_looks_after_clients_whose_machines_vanish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[int] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        (stream,) = streams
        for level, option in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        ):
            options.append(stream.socket.getsockopt(level, option))
        await answer(send)

    class Noted(server._BoundedStream):
        """Notes what is made."""

        def __init__(
            self, stream: trio.SocketStream, http: StrictConnection, stall_seconds: float
        ) -> None:
            super().__init__(stream, http, stall_seconds)
            streams.append(self)

    streams: list[Noted] = []
    monkeypatch.setattr(server, "_BoundedStream", Noted)
    with trio.fail_after(60):
        async with served(application) as one:
            await one.send_all(GET)
            assert await one.receive_some(1000)
    assert options == [1, server.KEEPALIVE_SECONDS, server.KEEPALIVE_INTERVAL, 120_000]
