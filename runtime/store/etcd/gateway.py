"""Requests to the JSON gateways of an etcd's members. A request goes to one member after another
until one answers, as far as repeating it is safe.
"""

from __future__ import annotations

import json
import os
import select
import ssl
from typing import Any

import attrs
import trio

from actors.errors import StoreError, StoreUnavailableError
from actors.own_logger import own_logger
from runtime.private_files import refuse_open_file
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.translation import (
    EtcdRefusalError,
    Json,
    Refusal,
    raise_refusal,
    refusal_in,
)
from runtime.tcp_connector import TcpConnector
from runtime.timings import Timings

logger = own_logger("understudy.store")

# One HTTP/1.1 connection to a member of an etcd: h11 for the protocol, trio for the bytes.

MAX_BODY = 256 * 1024 * 1024
"""The maximum bytes of one answer, or of one line of a stream."""


CHUNK = 64 * 1024


KEEP_ALIVE_SECONDS = 5
"""Seconds without a byte after which the kernel probes the peer. A watch may be silent for days, so
without these probes a peer that vanished would stay unnoticed.
"""

PAUSE_SECONDS = 0.1
"""Seconds before all members of etcd are tried once more, when none has answered."""

IDLE_CONNECTIONS = 8

AUTHENTICATE = "/v3/auth/authenticate"


class NotSentError(Exception):
    """The request certainly did not reach etcd, so it may be repeated."""


class LostError(Exception):
    """The request was sent at least in part, and no answer came. etcd may have executed it."""


class ForeignError(LostError):
    """The answer is not HTTP."""


def protocol() -> Any:
    """Import h11, which only the etcd store needs. Raises `StoreError` if it is not installed."""
    try:
        import h11
    except ImportError:
        raise StoreError(
            "a store in etcd needs the package h11, which is not installed: pip install "
            "'understudy-actors[etcd]'"
        ) from None
    return h11


def trust_of(address: EtcdAddress) -> ssl.SSLContext | None:
    """Return the TLS context for connections to etcd. Raises ValueError for files that are not
    certificates.
    """
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca)
        if address.cert is not None:
            # Without `key` the certificate's file has the key as well.
            refuse_open_file("private key", address.key or address.cert)
            context.load_cert_chain(address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"the certificates for etcd cannot be used ({error}): look at ca, cert and key of its "
            "address"
        ) from None
    return context


