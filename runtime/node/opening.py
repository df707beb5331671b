"""Opening a node: `open_node` founds a cluster or joins one, and leaves it in order.

No background task outlives the block: all of a node's tasks live in the one nursery that is opened
here.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, get_args

import attrs
import trio

from actors.actor import Actor, Member
from actors.errors import JoinError, LeaseLostError, ListenError, NodeNotFoundError
from actors.exact import exact
from actors.filters import Filter, checked_filters
from actors.identifiers import NodeId
from actors.keywords import names_keywords
from actors.options import check_name, checked_labels, checked_resources, flag
from actors.own_logger import own_logger
from actors.peers import PeerRole
from actors.retry import MOST_COUNT, check_number
from actors.short_repr import short_repr
from runtime.announcements import local_cluster_at
from runtime.async_blocks import opens_in_block
from runtime.calls.admission import AdmissionRules
from runtime.environment import (
    Environment,
    SystemEnvironment,
    check_loop,
    check_path,
    raise_alone,
)
from runtime.faults import Faults
from runtime.functions.function_names import hook_path
from runtime.hosting.authorization import Authorize
from runtime.hosting.breakpoints import breakpoint_hook
from runtime.hosting.client_quotas import CLIENT_ACTORS
from runtime.hosting.post_mortem import PostMortems
from runtime.hosting.stacks import StackReader, named_runs
from runtime.hosting.threads import NODE_THREADS
from runtime.isolation import IsolatedProcesses, IsolationFactory, WithoutProcesses
from runtime.links.encryption import EncryptedNetwork, Tls, TlsMode, system_network
from runtime.links.keyring import GivenSecret, Keyring, guessable
from runtime.links.loans import FEATURE
from runtime.links.transports import (
    SPIN_CHOICES,
    Connection,
    Network,
    is_loopback,
    split_address,
    split_host_port,
)
from runtime.logs.capture import LOG_MEMORY_BYTES
from runtime.membership.advertised_address import (
    advertised,
    check_advertise,
    default_listen,
    is_elsewhere,
)
from runtime.membership.cluster_client import ClusterAccess, client_peer, open_client
from runtime.membership.cluster_record import LastFounder, find_founder, note_founder
from runtime.membership.cluster_secret import find_secret, settle_tls
from runtime.membership.cluster_session import (
    ClusterSession,
    ExternalStore,
    StoreKind,
    enter_as_client,
    enter_by_member,
    enter_with_store,
)
from runtime.membership.members import NodeRecord
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS, Reach, Report, reach_by_member
from runtime.node import Node
from runtime.node.node import NodeParameters, tasks_cancelled
from runtime.observation.inspection_service import inspection_of
from runtime.processes.main_script import running_main
from runtime.references.inspection import calling_site
from runtime.references.manager import MemoryOptions, OnLeave
from runtime.references.memory.values import MEMORY_BYTES
from runtime.statistics.counts import checked_supervisors
from runtime.store.disk import Disk, open_file
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Store
from runtime.tracing import Tracing, spans_of
from runtime.wire.handshake import CHILD_NAMES, CLIENT_NAMES, Introduction, Peer, may_name_node

if TYPE_CHECKING:
    from runtime.store.etcd.store import EtcdStore

FAULTS_VARIABLE = "UNDERSTUDY_FAULTS"
SPIN_VARIABLE = "UNDERSTUDY_SPIN"
SHARED_MEMORY_VARIABLE = "UNDERSTUDY_SHARED_MEMORY"

logger = own_logger("understudy.node")

MOST_NAMED = 5
"""Methods and tasks that the log names which hold a node that has left."""


@attrs.frozen(kw_only=True)
class Platform:
    """What a node runs on: `open_node(platform=Platform(...))`. A program leaves it out; tests and
    the simulator replace parts of it.
    """

    environment: Environment = attrs.field(factory=SystemEnvironment)
    """The clock, randomness, process and threads. By default those of this process."""
    network: Network | None = None
    """How nodes dial each other and listen. By default TCP, TLS and Unix sockets, spinning as
    `UNDERSTUDY_SPIN` says. With another network nothing is shared through the machine's memory: its
    nodes may all be in one process.
    """
    may_spin: Callable[[], bool] | None = None
    """Asked before each receive that might spin, see `SocketNetwork`. By default it always may."""
    disk: Disk = open_file
    """Opens the store in `data_dir`. By default a SQLite file there."""
    isolation: IsolationFactory = IsolatedProcesses
    """Starts actors with `isolation="process"`. By default in processes of their own."""
    faults: Faults | None = None
    """Failpoints between nodes, see `Faults`. By default those of `UNDERSTUDY_FAULTS`."""


@attrs.frozen
class _Debugging:
    """The settings of `open_node` for finding mistakes."""

    trace_references: bool = attrs.field(validator=flag)
    post_mortem: bool = attrs.field(validator=flag)
    debuggable: bool = attrs.field(validator=flag)


@attrs.frozen(kw_only=True)
class _NodeSettings:
    """The options of `open_node`, checked and completed."""

    name: str | None
    join: str | None
    listen: str
    advertise: str | None
    cluster: str
    secret: Keyring
    labels: dict[str, str]
    data_dir: Path | None
    store: str | None
    platform: Platform
    network: Network
    isolation: IsolationFactory
    debugging: _Debugging
    blocked_limit: float = attrs.field(validator=lambda _, __, value: check_blocked_limit(value))
    metrics: str | None
    measured_supervisors: frozenset[str]
    role: PeerRole
    parameters: NodeParameters

    @property
    def environment(self) -> Environment:
        """The platform's environment."""
        return self.platform.environment


