"""A group as one node sees it: the records of all nodes, in the store's order.

No I/O and no clock. Records of the node itself are left out: it knows better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runtime.groups.records import Membership, Record


class GroupView:
    """The view of one group. `own`: this node's incarnation."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._records: dict[str, Record] = {}
        self.revision = 0
        """All changes up to this revision are in the view; 0 before the first."""
        self.version = 0
        """Another one whenever the records change."""

    def replace(self, records: Mapping[str, Record], revision: int) -> None:
        """All there are."""
        if revision >= self.revision:
            self._records = {key: record for key, record in records.items() if record.incarnation != self._own}
            self._moved(revision)

    def change(self, changes: Iterable[tuple[str, Record | None]], revision: int) -> None:
        """What has changed up to `revision`; None for a record that was deleted."""
        if revision <= self.revision:
            return
        for key, record in changes:
            if record is None:
                self._records.pop(key, None)
            elif record.incarnation != self._own:
                self._records[key] = record
        self._moved(revision)

    def nodes(self) -> frozenset[tuple[str, int]]:
        """The incarnations that have members, whether they live or not."""
        return frozenset((record.node, record.incarnation) for record in self._records.values())

    def members(self, lives: Callable[[tuple[str, int]], bool]) -> list[Membership]:
        """The members on nodes that live, in the same order on all nodes."""
        records = sorted(
            (item for item in self._records.items() if lives((item[1].node, item[1].incarnation))),
            key=lambda item: (item[1].node, item[1].incarnation, len(item[0]), item[0]),
        )
        return [membership for _, record in records for membership in record.members]

    def _moved(self, revision: int) -> None:
        self.revision = revision
        self.version += 1
