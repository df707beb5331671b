"""What an agent may rely on, and what it leaves behind: leases on a virtual clock, over a store
that answers late, or not at all.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from actors.errors import StoreUnavailableError
from runtime.environment import Process, SystemEnvironment
from runtime.rendezvous.handler import StoreHandler
from runtime.rendezvous.interface import RendezvousInfo
from runtime.rendezvous.machine import Keys, State, encode_state
from runtime.rendezvous.parameters import (
    AgentSettings,
    RendezvousConnectionError,
    RendezvousParameters,
)
from runtime.rendezvous.view import View
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import RangeResult, Store, WatchBatch
from tests.rendezvous.world import FarStore
from tests.waiting import until

T = TypeVar("T")
LEASE = 15.0
"""Of the defaults; it is not relied upon after two thirds of it."""


class Host(SystemEnvironment):
    """The host of one agent. `ended`: processes of which it can be seen that they have ended."""

    def __init__(self, pid: int, ended: set[int]) -> None:
        super().__init__()
        self._pid = pid
        self._ended = ended

    def process(self) -> Process:
        return Process("here", self._pid, f"{self._pid}")

    def has_ended(self, process: Process) -> bool:
        return process.pid in self._ended


class LateStore(FarStore):
    """Renewals take `renewal_seconds`, and fail while they are `refused`; all else answers at once,
    or not at all while it is `cut`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cut = False
        self.refused = False
        self.renewal_seconds = 0.0

    async def _far(self, call: Callable[[], Awaitable[T]], *, reads: bool = False) -> T:
        if self.cut:
            await trio.sleep(0.5)
            raise StoreUnavailableError("cut")
        return await call()

    async def keep_alive(self, lease: int) -> float:
        seconds = await super().keep_alive(lease)
        await trio.sleep(self.renewal_seconds)
        if self.refused:
            raise StoreUnavailableError("refused")
        return seconds


class World:
    """Agents of one job around one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ended: set[int] = set()

    def agent(
        self,
        number: int,
        least: int = 1,
        most: int = 2,
        make: type[LateStore] | None = None,
        **options: Any,
    ) -> tuple[StoreHandler, LateStore]:
        far = (make or LateStore)(self.store)

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            yield far

        settings = AgentSettings.of(
            RendezvousParameters(
                "file", "nowhere", "job", least, most, **{"last_call_timeout": 0, **options}
            )
        )
        return StoreHandler(settings, Host(number, self.ended), opened), far


def on_a_virtual_clock(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run it with a world whose store lives on a clock that goes on when nobody is busy."""

    async def run() -> None:
        store = EmbeddedStore(SystemEnvironment())
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            with trio.fail_after(100_000):
                await test(World(store))
            nursery.cancel_scope.cancel()

    @functools.wraps(test)
    def started() -> None:
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))

    # pytest looks through a wrapper for the fixtures that it wants.
    del started.__wrapped__
    return started


@on_a_virtual_clock
async def test_a_lease_is_relied_upon_from_when_its_renewal_was_asked_for_not_from_its_answer(
    world: World,
) -> None:
    handler, store = world.agent(1)
    async with handler:
        await handler.next_rendezvous()
        asked: list[float] = []
        renew = store.keep_alive

        async def keep_alive(lease: int) -> float:
            asked.append(trio.current_time())
            return await renew(lease)

        store.keep_alive = keep_alive  # type: ignore[method-assign]
        store.renewal_seconds = 2.0
        await until(lambda: len(asked) >= 3, "three renewals were asked for", every=0.1)
        # The third is on its way; the second has been answered.
        assert handler._presence.doubtful_at == pytest.approx(asked[1] + LEASE * 2 / 3)


@on_a_virtual_clock
async def test_an_agent_whose_lease_is_in_doubt_takes_its_rank_only_when_it_is_renewed(
    world: World,
) -> None:
    first, store = world.agent(1, least=2)
    second, _ = world.agent(2, least=2)
    infos: list[tuple[float, RendezvousInfo]] = []

    async def come() -> None:
        infos.append((trio.current_time(), await first.next_rendezvous()))
        infos[0] = (trio.current_time(), infos[0][1])

    async with first, second, trio.open_nursery() as nursery:
        nursery.start_soon(come)
        await trio.sleep(1.0)
        # The store has it alive, and its own clock says that nobody has told it so for long.
        store.refused = True
        await trio.sleep(LEASE)
        nursery.start_soon(second.next_rendezvous)
        await trio.sleep(3.0)
        assert infos == []
        store.refused = False
        healed = trio.current_time()
        await trio.sleep(10.0)
        assert infos[0][0] >= healed


@on_a_virtual_clock
async def test_an_agent_of_this_host_that_has_ended_is_known_to_be_gone_long_before_its_lease_ends(
    world: World,
) -> None:
    first, _ = world.agent(1)
    second, store = world.agent(2)
    async with first, trio.open_nursery() as nursery:

        async def live() -> None:
            async with second:
                await second.next_rendezvous()
                await trio.sleep_forever()

        alone = await first.next_rendezvous()
        nursery.start_soon(live)
        assert (await first.wait_change(alone.round)).waiting == 1
        info = await first.next_rendezvous()
        with trio.move_on_after(LEASE * 2) as nothing:
            await first.wait_change(info.round)
        assert nothing.cancelled_caught, "it lives"
        store.cut = True
        world.ended.add(2)
        with trio.fail_after(2.5):
            change = await first.wait_change(info.round)
        assert len(change.left) == 1
        nursery.cancel_scope.cancel()


