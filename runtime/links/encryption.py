"""Which connections of a node are encrypted: the policy, and the network that follows it.

Without any setting: TLS to and from other machines, plain sockets within one. A connection over the
loopback interface or a Unix socket never leaves the machine. Of Unix sockets the kernel tells which
user is at the other end, and of ports of the loopback interface which user listens there: what is
dialled at another user's port is encrypted. A listener tells TLS from plain by the first byte.

With nothing but the cluster's secret, each process makes a key and a certificate of its own, which
no CA has signed; what counts is that both sides prove the secret over the hash of the certificate
that each sees (`runtime.wire.handshake`). An intruder between them can neither read nor change
anything: it would have to show another certificate, and then both proofs fail.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import logging
import math
import os
import resource
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, Literal, cast, get_args

import attrs
import trio

from actors.errors import EncryptionError, ListenError
from actors.own_logger import own_logger
from actors.peers import PeerRole, may_act_as
from runtime.environment import Environment
from runtime.limited_log import LimitedLog
from runtime.links.credentials import (
    CertificateFiles,
    Credentials,
    FileCredentials,
    Validity,
    certified_by,
    client_context,
    fingerprint,
    own_certified,
    self_signed_credentials,
)
from runtime.links.interfaces import listening_users
from runtime.links.spinner import Spinner
from runtime.links.tls import FIRST_BYTE, NOT_HERE, TlsConnection
from runtime.links.transports import (
    Connection,
    Network,
    SocketConnection,
    SocketNetwork,
    is_loopback,
    split_address,
)
from runtime.wire.certificates import RANDOM_BYTES, self_signed, valid_until
from runtime.wire.frames import encode_frame
from runtime.wire.handshake import Channel, check_certified, refusal

TLS_VARIABLE = "UNDERSTUDY_TLS"
FILE_VARIABLES = ("CA", "CERT", "KEY", "CRL", "MAP")
"""Ends of the names of the variables for files."""

TlsMode = Literal["off", "accept", "require"]

FAREWELL_SECONDS = 1.0
"""How long a refused peer may take to read why, and to close the connection itself. Closed at once,
with something unread, the kernel would drop what was sent.
"""

FAREWELL_RECEIVES = 8
"""How much more of it is read meanwhile, in receives."""

PLAIN_SPOKEN: Final = {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"}
"""The names that versions of OpenSSL have for bytes that are not TLS."""

TLS_REFUSED: Final = {"TLSV1_ALERT_PROTOCOL_VERSION"}
"""The name that OpenSSL has for the alert `NOT_HERE`."""

ALERTS: Final = {
    "ALERT_CERTIFICATE_EXPIRED": "the other end says that this side's certificate has expired: "
    "make a new one, or look at the clock of the other end, and at the dates of its --tls-crl",
    "ALERT_CERTIFICATE_REVOKED": "the other end says that this side's certificate was revoked: "
    "make a new one",
    "ALERT_UNKNOWN_CA": "the other end does not know the CA of this side's certificate, or has "
    "no --tls-crl of it: give both sides the same",
    "ALERT_DECRYPT_ERROR": "the other end finds the signature of this side's certificate "
    "wrong: its CA has the name of another one there, and another key",
    "ALERT_BAD_CERTIFICATE": "the other end does not accept this side's certificate; it may not be "
    "valid yet: look at the clocks of both",
    "ALERT_CERTIFICATE_REQUIRED": "the other end asks for a certificate: give --tls-ca, --tls-cert "
    "and --tls-key",
}
"""The meaning of a peer's alerts (RFC 8446, 6.2) mean, by a part of OpenSSL's name for them."""

_UNKNOWN_CA: Final = "none of the CAs that this side has (--tls-ca) has signed it"

VERDICTS: Final = {
    3: "this side has no list of revoked certificates (--tls-crl) of the CA that has signed it",
    9: "compare the clocks of both machines",
    10: "make a new one for the other end, or look at this machine's clock",
    11: "the list of revoked certificates (--tls-crl) is not valid yet: look at this machine's "
    "clock",
    12: "the list of revoked certificates (--tls-crl) has expired: make it again, for example with "
    "`understudy tls revoke`",
    **dict.fromkeys((2, 19, 20, 21), _UNKNOWN_CA),
    18: f"{_UNKNOWN_CA}. A node without certificates makes itself such a one: if it is one, give "
    "it --tls-ca, --tls-cert and --tls-key too, or leave them out here",
    23: "the list of revoked certificates (--tls-crl) has it",
    26: "it is for another purpose: it needs both serverAuth and clientAuth",
}
"""The remedies for a certificate that is not accepted, by OpenSSL's X509_V_ERR_... numbers."""

