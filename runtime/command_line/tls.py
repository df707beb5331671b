"""`understudy tls`: a certificate authority of files, and certificates for nodes to show."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from runtime.command_line.connect import DEFAULT_CLUSTER
from runtime.command_line.system_errors import written_to
from runtime.command_line.units import PathName, Text
from runtime.command_line.usage import NamingGroup
from runtime.environment import SystemEnvironment
from runtime.printable import plain
from runtime.private_files import refuse_open_file
from runtime.wire.handshake import ANY_NAME, Certified, CertifiedRole, certified_uri

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

F = TypeVar("F", bound=Callable[..., Any])

CA_DAYS, DAYS = 3650, 90

MOST_DAYS = 36_500
"""A century: dates of certificates end with the year 9999."""

BACKDATED = datetime.timedelta(minutes=5)
"""A certificate is valid a little before it is made, for machines whose clocks are behind."""

directory_option = click.option(
    "--dir",
    "directory",
    type=PathName(path_type=Path, file_okay=False),
    default=Path(),
    help="Directory of ca.pem and ca-key.pem. Default: the current one.",
)


@click.group(cls=NamingGroup)
def tls() -> None:
    """Make certificates, look at them, and find those that end soon."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise click.ClickException(
            "certificates need an extra: pip install 'understudy-actors[tls]'; connections are "
            "encrypted without any"
        ) from None


def _days(default: int) -> Callable[[F], F]:
    return click.option(
        "--days",
        type=click.IntRange(min=1, max=MOST_DAYS),
        default=default,
        show_default=True,
        help="Valid for.",
    )


@tls.command(epilog="Example:  understudy tls ca --dir /etc/understudy")
@directory_option
@_days(CA_DAYS)
def ca(directory: Path, days: int) -> None:
    """Make a certificate authority: ca.pem, which every node gets, and ca-key.pem, which stays
    where certificates are made.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # Of a name of its own: among several, when one takes the place of another, OpenSSL looks for
    # the signer of a certificate by its name.
    number = SystemEnvironment().token(4).hex()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"understudy CA {number}")])
    made = (
        _begun(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "ca-key.pem", _key_pem(key), 0o600)
    _write(directory / "ca.pem", _pem(made), 0o644)
    click.echo(f"{directory / 'ca.pem'}: give it to every node, as --tls-ca")
    click.echo(f"{directory / 'ca-key.pem'}: keep it here, and secret: it makes members")


@tls.command(epilog="Example:  understudy tls cert --name w1 --role node")
@click.option(
    "--name",
    type=Text(),
    required=True,
    help=f"The node's name; {ANY_NAME!r} for any, as programs that connect need it.",
)
@click.option(
    "--role", type=click.Choice(get_args(CertifiedRole)), default="node", show_default=True
)
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True)
@click.option("--out", help="Beginning of the names of the two files. Default: the name.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Host name or IP address of the machine, for scrapers that compare it where metrics are "
    "served over https://; nodes do not. May be given several times.",
)
@directory_option
@_days(DAYS)
def cert(
    name: str,
    role: CertifiedRole,
    cluster: str,
    out: str | None,
    hosts: tuple[str, ...],
    directory: Path,
    days: int,
) -> None:
    """Make a certificate and its key: NAME.pem and NAME-key.pem in the directory of the CA."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, signer = _authority(directory)
    uri = certified_uri(cluster, role, name)
    if not Certified.of((uri,)).role:
        raise click.UsageError(
            f"no node accepts a certificate for {name!r} of the cluster {cluster!r}: both are "
            "texts without control characters"
        )
    stem = out or ("any" if name == ANY_NAME else name)
    if not re.fullmatch(r"[\w.@+-]+", stem) or stem.startswith((".", "-")):
        raise click.UsageError(f"{stem!r} cannot be the name of a file: give another with --out")
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _begun(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])]),
            authority.subject,
            key,
            days,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.UniformResourceIdentifier(uri),
                    *map(_host_name, hosts),
                ]
            ),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    where, where_key = directory / f"{stem}.pem", directory / f"{stem}-key.pem"
    _write(where_key, _key_pem(key), 0o600)
    _write(where, _pem(made), 0o644)
    click.echo(f"--tls-ca {directory / 'ca.pem'} --tls-cert {where} --tls-key {where_key}")


