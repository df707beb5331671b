"""The addresses of this machine, as others dial them, and the users that listen there. Nothing is
sent to find them.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable

_FAR_AWAY = (("192.0.2.1", "9"), ("2001:db8::1", "9"))
"""Addresses reserved for documentation, which no machine has (RFC 5737, RFC 3849): the route to
them begins like the route to any machine outside.
"""

ADDRESSES = "/proc/net/if_inet6"
"""The IPv6 addresses of this machine: digits, number, prefix, scope, flags and name of the
interface.
"""

_GLOBAL_SCOPE, _UNUSABLE = 0x00, 0x48
"""The latter: IFA_F_TENTATIVE and IFA_F_DADFAILED of rtnetlink(7)."""

_FLAGS, _ADDRESS, _UP = 0x8913, 0x8915, 0x1
"""SIOCGIFFLAGS, SIOCGIFADDR and IFF_UP of netdevice(7)."""

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""See proc(5). The kernel lists the sockets that listen first."""

_LISTENS = "0A"


def is_unspecified(host: str) -> bool:
    """True for the addresses by which a listener binds all interfaces of its machine, `0.0.0.0` and
    `::`, however they are written: other machines cannot dial them.
    """
    # As the system reads them: `0`, `0x0` and `00.0.0.0` are 0.0.0.0 to it.
    try:
        return not any(socket.inet_aton(host.rstrip(".")))
    except (OSError, ValueError):
        pass
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_unspecified


def own_address(endpoint: str, family: socket.AddressFamily | None = None) -> str:
    """The address of this machine from which `endpoint` (HOST:PORT, the first of several, with or
    without a scheme) is reached.

    Not a host name: others may know it by another, or not at all. For an endpoint that is on this
    machine, or is no address, such as a shared directory, the address that leads out of this
    machine, for those elsewhere could not reach it by its loopback address; that one where there is
    no other. `family`: only an address of it will do.
    """
    first = endpoint.rpartition("://")[2].partition(",")[0].rpartition("@")[2]
    host, _, port = first.partition("/")[0].rpartition(":")
    tried = [(host.strip("[]"), port)] if host and port.isdecimal() else []
    for far, number in (*tried, *_FAR_AWAY):
        found = _source_for(far, number, family)
        if found and not ipaddress.ip_address(found).is_loopback:
            return found
    found = "" if family == socket.AF_INET6 else _ipv4_of_an_interface()
    found = found or ("" if family == socket.AF_INET else _ipv6_of_an_interface())
    return found or ("::1" if family == socket.AF_INET6 else "127.0.0.1")


def _source_for(host: str, port: str, wanted: socket.AddressFamily | None) -> str:
    """The address from which this machine would send there; "" if there is no way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, int(port), wanted or 0, socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
    except OSError:
        return ""
    # An address of the link alone has the name of its interface behind it, which means nothing
    # elsewhere.
    return found.partition("%")[0]


def _ipv4_of_an_interface() -> str:
    """The first IPv4 address of an interface that is up, where no route leads out of the machine;
    "" if there is none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                (flags,) = struct.unpack_from("H", fcntl.ioctl(probe, _FLAGS, request), 16)
                found = socket.inet_ntoa(fcntl.ioctl(probe, _ADDRESS, request)[20:24])
            except OSError:
                # It has no such address.
                continue
            if flags & _UP and not ipaddress.ip_address(found).is_loopback:
                return found
    return ""


def _ipv6_of_an_interface() -> str:
    """The first IPv6 address that is valid beyond one link, where there is no other way out; "" if
    there is none.
    """
    try:
        with open(ADDRESSES, encoding="ascii") as table:
            rows = [row.split() for row in table]
    except OSError:
        # No IPv6, or no Linux.
        return ""
    for digits, _, _, scope, flags, _ in rows:
        if int(scope, 16) == _GLOBAL_SCOPE and not int(flags, 16) & _UNUSABLE:
            return str(ipaddress.IPv6Address(bytes.fromhex(digits)))
    return ""


# Whose sockets listen at an address, as the kernel knows it.
#
# Any user may listen at a port of the loopback interface that is free, so also at one where others
# expect a node. A process there can pass all bytes on to the node: without encryption the two ends
# would prove the secret to each other through it, and it could read and change what follows.


def listening_users(host: str, port: int) -> frozenset[int] | None:
    """Return the ids of the users whose sockets listen at an IP address and port of this machine;
    empty where the kernel names none, or cannot be asked now. None on systems without these tables.
    """
    target = ipaddress.ip_address(host.partition("%")[0])
    found: set[int] = set()
    tables = 0
    for path in TABLES:
        try:
            with open(path, encoding="ascii") as table:
                tables += 1
                found.update(_users(table, target, port))
        except FileNotFoundError:
            # No IPv6, or no Linux.
            continue
        except OSError:
            # This process is out of descriptors, for example.
            return frozenset()
    return frozenset(found) if tables else None


def _users(
    lines: Iterable[str], target: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> Iterable[int]:
    """The users of those lines of a table which are for sockets that listen there."""
    rows = iter(lines)
    next(rows, None)
    for row in rows:
        _, local, _, state, _, _, _, user, *_ = row.split()
        if state != _LISTENS:
            # All others follow, and there may be very many.
            return
        address, _, number = local.partition(":")
        if int(number, 16) == port and _leads_to(_address(address), target):
            yield int(user)


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel writes it: words of 32 bits in the order of this machine."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    return ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))


def _leads_to(
    bound: ipaddress.IPv4Address | ipaddress.IPv6Address,
    target: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> bool:
    """True if a socket that is bound to one address takes connections to the other."""
    if bound.is_unspecified:
        return True
    return target in (bound, bound.ipv4_mapped if bound.version == 6 else bound)
