"""Tickets of starts that are made for another process: with the ticket, that process takes a start
back whose answer it has not got.

A task that is cancelled while it waits for the address of its new actor does not know whether the
actor has started, nor its name. It knows the ticket, which it has drawn at random.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from actors.method import Address

TICKETS_KEPT = 1024
"""How many of the latest starts can be undone in any case. A start is undone only while its answer
is under way.
"""

KEPT_SECONDS = 10.0
"""For which starts can be undone above this number: thousands may end at once."""

MOST_TICKETS = 65_536
"""Tickets that are kept: some 32 MiB, however many starts are made in that time."""

MOST_TICKET = 64
"""Characters of a ticket, which its caller draws at random: the tickets are kept."""


class StartTickets:
    """The tickets of the latest starts, and of those that are under way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, list[Address]]] = OrderedDict()
        """The latest starts: when they ended, and the actors that they have started."""
        self._under_way: dict[str, StartTicket] = {}

    def issued(self, ticket: str) -> StartTicket:
        """Return a block for the list of the actors that are started with this ticket. Without one,
        "", the start cannot be taken back.
        """
        if len(ticket) > MOST_TICKET:
            raise ValueError(f"a ticket has {MOST_TICKET} characters at most, not {len(ticket):,}")
        return StartTicket(ticket, self._under_way, self._kept)

    async def take(self, ticket: str) -> list[Address]:
        """Return the actors that were started with this ticket, and forget it. Waits for the end of
        a start that is under way.
        """
        if ticket in self._under_way:
            # A start may end as if it had not been cancelled: its code may have been shielded.
            await self._under_way[ticket].wait_over()
        _, started = self._kept.pop(ticket, (0.0, []))
        return started

    async def wait_none(self) -> None:
        """Wait until no start is under way. Those that begin meanwhile are waited for as well."""
        while self._under_way:
            await next(iter(self._under_way.values())).wait_over()


class StartTicket:
    """A start for another process, with the actors that it has started so far. It is under way
    within its block: a context manager, and no generator, which costs twice as much.
    """

    __slots__ = ("_kept", "_over", "_text", "_under_way", "started")

    def __init__(
        self,
        text: str,
        under_way: dict[str, StartTicket],
        kept: OrderedDict[str, tuple[float, list[Address]]],
    ) -> None:
        self._text = text
        self._under_way = under_way
        self._kept = kept
        self._over: trio.Event | None = None
        """There once a task waits for the end of the block."""
        self.started: list[Address] = []

    def __enter__(self) -> list[Address]:
        if self._text:
            self._under_way[self._text] = self
        return self.started

    def __exit__(self, *exc_info: object) -> None:
        # Also after a cancellation, or an error: some may have started before it.
        if self._under_way.get(self._text) is self:
            del self._under_way[self._text]
            if self.started:
                self._kept[self._text] = trio.current_time(), self.started
                if len(self._kept) > TICKETS_KEPT:
                    self._forget_oldest()
        if self._over is not None:
            self._over.set()

    def _forget_oldest(self) -> None:
        kept, until = self._kept, trio.current_time() - KEPT_SECONDS
        while len(kept) > MOST_TICKETS or (
            len(kept) > TICKETS_KEPT and next(iter(kept.values()))[0] < until
        ):
            kept.popitem(last=False)

    async def wait_over(self) -> None:
        """Wait for the end of the block."""
        if self._over is None:
            self._over = trio.Event()
        await self._over.wait()