@attrs.frozen
class _LocalStore:
    """A store that this process keeps, or reaches without another node. `address`: as other nodes
    may use it.
    """

    store: EmbeddedStore | EtcdStore
    kind: StoreKind
    address: str = ""


@attrs.define
class _ConnectionAcceptor:
    """Accepts connections. Those that come before the node is complete wait until it is."""

    node: Node | None = None
    opened: trio.Event = attrs.field(factory=trio.Event)

    async def accept(self, connection: Connection) -> None:
        """Hand a connection to the node. One that comes as the node closes is closed, too."""
        try:
            await self.opened.wait()
            if self.node is not None:
                await self.node._accept(connection)
        finally:
            connection.close()

    def open(self, node: Node) -> None:
        """The node is complete."""
        self.node = node
        self.opened.set()


@names_keywords
@opens_in_block
@asynccontextmanager
async def open_node(
    name: str | None = None,
    *,
    join: str | None = None,
    listen: str | None = None,
    advertise: str | None = None,
    cluster: str = "understudy",
    secret: GivenSecret | None = None,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    store: str | None = None,
    reference_memory: int = MEMORY_BYTES,
    reference_directory: str | os.PathLike[str] | None = None,
    references_on_leave: OnLeave = "move",
    trace_references: bool = False,
    post_mortem: bool = False,
    debuggable: bool = False,
    thread_limit: int = NODE_THREADS,
    blocked_limit: float = BLOCKED_LIMIT_SECONDS,
    log_memory: int = LOG_MEMORY_BYTES,
    call_timeout: float | None = None,
    tls: Tls | TlsMode | None = None,
    filters: Sequence[Filter] = (),
    metrics: str | None = None,
    measured_supervisors: Iterable[str] = (),
    tracing: bool = False,
    on_process_start: Callable[[], object] | str | None = None,
    spawnable: Iterable[type[Actor] | str | ModuleType] = (),
    authorize: Authorize | None = None,
    client_actors: int = CLIENT_ACTORS,
    role: PeerRole | None = "node",
    platform: Platform | None = None,
) -> AsyncIterator[Node]:
    """Open a node: found a cluster, or with `join=` or `store=` join one. Leaving the block drains
    the node and leaves. All of these may be left out:

    - `name`: unique among the live members. By default generated.
    - `join`: `HOST:PORT` of any member of the cluster to join. By default this node founds one.
    - `listen`: `HOST:PORT`; port 0 for a free one, host `0.0.0.0` or `[::]` for all addresses. By
      default `127.0.0.1:0`, or this machine's address on the way to `join` or `store`.
    - `advertise`: `HOST` or `HOST:PORT` that other nodes dial, if it differs from what this node
      listens on.
    - `cluster`: the name of the cluster. A node of another cluster is refused.
    - `secret`: proves that a peer belongs to the cluster: itself, the `Path` of a file that is read
      again when it changes, or several, of which the first proves and all are accepted. By default
      that of the local cluster of this user that is open under this name at `join`, or
      `UNDERSTUDY_SECRET`, or on loopback addresses one that all clusters of this user on this
      machine share.
    - `labels`: texts by name, for placing actors: at most 256, which take 16 KiB at most together.
    - `resources`: amounts by name, which actors may take: at most 256, whose names take 16 KiB at
      most together.
    - `data_dir`: directory where the founder keeps the cluster's store. Opened again on it, the
      node comes back under its name and, if its port is free, at its address. By default the store
      is in memory and ends with the founder.
    - `store`: `etcd://HOST:PORT,HOST:PORT`, if the store is there: all nodes give it.
    - `reference_memory`: bytes that values of references may take. Others go to files.
    - `reference_directory`: directory of these files. By default TMPDIR or /var/tmp.
    - `references_on_leave`: "move" them to other nodes when this one leaves, or "lose".
    - `trace_references`: note where each `put` and `.remote(...)` is, for `understudy refs`.
    - `post_mortem`: keep the frames of the last failures of actors, with their variables as text,
      for `understudy debug`.
    - `debuggable`: keep the frames themselves, too, and let methods wait at a `breakpoint()`:
      `understudy debug` opens pdb on both. Operators can run any code then: it is for development.
    - `thread_limit`: plain methods that may run at once on this node, in threads.
    - `blocked_limit`: seconds for which a blocked loop keeps its membership.
    - `log_memory`: bytes of the process's log that the node keeps for `understudy logs`; 0 keeps
      none.
    - `call_timeout`: seconds for calls awaited on this node that have no `timeout`. By default no
      limit.
    - `tls`: "require" encryption for connections of this machine as well, "accept" to meet nodes
      that do not encrypt yet, "off", or a `Tls` with certificates. By default `UNDERSTUDY_TLS`, or
      connections from and to other machines are encrypted.
    - `filters`: around calls made and run on this node, each a `Filter`.
    - `metrics`: `HOST:PORT`, or a port of 127.0.0.1 (0: a free one), where this node serves
      `/metrics`, `/healthz` and `/readyz` (extra `metrics`) to all who can reach it. With
      `https://` in front, over TLS by the certificate of `tls`: `/metrics` to those with a
      certificate, too. Then `node.metrics_address` has it.
    - `measured_supervisors`: names of supervisors that metrics of restarts tell apart.
    - `tracing`: make spans with OpenTelemetry.
    - `on_process_start`: a function, or its `module:function`, that each process of an isolated
      actor calls before all else, such as to set up an SDK.
    - `spawnable`: classes, or their `module:Class`, that others than nodes may start here. By
      default none.
    - `authorize`: a plain function that is called with each `Call` of an actor here, before it
      reaches the mailbox. What it does not return True for is refused with `NotAllowedError`.
    - `client_actors`: how many actors that one client or operator has started may live here.
    - `role`: "operator", "client" or "observer" to join as a client of the cluster with the rights
      of that role: it is not a member, hosts no actors, and listens nowhere. None: that of the
      certificate; without a certificate "node". A certificate of another role than "node" allows
      its own role, and one of an operator also "client" and "observer".
    - `platform`: for tests and simulated nodes, a `Platform`.

    Raises TypeError or ValueError, `JoinError`, `NodeNameTakenError`, `ListenError`, a
    `HandshakeError`, or a `StoreError`, each of which says what to do next; `LeaseLostError` if the
    cluster has given the node up, while it joined or at the end of the block. After the block the
    node answers with `NotAMemberError`.
    """
    options = {"join": join, "listen": listen, "advertise": advertise, "store": store}
    platform = _checked_platform(platform)
    secret, found_tls, network = _security(platform, secret, tls, join, cluster)
    _check(name, cluster, options, data_dir, metrics, found_tls)
    role, listen = await _place(network, role, options)
    settings = _NodeSettings(
        name=exact(name),
        join=join,
        listen=":".join(split_address(listen)),
        advertise=advertise,
        cluster=exact(cluster),
        secret=_secret(secret, platform, listen, found_tls, join or ""),
        labels=checked_labels({} if labels is None else labels),
        data_dir=Path(data_dir) if data_dir is not None else None,
        store=store,
        platform=platform,
        network=network,
        isolation=_isolation(platform, found_tls, hook_path(on_process_start)),
        debugging=_Debugging(trace_references, post_mortem, debuggable),
        blocked_limit=blocked_limit,
        metrics=metrics,
        measured_supervisors=checked_supervisors(measured_supervisors),
        role=role,
        parameters=NodeParameters(
            faults=platform.faults or _faults_asked_for(),
            memory=_memory(platform, reference_memory, reference_directory, references_on_leave),
            thread_limit=thread_limit,
            log_memory=log_memory if platform.network is None else None,
            call_timeout=exact(call_timeout),
            filters=_filters(filters, tracing),
            rules=AdmissionRules.checked(spawnable, authorize, client_actors),
            resources=checked_resources({} if resources is None else resources),
        ),
    )
    async with _sheltered(settings) as node:
        yield node