logger = own_logger("understudy.links")

MOST_HALF_OPEN = 1024
"""Connections, at most, that have not proven themselves, however many descriptors the process may
have: each takes memory as well.
"""

LEAST_HALF_OPEN = 16


@attrs.frozen(kw_only=True)
class Tls:
    """How connections are encrypted: `open_node(tls=Tls(...))`.

    - `mode`: "require" encryption for connections of this machine as well, "accept" to meet nodes
      that do not encrypt yet, or "off". By default connections from and to other machines are
      encrypted.
    - `ca`, `certificate`, `key`: paths of PEM files, given together. Each side of a connection must
      then show a certificate that the CA has signed for this cluster. They may stand in place of
      the secret: then everything but the Unix sockets within a machine is encrypted.
    - `crl`: path of a PEM file with the lists of revoked certificates of each CA.
    - `map`: path of a file with rules, one in each line: a SPIFFE ID in certificates, and the name
      `understudy://CLUSTER/ROLE/NAME` that it stands for. `{word}` in both stands for the same.

    Raises ValueError for what does not go together.
    """

    mode: TlsMode | None = None
    ca: str = attrs.field(default="", converter=os.fspath)
    certificate: str = attrs.field(default="", converter=os.fspath)
    key: str = attrs.field(default="", converter=os.fspath)
    crl: str = attrs.field(default="", converter=os.fspath)
    map: str = attrs.field(default="", converter=os.fspath)

    def __attrs_post_init__(self) -> None:
        if self.mode is not None and self.mode not in get_args(TlsMode):
            raise ValueError(
                f"tls={self.mode!r} is not a way to use TLS; choose one of "
                f"{', '.join(get_args(TlsMode))}"
            )
        given = [bool(each) for each in (self.ca, self.certificate, self.key)]
        if any(given) and not all(given):
            raise ValueError(
                "the CA's certificate, this process's own and its key are given together: "
                "--tls-ca, --tls-cert and --tls-key"
            )
        if self.has_files and self.mode == "off":
            raise ValueError(
                "certificates are not used with TLS off: leave out the certificates, or tls off"
            )

    @property
    def files(self) -> CertificateFiles:
        """The paths."""
        return CertificateFiles(self.ca, self.certificate, self.key, self.crl, self.map)

    @property
    def has_files(self) -> bool:
        """True if certificates are given."""
        return bool(self.ca)

    def without_secret(self) -> Tls:
        """The same where certificates stand in place of the secret. Raises ValueError for "accept",
        in which nothing would prove anything.
        """
        if self.mode == "accept":
            raise ValueError("--tls accept needs a secret: peers without TLS show no certificate")
        return attrs.evolve(self, mode="require")


def find_tls(given: Tls | str | None) -> Tls:
    """Return the caller's settings, completed by the variables `UNDERSTUDY_TLS` and, for the files,
    `UNDERSTUDY_TLS_CA`, `_CERT`, `_KEY`, `_CRL` and `_MAP`. Raises ValueError for settings that
    contradict each other.
    """
    asked = given if isinstance(given, Tls) else Tls(mode=cast("TlsMode | None", given or None))
    mode = asked.mode
    if mode is None and (value := os.environ.get(TLS_VARIABLE, "")):
        if value not in get_args(TlsMode):
            raise ValueError(
                f"{TLS_VARIABLE}={value!r} is not a way to use TLS; choose one of "
                f"{', '.join(get_args(TlsMode))}"
            )
        mode = cast("TlsMode", value)
    if mode == "off":
        return attrs.evolve(asked, mode=mode)
    variables = (os.environ.get(f"{TLS_VARIABLE}_{one}", "") for one in FILE_VARIABLES)
    ca, certificate, key, crl, map_ = variables
    if asked.has_files:
        ca, certificate, key = asked.ca, asked.certificate, asked.key
    if (asked.crl or asked.map) and not ca:
        raise ValueError("--tls-crl and --tls-map need --tls-ca, --tls-cert and --tls-key")
    return Tls(
        mode=mode,
        ca=ca,
        certificate=certificate,
        key=key,
        # Variables that are set for all programs of a machine mean nothing without a CA.
        crl=asked.crl or (crl if ca else ""),
        map=asked.map or (map_ if ca else ""),
    )


