"""What happens to requests that are under way when another node takes over to serve the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import trio
import trio.testing

from actors.errors import BadArgumentsError, NodeUnreachableError
from runtime.membership.remote_store import RemoteStore, StoreService
from runtime.store.interface import Entry, Put, RangeResult, Transaction, TransactionResult


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

    poll = put = never_answers


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

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionResult]:
        """Writes that have been made."""
        self.written += [one.key for each in batch for one in each.then if isinstance(one, Put)]
        return [TransactionResult(True, 8, ()) for _ in batch]


class Away(Silent):
    """A node whose connection broke before anything was handed to it."""

    refused = 0

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionResult]:
        """Nothing was done."""
        self.refused += len(batch)
        raise NodeUnreachableError("it was never handed to node a", node="a")

    transaction = Silent.never_answers


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
