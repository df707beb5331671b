"""A store's file: SQLite with a write-ahead log, synced at every commit (https://www.sqlite.org/wal.html, `PRAGMA synchronous`).

Plain blocking code: whoever serves a store calls it from a thread, one call at a time. Beside the file lies a lock that its process holds,
so that a store is never served twice; the kernel gives it back when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.errors import StoreDataError
from runtime.store.changes import Changes
from runtime.store.interface import Entry, Event
from runtime.store.memory import Snapshot

FILE_NAME = "store.sqlite3"
LOCK_NAME = "store.lock"

APPLICATION = 0x756E6473
"""SQLite's application id for these files: "unds"."""

VERSION = 1
"""Of the tables. Files of later versions are refused."""

_TABLES = """
CREATE TABLE state (revision INTEGER NOT NULL, compacted INTEGER NOT NULL, next_lease INTEGER NOT NULL);
CREATE TABLE leases (lease INTEGER PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL, modified INTEGER NOT NULL, version INTEGER NOT NULL,
    lease INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, revision INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    created INTEGER NOT NULL, previous BLOB
);
CREATE INDEX events_by_revision ON events (revision);
INSERT INTO state VALUES (1, 0, 1);
"""

_EVENTS = "INSERT INTO events (revision, kind, key, value, created, previous) VALUES (?, ?, ?, ?, ?, ?)"
_ENTRIES = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)"


class StoreFile:
    """The file of one store in `directory`, which is made if it is not there.

    Raises `StoreDataError` for a directory that is in use or cannot be used, and for a file that is damaged, of a later version, or of
    something else. Nothing is changed then.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._lock = _locked(directory)
        try:
            with self._explained():
                self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
                try:
                    self._prepare()
                except BaseException:
                    self._database.close()
                    raise
        except BaseException:
            os.close(self._lock)
            raise

    def load(self) -> Snapshot:
        """Everything that was committed."""
        with self._explained():
            run = self._database.execute
            revision, compacted, next_lease = run("SELECT revision, compacted, next_lease FROM state").fetchone()
            leases = dict(run("SELECT lease, seconds FROM leases ORDER BY lease"))
            entries = tuple(Entry(*row) for row in run("SELECT key, value, created, modified, version, lease FROM entries ORDER BY key"))
            rows = run("SELECT kind, key, value, revision, created, previous FROM events WHERE revision > ? ORDER BY number", (compacted,))
            return Snapshot(revision, compacted, next_lease, leases, entries, tuple(Event(*row) for row in rows))

    def write(self, changes: Changes) -> None:
        """Commit `changes`. When this returns they outlast the process and the machine; if it raises, `load` tells what is there."""
        with self._committed() as run:
            self._database.executemany("DELETE FROM leases WHERE lease = ?", [(lease,) for lease in changes.leases])
            kept = [(lease, seconds) for lease, seconds in changes.leases.items() if seconds is not None]
            self._database.executemany("INSERT INTO leases VALUES (?, ?)", kept)
            self._database.executemany(
                "DELETE FROM entries WHERE key = ?", [(key,) for key, entry in changes.entries.items() if entry is None]
            )
            self._database.executemany(_ENTRIES, [_row(entry) for entry in changes.entries.values() if entry is not None])
            self._database.executemany(_EVENTS, map(_event_row, changes.events))
            run("DELETE FROM events WHERE revision <= ?", (changes.compacted,))
            run("UPDATE state SET revision = ?, compacted = ?, next_lease = ?", (changes.revision, changes.compacted, changes.next_lease))

    def rewrite(self, snapshot: Snapshot) -> None:
        """Commit `snapshot` in the place of all there is."""
        with self._committed() as run:
            for table in ("leases", "entries", "events"):
                run(f"DELETE FROM {table}")
            self._database.executemany("INSERT INTO leases VALUES (?, ?)", snapshot.leases.items())
            self._database.executemany(_ENTRIES, map(_row, snapshot.entries))
            self._database.executemany(_EVENTS, map(_event_row, snapshot.events))
            run(
                "UPDATE state SET revision = ?, compacted = ?, next_lease = ?", (snapshot.revision, snapshot.compacted, snapshot.next_lease)
            )

    def close(self) -> None:
        """Close the file and let go of the directory."""
        self._database.close()
        os.close(self._lock)

    def _prepare(self) -> None:
        run = self._database.execute
        application = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION:
            raise StoreDataError(f"{self.path} is a database of another program; nothing was changed: give another directory")
        if version > VERSION:
            raise StoreDataError(
                f"{self.path} was written by a later version of understudy (tables of version {version}, {VERSION} is known here); "
                "nothing was changed: upgrade this installation, or give another directory"
            )
        if tables and (found := run("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise self._damaged(found)
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        if not tables:
            with self._committed():
                for statement in _TABLES.split(";\n"):
                    run(statement)
                run(f"PRAGMA application_id = {APPLICATION}")
                run(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _committed(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """A transaction: all of the block, or nothing of it."""
        with self._explained():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database.execute
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Primary result codes; the extended ones have them in their low byte (https://www.sqlite.org/rescode.html).
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(error, sqlite3.DataError):
                raise self._damaged(str(error)) from error
            if code == sqlite3.SQLITE_FULL:
                raise StoreDataError(f"{self.path} could not be written, the disk is full; make room on it") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreDataError(f"{self.path} is locked by another program; end that one (`fuser {self.path}` names it)") from error
            raise StoreDataError(f"{self.path} cannot be used: {error}; look at the disk and at who may write there") from error

    def _damaged(self, text: str) -> StoreDataError:
        return StoreDataError(
            f"{self.path} is damaged ({' '.join(text.split())}); nothing was changed: "
            "put a copy in its place, or give an empty directory to begin anew"
        )


def _row(entry: Entry) -> tuple[object, ...]:
    return entry.key, entry.value, entry.create_revision, entry.mod_revision, entry.version, entry.lease


def _event_row(event: Event) -> tuple[object, ...]:
    return event.revision, event.kind, event.key, event.value, event.create_revision, event.previous


def _locked(directory: Path) -> int:
    """A descriptor that holds the directory's lock for as long as it is open."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreDataError(f"{directory} cannot hold a store: {error.strerror}; give another directory, or rights to this one") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreDataError(
            f"{directory} is in use by another node (process {holder or 'unknown'}); a store has one node at a time: "
            "stop that one, or give another directory"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
