"""A node: it assembles its parts, serves, drains and leaves.

`open_node` opens one. No background task outlives it: all of a node's tasks live in one nursery,
which is closed in order when the block ends.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

import attrs
import trio

from actors.actor import Member, NodeInterface
from actors.errors import (
    CallError,
    ExpelledError,
    HandshakeError,
    LeaseLostError,
    StoreError,
    StoreUnavailableError,
    WrongCertificateError,
)
from actors.filters import Filter
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.keywords import names_keywords
from actors.method import Address
from actors.options import positive_count, positive_seconds
from actors.own_logger import own_logger
from actors.retry import check_whole_number
from actors.short_repr import short_repr
from actors.supervision import ExitReason
from actors.supervisor import Supervisor
from runtime.calls.admission import AdmissionRules
from runtime.calls.arguments import StartRequest
from runtime.calls.endpoint import NO_RULES, UNSHARED, RpcEndpoint
from runtime.calls.rights import PLAIN_SERVICE
from runtime.calls.routes import PeerDirectory
from runtime.environment import Beside, Environment
from runtime.faults import Faults
from runtime.functions.caller import NodeFunctions
from runtime.functions.service import (
    FUNCTION_SERVICE,
    FunctionService,
    FunctionWorkers,
    most_workers,
)
from runtime.groups.groups import Groups
from runtime.hosting.allocations import NOTHING
from runtime.hosting.cell import ActorCell
from runtime.hosting.host import ActorHost
from runtime.hosting.leased_names import LeasedNames
from runtime.hosting.node_service import NODE_SERVICE, NodeService, store_service
from runtime.hosting.threads import NODE_THREADS
from runtime.isolation import Isolation, IsolationFactory, NodeApi
from runtime.isolation.base_node import ActorStarter, BaseNode
from runtime.links.encryption import EncryptedNetwork
from runtime.links.keyring import Keyring
from runtime.links.link import Link
from runtime.links.peers import PeerMembership, PeerPolicy
from runtime.links.transports import Connection, Network
from runtime.logs.archive import LogArchive
from runtime.logs.capture import LogCapture
from runtime.logs.service import LOG_SERVICE, ActorEnds, LogService
from runtime.membership.cluster_record import rewrite_proof
from runtime.membership.cluster_session import ClusterSession
from runtime.membership.expulsion_service import EXPULSION_SERVICE, ExpulsionService
from runtime.membership.expulsions import Expulsion, Expulsions
from runtime.membership.journals import Journals
from runtime.membership.keyring_service import KEYRING_SERVICE, KeyringService
from runtime.membership.lookups import Lookups
from runtime.membership.members import (
    FailureDetector,
    Members,
    MembersWatch,
    peer_of_member,
)
from runtime.membership.names import Names
from runtime.membership.remote_store import StoreService
from runtime.membership.restart_intents import NAMES
from runtime.membership.saved_states import saved_bytes
from runtime.membership.stand_by import Reach, Report, StandBy
from runtime.membership.store_locator import StoreLocator
from runtime.observation.actor_listing import actor_row
from runtime.observation.cluster_html import cluster_html
from runtime.observation.debug_service import DEBUG_SERVICE, DebugService
from runtime.observation.inspection_service import (
    INSPECTION_SERVICE,
    CallMeasurement,
    InspectionService,
)
from runtime.observation.node_queries import ask_for_tree
from runtime.observation.overviews import ActorsSummary
from runtime.observation.recordings import Recordings
from runtime.observation.slices import in_slices
from runtime.observation.tree import Tree
from runtime.plain_calls.service import PlainCallService
from runtime.pools.journal_service import JOURNAL_SERVICE, JournalService
from runtime.references.inspection import totals
from runtime.references.manager import MemoryOptions
from runtime.store.interface import Store
from runtime.store.measured_store import MeasuredStore
from runtime.supervision.actor_placement import ActorPlacement
from runtime.supervision.orphans import Orphans
from runtime.supervision.placement import CALLS_ONLY
from runtime.supervision.singletons import Candidacies
from runtime.supervision.spawner import ActorSpawner
from runtime.supervision.supervisor_work import SupervisionWork
from runtime.user_errors import is_interrupt
from runtime.watching.watcher import (
    WATCHING_SERVICE,
    Watcher,
    WatchingService,
)
from runtime.wire.handshake import Introduction, Peer

if TYPE_CHECKING:
    from runtime.metrics.endpoint import MetricsEndpoint

logger = own_logger("understudy.node")

FOREIGN_STORE = "the store was begun anew, and knows nothing of this node"

_GONE: Final = "its session has ended, and it has not come back"
"""Why a node gives up its names when another store answers in place of its own."""

# What a node says of itself and of the cluster as it sees it, as plain data; `understudy status`
# shows it.


def describe_actors(
    cells: Iterable[ActorCell], supervisors: Mapping[str, str], now: float
) -> list[dict[str, object]]:
    """Return a row of plain data for each actor. `now`: seconds on the node's clock."""
    rows: list[dict[str, object]] = []
    for cell in cells:
        since = cell.supervises_since
        row = {**actor_row(cell, supervisors), "age": None if since is None else now - since}
        if row["pid"] is None:
            del row["pid"]
        rows.append(row)
    return rows


