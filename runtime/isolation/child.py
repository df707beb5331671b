"""The process of an isolated actor: connected to its node as a client is, it hosts that one actor
and nothing else.

It ends with its actor. It also ends by itself when it has not heard from its node for as long as a
lease takes to run out: another node may have the actor's name by then. A node whose event loop is
blocked says nothing either, but as long as its second thread renews the lease, the process goes on.
"""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import attrs
import cbor2
import trio

from actors.actor import Actor, Ended, Ignore
from actors.call_context import CallContext, call_context
from actors.class_names import module_name
from actors.errors import (
    CallError,
    DecodeError,
    HandshakeError,
    OutcomeUnknownError,
    ProtocolError,
    SpawnError,
)
from actors.filters import Filter
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.method import Address, method
from actors.own_logger import own_logger
from actors.supervision import ExitReason
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.routes import PeerDirectory
from runtime.environment import Environment, NoThreadError, SystemEnvironment
from runtime.functions.function_names import call_hook
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.actor_state import ActorState, ActorStates
from runtime.hosting.cell import ActorCell, StartFailedElsewhereError, why_not_started
from runtime.hosting.chains import Chain
from runtime.hosting.completion_log import CompletionLog
from runtime.hosting.host import ActorHost, NameClaims
from runtime.hosting.stacks import read_stacks
from runtime.hosting.workers import TaskWorkers
from runtime.isolation.child_debugging import KeptFailures, child_debugging
from runtime.isolation.child_groups import GroupsClient, JoiningClient
from runtime.isolation.child_keyring import CHILD_KEYRING_SERVICE, ChildKeyringService
from runtime.isolation.child_watches import WatchingClient
from runtime.isolation.lease_page import LeaseView
from runtime.isolation.messages import (
    CONTROL_SERVICE,
    ISOLATED_ACTOR,
    ISOLATION_SERVICE,
    STACK_SERVICE,
    LaunchRequest,
    StartFailure,
)
from runtime.isolation.node_api import IsolationService, NodeApi, NodeApiProxy
from runtime.isolation.node_client import ChildDirectory, NodeClient
from runtime.isolation.stack_thread import answer_from_thread
from runtime.links.encryption import Tls, system_network
from runtime.links.keyring import Keyring
from runtime.links.link import Link
from runtime.logs.capture import LogCapture
from runtime.logs.formats import write_logs
from runtime.logs.ring import LogQuestion, fitting
from runtime.logs.service import logs_of
from runtime.processes.fork_loop import settle_collector
from runtime.processes.linux_processes import name_process
from runtime.processes.process_memory import MIB, address_space_mib
from runtime.references.manager import MemoryOptions
from runtime.stderr_writer import flush_stderr
from runtime.timings import Timings
from runtime.tracing import Tracing
from runtime.user_errors import guarded, is_cancellation, is_interrupt, text_of
from runtime.wire.classes import import_class
from runtime.wire.handshake import Introduction, Peer

logger = own_logger("understudy.isolation")

CHILD_GOODBYE_SECONDS = 1.0
"""Seconds that the process of an isolated actor has to close its links."""

CHILD_LOG_BYTES = 128 * 1024
"""Lines of the log that wait in a child for their way to the node; the node keeps them."""

LAST_LINES_SECONDS = 0.2
"""Seconds to write log lines when the process ends at once."""

FORWARD_SECONDS = 2.0
"""How long the node may take for lines of the log; a tenth of it is between two sendings."""


