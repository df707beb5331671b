"""The reasons for which a candidate has not started its singleton: they are in the store although
it was away, and none of them stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from actors.errors import StoreError, StoreUnavailableError
from runtime.environment import SystemEnvironment
from runtime.membership.names import Names
from runtime.membership.owed_deletions import GIVE_BACK_AFTER
from runtime.membership.restart_intents import CLUSTER, SUPERVISED, unstarted
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Entry
from runtime.wire.codec import Codec


class Away(EmbeddedStore):
    """Refuses as many writes and deletions as it is told."""

    away = 0

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        self._look()
        return await super().put(key, value, lease)

    async def delete(self, key: str) -> bool:
        self._look()
        return await super().delete(key)

    def _look(self) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailableError("away, by the test")


@pytest.fixture
async def store() -> AsyncIterator[Away]:
    store = Away(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store.close()


@pytest.fixture
async def names(store: Away, autojump_clock: trio.testing.MockClock) -> AsyncIterator[Names]:
    names = Names(store, Codec([], sentinel=b"\0" * 8), await store.grant(1000), "here", 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(names.run)
        yield names
        nursery.cancel_scope.cancel()


async def said(store: Away, names: Names) -> str:
    promise = Entry(SUPERVISED + "model", names.intents._encode([CLUSTER, True]), 1, 1, 1, 0)
    return await names.intents.why_absent("model", promise)


async def test_a_reason_that_could_not_be_written_is_written_by_the_next_attempt(
    store: Away, names: Names
) -> None:
    store.away = 1
    with pytest.raises(StoreError):
        await names.intents.record_unstarted("model", "here", "no GPU")
    assert (await said(store, names)).endswith(" yet")
    await names.intents.record_unstarted("model", "here", "no GPU")
    assert (await said(store, names)).endswith(": no GPU")
    # What is owed for the attempt that failed deletes nothing of the other one.
    await trio.sleep(5 * GIVE_BACK_AFTER)
    assert (await said(store, names)).endswith(": no GPU")


async def test_the_same_reason_as_one_that_could_not_be_deleted_stays(
    store: Away, names: Names
) -> None:
    await names.intents.record_unstarted("model", "here", "no GPU")
    store.away = 1
    with pytest.raises(StoreError):
        await names.intents.forget_unstarted("model", "here")
    await names.intents.record_unstarted("model", "here", "no GPU")
    await trio.sleep(5 * GIVE_BACK_AFTER)
    assert (await said(store, names)).endswith(": no GPU")
    await names.intents.forget_unstarted("model", "here")
    assert await store.get(unstarted("model", "here")) is None


async def test_of_reasons_of_which_one_could_not_be_written_none_stays(
    store: Away, names: Names
) -> None:
    await names.intents.record_unstarted("model", "here", "no GPU")
    store.away = 1
    with pytest.raises(StoreError):
        await names.intents.record_unstarted("model", "here", "it does not start")
    await names.intents.forget_unstarted("model", "here")
    await trio.sleep(5 * GIVE_BACK_AFTER)
    assert await store.get(unstarted("model", "here")) is None
