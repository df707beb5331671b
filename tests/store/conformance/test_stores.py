"""What every store promises, whatever it is made of."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors.errors import LeaseLostError, StoreCompactedError
from runtime.store.etcd.store import EtcdStore
from runtime.store.interface import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    Store,
    StoreEvent,
    Transaction,
    TransactionResult,
)
from runtime.store.memory import MAX_EVENTS

TTL = 0.5
"""Seconds asked for where a lease should end within a test; a store may grant more."""

LONG = 60.0
"""Seconds of a lease that should not end within a test."""


async def collect(store: Store, prefix: str, from_revision: int, count: int) -> list[StoreEvent]:
    """The first `count` changes of a watch."""
    events: list[StoreEvent] = []
    with trio.fail_after(60):
        while len(events) < count:
            batch = await store.poll(prefix, from_revision)
            assert batch.events
            assert from_revision <= batch.events[0].revision
            assert batch.events[-1].revision <= batch.revision
            events += batch.events
            from_revision = batch.revision + 1
    return events


async def present(store: Store) -> int:
    """The store's revision now."""
    return (await store.range("no/such/key")).revision


async def keys(store: Store, prefix: str) -> list[str]:
    return [entry.key for entry in (await store.range(prefix)).entries]


async def forget(store: Store, revision: int) -> None:
    """Change so much that the store no longer knows what happened at `revision`; or tell it to
    forget.
    """
    if isinstance(store, EtcdStore):
        await store.compact(await store.put("forget", b""))
        return
    for _ in range(MAX_EVENTS // MAX_OPERATIONS + 1):
        result = await store.transaction(
            [], [Put(f"forget/{number}", b"") for number in range(MAX_OPERATIONS)]
        )
    assert result.revision > revision


# Keys and values


async def test_a_key_that_was_never_written_is_not_there(store: Store) -> None:
    assert await store.get("t/a") is None
    assert (await store.range("t/")).entries == ()


async def test_what_was_put_is_read_back_with_the_revision_of_the_put(store: Store) -> None:
    revision = await store.put("t/a", b"one")
    assert await store.get("t/a") == Entry("t/a", b"one", revision, revision, 1, 0)


async def test_each_write_raises_the_revision_by_one_and_keeps_the_create_revision(
    store: Store,
) -> None:
    first = await store.put("t/a", b"one")
    assert await store.put("t/b", b"other") == first + 1
    assert await store.put("t/a", b"one") == first + 2
    assert await store.get("t/a") == Entry("t/a", b"one", first, first + 2, 2, 0)


async def test_a_deleted_key_is_gone_and_deleting_it_again_changes_nothing(store: Store) -> None:
    before = await store.put("t/a", b"one")
    assert await store.delete("t/a") is True
    assert await store.get("t/a") is None
    assert await present(store) == before + 1
    assert await store.delete("t/a") is False
    assert await present(store) == before + 1


async def test_a_key_written_again_after_its_deletion_has_a_higher_create_revision(
    store: Store,
) -> None:
    first = await store.put("t/a", b"one")
    await store.put("t/a", b"two")
    await store.delete("t/a")
    again = await store.put("t/a", b"three")
    assert again == first + 3
    assert await store.get("t/a") == Entry("t/a", b"three", again, again, 1, 0)


async def test_a_prefix_covers_what_begins_with_it_and_nothing_beside_it(store: Store) -> None:
    for key in (
        "t/a",
        "t/a/",
        "t/a/1",
        "t/a/2",
        "t/a/2/x",
        "t/ab",
        "t/a0",
        "t/b",
        "t/a.",
        "ta",
        "s/t/a/1",
    ):
        await store.put(key, b"")
    assert await keys(store, "t/a/") == ["t/a/", "t/a/1", "t/a/2", "t/a/2/x"]
    assert await keys(store, "t/a/2") == ["t/a/2", "t/a/2/x"]
    assert await keys(store, "t/ab") == ["t/ab"]
    assert await keys(store, "t/c") == []


async def test_the_empty_prefix_covers_all_keys(store: Store) -> None:
    await store.put("t/a", b"")
    await store.put("zzz", b"")
    found = await keys(store, "")
    assert {"t/a", "zzz"} <= set(found)
    assert found == sorted(found)


async def test_a_range_is_in_the_order_of_code_points_whatever_the_order_of_writing(
    store: Store,
) -> None:
    # The last two: code point order is UTF-8's, and is not UTF-16's.
    names = [
        "t/",
        "t/0",
        "t/A",
        "t/a",
        "t/aa",
        "t/z",
        "t/\u00e9",
        "t/\u65e5\u672c",
        "t/\uffee",
        "t/\U0001f600",
    ]
    for name in random.Random(7).sample(names, len(names)):
        await store.put(name, name.encode())
    found = await store.range("t/")
    assert [entry.key for entry in found.entries] == names
    assert [entry.value.decode() for entry in found.entries] == names


async def test_a_range_has_the_first_keys_up_to_its_limit_and_says_if_there_are_more(
    store: Store,
) -> None:
    for name in ("t/c", "t/a", "t/b", "u"):
        await store.put(name, b"")
    for limit, names in ((1, ["t/a"]), (2, ["t/a", "t/b"]), (3, ["t/a", "t/b", "t/c"]), (9, None)):
        found = await store.range("t/", limit)
        assert [entry.key for entry in found.entries] == (names or ["t/a", "t/b", "t/c"])
        assert found.more is (limit < 3)
    assert not (await store.range("t/")).more


async def test_a_range_has_the_revision_as_of_which_it_is(store: Store) -> None:
    await store.put("t/a", b"")
    latest = await store.put("u/b", b"")
    assert (await store.range("t/")).revision == latest


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)), b"\xff\xfe not text"])
async def test_a_value_may_hold_any_bytes_or_none(store: Store, value: bytes) -> None:
    await store.put("t/a", value)
    found = await store.get("t/a")
    assert found is not None
    assert found.value == value
    assert type(found.value) is bytes


