"""The store on disk: what was acknowledged is there after any crash, and a file that cannot be used
is left as it is.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import (
    LeaseLostError,
    StoreCompactedError,
    StoreDataError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import SystemEnvironment
from runtime.membership.owed_deletions import OwedDeletions
from runtime.membership.saved_states import PARTS, StateRecords
from runtime.store.changes import Changes
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.file import FILE_NAME, StoreFile
from runtime.store.interface import Compare, Delete, Put
from runtime.store.memory import ChangeHistory, Snapshot, StoreMachine
from runtime.timings import Timings
from tests import forked_python
from tests.waiting import until

TIMINGS = Timings()
KEYS = ["a", "b", "b/1", "ü"]


async def reopened(store: EmbeddedStore, nursery: trio.Nursery, directory: Path) -> EmbeddedStore:
    """The store after its process has ended and another has begun."""
    store.close()
    await trio.testing.wait_all_tasks_blocked(0.01)
    opened = await EmbeddedStore.on_disk(SystemEnvironment(), directory)
    await nursery.start(opened.run)
    return opened


async def pass_time(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let time pass as it does for a loop that runs."""
    for _ in range(math.ceil(seconds / TIMINGS.expiry_look)):
        clock.jump(TIMINGS.expiry_look)
        await trio.testing.wait_all_tasks_blocked(0.005)


# Crashes


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.long)])
def test_every_acknowledged_write_is_there_after_each_kill(kills: int, tmp_path: Path) -> None:
    draw = random.Random(0)
    acknowledged: dict[str, int] = {}
    revision = leases = 0
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.store.store_process", str(tmp_path)]
        with forked_python.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            word, lease, _ = process.stdout.readline().split()
            assert word == "lease"
            assert int(lease) > leases, "the number of a lease was given twice"
            leases = int(lease)
            for _ in range(draw.randrange(1, 400)):
                writer, number, revision_now = process.stdout.readline().split()
                acknowledged[writer] = int(number)
                assert int(revision_now) > revision or writer in acknowledged
                revision = max(revision, int(revision_now))
            process.send_signal(signal.SIGKILL)
            # What was printed before the kill arrived counts as well.
            for line in process.stdout:
                if line.endswith("\n") and len(line.split()) == 3:
                    writer, number, revision_now = line.split()
                    acknowledged[writer] = int(number)
                    revision = max(revision, int(revision_now))
        file = StoreFile(tmp_path)
        kept = file.load()
        file.close()
        values = {entry.key: int(entry.value) for entry in kept.entries}
        assert kept.revision >= revision
        for writer, last in acknowledged.items():
            # One more may have been on its way, of both keys or of none.
            assert values[f"counters/{writer}"] in (last, last + 1)
            assert values[f"mirror/{writer}"] == values[f"counters/{writer}"]
    assert sum(acknowledged.values()) > 25 * kills


Step = tuple[str, str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "grant", "revoke", "write", "write", "crash"]),
        st.sampled_from(KEYS),
        st.integers(0, 3),
    ),
    max_size=40,
)


