"""Requests to an etcd of one or more members: one after another is asked until there is an answer, as far as that is safe."""

from __future__ import annotations

import json

import attrs
import trio

from actors.errors import LeaseLostError, StoreCompactedError, StoreError, StoreUnavailableError
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.connection import MAX_BODY, Connection, LostError, NotSentError, protocol, trust_of
from runtime.store.etcd.translation import Json

CALL_SECONDS = 10.0
ATTEMPT_SECONDS = 2.5
"""How long one member may take before another is asked: longer than an election."""

PAUSE_SECONDS = 0.1
IDLE_CONNECTIONS = 8

UNAUTHENTICATED = 16
PERMISSION_DENIED = 7
NOT_FOUND = 5
PERMANENT = frozenset({3, 5, 6, 7, 9, 11, 12})
"""gRPC's codes of answers that another member would give as well (https://grpc.io/docs/guides/status-codes)."""


class AmbiguousError(Exception):
    """A request that changes something was sent, and whether it did is not known."""


class EtcdRefusalError(StoreError):
    """etcd answered that it will not do it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@attrs.define
class _Member:
    host: str
    port: int
    idle: list[Connection] = attrs.field(factory=list)


class Gateway:
    """The JSON gateways of an etcd's members. Raises ValueError for certificates, and `StoreError` for a missing h11, at once."""

    def __init__(self, address: EtcdAddress) -> None:
        protocol()
        self._address = address
        self._trust = trust_of(address)
        self._members = [_Member(host, port) for host, port in address.endpoints]
        self._token = ""
        self._login = trio.Lock()

    async def ask(self, path: str, body: Json, *, once: bool = False, seconds: float = CALL_SECONDS) -> Json:
        """The answer to a request.

        One that may not be made twice (`once`) raises `AmbiguousError` when its answer is lost; others are made again, of another member.
        Raises `StoreUnavailableError` when no member answers within `seconds`, and `EtcdRefusalError` or a kin.
        """
        failures: dict[str, str] = {}
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            member = self._members[0]
            try:
                return await self._asked(member, path, body)
            except NotSentError as error:
                failure: Exception = error
            except LostError as error:
                failure = error
            if once and isinstance(failure, LostError):
                raise AmbiguousError(str(failure)) from failure
            failures[f"{member.host}:{member.port}"] = str(failure)
            self._put_last(member)
            await trio.sleep(PAUSE_SECONDS if len(failures) >= len(self._members) else 0)
        raise StoreUnavailableError(
            f"no member of the etcd at {self._address} answers: {'; '.join(failures.values())}; is it running, and is this its address?"
        )

    async def stream(self, path: str, body: Json) -> Stream:
        """What comes as an answer to one request, object by object. Raises `NotSentError` or `LostError`."""
        member = self._members[0]
        try:
            with trio.fail_after(ATTEMPT_SECONDS):
                await self._logged_in(member, path)
                connection = await Connection.opened(member.host, member.port, self._trust)
                try:
                    await connection.send(path, json.dumps(body).encode(), self._token)
                    if await connection.status() != 200:
                        # Perhaps for a token that has expired.
                        self._token = ""
                        raise LostError(f"{member.host}:{member.port}: {_parsed(await connection.body()).get('error')}")
                except BaseException:
                    connection.close()
                    raise
        except trio.TooSlowError:
            self._put_last(member)
            raise LostError(f"{member.host}:{member.port}: no answer within {ATTEMPT_SECONDS:g} s") from None
        except (NotSentError, LostError):
            self._put_last(member)
            raise
        return Stream(connection)

    def prefer_another(self) -> None:
        """Ask another member first from now on."""
        self._put_last(self._members[0])

    def close(self) -> None:
        """Close all connections."""
        for member in self._members:
            while member.idle:
                member.idle.pop().close()

    async def _asked(self, member: _Member, path: str, body: Json) -> Json:
        """Ask one member once."""
        where = f"{member.host}:{member.port}"
        sent = False
        connection: Connection | None = None
        try:
            with trio.fail_after(ATTEMPT_SECONDS):
                await self._logged_in(member, path)
                connection = member.idle.pop() if member.idle else await Connection.opened(member.host, member.port, self._trust)
                sent = True
                await connection.send(path, json.dumps(body).encode(), self._token)
                status = await connection.status()
                answer = _parsed(await connection.body())
            if connection.free() and len(member.idle) < IDLE_CONNECTIONS:
                member.idle.append(connection)
                connection = None
        except trio.TooSlowError:
            if sent:
                raise LostError(f"{where}: no answer within {ATTEMPT_SECONDS:g} s") from None
            raise NotSentError(f"{where}: no connection within {ATTEMPT_SECONDS:g} s") from None
        finally:
            if connection is not None:
                connection.close()
        if status != 200 or "error" in answer:
            return await self._refused(member, path, body, answer, status)
        return answer

    async def _logged_in(self, member: _Member, path: str) -> None:
        if not self._address.user or self._token or path == "/v3/auth/authenticate":
            return
        async with self._login:
            if not self._token:
                answer = await self._asked(
                    member, "/v3/auth/authenticate", {"name": self._address.user, "password": self._address.password}
                )
                self._token = str(answer["token"])

    async def _refused(self, member: _Member, path: str, body: Json, answer: Json, status: int) -> Json:
        text = str(answer.get("error") or answer.get("message") or f"HTTP status {status}")
        code = int(answer.get("code", 0))
        where = f"{member.host}:{member.port}"
        if "requested lease not found" in text:
            raise LeaseLostError("the lease has expired or was revoked")
        if "required revision has been compacted" in text:
            raise StoreCompactedError("the changes asked for are no longer kept; read the keys afresh (range) and go on from there")
        if code == UNAUTHENTICATED and self._address.user and self._token:
            self._token = ""
            return await self._asked(member, path, body)
        if path == "/v3/auth/authenticate" or code in (UNAUTHENTICATED, PERMISSION_DENIED) or "user name is empty" in text:
            raise EtcdRefusalError(
                f"etcd at {where} does not let us in ({text}); give a user that may read and write the keys under "
                f"{self._address.prefix!r}: etcd://USER@HOST:PORT?password-file=FILE",
                code,
            )
        if not code or status == 404:
            raise EtcdRefusalError(f"what answers at {where} is no etcd, or one without its JSON gateway ({text}); check the address", code)
        if code in PERMANENT:
            raise EtcdRefusalError(f"etcd at {where} refused: {text}", code)
        raise LostError(f"{where}: {text}")

    def _put_last(self, member: _Member) -> None:
        if self._members[0] is member:
            self._members.append(self._members.pop(0))


class Stream:
    """The objects of an answer that comes line by line."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = bytearray()

    async def next(self) -> Json:
        """The next object. Raises `LostError` at the end, too. Cancelling loses nothing."""
        while (end := self._rest.find(b"\n")) < 0:
            piece = await self._connection.piece()
            self._rest += piece
            if not piece:
                raise LostError("the stream has ended")
            if len(self._rest) > MAX_BODY:
                raise LostError(f"a line of more than {MAX_BODY} bytes")
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        found = _parsed(line)
        if "error" in found:
            raise LostError(str(found["error"]))
        return found

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()


def _parsed(content: bytes) -> Json:
    """A JSON object, or one that says that it is none."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": f"{content[:60]!r} is no answer of etcd's"}