def describe_without_actors(
    node: Node, endpoint: RpcEndpoint, store: dict[str, object], pid: int
) -> dict[str, object]:
    """Return the facts about a node itself: neither its actors, nor the other members."""
    return {
        "node": node.name,
        "incarnation": node.incarnation,
        "cluster": node.cluster,
        "address": node.address,
        "pid": pid,
        "python": platform.python_version(),
        "store": store,
        "unreachable": list(node.unreachable()),
        "links": [
            {
                "peer": link.peer.name,
                "actor": node._isolation.actor_of(link.peer.name),
                "connected": link.connected,
                "connections": link.counters.connections,
                "bytes_received": link.counters.bytes_received,
            }
            for link in endpoint.peers.links.values()
        ],
        "references": attrs.asdict(totals(endpoint.references)),
    }


def tasks_cancelled(node: str) -> str:
    """Say that a node can only leave, since its tasks have ended."""
    return (
        f"node {node} cannot go on: code that it runs has cancelled the node's own tasks, or "
        "raised in a nursery of the node; actors start tasks in self.nursery, and cancel their own "
        "scopes"
    )


def _no_pause(members: int) -> float:
    """The pause between two questions about the members, for the node that keeps the store."""
    return 0.0


@attrs.frozen(kw_only=True)
class NodeParameters:
    """The checked settings of a node itself. Those of its way into the cluster are in
    `runtime.node.opening`.
    """

    faults: Faults | None = None
    memory: MemoryOptions = UNSHARED
    thread_limit: int = attrs.field(default=NODE_THREADS, validator=positive_count)
    call_timeout: float | None = attrs.field(default=None, validator=positive_seconds)
    log_memory: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(
            lambda _, attribute, value: check_whole_number(attribute.name, value)
        ),
    )
    """Bytes of the process's log; None for nodes of which many share a process."""
    filters: tuple[Filter, ...] = ()
    rules: AdmissionRules = NO_RULES
    resources: Mapping[str, float] = NOTHING