@on_a_virtual_clock
async def test_the_keys_of_a_job_live_as_long_as_its_last_agent(
    world: World,
) -> None:
    handler, _ = world.agent(1, retention=100)
    async with handler:
        info = await handler.next_rendezvous()
        assert info.job_store is not None
        await info.job_store.set("key", b"1")
        await info.store.set("key", b"2")
        await trio.sleep(1_000)
        assert await info.job_store.get("key") == b"1"
        assert await info.store.get("key") == b"2"
    await trio.sleep(50)
    assert (await world.store.range("rendezvous/")).entries
    await trio.sleep(150)
    assert not (await world.store.range("rendezvous/")).entries


@on_a_virtual_clock
async def test_what_earlier_rounds_have_left_is_removed_and_nothing_of_the_round_that_has_begun(
    world: World,
) -> None:
    first, _ = world.agent(1, most=1)
    async with first:
        for number in range(12):
            info = await first.next_rendezvous()
            assert info.round == number
            await info.store.set("key", b"%d" % number)
            await info.store.queue_push("queue", b"1")
            await trio.sleep(1.0)
            kept = {
                entry.key.split("/")[3]
                for entry in (await world.store.range("rendezvous/job/rounds/")).entries
            }
            assert kept == {str(number)}
            assert await info.store.get("key") == b"%d" % number


@on_a_virtual_clock
async def test_who_leaves_leaves_no_record_of_itself(world: World) -> None:
    first, _ = world.agent(1)
    async with first:
        await first.next_rendezvous()
        assert (await world.store.range("rendezvous/job/control/agents/")).entries
    assert not (await world.store.range("rendezvous/job/control/agents/")).entries


@on_a_virtual_clock
async def test_an_agent_whose_lease_the_store_has_ended_does_not_wait_for_its_own_clock(
    world: World,
) -> None:
    first, _ = world.agent(1)
    async with first:
        info = await first.next_rendezvous()
        # Just after a renewal, so that the clock has most of its time.
        await trio.sleep(5.1)
        await world.store.revoke(first._presence.lease)
        first._view._agents.clear()
        assert first._presence.is_held()
        await until(
            lambda: not first._presence.is_held(), "the lease is over", seconds=5.5, every=0.1
        )
        assert (await first.wait_change(info.round)).left == info.participants


class OldStore(LateStore):
    """Answers what it was told to, once: as a store does whose answer was long on its way."""

    range_result: RangeResult | None = None
    batch: WatchBatch | None = None

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        result, self.range_result = self.range_result, None
        return result if result is not None else await super().range(prefix, limit)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        batch, self.batch = self.batch, None
        return batch if batch is not None else await super().poll(prefix, from_revision)


@on_a_virtual_clock
async def test_what_an_agent_knows_never_goes_back(world: World) -> None:
    keys, store = Keys("job"), OldStore(world.store)
    first, second = (encode_state(State(1, 2, life, 1)) for life in ("first", "second"))
    await world.store.put(keys.state, first)
    old = await world.store.range(keys.control)
    events = await world.store.poll(keys.control, 1)
    await world.store.put(keys.state, second)
    view = View(store, keys, SystemEnvironment())
    await view.refresh()
    store.range_result, store.batch = old, events
    await view.refresh()
    known = view.state()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        await trio.sleep(1.0)
        for state in (known, view.state()):
            assert state is not None
            assert state.life == "second"
        nursery.cancel_scope.cancel()


@on_a_virtual_clock
async def test_a_renewal_that_is_not_answered_leaves_time_for_another_before_the_lease_is_in_doubt(
    world: World,
) -> None:
    handler, store = world.agent(1)
    async with handler:
        info = await handler.next_rendezvous()
        asked: list[float] = []

        async def keep_alive(lease: int) -> float:
            asked.append(trio.current_time())
            await trio.sleep_forever()
            raise AssertionError

        store.keep_alive = keep_alive  # type: ignore[method-assign]
        assert (await handler.wait_change(info.round)).left == info.participants
        assert len(asked) >= 2


class SilentStore(LateStore):
    """Answers nothing while it is `silent`, as a store whose process is stopped. Questions have a
    limit of ten seconds, but for those about changes.
    """

    silent = False

    async def _far(self, call: Callable[[], Awaitable[T]], *, reads: bool = False) -> T:
        if self.silent:
            await trio.sleep(10.0)
            raise StoreUnavailableError("no answer")
        return await super()._far(call, reads=reads)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        batch = await super().poll(prefix, from_revision)
        if self.silent:
            await trio.sleep_forever()
        return batch


@on_a_virtual_clock
async def test_who_waits_for_a_round_does_not_wait_on_when_the_store_falls_silent(
    world: World,
) -> None:
    handler, store = world.agent(1, make=SilentStore, least=2)
    assert isinstance(store, SilentStore)
    async with handler, trio.open_nursery() as nursery:

        async def fall_silent() -> None:
            await trio.sleep(1.0)
            store.silent = True

        nursery.start_soon(fall_silent)
        began = trio.current_time()
        with pytest.raises(RendezvousConnectionError, match="has not answered for more than 15 s"):
            await handler.next_rendezvous()
        # Far below the ten minutes of a join: a lease, two renewals, and the leave in the end.
        assert trio.current_time() - began < 3 * LEASE
