"""The embedded store in its loop: checkpoints, cancellation, waiting polls, the task that ends
leases, closing.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from actors.errors import (
    LeaseLostError,
    StoreCompactedError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import SystemEnvironment
from runtime.store.changes import Changes
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Compare, Get, Put, StoreEvent
from runtime.store.memory import ChangeHistory, Snapshot, StoreMachine
from runtime.timings import Timings

Call = Callable[[EmbeddedStore], Awaitable[object]]

CALLS: dict[str, Call] = {
    "get": lambda store: store.get("a"),
    "range": lambda store: store.range("a"),
    "put": lambda store: store.put("a", b"after"),
    "delete": lambda store: store.delete("a"),
    "transaction": lambda store: store.transaction(
        [Compare("a", "version", 1)], [Put("a", b"after")], [Get("a")]
    ),
    "grant": lambda store: store.grant(1.0),
    "keep_alive": lambda store: store.keep_alive(1),
    "time_to_live": lambda store: store.time_to_live(1),
    "revoke": lambda store: store.revoke(1),
    "poll": lambda store: store.poll("a", 1),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    """A store with a key and a lease of a minute, whose number is 1."""
    made = EmbeddedStore(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        await made.put("a", b"before", await made.grant(60.0))
        yield made
        made.close()


@each_call
async def test_every_call_is_a_checkpoint(store: EmbeddedStore, call: Call) -> None:
    with trio.testing.assert_checkpoints():
        await call(store)


@each_call
async def test_a_call_that_is_cancelled_has_changed_nothing(
    store: EmbeddedStore, call: Call
) -> None:
    before = await store.range("")
    with trio.CancelScope() as scope:
        scope.cancel()
        await call(store)
    assert scope.cancelled_caught
    assert await store.range("") == before
    assert await store.keep_alive(1) == 60.0
    with pytest.raises(LeaseLostError):
        await store.keep_alive(2)


@each_call
async def test_a_closed_store_refuses_every_call(store: EmbeddedStore, call: Call) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        await call(store)


async def test_closing_ends_polls_and_watches_that_wait(store: EmbeddedStore) -> None:
    ended: list[str] = []

    async def poll() -> None:
        with pytest.raises(StoreError, match="closed"):
            await store.poll("b", 1)
        ended.append("poll")

    async def watch() -> None:
        with pytest.raises(StoreError, match="closed"):
            async for _ in store.watch("b", 1):
                pass
        ended.append("watch")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        store.close()
    assert sorted(ended) == ["poll", "watch"]


async def test_the_task_that_ends_leases_ends_with_the_store() -> None:
    store = EmbeddedStore(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.grant(60.0)
        await trio.testing.wait_all_tasks_blocked()
        store.close()


async def test_leases_end_exactly_at_their_time_on_an_idle_loop(
    autojump_clock: trio.testing.MockClock, store: EmbeddedStore
) -> None:
    begun = trio.current_time()
    for ttl in (30.0, 10.0, 0.125, 20.0):
        await store.put(f"b/{ttl}", b"", await store.grant(ttl))
    ended: list[tuple[str, float]] = []
    revision = (await store.range("")).revision
    async for batch in store.watch("b/", revision + 1):
        ended += [(event.key, trio.current_time() - begun) for event in batch.events]
        if len(ended) == 4:
            break
    assert [key for key, _ in ended] == ["b/0.125", "b/10.0", "b/20.0", "b/30.0"]
    assert [round(when, 6) for _, when in ended] == [0.125, 10.0, 20.0, 30.0]


async def test_a_lease_kept_alive_for_an_hour_ends_one_ttl_after_the_last_time(
    autojump_clock: trio.testing.MockClock, store: EmbeddedStore
) -> None:
    lease = await store.grant(5.0)
    revision = await store.put("b", b"", lease)
    for _ in range(3600 // 4):
        await trio.sleep(4.0)
        await store.keep_alive(lease)
    last = trio.current_time()
    [event] = (await store.poll("b", revision + 1)).events
    assert event.kind == "delete"
    assert round(trio.current_time() - last, 6) == 5.0


async def test_a_lease_does_not_end_while_its_renewals_may_wait_behind_what_its_holder_has_sent(
    autojump_clock: trio.testing.MockClock, store: EmbeddedStore
) -> None:
    timings = Timings()
    behind, other = await store.grant(5.0), await store.grant(5.0)
    flood_ends = trio.current_time() + 60.0
    store.spare_backlogs_by(
        lambda lease: min(trio.current_time(), flood_ends) if lease == behind else -math.inf
    )
    await trio.sleep_until(flood_ends - timings.lease)
    # Of the holder of another lease nothing waits.
    with pytest.raises(LeaseLostError):
        await store.keep_alive(other)
    await trio.sleep_until(flood_ends + timings.restart_grace - 0.01)
    assert await store.time_to_live(behind) > 0
    await trio.sleep(0.02)
    with pytest.raises(LeaseLostError):
        await store.keep_alive(behind)


class Steps(trio.abc.Instrument):
    """The names of the tasks that ran, once for each time that they did."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.names.append(task.name)