def _host_name(host: str) -> x509.GeneralName:
    """As a certificate has it. Raises UsageError for what is neither an address nor a name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        # What x509 would write as it is, and no program would match.
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", host):
            raise click.UsageError(
                f"--host takes a host name or an IP address, not {host!r}"
            ) from None
        return x509.DNSName(host)


@tls.command(epilog="Example:  understudy tls revoke --dir pki pki/w1.pem")
@click.argument("files", nargs=-1, type=PathName(path_type=Path))
@directory_option
@_days(CA_DAYS)
def revoke(files: tuple[Path, ...], directory: Path, days: int) -> None:
    """Add certificates to crl.pem, the list of revoked ones, which every node gets as --tls-crl.
    Without FILES: make the list, or sign it again with new dates.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority, signer = _authority(directory)
    where = directory / "crl.pem"
    known, number = _revoked(where, authority)
    now = _now()
    for file in files:
        found = _read(file)
        try:
            found.verify_directly_issued_by(authority)
        except Exception:  # whatever cryptography finds wrong
            raise click.ClickException(
                f"{file} was not signed by {directory / 'ca.pem'}, so it cannot be revoked by it"
            ) from None
        known.setdefault(
            found.serial_number,
            x509.RevokedCertificateBuilder()
            .serial_number(found.serial_number)
            .revocation_date(now)
            .build(),
        )
    made = (
        x509.CertificateRevocationListBuilder(revoked_certificates=list(known.values()))
        .issuer_name(authority.subject)
        .last_update(now - BACKDATED)
        .next_update(now + datetime.timedelta(days=days))
        .add_extension(x509.CRLNumber(number + 1), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    aside = directory / f"crl.pem.{os.getpid()}"
    aside.unlink(missing_ok=True)
    _write(aside, _crl_pem(made), 0o644)
    # As a whole: nodes read it at any moment.
    aside.replace(where)
    click.echo(f"{where}: {len(known)} revoked; give it to every node, as --tls-crl")


def _revoked(
    file: Path, authority: x509.Certificate
) -> tuple[dict[int, x509.RevokedCertificate], int]:
    """What the list has, by serial numbers, and its own number. Raises ClickException for one that
    the CA has not signed: it would be lost.
    """
    from cryptography import x509

    if not file.exists():
        return {}, 0
    try:
        found = x509.load_pem_x509_crl(file.read_bytes())
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"{file} is not a list of revoked certificates: {error}"
        ) from None
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    if not found.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]
        raise click.ClickException(f"{file} is another CA's list: move it away first")
    return {one.serial_number: one for one in found}, number


@tls.command()
@click.argument("file", type=PathName(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def info(file: Path, as_json: bool) -> None:
    """Say whom a certificate names, who signed it, and how long it is valid."""
    facts = _facts(file)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        # The names are those that its maker has chosen.
        text = ", ".join(value) if isinstance(value, list) else str(value)
        click.echo(f"{name:12} {plain(text)}")


@tls.command()
@click.argument("files", nargs=-1, required=True, type=PathName(path_type=Path))
@click.option(
    "--within", type=click.IntRange(min=0), default=14, show_default=True, help="Days from now."
)
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def expiry(files: tuple[Path, ...], within: int, as_json: bool) -> None:
    """Say when certificates end. Exit status 1 if one of them has ended, or ends soon. Keys and
    lists of revoked certificates among several files are passed over.
    """
    certificates = [file for file in files if not _is_beside_certificates(file)]
    found = [_facts(file) for file in certificates or files]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for facts in found:
            click.echo(f"{facts['days_left']:>6} days  {plain(facts['file'])}")
    if any(facts["days_left"] < within for facts in found):
        raise SystemExit(1)


def _facts(file: Path) -> dict[str, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    found = _read(file)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
    except x509.ExtensionNotFound:
        uris = ()
    certified = Certified.of(uris)
    left = found.not_valid_after_utc - _now()
    return {
        "file": str(file),
        "subject": found.subject.rfc4514_string(),
        "cluster": certified.cluster,
        "role": certified.role,
        "name": certified.name,
        "uris": list(uris),
        "issuer": found.issuer.rfc4514_string(),
        "from": found.not_valid_before_utc.isoformat(),
        "until": found.not_valid_after_utc.isoformat(),
        "days_left": left.days,
        "sha256": found.fingerprint(hashes.SHA256()).hex(),
    }


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(SystemEnvironment().wall_time(), datetime.UTC)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(directory: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The CA's certificate, and its key."""
    authority, signer = _read(directory / "ca.pem"), _signer(directory)
    if authority.public_key() != signer.public_key():
        # All nodes would refuse what it signs.
        raise click.ClickException(
            f"{directory / 'ca-key.pem'} is not the key of {directory / 'ca.pem'}: restore the "
            "file that was replaced"
        )
    return authority, signer


def _signer(directory: Path) -> EllipticCurvePrivateKey:
    """The CA's key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    file = directory / "ca-key.pem"
    try:
        refuse_open_file("key of the CA", file)
        data = file.read_bytes()
    except OSError as error:
        raise click.ClickException(
            f"{file} cannot be read: {error.strerror}; `understudy tls ca` makes it"
        ) from None
    except ValueError as error:
        # With it, another user of the machine makes members.
        raise click.ClickException(str(error)) from None
    try:
        signer = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        raise click.ClickException(
            f"{file} is not a private key in PEM without a passphrase; restore it, or move both "
            "files of the CA away and make another with `understudy tls ca`"
        ) from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise click.ClickException(f"{file} is not a key of `understudy tls ca`")
    return signer


def _read(file: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a certificate in PEM"
        if isinstance(error, FileNotFoundError) and file.name == "ca.pem":
            reason = f"{reason}; `understudy tls ca --dir {shlex.quote(str(file.parent))}` makes it"
        raise click.ClickException(f"{file} cannot be read: {reason}") from None


def _is_beside_certificates(file: Path) -> bool:
    """True for what `tls ca` and `tls revoke` write into the folder of the certificates."""
    try:
        text = file.read_bytes()
    except OSError:
        return False
    return b"-BEGIN CERTIFICATE-" not in text and (
        b"PRIVATE KEY-" in text or b"-BEGIN X509 CRL-" in text
    )


def _pem(made: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return made.public_bytes(serialization.Encoding.PEM)


def _crl_pem(made: x509.CertificateRevocationList) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return made.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """A new file, with these rights from the first. Raises ClickException for one that is there: a
    CA that is overwritten cuts off all that it has signed.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise click.ClickException(f"{path} is there already: move it away first") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    try:
        with written_to(path), os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
    except OSError:
        # A part of it would be in the way of the next attempt.
        path.unlink(missing_ok=True)
        raise
