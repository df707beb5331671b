"""A cache of the addresses of named actors, kept current by a watch of the names.

Only for lookups: a call that does not find its actor there asks the store itself, so an outdated
address costs at most one detour.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import trio

from actors.errors import (
    StoreCompactedError,
    StoreError,
)
from actors.method import Address
from runtime.membership.names import Names
from runtime.store.interface import (
    Store,
    StoreEvent,
)

NAMES_KEPT = 10_000


LOOKUP_RETRY_SECONDS = 0.5
"""Seconds between two attempts to follow the names while the store is away."""


CHANGES_IN_A_ROW = 1_000
"""Changes that are applied before the other tasks of the event loop have their turns."""


class Lookups:
    """The cache of one node. `run` keeps it current, and while it cannot, every lookup asks the
    store.

    `may_live(address)`: False if this node knows that the actor has ended, even if the store does
    not yet. `pause(changes)`: seconds from an answer of the store with so many changes to the next
    question.
    """

    def __init__(
        self,
        store: Store,
        names: Names,
        prefix: str,
        may_live: Callable[[Address], bool],
        pause: Callable[[int], float],
    ) -> None:
        self._may_live = may_live
        self._store = store
        self._names = names
        self._prefix = prefix
        self._pause = pause
        self._known: OrderedDict[str, Address] = OrderedDict()
        self._seen = 0
        """All changes up to this revision are applied, or about to be; 0 while the cache is not
        current.
        """
        self._reported = 0
        """Like `_seen`, without those that are about to be applied."""

    @property
    def is_following(self) -> bool:
        """True while every change of the names is seen."""
        return self._seen > 0

    def will_report(self, revision: int) -> bool:
        """True if `run` follows the names, and has not reported the change of this revision yet."""
        return self._seen > 0 and self._reported < revision

    async def locate(self, name: str) -> Address:
        """Return the address of the actor of this name. Raises `ActorNotFoundError`."""
        assert self._seen or not self._known, "a cache that is not kept current is empty"
        known = self._known.get(name)
        if known is not None and self._may_live(known):
            await trio.lowlevel.checkpoint()
            return known
        address, revision = await self._names.locate_at(name)
        # What was read before the last change that is known of may be out of date already.
        if self._seen and revision >= self._seen:
            assert address.name == name
            self._known[name] = address
            # The oldest entry goes first. A name that is missing costs one request to the store.
            while len(self._known) > NAMES_KEPT:
                self._known.popitem(last=False)
        return address

    def forget(self, name: str) -> None:
        """Drop a name whose actor has ended, or is being stopped."""
        self._known.pop(name, None)

    async def run(self, changed: Callable[[StoreEvent], None], missed: Callable[[], None]) -> None:
        """Follow the names until cancelled. Calls `changed(event)` for every change (a name was
        claimed or released), and `missed()` when changes may have been missed.
        """
        while True:  # noqa: ASYNC913  each turn waits for the store
            try:
                # A prefix under which there is nothing: only the store's revision is wanted, not
                # all names.
                self._seen = (await self._store.range(self._prefix + "\0")).revision
                self._reported = self._seen
                # What changed before this revision was not seen.
                missed()
                while True:
                    batch = await self._store.poll(self._prefix, self._seen + 1)
                    # Before the events are applied, without an await between: a lookup that read
                    # the store before them must not enter its answer.
                    self._seen = batch.revision
                    for number, event in enumerate(batch.events, 1):
                        self.forget(event.key.removeprefix(self._prefix))
                        changed(event)
                        if not number % CHANGES_IN_A_ROW:
                            # A node that dies may have 100,000 names. A lookup that gets an address
                            # of which the end is among the rest makes a detour.
                            self._reported = event.revision
                            await trio.lowlevel.checkpoint()
                    self._reported = batch.revision
                    # The first change after a quiet time is seen at once. Those that follow it
                    # closely come together: without the pause, each name that is claimed or
                    # released would cost every node a question and its answer.
                    await trio.sleep(self._pause(len(batch.events)))
            except StoreCompactedError:
                missed()
                self._drop()
            except StoreError:
                missed()
                self._drop()
                # Emptied before the wait: an address from before the gap may be that of an old
                # epoch.
                await trio.sleep(LOOKUP_RETRY_SECONDS)

    def _drop(self) -> None:
        # Both at once: with `_seen` at 0 no lookup that is under way may enter its answer.
        self._known.clear()
        self._seen = 0
