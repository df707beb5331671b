"""A store's file: SQLite with a write-ahead log, synced at every commit (https://www.sqlite.org/wal.html, `PRAGMA synchronous`).

Plain blocking code: whoever serves a store calls it from a thread, one call at a time. Beside the file lies a lock that its process holds,
so that a store is never served twice; the kernel gives it back when the process ends, however it ends.

The file itself is held exclusively as well. Nobody else can write to it then, and SQLite keeps the index of its log in memory: as a file
it could fail to grow on a full disk after the commit is in the log, and what was refused would be there after a restart. So a copy is made
while no node runs on it.

A new file gets its name when it is complete. One that is empty, or gone while its log is there, was damaged: it is not begun anew.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.errors import StoreDataError, StoreOutcomeUnknownError
from runtime.store.changes import Changes
from runtime.store.memory import Snapshot
from runtime.store.rows import entry_row, event_row, lease_row, snapshot_from, state_row

FILE_NAME = "store.sqlite3"
LOCK_NAME = "store.lock"

APPLICATION = 0x756E6473
"""SQLite's application id for these files: "unds"."""

VERSION = 2
"""Of the tables. Files of other versions are refused: 1 had no checksums, and was never released."""

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 512
"""The smallest database there is; SQLite takes a file with less for an empty one, and overwrites it."""

_TABLES = """
CREATE TABLE state (revision INTEGER NOT NULL, compacted INTEGER NOT NULL, next_lease INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE leases (lease INTEGER PRIMARY KEY, seconds REAL NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL, modified INTEGER NOT NULL, version INTEGER NOT NULL,
    lease INTEGER NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL,
    created INTEGER NOT NULL, previous BLOB, checksum INTEGER NOT NULL
);
CREATE INDEX events_by_revision ON events (revision)
"""

_STATE = "INSERT INTO state VALUES (?, ?, ?, ?)"
_LEASES = "INSERT INTO leases VALUES (?, ?, ?)"
_ENTRIES = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
_EVENTS = "INSERT INTO events (kind, key, value, revision, created, previous, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)"


