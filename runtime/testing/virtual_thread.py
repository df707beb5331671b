"""A simulated cluster for one test that is a plain function: the fixture `cluster` gives it a
cluster whose calls block.

The simulation runs in a thread of its own, and stands still, virtual time included, while nothing
is asked of it. So the test and the simulation take turns, and a run depends only on its seed and
what the test asks for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from runtime.blocking import BlockingCluster
from runtime.doors.blocking_door import BlockingDoor
from runtime.doors.loop_thread import OpenBlock
from runtime.doors.portal import Portal, Request
from runtime.node import Node
from runtime.testing.process_cluster import never
from runtime.testing.virtual_cluster import (
    VirtualClusterError,
    VirtualRun,
    calls_left,
    known,
    start_node,
    wait_whole,
)

T = TypeVar("T")

WHAT = "the simulated cluster of this test"

GRACE_SECONDS = 1.0
"""Virtual seconds in which calls that were cancelled at the end of a test may end."""


@attrs.define(eq=False)
class VirtualPortal(Portal):
    """Takes the requests of other threads into a simulation. `pump` is called by the simulation
    before time passes, and blocks it while no request is under way.
    """

    unfinished: int = 0
    """Requests that have not ended. The end of the cluster counts as one."""
    over: bool = False
    _handed: queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]] = attrs.field(
        factory=queue.SimpleQueue
    )

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Hand a function to the thread of the simulation, which calls it soon."""
        self._handed.put((function, args))
        if self.over:
            # Nothing pumps any more. Looked at after handing over, so that it cannot be missed.
            self._refuse()

    def pump(self) -> None:
        """Do what was handed over. Blocks until something is, if nothing else is under way."""
        while True:
            try:
                function, args = self._handed.get(block=self.unfinished == 0)
            except queue.Empty:
                return
            function(*args)

    def finish(self) -> None:
        """The simulation has ended."""
        self.over = self.closed = True
        self._refuse()

    def _refuse(self) -> None:
        while True:
            try:
                function, args = self._handed.get(block=False)
            except queue.Empty:
                return
            # What starts a request says that it is closed, and the rest does nothing.
            function(*args)

    def _start(self, request: Request[object]) -> None:
        if not self.closed:
            self.unfinished += 1
        super()._start(request)

    def _spawn(self, request: Request[object]) -> None:
        self._starting = True
        request.context.run(self.nursery.start_soon, self._run, request)

    async def _run(self, request: Request[object]) -> None:
        try:
            await request.run(self._begun)
        finally:
            self.unfinished -= 1
            assert self.unfinished >= 0, "what ends has begun"


class VirtualBlock(OpenBlock[Node]):
    """The part of an open block that the blocking door needs: here a node in a simulation."""

    def __init__(self, portal: Portal, node: Node) -> None:
        super().__init__(lambda: nullcontext(node), WHAT, never)
        self.portal = portal
        self.opened = node


class VirtualThread:
    """Runs a simulation in a thread; `run` says which. `open`, use `cluster`, and `close`."""

    def __init__(self, run: VirtualRun) -> None:
        self.run = run
        self.portal: VirtualPortal
        self.cluster: BlockingVirtualCluster
        self._node: Node
        self._over: trio.Event
        self._ready = threading.Event()
        self._error: BaseException | None = None
        # A daemon: it has nothing to clean up outside of itself, and an interpreter that exits must
        # not wait for a test.
        self._thread = threading.Thread(target=self._main, name="simulation", daemon=True)

    def open(self) -> None:
        """Start it; returns when the cluster is whole. Raises VirtualClusterError if that fails."""
        self.run.caller = threading.get_ident()
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        self.cluster = BlockingVirtualCluster(self)

    def close(self) -> None:
        """End the cluster. Raises what the simulation raises; VirtualClusterError if the test has
        taken longer than it may.
        """
        self.portal.soon(self._end)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def door(self) -> BlockingDoor:
        """The blocking door of the test's own node."""
        return BlockingDoor(VirtualBlock(self.portal, self._node), self._node)

    def do(self, function: Callable[[], T]) -> T:
        """Call what does not wait between two steps of the simulation."""

        async def called() -> T:
            return function()

        return self.portal.call(called)

    def _end(self) -> None:
        # From here on the simulation goes on by itself until it has ended.
        self.portal.unfinished += 1
        self._over.set()

    def _main(self) -> None:
        portal: VirtualPortal | None = None

        def pump() -> None:
            if portal is not None:
                portal.pump()

        async def serve() -> None:
            nonlocal portal
            async with trio.open_nursery() as nursery:
                self._over = trio.Event()
                self._node = self.run.driver
                portal = self.portal = VirtualPortal(
                    trio.lowlevel.current_trio_token(), nursery, WHAT
                )
                self._ready.set()
                try:
                    await self._over.wait()
                    await self._look_for_calls(nursery)
                finally:
                    portal.close()

        try:
            self.run.run(serve, pump)
        except BaseException as error:  # noqa: ASYNC103 - of a run that has ended
            # For the thread of the test, which waits for this one.
            self._error = error
        finally:
            if portal is not None:
                portal.finish()
            self._ready.set()

    async def _look_for_calls(self, nursery: trio.Nursery) -> None:
        with trio.move_on_after(GRACE_SECONDS):
            while nursery.child_tasks:  # noqa: ASYNC110 - a nursery sets no event
                await trio.sleep(GRACE_SECONDS / 20)
        self.run.left += calls_left(len(nursery.child_tasks))


class BlockingVirtualCluster(BlockingCluster):
    """The simulated cluster of a plain test, from the fixture `cluster`. Its calls block, and
    virtual time passes in them alone.
    """

    def __init__(self, thread: VirtualThread) -> None:
        super().__init__(thread.door())
        self._thread = thread

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes on which faults act: `worker-1`, `worker-2`, ..."""
        return self._thread.run.workers

    @property
    def seed(self) -> int:
        """The seed, which decides everything that happens."""
        return self._thread.run.seed

    def now(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._thread.do(lambda: self._thread.run.current.now())

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass, as `time.sleep` does not."""
        self._wait(partial(trio.sleep, seconds))

    def start_node(self, name: str) -> None:
        """Start a node that was killed, and wait until the cluster is whole."""
        known(self._thread.run, name)
        self._wait(lambda: start_node(self._thread.run, name))

    def wait_whole(self) -> None:
        """Wait until all nodes that run see each other, and none that does not. Raises TimeoutError
        after a minute of virtual time.
        """
        self._wait(lambda: wait_whole(self._thread.run))

    def close(self) -> None:
        """Does nothing: the fixture ends the cluster after the test."""

    def _wait(self, function: Callable[[], Awaitable[Any]]) -> None:
        self._door.wait(function)

    def __repr__(self) -> str:
        return f"<simulated cluster of {self._thread.run.nodes} nodes, seed {self.seed}>"


__all__ = ["BlockingVirtualCluster", "VirtualClusterError", "VirtualThread"]