def _checked_platform(given: object) -> Platform:
    if given is not None and not isinstance(given, Platform):
        raise TypeError(f"platform must be a Platform or None, not {short_repr(given)}")
    found = given or Platform()
    if found.network is None:
        # Its classes are found by the name of the module, also where a profiler runs the script.
        running_main()
    return found


def _filters(given: object, tracing: object) -> tuple[Filter, ...]:
    if not isinstance(tracing, bool):
        raise TypeError(f"tracing must be True or False, not {short_repr(tracing)}")
    return (*((Tracing(),) if tracing else ()), *checked_filters(given))


def _announced_secret(platform: Platform, join: object, cluster: object) -> bytes | None:
    """The secret of the local cluster of this user that is open at the address to join, if there is
    one of that name: like this user's commands.
    """
    # Simulated nodes have a network of their own, on which this machine's clusters are not.
    if platform.network is not None or not isinstance(join, str) or not isinstance(cluster, str):
        return None
    local = local_cluster_at(platform.environment, join, cluster)
    return local.secret if local is not None else None


def _secret(
    given: GivenSecret | None, platform: Platform, listen: str, tls: Tls, join: str
) -> Keyring:
    found = find_secret(
        given,
        platform.environment.token,
        needs_own=not is_loopback(listen),
        certified=tls.has_files,
        joining=join if is_elsewhere(join) else "",
        hint=". The nodes there will dial this one: listen= or --listen chooses where, and "
        "advertise= or --advertise names the address if it differs",
    )
    # Not refused: the cluster may have had it for long. Simulated nodes have no network.
    is_reached = platform.network is None and not is_loopback(listen)
    if is_reached and (why := guessable(found.secrets())):
        logger.warning(
            "other machines can reach this node, and its cluster has %s; replace the secret with "
            "`understudy secret rotate`",
            why,
        )
    return found


