"""Lists the journals of maps that a cluster's store has, for people who look for what to remove."""

from __future__ import annotations

import attrs

from actors.errors import JournalError
from runtime.membership.journals import DRIVERS, HEADS, read_parts
from runtime.pools.journal import count_items
from runtime.store.interface import Store


@attrs.frozen
class JournalSummary:
    """One journal. `what`: the members and the method that it belongs to. `items`: how many are
    done, or None if a part of it cannot be read. `size`: bytes of its parts. `driver`: the node
    whose map works with it now, or None.
    """

    name: str
    what: str
    items: int | None
    size: int
    driver: str | None


async def list_journals(store: Store) -> list[JournalSummary]:
    """All journals, by name; each is read whole, some parts at a time. Raises `StoreError`."""
    heads = await store.range(HEADS)
    drivers = {
        # The value is the node's name and a token; see `Journals`.
        entry.key.removeprefix(DRIVERS): entry.value.decode(errors="replace").rpartition(" ")[0]
        for entry in (await store.range(DRIVERS)).entries
    }
    found: list[JournalSummary] = []
    for head in heads.entries:
        name = head.key.removeprefix(HEADS)
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
        found.append(JournalSummary(name, what, items, size, drivers.get(name)))
    return found
