"""A cluster of real processes for one test: the fixture `local_cluster`.

The warm process, which has the imports done, lives as long as the session of tests. Each test gets
a cluster of its own, whose processes are forked from it: names, groups, saved states and whatever
else a test leaves behind end with its cluster, and no test sees those of another.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from actors.errors import OutcomeUnknownError
from runtime.aio import AioLocalCluster, ConnectionDoor
from runtime.blocking import BlockingLocalCluster
from runtime.cluster_processes import LocalCluster, NodeProcess, open_cluster_on
from runtime.doors.asyncio_door import run_in
from runtime.doors.blocking_door import BlockingDoor
from runtime.doors.loop_thread import PROCESS_LOOP, OpenBlock
from runtime.doors.portal import Portal, Request
from runtime.local_cluster import PRELOADED
from runtime.processes import ForkServer, open_fork_server
from runtime.supervision.placement import CALLS_ONLY
from runtime.testing.cluster_faults import ProcessFaults
from runtime.testing.virtual_cluster import calls_left

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""How long calls that were cancelled at the end of a test may take to end."""

WHAT = "the local cluster of this test"


def opened_blocks() -> dict[int, OpenBlock[Any]]:
    """The connections and clusters that are open in this process now, by identity."""
    return {id(block): block for block in PROCESS_LOOP.blocks()}


def close_forgotten(before: Mapping[int, OpenBlock[Any]]) -> list[str]:
    """Close what has been opened since, and is open still. Returns that in words."""
    forgotten = [block for key, block in opened_blocks().items() if key not in before]
    for block in forgotten:
        close_block(block)
    return [f"{block.what}, which was still open" for block in forgotten]


async def never(opened: object) -> str:
    """For blocks that do not end by themselves, or whose end shows when they are used."""
    await trio.sleep_forever()
    return ""


def open_block(block: OpenBlock[T]) -> T:
    """Enter a block in the loop of this process; blocks until it is entered."""
    portal = block.begin()
    try:
        portal.call(block.open)
    except BaseException:
        block.give_up()
        raise
    return block.opened


def close_block(block: OpenBlock[Any]) -> None:
    """Leave it; blocks until it is left. Raises what leaving raises."""
    block.loop.portal.call(block.close)


