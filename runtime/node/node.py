"""A node's life: it assembles the rooms, serves, drains and leaves.

`open_node` is the door. No background task outlives it: all of a node's tasks live in one nursery, which is closed in order when the block
ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar, Unpack, cast, overload

import attrs
import trio

from actors.errors import CallError, LeaseLostError, StoreError
from actors.handle import Handle
from actors.method import Address
from actors.node import Member
from actors.options import SpawnChanges, SpawnOptions
from actors.reference import Reference
from actors.supervision import ExitReason
from actors.watching import Ended
from runtime.calls.station import UNSHARED, Station
from runtime.environment import Beside, Environment
from runtime.faults import Faults
from runtime.groups.groups import Groups
from runtime.groups.process_group import ProcessGroup
from runtime.hosting.family import HostedFamily
from runtime.hosting.host import Host
from runtime.hosting.leased import LeasedNames
from runtime.hosting.services import NODE_SERVICE, NodeService, store_service
from runtime.hosting.threads import NODE_THREADS
from runtime.isolation import Isolation, IsolationFactory
from runtime.links.link import Link
from runtime.links.transports import Connection, Network
from runtime.membership.contact import StoreContact
from runtime.membership.coordination import Coordination
from runtime.membership.deaths import Deaths
from runtime.membership.lookups import Lookups
from runtime.membership.members import LEASE_SECONDS, RENEW_EVERY, Members, MembersWatch
from runtime.membership.names import Names
from runtime.membership.promises import NAMES
from runtime.membership.stand_by import Reach, StandBy
from runtime.node.neighbour import Neighbour
from runtime.node.placing import Placing
from runtime.node.starting import Starting
from runtime.node.status import describe
from runtime.observation.asking import ask_for_tree
from runtime.observation.tree import Tree
from runtime.references.references import MemoryOptions
from runtime.store.interface import Store
from runtime.store.service import StoreService
from runtime.supervision.orphans import Orphans
from runtime.supervision.work import SupervisionWork
from runtime.watching.service import WATCHING_SERVICE, WatchingService
from runtime.watching.watching import Watching
from runtime.wire.introduction import Introduction, Peer

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

DRAIN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
HAND_OVER_SECONDS = 4.0

FOREIGN_STORE = "the store was begun anew, and knows nothing of this node"

logger = logging.getLogger("understudy.node")


@attrs.frozen
class _Options:
    """A way to start actors with options; see `actors.node.Spawner`."""

    _node: Node
    _options: SpawnOptions

    def options(self, **changes: Unpack[SpawnChanges]) -> _Options:
        return _Options(self._node, attrs.evolve(self._options, **changes))

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        with self._node.lifetime.asking(f"{self._what(actor)} was not started", acts=True):
            return cast("A", await self._node.starting.start(actor, args, kwargs, self._options))

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        with self._node.lifetime.asking(f"{self._what(actor)} was neither found nor started", acts=True):
            return cast("A", await self._node.starting.get_or_start(actor, args, kwargs, self._options))

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        node = self._node
        with node.lifetime.asking(f"node {node.name} does not stand for {self._what(actor)}", acts=True):
            return cast("A", await node.starting.stand(actor, args, kwargs, self._options, node.candidacies))

    def _what(self, actor: object) -> str:
        return self._options.name or f"an actor of class {getattr(actor, '__name__', actor)}"


class Node:
    """One node of a cluster, open for use. Get one from `open_node`; see `actors.node.NodeInterface` for what it offers."""

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        environment: Environment,
        network: Network,
        nursery: trio.Nursery,
        coordination: Coordination,
        make_isolation: IsolationFactory,
        faults: Faults | None = None,
        memory: MemoryOptions = UNSHARED,
        thread_limit: int = NODE_THREADS,
    ) -> None:
        self._environment = environment
        self._thread_limit = thread_limit
        self._references_move = memory.on_leave == "move"
        self._nursery = nursery
        self._introduction = introduction
        self._coordination = coordination
        self._enrolment = enrolment = coordination.enrolment
        self.secret = secret
        self.asked_to_leave = trio.Event()
        self.given_up: LeaseLostError | None = None
        """Why the cluster has given this node up; None if it has not. The block of `open_node` ends with it."""
        self._following = trio.CancelScope()
        self._beside: Beside | None = None
        self.candidacies: trio.Nursery
        """Where this node stands for singletons, until it leaves."""
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
            member=lambda peer: self._is_member(peer),
            departed=lambda peer: self._departed(peer),
            faults=faults,
            memory=memory,
        )
        self.lifetime = self._station.lifetime
        self._contact: StoreContact | None = None
        if coordination.peer is not None:
            self._contact = StoreContact(self._station, coordination.peer, coordination.identity, environment)
        self._store = store = coordination.store or cast("StoreContact", self._contact).store
        codec = self._station.codec
        enrolment.use(store)
        self._names = Names(store, codec, enrolment.record.lease, self.name, self.incarnation)
        self._members = Members(store, codec, self._gone)
        placing = Placing(self._members, self._names, environment, lambda: self._lookups.is_following)
        self._lookups = Lookups(store, self._names, NAMES, self._may_live, placing)
        self._deaths = Deaths(self._members, store, environment, nursery, self._ended)
        self.starting = Starting(self._station, self._names, self._members, environment, placing)
        neighbour = Neighbour(self, self._names, self._lookups, self._members, self.starting)
        self._isolation: Isolation = make_isolation(self._station, neighbour, nursery, environment, secret)
        host = self._station.host
        host.once.is_gone = self._is_gone
        host.add_system(NODE_SERVICE, NodeService(host, self, self.name))
        self._watching = Watching(self._station, self._members, self._names, nursery)
        host.extensions.add("watching", self._watching)
        host.add_system(WATCHING_SERVICE, WatchingService(self._watching))
        self._groups = Groups(self._station, store, self._members, enrolment.record.lease, environment, nursery)
        host.extensions.add("groups", self._groups)
        if coordination.store is not None:
            # Also where everybody could reach it: the command line's clients come without a way of their own.
            host.add_system(store_service(coordination.identity), StoreService(coordination.store))

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

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """See `Spawner.singleton`; needs a name, so use `options(name=...)` first."""
        return await self.options().singleton(actor, *args, **kwargs)

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """The handle of the actor of this name, wherever it runs; waits while its supervisor restarts it.

        Raises `ActorNotFoundError`, `ClassMismatchError` if it is none of class `actor`, and `DirectoryUnavailableError` while the store is
        away.
        """
        with self.lifetime.asking(f"{name} could not be looked up, and may live"):
            address = await self._lookups.locate(name)
        return cast("A", self._station.typed_handle(address, actor))

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. Stopping one that has ended already is no error.

        A method may stop its own actor: that returns at once, and the actor ends when the method has returned.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"stop takes a handle, not {handle!r}")
        self.lifetime.check()
        address = handle.address
        if address.registered:
            with self.lifetime.asking(f"{handle.name} could not be looked up, and was not stopped"):
                found = await self._names.find(handle.name)
            if found is None or not self._station.fits(address, found):
                self._lookups.forget(handle.name)
                return
            address = found
        job = self._station.host.workers.running.get(trio.lowlevel.current_task())
        if job is not None and job.cell.address == address:
            # An actor that stops itself cannot wait for its own end: it ends when this method has.
            self._nursery.start_soon(self.starting.stop_address, address, ExitReason("stopped", reason))
        else:
            with self.lifetime.asking(f"{handle.name} was not stopped", acts=True):
                await self.starting.stop_address(address, ExitReason("stopped", reason))
        self._lookups.forget(handle.name)

    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended; at once with "no such actor" for one that is dead or unknown."""
        with self.lifetime.asking("the end of an actor cannot be waited for"):
            return await self._watching.wait_ended(handle)

    async def put(self, value: T) -> Reference[T]:
        """Keep a copy of a value on this node, for as long as anybody has a reference to it. Raises `EncodeError`."""
        with self.lifetime.asking("a value was not kept"):
            return await self._station.values.own.put(value)

    def group(self, name: str, actor: Callable[..., A]) -> ProcessGroup[A]:
        """The group of this name, whose members are called as `actor`s. Raises ValueError for what cannot be a group's name."""
        self.lifetime.check()
        return ProcessGroup(self._groups, self._groups.followed(name), actor)

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, by name. Raises `NotAMemberError` after the node's block."""
        self.lifetime.check()
        return self._members.all()

    def unreachable(self) -> tuple[str, ...]:
        """The members that this node cannot reach at the moment. They may be alive; calls to them wait, within their deadlines."""
        return tuple(member.name for member in self.members() if self._station.peers.is_unreachable((member.name, member.incarnation)))

    def watch_members(self) -> MembersWatch:
        """Every change of the members, the present ones first: `async for members in node.watch_members()`."""
        return MembersWatch(self._members, self.lifetime)

    async def wait_for(self, count: int) -> tuple[Member, ...]:
        """Wait until the cluster has at least `count` members that have joined, or are leaving; returns all."""
        with self.lifetime.asking("the members cannot be waited for"):
            while sum(member.state != "joining" for member in self._members.all()) < count:
                await self._members.wait_changed()
        return self._members.all()

    async def wait_gone(self, name: str) -> None:
        """Wait until no node called `name` is a member."""
        with self.lifetime.asking("the members cannot be waited for"):
            while self._members.find(name) is not None:
                await self._members.wait_changed()

    def leave(self) -> None:
        """Ask this node to drain and leave: whoever keeps it open waits for `asked_to_leave`."""
        self.asked_to_leave.set()

    def _was_given_up(self, why: LeaseLostError) -> None:
        self.given_up = self.given_up or why
        self.leave()

    def status(self) -> dict[str, object]:
        """Facts about this node and what it knows of the cluster, as plain data."""
        where = self._contact.peer.identity if self._contact is not None else (self.name, self.incarnation)
        store: dict[str, object] = {
            "kind": self._coordination.kind,
            "identity": self._coordination.identity,
            "address": self._coordination.address,
            "node": where[0],
            "incarnation": where[1],
            "away": self._coordination.enrolment.store_is_away,
        }
        return describe(self, self._station, store, self._enrolment.record.pid, self._environment.now())

    async def tree(self) -> Tree:
        """The cluster's supervisors and their children as they are now; `runtime.draw_tree` makes text of it. Takes some seconds if some do
        not answer, and raises nothing for that.
        """
        with self.lifetime.asking("the tree could not be asked for"):
            return await ask_for_tree(self._station, self._names, [(one.name, one.incarnation) for one in self.members()], self.cluster)

    # What follows is for the rooms of the runtime.

    @property
    def station(self) -> Station:
        """Its links, calls and actors."""
        return self._station

    @property
    def own_store(self) -> Store | None:
        """The cluster's store, if this process reaches it by itself."""
        return self._coordination.store

    async def locate(self, name: str) -> Address:
        """See `Directory.locate`."""
        with self.lifetime.asking(f"{name} could not be looked up, and may live"):
            return await self._names.locate(name)

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        """See `Directory.link_to`."""
        links = self._station.peers.links
        link = links.get((node, incarnation))
        if link is not None and link.ended is None and not link.fenced:
            return link
        self.lifetime.check()
        if self._contact is not None and (node, incarnation) == self._contact.peer.identity:
            # Without asking the store, which is asked over this link.
            return self._contact.link()
        with self.lifetime.asking(f"where node {node} is could not be found out"):
            await self._members.caught_up(incarnation)
        seen = self._members.find(node)
        if seen is None or seen.member.incarnation != incarnation or self._members.is_dead((node, incarnation)):
            return None
        member = seen.member
        return self._station.peers.link(Peer(name=node, incarnation=incarnation, role="node", addresses=member.addresses, host=member.host))

    async def accept(self, connection: Connection) -> None:
        """Serve a connection that somebody dialled."""
        await self._station.peers.accept(connection)

    async def serve(self) -> None:
        """Start what a node does all its life; returns when it is ready for use."""
        self._nursery.start_soon(self._station.peers.beat, name="beats")
        if self._contact is not None:
            self._station.peers.link(self._contact.peer)
        await self._nursery.start(self._follow)
        # Who has a node in hand may place on it at once: its own view, too, must say that it is up.
        await self._members.caught_up(await self._enrolment.set_state("up"))

    def stand_by(self, blocked_limit: float, reach: Reach | None) -> None:
        """Have the node's event loop watched from beside it, and the lease kept while it is blocked; see `StandBy`."""
        enrolment = self._enrolment
        stand_by = StandBy(self.name, self._environment, enrolment.clock, LEASE_SECONDS, RENEW_EVERY, blocked_limit)
        self._beside = self._environment.run_beside(
            lambda environment, stack: stand_by.run(environment, stack, enrolment.record.lease, reach)
        )
        if self._beside is not None:
            enrolment.explain = lambda: stand_by.last
            self._station.host.workers.ask_lease = lambda: enrolment.clock.doubtful_at
            self._nursery.start_soon(stand_by.beat, name="beats of the loop")

    def store_peer(self) -> Peer:
        """The node that serves the store, as far as is known. Only for a node that does not reach it by itself."""
        assert self._contact is not None
        return self._contact.peer

    async def _follow(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Everything that a node does of its own accord, until it leaves."""
        with self._following:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._members.run)
                names = LeasedNames(self._station.host, self.name, self._was_given_up)
                nursery.start_soon(self._enrolment.keep, names, name="lease")
                if self._contact is not None:
                    nursery.start_soon(self._contact.run, self._ended, lambda: names.lose(FOREIGN_STORE), name="store")
                nursery.start_soon(self._lookups.run, name="names")
                nursery.start_soon(self._names.run, name="claims")
                nursery.start_soon(self._groups.run, name="groups")
                nursery.start_soon(self._station.values.run, name="references")
                nursery.start_soon(Orphans(HostedFamily(self._station.host), self.starting.is_supervised).run, name="orphans")
                self.candidacies = nursery
                task_status.started()

    async def stop_actors(self) -> None:
        """Stop the actors of this node, the latest first, and with the supervisors among them their children anywhere."""
        await self._station.host.stop_all(ExitReason("shutdown", f"node {self.name} stops its actors"))

    async def close(self) -> None:
        """Drain, leave and say goodbye; bounded in time and not to be cancelled half-way."""
        with trio.move_on_after(DRAIN_SECONDS):
            try:
                self._station.host.draining = True
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._enrolment.set_state("draining")
                await self._station.host.drain(DRAIN_SECONDS / 2)
                if self._references_move:
                    await self._hand_over_references()
                self._station.values.own.takes_over = False
                self._following.cancel()
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._enrolment.leave()
            except (StoreError, CallError) as error:
                logger.info("left without the store's knowledge, which forgets us when our lease ends: %s", error)
        self._following.cancel()
        if self._beside is not None:
            await self._beside.end()
        if self._contact is not None:
            self._contact.store.close()
        self._station.close()
        await self._station.peers.close(CLOSE_SECONDS)

    async def _hand_over_references(self) -> None:
        with trio.move_on_after(HAND_OVER_SECONDS) as patience:
            lost = await self._station.values.hand_over(
                lambda: [
                    (member.name, member.incarnation) for member in self._members.all() if member.state == "up" and member.name != self.name
                ]
            )
            if lost:
                logger.warning("%d referenced values of node %s end with it: no other node could take them", lost, self.name)
        if patience.cancelled_caught:
            logger.warning("some referenced values of node %s end with it: there was no time to hand them over", self.name)

    def _make_host(self, station: Station) -> Host:
        return Host(
            self,
            self._nursery,
            self._environment,
            lambda: self._names,
            station.make_handle,
            lambda supervisor, address: SupervisionWork(supervisor, address, self.starting, self._environment),
            lambda cls, options: self._isolation.instance(cls, options),
            self._thread_limit,
        )

    def _ended(self, identity: tuple[str, int], reason: str) -> None:
        """That incarnation is proven to have ended; the store may not know it yet."""
        self._members.bury(identity)
        self._station.ended(identity, reason)
        self._watching.gone(identity)
        self._groups.look()

    def _may_live(self, address: Address) -> bool:
        identity = (address.node, address.incarnation)
        seen = self._members.find(address.node)
        if seen is None or seen.member.incarnation != address.incarnation or self._members.is_dead(identity):
            return False
        cell = self._station.host.cells.get(address.name)
        return identity != (self.name, self.incarnation) or (cell is not None and cell.address == address and cell.ended is None)

    def _is_member(self, peer: Peer) -> bool:
        seen = self._members.find(peer.name)
        return seen is not None and seen.member.incarnation == peer.incarnation

    def _departed(self, peer: Peer) -> None:
        """See `Peers`: what no member is, and has no session any more, holds nothing here, and is told of nothing."""
        if peer.role == "client" or self._is_gone(*peer.identity):
            self._forget_stranger(peer)
        elif not self._is_member(peer):
            self._nursery.start_soon(self._forget_unless_member, peer)

    async def _forget_unless_member(self, peer: Peer) -> None:
        try:
            await self._members.caught_up(peer.incarnation)
        except (StoreError, CallError):
            return
        # The latest revision of the store may be below the incarnation: then no node was ever given that.
        if not self._is_member(peer):
            self._forget_stranger(peer)

    def _forget_stranger(self, peer: Peer) -> None:
        self._station.ended(peer.identity, f"{peer.name} is no member of the cluster, and has gone")
        self._watching.gone(peer.identity)

    def _is_gone(self, name: str, incarnation: int) -> bool:
        seen = self._members.find(name)
        return incarnation <= self._members.revision and (seen is None or seen.member.incarnation != incarnation)

    def _gone(self, member: Member) -> None:
        if (member.name, member.incarnation) != (self.name, self.incarnation):
            logger.info("node %s (incarnation %d) is gone", member.name, member.incarnation)
            self._station.ended((member.name, member.incarnation), "it has left the cluster or its lease has ended")
            self._watching.gone((member.name, member.incarnation))