async def test_a_value_of_a_megabyte_comes_back_whole_in_reads_and_watches(store: Store) -> None:
    value = random.Random(3).randbytes(1024 * 1024)
    revision = await store.put("t/a", value)
    found = await store.get("t/a")
    assert found is not None
    assert found.value == value
    [event] = await collect(store, "t/", revision, 1)
    assert event.value == value


async def test_a_key_must_have_a_character_and_be_utf_8(store: Store) -> None:
    for key in ("", "t/\ud800"):
        with pytest.raises(ValueError, match="key"):
            await store.put(key, b"")
    with pytest.raises(ValueError, match="at least one character"):
        await store.get("")
    with pytest.raises(ValueError, match="at least one character"):
        await store.delete("")


async def test_a_value_that_is_not_bytes_is_refused(store: Store) -> None:
    text: Any = "text"
    with pytest.raises(TypeError, match="bytes, not str"):
        await store.put("t/a", text)
    assert await store.get("t/a") is None


@attrs.define
class _Span:
    """One operation: when it was under way, on a clock that ticks at each beginning and end, and
    the revision it took effect at.
    """

    begun: int
    ended: int
    revision: int
    wrote: bool


async def test_reads_and_writes_of_a_key_by_many_tasks_have_one_order_that_agrees_with_real_time(
    store: Store,
) -> None:
    ticks = itertools.count()
    spans: list[_Span] = []
    written: dict[int, bytes] = {await store.put("t/a", b"first"): b"first"}

    async def write(who: int) -> None:
        for number in range(25):
            begun, value = next(ticks), f"{who}.{number}".encode()
            revision = await store.put("t/a", value)
            spans.append(_Span(begun, next(ticks), revision, True))
            assert revision not in written
            written[revision] = value

    async def read() -> None:
        for _ in range(25):
            begun = next(ticks)
            entry = await store.get("t/a")
            assert entry is not None
            spans.append(_Span(begun, next(ticks), entry.mod_revision, False))
            seen.append(entry)

    seen: list[Entry] = []
    async with trio.open_nursery() as nursery:
        for who in range(4):
            nursery.start_soon(write, who)
            nursery.start_soon(read)
    assert all(written[entry.mod_revision] == entry.value for entry in seen)
    for first, second in itertools.permutations(spans, 2):
        if first.ended < second.begun:
            assert (
                first.revision < second.revision
                if second.wrote
                else first.revision <= second.revision
            )


