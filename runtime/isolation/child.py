"""The process of an isolated actor: connected to its node as a client is, it hosts that one actor
and nothing else.

It ends with its actor. It also ends by itself when it has not heard from its node for as long as a
lease takes to run out: another node may have the actor's name by then. A node whose event loop is
blocked says nothing either, but as long as its second thread renews the lease, the process goes on.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import resource
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, cast

import attrs
import cbor2
import trio

from actors.actor import Actor, Ended, Ignore, Member, Watch
from actors.call_context import CURRENT, CallContext, call_context
from actors.class_names import module_name
from actors.errors import (
    CallError,
    DecodeError,
    HandshakeError,
    ProtocolError,
    SpawnError,
    UnderstudyError,
)
from actors.filters import Filter
from actors.groups import checked_group_name
from actors.handle import Handle
from actors.messages import import_path
from actors.method import Address, MethodDefinition, method
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime.calls.arguments import StartManyRequest, StartRequest
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.routes import PeerDirectory
from runtime.environment import Environment, SystemEnvironment
from runtime.functions.function_names import FunctionCall, call_hook
from runtime.groups.groups import Followed
from runtime.groups.memberships import GroupMembership
from runtime.hosting.actor_state import ActorState, ActorStates
from runtime.hosting.cell import ActorCell, Invocation, why_not_started
from runtime.hosting.chains import Chain
from runtime.hosting.completion_log import CompletionLog
from runtime.hosting.host import ActorHost, NameClaims
from runtime.hosting.stacks import read_stacks
from runtime.hosting.workers import TaskWorkers
from runtime.identifiers import NodeId
from runtime.isolation.base_node import ActorStarter, BaseNode
from runtime.isolation.child_debugging import KeptFailures, child_debugging
from runtime.isolation.child_keyring import CHILD_KEYRING_SERVICE, ChildKeyringService
from runtime.isolation.lease_page import LeaseView
from runtime.isolation.messages import (
    CONTROL_SERVICE,
    ISOLATED_ACTOR,
    ISOLATION_SERVICE,
    LaunchRequest,
    StartFailure,
)
from runtime.isolation.node_api import IsolationService, NodeApi, NodeApiProxy
from runtime.isolation.stack_thread import answer_from_thread
from runtime.links.encryption import Tls, system_network
from runtime.links.keyring import Keyring
from runtime.links.link import Link
from runtime.links.peers import Peers
from runtime.logs.capture import LogCapture
from runtime.logs.formats import write_logs
from runtime.logs.ring import LogQuestion, fitting
from runtime.logs.service import logs_of
from runtime.membership.members import peer_of_member
from runtime.processes.fork_loop import name_process, settle_collector
from runtime.references.manager import MemoryOptions
from runtime.stderr_writer import flush_stderr
from runtime.timings import Timings
from runtime.tracing import Tracing
from runtime.user_errors import guarded, is_cancellation, is_interrupt, text_of
from runtime.wire.classes import import_class
from runtime.wire.handshake import Introduction, Peer

# The groups that an isolated actor holds: each follows the node's view of it, a moment later.

FOLLOWED_GROUP_LOOK_SECONDS = 5.0
"""Seconds between two checks whether the actor still holds a group that is followed. A group is
followed for at least that long.
"""


class GroupsClient:
    """The groups that the isolated actor holds; implements `runtime.groups.groups.GroupSource`.
    `identity`: the node's.
    """

    def __init__(
        self,
        identity: NodeId,
        endpoint: RpcEndpoint,
        environment: Environment,
        api: NodeApi,
        nursery: trio.Nursery,
    ) -> None:
        self.identity = identity
        self.endpoint = endpoint
        self.environment = environment
        self._api = api
        self._nursery = nursery
        self._followed: weakref.WeakValueDictionary[str, Followed] = weakref.WeakValueDictionary()
        self._seen: weakref.WeakKeyDictionary[Followed, tuple[int, list[GroupMembership]]] = (
            weakref.WeakKeyDictionary()
        )
        self._version = 0

    def followed(self, group: str) -> Followed:
        """Return the group, and follow it from now on. Raises ValueError if this cannot be the name
        of a group.
        """
        group = checked_group_name(group)
        followed = self._followed.get(group)
        if followed is None:
            followed = self._followed[group] = Followed(group, self.identity[1])
            self._nursery.start_soon(
                self._follow, group, weakref.ref(followed), name=f"group {group}"
            )
        return followed

    def members(self, followed: Followed) -> tuple[object, list[GroupMembership]]:
        """Return a value that changes with the members of a group, and the members, those of the
        node first.
        """
        return self._seen.get(followed, (0, []))

    def state(self, followed: Followed) -> object:
        """Return a value that is equal as long as the members are the same."""
        return self._seen.get(followed, (0, []))[0]

    async def _follow(self, group: str, reference: weakref.ref[Followed]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, group, reference)
            while (followed := reference()) is not None:
                # A weak reference has no event for its end. Let go of before the next look: this
                # task would keep alive what it waits for the end of.
                del followed
                await trio.sleep(FOLLOWED_GROUP_LOOK_SECONDS)
            nursery.cancel_scope.cancel()

    async def _read(self, group: str, reference: weakref.ref[Followed]) -> None:
        try:
            async with aclosing(self._api.watch_group(group)) as all_members:
                async for addresses in all_members:
                    self._see(reference(), addresses)
        except CallError:
            # The connection to the node is gone, and soon this process.
            return

    def _see(self, followed: Followed | None, addresses: tuple[Address, ...]) -> None:
        if followed is not None:
            self._version += 1
            self._seen[followed] = (
                self._version,
                [GroupMembership(address, 1) for address in addresses],
            )
            followed.ready.set()
            followed.notify()


# How an isolated actor reaches its node: through the node API.


class ChildDirectory:
    """Finds actors and nodes for the calls of this process, by asking its node. `node`: that node,
    which is connected before anything is looked up.
    """

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._api: NodeApi
        self._peers: Peers

    def use(self, api: NodeApi, peers: Peers) -> None:
        """Set what the node is asked through; the endpoint, which makes them, needs this first."""
        self._api = api
        self._peers = peers

    async def locate(self, name: str) -> Address:
        """Ask the node for the address of the actor of this name. Raises like
        `PeerDirectory.locate`.
        """
        return await self._api.locate(name)

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        """Return a link to that incarnation, dialled from this process. Raises like
        `PeerDirectory.link_to`.
        """
        await trio.lowlevel.checkpoint()
        link = self._peers.links.get(NodeId(node, incarnation))
        if link is not None and link.ended is None:
            return link
        if (node, incarnation) == self._node:
            return None
        member = await self._api.place(node, incarnation)
        return None if member is None else self._peers.link(peer_of_member(member))


@attrs.frozen
class ChildStarter:
    """Has actors started by the node; see `runtime.isolation.base_node.ActorStarter`."""

    _api: NodeApi
    _endpoint: RpcEndpoint

    async def start(self, request: StartRequest) -> Address:
        """Start an actor through the node. Raises like `Spawner.spawn`."""
        return await self._ask(self._api.start, request)

    async def start_many(self, request: StartManyRequest) -> list[Address | Exception]:
        """Start many actors through the node; returns an address or an error for each."""
        path = import_path(request.cls)
        node = self._endpoint.lifetime.node
        found = await self._api.start_many(path, request.rows, request.names, request.options)
        return [one if isinstance(one, Address) else one.error(node) for one in found]

    async def stand(self, request: StartRequest) -> Address:
        """Make the node a candidate for a singleton, and return its address. Raises like
        `Spawner.singleton`.
        """
        return await self._ask(self._api.stand, request)

    async def find_started(self, name: str) -> Address | None:
        """Ask the node for the address of the actor of this name, once it has started; None if
        there is none.
        """
        return await self._api.find(name, not self._endpoint.host.is_within_start())

    async def _ask(
        self,
        operation: Callable[
            [str, tuple[object, ...], dict[str, object], SpawnOptions], Awaitable[Address]
        ],
        request: StartRequest,
    ) -> Address:
        path, kwargs = import_path(request.cls), dict(request.kwargs)
        with request.naming_arguments(self._endpoint.codec):
            return await operation(path, request.args, kwargs, request.options)


@attrs.frozen
class ChildFunctions:
    """Has functions run by the node; see `FunctionCaller`."""

    _api: NodeApi
    _endpoint: RpcEndpoint

    async def run(self, call: FunctionCall) -> object:
        """Run a function in a worker process of the cluster, through the node. Raises what the
        function raises.
        """
        with call.naming_arguments(self._endpoint.codec):
            return await self._api.run(call.path, call.args, call.kwargs, call.options)


class NodeClient(BaseNode):
    """The node as the isolated actor sees it; implements `actors.actor.NodeInterface`."""

    def __init__(
        self,
        node: NodeId,
        endpoint: RpcEndpoint,
        api: NodeApi,
        groups: GroupsClient,
        environment: Environment,
        nursery: trio.Nursery,
    ) -> None:
        self.name, self.incarnation = self._identity = node
        self._environment = environment
        self._nursery = nursery
        self._endpoint = endpoint
        self._api = api
        starter = ChildStarter(api, endpoint)
        self._starter = ActorStarter(
            starter.start, starter.start_many, starter.stand, starter.find_started
        )
        self._functions = ChildFunctions(api, endpoint)
        self._group_source = groups
        self._journals = None
        """A journal's driver is known by the lease of its node, which this process outlives not."""
        self._members: tuple[Member, ...] = ()

    def see(self, members: tuple[Member, ...]) -> None:
        """Set the present members. Links to former members end."""
        before = {NodeId(member.name, member.incarnation) for member in self._members}
        self._members = members
        for identity in before - {NodeId(member.name, member.incarnation) for member in members}:
            if identity != self._identity:
                self._endpoint.on_peer_ended(
                    identity, "it has left the cluster or its lease has ended"
                )

    async def follow(self) -> None:
        """Update the members with each change that the node reports, until the node ends."""
        try:
            async for members in self._api.watch_members():
                self.see(members)
        except CallError:
            # The connection to the node is gone, and soon this process.
            return

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """See `NodeInterface.stop`. An actor that stops itself ends when its method has
        returned.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"stop takes a handle, not {handle!r}")
        host = self._endpoint.host
        invocation = host.workers.running.get(trio.lowlevel.current_task())
        if invocation is not None and invocation.cell.address.name == handle.name:
            host.nursery_of(invocation.cell).start_soon(self._api.stop, handle.address, reason)
            await trio.lowlevel.checkpoint()
        else:
            await self._api.stop(handle.address, reason)

    def members(self) -> tuple[Member, ...]:
        """Return the nodes known to be in the cluster now, this one included, by name."""
        return self._members


# What an isolated actor watches, is linked to and has joined: its node keeps this, and is asked.
# Notices come back into the mailbox here.

logger = logging.getLogger("understudy.watching")


class WatchingClient:
    """The watches and links of the actor in this process; see
    `runtime.hosting.host.HostExtension`. `nursery`: the process's.
    """

    def __init__(self, api: NodeApi, nursery: trio.Nursery) -> None:
        self.api = api
        self._nursery = nursery
        self._deliveries: dict[int, _NoticeDelivery] = {}
        """By watch: the node sends one notice of a watch, and one notice at a time."""
        self._cancelled: set[int] = set()
        """Watches that the actor has cancelled, until the node has confirmed that no notice of them
        follows.
        """

    def of(self, cell: ActorCell) -> ActorWatchingClient:
        """Return the watches and links of one actor, as it sees them."""
        return ActorWatchingClient(self, cell)

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: the node does it."""

    def on_ended(self, address: object, reason: object) -> None:
        """Does nothing: the node does it."""

    async def tell(self, host: ActorHost, cell: ActorCell, notice: Ended) -> bool:
        """Deliver a notice to the actor in its turn, and wait until `on_ended` has returned.
        Returns False if the actor has ended; an exception in `on_ended` ends it.
        """
        if cell.ended is not None:
            return False
        if notice.watch in self._cancelled:
            return True
        on_ended = type(cell.instance).on_ended
        definition = MethodDefinition(
            name="on_ended", function=on_ended, in_thread=not inspect.iscoroutinefunction(on_ended)
        )
        delivery = self._deliveries[notice.watch] = _NoticeDelivery(host)
        delivery.invocation = invocation = Invocation(
            cell, definition, (notice,), {}, delivery, None, notice.watch, math.inf
        )
        # That of the code that watches: the node calls this service in it.
        invocation.context = CURRENT.get()
        # Regardless of the mailbox's limit: the node sends one notice at a time, and the actor has
        # asked for each of them.
        cell.append(invocation)
        if not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            host.workers.submit(cell)
        try:
            await delivery.over.wait()
        except trio.Cancelled:
            invocation.cancel()
            raise
        finally:
            del self._deliveries[notice.watch]
        return cell.ended is None

    def cancel(self, cell: ActorCell, number: int) -> None:
        """Cancel the watch of this number, here and on the node. An `on_ended` that has begun is
        not interrupted.
        """
        if number in self._cancelled:
            return
        # First here: a notice may be on its way from the node, which learns of this only later.
        self._cancelled.add(number)
        delivery = self._deliveries.get(number)
        if delivery is not None:
            delivery.recall()
        self._nursery.start_soon(self._unwatch, cell, number, name="unwatch")

    async def _unwatch(self, cell: ActorCell, number: int) -> None:
        try:
            await self.api.unwatch(cell.address.name, cell.address.epoch, number)
        except UnderstudyError as error:
            # The number stays among the cancelled ones: the node may still send a notice.
            logger.info(
                "could not tell the node that %s has cancelled a watch: %s",
                cell.address.name,
                error,
            )
        else:
            self._cancelled.discard(number)


