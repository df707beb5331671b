"""The server of a gateway or dashboard: hypercorn on trio, with a bound on connections and on how
long one may stand still.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import attrs
import trio

from actors.errors import ListenError
from actors.own_logger import own_logger
from runtime.gateway.requests import Message, Receive, Scope, Send
from runtime.http_connections import ConnectionLimit, ServedConnection
from runtime.limited_log import LimitedLog
from runtime.links.transports import split_host_port
from runtime.strict_http import StrictConnection
from runtime.user_errors import summary_of

if TYPE_CHECKING:
    from hypercorn.config import Config

MOST_CONNECTIONS = 1000
MAX_HEAD = 16 * 1024
HEAD_SECONDS = 10.0
STALL_SECONDS = 60.0
"""How long the head of a request may take to arrive, and how long a client may take none of an
answer. Heads longer than `MAX_HEAD` are refused. Of more connections than `MOST_CONNECTIONS`, the
one that has waited longest for its client is closed; where none does, the new one is refused.
"""

PIECE_BYTES = 65536
"""Of an answer, for which a client has `STALL_SECONDS`."""

HTTP2_BYTES = 4096
"""What is read at once over HTTP/2. All frames of it are handled before anything else of the server
runs: in 64 KiB there are 5,000, and a flood of them would hold up every other client for seconds.
"""

AHEAD_BYTES = 65536
"""What is read ahead of a client that sends more behind a request, until that is answered: only
who reads sees the end of what is sent. Beyond it, the rest waits in the kernel, and the server
looks every `LOOK_SECONDS` if the client has gone.
"""

LOOK_SECONDS = 1.0
"""Between two looks, at a client that has sent so much."""

KEEPALIVE_SECONDS = 30
KEEPALIVE_INTERVAL = 10
"""After so long without a sign of a client, the kernel asks its machine if it is there, and asks
again. A machine that has lost its power or its network closes no connection.
"""

LINGER_SECONDS = 1.0
LINGER_BYTES = 4 * 1024 * 1024
"""What is read and thrown away of a request that was answered before its end: closed at once, the
connection would be reset, and the client might never see the answer.
"""

GOODBYE_SECONDS = 3.0
"""For requests that are in flight when the gateway ends."""

_BUSY_BODY = (
    b'{"status":503,"outcome":"not executed","error":"TooManyConnections",'
    b'"detail":"this server has as many connections as it may","next":"repeat the request",'
    b'"explain":"understudy explain TooManyConnections"}'
)
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: application/problem+json\r\ncontent-length: %d\r\n\r\n"
) % len(_BUSY_BODY) + _BUSY_BODY

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = own_logger("understudy.gateway")


@attrs.frozen(kw_only=True)
class ServerLimits:
    """Bounds of the server. `most_connections` at once; `max_head`: bytes of the line and headers
    of a request; `head_seconds`: for a head to arrive, and for a connection without a request;
    `stall_seconds`: for a client that takes nothing of its answer.
    """

    most_connections: int = attrs.field(default=MOST_CONNECTIONS, validator=attrs.validators.ge(1))
    max_head: int = attrs.field(default=MAX_HEAD, validator=attrs.validators.ge(1024))
    head_seconds: float = attrs.field(default=HEAD_SECONDS, validator=attrs.validators.gt(0))
    stall_seconds: float = attrs.field(default=STALL_SECONDS, validator=attrs.validators.gt(0))


@attrs.frozen
class _BoundedApplication:
    """An application, within the bounds of the server, for the requests of one connection."""

    _application: Application
    _limits: ServerLimits
    _connection: ServedConnection
    _http: StrictConnection
    _turns: trio.Lock
    """Of the pipelined requests of all connections."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application if its head is within the bound, and answer 431
        otherwise. h11 has refused longer ones by then; over HTTP/2, hypercorn lets 64 KiB through.
        """
        if self._http.is_pipelined:
            # One begins at each turn of the event loop. The loop also accepts one connection at
            # each: a client that comes behind a thousand connections with many requests each waits
            # for a thousand requests, and not for all. Meanwhile the connection may be ended for
            # another one: nothing has begun.
            async with self._turns:
                await trio.lowlevel.checkpoint()
            if self._http.is_over:
                return
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        with self._connection.request(), trio.CancelScope() as answering:
            sending = partial(self._send, send, answering)
            if scope["type"] == "http" and size > self._limits.max_head:
                await sending({"type": "http.response.start", "status": 431, "headers": []})
                await sending({"type": "http.response.body", "body": b""})
                return
            await self._application(scope, receive, sending)

    async def _send(self, send: Send, answering: trio.CancelScope, message: Message) -> None:
        """Send a part of the answer; ends the request if the client takes nothing of it. Over
        HTTP/2 it says itself how much may be sent, and would hold its request for ever.
        """
        for part in _pieces(message):
            with (
                self._connection.sending(),
                trio.move_on_after(self._limits.stall_seconds) as patience,
            ):
                await send(part)
            if patience.cancelled_caught:
                answering.cancel()
                await trio.lowlevel.checkpoint()


def _pieces(message: Message) -> Iterator[Message]:
    """Split a message, so that a slow client that does take something is not cut off."""
    body = message.get("body", b"")
    if message["type"] != "http.response.body" or len(body) <= PIECE_BYTES:
        yield message
        return
    view = memoryview(body)
    for start in range(0, len(view), PIECE_BYTES):
        more = start + PIECE_BYTES < len(view) or message.get("more_body", False)
        yield {**message, "body": bytes(view[start : start + PIECE_BYTES]), "more_body": more}


class _BoundedStream:
    """A connection whose writes do not wait for ever, and which is closed without a reset. It has
    what hypercorn uses of `trio.SocketStream`.

    Two tasks may not read one socket at once. So `aclose`, which has to read what the client still
    sends, waits until the task of hypercorn's that reads has left.
    """

    def __init__(
        self, stream: trio.SocketStream, http: StrictConnection, stall_seconds: float
    ) -> None:
        self._stream = stream
        self.http = http
        self._stall_seconds = stall_seconds
        self._ahead = bytearray()
        """What `until_gone` has read, for `receive_some`."""
        self._closing = trio.Event()
        """Set when `aclose` has begun: what arrives is thrown away from then on."""
        self._closed = trio.Event()
        """Set when `aclose` is over."""
        self._reading = False
        """True while a task of hypercorn's reads the socket."""
        self._read = trio.Event()
        """Set when that task has left it; made anew by `aclose`."""
        self.socket = stream.socket

    def watch(self) -> None:
        """Have the kernel end the connection of a client whose machine has vanished."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS),
            (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL),
            # For data that the client's machine does not acknowledge, where the kernel does not
            # ask; and in place of a number of questions. Twice the time, as the server itself ends
            # a client that takes nothing.
            (socket.TCP_USER_TIMEOUT, round(2000 * self._stall_seconds)),
        ):
            self.socket.setsockopt(socket.IPPROTO_TCP, option, value)

    async def send_all(self, data: bytes) -> None:
        """Raises BrokenResourceError for a client that takes nothing."""
        try:
            await self._send_pieces(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # hypercorn goes on with the requests that it has read, though their client has gone.
            self.http.is_over = True
            raise

    async def _send_pieces(self, data: bytes) -> None:
        # In pieces, so that a slow client that does take something is not cut off.
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            with trio.move_on_after(self._stall_seconds) as patience:
                try:
                    await self._stream.send_all(view[start : start + PIECE_BYTES])
                except trio.BusyResourceError:
                    # If a client sends more after a request that ends the connection, hypercorn
                    # closes it from the task that reads, while another task may still be sending.
                    # hypercorn expects this error there; trio's own would be a traceback in the
                    # log.
                    raise trio.BrokenResourceError("the connection is being closed") from None
            if patience.cancelled_caught:
                await trio.aclose_forcefully(self._stream)
                raise trio.BrokenResourceError("the client takes nothing of its answer")

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return what the client has sent, like trio's; b"", as at the end, once `aclose` has
        begun.
        """
        if self.http.is_over and not self._closing.is_set():
            await trio.lowlevel.checkpoint()
            return b""
        most = min(max_bytes, HTTP2_BYTES) if self.http.is_http2 else max_bytes
        if self._ahead and not self._closing.is_set():
            await trio.lowlevel.checkpoint()
            data = bytes(self._ahead[:most])
            del self._ahead[:most]
            return data
        return await self._receive(most)

    async def _receive(self, most: int) -> bytes:
        if self._closing.is_set():
            await self._closed.wait()
            return b""
        self._reading = True
        try:
            data = bytes(await self._stream.receive_some(most))
        finally:
            self._reading = False
            self._read.set()
        return b"" if self._closing.is_set() else data

    async def until_gone(self) -> None:
        """Return when the client has gone or the connection is being closed. Until then, what it
        sends is kept for `receive_some`; one that sends more than `AHEAD_BYTES` waits.
        """
        try:
            while len(self._ahead) < AHEAD_BYTES:
                data = await self._receive(AHEAD_BYTES - len(self._ahead))
                if not data:
                    break
                self._ahead += data
            else:
                await self._look()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has reset the connection, or it has been closed here.
            pass
        self.http.is_over = True

    async def _look(self) -> None:
        while not (self._closing.is_set() or _has_gone(self.socket)):
            with trio.move_on_after(LOOK_SECONDS):
                await self._closing.wait()

    async def send_eof(self) -> None:
        """Nothing more is sent."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it, after the client has had the time to read what was sent."""
        if self._closing.is_set():
            # hypercorn closes from several tasks.
            await self._closed.wait()
            return
        # No await between these and the look at `_reading`: a task that reads sees that the
        # connection is closing, or is seen here.
        self._closing.set()
        self._read = trio.Event()
        try:
            # Bounded: a client that sends for ever is cut off.
            with trio.move_on_after(LINGER_SECONDS):
                if self._reading:
                    # Another task reads. It leaves when there is something, or is cancelled.
                    await self._read.wait()
                await self._throw_away()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has gone already.
            pass
        finally:
            self._closed.set()
            await trio.aclose_forcefully(self._stream)

    async def _throw_away(self) -> None:
        """Read to the end of what the client sends, but no more than `LINGER_BYTES`: data that is
        left unread would have the kernel reset the connection.
        """
        size = 0
        while size < LINGER_BYTES:
            data = await self._stream.receive_some(65536)
            if not data:
                return
            size += len(data)


