"""What a node says of its references, in sums and one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.references.claims import ReferenceId
from runtime.references.fetching import Fetching
from runtime.references.listing import Totals, report, size_of
from runtime.references.memory.values import Shelves
from runtime.references.table import ReferenceTable


class Overview:
    """See the module. `now` is the time on the node's clock, in seconds."""

    def __init__(self, table: ReferenceTable, fetching: Fetching, shelves: Shelves[ReferenceId], now: Callable[[], float]) -> None:
        self._table = table
        self._fetching = fetching
        self._shelves = shelves
        self._now = now

    def listing(self, most: int) -> dict[str, Any]:
        """Up to `most` values of this node, and where it has made others; see `listing.report`."""
        table = self._table
        return report(table.own(), table.holders, table.others(), self._now(), most, traces=table.site is not None)

    def totals(self) -> Totals:
        """How much there is of all that."""
        own = self._table.own()
        return Totals(
            owned=len(own),
            bytes=sum(map(size_of, own)),
            memory=self._shelves.in_memory,
            memory_limit=self._shelves.limit,
            disk=self._shelves.on_disk,
            held=len(self._table.others()),
            fetched_bytes=self._fetching.cached_bytes,
        )
