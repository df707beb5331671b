"""The addresses of this machine, as others dial them. Nothing is sent to find them."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

_FAR_AWAY = (("192.0.2.1", "9"), ("2001:db8::1", "9"))
"""Addresses reserved for documentation, which no machine has (RFC 5737, RFC 3849): the route to
them begins like the route to any machine outside.
"""

_FLAGS, _ADDRESS, _UP = 0x8913, 0x8915, 0x1
"""SIOCGIFFLAGS, SIOCGIFADDR and IFF_UP of netdevice(7)."""


def is_unspecified(host: str) -> bool:
    """True for the addresses by which a listener binds all interfaces of its machine, `0.0.0.0` and
    `::`: other machines cannot dial them.
    """
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


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
    return _of_an_interface() or ("::1" if family == socket.AF_INET6 else "127.0.0.1")


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


def _of_an_interface() -> str:
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