class _NextTurn:
    """What hypercorn waits for before it reads the next request: the answer to the one before. It
    has what hypercorn uses of its own events, which do not end while that goes on, and hypercorn
    would not see meanwhile that the client goes.
    """

    def __init__(self, stream: _BoundedStream) -> None:
        self._stream = stream
        self._is_set = False
        self._waiting = trio.CancelScope()

    async def set(self) -> None:
        """Let the next request be read."""
        self._is_set = True
        self._waiting.cancel()

    async def clear(self) -> None:
        """Begin anew."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set. Returns also when the client has gone; no request is read then."""
        if self._is_set:
            return
        with trio.CancelScope() as self._waiting:
            await self._stream.until_gone()

    def is_set(self) -> bool:
        """True if the next request may be read."""
        return self._is_set


async def serve(
    application: Application,
    listen: str,
    limits: ServerLimits,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application until `stop` is set; reports where it listens, as `HOST:PORT`.
    Requests in flight are then given `GOODBYE_SECONDS`. Raises `ListenError`.
    """
    # hypercorn is in the extra `http`.
    from hypercorn.config import Config
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.utils import wrap_app

    config = Config()
    config.errorlog = logger
    config.h11_max_incomplete_size = limits.max_head
    config.keep_alive_timeout = limits.head_seconds
    config.include_server_header = False
    context = WorkerContext(None)
    listeners = await _listeners(listen)
    place = listeners[0].socket.getsockname()
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    limit = ConnectionLimit(limits.most_connections)
    log = LimitedLog(logger, trio.current_time)
    turns = trio.Lock()

    async def serve_one(stream: trio.SocketStream) -> None:
        with limit.admit() as connection:
            if connection is None:
                # Not counted: each is closed within `LINGER_SECONDS`.
                await _turn_away(stream)
                return
            http = StrictConnection(limits.max_head)
            asked = _BoundedApplication(application, limits, connection, http, turns)
            app = wrap_app(cast("Any", asked), config.wsgi_max_body_size, "asgi")
            bounded = _BoundedStream(stream, http, limits.stall_seconds)
            try:
                await _serve_connection(app, config, context, bounded, log)
            finally:
                await trio.aclose_forcefully(stream)

    # Two nurseries: to stop accepting must not cancel the requests in flight.
    async with trio.open_nursery() as handlers:
        async with trio.open_nursery() as accepting:
            accept = partial(trio.serve_listeners, serve_one, handler_nursery=handlers)
            await accepting.start(accept, listeners)
            task_status.started(f"{host}:{place[1]}")
            await stop.wait()
            accepting.cancel_scope.cancel()
        # Connections without a request are closed now, the others after theirs.
        await context.terminated.set()
        handlers.cancel_scope.deadline = trio.current_time() + GOODBYE_SECONDS


async def _listeners(listen: str) -> list[trio.SocketListener]:
    host, port = split_host_port(listen)
    try:
        return await trio.open_tcp_listeners(port, host=host.strip("[]"))
    except OSError as error:
        raise ListenError(
            f"the server cannot listen on {listen}: {error.strerror or error}; choose another "
            "address with --listen"
        ) from None


async def _serve_connection(
    app: Any,
    config: Config,
    context: Any,
    stream: _BoundedStream,
    log: LimitedLog,
) -> None:
    import h11
    from hypercorn.trio.tcp_server import TCPServer
    from hypercorn.typing import ConnectionState

    class Server(TCPServer):
        """Ends with its connection; hypercorn's own waits for its idle time to pass first. Reads
        HTTP/1 strictly.
        """

        async def _read_data(self) -> None:
            # Nothing has arrived yet. Without TLS each connection begins with HTTP/1.
            reader = cast("Any", self.protocol.protocol)
            assert reader.connection.their_state is h11.IDLE
            reader.connection = stream.http
            reader.can_read = _NextTurn(stream)
            await super()._read_data()
            await self.idle_task.stop()

    try:
        stream.watch()
        await Server(app, config, context, ConnectionState({}), cast("Any", stream))
    except Exception as error:
        # A mistake in the handling of one connection ends that connection and no other.
        _log_failure(log, error, is_http2=stream.http.is_http2)


def _has_gone(connected: trio.socket.SocketType) -> bool:
    """True if the client has closed its side, though what it sent before has not been read."""
    look = select.poll()
    # Resets and hang-ups are reported in any case.
    look.register(connected.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))


def _log_failure(log: LimitedLog, error: Exception, *, is_http2: bool) -> None:
    """Log why a connection failed; over HTTP/2 without a traceback. hypercorn fails at frames that
    a client must not send, and in the traceback is the first request as it came, with its token.
    """
    if not is_http2:
        log.log(logging.ERROR, "a connection failed: %s", summary_of(error), error=error)
        return
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    log.warning(
        "a client's frames of HTTP/2 were not understood, and its connection was closed: %s",
        summary_of(cause),
    )


async def _turn_away(stream: trio.SocketStream) -> None:
    """Answer a connection too many, and close it."""
    with trio.move_on_after(LINGER_SECONDS):
        try:
            await stream.send_all(BUSY)
            await stream.send_eof()
        except trio.BrokenResourceError:
            # It has gone by itself.
            pass
    await trio.aclose_forcefully(stream)
