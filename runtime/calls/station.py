"""A station: the links and calls of one identity, put together.

A node has one for its life. A process that has no incarnation yet, because it is about to join, or never will, because it only asks (the
command line), has one under a
client's identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import trio

from actors.actor import Actor
from actors.errors import DecodeError, ProtocolError
from actors.handle import Handle
from actors.method import Address
from actors.options import CallOptions
from runtime.calls.answers import Answers
from runtime.calls.caller import Caller
from runtime.calls.classes import expected_class, fits
from runtime.calls.deadlines import Deadlines
from runtime.calls.dispatch import Dispatch
from runtime.calls.failures import Place, rebuild
from runtime.calls.imports import Imports
from runtime.calls.keeping import KeptResults
from runtime.calls.local import LocalCalls
from runtime.calls.production import ProducedStreams
from runtime.calls.reading import ArrivingItems
from runtime.calls.recorded import RecordedCalls
from runtime.calls.remote import RemoteResults
from runtime.calls.replies import Replies
from runtime.calls.routes import Directory, Routes
from runtime.calls.system_handles import SystemHandle
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.applied import Client
from runtime.hosting.host import Host
from runtime.lifetime import Lifetime
from runtime.links.link import Link
from runtime.links.peers import Peers
from runtime.links.transports import Network
from runtime.references.references import MemoryOptions, References
from runtime.references.service import REFERENCE_SERVICE, ReferenceService
from runtime.references.values import Failure
from runtime.system_calls import NODE_CALLS, SYSTEM_CALLS
from runtime.wire.codec import Codec, Extension
from runtime.wire.introduction import Introduction, Peer

HANDLE_TAG = 64_100


UNSHARED = MemoryOptions()


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
        departed: Callable[[Peer], None] = lambda peer: None,
        member: Callable[[Peer], bool] = lambda peer: True,
        faults: Faults | None = None,
        memory: MemoryOptions = UNSHARED,
    ) -> None:
        identity = (introduction.peer.name, introduction.peer.incarnation)
        self.identity = identity
        self.lifetime = Lifetime(introduction.peer.name)
        client = Client(*identity, introduction.peer.life)
        numbers = itertools.count(1).__next__
        self.values = References(
            identity, self.reference_service, self._reference_service_once, environment, numbers, self._rebuild, memory, self.lifetime
        )
        self.references = self.values.table
        self.codec = Codec(
            [Extension(HANDLE_TAG, Handle, _address_of_handle, self._read_handle), *self.values.extensions],
            sentinel=environment.token(8),
        )
        self.values.use(self.codec)
        if faults is not None:
            faults.use(environment.random)
        routes = self._routes = Routes(identity, self.codec, directory)
        kept = KeptResults(self.references, self.values.own, self.codec)
        answers = Answers(self.codec, routes, self.codec.find_class)
        deadlines = Deadlines(nursery, environment)
        self.caller = Caller(environment, self.codec, routes, answers, deadlines, numbers, faults)
        self.host = make_host(self)
        self.host.add_system(
            REFERENCE_SERVICE,
            ReferenceService(self.references, self.values.own, self.values.overview, self.values.correspondence, self.reference_service),
        )
        local = LocalCalls(self.host, self.codec, self.codec.find_class, kept, client, self.lifetime)
        self.caller.attach(self.host, local, RemoteResults(self.caller, self.references, self.codec, nursery))
        replies = Replies(self.codec)
        self._recorded = RecordedCalls(self.host, self.codec, replies, environment, nursery, kept, faults)
        self.produced = ProducedStreams(self.host, self.codec, replies, environment, kept)
        arriving = ArrivingItems(self.codec, routes)
        imports = Imports(self.codec, environment, nursery)
        dispatch = Dispatch(
            self.host, self.codec, environment, answers, replies, self._recorded, self.produced, arriving, kept, imports, faults
        )
        self.peers = Peers(introduction, secret, environment, network, dispatch, nursery, broken, outdated, member, departed)
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

    def typed_handle(self, address: Address, actor: object) -> Any:
        """The handle of the actor at `address` for a caller who takes it for an `actor`. Raises ClassMismatchError if it is none."""
        expected = expected_class(address, actor, self.codec.find_class)
        return self.make_handle(address if expected == address.class_path else attrs.evolve(address, class_path=expected), actor)

    def fits(self, handle: Address, found: Address) -> bool:
        """True if the actor that was found under the name of a handle is one that the handle is for."""
        return fits(handle.class_path, found.class_path, self.codec.find_class)

    def system_handle(self, service: type[Actor], name: str, node: str, incarnation: int, options: CallOptions = SYSTEM_CALLS) -> Any:
        """A handle of one of the runtime's own services on another node, or on this one."""
        return SystemHandle(self.caller, Address(name, node, incarnation), service.__methods__, options)

    def close(self) -> None:
        """Everything that is asked from now on, or waits for something of this node, ends with `NotAMemberError`."""
        self.lifetime.end()
        self.host.close()
        self.values.close()

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
        self.references.ended(peer)

    def node_service(self, node: str, incarnation: int) -> Any:
        """The service of a node; see `NodeService`."""
        from runtime.hosting.services import NODE_SERVICE, NodeService

        return self.system_handle(NodeService, NODE_SERVICE, node, incarnation, NODE_CALLS)

    def reference_service(self, node: str, incarnation: int) -> Any:
        """The service of a node for references; see `ReferenceService`."""
        return self.system_handle(ReferenceService, REFERENCE_SERVICE, node, incarnation)

    def _reference_service_once(self, node: str, incarnation: int) -> Any:
        return SystemHandle(self.caller, Address(REFERENCE_SERVICE, node, incarnation), ReferenceService.__methods__)

    def _read_handle(self, address: object) -> Any:
        if not isinstance(address, Address):
            raise ProtocolError(f"a handle of {type(address).__name__}")
        return self.make_handle(address)

    def _rebuild(self, failure: Failure) -> Exception:
        place = Place(failure.actor, failure.method, failure.node, failure.epoch)
        return rebuild(failure.code, failure.plain, place, self.codec.find_class)


def _address_of_handle(handle: Any, segments: object) -> object:
    return handle.address
