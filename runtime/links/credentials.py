"""The certificates of a process in TLS handshakes, and what it demands of those of others. Its own
certificate is self-signed, or read from files that a CA has signed, again whenever they change.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import attrs

from actors.errors import WrongCertificateError
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.printable import plain
from runtime.private_files import refuse_open_file
from runtime.wire.certificates import SelfSigned
from runtime.wire.handshake import Certified, CertifiedRole

MOST_PEM_BYTES = 16 * 1024 * 1024
"""Bytes of a file with certificates or revoked ones. The rest of a larger file is ignored."""

JUDGED_AGAIN_SECONDS = 10.0
"""After which a certificate that was refused is judged again though no file has changed."""

MOST_RULES = 1000
"""Lines of a map of names."""

logger = own_logger("understudy.links")

CLOCK_SECONDS = 1.0
"""Seconds that are waited after the end of a certificate: OpenSSL counts whole seconds, and would
still accept it.
"""


@attrs.frozen
class CertificateFiles:
    """Paths of PEM files: the CA's certificates, this process's own with its private key, and the
    lists of revoked ones; and of the map of names, see `NameMap`. The last two may be "".
    """

    ca: str
    certificate: str
    key: str
    crl: str = ""
    map: str = ""


class NameMap:
    """Rules that translate SPIFFE IDs in certificates of others to names of the form
    `understudy://CLUSTER/ROLE/NAME`.

    `text`: a rule in each line, of two words, the name there and the name here. `{word}` in the
    first matches one or more letters, digits, and `.`, `_`, `-`, and is put into the second in the
    same place. The first rule that matches counts. Raises ValueError, which names the line.
    """

    def __init__(self, text: str = "") -> None:
        self._rules: list[tuple[re.Pattern[str], str]] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                try:
                    self._rules.append(_rule(words))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
        if len(self._rules) > MOST_RULES:
            raise ValueError(f"{len(self._rules)} rules are more than {MOST_RULES}")

    def certified(self, uris: tuple[str, ...]) -> Certified:
        """Return the names in a certificate with these URIs, by the first rule that matches."""
        found = Certified.of(uris)
        # A SPIFFE certificate has no other URI (X509-SVID, 2): one with more was not made by it.
        if found.role or len(uris) != 1:
            return found
        for pattern, target in self._rules:
            if match := pattern.fullmatch(uris[0]):
                named = Certified.of((target.format_map(match.groupdict()),))
                return attrs.evolve(named, uris=uris)
        return found


def _rule(words: list[str]) -> tuple[re.Pattern[str], str]:
    """Raises ValueError for words that are no rule."""
    if len(words) != 2:
        raise ValueError("a rule is two words, spiffe://... and understudy://CLUSTER/ROLE/NAME")
    source, target = words
    scheme, _, rest = source.partition("://")
    domain, slash, _ = rest.partition("/")
    if scheme != "spiffe" or not slash or not re.fullmatch(r"[a-z0-9._-]+", domain):
        raise ValueError(
            f"{source} is not spiffe://TRUST-DOMAIN/PATH; the trust domain is written out"
        )
    pieces = re.split(r"\{([a-z]+)\}", source)
    names = pieces[1::2]
    if len(set(names)) != len(names) or any("{" in piece or "}" in piece for piece in pieces[::2]):
        raise ValueError(f"{source} may have {{word}} in it, each word once, of letters a to z")
    pattern = "".join(
        f"(?P<{piece}>[A-Za-z0-9._-]+)" if odd else re.escape(piece)
        for odd, piece in zip(itertools.cycle((False, True)), pieces, strict=False)
    )
    unknown = set(re.findall(r"\{([^{}]*)\}", target)) - set(names)
    # The role is written out: what a name there has in it must not choose rights.
    plain = re.sub(r"\{[a-z]+\}", "x", target)
    if unknown or not Certified.of((plain,)).role or "{" in target.split("/")[3]:
        raise ValueError(
            f"{target} is not understudy://CLUSTER/ROLE/NAME with a role that is written out "
            f"({', '.join(get_args(CertifiedRole))}) and the words of {source}"
        )
    return re.compile(pattern), target


@attrs.frozen
class Credentials:
    """What this process shows in TLS handshakes, and what it asks of others. `certificate`: its
    own, as DER. `trust`: equal for two credentials that accept the same certificates of others.
    `names`: translates the names in those. `for_anyone`: the server context for clients with and
    without a certificate; None if the own certificate is self-signed.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: bytes
    trust: bytes = b""
    names: NameMap = attrs.field(factory=NameMap)
    for_anyone: ssl.SSLContext | None = None