class Node(BaseNode):
    """One node of a cluster, open for use. Get one from `open_node`, or from a local cluster as
    `cluster.node`; in an actor it is `self.node`.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes | Keyring,
        environment: Environment,
        network: Network,
        nursery: trio.Nursery,
        coordination: ClusterSession,
        make_isolation: IsolationFactory,
        parameters: NodeParameters,
    ) -> None:
        self._environment = environment
        self._network = network
        self._parameters = parameters
        self._nursery = nursery
        self._introduction = introduction
        self._coordination = coordination
        self._registration = registration = coordination.registration
        self._keyring = Keyring.of(secret)
        self.asked_to_leave = trio.Event()
        self._given_up: LeaseLostError | HandshakeError | None = None
        """Why the cluster counts this node as dead, or refuses it; None if it does not. The block
        of `open_node` ends with it.
        """
        self._tasks_ended = False
        """True when its own tasks have ended before it leaves."""
        self._expulsions = Expulsions(self._on_expulsion)
        self._joining = trio.CancelScope()
        """What the node waits for before it is ready; cancelled when the cluster gives it up."""
        self._following = trio.CancelScope()
        self._supervisions: WeakSet[SupervisionWork] = WeakSet()
        """The supervisors here, as long as they live."""
        self._proven: set[NodeId] = set()
        """Members whose end is proven, until the store knows it. Only members are entered, and
        `_gone` removes each, so the members bound it.
        """
        self._beside: Beside | None = None
        self._metrics: MetricsEndpoint | None = None
        self.metrics_address = ""
        """The `HOST:PORT` that serves metrics and health; empty if none does."""
        # Leaves first, with one circle: the members, the names and all that needs them read a
        # store, which most nodes reach over their own links. So the endpoint comes first, and asks
        # them by functions (see `_make_endpoint` and `_make_host`) that are not called before the
        # node serves. So the registration, made over a client's link, is given the store here.
        self._endpoint = self._make_endpoint(network, parameters)
        self._lifetime = self._endpoint.lifetime
        self._leased_names = LeasedNames(self._endpoint.host, self.name, self._was_given_up)
        self._contact = self._find_contact(coordination)
        asked = coordination.store or cast("StoreLocator", self._contact).store
        self._store = store = MeasuredStore(asked, environment.stopwatch, self._endpoint.spans)
        codec = self._endpoint.codec
        registration.use(store)
        self._identity = NodeId(self.name, self.incarnation)
        self._names = Names(store, codec, registration.record.lease, self.name, self.incarnation)
        # The node that keeps the store asks itself: that costs no message.
        keeps_store = coordination.peer is None and coordination.kind == "embedded"
        pause = _no_pause if keeps_store else environment.timings.members_pause
        self._members = Members(
            store, codec, self._gone, environment.timings.renewal_retry, self._expulsions, pause
        )
        self._add_placement()
        self._add_services(coordination)
        self._isolation: Isolation = make_isolation(
            self._endpoint, self._api, nursery, environment, self._keyring
        )

    def _find_contact(self, coordination: ClusterSession) -> StoreLocator | None:
        """The way to a store that other nodes serve; None if this node reaches it by itself."""
        if coordination.peer is None:
            return None
        return StoreLocator(
            self._endpoint,
            coordination.peer,
            coordination.identity,
            self._environment,
            # A member reaches such a store by itself; a client through any member.
            self._living if coordination.kind == "etcd" else None,
            coordination.joined,
        )

    def _add_placement(self) -> None:
        """Add what finds, places and starts actors, and proves the death of nodes."""
        environment, store = self._environment, self._store
        self._lookups = lookups = Lookups(
            *(store, self._names, NAMES, self._may_live, environment.timings.names_pause)
        )
        self._placement = ActorPlacement(self._members, self._names, environment, lookups)
        self._failure_detector = FailureDetector(
            self._members,
            store,
            environment,
            self._nursery,
            self._endpoint.peers.links,
            self._ended,
            self._forget_stranger,
            revokes=self._endpoint.is_member,
        )
        self._spawner = ActorSpawner(
            self._endpoint, self._names, self._members, environment, self._placement
        )
        self._candidacies = Candidacies(self._spawner, environment)
        self._starter = ActorStarter(
            self._spawner.start,
            self._spawner.start_many,
            self._stand,
            self._spawner.find_started,
            self._spawner.take_back,
        )

    async def _stand(self, request: StartRequest) -> Address:
        """Make this node a candidate for a singleton, and return its address. Raises like
        `Candidacies.stand`, and NotAMemberError in a client.
        """
        self._endpoint.check_member("singletons and pools with names are opened by nodes")
        return await self._candidacies.stand(request)

    def _add_journals(self, lease: int) -> None:
        environment, store = self._environment, self._store
        self._journals = journals = Journals.on_node(
            store, lease, self.name, environment, self._names.owed
        )
        service = JournalService(store, journals, environment)
        self._endpoint.host.add_system(JOURNAL_SERVICE, service)

    def _add_services(self, coordination: ClusterSession) -> None:
        """Add what users and actors use, and the services that other processes call."""
        endpoint, host = self._endpoint, self._endpoint.host
        self._measurement = CallMeasurement(self._endpoint, self._nursery, self._environment)
        self._log: tuple[LogCapture, LogArchive] | None = None
        self._journals: Journals | None = None
        self._node_service: NodeService | None = None
        self._add_parts(coordination.registration.record.lease)
        host.add_system(WATCHING_SERVICE, WatchingService(self._watching))
        if not endpoint.is_member:
            # Nothing is asked of a client, but it gets the notices of the ends that it watches.
            return
        self._log = self._keep_log(self._parameters.log_memory)
        self._node_service = NodeService(
            host,
            self.name,
            self._bounded_status,
            self._contact_facts,
            self._store_place,
            self.leave,
            endpoint.admission.quotas,
            self._nursery,
        )
        host.add_system(NODE_SERVICE, self._node_service)
        host.add_system(
            PLAIN_SERVICE,
            PlainCallService(
                host,
                endpoint.codec,
                self._environment,
                self._nursery,
                endpoint.admission,
                endpoint.caller,
            ),
        )
        host.add_system(
            INSPECTION_SERVICE,
            InspectionService(
                host,
                self.name,
                self._environment,
                self._measurement,
                self._facts,
                self.members,
                Recordings(self._endpoint, self._environment),
                partial(saved_bytes, self._store),
                self._endpoint.routes.pending,
            ),
        )
        self._add_journals(coordination.registration.record.lease)
        host.add_system(DEBUG_SERVICE, DebugService(host))
        self._add_security()
        workers = FunctionWorkers(
            host, self._endpoint.make_handle, self._nursery, self._environment, most_workers()
        )
        host.add_system(FUNCTION_SERVICE, FunctionService(workers))
        if coordination.store is not None:
            # Also for a store that every node can reach: clients reach it only through a node.
            # Ahead of all others: renewals of leases must not wait behind a flood of calls.
            service = StoreService(coordination.store)
            host.add_system(store_service(coordination.identity), service, ahead=True)

    def _add_parts(self, lease: int) -> None:
        """Add what users and actors of this node ask for."""
        host = self._endpoint.host
        self._watching = Watcher(self._endpoint, self._members, self._names, self._nursery)
        host.extensions.add("watching", self._watching)
        self._group_source = self._groups = Groups(
            self._endpoint, self._store, self._members, lease, self._environment, self._nursery
        )
        host.extensions.add("groups", self._groups)
        self._functions = NodeFunctions(
            self._endpoint, self._members, self._placement, self._environment
        )
        self._api = NodeApi(
            self._endpoint,
            self._names,
            self._lookups,
            self._members,
            self._spawner,
            self._candidacies,
            self._watching,
            self._groups,
            self._functions,
            self._nursery,
        )

    def _add_security(self) -> None:
        """Register the services that change the secrets of the node, and that expel others."""
        self._endpoint.host.add_system(
            KEYRING_SERVICE,
            KeyringService(
                self._keyring,
                lambda: self._isolation.share_secrets(),
                self._prove_to_store,
                self._endpoint.peers.prove_again,
            ),
        )
        self._endpoint.host.add_system(
            EXPULSION_SERVICE,
            ExpulsionService(
                self._endpoint,
                self._store,
                self._members,
                self._expulsions,
                self._environment,
                self._was_expelled,
                self._store_keeper,
                self._own_certificate,
            ),
        )

    async def _prove_to_store(self, secret: bytes) -> None:
        """Write to the store's record of the cluster that this secret is the one that stays."""
        if self._own_store is not None:
            await rewrite_proof(self._own_store, self.cluster, secret)

    def _keep_log(self, memory: int | None) -> tuple[LogCapture, LogArchive] | None:
        """Keep `memory` bytes of the log. None for nodes of which many share a process, as
        simulated ones do: `logging` is the process's.
        """
        host = self._endpoint.host
        ends = ActorEnds(self._environment, lambda: host.draining)
        host.extensions.add("ends", ends)
        identity = NodeId(self.name, self.incarnation)
        capture = LogCapture(identity, host, self._nursery, memory or 0)
        ends.on_end = capture.wake
        host.add_system(LOG_SERVICE, LogService(capture, ends, self._environment))
        if memory is None:
            return None
        return capture, LogArchive(
            self._store,
            identity,
            capture,
            ends,
            self._members.is_gone,
            self._is_oldest,
            self._environment,
            calls_only=CALLS_ONLY in self._registration.record.labels,
        )

    def _is_oldest(self) -> bool:
        """True if no node that stays in the cluster joined before this one."""
        staying = (node.incarnation for node in self._members.staying(self.name))
        return self.incarnation < min(staying, default=math.inf)

    @property
    def name(self) -> str:
        """The node's name, unique among the live members."""
        return self._introduction.peer.name

    @property
    def incarnation(self) -> int:
        """The number of this start of the node; later starts of any node have greater ones."""
        return self._introduction.peer.incarnation

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._introduction.cluster

    @property
    def address(self) -> str:
        """The `HOST:PORT` that other nodes dial and join; empty where it has joined as a client."""
        return next(
            (one for one in self._introduction.peer.addresses if one.startswith("tcp:")), ""
        ).removeprefix("tcp:")

    @names_keywords
    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. You may stop one that has ended already. Its
        running methods and its `on_stop` have 5 seconds, and are cancelled then; a supervisor ends
        when its children have, each of which has the `shutdown` of its `ChildSpec`.

        A method may stop its own actor: that returns at once, and the actor ends when the method
        has returned.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"stop takes a handle, not {short_repr(handle)}")
        await self._api.stop(self._endpoint.check_own(handle).address, reason)

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, by name. Raises `NotAMemberError` after the
        node's block.
        """
        self._lifetime.check()
        return self._members.all()

    def _living(self) -> tuple[Member, ...]:
        return self._members.all()

    def _journal_node(self) -> NodeId:
        """The node whose journal service lists and removes the journals of maps: this one. A client
        has no services, and asks the node that serves its store.
        """
        if self._endpoint.is_member or self._contact is None:
            return self._identity
        return self._contact.peer.identity

    def unreachable(self) -> tuple[str, ...]:
        """The members that this node cannot reach at the moment. They may be alive; calls to them
        wait, within their deadlines.
        """
        return tuple(
            member.name
            for member in self.members()
            if self._endpoint.peers.is_unreachable(member.node_id)
        )

    def watch_members(self) -> MembersWatch:
        """Every change of the members, the present ones first: `async for members in
        node.watch_members()`.
        """
        return MembersWatch(self._members, self._lifetime)

    async def wait_for(self, count: int) -> tuple[Member, ...]:
        """Wait until the cluster has at least `count` members that have joined, or are leaving;
        returns all.
        """
        with self._lifetime.asking("the members cannot be waited for"):
            while sum(member.state != "joining" for member in self._members.all()) < count:
                await self._members.wait_changed()
        return self._members.all()

    async def wait_gone(self, name: str) -> None:
        """Wait until no node called `name` is a member."""
        with self._lifetime.asking("the members cannot be waited for"):
            while self._members.find(name) is not None:
                await self._members.wait_changed()

    def __repr__(self) -> str:
        return f"<node {self.name} (incarnation {self.incarnation}) of cluster {self.cluster}>"

    def _repr_html_(self) -> str:
        """Return the node and the members that it knows as HTML for notebooks. In its own trio run
        only.
        """
        facts = [("cluster", self.cluster), ("incarnation", str(self.incarnation))]
        try:
            members = self.members()
        except CallError as error:
            return cluster_html("node", self.name, facts, None, str(error))
        return cluster_html("node", self.name, facts, members)

    def leave(self) -> None:
        """Ask this node to drain and leave: the task that holds it waits for `asked_to_leave`."""
        self.asked_to_leave.set()

    def _on_tasks_ended(self, raised: BaseException | None) -> None:
        """The tasks of this node have ended before it leaves: nothing that waits for them ends."""
        self._tasks_ended = True
        # Ctrl-C comes out of whatever runs. Where that is a method, its actor is not to blame.
        if raised is None or not is_interrupt(raised):
            logger.error("%s; it leaves at once", tasks_cancelled(self.name))

    def _was_given_up(self, why: LeaseLostError | HandshakeError) -> None:
        # Expelled nodes lose their lease as well. What counts is why.
        if self._given_up is None or isinstance(why, ExpelledError):
            self._given_up = why
        # A store that was begun anew never answers what a joining node has asked the one before,
        # and no member answers a node that it counts as dead.
        self._joining.cancel()
        if not self._lifetime.given_up:
            self._nursery.start_soon(self._end_silent_links, name="silent links")
        self._lifetime.give_up(str(self._given_up))
        self.leave()

    async def _end_silent_links(self) -> None:
        """End the links whose peers are not heard for as long as a lease lasts: no store tells this
        node, which was given up, that they have died. Calls over them would wait for ever.
        """
        timings, links = self._environment.timings, self._endpoint.peers.links
        silent: dict[Link, float] = {}
        while True:
            now = self._environment.now()
            # Some were never connected: counted from when that is noticed.
            silent = {
                link: silent.get(link, now)
                for link in links.values()
                if link.ended is None and not link.connected
            }
            for link, since in silent.items():
                if now - since > timings.lease:
                    self._ended(
                        link.peer.identity,
                        f"it was not heard for {timings.lease:g} s, and this node, {self.name}, is "
                        "no longer a member of the cluster, which would know",
                    )
            await trio.sleep(timings.renewal_retry)

    def _was_expelled(self, error: ExpelledError) -> None:
        """The cluster has expelled this node. It may learn that in several ways."""
        if not isinstance(self._given_up, ExpelledError):
            self._leased_names.on_expelled(error)

    def _was_cut_off(self, reason: str) -> None:
        """All nodes refuse the certificate of this process. With a store that other nodes serve,
        its lease ends by that; an etcd does not know of it.
        """
        # With the node that serves the store the cluster would end, and a new certificate mends it.
        if self._given_up is not None or self._store_keeper() == self.name:
            return
        # One that refuses it may be the one whose clock or files are wrong: all others are dialled,
        # too, and as soon as one of them accepts it, this is called no more.
        links = self._endpoint.peers.links
        peers = [peer_of_member(one) for one in self._members.all() if one.name != self.name]
        undialled = [peer for peer in peers if peer.identity not in links]
        for peer in undialled:
            self._endpoint.peers.link(peer)
        if undialled:
            return
        why = f"no node accepts its certificate: {reason}"
        if self._endpoint.is_member:
            self._leased_names.lose(why)
        else:
            logger.error("%s leaves the cluster: %s", self.name, why)
            self._was_given_up(WrongCertificateError(f"{self.name} has left the cluster: {why}"))

    def _on_expulsion(self, expulsion: Expulsion) -> None:
        """A node was expelled: cut the links to it. Its actors are placed elsewhere when its lease
        has ended, as after a death.
        """
        if expulsion.name == self.name:
            self._was_expelled(ExpelledError(str(expulsion)))
        else:
            self._endpoint.peers.end_refused()

    def status(self) -> dict[str, object]:
        """Facts about this node and what it knows of the cluster, as plain data."""
        host = self._endpoint.host
        cells = [cell for cell in host.cells.values() if not cell.system]
        rows = describe_actors(cells, host.supervisors, self._environment.now())
        return {**self._contact_facts(), "actors": rows}

    async def _bounded_status(self) -> dict[str, object]:
        """`status`, with the actors of an overview: the supervisors, and those with most calls."""
        host = self._endpoint.host
        summary = ActorsSummary()
        cells = [cell for cell in host.cells.values() if not cell.system]
        await in_slices(cells, summary.add, self._environment.now)
        rows = describe_actors(summary.first, host.supervisors, self._environment.now())
        left_out = len(cells) - len(rows)
        return {**self._contact_facts(), "actors": rows, "actors_left_out": left_out}

    def _contact_facts(self) -> dict[str, object]:
        """Facts about this node and the cluster, without its actors."""
        return {**self._facts(), "members": [attrs.asdict(one) for one in self.members()]}

    def _store_place(self) -> dict[str, object]:
        """Facts about where the store is, and the members that lead to it: the one that serves it,
        and this one.
        """
        store = self._store_facts()
        names = dict.fromkeys((self.name, str(store["node"])))
        found = [self._members.find(name) for name in names]
        return {
            "node": self.name,
            "incarnation": self.incarnation,
            "cluster": self.cluster,
            "store": store,
            "members": [attrs.asdict(one.member) for one in found if one is not None],
        }

    def _store_facts(self) -> dict[str, object]:
        """Return where this node's store is, and whether it can be reached."""
        where = (
            self._contact.peer.identity
            if self._contact is not None
            else (self.name, self.incarnation)
        )
        return {
            "kind": self._coordination.kind,
            "identity": self._coordination.identity,
            "address": self._coordination.address,
            "node": where[0],
            "incarnation": where[1],
            "away": self._coordination.registration.store_is_away,
        }

    def _own_certificate(self) -> str:
        """The SHA-256 of this node's certificate; "" if it has none that a CA has signed."""
        return (
            self._network.own_fingerprint() if isinstance(self._network, EncryptedNetwork) else ""
        )

    def _store_keeper(self) -> str:
        """The name of the node that serves the store; "" for a store that is no node's."""
        if self._coordination.kind != "embedded":
            return ""
        return self.name if self._contact is None else self._contact.peer.name

    def _facts(self) -> dict[str, object]:
        """Facts about this node without its actors, of whatever number they are."""
        pid = self._registration.record.pid
        return describe_without_actors(self, self._endpoint, self._store_facts(), pid)

    async def tree(self) -> Tree:
        """The cluster's supervisors and their children as they are now; `runtime.draw_tree` makes
        text of it. Takes some seconds if some do not answer, and raises nothing for that.
        """
        with self._lifetime.asking("the tree could not be asked for"):
            return await ask_for_tree(
                self._endpoint,
                self._names,
                [one.node_id for one in self.members()],
                self.cluster,
            )

    # What follows is for the rooms of the runtime.

    @property
    def _own_store(self) -> Store | None:
        """The cluster's store if this process accesses it directly, otherwise None."""
        return self._coordination.store

    def _last_backlog(self, lease: int) -> float:
        """When so much was last read at once from the holder of this lease that more may wait
        unread; -inf if that never was.
        """
        links = self._endpoint.peers.links
        for member in self._members.all():
            seen = self._members.find(member.name)
            if seen is not None and seen.record.lease == lease:
                link = links.get(member.node_id)
                return -math.inf if link is None else link.last_much
        # That of a client or an agent, whose leases are not known here: each may be the holder.
        others = (link for node, link in links.items() if self._members.current(node) is None)
        return max((link.last_much for link in others), default=-math.inf)

    async def _locate(self, name: str) -> Address:
        """Return the address of the actor of this name, waiting while it is being restarted. Raises
        `ActorNotFoundError`.
        """
        return await self._api.locate(name)

    async def _link_to(self, node: str, incarnation: int) -> Link | None:
        """Return a link to that incarnation, dialled if there is none; None if it is known to have
        ended.
        """
        links = self._endpoint.peers.links
        link = links.get(NodeId(node, incarnation))
        if link is not None and link.ended is None and not link.fenced:
            return link
        self._lifetime.check()
        if self._contact is not None and (node, incarnation) == self._contact.peer.identity:
            # Without asking the store, which is asked over this link.
            return self._contact.link()
        member = await self._api.place(node, incarnation)
        return None if member is None else self._endpoint.peers.link(peer_of_member(member))

    async def _accept(self, connection: Connection) -> None:
        """Serve a connection that another process has dialled."""
        await self._endpoint.peers.accept(connection)

    async def _serve(self, metrics: str | None = None) -> None:
        """Start the tasks that run until the node leaves; returns when the node is ready for use.
        `metrics`: see `open_node`. Raises `LeaseLostError` or a `HandshakeError` if the cluster
        gives the node up before it is ready, and `StoreError` if the store does not answer in time.
        """
        with self._joining:
            await self._start(metrics)
        if self._joining.cancelled_caught:
            assert self._given_up is not None, "only what gives the node up ends its start"
            raise self._given_up

    async def _start(self, metrics: str | None) -> None:
        if metrics is not None:
            # First, so that a service manager sees it join.
            await self._serve_metrics(metrics)
        if self._log is not None:
            self._log[0].attach()
        self._nursery.start_soon(self._endpoint.peers.beat, name="beats")
        if self._contact is not None:
            # Dialled now: the first thing that `_follow` does is to read the store over this link.
            self._endpoint.peers.link(self._contact.peer)
        await self._nursery.start(self._follow)
        # Last: others start actors on a node that is up, and these need its view of the members.
        # A program that has opened a node may place on it at once: its own view, too, must say
        # that it is up.
        await self._see_itself_up(await self._registration.set_state("up"))

    async def _see_itself_up(self, revision: int) -> None:
        """Wait until this node's view shows what the store took at `revision`, that it is up."""
        seconds = self._environment.timings.store_call
        # A question about changes has no limit of its own, as there may be none for long. Here
        # there is one, and the node that keeps the store may have ended before it answered.
        with trio.move_on_after(seconds) as patience:
            await self._members.caught_up_with_write(revision)
        if patience.cancelled_caught:
            raise StoreUnavailableError(
                f"node {self.name} is in the cluster's store, which did not answer for "
                f"{seconds:g} s after that; check the node that keeps the store, "
                f"{self._store_keeper() or 'etcd'} (`understudy doctor`), and start this node again"
            )

    def _stand_by(
        self, blocked_limit: float, reach: Reach | None, report: Report | None, serves_store: bool
    ) -> None:
        """Watch the node's event loop from a second thread, which renews the lease while the loop
        is blocked; see `StandBy`. `serves_store`: the loop serves the cluster's store as well.
        """
        registration = self._registration
        registration.clock.report_to(self._isolation.on_lease_renewed)
        stand_by = StandBy(self.name, self._environment, registration.clock, blocked_limit)
        self._beside = self._environment.run_beside(
            lambda environment, stack: stand_by.run(
                environment, stack, registration.record.lease, reach, report, serves_store
            )
        )
        if self._beside is not None:
            registration.explain_by(
                lambda since: stand_by.why(since) or self._endpoint.peers.refusal()
            )
            self._endpoint.host.workers.ask_lease_by(lambda: registration.clock.doubtful_at)
            self._nursery.start_soon(stand_by.beat, name="beats of the loop")

    async def _serve_metrics(self, address: str) -> None:
        """Serve metrics and health until the node has left, at an address as `open_node` takes it.
        Raises `ListenError`, ValueError, and ImportError if the extra is missing.
        """
        # Brings h11 and prometheus-client, which other nodes do not need.
        from runtime.metrics.endpoint import MetricsEndpoint
        from runtime.metrics.readers import CertifiedReaders
        from runtime.metrics.readings import NodeParts

        parts = NodeParts(
            name=self.name,
            endpoint=self._endpoint,
            members=self._members,
            registration=self._registration,
            store=self._store,
            environment=self._environment,
            intensity=self._intensity_used,
        )
        network = self._network
        files = network.files if isinstance(network, EncryptedNetwork) else None
        readers = (
            None
            if files is None
            else CertifiedReaders(files, self.cluster, self._environment.stopwatch)
        )
        self._metrics = MetricsEndpoint(parts, self._measurement.keep(), readers)
        self.metrics_address = await self._metrics.open(address, self._nursery)

    def _intensity_used(self) -> dict[str, float]:
        """The greatest share that supervisors here have used of their restarts, by label."""
        named, used = self._endpoint.host.counts.named_supervisors, {"": 0.0}
        for work in self._supervisions:
            label = work.name if work.name in named else ""
            used[label] = max(used.get(label, 0.0), work.intensity_used)
        return used

    def _store_peer(self) -> Peer:
        """The node that serves the store, as far as is known. Only for a node that does not reach
        it by itself.
        """
        assert self._contact is not None
        return self._contact.peer

    async def _follow(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the node's background tasks until it leaves."""
        with self._following:
            async with trio.open_nursery() as nursery:
                # First: the tasks below ask whether a node is gone, and an empty view says that
                # every node is.
                await nursery.start(self._members.run)
                names = self._leased_names
                nursery.start_soon(self._registration.keep, names, name="lease")
                if self._contact is not None:
                    nursery.start_soon(
                        self._contact.run,
                        self._ended,
                        lambda: names.lose(FOREIGN_STORE),
                        name="store",
                    )
                nursery.start_soon(
                    self._lookups.run,
                    self._placement.on_changed,
                    self._placement.forget,
                    name="names",
                )
                nursery.start_soon(self._placement.run, name="room")
                nursery.start_soon(self._names.run, name="claims")
                nursery.start_soon(self._groups.run, name="groups")
                nursery.start_soon(self._endpoint.references.run, name="references")
                nursery.start_soon(
                    Orphans(self._endpoint.host, self._spawner.is_supervised).run,
                    name="orphans",
                )
                if self._log is not None:
                    nursery.start_soon(self._log[1].run, name="log archive")
                self._candidacies.run_in(nursery)
                task_status.started()
        if not self._following.cancel_called:
            raise LeaseLostError(tasks_cancelled(self.name))

    async def _stop_actors(self) -> None:
        """Stop the actors of this node, the latest first, and with the supervisors among them their
        children anywhere. Bounded in all as when the node leaves, by `Timings.drain_actors`, or
        by `Timings.drain` where a stop was under way.
        """
        timings = self._environment.timings
        # A singleton that is stopped here goes to another node. This one does not leave yet, and
        # would be the first to start it again.
        self._candidacies.end()
        # An actor whose stop has begun without a limit may outlast what is granted to all.
        with trio.move_on_after(timings.drain):
            await self._endpoint.host.stop_all(
                ExitReason("shutdown", f"node {self.name} stops its actors"),
                moved=ExitReason("node left", f"node {self.name} leaves"),
                in_all=timings.drain_actors,
            )

    async def _show_draining(self) -> None:
        """Let the other nodes see that this one leaves: they place no actors here, and move no
        values to it. Bounded by `Timings.goodbye`.
        """
        with trio.move_on_after(self._environment.timings.goodbye):
            try:
                await self._registration.set_state("draining")
            except (StoreError, CallError) as error:
                # The actors are stopped in order all the same, also of a node that the store does
                # not know any more.
                logger.info("the other nodes do not see this node draining: %s", error)

    async def _close(self) -> None:
        """Drain, leave the cluster and notify the peers; bounded in time, and shielded from
        cancellation.
        """
        timings = self._environment.timings
        # Neither its peers nor the store answer a node that is expelled. One without tasks of its
        # own hears no answers.
        alone = isinstance(self._given_up, ExpelledError) or self._tasks_ended
        with trio.move_on_after(0 if self._tasks_ended else timings.drain):
            try:
                # Before the members know: what comes meanwhile is refused, and goes elsewhere.
                self._endpoint.host.take_no_new_work()
                self._endpoint.peers.on_leaving()
                if not alone:
                    await self._show_draining()
                await self._endpoint.host.drain(timings.drain_calls, timings.drain_actors)
                if self._node_service is not None and not alone:
                    # The drain has cancelled the starts that were under way. One that ignores that
                    # is waited for no longer than this.
                    with trio.move_on_after(timings.goodbye):
                        await self._node_service.answered()
                # After the actors have ended: the last of them may have made references.
                if self._parameters.memory.on_leave == "move" and not alone:
                    await self._hand_over_references()
                self._endpoint.references.owned.take_nothing_over()
                # Before the lease is revoked: a renewal that found it revoked would report that the
                # cluster has given this node up.
                self._following.cancel()
                if self._log is not None:
                    # Once more, after the task that writes the log has ended: the lines of the
                    # drain.
                    with trio.move_on_after(0 if alone else timings.goodbye):
                        await self._log[1].write()
                with trio.move_on_after(0 if alone else timings.goodbye):
                    await self._registration.leave()
            except (StoreError, CallError) as error:
                logger.info(
                    "could not remove this node from the store, which removes it when its lease "
                    "ends: %s",
                    error,
                )
        # Again, for a drain that was cut short before it got there.
        self._following.cancel()
        # Not cut short by any time above: everything that is asked of a node whose end stops half
        # way would wait for ever. Each of the waits is bounded.
        with trio.CancelScope(shield=True):
            if self._beside is not None:
                # First: it reads this node's members and lease from its own thread.
                await self._beside.end()
            if self._metrics is not None:
                await self._metrics.close()
            # Before the links: what waits for the store or for a call ends with an error that says
            # that this node has left, not with a link that broke.
            if self._contact is not None:
                self._contact.store.close()
            self._endpoint.close()
            await self._endpoint.peers.close(timings.goodbye)
            if self._log is not None:
                # Last, so that it has what the steps above log.
                self._log[0].detach()

    async def _hand_over_references(self) -> None:
        with trio.move_on_after(self._environment.timings.hand_over) as patience:
            staying = partial(self._members.staying, self.name)
            lost = await self._endpoint.references.hand_over(staying)
            if lost and staying():
                # Those that have refused the values may leave as well, which the view shows later
                # on a busy machine.
                with trio.move_on_after(self._environment.timings.goodbye), suppress(StoreError):
                    await self._members.caught_up(self._members.revision + 1)
            if lost and not staying():
                # As at the end of a cluster, where this is what is meant.
                logger.info(
                    "%d referenced values of node %s end with it: all other nodes leave as well",
                    lost,
                    self.name,
                )
            elif lost:
                logger.warning(
                    "%d referenced values of node %s end with it: no other node could take them",
                    lost,
                    self.name,
                )
        if patience.cancelled_caught:
            logger.warning(
                "some referenced values of node %s end with it: there was no time to hand them "
                "over",
                self.name,
            )

    def _make_endpoint(self, network: Network, parameters: NodeParameters) -> RpcEndpoint:
        return RpcEndpoint(
            self._introduction,
            self._keyring,
            self._environment,
            network,
            self._nursery,
            # Not bound here: the names come later.
            PeerDirectory(self._locate, self._link_to, lambda name: self._names.why_absent(name)),
            self._make_host,
            PeerMembership(
                is_member=lambda peer: self._members.is_current(peer.identity),
                is_outdated=lambda peer: self._failure_detector.is_outdated(peer),
                on_broken=lambda link: self._failure_detector.connection_broken(link),
                on_departed=self._departed,
            ),
            faults=parameters.faults,
            memory=parameters.memory,
            call_timeout=parameters.call_timeout,
            filters=parameters.filters,
            rules=parameters.rules,
            policy=PeerPolicy(self._expulsions.refusal, self._was_expelled, self._was_cut_off),
        )

    def _make_host(self, endpoint: RpcEndpoint) -> ActorHost:
        return ActorHost(
            # A checker's answer to whether this is one depends on which file it reads first.
            cast("NodeInterface", self),
            self._nursery,
            self._environment,
            lambda: self._names,
            endpoint.make_handle,
            self._supervision,
            lambda cls, options: self._isolation.instance(cls, options),
            self._parameters.thread_limit,
            lambda name, incarnation: self._members.is_gone(NodeId(name, incarnation)),
            self._parameters.resources,
        )

    def _supervision(self, supervisor: Supervisor, address: Address) -> SupervisionWork:
        work = SupervisionWork(
            supervisor,
            address,
            self._spawner,
            self._environment,
            self._endpoint.host.counts,
        )
        self._supervisions.add(work)
        return work

    def _ended(self, identity: NodeId, reason: str) -> None:
        """Handle proof that an incarnation has ended; the store may not know it yet."""
        # Before `mark_dead`, after which it is no longer current.
        if self._members.is_current(identity):
            self._proven.add(identity)
        # Before the others: what they retry or place again must not choose this node.
        self._members.mark_dead(identity)
        self._endpoint.on_peer_ended(identity, reason)
        self._drop_of(identity)
        self._groups.on_members_changed()

    def _may_live(self, address: Address) -> bool:
        """False if this node knows that the actor has ended, even if the store does not yet."""
        identity = address.node_id
        if not self._members.is_current(identity):
            return False
        # Of its own actors this node knows more than the store: the watch of the names lags.
        cell = self._endpoint.host.cells.get(address.name)
        return identity != (self.name, self.incarnation) or (
            cell is not None and cell.address == address and cell.ended is None
        )

    def _departed(self, peer: Peer) -> None:
        """A peer that is not known as a member has been without a session for `Timings.departed`.
        Drop what it has here: references, watches and call records. What a member has stays until
        its death.
        """
        if peer.role == "client" or self._members.is_gone(peer.identity):
            self._forget_stranger(peer, _GONE)
        elif not self._members.is_current(peer.identity):
            # Newer than the view: the store says whether it is a member.
            self._nursery.start_soon(self._forget_unless_member, peer)

    async def _forget_unless_member(self, peer: Peer) -> None:
        """Drop what `peer` has here, unless it is found to be a member. Without an answer of the
        store it stays until its death, or until the end of its next session.
        """
        try:
            await self._members.caught_up(peer.incarnation)
        except (StoreError, CallError):
            return
        # The latest revision of the store may be below the incarnation: then no node was ever given
        # that.
        if not self._members.is_current(peer.identity):
            self._forget_stranger(peer, _GONE)

    def _forget_stranger(self, peer: Peer, why: str) -> None:
        """Drop what a peer that is no member has here, and end its session."""
        self._endpoint.on_peer_ended(
            peer.identity, f"{peer.name} is not a member of the cluster: {why}"
        )
        self._drop_of(peer.identity)

    def _drop_of(self, node: NodeId) -> None:
        """A process has ended, or is no member: drop what services keep for it."""
        self._watching.on_node_gone(node)
        if self._node_service is not None:
            self._node_service.on_node_gone(node)

    def _gone(self, member: Member) -> None:
        """Handle the end of an incarnation, which the store has reported."""
        node = member.node_id
        if node != self._endpoint.identity:
            how, reason = "left", ""
            if member.state == "draining":
                logger.info("node %s (incarnation %d) has left", *node)
            else:
                proven = node in self._proven
                how, reason = "died", f"its {'process' if proven else 'lease'} has ended"
                logger.info(
                    "node %s (incarnation %d) has died: %s; its actors ended with it",
                    *node,
                    reason,
                )
                self._endpoint.host.counts.deaths.add("kernel" if proven else "lease")
            if self._log is not None:
                calls_only = CALLS_ONLY in member.labels
                self._log[1].note_end(node, how, reason, calls_only=calls_only)
            self._proven.discard(node)
            link = self._endpoint.peers.on_peer_left(node) if how == "left" else None
            if link is None:
                self._forget_node(node)
            else:
                self._nursery.start_soon(self._part_from, link, name=f"goodbye of {node.name}")

    async def _part_from(self, link: Link) -> None:
        """A node has left in order. Its last answers, and its goodbye, travel over its link, while
        this news came from the store: that may be sooner. Bounded by `Timings.goodbye`.
        """
        with trio.move_on_after(self._environment.timings.goodbye):
            await link.disconnected()
        self._forget_node(link.peer.identity)

    def _forget_node(self, node: NodeId) -> None:
        """An incarnation has ended: end its link, and drop what it has here."""
        self._endpoint.on_peer_ended(node, "it has left the cluster or its lease has ended")
        self._drop_of(node)
