"""TCP connections to hosts, by name or address. Names are looked up in threads.

Not with trio's default limiter, as trio's own lookups are: with that users' threads count, which
may block for ever, and resolvers that do not answer would keep theirs waiting.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import trio

from runtime.environment import NoThreadError, is_refused_thread

T = TypeVar("T")

MOST_LOOKUPS = 16
"""Names that are looked up at once. One whose resolver does not answer may take half a minute, also
after its dial was given up.
"""

NEXT_ADDRESS_SECONDS = 0.25
"""How long one address of a host is tried alone, before the next is dialled as well (RFC 8305)."""


class TcpConnector:
    """Connects; `MOST_LOOKUPS` names are looked up at once."""

    def __init__(self) -> None:
        self._lookups = trio.CapacityLimiter(MOST_LOOKUPS)

    async def connect(self, host: str, port: int) -> trio.SocketStream:
        """Connect to the first address of `host` that takes a connection. Raises OSError, and
        ValueError for what is no name.
        """
        return await _first_connected(await self._looked_up(host, port), port)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run what may look up a name, and return its result. Raises what it raises, and
        `NoThreadError`. A thread whose caller is cancelled is left to itself.
        """
        try:
            return await trio.to_thread.run_sync(
                function, limiter=self._lookups, abandon_on_cancel=True
            )
        except RuntimeError as error:
            if is_refused_thread(error):
                raise NoThreadError from None
            raise

    async def _looked_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, in the order in which to dial them."""
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            found = await self.in_thread(
                partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            )
            return of_both_families(dict.fromkeys(str(address[0]) for *_, address in found))
        return [host]


def of_both_families(addresses: Iterable[str]) -> list[str]:
    """Return the addresses with the first two of different families, if there are such: one of the
    two may lead nowhere.
    """
    ordered = list(addresses)
    for index, address in enumerate(ordered):
        if (":" in address) is not (":" in ordered[0]):
            ordered.insert(1, ordered.pop(index))
            break
    return ordered


async def _first_connected(addresses: Sequence[str], port: int) -> trio.SocketStream:
    """Return a connection to the first of the addresses that takes one. Raises the `OSError` of the
    first if none does.
    """
    if len(addresses) == 1:
        return await trio.open_tcp_stream(addresses[0], port)
    connected: list[trio.SocketStream] = []
    errors: dict[int, OSError] = {}

    async def dial(number: int, failed: trio.Event) -> None:
        try:
            stream = await trio.open_tcp_stream(addresses[number], port)
        except OSError as error:
            errors[number] = error
            failed.set()
            return
        connected.append(stream)
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for number in range(len(addresses)):
                failed = trio.Event()
                nursery.start_soon(dial, number, failed)
                with trio.move_on_after(NEXT_ADDRESS_SECONDS):
                    await failed.wait()
        if connected:
            return connected.pop(0)
    finally:
        # Two may come about in one pass of the scheduler; or the caller is cancelled in it.
        for stream in connected:
            stream.socket.close()
    raise errors[0]