class StoreFile:
    """The file of one store in `directory`, which is made if it is not there.

    Raises `StoreDataError` for a directory that is in use or cannot be used, and for a file that is damaged, of another version, or of
    something else. Nothing is changed then.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._log = directory / f"{FILE_NAME}-wal"
        self._lock = _locked(directory)
        try:
            with self._explained():
                if not self.path.exists():
                    self._create()
                self._check_header()
                if self._log.exists() and self._log.stat().st_size:
                    self._check_copy()
                self._database = _connected(self.path)
                try:
                    self._prepare()
                except BaseException:
                    self._database.close()
                    raise
        except BaseException:
            os.close(self._lock)
            raise

    def load(self) -> Snapshot:
        """Everything that was committed. Raises `StoreDataError` if it is not as it was written."""
        with self._explained():
            return _snapshot(self._database)

    def write(self, changes: Changes) -> None:
        """Commit `changes`. When this returns they outlast the process and the machine.

        Raises `StoreDataError` if nothing of them was written, and nothing will be. Raises `StoreOutcomeUnknownError` if the disk failed
        while it was told to keep them: what it holds is only known when the file has been opened again, so this one is of no more use.
        """
        with self._committed() as run:
            many = self._database.executemany
            many("DELETE FROM leases WHERE lease = ?", [(lease,) for lease in changes.leases])
            many(_LEASES, [lease_row(lease, seconds) for lease, seconds in changes.leases.items() if seconds is not None])
            many("DELETE FROM entries WHERE key = ?", [(key,) for key, entry in changes.entries.items() if entry is None])
            many(_ENTRIES, [entry_row(entry) for entry in changes.entries.values() if entry is not None])
            many(_EVENTS, map(event_row, changes.events))
            run("DELETE FROM events WHERE revision <= ?", (changes.compacted,))
            run("DELETE FROM state")
            run(_STATE, state_row(changes.revision, changes.compacted, changes.next_lease))

    def rewrite(self, snapshot: Snapshot) -> None:
        """Commit `snapshot` in the place of all there is. Raises like `write`."""
        with self._committed() as run:
            many = self._database.executemany
            for table in ("state", "leases", "entries", "events"):
                run(f"DELETE FROM {table}")
            many(_LEASES, [lease_row(lease, seconds) for lease, seconds in snapshot.leases.items()])
            many(_ENTRIES, map(entry_row, snapshot.entries))
            many(_EVENTS, map(event_row, snapshot.events))
            run(_STATE, state_row(snapshot.revision, snapshot.compacted, snapshot.next_lease))

    def close(self) -> None:
        """Close the file and let go of the directory."""
        try:
            self._database.close()
        finally:
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
            database = _connected(unfinished)
            try:
                run = database.execute
                run("PRAGMA synchronous = FULL")
                run("BEGIN IMMEDIATE")
                for statement in _TABLES.split(";\n"):
                    run(statement)
                run(_STATE, state_row(1, 0, 1))
                run(f"PRAGMA application_id = {APPLICATION}")
                run(f"PRAGMA user_version = {VERSION}")
                run("COMMIT")
            finally:
                database.close()
            unfinished.rename(self.path)
        except BaseException:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
            raise
        _sync_names(self.path.parent)

    def _check_header(self) -> None:
        """Refuse what is not ours before SQLite touches it, which might tidy it up: https://www.sqlite.org/fileformat2.html, 1.3."""
        with self.path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise self._damaged(f"it has {len(header)} bytes")
        if not header.startswith(_MAGIC):
            raise self._damaged("file is not a database")
        if int.from_bytes(header[68:72], "big") != APPLICATION:
            raise StoreDataError(f"{self.path} is a database of another program; nothing was changed: give another directory")
        version = int.from_bytes(header[60:64], "big")
        if version != VERSION:
            age, step = ("a later", "upgrade this installation") if version > VERSION else ("an earlier", "use that one")
            raise StoreDataError(
                f"{self.path} was written by {age} version of understudy (tables of version {version}, {VERSION} is known here); "
                f"nothing was changed: {step}, or give another directory"
            )

    def _check_copy(self) -> None:
        """After a crash. SQLite moves the log into the file when that is closed, sound or not; so a copy of both is looked at first."""
        with tempfile.TemporaryDirectory(prefix="understudy-store-") as directory:
            for path in (self.path, self._log):
                shutil.copy(path, directory)
            database = _connected(Path(directory) / FILE_NAME)
            try:
                self._check(database)
                _snapshot(database)
            finally:
                database.close()

    def _check(self, database: sqlite3.Connection) -> None:
        if (found := database.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise self._damaged(found)

    def _prepare(self) -> None:
        run = self._database.execute
        # Before the first access, or the index of the log would be a file.
        run("PRAGMA locking_mode = EXCLUSIVE")
        self._check(self._database)
        mode = run("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreDataError(f"{self.path} cannot have a write-ahead log (but {mode}); give a directory on a local disk")
        run("PRAGMA synchronous = FULL")

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
                # A disk that is full refuses the end of the log, so there is no commit in it. A disk that fails to sync may have kept it,
                # and the kernel forgets that it failed: asking again proves nothing (https://lwn.net/Articles/752063/).
                if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                    raise
                raise StoreOutcomeUnknownError(
                    f"the disk of {self.path} failed while it was written ({error}); look at the disk, then start the node again on it"
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
                raise StoreDataError(f"{self.path} takes no value of a gigabyte or more; make it smaller") from error
            if code == sqlite3.SQLITE_FULL:
                raise StoreDataError(f"{self.path} could not be written, the disk is full; make room on it") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreDataError(f"{self.path} is locked by another program; end that one (`fuser {self.path}` names it)") from error
            if code in _OF_DAMAGE:
                raise self._damaged(str(error)) from error
            raise StoreDataError(f"{self.path} cannot be used: {error}; look at the disk and at who may write there") from error
        except OSError as error:
            path = error.filename or self.path
            raise StoreDataError(f"{path} cannot be used: {error.strerror}; look at the disk and at who may write there") from error
        except ValueError as error:
            # Of `snapshot_from`, or text that is no UTF-8, even in SQLite's own messages.
            raise self._damaged(str(error)) from error

    def _damaged(self, text: str) -> StoreDataError:
        return StoreDataError(
            f"{self.path} is damaged ({' '.join(text.split())}); nothing was changed: "
            "put a copy in its place, or give an empty directory to begin anew"
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
"""What SQLite says when the statements of this module, which fit the tables, do not fit what it finds. 0: text that cannot be decoded."""


def _code(error: BaseException) -> int:
    """The primary result code; extended ones have it in their low byte (https://www.sqlite.org/rescode.html)."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)


def _snapshot(database: sqlite3.Connection) -> Snapshot:
    run = database.execute
    return snapshot_from(
        run("SELECT revision, compacted, next_lease, checksum FROM state"),
        run("SELECT lease, seconds, checksum FROM leases ORDER BY lease"),
        run("SELECT key, value, created, modified, version, lease, checksum FROM entries ORDER BY key"),
        run("SELECT kind, key, value, revision, created, previous, checksum FROM events ORDER BY number"),
    )


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
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreDataError(f"{directory} cannot hold a store: {error.strerror}; give another directory, or rights to this one") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreDataError(
            f"{directory} is in use by another node (process {holder or 'unknown'}); a store has one node at a time: "
            "stop that one, or give another directory"
        ) from None
    except OSError as error:
        os.close(lock)
        raise StoreDataError(f"{directory} cannot be locked: {error.strerror}; give a directory on a local disk") from None
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        # On a full disk: the lock holds all the same, it only cannot say whose it is.
        pass
    return lock