def _security(
    platform: Platform,
    secret: GivenSecret | None,
    tls: Tls | TlsMode | None,
    join: object,
    cluster: object,
) -> tuple[GivenSecret | None, Tls, Network]:
    """Return the secret that is given or announced, the settings of TLS, and the network that
    follows them.
    """
    if secret is None:
        secret = _announced_secret(platform, join, cluster)
    found = settle_tls(secret, tls)
    spin = os.environ.get(SPIN_VARIABLE) or "auto"
    if spin not in SPIN_CHOICES:
        raise ValueError(
            f"{SPIN_VARIABLE}={short_repr(spin)} is not a spin mode; choose one of "
            f"{', '.join(SPIN_CHOICES)}"
        )
    return (
        secret,
        found,
        platform.network or system_network(platform.environment, found, spin, platform.may_spin),
    )


@asynccontextmanager
async def _sheltered(settings: _NodeSettings) -> AsyncIterator[Node]:
    """Open a node in a nursery of its own; unwrap the exception groups of that nursery."""
    try:
        async with trio.open_nursery() as outer:
            shelter = _Shelter()
            nursery: trio.Nursery = await outer.start(shelter.run)
            try:
                with ExitStack() as hooks, ExitStack() as joining:
                    if settings.debugging.debuggable:
                        hooks.enter_context(breakpoint_hook())
                    span = spans_of(settings.parameters.filters).span
                    joining.enter_context(
                        span("node.join", {"understudy.cluster": settings.cluster})
                    )
                    opened = _opened if settings.role == "node" else _opened_as_client
                    async with opened(nursery, settings) as node:
                        shelter.node = node
                        # The span is that of joining alone, not of the whole block.
                        joining.close()
                        try:
                            yield node
                        finally:
                            shelter.leaves_by = (
                                trio.current_time() + settings.environment.timings.leaving
                            )
            finally:
                # The node has left by now. Its nursery is shielded, so it is cancelled by itself.
                shelter.left = True
                nursery.cancel_scope.cancel()
                # Shielded, as the tasks are: the nursery outside would wait for them, too.
                with trio.CancelScope(shield=True):
                    await shelter.wait_ended(settings.environment)  # noqa: ASYNC102
    except BaseExceptionGroup as group:
        # The nursery is internal: callers catch a JoinError, or an error of their own, not a group.
        raise_alone(group)


async def _place(
    network: Network, asked: PeerRole | None, options: Mapping[str, str | None]
) -> tuple[PeerRole, str]:
    """The role to join with, and where to listen. A client does not listen: there the address to
    join says as well whether all stays within the machine. Raises what `_role` raises.
    """
    role = _role(asked, network, options)
    join = options["join"] or ""
    if role != "node":
        await trio.lowlevel.checkpoint()
        return role, join
    return role, options["listen"] or await default_listen(network, join or options["store"] or "")


def check_node_name(name: str) -> None:
    """Raises TypeError or ValueError for what cannot be the name of a node."""
    check_name("name", name)
    if not may_name_node(exact(name)):
        raise ValueError(
            f"name={name!r}: only names of clients begin with {CLIENT_NAMES!r}, and only "
            f"processes of actors are called {CHILD_NAMES!r} and 12 digits; give another"
        )


def check_blocked_limit(blocked_limit: object) -> None:
    """Raises TypeError or ValueError for what is no number of seconds. It may be infinite."""
    if blocked_limit != math.inf:
        check_number("blocked_limit", blocked_limit)