def client_context() -> ssl.SSLContext:
    """Return a context for connections to any server: the certificate is not verified, but bound to
    the proof of the secret.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Names are URIs, and compared with what the peer says in the handshake.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No process resumes: a ticket would only be two more records for each connection.
    context.num_tickets = 0
    return context


def server_context(identity: SelfSigned) -> ssl.SSLContext:
    """Return a server context that accepts any client."""
    context = _server_context()
    _load(context, identity.pem)
    return context


def self_signed_credentials(identity: SelfSigned) -> Credentials:
    """Make credentials with a self-signed certificate, which no peer verifies."""
    return Credentials(server_context(identity), client_context(), identity.certificate)


def read_credentials(files: CertificateFiles) -> Credentials:
    """Make credentials that show a certificate signed by the CA, and ask peers for one. Raises
    ValueError, which names the file and what to do.
    """
    content: dict[str, bytes] = {"": b""}
    for file in filter(None, attrs.astuple(files)):
        try:
            with open(file, "rb") as opened:
                content[file] = opened.read(MOST_PEM_BYTES)
        except OSError as error:
            raise ValueError(
                f"the TLS file {file} cannot be read: {error.strerror}; `understudy tls ca` and "
                "`understudy tls cert` make such files"
            ) from None
    refuse_open_file("private key", files.key)
    server, client, for_anyone = _server_context(), client_context(), _server_context()
    try:
        certificate = ssl.PEM_cert_to_DER_cert(_first_certificate(content[files.certificate]))
    except ValueError:
        raise ValueError(
            f"{files.certificate} holds no certificate in PEM: give the file NAME.pem that "
            "`understudy tls cert` makes"
        ) from None
    for context in (server, client, for_anyone):
        try:
            # A passphrase is refused rather than asked for in the terminal of a service.
            context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
            raise ValueError(
                f"{files.certificate} and {files.key} are not a certificate and its key "
                f"({reason}): give the key that was made with the certificate"
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL if context is for_anyone else ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            raise ValueError(f"{files.ca} holds no CA's certificate in PEM ({error})") from None
        if files.crl:
            _load_revoked(context, files.crl, content[files.crl])
    try:
        names = NameMap(content[files.map].decode())
    except ValueError as error:
        raise ValueError(f"{files.map} is not a map of names: {error}") from None
    trust = b"\0".join(content[file] for file in (files.ca, files.crl, files.map))
    return Credentials(server, client, certificate, trust, names, for_anyone)


def _load_revoked(context: ssl.SSLContext, file: str, content: bytes) -> None:
    """Have certificates refused that a list in `file` names. Raises ValueError for other files."""
    # OpenSSL would trust a certificate that is in the file as one of a CA.
    if b"-----BEGIN X509 CRL-----" not in content or b"CERTIFICATE-----" in content:
        raise ValueError(
            f"{file} holds no list of revoked certificates in PEM, or something else beside it; "
            "`understudy tls revoke` makes one"
        )
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} holds no list of revoked certificates ({error})") from None
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _first_certificate(pem: bytes) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    inner = pem.decode("latin-1").partition(begin)[2].partition(end)[0]
    if not inner:
        raise ValueError("no certificate")
    return f"{begin}{inner}{end}"


def own_certified(credentials: Credentials) -> Certified | None:
    """Return the names in the own certificate, as others will read them. None if they would refuse
    it; their handshakes will report why.
    """
    try:
        return shown_to_itself(credentials)
    except ssl.SSLError:
        return None


def shown_to_itself(credentials: Credentials) -> Certified:
    """Return the names in the own certificate, from a handshake with itself in memory, because
    `ssl` reads only the certificates of peers. Raises SSLError if the handshake fails.
    """
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = credentials.client.wrap_bio(one, other)
    server = credentials.server.wrap_bio(other, one, server_side=True)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return certified_by(client, credentials.names)


def certified_by(tls: ssl.SSLObject, map_: NameMap) -> Certified:
    """Return the names in the peer's certificate, which `tls` has verified."""
    names = cast("tuple[tuple[str, str], ...]", (tls.getpeercert() or {}).get("subjectAltName", ()))
    return map_.certified(tuple(value for kind, value in names if kind == "URI"))


