"""A station: the links and calls of one identity, put together.

A node has one for its life. A process that has no incarnation yet, because it is about to join, or never will, because it only asks (the
command line), has one under a
client's identity.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import trio

from actors.actor import Actor
from actors.errors import DecodeError, ProtocolError
from actors.handle import Handle
from actors.method import Address
from actors.reference import Reference, ReferenceAddress
from runtime.calls.answers import Answers
from runtime.calls.caller import Caller
from runtime.calls.deadlines import Deadlines
from runtime.calls.dispatch import Dispatch
from runtime.calls.local import LocalCalls
from runtime.calls.production import ProducedStreams
from runtime.calls.reading import ArrivingItems
from runtime.calls.recorded import RecordedCalls
from runtime.calls.replies import Replies
from runtime.calls.routes import Directory, Routes
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.applied import Client
from runtime.hosting.host import Host
from runtime.links.link import Link
from runtime.links.peers import Peers
from runtime.links.transports import Network
from runtime.references.table import ReferenceTable
from runtime.system_calls import SYSTEM_CALLS
from runtime.wire.codec import Codec, Extension
from runtime.wire.introduction import Introduction, Peer

HANDLE_TAG = 64_100
REFERENCE_TAG = 64_101


class ReferencesOfOthers:
    """The values of others that this identity holds: fetched and let go of through the services of their owners."""

    def __init__(self, service: Callable[[str, int], Any], identity: tuple[str, int], table: ReferenceTable) -> None:
        self._service = service
        self._identity = identity
        self._table = table
        self._dropped: list[ReferenceAddress] = []
        self._alive: Counter[ReferenceAddress] = Counter()
        self._unwanted: list[ReferenceAddress] = []
        self._suspected: list[ReferenceAddress] = []
        self._made = trio.Event()

    def made(self, address: ReferenceAddress) -> None:
        """There is one more reference, which will be dropped some time."""
        self._alive[address] += 1
        self._made.set()

    def unwanted(self, address: ReferenceAddress) -> None:
        """The answer of a call that nobody waits for any more was a reference. If it has not come before, nobody else will drop it.

        That is looked at later: whoever took it when it came before may be about to wake up.
        """
        self._unwanted.append(address)
        self._made.set()

    async def wait_some(self) -> None:
        """Wait until there are any, dropped or not: there is nothing to look for before."""
        if not self._alive and not self._unwanted and not self._suspected:
            self._made = trio.Event()
            await self._made.wait()

    async def fetch(self, address: ReferenceAddress) -> object:
        """See `ReferenceHolder.fetch`."""
        return await self._service(address.owner, address.incarnation).fetch(address.number)

    def dropped(self, address: ReferenceAddress) -> None:
        """See `ReferenceHolder.dropped`. Only noted: a garbage collector's call may come in the middle of anything."""
        self._dropped.append(address)

    async def let_go(self) -> None:
        """Tell owners what was dropped since the last time, and what nobody took since the time before."""
        suspected, self._suspected, self._unwanted = self._suspected, self._unwanted, []
        for address in suspected:
            if not self._alive[address]:
                self._alive[address] = 1
                self._dropped.append(address)
        while self._dropped:
            address = self._dropped.pop()
            self._alive[address] -= 1
            if not self._alive[address]:
                del self._alive[address]
            if (address.owner, address.incarnation) == self._identity:
                self._table.drop(address.number, self._identity)
            else:
                await self._service(address.owner, address.incarnation).drop.send([address.number], *self._identity)