# Transactions


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("mod_revision", lambda entry: entry.mod_revision, [0, 1]),
        ("create_revision", lambda entry: entry.create_revision, [0, 1]),
        ("version", lambda entry: entry.version, [0, 1, 3]),
        ("value", lambda entry: entry.value, [b"", b"one", b"two ", b"tw"]),
    ],
)
async def test_a_condition_holds_for_exactly_the_value_of_its_field(
    store: Store, field: Any, right: Any, wrong: list[Any]
) -> None:
    await store.put("t/a", b"one")
    await store.put("t/a", b"two")
    entry = await store.get("t/a")
    assert entry is not None
    assert entry.mod_revision != entry.create_revision
    assert (await store.transaction([Compare("t/a", field, right(entry))], [])).succeeded
    for expected in wrong:
        assert not (await store.transaction([Compare("t/a", field, expected)], [])).succeeded, (
            expected
        )


async def test_a_key_that_is_not_there_has_revisions_and_version_zero_and_no_value(
    store: Store,
) -> None:
    await store.put("t/a", b"")
    await store.delete("t/a")
    for key in ("t/a", "t/never"):
        for field in ("mod_revision", "create_revision", "version"):
            condition: Any = Compare(key, field, 0)
            assert (await store.transaction([condition], [])).succeeded
        assert not (await store.transaction([Compare(key, "value", b"")], [])).succeeded


async def test_all_conditions_must_hold(store: Store) -> None:
    await store.put("t/a", b"one")
    holds, fails = Compare("t/a", "value", b"one"), Compare("t/b", "value", b"one")
    for conditions in ([holds, fails], [fails, holds], [fails]):
        assert not (await store.transaction(conditions, [Put("t/c", b"")])).succeeded
    assert await store.get("t/c") is None
    assert (await store.transaction([holds, holds], [Put("t/c", b"")])).succeeded
    assert await store.get("t/c") is not None


async def test_the_branch_taken_answers_each_of_its_operations_in_order_and_the_other_does_nothing(
    store: Store,
) -> None:
    first = await store.put("t/a", b"one")
    absent = [Compare("t/a", "create_revision", 0)]
    result = await store.transaction(
        absent,
        [Put("t/x", b"")],
        [Get("t/a"), Put("t/b", b"two"), Delete("t/none"), Delete("t/a"), Get("t/none")],
    )
    assert not result.succeeded
    assert result.responses == (Entry("t/a", b"one", first, first, 1, 0), None, False, True, None)
    assert result.revision == first + 1
    assert await keys(store, "t/") == ["t/b"]


async def test_a_transaction_changes_all_its_keys_in_one_revision(store: Store) -> None:
    old = await store.put("t/old", b"")
    result = await store.transaction([], [Put("t/a", b"1"), Put("t/b", b"2"), Delete("t/old")])
    assert result.revision == old + 1
    found = await store.range("t/")
    assert found.revision == result.revision
    assert [(entry.key, entry.mod_revision) for entry in found.entries] == [
        ("t/a", old + 1),
        ("t/b", old + 1),
    ]


async def test_a_read_inside_a_transaction_sees_what_was_written_before_it(store: Store) -> None:
    await store.put("t/gone", b"")
    result = await store.transaction(
        [], [Get("t/a"), Put("t/a", b"one"), Get("t/a"), Delete("t/gone"), Get("t/gone")]
    )
    assert result.responses == (
        None,
        None,
        Entry("t/a", b"one", result.revision, result.revision, 1, 0),
        True,
        None,
    )


async def test_a_transaction_that_changes_nothing_leaves_the_revision(store: Store) -> None:
    before = await store.put("t/a", b"")
    for operations in ([], [Get("t/a")], [Delete("t/none")]):
        result = await store.transaction([], operations)
        assert result.succeeded
        assert result.revision == before