class EtcdTrust:
    """The TLS context of `trust_of`, made again when a file has changed. If a file is missing or
    cannot be used, the earlier context stays in use. Raises ValueError if the files cannot be used
    at first.
    """

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._seen = self._look()
        self._context = trust_of(address)

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a connection that is opened now; None for one without TLS."""
        seen = self._look()
        if seen != self._seen:
            # Noted first: what is wrong is reported once.
            self._seen = seen
            try:
                self._context = trust_of(self._address)
            except ValueError as error:
                logger.error("%s; what was read before stays in use", error)
        return self._context

    def _look(self) -> list[object]:
        found: list[object] = []
        for file in (self._address.ca, self._address.cert, self._address.key):
            try:
                status = None if file is None else os.stat(file)
            except OSError as error:
                found.append(error.errno)
            else:
                found.append(status and (status.st_ino, status.st_mtime_ns, status.st_size))
        return found


class EtcdConnection:
    """An open HTTP/1.1 connection. Any failure makes it unusable; its owner must close it."""

    def __init__(self, stream: trio.abc.Stream, socket: trio.socket.SocketType, host: str) -> None:
        h11 = protocol()
        self._h11 = h11
        self._stream = stream
        self._socket = socket
        self._http = h11.Connection(h11.CLIENT)
        self._host = host

    @classmethod
    async def opened(
        cls, host: str, port: int, context: ssl.SSLContext | None, connector: TcpConnector
    ) -> EtcdConnection:
        """Connect to a member. Raises `NotSentError`."""
        try:
            plain = await connector.connect(host, port)
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
        headers = [
            ("Host", self._host),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        if token:
            headers.append(("Authorization", token))
        h11 = self._h11
        head = self._http.send(h11.Request(method="POST", target=path, headers=headers)) or b""
        content = self._http.send(h11.Data(body)) or b""
        end = self._http.send(h11.EndOfMessage()) or b""
        try:
            await self._stream.send_all(head + content + end)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise LostError(
                f"{self._host}: the connection broke while a request was sent"
            ) from error

    async def status(self) -> int:
        """Read the status code of the answer. Raises `LostError`."""
        event = await self._next()
        if not isinstance(event, self._h11.Response):
            raise LostError(f"{self._host}: no HTTP answer")
        return int(event.status_code)

    async def piece(self) -> bytes:
        """Read more of the answer's body; returns b"" at its end. Raises `LostError`."""
        event = await self._next()
        if isinstance(event, self._h11.EndOfMessage):
            return b""
        if not isinstance(event, self._h11.Data):
            raise LostError(f"{self._host}: the connection ended within an answer")
        return bytes(event.data)

    async def body(self) -> bytes:
        """Read the whole body of the answer. Raises `LostError`."""
        collected = bytearray()
        while piece := await self.piece():
            collected += piece
            if len(collected) > MAX_BODY:
                raise LostError(f"{self._host}: an answer of more than {MAX_BODY} bytes")
        return bytes(collected)

    def free(self) -> bool:
        """Return True if the connection can carry another request, and prepare it for that. Call it
        when the answer was read to its end.
        """
        h11 = self._h11
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def is_over(self) -> bool:
        """Return True if a free connection must not be reused, because the peer closed it or sent
        unrequested data. A request on it would be lost, and then count as one that etcd may have
        executed.
        """
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the socket at once, without TLS's close notification: nothing more would be
        read.
        """
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
                raise LostError(
                    f"{self._host}: the connection was closed before the answer came"
                ) from error
            raise ForeignError(
                f"{self._host} did not answer with valid HTTP, as etcd does ({error})"
            ) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise LostError(f"{self._host}: the connection broke before the answer came") from error
        return event


def _reason(error: BaseException) -> str:
    """Describe why a connection failed, with the text of its errno. trio raises an exception group
    with one error for each address of a host.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_reason, error.exceptions)))
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return _reason(error.__cause__) if error.__cause__ is not None else str(error)


class AmbiguousError(Exception):
    """A request that changes something was sent, and it is unknown whether etcd executed it."""


class TokenError(NotSentError):
    """etcd refused the authentication token, so it executed nothing. The next attempt fetches a new
    token.
    """


