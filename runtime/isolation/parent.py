"""The processes of the isolated actors of one node, forked from a warm one that is started with the
first of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Protocol, cast

import attrs
import cbor2
import trio

from actors.actor import Actor
from actors.class_names import class_name, module_name
from actors.identifiers import NodeId
from actors.messages import MAIN_ALIAS
from actors.method import Address
from actors.options import SpawnOptions
from actors.own_logger import own_logger
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.instances import plain_instance
from runtime.hosting.item_batches import BATCH_METHODS
from runtime.isolation.actor_proxy import ActorProxy, forwarded
from runtime.isolation.child_debugging import KeptFailures
from runtime.isolation.child_process import ChildProcessHandle
from runtime.isolation.lease_page import LeasePage
from runtime.isolation.messages import (
    ISOLATION_SERVICE,
    LaunchRequest,
)
from runtime.isolation.node_api import IsolationService, NodeApi
from runtime.links.encryption import Tls
from runtime.links.keyring import Keyring
from runtime.logs.formats import written_format, written_level
from runtime.processes import (
    ChildProcess,
    ForkServer,
    ForkServerDiedError,
    ProcessError,
    open_fork_server,
)
from runtime.processes.printed_lines import with_name
from runtime.tracing import NO_SPANS
from runtime.wire.handshake import CHILD_NAMES

logger = own_logger("understudy.actors")


CHILD_MODULE = "runtime.isolation.child"


GRACE = 0.2
"""Seconds between SIGTERM and SIGKILL for processes that are left when their node closes. Their
actors have been stopped by then.
"""


class Isolation(Protocol):
    """Starts and ends the isolated actors of a node: in processes, or in the node if simulated."""

    def instance(self, cls: type[Actor], options: SpawnOptions) -> Actor:
        """Return the instance that the host constructs, starts and calls for an actor of this
        class.
        """
        ...

    async def share_secrets(self) -> None:
        """Give the processes the secrets that the node has now; returns when they have them, or
        after some seconds.
        """
        ...

    def on_lease_renewed(self, asked: float) -> None:
        """Handle a renewal of the node's lease, requested at that time by its monotonic clock.
        Called in any thread: that of the stand-by while the event loop is blocked.
        """
        ...

    def actor_of(self, process: str) -> str:
        """Return the actor that runs in a process of this node, by the process's name; "" if none
        does, or there is no such process.
        """
        ...


IsolationFactory = Callable[[RpcEndpoint, NodeApi, trio.Nursery, Environment, Keyring], Isolation]
"""Makes the isolation of a node. Its tasks live in the nursery, which is the node's; the last has
the cluster's secrets.
"""


class WithoutProcesses:
    """For simulated nodes: runs every actor in its node, whatever its options say."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        api: NodeApi,
        nursery: trio.Nursery,
        environment: Environment,
        keyring: Keyring,
    ) -> None:
        """Made like every `IsolationFactory`; it needs none of the arguments."""

    def instance(self, cls: type[Actor], options: SpawnOptions) -> Actor:
        """Return the actor itself: it runs in its node."""
        return plain_instance(cls, options)

    async def share_secrets(self) -> None:
        """Does nothing: there are no other processes."""
        await trio.lowlevel.checkpoint()

    def on_lease_renewed(self, asked: float) -> None:
        """Does nothing: the actors are blocked together with their node."""

    def actor_of(self, process: str) -> str:
        """Return "": there are no other processes."""
        return ""


