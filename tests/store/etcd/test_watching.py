"""Watches in etcd: whole revisions, without a gap, from whichever member is in touch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import StoreCompactedError, StoreError, StoreUnavailableError
from runtime.store.etcd.gateway import EtcdStream, Gateway
from runtime.store.etcd.store import EtcdStore, EtcdWatching
from runtime.store.etcd.translation import Space
from runtime.store.interface import Put, WatchBatch
from runtime.testing import EtcdServer, open_etcd
from runtime.timings import Timings
from tests.etcd import needs_etcd
from tests.store.etcd.conftest import store_at
from tests.store.etcd.strangers import listening, request
from tests.waiting import until

SPACE = Space("understudy/cluster/data/")


@attrs.define
class Script:
    """A stream that says what it was told to."""

    answers: list[dict[str, Any]]

    async def next(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return self.answers.pop(0)


@given(st.lists(st.integers(1, 4), min_size=1), st.data())
def test_however_etcd_cuts_what_is_too_large_for_it_revisions_stay_whole(
    sizes: list[int], data: st.DataObject
) -> None:
    revisions = [revision for revision, size in enumerate(sizes, start=10) for _ in range(size)]
    # Whole revisions end a response; within it there are cuts at any event.
    ends = {sum(sizes[: index + 1]) for index in range(len(sizes)) if data.draw(st.booleans())} | {
        len(revisions)
    }
    cuts = sorted(ends | data.draw(st.sets(st.integers(1, len(revisions)))))
    from_revision = data.draw(st.integers(1, revisions[-1]))
    answers: list[dict[str, Any]] = [{"result": {"created": True}}]
    for begin, end in pairwise([0, *cuts]):
        events = [
            {"kv": {"key": SPACE.key(str(index)), "mod_revision": str(revisions[index])}}
            for index in range(begin, end)
        ]
        answers.append(
            {"result": {"events": events, **({} if end in ends else {"fragment": True})}}
        )
    script = Script(answers)

    async def read() -> list[WatchBatch]:
        stream = EtcdWatching(
            cast("Gateway", None), cast("EtcdStream", script), SPACE, from_revision
        )
        batches: list[WatchBatch] = []
        while not batches or batches[-1].revision < revisions[-1]:
            batches.append(await stream.batch())
        return batches

    batches = trio.run(read)
    assert not script.answers
    wanted = [index for index, revision in enumerate(revisions) if revision >= from_revision]
    assert [event.key for batch in batches for event in batch.events] == [
        str(index) for index in wanted
    ]
    for before, after in pairwise(batches):
        assert before.revision < after.events[0].revision
    assert all(batch.revision == batch.events[-1].revision for batch in batches)


@needs_etcd
async def test_a_revision_that_is_too_large_for_one_answer_of_etcds_comes_whole(
    etcd: EtcdServer,
) -> None:
    """With the values before, 13 writes of 100 kB are more than etcd puts into one answer."""
    async with store_at(etcd.address) as opened:
        before = (await opened.range("")).revision
        for round_number in range(5):
            value = bytes([round_number]) * 100_000
            await opened.transaction([], [Put(f"key/{number:02}", value) for number in range(13)])
        revision = before
        for round_number in range(5):
            batch = await opened.poll("key/", revision + 1)
            revision = batch.revision
            numbers = {event.revision for event in batch.events}
            assert len(batch.events) == 13 * len(numbers), f"round {round_number}"
            if revision == before + 5:
                break
        assert revision == before + 5


@needs_etcd
async def test_a_deletion_at_the_very_revision_of_a_compaction_is_not_missed_in_silence(
    etcd: EtcdServer,
) -> None:
    async with store_at(etcd.address) as opened:
        await opened.put("key", b"1")
        assert await opened.delete("key")
        deleted = (await opened.range("")).revision
        await opened.put("other", b"")
        await opened.compact(deleted)
        with pytest.raises(StoreCompactedError, match="read the keys afresh"):
            await opened.poll("key", deleted)
        again = await opened.put("key", b"2")
        assert [event.revision for event in (await opened.poll("key", deleted + 1)).events] == [
            again
        ]


@needs_etcd
async def test_a_poll_that_waits_is_not_concerned_by_what_is_compacted_meanwhile(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings(etcd_silent=0.05)
    confirmed: list[object] = []
    confirm = Gateway.confirm

    async def counted(*arguments: Any) -> None:
        await confirm(*arguments)
        confirmed.append(arguments)

    monkeypatch.setattr(Gateway, "confirm", counted)
    with trio.fail_after(60):
        async with (
            store_at(etcd.address, timings=timings) as opened,
            trio.open_nursery() as nursery,
        ):
            first = await opened.put("key", b"")
            batches: list[WatchBatch] = []

            async def wait() -> None:
                batches.append(await opened.poll("key", first + 1))

            nursery.start_soon(wait)
            await many(confirmed)
            for _ in range(3):
                latest = await opened.put("other", b"")
            await opened.compact(latest)
            await many(confirmed)
            written = await opened.put("key", b"")
            await many(batches, 1)
            assert [event.revision for event in batches[0].events] == [written]


async def many(found: list[Any], count: int = 3) -> None:
    """Wait until there are so many more."""
    wanted = len(found) + count if count > 1 else count
    await until(lambda: len(found), f"{wanted} have come", lambda came: came >= wanted)


@needs_etcd
@pytest.mark.slow
async def test_a_watch_leaves_a_member_that_hangs_although_nobody_else_asks_it() -> None:
    timings = Timings(etcd_silent=0.2, etcd_attempt=0.5)
    with trio.fail_after(60):
        async with (
            open_etcd(3) as server,
            store_at(server.address, "one", timings) as opened,
            trio.open_nursery() as nursery,
        ):
            first = await opened.put("key", b"")
            ports = [member.client_port for member in server.members]
            hung = ports.index(opened._gateway._members[0].port)
            batches: list[WatchBatch] = []

            async def wait() -> None:
                batches.append(await opened.poll("key", first + 1))

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.1)
            server.pause(hung)
            others = ",".join(
                f"127.0.0.1:{port}" for index, port in enumerate(ports) if index != hung
            )
            async with store_at(f"etcd://{others}", "one", timings) as other:
                await insist_on_writing(other)
                await many(batches, 1)
            assert [event.key for event in batches[0].events] == ["key"]
            server.resume(hung)


async def insist_on_writing(store: EtcdStore) -> None:
    """There may have to be an election first."""
    while True:
        try:
            await store.put("key", b"more")
        except StoreError:
            await trio.sleep(0.1)
        else:
            return


@needs_etcd
async def test_closing_the_store_ends_its_polls_at_once(etcd: EtcdServer) -> None:
    timings = Timings(etcd_silent=3600.0)
    with trio.fail_after(60):
        async with (
            store_at(etcd.address, timings=timings) as opened,
            trio.open_nursery() as nursery,
        ):
            revision = await opened.put("key", b"")

            async def wait() -> None:
                with pytest.raises(StoreError, match="the store is closed"):
                    await opened.poll("key", revision + 1)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.1)
            opened.close()
        with pytest.raises(StoreError, match="the store is closed"):
            await opened.poll("key", revision + 1)


async def test_watches_that_end_as_they_begin_are_given_up_and_not_begun_without_pause() -> None:
    timings = Timings(store_call=0.5, etcd_attempt=0.5)
    begun = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal begun
        if await request(stream) is not None:
            begun += 1
            await stream.send_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")

    async with (
        listening(serve) as port,
        store_at(f"etcd://127.0.0.1:{port}", timings=timings) as opened,
    ):
        with (
            trio.fail_after(60),
            pytest.raises(
                StoreUnavailableError,
                match=rf"accepts a watch: 127.0.0.1:{port}: the stream has ended",
            ),
        ):
            await opened.poll("key", 1)
    assert 2 <= begun <= 8