def fingerprint(tls: ssl.SSLObject) -> str:
    """The SHA-256 of the peer's certificate, in hexadecimal digits; "" if it has shown none."""
    shown = tls.getpeercert(binary_form=True)
    return hashlib.sha256(shown).hexdigest() if shown else ""


class _RefusedEverywhereError(ValueError):
    """A new certificate of this process, which can be read, would be refused by all others."""


class FileCredentials:
    """Credentials from files, read again when one of them has changed. If a file vanishes, does not
    parse, or would be refused by all others, the credentials that were read last stay in use, and
    `problem` says why. `now` gives seconds. Several threads may share it.

    Raises ValueError if the files cannot be read the first time.
    """

    def __init__(self, files: CertificateFiles, now: Callable[[], float] = lambda: 0.0) -> None:
        self._files = files
        self._now = now
        self._seen = self._look()
        self._current = read_credentials(files)
        self._certified = own_certified(self._current)
        self._again_at = math.inf
        """When files that have not changed are judged anew: a certificate may become valid."""
        self._fits: Callable[[Certified], object] | None = None
        """Raises WrongCertificateError for a certificate that does not name this process. None for
        a process that has no fixed name: then it must name what the one before has named.
        """
        self.problem = ""
        self.changes = 0
        """How often that has changed by which certificates of peers are judged."""

    def require(self, fits: Callable[[Certified], object]) -> None:
        """Take only certificates into use for which `fits` raises no WrongCertificateError."""
        self._fits = fits

    def current(self) -> Credentials:
        """Return the credentials for a handshake that begins now: read again if a file has changed.
        Makes a system call for each file.
        """
        seen = self._look()
        # The clock is that of a running event loop: before there is one, nothing was refused yet.
        if seen == self._seen and (self._again_at == math.inf or self._now() < self._again_at):
            return self._current
        # Noted first: one that is wrong is reported once, and tried again when it changes again.
        self._seen, self._again_at = seen, math.inf
        before = self._current
        try:
            found = read_credentials(self._files)
            # Judged only where it is new. What has changed besides, such as revocations, counts in
            # any case: a certificate of this process that they refuse was refused by others before.
            if found.certificate != before.certificate:
                self._certified = self._accepted(found)
            self._current = found
        except ValueError as error:
            if isinstance(error, _RefusedEverywhereError):
                self._again_at = self._now() + JUDGED_AGAIN_SECONDS
            if str(error) != self.problem:
                logger.error("%s; the certificate that was read before stays in use", error)
            self.problem = str(error)
        else:
            self.problem = ""
            # A new certificate of this process says nothing about those of others.
            self.changes += self._current.trust != before.trust
            logger.info("%s was read again", self._files.certificate)
        assert self._again_at == math.inf or self.problem, "what was accepted is not judged again"
        assert self.problem or self._current is not before, "without a problem the new ones count"
        return self._current

    def refusal(self) -> str:
        """Why this process, and each other with the same files, refuses its certificate; "" if they
        accept it.
        """
        try:
            shown_to_itself(self.current())
        except ssl.SSLError as error:
            return (
                f"others with the same files would refuse the certificate in "
                f"{self._files.certificate}, as this process does ({_reason(error)}): look at it "
                f"with `understudy tls info`, and at the CA's file {self._files.ca}"
            )
        return ""

    def _accepted(self, found: Credentials) -> Certified:
        """Return the names in a new certificate. Raises ValueError if no other process would accept
        it.
        """
        file = self._files.certificate
        try:
            certified = shown_to_itself(found)
        except ssl.SSLError as error:
            raise _RefusedEverywhereError(
                f"all others would refuse the new certificate in {file}, as this process does "
                f"({_reason(error)}): look at it with `understudy tls info`, and at the CA's file"
            ) from None
        before = self._certified
        try:
            if self._fits is not None:
                self._fits(certified)
            elif before is not None and (certified.cluster, certified.role) != (
                before.cluster,
                before.role,
            ):
                raise WrongCertificateError(
                    f"it is for {plain(', '.join(certified.uris)) or 'no name'}, and the one "
                    f"before for {plain(', '.join(before.uris)) or 'no name'}"
                )
        except WrongCertificateError as error:
            raise _RefusedEverywhereError(
                f"all others would refuse the new certificate in {file}: {error}"
            ) from None
        return certified

    def _look(self) -> tuple[object, ...]:
        """Differs when a file was written, replaced, or had its rights changed."""
        found: list[object] = []
        for file in filter(None, attrs.astuple(self._files)):
            try:
                status = os.stat(file)
            except OSError as error:
                found.append(error.errno)
            else:
                found.append(
                    (status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)
                )
        return tuple(found)


