"""Filters around calls: in order, on both sides, of a node and of a class; and whatever a filter
does, its call ends, and truly says whether the method has run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import attrs
import pytest
import trio

from actors import Actor, Call, Filter, Next, RetryPolicy, call_context, method
from actors.errors import (
    ActorNotFoundError,
    CallTimeoutError,
    DeadlineExceededError,
    FilterFailedError,
    FilterRefusedError,
    NotExecutedError,
    OutcomeUnknownError,
    PoisonedItemError,
    RemoteError,
)
from runtime import Node, open_node
from runtime.aio import ConnectionDoor
from runtime.calls.client import CallClient
from runtime.doors.connections import handle_on
from runtime.hosting.filtered_methods import FilteredMethod
from runtime.hosting.item_batches import ItemBatches
from runtime.node import internals_of
from runtime.testing import Faults, Platform
from tests.calls.filters_used import CLASS_NOTES, Adder, Audited, Behaviour, Guarded, Recorder
from tests.live_pair import SECRET, in_virtual_time, open_pair
from tests.memory_network import MemoryNetwork
from tests.waiting import until


@attrs.frozen
class Filtered:
    """Two nodes with filters, and an actor on one of them."""

    here: Node
    adder: Adder
    notes: list[str]
    outer: Recorder
    inner: Recorder
    faults: Faults


@pytest.fixture
async def filtered(where: str) -> AsyncIterator[Filtered]:
    """See `Filtered`."""
    notes: list[str] = []
    outer, inner, faults = Recorder("outer", notes), Recorder("inner", notes), Faults()
    filters = (outer, Behaviour(), inner)
    async with (
        open_node("here", secret=SECRET, filters=filters, platform=Platform(faults=faults)) as here,
        open_node("there", join=here.address, secret=SECRET, filters=filters),
    ):
        await here.wait_for(2)
        yield Filtered(here, await here.options(on=where).spawn(Adder), notes, outer, inner, faults)


async def test_in_order_on_both_sides(filtered: Filtered) -> None:
    assert await filtered.adder.add(1, more=2) == 3
    assert filtered.notes == [
        "outer client call add",
        "inner client call add",
        "outer server call add",
        "inner server call add",
        "inner server 3",
        "outer server 3",
        "inner client 3",
        "outer client 3",
    ]
    client, server = filtered.outer.calls
    for call in (client, server):
        assert (call.actor, call.method) == (filtered.adder.name, "add")
        assert call.class_path == "tests.calls.filters_used:Adder"
        assert (call.args, dict(call.kwargs)) == ((1,), {"more": 2})
        assert (call.deadline, call.attempt) == (math.inf, 1)
        with pytest.raises(TypeError):
            call.kwargs["more"] = 3  # type: ignore[index]


async def test_around_every_kind_of_call(filtered: Filtered) -> None:
    adder, notes = filtered.adder, filtered.notes
    await adder.add.send(1)
    await until(lambda: notes, "it ran", lambda notes: "outer server 1" in notes)
    assert notes[0] == "outer client send add"
    assert "outer server send add" in notes
    notes.clear()
    assert await (await adder.add.remote(2)).fetch() == 2
    assert notes[0] == "outer client remote add"
    assert "outer server call add" in notes
    notes.clear()
    assert await adder.add_in_thread(3) == 3
    assert len(notes) == 8
    notes.clear()
    with pytest.raises(RemoteError, match="not here"):
        await adder.fail()
    assert "inner server LookupError" in notes


async def test_around_streams(filtered: Filtered) -> None:
    assert [item async for item in filtered.adder.numbers(100)] == list(range(100))
    assert sorted(filtered.notes) == sorted(
        [
            "outer client stream numbers",
            "inner client stream numbers",
            "outer server stream numbers",
            "inner server stream numbers",
            "inner server None",
            "outer server None",
            "inner client None",
            "outer client None",
        ]
    )
    filtered.notes.clear()
    async with filtered.adder.numbers(10_000) as numbers:
        async for _ in numbers:
            break
    await until(
        lambda: filtered.notes,
        "the filters have ended",
        lambda notes: "outer client None" in notes and len(notes) == 8,
    )


async def test_a_reader_that_is_cancelled_at_the_end_of_a_stream_ends_its_filters() -> None:
    waits, ended = trio.Event(), trio.Event()

    class Lasting(Filter):
        """Does not return after the last item."""

        async def call(self, next: Next, call: Call) -> object:
            if call.side == "server":
                return await next(call)
            await next(call)
            waits.set()
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

    async def read(numbers: AsyncIterator[int]) -> None:
        assert [number async for number in numbers] == []

    async with open_node("here", secret=SECRET, filters=(Lasting(),)) as here:
        actor = await here.options(name="adder").spawn(Adder)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, actor.numbers(0))
                await waits.wait()
                nursery.cancel_scope.cancel()
            await ended.wait()


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("do", "error", "text", "runs"),
    [
        ("raise before", FilterRefusedError, "ValueError.*did not run", 0),
        ("refuse", NotExecutedError, "this tenant may not", 0),
        ("another", FilterRefusedError, "TypeError.*did not run", 0),
        ("unawaited", FilterRefusedError, "`return await next.*did not run", 0),
        ("exit before", FilterRefusedError, "SystemExit.*did not run", 0),
        ("interrupt before", FilterRefusedError, "KeyboardInterrupt.*did not run", 0),
        ("exit after", FilterFailedError, "SystemExit.*has run", 1),
        ("raise after", FilterFailedError, "ValueError.*has run", 1),
        ("twice", FilterFailedError, "RuntimeError.*has run", 1),
    ],
)
async def test_a_filter_that_raises_says_whether_the_method_ran(
    filtered: Filtered, side: str, stream: bool, do: str, error: Any, text: str, runs: int
) -> None:
    adder = filtered.adder

    async def all_items() -> list[int]:
        return [item async for item in adder.numbers(3)]

    with call_context.having(side=side, do=do), pytest.raises(error, match=text) as caught:
        await (all_items() if stream else adder.add(1))
    assert caught.value.outcome == ("unknown" if runs else "not executed")
    if side == "client" and do not in ("refuse", "unawaited"):
        raised = ValueError | TypeError | RuntimeError | SystemExit | KeyboardInterrupt
        assert isinstance(caught.value.__cause__, raised)
    assert await adder.count() == runs
    # And the actor goes on.
    assert await adder.add(5) == 5


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", ["not executed", "unknown", "remote", "refused", "failed"])
async def test_what_calls_of_a_filter_raise_is_not_taken_for_the_outcome_of_its_own(
    filtered: Filtered, side: str, stream: bool, what: str
) -> None:
    adder = filtered.adder

    async def all_items() -> list[int]:
        return [item async for item in adder.numbers(3)]

    with (
        call_context.having(side=side, do=f"after: {what}"),
        pytest.raises(FilterFailedError, match=f"on the {side} side.* the method has run"),
    ):
        await (all_items() if stream else adder.add(1))
    assert await adder.count() == 1


@pytest.mark.parametrize("side", ["client", "server"])
async def test_what_a_filter_raises_in_place_of_an_error_says_truly_whether_the_method_ran(
    filtered: Filtered, side: str
) -> None:
    adder = filtered.adder
    with call_context.having(side=side, do="instead: not executed"):
        with pytest.raises((FilterFailedError, RemoteError), match="NotExecutedError") as caught:
            await adder.fail()
        assert caught.value.outcome == ("unknown" if side == "client" else "raised")
        # Of a call that was refused, it is true.
        refused: Any = adder.add
        with pytest.raises(NotExecutedError):
            await refused()
    assert await adder.count() == 1


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("what", ["exit", "interrupt", "generator exit", "group"])
async def test_what_is_no_exception_ends_neither_the_actor_nor_the_caller(
    filtered: Filtered, side: str, what: str
) -> None:
    adder = filtered.adder
    with call_context.having(side=side, do=f"instead: {what}"):
        with pytest.raises(FilterFailedError, match="raised LookupError, which is lost"):
            await adder.fail()
        numbers = adder.failing_numbers()
        assert await anext(numbers) == 1
        with pytest.raises(FilterFailedError, match="raised LookupError, which is lost"):
            await anext(numbers)
    assert await adder.count() == 2


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_stream_does_not_end_in_order_by_what_a_filter_raises(
    filtered: Filtered, side: str
) -> None:
    with (
        call_context.having(side=side, do="instead: stop"),
        pytest.raises(FilterFailedError, match="StopAsyncIteration"),
    ):
        assert [item async for item in filtered.adder.failing_numbers()] == []


async def test_a_method_that_exits_within_filters_ends_its_actor(filtered: Filtered) -> None:
    with (
        call_context.having(side="server", do="nursery"),
        pytest.raises(RemoteError, match="SystemExit"),
    ):
        await filtered.adder.fail_with("exit")
    with pytest.raises(RemoteError, match="SystemExit"):
        await filtered.adder.fail_with("exit")
    with pytest.raises(ActorNotFoundError):
        await filtered.adder.count()


@pytest.mark.parametrize("what", ["failed", "refused"])
async def test_an_error_of_filters_that_a_method_raises_is_the_methods(
    filtered: Filtered, what: str
) -> None:
    with pytest.raises(RemoteError, match="of another call"):
        await filtered.adder.fail_with(what)


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_a_users_class_refuses_whatever_its_text_raises(
    filtered: Filtered, side: str, stream: bool
) -> None:
    adder = filtered.adder
    with (
        call_context.having(side=side, do="before: wordless"),
        pytest.raises(NotExecutedError) as caught,
    ):
        await (anext(adder.numbers(3)) if stream else adder.add(1))
    if side == "server":
        assert type(caught.value) is NotExecutedError
        assert "raised ValueError" in str(caught.value)
    assert await adder.count() == 0


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_filter_may_answer_itself_or_translate(filtered: Filtered, side: str) -> None:
    with call_context.having(side=side, do="answer"):
        assert await filtered.adder.add(1) == 42
        assert [item async for item in filtered.adder.numbers(3)] == []
    assert await filtered.adder.count() == 0
    with (
        call_context.having(side=side, do="translate"),
        pytest.raises(KeyError, match="translated"),
    ):
        await filtered.adder.fail()


async def test_an_answer_of_a_filter_that_cannot_be_sent_says_that_the_method_did_not_run(
    filtered: Filtered,
) -> None:
    adder = filtered.adder
    expected = r"add did not run: a filter .* cannot be sent: answer is a builtin_function"
    with call_context.having(side="server", do="answer a function"):
        with pytest.raises(FilterRefusedError, match=expected):
            await adder.add(1)
        with pytest.raises(FilterRefusedError, match=expected):
            await (await adder.add.remote(1)).fetch()
        # There is no value to send.
        await adder.add.send(1)
        assert [item async for item in adder.numbers(3)] == []
    with call_context.having(side="client", do="answer a function"):
        assert cast("object", await adder.add(1)) is len
    assert await adder.count() == 0


async def test_an_item_whose_filter_answers_what_cannot_be_sent_did_not_run() -> None:
    class Answering(Filter):
        sides = ("server",)

        async def call(self, next: Next, call: Call) -> object:
            return len if call.args == (1,) else await next(call)

    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET, filters=[Answering()]),
    ):
        await here.wait_for(2)
        pool = await here.pool("adders", Adder, size=1, on="there")
        first, second, third = [
            item async for item in pool.map(Adder.add, range(3), on_error="return")
        ]
        assert (first, third) == (0, 2)
        assert isinstance(second, FilterRefusedError)


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_filter_may_go_on_in_a_nursery_of_its_own(
    filtered: Filtered, where: str, side: str
) -> None:
    adder = filtered.adder
    with call_context.having(side=side, do="nursery"):
        assert await adder.add(1) == 1
        assert await adder.add_in_thread(2) == 2
        assert [item async for item in adder.numbers(3)] == [0, 1, 2]
        # It would wait for its own end, if its task did not know whose method runs there.
        leaving = await filtered.here.options(on=where, name="leaving").spawn(Adder)
        with trio.fail_after(60):
            await leaving.end_itself()
    assert await adder.add(5) == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_nursery_that_a_filter_leaves_open_ends_its_call_alone(
    filtered: Filtered, stream: bool
) -> None:
    adder = filtered.adder
    async with trio.open_nursery() as own:
        # A nursery of the caller is not taken for the filter's.
        own.start_soon(trio.sleep_forever)
        with (
            call_context.having(side="client", do="open nursery"),
            pytest.raises(FilterFailedError, match="left a cancel scope or nursery open"),
        ):
            await (anext(adder.numbers(0)) if stream else adder.add(1))
        assert len(own.child_tasks) == 1
        own.cancel_scope.cancel()
    assert await adder.add(5) == 5


async def test_a_method_does_not_go_on_in_a_task_that_outlives_its_turn(
    filtered: Filtered,
) -> None:
    adder = filtered.adder
    with call_context.having(side="client", do="system task"):
        assert await adder.add(1) == 1
    with (
        call_context.having(side="server", do="system task"),
        pytest.raises(FilterRefusedError, match="raised RuntimeError"),
    ):
        await adder.add(1)
    assert await adder.count() == 1


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("do", ["never", "late"])
async def test_one_that_never_goes_on_or_never_returns_ends_by_the_deadline(
    filtered: Filtered, side: str, do: str
) -> None:
    adder = filtered.adder
    with call_context.having(side=side, do=do):
        with trio.move_on_after(0.05) as scope:
            await adder.add(1)
        assert scope.cancelled_caught
        with pytest.raises((DeadlineExceededError, CallTimeoutError)) as caught:
            await adder.add.options(timeout=0.5)(1)
        if side == "client":
            kind = NotExecutedError if do == "never" else OutcomeUnknownError
            assert isinstance(caught.value, kind)
        with trio.move_on_after(0.05) as scope:
            async for _ in adder.numbers(3):
                pass
        assert scope.cancelled_caught
    assert await adder.add(5) == 5


async def test_what_a_filter_sets_travels(where: str) -> None:
    class Tenant(Filter):
        sides = ("client",)

        async def call(self, next: Next, call: Call) -> object:
            with call_context.having(tenant="acme"):
                return await next(call)

    async with (
        open_node("here", secret=SECRET, filters=[Tenant()]) as here,
        open_node("there", join=here.address, secret=SECRET),
    ):
        adder = await here.options(on=where).spawn(Adder)
        assert "acme" in await adder.tell()
        assert "acme" in await (await adder.tell.remote()).fetch()


async def test_each_attempt_is_reported(filtered: Filtered) -> None:
    lost = filtered.faults.add("in-flight", times=2, method="add")
    attempts: list[int] = []

    class Watcher(Filter):
        async def call(self, next: Next, call: Call) -> object:
            call.on_attempt(lambda number, node: attempts.append(number))
            call.on_attempt(lambda number, node: attempts.remove(-1))
            return await next(call)

    async with open_node(
        "third",
        join=filtered.here.address,
        secret=SECRET,
        filters=[Watcher()],
        platform=Platform(faults=filtered.faults),
    ) as third:
        adder: Adder = await third.options(on="here").spawn(Adder)
        policy = RetryPolicy(max_retries=5, initial_delay=0.001, repeat_unknown=True)
        assert await adder.add.options(retry=policy)(1) == 1
        assert attempts == [1, 2, 3]
        assert lost.struck == 2


BOTH_SIDES = ["class client call add", "class server call add", "class server 1", "class client 1"]


async def test_those_of_a_class_run_inside_of_those_of_the_node(filtered: Filtered) -> None:
    CLASS_NOTES.clear()
    audited = await filtered.here.spawn(Audited)
    filtered.notes.clear()
    assert await audited.add(1) == 1
    assert CLASS_NOTES == BOTH_SIDES
    isolated = await filtered.here.options(isolation="process").spawn(Audited)
    filtered.notes.clear()
    CLASS_NOTES.clear()
    assert await isolated.add(1) == 1
    # The node's run on the node, and once; those of the class where the call is made, and where the
    # object is, which is another process.
    assert filtered.notes.count("outer server call add") == 1
    assert CLASS_NOTES == ["class client call add", "class client 1"]


async def test_those_of_a_class_run_where_no_node_has_any(where: str) -> None:
    async with open_pair() as pair:
        here = pair.here
        audited = await here.options(on=where, name="audited").spawn(Audited)
        for handle in (
            audited,
            await here.lookup("audited", Audited),
            internals_of(here).endpoint.make_handle(audited.address),
        ):
            CLASS_NOTES.clear()
            assert await handle.add(1) == 1
            assert CLASS_NOTES == BOTH_SIDES
        CLASS_NOTES.clear()
        await audited.add.send(1)
        assert await (await audited.add.remote(1)).fetch() == 1
        assert [number async for number in audited.numbers(3)] == [0, 1, 2]
        kinds = [note.split()[2] for note in CLASS_NOTES if note.startswith("class client")]
        assert kinds[0] == "send"
        assert {"remote", "stream"} <= set(kinds)
        # Handles of other classes have none.
        adder = await here.options(on=where).spawn(Adder)
        assert type(adder.add._caller) is CallClient


async def test_at_the_doors_of_other_threads_and_of_asyncio() -> None:
    async with open_node("here", secret=SECRET) as here:
        audited = await here.spawn(Audited)
        door = ConnectionDoor(cast("Any", None), here)
        asked = door.handle(audited)
        assert asked._caller.client.filters == Audited.call_filters
        # Handed back and forth, it stays so; another class's has none.
        assert door.handle(asked)._caller.client.filters == Audited.call_filters
        assert door.handle(await here.spawn(Adder))._caller is door
        assert cast("Any", handle_on(here, asked)._caller).filters == Audited.call_filters


@pytest.mark.parametrize("of_node", [False, True])
async def test_items_of_a_map_are_calls_on_both_sides(of_node: bool) -> None:
    recorder = Recorder("node", [])
    async with (
        open_node("here", secret=SECRET, filters=[recorder] if of_node else []) as here,
        # The node that makes the calls does not know of these.
        open_node("there", join=here.address, secret=SECRET, filters=[recorder]),
    ):
        await here.wait_for(2)
        pool = await here.pool("adders", Adder, size=2, on="there")
        recorder.calls.clear()
        assert [value async for value in pool.map(Adder.add, range(20))] == list(range(20))
        threads = pool.map(Adder.add_in_thread, range(20), ordered=False)
        assert sorted([value async for value in threads]) == list(range(20))
        reference = await pool.submit(Adder.add, 5)
        assert await reference.fetch() == 5
        for side in ("client", "server"):
            seen = [call for call in recorder.calls if call.side == side]
            known = of_node or side == "server"
            for name, count in (("add", 21), ("add_in_thread", 20)):
                found = [call for call in seen if call.method == name]
                assert len(found) == (count if known else 0), side
            assert not [call for call in seen if call.method.startswith("@")]


@pytest.mark.parametrize("of_node", [False, True])
@pytest.mark.parametrize("bound", [Adder.add, Adder.add_in_thread, Guarded.add])
async def test_items_travel_in_batches_to_filters_where_they_run(
    bound: Any, of_node: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, batches = ItemBatches.run, 0

    async def run(*args: Any) -> Any:
        nonlocal batches
        batches += 1
        return await right(*args)

    monkeypatch.setattr(ItemBatches, "run", run)

    class Serving(Recorder):
        sides = ("server",)

    recorder = Serving("node", [])
    Guarded.recorder.calls.clear()
    async with (
        # What this node has for its own actors does not concern its calls.
        open_node("here", secret=SECRET, filters=[recorder] if of_node else []) as here,
        open_node("there", join=here.address, secret=SECRET, filters=[recorder]),
    ):
        await here.wait_for(2)
        pool: Any = await here.pool("adders", Guarded if bound is Guarded.add else Adder, size=2)
        found = [value async for value in pool.map(bound, range(300), batch=10)]
        assert found == list(range(300))
    assert 30 <= batches < 200, "some may have been recalled"
    for seen in (recorder, *([Guarded.recorder] if bound is Guarded.add else [])):
        assert not [call for call in seen.calls if call.method.startswith("@")]
        calls = [call for call in seen.calls if call.method == bound.definition.name]
        assert [call.side for call in calls] == ["server"] * 300
        assert sorted(cast("int", call.args[0]) for call in calls) == list(range(300))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("idempotent", [False, True])
async def test_each_item_of_a_batch_ends_as_its_filters_say(batch: int, idempotent: bool) -> None:
    tries: Counter[int] = Counter()

    class Varied(Filter):
        sides = ("server",)

        async def call(self, next: Next, call: Call) -> object:
            if call.method not in ("add", "add_again"):
                return await next(call)
            item = cast("int", call.args[0])
            tries[item] += 1
            if item == 1:
                raise ValueError("before")
            if item == 2:
                raise NotExecutedError("not now")
            if item == 3:
                await next(call)
                raise ValueError("after")
            if item == 4 and tries[4] < 3:
                raise NotExecutedError("later")
            return await next(call)

    async with open_node("here", secret=SECRET, filters=[Varied()]) as here:
        pool = await here.pool("adders", Adder, size=2)
        bound: Any = Adder.add_again if idempotent else Adder.add
        results = pool.map(bound, range(10), on_error="return", batch=batch)
        found: list[Any] = [one async for one in results]
    kinds = [type(one) for one in found[:5]]
    lost = PoisonedItemError if idempotent else FilterFailedError
    assert kinds == [int, FilterRefusedError, NotExecutedError, lost, int]
    assert found[4:] == [4, 5, 6, 7, 8, 9]
    assert [tries[item] for item in range(6)] == [1, 1, 5, 3 if idempotent else 1, 3, 1]


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
async def test_an_item_that_a_filter_refuses_fails_alone(
    side: str, error: type[BaseException]
) -> None:
    class Odd(Filter):
        sides = (cast("Any", side),)

        async def call(self, next: Next, call: Call) -> object:
            if call.method == "add" and cast("int", call.args[0]) % 2:
                raise error("odd")
            return await next(call)

    async with open_node("here", secret=SECRET, filters=[Odd()]) as here:
        pool = await here.pool("adders", Adder, size=2)
        results = pool.map(Adder.add, range(10), on_error="return")
        found: list[Any] = [one async for one in results]
        assert found[::2] == [0, 2, 4, 6, 8]
        assert [type(error) for error in found[1::2]] == [FilterRefusedError] * 5
        assert error.__name__ in str(found[1])


def test_items_whose_filter_never_goes_on_end_by_their_timeout() -> None:
    class Never(Filter):
        sides = ("client",)

        async def call(self, next: Next, call: Call) -> object:
            if call.args == (3,):
                await trio.sleep_forever()
            return await next(call)

    async def test(here: Node) -> None:
        pool = await here.pool("adders", Adder, size=2)
        results = pool.map(Adder.add, range(6), on_error="return", timeout=0.2)
        found: list[Any] = [one async for one in results]
        assert isinstance(found.pop(3), DeadlineExceededError)
        assert found == [0, 1, 2, 4, 5]

    # On a busy machine others would take as long.
    platform = Platform(network=MemoryNetwork())
    in_virtual_time(
        lambda: open_node("here", secret=SECRET, filters=[Never()], platform=platform), test
    )


async def test_without_filters_there_is_nothing_to_pass() -> None:
    async with open_node(secret=SECRET) as node:
        adder = await node.spawn(Adder)
        assert type(adder.add._caller) is CallClient
        cell = internals_of(node).cells[adder.name]
        assert not any(isinstance(one, FilteredMethod) for one in cell.methods.values())


@pytest.mark.parametrize("wrong", [Recorder, Recorder("x", []), ["x"], [Recorder], "xy"])
async def test_what_is_no_filter_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="filter"):
        async with open_node(secret=SECRET, filters=wrong):
            raise AssertionError("not reached")
    with pytest.raises(TypeError, match="filter"):

        class Wrong(Actor):
            call_filters = wrong

            @method
            async def nothing(self) -> None: ...
