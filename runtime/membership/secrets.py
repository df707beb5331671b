"""The cluster's secret: where a node finds it, and how one is made where nobody gave one.

Order: what the caller gives, `UNDERSTUDY_SECRET`, and for nodes that only this machine can reach a file that belongs to the user alone,
made at first use. A node that
others can reach must be given one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from actors.errors import ListenError

VARIABLE = "UNDERSTUDY_SECRET"
SIZE = 32
MOST_BYTES = 64 * 1024
"""Of a file with a secret: what is larger is some other file."""


def find_secret(given: bytes | str | None, token: Callable[[int], bytes], *, needs_own: bool) -> bytes:
    """The secret to prove and to ask for. `token` draws a new one; `needs_own`: the shared file of this user is not enough.

    Raises `ListenError` if a secret is needed and none was given, TypeError or ValueError for one that is none.
    """
    if given is not None:
        secret: object = given.encode() if isinstance(given, str) else given
        if not isinstance(secret, bytes):
            raise TypeError("secret must be bytes or a str; `openssl rand -hex 32` makes one")
        if not secret:
            # Not that of this user's own machine instead: it would let in others than was meant.
            raise ValueError("the secret is empty; leave it out, or give one: `openssl rand -hex 32` makes one")
        return secret
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        return from_environment.encode()
    if needs_own:
        raise ListenError(
            f"a node that other machines can reach needs a secret: set {VARIABLE}, or give --secret-file; `openssl rand -hex 32` makes one "
            "(one that listens on 127.0.0.1 needs none)"
        )
    return _shared(shared_secret_path(), token)


def read_secret_file(path: Path) -> bytes:
    """The secret in a file, without surrounding white space. Raises ValueError if the file is empty, too large, or cannot be read."""
    try:
        with path.open("rb") as file:
            secret = file.read(MOST_BYTES + 1).strip()
    except OSError as error:
        raise ValueError(f"the secret file {path} cannot be read: {error.strerror}") from error
    if len(secret) > MOST_BYTES:
        raise ValueError(f"the secret file {path} has more than {MOST_BYTES} bytes; is it the right file?")
    if not secret:
        raise ValueError(f"the secret file {path} is empty; `openssl rand -hex 32 > {path}` fills it")
    return secret


def shared_secret_path() -> Path:
    """Where the secret is that all clusters of this user on this machine share."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "understudy" / "secret"


def _shared(path: Path, token: Callable[[int], bytes]) -> bytes:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            # Written aside and linked into place: two first nodes at the same moment agree on one.
            aside = path.with_name(f"secret.{os.getpid()}")
            aside.touch(mode=0o600)
            aside.write_text(token(SIZE).hex())
            try:
                os.link(aside, path)
            except FileExistsError:
                pass
            finally:
                aside.unlink()
        return read_secret_file(path)
    except OSError as error:
        raise ListenError(f"the secret shared by this user's clusters cannot be kept in {path}: {error}; set {VARIABLE} instead") from error
