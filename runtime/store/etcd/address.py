"""`etcd://` addresses: which members to ask, and how to authenticate to them."""

from __future__ import annotations

import difflib
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

import attrs

from runtime.host_port import HostPort, host_problem
from runtime.private_files import refuse_open_file

SCHEME = "etcd"
EXAMPLE = "etcd://HOST:PORT,HOST:PORT"
OPTIONS = ("ca", "cert", "key", "password-file", "prefix", "tls")
DEFAULT_PREFIX = "understudy"
BRACKETS = "brackets are for IPv6: etcd://[::1]:2379; in a password they are written %5B and %5D"


@attrs.frozen
class EtcdAddress:
    """The address of an etcd. `ca`, `cert` and `key`: paths of PEM files. `prefix`: put before all
    keys, so that others may use the same etcd.
    """

    endpoints: tuple[HostPort, ...]
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    prefix: str = DEFAULT_PREFIX

    @classmethod
    def parse(cls, text: str) -> EtcdAddress:
        """`etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...][?OPTION=VALUE&...]`.

        Options: `tls=yes`, `ca`, `cert` and `key` (files; each switches TLS on), `password-file`,
        `prefix`. Raises ValueError that says what is wrong and what was expected, never with the
        password.
        """
        scheme, colon, _ = text.partition("://")
        if not colon or scheme != SCHEME:
            # Do not quote the text: it may hold a password.
            what = (
                f"{scheme}://"
                if colon
                else "one with an @ and without that beginning"
                if "@" in text
                else repr(text)
            )
            raise ValueError(
                f"a store's address is {EXAMPLE}, not {what}; for a store of the founding node's "
                "own, give a data directory"
            )
        # Not by urlsplit: since the mend of CVE-2025-0938 it takes brackets for one host alone, and
        # not for one of several. Pythons differ in whether they have it.
        rest, _, fragment = text.removeprefix(f"{SCHEME}://").partition("#")
        place, _, query = rest.partition("?")
        authority, _, path = place.partition("/")
        if path.strip("/") or fragment:
            raise ValueError(
                f"nothing follows the ports of {EXAMPLE} but ?OPTION=VALUE; a prefix for the keys "
                "is ?prefix=NAME"
            )
        login, _, members = authority.rpartition("@")
        if "[" in login or "]" in login:
            raise ValueError(BRACKETS)
        user, _, password = login.partition(":")
        options = _options(query)
        if "password-file" in options:
            password = _password(Path(options["password-file"]))
        if bool(options.get("cert")) != bool(options.get("key")):
            raise ValueError("cert and key go together: give both files, or none")
        files = {name: Path(options[name]) for name in ("ca", "cert", "key") if options.get(name)}
        return cls(
            tuple(_endpoint(member.strip()) for member in members.split(",")),
            unquote(user),
            unquote(password),
            bool(files) or options.get("tls", "no") == "yes",
            prefix=options.get("prefix", DEFAULT_PREFIX),
            **files,
        )

    @property
    def public(self) -> str:
        """The address without secrets, for other nodes; "" if it names files or a password, because
        these must be configured on each machine.
        """
        if self.user or self.tls:
            return ""
        members = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.endpoints
        )
        return f"{SCHEME}://{members}" + (
            "" if self.prefix == DEFAULT_PREFIX else f"?prefix={quote(self.prefix)}"
        )

    def __str__(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self.endpoints)


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if "@" in name:
            raise ValueError(
                "there is an @ after the ? of an etcd:// address; in a password, ? is written "
                "%3F, # is %23 and / is %2F, "
                "or keep it in a file: ?password-file=FILE"
            )
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            raise ValueError(
                f"an etcd:// address has no option {name!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(OPTIONS)}")
            )
        if not value:
            raise ValueError(f"the option {name!r} of the etcd:// address has no value")
        options[name] = value
    if options.get("tls", "no") not in ("yes", "no"):
        raise ValueError(f"tls is yes or no, not {options['tls']!r}")
    return options


def _endpoint(text: str) -> HostPort:
    host, colon, port = text.rpartition(":")
    if host and not port.isdigit():
        # Not quoted in the error: it may be a password whose @ is missing.
        raise ValueError(
            f"a member of an etcd is HOST:PORT; what follows {host + ':'!r} is not a number; its "
            "clients' port is 2379 by default"
        )
    if (
        not colon
        or not host
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65536
    ):
        raise ValueError(
            f"a member of an etcd is HOST:PORT, not {text!r}; its clients' port is 2379 by default"
        )
    bare = host.removeprefix("[").removesuffix("]")
    if "[" in bare or "]" in bare or host not in (bare, f"[{bare}]"):
        raise ValueError(BRACKETS)
    if problem := host_problem(bare):
        # Not quoted for the same reason.
        raise ValueError(f"a member of an etcd:// address is not HOST:PORT: {problem}")
    return HostPort(bare, int(port))


def _password(path: Path) -> str:
    try:
        refuse_open_file("password file", path)
        return path.read_text().strip()
    except OSError as error:
        raise ValueError(f"the password file {path} cannot be read: {error.strerror}") from None
