"""The asyncio door: what tasks await, cancellation both ways, several loops, and uvloop."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.errors import (
    ActorNotFoundError,
    BadArgumentsError,
    CallTimeoutError,
    JoinError,
    NotAMemberError,
    OutcomeUnknownError,
    PoolStoppedError,
    RemoteError,
    WrongDoorError,
)
from runtime.aio import AioCluster, connect, open_local_cluster
from runtime.blocking import Blocking, BlockingLocalCluster
from runtime.doors.asyncio_door import AsyncioRequest
from runtime.node import internals_of
from runtime.pools.pool import Pool
from tests.doors.actors_used import Counter
from tests.doors.conftest import raised
from tests.pools.actors_used import NoSuchShapeError, Squares

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0

Test = Callable[[AioCluster, Counter], Awaitable[None]]
"""One test, within a loop, with a connection and a handle of it."""


def run(
    test: Test,
    cluster: BlockingLocalCluster,
    counter: Blocking[Counter],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run it in an asyncio loop of its own."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), connect(cluster.address) as own:
            await test(own, await own.lookup(counter.name, Counter))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def every_kind_of_call(cluster: AioCluster, counter: Counter) -> None:
    assert await counter.add(5) == 5
    assert await counter.add.options(timeout=5.0)(1) == 6
    await counter.add.send(1)
    assert await counter.options(timeout=5.0).read() == 7
    assert await asyncio.gather(*(counter.add(1) for _ in range(10))) == list(range(8, 18))
    assert [number async for number in counter.count(100)] == list(range(100))
    kept = await counter.add.remote(1)
    assert (await kept.fetch(), await kept.ready(), kept.owner) == (18, True, "worker-1")
    numbers = await cluster.put([1, 2, 3])
    assert await counter.total(numbers.as_value()) == 6
    assert await counter.owner(numbers) == cluster.name
    assert await numbers.call.index(3) == 2
    assert await (await numbers.call.copy.remote()).fetch() == [1, 2, 3]
    assert await cluster.wait_any([kept, numbers], count=2) == ([kept, numbers], [])  # type: ignore[arg-type]
    spawned = await cluster.options(on="worker-1").spawn(Counter, 3)
    assert await counter.add_to(spawned, 4) == 7
    assert await cluster.handle(await counter.me()).read() == 18
    assert cluster.name in {member.name for member in await cluster.members()}
    await cluster.stop(spawned)
    assert (await cluster.wait_ended(spawned)).reason.kind == "no such actor"


def test_every_kind_of_call(cluster: BlockingLocalCluster, counter: Blocking[Counter]) -> None:
    run(every_kind_of_call, cluster, counter)


def test_a_call_that_is_not_awaited_is_named_in_words_of_the_user(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def forgetful(cluster: AioCluster, counter: Counter) -> None:
        add: Callable[[int], Any] = counter.add
        with pytest.warns(RuntimeWarning, match="'call of an actor' was never awaited"):
            add(1)

    run(forgetful, cluster, counter)


def test_under_uvloop(cluster: BlockingLocalCluster, counter: Blocking[Counter]) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: make test installs it")
    run(every_kind_of_call, cluster, counter, uvloop.new_event_loop)


def test_groups_of_users_arrive_whole(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        with pytest.raises(ExceptionGroup, match="outer"):  # noqa: ASYNC401 (its text)
            await counter.fail_in_group()
        with pytest.raises(ExceptionGroup, match="from Trio nursery"):  # noqa: ASYNC401 (its text)
            await counter.fail_in_nursery()

    run(test, cluster, counter)


def test_errors_are_those_of_any_call(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    name = counter.name

    async def test(cluster: AioCluster, counter: Counter) -> None:
        with pytest.raises(RemoteError, match="no way") as caught:
            await counter.fail("no way")
        assert isinstance(caught.value, ValueError)
        with pytest.raises(BadArgumentsError, match="amount"):
            counter.add()  # type: ignore[call-arg, unused-coroutine]
        with pytest.raises(ActorNotFoundError, match=f"did you mean '{name}'"):
            await cluster.lookup(f"{name}s", Counter)
        with pytest.raises(CallTimeoutError):
            await counter.hang.options(timeout=0.5)("late")
        assert await counter.wait_for("late cancelled")
        with pytest.raises(JoinError, match="no node answers"):
            await connect("127.0.0.1:9", secret="none")

    run(test, cluster, counter)


def test_cancelling_the_task_cancels_the_method(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        task = asyncio.create_task(counter.hang("task"))
        assert await counter.wait_for("task begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await counter.wait_for("task cancelled")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await counter.hang("scope")
        assert await counter.wait_for("scope cancelled")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.gather(counter.hang("first"), counter.hang("second"))
        assert await counter.wait_for("first cancelled")
        assert await counter.wait_for("second cancelled")

    run(test, cluster, counter)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("start", ["spawn", "spawn_many", "get_or_spawn"])
def test_an_actor_whose_handle_was_on_its_way_to_a_cancelled_task_is_stopped(
    cluster: BlockingLocalCluster,
    counter: Blocking[Counter],
    monkeypatch: pytest.MonkeyPatch,
    start: str,
    before: bool,
) -> None:
    names = [f"lost-{start}-{before}-{number}" for number in range(2)]
    ended = AsyncioRequest.ended

    async def test(cluster: AioCluster, counter: Counter) -> None:
        placed = cluster.options(on="worker-1")
        if start == "spawn_many":
            task = asyncio.create_task(placed.spawn_many(Counter, [()] * 2, names=names))
        else:
            task = asyncio.create_task(getattr(placed.options(name=names[0]), start)(Counter))

        def ended_beside_a_cancellation(self: Any, value: object, error: object) -> None:
            monkeypatch.setattr(AsyncioRequest, "ended", ended)
            self.loop.call_soon_threadsafe(both, self, value, error)

        def both(request: Any, value: object, error: object) -> None:
            """In one pass of the loop, as where it was busy for a while."""
            if before:
                task.cancel()
            request._finish(value, error)
            if not before:
                task.cancel()

        monkeypatch.setattr(AsyncioRequest, "ended", ended_beside_a_cancellation)
        with pytest.raises(asyncio.CancelledError):
            await task
        for name in names:
            while True:
                try:
                    await cluster.lookup(name, Counter)
                except ActorNotFoundError:
                    break

    run(test, cluster, counter)


@pytest.mark.parametrize("name", [None, "kept"])
def test_a_pool_that_was_on_its_way_to_a_cancelled_task_is_stopped_unless_it_has_a_name(
    cluster: BlockingLocalCluster, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    lost: list[Pool[Any]] = []
    ended = AsyncioRequest.ended

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), connect(cluster.address) as own:
            task = asyncio.create_task(own.pool(name, Squares, size=1))

            def both(request: Any, value: Any, error: object) -> None:
                lost.append(value)
                task.cancel()
                request._finish(value, error)

            def ended_beside_a_cancellation(self: Any, value: object, error: object) -> None:
                monkeypatch.setattr(AsyncioRequest, "ended", ended)
                self.loop.call_soon_threadsafe(both, self, value, error)

            monkeypatch.setattr(AsyncioRequest, "ended", ended_beside_a_cancellation)
            with pytest.raises(asyncio.CancelledError):
                await task
            if name is None:
                while lost[0].name in str(await own.tree()):  # noqa: ASYNC110  asked of the node
                    await asyncio.sleep(0.01)
            else:
                await (await own.lookup_pool(name, Squares)).stop()

    asyncio.run(main())
    assert len(lost) == 1


def test_a_stream_that_is_left_is_closed(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        async with counter.count(1_000_000) as numbers:
            assert await anext(numbers) == 0
        assert await counter.wait_for("count closed")
        assert await anext(numbers, None) is None

    run(test, cluster, counter)


def test_what_ends_over_there_ends_the_task(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        second = await connect(cluster.address, cluster="local", secret=secret)
        handle = second.handle(counter)
        task = asyncio.create_task(handle.hang("closed"))
        assert await counter.wait_for("closed begun")
        await second.close()
        await second.close()
        with pytest.raises(OutcomeUnknownError):
            await task
        assert await counter.wait_for("closed cancelled")
        with pytest.raises(NotAMemberError, match="closed"):
            await handle.read()
        hanging = await cluster.options(on="worker-1").spawn(Counter)
        waiting = asyncio.create_task(hanging.hang("stopped"))
        assert await hanging.wait_for("stopped begun")
        await cluster.stop(hanging)
        with pytest.raises(OutcomeUnknownError):
            await waiting

    secret = internals_of(cluster._door.node).keyring
    run(test, cluster, counter)


def test_contextvars_are_those_of_the_task(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    variable = contextvars.ContextVar("variable", default="default")

    async def test(cluster: AioCluster, counter: Counter) -> None:
        async def read() -> str:
            return variable.get()

        async def task(value: str) -> str:
            variable.set(value)
            return await cluster._door.wait(read)

        assert await asyncio.gather(task("one"), task("two")) == ["one", "two"]
        assert await cluster._door.wait(read) == "default"

    run(test, cluster, counter)


def test_one_cluster_in_two_loops(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        def other_loop() -> list[int]:
            async def main() -> list[int]:
                return [await counter.add(1) for _ in range(20)]

            return asyncio.run(main())

        async def here() -> list[int]:
            return [await counter.add(1) for _ in range(20)]

        both = await asyncio.gather(asyncio.to_thread(other_loop), here())
        assert sorted(both[0] + both[1]) == list(range(1, 41))

    run(test, cluster, counter)


def test_handles_move_between_all_doors(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(own: AioCluster, handle: Counter) -> None:
        assert await own.handle(counter).add(1) == 1
        moved = cluster.handle(handle)
        assert await asyncio.to_thread(moved.add, 1) == 2
        kept = await asyncio.to_thread(moved.add.remote, 1)
        assert await own.reference(kept).fetch() == 3
        assert await asyncio.to_thread(cluster.reference(await handle.add.remote(1)).fetch) == 4

    run(test, cluster, counter)


def test_outside_of_asyncio_the_error_names_the_door(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(own: AioCluster, handle: Counter) -> None:
        async def main() -> None:
            for use in (lambda: handle.add(1), lambda: own.members(), own.close):
                with pytest.raises(WrongDoorError, match=r"runtime\.open_node"):
                    await use()

        await asyncio.to_thread(trio.run, main)
        # And the blocking door refuses this loop.
        assert isinstance(raised(lambda: counter.add(1)), WrongDoorError)
        assert await handle.read() == 0

    run(test, cluster, counter)


def test_opening_is_cancelled_with_its_task(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(own: AioCluster, handle: Counter) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)

            async def dial() -> AioCluster:
                return await connect(f"127.0.0.1:{silent.getsockname()[1]}", secret="s")

            dialling = asyncio.create_task(dial())
            accepted, _ = await asyncio.get_running_loop().sock_accept(silent)
            with accepted:
                dialling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await dialling
        assert await handle.add(1) == 1

    run(test, cluster, counter)


def test_a_local_cluster_whose_process_is_killed() -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), open_local_cluster(1) as cluster:
            counter = await cluster.options(on="worker-1").spawn(Counter)
            waiting = asyncio.create_task(counter.hang("killed"))
            assert await counter.wait_for("killed begun")
            await cluster.processes["worker-1"].kill()
            with pytest.raises(OutcomeUnknownError):
                await waiting
            added = await cluster.start_node()
            assert added.name == "worker-2"
            await added.leave()
            assert not added.running

    asyncio.run(main())


def test_a_program_that_closes_nothing_leaves_in_order(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = f"""
import asyncio
from runtime.aio import connect
from tests.doors.actors_used import Counter
async def main():
    cluster = await connect({cluster.address!r}, name="unclosed")
    print(await (await cluster.lookup({counter.name!r}, Counter)).add(1))
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert "unclosed" not in {member.name for member in cluster.members()}


