"""Servers that are not quite etcd: what they do with each connection is up to the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


@asynccontextmanager
async def listening(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server that gives each connection to `serve`; what breaks in it is its client's
    doing.
    """

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await serve(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # The client has had enough.
                pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, handle, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def silent(stream: trio.SocketStream) -> None:
    """Accept everything, answer nothing."""
    while await stream.receive_some():
        pass


async def request(stream: trio.SocketStream) -> tuple[str, dict[str, Any]] | None:
    """The path and the body of the next request; None if the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some()
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += await stream.receive_some()
    return head.split()[1].decode(), json.loads(body)


def answer(content: object, status: int = 200) -> bytes:
    """An HTTP answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %d Whatever\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