@settings(max_examples=max(80, settings().max_examples), deadline=None)
@given(steps, st.sampled_from([1, 3, 10_000]))
def test_a_crash_brings_back_exactly_what_was_written_last(
    todo: list[Step], events_kept: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file, machine, changes = (
            StoreFile(Path(directory)),
            StoreMachine(ChangeHistory(events_kept)),
            Changes(),
        )
        written: Snapshot = machine.snapshot()
        for kind, key, number in todo:
            before, leases = machine.revision, machine.leases
            known = sorted(leases)
            lease = known[number % len(known)] if known and number else 0
            if kind == "put":
                machine.transaction([], [Put(key, b"%d" % number, lease), Put(key + "/twin", b"")])
            elif kind == "delete":
                machine.transaction([], [Delete(key)])
            elif kind == "grant":
                machine.grant(10.0 + number, 0.0)
            elif kind == "revoke" and lease:
                machine.revoke(lease)
            changes.note(machine, before, leases)
            if kind == "write" and not changes.is_empty:
                if changes.everything:
                    file.rewrite(machine.snapshot())
                else:
                    file.write(changes)
                changes, written = Changes(), machine.snapshot()
            elif kind == "crash":
                file.close()
                file = StoreFile(Path(directory))
                machine, changes = (
                    StoreMachine.restored(
                        file.load(), 0.0, TIMINGS.restart_grace, ChangeHistory(events_kept)
                    ),
                    Changes(),
                )
                machine.check_invariants()
                assert machine.snapshot() == written
        file.close()


async def test_after_a_restart_leases_have_their_time_anew_and_watches_go_on(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    store = await EmbeddedStore.on_disk(SystemEnvironment(), tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        short, long = await store.grant(1.0), await store.grant(20.0)
        await store.put("short", b"", short)
        revision = await store.put("long", b"", long)
        mock_clock.jump(0.9)
        store = await reopened(store, nursery, tmp_path)
        assert await store.time_to_live(short) == pytest.approx(TIMINGS.restart_grace, abs=0.1)
        assert await store.time_to_live(long) == pytest.approx(20.0, abs=0.1)
        assert [event.key for event in (await store.poll("", revision)).events] == ["long"]
        await pass_time(mock_clock, TIMINGS.restart_grace)
        assert [event.key for event in (await store.poll("", revision + 1)).events] == ["short"]
        assert await store.grant(1.0) > long
        with pytest.raises(LeaseLostError):
            await store.keep_alive(short)
        store.close()


async def test_after_a_restart_a_watch_from_what_is_forgotten_learns_that_it_is(
    tmp_path: Path,
) -> None:
    store = await EmbeddedStore.on_disk(SystemEnvironment(), tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.put("key", b"1")
        revision = await store.put("key", b"2")
        store._machine.compact(revision)
        await store.put("key", b"3")
        store = await reopened(store, nursery, tmp_path)
        with pytest.raises(StoreCompactedError):
            await store.poll("key", revision)
        assert (await store.poll("key", revision + 1)).events[0].previous == b"2"
        store.close()


async def test_a_store_that_could_not_run_gives_leases_time_to_be_renewed(
    mock_clock: trio.testing.MockClock,
) -> None:
    store = EmbeddedStore(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        lease = await store.grant(5.0)
        # As when the process was stopped, or its loop blocked, for a minute: nobody could renew
        # anything.
        mock_clock.jump(60.0)
        await trio.testing.wait_all_tasks_blocked()
        assert await store.time_to_live(lease) == pytest.approx(TIMINGS.restart_grace)
        await pass_time(mock_clock, TIMINGS.restart_grace)
        with pytest.raises(LeaseLostError):
            await store.time_to_live(lease)
        store.close()


# A disk that fails


async def test_when_nobody_can_tell_what_is_on_the_disk_the_store_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EmbeddedStore.on_disk(SystemEnvironment(), tmp_path)
    ended: list[str] = []

    def failing(self: StoreFile, changes: Changes) -> None:
        raise StoreOutcomeUnknownError("the disk failed, says the test")

    async def run(task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC128  passed on
        with pytest.raises(StoreDataError, match="the disk failed"):
            await store.run(task_status=task_status)
        ended.append("run")

    async def put(key: str) -> None:
        with pytest.raises((StoreOutcomeUnknownError, StoreUnavailableError)):
            await store.put(key, b"")
        ended.append(key)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await store.put("before", b"")
        monkeypatch.setattr(StoreFile, "write", failing)
        for key in "abc":
            nursery.start_soon(put, key)
    assert sorted(ended) == ["a", "b", "c", "run"]
    with pytest.raises(StoreError, match="the store has ended"):
        await store.get("before")
    monkeypatch.undo()
    file = StoreFile(tmp_path)
    assert [entry.key for entry in file.load().entries] == ["before"]
    file.close()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreDataError, match="give another directory"):
        StoreFile(tmp_path / "file" / "store")


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    with mounted(tmp_path, "1m"):
        yield tmp_path


@pytest.fixture
def medium_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB, of which a store leaves 16 MiB to small writes."""
    with mounted(tmp_path, "40m"):
        yield tmp_path


@contextmanager
def mounted(path: Path, size: str) -> Iterator[None]:
    """Mount a file system in memory. Skips the test where that is not allowed."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(
            f"a small file system cannot be mounted here, which takes root: {done.stderr.strip()}"
        )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def test_on_a_full_disk_writes_are_refused_and_nothing_acknowledged_is_lost(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await EmbeddedStore.on_disk(SystemEnvironment(), small_disk / "store")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(750_000))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        acknowledged: list[str] = []
        with pytest.raises(StoreDataError, match=r"not written: .*the disk is full; make room"):
            await put_for_ever(store, acknowledged)
        assert acknowledged
        assert [entry.key for entry in (await store.range("key/")).entries] == acknowledged
        revision = (await store.range("")).revision
        errors = await all_at_once(store, 10)
        assert errors, "all that were written together are refused together"
        assert all(isinstance(error, StoreDataError | StoreUnavailableError) for error in errors)
        ballast.unlink()
        assert await store.put("room", b"again") == revision + 1
        # Once each, however many were refused: the log may be on the same disk.
        refused, small = [line for line in caplog.messages if "changes" in line]
        assert re.fullmatch("the store could not write changes: .*make room on it", refused)
        # So little may fit into what a full disk has left.
        assert re.match("the store has written 4,096 bytes .* may still be refused", small)
        for number in range(2):
            await store.put(f"large/{number}", bytes(2000))
        assert "the store writes changes again" not in caplog.messages
        await store.put("large", bytes(52_000))
        assert caplog.messages[-1] == "the store writes changes again"
        store = await reopened(store, nursery, small_disk / "store")
        assert [entry.key for entry in (await store.range("key/")).entries] == acknowledged
        entry = await store.get("room")
        assert entry is not None
        assert entry.value == b"again"
        store.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_state_that_does_not_fit_stops_no_other_writes_and_is_taken_back(
    medium_disk: Path, restart: bool
) -> None:
    store = await EmbeddedStore.on_disk(SystemEnvironment(), medium_disk / "store")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        owed = OwedDeletions(store)
        states = StateRecords(store, "owners/", 0, owed)
        large = (await store.transaction([], [Put("owners/large", b"")])).revision
        small = (await store.transaction([], [Put("owners/small", b"")])).revision
        await states.save("large", large, bytes(1_000_000))

        async def save_small() -> None:
            while True:
                await states.save("small", small, b"small")

        async with trio.open_nursery() as others:
            others.start_soon(save_small)
            with pytest.raises(StoreDataError, match=r"not written: .*the disk is full.*make room"):
                await states.save("large", large, bytes(50_000_000))
            # None of these was refused.
            others.cancel_scope.cancel()
        assert (await store.range(PARTS)).entries
        if restart:
            store = await reopened(store, nursery, medium_disk / "store")
            states = StateRecords(store, "owners/")
            large = (await store.transaction([], [Put("owners/large", b"")])).revision
        else:
            nursery.start_soon(owed.run)
            await until(
                lambda: store.range(PARTS), "they are deleted", lambda found: not found.entries
            )
        assert await states.saved("large") == bytes(1_000_000)
        await states.save("large", large, b"little")
        assert not (await store.range(PARTS)).entries
        # What was deleted is room again.
        await states.save("large", large, bytes(1_000_000))
        assert await states.saved("small") == b"small"
        store.close()
        nursery.cancel_scope.cancel()


async def put_for_ever(store: EmbeddedStore, acknowledged: list[str]) -> None:
    for number in itertools.count():
        await store.put(f"key/{number:04}", bytes(10_000))
        acknowledged.append(f"key/{number:04}")


async def all_at_once(store: EmbeddedStore, count: int) -> list[Exception]:
    """Writes of many tasks that go into few commits."""
    errors: list[Exception] = []

    async def put(number: int) -> None:
        try:
            await store.transaction(
                [Compare("many", "create_revision", 0)], [Put(f"many/{number}", bytes(5_000))]
            )
        except (StoreDataError, StoreUnavailableError) as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(put, number)
    return errors


async def test_the_program_may_go_into_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = await EmbeddedStore.on_disk(SystemEnvironment(), Path("store"))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.put("before", b"kept")
        monkeypatch.chdir(tmp_path / "elsewhere")
        await store.put("after", b"kept too")
        nursery.cancel_scope.cancel()
    file = StoreFile(tmp_path / "store")
    file.close()
    assert (tmp_path / "store" / FILE_NAME).exists()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("gone", ["store", f"store/{FILE_NAME}", f"store/{FILE_NAME}-wal"])
async def test_what_is_written_to_deleted_or_moved_files_is_refused_until_they_are_back(
    tmp_path: Path, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await EmbeddedStore.on_disk(SystemEnvironment(), tmp_path / "store")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.put("before", b"kept")
        (tmp_path / gone).rename(tmp_path / "elsewhere")
        for _ in range(3):
            with pytest.raises(StoreDataError, match=r"not written: .*deleted, moved or replaced"):
                await store.put("meanwhile", b"")
        # As a backup that is put in its place, or another founder that has begun anew.
        if gone == "store":
            (tmp_path / gone).mkdir()
            StoreFile(tmp_path / gone).close()
            with pytest.raises(StoreDataError, match="replaced"):
                await store.put("meanwhile", b"")
            shutil.rmtree(tmp_path / gone)
        # What it has is still told: nodes and their calls go on.
        assert [entry.key for entry in (await store.range("")).entries] == ["before"]
        (tmp_path / "elsewhere").rename(tmp_path / gone)
        await store.put("after", b"kept")
        # Once each, however many were refused.
        refused, again = [line for line in caplog.messages if "changes" in line]
        assert "put that file back" in refused
        assert again == "the store writes changes again"
        store = await reopened(store, nursery, tmp_path / "store")
        assert [entry.key for entry in (await store.range("")).entries] == ["after", "before"]
        store.close()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        StoreFile(tmp_path)
        os._exit(0)
    os.waitpid(child, 0)
    StoreFile(tmp_path).close()
