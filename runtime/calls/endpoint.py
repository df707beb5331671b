"""The endpoint: combines the links, call client, host and references of one identity.

A node has one endpoint for its life. A process without an incarnation has one under a client's
identity: it is about to join, or it only asks (the command line).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack

import attrs
import trio

from actors.actor import Actor
from actors.errors import DecodeError, NotAllowedError, OutcomeUnknownError, ProtocolError
from actors.filters import Filter, on_side
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.method import Address, BoundMethod, Caller
from actors.options import CallChanges, CallOptions
from runtime.annotation_checks import fits_answer
from runtime.calls.admission import AdmissionRules, CallAdmission
from runtime.calls.classes import expected_class, fits
from runtime.calls.client import CallClient
from runtime.calls.deadlines import Deadlines
from runtime.calls.dedup_server import DedupServer
from runtime.calls.dispatch import Dispatch
from runtime.calls.error_codec import CallPlace, describe, raised_by_method, rebuild
from runtime.calls.filtered_calls import FilteredCaller, caller_for
from runtime.calls.imports import Imports
from runtime.calls.incoming_calls import ResultRetention
from runtime.calls.local_calls import LocalCalls
from runtime.calls.own_cluster import check_own_cluster, is_of_another_cluster
from runtime.calls.replies import ReplyEncoder
from runtime.calls.reply_handler import ReplyHandler, StreamItemHandler
from runtime.calls.returned_calls import RETURNS_SERVICE, CallReturns, ReturnedCalls
from runtime.calls.routes import PeerDirectory, Routes
from runtime.calls.stream_server import StreamServer
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.completion_records import RequestClient
from runtime.hosting.host import ActorHost
from runtime.hosting.item_batches import ItemBatches
from runtime.hosting.timeline_recorder import TimelineRecorder
from runtime.lifetime import Lifetime
from runtime.links.keyring import Keyring
from runtime.links.link import Link
from runtime.links.peers import ADMIT_ALL, ALL_MEMBERS, PeerMembership, PeerPolicy, Peers
from runtime.links.transports import Network
from runtime.references.manager import MemoryOptions, ReferenceManager
from runtime.references.service import REFERENCE_SERVICE, ReferenceService
from runtime.references.values import FailedValue
from runtime.service_calls import NODE_CALLS, SYSTEM_CALLS
from runtime.statistics.call_statistics import CallStatistics
from runtime.tracing import spans_of
from runtime.wire.codec import Codec
from runtime.wire.handshake import Introduction
from runtime.wire.plain_writer import Extension
from runtime.wire.standard_types import UnsendableError

# Handles of the runtime's own services on other nodes: what these answer is checked against the
# service's annotations.
#
# What a service answers goes on into tables and tasks of the whole node, as what it is asked does
# (see `runtime.annotation_checks`). A peer that answers with something else has not answered: the
# call ends with an `OutcomeUnknownError`, like one whose answer cannot be read.

P = ParamSpec("P")

R = TypeVar("R")

HANDLE_TAG = 64_100

MOST_NODE_SERVICES = 1024
"""Handles of node services that are kept, each with its methods and their routes."""

UNSHARED = MemoryOptions()

NO_RULES = AdmissionRules()


class ServiceMethod(BoundMethod[P, R]):
    """A method of a service, ready to be called."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Make the call. Raises OutcomeUnknownError for an answer of another type than the
        method's.
        """
        return self._answered(super().__call__(*args, **kwargs))

    def options(self, **changes: Unpack[CallChanges]) -> ServiceMethod[P, R]:
        """Return the same method with other call options."""
        changed = ServiceMethod[P, R](
            self._caller,
            self._address,
            self._definition,
            CallOptions(**changes).over(self._options),
        )
        changed._route, changed._moved = self._route, self._moved
        return changed

    async def _answered(self, call: Coroutine[Any, Any, R]) -> R:
        answer = await call
        if not fits_answer(self._definition.function, answer):
            address, method = self._address, self._definition.name
            raise OutcomeUnknownError(
                f"node {address.node} answered {address.name}.{method} with a value of a type "
                f"that it never returns: {type(answer).__name__}",
                actor=address.name,
                method=method,
                node=address.node,
            )
        return answer


class ServiceHandle(Handle):
    """The handle of a service."""

    def __getattr__(self, attribute: str) -> Any:
        bound = super().__getattr__(attribute)
        if isinstance(bound, BoundMethod):
            bound = ServiceMethod(self._caller, bound._address, bound._definition, bound._options)
            self.__dict__[attribute] = bound
        return bound


class RpcEndpoint:
    """Combines the links, call client, host and references of one identity. `make_host(endpoint)`
    gives the host of its actors; of the endpoint it may only keep methods, which are not called
    yet. `call_timeout`: see `CallClient`. `rules`: see `AdmissionRules`.
    `membership`: see `PeerMembership`. `policy`: see `PeerPolicy`.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes | Keyring,
        environment: Environment,
        network: Network,
        nursery: trio.Nursery,
        directory: PeerDirectory,
        make_host: Callable[[RpcEndpoint], ActorHost],
        membership: PeerMembership = ALL_MEMBERS,
        faults: Faults | None = None,
        memory: MemoryOptions = UNSHARED,
        call_timeout: float | None = None,
        filters: tuple[Filter, ...] = (),
        rules: AdmissionRules = NO_RULES,
        policy: PeerPolicy = ADMIT_ALL,
    ) -> None:
        # Leaves first. Two circles are left, each closed by a function that is not called before
        # all is there: the references call services on other nodes, through the client that counts
        # on them; and handles that the codec reads and the host makes call through the client,
        # which needs both.
        identity = self.identity = introduction.peer.identity
        self.lifetime, self.nursery = Lifetime(introduction.peer.name), nursery
        client = RequestClient(*identity, introduction.peer.life)
        numbers = itertools.count(1).__next__
        self.references = self._make_references(environment, numbers, memory)
        self.codec = self.references.codec
        links: dict[NodeId, Link] = {}
        self._node_services: dict[NodeId, Any] = {}
        routes = self.routes = Routes(identity, self.codec, directory, links)
        retention = ResultRetention(self.references)
        reply_handler = ReplyHandler(self.codec, routes, self.codec.find_class, environment.now)
        self.host = make_host(self)
        self._complete_host(environment, network, faults)
        self.admission = CallAdmission(self.host, identity, environment.now, rules)
        if rules.authorize is not None:
            self.host.item_batches.judge = self.admission.judge_items
        local = self._make_local_calls(retention, client, environment)
        self.caller = CallClient(
            environment,
            self.codec,
            routes,
            reply_handler,
            Deadlines(nursery, environment, self.host.counts.deadlines_late),
            numbers,
            faults,
            self.host,
            local,
            self.references,
            nursery,
            call_timeout,
            introduction.peer.store,
        )
        self.returns = self._make_returns()
        self.users_caller = self._filter(filters)
        """Makes the calls of users' handles; `caller` makes those of the runtime."""
        self.dispatch = self._make_dispatch(environment, nursery, reply_handler, retention, faults)
        self.peers = Peers(
            introduction,
            secret,
            environment,
            network,
            self.dispatch,
            nursery,
            links,
            membership,
            policy=policy,
        )

    @property
    def is_member(self) -> bool:
        """False for a process that has joined as a client."""
        return self.peers.introduction.peer.role == "node"

    def check_member(self, rule: str) -> None:
        """Raises `NotAllowedError` for a client. `rule`: what only members do."""
        if not self.is_member:
            me = self.peers.introduction.peer
            raise NotAllowedError(
                f"{me.name} has joined the cluster with the role {me.rights!r}: {rule}",
                node=me.name,
            )

    def _complete_host(
        self, environment: Environment, network: Network, faults: Faults | None
    ) -> None:
        self.host.workers.spinner = network.spinner
        if faults is not None:
            faults.use(environment.random)
        self.host.add_system(REFERENCE_SERVICE, self._make_reference_service())
        self.host.item_batches = self._make_item_batches(environment)
        self.host.check_answer = lambda value: self.codec.encode(value, [], "answer")

    def _make_local_calls(
        self, retention: ResultRetention, client: RequestClient, environment: Environment
    ) -> LocalCalls:
        return LocalCalls(
            self.host,
            self.codec,
            self.codec.find_class,
            retention,
            client,
            self.lifetime,
            environment,
            self.admission,
            lambda call, refusal: self.returns.refuse(call, refusal),
        )

    def _make_returns(self) -> CallReturns:
        self.host.add_system(RETURNS_SERVICE, ReturnedCalls(self.caller))
        service = partial(self.system_handle, ReturnedCalls, RETURNS_SERVICE)
        self.caller.lines.wait_returned = lambda node, incarnation: service(
            node, incarnation
        ).all_returned()
        return CallReturns(self.caller, service)

    def _filter(self, filters: tuple[Filter, ...]) -> CallClient | FilteredCaller:
        """Put the filters around users' methods, and return what makes users' calls."""
        self.spans = self.host.spans = self.references.spans = spans_of(filters)
        # A node may be opened within a span. Its workers go on when that has ended.
        self.spans.leave_trace(self.host.workers.context)
        self.host.filters = on_side(filters, "server")
        around = on_side(filters, "client")
        return FilteredCaller(self.caller, around) if around else self.caller

    def _make_references(
        self, environment: Environment, numbers: Callable[[], int], memory: MemoryOptions
    ) -> ReferenceManager:
        handles = Extension(HANDLE_TAG, Handle, self._write_handle, self._read_handle)
        return ReferenceManager(
            self.identity,
            self.reference_service,
            self._reference_service_once,
            environment,
            numbers,
            self._rebuild,
            memory,
            self.lifetime,
            lambda extensions: Codec([handles, *extensions], sentinel=environment.token(8)),
        )

    def _make_item_batches(self, environment: Environment) -> ItemBatches:
        size_of = self.codec.size_of
        return ItemBatches(
            environment.stopwatch,
            lambda error: raised_by_method(error, size_of)[1],
            lambda error: list(describe(error, size_of)),
            self.codec.encode_by_itself,
            self.host.workers,
        )

    def _make_reference_service(self) -> ReferenceService:
        return ReferenceService(self.references, self.reference_service, self.host.asking_peer)

    def _make_dispatch(
        self,
        environment: Environment,
        nursery: trio.Nursery,
        reply_handler: ReplyHandler,
        retention: ResultRetention,
        faults: Faults | None,
    ) -> Dispatch:
        """The server's side: what links hand up goes to one of its parts."""
        self.actor_loads = reply_handler.loads
        """The loads of the actors that pools follow."""
        reply_encoder = ReplyEncoder(self.codec)
        self.dedup_server = DedupServer(
            self.host,
            self.codec,
            reply_encoder,
            environment,
            nursery,
            retention,
            self.admission,
            faults,
        )
        self.stream_server = StreamServer(
            self.host, self.codec, reply_encoder, environment, retention
        )
        return Dispatch(
            self.host,
            self.codec,
            environment,
            reply_handler,
            reply_encoder,
            self.dedup_server,
            self.stream_server,
            StreamItemHandler(self.codec, self.routes),
            retention,
            Imports(self.codec, environment, nursery),
            self.admission,
            self.returns,
            faults,
        )

    def make_handle(self, address: Any, actor: Any = None) -> Any:
        """The handle of the actor at `address`. Without its class, and if that cannot be imported
        here, any method may be tried.
        """
        cls = self._class_at(address) if actor is None else actor
        if not isinstance(cls, type) or not issubclass(cls, Actor):
            return Handle(self.users_caller, address, None)
        return Handle(caller_for(self.users_caller, cls), address, cls.__methods__)

    def users_caller_at(self, address: Address) -> Caller:
        """Return the caller for users' handles of the actor at `address`: it runs the client-side
        filters of the node, and those of the actor's class if that is known here.
        """
        return caller_for(self.users_caller, self._class_at(address))

    def _class_at(self, address: Address) -> type | None:
        if not address.class_path:
            return None
        try:
            return self.codec.find_class(address.class_path)
        except DecodeError:
            return None

    def handle_maker(self, actor: type[Actor]) -> Callable[[Address], Handle]:
        """Returns what makes handles of actors of one class, of which there may be thousands."""
        caller, methods = self.users_caller, actor.__methods__
        return lambda address: Handle(caller, address, methods)

    def typed_handle(self, address: Address, actor: object) -> Any:
        """The handle of the actor at `address` for a caller who takes it for an `actor`. Raises
        ClassMismatchError if it is none.
        """
        expected = expected_class(address, actor, self.codec.find_class)
        return self.make_handle(
            address
            if expected == address.class_path
            else attrs.evolve(address, class_path=expected),
            actor,
        )

    def fits(self, handle: Address, found: Address) -> bool:
        """True if the actor that was found under the name of a handle is one that the handle is
        for.
        """
        return fits(handle.class_path, found.class_path, self.codec.find_class)

    def system_handle(
        self,
        service: type[Actor],
        name: str,
        node: str,
        incarnation: int,
        options: CallOptions = SYSTEM_CALLS,
    ) -> Any:
        """A handle of one of the runtime's own services on another node, or on this one."""
        return ServiceHandle(
            self.caller, Address(name, node, incarnation), service.__methods__, options
        )

    def close(self) -> None:
        """Close the endpoint: calls that wait for something of this node, and all calls made from
        now on, end with `NotAMemberError`.
        """
        self.lifetime.end()
        self.host.close()
        self.dispatch.close()
        self.references.close()

    def measure(self, statistics: CallStatistics | None) -> None:
        """Count the calls that are made from here, and those that run here, from now on; None:
        stop. Costs nothing while nothing is measured.
        """
        self.caller.measure(statistics)
        self.host.workers.measure(statistics)

    def record(self, recorder: TimelineRecorder | None) -> None:
        """Record the calls that are made from here, and what actors do here, from now on; None:
        stop. Costs nothing while nothing is recorded.
        """
        self.caller.record(recorder)
        self.host.record(recorder)

    def loads(self) -> dict[str, int]:
        """Count the objects that exist at the moment because other nodes, or tasks of this one,
        have not released them yet.
        """
        cells = [cell for cell in self.host.cells.values() if not cell.system]
        return {
            "calls made": sum(len(table.pending) for table in self.routes.tables.values()),
            "calls waiting": sum(cell.waiting for cell in cells),
            "calls running": sum(len(cell.running) for cell in cells),
            "streams": self.stream_server.count,
            "references": len(self.references),
        }

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps of a task. Looks at all that is kept: for
        tests and simulations.
        """
        self.peers.check_invariants()
        self.caller.check_invariants()
        self.dedup_server.check_invariants()
        self.dispatch.check_invariants()
        self.host.check_invariants()
        self.admission.quotas.check_invariants()
        self.references.check_invariants()

    def on_peer_ended(self, peer: NodeId, reason: str) -> None:
        """Handle the known end of an incarnation: end the calls that it had made and those made to
        it.
        """
        self.peers.on_peer_ended(*peer, reason)
        self.dedup_server.on_ended(peer)
        self.host.completion_log.on_node_ended(*peer)
        self.caller.on_peer_ended(peer)
        self.references.on_node_ended(peer)
        self._node_services.pop(peer, None)

    def node_service(self, node: str, incarnation: int) -> Any:
        """The service of a node; see `NodeService`."""
        place = NodeId(node, incarnation)
        service = self._node_services.get(place)
        if service is None:
            from runtime.hosting.node_service import NODE_SERVICE, NodeService

            service = self.system_handle(NodeService, NODE_SERVICE, node, incarnation, NODE_CALLS)
            self._node_services[place] = service
            # Nodes that are asked for after their end come in without going out again.
            if len(self._node_services) > MOST_NODE_SERVICES:
                del self._node_services[next(iter(self._node_services))]
        return service

    def reference_service(self, node: str, incarnation: int) -> Any:
        """The service of a node for references; see `ReferenceService`."""
        return self.system_handle(ReferenceService, REFERENCE_SERVICE, node, incarnation)

    def _reference_service_once(self, node: str, incarnation: int) -> Any:
        return ServiceHandle(
            self.caller, Address(REFERENCE_SERVICE, node, incarnation), ReferenceService.__methods__
        )

    def check_own(self, handle: Handle) -> Handle:
        """Return the handle. Raises ValueError if it is of another cluster."""
        check_own_cluster(handle, self.caller)
        return handle

    def _write_handle(self, handle: Any, segments: object) -> object:
        if is_of_another_cluster(handle, self.caller):
            raise UnsendableError(
                "is a handle of another cluster, whose actors the receiver cannot call; let a "
                "program that has both open make the call"
            )
        return handle.address

    def _read_handle(self, address: object) -> Any:
        if not isinstance(address, Address):
            raise ProtocolError(f"a handle whose address is a {type(address).__name__}")
        return self.make_handle(address)

    def _rebuild(self, failure: FailedValue) -> Exception:
        place = CallPlace(failure.actor, failure.method, failure.node, failure.epoch)
        return rebuild(failure.code, failure.plain, place, self.codec.find_class)
