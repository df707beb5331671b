"""A simulated cluster for one test: the fixture `cluster`, in tests that are `async def`.

The test function runs inside the simulation, as a part of the node `driver`. The nodes `worker-1`,
`worker-2`, ... are those on which faults act. Time is virtual, and passes when no task can run.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar, ParamSpec, TypeVar, Unpack, overload

import attrs
import trio

from actors.actor import Ended, Member, Spawner
from actors.documentation import documented_as
from actors.errors import UnderstudyError
from actors.functions import RunsFunctions
from actors.options import SpawnChanges, SpawnOptions
from actors.reference import Reference
from runtime.doors.connections import starting_on
from runtime.node import Node
from runtime.simulation.cluster import SimulatedCluster
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import VirtualClock, belonging_to, run
from runtime.source_lines import module_of
from runtime.supervision.placement import CALLS_ONLY
from runtime.user_errors import is_cancellation

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

DRIVER = "driver"
"""The test's own node: it founds the cluster, keeps the store, and no fault ends it."""

START_SECONDS = 60.0
"""Virtual seconds in which the nodes must have found each other."""

LIMIT_SECONDS = 900.0
"""Virtual seconds that a test may take, unless its mark says otherwise."""

LOOK_SECONDS = 0.05
"""Virtual seconds between two looks at what no event reports."""

SHOWN_EVENTS = 30
"""Events of a failed test that are shown, the last ones."""

OURS = ("actors", "runtime", "trio", "pytest_trio", "contextlib")


class VirtualClusterError(UnderstudyError):
    """A test uses its simulated cluster where there is none, or took too long. Says what to do."""

    has_page: ClassVar[bool] = True


@attrs.define(eq=False)
class VirtualRun:
    """The simulation of one test: `nodes` workers, `seed`, and `limit` in virtual seconds. May be
    run again, and is a new cluster then.
    """

    nodes: int
    seed: int
    limit: float = LIMIT_SECONDS
    labels: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Those of each worker, by its name."""
    resources: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    """Those of each worker, by its name."""
    simulated: SimulatedCluster | None = None
    """While it runs."""
    left: list[str] = attrs.field(factory=list)
    """What the test has left behind, in words."""
    expired: str = ""
    """Why it was ended, if it took longer than its limit."""
    unexpected: list[str] = attrs.field(factory=list)
    """Nodes that ended by an error of the runtime itself."""
    caller: int | None = None
    """The thread of a plain test, whose calls block."""
    _error: BaseException | None = None
    _over: bool = False
    _trace: Trace | None = None
    _shown: slice = slice(0)
    """The events between the start of the test and its end, or now."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the nodes on which faults act."""
        return tuple(f"worker-{number}" for number in range(1, self.nodes + 1))

    @property
    def current(self) -> SimulatedCluster:
        """The simulation. Raises VirtualClusterError while there is none."""
        if self.simulated is None:
            raise VirtualClusterError(
                "the simulated cluster of `cluster` has "
                + ("ended with its test" if self._over else "not begun: it begins with the test")
                + "; use it in the test function, or in async fixtures of pytest-trio"
            )
        return self.simulated

    @property
    def driver(self) -> Node:
        """The test's own node. Raises VirtualClusterError while there is none."""
        node = self.current.live(DRIVER)
        if node is None:
            raise VirtualClusterError(
                "the test's own node has lost its place in the cluster, and comes back within a "
                "second of virtual time"
            )
        return node

    @property
    def has_begun(self) -> bool:
        """True if there is or was a simulation."""
        return self._trace is not None

    def events(self) -> list[str]:
        """Return the latest events of the test, a line each. From any thread."""
        if self._trace is None:
            return []
        return [
            f"{event.at:9.3f}  {event.node or '-':10}  {event.kind:9}  {event.text}"
            for event in self._trace.events[self._shown][-SHOWN_EVENTS:]
        ]

    def run(
        self, test: Callable[[], Awaitable[object]], pump: Callable[[], None] | None = None
    ) -> None:
        """Simulate the cluster while `test()` runs in it. Raises what that raises;
        VirtualClusterError if it takes too long.
        """
        __tracebackhide__ = True
        self._error, self._over, self.expired = None, False, ""
        self.left.clear()
        self.unexpected.clear()

        async def main(clock: VirtualClock) -> None:
            names = [DRIVER, *self.workers]
            cluster = SimulatedCluster(self.seed, names, clock)
            # Actors are placed on nodes on which faults act, as on a local cluster's.
            cluster.labels[DRIVER] = {CALLS_ONLY: "true"}
            cluster.labels |= {name: dict(labels) for name, labels in self.labels.items()}
            cluster.resources |= {name: dict(had) for name, had in self.resources.items()}
            self._trace, self._shown = cluster.trace, slice(0, None)
            await cluster.run(lambda: self._body(cluster, test))
            self.unexpected.extend(cluster.unexpected)

        run(self.seed, main, pump)
        error, self._error = self._error, None
        if self.expired:
            raise VirtualClusterError(self.expired) from error
        if error is not None:
            raise error

    async def _body(self, cluster: SimulatedCluster, test: Callable[[], Awaitable[object]]) -> None:
        with trio.move_on_after(START_SECONDS) as patience:
            await whole(cluster)
        if patience.cancelled_caught:
            self._error = VirtualClusterError(
                f"the nodes had not found each other after {START_SECONDS:g} virtual seconds"
            )
            return
        begun = len(cluster.trace.events)
        self._shown = slice(begun, None)
        before = _system_tasks()
        self.simulated = cluster
        tasks: list[trio.lowlevel.Task] = []
        over = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                with belonging_to(cluster.machines[DRIVER].process):
                    nursery.start_soon(self._play, test, over, tasks)
                with trio.move_on_after(self.limit):
                    await over.wait()
                if not over.is_set():
                    self.expired = (
                        f"the test had not ended after {self.limit:g} virtual seconds"
                        f"{_blocks_at(self.caller) or _waits_at(tasks)}; a longer one says so: "
                        "@pytest.mark.understudy(limit=...)"
                    )
                nursery.cancel_scope.cancel()
            # A task that was cancelled, or a generator that was dropped, ends in the next steps.
            await trio.sleep(0.001)
            self.left += [f"the system task {name}" for name in _system_tasks() - before]
        finally:
            self._shown = slice(begun, len(cluster.trace.events))
            self.simulated, self._over = None, True

    async def _play(
        self,
        test: Callable[[], Awaitable[object]],
        over: trio.Event,
        tasks: list[trio.lowlevel.Task],
    ) -> None:
        __tracebackhide__ = True
        tasks.append(trio.lowlevel.current_task())
        try:
            await test()
        except BaseException as error:  # noqa: ASYNC103  a cancellation goes on
            # Of the limit. Also a group that holds only cancellations, which nurseries of the test
            # raise.
            if is_cancellation(error):
                raise
            # Also what pytest raises to skip or to fail. `run` raises it, without the groups of the
            # nurseries in between.
            self._error = error
        finally:
            over.set()


