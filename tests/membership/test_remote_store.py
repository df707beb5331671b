"""What happens to requests that are under way when another node takes over to serve the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from actors.errors import (
    BadArgumentsError,
    MethodNotFoundError,
    NodeUnreachableError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.membership.remote_store import SMALL_BYTES, RemoteStore, StoreService
from runtime.store.event_rows import SMALL_BYTES as SMALL_CHANGES
from runtime.store.event_rows import PackedChanges, is_small, pack_changes, unpack_changes
from runtime.store.interface import (
    Entry,
    Put,
    RangeResult,
    StoreEvent,
    Transaction,
    TransactionResult,
    WatchBatch,
)
from runtime.store.transaction_rows import pack_outcomes, unpack_transactions


class Silent:
    """A node that has gone: nothing that is asked of it ends by itself."""

    def __init__(self) -> None:
        self.asked = trio.Event()

    def options(self, timeout: float) -> Silent:
        """Options change nothing here."""
        return self

    async def never_answers(self, *arguments: object) -> Any:
        self.asked.set()
        await trio.sleep_forever()

    async def range(self, prefix: str) -> RangeResult:
        """No answer."""
        return cast("RangeResult", await self.never_answers())

    poll = follow = put = never_answers


class Answering(Silent):
    """The node that serves the store next."""

    async def range(self, prefix: str) -> RangeResult:
        """An empty store."""
        return RangeResult((), 7)


async def test_a_read_goes_on_at_the_next_node(autojump_clock: trio.testing.MockClock) -> None:
    silent, answering = Silent(), Answering()
    found: list[RangeResult] = []
    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", silent), 10.0, nursery)

        async def read() -> None:
            found.append(await store.range("names/"))

        nursery.start_soon(read)
        await silent.asked.wait()
        store.use(cast("StoreService", answering))
    assert [one.revision for one in found] == [7]


async def test_a_node_that_knows_no_limit_answers_with_all_and_the_rest_is_cut_off() -> None:
    class Earlier(Silent):
        async def range(self, *arguments: str) -> RangeResult:
            if len(arguments) > 1:
                raise BadArgumentsError("range takes 1 argument, not 2")
            return RangeResult(tuple(Entry(name, b"", 1, 1) for name in "abc"), 7)

    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", Earlier()), 10.0, nursery)
        found = await store.range("", 2)
        nursery.cancel_scope.cancel()
    assert [entry.key for entry in found.entries] == ["a", "b"]
    assert found.more


async def test_a_poll_goes_on_at_the_next_node(autojump_clock: trio.testing.MockClock) -> None:
    silent, answering = Silent(), Answering()
    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", silent), 10.0, nursery)
        nursery.start_soon(store.poll, "names/", 1)
        await silent.asked.wait()
        store.use(cast("StoreService", answering))
        await answering.asked.wait()
        nursery.cancel_scope.cancel()


async def test_a_write_is_not_asked_a_second_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    silent, answering = Silent(), Answering()
    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", silent), 10.0, nursery)
        nursery.start_soon(store.put, "names/a", b"x")
        await silent.asked.wait()
        store.use(cast("StoreService", answering))
        await trio.testing.wait_all_tasks_blocked()
        assert not answering.asked.is_set()
        nursery.cancel_scope.cancel()


class Serving(Silent):
    """A node that serves the store, and keeps what it was asked to write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def transact(self, packed: bytes) -> bytes:
        """Writes that have been made."""
        batch = unpack_transactions(packed)
        self.written += [one.key for each in batch for one in each.then if isinstance(one, Put)]
        return pack_outcomes([TransactionResult(True, 8, ()) for _ in batch])


class Away(Silent):
    """A node that does not answer the first message, and whose connection broke before anything
    else was handed to it.
    """

    refused = 0

    async def transact(self, packed: bytes) -> bytes:
        """Nothing was done, as far as is known."""
        if not self.asked.is_set():
            await self.never_answers()
        self.refused += len(unpack_transactions(packed))
        raise NodeUnreachableError("it was never handed to node a", node="a")


