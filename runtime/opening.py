"""The door to a cluster: `open_node` founds one or joins one, and leaves it in order.

No background task outlives the block: all of a node's tasks live in the one nursery that is opened here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import attrs
import trio

from actors.errors import JoinError, ListenError
from runtime.environment import Environment, SystemEnvironment
from runtime.exception_groups import unwrap
from runtime.faults import Faults
from runtime.isolation import IsolationFactory, open_processes
from runtime.links.transports import Connection, Network, SocketNetwork, is_loopback, split_address, split_host_port
from runtime.membership.charter import find_founder, note_founder
from runtime.membership.coordination import Coordination, Elsewhere, StoreKind, enter_by_member, enter_with_store
from runtime.membership.members import NodeRecord
from runtime.membership.secrets import find_secret
from runtime.node import CLOSE_SECONDS, DRAIN_SECONDS, Node
from runtime.references.memory.values import MEMORY_BYTES
from runtime.references.references import MemoryOptions, OnLeave
from runtime.references.sites import calling_site
from runtime.store.disk import Disk, open_file
from runtime.store.embedded import EmbeddedStore
from runtime.wire.introduction import Introduction, Peer

if TYPE_CHECKING:
    from runtime.store.etcd.store import EtcdStore

FAULTS_VARIABLE = "UNDERSTUDY_FAULTS"
SPIN_VARIABLE = "UNDERSTUDY_SPIN"

logger = logging.getLogger("understudy.node")


@attrs.frozen(kw_only=True)
class _Settings:
    """What `open_node` was given, checked and completed."""

    name: str | None
    join: str | None
    listen: str
    cluster: str
    secret: bytes = attrs.field(repr=False)
    labels: dict[str, str]
    resources: dict[str, float]
    data_dir: Path | None
    store: str | None
    environment: Environment
    network: Network
    disk: Disk
    isolation: IsolationFactory
    faults: Faults | None
    memory: MemoryOptions
    trace_references: bool


@attrs.frozen
class _Held:
    """A store that this process keeps, or reaches without another node. `address`: as other nodes may use it."""

    store: EmbeddedStore | EtcdStore
    kind: StoreKind
    address: str = ""


@attrs.define
class _Door:
    """Where connections arrive. Those that come before the node is complete wait for the moment it is."""

    node: Node | None = None
    opened: trio.Event = attrs.field(factory=trio.Event)

    async def accept(self, connection: Connection) -> None:
        """Hand a connection to the node. One that comes as the node closes is closed, too."""
        try:
            await self.opened.wait()
            if self.node is not None:
                await self.node.accept(connection)
        finally:
            connection.close()

    def open(self, node: Node) -> None:
        """The node is complete."""
        self.node = node
        self.opened.set()


@asynccontextmanager
async def open_node(
    name: str | None = None,
    *,
    join: str | None = None,
    listen: str = "127.0.0.1:0",
    cluster: str = "understudy",
    secret: bytes | str | None = None,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    store: str | None = None,
    environment: Environment | None = None,
    network: Network | None = None,
    disk: Disk | None = None,
    isolation: IsolationFactory | None = None,
    faults: Faults | None = None,
    reference_memory: int = MEMORY_BYTES,
    reference_directory: str | os.PathLike[str] | None = None,
    references_on_leave: OnLeave = "move",
    trace_references: bool = False,
) -> AsyncIterator[Node]:
    """Open a node: found a cluster, or with `join="HOST:PORT"` (of any member) join one. Leaving the block drains the node and leaves.

    `name`: unique among the live members; generated if None. `listen`: `HOST:PORT` for other nodes, port 0 for any free one; nodes of the
    same machine use a Unix socket besides. `secret`: what proves that a peer belongs to the cluster; without it `UNDERSTUDY_SECRET`, or on
    loopback addresses a secret that all clusters of this user on this machine share. `labels`: for placing actors. `resources`: amounts by
    name, for members to see.
    `environment`, `network`, `disk`, `isolation`: what simulated nodes have in the place of the real ones. `faults`: failpoints for tests,
    see `runtime.testing`; by default those of `UNDERSTUDY_FAULTS`, if it is set.
    `trace_references`: note the file and line of each `put` and `.remote(...)`, for `understudy refs --where`.

    `data_dir`: a directory in which the founder keeps the cluster's store. Opened again on it, the node comes back under its name and, if
    its port is free, at its address; the others go on meanwhile. Without it the store is in memory, and ends with the founder.
    `store`: `etcd://HOST:PORT,HOST:PORT`, for a cluster that keeps its store in etcd: every node is opened with it, and none is special.
    For its options see `runtime.store.etcd.address`.

    `reference_memory`: bytes of memory that the values of references on this node may take; what is beyond goes to files without names in
    `reference_directory`, by default TMPDIR or /var/tmp. `references_on_leave`: whether they "move" to other nodes when this one leaves,
    or are lost, of which those who hold them are told.

    Raises `JoinError`, `NodeNameTakenError`, `ListenError`, a `HandshakeError`, `StoreDataError`, `StoreMismatchError`: what to do next.
    """
    _refuse_contradictions(data_dir, join, store)
    environment = environment or SystemEnvironment()
    settings = _Settings(
        name=name,
        join=join,
        listen=":".join(split_address(listen)),
        cluster=cluster,
        secret=find_secret(secret, environment.token, needs_own=not is_loopback(listen)),
        labels=dict(labels or {}),
        resources=dict(resources or {}),
        data_dir=Path(data_dir) if data_dir is not None else None,
        store=store,
        environment=environment,
        network=network or SocketNetwork(spin=os.environ.get(SPIN_VARIABLE) or "auto"),
        disk=disk or open_file,
        isolation=isolation or open_processes,
        faults=faults or _faults_asked_for(),
        memory=_memory(reference_memory, reference_directory, references_on_leave, shared=network is None),
        trace_references=trace_references,
    )
    async with _sheltered(settings) as node:
        yield node


@asynccontextmanager
async def _sheltered(settings: _Settings) -> AsyncIterator[Node]:
    """A node in a nursery of its own, whose groups of errors nobody sees."""
    try:
        async with trio.open_nursery() as outer:
            nursery: trio.Nursery = await outer.start(_shelter)
            try:
                async with _opened(nursery, settings) as node:
                    yield node
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # That there is a nursery in here is no business of those who catch a JoinError, or an error of their own.
        raise unwrap(group) from None


def _refuse_contradictions(data_dir: object, join: str | None, store: str | None) -> None:
    if data_dir is not None and (join is not None or store is not None):
        raise ValueError("data_dir is for the node that founds a cluster and keeps its store: leave data_dir out beside join or store")
    if join is not None and store is not None:
        raise ValueError("a store leads to its cluster by itself: give join or store, not both")


def _memory(limit: int, directory: str | os.PathLike[str] | None, on_leave: OnLeave, *, shared: bool) -> MemoryOptions:
    """How values are kept. Not `shared` with simulated nodes, whose processes are all one."""
    if limit < 0:
        raise ValueError(f"reference_memory is a number of bytes, not {limit}")
    if on_leave not in get_args(OnLeave):
        raise ValueError(f"references_on_leave is one of {', '.join(get_args(OnLeave))}, not {on_leave!r}")
    return MemoryOptions(limit, Path(directory) if directory is not None else None, shared, on_leave)


def _faults_asked_for() -> Faults | None:
    text = os.environ.get(FAULTS_VARIABLE, "")
    if not text.strip():
        return None
    try:
        faults = Faults.parse(text)
    except ValueError as error:
        raise ValueError(f"{FAULTS_VARIABLE}: {error}") from None
    logger.warning("%s is set: calls to and from this node will fail on purpose: %s", FAULTS_VARIABLE, text)
    return faults


async def _shelter(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """A nursery that a cancellation of the block does not reach: the node needs its tasks until it has left in order."""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        task_status.started(nursery)
        await trio.sleep_forever()


@asynccontextmanager
async def _opened(nursery: trio.Nursery, settings: _Settings) -> AsyncIterator[Node]:
    """The node itself, its tasks in `nursery`."""
    environment, network = settings.environment, settings.network
    held = await _held_store(nursery, settings)
    before = await find_founder(held.store) if held is not None and settings.data_dir is not None else None
    door = _Door()
    bound = await _listening(nursery, settings, before[1] if before is not None else None, door)
    local = await nursery.start(network.listen, f"unix:@understudy-{environment.token(8).hex()}", door.accept)
    process = environment.process()
    record = NodeRecord(
        name=settings.name or (before[0] if before is not None else f"node-{environment.token(4).hex()}"),
        addresses=(bound, local),
        host=process.host,
        pid=process.pid,
        started=process.started,
        lease=0,
        joined=environment.wall_time(),
        labels=settings.labels,
        resources=settings.resources,
    )
    place = settings.cluster, settings.secret, environment, network, record
    found: Coordination | Elsewhere | None = None
    if held is None:
        found = await enter_by_member(cast("str", settings.join), *place)
        if isinstance(found, Elsewhere):
            held = await _running(nursery, _etcd(found.address, settings))
    if held is not None:
        found = await enter_with_store(held.store, held.kind, held.address, *place)
    coordination = cast("Coordination", found)
    if settings.data_dir is not None and held is not None:
        await note_founder(held.store, record.name, bound)
    incarnation = coordination.enrolment.incarnation
    peer = Peer(
        name=record.name,
        incarnation=incarnation,
        role="node",
        addresses=record.addresses,
        host=record.host,
        store=coordination.identity,
        life=environment.token(8).hex(),
    )
    introduction = Introduction(cluster=settings.cluster, peer=peer)
    node = Node(
        introduction, settings.secret, environment, network, nursery, coordination, settings.isolation, settings.faults, settings.memory
    )
    if settings.trace_references:
        node.station.references.site = calling_site
    try:
        # Before it serves, which takes the store, and that perhaps the very connection that its owner has just dialled.
        door.open(node)
        await node.serve()
        yield node
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(DRAIN_SECONDS + 2 * CLOSE_SECONDS):
            await node.close()
        if held is not None:
            held.store.close()


async def _held_store(nursery: trio.Nursery, settings: _Settings) -> _Held | None:
    """The store that this process reaches by itself, running in `nursery`; None if a member is to be asked."""
    if settings.join is not None:
        return None
    if settings.store is not None:
        return await _running(nursery, _etcd(settings.store, settings))
    if settings.data_dir is None:
        return await _running(nursery, _Held(EmbeddedStore(settings.environment), "embedded"))
    return await _running(nursery, _Held(await EmbeddedStore.on_disk(settings.environment, settings.data_dir, settings.disk), "embedded"))


def _etcd(address: str, settings: _Settings) -> _Held:
    """The store of the settings' cluster in an etcd."""
    # Brings TLS and what reads addresses, which other nodes do not need.
    from runtime.store.etcd.address import EtcdAddress
    from runtime.store.etcd.store import EtcdStore

    if not address:
        raise JoinError("this cluster's store is an etcd that takes a user or certificates: join with store='etcd://...' (--store) instead")
    parsed = EtcdAddress.parse(address)
    return _Held(EtcdStore(parsed, settings.cluster, settings.environment), "etcd", parsed.public)


async def _running(nursery: trio.Nursery, held: _Held) -> _Held:
    await nursery.start(held.store.run)
    return held


async def _listening(nursery: trio.Nursery, settings: _Settings, before: str | None, door: _Door) -> str:
    """Where this node is reached: where it was before, if any port will do."""
    host, port = split_host_port(split_address(settings.listen)[1])
    if before is not None and port == 0 and split_host_port(split_address(before)[1])[0] == host:
        try:
            return cast("str", await nursery.start(settings.network.listen, before, door.accept))
        except ListenError as error:
            logger.warning("this node cannot be reached where it was before; nodes that only know that address will not find it: %s", error)
    return cast("str", await nursery.start(settings.network.listen, settings.listen, door.accept))
