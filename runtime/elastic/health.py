"""The agent's answers over HTTP: `GET /healthz` and `GET /metrics`. Written by hand, being so little; every answer ends its connection."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import trio

MAX_REQUEST_BYTES = 8192
REQUEST_SECONDS = 5.0

Answer = Callable[[str], tuple[int, str, str] | None]
"""Path to status, content type and text; None where there is nothing."""

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


async def serve_health(port: int, answer: Answer, *, host: str = "0.0.0.0", task_status: trio.TaskStatus[int]) -> None:
    """Answer until cancelled. Raises OSError if the port cannot be had; `task_status` is given the port that is."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            with trio.move_on_after(REQUEST_SECONDS):
                async with stream:
                    await stream.send_all(_respond(await _head(stream), answer))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # Whoever asked has gone.
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, serve, port, host=host))
        task_status.started(listeners[0].socket.getsockname()[1])


async def _head(stream: trio.SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < MAX_REQUEST_BYTES:
        data = await stream.receive_some(MAX_REQUEST_BYTES)
        if not data:
            break
        head += data
    return head


def _respond(head: bytes, answer: Answer) -> bytes:
    words = head.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):
        return _response(400, "text/plain", "this is no HTTP request\n")
    method, path = words[0].decode("ascii", "replace"), words[1].decode("ascii", "replace").partition("?")[0]
    if method not in ("GET", "HEAD"):
        return _response(405, "text/plain", "only GET and HEAD are answered\n")
    found = answer(path)
    if found is None:
        found = (404, "text/plain", "there are /healthz and /metrics\n")
    return _response(*found, body=method == "GET")


def _response(status: int, kind: str, text: str, *, body: bool = True) -> bytes:
    data = text.encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")


def as_json(fields: dict[str, object]) -> str:
    """The text of an answer."""
    return json.dumps(fields) + "\n"
