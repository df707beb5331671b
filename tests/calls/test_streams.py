"""Streams between live nodes: what a reader gets, how far a producer runs ahead, and that
generators are closed whatever happens.
"""

from __future__ import annotations

import gc
import logging
import random
import threading
import types
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import attrs
import numpy
import pytest
import trio

from actors import (
    ChildSpec,
    NotExecutedError,
    OutcomeUnknownError,
    RemoteError,
    RetryPolicy,
    SpawnOptions,
    Stream,
    Supervisor,
    method,
)
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    BadArgumentsError,
    CallTimeoutError,
    ConnectionLostError,
    DeadlineExceededError,
    EncodeError,
    MailboxFullError,
    NodeDiedError,
    ReplyEncodeError,
    SelfCallError,
)
from actors.handle import Handle
from actors.method import MethodDefinition
from actors.supervision import ExitReason
from runtime import open_local_cluster
from runtime.calls import stream_server as stream_server_module
from runtime.calls.flow_control import MOST_ITEMS, SendingWindow
from runtime.calls.protocol import credit_frame
from runtime.calls.reply_handler import StreamCall
from runtime.node import Node, internals_of
from runtime.timings import Timings
from tests.links.test_resume import CuttingNetwork
from tests.links.test_resume import pair as cut_pair
from tests.live_pair import LONG_LEASE, Pair
from tests.node.test_calls import Diary, OutOfStockError
from tests.waiting import until

MIB = 1024 * 1024