class Admission(Enum):
    """The decision about an accepted connection."""

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
        """True if a peer that reports that it does not speak TLS is dialled again without TLS."""
        return self.mode == "accept"

    def admits(self, *, encrypted: bool, loopback: bool) -> Admission:
        """Judge a connection that has come over TCP. `loopback`: from this machine."""
        if encrypted:
            return Admission.HAS_TLS if self.mode == "off" else Admission.ENCRYPTED
        if self.mode in ("off", "accept") or (self.mode is None and loopback):
            return Admission.PLAIN
        return Admission.NEEDS_TLS


# The connections of peers that have not proven themselves yet. Strangers may open them faster than
# they time out, and each takes a descriptor, which the node needs for its members, its processes
# and its files.


def most_half_open() -> int:
    """Half of the descriptors that this process may have now, within bounds."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # RLIM_INFINITY is negative.
    return MOST_HALF_OPEN if soft < 0 else max(LEAST_HALF_OPEN, min(MOST_HALF_OPEN, soft // 2))


class HalfOpenConnections:
    """Those of one process, at most `most` of them. One more ends the oldest: a handshake takes
    milliseconds, so a peer that has waited for longest is most likely none. `on_ended(most)` is
    called then.
    """

    def __init__(self, most: int, on_ended: Callable[[int], None] = lambda most: None) -> None:
        self._most = most
        self._on_ended = on_ended
        self._scopes: dict[trio.CancelScope, None] = {}
        """Of the tasks that serve them, the oldest first."""

    def __len__(self) -> int:
        return len(self._scopes)

    @contextmanager
    def entered(self) -> Iterator[Callable[[], None]]:
        """Count a connection that is served in the block, until what is given here is called: its
        peer has proven itself. The block is cancelled if the connection must make room.
        """
        if len(self._scopes) >= self._most:
            oldest = next(iter(self._scopes))
            del self._scopes[oldest]
            oldest.cancel()
            self._on_ended(self._most)
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            proven = functools.partial(self._scopes.pop, scope, None)
            try:
                yield proven
            finally:
                proven()
        assert len(self._scopes) <= self._most, "one more never comes without another one less"


class EncryptedNetwork:
    """A `Network` over sockets of the operating system, whose connections are encrypted as `policy`
    says.
    """

    def __init__(
        self,
        sockets: SocketNetwork,
        policy: TlsPolicy,
        environment: Environment,
        files: FileCredentials | None = None,
    ) -> None:
        self._files = files
        self._sockets = sockets
        self._policy = policy
        self._environment = environment
        self._log = LimitedLog(logger, environment.now)
        self._self_signed: Credentials | None = None
        self._look_at = -math.inf
        self._half_open = HalfOpenConnections(most_half_open(), self._on_flooded)

    @property
    def files(self) -> FileCredentials | None:
        """The certificate files of this process; None where none are given."""
        return self._files

    def own_fingerprint(self) -> str:
        """The SHA-256 of this process's certificate, in the form of `Channel.fingerprint`; ""
        without a certificate of a CA.
        """
        own = self._files.current().certificate if self._files is not None else None
        return hashlib.sha256(own).hexdigest() if own else ""

    def client_host(self, host: str) -> str:
        """Return the host that a client on machine `host` announces: "" if it has a certificate.
        Nodes then reach it over TCP, where they see the certificate, not over a Unix socket.
        """
        return host if self._files is None else ""

    def role_within(self, wanted: PeerRole | None) -> PeerRole:
        """The role with which this process joins: the one that is wanted if its certificate has the
        rights of it, and otherwise, or where none is wanted, that of the certificate. Without a
        certificate every role may be had, and "node" is that of every member.
        """
        certified = own_certified(self._files.current()) if self._files is not None else None
        # A certificate without a name of ours is refused by the other nodes, which say why.
        own: PeerRole = certified.role or "node" if certified is not None else "node"
        return wanted if wanted is not None and may_act_as(own, wanted) else own

    def check_own_certificate(self, cluster: str, name: str) -> None:
        """Refuse to be a node of this name with a certificate for another, before others do.
        Raises `WrongCertificateError`.
        """
        if self._files is None:
            return
        certified = own_certified(self._files.current())
        if certified is not None:
            check_certified(certified, cluster, "node", name)
        elif refusal := self._files.refusal():
            # No error: the others may have other CAs than this node, and each accept what the other
            # shows. But a founder learns of it in no other way, for those who join are refused.
            logger.warning("node %s: %s", name, refusal)
        # Files that are written later are held against the same.
        self._files.require(lambda new: check_certified(new, cluster, "node", name))

    @functools.cached_property
    def _any_server(self) -> ssl.SSLContext:
        return client_context()

    def _credentials(self) -> Credentials:
        """Return the credentials for a handshake as a server. Without files they are made on first
        use, so connections over the loopback interface need none.
        """
        if self._files is not None:
            return self._files.current()
        if self._self_signed is None:
            identity = self_signed("understudy", self._environment.token(RANDOM_BYTES))
            self._self_signed = self_signed_credentials(identity)
        return self._self_signed

    @property
    def spinning(self) -> int:
        """Connections whose spin is on."""
        return self._sockets.spinning

    @property
    def spinner(self) -> Spinner | None:
        """What those of its connections share that may spin; None if none may."""
        return self._sockets.spinner

    def certificate_end(self) -> float | None:
        """When the certificate in its files expires, in seconds since 1970. None without files: a
        self-signed certificate lives as long as its node.
        """
        return None if self._files is None else valid_until(self._files.current().certificate)

    def files_problem(self) -> str:
        """Why its files cannot be used as they are now; "" if they can, or there are none."""
        return "" if self._files is None else self._files.problem

    def beside(self) -> Network | None:
        """Return the same network for another event loop of this process."""
        sockets = self._sockets.beside()
        return (
            EncryptedNetwork(sockets, self._policy, self._environment, self._files)
            if isinstance(sockets, SocketNetwork)
            else None
        )

    async def own_host(self, toward: str, *, ipv4: bool = False) -> str:
        """Return the host that a process at `toward` dials to reach this machine."""
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
            if self._policy.mode == "off" or not _may_be_relayed(connection):
                return connection
        try:
            return await self._encrypted(address, connection)
        except _TlsIsOffError:
            if not self._policy.falls_back:
                raise
            self._log.warning("%s has TLS off: connecting without encryption", address)
            return await self._sockets.connect(address)

    def _changes(self) -> int:
        """Return how often the files by which peers are judged have changed. Looks at the files at
        most every `Timings.files_looked_at`, because each connection asks at each beat.
        """
        assert self._files is not None
        now = self._environment.now()
        if now >= self._look_at:
            self._look_at = now + self._environment.timings.files_looked_at
            self._files.current()
        return self._files.changes

    async def _secured(self, connection: Connection, *, server: bool) -> TlsConnection:
        """Shake hands over `connection`. Raises what `TlsConnection.shake_hands` raises."""
        files = self._files
        if files is None:
            credentials = self._credentials() if server else None
            context = self._any_server if credentials is None else credentials.server
            validity = None
        else:
            credentials = files.current()
            context = credentials.server if server else credentials.client
            # Before the handshake: a change in the middle of it counts for this connection.
            validity = Validity(self._changes, files.changes, self._environment)
        own = credentials.certificate if server and credentials is not None else None
        secured = TlsConnection(connection, context, own)
        await secured.shake_hands()
        if validity is not None and credentials is not None:
            validity.on_shown(secured.tls)
            secured.on_verified(
                Channel(
                    secured.channel.binding,
                    certified_by(secured.tls, credentials.names),
                    fingerprint(secured.tls),
                    validity.lapsed,
                )
            )
        return secured

    async def _encrypted(self, address: str, connection: Connection) -> Connection:
        try:
            return await self._secured(connection, server=False)
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
            self._credentials()
        await self._sockets.listen(
            address, functools.partial(self._admit, handler), task_status=task_status
        )

    async def _admit(
        self, handler: Callable[[Connection], Awaitable[None]], connection: Connection
    ) -> None:
        """Hand an accepted connection to `handler`, encrypted if it is to be; or refuse it."""
        assert isinstance(connection, SocketConnection)
        if not connection.remote:
            # Over a Unix socket only this user comes in: no stranger takes the node's descriptors.
            await self._serve(handler, connection, lambda: None)
            return
        with self._half_open.entered() as proven:
            await self._serve(handler, connection, proven)

    def _on_flooded(self, most: int) -> None:
        self._log.warning(
            "%d connections have not proven that they may come in, the most that this process "
            "keeps: for each one more the oldest is closed; keep strangers from the node's port, "
            "by a firewall for example",
            most,
        )

    async def _serve(
        self,
        handler: Callable[[Connection], Awaitable[None]],
        connection: SocketConnection,
        proven: Callable[[], object],
    ) -> None:
        """See `_admit`. `proven` is called by `handler`, when the peer has proven itself."""
        admitted: SocketConnection | TlsConnection | None = None
        try:
            admitted = await self._admitted(connection)
        except ssl.SSLError as error:
            self._log.warning(
                "closed a connection from %s: its TLS handshake failed (%s)",
                connection.remote,
                tls_reason(error),
            )
        except (OSError, EOFError, trio.ClosedResourceError) as error:
            logger.debug("a connection ended before its first frame: %s", error)
        finally:
            # Also when the wait was cancelled. What was admitted is closed by its handler.
            if admitted is None:
                connection.close()
        if admitted is not None:
            admitted.channel = attrs.evolve(admitted.channel, on_proven=proven)
            await handler(admitted)

    async def _admitted(
        self, connection: SocketConnection
    ) -> SocketConnection | TlsConnection | None:
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
                raise EOFError("the other side closed it and has sent nothing")
            encrypted = first == FIRST_BYTE
            admission = self._policy.admits(
                encrypted=encrypted, loopback=_is_loopback_host(connection.remote)
            )
            if admission is Admission.PLAIN:
                return connection
            if admission is Admission.ENCRYPTED:
                return await self._secured(connection, server=True)
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
        """Refuse a peer with a frame that says why: encrypted if the peer speaks TLS, otherwise
        plain.
        """
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
    """The peer has reported that it has TLS off."""


def _dial_error(address: str, error: ssl.SSLError) -> EncryptionError:
    """Return the error for a TLS handshake with `address` that failed, with a remedy."""
    reason = error.reason or ""
    address = address.removeprefix("tcp:")
    if reason in TLS_REFUSED:
        return _TlsIsOffError(
            f"the node at {address} has TLS off, and this side encrypts: restart that node without "
            "`--tls off` (UNDERSTUDY_TLS), or give `--tls accept` here for as long as it runs"
        )
    if reason in PLAIN_SPOKEN:
        return EncryptionError(
            f"the process at {address} does not speak TLS ({reason}); does the address lead to a "
            "node?"
        )
    return EncryptionError(f"the TLS handshake with {address} failed: {tls_reason(error)}")


def is_certificate_refused(error: ssl.SSLError) -> bool:
    """True if this error reports that the peer does not accept this side's certificate."""
    return any(alert in (error.reason or "") for alert in ALERTS)


