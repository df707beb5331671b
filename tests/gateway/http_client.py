"""A plain HTTP client of these tests, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio


@attrs.frozen
class HttpAnswer:
    """What the server has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Connection:
    """One connection to the server."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self.stream = stream
        self.host = host
        self._http = h11.Connection(h11.CLIENT)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request."""
        given = {"Host": self.host, **(headers or {})}
        if body is not None:
            given.setdefault("Content-Type", "application/json")
            given.setdefault("Content-Length", str(len(body)))
        request = h11.Request(method=method, target=path, headers=list(given.items()))
        data = self._http.send(request) or b""
        if body:
            data += self._http.send(h11.Data(data=body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        await self.stream.send_all(data)

    async def event(self) -> Any:
        """The next event of the answer."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self.stream.receive_some(65536))

    async def answer(self) -> HttpAnswer:
        """The whole answer."""
        response = await self.event()
        while isinstance(response, h11.InformationalResponse):
            response = await self.event()
        assert isinstance(response, h11.Response), response
        body = b""
        while isinstance(event := await self.event(), h11.Data):
            body += bytes(event.data)
        if self._http.their_state is h11.DONE and self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        headers = {name.decode(): value.decode() for name, value in response.headers}
        return HttpAnswer(response.status_code, headers, body)


@attrs.frozen
class HttpClient:
    """Asks one gateway, over a new connection each time."""

    port: int

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """A connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            yield Connection(stream, f"127.0.0.1:{self.port}")

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """One request and its answer."""
        with trio.fail_after(60):
            async with self.connect() as connection:
                await connection.send(method, path, body, headers)
                return await connection.answer()

    async def call(
        self, actor: str, method: str, arguments: object = None, **headers: str
    ) -> HttpAnswer:
        """Call a method with JSON; headers with underscores for dashes."""
        body = b"" if arguments is None else json.dumps(arguments).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", f"/v1/actors/{actor}/{method}", body, given)

    async def raw(self, data: bytes, *, most: int = 1_000_000) -> bytes:
        """Send bytes; return all that comes until the server closes."""
        received = b""
        with trio.fail_after(60):
            async with self.connect() as connection:
                try:
                    await connection.stream.send_all(data)
                    while len(received) < most:
                        part = await connection.stream.receive_some(65536)
                        if not part:
                            break
                        received += part
                except trio.BrokenResourceError:
                    pass
        return received
