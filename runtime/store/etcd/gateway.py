"""Requests to an etcd of one or more members: one after another is asked until there is an answer, as far as that is safe."""

from __future__ import annotations

import json

import attrs
import trio

from actors.errors import StoreUnavailableError
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.connection import MAX_BODY, Connection, LostError, NotSentError, protocol, trust_of
from runtime.store.etcd.refusals import EtcdRefusalError, Refusal, raise_refusal, refusal_in
from runtime.store.etcd.translation import Json

CALL_SECONDS = 10.0
ATTEMPT_SECONDS = 2.5
"""How long one member may take before another is asked: longer than an election."""

QUICK_SECONDS = 1.0
"""Likewise for what needs no leader's disk and is wanted in time, if there is another member to ask."""

SLOW_SECONDS = 0.5
"""A request that was given up after this long speaks against its member, even if it was its caller's patience that ended."""

PAUSE_SECONDS = 0.1
IDLE_CONNECTIONS = 8

AUTHENTICATE = "/v3/auth/authenticate"


class AmbiguousError(Exception):
    """A request that changes something was sent, and whether it did is not known."""


class TokenError(NotSentError):
    """The token that was sent is no longer good, so nothing was done; the next attempt fetches another."""


@attrs.define(eq=False)
class Member:
    """One member of an etcd, and the connections to it: those that wait for a request, and those that carry a stream."""

    host: str
    port: int
    idle: list[Connection] = attrs.field(factory=list)
    streams: dict[Connection, None] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """For errors."""
        return f"{self.host}:{self.port}"

    def waiting(self) -> Connection | None:
        """A connection that waits for a request."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.is_over():
                return connection
            connection.close()
        return None

    def end_streams(self) -> None:
        """Close those that carry a stream; who reads from them gets a `LostError`."""
        while self.streams:
            self.streams.popitem()[0].close()


class Gateway:
    """The JSON gateways of an etcd's members. Raises ValueError for certificates, and `StoreError` for a missing h11, at once."""

    def __init__(self, address: EtcdAddress) -> None:
        protocol()
        self._address = address
        self._trust = trust_of(address)
        self._members = [Member(host, port) for host, port in address.endpoints]
        self._token = ""
        self._login = trio.Lock()
        self.is_ending = False
        """True after `end_streams`."""

    async def ask(self, path: str, body: Json, *, once: bool = False, quick: bool = False, seconds: float | None = None) -> Json:
        """The answer to a request.

        One that may not be made twice (`once`) raises `AmbiguousError` when its answer is lost; others are made again, of another member.
        `quick`: it is wanted within a second or two. Raises `StoreUnavailableError` when no member answers within `seconds` (by default
        `CALL_SECONDS`), and `EtcdRefusalError` or a kin.
        """
        failures: dict[str, str] = {}
        until = trio.current_time() + (CALL_SECONDS if seconds is None else seconds)
        attempt_seconds = QUICK_SECONDS if quick and len(self._members) > 1 else ATTEMPT_SECONDS
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
            f"no member of the etcd at {self._address} answers: {'; '.join(failures.values())}; is it running, and is this its address?"
        )

    async def stream(self, path: str, body: Json) -> Stream:
        """What comes as an answer to one request, object by object. Raises `NotSentError`, `LostError`, or what `ask` raises."""
        member = self._members[0]
        try:
            with trio.fail_after(ATTEMPT_SECONDS):
                token = await self._logged_in(member, path)
                connection = await Connection.opened(member.host, member.port, self._trust)
                try:
                    await connection.send(path, json.dumps(body).encode(), token)
                    status = await connection.status()
                    refusal = None if status == 200 else refusal_in(_parsed(await connection.body()), status)
                    if refusal is not None:
                        raise self.failure(refusal, member, token)
                except BaseException:
                    connection.close()
                    raise
        except trio.TooSlowError:
            self._distrust(member)
            raise LostError(f"{member.name}: no answer within {ATTEMPT_SECONDS:g} s") from None
        except TokenError:
            raise
        except (NotSentError, LostError):
            self._distrust(member)
            raise
        if self.is_ending:
            connection.close()
            raise LostError(f"{member.name}: all streams were ended")
        member.streams[connection] = None
        return Stream(connection, member, token)

    async def confirm(self, member: Member, key: str) -> None:
        """Make sure that `member` lives and is in touch with most others, by reading `key`. Raises `LostError` if it does not seem so."""
        try:
            await self._asked(member, "/v3/kv/range", {"key": key, "keys_only": True}, ATTEMPT_SECONDS)
        except TokenError as error:
            raise LostError(str(error)) from error
        except (NotSentError, LostError) as error:
            self._distrust(member)
            raise LostError(str(error)) from error

    def failure(self, refusal: Refusal, member: Member, token: str) -> Exception:
        """What a refusal is to whoever asked `member` with `token`. Raises what would not change with another attempt."""
        if refusal.kind == "token" and self._address.user:
            if self._token == token:
                self._token = ""
            return TokenError(f"{member.name}: {refusal.text}")
        if refusal.kind == "token":
            refusal = attrs.evolve(refusal, kind="denied")
        raise_refusal(refusal, member.name, self._address.prefix)
        kind = NotSentError if refusal.kind == "busy" else LostError
        return kind(f"{member.name}: {refusal.text}")

    def end_streams(self) -> None:
        """End all streams for good; who reads from them gets a `LostError`."""
        self.is_ending = True
        for member in self._members:
            member.end_streams()

    def close(self) -> None:
        """Close all connections."""
        self.end_streams()
        for member in self._members:
            while member.idle:
                member.idle.pop().close()

    async def _asked(self, member: Member, path: str, body: Json, seconds: float) -> Json:
        """Ask one member once."""
        sent = False
        connection: Connection | None = None
        begun = trio.current_time()
        try:
            with trio.fail_after(seconds):
                token = await self._logged_in(member, path)
                connection = member.waiting() or await Connection.opened(member.host, member.port, self._trust)
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
            if trio.current_time() - begun > SLOW_SECONDS:
                self._distrust(member)
            raise
        finally:
            if connection is not None:
                connection.close()
        refusal = refusal_in(answer, status)
        if refusal is not None:
            raise self.failure(refusal, member, token)
        return answer

    async def _logged_in(self, member: Member, path: str) -> str:
        """The token to send, "" for none. Raises `NotSentError`, or `EtcdRefusalError` for a wrong password."""
        if not self._address.user or path == AUTHENTICATE:
            return ""
        while not self._token:  # noqa: ASYNC913  nothing to wait for if there is one
            async with self._login:
                if not self._token:
                    login = {"name": self._address.user, "password": self._address.password}
                    try:
                        answer = await self._asked(member, AUTHENTICATE, login, ATTEMPT_SECONDS)
                    except LostError as error:
                        raise NotSentError(str(error)) from error
                    if not isinstance(answer.get("token"), str):
                        raise EtcdRefusalError(f"what answers at {member.name} is no etcd: it gave no token; check the address")
                    self._token = answer["token"]
        return self._token

    def _distrust(self, member: Member) -> None:
        """Ask others first from now on."""
        if len(self._members) > 1:
            if self._members[0] is member:
                self._members.append(self._members.pop(0))
            # One that does not answer may have fallen silent on these as well, and nobody would notice.
            member.end_streams()


class Stream:
    """The objects of an answer that comes line by line. `token`: what it was asked for with."""

    def __init__(self, connection: Connection, member: Member, token: str) -> None:
        self._connection = connection
        self.member = member
        self.token = token
        self._rest = bytearray()
        self._searched = 0

    async def next(self) -> Json:
        """The next object. Raises `LostError` at the end, too. Cancelling loses nothing."""
        while (end := self._rest.find(b"\n", self._searched)) < 0:
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
        """Close its connection."""
        self.member.streams.pop(self._connection, None)
        self._connection.close()


def _parsed(content: bytes) -> Json:
    """A JSON object, or one that says that it is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"error": f"{content[:60]!r} is no answer of etcd's"}
