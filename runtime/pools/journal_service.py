"""The service `@journals` of every node: lists and removes the journals of maps that the cluster's
store keeps. `understudy pools --journals` and `node.pool_journals` ask it, the latter also in the
process of an isolated actor.
"""

from __future__ import annotations

import sys
from typing import Any

from actors.actor import Actor
from actors.errors import JournalError
from actors.method import method
from actors.options import CallOptions
from actors.pools import JournalSummary
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.membership.journals import (
    DRIVERS,
    HEADS,
    TIMES,
    Journals,
    read_parts,
    unused_seconds,
)
from runtime.pools.journal import count_items
from runtime.store.interface import Store

JOURNAL_SERVICE = "@journals"

MOST_LISTED = 1000
"""Journals in one answer, which must fit into a frame."""


async def list_journals(
    store: Store, now: float, after: str = "", most: int = sys.maxsize
) -> list[JournalSummary]:
    """Up to `most` journals whose names come after `after`, by name; each is read whole, some parts
    at a time. `now`: seconds of Unix time. Raises `StoreError`.
    """
    heads = await store.range(HEADS)
    drivers = {
        # The value is the node's name and a token; see `Journals`.
        entry.key.removeprefix(DRIVERS): entry.value.decode(errors="replace").rpartition(" ")[0]
        for entry in (await store.range(DRIVERS)).entries
    }
    times = {
        entry.key.removeprefix(TIMES): unused_seconds(entry, now)
        for entry in (await store.range(TIMES)).entries
    }
    found: list[JournalSummary] = []
    wanted = sorted((head.key.removeprefix(HEADS), head) for head in heads.entries)
    for name, head in [one for one in wanted if one[0] > after][:most]:
        count, size = 0, 0
        items: int | None = 0
        # A journal that is removed meanwhile has no more parts, and so ends the loop.
        while parts := await read_parts(store, name, head.create_revision, count):
            count += len(parts)
            size += sum(map(len, parts))
            try:
                items = None if items is None else items + sum(map(count_items, parts))
            except JournalError:
                items = None
        what = head.value.decode(errors="replace")
        driver, unused = drivers.get(name), times.get(name)
        found.append(JournalSummary(name, what, items, size, driver, unused))
    return found


class JournalService(Actor):
    """Asks the store on behalf of processes that have no store, or may not write to it."""

    def __init__(self, store: Store, journals: Journals, environment: Environment) -> None:
        self._store = store
        self._journals = journals
        self._environment = environment

    @method(concurrent=True, idempotent=True)
    async def listing(self, after: str) -> list[JournalSummary]:
        """Return the first `MOST_LISTED` journals whose names come after this one. Raises
        `StoreError`.
        """
        now = self._environment.wall_time()
        return await list_journals(self._store, now, after, MOST_LISTED)

    @method(concurrent=True, idempotent=True)
    async def remove_journal(self, name: str, unused_for: float) -> bool:
        """Remove a journal that no map has used for `unused_for` seconds; True if there was one.
        Raises `JournalInUseError` and `StoreError`.
        """
        return await self._journals.remove(name, unused_for)


class JournalClient:
    """The journals of the cluster of a node, as that node sees them."""

    def __init__(self, endpoint: RpcEndpoint, node: str, incarnation: int) -> None:
        # They may take longer than a system call usually does: journals are read whole, and the
        # end of another driver is waited for.
        self._service: Any = endpoint.system_handle(
            JournalService, JOURNAL_SERVICE, node, incarnation, CallOptions()
        )

    async def listed(self) -> list[JournalSummary]:
        """All journals, by name. Raises `StoreError` and `CallError`."""
        found: list[JournalSummary] = []
        while True:
            some = await self._service.listing(found[-1].name if found else "")
            found += some
            if len(some) < MOST_LISTED:
                return found

    async def remove(self, name: str, unused_for: float = 0.0) -> bool:
        """Remove one, if it was not used for so many seconds; True if it was removed. Raises
        `JournalInUseError`, `StoreError` and `CallError`.
        """
        removed: bool = await self._service.remove_journal(name, unused_for)
        return removed