class Source(Diary):
    """Yields, and notes how its generators end. Their clean-up awaits, which must
    work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.live = 0
        self.kept: list[int] = []
        self.scope = trio.CancelScope()

    @method
    async def numbers(self, start: int, stop: int) -> AsyncIterator[int]:
        for number in range(start, stop):
            yield number

    @method(concurrent=True)
    async def beside(self, stop: int, size: int = 0) -> AsyncGenerator[tuple[int, bytes], None]:
        self.live += 1
        try:
            for number in range(stop):
                yield number, bytes(size)
        finally:
            self.live -= 1

    @method
    async def endless(self, size: int = 0) -> AsyncIterator[bytes]:
        self.write("begun")
        try:
            while True:
                self.made += 1
                yield bytes(size)
        finally:
            await trio.sleep(0.001)  # noqa: ASYNC102  that it works here is what is tested
            self.write("closed")

    @method
    async def values(self, values: list[object]) -> AsyncIterator[object]:
        for value in values:
            yield value

    @method
    async def sized(self, sizes: list[int]) -> AsyncIterator[bytes]:
        for number, size in enumerate(sizes):
            yield bytes([number % 256]) * size

    @method
    async def failing(self, items: int) -> AsyncIterator[int]:
        for number in range(items):
            yield number
        raise OutOfStockError("bolts", items)

    @method
    async def waiting(self, items: int) -> AsyncIterator[int]:
        for number in range(items):
            yield number
        try:
            self.write("waiting")
            await self.gate.wait()
        except trio.Cancelled:
            self.write("cancelled")
            raise
        finally:
            self.write("closed")
        yield items

    @method
    async def deadline(self) -> AsyncIterator[float]:
        yield trio.current_effective_deadline()

    @method
    async def growing(self, items: int) -> AsyncIterator[list[int]]:
        for number in range(items):
            self.kept.append(number)
            yield self.kept

    @method
    async def refilled(self, items: int, size: int, array: bool) -> AsyncIterator[object]:
        buffer: Any = numpy.zeros(size, numpy.uint8) if array else bytearray(size)
        for number in range(items):
            buffer[:] = bytes([number]) * size if not array else number
            yield buffer

    @method
    async def unsendable(self, items: int) -> AsyncIterator[object]:
        try:
            for number in range(items):
                yield number
            yield {"a": threading.Lock()}
            self.write("went on")
        finally:
            await trio.lowlevel.checkpoint()  # noqa: ASYNC102  that it works here is what is tested
            self.write("closed")

    @method
    async def stubborn(self) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            while True:
                yield 3
        finally:
            try:
                self.write("closing")
                await trio.sleep_forever()  # noqa: ASYNC102  that it works here is what is tested
            except trio.Cancelled:
                self.write("closing cut short")
                raise

    @method
    async def raises_while_closed(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            self.write("raising")
            raise RuntimeError("not tidy")

    @method
    async def yields_inside_a_scope(self) -> AsyncIterator[int]:
        with self.scope:
            while True:
                yield 1  # noqa: ASYNC119  what must not end more than its stream

    @method
    async def yields_inside_a_nursery(self, items: int) -> AsyncIterator[int]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            for number in range(items):
                yield number  # noqa: ASYNC101, ASYNC119  what must not end more than its stream
            nursery.cancel_scope.cancel()

    @method(concurrent=True)
    async def cancel_scope(self) -> None:
        self.scope.cancel()

    @method(concurrent=True)
    async def made_so_far(self) -> int:
        return self.made

    @method(concurrent=True)
    async def live_now(self) -> int:
        return self.live

    @method
    async def take_turn(self) -> str:
        return "turn"

    @method
    async def total_of_own(self, stop: int) -> int:
        return sum([number async for number in self.numbers(0, stop)])

    @method
    async def read_through_handle(self) -> list[int]:
        return [number async for number in self.handle.numbers(0, 3)]

    @method
    async def unreadable(self, items: int) -> AsyncIterator[object]:
        module = types.ModuleType("a_module_that_vanishes")
        source = (
            "import attrs\nfrom actors import message\n\n@message\n@attrs.frozen\nclass "
            "Known:\n    pass\n"
        )
        exec(compile(source, "a_module_that_vanishes.py", "exec"), module.__dict__)
        try:
            for number in range(items):
                yield number
            while True:
                yield module.Known()
        finally:
            self.write("closed")

    @method
    async def exiting(self, items: int) -> AsyncIterator[int]:
        for number in range(items):
            yield number
        raise SystemExit(1)

    @method(concurrent=True)
    async def crash_now(self) -> None:
        async def explode() -> None:
            raise RuntimeError("boom")

        self.nursery.start_soon(explode)


class Reader(Diary):
    """Reads the streams of others."""

    @method
    async def read_all(self, source: Source, stop: int) -> int:
        return sum([number async for number in source.numbers(0, stop)])

    @method
    async def read_one_and_hold(self, source: Source) -> None:
        async with source.endless() as items:
            async for _ in items:
                self.write("holding")
                await trio.sleep_forever()


def open_streams(nodes: list[Node]) -> int:
    """What any table of these nodes holds of streams and their invocations."""
    count = 0
    for node in nodes:
        endpoint = internals_of(node).endpoint
        count += endpoint.stream_server.count
        for table in endpoint.caller.routes.tables.values():
            count += sum(isinstance(call, StreamCall) for call in table.pending.values())
        count += sum(
            invocation.definition.stream
            for cell in endpoint.host.cells.values()
            for invocation in (*cell.running, *(cell.mailbox or ()))
        )
        count += sum(
            invocation.definition.stream
            for invocation in endpoint.host.workers.running.values()
            if invocation.runner is not None
        )
    return count


async def nothing_left(*nodes: Node) -> None:
    """Wait until no table holds anything of a stream."""
    await until(
        lambda: open_streams(list(nodes)), "no stream is left", lambda left: not left, every=0.001
    )


async def read_into(seen: list[Any], items: AsyncIterator[Any]) -> None:
    async for item in items:
        seen.append(item)


async def round_trips(source: Source, count: int = 20) -> None:
    """Time for everybody to do what they should not."""
    for _ in range(count):
        await source.made_so_far()


@pytest.fixture
async def source(pair: Pair, where: str) -> AsyncIterator[Source]:
    """A source on either node. After each test, nothing may be left of its streams."""
    yield await pair.here.options(name="source", on=where).spawn(Source)
    await nothing_left(pair.here, pair.there)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 33, 100, 5000])
async def test_all_items_come_once_and_in_order_and_then_the_end(
    source: Source, count: int
) -> None:
    with trio.fail_after(60):
        assert [number async for number in source.numbers(0, count)] == list(range(count))
        async with source.numbers(5, count) as items:
            assert isinstance(items, Stream)
            assert [number async for number in items] == list(range(5, count))
            with pytest.raises(StopAsyncIteration):
                await anext(items)


async def test_items_of_all_sizes_keep_their_order(source: Source) -> None:
    draw = random.Random(1)
    sizes = [draw.choice([0, 1, 100, 5_000, 70_000, 2 * MIB, 5 * MIB]) for _ in range(60)]
    with trio.fail_after(60):
        number = 0
        async for item in source.sized(sizes):
            assert item == bytes([number]) * sizes[number]
            number += 1
        assert number == 60


async def test_the_end_never_overtakes_a_large_last_item(source: Source) -> None:
    with trio.fail_after(60):
        for size in (70_000, 2 * MIB, 5 * MIB):
            assert [len(item) async for item in source.sized([size])] == [size]
            assert [len(item) async for item in source.sized([1, size])] == [1, size]


async def test_values_come_equal_and_of_their_own_type(source: Source) -> None:
    values: list[object] = [
        None,
        True,
        -(2**70),
        1.5,
        "ä\0",
        b"raw",
        bytes(200_000),
        [1, [2]],
        (1, (2, "x")),
        {"a": {"b": 1}},
        {1, 2},
    ]
    with trio.fail_after(60):
        back = [value async for value in source.values(values)]
    assert back == values
    assert list(map(type, back)) == list(map(type, values))


async def test_an_item_changed_after_it_was_yielded_arrives_as_it_was(source: Source) -> None:
    with trio.fail_after(60):
        lists = [item async for item in source.growing(40)]
        assert lists == [list(range(length)) for length in range(1, 41)]
        lists[0].append(99)
        for array in (False, True):
            items: list[Any] = [item async for item in source.refilled(20, 300_000, array)]
            assert [(int(item[0]), int(item[-1])) for item in items] == [
                (number, number) for number in range(20)
            ]


async def test_a_handle_inside_an_item_can_be_read_where_it_arrives(source: Source) -> None:
    with trio.fail_after(60):
        async for item in source.values([source]):
            assert [number async for number in item.numbers(0, 3)] == [0, 1, 2]  # type: ignore[attr-defined]
            break


async def test_nothing_happens_before_the_first_item_is_asked_for(source: Source) -> None:
    with trio.fail_after(60):
        stream = source.endless()
        async with source.endless():
            pass
        await source.endless().aclose()
        await round_trips(source)
        del stream
        gc.collect()
        assert await source.read() == []


async def test_a_producer_runs_ahead_by_the_window_and_no_further(
    pair: Pair, source: Source
) -> None:
    with trio.fail_after(60):
        async with source.endless() as items:
            await anext(items)
            while await source.made_so_far() < MOST_ITEMS:
                pass
            await round_trips(source)
            assert await source.made_so_far() == MOST_ITEMS
            for _ in range(14):
                await anext(items)
            await round_trips(source)
            assert await source.made_so_far() == MOST_ITEMS
            await anext(items)
            while await source.made_so_far() < MOST_ITEMS + 16:
                pass
            await round_trips(source)
            assert await source.made_so_far() == MOST_ITEMS + 16


@pytest.mark.parametrize(("size", "ahead"), [(MIB, 4), (3 * MIB, 2), (5 * MIB, 1)])
async def test_large_items_fill_the_window_by_their_bytes_and_one_always_fits(
    source: Source, size: int, ahead: int
) -> None:
    with trio.fail_after(60):
        async with source.endless(size) as items:
            assert len(await anext(items)) == size
            # With the first item more than half of the window may be consumed, and granted again.
            most = ahead + (size * 2 >= 4 * MIB)
            while await source.made_so_far() < most:
                pass
            await round_trips(source)
            assert await source.made_so_far() == most


async def test_a_reader_that_leaves_the_block_closes_the_generator(source: Source) -> None:
    with trio.fail_after(60):
        async with source.endless() as items:
            async for _ in items:
                break
        await source.seen("closed")
        # After its turn, the next: the clean-up had finished by then.
        assert await source.take_turn() == "turn"


async def test_a_reader_that_breaks_and_drops_the_stream_closes_the_generator(
    source: Source,
) -> None:
    with trio.fail_after(60):
        async for _ in source.endless():
            break
        await source.seen("closed")


async def test_a_stream_dropped_by_the_collector_in_another_thread_closes_the_generator(
    source: Source,
) -> None:
    with trio.fail_after(60):
        items = source.endless()
        await anext(items)
        ring: list[object] = [items]
        ring.append(ring)
        del items, ring
        await trio.to_thread.run_sync(gc.collect)
        await source.seen("closed")


async def test_aclose_ends_the_stream_however_often_it_is_called(source: Source) -> None:
    with trio.fail_after(60):
        items = source.endless()
        await anext(items)
        await items.aclose()
        await items.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        await source.seen("closed")


async def divide(items: Stream[bytes]) -> None:
    async with items:
        async for item in items:
            assert 1 / len(item)


async def test_a_reader_that_raises_closes_the_generator(source: Source) -> None:
    with trio.fail_after(60):
        items = source.endless()
        with pytest.raises(ZeroDivisionError):
            await divide(items)
        await source.seen("closed")


async def test_a_reader_cancelled_between_two_items_closes_the_generator(source: Source) -> None:
    with trio.fail_after(60):
        with trio.CancelScope() as scope:
            async with source.endless() as items:
                async for _ in items:
                    scope.cancel()
                    await trio.sleep_forever()
        await source.seen("closed")


async def test_a_cancelled_reader_cancels_the_generator_and_ends_the_stream(
    source: Source,
) -> None:
    with trio.fail_after(60):
        items = source.waiting(1)
        assert await anext(items) == 0
        with trio.move_on_after(0.01) as scope:
            await anext(items)
        assert scope.cancelled_caught
        await source.seen("cancelled")
        await source.seen("closed")
        with pytest.raises(StopAsyncIteration):
            await anext(items)


async def test_a_cancelled_reader_learns_it_though_items_wait(source: Source) -> None:
    with trio.fail_after(60):
        async with source.endless() as items:
            await anext(items)
            while await source.made_so_far() < MOST_ITEMS:
                pass
            seen: list[bytes] = []
            with trio.CancelScope() as scope:
                scope.cancel()
                await read_into(seen, items)
            assert scope.cancelled_caught
            assert seen == []
        await source.seen("closed")


async def test_a_stream_cancelled_while_it_waits_for_its_turn_never_runs(source: Source) -> None:
    with trio.fail_after(60):
        async with source.waiting(1) as items:
            await anext(items)
            with trio.move_on_after(0.01):
                await anext(source.endless())
        await source.take_turn()
        assert "begun" not in await source.read()


@pytest.mark.parametrize("timings", [Timings(stream_cleanup=0.05)])
async def test_clean_up_that_takes_too_long_is_cut_short(source: Source) -> None:
    with trio.fail_after(60):
        async for _ in source.stubborn():
            break
        await source.seen("closing cut short")
        assert await source.take_turn() == "turn"


async def test_clean_up_that_raises_is_logged_where_the_actor_runs(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(60), caplog.at_level(logging.ERROR, "understudy"):
        async for _ in source.raises_while_closed():
            break
        await source.seen("raising")
        assert await source.take_turn() == "turn"
    assert "source.raises_while_closed raised while it was being closed" in caplog.text
    assert "not tidy" in caplog.text


@pytest.mark.parametrize("count", [0, 1, 20, 32, 100])
async def test_an_error_comes_after_the_items_before_it_and_once(
    source: Source, count: int
) -> None:
    seen: list[int] = []
    with trio.fail_after(60):
        items = source.failing(count)
        with pytest.raises(OutOfStockError) as caught:
            await read_into(seen, items)
        assert seen == list(range(count))
        error = caught.value
        assert isinstance(error, RemoteError)
        assert (error.args, error.actor, error.method) == (("bolts", count), "source", "failing")
        assert "raise OutOfStockError" in error.remote_traceback
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        assert await source.take_turn() == "turn"


async def test_an_item_that_cannot_be_sent_ends_the_stream_and_is_named(source: Source) -> None:
    seen: list[object] = []
    with trio.fail_after(60):
        with pytest.raises(ReplyEncodeError, match=r"source\.unsendable yielded .*item\['a'\]"):
            await read_into(seen, source.unsendable(20))
        assert seen == list(range(20))
        await source.seen("closed")
        assert "went on" not in await source.read()


async def test_an_item_that_cannot_be_read_ends_the_stream_and_closes_the_generator(
    pair: Pair,
) -> None:
    source = await pair.here.options(on="there").spawn(Source)
    seen: list[object] = []
    with trio.fail_after(60):
        with pytest.raises(
            OutcomeUnknownError,
            match=r"unreadable yielded an item that cannot be read here: .*a_module_that_vanishes",
        ):
            await read_into(seen, source.unreadable(20))
        assert seen == list(range(20))
        await source.seen("closed")
        assert await source.take_turn() == "turn"
    await nothing_left(pair.here, pair.there)


async def test_items_that_had_arrived_come_before_the_news_of_the_actors_death(
    source: Source,
) -> None:
    seen: list[int] = []
    with trio.fail_after(60):
        items = source.waiting(20)
        for number in range(5):
            assert await anext(items) == number
        await source.seen("waiting")
        await source.crash_now()
        with pytest.raises(ActorDiedError):
            await read_into(seen, items)
        assert seen == list(range(5, 20))


async def test_a_generator_that_asks_to_exit_ends_its_actor(pair: Pair, where: str) -> None:
    source = await pair.here.options(on=where).spawn(Source)
    seen: list[int] = []
    with trio.fail_after(60):
        with pytest.raises(RemoteError) as caught:
            await read_into(seen, source.exiting(3))
        assert caught.value.remote_type == "builtins:SystemExit"
        assert seen == [0, 1, 2]
        with pytest.raises(ActorNotFoundError):
            await source.take_turn()
    await nothing_left(pair.here, pair.there)


async def test_an_actor_that_is_stopped_ends_the_stream_that_would_not_end(
    pair: Pair, source: Source
) -> None:
    with trio.fail_after(60):
        async with source.endless() as items:
            await anext(items)
            await internals_of(pair.here).spawner.stop_address(
                source.address, ExitReason("stopped", "the test asked for it"), 0.5
            )
            with pytest.raises(ActorDiedError):
                async for _ in items:
                    pass


async def test_a_timeout_covers_the_whole_stream(source: Source) -> None:
    seen: list[int] = []
    with trio.fail_after(60):
        with pytest.raises(CallTimeoutError, match=r"0\.5 s"):
            await read_into(seen, source.waiting.options(timeout=0.5)(3))
        assert seen == [0, 1, 2]
        await source.seen("cancelled")


async def test_a_stream_whose_timeout_passes_while_nobody_asks_is_closed_all_the_same(
    source: Source,
) -> None:
    with trio.fail_after(60):
        async with source.endless.options(timeout=0.5)() as items:
            await anext(items)
            await source.seen("closed")
            with pytest.raises(CallTimeoutError):
                async for _ in items:
                    pass


async def test_a_stream_whose_timeout_passes_before_its_turn_comes_did_not_run(
    source: Source,
) -> None:
    with trio.fail_after(60):
        async with source.waiting(1) as items:
            await anext(items)
            with pytest.raises((DeadlineExceededError, CallTimeoutError)):
                await anext(source.endless.options(timeout=0.05)())
        await source.take_turn()
        assert "begun" not in await source.read()


async def test_the_generator_has_the_timeout_for_its_deadline_and_none_of_the_readers_scopes(
    source: Source,
) -> None:
    with trio.fail_after(60):
        async for deadline in source.deadline():
            assert deadline == float("inf")
        before = trio.current_time()
        async for deadline in source.deadline.options(timeout=3)():
            assert before + 2 < deadline < trio.current_time() + 4


async def test_a_stream_holds_its_actors_turn_unless_it_is_concurrent(source: Source) -> None:
    with trio.fail_after(60):
        async with source.beside(10_000) as items:
            await anext(items)
            assert await source.take_turn() == "turn"
        async with source.endless() as held:
            await anext(held)
            with trio.move_on_after(0.02) as scope:
                await source.take_turn()
            assert scope.cancelled_caught
        assert await source.take_turn() == "turn"


async def test_an_actor_that_reads_its_own_stream_through_a_handle_is_refused_instead_of_hanging(
    source: Source,
) -> None:
    with trio.fail_after(60):
        with pytest.raises(RemoteError) as caught:
            await source.read_through_handle()
        assert caught.value.remote_type.endswith(SelfCallError.__name__)
        assert "self.numbers" in str(caught.value)
        assert await source.total_of_own(10) == 45


async def test_an_actor_reads_the_stream_of_another_and_lets_go_of_it_when_its_own_caller_goes(
    pair: Pair, source: Source
) -> None:
    reader = await pair.there.spawn(Reader)
    with trio.fail_after(60):
        assert await reader.read_all(source, 100) == 4950
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.read_one_and_hold, source)
            await reader.seen("holding")
            nursery.cancel_scope.cancel()
        await source.seen("closed")


async def test_a_second_reader_is_refused_and_the_first_goes_on(source: Source) -> None:
    seen: list[int] = []

    async def read(items: Stream[int]) -> None:
        seen.append(await anext(items))

    with trio.fail_after(60):
        items = source.waiting(1)
        await anext(items)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, items)
            await source.seen("waiting")
            with pytest.raises(trio.BusyResourceError):
                await anext(items)
            await source.open_gate()
        assert seen == [1]
        await items.aclose()


async def test_a_stream_closed_by_another_task_ends_for_its_reader(source: Source) -> None:
    ended = trio.Event()

    async def read(items: Stream[int]) -> None:
        async for _ in items:
            pass
        ended.set()

    with trio.fail_after(60):
        items = source.waiting(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, items)
            await source.seen("waiting")
            await items.aclose()
        assert ended.is_set()
        await source.seen("cancelled")


async def test_what_fits_no_stream_is_refused(pair: Pair, source: Source) -> None:
    anything = internals_of(pair.here).endpoint.make_handle(
        attrs.evolve(source.address, class_path="")
    )
    wrong = {"take_turn": MethodDefinition("take_turn", lambda: None, stream=True)}
    with trio.fail_after(60):
        with pytest.raises(NotExecutedError, match="is a stream, and was called for one value"):
            await anything.numbers(0, 1)
        with pytest.raises(NotExecutedError, match="is a stream, and was called for one value"):
            await anything.numbers.options(
                retry=RetryPolicy(repeat_unknown=True, max_retries=1, initial_delay=0.001)
            )(0, 1)
        with pytest.raises(NotExecutedError, match="was called as a stream"):
            await anext(Handle(internals_of(pair.here).caller, source.address, wrong).take_turn())
        await anything.endless.send()
        with pytest.raises(BadArgumentsError, match="numbers"):
            await anext(source.numbers("too", "many", "arguments"))  # type: ignore[call-arg, arg-type]
        with pytest.raises(EncodeError, match=r"argument values\[0\]"):
            await anext(source.values([threading.Lock()]))
        assert await source.read() == []


async def test_one_way_references_and_repeats_are_refused_for_streams(source: Source) -> None:
    with pytest.raises(TypeError, match="cannot be sent one way"):
        source.endless.send()
    with pytest.raises(TypeError, match="no one result"):
        source.endless.remote()
    with pytest.raises(TypeError, match="never repeated"):
        source.endless.options(retry=RetryPolicy())  # type: ignore[call-arg]
    # What is said of all calls of a handle does not concern its streams.
    patient: Any = source.options(retry=RetryPolicy())
    with trio.fail_after(60):
        assert [number async for number in patient.numbers(0, 3)] == [0, 1, 2]


def test_methods_that_cannot_be_streams_are_refused_where_they_are_written() -> None:
    async def agenerator(self: object) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="plain generator"):

        @method
        def generator(self: object) -> Any:
            yield 1

    with pytest.raises(TypeError, match="never repeated"):
        method(idempotent=True)(agenerator)
    with pytest.raises(TypeError, match="never repeated"):
        method(retry=RetryPolicy())(agenerator)
    assert method(timeout=3)(agenerator).definition.stream


async def test_without_a_node_a_stream_is_its_generator() -> None:
    assert [number async for number in Source().numbers(0, 3)] == [0, 1, 2]


async def test_streams_beyond_the_mailboxs_limit_are_refused(pair: Pair, where: str) -> None:
    source = await pair.here.options(on=where, mailbox_limit=1).spawn(Source)
    with trio.fail_after(60):
        async with source.waiting(1) as items:
            await anext(items)
            await source.take_turn.send()
            with pytest.raises(MailboxFullError):
                await anext(source.numbers(0, 1))
    await nothing_left(pair.here, pair.there)


@LONG_LEASE
async def test_a_thousand_streams_at_once_each_get_their_own_items(
    pair: Pair, source: Source
) -> None:
    done: list[int] = []

    async def read(number: int) -> None:
        seen = [item async for item, _ in source.beside(40 + number % 50)]
        assert seen == list(range(40 + number % 50))
        done.append(number)

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(read, number)
        assert len(done) == 1000
        await nothing_left(pair.here, pair.there)
        assert await source.live_now() == 0


async def test_a_hundred_streams_nobody_reads_on_hold_up_neither_calls_nor_each_other(
    pair: Pair, source: Source
) -> None:
    streams = [source.beside(200, 50_000) for _ in range(100)]
    with trio.fail_after(60):
        for stream in streams:
            await anext(stream)
        assert await source.take_turn() == "turn"
        held = streams.pop()
        assert [number async for number, _ in held] == list(range(1, 200))
        for stream in streams[:50]:
            await stream.aclose()
        for stream in streams[50:]:
            assert len([number async for number, _ in stream]) == 199
        await nothing_left(pair.here, pair.there)
        assert await source.live_now() == 0


async def test_readers_that_come_and_go_at_random_leave_nothing_behind(
    pair: Pair, source: Source
) -> None:
    draw = random.Random(3)

    async def read(stop: int, how: int) -> None:
        stream = source.beside(100, draw.choice([0, 10, 20_000]))
        expected = 0
        with trio.move_on_after(draw.random() * 0.2 if how == 0 else 60):
            async for number, _ in stream:
                assert number == expected
                expected += 1
                if draw.random() < 0.1:
                    await trio.sleep(draw.random() * 0.01)
                if how == 1 and number == stop:
                    break
                if how == 2 and number == stop:
                    await stream.aclose()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(250):
                nursery.start_soon(read, draw.randrange(100), draw.randrange(4))
        await nothing_left(pair.here, pair.there)
        assert await source.live_now() == 0


async def test_a_generator_may_yield_inside_a_nursery(source: Source) -> None:
    with trio.fail_after(60):
        assert [number async for number in source.yields_inside_a_nursery(100)] == list(range(100))
        async for _ in source.yields_inside_a_nursery(100):
            break
        assert await source.take_turn() == "turn"


async def test_a_scope_around_a_yield_that_is_cancelled_meanwhile_ends_the_stream_and_nothing_else(
    source: Source,
) -> None:
    with trio.fail_after(60):
        items = source.yields_inside_a_scope()
        await anext(items)
        await source.cancel_scope()
        with pytest.raises(RuntimeError, match="yields inside a cancel scope") as caught:
            async for _ in items:
                pass
        assert isinstance(caught.value, RemoteError)
        assert await source.take_turn() == "turn"


async def test_an_old_handle_streams_from_the_actor_that_has_the_name_now(pair: Pair) -> None:
    with trio.fail_after(60):
        old = await pair.here.options(name="moving", on="there").spawn(Source)
        assert [number async for number in old.numbers(0, 2)] == [0, 1]
        await pair.here.stop(old)
        with pytest.raises(ActorNotFoundError):
            await anext(old.numbers(0, 1))
        await pair.here.options(name="moving", on="here").spawn(Source)
        assert [number async for number in old.numbers(0, 2)] == [0, 1]
        await nothing_left(pair.here, pair.there)


async def test_a_stream_waits_for_its_actor_while_that_is_being_restarted(
    pair: Pair, where: str
) -> None:
    spec = ChildSpec(id="child", actor=Source, options=SpawnOptions(name="child", on=where))
    await pair.here.options(name="tree").spawn(Supervisor, [spec], intensity=3)
    with trio.fail_after(60):
        child = await pair.here.lookup("child", Source)
        for _ in range(3):
            await child.crash_now.send()
            while True:
                try:
                    assert [number async for number in child.numbers(0, 3)] == [0, 1, 2]
                except ActorDiedError:
                    continue
                break


async def read_slowly(items: Stream[bytes]) -> None:
    async for _ in items:
        await trio.sleep(0.001)


async def test_a_producer_that_ignores_credit_loses_its_link(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Greedy(SendingWindow):
        """Sends on and on."""

        def send(self, size: int) -> None:
            super().send(size)
            self.open = self.sent < 100

    monkeypatch.setattr(stream_server_module, "SendingWindow", Greedy)
    source = await pair.here.options(on="there").spawn(Source)
    with trio.fail_after(60), caplog.at_level(logging.ERROR, "understudy"):
        with pytest.raises(ConnectionLostError):
            await read_slowly(source.endless())
        assert "without credit" in caplog.text


async def test_credit_for_what_was_never_sent_costs_the_link(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    source = await pair.here.options(on="there").spawn(Source)
    with trio.fail_after(60), caplog.at_level(logging.ERROR, "understudy"):
        items = source.endless()
        await anext(items)
        link = next(
            link for link in internals_of(pair.here).links.values() if link.peer.name == "there"
        )
        (number,) = internals_of(pair.here).caller.routes.tables[link].pending
        link.post(credit_frame(number, 1_000_000))
        with pytest.raises(ConnectionLostError):
            async for _ in items:
                pass
        assert "credit for 1000000 items" in caplog.text


async def test_late_items_and_credits_for_streams_that_are_over_are_dropped(pair: Pair) -> None:
    source = await pair.here.options(on="there").spawn(Source)
    with trio.fail_after(60):
        async for _ in source.endless():
            break
        for link in internals_of(pair.here).links.values():
            link.post(credit_frame(123_456, 16))
        assert await source.take_turn() == "turn"
        assert [number async for number in source.numbers(0, 40)] == list(range(40))


@pytest.mark.parametrize("seed", range(6))
async def test_streams_go_on_over_connections_that_are_cut_at_any_byte(seed: int) -> None:
    network = CuttingNetwork(random.Random(seed), 400, 2_500)
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            home, away = await cut_pair(nursery, network)
            await home.options(name="source").spawn(Source)
            source = await away.lookup("source", Source)
            done: list[int] = []

            async def read(size: int) -> None:
                numbers = [number async for number, _ in source.beside(300, size)]
                assert numbers == list(range(300)), f"seed {seed}"
                done.append(size)

            network.cutting = True
            assert network.latest is not None
            network.latest.close()
            async with trio.open_nursery() as readers:
                for size in (0, 1, 10, 100, 200, 400):
                    readers.start_soon(read, size)
            network.cutting = False
            assert len(done) == 6
            assert network.cuts >= 3
            await nothing_left(home, away)
            nursery.cancel_scope.cancel()


async def test_a_stream_left_while_its_connection_is_down_is_closed_when_there_is_one_again() -> (
    None
):
    network = CuttingNetwork(random.Random(1), 700, 20_000)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            home, away = await cut_pair(nursery, network)
            at_home = await home.options(name="source").spawn(Source)
            source = await away.lookup("source", Source)
            async with source.endless() as items:
                await anext(items)
                assert network.latest is not None
                network.latest.close()
            await at_home.seen("closed")
            await nothing_left(home, away)
            nursery.cancel_scope.cancel()


@pytest.mark.cluster
async def test_the_items_that_came_are_followed_by_the_news_that_their_node_was_killed() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        source = await cluster.node.options(name="source", on="worker-1").spawn(Source)
        seen: list[int] = []
        with trio.fail_after(60):
            items = source.waiting(20)
            await anext(items)
            await source.seen("waiting")
            cluster.process("worker-1").kill()
            with pytest.raises(NodeDiedError):
                await read_into(seen, items)
            assert seen == list(range(1, 20))
        assert open_streams([cluster.node]) == 0


@pytest.mark.cluster
async def test_a_generator_whose_reader_was_killed_is_closed() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        source = await cluster.node.options(name="source").spawn(Source)
        reader = await cluster.node.options(on="worker-1").spawn(Reader)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                async def hold() -> None:
                    with pytest.raises(NodeDiedError):
                        await reader.read_one_and_hold(source)

                nursery.start_soon(hold)
                await reader.seen("holding")
                cluster.process("worker-1").kill()
            await source.seen("closed")
            assert await source.take_turn() == "turn"
        await nothing_left(cluster.node)
