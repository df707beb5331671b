"""The blocking door: a cluster for scripts, threads and programs without an event loop.

`with connect("HOST:7400") as cluster` or `with open_local_cluster() as cluster`; then
`counter = cluster.lookup("counter", Counter)` gives a handle whose methods block and return the
value: `counter.add(5)`. Everything here may be used from any thread. Errors, outcomes, options and
deadlines are those of a call from trio (docs/how-to/calls.md).

To a type checker a blocking handle of a `Counter` is the class `Counter` itself, where `add` has no
`self` and returns an `int`: write `Blocking[Counter]` where you annotate one.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

import attrs

from actors import errors
from actors.actor import Ended, Member, Spawner
from actors.blocking import BlockingReference, BlockingStream
from actors.documentation import documented_as
from actors.foreign_names import names_for_clusters, names_for_processes
from actors.functions import RunsFunctions
from actors.groups import Answer, Group
from actors.keywords import names_keywords
from actors.method import Method
from actors.options import CallChanges, SpawnChanges, SpawnOptions
from actors.peers import PeerRole
from actors.pools import JournalSummary
from actors.process_bound import ProcessBound
from actors.reference import Reference, wait_any
from runtime.cluster_processes import LocalCluster, NodeProcess
from runtime.doors.blocking_door import Blocking, BlockingDoor, refuse_loops
from runtime.doors.blocking_pools import BlockingPool, BlockingResults
from runtime.doors.connections import (
    ProcessFacts,
    WithoutNode,
    connection,
    connection_html,
    handle_on,
    local_cluster,
    starting_on,
    takes_actors,
)
from runtime.doors.executor import ClusterExecutor
from runtime.doors.loop_thread import OpenBlock
from runtime.doors.time_limit import A_CALL, A_START, fail_after, within_limit
from runtime.functions.function_names import FunctionCall
from runtime.functions.service import most_workers
from runtime.groups.groups import ProcessGroup
from runtime.links.encryption import Tls, TlsMode
from runtime.links.keyring import GivenSecret
from runtime.node import Node, internals_of
from runtime.observation.tree import Tree
from runtime.processes import ExitStatus
from runtime.user_errors import CHECKS, end_at_door

__all__ = [
    "Blocking",
    "BlockingCluster",
    "BlockingGroup",
    "BlockingLocalCluster",
    "BlockingNodeProcess",
    "BlockingPool",
    "BlockingReference",
    "BlockingResults",
    "BlockingStream",
    "ClusterExecutor",
    "connect",
    "fail_after",
    "open_local_cluster",
]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")


@names_keywords
def connect(
    address: str,
    *,
    cluster: str | None = None,
    secret: GivenSecret | None = None,
    name: str | None = None,
    call_timeout: float | None = None,
    tls: Tls | TlsMode | None = None,
    tracing: bool = False,
    role: PeerRole | None = None,
) -> BlockingCluster:
    """Connect to the cluster of which a node listens at `address`, `HOST:PORT`. Close it by `with`,
    `close()`, or the end of the program.

    - `cluster`: the name of the cluster. By default that of a local cluster of this user at the
      address, or "understudy".
    - `secret`: the cluster's secret, or the `Path` of its file. By default that of a local cluster
      of this user, or `UNDERSTUDY_SECRET`.
    - `name`: of this connection, as `understudy status` shows it. By default generated.
    - `call_timeout`: seconds for calls that have no `timeout`. By default no limit.
    - `tls`: as for `open_node`. By default connections to other machines are encrypted.
    - `tracing`: make spans with OpenTelemetry.
    - `role`: "client", "observer" or "operator", to have no more than the rights of that role. By
      default that of the certificate; without a certificate "node", which may do everything.

    Raises `JoinError`, a `HandshakeError` such as `WrongSecretError`, and `WrongDoorError` in an
    event loop: use `runtime.aio` there, or `runtime.open_node`.
    """
    refuse_loops()
    session = connection(
        address,
        name=name,
        cluster=cluster,
        secret=secret,
        call_timeout=call_timeout,
        tls=tls,
        tracing=tracing,
        role=role,
    )
    _open(session)
    return BlockingCluster(BlockingDoor(session, session.opened))


@names_keywords
def open_local_cluster(
    nodes: int = 2,
    *,
    cluster: str = "local",
    store: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    call_timeout: float | None = None,
    tracing: bool = False,
    on_process_start: Callable[[], object] | str | None = None,
) -> BlockingLocalCluster:
    """Start a cluster of real processes on this machine. Its founding node runs beside this
    program's threads. Close it by `with`, `close()`, or the end of the program.

    - `nodes`: how many processes, called `worker-1`, `worker-2`, ...
    - `cluster`: the name of the cluster.
    - `store`: an `etcd://` address to keep the cluster's store in. By default the founding node
      keeps it, in memory.
    - `data_dir`: directory where the founding node keeps the store instead. A cluster that is
      opened again on it has the states that its actors saved, and the cluster's secret.
    - `call_timeout`: seconds for calls that have no `timeout`, on all nodes. By default no limit.
    - `tracing`: make spans with OpenTelemetry, on all nodes.
    - `on_process_start`: a function, or its `module:function`, that each node process, and each
      process of an isolated actor, calls before all else.

    Raises `WrongDoorError` in an event loop.
    """
    refuse_loops()
    session = local_cluster(
        nodes,
        cluster=cluster,
        store=store,
        data_dir=data_dir,
        call_timeout=call_timeout,
        tracing=tracing,
        on_process_start=on_process_start,
    )
    _open(session)
    return BlockingLocalCluster(BlockingDoor(session, session.opened.node), session.opened)


def _open(session: OpenBlock[Any]) -> None:
    portal = session.begin()
    try:
        portal.call(within_limit(session.open))
    except BaseException as error:
        # Ctrl-C may come when it has just been opened.
        session.give_up()
        end_at_door(error)
        raise


@documented_as(Spawner)
class BlockingSpawner(ProcessBound):
    """A way to start actors, and to run functions, with options."""

    def __init__(self, door: BlockingDoor, options: SpawnOptions) -> None:
        self._door = door
        self._options = options

    @documented_as(SpawnOptions)
    @names_keywords
    def options(self, **changes: Unpack[SpawnChanges]) -> BlockingSpawner:
        """Return a copy with other options."""
        return BlockingSpawner(self._door, attrs.evolve(self._options, **changes))

    @documented_as(Spawner.spawn)
    def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Blocking[A]:
        """Start an actor and return its handle. Where nothing is said of its place, it runs on the
        node of the cluster with the fewest actors.
        """
        start = starting_on(self._door.node, self._options).spawn
        started = self._door.wait(lambda: start(actor, *args, **kwargs), A_START)
        return cast("type[A]", self._door.handle(started))

    @documented_as(Spawner.spawn_many)
    def spawn_many(
        self,
        actor: Callable[..., A],
        argument_list: Iterable[Sequence[object]],
        /,
        *,
        names: Sequence[str] | None = None,
    ) -> list[Blocking[A]]:
        """Start many actors of one class."""
        start = starting_on(self._door.node, self._options).spawn_many
        handles = self._door.wait(lambda: start(actor, argument_list, names=names), A_START)
        return [cast("type[A]", self._door.handle(one)) for one in handles]

    @documented_as(Spawner.get_or_spawn)
    def get_or_spawn(
        self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs
    ) -> Blocking[A]:
        """The handle of the actor that has the name already, or of a new one."""
        start = starting_on(self._door.node, self._options).get_or_spawn
        started = self._door.wait(lambda: start(actor, *args, **kwargs), A_START)
        return cast("type[A]", self._door.handle(started))

    @overload
    def run(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @documented_as(RunsFunctions.run)
    def run(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Run an importable function, plain or `async def`, in a worker process of the cluster, and
        return its value. Ctrl-C ends it there as well.
        """
        return self._door.wait(self._run_function(function, args, kwargs), A_CALL)

    @overload
    def future(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...
    @overload
    def future(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...
    def future(
        self, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> Future[Any]:
        """Like `run`, for a `concurrent.futures.Future`; cancelling that ends the function."""
        return self._door.future(self._run_function(function, args, kwargs))

    def executor(self, *, max_workers: int | None = None) -> ClusterExecutor:
        """A `concurrent.futures.Executor` whose functions run in worker processes of the cluster:
        `with cluster.executor() as executor: executor.map(f, items)`.

        `max_workers`: functions under way at once; None: as many as this machine has cores, for
        each node. What waits beyond that can be cancelled. A worker process that dies ends only its
        own call, by an `OutcomeUnknownError`, or has it repeated if `options(retry=...)` says so.
        """
        if max_workers is None:
            nodes = [one for one in self._door.now(self._door.node.members) if takes_actors(one)]
            max_workers = most_workers() * max(1, len(nodes))
        return ClusterExecutor(
            self._door, internals_of(self._door.node).functions, self._options, max_workers
        )

    def _run_function(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Callable[[], Awaitable[object]]:
        # Refused here, in the caller's thread, where it can be. At the exit of the interpreter its
        # modules are empty, and name no function any more: so the connection comes first.
        self._door.check()
        with CHECKS:
            call = FunctionCall.checked(function, args, kwargs, self._options)
        return partial(internals_of(self._door.node).functions.run, call)


@documented_as(Group)
class BlockingGroup(Generic[A]):
    """The actors under one name, called together or one for all."""

    def __init__(self, door: BlockingDoor, group: ProcessGroup[A]) -> None:
        self._door = door
        self._group = group

    @property
    def name(self) -> str:
        """The group's name."""
        return self._group.name

    @documented_as(Group.options)
    @names_keywords
    def options(self, **changes: Unpack[CallChanges]) -> BlockingGroup[A]:
        """Return a copy of the group with other call options."""
        return BlockingGroup(self._door, self._group.options(**changes))

    def members(self) -> tuple[Blocking[A], ...]:
        """Handles of the members as they are now, once all of them are known."""

        async def known() -> tuple[A, ...]:
            return (await self._group.ready()).members()

        return tuple(map(self._handle, self._door.wait(known)))

    def choose(self) -> Blocking[A]:
        """One of the members, at random. Raises `EmptyGroupError`."""

        async def chosen() -> A:
            return (await self._group.ready()).choose()

        return self._handle(self._door.wait(chosen))

    @documented_as(Group.broadcast)
    def broadcast(self, method: Method[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Call a method of all members one way; returns how many."""
        return self._door.wait(lambda: self._group.broadcast(method, *args, **kwargs), A_CALL)

    @documented_as(Group.call_all)
    def call_all(
        self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members, and wait for all answers."""
        answers = self._door.wait(lambda: self._group.call_all(method, *args, **kwargs), A_CALL)
        return [attrs.evolve(one, member=self._handle(one.member)) for one in answers]

    def watch(self) -> Iterator[tuple[Blocking[A], ...]]:
        """The members, again after every change: `for members in group.watch()`."""
        changes = self._group.watch()

        async def changed() -> tuple[A, ...]:
            return await anext(changes)

        while True:
            yield tuple(map(self._handle, self._door.wait(changed)))

    def _handle(self, member: A) -> Blocking[A]:
        return cast("type[A]", self._door.handle(member))

    def __repr__(self) -> str:
        return f"<blocking group {self.name!r}>"


class BlockingCluster(WithoutNode, BlockingSpawner):
    """A cluster, open for use by any thread: `connect(...)`."""

    _foreign_names = names_for_clusters(
        "cluster", "", "cluster.executor().map(function, items) does"
    )

    def __init__(self, door: BlockingDoor) -> None:
        super().__init__(door, SpawnOptions())

    @property
    def name(self) -> str:
        """The name under which this connection is a member of the cluster."""
        return self._door.node.name

    @property
    def address(self) -> str:
        """`HOST:PORT` at which this connection's own node listens."""
        return self._door.node.address

    @overload
    def lookup(self, name: str) -> Any: ...
    @overload
    def lookup(self, name: str, actor: Callable[..., A]) -> Blocking[A]: ...
    @documented_as(Node.lookup)
    def lookup(self, name: str, actor: Callable[..., A] | None = None) -> Any:
        """The handle of the actor of this name, wherever it runs. Without a class any method may be
        tried.
        """
        node = self._door.node
        if actor is None:
            return self._door.handle(self._door.wait(lambda: node.lookup(name)))
        return self._door.handle(self._door.wait(lambda: node.lookup(name, actor)))

    @overload
    def handle(self, handle: type[A]) -> Blocking[A]: ...
    @overload
    def handle(self, handle: A) -> Blocking[A]: ...
    def handle(self, handle: Any) -> Any:
        """The handle of the same actor at this door, from one of trio's, of asyncio's, of another
        connection, or out of a value that a method has returned.
        """
        return self._door.handle(handle)

    def argument(self, handle: type[A]) -> A:
        """A blocking handle as type checkers should see it where a method takes a handle: `await`
        is what that method does with it.
        """
        return cast("A", handle_on(self._door.node, handle))

    def reference(self, reference: Reference[R]) -> BlockingReference[R]:
        """A reference out of a value, or of another door, to be waited for here."""
        return self._door.reference(reference)

    def put(self, value: T) -> BlockingReference[T]:
        """Keep a copy of a value in this program, for as long as there is a reference to it."""
        return self._door.reference(self._door.wait(lambda: self._door.node.put(value)))

    @documented_as(wait_any)
    def wait_any(
        self,
        references: Iterable[Reference[T]],
        *,
        count: int = 1,
        timeout: float | None = None,
    ) -> tuple[list[Reference[T]], list[Reference[T]]]:
        """Block until `count` of the references have outcomes."""
        return self._door.wait(lambda: wait_any(references, count=count, timeout=timeout))

    def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended."""
        stopped = handle_on(self._door.node, handle)
        self._door.wait(lambda: self._door.node.stop(stopped, reason=reason))

    @documented_as(Node.wait_ended)
    def wait_ended(self, handle: object) -> Ended:
        """Block until the present epoch of an actor has ended."""
        watched = handle_on(self._door.node, handle)
        return self._door.wait(lambda: self._door.node.wait_ended(watched))

    def group(self, name: str, actor: Callable[..., A]) -> BlockingGroup[A]:
        """The group of this name, which actors join by `await self.join(name)`; its members have
        the methods of `actor`. Raises ValueError for a name that no group can have.
        """
        node = self._door.node
        return BlockingGroup(self._door, self._door.now(lambda: node.group(name, actor)))

    @documented_as(Node.pool)
    def pool(
        self,
        name: str | None,
        actor: Callable[..., A],
        /,
        *args: object,
        size: int | None = None,
        per_node: int | None = None,
        min: int | None = None,
        max: int | None = None,
        kwargs: Mapping[str, object] = MappingProxyType({}),
        **options: Unpack[SpawnChanges],
    ) -> BlockingPool[A]:
        """Start a pool of members over the nodes of the cluster, or find the one of this name."""
        node = self._door.node
        pool = self._door.wait(
            lambda: node.pool(
                name,
                actor,
                *args,
                size=size,
                per_node=per_node,
                min=min,
                max=max,
                kwargs=kwargs,
                **options,
            )
        )
        return BlockingPool(self._door, pool)

    @documented_as(Node.pool_journals)
    def pool_journals(self) -> list[JournalSummary]:
        """The journals of maps that the cluster's store keeps, by name."""
        return self._door.wait(self._door.node.pool_journals)

    @documented_as(Node.remove_pool_journal)
    def remove_pool_journal(self, name: str, *, unused_for: float = 0.0) -> bool:
        """Remove the journal of a map; True if it was removed."""
        node = self._door.node
        return self._door.wait(lambda: node.remove_pool_journal(name, unused_for=unused_for))

    @documented_as(Node.lookup_pool)
    def lookup_pool(self, name: str, actor: Callable[..., A]) -> BlockingPool[A]:
        """The pool of this name, wherever it was opened."""
        node = self._door.node
        return BlockingPool(self._door, self._door.wait(lambda: node.lookup_pool(name, actor)))

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, this connection included."""
        return self._door.now(self._door.node.members)

    @documented_as(Node.tree)
    def tree(self) -> Tree:
        """The supervisors and their children as they are now."""
        return self._door.wait(self._door.node.tree)

    def close(self) -> None:
        """Leave the cluster. Calls that are under way in other threads end with
        `OutcomeUnknownError`, later ones with `NotAMemberError`. Closing twice is closing once.
        """
        refuse_loops()
        session = self._door.session
        session.check()
        try:
            session.loop.portal.call(session.close)
        except errors.NotAMemberError:
            # The program ends, and everything was closed before.
            return

    def __enter__(self) -> Self:
        """The cluster itself, closed when the block is left."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<blocking cluster {self._door.node.cluster} by {self.name}>"

    def _repr_html_(self) -> str:
        """For notebooks: what its connection knows of the cluster."""
        return connection_html("cluster (blocking)", self._door.session, self._door.node)


@documented_as(NodeProcess)
class BlockingNodeProcess(ProcessFacts):
    """One node of a local cluster, in a process of its own."""

    _foreign_names = names_for_processes("")

    def __init__(self, door: BlockingDoor, process: NodeProcess) -> None:
        super().__init__(process)
        self._door = door

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._door.now(self._process.kill)

    def leave(self) -> ExitStatus:
        """Ask the node to drain and leave, and wait until its process has ended. Raises
        `NodeUnreachableError` while it is paused, and if it has not left within a minute.
        """
        return self._door.wait(self._process.leave)

    def wait(self) -> ExitStatus:
        """Wait until the process has ended."""
        return self._door.wait(self._process.wait)


class BlockingLocalCluster(BlockingCluster):
    """An open local cluster of real processes."""

    def __init__(self, door: BlockingDoor, cluster: LocalCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    @property
    def processes(self) -> Mapping[str, BlockingNodeProcess]:
        """The node processes started so far, by node name; those that have ended included."""
        return {
            name: BlockingNodeProcess(self._door, process)
            for name, process in self._cluster.processes.items()
        }

    @documented_as(LocalCluster.start_node)
    def start_node(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> BlockingNodeProcess:
        """Start one more node and wait until it has joined."""
        started = self._door.wait(
            lambda: self._cluster.start_node(name, labels=labels, resources=resources)
        )
        return BlockingNodeProcess(self._door, started)
