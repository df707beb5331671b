"""One HTTP/1.1 connection to a member of an etcd: h11 for the protocol, trio for the bytes."""

from __future__ import annotations

import os
import select
import ssl
from typing import TYPE_CHECKING, Any

import trio

from actors.errors import StoreError

if TYPE_CHECKING:
    from runtime.store.etcd.address import EtcdAddress

MAX_BODY = 256 * 1024 * 1024
"""Bytes of one answer, or of one line of a stream."""

CHUNK = 64 * 1024


KEEP_ALIVE_SECONDS = 5
"""After so long without a byte, the kernel asks whether the other end is still there; a watch may be silent for days."""


class NotSentError(Exception):
    """The request certainly did not reach etcd."""


class LostError(Exception):
    """The request was sent, in part at least, and its answer did not come."""


class ForeignError(LostError):
    """Something answered that is no HTTP."""


def protocol() -> Any:
    """h11, which only those need who use etcd. Raises `StoreError` if it is not installed."""
    try:
        import h11
    except ImportError:
        raise StoreError("a store in etcd needs the package h11, which is not installed: pip install 'understudy[etcd]'") from None
    return h11


def trust_of(address: EtcdAddress) -> ssl.SSLContext | None:
    """How etcd proves itself to us, and we to it. Raises ValueError for files that are no certificates."""
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca)
        if address.cert is not None:
            context.load_cert_chain(address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the certificates for etcd cannot be used ({error}): look at ca, cert and key of its address") from None
    return context


class Connection:
    """A connection that is open. Any failure closes it."""

    def __init__(self, stream: trio.abc.Stream, socket: trio.socket.SocketType, host: str) -> None:
        h11 = protocol()
        self._h11 = h11
        self._stream = stream
        self._socket = socket
        self._http = h11.Connection(h11.CLIENT)
        self._host = host

    @classmethod
    async def opened(cls, host: str, port: int, context: ssl.SSLContext | None) -> Connection:
        """Connect. Raises `NotSentError`."""
        try:
            plain = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise NotSentError(f"{host}:{port}: {_reason(error)}") from None
        plain.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)
        plain.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
        plain.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_KEEPINTVL, 2)
        plain.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_KEEPCNT, 3)
        try:
            if context is None:
                return cls(plain, plain.socket, f"{host}:{port}")
            stream = trio.SSLStream(plain, context, server_hostname=host, https_compatible=True)
            await stream.do_handshake()
            return cls(stream, plain.socket, f"{host}:{port}")
        except (trio.BrokenResourceError, ssl.SSLError) as error:
            plain.socket.close()
            raise NotSentError(f"{host}:{port}: no TLS: {error.__cause__ or error}") from None
        except BaseException:
            plain.socket.close()
            raise

    async def send(self, path: str, body: bytes, token: str) -> None:
        """Send a request. Raises `LostError`."""
        headers = [("Host", self._host), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if token:
            headers.append(("Authorization", token))
        h11 = self._h11
        head = self._http.send(h11.Request(method="POST", target=path, headers=headers)) or b""
        content = self._http.send(h11.Data(body)) or b""
        end = self._http.send(h11.EndOfMessage()) or b""
        try:
            await self._stream.send_all(head + content + end)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise LostError(f"{self._host}: the connection broke while a request was sent") from error

    async def status(self) -> int:
        """The status of the answer. Raises `LostError`."""
        event = await self._next()
        if not isinstance(event, self._h11.Response):
            raise LostError(f"{self._host}: no HTTP answer")
        return int(event.status_code)

    async def piece(self) -> bytes:
        """More of the body of the answer, or nothing at its end. Raises `LostError`."""
        event = await self._next()
        if isinstance(event, self._h11.EndOfMessage):
            return b""
        if not isinstance(event, self._h11.Data):
            raise LostError(f"{self._host}: the connection ended within an answer")
        return bytes(event.data)

    async def body(self) -> bytes:
        """The whole body of the answer. Raises `LostError`."""
        collected = bytearray()
        while piece := await self.piece():
            collected += piece
            if len(collected) > MAX_BODY:
                raise LostError(f"{self._host}: an answer of more than {MAX_BODY} bytes")
        return bytes(collected)

    def free(self) -> bool:
        """True if the connection can carry another request, after an answer was read to its end."""
        h11 = self._h11
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def is_over(self) -> bool:
        """True if the other end has closed it, or said something unasked: a request would be lost. For a connection that is free."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close it, without a word."""
        self._socket.close()

    async def _next(self) -> Any:
        h11 = self._h11
        data = b"?"
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = bytes(await self._stream.receive_some(CHUNK))
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            if not data:
                raise LostError(f"{self._host}: the connection was closed before the answer came") from error
            raise ForeignError(f"{self._host} does not speak HTTP as etcd does ({error})") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise LostError(f"{self._host}: the connection broke before the answer came") from error
        return event


def _reason(error: BaseException) -> str:
    """Why there is no connection, in the words of the kernel; trio gathers the failures of all of a host's addresses."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_reason, error.exceptions)))
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return _reason(error.__cause__) if error.__cause__ is not None else str(error)