class IsolatedProcesses:
    """The isolation of a node, with real processes. `nursery` is the node's, so that nothing
    outlives the node. `tls`: how the processes dial other nodes. `on_process_start`: the path of a
    function that each calls first; "" for none.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        api: NodeApi,
        nursery: trio.Nursery,
        environment: Environment,
        keyring: Keyring,
        tls: Tls | None = None,
        on_process_start: str = "",
    ) -> None:
        self._tls = tls or Tls()
        self._on_process_start = on_process_start
        self._endpoint = endpoint
        self._nursery = nursery
        self._environment = environment
        self._keyring = keyring
        # A file that was changed by hand is noticed in a handshake, not in a task that could wait.
        keyring.on_changed.append(
            lambda: nursery.start_soon(self.share_secrets, name="secrets of isolated processes")
        )
        self._classes: dict[type[Actor], type[ActorProxy]] = {}
        self._children: dict[str, ChildProcessHandle] = {}
        self._spares: list[ChildProcessHandle] = []
        self._adding = False
        self._names: dict[str, str] = {}
        """The actor in each process, by the name of the process: the prefix of its output."""
        self._lease: LeasePage | None = None
        """Made with the first process."""
        self._server: ForkServer | None = None
        self._server_scope = trio.CancelScope()
        self._opening = trio.Lock()
        endpoint.host.add_system(
            ISOLATION_SERVICE,
            IsolationService(api, self._children, endpoint.codec.size_of, self._on_failure),
        )

    def instance(self, cls: type[Actor], options: SpawnOptions) -> Actor:
        """Return a proxy for an actor with `isolation="process"`, else the actor itself."""
        if options.isolation == "none":
            return plain_instance(cls, options)
        # Bounded by the classes of actors that this process has: peers send their paths alone.
        kind = self._classes.get(cls)
        if kind is None:
            kind = self._classes[cls] = type(
                f"ProxyOf{class_name(cls)}", (ActorProxy,), {"handles_exits": cls.handles_exits}
            )
            kind.__methods__ = forwarded(cls.__methods__)
            kind.batch_methods = forwarded(BATCH_METHODS)
        proxy = kind.__new__(kind)

        async def prepare(request: LaunchRequest) -> ChildProcessHandle:
            return await self._prepare(cls, request)

        turns = self._endpoint.host.turns
        proxy.configure(cls, options, prepare, lambda: turns.chain(trio.lowlevel.current_task()))
        return proxy

    def actor_of(self, process: str) -> str:
        """Return the actor in this process; "" for a spare one, and for one that has ended."""
        return self._names.get(process, "")

    async def share_secrets(self) -> None:
        """Send the cluster's secrets to all connected children."""
        secrets = list(self._keyring.secrets())
        async with trio.open_nursery() as nursery:
            for process in self._children.values():
                # One that has not dialled yet was forked with secrets that are still accepted.
                if process.identity in self._endpoint.peers.links:
                    nursery.start_soon(process.replace_secrets, secrets)

    def on_lease_renewed(self, asked: float) -> None:
        """Let the children run for another lease. `asked`: when the renewal was requested, on the
        monotonic clock.
        """
        # Read once: the loop of the node may make the page meanwhile.
        page = self._lease
        if page is not None:
            timings = self._environment.timings
            # The store ends the lease, and a name can move, a lease after the request at the
            # earliest. A process that wakes up a little late has ended before.
            page.write(asked + timings.lease - timings.beat - self._environment.now())

    def _on_failure(self, facts: Mapping[str, Any], address: Address) -> None:
        kept = self._endpoint.host.post_mortems
        if kept is not None:
            kept.on_failure_of_process(facts, address.name, address.epoch)

    async def _prepare(self, cls: type[Actor], request: LaunchRequest) -> ChildProcessHandle:
        """Return a process for a launch request: the spare one if there is one. Starts another
        spare. Raises ProcessError.
        """
        # A spare that has ended stays in the list until its end is handled.
        process = next((spare for spare in self._spares if spare.reason is None), None)
        if process is None:
            process = await self._new(module_name(cls))
        else:
            self._spares.remove(process)
        self._names[process.identity.name] = request.address.name
        process.assign(request, forwarded({**cls.__methods__, **BATCH_METHODS}))
        if not self._spares and not self._adding:
            self._adding = True
            self._nursery.start_soon(
                self._add_spare, module_name(cls), process, name="spare process"
            )
        return process

    async def _add_spare(self, module: str, before: ChildProcessHandle) -> None:
        try:
            # First the process that a caller waits for: there may be few cores.
            await before.started()
            self._spares.append(await self._new(module))
            assert len(self._spares) == 1, "one spare is made at a time, when there is none"
        except ProcessError as error:
            # The start of the next actor tries again, and reports the error.
            logger.info("there is no spare process for the next isolated actor: %s", error)
        finally:
            self._adding = False

    async def _new(self, module: str) -> ChildProcessHandle:
        """Start a process that waits for its launch request. Raises ProcessError."""
        ticket = self._environment.token(16).hex()
        identity = NodeId(
            f"{CHILD_NAMES}{self._environment.token(6).hex()}",
            self._endpoint.identity.incarnation,
        )
        process = ChildProcessHandle(self._endpoint, identity, self._environment.timings)
        # Before the process exists: it may ask for its launch request before the fork returns here.
        self._children[ticket] = process
        try:
            child = await self._fork(
                cbor2.dumps(self._settings(ticket, identity)), identity.name, module
            )
        except OSError as error:
            del self._children[ticket]
            raise ProcessError(
                f"the system grants no further process here: {error}; raise the limit of "
                "processes (`ulimit -u`, pids.max of the control group, --pids-limit of a "
                "container) or of open files (`ulimit -n`)"
            ) from error
        except BaseException:
            # A process that was forked all the same is refused when it asks with this ticket.
            del self._children[ticket]
            raise
        process.take(child)
        self._nursery.start_soon(self._watch, ticket, process, name=f"end of {identity.name}")
        return process

    async def _watch(self, ticket: str, process: ChildProcessHandle) -> None:
        await process.watch()
        del self._children[ticket]
        self._names.pop(process.identity.name, None)
        if process in self._spares:
            self._spares.remove(process)

    def _settings(self, ticket: str, identity: NodeId) -> dict[str, object]:
        introduction = self._endpoint.peers.introduction
        breakpoints = self._endpoint.host.breakpoints
        if self._lease is None and hasattr(os, "memfd_create"):
            self._lease = LeasePage()
        return {
            "ticket": ticket,
            "name": identity.name,
            "incarnation": identity.incarnation,
            "cluster": introduction.cluster,
            "secrets": list(self._keyring.secrets()),
            "host": introduction.peer.host,
            "address": next(
                address for address in introduction.peer.addresses if address.startswith("unix:")
            ),
            "node": self._endpoint.identity.name,
            "node_incarnation": self._endpoint.identity.incarnation,
            "call_timeout": self._endpoint.caller.call_timeout,
            "timings": attrs.asdict(self._environment.timings),
            "lease": self._lease.place if self._lease is not None else "",
            "tls": attrs.asdict(self._tls),
            "level": written_level(),
            "log_format": written_format(),
            "tracing": self._endpoint.spans is not NO_SPANS,
            "on_process_start": self._on_process_start,
            "kept_failures": self._kept_failures(),
            "debug_address": "" if breakpoints is None else breakpoints.address,
        }

    def _kept_failures(self) -> KeptFailures:
        kept = self._endpoint.host.post_mortems
        if kept is None:
            return ""
        return "frames" if kept.keeps_frames else "text"

    async def _fork(self, argument: bytes, name: str, module: str) -> ChildProcess:
        server = await self._warm(module)
        try:
            return await server.start(f"{CHILD_MODULE}:run", argument, name)
        except ForkServerDiedError:
            async with self._opening:
                # Several starts may have been waiting for it: only the first replaces it, the
                # others find its successor.
                if self._server is server:
                    self._server = None
                    self._server_scope.cancel()
            # The warm process was killed: start another one.
            return await (await self._warm(module)).start(f"{CHILD_MODULE}:run", argument, name)

    async def _warm(self, module: str) -> ForkServer:
        """The warm process; started if there is none, with `module` imported in it so that the
        processes need not.
        """
        async with self._opening:
            server = self._server
            if server is None:
                # If the caller is cancelled here, trio ends the process that is starting with the
                # call of `start`, and the next caller starts another.
                self._server_scope = trio.CancelScope()
                server = self._server = cast(
                    "ForkServer",
                    await self._nursery.start(self._keep_warm, module, self._server_scope),
                )
            return server

    async def _keep_warm(
        self, module: str, scope: trio.CancelScope, *, task_status: trio.TaskStatus[ForkServer]
    ) -> None:
        with scope:
            async with AsyncExitStack() as stack:
                # A fork server runs the main script by itself, under either of its names: on a
                # worker of a local cluster, which was forked from such a server, the script's
                # classes have the second.
                preload = (
                    [CHILD_MODULE] if module in ("__main__", MAIN_ALIAS) else [CHILD_MODULE, module]
                )
                task_status.started(
                    await stack.enter_async_context(
                        open_fork_server(preload=preload, text_of=self._text_of, grace=GRACE)
                    )
                )
                await trio.sleep_forever()

    def _text_of(self, process: str, line: str) -> str:
        """Return a line that a process has printed, with the actor's name before it. A JSON line is
        returned as it is, because one of its fields names the actor.
        """
        if line.startswith("{") and written_format() == "json":
            return line
        return with_name(self._names.get(process, process), line)
