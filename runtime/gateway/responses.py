"""One answer to an HTTP request, written to an ASGI server: the gateway's or the dashboard's."""

from __future__ import annotations

import attrs

from runtime.gateway.media import CBOR, JSON, PROBLEM_CBOR, PROBLEM_JSON, json_of, names_any
from runtime.gateway.problems import Problem
from runtime.gateway.requests import Send
from runtime.plain_calls.plain_values import encoded_plain

Headers = tuple[tuple[str, str], ...]


@attrs.define
class ResponseWriter:
    """One answer on its way."""

    _send: Send
    _begun: bool = False

    async def whole(self, status: int, media_type: str, body: bytes, headers: Headers = ()) -> None:
        """Send an answer whose body is known: status, headers and body."""
        await self.begin(status, media_type, (("content-length", str(len(body))), *headers))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def problem(self, problem: Problem, accept: str | None) -> None:
        """Send a problem, in CBOR if `accept` prefers that; nothing if the answer has begun."""
        if self._begun:
            # The client sees that the answer breaks off.
            return
        if names_any(accept, (CBOR, PROBLEM_CBOR)) and not names_any(accept, (JSON,)):
            body = encoded_plain(problem.plain())
            await self.whole(problem.status, PROBLEM_CBOR, body, problem.headers)
        else:
            body = json_of(problem.plain())
            await self.whole(problem.status, PROBLEM_JSON, body, problem.headers)

    async def begin(self, status: int, media_type: str, headers: Headers = ()) -> None:
        """Send the status and headers. `headers` go before those that every answer has."""
        # Before the await: if the send fails half way, no problem may follow as a second head.
        self._begun = True
        every = {
            "content-type": media_type,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
            **dict(headers),
        }
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in every.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def part(self, data: bytes) -> None:
        """Send a part of the body; waits for a slow reader."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the body that `begin` and `part` have sent."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