class _NoticeDelivery:
    """One notice on its way through the mailbox of this process. Also the `ReplySink` of its
    invocation: a failure ends the actor.
    """

    def __init__(self, host: ActorHost) -> None:
        self._host = host
        self.invocation: Invocation | None = None
        self.over = trio.Event()

    def recall(self) -> None:
        """Drop the notice, if its `on_ended` has not begun: the watch was cancelled."""
        if self.invocation is not None and not self.invocation.begun:
            self.invocation.cancel()
            self.over.set()

    def value(self, invocation: Invocation, value: object) -> None:
        """`on_ended` has returned."""
        self.over.set()

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """`on_ended` has raised. Ends the actor, because no caller would learn of the error."""
        if not issubclass(type(error), SystemExit):
            # SystemExit ends the actor already, in the worker.
            self._host.crash(invocation.cell, error)
        self.over.set()

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The notice cannot be handled. Ends the actor, unless it has ended already."""
        if invocation.cell.ended is None:
            self._host.crash(invocation.cell, error)
        self.over.set()


@attrs.frozen
class ActorWatchingClient:
    """The watching methods of one actor; see `actors.actor.ActorWatching`."""

    _watching: WatchingClient
    _cell: ActorCell

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor, through the node. Raises like `Observer.watch`."""
        number, name, epoch = await self._watching.api.watch(*self._watched(handle))
        return Watch(number, name, epoch, partial(self._watching.cancel, self._cell, number))

    async def link(self, handle: object) -> None:
        """Link this actor with another, through the node."""
        await self._watching.api.link(*self._watched(handle))

    async def unlink(self, handle: object) -> None:
        """End the links of this actor with another, through the node."""
        if not isinstance(handle, Handle):
            raise TypeError(f"unlink takes a handle, not {handle!r}")
        own = self._cell.address
        await self._watching.api.unlink(own.name, own.epoch, handle.address)

    def _watched(self, handle: object) -> tuple[str, int, Address]:
        own = self._cell.address
        if not isinstance(handle, Handle):
            raise TypeError(f"watching and linking take a handle, not {handle!r}")
        if self._cell.ended is not None:
            raise RuntimeError(
                f"{own.name} has ended; it can no longer watch or be linked to other actors"
            )
        return own.name, own.epoch, handle.address


