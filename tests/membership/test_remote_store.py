"""What happens to requests that are under way when another node takes over to serve the store."""

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from actors.errors import BadArgumentsError
from runtime.membership.remote_store import RemoteStore, StoreService
from runtime.store.interface import Entry, RangeResult


class Silent:
    """A node that has gone: nothing that is asked of it ends by itself."""

    def __init__(self) -> None:
        self.asked = trio.Event()

    def options(self, timeout: float) -> Silent:
        """Options change nothing here."""
        return self

    async def _never(self, *arguments: object) -> Any:
        self.asked.set()
        await trio.sleep_forever()

    async def range(self, prefix: str) -> RangeResult:
        """No answer."""
        return cast("RangeResult", await self._never())

    poll = put = _never


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
