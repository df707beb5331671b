"""A CA for the tests of TLS, whose certificates are as wrong as they are wanted; and processes that
seem to be on other machines, so that they connect over TCP.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runtime import Tls
from runtime.environment import Process, SystemEnvironment
from runtime.timings import Timings


class Elsewhere(SystemEnvironment):
    """As on another machine: what is on this one is not reached by Unix sockets."""

    def __init__(self, timings: Timings | None = None, host: str = "elsewhere") -> None:
        super().__init__(timings)
        self.host = host

    def process(self) -> Process:
        return Process(self.host, os.getpid(), "")


class Authority:
    """A CA, and certificates as wrong as they are wanted."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.key = ec.generate_private_key(ec.SECP256R1())
        place.mkdir(parents=True, exist_ok=True)
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, place.name)])
        # What Python 3.13 asks of a CA and of its certificates by default (VERIFY_X509_STRICT).
        made = (
            self._made(place.name, self.key, self.key, -1, 100)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=False,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
        )
        self.pem = made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (place / "ca.pem").write_bytes(self.pem)
        self.issued: dict[str, x509.Certificate] = {}
        """By the stems of their files, the latest of each."""

    def _made(
        self, name: str, key: Any, signer: Any, begins: float, ends: float
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=begins))
            .not_valid_after(now + datetime.timedelta(days=ends))
        )

    def tls(
        self,
        uri: str | None,
        *,
        begins: float = -1,
        ends: float = 1,
        ca: Path | None = None,
        stem: str = "",
        place: Path | None = None,
        **more: Any,
    ) -> Tls:
        """Files with a certificate that has this URI, written over those that there are."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._made("x", key, self.key, begins, ends)
        if uri is not None:
            names = [x509.UniformResourceIdentifier(uri)]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
            critical=False,
        )
        stem = stem or os.urandom(4).hex()
        place = place or self.place
        certificate, key_file = place / f"{stem}.pem", place / f"{stem}-key.pem"
        self.issued[stem] = made.sign(self.key, hashes.SHA256())
        whole = self.issued[stem].public_bytes(serialization.Encoding.PEM)
        for path, data in (
            (certificate, whole),
            (
                key_file,
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            ),
        ):
            path.write_bytes(data)
            path.chmod(0o600)
        return Tls(ca=ca or place / "ca.pem", certificate=certificate, key=key_file, **more)  # type: ignore[arg-type]

    def revoke(self, *stems: str, days: float = 1, begins: float = -1) -> bytes:
        """A list with the latest certificates of these files."""
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(now + datetime.timedelta(days=begins))
            .next_update(now + datetime.timedelta(days=days))
        )
        for stem in stems:
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(self.issued[stem].serial_number)
                .revocation_date(now)
                .build()
            )
        return made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def node_uri(name: str, cluster: str = "understudy", role: str = "node") -> str:
    return f"understudy://{cluster}/{role}/{name}"