class JoiningClient:
    """The memberships of the actor in this process; see
    `runtime.hosting.host.HostExtension`.
    """

    def __init__(self, api: NodeApi) -> None:
        self._api = api

    def of(self, cell: ActorCell) -> ActorGroupsClient:
        """Return the memberships of one actor, as it sees them."""
        return ActorGroupsClient(self._api, cell)

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: the node does it."""

    def on_ended(self, address: object, reason: object) -> None:
        """Does nothing: the node does it."""


@attrs.frozen
class ActorGroupsClient:
    """The group methods of one actor; see `actors.actor.ActorGroups`."""

    _api: NodeApi
    _cell: ActorCell

    async def join(self, group: str) -> None:
        """Join a group, through the node. Raises ValueError for an invalid name."""
        group = checked_group_name(group)
        own = self._cell.address
        if self._cell.ended is not None:
            raise RuntimeError(f"{own.name} has ended; it can no longer join groups")
        await self._api.join(own.name, own.epoch, group)

    async def leave(self, group: str) -> bool:
        """Undo one `join`; False if there is none left."""
        return await self._api.leave(self._cell.address.name, self._cell.address.epoch, group)


# Saving from a process of an actor's own: the node commits the state, and with it the call that led
# to it.


class SavedStatesClient(CompletionLog):
    """Saves states by asking the node. Only the node knows the identity of the running call; this
    process knows whether it is the call whose turn it is. Also the `NameClaims` of the host of this
    process, of which nothing else is called: it keeps no completion records, and claims no name.
    """

    def __init__(self, api: NodeApi, workers: TaskWorkers, environment: Environment) -> None:
        super().__init__(lambda: cast("NameClaims", self), workers, environment)
        self._api = api

    async def save(self, cell: ActorCell, state: object, answer: object) -> None:
        """Save the actor's state through the node, with the answer of the call whose turn it is.
        Calls of concurrent methods are not recorded.
        """
        invocation = self.invocation_running(cell)
        answers = () if answer is attrs.NOTHING else (answer,)
        in_turn = invocation is not None and not invocation.definition.concurrent
        await self._api.save(cell.address.name, cell.address.epoch, state, answers, in_turn)

    async def saved(self, name: str) -> Any:
        """Ask the node for the state that an earlier epoch of `name` has saved."""
        return await self._api.saved(name)

    async def release(self, name: str, epoch: int) -> None:
        """Does nothing: the node releases the name."""
        await trio.lowlevel.checkpoint()


CHILD_GOODBYE_SECONDS = 1.0
"""Seconds that the process of an isolated actor has to close its links."""


CHILD_LOG_BYTES = 128 * 1024
"""Lines of the log that wait in a child for their way to the node; the node keeps them."""


class LogForwarder:
    """Sends what this process logs to the log of its node."""

    def __init__(self, capture: LogCapture, service: Any) -> None:
        self._capture = capture
        self._service = service.options(timeout=FORWARD_SECONDS)
        self._sent = 0
        capture.attach()

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            while self._capture.last <= self._sent:
                await self._capture.wait_changed()
            await self.send()
            # What comes meanwhile goes together.
            await trio.sleep(FORWARD_SECONDS / 10)

    async def send(self) -> None:
        """Send the new lines. Those that do not arrive are lost here, but are on stderr as well."""
        while self._capture.last > self._sent:
            told, left = fitting(
                self._capture.entries(), LogQuestion(after=self._sent), onwards=True
            )
            # Before it is sent: of two that send at once, one sends.
            self._sent = told[-1].number if told and left else self._capture.last
            with suppress(CallError):
                await self._service.add([entry.plain() for entry in told])


LAST_LINES_SECONDS = 0.2
"""Seconds to write log lines when the process ends at once."""

FORWARD_SECONDS = 2.0
"""How long the node may take for lines of the log; a tenth of it is between two sendings."""


@attrs.frozen(kw_only=True)
class ChildSettings:
    """The settings that a process gets when it is forked; it asks its node for all else. `host` and
    `address` are the node's.
    """

    ticket: str
    name: str
    incarnation: int
    cluster: str
    secrets: list[bytes] = attrs.field(repr=False)
    host: str
    address: str
    node: str
    node_incarnation: int
    level: int
    log_format: str
    call_timeout: float | None
    timings: dict[str, float]
    """The fields of the node's `Timings`."""
    lease: str
    """The place of the node's `LeasePage`; "" if there is none."""
    tracing: bool
    on_process_start: str
    """The path of a function to be called first; "" for none."""
    kept_failures: KeptFailures
    debug_address: str
    """The address at which `understudy debug` finds the node; "" if that allows no debuggers."""
    tls: dict[str, Any]
    """The fields of the node's `Tls`: the process dials other nodes itself."""