@pytest.mark.parametrize(
    "operations",
    [
        [Put("t/a", b"1"), Put("t/a", b"2")],
        [Put("t/a", b"1"), Delete("t/a")],
        [Delete("t/a"), Put("t/b", b"1"), Put("t/a", b"1")],
        [Put(f"t/{number}", b"") for number in range(MAX_OPERATIONS + 1)],
    ],
    ids=["put twice", "put and deleted", "deleted and put", "too many"],
)
async def test_a_branch_that_some_store_cannot_carry_out_is_refused_whole(
    store: Store, operations: list[Operation]
) -> None:
    before = await store.put("t/a", b"before")
    with pytest.raises(ValueError, match="transaction"):
        await store.transaction([], operations)
    with pytest.raises(ValueError, match="transaction"):
        await store.transaction([Compare("t/a", "value", b"before")], [], operations)
    assert await present(store) == before
    assert await keys(store, "t/") == ["t/a"]


async def test_the_largest_transaction_allowed_is_carried_out(store: Store) -> None:
    names = [f"t/{number:03}" for number in range(MAX_OPERATIONS)]
    result = await store.transaction(
        [Compare(name, "version", 0) for name in names], [Put(name, b"") for name in names]
    )
    assert result.succeeded
    assert await keys(store, "t/") == names


async def test_of_many_that_create_a_key_at_once_exactly_one_does_and_the_others_see_it(
    store: Store,
) -> None:
    for round_number in range(10):
        key = f"t/{round_number}"
        winners: list[bytes] = []
        seen: list[object] = []

        async def create(who: bytes, key: str, winners: list[bytes], seen: list[object]) -> None:
            result = await store.transaction(
                [Compare(key, "create_revision", 0)], [Put(key, who)], [Get(key)]
            )
            if result.succeeded:
                winners.append(who)
            else:
                [found] = result.responses
                assert isinstance(found, Entry)
                seen.append(found.value)

        async with trio.open_nursery() as nursery:
            for who in range(8):
                nursery.start_soon(create, b"%d" % who, key, winners, seen)
        assert len(winners) == 1
        assert seen == winners * 7


async def test_each_transaction_of_a_batch_stands_for_itself(store: Store) -> None:
    lease = await store.grant(60)
    await store.put("batch/taken", b"other")
    batch = [
        Transaction(
            (Compare(f"batch/{name}", "create_revision", 0),),
            (Put(f"batch/{name}", b"ours", lease if name != "lost" else 2**40),),
            (Get(f"batch/{name}"),),
        )
        for name in ("free", "taken", "lost", "last")
    ]
    free, taken, lost, last = await store.transactions(batch)
    assert isinstance(free, TransactionResult)
    assert isinstance(last, TransactionResult)
    assert free.succeeded
    assert last.succeeded
    for name, result in (("free", free), ("last", last)):
        entry = await store.get(f"batch/{name}")
        assert entry is not None
        assert (entry.value, entry.mod_revision) == (b"ours", result.revision)
    assert isinstance(taken, TransactionResult)
    assert not taken.succeeded
    assert isinstance(taken.responses[0], Entry)
    assert taken.responses[0].value == b"other"
    assert isinstance(lost, LeaseLostError)
    assert await store.get("batch/lost") is None
    await store.revoke(lease)
    assert [entry.key for entry in (await store.range("batch/")).entries] == ["batch/taken"]


async def test_writes_side_by_side_of_one_client_are_all_carried_out_once(store: Store) -> None:
    succeeded: list[int] = []

    async def create(number: int) -> None:
        # Two of them for each key.
        key = f"side/{number // 2}"
        result = await store.transaction(
            [Compare(key, "create_revision", 0)], [Put(key, b"%d" % number)], [Get(key)]
        )
        if result.succeeded:
            succeeded.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(create, number)
    found = (await store.range("side/")).entries
    assert len(found) == 30
    assert sorted(int(entry.value) for entry in found) == sorted(succeeded)
    assert len({entry.mod_revision for entry in found}) == 30


async def test_increments_by_compare_and_swap_lose_nothing_under_contention(store: Store) -> None:
    await store.put("t/count", b"0")

    async def increment() -> None:
        for _ in range(10):
            while True:
                entry = await store.get("t/count")
                assert entry is not None
                condition = Compare("t/count", "mod_revision", entry.mod_revision)
                if (
                    await store.transaction(
                        [condition], [Put("t/count", b"%d" % (int(entry.value) + 1))]
                    )
                ).succeeded:
                    break

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(increment)
    entry = await store.get("t/count")
    assert entry is not None
    assert (entry.value, entry.version) == (b"60", 61)


