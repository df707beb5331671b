"""The counter of the test of the book, which notes every addition by its key."""

from __future__ import annotations

import trio

from actors import Actor, method


class BookCounter(Actor):
    """Adds keys. One that begins with "before" is added before its call waits for ever, and one
    that begins with "after" would be added afterwards.
    """

    def __init__(self) -> None:
        self.added: list[str] = []
        self.held: set[str] = set()
        self.released: set[str] = set()
        self.changed = trio.Event()

    @method(concurrent=True)
    async def add(self, key: str) -> int:
        """Add the key; returns how many there are."""
        if key.startswith("before"):
            self.added.append(key)
        if key.startswith(("before", "after")):
            await self._hold(key)
        if not key.startswith("before"):
            self.added.append(key)
        return len(self.added)

    async def _hold(self, key: str) -> None:
        self._change(self.held, key)
        try:
            await trio.sleep_forever()
        finally:
            self._change(self.released, key)

    @method(concurrent=True, idempotent=True)
    async def wait_held(self, key: str) -> bool:
        """Return once a call with this key waits."""
        while key not in self.held:
            await self.changed.wait()
        return True

    @method(concurrent=True, idempotent=True)
    async def wait_released(self, key: str) -> bool:
        """Return once that call has been cancelled."""
        while key not in self.released:
            await self.changed.wait()
        return True

    @method(concurrent=True, idempotent=True)
    async def all_added(self) -> list[str]:
        """The keys, in the order in which they were added."""
        return list(self.added)

    def _change(self, keys: set[str], key: str) -> None:
        keys.add(key)
        changed, self.changed = self.changed, trio.Event()
        changed.set()
