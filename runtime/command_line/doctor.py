"""`understudy doctor`: look at what usually goes wrong on a machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import click
import trio

from actors.errors import StoreError, UnderstudyError
from runtime.command_line.connect import find_chosen_tls, tls_options
from runtime.command_line.units import PathName
from runtime.environment import SystemEnvironment, host_identity, raise_alone
from runtime.links.credentials import read_credentials, shown_to_itself
from runtime.links.encryption import TLS_VARIABLE, Tls, system_network
from runtime.links.keyring import guessable, read_secrets
from runtime.links.transports import Connection
from runtime.membership.cluster_secret import VARIABLE, find_secret, shared_secret_path
from runtime.version import __version__
from runtime.wire.certificates import valid_until
from runtime.wire.handshake import CLIENT_NAMES, Certified, check_certified

AUTHOR = "The Understudy authors"
"""Who wrote our distribution, as `pyproject.toml` says."""

ENDS_SOON_DAYS = 14
"""Before its end, a certificate needs attention: the time that `understudy tls expiry` gives."""


@attrs.frozen
class Finding:
    """The result of one check: what was checked, whether it passed, and what was found or what to
    do.
    """

    check: str
    well: bool
    text: str


@click.command(epilog="Example:  understudy doctor")
@click.option(
    "--store",
    metavar="etcd://HOST:PORT,...",
    help="Also check this etcd, in which a cluster will keep its store.",
)
@click.option(
    "--data-dir",
    type=PathName(path_type=Path, file_okay=False),
    help="Also check the store in this directory; its node must not be running.",
)
@click.option(
    "--secret-file",
    type=PathName(path_type=Path, dir_okay=False),
    help="Also check this file, which has a cluster's secret.",
)
@tls_options
@click.option("--cluster", help="Also check that the certificate is for this cluster.")
@click.option("--name", help="Also check that the certificate is for the node of this name.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(
    store: str | None,
    data_dir: Path | None,
    secret_file: Path | None,
    cluster: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Check Python, packages, shadowed imports, sockets, TLS, the secret and the store. Exit status
    1 if something needs attention.
    """
    findings = [
        check()
        for check in (
            _system,
            _python,
            _packages,
            _shadowed,
            _loopback,
            _unix_sockets,
            partial(_tls, cluster, name),
            _proof,
            _descriptors,
        )
    ]
    findings.append(_secret(secret_file))
    if store is not None:
        findings.append(_etcd(store))
    if data_dir is not None:
        findings += [
            _rights("store's rights", [data_dir, *_files_in(data_dir)]),
            _store_file(data_dir),
        ]
    if as_json:
        click.echo(json.dumps([attrs.asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = (
                click.style("ok  ", fg="green")
                if finding.well
                else click.style("look", fg="yellow")
            )
            click.echo(f"{mark} {finding.check:<16} {finding.text}")
    raise SystemExit(0 if all(finding.well for finding in findings) else 1)


def _system() -> Finding:
    system = platform.system()
    return Finding(
        "system",
        system == "Linux",
        f"{system} {platform.release()}"
        + ("" if system == "Linux" else "; Linux is needed: use a container or WSL 2"),
    )


def _python() -> Finding:
    well = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding(
        "python",
        well,
        f"{platform.python_version()} at {sys.executable}"
        + ("" if well else "; 3.11 to 3.13 are supported"),
    )


def _packages() -> Finding:
    other = _other_understudy()
    if other is not None:
        return Finding(
            "packages",
            False,
            f"another project is installed as `understudy` ({other}), and may have replaced our "
            "package or command of that name. Run `pip uninstall understudy`, then install "
            "`understudy-actors` again with --force-reinstall",
        )
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in ("trio", "attrs", "cbor2", "click")
    ]
    return Finding("packages", True, ", ".join([f"understudy {__version__}", *versions]))


def _other_understudy() -> str | None:
    """The version of PyPI's `understudy`, if it is installed. Ours is `understudy-actors`."""
    try:
        found = importlib.metadata.metadata("understudy")
    except importlib.metadata.PackageNotFoundError:
        return None
    # Checkouts that were installed before the distribution was renamed are ours as well.
    ours = "Author" in found and found["Author"] == AUTHOR
    return None if ours else found["Version"]


def _shadowed() -> Finding:
    """A user's own `actors.py` beside the script would be imported instead of ours."""
    here = Path.cwd()
    own = Path(__file__).resolve().parents[2]
    for name in ("actors", "runtime"):
        for candidate in (here / f"{name}.py", here / name / "__init__.py"):
            if candidate.exists() and own not in candidate.resolve().parents:
                return Finding(
                    "imports",
                    False,
                    f"{candidate} hides our package `{name}` from scripts in this directory; "
                    f"rename it, for example to my_{name}.py",
                )
    return Finding("imports", True, "nothing here hides the packages `actors` and `runtime`")


def _tried(check: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(check, True, attempt())
    except (OSError, ValueError, UnderstudyError) as error:
        return Finding(check, False, str(error))


def _loopback() -> Finding:
    def attempt() -> str:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            return "a connection over 127.0.0.1 works"

    return _tried("loopback", attempt)


def _unix_sockets() -> Finding:
    def attempt() -> str:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"\0understudy-doctor-{os.getpid()}")
        return "abstract Unix sockets work: nodes of one machine use them"

    return _tried("unix sockets", attempt)


def _tls(cluster: str | None, name: str | None) -> Finding:
    """Whether TLS works, what `UNDERSTUDY_TLS` gives up, and whether others will accept the
    certificate: of this cluster, and of the node of this name, if they are given.
    """

    async def talk(tls: Tls) -> None:
        environment = SystemEnvironment()
        network = system_network(environment, attrs.evolve(tls, mode="require"))
        async with trio.open_nursery() as nursery:
            address = await nursery.start(network.listen, "127.0.0.1:0", _answer)
            with trio.fail_after(5):
                connection = await network.connect(address)
                connection.send_some([b"?"])
                answer = await connection.receive()
            connection.close()
            if answer != b"!" or not connection.channel.binding:
                raise ValueError("a TLS connection from this process to itself transferred no data")
            nursery.cancel_scope.cancel()

    def attempt() -> str:
        tls = find_chosen_tls()
        mode = tls.mode
        if mode in ("off", "accept"):
            raise ValueError(
                f"{TLS_VARIABLE}={mode}: "
                + (
                    "nothing that leaves this machine is encrypted; "
                    if mode == "off"
                    else "an intruder on the network can have encryption given up; "
                )
                + "unset it, unless the network between the nodes is yours alone"
            )
        try:
            trio.run(talk, tls)
        except BaseExceptionGroup as group:
            raise_alone(group)
        shown = ""
        if tls.has_files:
            credentials = read_credentials(tls.files)
            certificate = credentials.certificate
            named = _checked(shown_to_itself(credentials), cluster, name)
            days = (valid_until(certificate) - SystemEnvironment().wall_time()) / 86400
            if days < ENDS_SOON_DAYS:
                raise ValueError(
                    f"{tls.certificate} ends in {days:.1f} days: write a new certificate over it; "
                    "nodes read it again by themselves"
                )
            shown = f", and {tls.certificate} ({named}) is accepted by {tls.ca} for {days:.0f} days"
        return (
            f"TLS 1.3 works ({ssl.OPENSSL_VERSION}): what leaves this machine is encrypted{shown}"
        )

    return _tried("tls", attempt)


def _checked(certified: Certified, cluster: str | None, name: str | None) -> str:
    """What a certificate names. Raises `WrongCertificateError` if it is not what is asked."""
    expected = cluster or certified.cluster
    if name is not None or certified.role in ("", "node"):
        check_certified(certified, expected, "node", name or certified.name)
    elif certified.cluster != expected:
        check_certified(certified, expected, "client", CLIENT_NAMES)
    return f"{certified.role} {certified.name!r} of cluster {certified.cluster!r}"


async def _answer(connection: Connection) -> None:
    try:
        await connection.receive()
        connection.send_some([b"!"])
        # Until the other end has read it, and has closed.
        await connection.receive()
    finally:
        connection.close()


def _proof() -> Finding:
    well = bool(host_identity())
    return Finding(
        "proof of death",
        well,
        "/proc shows when a process has ended"
        if well
        else "no /proc: the death of a node is detected when its lease ends, after 5 s",
    )


def _descriptors() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(
        "descriptors",
        soft >= 1024,
        f"{soft} files may be open (at most {hard})"
        + ("" if soft >= 1024 else "; raise it with `ulimit -n`"),
    )


def _etcd(address: str) -> Finding:
    """Each member by itself: a cluster of etcd answers while some of them are away."""
    from runtime.store.etcd.address import EtcdAddress
    from runtime.store.etcd.gateway import Gateway

    async def ask(parsed: EtcdAddress) -> tuple[list[str], list[str]]:
        well: list[str] = []
        away: list[str] = []
        for endpoint in parsed.endpoints:
            gateway = Gateway(attrs.evolve(parsed, endpoints=(endpoint,)))
            where = f"{endpoint[0]}:{endpoint[1]}"
            try:
                answer = await gateway.ask("/v3/maintenance/status", {}, seconds=1.0)
            except StoreError as error:
                away.append(str(error))
            else:
                well.append(
                    f"{where} {answer.get('version', '?')}"
                    + ("" if int(answer.get("leader", 0)) else ", without a leader")
                )
            finally:
                gateway.close()
        return well, away

    def attempt() -> str:
        well, away = trio.run(ask, EtcdAddress.parse(address))
        if away or any("without a leader" in each for each in well):
            raise StoreError("; ".join([*away, *well]))
        return f"etcd answers: {'; '.join(well)}"

    return _tried("store", attempt)


def _store_file(directory: Path) -> Finding:
    from runtime.store.file import StoreFile, files_of

    def attempt() -> str:
        # With the rest of a store there, but not its database, a founder refuses the directory.
        *of_store, _lock = files_of(directory)
        if not any(path.exists() for path in of_store):
            return f"{directory} has no store yet; a founder will begin one there"
        file = StoreFile(directory)
        try:
            kept = file.load()
        finally:
            file.close()
        return (
            f"{file.path} is sound: revision {kept.revision}, {len(kept.entries)} keys, "
            f"{len(kept.leases)} leases"
        )

    return _tried("store", attempt)


def _secret(given: Path | None) -> Finding:
    """Whether there is one, and whether others than its owner can read or guess it: who has it can
    do anything in the cluster.
    """

    def attempt() -> str:
        if given is not None:
            secrets, where = read_secrets(given), str(given)
        else:
            secrets = find_secret(None, SystemEnvironment().token, needs_own=False).secrets()
            where = VARIABLE if os.environ.get(VARIABLE) else str(shared_secret_path())
        if why := guessable(secrets):
            raise ValueError(
                f"{where} has {why}; `understudy secret rotate --to FILE` replaces that of a "
                "running cluster"
            )
        if given is not None:
            return f"{given} holds one"
        return (
            f"{VARIABLE} is set"
            if os.environ.get(VARIABLE)
            else f"this user's clusters on this machine share one; set {VARIABLE} for others"
        )

    found = _tried("secret", attempt)
    if not found.well or (given is None and os.environ.get(VARIABLE)):
        return found
    readable = _rights("secret", [given if given is not None else shared_secret_path()])
    return found if readable.well else readable


def _files_in(directory: Path) -> list[Path]:
    from runtime.store.file import files_of

    return files_of(directory)


def _rights(check: str, paths: list[Path]) -> Finding:
    """Whether these are for their owner alone, as far as they are there."""
    open_to_others = [path for path in paths if path.exists() and path.stat().st_mode & 0o077]
    if not open_to_others:
        return Finding(check, True, "only their owner can read them")
    modes = ", ".join(f"{path} ({path.stat().st_mode & 0o777:o})" for path in open_to_others)
    words = " ".join(shlex.quote(str(path)) for path in open_to_others)
    return Finding(
        check,
        False,
        f"others than the owner can read or write {modes}; `chmod go= {words}` ends that",
    )
