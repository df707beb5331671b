"""The asyncio door: a cluster for programs on asyncio, such as FastAPI and aiohttp applications.

`async with connect("HOST:7400") as cluster`, or `async with open_local_cluster() as cluster`; then
`counter = await cluster.lookup("counter", Counter)` gives a handle as trio's door does:
`await counter.add(5)`, `async for item in counter.scan(1)`. Cancelling the task that waits, also by
`asyncio.timeout`, cancels the method where it runs. Calls run in the one event loop that a process
has for its doors, so a cluster may be used from several asyncio loops, and under uvloop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

import attrs

from actors.actor import Ended, Member, Spawner
from actors.documentation import documented_as
from actors.errors import NotAMemberError
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
from runtime.doors.asyncio_actor import AsyncioActor
from runtime.doors.asyncio_door import AioDoor, run_in, running_loop
from runtime.doors.asyncio_pools import AioPool, AioResults
from runtime.doors.connections import (
    ProcessFacts,
    WithoutNode,
    connection,
    connection_html,
    handle_on,
    local_cluster,
    starting_on,
)
from runtime.doors.loop_thread import OpenBlock
from runtime.functions.function_names import FunctionCall
from runtime.groups.groups import ProcessGroup
from runtime.isolation.base_node import taking_back
from runtime.links.encryption import Tls, TlsMode
from runtime.links.keyring import GivenSecret
from runtime.node import Node, internals_of
from runtime.observation.tree import Tree
from runtime.pools.pool import Pool
from runtime.processes import ExitStatus
from runtime.user_errors import CHECKS, end_at_door

__all__ = [
    "AioCluster",
    "AioGroup",
    "AioLocalCluster",
    "AioNodeProcess",
    "AioPool",
    "AioResults",
    "AsyncioActor",
    "connect",
    "open_local_cluster",
]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")

_OPENS = (
    "a cluster opens by `async with connect(...) as cluster:`, or by `cluster = await connect(...)`"
)


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
) -> AioOpening[AioCluster]:
    """Connect to the cluster of which a node listens at `address`, `HOST:PORT`: by `async with`, or
    by `await` and later `await cluster.close()`.

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

    Raises `JoinError`, a `HandshakeError` such as `WrongSecretError`, and `WrongDoorError` outside
    of asyncio.
    """
    block = connection(
        address,
        name=name,
        cluster=cluster,
        secret=secret,
        call_timeout=call_timeout,
        tls=tls,
        tracing=tracing,
        role=role,
    )
    return AioOpening(block, lambda node: AioCluster(ConnectionDoor(block, node)))


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
) -> AioOpening[AioLocalCluster]:
    """Start a cluster of real processes on this machine, by `async with`, or by `await` and later
    `await cluster.close()`.

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

    Raises `WrongDoorError` outside of asyncio.
    """
    block = local_cluster(
        nodes,
        cluster=cluster,
        store=store,
        data_dir=data_dir,
        call_timeout=call_timeout,
        tracing=tracing,
        on_process_start=on_process_start,
    )
    return AioOpening(
        block, lambda opened: AioLocalCluster(ConnectionDoor(block, opened.node), opened)
    )


class AioOpening(Generic[A]):
    """A cluster that is to be opened: `async with opening as cluster`, or `await opening`."""

    def __init__(self, block: OpenBlock[Any], made: Callable[[Any], A]) -> None:
        self._block = block
        self._made = made

    def __await__(self) -> Generator[Any, Any, A]:
        return self._open().__await__()

    if not TYPE_CHECKING:  # to a type checker it has none of these

        def __enter__(self):
            raise TypeError(_OPENS)

        def __exit__(self, *exc_info):
            """Never called; Python asks for both."""

        def __getattr__(self, name):
            raise AttributeError(f"there is no {name!r} before the cluster is open: {_OPENS}")

    async def __aenter__(self) -> A:
        """Open it."""
        return await self._open()

    async def __aexit__(self, *exc_info: object) -> None:
        await _close(self._block)

    async def _open(self) -> A:
        running_loop()
        block = self._block
        # In a thread, because the start of the loop takes some time when it is the first.
        portal = await asyncio.to_thread(block.begin)
        try:
            await run_in(portal, block.open)
        except BaseException as error:
            # A task may be cancelled when it has just been opened.
            block.give_up()
            end_at_door(error)
            raise
        return self._made(block.opened)


async def _close(block: OpenBlock[Any]) -> None:
    block.check()
    try:
        await run_in(block.loop.portal, block.close)
    except NotAMemberError:
        # The program ends, and everything was closed before.
        return


class ConnectionDoor(AioDoor):
    """The door of one connection or local cluster."""

    def __init__(self, block: OpenBlock[Any], node: Node) -> None:
        super().__init__(internals_of(node).endpoint.users_caller)
        self.block = block
        self.node = node

    async def wait(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Run `function` in the loop of the connection; the asyncio task waits for it, and is
        cancelled with it. `undo`: see `run_in`. Raises ForkedProcessError in a process that was
        forked after the connection was opened.
        """
        self.block.check()
        try:
            return await run_in(self.block.portal, function, undo)
        except Exception as error:
            end_at_door(error)
            raise


