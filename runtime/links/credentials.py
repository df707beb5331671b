"""What a process shows of itself in TLS handshakes, and what it asks of others: a certificate of
its own making, or files with one that a CA has signed, which are read again when they change.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from pathlib import Path
from typing import cast

import attrs

from runtime.wire.certificates import SelfSigned
from runtime.wire.handshake import Certified

MOST_PEM_BYTES = 1024 * 1024
"""Of a file with certificates: a larger one is none."""

logger = logging.getLogger("understudy.links")


@attrs.frozen
class CertificateFiles:
    """Paths of PEM files: the CA's certificates, and this process's own with its private key."""

    ca: str
    certificate: str
    key: str


@attrs.frozen
class Credentials:
    """What this process shows in TLS handshakes, and what it asks of others. `certificate`: its
    own, as DER.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: bytes


def client_context() -> ssl.SSLContext:
    """For connections to any server, whoever it is: the certificate is bound to the proof of the
    secret, not verified.
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
    # Nobody resumes: a ticket would only be two more records for each connection.
    context.num_tickets = 0
    return context


def server_context(identity: SelfSigned) -> ssl.SSLContext:
    """For connections of any client."""
    context = _server_context()
    _load(context, identity.pem)
    return context


def self_signed_credentials(identity: SelfSigned) -> Credentials:
    """With a certificate that nobody verifies."""
    return Credentials(server_context(identity), client_context(), identity.certificate)


def read_credentials(files: CertificateFiles) -> Credentials:
    """With certificates that a CA has signed, at both ends. Raises ValueError, which names the file
    and what to do.
    """
    for file in (files.ca, files.certificate, files.key):
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise ValueError(f"the TLS file {file} cannot be read: {error.strerror}") from None
    mode = os.stat(files.key).st_mode & 0o777
    if mode & 0o077:
        raise ValueError(
            f"others can read the private key {files.key} (mode {mode:o}): chmod 600 {files.key}"
        )
    server, client = _server_context(), client_context()
    try:
        certificate = ssl.PEM_cert_to_DER_cert(_first_certificate(files.certificate))
    except ValueError:
        raise ValueError(f"{files.certificate} holds no certificate in PEM") from None
    for context in (server, client):
        try:
            # A passphrase is refused rather than asked for in the terminal of a service.
            context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
            raise ValueError(
                f"{files.certificate} and {files.key} are not a certificate and its key ({reason})"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            raise ValueError(f"{files.ca} holds no CA's certificate in PEM ({error})") from None
    return Credentials(server, client, certificate)


def _first_certificate(file: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    with open(file, encoding="latin-1") as opened:
        inner = opened.read(MOST_PEM_BYTES).partition(begin)[2].partition(end)[0]
    if not inner:
        raise ValueError("no certificate")
    return f"{begin}{inner}{end}"


def own_certified(credentials: Credentials) -> Certified | None:
    """Whom the own certificate names, as others will read it: in a handshake with oneself, for
    `ssl` reads certificates of peers only. None where it does not come about; others will say why.
    """
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = credentials.client.wrap_bio(one, other)
    server = credentials.server.wrap_bio(other, one, server_side=True)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return None
    return certified_by(client)


def certified_by(tls: ssl.SSLObject) -> Certified:
    """Whom the peer's certificate names, which was verified."""
    names = cast("tuple[tuple[str, str], ...]", (tls.getpeercert() or {}).get("subjectAltName", ()))
    return Certified.of(tuple(value for kind, value in names if kind == "URI"))


class FileCredentials:
    """Credentials of files, read again when one of them has changed. What vanishes or does not
    parse is no reason to stop: what was read last stays in use, and `problem` says why.

    Raises ValueError where they cannot be read the first time.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._seen = self._look()
        self._current = read_credentials(files)
        self.problem = ""

    def current(self) -> Credentials:
        """Those for a handshake that begins now. Some system calls for files that are cached."""
        seen = self._look()
        if seen == self._seen:
            return self._current
        # Noted first: one that is wrong is reported once, and tried again when it changes again.
        self._seen = seen
        try:
            self._current = read_credentials(self._files)
        except ValueError as error:
            self.problem = str(error)
            logger.error("%s; the certificate that was read before stays in use", error)
        else:
            self.problem = ""
            logger.info("%s was read again", self._files.certificate)
        return self._current

    def _look(self) -> tuple[object, ...]:
        """Differs when a file was written, replaced, or had its rights changed."""
        found: list[object] = []
        for file in attrs.astuple(self._files):
            try:
                status = os.stat(file)
            except OSError as error:
                found.append(error.errno)
            else:
                found.append(
                    (status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)
                )
        return tuple(found)


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
