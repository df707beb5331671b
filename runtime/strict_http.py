"""HTTP/1 as the doors of a node read it: stricter than h11, which reads what older servers sent.

A proxy in front of a door and the door must find the same ends of heads and bodies. Where they do
not, a client makes one request of the proxy's into two, and the second one has been through none of
the proxy's rules. So lines that end with a line feed alone, headers that are continued on the next
line, and headers after a body are refused (RFC 9112, sections 2.2, 5.2, 6.1 and 7.1.2). A request
for another protocol is answered over HTTP/1, as if it had not been asked: a proxy would not see the
requests that follow over HTTP/2. A connection that begins with HTTP/2 stays so.

Requests cost a client less than their answers cost the server. So of those that a client sends
without waiting for answers (pipelining), few are read, and none once the client has gone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import h11

_END: Final = re.compile(rb"\n\r?\n")
"""The end of a head, as h11 finds it."""

_WRONG: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")

MOST_PIPELINED: Final = 10
"""Requests that are read from one piece of what a client sends; the last is answered with
`Connection: close`, and what follows it is dropped. A client that has fewer of them without an
answer never has so many in one piece. One piece of 64 KiB could have 2,000.
"""

WRONG_LINE: Final = (
    "a line of the request ends without a carriage return, or is continued on the next line"
)
WRONG_VERSION: Final = "HTTP/1.0 has no transfer-encoding"
WRONG_START: Final = "HTTP/2 begins with the first bytes of a connection, and without headers"
WRONG_END: Final = "headers follow the body, or its last line ends without a carriage return"


class StrictConnection:
    """The server's `h11.Connection`, for heads of at most `most_head` bytes."""

    def __init__(self, most_head: int) -> None:
        # In the extras that have such doors.
        import h11

        self._h11 = h11
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=most_head)
        self._most_head = most_head
        self._recent = b""
        """The end of what was received of the present body."""
        self._is_chunked = False
        self._is_first = True
        """False once a request has been read."""
        self._pipelined = 0
        """Requests that were read from the present piece."""
        self._is_last = False
        """True once the request has been read whose answer ends the connection."""
        self.is_over = False
        """Set by the server when the client has gone: no request that it sent before begins."""
        self.is_http2 = False
        """True once the client has begun with HTTP/2; hypercorn reads all that follows."""

    def __getattr__(self, name: str) -> Any:
        # All else is as h11 has it, and hypercorn, of any version, asks for it.
        return getattr(self._http, name)

    @property
    def is_pipelined(self) -> bool:
        """True if the request that was read last came together with the one before."""
        return self._pipelined > 1

    def receive_data(self, data: bytes) -> None:
        """Take what the client has sent."""
        self._pipelined = 0
        if self._is_after_last():
            return
        if data and self._http.their_state is self._h11.SEND_BODY:
            # No more than the end of a body can take, besides these.
            self._recent = self._recent[-self._most_head :] + data
        self._http.receive_data(data)

    def next_event(self) -> Any:
        """Return the next event, as h11 does. Raises `RemoteProtocolError`."""
        if self.is_over:
            return self._h11.ConnectionClosed()
        if self._is_after_last():
            # h11 would have it that the client must not send more, and hypercorn would close the
            # connection at once, with the answer half sent.
            return self._h11.NEED_DATA
        if self._http.their_state is self._h11.IDLE:
            self._check_head(self._http.trailing_data[0])
        event = self._http.next_event()
        if isinstance(event, self._h11.Request):
            self._recent = self._http.trailing_data[0]
            self._is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if self._is_chunked and event.http_version < b"1.1":
                raise self._wrong(WRONG_VERSION)
            self._check_start(event)
            self._pipelined += 1
            self._is_last = self._pipelined >= MOST_PIPELINED
            return self._without_upgrade(event)
        if isinstance(event, self._h11.EndOfMessage):
            self._check_end(event)
        return event

    def send(self, event: h11.Event) -> bytes | None:
        """Return the bytes of an event, as h11 does. The answer to the last request says so."""
        if self._is_last and isinstance(event, self._h11.Response):
            event = self._h11.Response(
                status_code=event.status_code,
                headers=[*event.headers.raw_items(), (b"connection", b"close")],
                reason=event.reason,
            )
        return self._http.send(event)

    def _is_after_last(self) -> bool:
        return self._is_last and self._http.their_state is not self._h11.SEND_BODY

    def _check_head(self, received: bytes) -> None:
        end = _END.search(received)
        if _WRONG.search(received if end is None else received[: end.end()]):
            raise self._wrong(WRONG_LINE)

    def _check_start(self, request: h11.Request) -> None:
        """Let HTTP/2 begin with a connection, and never behind a request: hypercorn would change to
        it there too, and what stands in front would take all that follows for HTTP/1.
        """
        is_first, self._is_first = self._is_first, False
        if request.method != b"PRI":
            return
        if not is_first or request.headers:
            raise self._wrong(WRONG_START)
        self.is_http2 = True

    def _check_end(self, event: h11.EndOfMessage) -> None:
        rest = self._http.trailing_data[0]
        body = self._recent[: len(self._recent) - len(rest)]
        self._recent = b""
        if event.headers or (self._is_chunked and not body.endswith(b"\r\n\r\n")):
            raise self._wrong(WRONG_END)

    def _without_upgrade(self, request: h11.Request) -> h11.Request:
        if not any(name == b"upgrade" for name, _ in request.headers):
            return request
        return self._h11.Request(
            method=request.method,
            target=request.target,
            http_version=request.http_version,
            headers=[(name, value) for name, value in request.headers if name != b"upgrade"],
        )

    def _wrong(self, text: str) -> Exception:
        return self._h11.RemoteProtocolError(text, error_status_hint=400)
