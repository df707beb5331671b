"""Local clusters that are open tell this user's commands where they are, and how to prove that they
may come in.

Each has a file of its own beside the user's shared secret, for its owner alone, which goes when the
cluster does. One that a killed process left behind is passed over, and removed. Where no file can
be written the cluster runs all the same, and commands must be given its address and secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs

from actors.own_logger import own_logger
from runtime.environment import Environment, Process
from runtime.links.transports import split_address, split_host_port
from runtime.membership.cluster_secret import shared_secret_path

STALE_SECONDS = 30 * 86_400.0
"""Seconds after which a file is removed if it is not known whether its process lives: it is of
another machine, or from before a restart.
"""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))

logger = own_logger("understudy.node")


@attrs.frozen
class Announcement:
    """An open local cluster: the address of its founding node, its name, its secret, and the
    program that has opened it. `others`: the addresses of its other nodes.
    """

    address: str
    cluster: str
    secret: bytes = attrs.field(repr=False)
    process: Process
    program: str = ""
    others: tuple[str, ...] = ()


@contextmanager
def announced(
    announcement: Announcement, environment: Environment
) -> Iterator[Callable[[Announcement], None]]:
    """Announce that cluster to this user's commands within the block. Gives what replaces the
    announcement by a later one.
    """
    try:
        path = _directory() / f"{environment.token(8).hex()}.json"
    except OSError as error:
        _log_unwritten(error)
        yield lambda announcement: None
        return
    _write(path, announcement)
    try:
        yield partial(_write, path)
    finally:
        _remove(path)


def _log_unwritten(error: OSError) -> None:
    logger.info(
        "could not write the announcement of this cluster, so commands do not find it; give "
        "them --address and --secret-file: %s",
        error,
    )


def _write(path: Path, announcement: Announcement) -> None:
    facts = {**attrs.asdict(announcement), "secret": announcement.secret.hex()}
    aside = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(
            os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            json.dump(facts, file)
        # Commands that read it meanwhile find either all of it or the one before.
        os.replace(aside, path)
    except OSError as error:
        _log_unwritten(error)


def open_clusters(environment: Environment) -> list[Announcement]:
    """Return the announcements of this user's clusters that are open now on this machine, by
    address.
    """
    found: list[Announcement] = []
    try:
        paths = list(_directory().glob("*.json"))
    except OSError:
        return []
    for path in paths:
        try:
            status = path.stat()
            if status.st_uid not in (os.geteuid(), 0):
                # Another user's: commands would tell the node there what they are asked to send.
                continue
            announcement = _read(path)
            age = environment.wall_time() - status.st_mtime
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            # Being written, or gone meanwhile, or none of ours.
            continue
        process = announcement.process
        if environment.has_ended(process) or (
            process.host != environment.process().host and age > STALE_SECONDS
        ):
            _remove(path)
        elif process.host == environment.process().host:
            found.append(announcement)
    return sorted(found, key=lambda one: one.address)


def local_cluster_at(
    environment: Environment, address: str, cluster: str | None = None
) -> Announcement | None:
    """Return the cluster of this user that is open now on this machine and has a node at `address`,
    if its name is `cluster`.
    """
    wanted = _comparable(address)
    return next(
        (
            one
            for one in open_clusters(environment)
            if cluster in (None, one.cluster)
            and wanted in map(_comparable, (one.address, *one.others))
        ),
        None,
    )


def _comparable(address: str) -> tuple[str, str]:
    """Host and port, with one host for all names of this machine's loopback interface: the nodes of
    local clusters listen there.
    """
    try:
        host, port = split_host_port(split_address(address)[1])
    except ValueError:
        # No node listens at what is no address.
        return address, ""
    return ("127.0.0.1" if host in _LOOPBACK else host), str(port)


def _read(path: Path) -> Announcement:
    facts = json.loads(path.read_text(encoding="utf-8"))
    process = Process(**facts["process"])
    return Announcement(
        str(facts["address"]),
        str(facts["cluster"]),
        bytes.fromhex(facts["secret"]),
        process,
        str(facts["program"]),
        tuple(map(str, facts.get("others", ()))),
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.info("could not remove %s: %s", path, error)


def _directory() -> Path:
    return shared_secret_path().parent / "open"