def _reason(error: ssl.SSLError) -> object:
    return getattr(error, "verify_message", "") or error.reason or error


def _load(context: ssl.SSLContext, pem: str) -> None:
    """`ssl` reads keys from files only. Where there are files in memory the key is never on a
    disk.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        descriptor = os.memfd_create("certificate")
        try:
            os.write(descriptor, pem.encode())
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w") as file:  # of mode 0600
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


# How long a connection may stand whose peer has shown a certificate.
#
# A session outlives its connections, so what a certificate proves has to be looked at again while
# the session goes on. Python's `ssl` verifies certificates in handshakes only. So the connection is
# closed, and the session goes on over another one, after a handshake by what holds then. A peer
# whose certificate does not hold any more is refused in that handshake; for all others nothing is
# lost, as when a connection breaks.


class Validity:
    """Decides how long one connection may last, from its handshake on.

    `changes()`: how often the files have changed by which certificates are judged; it looks at the
    files now and then. `count`: what it returned when the handshake began.
    """

    def __init__(self, changes: Callable[[], int], count: int, environment: Environment) -> None:
        self._changes = changes
        self._count = count
        self._environment = environment
        self._ends = float("inf")
        # By chance, or all connections of a cluster that was started at once would be made anew at
        # once.
        age = environment.timings.connection_age * (0.5 + environment.random() / 2)
        self._old_at = environment.now() + age
        self._checked_at: float | None = None

    def on_shown(self, tls: ssl.SSLObject) -> None:
        """The handshake is over: note when the peer's certificate ends."""
        shown = tls.getpeercert() or {}
        self._ends = ssl.cert_time_to_seconds(cast("str", shown["notAfter"])) + CLOCK_SECONDS

    def lapsed(self) -> str:
        """Why the connection is to be made anew; "" while it may stand."""
        environment = self._environment
        if environment.wall_time() > self._ends:
            return "the certificate that it has shown has expired"
        now = environment.now()
        if self._checked_at is None and self._changes() != self._count:
            # By chance again: each of a thousand connections costs a handshake.
            self._checked_at = now + environment.timings.trust_checked * environment.random()
        if self._checked_at is not None and now >= self._checked_at:
            return "the files by which its certificate was accepted have changed"
        if now >= self._old_at:
            return "the connection is old"
        return ""
