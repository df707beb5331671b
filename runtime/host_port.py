"""A TCP address as two values."""

from __future__ import annotations

from typing import NamedTuple


class HostPort(NamedTuple):
    """Where a TCP socket listens or is dialled. `host`: a name or an address, without the brackets
    of IPv6.
    """

    host: str
    port: int