def tls_reason(error: ssl.SSLError) -> str:
    """Why a TLS handshake has failed, and at which end what is to be done about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the other end is not accepted here: {error.verify_message}; "
            + VERDICTS.get(error.verify_code, "look at it with `understudy tls info`")
        )
    reason = error.reason or str(error)
    explained = next((text for part, text in ALERTS.items() if part in reason), "")
    return f"{explained} ({reason})" if explained else reason


def _is_of_this_user(connection: Connection) -> bool:
    """True if the process at the other end of a Unix socket runs as this user or as root, who may
    do everything in any case.
    """
    user = connection.peer_user() if isinstance(connection, SocketConnection) else None
    return user is None or user in (0, os.geteuid())


def _may_be_relayed(connection: Connection) -> bool:
    """True for a dialled connection over TCP at whose address another user of this machine
    listens, or at which the kernel names no listener: it may lead to a node by way of a process
    that reads and changes what it passes on. Over TLS such a process makes the proofs fail.
    """
    dialled = connection.peer_address() if isinstance(connection, SocketConnection) else None
    users = listening_users(*dialled) if dialled is not None else None
    # None: the system does not say. Empty: the process that listened there has ended, perhaps to
    # hide its user.
    return users is not None and not (users and users <= {0, os.geteuid()})


def _is_loopback_host(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    # A socket for both families sees 127.0.0.1 in the form ::ffff:127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def system_network(
    environment: Environment,
    tls: Tls,
    spin: str = "off",
    may_spin: Callable[[], bool] | None = None,
) -> EncryptedNetwork:
    """The network of this machine, encrypted as `tls` says. `spin`, `may_spin`: see
    `SocketNetwork`. Raises ValueError if the certificates that it names cannot be used.
    """
    # By the stopwatch: several event loops share them, and the clock of each has a zero of its own.
    files = FileCredentials(tls.files, environment.stopwatch) if tls.has_files else None
    return EncryptedNetwork(
        SocketNetwork(spin, environment.timings, may_spin),
        TlsPolicy(tls.mode),
        environment,
        files,
    )