async def test_a_cancelled_write_that_waits_with_others_is_not_sent_any_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Sent later, a claim would come after its own withdrawal."""
    away, serving = Away(), Serving()
    made: list[str] = []
    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", away), 10.0, nursery)

        async def write(key: str, scope: trio.CancelScope) -> None:
            with scope:
                await store.transaction([], [Put(key, b"x")])
                made.append(key)

        scopes = {key: trio.CancelScope() for key in "abcd"}
        nursery.start_soon(write, "a", scopes["a"])
        await trio.testing.wait_all_tasks_blocked()
        # The first one went alone, and is not answered. So the others go together; they are not
        # handed over, and wait until another node serves the store.
        for key in "bcd":
            nursery.start_soon(write, key, scopes[key])
        await trio.testing.wait_all_tasks_blocked()
        assert away.refused == 3
        scopes["a"].cancel()
        scopes["c"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        store.use(cast("StoreService", serving))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(serving.written) == sorted(made) == ["b", "d"]
        store.check_invariants()


class Earlier(Silent):
    """A node of an earlier version, which knows no packed transactions; or, for one that has only
    `single`, one before that. Keeps the methods that were called.
    """

    def __init__(self, *, single: bool = False) -> None:
        super().__init__()
        self.single = single
        self.called: list[str] = []

    async def transact(self, packed: bytes) -> bytes:
        """Is not there."""
        self.called.append("transact")
        raise MethodNotFoundError("no method transact")

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionResult]:
        """Writes that have been made."""
        self.called.append("transactions")
        if self.single:
            raise MethodNotFoundError("no method transactions")
        return [TransactionResult(True, 8, ()) for _ in batch]

    async def transaction(self, *parts: object) -> TransactionResult:
        """One that has been made."""
        self.called.append("transaction")
        return TransactionResult(True, 9, ())


def a_write(key: str, size: int = 1) -> Transaction:
    return Transaction((), (Put(key, b"x" * size),))


async def test_nodes_of_earlier_versions_are_asked_in_their_way() -> None:
    earlier, first = Earlier(), Earlier(single=True)
    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", earlier), 10.0, nursery)
        batch = [a_write("a"), a_write("b")]
        assert await store.transactions(batch) == 2 * [TransactionResult(True, 8, ())]
        assert (await store.transaction([], [Put("c", b"x")])).revision == 9
        assert earlier.called == ["transact", "transactions", "transaction"]
        store.use(cast("StoreService", first))
        assert await store.transactions(batch) == 2 * [TransactionResult(True, 9, ())]
        assert first.called == ["transact", "transactions", "transaction", "transaction"]
        # The node that serves the store next may be of this version.
        serving = Serving()
        store.use(cast("StoreService", serving))
        await store.transactions(batch)
        assert serving.written == ["a", "b"]
        nursery.cancel_scope.cancel()


async def test_large_values_are_not_packed() -> None:
    earlier = Earlier()
    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", earlier), 10.0, nursery)
        large = a_write("a", SMALL_BYTES + 1)
        await store.transactions([a_write("b"), large])
        await store.transaction([], large.then)
        assert earlier.called == ["transactions", "transaction"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [b"", pack_outcomes([]), b"\x81\x00"])
async def test_of_an_answer_that_cannot_be_read_nothing_is_known(answer: bytes) -> None:
    class Confused(Silent):
        async def transact(self, packed: bytes) -> bytes:
            return answer

    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", Confused()), 10.0, nursery)
        with pytest.raises(StoreOutcomeUnknownError, match="cannot be read"):
            await store.transaction([], [Put("a", b"x")])
        with pytest.raises(StoreOutcomeUnknownError, match="cannot be read"):
            await store.transactions([a_write("a")])
        nursery.cancel_scope.cancel()


A_CHANGE = WatchBatch((StoreEvent("put", "names/a", b"x", 8, 8),), 8)


async def test_nodes_of_earlier_versions_are_asked_for_changes_in_their_way() -> None:
    """And again in the present way when another node serves the store."""
    asked: list[str] = []

    class Older(Silent):
        async def follow(self, *arguments: object) -> Any:
            asked.append("follow")
            raise MethodNotFoundError("no method follow")

        async def poll(self, *arguments: object) -> Any:
            asked.append("poll")
            return A_CHANGE

    class Newer(Silent):
        async def follow(self, *arguments: object) -> Any:
            asked.append("packed")
            return pack_changes(A_CHANGE)

    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", Older()), 10.0, nursery)
        for _ in range(2):
            assert await store.poll("names/", 1) == A_CHANGE
        assert asked == ["follow", "poll", "poll"]
        store.use(cast("StoreService", Newer()))
        assert await store.poll("names/", 1) == A_CHANGE
        assert asked[3:] == ["packed"]
        nursery.cancel_scope.cancel()


def deletions(count: int) -> WatchBatch:
    """Names that end in one revision, with their node."""
    return WatchBatch(
        tuple(StoreEvent("delete", f"names/{n}", b"", 9, 8, b"x" * 70) for n in range(count)), 9
    )


def test_the_names_of_a_node_with_very_many_are_packed_once_for_all_that_follow_them() -> None:
    """As messages, 100,000 would hold up the loop of the store's node for seconds."""
    batch = deletions(10_000)
    assert is_small(batch)
    packed = PackedChanges()
    first = packed.of("names/", batch)
    assert unpack_changes(first) == batch
    # Each poll makes a batch of its own, of the same changes.
    assert packed.of("names/", WatchBatch(batch.events, 9)) is first
    # Others: of another prefix, or a part of them, or of a store that has gone back to its disk.
    assert packed.of("", batch) is not first
    assert unpack_changes(packed.of("names/", WatchBatch(batch.events[1:], 9))) == WatchBatch(
        batch.events[1:], 9
    )
    again = deletions(10_000)
    assert packed.of("names/", again) is not packed.of("names/", batch)


def test_what_all_have_is_not_kept() -> None:
    packed = PackedChanges()
    batch = deletions(200)
    first = packed.of("names/", batch)
    packed.of("names/", WatchBatch((StoreEvent("put", "names/a", b"x", 10, 10),), 10))
    assert packed.of("names/", batch) is not first


async def test_large_changes_come_as_messages() -> None:
    large = WatchBatch((StoreEvent("put", "a", b"x" * (SMALL_CHANGES + 1), 8, 8),), 8)
    assert is_small(A_CHANGE)
    assert not is_small(large)

    class Serves(Silent):
        async def follow(self, *arguments: object) -> Any:
            return large

    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", Serves()), 10.0, nursery)
        assert await store.poll("", 1) is large
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [b"", b"\x80", b"\x82\x08\x01", pack_outcomes([])])
async def test_changes_that_cannot_be_read_are_as_if_the_store_were_away(answer: bytes) -> None:
    class Confused(Silent):
        async def follow(self, *arguments: object) -> Any:
            return answer

    async with trio.open_nursery() as nursery:
        store = RemoteStore(cast("StoreService", Confused()), 10.0, nursery)
        with pytest.raises(StoreUnavailableError, match="cannot be read"):
            await store.poll("names/", 1)
        nursery.cancel_scope.cancel()