def _check(
    name: str | None,
    cluster: str,
    given: Mapping[str, object],
    data_dir: str | os.PathLike[str] | None,
    metrics: object,
    tls: Tls,
) -> None:
    """Raises TypeError or ValueError, naming the options that make no sense, by themselves or
    together.
    """
    check_loop("open_node")
    if name is not None:
        check_node_name(name)
    check_name("cluster", cluster)
    for option, value in (*given.items(), ("metrics", metrics)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{option} must be a str or None, not {short_repr(value)}")
    if given["store"] == "":
        raise ValueError("store is empty: give etcd://HOST:PORT, or leave it out")
    check_path("data_dir", data_dir)
    if data_dir is not None and (given["join"] is not None or given["store"] is not None):
        raise ValueError(
            "data_dir is for the node that founds a cluster and keeps its store: leave data_dir "
            "out beside join or store"
        )
    if data_dir is not None and not os.fspath(data_dir):
        raise ValueError("data_dir is empty: give the path of a directory")
    if given["join"] is not None and given["store"] is not None:
        raise ValueError("a store leads to its cluster by itself: give join or store, not both")
    if isinstance(listen := given["listen"], str) and listen.startswith("unix:"):
        raise ValueError(
            f"listen={listen!r}: a node listens at HOST:PORT; other nodes of its machine reach it "
            "over a Unix socket that it opens by itself"
        )
    if isinstance(join := given["join"], str):
        try:
            split_address(join)
        except ValueError as error:
            raise JoinError(str(error)) from None
    if isinstance(advertise := given["advertise"], str):
        check_advertise(advertise)
    if isinstance(metrics, str):
        from runtime.metrics.endpoint import check_metrics

        check_metrics(metrics, certified=tls.has_files)


def _role(asked: PeerRole | None, network: Network, options: Mapping[str, object]) -> PeerRole:
    """The role to join with. Raises ValueError for what is none, and for options that make no sense
    for a process that is no member.
    """
    if asked is not None and asked not in get_args(PeerRole):
        raise ValueError(
            f"role={short_repr(asked)} is not a role; the roles are {', '.join(get_args(PeerRole))}"
        )
    role = asked or (network.role_within(None) if isinstance(network, EncryptedNetwork) else "node")
    if role == "node":
        return role
    if options["join"] is None:
        raise ValueError(f"role={role!r} is for clients, which join a cluster: give join=HOST:PORT")
    given = [name for name, value in options.items() if value is not None and name != "join"]
    if given:
        raise ValueError(
            f"role={role!r} joins as a client, which listens nowhere and keeps nothing: leave out "
            f"{', '.join(given)}"
        )
    return role


def _isolation(platform: Platform, tls: Tls, on_process_start: str) -> IsolationFactory:
    """Processes of this machine dial other nodes as their node does."""
    if platform.isolation is IsolatedProcesses:
        return partial(IsolatedProcesses, tls=tls, on_process_start=on_process_start)
    return platform.isolation


def _memory(
    platform: Platform,
    limit: int,
    directory: str | os.PathLike[str] | None,
    on_leave: OnLeave,
) -> MemoryOptions:
    """Return the settings for values. Simulated nodes do not share memory: all of them are one
    process.
    """
    asked = os.environ.get(SHARED_MEMORY_VARIABLE) or "on"
    if asked not in ("on", "off"):
        raise ValueError(f"{SHARED_MEMORY_VARIABLE} is on or off, not {short_repr(asked)}")
    shared = platform.network is None and asked == "on" and hasattr(os, "memfd_create")
    given: object = limit
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"reference_memory is a number of bytes, not {short_repr(given)}")
    if not 0 <= limit <= MOST_COUNT:
        raise ValueError(
            f"reference_memory is a number of bytes, at most {MOST_COUNT}, not {short_repr(limit)}"
        )
    check_path("reference_directory", directory)
    if directory is not None and not Path(directory).is_dir():
        raise ValueError(f"reference_directory={str(directory)!r} is not a directory")
    if on_leave not in get_args(OnLeave):
        raise ValueError(
            f"references_on_leave is one of {', '.join(get_args(OnLeave))}, not "
            f"{short_repr(on_leave)}"
        )
    return MemoryOptions(
        limit,
        Path(directory) if directory is not None else None,
        shared,
        on_leave,
    )


def _faults_asked_for() -> Faults | None:
    text = os.environ.get(FAULTS_VARIABLE, "")
    if not text.strip():
        return None
    try:
        faults = Faults.parse(text)
    except ValueError as error:
        raise ValueError(f"{FAULTS_VARIABLE}: {error}") from None
    logger.warning(
        "%s is set: calls to and from this node will fail on purpose: %s", FAULTS_VARIABLE, text
    )
    return faults


