"""Turns of dials: a node that dials many others at the same moment makes only a few handshakes at a
time.

Where a hundred nodes call each other for the first time, ten thousand handshakes would all be begun
before the first is over. Each pass of the event loop would then serve all of them, and everything
else, the renewal of the lease for example, would wait for that pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

MOST_DIALS = 4
"""Dials that have a turn at once."""

CONNECT_SECONDS = 0.1
"""How long a turn lasts while there is no connection: an address that is silent must not hold up
the others.
"""

SHAKE_SECONDS = 1.0
"""How long it lasts from when there is one. A dial goes on when its turn is over; it only keeps no
other dial waiting any more.
"""


@attrs.define(eq=False)
class DialTurn:
    """The turn of one dial."""

    over_at: float


class DialTurns:
    """Limits how many dials of this process are under way at once. `now`: trio's clock. `random`:
    returns a number in [0, 1), by which the next of the waiting dials is chosen. In a fixed order,
    nodes that know the same peers would all dial the same peer first.
    """

    def __init__(self, now: Callable[[], float], random: Callable[[], float]) -> None:
        self._now = now
        self._random = random
        self._turns: set[DialTurn] = set()
        self._waiting: list[trio.Event] = []
        self._timed = False
        """True while one of those that wait watches for turns that are over. Only one does: there
        may be hundreds.
        """

    async def wait(self) -> None:
        """Wait until a turn may begin: call `begin` without an await in between."""
        while not self._has_room():
            await self._wait()

    @contextmanager
    def begin(self) -> Iterator[DialTurn]:
        """A turn, while there is no connection yet; see `connected`."""
        turn = DialTurn(self._now() + CONNECT_SECONDS)
        self._turns.add(turn)
        assert len(self._turns) <= MOST_DIALS, "a turn begins with no await after `wait`"
        if not self._timed or self._has_room():
            # There may be room for more than this one; if not, the one that is woken watches in its
            # place.
            self._wake()
        try:
            yield turn
        finally:
            self._turns.discard(turn)
            self._wake()

    def on_connected(self, turn: DialTurn) -> None:
        """Note that the dial has connected, so the peer should answer soon: the turn ends
        `SHAKE_SECONDS` from now.
        """
        # Bounded: a peer that accepts and then says nothing holds up the others for this long only.
        turn.over_at = self._now() + SHAKE_SECONDS

    def _has_room(self) -> bool:
        if len(self._turns) < MOST_DIALS:
            return True
        # Turns that are over make room although their dials go on.
        now = self._now()
        self._turns = {turn for turn in self._turns if turn.over_at > now}
        return len(self._turns) < MOST_DIALS

    async def _wait(self) -> None:
        event = trio.Event()
        self._waiting.append(event)
        watches, self._timed = not self._timed, True
        assert self._turns, "only those wait that no turn is free for"
        try:
            with trio.move_on_at(
                min(turn.over_at for turn in self._turns) if watches else math.inf
            ):
                await event.wait()
        except trio.Cancelled:
            # It may have been chosen in the very pass of the scheduler in which it was cancelled,
            # or have been the one that watches.
            self._wake()
            raise
        finally:
            if watches:
                self._timed = False
            if not event.is_set():
                self._waiting.remove(event)

    def _wake(self) -> None:
        # At random: nodes that know the same peers in the same order would all dial the same one.
        if self._waiting:
            self._waiting.pop(int(self._random() * len(self._waiting))).set()
