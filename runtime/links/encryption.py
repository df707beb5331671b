"""Which connections of a node are encrypted: the policy, and the network that follows it.

Without any setting: TLS to and from other machines, plain sockets within one. A connection over the
loopback interface or a Unix socket never leaves the machine, and of Unix sockets the kernel tells
which user is at the other end. A listener tells TLS from plain by the first byte.

With nothing but the cluster's secret, each process makes a key and a certificate of its own, which
nobody trusts; what counts is that both sides prove the secret over the hash of the certificate that
each sees (`runtime.wire.handshake`). An intruder between them can neither read nor change anything:
it would have to show another certificate, and then both proofs fail.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final, Literal, cast, get_args

import attrs
import trio

from actors.errors import EncryptionError, ListenError
from runtime.environment import Environment
from runtime.limited_log import LimitedLog
from runtime.links.tls import (
    FIRST_BYTE,
    NOT_HERE,
    TlsConnection,
    client_context,
    server_context,
)
from runtime.links.transports import (
    Connection,
    Network,
    SocketConnection,
    SocketNetwork,
    is_loopback,
    split_address,
)
from runtime.wire.certificates import RANDOM_BYTES, SelfSigned, self_signed
from runtime.wire.frames import encode_frame
from runtime.wire.handshake import refusal

TLS_VARIABLE = "UNDERSTUDY_TLS"

TlsMode = Literal["off", "accept", "require"]

FAREWELL_SECONDS = 1.0
"""How long a refused peer may take to read why, and to close the connection itself. Closed at once,
with something unread, the kernel would drop what was sent.
"""

FAREWELL_RECEIVES = 8
"""How much more of it is read meanwhile, in receives."""

PLAIN_SPOKEN: Final = {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"}
"""What OpenSSL calls bytes that are no TLS, in its several versions."""

TLS_REFUSED: Final = {"TLSV1_ALERT_PROTOCOL_VERSION"}
"""What it calls the alert `NOT_HERE`."""

logger = logging.getLogger("understudy.links")


def find_tls(given: str | None) -> TlsMode | None:
    """The mode that the caller gives, or `UNDERSTUDY_TLS`; None for neither. Raises ValueError for
    what is no mode.
    """
    source, value = ("tls", given) if given is not None else (TLS_VARIABLE, "")
    value = value or os.environ.get(TLS_VARIABLE, "")
    if not value:
        return None
    if value not in get_args(TlsMode):
        raise ValueError(
            f"{source}={value!r} is not a way to use TLS; choose one of "
            f"{', '.join(get_args(TlsMode))}"
        )
    return cast("TlsMode", value)


class Admission(Enum):
    """What is done with an accepted connection."""

    ENCRYPTED = auto()
    PLAIN = auto()
    NEEDS_TLS = auto()
    """Refused: it came without TLS."""
    HAS_TLS = auto()
    """Refused: it came with TLS, which is off."""


@attrs.frozen
class TlsPolicy:
    """`mode`: None to encrypt what leaves the machine, and to refuse what comes from outside it and
    is plain; "require": the loopback interface as well; "accept": as None, but a peer that does not
    speak TLS is met without it, so that a running cluster can be changed node by node; "off".
    """

    mode: TlsMode | None = None

    def encrypts(self, address: str) -> bool:
        """True if a connection to `address` is to be encrypted."""
        if self.mode == "off" or split_address(address)[0] == "unix":
            return False
        return self.mode == "require" or not is_loopback(address)

    @property
    def falls_back(self) -> bool:
        """True if a peer that says that it does not speak TLS is dialled again without."""
        return self.mode == "accept"

    def admits(self, *, encrypted: bool, loopback: bool) -> Admission:
        """Judge a connection that has come over TCP. `loopback`: from this machine."""
        if encrypted:
            return Admission.HAS_TLS if self.mode == "off" else Admission.ENCRYPTED
        if self.mode in ("off", "accept") or (self.mode is None and loopback):
            return Admission.PLAIN
        return Admission.NEEDS_TLS


class EncryptedNetwork:
    """A `Network` over sockets of the operating system, whose connections are encrypted as `policy`
    says.
    """

    def __init__(self, sockets: SocketNetwork, policy: TlsPolicy, environment: Environment) -> None:
        self._sockets = sockets
        self._policy = policy
        self._environment = environment
        self._log = LimitedLog(logger, environment.now)
        self._server: tuple[ssl.SSLContext, SelfSigned] | None = None

    @functools.cached_property
    def _client(self) -> ssl.SSLContext:
        return client_context()

    def _make_server(self) -> tuple[ssl.SSLContext, SelfSigned]:
        """Made when it is first needed, which on the loopback interface is never."""
        if self._server is None:
            identity = self_signed("understudy", self._environment.token(RANDOM_BYTES))
            self._server = server_context(identity), identity
        return self._server

    def beside(self) -> Network | None:
        """See `Network.beside`."""
        sockets = self._sockets.beside()
        return (
            EncryptedNetwork(sockets, self._policy, self._environment)
            if isinstance(sockets, SocketNetwork)
            else None
        )

    async def own_host(self, toward: str, *, ipv4: bool = False) -> str:
        """See `Network.own_host`."""
        return await self._sockets.own_host(toward, ipv4=ipv4)

    async def connect(self, address: str) -> Connection:
        """See `Network.connect`. Raises `EncryptionError` besides: the other end does not speak
        TLS.
        """
        connection = await self._sockets.connect(address)
        if not self._policy.encrypts(address):
            if split_address(address)[0] == "unix" and not _is_of_this_user(connection):
                connection.close()
                raise PermissionError(f"the process that listens at {address} is another user's")
            return connection
        try:
            return await self._encrypted(address, connection)
        except _TlsIsOffError:
            if not self._policy.falls_back:
                raise
            self._log.warning("%s has TLS off: connecting without encryption", address)
            return await self._sockets.connect(address)

    async def _encrypted(self, address: str, connection: Connection) -> Connection:
        encrypted = TlsConnection(connection, self._client)
        try:
            await encrypted.shake_hands()
        except EOFError as error:
            connection.close()
            # As when dialling a node that is restarting: it may be dialled again.
            raise ConnectionResetError(str(error)) from None
        except ssl.SSLError as error:
            connection.close()
            raise _dial_error(address, error) from error
        except BaseException:
            connection.close()
            raise
        return encrypted

    async def listen(  # noqa: ASYNC128  the network of sockets tells that it has started
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Network.listen`. Raises `ListenError` if the address cannot be bound, or this
        Python's OpenSSL has no TLS 1.3.
        """
        if self._policy.mode == "off" and not is_loopback(address):
            logger.warning(
                "TLS is off on %s: who is on the network between the nodes can read and change all "
                "that they send, and start any code in them by what they change",
                address,
            )
        elif self._policy.encrypts(address):
            if not ssl.HAS_TLSv1_3:
                raise ListenError(
                    f"{ssl.OPENSSL_VERSION} has no TLS 1.3, so nothing can be encrypted: use "
                    "another build of Python, or `--tls off` on a network that you trust"
                )
            # Now, rather than in front of the first peer.
            self._make_server()
        await self._sockets.listen(
            address, functools.partial(self._admit, handler), task_status=task_status
        )

    async def _admit(
        self, handler: Callable[[Connection], Awaitable[None]], connection: Connection
    ) -> None:
        """Hand an accepted connection to `handler`, encrypted if it is to be; or refuse it."""
        assert isinstance(connection, SocketConnection)
        admitted: Connection | None = None
        try:
            admitted = await self._admitted(connection)
        except ssl.SSLError as error:
            self._log.warning(
                "closed a connection from %s: its TLS handshake failed (%s)",
                connection.remote,
                _reason(error),
            )
        except (OSError, EOFError, trio.ClosedResourceError) as error:
            logger.debug("a connection ended before its first frame: %s", error)
        finally:
            if admitted is None:
                connection.close()
        if admitted is not None:
            await handler(admitted)

    async def _admitted(self, connection: SocketConnection) -> Connection | None:
        """The connection as it is to be used; None for one that is refused or silent."""
        if not connection.remote:
            if _is_of_this_user(connection):
                return connection
            self._log.warning("closed a connection of another user of this machine")
            return None
        seconds = self._environment.timings.handshake
        with trio.move_on_after(seconds):
            first = await connection.first_byte()
            if first is None:
                return None
            encrypted = first == FIRST_BYTE
            admission = self._policy.admits(
                encrypted=encrypted, loopback=_is_loopback_host(connection.remote)
            )
            if admission is Admission.PLAIN:
                return connection
            if admission is Admission.ENCRYPTED:
                context, identity = self._make_server()
                secured = TlsConnection(connection, context, identity.certificate)
                await secured.shake_hands()
                return secured
            await self._refuse(connection, admission)
            return None
        self._log.log(
            logging.INFO,
            "closed a silent connection from %s: nothing, or half of a TLS handshake, came within "
            "%g s",
            connection.remote,
            seconds,
        )
        return None

    async def _refuse(self, connection: SocketConnection, admission: Admission) -> None:
        """Tell a peer, in the language that it speaks, why it is refused."""
        if admission is Admission.NEEDS_TLS:
            error = EncryptionError(
                "this node takes connections over TLS only: leave `--tls off` (UNDERSTUDY_TLS, "
                "tls=) out at the dialling side; over a loopback address, say `--tls require` there"
            )
            answer = encode_frame(*refusal(error))
            self._log.warning(
                "refused a connection from %s, which is not encrypted: it has `--tls off`, or is "
                "no node",
                connection.remote,
            )
        else:
            answer = NOT_HERE
            self._log.warning(
                "refused a connection from %s, which speaks TLS: this node has `--tls off`",
                connection.remote,
            )
        await connection.receive()
        connection.send_some((answer,))
        with trio.move_on_after(FAREWELL_SECONDS):
            for _ in range(FAREWELL_RECEIVES):
                if not await connection.receive():
                    break