class ControlService(Actor):
    """The service `@control`, by which the node stops the actor and delivers notices."""

    def __init__(
        self,
        host: ActorHost,
        address: Address,
        watching: WatchingClient,
        environment: Environment,
    ) -> None:
        self._host = host
        self._actor = address
        self._watching = watching
        self._states = ActorStates(host, environment)
        self.asked = False
        """True once the node has asked to stop the actor: then its end is not reported."""

    @method(concurrent=True)
    async def stop(self, reason: ExitReason) -> None:
        """Stop the actor in order, with `on_stop`."""
        self.asked = True
        await self._host.stop(self._actor.name, self._actor.epoch, reason)

    @method(concurrent=True, idempotent=True)
    async def stacks(self) -> dict[str, Any]:
        """The tasks of the actor and the threads of this process; see `read_stacks`."""
        return read_stacks(self._host.workers.running, self._host.now(), self._actor.name)

    @method(concurrent=True, idempotent=True)
    async def state(self) -> dict[str, Any]:
        """Return the state that the actor shows, as the fields of an `ActorState`."""
        cell = self._host.cells.get(self._actor.name)
        if cell is None:
            return attrs.asdict(ActorState(problem="it has ended"))
        return attrs.asdict(await self._states.read(cell))

    @method(concurrent=True)
    async def tell(self, notice: Ended) -> bool:
        """Deliver a notice to the actor, and wait until `on_ended` has returned. Returns False if
        the actor has ended.
        """
        cell = self._host.cells.get(self._actor.name)
        return cell is not None and await self._watching.tell(self._host, cell, notice)


