"""Names looked up before, kept as long as a watch says that they are where they were.

Only for lookups: a call that finds its actor gone asks the store itself, so what a cached address can cost at worst is one detour.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import trio

from actors.errors import StoreCompactedError, StoreError
from actors.method import Address
from runtime.store.interface import Event, Store

NAMES_KEPT = 10_000
ASK_AGAIN = 0.5


class Lookup(Protocol):
    """How the store is asked."""

    async def locate_at(self, name: str) -> tuple[Address, int]:
        """Where the actor is, and the store's revision at which that was so. Raises `ActorNotFoundError`."""
        ...


class Follower(Protocol):
    """Who hears of every change of the names while they are followed."""

    def changed(self, event: Event) -> None:
        """A name was claimed or given back."""
        ...

    def forget(self) -> None:
        """Changes may have been missed."""
        ...


class Lookups:
    """The cache of one node. `run` keeps it honest, and while it cannot, every lookup asks the store.

    `may_live(address)`: False for what this node knows to have ended, whether the store says so yet or not.
    """

    def __init__(self, store: Store, names: Lookup, prefix: str, may_live: Callable[[Address], bool], follower: Follower) -> None:
        self._follower = follower
        self._may_live = may_live
        self._store = store
        self._names = names
        self._prefix = prefix
        self._known: OrderedDict[str, Address] = OrderedDict()
        self._seen = 0
        """All changes up to this revision are taken into account; 0 while nothing is known of them."""

    @property
    def is_following(self) -> bool:
        """True while every change of the names is seen."""
        return self._seen > 0

    async def locate(self, name: str) -> Address:
        """Where the actor of this name is. Raises `ActorNotFoundError`."""
        known = self._known.get(name)
        if known is not None and self._may_live(known):
            await trio.lowlevel.checkpoint()
            return known
        address, revision = await self._names.locate_at(name)
        # What was read before the last change that is known of may be out of date already.
        if self._seen and revision >= self._seen:
            self._known[name] = address
            while len(self._known) > NAMES_KEPT:
                self._known.popitem(last=False)
        return address

    def forget(self, name: str) -> None:
        """The actor has ended, or is being ended."""
        self._known.pop(name, None)

    async def run(self) -> None:
        """Follow the names for ever."""
        while True:  # noqa: ASYNC913  whatever it comes to, it waits for the store
            try:
                self._seen = (await self._store.range(self._prefix + "\0")).revision
                self._follower.forget()
                while True:
                    batch = await self._store.poll(self._prefix, self._seen + 1)
                    self._seen = batch.revision
                    for event in batch.events:
                        self.forget(event.key.removeprefix(self._prefix))
                        self._follower.changed(event)
            except StoreCompactedError:
                self._drop()
            except StoreError:
                self._drop()
                await trio.sleep(ASK_AGAIN)

    def _drop(self) -> None:
        self._follower.forget()
        self._known.clear()
        self._seen = 0