def calls_left(count: int) -> list[str]:
    """Return the text about calls that a test has not waited for."""
    if count == 0:
        return []
    return ["a call that was still under way" if count == 1 else f"{count} calls under way"]


def _system_tasks() -> set[str]:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return {task.name for nursery in root.child_nurseries for task in nursery.child_tasks}


def _waits_at(tasks: list[trio.lowlevel.Task]) -> str:
    """Return the place where a test waits: the last line that is not ours, of its task or of those
    that it has started.
    """
    tasks = list(tasks)
    for task in tasks:
        waiting: Any = task.coro
        found = ""
        while waiting is not None:
            frame = getattr(waiting, "cr_frame", None)
            if frame is not None and module_of(frame).split(".")[0] not in OURS:
                found = f"; it waits at {frame.f_code.co_filename}:{frame.f_lineno}"
            waiting = getattr(waiting, "cr_await", None)
        if found:
            return found
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return ""


def _blocks_at(thread: int | None) -> str:
    """Return the place where a plain test waits, likewise: the innermost line that is neither ours
    nor of the library whose locks we wait for.
    """
    frame: FrameType | None = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        package = module_of(frame).split(".")[0]
        if package not in OURS and package not in sys.stdlib_module_names:
            return f"; it waits at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


async def whole(cluster: SimulatedCluster) -> None:
    """Wait until every node that is to run does, and sees these and no other as up."""
    while True:
        wanted = {name for name, machine in cluster.machines.items() if machine.wanted}
        nodes = [cluster.live(name) for name in wanted]
        if all(
            node is not None
            and {each.name for each in node.members() if each.state == "up"} == wanted
            for node in nodes
        ):
            return
        await trio.sleep(LOOK_SECONDS)


async def wait_whole(run: VirtualRun) -> None:
    """Wait until all nodes that run see each other, and no other node. Raises TimeoutError after
    `START_SECONDS` of virtual time.
    """
    with trio.move_on_after(START_SECONDS) as patience:
        await whole(run.current)
    if patience.cancelled_caught:
        raise TimeoutError(
            f"the cluster was not whole after {START_SECONDS:g} virtual seconds; is a node still "
            "cut off, or paused?"
        )


def known(run: VirtualRun, name: str) -> str:
    """Raises ValueError for the name of no worker."""
    if name not in run.workers:
        raise ValueError(
            f"there is no node {name!r} in this cluster on which faults act; there are: "
            f"{', '.join(run.workers)}"
        )
    return name