class Station:
    """See the module. `make_host(station)` gives the host of its actors."""

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        environment: Environment,
        network: Network,
        nursery: trio.Nursery,
        directory: Directory,
        make_host: Callable[[Station], Host],
        broken: Callable[[Link], None] = lambda link: None,
        outdated: Callable[[Peer], bool] = lambda peer: False,
        faults: Faults | None = None,
    ) -> None:
        identity = (introduction.peer.name, introduction.peer.incarnation)
        self.identity = identity
        client = Client(*identity, introduction.peer.life)
        self.codec = Codec(
            [
                Extension(HANDLE_TAG, Handle, _address_of_handle, self._read_handle),
                Extension(REFERENCE_TAG, Reference, _address_of_reference, self._read_reference),
            ],
            sentinel=environment.token(8),
        )
        if faults is not None:
            faults.use(environment.random)
        routes = self._routes = Routes(identity, self.codec, directory)
        self.references = ReferenceTable()
        self.held = ReferencesOfOthers(self.node_service, identity, self.references)
        answers = Answers(self.codec, routes, self.codec.find_class, self.held.unwanted)
        numbers = itertools.count(1).__next__
        deadlines = Deadlines(nursery, environment)
        self.caller = Caller(environment, self.codec, routes, answers, deadlines, numbers, self.make_reference, faults)
        self.host = make_host(self)
        self.caller.attach(self.host, LocalCalls(self.host, self.codec, self.codec.find_class, self._keep, client))
        replies = Replies(self.codec, self._keep)
        self._recorded = RecordedCalls(self.host, self.codec, replies, environment, nursery, faults)
        self.produced = ProducedStreams(self.host, self.codec, replies, environment)
        arriving = ArrivingItems(self.codec, routes)
        dispatch = Dispatch(self.host, self.codec, environment, answers, replies, self._recorded, self.produced, arriving, faults)
        self.peers = Peers(introduction, secret, environment, network, dispatch, nursery, broken, outdated)
        routes.links = self.peers.links

    def make_handle(self, address: Any, actor: Any = None) -> Any:
        """The handle of the actor at `address`. Without its class, and if that cannot be imported here, any method may be tried."""
        cls = actor
        if cls is None and address.class_path:
            try:
                cls = self.codec.find_class(address.class_path)
            except DecodeError:
                cls = None
        methods = cls.__methods__ if isinstance(cls, type) and issubclass(cls, Actor) else None
        return Handle(self.caller, address, methods)

    def make_reference(self, address: Any) -> Reference[Any]:
        """A reference to the value at `address`."""
        self.held.made(address)
        return Reference(self.held, address)

    def system_handle(self, service: type[Actor], name: str, node: str, incarnation: int) -> Any:
        """A handle of one of the runtime's own services on another node, or on this one."""
        return Handle(self.caller, Address(name, node, incarnation), service.__methods__, SYSTEM_CALLS)

    def loads(self) -> dict[str, int]:
        """How much is kept at the moment: what other nodes and this one's own tasks have not let go of yet."""
        cells = [cell for cell in self.host.cells.values() if not cell.system]
        return {
            "calls made": sum(len(table.pending) for table in self._routes.tables.values()),
            "calls waiting": sum(cell.waiting for cell in cells),
            "calls running": sum(len(cell.running) for cell in cells),
            "streams": self.produced.count,
            "references": len(self.references),
        }

    def ended(self, peer: tuple[str, int], reason: str) -> None:
        """That incarnation is known to be no more: end what it had asked for and what was asked of it."""
        self.peers.ended(*peer, reason)
        self._recorded.ended(peer)
        self.host.once.node_ended(*peer)
        self.caller.ended(peer)
        self.references.died(peer)

    def node_service(self, node: str, incarnation: int) -> Any:
        """The service of a node; see `NodeService`."""
        from runtime.hosting.services import NODE_SERVICE, NodeService

        return self.system_handle(NodeService, NODE_SERVICE, node, incarnation)

    def _read_handle(self, address: object) -> Any:
        if not isinstance(address, Address):
            raise ProtocolError(f"a handle of {type(address).__name__}")
        return self.make_handle(address)

    def _read_reference(self, address: object) -> Reference[Any]:
        if not isinstance(address, ReferenceAddress):
            raise ProtocolError(f"a reference to {type(address).__name__}")
        return self.make_reference(address)

    def _keep(self, value: object, holder: tuple[str, int]) -> ReferenceAddress:
        return ReferenceAddress(*self.identity, self.references.keep(value, holder))


def _address_of_handle(handle: Any) -> object:
    return handle.address


def _address_of_reference(reference: Any) -> object:
    return reference.address
