"""A store's file: SQLite with a write-ahead log, synced at every commit
(https://www.sqlite.org/wal.html, `PRAGMA synchronous`).

This is plain blocking code. `FileMedium` calls it from a thread, one call at a time.

Two locks keep other processes out. A lock file beside the store's file ensures that one process
serves the store; the kernel releases it when the process ends for any reason. SQLite's exclusive
locking mode keeps other programs from writing the file. Copy the directory only while no node runs
on it.

A new file gets its name only when it is complete. So an empty file, or a log without a file, is
damage, and is refused instead of replaced by a new store.

Commits are numbered. A mark beside the file holds the number and the checksum of the latest one.
When the store is opened, it must have at least this commit; `_examined` says why. All files are
readable for their owner only, because they hold the saved state of actors.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from actors.errors import StoreDataError, StoreOutcomeUnknownError
from runtime.store.changes import Changes
from runtime.store.data_mark import MARK_NAME, OWNER_ONLY, Mark, read_mark
from runtime.store.interface import Entry, StoreEvent
from runtime.store.memory import Snapshot

# A store as rows of plain fields, as they are in its file, and back. No I/O.
#
# Each row ends with a CRC-32 of its fields. SQLite checks the structure of its pages but has no
# checksums of their content (https://www.sqlite.org/cksumvfs.html), and one flipped bit in a
# revision could give a name to two owners. The head, a single row that every commit replaces, holds
# the sum of the checksums of all other rows, so that missing and outdated rows are found as well.

Field = str | bytes | int | float | None


Row = tuple[Field, ...]

FILE_NAME = "store.sqlite3"

LOCK_NAME = "store.lock"

APPLICATION = 0x756E6473
"""SQLite's application id for these files: "unds"."""

VERSION = 3
"""The version of the tables. Files of other versions are refused. Version 1 had no checksums,
version 2 no commit numbers; neither was released.
"""

_MAGIC = b"SQLite format 3\0"

_HEADER_BYTES = 512
"""Bytes of the smallest database. SQLite takes a shorter file for an empty database and overwrites
it.
"""

TABLES = """
CREATE TABLE state (
    revision INTEGER NOT NULL, compacted INTEGER NOT NULL, next_lease INTEGER NOT NULL,
    commits INTEGER NOT NULL, total INTEGER NOT NULL,
    in_use INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE leases (lease INTEGER PRIMARY KEY, seconds REAL NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL,
    modified INTEGER NOT NULL, version INTEGER NOT NULL,
    lease INTEGER NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    revision INTEGER NOT NULL, created INTEGER NOT NULL, previous BLOB, checksum INTEGER NOT NULL
);
CREATE INDEX events_by_revision ON events (revision)
"""

RESERVE_BYTES = 16 * 1024 * 1024
"""Room on the disk that all but small transactions leave free. Without any room not even a deletion
can be written: it goes into the log, and the log into the file, before either is used again. Small
transactions need little more than `LOG_BYTES` in each, and so go on.
"""

LOG_BYTES = 4 * 1024 * 1024 + 128 * 1024
"""The log from which on SQLite moves it into the file: 1000 pages and their headers
(https://www.sqlite.org/pragma.html#pragma_wal_autocheckpoint).
"""

_STATE = "INSERT INTO state VALUES (?, ?, ?, ?, ?, ?, ?)"

_LEASES = "INSERT INTO leases VALUES (?, ?, ?)"

_ENTRIES = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"

_EVENTS = (
    "INSERT INTO events (kind, key, value, revision, created, previous, checksum) VALUES (?, "
    "?, ?, ?, ?, ?, ?)"
)

_OF_DAMAGE = (
    0,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_SCHEMA,
)
"""Error codes that mean damage: the statements of this module fit the tables, so these codes mean
that the file does not. 0: text that cannot be decoded.
"""


