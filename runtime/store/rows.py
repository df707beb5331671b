"""A store as rows of plain fields, as they lie in its file, and back. No I/O.

Each row ends with a CRC-32 of its fields: SQLite checks the structure of its pages, but has no checksums for what is on them
(https://www.sqlite.org/cksumvfs.html), and a revision with one bit turned over would give a name to two owners. The head, the one row that
every commit replaces, has the sum of all others' checksums: a row that is missing, or left from before, does not go unseen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import attrs

from runtime.store.interface import Entry, Event
from runtime.store.memory import Snapshot

Field = str | bytes | int | float | None
Row = tuple[Field, ...]


@attrs.frozen
class Head:
    """How far a store has come. `revision`, `compacted`, `next_lease`: see `Snapshot`.

    `commits`: how many there have been, each with the next number. `total`: the sum of the checksums of all other rows. `in_use`: a process
    has opened the store and not closed it, so its log must be there as well.
    """

    revision: int = 1
    compacted: int = 0
    next_lease: int = 1
    commits: int = 1
    total: int = 0
    in_use: bool = False

    @property
    def row(self) -> Row:
        """Its fields, with their checksum."""
        return _sealed("state", self.revision, self.compacted, self.next_lease, self.commits, self.total, int(self.in_use))

    @property
    def checksum(self) -> int:
        """That of the row, and so of the whole store."""
        found = self.row[-1]
        assert isinstance(found, int)
        return found


def head_from(rows: Iterable[Row]) -> Head:
    """The head in the one row that there must be. Raises ValueError."""
    found = [_opened("state", row) for row in rows]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of state instead of one")
    revision, compacted, next_lease, commits, total, in_use = found[0]
    return Head(revision, compacted, next_lease, commits, total, bool(in_use))


def total_of(rows: Iterable[Row]) -> int:
    """The sum of their checksums."""
    return sum(row[-1] for row in rows if isinstance(row[-1], int))


def lease_row(lease: int, seconds: float) -> Row:
    """A lease that has not ended, and for how many seconds it was granted."""
    return _sealed("lease", lease, float(seconds))


def entry_row(entry: Entry) -> Row:
    """A key as it is now."""
    return _sealed("entry", entry.key, entry.value, entry.create_revision, entry.mod_revision, entry.version, entry.lease)


def event_row(event: Event) -> Row:
    """A change, for watches."""
    return _sealed("event", event.kind, event.key, event.value, event.revision, event.create_revision, event.previous)


def snapshot_from(head: Head, leases: Sequence[Row], entries: Sequence[Row], events: Sequence[Row]) -> Snapshot:
    """The store that these rows tell of, the entries in the order of their keys, the events in that of the changes.

    Raises ValueError, saying where, if a row is not as it was written, or if the rows cannot have been written together.
    """
    snapshot = Snapshot(
        head.revision,
        head.compacted,
        head.next_lease,
        {int(lease): float(seconds) for lease, seconds in (_opened("lease", row) for row in leases)},
        tuple([Entry(*_opened("entry", row)) for row in entries]),
        tuple([Event(*_opened("event", row)) for row in events]),
    )
    _check(snapshot)
    if (total := total_of([*leases, *entries, *events])) != head.total:
        raise ValueError(f"rows are missing, or left from before: their checksums add up to {total}, and {head.total} is written down")
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """What holds for every store: a row that is missing would break it, mostly."""
    if not 0 <= snapshot.compacted <= snapshot.revision:
        raise ValueError(f"changes are forgotten up to revision {snapshot.compacted}, and the last is {snapshot.revision}")
    if max(snapshot.leases, default=0) >= snapshot.next_lease:
        raise ValueError(f"lease {max(snapshot.leases)} is there, and {snapshot.next_lease} would be the next")
    latest: dict[str, int] = {}
    for first, second in pairwise(snapshot.events):
        if first.revision > second.revision:
            raise ValueError(f"the change of revision {second.revision} comes after that of {first.revision}")
    for event in snapshot.events:
        if not snapshot.compacted < event.revision <= snapshot.revision:
            raise ValueError(f"a change of revision {event.revision} does not belong to those that are kept")
        latest[event.key] = event.revision if event.kind == "put" else 0
    # Every revision changed something, so none is missing among those that are kept.
    if len({event.revision for event in snapshot.events}) != snapshot.revision - max(snapshot.compacted, 1):
        raise ValueError("changes are missing")
    for entry in snapshot.entries:
        if not entry.create_revision <= entry.mod_revision <= snapshot.revision:
            raise ValueError(f"the key {entry.key!r} is of revision {entry.mod_revision}, and the store of {snapshot.revision}")
        if latest.pop(entry.key, entry.mod_revision) != entry.mod_revision:
            raise ValueError(f"the key {entry.key!r} is not as its last change has left it")
        if entry.lease and entry.lease not in snapshot.leases:
            raise ValueError(f"the key {entry.key!r} is tied to lease {entry.lease}, which is not there")
    if missing := next((key for key, written in latest.items() if written), None):
        raise ValueError(f"the key {missing!r} is missing")


def _sealed(table: str, *fields: Field) -> Row:
    return *fields, _checksum(table, fields)


def _opened(table: str, row: Row) -> list[Any]:
    *fields, checksum = row
    if checksum != _checksum(table, fields):
        raise ValueError(f"a row of kind {table!r} is not as it was written")
    return fields


def _checksum(table: str, fields: Iterable[Field]) -> int:
    """Over the fields with their types and lengths, so that nothing can move from one to the next unseen."""
    found = zlib.crc32(table.encode())
    for field in fields:
        data = field if isinstance(field, bytes) else repr(field).encode()
        found = zlib.crc32(data, zlib.crc32(b"%s%d" % (type(field).__name__.encode(), len(data)), found))
    return found
