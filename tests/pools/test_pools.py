"""Pools of live nodes: who works on what, what callers get, and what happens when they leave."""

from __future__ import annotations

import functools
import gc
import logging
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
import trio

from actors import RetryPolicy
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    BadArgumentsError,
    CallTimeoutError,
    ClassMismatchError,
    EncodeError,
    NotAMemberError,
    OutcomeUnknownError,
    PoisonedItemError,
    PoolStoppedError,
    RemoteError,
    ReplyDecodeError,
    ReplyEncodeError,
)
from actors.options import Isolation
from actors.pools import MapChanges
from runtime import open_node
from runtime.node import Node, internals_of
from runtime.pools.pool import Pool
from tests.live_pair import Pair
from tests.pools.actors_used import (
    Driver,
    NoSuchShapeError,
    Shape,
    ShapeError,
    Squares,
    Unstartable,
    triple,
    triple_later,
)
from tests.waiting import until


async def everything(
    results: AsyncIterator[object], found: list[int] | None = None
) -> list[object]:
    """All results; those before an error are in `found`."""
    given: list[object] = [] if found is None else found  # type: ignore[assignment]
    async for result in results:
        given.append(result)
    return given


def running(node: Node) -> int:
    """Calls of users that run or wait on a node."""
    loads = internals_of(node).endpoint.loads()
    return loads["calls running"] + loads["calls waiting"]


async def test_a_map_gives_what_a_loop_would(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, 1, size=2)
    assert [result async for result in pool.map(Squares.square, range(300))] == [
        item * item + 1 for item in range(300)
    ]


async def test_items_go_to_all_members_and_each_to_one(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=3)
    found = [result async for result in pool.map(Squares.note, range(100), ordered=False, batch=3)]
    assert sorted(item for _, item in found) == list(range(100))
    assert len({name for name, _ in found}) == 3
    ran = [answer.value for answer in await pool.call_all(Squares.noted)]
    assert Counter(item for items in ran for item in items or ()) == Counter(range(100))


async def test_members_are_on_other_nodes_than_the_one_that_drives_if_there_are_any(
    pair: Pair,
) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    assert {answer.value for answer in await pool.call_all(Squares.where)} == {"there"}