# Leases


async def test_a_lease_that_ends_deletes_all_its_keys_in_one_revision_and_never_before_its_time(
    store: Store, clock: object
) -> None:
    lease = await store.grant(TTL)
    begun = trio.current_time()
    granted = await store.keep_alive(lease)
    assert granted >= TTL
    await store.put("t/other", b"")
    for name in ("t/b", "t/a", "t/c"):
        last = await store.put(name, b"", lease)
    events = await collect(store, "t/", last + 1, 3)
    assert trio.current_time() >= begun + granted
    assert {(event.kind, event.key, event.revision) for event in events} == {
        ("delete", name, last + 1) for name in ("t/a", "t/b", "t/c")
    }
    assert await keys(store, "t/") == ["t/other"]
    with pytest.raises(LeaseLostError):
        await store.keep_alive(lease)


async def test_a_key_lives_as_long_as_its_lease_is_kept_alive(store: Store, clock: object) -> None:
    lease = await store.grant(TTL)
    granted = await store.keep_alive(lease)
    last = await store.put("t/a", b"", lease)
    for _ in range(4):
        # Beyond the first lease in all, and each time early enough for a machine that is busy.
        await trio.sleep(granted * 0.3)
        begun = trio.current_time()
        await store.keep_alive(lease)
    assert await store.get("t/a") is not None
    [event] = await collect(store, "t/", last + 1, 1)
    assert event.kind == "delete"
    assert trio.current_time() >= begun + granted


async def test_a_shorter_lease_ends_before_a_longer_one_that_was_granted_first(
    store: Store, clock: object
) -> None:
    longer, shorter = await store.grant(LONG), await store.grant(TTL)
    await store.put("t/longer", b"", longer)
    last = await store.put("t/shorter", b"", shorter)
    [event] = await collect(store, "t/", last + 1, 1)
    assert (event.kind, event.key) == ("delete", "t/shorter")
    assert await keys(store, "t/") == ["t/longer"]


async def test_revoking_a_lease_deletes_its_keys_at_once_in_one_revision(store: Store) -> None:
    lease = await store.grant(LONG)
    await store.put("t/a", b"", lease)
    await store.put("t/b", b"")
    last = await store.put("t/c", b"", lease)
    await store.revoke(lease)
    found = await store.range("t/")
    assert [entry.key for entry in found.entries] == ["t/b"]
    assert found.revision == last + 1
    events = await collect(store, "t/", last + 1, 2)
    assert [event.revision for event in events] == [last + 1, last + 1]


async def test_a_lease_without_keys_ends_without_a_trace(store: Store) -> None:
    before = await store.put("t/a", b"")
    await store.revoke(await store.grant(LONG))
    assert await present(store) == before


async def test_a_lease_that_has_ended_or_never_was_can_do_nothing(store: Store) -> None:
    ended = await store.grant(LONG)
    await store.put("t/a", b"before")
    await store.revoke(ended)
    before = await present(store)
    for lease in (ended, 2**40):
        for call in (store.keep_alive, store.time_to_live, store.revoke):
            with pytest.raises(LeaseLostError):
                await call(lease)
        with pytest.raises(LeaseLostError):
            await store.put("t/a", b"after", lease)
        with pytest.raises(LeaseLostError):
            await store.transaction([], [Put("t/b", b""), Delete("t/a"), Put("t/c", b"", lease)])
    assert await present(store) == before
    assert await keys(store, "t/") == ["t/a"]


async def test_a_lost_lease_in_the_branch_that_is_not_taken_does_not_matter(store: Store) -> None:
    lost = await store.grant(LONG)
    await store.revoke(lost)
    assert (await store.transaction([], [Put("t/a", b"")], [Put("t/b", b"", lost)])).succeeded


