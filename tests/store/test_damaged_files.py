"""Files that cannot be used: each is refused with the next step, and nothing of it is changed."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from actors.errors import StoreDataError
from runtime.store import file as file_module
from runtime.store.changes import Changes
from runtime.store.data_mark import MARK_NAME, Mark
from runtime.store.file import FILE_NAME, LOCK_NAME, StoreFile, lease_row
from runtime.store.interface import Put
from runtime.store.memory import Snapshot, StoreMachine
from runtime.timings import Timings


def fill(directory: Path) -> bytes:
    """A store with something in it; returns its file."""
    file, machine, changes = StoreFile(directory), StoreMachine(), Changes()
    machine.transaction([], [Put(f"key/{number}", bytes(2_000)) for number in range(100)])
    changes.note(machine, 1, {})
    file.write(changes)
    file.close()
    return (directory / FILE_NAME).read_bytes()


def cut_in_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def overwrite_pages(content: bytes) -> bytes:
    return content[:8192] + b"\xff" * 40_000 + content[48_192:]


def nothing(content: bytes) -> bytes:
    return content[:0]


def garbage(content: bytes) -> bytes:
    return random.Random(0).randbytes(len(content))


@pytest.mark.parametrize("damage", [cut_in_half, overwrite_pages, garbage, nothing])
def test_a_damaged_file_is_refused_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    damaged = damage(fill(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(damaged)
    with pytest.raises(StoreDataError, match=r"is damaged .*restore a copy"):
        StoreFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == damaged


def test_a_file_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    later = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreDataError, match=r"later version .*version 7.*upgrade"):
        StoreFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == later


def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.execute("CREATE TABLE invoices (number INTEGER)")
    database.close()
    theirs = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreDataError, match="database of another program"):
        StoreFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == theirs


def test_a_directory_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.store_process", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(
            StoreDataError, match=rf"in use by another node \(process {process.pid}\)"
        ):
            StoreFile(tmp_path)
        process.kill()
    StoreFile(tmp_path).close()


def test_a_file_that_another_program_locks_is_a_clear_error(tmp_path: Path) -> None:
    fill(tmp_path)
    database = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreDataError, match="locked by another program"):
        StoreFile(tmp_path)
    database.close()
    StoreFile(tmp_path).close()


def test_no_other_program_can_write_while_a_node_has_the_file(tmp_path: Path) -> None:
    fill(tmp_path)
    file = StoreFile(tmp_path)
    database = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        database.execute("DELETE FROM entries")
    database.close()
    file.close()


def crashed_copy(directory: Path, into: Path) -> Snapshot:
    """A store as a crash leaves it, with its latest changes in the log; returns what is in it."""
    fill(directory)
    file, changes = StoreFile(directory), Changes()
    machine = StoreMachine.restored(file.load(), 0.0, Timings().restart_grace)
    before = machine.revision
    for number in range(50):
        machine.transaction([], [Put(f"late/{number}", b"%d" % number)])
    changes.note(machine, before, {})
    file.write(changes)
    into.mkdir()
    for path in directory.iterdir():
        shutil.copy(path, into)
    file.close()
    assert (into / f"{FILE_NAME}-wal").stat().st_size
    return machine.snapshot()


def test_a_damaged_file_whose_log_is_still_there_is_left_as_it_is_with_its_log(
    tmp_path: Path,
) -> None:
    expected = crashed_copy(tmp_path / "first", tmp_path / "sound")
    shutil.copytree(tmp_path / "sound", tmp_path / "damaged")
    file = StoreFile(tmp_path / "sound")
    assert file.load() == expected
    file.close()
    path, log = tmp_path / "damaged" / FILE_NAME, tmp_path / "damaged" / f"{FILE_NAME}-wal"
    # Into the pages of the file that the log does not replace.
    path.write_bytes(path.read_bytes()[:-40_000] + b"\xff" * 40_000)
    before = path.read_bytes(), log.read_bytes()
    with pytest.raises(StoreDataError, match="is damaged"):
        StoreFile(tmp_path / "damaged")
    assert (path.read_bytes(), log.read_bytes()) == before


def test_a_file_that_is_gone_while_its_log_or_mark_is_there_is_not_begun_anew(
    tmp_path: Path,
) -> None:
    crashed_copy(tmp_path / "first", tmp_path / "half")
    (tmp_path / "half" / FILE_NAME).unlink()
    for rest, what in ((f"{FILE_NAME}-wal", "log"), (MARK_NAME, "mark")):
        with pytest.raises(StoreDataError, match=f"it is gone, and its {what} {rest} is there"):
            StoreFile(tmp_path / "half")
        assert not (tmp_path / "half" / FILE_NAME).exists()
        (tmp_path / "half" / rest).unlink()
    StoreFile(tmp_path / "half").close()


def test_no_single_byte_that_is_wrong_changes_what_is_loaded(tmp_path: Path) -> None:
    sound = fill(tmp_path)
    file = StoreFile(tmp_path)
    expected = file.load()
    file.close()
    draw = random.Random(1)
    refused = 0
    for _ in range(300):
        place = draw.randrange(len(sound))
        (tmp_path / FILE_NAME).write_bytes(
            sound[:place] + bytes([sound[place] ^ draw.randrange(1, 256)]) + sound[place + 1 :]
        )
        try:
            file = StoreFile(tmp_path)
        except StoreDataError:
            refused += 1
            continue
        try:
            # Free space, and fields that SQLite does not use, may hold anything.
            assert file.load() == expected
        except StoreDataError:
            refused += 1
        finally:
            file.close()
    assert refused > 150


def crashed_anew(directory: Path) -> tuple[Path, Path]:
    """A store as a crash leaves it before anything went from the log into the file: all that was
    written is in the log.
    """
    live, into = directory / "live", directory / "crashed"
    file, machine, changes = StoreFile(live), StoreMachine(), Changes()
    for number in range(20):
        machine.transaction([], [Put(f"key/{number}", b"%d" % number)])
        changes.note(machine, machine.revision - 1, {})
        file.write(changes)
        changes = Changes()
    into.mkdir()
    for path in live.iterdir():
        shutil.copy(path, into)
    file.close()
    return into / FILE_NAME, into / f"{FILE_NAME}-wal"


def gone(log: Path) -> None:
    log.unlink()


def emptied(log: Path) -> None:
    log.write_bytes(b"")


def without_a_header(log: Path) -> None:
    log.write_bytes(bytes(32) + log.read_bytes()[32:])


def cut_short(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def without_its_last_commit(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-4_120])


def with_a_byte_turned_in_the_middle(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        gone,
        emptied,
        without_a_header,
        cut_short,
        without_its_last_commit,
        with_a_byte_turned_in_the_middle,
    ],
)
def test_a_log_that_lacks_acknowledged_writes_is_an_error_and_no_new_one_is_begun(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path, log = crashed_anew(tmp_path)
    damage(log)
    before = path.read_bytes(), log.read_bytes() if log.exists() else None
    with pytest.raises(StoreDataError, match=r"is damaged \(its log .*restore a copy"):
        StoreFile(path.parent)
    assert (path.read_bytes(), log.read_bytes() if log.exists() else None) == before


def test_a_log_that_is_gone_together_with_the_mark_is_an_error_as_well(tmp_path: Path) -> None:
    path, log = crashed_anew(tmp_path)
    log.unlink()
    (path.parent / MARK_NAME).unlink()
    with pytest.raises(
        StoreDataError, match=r"its log .* is gone, and the last process that used it was killed"
    ):
        StoreFile(path.parent)


def test_a_log_whose_mark_is_gone_or_damaged_is_not_trusted(tmp_path: Path) -> None:
    path, _ = crashed_anew(tmp_path)
    for content in (None, b"", b"20 1 1\n", bytes(64)):
        (path.parent / MARK_NAME).unlink(missing_ok=True)
        if content is not None:
            (path.parent / MARK_NAME).write_bytes(content)
        with pytest.raises(StoreDataError, match=rf"without {MARK_NAME}"):
            StoreFile(path.parent)


def test_a_copy_of_the_file_of_a_store_that_was_closed_is_a_whole_store(tmp_path: Path) -> None:
    fill(tmp_path / "first")
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "first" / FILE_NAME, tmp_path / "copy")
    first, copy = StoreFile(tmp_path / "first"), StoreFile(tmp_path / "copy")
    assert first.load() == copy.load()
    first.close()
    copy.close()


def test_an_older_copy_under_the_mark_or_the_log_of_a_later_store_is_refused(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "live")
    shutil.copytree(tmp_path / "live", tmp_path / "older")
    file, changes = StoreFile(tmp_path / "live"), Changes()
    machine = StoreMachine.restored(file.load(), 0.0, Timings().restart_grace)
    before = machine.revision
    machine.transaction([], [Put("key/1", b"later")])
    changes.note(machine, before, {})
    file.write(changes)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    file.close()
    shutil.copy(tmp_path / "older" / FILE_NAME, tmp_path / "live")
    with pytest.raises(StoreDataError, match=r"the latest commits, \d+, are missing"):
        StoreFile(tmp_path / "live")
    # SQLite would put the pages of the log into a file that they do not belong to.
    (tmp_path / "other").mkdir()
    other, changes = StoreFile(tmp_path / "other"), Changes()
    machine = StoreMachine()
    machine.transaction([], [Put(f"other/{number}", bytes(2_000)) for number in range(110)])
    changes.note(machine, 1, {})
    other.write(changes)
    other.close()
    shutil.copy(tmp_path / "other" / FILE_NAME, tmp_path / "crashed")
    with pytest.raises(StoreDataError, match="is damaged"):
        StoreFile(tmp_path / "crashed")


def test_a_missing_or_outdated_row_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "sound")
    for statement in (
        "DELETE FROM leases WHERE lease = 1",
        "UPDATE state SET total = total",
        "DELETE FROM entries WHERE key = 'key/7'",
    ):
        shutil.copytree(tmp_path / "sound", tmp_path / "changed")
        with closing(sqlite3.connect(tmp_path / "changed" / FILE_NAME)) as database, database:
            # A row that is as it was written, with its own checksum.
            database.execute("INSERT INTO leases VALUES (?, ?, ?)", lease_row(0, 5.0))
            database.execute(statement)
        database.close()
        with pytest.raises(StoreDataError, match="is damaged"):
            StoreFile(tmp_path / "changed")
        shutil.rmtree(tmp_path / "changed")


def test_whenever_a_process_is_killed_its_store_opens_again_with_all_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is copied before each statement, and before and after each mark, as a kill at
    that moment would leave it.
    """
    live = tmp_path / "live"
    copies: list[tuple[Path, int]] = []
    acknowledged = [0]

    def copy(*_: object) -> None:
        if live.exists():
            copies.append((tmp_path / f"copy-{len(copies)}", acknowledged[0]))
            shutil.copytree(live, copies[-1][0])

    def connected(
        path: Path, connect: Callable[[Path], sqlite3.Connection] = file_module._connected
    ) -> sqlite3.Connection:
        database = connect(path)
        if path.parent == live:
            database.set_trace_callback(copy)
        return database

    def set_mark(
        mark: Mark, commits: int, checksum: int, write: Callable[[Mark, int, int], None] = Mark.set
    ) -> None:
        copy()
        write(mark, commits, checksum)
        copy()

    monkeypatch.setattr(file_module, "_connected", connected)
    monkeypatch.setattr(Mark, "set", set_mark)
    machine = StoreMachine()
    for _ in range(2):
        file = StoreFile(live)
        for _ in range(2):
            before, changes = machine.revision, Changes()
            machine.transaction([], [Put("key", b"%d" % machine.revision)])
            changes.note(machine, before, {})
            file.write(changes)
            acknowledged[0] = machine.revision
        file.close()
    monkeypatch.undo()
    assert len(copies) > 60
    for directory, revision in copies:
        file = StoreFile(directory)
        assert revision <= file.load().revision <= revision + 1 or not revision
        file.close()


def test_what_a_store_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        fill(tmp_path / "new")
        file = StoreFile(tmp_path / "new")
        rights = {
            path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "new").iterdir()
        }
        file.close()
        assert oct((tmp_path / "new").stat().st_mode & 0o777) == "0o700"
        assert set(rights) == {FILE_NAME, f"{FILE_NAME}-wal", MARK_NAME, LOCK_NAME}
        assert set(rights.values()) == {"0o600"}, rights
        # They were copied to their place with the rights that copies have.
        for path in (tmp_path / "new").iterdir():
            path.chmod(0o644)
        file = StoreFile(tmp_path / "new")
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o600}
        file.close()
    finally:
        os.umask(old)