@pytest.mark.parametrize("function", [triple, triple_later])
async def test_a_pool_runs_a_plain_function(pair: Pair, function: object) -> None:
    pool: Any = await pair.here.pool(None, function, size=2)  # type: ignore[arg-type]
    assert await everything(pool.map(function, range(20))) == [3 * n for n in range(20)]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda item: item, "is a lambda"),
        (functools.partial(triple, 1), "a class of actors or of a plain function"),
        (3, "a class of actors or of a plain function|subclass of actors.Actor"),
        (int, "subclass of actors.Actor"),
    ],
)
async def test_what_no_node_could_import_is_refused_before_anything_is_started(
    pair: Pair, function: object, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        await pair.here.pool(None, function, size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ({}, "has one size"),
        ({"size": 0}, "pool without members"),
        ({"size": 2, "per_node": 1}, "size and per_node together"),
        ({"min": 3, "max": 2}, "min must not be above max"),
        ({"min": 0}, "min needs a max"),
        ({"min": 2}, "min needs a max"),
        ({"min": 0, "max": 0}, "pool without members"),
        ({"min": 0, "max": 2, "size": 1}, "size and min together"),
        ({"per_node": 0}, "at least 1"),
        ({"size": True}, "whole number"),
        ({"size": 1, "name": "x"}, "names of their own"),
    ],
)
async def test_a_size_that_makes_no_sense_is_refused(
    pair: Pair, size: dict[str, object], says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        await pair.here.pool("squares", Squares, **size)  # type: ignore[arg-type]


async def test_a_constructor_that_raises_is_an_error_where_the_pool_is_opened(pair: Pair) -> None:
    with pytest.raises(ActorStartError, match="no licence"):
        await pair.here.pool(None, Unstartable, size=2)


async def test_arguments_that_the_constructor_does_not_take_are_refused(pair: Pair) -> None:
    with pytest.raises(BadArgumentsError):
        await pair.here.pool(None, Squares, 1, 2, 3, size=2)


async def test_an_exception_keeps_its_type_and_says_which_item_it_was(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    found: list[int] = []
    with pytest.raises(NoSuchShapeError) as caught:
        await everything(pool.map(Squares.picky, range(20)), found)
    assert found == [0, 1, 2]
    assert isinstance(caught.value, RemoteError)
    assert "in item 3" in "".join(caught.value.__notes__)
    assert "picky" in caught.value.remote_traceback


async def test_errors_are_returned_or_skipped_instead_if_asked_for(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    returned = await everything(pool.map(Squares.picky, range(20), on_error="return"))
    assert [isinstance(one, NoSuchShapeError) for one in returned] == [
        item % 10 == 3 for item in range(20)
    ]
    skipped = await everything(pool.map(Squares.picky, range(20), on_error="skip"))
    assert skipped == [item for item in range(20) if item % 10 != 3]


async def test_an_item_that_cannot_be_sent_is_named_and_the_others_are_unharmed(
    pair: Pair,
) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    with socket.socket() as bad:
        items = [1, 2, bad, 4]
        found = await everything(pool.map(Squares.square, items, on_error="return", batch=4))  # type: ignore[call-overload]
    assert [found[0], found[1], found[3]] == [1, 4, 16]
    assert isinstance(found[2], EncodeError)
    assert "item 2" in str(found[2])


async def test_a_result_that_cannot_be_sent_is_that_of_its_item_alone(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=1)
    found = await everything(pool.map(Squares.unsendable, range(4), on_error="return", batch=4))
    assert [found[0], found[1], found[3]] == [0, 1, 3]
    assert isinstance(found[2], ReplyEncodeError)
    assert "item 2" in str(found[2])


@pytest.mark.parametrize(
    ("function", "on", "isolation"),
    [
        (Squares.shape, "here", "none"),
        (Squares.shape, "there", "process"),
        (Squares.shape_in_thread, "here", "process"),
        (Squares.shape_in_thread, "there", "none"),
    ],
)
async def test_a_result_that_cannot_be_built_here_is_that_of_its_item_alone(
    pair: Pair, function: Any, on: str, isolation: Isolation
) -> None:
    pool = await pair.here.pool(None, Squares, size=1, on=on, isolation=isolation)
    items = [3, 1, 4, 2, 5]
    retry = RetryPolicy(max_retries=3, repeat_unknown=True)
    found: list[Any] = await everything(
        pool.map(function, items, on_error="return", batch=5, retry=retry)
    )
    built = [Shape(3), Shape(4), Shape(5)]
    assert found[::2] == ([[one] for one in built] if function is Squares.shape else built)
    for index in (1, 3):
        assert type(found[index]) is ReplyDecodeError
        assert f"for item {index}" in str(found[index])
        assert "'sides' must be >= 3" in str(found[index])
    # What has certainly run is not repeated, whatever the policy says of unknown outcomes.
    assert [answer.value for answer in await pool.call_all(Squares.noted)] == [items]


@pytest.mark.parametrize("on", ["here", "there"])
async def test_what_an_error_holds_that_cannot_be_built_here_costs_its_item_no_error(
    pair: Pair, on: str
) -> None:
    pool = await pair.here.pool(None, Squares, size=1, on=on)
    found: list[Any] = await everything(
        pool.map(Squares.misshapen, range(7), on_error="return", batch=7)
    )
    assert found[::2] == [0, 2, 4, 6]
    for index in (1, 3, 5):
        assert isinstance(found[index], RemoteError)
        assert f"of item {index}" in str(found[index])
    assert isinstance(found[3], ShapeError)
    assert found[3].args[1] == Shape(3)


async def test_starmap_takes_tuples_and_says_which_does_not_fit(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    found = await everything(
        pool.starmap(Squares.add, [(1, 2), (3,), 4, (5, 6)], on_error="return")  # type: ignore[call-overload]
    )
    assert (found[0], found[3]) == (3, 11)
    assert isinstance(found[1], BadArgumentsError)
    assert isinstance(found[2], TypeError)


async def test_an_endless_source_is_read_no_further_than_the_window(pair: Pair) -> None:
    pulled = 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield pulled

    pool = await pair.here.pool(None, Squares, size=2)
    given = 0
    async for _ in pool.map(Squares.square, numbers(), window=10):
        given += 1
        assert pulled <= given + 10
        if given == 50:
            break


async def test_a_source_that_raises_midway_is_an_error_after_the_results(pair: Pair) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise LookupError("dry")

    pool = await pair.here.pool(None, Squares, size=2)
    found: list[int] = []
    with pytest.raises(LookupError, match="dry"):
        await everything(pool.map(Squares.square, numbers()), found)
    assert found == [1, 4]


@pytest.mark.parametrize("leave", ["break", "cancel", "aclose", "raise"])
async def test_a_caller_that_leaves_midway_cancels_what_runs_and_closes_the_source(
    pair: Pair, leave: str
) -> None:
    closed = trio.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
        finally:
            closed.set()

    pool = await pair.here.pool(None, Squares, size=2)
    results = pool.map(Squares.slow_if, numbers(), ordered=False)
    with trio.CancelScope() as scope:
        try:
            async for _ in results:
                if leave == "break":
                    break
                if leave == "cancel":
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                if leave == "aclose":
                    await results.aclose()
                if leave == "raise":
                    raise KeyError
        except KeyError:
            pass
    del results
    gc.collect()
    await closed.wait()
    await until(lambda: running(pair.there), "the members are free", lambda left: left == 0)
    assert await everything(pool.map(Squares.square, [3])) == [9]


@pytest.mark.parametrize("options", [{"batch": 20}, {"keep": True}, {"timeout": 3600.0}])
async def test_nothing_waits_behind_a_slow_item(
    pair: Pair, options: MapChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Squares, "released", trio.Event())
    pool = await pair.here.pool(None, Squares, size=2)
    # It is known that items are quick, so members get some more before they have answered.
    await everything(pool.map(Squares.slow_if, range(1, 50)))
    count = 0
    changes: MapChanges = {**options, "ordered": False}
    with trio.fail_after(60):
        async with pool.map(Squares.slow_if, range(200), **changes) as results:
            async for _ in results:
                count += 1
                if count == 199:
                    break
    # With `keep=True` it runs on.
    Squares.released.set()


async def test_the_time_of_an_item_does_not_pass_while_another_one_takes_long(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    await everything(pool.map(Squares.block_if, range(1, 50)))
    Squares.blocks = threading.Event()
    try:
        # So long that the others have it also on a busy machine.
        results = pool.map(Squares.block_if, range(50), timeout=2.0, on_error="return")
        found = await everything(results)
    finally:
        Squares.blocks.set()
    assert isinstance(found[0], CallTimeoutError)
    assert found[1:] == list(range(1, 50))


async def test_each_item_has_its_own_time(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=2)
    found = await everything(pool.map(Squares.slow_if, range(5), timeout=2.0, on_error="return"))
    assert isinstance(found[0], CallTimeoutError)
    assert found[1:] == [1, 2, 3, 4]


async def test_another_node_finds_the_pool_by_its_name_and_class(pair: Pair) -> None:
    await pair.here.pool("squares", Squares, size=2)
    found = await pair.there.lookup_pool("squares", Squares)
    assert await everything(found.map(Squares.square, [2])) == [4]
    again = await pair.there.pool("squares", Squares, size=5)
    assert len(again.members()) == 2, "it is the same one"
    with pytest.raises(ClassMismatchError):
        await pair.there.lookup_pool("squares", Unstartable)


async def test_a_pool_grows_and_shrinks_while_it_works(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    results = pool.map(Squares.square, range(3000), batch=1)
    found = [await anext(results)]
    await pool.resize(4)
    await pool.ready(4)
    found += [await anext(results) for _ in range(500)]
    await pool.resize(1)
    found += [result async for result in results]
    assert found == [item * item for item in range(3000)]
    await until(lambda: len(pool.members()), "one is left", lambda count: count == 1)


async def test_a_pool_grows_with_its_work_if_it_may(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, min=1, max=3)
    assert len(pool.members()) == 1
    results = pool.map(Squares.hang, range(100), batch=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(anext, results)
        await pool.ready(3)
        nursery.cancel_scope.cancel()


async def test_a_member_that_dies_is_replaced(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    (first, *_) = pool.members()
    name = first.name
    await pair.here.stop(first)
    await until(
        lambda: [member.name for member in pool.members()],
        "another one is there",
        lambda names: len(names) == 2 and name not in names,
    )


async def test_a_stopped_pool_says_so_to_all_that_use_it(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    other = await pair.there.lookup_pool("squares", Squares)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises((PoolStoppedError, OutcomeUnknownError)):
                await anext(other.map(Squares.slow_if, [0, 1, 2]))

        nursery.start_soon(wait)
        await until(lambda: running(pair.there), "it runs")
        with trio.move_on_after(1):
            await pool.stop()
        nursery.cancel_scope.deadline = trio.current_time() + 40
    await pool.stop()
    with pytest.raises(PoolStoppedError):
        pool.choose()


async def test_a_pool_that_has_ended_does_not_stop_another_one_that_has_its_name(
    pair: Pair,
) -> None:
    with trio.fail_after(30):
        async with await pair.here.pool("squares", Squares, size=1) as first:
            found = await pair.there.lookup_pool("squares", Squares)
            await found.stop()
            second = await pair.there.pool("squares", Squares, size=1)
            with pytest.raises(PoolStoppedError):
                await first.ready(9)
            await found.stop()
        assert [item async for item in second.map(Squares.square, [3])] == [9]
        await second.stop()
        await second.stop()
        with pytest.raises(ActorNotFoundError):
            await pair.here.lookup_pool("squares", Squares)
        other = await pair.there.options(name="squares").spawn(Squares)
        await second.stop()
        assert await other.square(2) == 4, "what has the name now is no pool"


async def test_a_pool_that_is_stopped_while_it_grows_warns_of_nothing(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    await pool.resize(5)
    await pool.stop()
    assert not [found for found in caplog.records if found.levelno >= logging.WARNING]


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin", "random", "hash"])
async def test_a_member_is_chosen_for_a_call(pair: Pair, routing: str) -> None:
    pool = await pair.here.pool("squares", Squares, size=3)
    await pool.ready(3)
    chosen = [pool.choose(routing, key="a").name for _ in range(6)]  # type: ignore[arg-type]
    if routing == "hash":
        assert len(set(chosen)) == 1
    if routing == "round-robin":
        assert Counter(chosen) == Counter(dict.fromkeys(set(chosen), 2))
    assert await pool.choose(routing, key="a").add(1, 2) == 3  # type: ignore[arg-type]


async def test_the_least_loaded_member_is_known_from_what_replies_say_of_the_calls_of_others(
    pair: Pair,
) -> None:
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    busy, idle = pool.members()
    theirs = await pair.there.lookup(busy.name, Squares)
    async with trio.open_nursery() as others:
        for item in range(20):
            others.start_soon(theirs.hang, item)
        await until(lambda: running(pair.there) == 20, "the other node's calls run")
        assert len({pool.choose().name for _ in range(40)}) == 2, "nothing is known yet"
        for member in (busy, idle):
            assert await member.add(1, 2) == 3
        assert {pool.choose().name for _ in range(40)} == {idle.name}
        # Of this node's own calls it need not be told; all together the other has fewer now.
        for item in range(25):
            others.start_soon(idle.hang, item)
        await until(lambda: running(pair.there) == 45, "this node's calls run")
        assert {pool.choose().name for _ in range(40)} == {busy.name}
        others.cancel_scope.cancel()


async def test_what_was_submitted_counts_until_its_result_is_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Squares, "released", trio.Event())
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    kept = [await pool.submit(Squares.hang, item) for item in range(10)]
    counts = [answer.value for answer in await pool.call_all(Squares.noted)]
    assert len(counts) == 2
    loads = [pool._members.depth(member) for member in pool._members.present()]
    assert loads == [5, 5], "each went to the member that had fewer"
    del kept
    Squares.released.set()
    await pool.stop()


async def test_what_is_submitted_gives_a_reference_and_items_may_be_references(
    pair: Pair,
) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    reference = await pool.submit(Squares.square, 7)
    assert await reference.fetch() == 49
    values = [await pair.here.put([1, 2]), await pool.submit(Squares.pair, 4)]
    assert await everything(pool.map(Squares.total, values)) == [3, 8]  # type: ignore[arg-type]
    # Also those that are so quick that they would travel together.
    many = [await pair.here.put([number]) for number in range(100)]
    for batch in (None, 5):
        totals = pool.map(Squares.total, many, batch=batch)  # type: ignore[arg-type]
        assert await everything(totals) == list(range(100))
    kept = await everything(pool.map(Squares.square, [5], keep=True))
    assert kept[0].owner == "there"  # type: ignore[attr-defined]
    assert await kept[0].fetch() == 25  # type: ignore[attr-defined]


async def test_a_method_of_another_class_and_a_stream_of_bad_options_are_refused(
    pair: Pair,
) -> None:
    pool: Pool[Squares] = await pair.here.pool("squares", Squares, size=1)
    with pytest.raises(TypeError, match=r"Squares\.add"):
        pool.map(Unstartable.run, [1])
    with pytest.raises(TypeError, match="iterable"):
        pool.map(Squares.square, 3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="window"):
        pool.map(Squares.square, [], window=0)
    with pytest.raises(ValueError, match="on_error"):
        pool.map(Squares.square, [], on_error="ignore")  # type: ignore[call-overload]


async def test_progress_ends_with_all_items_done(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    results = pool.map(Squares.square, range(100))
    seen = []
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            seen.extend([counts async for counts in results.progress(0.01)])

        nursery.start_soon(follow)
        await everything(results)
    assert seen[0].done == 0
    assert (seen[-1].done, seen[-1].total, seen[-1].seconds_left) == (100, 100, 0.0)


@pytest.mark.parametrize("isolation", ["none", "process"])
async def test_an_actor_opens_a_pool_from_its_own_node_also_from_a_process_of_its_own(
    pair: Pair, isolation: Literal["none", "process"]
) -> None:
    driver = await pair.here.options(isolation=isolation).spawn(Driver)
    for name in ("squares", None):
        assert await driver.square_all(name, 50) == [item * item + 1 for item in range(50)]
    with pytest.raises(ActorNotFoundError):
        await pair.here.lookup_pool("squares", Squares)
    with pytest.raises(RemoteError, match="min needs a max"):
        await driver.open_nonsense()
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    sums, fetched, chosen, places = await driver.use_existing("squares")
    assert (sums, fetched, chosen) == ([3, 7], 25, 2)
    assert places == ["there", "there"]
    done, total, seen = await driver.followed("squares", 60)
    assert (done, total, seen[-1]) == (60, 60, 60)
    assert seen == sorted(seen)
    assert await driver.kept("squares") == [0, 1, 4]
    if isolation == "none":
        assert await driver.journalled("squares") == [0, 1, 4]
    else:
        # A journal's driver is known by the lease of its node, which outlives the process.
        with pytest.raises(RemoteError, match="neither an actor in a process of its own nor a"):
            await driver.journalled("squares")
    await pool.stop()


@pytest.mark.slow
async def test_an_item_that_takes_down_its_process_is_unknown_and_the_others_are_done(
    pair: Pair,
) -> None:
    async with await pair.here.pool(None, Squares, size=2, isolation="process") as pool:
        found = await everything(pool.map(Squares.exit, range(12), on_error="return", batch=1))
        assert isinstance(found[5], OutcomeUnknownError)
        unknown = [one for one in found if isinstance(one, Exception)]
        assert [one for one in found if not isinstance(one, Exception)] == [
            item for item in range(12) if not isinstance(found[item], Exception)
        ]
        assert len(unknown) == 1


@pytest.mark.slow
async def test_an_item_that_takes_down_three_members_is_poisoned_and_the_others_are_done(
    pair: Pair,
) -> None:
    async with await pair.here.pool(None, Squares, size=2, isolation="process") as pool:
        found = await everything(
            pool.map(Squares.exit_idempotently, range(40), on_error="return", batch=4)
        )
    assert isinstance(found[5], PoisonedItemError)
    assert len(found[5].deaths) == 3
    assert found[:5] + found[6:] == [item for item in range(40) if item != 5]


async def test_items_that_raise_what_the_policy_lists_are_retried(pair: Pair) -> None:
    pool = await pair.here.pool(None, Squares, size=1)
    retry = RetryPolicy(max_retries=2, initial_delay=0.01, retry_on=NoSuchShapeError)
    results = pool.map(Squares.picky, [1, 3], retry=retry, on_error="return")
    found = await everything(results)
    assert isinstance(found[1], NoSuchShapeError)
    assert results.counts().repeated == 2


async def test_after_the_block_a_pool_says_that_the_node_has_left_whatever_was_before() -> None:
    async with open_node("alone", secret="a secret for the tests of pools") as node:
        pool = await node.pool("worn", Squares, size=1)
        await pool.stop()
    with pytest.raises(NotAMemberError):
        pool.choose()
    with pytest.raises(NotAMemberError):
        await pool.submit(Squares.square, 1)


async def test_a_map_over_more_items_than_len_can_say(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, 1, size=1)
    with trio.fail_after(60):
        async with pool.map(Squares.square, range(10**30)) as results:
            assert await anext(aiter(results)) == 1


async def test_a_stopped_pool_calls_nothing_for_all(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, 1, size=1)
    await pool.stop()
    with pytest.raises(PoolStoppedError, match="pool squares was stopped"):
        await pool.call_all(Squares.square, 3)


async def test_what_a_source_raises_when_its_reader_has_gone_is_logged(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pool = await pair.here.pool("squares", Squares, 1, size=1)

    async def source() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise LookupError("the file is gone")

    with trio.fail_after(60):
        async with pool.map(Squares.square, source()) as results:
            async for _ in results:
                break
        await until(lambda: "the file is gone" in caplog.text, "it is logged")
    assert "the source of a map over pool squares raised when it was closed" in caplog.text
