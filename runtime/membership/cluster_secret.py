"""The cluster's secret: where a node finds it, and how one is made where none was given.

Order: what the caller gives, `UNDERSTUDY_SECRET`, and for nodes that only this machine can reach
a file that belongs to the user alone, made at first use. A node that others can reach must be
given one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from actors.errors import (
    ListenError,
)
from runtime.links.encryption import Tls, find_tls
from runtime.links.keyring import GivenSecret, Keyring, Origin, keyring_of, split_secrets

VARIABLE = "UNDERSTUDY_SECRET"


SIZE = 32


CERTIFICATES_INSTEAD = b"understudy: certificates stand in place of a secret"
"""The empty secret of a cluster that has none. There every connection is over TLS that has verified
both certificates, or over a Unix socket of one user.
"""


def find_security(
    secret: GivenSecret | None,
    tls: Tls | str | None,
    token: Callable[[int], bytes],
    *,
    needs_own: bool,
    joining: str = "",
) -> tuple[Keyring, Tls]:
    """The secrets, and how connections are encrypted: certificates that are given without a secret
    stand in its place. The parameters and errors are those of `find_secret` and `find_tls`.
    """
    settled = settle_tls(secret, tls)
    found = find_secret(
        secret, token, needs_own=needs_own, certified=settled.has_files, joining=joining
    )
    return found, settled


def settle_tls(secret: object, tls: Tls | str | None) -> Tls:
    """Return the settings of `find_tls`; without the secret, if certificates take its place."""
    found = find_tls(tls)
    instead = found.has_files and secret is None and not os.environ.get(VARIABLE)
    return found.without_secret() if instead else found


def find_secret(
    given: GivenSecret | None,
    token: Callable[[int], bytes],
    *,
    needs_own: bool,
    certified: bool = False,
    joining: str = "",
    hint: str = "",
) -> Keyring:
    """Return the cluster's secret, or several while it is being changed. `token` draws a new one;
    `needs_own`: the shared file of this user is not enough; `certified`: certificates stand in its
    place where none is given; `joining`: the address of the cluster, if it is on another machine;
    `hint`: what else who joins needs to know.

    Raises `ListenError` if a secret is needed and none was given, TypeError or ValueError for one
    that is none.
    """
    if given is not None:
        return keyring_of(given)
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        # The bytes that stand there, as in a file: they may be no UTF-8.
        return Keyring(split_secrets(os.fsencode(from_environment), VARIABLE), "environment")
    if certified:
        return Keyring((CERTIFICATES_INSTEAD,), "certificates")
    if needs_own:
        raise ListenError(
            f"the cluster at {joining} is on another machine and lets in only those that have its "
            f"secret: set {VARIABLE} to the value that the nodes there have, or give secret= or "
            f"--secret-file{hint}"
            if joining
            else "a node that other machines can reach needs the secret of its cluster: set "
            f"{VARIABLE}, or give secret= or --secret-file; `openssl rand -hex 32` makes one for "
            "a new cluster. A node that listens on 127.0.0.1 needs none"
        )
    instead = f"set {VARIABLE} instead"
    try:
        path = shared_secret_path()
    except OSError as error:
        raise ListenError(
            f"the secret shared by this user's clusters has no place: {error}; or {instead}"
        ) from error
    return _filed(path, token, "shared by this user's clusters", instead, "shared")


def shared_secret_path() -> Path:
    """Return the file with the secret that all clusters of this user on this machine share. Raises
    `FileNotFoundError` for a user without a home directory.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    # As the specification says, a relative path is ignored: what it names depends on where a
    # program was started, and the others of this user would not find the cluster.
    if not os.path.isabs(base):
        try:
            base = str(Path.home() / ".local" / "state")
        except RuntimeError as error:
            # As in a container that runs with a user id which no /etc/passwd names.
            raise FileNotFoundError(
                f"user {os.geteuid()} has no home directory: set HOME or XDG_STATE_HOME"
            ) from error
    return Path(base) / "understudy" / "secret"


def secret_beside_store(directory: Path, token: Callable[[int], bytes]) -> Keyring:
    """Return the secret of a local cluster, which is kept in the directory of its store: a store is
    opened again only with the secret of its cluster. Blocks on the disk. Raises `ListenError`.
    """
    return _filed(
        directory / "secret",
        token,
        "of the local cluster",
        "give another data_dir, or rights to this one",
        "file",
    )


def _filed(
    path: Path, token: Callable[[int], bytes], whose: str, instead: str, origin: Origin
) -> Keyring:
    """Return the secret in a file of this user alone, made now if it is not there. `whose`,
    `instead`: for the error.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            # First: in a folder that all can write, others may put a link in the place of a file.
            _check_own(path.parent, 0o002)
            # Written aside and linked into place: two first nodes at the same moment agree on one.
            aside = path.with_name(f"secret.{os.getpid()}")
            aside.unlink(missing_ok=True)
            # Opened once: the name may lead elsewhere a moment later.
            opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(opened, token(SIZE).hex().encode())
            finally:
                os.close(opened)
            try:
                os.link(aside, path)
            except FileExistsError:
                pass
            finally:
                aside.unlink()
        # Of the folder only writing counts: who may put files there may replace the secret. Rights
        # of a group are left to who has set them, as Kubernetes does for volumes.
        _check_own(path.parent, 0o002)
        _check_own(path, 0o007)
        return Keyring.of_file(path, origin)
    except OSError as error:
        raise ListenError(
            f"the secret {whose} cannot be stored in {path}: {error.strerror or error}; {instead}"
        ) from error


def _check_own(one: Path, open_to_all: int) -> None:
    """Refuse a folder or file by which other users know or choose a shared secret: with it they
    could start any code in the clusters of this user. `open_to_all`: the rights that they must not
    have. Raises `ListenError`.
    """
    status = one.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ListenError(
            f"{one} belongs to another user (uid {status.st_uid}), and so may the secret in "
            f"it: set {VARIABLE}, or another XDG_STATE_HOME"
        )
    if status.st_mode & open_to_all:
        raise ListenError(
            f"all users of this machine can use {one} (mode {status.st_mode & 0o7777:o}), and "
            f"with it the secret of this user's clusters: chmod go= {one}"
        )
