"""A store's file: SQLite with a write-ahead log, synced at every commit
(https://www.sqlite.org/wal.html, `PRAGMA synchronous`).

Plain blocking code: `FileMedium` calls it from a thread, one call at a time. Beside the file lies a
lock that its process holds, so that a store is never served twice; the kernel gives it back when
the process ends, however it ends.

The file itself is held exclusively as well, so no other process can write to it; a copy is made
while no node runs on it.

A new file gets its name when it is complete. One that is empty, or gone while its log is there, was
damaged: it is not begun anew.

Each commit has the next number, and beside the file lies a mark with the number and the checksum of
the latest: what is found must have come as far (`_examined` says why). All is for its owner alone:
it holds what actors have saved.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
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

# A store as rows of plain fields, as they lie in its file, and back. No I/O.
#
# Each row ends with a CRC-32 of its fields: SQLite checks the structure of its pages, but has no
# checksums for what is on them (https://www.sqlite.org/cksumvfs.html), and a revision with one bit
# turned over would give a name to two owners. The head, the one row that every commit replaces, has
# the sum of all others' checksums: a row that is missing, or left from before, does not go unseen.

Field = str | bytes | int | float | None


Row = tuple[Field, ...]


@attrs.frozen
class Head:
    """How far a store has come. `revision`, `compacted`, `next_lease`: see `Snapshot`.

    `commits`: how many there have been, each with the next number. `total`: the sum of the
    checksums of all other rows. `in_use`: a process has opened the store and not closed it, so its
    log must be there as well.
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
    """A change, for watches."""
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
    """The store that these rows tell of, the entries in the order of their keys, the events in that
    of the changes.

    Raises ValueError, saying where, if a row is not as it was written, or if the rows cannot have
    been written together.
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
    """What holds for every store: a row that is missing would break it, mostly."""
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
    # Every revision changed something, so none is missing among those that are kept.
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
    """Over the fields with their types and lengths, so that nothing can move from one to the next
    unseen.
    """
    found = zlib.crc32(table.encode())
    for field in fields:
        data = field if isinstance(field, bytes) else repr(field).encode()
        found = zlib.crc32(
            data, zlib.crc32(b"%s%d" % (type(field).__name__.encode(), len(data)), found)
        )
    return found


FILE_NAME = "store.sqlite3"


LOCK_NAME = "store.lock"


APPLICATION = 0x756E6473
"""SQLite's application id for these files: "unds"."""


VERSION = 3
"""Of the tables. Files of other versions are refused: 1 had no checksums, 2 no numbers of commits,
and neither was ever released.
"""


_MAGIC = b"SQLite format 3\0"


_HEADER_BYTES = 512
"""The smallest database there is; SQLite takes a file with less for an empty one, and overwrites
it.
"""


