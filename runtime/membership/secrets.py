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


def find_secret(given: bytes | str | None, token: Callable[[int], bytes], *, needs_own: bool) -> bytes:
    """The secret to prove and to ask for. `token` draws a new one; `needs_own`: the shared file of this user is not enough.

    Raises `ListenError` if a secret is needed and none was given.
    """
    if given:
        return given.encode() if isinstance(given, str) else given
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        return from_environment.encode()
    if needs_own:
        raise ListenError(
            f"a node that other machines can reach needs a secret: set {VARIABLE}, or give --secret-file; `openssl rand -hex 32` makes one"
        )
    return _shared(_path(), token)


def read_secret_file(path: Path) -> bytes:
    """The secret in a file, without surrounding white space. Raises ValueError if the file is empty or cannot be read."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"the secret file {path} cannot be read: {error.strerror}") from error
    if not secret:
        raise ValueError(f"the secret file {path} is empty; `openssl rand -hex 32 > {path}` fills it")
    return secret


def _path() -> Path:
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
