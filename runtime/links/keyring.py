"""The secrets of a cluster that a process knows, in a keyring, so that they can be changed while
the cluster runs. One of them proves this process to others; a proof by any of them is accepted.

Words and order are those of Serf and Consul: a new secret is installed on every node, then used by
every node, and then all others are removed. Between two of these steps any two nodes have a secret
in common, so no connection is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from actors.own_logger import own_logger
from runtime.private_files import refuse_open_file

logger = own_logger("understudy.links")

MOST_BYTES = 64 * 1024
"""Bytes of a file with secrets: a larger file is not one."""

MOST_SECRETS = 4
"""Each handshake may compute a proof with each of them. Two are needed, while one replaces the
other.
"""

SHORTEST_BYTES = 16
"""A shorter secret can be guessed: who has seen one handshake can try as many as there are."""

ID_BYTES = 8

Origin = Literal["given", "environment", "file", "shared", "certificates"]
"""The origin of a process's secret. "shared": the file of this user's clusters; "certificates":
there is no secret.
"""


def secret_id(secret: bytes) -> str:
    """A name of a secret, by which those who know it can speak of it."""
    mac = hmac.digest(secret, b"understudy: the name of a secret", hashlib.sha256)
    return mac[:ID_BYTES].hex()


def guessable(secrets: Iterable[bytes]) -> str:
    """Why one of these secrets is too short to resist guessing, as a clause; "" if none is."""
    shortest = min(map(len, secrets))
    if shortest >= SHORTEST_BYTES:
        return ""
    return (
        f"a secret of {shortest} bytes, which can be guessed: {SHORTEST_BYTES} bytes are needed, "
        "and `openssl rand -hex 32` makes them"
    )


def split_secrets(content: bytes, where: str) -> tuple[bytes, ...]:
    """Return the secrets in a file or variable, one in a line; with the first a node proves itself.
    Content that is not text is one secret with all of its bytes. Raises ValueError for no secret,
    and for more than `MOST_SECRETS`.
    """
    lines = content.splitlines()
    try:
        is_text = all(line.decode().isprintable() for line in lines)
    except UnicodeDecodeError:
        is_text = False
    found = tuple(dict.fromkeys(line for line in lines if line)) if is_text else (content,)
    if not any(found):
        raise ValueError(f"{where} is empty; `openssl rand -hex 32` makes a secret")
    if len(found) > MOST_SECRETS:
        raise ValueError(
            f"{where} has {len(found)} lines, each of which would be a secret, and at most "
            f"{MOST_SECRETS} are accepted; is it the right file?"
        )
    return found


def read_secrets(path: Path, *, group: bool = False) -> tuple[bytes, ...]:
    """The secrets in a file, see `split_secrets`. Raises ValueError if the file is empty, too
    large, cannot be read, or can be read by others. `group`: those of its group may.
    """
    try:
        refuse_open_file("secret file", path, group=group)
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(
            f"the secret file {path} cannot be read: {error.strerror}; it is to hold the "
            "secret that the cluster's nodes have (for a new cluster: `openssl rand -hex 32`)"
        ) from error
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"the secret file {path} has more than {MOST_BYTES} bytes; is it the right file?"
        )
    return split_secrets(content.strip(), f"the secret file {path}")


def write_secrets(path: Path, secrets: Sequence[bytes]) -> None:
    """Write secrets to a file, which has either the old or the new content at any moment, and is
    for its owner alone if it is new. Raises OSError, or ValueError for secrets that are not text:
    more than one of these cannot be separated in a file.
    """
    content = b"".join(secret + b"\n" for secret in secrets)
    if split_secrets(content, str(path)) != tuple(secrets):
        raise ValueError(
            f"{path} has one secret on each line, and one of these is not a line of text"
        )
    # A link is a way to the file, and stays.
    target = Path(os.path.realpath(path))
    handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(FileNotFoundError):
                status = target.stat()
                os.fchmod(handle, status.st_mode & 0o777)
                with suppress(PermissionError):
                    os.fchown(handle, status.st_uid, status.st_gid)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(aside, target)
    except BaseException:
        # The target is unchanged until `os.replace`: a failed write leaves the old secrets in
        # force.
        os.unlink(aside)
        raise


class SecretFile:
    """A file with secrets, read again when it has changed. `group`: see `read_secrets`."""

    def __init__(self, path: Path, *, group: bool = False) -> None:
        self.path = path
        self._group = group
        self._seen = self._look()
        self.secrets = self._read()
        """The secrets in the file when it was last read or written."""

    def changed(self) -> tuple[bytes, ...] | None:
        """The secrets, if they are other ones than before. A file that has vanished, or has none,
        is an ERROR in the log once, and changes nothing.
        """
        seen = self._look()
        if seen == self._seen:
            return None
        # Noted first: what is wrong is reported once, and tried again when it changes again.
        self._seen = seen
        try:
            found = self._read()
        except ValueError as error:
            logger.error("%s; the secret that was read before stays in use", error)
            return None
        # A file that was only touched says nothing new, even if this process has learned other
        # secrets than it could write there.
        if found == self.secrets:
            return None
        self.secrets = found
        return found

    def write(self, secrets: tuple[bytes, ...]) -> str:
        """Write them, unless they are there already. Returns why that failed, or ""."""
        try:
            if self._read() != secrets:
                write_secrets(self.path, secrets)
        except (OSError, ValueError) as error:
            return str(error)
        self.secrets = secrets
        self._seen = self._look()
        return ""

    def _read(self) -> tuple[bytes, ...]:
        return read_secrets(self.path, group=self._group)

    def _look(self) -> tuple[int, ...]:
        try:
            status = os.stat(self.path)
        except OSError as error:
            return (error.errno or 0,)
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns


class Keyring:
    """`secrets`: the first one proves. `file`: where they were read, if that was a file: it is read
    again when it changes, and written when the keyring is changed.

    May be read from two event loops of one process: each reading is of one tuple.
    """

    def __init__(
        self, secrets: Sequence[bytes], origin: Origin = "given", file: SecretFile | None = None
    ) -> None:
        self._secrets = tuple(secrets)
        self._file = file
        self.origin: Origin = origin
        self.problem = ""
        """Why the file does not have what the keyring has; "" if it does."""
        self.on_changed: list[Callable[[], None]] = []
        """Called after each change."""
        self._check()

    @classmethod
    def of(cls, secret: bytes | Keyring) -> Keyring:
        """A keyring with this one secret, or the keyring itself."""
        return secret if isinstance(secret, Keyring) else cls((secret,))

    @classmethod
    def of_file(cls, path: Path, origin: Origin = "file") -> Keyring:
        """The secrets in a file. Raises ValueError if they cannot be read."""
        # Kubernetes gives the group of a volume rights to the files in it, and the shared file may
        # lie on one.
        file = SecretFile(path, group=origin == "shared")
        return cls(file.secrets, origin, file)

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._secrets)}>"

    @property
    def path(self) -> Path | None:
        """The file with the secrets, if there is one."""
        return self._file.path if self._file is not None else None

    def secrets(self) -> tuple[bytes, ...]:
        """All that are accepted; the first one proves. For a handshake that begins now: costs a
        system call where there is a file.
        """
        if self._file is not None and (found := self._file.changed()) is not None:
            logger.info("%s was read again", self._file.path)
            self.problem = ""
            self._become(found)
        return self._secrets

    def ids(self) -> list[str]:
        """The names of the secrets, see `secret_id`; first that of the one that proves."""
        return [secret_id(secret) for secret in self.secrets()]

    def install(self, secret: bytes) -> None:
        """Accept `secret` as well. Raises ValueError if there are too many then."""
        secrets = self.secrets()
        if secret not in secrets:
            if len(secrets) >= MOST_SECRETS:
                raise ValueError(
                    f"{len(secrets)} secrets are accepted already: end the rotations that were "
                    "begun before, or take them back"
                )
            self._change((*secrets, secret))

    def use(self, name: str) -> None:
        """Prove with the secret of this id. Raises ValueError if it is not installed."""
        secret = self._named(name)
        self._change((secret, *(one for one in self._secrets if one != secret)))

    def keep(self, name: str) -> None:
        """Remove all but the secret of this id. Raises ValueError if it is not installed."""
        self._change((self._named(name),))

    def replace(self, secrets: Sequence[bytes]) -> None:
        """Have these from now on: a process that is given them by another one. Raises ValueError
        for none, or too many.
        """
        if not 1 <= len(set(secrets)) <= MOST_SECRETS or not all(secrets):
            raise ValueError(f"1 to {MOST_SECRETS} secrets, not {len(secrets)}")
        self._become(tuple(dict.fromkeys(secrets)))

    def _named(self, name: str) -> bytes:
        found = next((one for one in self.secrets() if secret_id(one) == name), None)
        if found is None:
            raise ValueError(f"the secret {name} is not installed here")
        return found

    def _change(self, secrets: tuple[bytes, ...]) -> None:
        """Change the file as well: also if only the file is behind, for it may be writable now."""
        if self._file is not None:
            self.problem = self._file.write(secrets)
        self._become(secrets)

    def _become(self, secrets: tuple[bytes, ...]) -> None:
        if secrets == self._secrets:
            return
        self._secrets = secrets
        self._check()
        for changed in self.on_changed:
            changed()

    def _check(self) -> None:
        assert self._secrets, "a process without a secret could prove nothing"
        assert len(set(self._secrets)) == len(self._secrets), "each secret is there once"


GivenSecret: TypeAlias = bytes | str | os.PathLike[str] | Sequence[bytes | str] | Keyring
"""How a program gives the secret to `open_node`: itself (text may have several lines), the path of
a file, or several, of which the first proves.
"""


def keyring_of(given: GivenSecret) -> Keyring:
    """Return a keyring with this secret. Raises TypeError or ValueError if it cannot be one."""
    if isinstance(given, Keyring):
        return given
    if isinstance(given, os.PathLike):
        return Keyring.of_file(Path(given))
    if isinstance(given, str):
        return Keyring(split_secrets(_encoded(given), "the secret"))
    values = [given] if isinstance(given, bytes) else _listed(given)
    secrets = [_encoded(one) if isinstance(one, str) else one for one in values]
    if not secrets or not all(secrets):
        # Not that of this user's own machine instead: it would let in others than was meant.
        raise ValueError(
            "the secret is empty; leave it out, or give one: `openssl rand -hex 32` makes one"
        )
    if len(secrets) > MOST_SECRETS:
        raise ValueError(f"at most {MOST_SECRETS} secrets are accepted, not {len(secrets)}")
    return Keyring(tuple(dict.fromkeys(secrets)))


def _encoded(secret: str) -> bytes:
    try:
        return secret.encode()
    except UnicodeEncodeError:
        # Without the text, which is secret.
        raise ValueError(
            "the secret holds a lone surrogate, which UTF-8 cannot encode; give it as bytes"
        ) from None


def _listed(given: object) -> list[bytes | str]:
    if isinstance(given, list | tuple) and all(isinstance(one, bytes | str) for one in given):
        return list(given)
    raise TypeError(
        "secret must be bytes or a str, several of them in a list, or the path of a file; "
        "`openssl rand -hex 32` makes one"
    )