async def start_node(run: VirtualRun, name: str) -> None:
    """Start a node that was killed, and wait until the cluster is whole. Raises ValueError for an
    unknown name.
    """
    run.current.machines[known(run, name)].want(running=True)
    await wait_whole(run)


class VirtualCluster(RunsFunctions):
    """The simulated cluster of an `async def` test, from the fixture `cluster`. The test runs
    inside of it, on trio and on virtual time: `await trio.sleep(3600)` takes no time.
    """

    def __init__(self, run: VirtualRun) -> None:
        self._run = run

    @property
    def node(self) -> Node:
        """The test's own node, `driver`: a member like the others, which no fault ends."""
        return self._run.driver

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes on which faults act: `worker-1`, `worker-2`, ..."""
        return self._run.workers

    @property
    def seed(self) -> int:
        """The seed, which decides everything that happens."""
        return self._run.seed

    def now(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._run.current.now()

    @documented_as(SpawnOptions)
    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """A way to start actors with options: `cluster.options(name="x", on="worker-1")`."""
        return starting_on(self.node, attrs.evolve(SpawnOptions(), **changes))

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor on the node with the fewest, and return its handle."""
        return await self.options().spawn(actor, *args, **kwargs)

    @documented_as(Spawner.spawn_many)
    async def spawn_many(
        self,
        actor: Callable[..., A],
        argument_list: Iterable[Sequence[object]],
        /,
        *,
        names: Sequence[str] | None = None,
    ) -> list[A]:
        """Start many actors on the nodes with the fewest."""
        return await self.options().spawn_many(actor, argument_list, names=names)

    @documented_as(Spawner.get_or_spawn)
    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Return the handle of the actor that has the name, or of a new one."""
        return await self.options().get_or_spawn(actor, *args, **kwargs)

    @overload
    async def lookup(self, name: str) -> Any: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    @documented_as(Node.lookup)
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> Any:
        """The handle of the actor of this name."""
        if actor is None:
            return await self.node.lookup(name)
        return await self.node.lookup(name, actor)

    async def _run_function(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return await self.node._run_function(function, args, kwargs)

    async def put(self, value: T) -> Reference[T]:
        """Keep a copy of a value on the test's own node."""
        return await self.node.put(value)

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended."""
        await self.node.stop(handle, reason=reason)

    @documented_as(Node.wait_ended)
    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended."""
        return await self.node.wait_ended(handle)

    async def members(self) -> tuple[Member, ...]:
        """The nodes that the test's own knows to be in the cluster now."""
        await trio.lowlevel.checkpoint()
        return self.node.members()

    async def start_node(self, name: str) -> None:
        """Start a node that was killed, and wait until the cluster is whole."""
        await start_node(self._run, name)

    async def wait_whole(self) -> None:
        """Wait until all nodes that run see each other, and none that does not. Raises TimeoutError
        after a minute of virtual time.
        """
        await wait_whole(self._run)

    async def run_on(self, name: str, function: Callable[[Node], Awaitable[T]]) -> T:
        """Run `function(node)` as a part of a worker's process: it calls from there, and stops when
        that is paused.

        Raises what it raises, ValueError if no such node runs, and ProcessLookupError if the
        process ends first.
        """
        return await run_on(self._run.current, known(self._run, name), function)

    def __repr__(self) -> str:
        return f"<simulated cluster of {self._run.nodes} nodes, seed {self._run.seed}>"


async def run_on(
    cluster: SimulatedCluster, name: str, function: Callable[[Node], Awaitable[T]]
) -> T:
    """Run `function(node)` within a node's process, and return its result. Raises what it raises,
    ValueError if no such node runs, and ProcessLookupError if the process ends first.
    """
    done = trio.Event()
    results: list[T] = []
    errors: list[BaseException] = []
    scope = trio.CancelScope()

    async def within(node: Node) -> None:
        try:
            with scope:
                results.append(await function(node))
        except BaseException as error:  # noqa: ASYNC103  a cancellation goes on
            # Of the process that it is a part of.
            if is_cancellation(error):
                raise
            # Also what pytest raises to skip or to fail, which would end the whole simulation.
            errors.append(error)
        finally:
            done.set()

    process = cluster.start_on(name, within)

    async def watch(nursery: trio.Nursery) -> None:
        await process.ended.wait()
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery)
            await done.wait()
            nursery.cancel_scope.cancel()
    finally:
        # Its caller was cancelled, or its process was killed and takes no step any more.
        scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise ProcessLookupError(f"the process of node {name!r} ended before the function did")
    return results[0]