def run(argument: bytes, report: Callable[[bytes], None]) -> None:
    """Run the process of one isolated actor; the target that the fork server calls."""
    told: Mapping[str, Any] = cbor2.loads(argument)
    settings = ChildSettings(**told)
    write_logs(settings.level, "json" if settings.log_format == "json" else "text", times=False)
    settle_collector()
    # Before there is a thread or a loop here: what it sets up may need its own.
    call_hook(settings.on_process_start)
    tracing = Tracing() if settings.tracing else None
    try:
        trio.run(_run_child, settings, () if tracing is None else (tracing,))
    finally:
        if tracing is not None:
            tracing.flush()


async def _run_child(settings: ChildSettings, filters: tuple[Filter, ...]) -> None:
    environment = SystemEnvironment(Timings(**cast("Any", settings.timings)))
    me = Peer(
        name=settings.name,
        incarnation=settings.incarnation,
        role="client",
        host=settings.host,
        life=environment.token(8).hex(),
    )
    node = NodeId(settings.node, settings.node_incarnation)
    keyring = Keyring(settings.secrets)
    directory = ChildDirectory(node)
    async with trio.open_nursery() as nursery:
        endpoint = RpcEndpoint(
            Introduction(cluster=settings.cluster, peer=me),
            keyring,
            environment,
            system_network(environment, Tls(**settings.tls)),
            nursery,
            PeerDirectory(directory.locate, directory.link_to),
            lambda endpoint: ChildHost(endpoint, node, nursery, environment),
            memory=MemoryOptions(shared=True),
            call_timeout=settings.call_timeout,
            filters=filters,
        )
        host = endpoint.host
        assert isinstance(host, ChildHost)
        directory.use(host.api, endpoint.peers)
        forwarder = LogForwarder(
            LogCapture(node, host, nursery, CHILD_LOG_BYTES), logs_of(endpoint, *node)
        )
        host.add_system(CHILD_KEYRING_SERVICE, ChildKeyringService(keyring))
        try:
            link = await endpoint.peers.first_contact(settings.address)
            nursery.start_soon(forwarder.run)
            answer_from_thread(settings.name)
            nursery.start_soon(
                _end_with_node,
                link,
                environment.timings.isolation_patience,
                _lease_of(settings.lease),
            )
            nursery.start_soon(endpoint.peers.beat)
            nursery.start_soon(endpoint.references.run)
            handle = Handle(
                endpoint.caller, Address(ISOLATION_SERVICE, *node), IsolationService.__methods__
            )
            service = cast("IsolationService", handle)
            # The launch request contains messages of the actor's module, so that is imported before
            # `take`. If the import fails, the start fails with the error.
            guarded(
                functools.partial(import_class, await service.wait(settings.ticket)),
                lambda failure: Actor,
            )
            request = await service.take(settings.ticket)
            with child_debugging(
                *(host, nursery, environment, settings.kept_failures, settings.debug_address),
                *(handle, settings.ticket),
            ):
                control = ControlService(host, request.address, host.watching, environment)
                reason = await _host(host, control, service, settings.ticket, request, nursery)
            if reason is not None:
                await service.ended(settings.ticket, reason)
        except (CallError, HandshakeError, ProtocolError, OSError) as error:
            # The actor's own errors do not come here: its node is leaving or has ended.
            logger.info("lost the connection to the node, so this process ends: %s", error)
        with trio.move_on_after(CHILD_GOODBYE_SECONDS):
            await forwarder.send()
        await endpoint.peers.close(CHILD_GOODBYE_SECONDS)
        nursery.cancel_scope.cancel()


