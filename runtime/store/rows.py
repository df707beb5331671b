"""A store as rows of plain fields, as they lie in its file, and back. No I/O.

Each row ends with a CRC-32 of its fields: SQLite checks the structure of its pages, but has no checksums for what is on them
(https://www.sqlite.org/cksumvfs.html), and a revision with one bit turned over would give a name to two owners.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from runtime.store.interface import Entry, Event
from runtime.store.memory import Snapshot

Field = str | bytes | int | float | None
Row = tuple[Field, ...]


def state_row(revision: int, compacted: int, next_lease: int) -> Row:
    """The one row that says how far the store has come."""
    return _sealed("state", revision, compacted, next_lease)


def lease_row(lease: int, seconds: float) -> Row:
    """A lease that has not ended, and for how many seconds it was granted."""
    return _sealed("lease", lease, float(seconds))


def entry_row(entry: Entry) -> Row:
    """A key as it is now."""
    return _sealed("entry", entry.key, entry.value, entry.create_revision, entry.mod_revision, entry.version, entry.lease)


def event_row(event: Event) -> Row:
    """A change, for watches."""
    return _sealed("event", event.kind, event.key, event.value, event.revision, event.create_revision, event.previous)


def snapshot_from(state: Iterable[Row], leases: Iterable[Row], entries: Iterable[Row], events: Iterable[Row]) -> Snapshot:
    """The store that these rows tell of, the entries in the order of their keys, the events in that of the changes.

    Raises ValueError, saying where, if a row is not as it was written, or if the rows cannot have been written together.
    """
    found = [_opened("state", row) for row in state]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of state instead of one")
    revision, compacted, next_lease = found[0]
    snapshot = Snapshot(
        revision,
        compacted,
        next_lease,
        {int(lease): float(seconds) for lease, seconds in (_opened("lease", row) for row in leases)},
        tuple([Entry(*_opened("entry", row)) for row in entries]),
        tuple([Event(*_opened("event", row)) for row in events]),
    )
    _check(snapshot)
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
