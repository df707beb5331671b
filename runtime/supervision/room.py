"""What waits for room: starts for which no node has what they take, in the order of their coming.

A start that found no room is not repeated at once, but after a pause that grows: each attempt costs
the store a read. `RoomQueue` ends that pause as soon as this node sees room for it: resources were
given back somewhere, or a node has joined or has other labels. It lets in one of those that ask for
the same, and the next one once that has its place: a hundred that wait for one device would else
all look for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import attrs
import trio

from actors.options import SpawnOptions

AGAIN_SECONDS = 0.05
"""The least pause after an attempt that found no room, if there is some by then: what this node
sees may be out of date, and the node that it chose has the last word.
"""


@attrs.define(eq=False)
class _RoomWait:
    """One start that waits. `since`: how many changes had been seen before its last attempt.
    `wanted`: False once it is not to be made any more.
    """

    since: int
    wanted: Callable[[], bool]
    event: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class _Alike:
    """The starts that ask for the same, the one that came first in front."""

    options: SpawnOptions
    waits: dict[_RoomWait, None] = attrs.field(factory=dict)


class RoomQueue:
    """The starts of one node that wait for room. `fits(options)`: True if a node has room for such
    an actor, as this node sees it, or that is not known.
    """

    def __init__(self, fits: Callable[[SpawnOptions], bool]) -> None:
        self._fits = fits
        self._waiting: dict[Hashable, _Alike] = {}
        """By what they ask for."""
        self.changes = 0
        """How often there may have been more room. Read it before an attempt, for `wait`."""

    def __len__(self) -> int:
        return sum(len(alike.waits) for alike in self._waiting.values())

    async def wait(
        self,
        options: SpawnOptions,
        since: int,
        seconds: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Wait until there is room for an actor with these options that was not there in an attempt
        begun after `since` changes: then return True. Return False after so many seconds. One that
        is not `wanted` any more takes no room from those behind it.
        """
        if seconds <= AGAIN_SECONDS:
            await trio.sleep(max(0.0, seconds))
            return False
        await trio.sleep(AGAIN_SECONDS)
        if since != self.changes and self._fits(options):
            return True
        # No await since the look: whatever changes from here on sees the entry.
        wait, kind = _RoomWait(since, wanted), _asked(options)
        self._waiting.setdefault(kind, _Alike(options)).waits[wait] = None
        try:
            with trio.move_on_after(seconds - AGAIN_SECONDS):
                await wait.event.wait()
            return wait.event.is_set()
        except trio.Cancelled:
            if wait.event.is_set():
                # It was let in as it was cancelled, and will not look: the next one does.
                self.let_in()
            raise
        finally:
            alike = self._waiting.get(kind)
            if alike is not None and wait in alike.waits:
                self._remove(kind, alike, wait)

    def on_changed(self) -> None:
        """There may be more room: let in one of those for which there is."""
        self.note_change()
        self.let_in()

    def note_change(self) -> None:
        """There may be more room; `let_in` follows. To look at all that wait for each of the
        100,000 names of a node that has died would hold up the loop.
        """
        self.changes += 1

    def let_in(self) -> None:
        """One that was let in has its place: let in the next one, if there is room for it beside
        that.
        """
        for kind, alike in list(self._waiting.items()):
            wait = self._first_wanted(kind, alike)
            # An attempt that has found nothing since the last change is not repeated before the
            # next one.
            if wait is not None and wait.since != self.changes and self._fits(alike.options):
                self._remove(kind, alike, wait)
                wait.event.set()

    def _first_wanted(self, kind: Hashable, alike: _Alike) -> _RoomWait | None:
        while alike.waits:
            wait = next(iter(alike.waits))
            if wait.wanted():
                return wait
            self._remove(kind, alike, wait)
        return None

    def _remove(self, kind: Hashable, alike: _Alike, wait: _RoomWait) -> None:
        del alike.waits[wait]
        if not alike.waits:
            del self._waiting[kind]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        for kind, alike in self._waiting.items():
            assert alike.waits, "an entry without starts would stay for ever"
            assert kind == _asked(alike.options)
            assert not any(wait.event.is_set() for wait in alike.waits)
            assert all(wait.since <= self.changes for wait in alike.waits)


def _asked(options: SpawnOptions) -> Hashable:
    """Return what decides where an actor with these options fits."""
    return options.on, frozenset(options.labels.items()), frozenset(options.resources.items())