@attrs.define(eq=False)
class EtcdMember:
    """One member of an etcd. `idle`: connections that are free for a request. `streams`:
    connections that carry a stream.
    """

    host: str
    port: int
    idle: list[EtcdConnection] = attrs.field(factory=list)
    streams: dict[EtcdConnection, None] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """The member's address, for error messages."""
        return f"{self.host}:{self.port}"

    def waiting(self) -> EtcdConnection | None:
        """Take an idle connection that is still usable, or return None."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.is_over():
                return connection
            connection.close()
        return None

    def end_streams(self) -> None:
        """Close the connections that carry streams. Their readers get a `LostError`."""
        while self.streams:
            self.streams.popitem()[0].close()


class Gateway:
    """A client of the JSON gateways of an etcd's members.

    `timings`: of the node; the defaults if None. Raises ValueError for certificates that cannot be
    loaded, and `StoreError` if h11 is not installed.
    """

    def __init__(self, address: EtcdAddress, timings: Timings | None = None) -> None:
        protocol()
        self._timings = Timings() if timings is None else timings
        self._address = address
        self._trust = EtcdTrust(address)
        self._connector = TcpConnector()
        self._members = [EtcdMember(host, port) for host, port in address.endpoints]
        self._token = ""
        self._login = trio.Lock()
        self.is_ending = False
        """True after `end_streams`. New streams are refused then."""

    async def ask(
        self,
        path: str,
        body: Json,
        *,
        once: bool = False,
        quick: bool = False,
        seconds: float | None = None,
    ) -> Json:
        """Send a request and return its answer.

        If the answer of a request is lost, another member is asked, unless `once` is set: then
        `AmbiguousError` is raised, because the request must not be executed twice. `quick`: use the
        shorter time-out `Timings.etcd_quick` for each attempt if there is another member to ask.

        Raises `StoreUnavailableError` if no member answers within `seconds` (by default
        `Timings.store_call`), and what `raise_refusal` raises if etcd refuses.
        """
        failures: dict[str, str] = {}
        timings = self._timings
        until = trio.current_time() + (timings.store_call if seconds is None else seconds)
        quick = quick and len(self._members) > 1
        attempt_seconds = timings.etcd_quick if quick else timings.etcd_attempt
        while trio.current_time() < until:
            member = self._members[0]
            failure: Exception
            try:
                return await self._asked(member, path, body, attempt_seconds)
            except TokenError as error:
                failure = error
            except (NotSentError, LostError) as error:
                failure = error
                self._distrust(member)
            if once and isinstance(failure, LostError):
                raise AmbiguousError(str(failure)) from failure
            failures[member.name] = str(failure)
            await trio.sleep(PAUSE_SECONDS if len(failures) >= len(self._members) else 0)
        raise StoreUnavailableError(
            f"no member of the etcd at {self._address} answers: {'; '.join(failures.values())}; "
            "is it running, and is this its address?"
        )

    async def stream(self, path: str, body: Json) -> EtcdStream:
        """Send a request whose answer is a stream of objects. Raises `NotSentError`, `LostError`,
        or what `ask` raises.
        """
        member = self._members[0]
        try:
            with trio.fail_after(self._timings.etcd_attempt):
                token = await self._logged_in(member, path)
                connection = await EtcdConnection.opened(
                    member.host, member.port, self._trust.context(), self._connector
                )
                try:
                    await connection.send(path, json.dumps(body).encode(), token)
                    status = await connection.status()
                    refusal = (
                        None
                        if status == 200
                        else refusal_in(_parsed(await connection.body()), status)
                    )
                    if refusal is not None:
                        raise self.failure(refusal, member, token)
                except BaseException:
                    connection.close()
                    raise
        except trio.TooSlowError:
            self._distrust(member)
            raise LostError(
                f"{member.name}: no answer within {self._timings.etcd_attempt:g} s"
            ) from None
        except TokenError:
            raise
        except (NotSentError, LostError):
            self._distrust(member)
            raise
        if self.is_ending:
            connection.close()
            raise LostError(f"{member.name}: all streams were ended")
        member.streams[connection] = None
        return EtcdStream(connection, member, token)

    async def confirm(self, member: EtcdMember, key: str) -> None:
        """Check that `member` is alive and has a quorum, by a linearizable read of `key`. Raises
        `LostError` if not.
        """
        try:
            await self._asked(
                member, "/v3/kv/range", {"key": key, "keys_only": True}, self._timings.etcd_attempt
            )
        except TokenError as error:
            raise LostError(str(error)) from error
        except (NotSentError, LostError) as error:
            self._distrust(member)
            raise LostError(str(error)) from error

    def failure(self, refusal: Refusal, member: EtcdMember, token: str) -> Exception:
        """Return the error for a refusal by `member` of a request with `token`. If every other
        member would refuse as well, raises that error instead; see `raise_refusal`.
        """
        if refusal.kind == "token" and self._address.user:
            # Another task may have fetched a new token since this request was sent: forget only the
            # refused one.
            if self._token == token:
                self._token = ""
            return TokenError(f"{member.name}: {refusal.text}")
        if refusal.kind == "token":
            refusal = attrs.evolve(refusal, kind="denied")
        raise_refusal(refusal, member.name, self._address.prefix)
        kind = NotSentError if refusal.kind == "busy" else LostError
        return kind(f"{member.name}: {refusal.text}")

    def end_streams(self) -> None:
        """End all streams. Their readers get a `LostError`."""
        self.is_ending = True
        for member in self._members:
            member.end_streams()

    def close(self) -> None:
        """Close all connections."""
        self.end_streams()
        for member in self._members:
            while member.idle:
                member.idle.pop().close()

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps of a task. Looks at all connections: for
        tests.
        """
        places = [(member.host, member.port) for member in self._members]
        assert sorted(places) == sorted(self._address.endpoints), "members change their order only"
        for member in self._members:
            assert len(member.idle) <= IDLE_CONNECTIONS
            assert len(set(member.idle)) == len(member.idle), "a connection is free once"
            assert member.streams.keys().isdisjoint(member.idle), "a stream has its own connection"
            assert not (self.is_ending and member.streams)

    async def _asked(self, member: EtcdMember, path: str, body: Json, seconds: float) -> Json:
        """Send a request to one member, once."""
        sent = False
        connection: EtcdConnection | None = None
        begun = trio.current_time()
        try:
            with trio.fail_after(seconds):
                token = await self._logged_in(member, path)
                connection = member.waiting() or await EtcdConnection.opened(
                    member.host, member.port, self._trust.context(), self._connector
                )
                # From here on bytes may reach etcd. A time-out before this point is safe to repeat;
                # one after it is not.
                sent = True
                await connection.send(path, json.dumps(body).encode(), token)
                status = await connection.status()
                answer = _parsed(await connection.body())
            if connection.free() and not self.is_ending and len(member.idle) < IDLE_CONNECTIONS:
                member.idle.append(connection)
                connection = None
        except trio.TooSlowError:
            if sent:
                raise LostError(f"{member.name}: no answer within {seconds:g} s") from None
            raise NotSentError(f"{member.name}: no connection within {seconds:g} s") from None
        except trio.Cancelled:
            # The caller gave up. If this member was slow, the caller's next request should try
            # another one.
            if trio.current_time() - begun > self._timings.etcd_slow:
                self._distrust(member)
            raise
        finally:
            if connection is not None:
                connection.close()
        refusal = refusal_in(answer, status)
        if refusal is not None:
            raise self.failure(refusal, member, token)
        return answer

    async def _logged_in(self, member: EtcdMember, path: str) -> str:
        """Return the authentication token, "" if there is no user. Raises `NotSentError`, or
        `EtcdRefusalError` for a wrong password.
        """
        if not self._address.user or path == AUTHENTICATE:
            return ""
        while not self._token:  # noqa: ASYNC913  nothing to wait for if there is one
            # One login for all tasks that wait, each of which looks again when it has the lock.
            async with self._login:
                if not self._token:
                    login = {"name": self._address.user, "password": self._address.password}
                    try:
                        answer = await self._asked(
                            member, AUTHENTICATE, login, self._timings.etcd_attempt
                        )
                    except LostError as error:
                        raise NotSentError(str(error)) from error
                    if not isinstance(answer.get("token"), str):
                        raise EtcdRefusalError(
                            f"the server at {member.name} is not etcd: it gave no token; check "
                            "the address"
                        )
                    self._token = answer["token"]
        return self._token

    def _distrust(self, member: EtcdMember) -> None:
        """Move the member to the end of the list, so that others are asked first."""
        if len(self._members) > 1:
            if self._members[0] is member:
                self._members.append(self._members.pop(0))
            # A member that does not answer requests may be silent on its streams as well. Ending
            # them makes their readers start again at another member.
            member.end_streams()