async def test_the_time_to_live_shrinks_and_is_whole_again_after_keeping_alive(
    store: Store, clock: object
) -> None:
    lease = await store.grant(LONG)
    granted = await store.keep_alive(lease)
    assert 0 < await store.time_to_live(lease) <= granted
    await trio.sleep(0.3)
    # A store that counts in whole seconds may not have noticed yet.
    assert await store.time_to_live(lease) <= granted
    assert await store.keep_alive(lease) == granted


async def test_a_key_that_is_put_again_without_a_lease_outlives_the_one_it_had(
    store: Store,
) -> None:
    lease = await store.grant(LONG)
    await store.put("t/a", b"", lease)
    found = await store.get("t/a")
    assert found is not None
    assert found.lease == lease
    last = await store.put("t/a", b"")
    await store.revoke(lease)
    found = await store.get("t/a")
    assert found is not None
    assert (found.lease, found.version) == (0, 2)
    assert await present(store) == last


async def test_a_key_that_is_put_with_another_lease_lives_and_ends_with_that_one(
    store: Store,
) -> None:
    first, second = await store.grant(LONG), await store.grant(LONG)
    assert first != second
    await store.put("t/a", b"", first)
    await store.put("t/a", b"", second)
    await store.revoke(first)
    assert await store.get("t/a") is not None
    await store.revoke(second)
    assert await store.get("t/a") is None


async def test_a_key_that_was_deleted_and_written_again_is_not_its_old_leases(store: Store) -> None:
    lease = await store.grant(LONG)
    await store.put("t/a", b"", lease)
    await store.delete("t/a")
    await store.put("t/a", b"again")
    await store.revoke(lease)
    assert await store.get("t/a") is not None


@pytest.mark.parametrize("ttl", [0, -1.0, float("nan"), float("inf")])
async def test_a_lease_has_a_positive_number_of_seconds(store: Store, ttl: float) -> None:
    with pytest.raises(ValueError, match="positive number of seconds"):
        await store.grant(ttl)


# Watches


async def test_a_watch_from_the_past_sees_every_change_with_what_it_changed(store: Store) -> None:
    lease = await store.grant(LONG)
    first = await store.put("t/a", b"one")
    await store.put("t/a", b"two", lease)
    await store.delete("t/a")
    again = await store.put("t/a", b"three")
    assert await collect(store, "t/", first, 4) == [
        StoreEvent("put", "t/a", b"one", first, first, None),
        StoreEvent("put", "t/a", b"two", first + 1, first, b"one"),
        StoreEvent("delete", "t/a", b"", first + 2, first, b"two"),
        StoreEvent("put", "t/a", b"three", again, again, None),
    ]


async def test_a_watch_from_a_revision_leaves_out_what_was_before_it(store: Store) -> None:
    first = await store.put("t/a", b"one")
    await store.put("t/a", b"two")
    await store.put("t/a", b"three")
    assert [event.value for event in await collect(store, "t/", first + 1, 2)] == [b"two", b"three"]


async def test_a_poll_waits_for_the_next_change_under_its_prefix(store: Store) -> None:
    before = await store.put("t/a/1", b"")
    answered = trio.Event()

    async def wait() -> None:
        [event] = await collect(store, "t/a/", before + 1, 1)
        assert (event.kind, event.key) == ("put", "t/a/2")
        answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for key in ("t/ab", "t/a", "t/b/1", "s/t/a/1"):
            await store.put(key, b"")
        assert not answered.is_set()
        await store.put("t/a/2", b"")


async def test_a_poll_that_waits_sees_keys_end_with_a_revoked_lease(store: Store) -> None:
    lease = await store.grant(LONG)
    last = await store.put("t/a", b"", lease)

    async def wait() -> None:
        [event] = await collect(store, "t/", last + 1, 1)
        assert (event.kind, event.key) == ("delete", "t/a")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await store.revoke(lease)


async def test_a_watch_from_a_future_revision_begins_there(store: Store) -> None:
    start = await present(store) + 3
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert [event.key for event in await collect(store, "t/", start, 2)] == ["t/2", "t/3"]

        nursery.start_soon(wait)
        for number in range(4):
            await store.put(f"t/{number}", b"")


