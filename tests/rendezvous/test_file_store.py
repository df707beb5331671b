"""What only a store in a directory has to fear: late writers, torn leases, files that go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from actors.errors import LeaseLostError, StoreDataError, StoreError, StoreOutcomeUnknownError
from runtime.environment import SystemEnvironment
from runtime.rendezvous import file_store as file_store_module
from runtime.rendezvous.file_store import (
    DAY,
    KEPT_FILES,
    Content,
    FileStore,
    LeaseTimes,
    decode,
    empty,
    encode,
    remove_leftovers,
)
from runtime.store.interface import Compare, Put


async def opened(directory: Path) -> FileStore:
    """One agent's, without anybody who looks at leases."""
    store = FileStore(directory, SystemEnvironment())
    await store.open()
    return store


def files(directory: Path) -> list[Path]:
    """All of them."""
    return list(directory.iterdir())


async def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    stores = [await opened(tmp_path) for _ in range(4)]

    async def count(store: FileStore) -> None:
        for _ in range(15):
            while True:
                entry = await store.get("count")
                before = entry.mod_revision if entry is not None else 0
                value = int(entry.value) if entry is not None else 0
                if (
                    await store.transaction(
                        [Compare("count", "mod_revision", before)],
                        [Put("count", b"%d" % (value + 1))],
                    )
                ).succeeded:
                    break

    async with trio.open_nursery() as nursery:
        for store in stores:
            nursery.start_soon(count, store)
    entry = await stores[0].get("count")
    assert entry is not None
    assert entry.value == b"60"


async def test_old_files_are_removed(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for number in range(100):
        await store.put("key", b"%d" % number)
    assert len(files(tmp_path)) <= KEPT_FILES + 1


class LateStore(FileStore):
    """One whose next commits come late: others have written `count` times between its reading and
    its linking.
    """

    count = 0
    other: FileStore

    def _link(self, number: int, data: bytes, token: bytes) -> bool:
        count, self.count = self.count, 0
        for _ in range(count):
            trio.from_thread.run(self.other.put, "other", b"x")
        return super()._link(number, data, token)


async def late(tmp_path: Path, count: int) -> LateStore:
    store = LateStore(tmp_path, SystemEnvironment())
    await store.open()
    store.other = await opened(tmp_path)
    await store.put("key", b"0")
    store.count = count
    return store


@pytest.mark.parametrize("count", [1, KEPT_FILES - 1, KEPT_FILES, KEPT_FILES + 1, 3 * KEPT_FILES])
async def test_a_commit_that_comes_late_is_made_again_on_top_of_the_others(
    tmp_path: Path, count: int
) -> None:
    store = await late(tmp_path, count)
    await store.put("key", b"1")
    for each in (store, store.other, await opened(tmp_path)):
        for key, value in (("key", b"1"), ("other", b"x")):
            entry = await each.get(key)
            assert entry is not None
            assert entry.value == value
    # One revision for each write, none twice.
    assert (await store.range("")).revision == 1 + 1 + count + 1


async def test_a_commit_that_comes_so_late_that_nobody_can_tell_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store_module, "KEPT_TOKENS", 10)
    store = await late(tmp_path, 2 * KEPT_FILES)
    with pytest.raises(StoreOutcomeUnknownError, match="outcome is unknown"):
        await store.put("key", b"1")


async def test_a_lease_ends_by_the_clock_of_each_reader_and_never_while_it_is_renewed(
    tmp_path: Path,
) -> None:
    holder, observer = await opened(tmp_path), await opened(tmp_path)
    lease = await holder.grant(0.6)
    await holder.put("key", b"1", lease)
    async with trio.open_nursery() as nursery:
        await nursery.start(observer.run)
        for _ in range(10):
            await trio.sleep(0.2)
            await holder.keep_alive(lease)
        assert await observer.get("key") is not None
        with trio.fail_after(60):
            await observer.poll("key", (await holder.range("key")).revision + 1)
        observer.close()
    with pytest.raises(LeaseLostError):
        await holder.keep_alive(lease)
    assert await holder.get("key") is None