@attrs.frozen
class Head:
    """The state of the store as a whole. `revision`, `compacted` and `next_lease`: see `Snapshot`.

    `commits`: the number of the latest commit. `total`: the sum of the checksums of all other rows.
    `in_use`: a process has opened the store and not closed it, so its log must exist too.
    """

    revision: int = 1
    compacted: int = 0
    next_lease: int = 1
    commits: int = 1
    total: int = 0
    in_use: bool = False

    @property
    def row(self) -> Row:
        """The fields as a row, with their checksum at the end."""
        return _sealed(
            "state",
            self.revision,
            self.compacted,
            self.next_lease,
            self.commits,
            self.total,
            int(self.in_use),
        )

    @property
    def checksum(self) -> int:
        """The checksum of the row. It covers `total`, and so the whole store."""
        found = self.row[-1]
        assert isinstance(found, int)
        return found


def head_from(rows: Iterable[Row]) -> Head:
    """Read the head from the table `state`, which must have one row. Raises ValueError if it is
    damaged.
    """
    found = [_opened("state", row) for row in rows]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of state instead of one")
    revision, compacted, next_lease, commits, total, in_use = found[0]
    return Head(revision, compacted, next_lease, commits, total, bool(in_use))


def total_of(rows: Iterable[Row]) -> int:
    """Return the sum of the checksums of the rows."""
    return sum(row[-1] for row in rows if isinstance(row[-1], int))


def lease_row(lease: int, seconds: float) -> Row:
    """Encode a lease that has not ended. `seconds`: the time for which it was granted."""
    return _sealed("lease", lease, float(seconds))


def entry_row(entry: Entry) -> Row:
    """Encode the present value of a key."""
    return _sealed(
        "entry",
        entry.key,
        entry.value,
        entry.create_revision,
        entry.mod_revision,
        entry.version,
        entry.lease,
    )


def event_row(event: StoreEvent) -> Row:
    """Encode a change, which watches may still ask for."""
    return _sealed(
        "event",
        event.kind,
        event.key,
        event.value,
        event.revision,
        event.create_revision,
        event.previous,
    )


def snapshot_from(
    head: Head, leases: Sequence[Row], entries: Sequence[Row], events: Sequence[Row]
) -> Snapshot:
    """Decode the store from its rows. `entries` must be ordered by key, `events` by revision.

    Raises ValueError, which says where, if a row does not have its checksum, or if the rows were
    not written together.
    """
    snapshot = Snapshot(
        head.revision,
        head.compacted,
        head.next_lease,
        {
            int(lease): float(seconds)
            for lease, seconds in (_opened("lease", row) for row in leases)
        },
        tuple([Entry(*_opened("entry", row)) for row in entries]),
        tuple([StoreEvent(*_opened("event", row)) for row in events]),
    )
    _check(snapshot)
    if (total := total_of([*leases, *entries, *events])) != head.total:
        raise ValueError(
            f"rows are missing, or left from before: their checksums add up to {total}, and "
            f"{head.total} is written down"
        )
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """Check the invariants of a store. Most missing rows violate one of them. Raises ValueError."""
    if not 0 <= snapshot.compacted <= snapshot.revision:
        raise ValueError(
            f"changes are forgotten up to revision {snapshot.compacted}, and the last is "
            f"{snapshot.revision}"
        )
    if max(snapshot.leases, default=0) >= snapshot.next_lease:
        raise ValueError(
            f"lease {max(snapshot.leases)} is there, and {snapshot.next_lease} would be the next"
        )
    latest: dict[str, int] = {}
    for first, second in pairwise(snapshot.events):
        if first.revision > second.revision:
            raise ValueError(
                f"the change of revision {second.revision} comes after that of {first.revision}"
            )
    for event in snapshot.events:
        if not snapshot.compacted < event.revision <= snapshot.revision:
            raise ValueError(
                f"a change of revision {event.revision} does not belong to those that are kept"
            )
        latest[event.key] = event.revision if event.kind == "put" else 0
    # Every revision has at least one change, so a gap in the revisions means a missing row.
    if len({event.revision for event in snapshot.events}) != snapshot.revision - max(
        snapshot.compacted, 1
    ):
        raise ValueError("changes are missing")
    for entry in snapshot.entries:
        if not entry.create_revision <= entry.mod_revision <= snapshot.revision:
            raise ValueError(
                f"the key {entry.key!r} is of revision {entry.mod_revision}, and the store of "
                f"{snapshot.revision}"
            )
        if latest.pop(entry.key, entry.mod_revision) != entry.mod_revision:
            raise ValueError(f"the key {entry.key!r} is not as its last change has left it")
        if entry.lease and entry.lease not in snapshot.leases:
            raise ValueError(
                f"the key {entry.key!r} is tied to lease {entry.lease}, which is not there"
            )
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
    """Compute the checksum of the fields with their types and lengths, so that moving bytes from
    one field to the next changes it.
    """
    found = zlib.crc32(table.encode())
    for field in fields:
        data = field if isinstance(field, bytes) else repr(field).encode()
        found = zlib.crc32(
            data, zlib.crc32(b"%s%d" % (type(field).__name__.encode(), len(data)), found)
        )
    return found