async def test_the_changes_of_one_revision_come_in_one_batch_in_the_order_of_the_operations(
    store: Store,
) -> None:
    await store.put("t/old", b"")
    operations: Iterable[Operation] = [Put("t/z", b""), Delete("t/old"), Put("t/a", b"")]
    result = await store.transaction([], list(operations))
    batch = await store.poll("t/", result.revision)
    assert [(event.kind, event.key, event.revision) for event in batch.events] == [
        ("put", "t/z", result.revision),
        ("delete", "t/old", result.revision),
        ("put", "t/a", result.revision),
    ]


async def test_a_watch_from_a_range_sees_each_concurrent_write_once(
    store: Store,
) -> None:
    writers, writes = 4, 30
    wanted = writers * writes
    done: list[str] = []

    async def write(who: int) -> None:
        for number in range(writes):
            await store.put(f"t/{who}/{number}", b"")
            await store.put(f"u/{who}/{number}", b"")

    async def watch() -> None:
        found = await store.range("t/")
        seen = [entry.key for entry in found.entries]
        last = found.revision
        with trio.fail_after(60):
            while len(seen) < wanted:
                # Each round a new watch, resumed where the last one was left.
                async for batch in store.watch("t/", last + 1):
                    assert [event.revision for event in batch.events] == sorted(
                        {event.revision for event in batch.events}
                    )
                    assert batch.events[0].revision > last
                    seen += [event.key for event in batch.events]
                    last = batch.revision
                    if len(seen) % 3 == 0 or len(seen) == wanted:
                        break
        assert sorted(seen) == sorted(
            {f"t/{who}/{number}" for who in range(writers) for number in range(writes)}
        )
        done.append("watched")

    async with trio.open_nursery() as nursery:
        for who in range(writers):
            nursery.start_soon(write, who)
            nursery.start_soon(watch)
    assert len(done) == writers


async def test_a_watch_that_comes_late_gets_thousands_of_changes_in_batches_that_join_without_a_gap(
    kind: str, store: Store
) -> None:
    if kind == "directory":
        pytest.skip("it keeps its latest changes only: each commit writes all that is kept")
    first = await present(store) + 1
    wanted = [f"t/{number:05}" for number in range(3_000)]
    for begin in range(0, len(wanted), 100):
        await store.transaction([], [Put(name, b"v" * 100) for name in wanted[begin : begin + 100]])
    assert [event.key for event in await collect(store, "t/", first, len(wanted))] == wanted


async def test_many_watches_of_one_prefix_all_see_the_same(store: Store) -> None:
    before = await present(store)
    seen: list[list[StoreEvent]] = []

    async def watch() -> None:
        seen.append(await collect(store, "t/", before + 1, 5))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(watch)
        for number in range(5):
            await store.put("t/a", b"%d" % number)
    assert [event.value for event in seen[0]] == [b"0", b"1", b"2", b"3", b"4"]
    assert all(events == seen[0] for events in seen)


async def test_a_cancelled_poll_takes_nothing_away_from_the_next_one(store: Store) -> None:
    before = await present(store)
    with trio.move_on_after(0.05) as scope:
        await store.poll("t/", before + 1)
    assert scope.cancelled_caught
    await store.put("t/a", b"")
    [event] = await collect(store, "t/", before + 1, 1)
    assert event.key == "t/a"


async def test_a_watch_of_what_is_no_longer_known_says_so_and_can_begin_afresh(
    store: Store,
) -> None:
    first = await store.put("t/a", b"one")
    await store.put("t/a", b"two")
    await forget(store, first)
    with pytest.raises(StoreCompactedError):
        await store.poll("t/", first)
    # The prefix makes no difference: whether there was anything under it is not known any more.
    with pytest.raises(StoreCompactedError):
        await store.poll("never/written/", first)
    with pytest.raises(StoreCompactedError):
        async for _ in store.watch("t/", first):
            pass
    found = await store.range("t/")
    assert [entry.value for entry in found.entries] == [b"two"]
    await store.put("t/b", b"")
    [event] = await collect(store, "t/", found.revision + 1, 1)
    assert event.key == "t/b"


@pytest.mark.parametrize("revision", [0, -1])
async def test_a_watch_says_from_which_revision(store: Store, revision: int) -> None:
    with pytest.raises(ValueError, match="revision"):
        await store.poll("t/", revision)