async def _host(
    host: ChildHost,
    control: ControlService,
    service: IsolationService,
    ticket: str,
    request: LaunchRequest,
    nursery: trio.Nursery,
) -> ExitReason | None:
    """Host the actor until it ends. Returns how it has ended by itself; None if it did not start or
    was stopped.
    """
    address = request.address
    name_process(address.name)
    host.client.see(request.members)
    nursery.start_soon(host.client.follow)
    failure: StartFailure | None = None
    module = request.class_path.partition(":")[0]
    try:
        if request.options.memory_limit is not None:
            resource.setrlimit(
                resource.RLIMIT_AS, (request.options.memory_limit, request.options.memory_limit)
            )
        cls = _actor_class(request.class_path)
        # The main script has another name in this process.
        module = module_name(cls)
        # The context of the code that starts the actor ends with the start, like its chain.
        token = call_context.set(CallContext(request.context))
        try:
            await host.begin(
                cls, request.args, request.kwargs, request.options, address, Chain(request.chain)
            )
        finally:
            call_context.reset(token)
    except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
        if is_cancellation(error) or is_interrupt(error):
            raise
        if issubclass(type(error), Ignore):
            failure = StartFailure(text_of(error), "", needless=True)
        else:
            failure = StartFailure(*why_not_started(error, module))
    else:
        # Both before the node hears that the actor has started, after which it calls them.
        host.cells[ISOLATED_ACTOR] = host.cells[address.name]
        host.add_system(CONTROL_SERVICE, control)
    if failure is not None:
        await _pass_on_failures(host)
    await service.begun(ticket, failure)
    if failure is not None:
        return None
    reason = await host.watch(address.name, address.epoch)
    # Before the node learns of the end, after which it ends this process.
    await _pass_on_failures(host)
    return None if control.asked else reason


