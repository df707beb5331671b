"""Files that cannot be used: each is refused with the next step, and nothing of it is changed."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.errors import StoreDataError
from runtime.store.changes import Changes
from runtime.store.embedded import GRACE_SECONDS
from runtime.store.file import FILE_NAME, StoreFile
from runtime.store.interface import Put
from runtime.store.memory import Snapshot, StoreMachine


def fill(directory: Path) -> bytes:
    """A store with something in it; returns its file."""
    file, machine, changes = StoreFile(directory), StoreMachine(), Changes()
    machine.transaction([], [Put(f"key/{number}", bytes(2_000)) for number in range(100)])
    changes.note(machine, 1, frozenset())
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
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    damaged = damage(fill(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(damaged)
    with pytest.raises(StoreDataError, match=r"is damaged .*put a copy in its place"):
        StoreFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == damaged


def test_a_file_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    later = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreDataError, match=r"later version .*version 7.*upgrade"):
        StoreFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == later


def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("CREATE TABLE invoices (number INTEGER)")
    database.close()
    theirs = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreDataError, match="database of another program"):
        StoreFile(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == theirs


def test_a_directory_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.store_process", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreDataError, match=rf"in use by another node \(process {process.pid}\)"):
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
    machine = StoreMachine.restored(file.load(), 0.0, GRACE_SECONDS)
    before = machine.revision
    for number in range(50):
        machine.transaction([], [Put(f"late/{number}", b"%d" % number)])
    changes.note(machine, before, frozenset())
    file.write(changes)
    into.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        shutil.copy(directory / name, into)
    file.close()
    assert (into / f"{FILE_NAME}-wal").stat().st_size
    return machine.snapshot()


def test_a_damaged_file_whose_log_is_still_there_is_left_as_it_is_with_its_log(tmp_path: Path) -> None:
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


def test_a_file_that_is_gone_while_its_log_is_there_is_not_begun_anew(tmp_path: Path) -> None:
    crashed_copy(tmp_path / "first", tmp_path / "half")
    (tmp_path / "half" / FILE_NAME).unlink()
    with pytest.raises(StoreDataError, match="it is gone, and its log"):
        StoreFile(tmp_path / "half")
    assert not (tmp_path / "half" / FILE_NAME).exists()


def test_no_single_byte_that_is_wrong_changes_what_is_loaded(tmp_path: Path) -> None:
    sound = fill(tmp_path)
    file = StoreFile(tmp_path)
    expected = file.load()
    file.close()
    draw = random.Random(1)
    refused = 0
    for _ in range(300):
        place = draw.randrange(len(sound))
        (tmp_path / FILE_NAME).write_bytes(sound[:place] + bytes([sound[place] ^ draw.randrange(1, 256)]) + sound[place + 1 :])
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