_TABLES = """
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


_STATE = "INSERT INTO state VALUES (?, ?, ?, ?, ?, ?, ?)"


_LEASES = "INSERT INTO leases VALUES (?, ?, ?)"


_ENTRIES = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"


_EVENTS = (
    "INSERT INTO events (kind, key, value, revision, created, previous, checksum) VALUES (?, "
    "?, ?, ?, ?, ?, ?)"
)


class StoreFile:
    """The file of one store in `directory`, which is made if it is not there.

    Raises `StoreDataError` for a directory that is in use or cannot be used, and for a file that is
    damaged, of another version, or of something else. Nothing is changed then.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._log = directory / f"{FILE_NAME}-wal"
        self._failed = False
        """True once it is unknown what is on the disk: then nothing more is written."""
        # First of all: whatever is looked at below, no other process changes it from here on.
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
            os.close(self._lock)
            raise

    def load(self) -> Snapshot:
        """Everything that was committed. Raises `StoreDataError` if it is not as it was written."""
        with self._explained():
            return _snapshot(self._database, _head(self._database))

    def write(self, changes: Changes) -> None:
        """Commit `changes`. When this returns they outlast the process and the machine.

        Raises `StoreDataError` if nothing of them was written, and nothing will be. Raises
        `StoreOutcomeUnknownError` if the disk failed while it was told to keep them: what it holds
        is only known when the file has been opened again, so this object must not be used any more.
        """
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
        """Commit `snapshot` in the place of all there is. Raises like `write`."""
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
        """Close the file and release the directory."""
        try:
            if not self._failed:
                self._end_use()
        except (StoreDataError, StoreOutcomeUnknownError):
            # The disk is full, or failed: the file is left as by a process that was killed.
            pass
        finally:
            try:
                self._database.close()
            finally:
                self._mark.close()
                os.close(self._lock)

    def _create(self) -> None:
        """An empty store, under its name only when it is complete and on disk."""
        if self._log.exists():
            raise self._damaged(f"it is gone, and its log {self._log.name} is there")
        unfinished = self.path.with_name(self.path.name + ".new")
        leftovers = unfinished, self.path.with_name(unfinished.name + "-journal")
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        try:
            # SQLite gives the log and the journal the rights of the file.
            os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, OWNER_ONLY))
            database = _connected(unfinished)
            try:
                run = database.execute
                run("PRAGMA synchronous = FULL")
                run("BEGIN IMMEDIATE")
                for statement in _TABLES.split(";\n"):
                    run(statement)
                run(_STATE, Head().row)
                run(f"PRAGMA application_id = {APPLICATION}")
                run(f"PRAGMA user_version = {VERSION}")
                run("COMMIT")
            finally:
                database.close()
            # Only a complete file gets the name: an empty one that is found is a damaged one.
            unfinished.rename(self.path)
        except BaseException:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
            raise
        _sync_names(self.path.parent)

    def _check_header(self) -> None:
        """Refuse what is not ours before SQLite touches it, which might tidy it up:
        https://www.sqlite.org/fileformat2.html, 1.3.
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
        """The head of a store that is sound, and has come as far as `mark`. Raises `StoreDataError`
        for any other; never changes anything.

        SQLite moves the log into the file when that is closed, sound or not; so a copy of both is
        looked at. Without a log the file is read as one that is never written to:
        https://www.sqlite.org/uri.html, "immutable".
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
        # SQLite takes a log that is gone or damaged for one that ends earlier: what was
        # acknowledged would silently not have been. The mark knows how far the store had come.
        if commits > head.commits:
            raise self._damaged(
                f"its log {self._log.name} {log}: the latest commits, {commits - head.commits}, "
                "are missing"
            )
        if commits == head.commits and checksum != head.checksum:
            raise self._damaged(f"its log {self._log.name} or {MARK_NAME} is of another store")
        # A process that closes the file in order says so in it: without that, there was a log.
        if head.in_use and log == "is gone":
            raise self._damaged(
                f"its log {self._log.name} is gone, and the last process that used it was killed "
                "before it closed it"
            )
        if head.in_use and not commits:
            raise self._damaged(
                f"its log {self._log.name} may be: without {MARK_NAME}, which is gone or damaged, "
                "that cannot be told"
            )
        return head

    def _checked(self, database: sqlite3.Connection) -> Head:
        """The head, once all is as it was written."""
        try:
            if (found := database.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise self._damaged(found)
            head = _head(database)
            _snapshot(database, head)
            return head
        finally:
            database.close()

    def _prepare(self) -> None:
        for path in (self.path, self._log):
            # Also of a file that was copied here. What others could read in the meantime is not
            # undone by it.
            if path.exists():
                path.chmod(OWNER_ONLY)
        run = self._database.execute
        # Before the first access, or the index of the log would be a file, which could fail to grow
        # on a full disk after the commit is in the log: what was refused would be there after a
        # restart.
        run("PRAGMA locking_mode = EXCLUSIVE")
        mode = run("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreDataError(
                f"{self.path} cannot have a write-ahead log (its journal mode is {mode}); give a "
                "directory on a local disk"
            )
        run("PRAGMA synchronous = FULL")
        # A file that says that it is in use has a mark beside it at any moment, or a kill between
        # the two would look like damage.
        self._mark.set(self._head.commits, self._head.checksum)
        self._mark.sync()
        self._set_in_use(in_use=True)
        # Into the file itself, which is asked when the log is gone. FULL leaves the log as it is:
        # from now on it is never empty.
        run("PRAGMA wal_checkpoint(FULL)")
        self._mark.sync()

    def _end_use(self) -> None:
        # First all that is in the log goes into the file: then the log begins anew, and needs no
        # room on a disk that is full.
        with self._explained():
            self._database.execute("PRAGMA wal_checkpoint(FULL)")
        self._set_in_use(in_use=False)

    def _set_in_use(self, *, in_use: bool) -> None:
        with self._committed() as run:
            head = self._next(run, attrs.evolve(self._head, in_use=in_use))
        self._advance(head)

    def _next(self, run: Callable[..., sqlite3.Cursor], head: Head) -> Head:
        """Write the head of the next commit, as a part of it."""
        head = attrs.evolve(head, commits=self._head.commits + 1)
        run("DELETE FROM state")
        run(_STATE, head.row)
        return head

    def _advance(self, head: Head) -> None:
        """The commit of `head` is on disk. Only now may the mark say so: it must never be ahead of
        the store.
        """
        self._head = head
        self._mark.set(head.commits, head.checksum)

    @contextmanager
    def _committed(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """A transaction: all of the block, or nothing of it. Raises like `write`."""
        with self._explained():
            run = self._database.execute
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
                # A disk that is full refuses the end of the log, so there is no commit in it. A
                # disk that fails to sync may have kept it, and the kernel forgets that it failed:
                # asking again proves nothing (https://lwn.net/Articles/752063/).
                if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                    raise
                self._failed = True
                raise StoreOutcomeUnknownError(
                    f"the disk of {self.path} failed while it was written ({error}); look at the "
                    "disk, then start the node again on it"
                ) from error

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
            # Of `snapshot_from`, or text that is no UTF-8, even in SQLite's own messages.
            raise self._damaged(str(error)) from error

    def _damaged(self, text: str) -> StoreDataError:
        return StoreDataError(
            f"{self.path} is damaged ({' '.join(text.split())}); nothing was changed: restore a "
            "copy of the whole directory, or give an empty directory to start with an empty store"
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
"""What SQLite says when the statements of this module, which fit the tables, do not fit what it
finds. 0: text that cannot be decoded.
"""


def _code(error: BaseException) -> int:
    """The primary result code; extended ones have it in their low byte
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
    """The sum of the checksums of the rows that are there under these keys."""
    query = f"SELECT checksum FROM {table} WHERE {column} = ?"
    return sum(row[0] for key in keys for row in run(query, (key,)))


def _sync_names(directory: Path) -> None:
    """Make the names in `directory`, and its own, outlast the machine."""
    for each in (directory, directory.parent):
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _locked(directory: Path) -> int:
    """A descriptor that holds the directory's lock for as long as it is open."""
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
        # On a full disk: the lock holds all the same, it only cannot say whose it is.
        pass
    return lock