class _TlsIsOffError(EncryptionError):
    """The other end says that it has TLS off."""


def _dial_error(address: str, error: ssl.SSLError) -> EncryptionError:
    """What to tell who has dialled `address` with TLS, in vain."""
    reason = _reason(error)
    if reason in TLS_REFUSED:
        return _TlsIsOffError(
            f"the node at {address} has TLS off, and this side encrypts: restart that node without "
            "`--tls off` (UNDERSTUDY_TLS), or give `--tls accept` here for as long as it runs"
        )
    if reason in PLAIN_SPOKEN:
        return EncryptionError(
            f"what answers at {address} does not speak TLS ({reason}); does the address lead to a "
            "node?"
        )
    return EncryptionError(f"the TLS handshake with {address} failed: {reason}")


def _reason(error: ssl.SSLError) -> str:
    return error.reason or str(error)


def _is_of_this_user(connection: Connection) -> bool:
    """True if the process at the other end of a Unix socket runs as this user or as root, who may
    do everything in any case.
    """
    user = connection.peer_user() if isinstance(connection, SocketConnection) else None
    return user is None or user in (0, os.geteuid())


def _is_loopback_host(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    # A socket for both families sees 127.0.0.1 in the form ::ffff:127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def system_network(
    environment: Environment, tls: TlsMode | None, spin: str = "off"
) -> EncryptedNetwork:
    """The network of this machine, encrypted as `tls` says; see `TlsPolicy`. `spin`: see
    `SocketNetwork`.
    """
    return EncryptedNetwork(SocketNetwork(spin, environment.timings), TlsPolicy(tls), environment)
