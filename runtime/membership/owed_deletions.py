"""Deletions that a node owes to the store: of keys that it has claimed and does not keep.

A claim whose answer was lost may be in the store, or arrive there later. And a key that could not
be deleted, because the store was away, would stay for as long as the node lives. So these keys are
deleted until that is certain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

import trio

from actors.errors import StoreError
from runtime.store.interface import Compare, Delete, Store

GIVE_BACK_AFTER = 1.0
"""Seconds from a claim of unknown outcome to its withdrawal, because the claim may still be on its
way; also between attempts.
"""


class OwedDeletions:
    """The deletions that one node still owes the store; see the module docstring."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owed: dict[Compare, int] = {}
        """The keys to delete, each by the condition that is true while the key is this node's; with
        the number of times that the store must still answer that it is false.
        """
        self._owed_by: dict[Hashable, Callable[[], Awaitable[None]]] = {}
        """What deletes keys in more than one step, by what it is for."""
        self._is_owing = trio.Event()

    def owe(self, ours: Compare) -> None:
        """Delete the key of `ours` if that condition holds: it compares the value of a claim of
        unknown outcome, or the revision of a key that is given up.
        """
        # A claim whose answer was lost may reach the store after its withdrawal: a store that did
        # not run for a while has both in hand, on different connections. So one look more.
        self._owed[ours] = 2 if ours.field == "value" else 1
        self._is_owing.set()

    def owe_by(self, purpose: Hashable, delete: Callable[[], Awaitable[None]]) -> None:
        """Call `delete` until it raises no `StoreError`. What was owed for the same purpose before
        is replaced.
        """
        self._owed_by[purpose] = delete
        self._is_owing.set()

    async def run(self) -> None:
        """Delete the owed keys; runs until cancelled."""
        while True:
            while self._owed or self._owed_by:
                assert all(looks in (1, 2) for looks in self._owed.values())
                await trio.sleep(GIVE_BACK_AFTER)
                # Conditional on the very claim: if the key has another owner by now, nothing is
                # deleted.
                for ours, looks in list(self._owed.items()):
                    try:
                        result = await self._store.transaction([ours], [Delete(ours.key)])
                    except StoreError:
                        continue
                    if result.succeeded or looks == 1:
                        del self._owed[ours]
                    else:
                        self._owed[ours] = looks - 1
                for purpose, delete in list(self._owed_by.items()):
                    # Before the attempt: what is owed during it is another deletion.
                    del self._owed_by[purpose]
                    try:
                        await delete()
                    except StoreError:
                        self._owed_by.setdefault(purpose, delete)
            # No await since both were seen empty: what is owed later sets this event.
            self._is_owing = trio.Event()
            await self._is_owing.wait()