async def test_a_renewal_in_the_moment_of_the_end_is_seen_by_one_side_or_the_other(
    tmp_path: Path,
) -> None:
    """Whatever lies between the suspicion and the end: either the holder is told, or the lease
    stays.
    """
    holder, observer = await opened(tmp_path), await opened(tmp_path)
    token = b"suspects"
    for moment in range(3):
        lease = await holder.grant(60)
        beat = observer._beat_of(lease)
        if moment == 0:
            await holder.keep_alive(lease)
        await observer._commit(
            lambda machine, suspects, lease=lease: file_store_module._suspected(  # type: ignore[misc]
                machine, suspects, lease, token
            )
        )
        if moment == 1:
            await holder.keep_alive(lease)
        renewed = observer._beat_of(lease) != beat
        if not renewed:
            await observer._commit(
                lambda machine, suspects, lease=lease: file_store_module._ended(  # type: ignore[misc]
                    machine, suspects, lease, token
                )
            )
        if moment == 2:
            with pytest.raises(LeaseLostError):
                await holder.keep_alive(lease)
        else:
            assert renewed
            # And if it had been read before the renewal: the suspicion is gone, or the lease is
            # held all the same.
            await holder.keep_alive(lease)
            await observer._commit(
                lambda machine, suspects, lease=lease: file_store_module._ended(  # type: ignore[misc]
                    machine, suspects, lease, token
                )
            )
            await holder.keep_alive(lease)


def test_an_observer_times_a_lease_from_when_it_saw_it_change() -> None:
    times = LeaseTimes(0.25)
    beat = {1: b"a"}
    assert times.look({1: 1.0}, beat, 100.0) == []
    for tick in range(1, 4):
        assert times.look({1: 1.0}, beat, 100.0 + tick / 4) == []
    assert times.left(1, 1.0, 100.75) == 0.25
    assert times.look({1: 1.0}, beat, 101.0) == [1]
    assert times.look({1: 1.0}, {1: b"b"}, 101.25) == []
    assert times.look({}, {}, 101.5) == []
    assert times.left(1, 1.0, 101.5) == 1.0


def test_an_observer_that_was_stopped_gives_leases_that_time_back() -> None:
    times = LeaseTimes(0.25)
    assert times.look({1: 1.0}, {1: b"a"}, 100.0) == []
    assert times.look({1: 1.0}, {1: b"a"}, 160.0) == []
    assert times.look({1: 1.0}, {1: b"a"}, 160.25) == []
    assert times.look({1: 1.0}, {1: b"a"}, 160.75) == [1]


async def test_a_directory_whose_files_were_removed_is_not_begun_anew(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.put("key", b"1")
    for path in files(tmp_path):
        path.unlink()
    with pytest.raises(StoreDataError, match="have been removed"):
        await store.get("key")


async def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(StoreError, match="closed"):
                await store.poll("key", 100)

        nursery.start_soon(wait)
        await trio.sleep(0.1)
        store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.put("key", b"1")


def test_every_bit_of_a_file_counts() -> None:
    content = Content(7, empty().snapshot, (b"token",), {3: b"who"})
    data = encode(content)
    assert decode(data, "file") == content
    for place in range(len(data)):
        with pytest.raises(StoreDataError, match="the-file is not the store"):
            decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "the-file")
        with pytest.raises(StoreDataError):
            decode(data[:place], "the-file")


def test_what_jobs_of_long_ago_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("old", "young", "renewed", "strange", "foreign", "empty", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.000000000001").write_bytes(encode(Content(1, empty().snapshot)))
    (tmp_path / "renewed" / "lease.1").write_bytes(b"beat")
    (tmp_path / "strange" / "notes").write_text("mine")
    (tmp_path / "foreign" / "state.000000000001").write_bytes(b"not ours")
    (tmp_path / "empty" / "state.000000000001").unlink()
    (tmp_path / "file").write_text("")
    long_ago = (tmp_path / "file").stat().st_mtime - 2 * DAY
    for path in list(tmp_path.rglob("*")):
        if "young" not in str(path) and path.name != "lease.1":
            os.utime(path, (long_ago, long_ago))
    before = set(files(tmp_path))
    assert remove_leftovers(tmp_path / "mine", 3 * DAY, "token") == []
    assert remove_leftovers(tmp_path / "mine", 7200, "token") == ["old"]
    assert set(files(tmp_path)) == before - {tmp_path / "old"}
    assert len(files(tmp_path / "mine")) == 1, "nothing is left by looking"