class _Shelter:
    """A nursery that a cancellation of the block does not reach: the node needs its tasks until it
    has left in order. `node` is set when it runs, `left` when it has left.
    """

    def __init__(self) -> None:
        self.node: Node | None = None
        self.left = False
        self.leaves_by = 0.0
        """The time, on trio's clock, at which the node's end is to be over."""
        self._ended = trio.Event()
        self._task: trio.lowlevel.Task | None = None

    async def wait_ended(self, environment: Environment) -> None:
        """Wait until the tasks have ended. Code of users may shield itself, and no thread can be
        stopped: when the time of the node is over, and again later, a log line says what runs.
        """
        seconds = environment.timings.leaving
        # At least for one last step: the node may have taken all of its time to leave.
        first = max(self.leaves_by - trio.current_time(), environment.timings.goodbye)
        with trio.move_on_after(first):
            await self._ended.wait()
        while self.node is not None and not self._ended.is_set():
            _log_what_runs(self.node, self._task, environment)
            with trio.move_on_after(seconds):
                await self._ended.wait()
            seconds *= 2
        await self._ended.wait()

    async def run(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep the nursery open. Raises `LeaseLostError`, which ends the block, if code that the
        node runs has cancelled it: trio gives every task its nursery, and its parents'.
        """
        self._task = trio.lowlevel.current_task()
        try:
            async with trio.open_nursery() as nursery:
                # Shielded: a cancelled block first drains and leaves, and needs the node's tasks
                # for that.
                nursery.cancel_scope.shield = True
                task_status.started(nursery)
                await trio.sleep_forever()
        finally:
            # Also for what raises in one of its tasks: the others end by that.
            self._ended.set()
            if self.node is not None and not self.left:
                self.node._on_tasks_ended(sys.exception())
        # Otherwise the node would go on and renew its lease, but serve no calls.
        if self.node is not None and not self.left:
            raise LeaseLostError(tasks_cancelled(self.node.name))


def _log_what_runs(node: Node, root: trio.lowlevel.Task | None, environment: Environment) -> None:
    """Log which code of users holds a node that has left, in the tasks below `root`."""
    workers = node._endpoint.host.workers
    reader = StackReader(workers.running, workers.starting, environment.now())
    runs = named_runs(reader.tasks(None, root)[0])
    logger.warning(
        "node %s has left the cluster, but its block waits for what cannot be cancelled: %s. Code "
        "that shields itself (CancelScope(shield=True)), catches Cancelled, or blocks in a thread "
        "has to end by itself: give it a time limit; the end of the process ends it as well",
        node.name,
        ", ".join(runs[:MOST_NAMED]) + (", ..." if len(runs) > MOST_NAMED else "")
        or "a task of the node",
    )


@asynccontextmanager
async def _opened(nursery: trio.Nursery, settings: _NodeSettings) -> AsyncIterator[Node]:
    """The node itself, its tasks in `nursery`."""
    environment, network = settings.environment, settings.network
    # The store first: a founder that comes back finds its name and address there.
    held = await _held_store(nursery, settings)
    before = (
        await find_founder(held.store)
        if held is not None and settings.data_dir is not None
        else None
    )
    # It listens before the record is written, since the record has its addresses. What dials
    # meanwhile waits at the acceptor.
    door = _ConnectionAcceptor()
    bound = await _listening(nursery, settings, before.address if before else None, door)
    local = await nursery.start(
        network.listen, f"unix:@understudy-{environment.token(8).hex()}", door.accept
    )
    outside = await _advertised(settings, bound)
    record = _record(settings, before.name if before else None, (outside, local))
    access = ClusterAccess(settings.cluster, settings.secret, environment, network)
    found: ClusterSession | ExternalStore | None = None
    if held is None:
        found = await enter_by_member(cast("str", settings.join), access, record)
        if isinstance(found, ExternalStore):
            held = await _running(nursery, _etcd(found.address, settings))
    if held is not None:
        # The directory is locked for as long as the process lives that has opened it: the founder
        # before this one has ended, also if it ran in another container, where nothing else tells.
        ended_lease = before.lease if before else 0
        found = await enter_with_store(
            held.store, held.kind, held.address, access, record, ended_lease
        )
    coordination = cast("ClusterSession", found)
    if settings.data_dir is not None and held is not None:
        # Only after it has entered: a node that is refused must not become the noted founder.
        lease = coordination.registration.record.lease
        await note_founder(held.store, LastFounder(record.name, bound, lease))
    node = Node(
        _introduction(settings, record, coordination),
        settings.secret,
        environment,
        network,
        nursery,
        coordination,
        settings.isolation,
        settings.parameters,
    )
    _configure(node, settings)
    if held is not None and isinstance(held.store, EmbeddedStore):
        held.store.spare_backlogs_by(node._last_backlog)
    try:
        # Before it serves, which takes the store, and that perhaps the very connection that its
        # owner has just dialled.
        door.open(node)
        await node._serve(settings.metrics)
        _stand_by(node, coordination, settings)
        yield node
    finally:
        # Shielded, so that a cancelled block leaves in order as well; bounded, so that it ends.
        with trio.CancelScope(shield=True), trio.move_on_after(environment.timings.leaving):
            await node._close()
        if held is not None:
            # After the node, which deletes its own record from the store.
            held.store.close()
    if node._given_up is not None:
        # Only here, when the block has ended without an error of its own: a process whose node was
        # given up must not exit with status 0.
        raise node._given_up


@asynccontextmanager
async def _opened_as_client(nursery: trio.Nursery, settings: _NodeSettings) -> AsyncIterator[Node]:
    """A node that is no member: it has neither a record in the store nor services for others."""
    if settings.metrics is not None:
        raise ValueError(f"role={settings.role!r}: only nodes serve metrics; leave metrics out")
    environment, network = settings.environment, settings.network
    host = environment.process().host
    if isinstance(network, EncryptedNetwork):
        host = network.client_host(host)
    peer = client_peer(environment, host, settings.role, settings.name or "")
    access = ClusterAccess(settings.cluster, settings.secret, environment, network)
    coordination = await enter_as_client(cast("str", settings.join), access, peer)
    features = frozenset({FEATURE} if settings.parameters.memory.shared else ())
    peer = attrs.evolve(peer, store=coordination.identity, features=features)
    node = Node(
        Introduction(settings.cluster, peer),
        settings.secret,
        environment,
        network,
        nursery,
        coordination,
        WithoutProcesses,
        # The log is kept by nodes alone.
        attrs.evolve(settings.parameters, log_memory=None),
    )
    _configure(node, settings)
    try:
        await node._serve()
        yield node
    finally:
        # Shielded and bounded as for a member.
        with trio.CancelScope(shield=True), trio.move_on_after(environment.timings.leaving):
            await node._close()
    if node._given_up is not None:
        raise node._given_up


def _introduction(
    settings: _NodeSettings, record: NodeRecord, coordination: ClusterSession
) -> Introduction:
    """Return the introduction of the node for its handshakes."""
    peer = Peer(
        name=record.name,
        incarnation=coordination.registration.incarnation,
        role="node",
        addresses=record.addresses,
        host=record.host,
        features=frozenset({FEATURE} if settings.parameters.memory.shared else ()),
        store=coordination.identity,
        life=settings.environment.token(8).hex(),
    )
    return Introduction(cluster=settings.cluster, peer=peer)


def _record(
    settings: _NodeSettings, name_before: str | None, addresses: tuple[str, ...]
) -> NodeRecord:
    """Return the record that this node writes about itself. `name_before`: the name in its data
    directory. Raises `WrongCertificateError` if its certificate is for another name.
    """
    environment = settings.environment
    process = environment.process()
    name = settings.name or name_before or f"node-{environment.token(4).hex()}"
    if isinstance(settings.network, EncryptedNetwork):
        settings.network.check_own_certificate(settings.cluster, name)
    return NodeRecord(
        name=name,
        addresses=addresses,
        host=process.host,
        pid=process.pid,
        started=process.started,
        lease=0,
        joined=environment.wall_time(),
        labels=settings.labels,
        resources=dict(settings.parameters.resources),
    )


def _configure(node: Node, settings: _NodeSettings) -> None:
    """Apply the settings that a node gets after it is made."""
    node._endpoint.host.counts.named_supervisors = settings.measured_supervisors
    debugging = settings.debugging
    if debugging.trace_references:
        node._endpoint.references.trace(calling_site)
    if debugging.post_mortem or debugging.debuggable:
        node._endpoint.host.keep_failures(
            PostMortems(settings.environment, node._nursery, keeps_frames=debugging.debuggable)
        )
    if debugging.debuggable:
        node._endpoint.host.allow_breakpoints(node._nursery, node.address)


async def _held_store(nursery: trio.Nursery, settings: _NodeSettings) -> _LocalStore | None:
    """The store that this process reaches by itself, running in `nursery`; None if a member is to
    be asked.
    """
    if settings.join is not None:
        return None
    if settings.store is not None:
        return await _running(nursery, _etcd(settings.store, settings))
    if settings.data_dir is None:
        return await _running(nursery, _LocalStore(EmbeddedStore(settings.environment), "embedded"))
    return await _running(
        nursery,
        _LocalStore(
            await EmbeddedStore.on_disk(
                settings.environment, settings.data_dir, settings.platform.disk
            ),
            "embedded",
        ),
    )


def _stand_by(node: Node, coordination: ClusterSession, settings: _NodeSettings) -> None:
    reach = _reach(node, coordination, settings)
    serves_store = coordination.kind != "etcd" and coordination.peer is None
    node._stand_by(settings.blocked_limit, reach, _report(node, settings), serves_store)


def _reach(node: Node, coordination: ClusterSession, settings: _NodeSettings) -> Reach | None:
    """The way to the store from another event loop of this process; None if the node serves the
    store itself, or there is no such way.
    """
    if coordination.kind == "etcd":
        return partial(
            _reach_etcd,
            # What this node was given may name a user or certificates; what members say never does.
            coordination.address if settings.store is None else settings.store,
            settings,
        )
    network = settings.network.beside()
    if coordination.peer is None or network is None:
        return None
    return partial(
        reach_by_member,
        node._store_peer,
        coordination.identity,
        settings.cluster,
        settings.secret,
        network,
    )


def _report(node: Node, settings: _NodeSettings) -> Report | None:
    """The way to tell another node, from another event loop of this process, that this node's
    loop is blocked; None if there is none.
    """
    network = settings.network.beside()
    if network is None:
        return None
    return partial(
        _report_to_member,
        NodeId(node.name, node.incarnation),
        node.members,
        settings.cluster,
        settings.secret,
        network,
    )


@asynccontextmanager
async def _report_to_member(
    own: NodeId,
    members: Callable[[], Sequence[Member]],
    cluster: str,
    secret: Keyring,
    network: Network,
    environment: Environment,
) -> AsyncIterator[Callable[[dict[str, Any]], Awaitable[None]]]:
    """A way to tell another member of what blocks this node's loop. Raises what `open_client`
    raises, and NodeNotFoundError if there is no other member.
    """
    others = [member for member in members() if member.name != own.name]
    if not others:
        raise NodeNotFoundError("there is no other node to report the blocked loop to")
    # By chance: the next attempt need not meet the one that does not answer again.
    chosen = others[int(environment.random() * len(others))]
    address = next(one for one in chosen.addresses if one.startswith("tcp:"))
    access = ClusterAccess(cluster, secret, environment, network)
    async with open_client(address.removeprefix("tcp:"), access) as client:
        service = inspection_of(client.endpoint, chosen.name, chosen.incarnation)

        async def tell(facts: dict[str, Any]) -> None:
            await service.options(timeout=environment.timings.lease).on_blocked(*own, facts)

        yield tell


@asynccontextmanager
async def _reach_etcd(
    address: str, settings: _NodeSettings, environment: Environment
) -> AsyncIterator[Store]:
    platform = attrs.evolve(settings.platform, environment=environment)
    held = _etcd(address, attrs.evolve(settings, platform=platform))
    try:
        async with trio.open_nursery() as nursery:
            await _running(nursery, held)
            try:
                yield held.store
            finally:
                held.store.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # That there is a nursery in here is no business of those who expect an error of the store.
        raise_alone(group)


def _etcd(address: str, settings: _NodeSettings) -> _LocalStore:
    """The store of the settings' cluster in an etcd."""
    # Brings TLS and what reads addresses, which other nodes do not need.
    from runtime.store.etcd.address import EtcdAddress
    from runtime.store.etcd.store import EtcdStore

    if not address:
        raise JoinError(
            "this cluster's store is an etcd that needs a user or certificates: join with "
            "store='etcd://...' (--store) instead"
        )
    parsed = EtcdAddress.parse(address)
    return _LocalStore(
        EtcdStore(parsed, settings.cluster, settings.environment), "etcd", parsed.public
    )


async def _running(nursery: trio.Nursery, held: _LocalStore) -> _LocalStore:
    await nursery.start(held.store.run)
    return held


async def _advertised(settings: _NodeSettings, bound: str) -> str:
    """Return the address that this node publishes, which listens at `bound`. Raises `JoinError` if
    it was to join itself.
    """
    where = settings.join or settings.store or ""
    outside = await advertised(settings.network, bound, settings.advertise, where)
    if f"tcp:{settings.join}" in (bound, outside):
        # It would wait for its own answer, and give up after the time of a handshake.
        raise JoinError(
            f"{settings.join} is the address of this node itself; join the address of another "
            "node, or leave join out to found a cluster"
        )
    return outside


async def _listening(
    nursery: trio.Nursery, settings: _NodeSettings, before: str | None, door: _ConnectionAcceptor
) -> str:
    """Listen for other nodes: at the address of before, if any port will do and it is free."""
    host, port = split_host_port(split_address(settings.listen)[1])
    if before is not None and port == 0 and split_host_port(split_address(before)[1])[0] == host:
        try:
            return cast("str", await nursery.start(settings.network.listen, before, door.accept))
        except ListenError as error:
            logger.warning(
                "this node cannot be reached where it was before; nodes that only know that "
                "address will not find it: %s",
                error,
            )
    return cast("str", await nursery.start(settings.network.listen, settings.listen, door.accept))
