"""Where a node listens and which address other nodes dial: never an address that means another
machine to each of them.
"""

from __future__ import annotations

from actors.own_logger import own_logger
from actors.short_repr import short_repr
from runtime.host_port import HostPort, host_problem
from runtime.links.interfaces import is_unspecified
from runtime.links.transports import (
    Network,
    is_loopback,
    join_host_port,
    split_address,
    split_host_port,
)

MOST_HOST = 244
"""Characters of an advertised host: with `tcp:` and its port no longer than what a handshake takes
(`runtime.wire.handshake.MAX_NAME`).
"""

logger = own_logger("understudy.membership")


def is_elsewhere(where: str) -> bool:
    """True for an address of a node or a store that is not on this machine's loopback interface."""
    first = (
        where.rpartition("://")[2]
        .partition(",")[0]
        .partition("?")[0]
        .partition("/")[0]
        .rpartition("@")[2]
    )
    return first.rpartition(":")[0] != "" and not is_loopback(first)


async def default_listen(network: Network, where: str) -> str:
    """Return the listen address of a node that has none in its options. `where`: the address that
    it joins, of a node or a store, or "" if it founds a cluster.
    """
    return (
        join_host_port(await network.own_host(where), 0) if is_elsewhere(where) else "127.0.0.1:0"
    )


def check_advertise(advertise: str) -> None:
    """Raise ValueError for an address that others cannot dial, whatever this node listens on."""
    host, _ = _host_and_port(advertise)
    if len(host) > MOST_HOST:
        raise ValueError(
            f"advertise={short_repr(advertise, MOST_HOST)}: the host has {len(host)} characters, "
            f"and can have {MOST_HOST}"
        )
    problem = host_problem(host) if host else "it has no host"
    if is_unspecified(host):
        problem = "it means all addresses of the machine that dials it"
    if problem:
        raise ValueError(
            f"advertise={short_repr(advertise, MOST_HOST)} is not an address that other nodes can "
            f"dial: {problem}; give the address by which they reach this machine"
        )


async def advertised(network: Network, bound: str, advertise: str | None, where: str) -> str:
    """Return the address that others dial to reach a node that listens on `bound`. `where`: as for
    `default_listen`.
    """
    host, port = split_host_port(split_address(bound)[1])
    if advertise is not None:
        name, other = _host_and_port(advertise)
        return f"tcp:{join_host_port(name, other or port)}"
    for_others = is_unspecified(host)
    if for_others:
        host = await network.own_host(where, ipv4=":" not in host)
    advertised = join_host_port(host, port)
    if is_loopback(advertised) and (for_others or is_elsewhere(where)):
        logger.warning(
            "other nodes will dial %s, which only this machine can reach: listen on, or "
            "advertise, another address",
            advertised,
        )
    return f"tcp:{advertised}"


def _host_and_port(text: str) -> HostPort:
    """`HOST` or `HOST:PORT`; port 0 for the former. Raises ValueError."""
    is_plain_v6 = text.count(":") > 1 and not text.startswith("[")
    if ":" not in text or is_plain_v6 or (text.startswith("[") and text.endswith("]")):
        return HostPort(text.removeprefix("[").removesuffix("]"), 0)
    return split_host_port(text)
