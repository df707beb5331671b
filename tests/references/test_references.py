"""References between live nodes: usable before the value is there, fetched from anywhere, and freed
when nobody holds them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import RetryPolicy, wait_all, wait_any
from actors.errors import (
    ActorDiedError,
    ArgumentLostError,
    CallTimeoutError,
    EncodeError,
    MethodNotFoundError,
    NotTheOwnerError,
    OutcomeUnknownError,
    OwnerDiedError,
    ReferenceNotReadyError,
    RemoteError,
    ReplyEncodeError,
)
from runtime.node import Node, internals_of
from runtime.references.table import state_of
from runtime.timings import Timings
from tests import waiting
from tests.references.conftest import Three
from tests.references.keepers import Adder, Keeper, Maker, OutOfStockError, Point, Waiter

WHERE = pytest.mark.parametrize("where", ["driver", "first"])
"""The node that has the values: the same promises hold on the caller's own node and on another."""


async def until(met: Callable[[], object]) -> None:
    """Wait for what the tables of references come to say, once garbage is collected."""

    def look() -> object:
        gc.collect()
        return met()

    await waiting.until(look, "the tables of references say so")


def holders(node: Node) -> int:
    """How many hold the one value of a node."""
    (state,) = internals_of(node).references.own()
    return len(internals_of(node).references.table.holders(state))


def untyped(three: Three, handle: Any) -> Any:
    """A handle that lets any method be tried."""
    return internals_of(three.driver).endpoint.make_handle(
        attrs.evolve(handle.address, class_path="")
    )


def values(node: Node) -> int:
    """How many values the node keeps."""
    return len(internals_of(node).references)