async def test_without_leases_nothing_wakes_the_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = EmbeddedStore(SystemEnvironment())
    steps = Steps()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, name="the run task")
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(3600)
        trio.lowlevel.remove_instrument(steps)
        store.close()
    assert steps.names
    assert "the run task" not in steps.names


async def test_only_the_polls_of_a_changed_prefix_wake() -> None:
    store = EmbeddedStore(SystemEnvironment())
    steps = Steps()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(store.poll, f"t/{number}/", 1, name=f"poll {number}")
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        await store.put("t/7/x", b"")
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(steps)
        nursery.cancel_scope.cancel()
    assert {name for name in steps.names if name.startswith("poll")} == {"poll 7"}


async def test_a_poll_that_waits_is_not_sent_away_by_what_happens_to_other_keys() -> None:
    store = EmbeddedStore(SystemEnvironment(), StoreMachine(ChangeHistory(max_events=3)))
    seen: list[StoreEvent] = []

    async def wait() -> None:
        seen.extend((await store.poll("mine/", 1)).events)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(50):
            await store.put(f"other/{number}", b"")
        await store.put("mine/1", b"")
    assert [event.key for event in seen] == ["mine/1"]


async def test_a_poll_learns_that_what_it_waited_for_was_forgotten_before_it_could_look() -> None:
    store = EmbeddedStore(SystemEnvironment(), StoreMachine(ChangeHistory(max_events=3)))
    refused: list[str] = []

    async def wait() -> None:
        with pytest.raises(StoreCompactedError):
            await store.poll("mine/", 1)
        refused.append("mine/")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        with trio.testing.assert_no_checkpoints():
            # Straight to the machine: no task runs between these writes.
            store._machine.transaction([], [Put("mine/1", b"")])
            store._wake_polls(1)
            for number in range(5):
                store._machine.transaction([], [Put(f"other/{number}", b"")])
    assert refused == ["mine/"]


async def test_a_poll_learns_of_a_step_so_large_that_it_pushes_its_own_beginning_out_of_the_history(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    store = EmbeddedStore(SystemEnvironment(), StoreMachine(ChangeHistory(10)))
    await nursery.start(store.run)
    first, second = await store.grant(5), await store.grant(5)
    await store.put("nodes/a", b"", first)
    for number in range(20):
        await store.put(f"names/{number}", b"", second)
    revision = (await store.range("")).revision
    # Both leases end at one moment: the deletion of the node is forgotten before anybody was told
    # of it.
    with trio.fail_after(60), pytest.raises(StoreCompactedError):
        await store.poll("nodes/", revision + 1)
    assert await store.get("nodes/a") is None


async def test_cancelled_polls_leave_nothing_behind() -> None:
    store = EmbeddedStore(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(store.poll, "t/", 10)
        await trio.testing.wait_all_tasks_blocked()
        assert len(store._waiting) == 10
        nursery.cancel_scope.cancel()
    assert not store._waiting


async def test_all_polls_that_wait_for_a_change_are_answered_with_it(store: EmbeddedStore) -> None:
    answers: list[list[bytes]] = []

    async def wait() -> None:
        answers.append([event.value for event in (await store.poll("b", 3)).events])

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await store.put("b", b"new")
    assert answers == [[b"new"]] * 5


class HangingDisk:
    """A medium whose disk takes nothing any more, and says nothing of it, until it is let go on."""

    def __init__(self) -> None:
        self.goes_on = trio.Event()

    async def load(self) -> Snapshot:
        return Snapshot(1, 0, 1, {}, (), ())

    async def check_room(self, size: int) -> None:
        pass

    async def write(self, changes: Changes) -> None:
        await self.goes_on.wait()

    async def rewrite(self, snapshot: Snapshot) -> None:
        await self.goes_on.wait()

    def close(self) -> None:
        pass


async def test_a_disk_that_hangs_is_not_waited_for_for_ever(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    medium = HangingDisk()

    async def opened(directory: Path) -> HangingDisk:
        return medium

    store = await EmbeddedStore.on_disk(SystemEnvironment(), tmp_path, opened)
    await nursery.start(store.run)
    began = trio.current_time()
    with pytest.raises(StoreOutcomeUnknownError, match="did not complete a write within 10 s"):
        await store.put("a", b"1")
    # Somebody might see what does not last.
    with pytest.raises(StoreUnavailableError, match=r"nothing was read or changed.*within 10 s"):
        await store.get("a")
    assert trio.current_time() - began == pytest.approx(2 * Timings().store_call)
    medium.goes_on.set()
    found = await store.get("a")
    assert found is not None
    assert found.value == b"1"
    store.close()