async def _pass_on_failures(host: ChildHost) -> None:
    if host.post_mortems is not None:
        await host.post_mortems.settle()


def _actor_class(path: str) -> type[Actor]:
    found = import_class(path)
    if not issubclass(found, Actor):
        raise DecodeError(f"{path} is not a subclass of actors.Actor")
    return found


class ChildHost(ActorHost):
    """Hosts the one actor of this process, which is an actor of `node`."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        node: NodeId,
        nursery: trio.Nursery,
        environment: Environment,
    ) -> None:
        self.api = NodeApiProxy.of(endpoint, node)
        groups = GroupsClient(node, endpoint, environment, self.api, nursery)
        self.client = NodeClient(node, endpoint, self.api, groups, environment, nursery)
        self.watching = WatchingClient(self.api, nursery)
        super().__init__(
            self.client,
            nursery,
            environment,
            lambda: cast("NameClaims", self.completion_log),
            endpoint.make_handle,
            lambda supervisor, address: _no_supervisor(),
        )
        self.completion_log = SavedStatesClient(self.api, self.workers, environment)
        self.extensions.add("watching", self.watching)
        self.extensions.add("groups", JoiningClient(self.api))


def _no_supervisor() -> None:
    raise SpawnError(
        'a supervisor cannot have a process of its own; give isolation="process" to its children '
        "instead"
    )


def _lease_of(place: str) -> Callable[[], float]:
    """Return a function that returns for how many seconds no other node can have the names."""
    try:
        return LeaseView(place).left
    except OSError as error:
        # The machine may have no such memory, or rules that forbid it. Then a blocked loop is taken
        # for a node that is gone, which is safe.
        logger.debug("the lease of the node cannot be read at %s: %s", place, error)
        return lambda: 0.0


async def _end_with_node(link: Link, patience: float, safe_for: Callable[[], float]) -> None:
    """End this process at once when its node is gone, or silent for `patience` seconds more, unless
    the node's second thread renews its lease: then no other node can have the actor's name for the
    seconds that `safe_for` tells.
    """
    while True:
        await link.disconnected()
        with trio.move_on_after(patience):
            await link.connected_again()
        while link.ended is None and not link.connected and (left := safe_for()) > 0:
            with trio.move_on_after(left):
                await link.connected_again()
        if link.ended is not None or not link.connected:
            # The last lines say why, if anybody can still read them.
            flush_stderr(LAST_LINES_SECONDS)
            os._exit(1)