@documented_as(Spawner)
class AioSpawner(ProcessBound, RunsFunctions):
    """A way to start actors, and to run functions, with options."""

    def __init__(self, door: ConnectionDoor, options: SpawnOptions) -> None:
        self._door = door
        self._options = options

    @documented_as(SpawnOptions)
    @names_keywords
    def options(self, **changes: Unpack[SpawnChanges]) -> AioSpawner:
        """Return a copy with other options."""
        return AioSpawner(self._door, attrs.evolve(self._options, **changes))

    @documented_as(Spawner.spawn)
    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor and return its handle. Where nothing is said of its place, it runs on the
        node of the cluster with the fewest actors.
        """
        start = starting_on(self._door.node, self._options).spawn
        handle = await self._door.wait(
            lambda: start(actor, *args, **kwargs), taking_back(self._door.node)
        )
        return cast("A", self._door.handle(handle))

    @documented_as(Spawner.spawn_many)
    async def spawn_many(
        self,
        actor: Callable[..., A],
        argument_list: Iterable[Sequence[object]],
        /,
        *,
        names: Sequence[str] | None = None,
    ) -> list[A]:
        """Start many actors of one class."""
        start = starting_on(self._door.node, self._options).spawn_many
        handles = await self._door.wait(
            lambda: start(actor, argument_list, names=names), taking_back(self._door.node)
        )
        return [cast("A", self._door.handle(one)) for one in handles]

    @documented_as(Spawner.get_or_spawn)
    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """The handle of the actor that has the name already, or of a new one."""
        start = starting_on(self._door.node, self._options).get_or_spawn
        handle = await self._door.wait(
            lambda: start(actor, *args, **kwargs), taking_back(self._door.node)
        )
        return cast("A", self._door.handle(handle))

    async def _run_function(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        with CHECKS:
            call = FunctionCall.checked(function, args, kwargs, self._options)
        return await self._door.wait(lambda: internals_of(self._door.node).functions.run(call))


@documented_as(Group)
class AioGroup(Generic[A]):
    """The actors under one name, called together or one for all."""

    def __init__(self, door: ConnectionDoor, group: ProcessGroup[A]) -> None:
        self._door = door
        self._group = group

    @property
    def name(self) -> str:
        """The group's name."""
        return self._group.name

    @documented_as(Group.options)
    @names_keywords
    def options(self, **changes: Unpack[CallChanges]) -> AioGroup[A]:
        """Return a copy of the group with other call options."""
        return AioGroup(self._door, self._group.options(**changes))

    async def members(self) -> tuple[A, ...]:
        """Handles of the members as they are now, once all of them are known."""

        async def known() -> tuple[A, ...]:
            return (await self._group.ready()).members()

        return tuple(map(self._handle, await self._door.wait(known)))

    async def choose(self) -> A:
        """One of the members, at random. Raises `EmptyGroupError`."""

        async def chosen() -> A:
            return (await self._group.ready()).choose()

        return self._handle(await self._door.wait(chosen))

    @documented_as(Group.broadcast)
    async def broadcast(self, method: Method[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Call a method of all members one way; returns how many."""
        return await self._door.wait(lambda: self._group.broadcast(method, *args, **kwargs))

    @documented_as(Group.call_all)
    async def call_all(
        self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members, and wait for all answers."""
        answers = await self._door.wait(lambda: self._group.call_all(method, *args, **kwargs))
        return [attrs.evolve(one, member=self._handle(one.member)) for one in answers]

    async def watch(self) -> AsyncGenerator[tuple[A, ...], None]:
        """The members, again after every change: `async for members in group.watch()`."""
        changes = self._group.watch()

        async def changed() -> tuple[A, ...]:
            return await anext(changes)

        while True:
            yield tuple(map(self._handle, await self._door.wait(changed)))

    def _handle(self, member: A) -> A:
        return cast("A", self._door.handle(member))

    def __repr__(self) -> str:
        return f"<asyncio group {self.name!r}>"


class AioCluster(WithoutNode, AioSpawner):
    """A cluster, open for use by tasks of any asyncio loop: `connect(...)`."""

    _foreign_names = names_for_clusters(
        "cluster",
        "await ",
        "a pool does, pool.map(Class.method, items) of await cluster.pool(None, Class)",
    )

    def __init__(self, door: ConnectionDoor) -> None:
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
    async def lookup(self, name: str) -> Any: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    @documented_as(Node.lookup)
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> Any:
        """The handle of the actor of this name, wherever it runs. Without a class any method may be
        tried.
        """
        node = self._door.node
        if actor is None:
            return self._door.handle(await self._door.wait(lambda: node.lookup(name)))
        return self._door.handle(await self._door.wait(lambda: node.lookup(name, actor)))

    @overload
    def handle(self, handle: type[A]) -> A: ...
    @overload
    def handle(self, handle: A) -> A: ...
    def handle(self, handle: Any) -> Any:
        """The handle of the same actor at this door, from one of trio's, of the blocking one, of
        another connection, or out of a value that a method has returned.
        """
        return self._door.handle(handle)

    def reference(self, reference: Reference[R]) -> Reference[R]:
        """A reference out of a value, or of another door, to be waited for here."""
        return self._door.reference(reference)

    async def put(self, value: T) -> Reference[T]:
        """Keep a copy of a value in this program, for as long as there is a reference to it."""
        return self._door.reference(await self._door.wait(lambda: self._door.node.put(value)))

    @documented_as(wait_any)
    async def wait_any(
        self,
        references: Iterable[Reference[T]],
        *,
        count: int = 1,
        timeout: float | None = None,
    ) -> tuple[list[Reference[T]], list[Reference[T]]]:
        """Wait until `count` of the references have outcomes."""
        return await self._door.wait(lambda: wait_any(references, count=count, timeout=timeout))

    @names_keywords
    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended."""
        stopped = handle_on(self._door.node, handle)
        await self._door.wait(lambda: self._door.node.stop(stopped, reason=reason))

    @documented_as(Node.wait_ended)
    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended."""
        watched = handle_on(self._door.node, handle)
        return await self._door.wait(lambda: self._door.node.wait_ended(watched))

    async def group(self, name: str, actor: Callable[..., A]) -> AioGroup[A]:
        """The group of this name, which actors join by `await self.join(name)`; its members have
        the methods of `actor`. Raises ValueError for a name that no group can have.
        """
        node = self._door.node
        return AioGroup(self._door, await self._door.now(lambda: node.group(name, actor)))

    @documented_as(Node.pool)
    async def pool(
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
    ) -> AioPool[A]:
        """Start a pool of members over the nodes of the cluster, or find the one of this name."""
        node = self._door.node
        pool = await self._door.wait(
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
            ),
            # One with a name stays: it can be found again, and others may have found it.
            Pool.stop if name is None else None,
        )
        return AioPool(self._door, pool)

    @documented_as(Node.pool_journals)
    async def pool_journals(self) -> list[JournalSummary]:
        """The journals of maps that the cluster's store keeps, by name."""
        return await self._door.wait(self._door.node.pool_journals)

    @documented_as(Node.remove_pool_journal)
    async def remove_pool_journal(self, name: str, *, unused_for: float = 0.0) -> bool:
        """Remove the journal of a map; True if it was removed."""
        node = self._door.node
        return await self._door.wait(lambda: node.remove_pool_journal(name, unused_for=unused_for))

    @documented_as(Node.lookup_pool)
    async def lookup_pool(self, name: str, actor: Callable[..., A]) -> AioPool[A]:
        """The pool of this name, wherever it was opened."""
        node = self._door.node
        return AioPool(self._door, await self._door.wait(lambda: node.lookup_pool(name, actor)))

    async def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, this connection included."""
        return await self._door.now(self._door.node.members)

    @documented_as(Node.tree)
    async def tree(self) -> Tree:
        """The supervisors and their children as they are now."""
        return await self._door.wait(self._door.node.tree)

    async def close(self) -> None:
        """Leave the cluster. Calls that are under way in other tasks end with
        `OutcomeUnknownError`, later ones with `NotAMemberError`. Closing twice is closing once.
        """
        await _close(self._door.block)

    async def __aenter__(self) -> Self:
        """The cluster itself, closed when the block is left."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<asyncio cluster {self._door.node.cluster} by {self.name}>"

    def _repr_html_(self) -> str:
        """For notebooks: what its connection knows of the cluster. Blocks for half a second at
        most.
        """
        return connection_html("cluster (asyncio)", self._door.block, self._door.node)


@documented_as(NodeProcess)
class AioNodeProcess(ProcessFacts):
    """One node of a local cluster, in a process of its own."""

    _foreign_names = names_for_processes("await ")

    def __init__(self, door: ConnectionDoor, process: NodeProcess) -> None:
        super().__init__(process)
        self._door = door

    async def kill(self) -> None:
        """End the process at once, as a crash would."""
        await self._door.now(self._process.kill)

    async def leave(self) -> ExitStatus:
        """Ask the node to drain and leave, and wait until its process has ended. Raises
        `NodeUnreachableError` while it is paused, and if it has not left within a minute.
        """
        return await self._door.wait(self._process.leave)

    async def wait(self) -> ExitStatus:
        """Wait until the process has ended."""
        return await self._door.wait(self._process.wait)


class AioLocalCluster(AioCluster):
    """An open local cluster of real processes."""

    def __init__(self, door: ConnectionDoor, cluster: LocalCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    @property
    def processes(self) -> Mapping[str, AioNodeProcess]:
        """The node processes started so far, by node name; those that have ended included."""
        return {
            name: AioNodeProcess(self._door, process)
            for name, process in self._cluster.processes.items()
        }

    @documented_as(LocalCluster.start_node)
    async def start_node(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> AioNodeProcess:
        """Start one more node and wait until it has joined."""
        started = await self._door.wait(
            lambda: self._cluster.start_node(name, labels=labels, resources=resources)
        )
        return AioNodeProcess(self._door, started)
