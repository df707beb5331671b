"""A node's life: it assembles the rooms, joins or founds a cluster, serves, drains and leaves.

`open_node` is the door. No background task outlives it: all of a node's tasks live in one nursery, which is closed in order when the block
ends.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar, Unpack, cast, overload

import attrs
import trio

from actors.actor import Actor
from actors.errors import (
    ActorClassError,
    ActorNotFoundError,
    CallError,
    NodeNotFoundError,
    NoPlacementError,
    RemoteError,
    StoreError,
)
from actors.handle import Handle
from actors.messages import import_path, path_by_file
from actors.method import Address
from actors.node import Member
from actors.options import SpawnChanges, SpawnOptions
from actors.supervision import ExitReason
from runtime.calls.failures import plain_error
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.host import Host
from runtime.hosting.leased import LeasedNames
from runtime.hosting.services import NODE_SERVICE, STORE_SERVICE, NodeService
from runtime.links.link import Link
from runtime.links.transports import Connection, Network
from runtime.membership.deaths import Deaths
from runtime.membership.join import JoinTicket
from runtime.membership.members import Enrolment, Members, MembersWatch
from runtime.membership.names import Names
from runtime.store.interface import Store
from runtime.store.service import CALL_SECONDS, RemoteStore, StoreService
from runtime.supervision.work import SupervisionWork, choose_node
from runtime.wire.handshake import Introduction, Peer

P = ParamSpec("P")
A = TypeVar("A")

DRAIN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
LET_GO_EVERY = 0.2

logger = logging.getLogger("understudy.node")


@attrs.frozen
class _Options:
    """A way to start actors with options; see `actors.node.Spawner`."""

    _node: Node
    _options: SpawnOptions

    def options(self, **changes: Unpack[SpawnChanges]) -> _Options:
        return _Options(self._node, attrs.evolve(self._options, **changes))

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return cast("A", await self._node.start(actor, args, kwargs, self._options))

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return cast("A", await self._node.get_or_start(actor, args, kwargs, self._options))


class Node:
    """One node of a cluster, open for use. Get one from `open_node`; see `actors.node.NodeInterface` for what it offers."""

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        environment: Environment,
        network: Network,
        nursery: trio.Nursery,
        store: Store | None,
        enrolment: Enrolment,
        ticket: JoinTicket | None,
        faults: Faults | None = None,
    ) -> None:
        self._environment = environment
        self._nursery = nursery
        self._introduction = introduction
        self._enrolment = enrolment
        self.secret = secret
        self.asked_to_leave = trio.Event()
        self._following = trio.CancelScope()
        self._ticket = ticket
        self._store_node = ticket.store_node if ticket is not None else introduction.peer.identity
        self._station = Station(
            introduction,
            secret,
            environment,
            network,
            nursery,
            self,
            self._make_host,
            broken=lambda link: self._deaths.connection_broken(link),
            outdated=lambda peer: self._deaths.is_outdated(peer),
            faults=faults,
        )
        self._store = store or self._remote_store()
        codec = self._station.codec
        enrolment.use(self._store)
        self._names = Names(self._store, codec, enrolment.record.lease, self.name, self.incarnation)
        self._members = Members(self._store, codec, self._gone)
        self._deaths = Deaths(self._members, self._store, nursery, self._station.ended)
        host = self._station.host
        host.add_system(NODE_SERVICE, NodeService(host, codec, self._station.references, self, self.name))
        if store is not None:
            host.add_system(STORE_SERVICE, StoreService(store))

    @property
    def name(self) -> str:
        """The node's name, unique among the live members."""
        return self._introduction.peer.name

    @property
    def incarnation(self) -> int:
        """This start of the node; later starts of any node have greater ones."""
        return self._introduction.peer.incarnation

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._introduction.cluster

    @property
    def address(self) -> str:
        """`HOST:PORT` that others can join by."""
        return next(address for address in self._introduction.peer.addresses if address.startswith("tcp:")).removeprefix("tcp:")

    def options(self, **changes: Unpack[SpawnChanges]) -> _Options:
        """A way to start actors with options; see `SpawnOptions`."""
        return _Options(self, SpawnOptions(**changes))

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor on this node under a generated name. See `Spawner.spawn`."""
        return await self.options().spawn(actor, *args, **kwargs)

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """See `Spawner.get_or_spawn`; needs a name, so use `options(name=...)` first."""
        return await self.options().get_or_spawn(actor, *args, **kwargs)

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """The handle of the actor of this name, wherever it runs; waits while its supervisor restarts it. Raises `ActorNotFoundError`."""
        return cast("A", self._station.make_handle(await self._names.locate(name), actor))

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. Stopping one that has ended already is no error.

        A method may stop its own actor: that returns at once, and the actor ends when the method has returned.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"stop takes a handle, not {handle!r}")
        address = await self._names.find(handle.name) if handle.address.registered else handle.address
        job = self._station.host.workers.running.get(trio.lowlevel.current_task())
        if address is not None and job is not None and job.cell.address == address:
            # An actor that stops itself cannot wait for its own end: it ends when this method has.
            self._nursery.start_soon(self.stop_address, address, ExitReason("stopped", reason))
        elif address is not None:
            await self.stop_address(address, ExitReason("stopped", reason))

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, by name."""
        return self._members.all()

    def unreachable(self) -> tuple[str, ...]:
        """The members that this node cannot reach at the moment. They may be alive; calls to them wait, within their deadlines."""
        lost = self._station.peers.unreachable()
        return tuple(member.name for member in self.members() if member.name in lost)

    def watch_members(self) -> MembersWatch:
        """Every change of the members, the present ones first: `async for members in node.watch_members()`."""
        return MembersWatch(self._members)

    async def wait_for(self, count: int) -> tuple[Member, ...]:
        """Wait until the cluster has at least `count` members."""
        while len(self._members.all()) < count:
            await self._members.wait_changed()
        return self._members.all()

    async def wait_gone(self, name: str) -> None:
        """Wait until no node called `name` is a member."""
        while self._members.find(name) is not None:
            await self._members.wait_changed()

    def leave(self) -> None:
        """Ask this node to drain and leave: whoever keeps it open waits for `asked_to_leave`."""
        self.asked_to_leave.set()

    def status(self) -> dict[str, object]:
        """Facts about this node and what it knows of the cluster, as plain data."""
        host = self._station.host
        return {
            "node": self.name,
            "incarnation": self.incarnation,
            "cluster": self.cluster,
            "address": self.address,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "store": {"kind": "embedded", "node": self._store_node[0], "incarnation": self._store_node[1]},
            "members": [attrs.asdict(member) for member in self.members()],
            "unreachable": list(self.unreachable()),
            "actors": [
                {
                    "name": cell.address.name,
                    "class": cell.address.class_path,
                    "epoch": cell.address.epoch,
                    "waiting": cell.waiting,
                    "running": len(cell.running),
                    "served": cell.served,
                }
                for cell in host.cells.values()
                if not cell.system
            ],
            "links": [
                {"peer": link.peer.name, "connected": link.connected, "connections": link.counters.connections}
                for link in self._station.peers.links.values()
            ],
        }

    # What follows is for the rooms of the runtime.

    async def start(
        self, actor: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """Start an actor and return its handle; see `Spawner.spawn`."""
        if not (isinstance(actor, type) and issubclass(actor, Actor)):
            raise TypeError(f"spawn takes a subclass of actors.Actor, not {actor!r}")
        if options.on in (None, self.name) and not options.labels:
            codec = self._station.codec
            copied = tuple(codec.copy(argument, f"args[{index}]") for index, argument in enumerate(args))
            copied_kwargs = {key: codec.copy(value, key) for key, value in kwargs.items()}
            address = await self._station.host.start(actor, copied, copied_kwargs, options, import_path(actor))
        else:
            address = await self.start_actor(import_path(actor), args, dict(kwargs), options, "")
        handle = self._station.make_handle(address, actor)
        return handle if options.call_options().is_default else handle.options(timeout=options.timeout, retry=options.retry)

    async def get_or_start(
        self, actor: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """See `Spawner.get_or_spawn`."""
        from actors.errors import NameTakenError

        if options.name is None:
            raise ValueError("get_or_spawn needs a name: node.options(name=...).get_or_spawn(...)")
        while True:
            found = await self._names.find(options.name)
            if found is not None:
                return self._station.make_handle(found, actor)
            try:
                return await self.start(actor, args, kwargs, options)
            except NameTakenError:
                # Somebody else was faster; unless that one has ended again meanwhile, it is found now.
                continue

    async def start_actor(
        self, class_path: str, args: Sequence[object], kwargs: dict[str, object], options: SpawnOptions, supervisor: str
    ) -> Address:
        """See `runtime.supervision.work.Operations.start_actor`."""
        member = await self._place(options)
        by_file = path_by_file(class_path)
        try:
            return await self._spawn_on(member, class_path, args, kwargs, options, supervisor)
        except ActorClassError:
            if by_file is None:
                raise
        # A class of this script itself: nodes of a local cluster know it as that, others by the name of its file.
        return await self._spawn_on(member, by_file, args, kwargs, options, supervisor)

    async def _spawn_on(
        self, member: Member, path: str, args: Sequence[object], kwargs: dict[str, object], options: SpawnOptions, supervisor: str
    ) -> Address:
        service = self._station.node_service(member.name, member.incarnation)
        ticket = self._environment.token(8).hex()
        try:
            return cast("Address", await service.spawn(path, tuple(args), kwargs, options, supervisor, ticket))
        except trio.Cancelled:
            # It may have started, and the answer be on its way: nobody else knows of it.
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS):
                await service.take_back.send(ticket)
            raise
        except RemoteError as error:
            plain = plain_error(error)
            if plain is None:
                raise
            raise plain from None

    async def stop_address(self, address: Address, reason: ExitReason) -> None:
        """See `Operations.stop_address`."""
        try:
            await self._station.node_service(address.node, address.incarnation).stop_actor(address.name, address.epoch, reason)
        except ActorNotFoundError:
            return

    async def watch_address(self, address: Address) -> ExitReason:
        """See `Operations.watch_address`."""
        while True:
            try:
                ended = await self._station.node_service(address.node, address.incarnation).watch(address.name, address.epoch)
                if ended is None:
                    continue
                return cast("ExitReason", ended)
            except CallError as error:
                seen = self._members.find(address.node)
                if seen is None or seen.member.incarnation != address.incarnation:
                    return ExitReason("node died", f"node {address.node} is gone: {error}")
            # The node lives and only the session with it was lost: watch again.
            await trio.sleep(0.05)

    async def promise(self, name: str, supervisor: str) -> None:
        """See `Operations.promise`."""
        await self._names.promise(name, supervisor)

    async def withdraw(self, name: str) -> None:
        """See `Operations.withdraw`."""
        await self._names.withdraw(name)

    async def locate(self, name: str) -> Address:
        """See `Directory.locate`."""
        return await self._names.locate(name)

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        """See `Directory.link_to`."""
        links = self._station.peers.links
        link = links.get((node, incarnation))
        if link is not None and link.ended is None:
            return link
        await self._members.caught_up(incarnation)
        seen = self._members.find(node)
        if seen is None or seen.member.incarnation != incarnation:
            return None
        member = seen.member
        return self._station.peers.link(Peer(name=node, incarnation=incarnation, role="node", addresses=member.addresses, host=member.host))

    async def accept(self, connection: Connection) -> None:
        """Serve a connection that somebody dialled."""
        await self._station.peers.accept(connection)

    async def serve(self) -> None:
        """Start what a node does all its life; returns when it is ready for use."""
        self._nursery.start_soon(self._station.peers.beat, name="beats")
        if self._ticket is not None:
            self._station.peers.link(self._ticket.store_peer)
        await self._nursery.start(self._follow)

    async def _follow(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Everything that a node does of its own accord, until it leaves."""
        with self._following:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._members.run)
                names = LeasedNames(self._station.host, self.name, self.leave)
                nursery.start_soon(self._enrolment.keep, names, name="lease")
                nursery.start_soon(self._let_go, name="references")
                task_status.started()

    async def stop_actors(self) -> None:
        """Stop the actors of this node, the latest first, and with the supervisors among them their children anywhere."""
        await self._station.host.stop_all(ExitReason("shutdown", f"node {self.name} stops its actors"))

    async def close(self) -> None:
        """Drain, leave and say goodbye; bounded in time and not to be cancelled half-way."""
        with trio.move_on_after(DRAIN_SECONDS):
            try:
                self._station.host.draining = True
                await self._enrolment.set_state("draining")
                await self._station.host.drain(DRAIN_SECONDS / 2)
                self._following.cancel()
                await self._enrolment.leave()
            except (StoreError, CallError) as error:
                logger.info("left without the store's knowledge, which forgets us when our lease ends: %s", error)
        self._following.cancel()
        await self._station.peers.close(CLOSE_SECONDS)

    async def _place(self, options: SpawnOptions) -> Member:
        if options.on is not None:
            seen = self._members.find(options.on)
            if seen is None:
                await self._members.caught_up(self._members.revision + 1)
                seen = self._members.find(options.on)
            if seen is None:
                known = ", ".join(member.name for member in self.members())
                raise NodeNotFoundError(f"there is no node called {options.on!r} in the cluster; its nodes are: {known}", node=options.on)
            return seen.member
        load: dict[str, int] = {}
        for address in await self._names.all():
            load[address.node] = load.get(address.node, 0) + 1
        chosen = choose_node(self.members(), dict(options.labels), self._environment.random(), load)
        if chosen is None:
            raise NoPlacementError(f"no node carries the labels {dict(options.labels)!r}", actor=options.name)
        return chosen

    def _make_host(self, station: Station) -> Host:
        return Host(
            self,
            self._nursery,
            self._environment,
            lambda: self._names,
            station.make_handle,
            lambda supervisor, address: SupervisionWork(supervisor, address.name, self, self._environment),
        )

    def _remote_store(self) -> Store:
        handle = self._station.system_handle(StoreService, STORE_SERVICE, *self._store_node)
        return RemoteStore(cast("StoreService", handle.options(timeout=CALL_SECONDS)), cast("StoreService", handle))

    def _gone(self, member: Member) -> None:
        if (member.name, member.incarnation) != (self.name, self.incarnation):
            logger.info("node %s (incarnation %d) is gone", member.name, member.incarnation)
            self._station.ended((member.name, member.incarnation), "it has left the cluster or its lease has ended")

    async def _let_go(self) -> None:
        while True:
            await trio.sleep(LET_GO_EVERY)
            try:
                await self._station.held.let_go()
            except CallError:
                # The owner is gone, and the value with it.
                continue
