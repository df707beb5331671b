"""The hosts that HTTP requests name, as protection from DNS rebinding.

A page in a browser may ask the server that it came from. Its site can give its own name an address
of this machine, and the page then reads what a server there answers. Such a request arrives with
the site's name as Host. So a server that only this machine can reach answers under names that no
other site can have. No I/O.
"""

from __future__ import annotations

import ipaddress
import re

_ABSOLUTE = re.compile(r"https?://([^/?]*)", re.IGNORECASE)


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port, as names are compared. What follows an
    IPv6 address and is no port is a part of the name.
    """
    if host.startswith("["):
        address, _, rest = host.partition("]")
        return f"{address}]" if not rest or rest.startswith(":") else host.lower()
    return host.partition(":")[0].lower().rstrip(".")


def split_target(target: str, host: str | None) -> tuple[str, str | None]:
    """Return the path of a request target, with its query, and the host that it is for. `host`: the
    Host header. A target may be an address in full, whose host counts and not that of the header
    (RFC 9112, section 3.2.2). Raises ValueError for one that names no host, or a user.
    """
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target, host
    if not absolute[1] or "@" in absolute[1]:
        raise ValueError("the address of the request is not http://HOST/PATH")
    path = target[absolute.end() :]
    return path if path.startswith("/") else f"/{path}", absolute[1]


def leads_here(name: str) -> bool:
    """True for a name of `host_name` that leads to this machine wherever it is looked up. Other
    names are not looked up: they may lead anywhere.
    """
    return name == "localhost" or is_loopback_ip(name.removeprefix("[").removesuffix("]"))


def is_loopback_ip(address: str) -> bool:
    """True for an IP address that only this machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host_refusal(host: str | None, reached_at: str, own_name: str) -> str:
    """Why a request with this Host header is not answered; "" if it is. `reached_at`: the IP
    address of this side of the connection; `own_name`: that of this machine.

    A connection from elsewhere is not judged: the names under which other machines reach this one
    are not known here. Browsers always send the header, and some health checks do not.
    """
    if host is None or not is_loopback_ip(reached_at):
        return ""
    name = host_name(host)
    # Debian gives its own name an address of the loopback interface.
    if leads_here(name) or name == host_name(own_name):
        return ""
    return f"nothing is answered as {name[:100]!r} here; ask for it as localhost\n"
