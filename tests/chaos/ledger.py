"""The actors that the chaos runs call: each saves every entry that it applies."""

from __future__ import annotations

from actors import Actor, method


class Ledger(Actor):
    """Applies entries; its saved state says how often each was applied."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}

    async def on_start(self) -> None:
        self.entries = await self.saved() or {}

    async def _apply(self, number: int) -> int:
        # Saved first, kept in memory afterwards: a save that fails leaves both as they were.
        entries = self.entries | {number: self.entries.get(number, 0) + 1}
        await self.save(entries, answer=number)
        self.entries = entries
        return number

    @method
    async def enter(self, number: int) -> int:
        """Apply an entry. The runtime never repeats this call once it may have run."""
        return await self._apply(number)

    @method(idempotent=True)
    async def enter_again(self, number: int) -> int:
        """Apply an entry; the call may be repeated, also to a successor, which recognises it."""
        return await self._apply(number)

    @method(idempotent=True)
    async def repeat(self, number: int) -> list[int]:
        """A value for a reference."""
        return [number] * 100

    @method(idempotent=True)
    async def applied(self) -> dict[int, int]:
        """How often each entry was applied."""
        return self.entries
