"""A TCP address as two values, and what no host of one looks like."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

MOST_LABEL = 63
"""Characters of one part of a host's name, as DNS has it."""

_IN_NO_HOST = re.compile(r"[\s*/@?#,;\\]")
"""What neither a host's name nor an address has, but patterns, URLs and lists have."""

_DOTS = re.compile("[.\u3002\uff0e\uff61]")
"""What parts a host's name, also in the scripts of Asia (RFC 3490)."""


class HostPort(NamedTuple):
    """Where a TCP socket listens or is dialled. `host`: a name or an address, without the brackets
    of IPv6.
    """

    host: str
    port: int


def host_problem(host: str) -> str:
    """Why no machine can have this name or address, as a clause; "" if one may. Nothing is looked
    up. Otherwise Python's codec for host names would say it, which names no address.
    """
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return "its host has a colon, and is no IPv6 address"
        return ""
    found = _IN_NO_HOST.search(host)
    if found is not None or not host.isprintable():
        character = found[0] if found is not None else _unprintable(host)
        return f"its host has the character {character!r}, which no host has"
    # One dot at the end is that of a name in full.
    labels = _DOTS.split(host[:-1] if _DOTS.match(host[-1:]) else host)
    if "" in labels:
        return "its host has nothing before a dot, or between two dots"
    if any(len(_encoded(label)) > MOST_LABEL for label in labels):
        return f"its host has a part of more than {MOST_LABEL} characters between dots"
    return ""


def _unprintable(host: str) -> str:
    return next(character for character in host if not character.isprintable())


def _encoded(label: str) -> bytes:
    """A part of a host's name as it is asked for."""
    if label.isascii():
        return label.encode()
    try:
        # One with a prefix, so that the codec does not refuse by itself what is too long.
        return b"xn--" + label.encode("punycode")
    except UnicodeError:
        return b""