class WarmProcess:
    """The warm process from which the nodes of all tests of a session are forked. `preload`:
    modules that it imports, besides those of the runtime.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self._block = OpenBlock(
            partial(open_fork_server, preload=(*PRELOADED, *preload)),
            "the warm process of the tests",
            never,
        )

    def open(self) -> None:
        """Start it. Raises `ForkServerStartError` if a module cannot be imported."""
        open_block(self._block)

    def close(self) -> None:
        """End it."""
        close_block(self._block)

    @property
    def server(self) -> ForkServer:
        """The fork server."""
        return self._block.opened


@asynccontextmanager
async def _cluster_of_test(
    server: ForkServer,
    nodes: int,
    store: str | None,
    labels: Mapping[str, Mapping[str, str]],
    resources: Mapping[str, Mapping[str, float]],
) -> AsyncIterator[LocalCluster]:
    opened: LocalCluster | None = None
    try:
        # Actors are placed on nodes on which faults act, as on a simulated cluster's.
        async with open_cluster_on(
            server,
            nodes,
            store=store,
            labels={CALLS_ONLY: "true"},
            worker_labels=labels,
            worker_resources=resources,
        ) as opened:
            yield opened
    finally:
        if opened is not None:
            # Those that were paused, or did not end when they were asked to.
            for process in opened.processes.values():
                process.kill()


class ProcessCluster:
    """The local cluster of one test. `open` it, hand out a face, and `close` it. `labels` and
    `resources`: those of the workers, by name.
    """

    def __init__(
        self,
        warm: WarmProcess,
        nodes: int,
        store: str | None = None,
        *,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        resources: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        opening = partial(
            _cluster_of_test, warm.server, nodes, store, labels or {}, resources or {}
        )
        self._block = OpenBlock(opening, WHAT, never)
        self._opened: LocalCluster
        self._own_tasks = 0

    def open(self) -> None:
        """Start its processes. Raises `JoinError` if one does not join."""
        self._opened = open_block(self._block)
        # Those of the block itself, which are no calls.
        self._own_tasks = len(self._block.portal.nursery.child_tasks)

    def close(self) -> list[str]:
        """End it, with all that the test has left. Returns that in words."""
        left = self._block.loop.portal.call(self._left)
        close_block(self._block)
        return left

    def blocking(self) -> BlockingLocalCluster:
        """The cluster for plain tests."""
        return BlockingLocalCluster(BlockingDoor(self._block, self._opened.node), self._opened)

    def awaited(self) -> AsyncLocalCluster:
        """The cluster for tests that are `async def`."""
        return AsyncLocalCluster(AnyLoopDoor(self._block, self._opened.node), self._opened)

    def faults(self) -> ProcessFaults:
        """The faults of its processes."""
        return ProcessFaults(self._processes, self._do)

    def _processes(self) -> Mapping[str, NodeProcess]:
        return self._opened.processes

    def _do(self, function: Callable[[], None]) -> None:
        async def called() -> None:
            function()

        self._block.loop.portal.call(called)

    async def _left(self) -> list[str]:
        for process in self._opened.processes.values():
            if process.running:
                # It could not leave while it is paused.
                process.resume()
        portal = self._block.portal

        def left() -> int:
            # Below nothing once the test has closed its cluster: the block's own tasks have ended.
            return max(0, len(portal.nursery.child_tasks) - self._own_tasks + portal.calls)

        with trio.move_on_after(GRACE_SECONDS):
            while left() > 0:  # noqa: ASYNC110 - a nursery sets no event
                await trio.sleep(GRACE_SECONDS / 50)
        return calls_left(left())


class AsyncLocalCluster(AioLocalCluster):
    """The local cluster of an `async def` test, from the fixture `local_cluster`: for tests on trio
    and on asyncio alike.
    """


class AnyLoopDoor(ConnectionDoor):
    """A door for tasks of trio and of asyncio: whichever runs the test."""

    async def wait(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Run `function` in the loop of the connection; the task that runs the test waits for it,
        on trio or on asyncio. `undo`: see `run_in`.
        """
        self.block.check()
        if trio.lowlevel.in_trio_run():
            return await run_from_trio(self.block.portal, function)
        return await run_in(self.block.portal, function, undo)


class TrioRequest(Request[T]):
    """A request that a task of another trio run waits for."""

    __slots__ = ("done", "error", "results", "token")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        super().__init__(function)
        self.token = trio.lowlevel.current_trio_token()
        self.done = trio.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None

    def ended(self, value: T | None, error: BaseException | None) -> None:
        """Give the outcome to the trio task that waits for it, in its run."""
        if error is not None:
            self.error = error
        else:
            self.results.append(value)  # type: ignore[arg-type]
        try:
            self.token.run_sync_soon(self.done.set)
        except trio.RunFinishedError:
            # The test has ended, and none of its tasks waits any more.
            return


async def run_from_trio(portal: Portal, function: Callable[[], Awaitable[T]]) -> T:
    """Run a function in a portal; a task of this trio run waits for it, and is cancelled with it.
    The deadline of the task travels.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    deadline = trio.current_effective_deadline()
    seconds = deadline - trio.current_time()

    expired = False

    async def bounded() -> T:
        nonlocal expired
        with trio.move_on_after(max(seconds, 0.0)):
            return await function()
        expired = True
        raise OutcomeUnknownError("the deadline of the call has passed; it may have run")

    request = TrioRequest(function if seconds == math.inf else bounded)
    portal.submit(request)
    try:
        await request.done.wait()
    except BaseException:
        # The cancellation of this task.
        portal.cancel(request)
        raise
    if expired:
        # The same moment, over there: here it ends with Cancelled, as in one trio run.
        await trio.sleep_until(deadline)
    if request.error is not None:
        try:
            raise request.error
        finally:
            # The error has this frame in its traceback, and must not be in a circle with it.
            request.error = None
    return request.results[0]