class StoreFile:
    """The file of one store in `directory`, which is created if it does not exist.

    Raises `StoreDataError` if the directory is in use or cannot be used, or if the file is damaged,
    has another version, or is of another program. Nothing is changed then.
    """

    def __init__(self, directory: Path) -> None:
        # The program may go into another directory while the store is open.
        directory = directory.absolute()
        self.path = directory / FILE_NAME
        self._log = directory / f"{FILE_NAME}-wal"
        self._failed = False
        """True after a failed sync, when it is unknown what is on disk. Nothing is written after
        that.
        """
        self._places: dict[Path, tuple[int, int]] = {}
        """The files that are open, by the path at which the next process looks for them: device and
        inode.
        """
        self._unused = 0
        """Bytes of the file that are free for other content, as of the latest commit."""
        # Take the lock before anything is looked at: from here on no other process changes the
        # files.
        self._lock = _locked(directory)
        try:
            with self._explained():
                if not self.path.exists():
                    self._create()
                self._check_header()
                self._head = self._examined(read_mark(directory / MARK_NAME))
                self._mark = Mark(directory / MARK_NAME)
                self._database = _connected(self.path)
                try:
                    self._prepare()
                except BaseException:
                    self._database.close()
                    self._mark.close()
                    raise
        except BaseException:
            # Closing it gives up the lock of the directory.
            os.close(self._lock)
            raise

    def load(self) -> Snapshot:
        """Return everything that was committed. Raises `StoreDataError` if the file is damaged."""
        assert not self._failed, "after a failed sync nothing is read or written here"
        with self._explained():
            return _snapshot(self._database, _head(self._database))

    def check_room(self, size: int) -> None:
        """Check that a commit of so many bytes of keys and values leaves the reserve of the disk
        free. Raises `StoreDataError`; nothing has changed then. Does not use SQLite, so the file
        may be closed meanwhile.
        """
        with self._explained():
            status = os.statvfs(self.path.parent)
            free = status.f_bavail * status.f_frsize
            # As present entries and as changes for late watches, both with what SQLite adds.
            pages = 2 * size + size // 8
            log = self._log.stat().st_size if self._log.exists() else 0
        # The log is used again from its beginning once it is in the file. Until then as much as
        # makes SQLite move it may lie before these pages, and is still to come into the file.
        growth = max(0, LOG_BYTES + pages - log) + max(0, LOG_BYTES + pages - self._unused)
        if free - growth < RESERVE_BYTES:
            raise StoreDataError(
                f"{self.path} could not be written, the disk is full: it has {free:,} free bytes, "
                f"this needs up to {growth:,}, and {RESERVE_BYTES:,} are kept for small writes; "
                "make room on it"
            )

    def write(self, changes: Changes) -> None:
        """Commit `changes`. When this returns, they survive the end of the process and of the
        machine.

        Raises `StoreDataError` if nothing was written and nothing will be. Raises
        `StoreOutcomeUnknownError` if the disk failed during the sync: only opening the file again
        shows what is on disk, so this object must not be used any more.
        """
        assert not changes.everything, "changes that are incomplete are rewritten as a whole"
        assert changes.revision >= self._head.revision, "the store never goes back on disk"
        assert changes.next_lease >= self._head.next_lease, (
            "the number of a lease is not used again"
        )
        leases = [
            lease_row(lease, seconds)
            for lease, seconds in changes.leases.items()
            if seconds is not None
        ]
        entries = [entry_row(entry) for entry in changes.entries.values() if entry is not None]
        events = list(map(event_row, changes.events))
        head = attrs.evolve(
            self._head,
            revision=changes.revision,
            compacted=changes.compacted,
            next_lease=changes.next_lease,
        )
        with self._committed() as run:
            many = self._database.executemany
            # The old rows' checksums leave the sum before their rows do. So the sum in the head
            # costs what the commit changes, not what the store holds.
            gone = _checksums(run, "leases", "lease", changes.leases) + _checksums(
                run, "entries", "key", changes.entries
            )
            many("DELETE FROM leases WHERE lease = ?", [(lease,) for lease in changes.leases])
            many(_LEASES, leases)
            many(
                "DELETE FROM entries WHERE key = ?",
                [(key,) for key, entry in changes.entries.items() if entry is None],
            )
            many(_ENTRIES, entries)
            many(_EVENTS, events)
            forgotten = "FROM events WHERE revision <= ?", (changes.compacted,)
            gone += run(
                f"SELECT coalesce(sum(checksum), 0) {forgotten[0]}", forgotten[1]
            ).fetchone()[0]
            run(f"DELETE {forgotten[0]}", forgotten[1])
            head = self._next(
                run,
                attrs.evolve(
                    head, total=head.total - gone + total_of([*leases, *entries, *events])
                ),
            )
        self._advance(head)

    def rewrite(self, snapshot: Snapshot) -> None:
        """Replace the whole content by `snapshot`, in one commit. Raises like `write`."""
        leases = [lease_row(lease, seconds) for lease, seconds in snapshot.leases.items()]
        entries, events = (
            list(map(entry_row, snapshot.entries)),
            list(map(event_row, snapshot.events)),
        )
        head = attrs.evolve(
            self._head,
            revision=snapshot.revision,
            compacted=snapshot.compacted,
            next_lease=snapshot.next_lease,
        )
        with self._committed() as run:
            many = self._database.executemany
            for table in ("leases", "entries", "events"):
                run(f"DELETE FROM {table}")
            many(_LEASES, leases)
            many(_ENTRIES, entries)
            many(_EVENTS, events)
            head = self._next(run, attrs.evolve(head, total=total_of([*leases, *entries, *events])))
        self._advance(head)

    def close(self) -> None:
        """Mark the file as closed, close it, and release the directory's lock."""
        try:
            if not self._failed:
                self._end_use()
        except (StoreDataError, StoreOutcomeUnknownError):
            # The disk is full or failed. The file stays marked as in use, as after a kill, and is
            # checked when it is opened next.
            pass
        finally:
            try:
                self._database.close()
            finally:
                self._mark.close()
                os.close(self._lock)

    def _create(self) -> None:
        """Create an empty store. The file gets its name only when it is complete and on disk."""
        # Each is made after the file: without it they are the rest of a store that is gone.
        for what, rest in (("log", self._log), ("mark", self.path.with_name(MARK_NAME))):
            if rest.exists():
                raise self._damaged(f"it is gone, and its {what} {rest.name} is there")
        unfinished = self.path.with_name(self.path.name + ".new")
        leftovers = unfinished, self.path.with_name(unfinished.name + "-journal")
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        try:
            # SQLite gives its log and journal the permissions of the file, so they must be right
            # from the start.
            os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, OWNER_ONLY))
            # With the rollback journal, not the write-ahead log: that would leave a second file,
            # and two files cannot be given their names in one atomic step.
            database = _connected(unfinished)
            try:
                run = database.execute
                run("PRAGMA synchronous = FULL")
                run("BEGIN IMMEDIATE")
                for statement in TABLES.split(";\n"):
                    run(statement)
                run(_STATE, Head().row)
                run(f"PRAGMA application_id = {APPLICATION}")
                run(f"PRAGMA user_version = {VERSION}")
                run("COMMIT")
            finally:
                database.close()
            # Renaming is atomic: no crash leaves an incomplete file under this name. So an empty
            # file that is found there later is damaged.
            unfinished.rename(self.path)
        except BaseException:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
            raise
        # SQLite synced the content. Without this the name itself could be lost with the power.
        _sync_names(self.path.parent)

    def _check_header(self) -> None:
        """Refuse files that are not a store of this version, before SQLite opens them: opening may
        change a file. Offsets: https://www.sqlite.org/fileformat2.html, 1.3.
        """
        with self.path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise self._damaged(f"it has {len(header)} bytes")
        if not header.startswith(_MAGIC):
            raise self._damaged("file is not a database")
        if int.from_bytes(header[68:72], "big") != APPLICATION:
            raise StoreDataError(
                f"{self.path} is a database of another program; nothing was changed: give another "
                "directory"
            )
        version = int.from_bytes(header[60:64], "big")
        if version != VERSION:
            age, step = (
                ("a later", "upgrade this installation")
                if version > VERSION
                else ("an earlier", "use that one")
            )
            raise StoreDataError(
                f"{self.path} was written by {age} version of understudy (tables of version "
                f"{version}, {VERSION} is known here); "
                f"nothing was changed: {step}, or give another directory"
            )

    def _examined(self, mark: tuple[int, int]) -> Head:
        """Check the store, and that it has at least the commit of `mark`. Returns its head. Raises
        `StoreDataError` if anything is wrong. Never changes the files.

        SQLite moves the log into the file when it closes a database, even a damaged one. So the
        check runs on a copy of both files. Without a log the file itself is opened as "immutable"
        (https://www.sqlite.org/uri.html).
        """
        if self._log.exists() and self._log.stat().st_size:
            with tempfile.TemporaryDirectory(prefix="understudy-store-") as directory:
                for path in (self.path, self._log):
                    shutil.copy(path, directory)
                head = self._checked(_connected(Path(directory) / FILE_NAME))
            log = "is damaged, or not the one that belongs to it"
        else:
            head = self._checked(
                sqlite3.connect(f"{self.path.absolute().as_uri()}?immutable=1", uri=True)
            )
            log = "is gone"
        commits, checksum = mark
        # SQLite treats a lost or damaged log like one that ends earlier, so acknowledged commits
        # would be lost silently. The mark says how many commits there must be.
        if commits > head.commits:
            raise self._damaged(
                f"its log {self._log.name} {log}: the latest commits, {commits - head.commits}, "
                "are missing"
            )
        if commits == head.commits and checksum != head.checksum:
            raise self._damaged(f"its log {self._log.name} or {MARK_NAME} is of another store")
        # An orderly close clears `in_use` in the file itself. While it is set, a log must exist.
        if head.in_use and log == "is gone":
            raise self._damaged(
                f"its log {self._log.name} is gone, and the last process that used it was killed "
                "before it closed it"
            )
        if head.in_use and not commits:
            raise self._damaged(
                f"its log {self._log.name} may be: without {MARK_NAME}, which is gone or damaged, "
                "that is not known"
            )
        return head

    def _checked(self, database: sqlite3.Connection) -> Head:
        """Check integrity, checksums and invariants; return the head. Raises ValueError or
        `StoreDataError`.
        """
        try:
            if (found := database.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise self._damaged(found)
            head = _head(database)
            _snapshot(database, head)
            return head
        finally:
            database.close()

    def _prepare(self) -> None:
        for path in files_of(self.path.parent):
            # Also for files that were copied here with wider permissions. This does not undo what
            # others have read before.
            if path.exists() and stat.S_IMODE(path.stat().st_mode) != OWNER_ONLY:
                path.chmod(OWNER_ONLY)
        run = self._database.execute
        # Before the first access: with another locking mode SQLite keeps the index of the log in a
        # file. On a full disk growing that file could fail after the commit is in the log, and a
        # refused commit would reappear after a restart.
        run("PRAGMA locking_mode = EXCLUSIVE")
        mode = run("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreDataError(
                f"{self.path} cannot have a write-ahead log (its journal mode is {mode}); give a "
                "directory on a local disk"
            )
        run("PRAGMA synchronous = FULL")
        # Write the mark before `in_use` is set. A kill between the two would otherwise leave a
        # store that is in use without a mark, which looks like damage.
        self._mark.set(self._head.commits, self._head.checksum)
        self._mark.sync()
        self._set_in_use(in_use=True)
        # Move `in_use` into the file itself, where it is read when the log is lost. FULL does not
        # truncate the log, so from now on the log is never empty.
        run("PRAGMA wal_checkpoint(FULL)")
        self._mark.sync()
        # From here on both are there for as long as they are open.
        self._places = {path: _place(path) for path in (self.path, self._log)}

    def _end_use(self) -> None:
        # First move the whole log into the file. SQLite then starts the log from its beginning, so
        # the last commit needs no more room on a full disk.
        with self._explained():
            self._database.execute("PRAGMA wal_checkpoint(FULL)")
        self._set_in_use(in_use=False)

    def _set_in_use(self, *, in_use: bool) -> None:
        with self._committed() as run:
            head = self._next(run, attrs.evolve(self._head, in_use=in_use))
        self._advance(head)

    def _next(self, run: Callable[..., sqlite3.Cursor], head: Head) -> Head:
        """Write the head with the next commit number, in the current transaction. Returns it."""
        head = attrs.evolve(head, commits=self._head.commits + 1)
        run("DELETE FROM state")
        run(_STATE, head.row)
        unused, page = (
            run(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "page_size")
        )
        self._unused = int(unused) * int(page)
        return head

    def _advance(self, head: Head) -> None:
        """Record that the commit of `head` is on disk. Called after the commit, never before: the
        mark must never be ahead of the store.
        """
        # Both grow by one: a mark that skips a number would refuse a store that is whole.
        assert head.commits == self._head.commits + 1
        self._head = head
        self._mark.set(head.commits, head.checksum)

    @contextmanager
    def _committed(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Run the block in a transaction, which is committed at its end and rolled back on an
        error. Raises like `write`.
        """
        with self._explained():
            self._check_places()
            run = self._database.execute
            # Takes the lock of the writer now. With a plain BEGIN it would be taken by the first
            # write, and a lock of another program would show in the middle of the transaction.
            run("BEGIN IMMEDIATE")
            try:
                yield run
            except BaseException:
                self._roll_back()
                raise
            try:
                run("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                # On a full disk SQLite could not write the end of the commit to the log, so it is
                # not committed. After a failed sync the commit may or may not be on disk. The
                # kernel reports such a failure only once, so a second sync proves nothing
                # (https://lwn.net/Articles/752063/).
                if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                    raise
                self._failed = True
                raise StoreOutcomeUnknownError(
                    f"the disk of {self.path} failed while it was written ({error}); look at the "
                    "disk, then start the node again on it"
                ) from error

    def _check_places(self) -> None:
        """Refuse to write to files that no path leads to any more. Raises `StoreDataError`.

        A file that is deleted or moved stays open, and SQLite writes to it as before. Such a commit
        would be acknowledged, and gone with this process. It costs microseconds, a sync thousands.
        """
        for path, place in self._places.items():
            if _place(path) != place:
                raise StoreDataError(
                    f"{path} has been deleted, moved or replaced while the store uses it: put that "
                    "file back, or stop the node and found the cluster anew"
                )

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.Error, OverflowError) as error:
            code = _code(error)
            if code == sqlite3.SQLITE_TOOBIG or isinstance(error, OverflowError):
                raise StoreDataError(
                    f"{self.path} takes no value of a gigabyte or more; make it smaller"
                ) from error
            if code == sqlite3.SQLITE_FULL:
                raise StoreDataError(
                    f"{self.path} could not be written, the disk is full; make room on it"
                ) from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreDataError(
                    f"{self.path} is locked by another program; end that one (`fuser {self.path}` "
                    "names it)"
                ) from error
            if code in _OF_DAMAGE:
                raise self._damaged(str(error)) from error
            raise StoreDataError(
                f"{self.path} cannot be used: {error}; look at the disk and at who may write there"
            ) from error
        except OSError as error:
            path = error.filename or self.path
            raise StoreDataError(
                f"{path} cannot be used: {error.strerror}; look at the disk and at who may write "
                "there"
            ) from error
        except ValueError as error:
            # From `snapshot_from`, or from text that is not UTF-8, even within SQLite's own
            # messages.
            raise self._damaged(str(error)) from error

    def _damaged(self, text: str) -> StoreDataError:
        return StoreDataError(
            f"{self.path} is damaged ({' '.join(text.split())}); nothing was changed: restore a "
            "copy of the whole directory, or give an empty directory to start with an empty store"
        )


def _code(error: BaseException) -> int:
    """Return the primary result code, which is the low byte of an extended one
    (https://www.sqlite.org/rescode.html).
    """
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)


def _head(database: sqlite3.Connection) -> Head:
    return head_from(
        database.execute(
            "SELECT revision, compacted, next_lease, commits, total, in_use, checksum FROM state"
        )
    )


def _snapshot(database: sqlite3.Connection, head: Head) -> Snapshot:
    def rows(query: str) -> list[Row]:
        return database.execute(query).fetchall()

    return snapshot_from(
        head,
        rows("SELECT lease, seconds, checksum FROM leases ORDER BY lease"),
        rows(
            "SELECT key, value, created, modified, version, lease, checksum FROM entries ORDER BY "
            "key"
        ),
        rows(
            "SELECT kind, key, value, revision, created, previous, checksum FROM events ORDER BY "
            "number"
        ),
    )


def _checksums(
    run: Callable[..., sqlite3.Cursor], table: str, column: str, keys: Iterable[int | str]
) -> int:
    """Return the sum of the checksums of the rows with these keys."""
    query = f"SELECT checksum FROM {table} WHERE {column} = ?"
    return sum(row[0] for key in keys for row in run(query, (key,)))


def _sync_names(directory: Path) -> None:
    """Sync the entries of `directory` and its own entry in its parent, so that new names survive a
    loss of power.
    """
    for each in (directory, directory.parent):
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _place(path: Path) -> tuple[int, int]:
    """Device and inode of the file at `path`; (0, 0) if there is none that can be seen."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def files_of(directory: Path) -> list[Path]:
    """Return the paths of all files of a store in `directory`, whether they are there or not: the
    database first, then its log and its mark, and last the lock.
    """
    return [directory / one for one in (FILE_NAME, f"{FILE_NAME}-wal", MARK_NAME, LOCK_NAME)]


def _locked(directory: Path) -> int:
    """Lock the directory. Returns a descriptor; closing it releases the lock. Raises
    `StoreDataError` if another process has it.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
    except OSError as error:
        raise StoreDataError(
            f"{directory} cannot hold a store: {error.strerror}; give another directory, or "
            "rights to this one"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreDataError(
            f"{directory} is in use by another node (process {holder or 'unknown'}); a store has "
            "one node at a time: "
            "stop that one, or give another directory"
        ) from None
    except OSError as error:
        os.close(lock)
        raise StoreDataError(
            f"{directory} cannot be locked: {error.strerror}; give a directory on a local disk"
        ) from None
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        # The disk is full. The lock holds; only the holder's pid, which the error above shows, is
        # missing.
        pass
    return lock
