"""The HTTP endpoint of an elastic job's agent: `GET /healthz` and `GET /metrics`.

Written without a library because it is so small; every answer closes its connection.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from actors.errors import ListenError
from runtime.http_connections import ConnectionLimit
from runtime.http_hosts import host_refusal, split_target

MAX_REQUEST_BYTES = 8192
"""Bytes of a request's head that are read. What follows is not read, as no request has a body."""


MOST_CONNECTIONS = 32
"""At once; one more ends the oldest. No flood of them takes the descriptors that workers need, and
silent ones keep no health check out.
"""

REQUEST_SECONDS = 5.0
"""Seconds for one request and its answer, so that clients that send nothing hold no connection."""


Answer = Callable[[str], tuple[int, str, str] | None]
"""Returns status, content type and text for a path; None if there is none."""


_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


async def serve_health(
    port: int, answer: Answer, *, host: str = "0.0.0.0", task_status: trio.TaskStatus[int]
) -> None:
    """Answer HTTP requests until cancelled. `task_status` gets the port that is bound. Raises
    `ListenError` if the port cannot be bound.
    """
    limit = ConnectionLimit(MOST_CONNECTIONS)

    async def serve(stream: trio.SocketStream) -> None:
        try:
            with limit.admit(REQUEST_SECONDS):
                reached_at = stream.socket.getsockname()[0]
                await stream.send_all(_respond(await _head(stream), answer, reached_at))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has gone.
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise ListenError(
                f"the health port {port} cannot be opened on {host}: {error.strerror or error}; "
                "give another --health-port, or 0 for any free one"
            ) from error
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        task_status.started(listeners[0].socket.getsockname()[1])


async def _head(stream: trio.SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < MAX_REQUEST_BYTES:
        data = await stream.receive_some(MAX_REQUEST_BYTES)
        if not data:
            break
        head += data
    return head


def _respond(head: bytes, answer: Answer, reached_at: str) -> bytes:
    words = head.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):
        return _response(
            400, "text/plain", "the request is not HTTP; send GET /healthz or GET /metrics\n"
        )
    method = words[0].decode("ascii", "replace")
    if method not in ("GET", "HEAD"):
        return _response(405, "text/plain", "this port answers only GET and HEAD\n")
    try:
        path, host = split_target(words[1].decode("ascii", "replace"), _host(head))
    except ValueError as error:
        return _response(400, "text/plain", f"{error}\n", body=method == "GET")
    if refusal := host_refusal(host, reached_at, socket.gethostname()):
        return _response(403, "text/plain", refusal, body=method == "GET")
    found = answer(path.partition("?")[0])
    if found is None:
        found = (404, "text/plain", "unknown path; request /healthz or /metrics\n")
    return _response(*found, body=method == "GET")


def _host(head: bytes) -> str | None:
    for line in head.split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.strip().lower() == b"host":
            return value.strip().decode("ascii", "replace")
    return None


def _response(status: int, kind: str, text: str, *, body: bool = True) -> bytes:
    data = text.encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