def test_a_pool_works_on_items_of_an_asyncio_program(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        closed = asyncio.Event()

        async def source() -> AsyncIterator[int]:
            try:
                for number in itertools.count():
                    # It belongs to this loop, and calls the cluster itself.
                    await asyncio.sleep(0)
                    assert cluster.name in {one.name for one in await cluster.members()}
                    yield number
            finally:
                closed.set()

        async with await cluster.pool("aio-squares", Squares, 1, size=2) as pool:
            results = pool.map(Squares.square, range(100))
            assert [result async for result in results] == [n * n + 1 for n in range(100)]
            assert (await results.counts()).done == 100
            in_thread = pool.map(Squares.square, (n for n in range(20)))
            assert [result async for result in in_thread] == [n * n + 1 for n in range(20)]
            async with pool.map(Squares.square, source()) as endless:
                assert [await anext(endless) for _ in range(3)] == [1, 2, 5]
            await closed.wait()
            with pytest.raises(NoSuchShapeError):
                await anext(pool.map(Squares.picky, [3]))
            counted = pool.map(Squares.square, range(50))
            reader = asyncio.ensure_future(anext(counted))
            states = [state.done async for state in counted.progress(0.01)]
            assert states == sorted(states)
            assert (states[-1], (await counted.counts()).total) == (50, 50)
            await reader
            await counted.aclose()
            starred = pool.starmap(Squares.square, [(2,), (3,)])
            assert [result async for result in starred] == [5, 10]
            assert await (await pool.submit(Squares.square, 4)).fetch() == 17
            stay = pool.map(Squares.square, [2, 3], keep=True)
            assert [await one.fetch() async for one in stay] == [5, 10]
            answers = await pool.call_all(Squares.square, 1)
            assert [answer.value for answer in answers] == [2, 2]
            assert await (await pool.choose("round-robin")).square(2) == 5
            assert len(await pool.members()) == 2
            same = await cluster.lookup_pool("aio-squares", Squares)
            assert [result async for result in same.map(Squares.square, [1])] == [2]
            await pool.resize(1)
            unread = pool.map(Squares.square, [1])
            await unread.aclose()
        with pytest.raises(PoolStoppedError):
            await anext(pool.map(Squares.square, [1]))

    run(test, cluster, counter)


def test_cancelling_the_reader_of_a_map_frees_the_members_and_ends_the_source(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        began, closed = asyncio.Event(), asyncio.Event()

        async def source() -> AsyncIterator[int]:
            try:
                yield 0
                began.set()
                await asyncio.sleep(3600)
            finally:
                closed.set()

        async with await cluster.pool(None, Squares, size=1) as pool:
            reader = asyncio.ensure_future(anext(pool.map(Squares.hang, source())))
            await began.wait()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await closed.wait()
            # The one member is free again.
            assert await anext(pool.map(Squares.square, [3])) == 9

    run(test, cluster, counter)


def test_an_asyncio_loop_that_ends_within_a_map_leaves_the_connections_loop_alone(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def test(cluster: AioCluster, counter: Counter) -> None:
        async def source() -> AsyncIterator[int]:
            yield 1
            await asyncio.sleep(3600)

        pool = await cluster.pool(None, Squares, size=1)
        # Dropped in the middle, with its source.
        assert await anext(pool.map(Squares.square, source())) == 1

    run(test, cluster, counter)
    assert counter.add(1) >= 1


@pytest.mark.parametrize("opens", [connect, open_local_cluster])
def test_a_cluster_that_is_not_open_says_how_it_is_opened(opens: Any) -> None:
    opening: Any = opens("127.0.0.1:1") if opens is connect else opens(nodes=1)
    with pytest.raises(
        AttributeError, match="no 'lookup' before the cluster is open: a cluster opens by"
    ):
        opening.lookup("counter", None)
    with pytest.raises(TypeError, match="a cluster opens by `async with"), opening:
        pass