@WHERE
async def test_a_result_left_with_its_owner_is_fetched_from_anywhere_and_freed_when_dropped(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    reference = await maker.make.remote([1, 2, 3])
    assert reference.owner == where
    assert await reference.fetch() == [1, 2, 3]
    await keeper.keep("it", reference)
    assert await keeper.fetch("it") == [1, 2, 3]
    assert values(three.node(where)) == 1
    del reference
    gc.collect()
    assert await keeper.fetch("it") == [1, 2, 3]
    await keeper.let_go("it")
    await until(lambda: not values(three.node(where)))


@WHERE
async def test_a_reference_is_there_before_its_value_and_all_who_wait_get_it(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    with trio.fail_after(60):
        reference = await maker.make_at_gate.remote("late")
        await keeper.keep("it", reference)
        assert not await reference.ready()
        assert not await keeper.is_ready("it")
        got: list[object] = []

        async def fetch(handle: Any, *args: object) -> None:
            got.append(await handle(*args))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, reference.fetch)
            nursery.start_soon(fetch, keeper.fetch, "it")
            await trio.testing.wait_all_tasks_blocked()
            assert got == []
            await maker.open_gate()
        assert got == ["late", "late"]
        assert await reference.ready()
        assert await keeper.is_ready("it")


@WHERE
async def test_the_error_of_the_producing_call_reaches_every_holder(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    reference = await maker.fail.remote("no bolts")
    await keeper.keep("it", reference)
    for _ in range(2):
        with pytest.raises(OutOfStockError, match="no bolts") as caught:
            await reference.fetch()
        assert isinstance(caught.value, RemoteError)
        assert (caught.value.actor, caught.value.method, caught.value.node) == (
            maker.name,
            "fail",
            where,
        )
        with pytest.raises(OutOfStockError, match="no bolts"):
            await keeper.fetch("it")
    assert await reference.ready()
    del reference, caught
    await keeper.let_go("it")
    await until(lambda: not values(three.node(where)))


PERSISTENT = RetryPolicy(max_retries=3, initial_delay=0.05, jitter=0, retry_on=OutOfStockError)


@WHERE
async def test_the_error_of_an_attempt_that_is_repeated_is_not_the_outcome(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    with trio.fail_after(60):
        reference = await maker.make_in_the_end.options(retry=PERSISTENT).remote("made", 2)
        await keeper.keep("it", reference)
        got: list[object] = []

        async def fetch() -> None:
            got.append(await keeper.fetch("it"))

        async with trio.open_nursery() as nursery:
            # It waits at the owner while all attempts are made.
            nursery.start_soon(fetch)
            while await maker.count() < 2:
                assert not await keeper.is_ready("it")
            await maker.open_gate()
        assert got == ["made"]
        assert await keeper.fetch("it") == await reference.fetch() == "made"


@WHERE
async def test_the_last_attempt_has_the_outcome_for_all_if_no_other_is_made(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    with trio.fail_after(60):
        reference = await maker.make_in_the_end.options(retry=PERSISTENT).remote("never", 9)
        await keeper.keep("it", reference)
        for fetch in (lambda: keeper.fetch("it"), reference.fetch):
            with pytest.raises(OutOfStockError, match="attempt 4"):
                await fetch()


@WHERE
async def test_a_call_that_its_maker_gives_up_has_one_outcome_for_all(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    with trio.fail_after(60):
        reference = await maker.make_at_gate.options(timeout=0.2).remote("never")
        await keeper.keep("it", reference)
        with pytest.raises(RemoteError, match="CallTimeoutError") as theirs:
            await keeper.fetch("it")
        with pytest.raises(CallTimeoutError) as ours:
            await reference.fetch()
        assert str(ours.value) in str(theirs.value)


async def test_who_holds_what_a_dead_node_was_making_learns_what_its_last_attempt_has_failed_with(
    three: Three,
) -> None:
    keeper = await three.spawn(Keeper, "second")
    async with three.another("third", on_leave="lose") as third:
        maker = await third.options(on="first").spawn(Maker)
        slow = RetryPolicy(max_retries=3, initial_delay=60.0, retry_on=OutOfStockError)
        reference = await maker.make_in_the_end.options(retry=slow).remote("never", 9)
        theirs: Any = three.handle_at(third, keeper)
        with trio.fail_after(60):
            await theirs.keep("it", reference)
            await until(lambda: holders(three.first) == 2)
            while not await maker.count():
                assert not await keeper.is_ready("it")
            await three.kill(third)
            with pytest.raises(OutOfStockError, match="attempt 1"):
                await keeper.fetch("it")


@WHERE
async def test_an_actor_that_ends_before_it_answers_is_an_error_at_every_holder(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, "second")
    reference = await maker.make_at_gate.remote("never")
    await keeper.keep("it", reference)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for fetch in (reference.fetch, lambda: keeper.fetch("it")):
                nursery.start_soon(refused, fetch)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RemoteError):
                await maker.crash()


async def refused(fetch: Callable[[], Any]) -> None:
    # What a keeper has caught of it arrives as what a method raised.
    with pytest.raises((ActorDiedError, RemoteError), match="ended while the call was running"):
        await fetch()


@WHERE
async def test_a_method_that_is_not_there_is_an_error_of_the_reference(
    three: Three, where: str
) -> None:
    maker: Any = await three.spawn(Maker, where)
    reference = await untyped(three, maker).nothing.remote()
    with pytest.raises(MethodNotFoundError):
        await reference.fetch()


@WHERE
async def test_what_is_kept_is_what_the_method_returned_then(three: Three, where: str) -> None:
    maker = await three.spawn(Maker, where)
    reference = await maker.make_and_change.remote()
    assert await maker.change() == [1, 2]
    assert await reference.fetch() == [1]
    unsendable = await maker.unsendable.remote()
    with pytest.raises(ReplyEncodeError):
        await unsendable.fetch()
    with pytest.raises(EncodeError, match="value"):
        await three.driver.put(object())


async def test_arguments_that_cannot_be_sent_raise_at_once_and_leave_nothing(three: Three) -> None:
    maker = await three.spawn(Maker, "first")
    stored = await three.driver.put(1)
    with pytest.raises(EncodeError):
        await maker.make.remote([stored, object()])
    with pytest.raises(EncodeError):
        await maker.make([stored, object()])
    del stored
    await until(lambda: not values(three.driver) and not internals_of(three.driver).references.held)


@WHERE
async def test_only_the_owner_has_the_value_itself(three: Three, where: str) -> None:
    maker = await three.spawn(Maker, where)
    keeper = await three.spawn(Keeper, where)
    other = await three.spawn(Keeper, "second")
    reference = await maker.make_at_gate.remote({"a": 1})
    await keeper.keep("it", reference)
    await other.keep("it", reference)
    with pytest.raises(ReferenceNotReadyError):
        await keeper.local_value("it")
    await maker.open_gate()
    await reference.fetch()
    assert await keeper.local_value("it") == {"a": 1}
    with pytest.raises(NotTheOwnerError, match=f"{where}.*second"):
        await other.local_value("it")


async def test_references_travel_inside_values_answers_items_and_other_references(
    three: Three,
) -> None:
    first, second = await three.spawn(Keeper, "first"), await three.spawn(Keeper, "second")
    inner = await three.driver.put("inner")
    await first.keep_all([inner, inner])
    given = await first.give("0")
    assert given == inner
    assert hash(given) == hash(inner)
    outer = await three.driver.put({"in": [inner]})
    await second.keep("outer", outer)
    del inner, given, outer
    await first.let_go("0")
    await first.let_go("1")
    await until(lambda: values(three.driver) == 2)
    found = await second.fetch("outer")
    assert await found["in"][0].fetch() == "inner"
    async for item in second.stream("outer"):
        assert await (await item.fetch())["in"][0].fetch() == "inner"
        del item
    del found
    await until(lambda: not values(three.driver))


async def test_values_that_refer_to_each_other_and_that_nothing_else_refers_to_are_freed(
    three: Three,
) -> None:
    one = await three.driver.put([])  # type: ignore[var-annotated]
    two = await three.driver.put([one])
    state = internals_of(three.driver).references.table.find(state_of(one).identity)
    assert state is not None
    stored = state.stored
    assert stored is not None
    # What a mutable value would do; values are copied when they are kept, so only the runtime
    # itself can close the ring.
    references = internals_of(three.driver).references
    state.stored = references.owned._value_codec.pack([two], "value")
    references.value_store.remove(state.identity, stored.size)
    references.value_store.add(state.identity, state.stored.size)
    assert values(three.driver) == 2
    del one, two, state, stored
    await until(lambda: not values(three.driver))


async def test_dropping_in_any_order_on_any_node_frees_what_nobody_holds(three: Three) -> None:
    keepers = [await three.spawn(Keeper, name) for name in ("driver", "first", "second")]
    for number in range(30):
        reference = await three.put(("driver", "first", "second")[number % 3], number)
        for keeper in keepers:
            await keeper.keep(str(number), reference)
    del reference
    for number in range(30):
        for keeper in keepers[number % 3 :] + keepers[: number % 3]:
            assert await keeper.fetch(str(number)) == number
            await keeper.let_go(str(number))
    for node in (three.driver, three.first, three.second):
        await until(lambda node=node: not values(node) and not internals_of(node).references.held)  # type: ignore[misc]


async def test_a_reference_in_a_call_that_is_refused_is_not_held(three: Three) -> None:
    keeper: Any = await three.spawn(Keeper, "first")
    reference = await three.driver.put("x")
    with pytest.raises(MethodNotFoundError):
        await untyped(three, keeper).nothing(reference)
    with pytest.raises(TypeError):
        await untyped(three, keeper).keep(reference, 1, 2)
    await keeper.refuse.send(1, reference)
    del reference
    await until(lambda: not values(three.driver))


async def test_the_values_of_a_node_that_ends_are_lost_to_all_at_once(three: Three) -> None:
    keeper = await three.spawn(Keeper, "second")
    # The method at the gate would keep its node from ending for long.
    async with three.another("fourth", Timings(drain=1.0), on_leave="lose") as fourth:
        reference = await three.put("fourth", list(range(3)))
        await keeper.keep("it", reference)
        late = await (await three.spawn(Maker, "fourth")).make_at_gate.remote(1)
        await keeper.keep("late", late)
        assert await keeper.fetch("it") == [0, 1, 2]
        held = await keeper.give("it")
        async with trio.open_nursery() as nursery:
            for fetch in (late.fetch, lambda: keeper.fetch("late")):
                nursery.start_soon(lost, fetch)
            await trio.testing.wait_all_tasks_blocked()
            await three.kill(fourth)
    with trio.fail_after(60):
        with pytest.raises(OwnerDiedError, match="fourth"):
            await held.fetch()
        assert await keeper.fetch("it") == [0, 1, 2], "what was fetched before is still there"
        assert await held.ready()


SLOW = RetryPolicy(
    max_retries=9,
    initial_delay=600.0,
    max_delay=600.0,
    retry_on=OutOfStockError,
    repeat_unknown=True,
)
"""Whoever waits for a repeat, waits for longer than a test may take."""


@pytest.mark.parametrize("waits", [False, True], ids=["running", "between attempts"])
async def test_the_end_of_its_owner_is_the_outcome_for_all_although_the_call_may_be_repeated(
    three: Three, waits: bool
) -> None:
    near, far = await three.spawn(Keeper, "driver"), await three.spawn(Keeper, "second")
    # The method at the gate would keep its node from ending for long.
    async with three.another("fourth", Timings(drain=1.0), on_leave="lose") as fourth:
        maker = await three.spawn(Maker, "fourth")
        call = maker.make_in_the_end.options(retry=SLOW)
        reference = await call.remote("never", 9 if waits else 0)
        for keeper in (near, far):
            await keeper.keep("it", reference)
        await until(lambda: holders(fourth) == 2)
        while not await maker.count():
            assert not await far.is_ready("it")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for fetch in (
                    reference.fetch,
                    lambda: near.fetch("it"),
                    lambda: far.fetch("it"),
                ):
                    nursery.start_soon(lost, fetch)
                await trio.testing.wait_all_tasks_blocked()
                await three.kill(fourth)
    with trio.fail_after(60):
        for fetch in (reference.fetch, lambda: near.fetch("it"), lambda: far.fetch("it")):
            await lost(fetch)


async def test_a_call_whose_actor_is_on_another_node_than_its_holders_expect_is_made_no_more(
    three: Three,
) -> None:
    far = await three.spawn(Keeper, "second")
    spawn: Any = three.driver.options(name="maker", on="first").spawn
    maker = await spawn(Maker)
    # The second attempt comes when the other actor is there: a name that nobody has ends the call.
    later = RetryPolicy(max_retries=40, initial_delay=1.0, max_delay=1.0, repeat_unknown=True)
    reference = await maker.make_at_gate.options(retry=later).remote("never")
    await far.keep("it", reference)
    with trio.fail_after(60):
        with pytest.raises(RemoteError):
            await maker.crash()
        spawn = three.driver.options(name="maker", on="second").spawn
        await spawn(Maker)
        with pytest.raises(OutcomeUnknownError, match="is on node second now") as ours:
            await reference.fetch()
        with pytest.raises(RemoteError, match="OutcomeUnknownError") as theirs:
            await far.fetch("it")
    assert str(ours.value) in str(theirs.value)
    assert "(not repeatable), because a repeat would end in the same way" in str(ours.value)
    history = ours.value.args[0].partition("\n")[2]
    assert history.count("is on node second now") == 1, "there was no further attempt"


async def lost(fetch: Callable[[], Any]) -> None:
    with pytest.raises(OwnerDiedError, match="fourth"):
        await fetch()


async def test_a_holder_that_ends_holds_nothing(three: Three) -> None:
    reference = await three.driver.put(1)
    async with three.another("fourth", on_leave="lose") as fourth:
        await (await three.spawn(Keeper, "fourth")).keep("it", reference)
        del reference
        gc.collect()
        assert values(three.driver) == 1
        await three.kill(fourth)
    await until(lambda: not values(three.driver))


@WHERE
async def test_arguments_that_are_references_come_as_values_where_the_annotation_asks_for_one(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    adder = await three.spawn(Adder, "second")
    three_, four = await maker.make.remote(3), await maker.make.remote(4)
    assert await adder.add(three_.as_value(), other=four.as_value()) == 7
    assert await adder.add_all(three_.as_value(), four.as_value(), 5, start=three_.as_value()) == 15
    assert await adder.kind(three_) == "Reference"
    assert await adder.kinds([three_]) == ["Reference"]
    numbers = await maker.make.remote([1, 2])
    assert [item async for item in adder.scan(numbers.as_value())] == [1, 2]
    assert await adder.total(numbers.as_value()) == 3.0
    chained = await adder.add.remote(
        (await adder.add.remote(three_.as_value(), 1)).as_value(), four.as_value()
    )
    assert await chained.fetch() == 8
    with pytest.raises(TypeError, match="other"):
        await adder.add(three_.as_value())  # type: ignore[call-arg]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_chain_over_references_moves_each_value_once_and_never_through_the_caller(
    three: Three, shared: bool
) -> None:
    internals_of(three.second).references.fetcher._shared = shared
    maker = await three.spawn(Maker, "first")
    adder = await three.spawn(Adder, "second")
    before = three.received_by("driver")
    big = await maker.make.remote([1.0] * 500_000)
    for _ in range(3):
        assert await adder.total(big.as_value()) == 500_000
    assert three.received_by("driver") - before < 100_000
    # On one host it is not sent at all, but read where it lies.
    assert (
        (4_000_000 if not shared else 0)
        < three.sent("first", "second")
        < (6_000_000 if not shared else 100_000)
    )


async def test_a_method_does_not_run_if_an_argument_is_lost(three: Three) -> None:
    maker = await three.spawn(Maker, "first")
    adder = await three.spawn(Adder, "second")
    broken = await maker.fail.remote("no nuts")
    with pytest.raises(
        ArgumentLostError, match=r"add was not run: its argument 'other'.*OutOfStockError: no nuts"
    ) as caught:
        await adder.add(1, other=broken.as_value())
    assert caught.value.outcome == "not executed"
    chained = await adder.add.remote(1, broken.as_value())
    with pytest.raises(ArgumentLostError, match="no nuts"):
        await chained.fetch()


@WHERE
async def test_methods_of_a_value_run_where_it_is(three: Three, where: str) -> None:
    maker = await three.spawn(Maker, where)
    point = await maker.make.remote(Point(1, 2))
    assert await point.call.total() == 3
    moved = await point.call.moved.remote(by=10)
    assert moved.owner == where
    assert await moved.fetch() == Point(11, 12)
    assert await (await maker.make.remote("a,b")).call.split(",") == ["a", "b"]
    with pytest.raises(LookupError, match="no such point"):
        await point.call.fail()
    for name in ("nothing", "x", "_secret", "__init__", "__len__"):
        with pytest.raises(AttributeError, match=name):
            await getattr(point.call, name)()
    made_alone: Any = point.call.__class__
    with pytest.raises(AttributeError, match="only public methods"):
        made_alone()
    with pytest.raises(TypeError):
        await point.call.total(1)
    with pytest.raises(OutOfStockError):
        await (await maker.fail.remote("none")).call.total()


@WHERE
async def test_a_method_of_a_value_that_exits_ends_its_call_and_nothing_else(
    three: Three, where: str
) -> None:
    maker = await three.spawn(Maker, where)
    point, other = await maker.make.remote(Point(1, 2)), await maker.make.remote(Point(3, 4))
    with trio.fail_after(60):
        with pytest.raises(RemoteError, match="SystemExit: 2"):
            await point.call.leave()
        kept = await point.call.leave.remote()
        with pytest.raises(RemoteError, match="SystemExit: 2"):
            await kept.fetch()
        assert await point.call.total() == 3
        assert await other.fetch() == Point(3, 4)
        assert await (await maker.make.remote("new")).fetch() == "new"


@WHERE
async def test_waiting_for_some_or_all_of_many(three: Three, where: str) -> None:
    quick, slow = await three.spawn(Maker, where), await three.spawn(Maker, "second")
    ready = [await quick.make.remote(number) for number in range(3)]
    late = await slow.make_at_gate.remote("late")
    failed = await quick.fail.remote("done all the same")
    with trio.fail_after(60):
        done, rest = await wait_any([late, *ready], count=3)
        assert (done, rest) == (ready, [late])
        done, rest = await wait_all([late, failed, *ready], timeout=0.01)
        assert (done, rest) == ([failed, *ready], [late])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.open_gate)
            assert await wait_all([late, failed]) == ([late, failed], [])
    assert await wait_any([]) == ([], [])
    for wrong in ({"count": 0}, {"timeout": -1.0}, {"timeout": 10**400}):
        with pytest.raises(ValueError, match="not"):
            await wait_any(ready, **wrong)


async def test_a_holder_that_did_not_make_the_call_can_wait_as_well(three: Three) -> None:
    maker = await three.spawn(Maker, "first")
    waiter = await three.spawn(Waiter, "second")
    references = [await maker.make_at_gate.remote(number) for number in range(3)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.wait, references)
            await trio.testing.wait_all_tasks_blocked()
            await maker.open_gate()