class EtcdStream:
    """The objects of an answer that comes line by line. `token`: the one that the request was sent
    with.
    """

    def __init__(self, connection: EtcdConnection, member: EtcdMember, token: str) -> None:
        self._connection = connection
        self.member = member
        self.token = token
        self._rest = bytearray()
        self._searched = 0

    async def next(self) -> Json:
        """Return the next object. Raises `LostError`, also at the end of the stream. No data is
        lost if the call is cancelled.
        """
        assert self._searched <= len(self._rest), "what was searched has come"
        while (end := self._rest.find(b"\n", self._searched)) < 0:
            # Before the await: a poll that is cancelled here goes on from here.
            self._searched = len(self._rest)
            piece = await self._connection.piece()
            self._rest += piece
            if not piece:
                raise LostError(f"{self.member.name}: the stream has ended")
            if len(self._rest) > MAX_BODY:
                raise LostError(f"{self.member.name}: a line of more than {MAX_BODY} bytes")
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        self._searched = 0
        return _parsed(line)

    def close(self) -> None:
        """Close the stream's connection."""
        self.member.streams.pop(self._connection, None)
        self._connection.close()


def _parsed(content: bytes) -> Json:
    """Parse a JSON object. Returns an object with an `error` if the content is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    return (
        found
        if isinstance(found, dict)
        else {"error": f"{content[:60]!r} is not an answer of etcd's"}
    )