class SavedStatesClient(CompletionLog):
    """Saves states by asking the node. Only the node knows the identity of the running call; this
    process knows whether it is the call whose turn it is. It also takes the place of `NameClaims`
    in the host of this process. The host calls only these methods, because it keeps no completion
    records and claims no names.
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

    async def release(self, name: str, epoch: int, reason: ExitReason | None = None) -> None:
        """Does nothing: the node releases the name."""
        await trio.lowlevel.checkpoint()


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
            # Lines that come during the pause are sent together.
            await trio.sleep(FORWARD_SECONDS / 10)

    async def send(self) -> None:
        """Send the new lines. Those that do not arrive are lost here, but are on stderr as well."""
        while self._capture.last > self._sent:
            chosen, left = fitting(
                self._capture.entries(), LogQuestion(after=self._sent), onwards=True
            )
            # Before the lines are sent: of two tasks that send at once, only one sends them.
            self._sent = chosen[-1].number if chosen and left else self._capture.last
            with suppress(CallError):
                await self._service.add([entry.plain() for entry in chosen])


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


class StackService(Actor):
    """The service `@stacks`, which shows what runs in this process, also while the actor starts."""

    def __init__(self, host: ActorHost, actor: str) -> None:
        self._host = host
        self._actor = actor

    @method(concurrent=True, idempotent=True)
    async def stacks(self) -> dict[str, Any]:
        """The tasks of the actor and the threads of this process; see `read_stacks`."""
        workers = self._host.workers
        return read_stacks(workers.running, workers.starting, self._host.now(), self._actor)


def run(argument: bytes, report: Callable[[bytes], None]) -> None:
    """Run the process of one isolated actor; the target that the fork server calls."""
    fields: Mapping[str, Any] = cbor2.loads(argument)
    settings = ChildSettings(**fields)
    write_logs(settings.level, "json" if settings.log_format == "json" else "text", times=False)
    settle_collector()
    # Before this process has a thread or an event loop: the function may start its own.
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
            request = await _take(service, settings.ticket)
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


async def _take(service: IsolationService, ticket: str) -> LaunchRequest:
    """Take the launch request. If it cannot be read here, this process reports that to its node,
    whose start of the actor fails then. Raises CallError.
    """
    try:
        return await service.take(ticket)
    except OutcomeUnknownError as error:
        # Its answer has come, or the connection is lost, and this raises as well.
        what = f"its process cannot read what it is started with: {error}"
        # Only the end of this process cancels it.
        await service.begun(ticket, StartFailure(what, ""))  # noqa: ASYNC120
        raise


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
    # Before the actor starts: a start that takes long is what an operator looks into.
    host.add_system(STACK_SERVICE, StackService(host, address.name))
    failure: StartFailure | None = None
    taken = ""
    module = request.class_path.partition(":")[0]
    try:
        taken = _limit_memory(request.options.memory_limit)
        cls = _actor_class(request.class_path)
        # The main script has another name in this process.
        module = module_name(cls)
        # The context of the code that starts the actor ends with the start, like its chain.
        token = call_context.set(CallContext(request.context))
        try:
            start = ActorStart(
                cls, request.class_path, request.options, request.args, request.kwargs
            )
            await host.begin(start, address, Chain(request.chain))
        finally:
            call_context.reset(token)
    except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
        if is_cancellation(error) or is_interrupt(error):
            raise
        if issubclass(type(error), Ignore):
            failure = StartFailure(text_of(error), "", needless=True)
        else:
            what, trace = why_not_started(error, module)
            # A thread needs address space for its stack.
            if taken and issubclass(type(error), MemoryError | NoThreadError):
                what = f"{taken}; {what}"
            failure = StartFailure(what, trace)
    else:
        # Both before the node hears that the actor has started, after which it calls them.
        host.cells[ISOLATED_ACTOR] = host.cells[address.name]
        host.add_system(CONTROL_SERVICE, control)
    if failure is not None:
        await _pass_on_failures(host)
    await service.begun(ticket, failure)
    if failure is not None:
        return None
    reason = await host.exits.wait(address.name, address.epoch)
    # Before the node learns of the end, after which it ends this process.
    await _pass_on_failures(host)
    return None if control.asked else reason


def _limit_memory(limit: int | None) -> str:
    """Limit the address space of this process, and return what to say where that is too little; ""
    without a limit. Raises StartFailedElsewhereError if the process has more already.
    """
    if limit is None:
        return ""
    before = address_space_mib()
    taken = (
        f"its memory_limit is {limit:,} bytes of address space, of which its process took "
        f"{before or 0} MiB before the actor started: give it a larger memory_limit, or none"
    )
    if before is not None and limit < before * MIB:
        raise StartFailedElsewhereError(taken)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return taken


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
    seconds that `safe_for` returns.
    """
    while True:
        await link.disconnected()
        with trio.move_on_after(patience):
            await link.connected_again()
        while link.ended is None and not link.connected and (left := safe_for()) > 0:
            with trio.move_on_after(left):
                await link.connected_again()
        if link.ended is not None or not link.connected:
            # The last lines say why, if the node can still read them.
            flush_stderr(LAST_LINES_SECONDS)
            os._exit(1)
