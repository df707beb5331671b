"""What every job's store promises, over all back-ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from runtime.rendezvous.interface import KeyValueStore, RendezvousStoreInfo
from runtime.rendezvous.job_store import JobStore
from runtime.rendezvous.parameters import RoundOverError, StoreTimeoutError
from tests.rendezvous.conftest import Make
from tests.waiting import until


@pytest.fixture
async def store(make: Make) -> AsyncIterator[KeyValueStore]:
    """The store of a round."""
    async with make(1, 1, last_call_timeout=0) as handler:
        yield (await handler.next_rendezvous()).store


async def test_a_key_is_got_once_it_is_there(store: KeyValueStore) -> None:
    assert await store.peek("key") is None
    async with trio.open_nursery() as nursery:
        found: list[bytes] = []

        async def get() -> None:
            found.append(await store.get("key", timeout=60))

        nursery.start_soon(get)
        # Another that begins alike is none of its business.
        await store.set("key2", b"other")
        await store.set("key", b"\x00\xff value")
    assert found == [b"\x00\xff value"]
    assert await store.peek("key") == b"\x00\xff value"


async def test_what_does_not_come_in_time_is_named(store: KeyValueStore) -> None:
    await store.set("here", b"1")
    with pytest.raises(StoreTimeoutError, match=r"'there', 'elsewhere' did not come within 0\.1 s"):
        await store.wait(["here", "there", "elsewhere"], timeout=0.1)
    with pytest.raises(StoreTimeoutError, match="a value in the queue 'empty'"):
        await store.queue_pop("empty", timeout=0.1)
    with pytest.raises(StoreTimeoutError, match="the barrier 'b', for 2, did not"):
        await store.barrier("b", 2, timeout=0.1)
    with pytest.raises(TimeoutError):
        await store.multi_get(["here", "there"], timeout=0.1)


async def test_a_hundred_additions_at_once_make_a_hundred(store: KeyValueStore) -> None:
    sums: list[int] = []

    async def add() -> None:
        for _ in range(10):
            sums.append(await store.add("count", 1))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(add)
    assert sorted(sums) == list(range(1, 101))
    assert await store.get("count") == b"100"
    assert await store.add("count", -30) == 70


async def test_what_is_no_number_cannot_be_added_to(store: KeyValueStore) -> None:
    await store.set("text", b"abc")
    with pytest.raises(ValueError, match="which is not a number"):
        await store.add("text", 1)


async def test_compare_set_says_whether_it_was_done_and_what_is_there(store: KeyValueStore) -> None:
    assert await store.compare_set("key", b"no", b"1") == (False, None)
    assert await store.compare_set("key", None, b"1") == (True, b"1")
    assert await store.compare_set("key", None, b"2") == (False, b"1")
    assert await store.compare_set("key", b"1", b"1") == (True, b"1")
    assert await store.compare_set("key", b"1", b"3") == (True, b"3")
    assert await store.compare_set("key", b"1", b"4") == (False, b"3")


async def test_one_of_many_wins(store: KeyValueStore) -> None:
    won: list[int] = []

    async def claim(number: int) -> None:
        if (await store.compare_set("leader", None, b"%d" % number))[0]:
            won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(claim, number)
    assert [await store.get("leader")] == [b"%d" % number for number in won]


async def test_many_keys_at_once(store: KeyValueStore) -> None:
    values = {f"key/{number:03}": b"%d" % number for number in range(110)}
    await store.multi_set(values)
    assert await store.multi_get(list(values)) == list(values.values())
    assert await store.check(list(values))
    assert not await store.check([*values, "other"])
    assert await store.check([])
    assert (await store.num_keys(), await store.list_keys()) == (110, sorted(values))
    assert await store.delete_key("key/007")
    assert not await store.delete_key("key/007")
    assert await store.num_keys() == 109
    with pytest.raises(ValueError, match="at most 120 keys in one step, not 200"):
        await store.multi_set({str(number): b"" for number in range(200)})


async def test_appended_values_are_all_there(store: KeyValueStore) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(store.append, "log", b"%d" % number)
    assert sorted(await store.get("log")) == sorted(b"01234567")


async def test_a_prefix_is_a_store_of_its_own_within_the_other(store: KeyValueStore) -> None:
    left, right = store.prefixed("left"), store.prefixed("right")
    await left.set("key", b"l")
    await right.set("key", b"r")
    await right.prefixed("inner").set("key", b"i")
    assert (
        await left.get("key"),
        await store.get("right/key"),
        await store.get("right/inner/key"),
    ) == (b"l", b"r", b"i")
    assert (await left.list_keys(), await right.list_keys()) == (["key"], ["inner/key", "key"])
    await left.queue_push("queue", b"1")
    assert (await left.queue_len("queue"), await right.queue_len("queue")) == (1, 0)


async def test_a_barrier_can_be_used_again_and_again(store: KeyValueStore) -> None:
    steps: list[int] = []

    async def member() -> None:
        for step in range(5):
            steps.append(step)
            await store.barrier("step", 3, timeout=60)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(member)
    # Nobody was a step ahead of the others.
    assert steps == sorted(steps)


async def test_who_gives_up_at_a_barrier_has_not_come(store: KeyValueStore) -> None:
    with pytest.raises(StoreTimeoutError):
        await store.barrier("step", 2, timeout=0.2)
    with trio.move_on_after(0.3) as alone:
        await store.barrier("step", 2, timeout=60)
    assert alone.cancelled_caught
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(store.barrier, "step", 2)
    with pytest.raises(ValueError, match="at least one"):
        await store.barrier("step", 0)


async def test_each_value_of_a_queue_is_taken_once_and_in_order(store: KeyValueStore) -> None:
    taken: list[bytes] = []

    async def take(count: int) -> None:
        for _ in range(count):
            taken.append(await store.queue_pop("queue", timeout=60))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(take, 5)
        for number in range(20):
            await store.queue_push("queue", b"%02d" % number)
    assert sorted(taken) == [b"%02d" % number for number in range(20)]
    assert await store.queue_len("queue") == 0
    for number in range(3):
        await store.queue_push("queue", b"%d" % number)
    assert [await store.queue_pop("queue") for _ in range(3)] == [b"0", b"1", b"2"]


async def test_queues_whose_names_are_alike_are_different_ones(store: KeyValueStore) -> None:
    await store.queue_push("a/0000000000000001", b"x")
    await store.queue_push("a%2F0000000000000001", b"y")
    assert (await store.queue_len("a"), await store.queue_len("a/0000000000000001")) == (0, 1)
    assert await store.num_keys() == 0


async def test_rank_0_says_where_it_listens_and_the_others_wait_for_that(
    store: KeyValueStore,
) -> None:
    found: list[RendezvousStoreInfo] = []

    async def ask(rank: int) -> None:
        found.append(await RendezvousStoreInfo.build(rank, store, timeout=60))

    async with trio.open_nursery() as nursery:
        for rank in (1, 2):
            nursery.start_soon(ask, rank)
        await RendezvousStoreInfo.build(0, store, "10.0.0.5", 41873)
    assert found == [RendezvousStoreInfo("10.0.0.5", 41873)] * 2
    for address, port in (("", 1), ("host", 0), ("host", 70_000)):
        with pytest.raises(ValueError, match="rank 0 says where it listens"):
            await RendezvousStoreInfo.build(0, store, address, port)


async def test_who_gives_up_at_a_barrier_when_all_have_come_takes_nobody_out_of_the_next(
    store: KeyValueStore,
) -> None:
    assert isinstance(store, JobStore)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(store.barrier, "step", 2)
    key = f"{store._scope.root}b/step"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.barrier, "step", 2)
        await until(
            lambda: store._entry(key),
            "one has come to the barrier",
            lambda entry: entry is not None and entry.value == b"[1, 1]",
        )
        # As of one whose patience ended in the moment in which the first barrier was over.
        await store._withdraw(key, 0)
        with trio.fail_after(60):
            await store.barrier("step", 2)


async def test_who_is_cancelled_in_the_moment_in_which_the_round_ends_gets_one_error_and_no_group(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, JobStore)
    ends, waits, errors = trio.Event(), trio.Event(), list[BaseException]()

    async def round_over() -> None:
        waits.set()
        await ends.wait()
        raise RoundOverError("over, by the test")

    async def barrier() -> None:
        try:
            await store.barrier("all", 2)
        except RoundOverError as error:
            errors.append(error)

    monkeypatch.setattr(store, "_round_over", round_over)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(barrier)
        await waits.wait()
        ends.set()
        nursery.cancel_scope.cancel()
    assert [str(error) for error in errors] == ["over, by the test"]
