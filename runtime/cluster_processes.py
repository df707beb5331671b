"""The processes of a local cluster, and the founding node that they gather around.

`runtime.local_cluster` opens it: what is loaded here, that module loads while the warm process
does the same.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import cbor2
import trio

from actors.errors import (
    CallError,
    JoinError,
    NodeNotFoundError,
    NodeUnreachableError,
    NotAMemberError,
    UnderstudyError,
)
from actors.exact import exact
from actors.foreign_names import HasForeignNames, names_for_processes
from actors.options import checked_labels, checked_resources
from actors.own_logger import own_logger
from runtime.announcements import Announcement, announced
from runtime.environment import (
    Environment,
    SystemEnvironment,
    first,
    is_stopped,
    raise_as_it_is,
    unwrap,
)
from runtime.functions.function_names import call_hook, hook_path
from runtime.hosting.stacks import named_runs
from runtime.links.keyring import GivenSecret
from runtime.links.transports import split_address
from runtime.logs.formats import write_logs, written_format, written_level
from runtime.membership.cluster_secret import secret_beside_store
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.node import Node, internals_of
from runtime.node.opening import Platform, check_blocked_limit, check_node_name, open_node
from runtime.observation.inspection_service import inspection_of
from runtime.process_end import process_of_node
from runtime.processes import ChildDiedError, ChildProcess, ExitStatus, ForkServer
from runtime.processes.fork_loop import settle_collector
from runtime.stderr_writer import flush_stderr
from runtime.tracing import NO_SPANS, Tracing
from runtime.user_errors import leaves

_Handler = Callable[[int, FrameType | None], object] | signal.Handlers

LEAVE_SECONDS = 5.0
"""How long the nodes of a local cluster may take to leave at its end, all of them side by side.
What still runs then is killed.
"""

logger = own_logger("understudy.node")

LATE_SECONDS = 2.0
"""After so many of them the log names the nodes that have not left, and what runs there."""

ASKED_SECONDS = 0.5
"""How long such a node may take to say what runs there."""

MOST_NAMED = 5
"""Methods that the log names for one node."""

MOST_LEAVE_SECONDS = 60.0
"""How long `NodeProcess.leave` waits. A node drains within `Timings.drain`; one that takes so much
longer has a blocked loop, which handles no signal.
"""

STOPPED_LOOK_SECONDS = 0.5
"""Seconds between two looks whether a process that is to leave was stopped."""

STARTING_AT_ONCE: Final = 4 * (os.cpu_count() or 2)
"""Nodes of one local cluster that start at the same moment; further ones wait for their turn. More
would start none sooner, and take the cores from the founding node, which renews all leases.
"""


class NodeProcess(HasForeignNames):
    """One node of a local cluster, running in a process of its own."""

    _foreign_names = names_for_processes("await ")

    def __init__(self, child: ChildProcess, founder: Node) -> None:
        self._child = child
        self._founder = founder
        self._paused = False

    @property
    def name(self) -> str:
        """The node's name."""
        return self._child.name

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """False once its process has ended."""
        return self._child.exit_status is None

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would. When this returns it runs no more,
        and answers no further call.
        """
        self._child.kill()

    def pause(self) -> None:
        """Stop the process from running (SIGSTOP) until `resume`."""
        # Noted, because the signal takes its way: the system does not show it at once.
        self._paused = True
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._paused = False
        self._child.send_signal(signal.SIGCONT)

    async def leave(self) -> ExitStatus:
        """Ask the node to drain and leave, and `wait`. Raises `NodeUnreachableError` while it is
        paused, and if it has not left within a minute.
        """
        status = await self._leave()
        await self._see_end()
        return status

    async def _leave(self) -> ExitStatus:
        if self._is_paused:
            await trio.lowlevel.checkpoint()
            raise self._not_left("it is paused, and was not asked: `resume` it first")
        self._child.send_signal(signal.SIGTERM)
        with trio.move_on_after(MOST_LEAVE_SECONDS):
            while True:
                with trio.move_on_after(STOPPED_LOOK_SECONDS):
                    return await self._child.wait()
                if self._is_paused:
                    raise self._not_left("it was paused meanwhile, and leaves after `resume`")
        raise self._not_left(
            f"it was asked {MOST_LEAVE_SECONDS:g} s ago, and has not ended: its event loop may be "
            f"blocked, and `understudy stack {self.name}` shows by what"
        )

    async def _leave_or_end(self) -> None:
        """Ask the node to leave, and wait for its process; kill it if it is paused, and could
        not.
        """
        try:
            await self._leave()
        except NodeUnreachableError:
            self.kill()

    @property
    def _is_paused(self) -> bool:
        return self.running and (self._paused or is_stopped(self.pid))

    def _not_left(self, why: str) -> NodeUnreachableError:
        return NodeUnreachableError(
            f"node {self.name} has not left the cluster: {why}; `kill` ends it as it is",
            node=self.name,
        )

    async def wait(self) -> ExitStatus:
        """Wait until the process has ended and the founding node knows it: no later call is sent to
        a process that is gone. That takes at most a second longer than the end.
        """
        status = await self._child.wait()
        await self._see_end()
        return status

    async def _see_end(self) -> None:
        # After the cluster's block there is no node any more that could know it.
        if not self._founder._lifetime.is_over:
            await internals_of(self._founder).see_end(self.name, self.pid)


class LocalCluster:
    """An open local cluster of real processes: `open_local_cluster(...)`."""

    def __init__(
        self, node: Node, server: ForkServer, store: str | None, on_process_start: str = ""
    ) -> None:
        self._store = store
        self._on_process_start = on_process_start
        self.node = node
        """The founding node, in this process: spawn and look up through it."""
        self._server = server
        self._processes: dict[str, NodeProcess] = {}
        self._next = 1
        self._starting = trio.CapacityLimiter(STARTING_AT_ONCE)

    @property
    def address(self) -> str:
        """`HOST:PORT` of the founding node. This user's commands find the cluster without it if it
        is the only one that is open.
        """
        return self.node.address

    @property
    def processes(self) -> Mapping[str, NodeProcess]:
        """The node processes started so far, by node name; those that have ended included."""
        return dict(self._processes)

    def _repr_html_(self) -> str:
        """For notebooks: the cluster as its founding node knows it. In its trio run."""
        return self.node._repr_html_()

    if not TYPE_CHECKING:
        # To a type checker a name that is not there is a mistake.

        def __getattr__(self, name: str) -> NoReturn:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(Node, name):
                # The clusters of `runtime.blocking` and `runtime.aio` have it themselves.
                raise AttributeError(f"{text}: its node has; write cluster.node.{name}")
            if name in Node._foreign_names:
                raise AttributeError(f"{text}: {Node._foreign_names[name]}")
            # With the object, so that Python suggests the nearest of its names.
            raise AttributeError(text, name=name, obj=self)

    def _next_name(self) -> str:
        """The next of `worker-1`, `worker-2`, ..., which is given out once."""
        name = f"worker-{self._next}"
        self._next += 1
        return name

    async def start_node(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        blocked_limit: float = BLOCKED_LIMIT_SECONDS,
    ) -> NodeProcess:
        """Start one more node and wait until it has joined; `name` defaults to the next of
        `worker-1`, `worker-2`, ...

        - `labels`: texts by name, which placement may ask for.
        - `resources`: amounts by name, such as `{"gpus": 2}`, which actors and functions may take.
        - `blocked_limit`: seconds for which a blocked loop keeps its membership.

        Raises `JoinError`, which says why it could not join, `TypeError` or `ValueError` for
        options that make no sense, and `NotAMemberError` after the cluster's block.
        """
        self.node._lifetime.check()
        # Here, where an error names the option: that of a process would be one of many lines.
        check_blocked_limit(blocked_limit)
        if name is None:
            name = self._next_name()
        else:
            check_node_name(name)
        settings = {
            "name": exact(name),
            "join": self.node.address if self._store is None else None,
            "store": self._store,
            "cluster": self.node.cluster,
            "secret": list(internals_of(self.node).keyring.secrets()),
            "labels": checked_labels({} if labels is None else labels),
            "resources": checked_resources({} if resources is None else resources),
            "blocked_limit": blocked_limit,
            "call_timeout": internals_of(self.node).caller.call_timeout,
            "level": written_level(),
            "log_format": written_format(),
            "tracing": internals_of(self.node).endpoint.spans is not NO_SPANS,
            "on_process_start": self._on_process_start,
        }
        # Processes that start at the same moment share the cores: the more there are, the later
        # each of them comes to renew the lease that it has joined with.
        async with self._starting:
            child = await self._server.start(
                "runtime.cluster_processes:run_node", cbor2.dumps(settings), name
            )
            try:
                await child.ready()
            except ChildDiedError as error:
                why = error.last_lines[-1] if error.last_lines else error.exit_status.describe()
                raise JoinError(f"node {name} did not join: {why}") from error
        process = self._processes[name] = NodeProcess(child, self.node)
        return process

    async def _close(self) -> None:
        """Stop the actors of the founding node, and then let all other nodes leave while it still
        keeps the store; what still runs afterwards is killed with the fork server.

        Shielded from cancellation, and bounded: `Timings.drain` for the actors in all, and
        `LEAVE_SECONDS` for the nodes.
        """
        with trio.CancelScope(shield=True):
            # Before the nodes: a supervisor among these actors would start its children of a node
            # that leaves on another one. Not within the time for the nodes: the stop of an actor
            # shields itself, so that no scope around it would end it.
            await self.node._stop_actors()
            # Also before the nodes: otherwise each of them moves its values to this one, which ends
            # a moment later.
            await self.node._show_draining()
            async with trio.open_nursery() as reporting:
                reporting.start_soon(self._report_late)
                with trio.move_on_after(LEAVE_SECONDS):
                    async with trio.open_nursery() as leaving:
                        for process in self._running():
                            leaving.start_soon(process._leave_or_end)
                reporting.cancel_scope.cancel()
            # Not by the fork server, which would ask them once more and wait as long again: what
            # has not left by now ignores it.
            for process in self._running():
                process.kill()

    def _running(self) -> list[NodeProcess]:
        return [process for process in self._processes.values() if process.running]

    async def _report_late(self) -> None:
        """Log which nodes have not left after `LATE_SECONDS`, and what runs there."""
        await trio.sleep(LATE_SECONDS)
        left = LEAVE_SECONDS - LATE_SECONDS
        async with trio.open_nursery() as asking:
            for process in self._running():

                async def report(name: str) -> None:
                    logger.warning(
                        "node %s has not left the cluster %g s after it was asked; it is killed in "
                        "%g s: %s",
                        name,
                        LATE_SECONDS,
                        left,
                        await self._what_runs(name),
                    )

                asking.start_soon(report, process.name)

    async def _what_runs(self, name: str) -> str:
        """Ask a node what runs there, and say it in words."""
        member = next((one for one in self.node.members() if one.name == name), None)
        if member is None:
            return "it is no member any more, and its process still runs"
        service = inspection_of(internals_of(self.node).endpoint, name, member.incarnation)
        try:
            # Not the open calls: tasks of actors and their `on_stop` hold a node as methods do.
            found = await service.options(timeout=ASKED_SECONDS).stacks()
        except CallError:
            return (
                "it does not answer what runs there: its event loop may be blocked, and then its "
                "own log says by what"
            )
        if member.state != "draining":
            return "code there ignores SIGTERM, or handles it in place of the node"
        runs = named_runs(found["tasks"])
        if not runs:
            return (
                "no method of an actor runs there: it is stopping its actors, which takes long if "
                "there are many, or it waits for the store or for other nodes"
            )
        named = ", ".join(runs[:MOST_NAMED]) + (", ..." if len(runs) > MOST_NAMED else "")
        return f"there {'runs' if len(runs) == 1 else 'run'} {named}"

    def process(self, name: str) -> NodeProcess:
        """The process of the node called `name`. Raises `NodeNotFoundError`."""
        found = self._processes.get(name)
        if found is None:
            raise NodeNotFoundError(
                f"this local cluster has no process for a node {name!r}; it has: "
                f"{', '.join(self._processes) or 'none'}",
                node=name,
            )
        return found


@asynccontextmanager
async def open_cluster_on(
    server: ForkServer,
    nodes: int = 2,
    *,
    cluster: str = "local",
    store: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    call_timeout: float | None = None,
    tracing: bool = False,
    on_process_start: Callable[[], object] | str | None = None,
    labels: Mapping[str, str] | None = None,
    platform: Platform | None = None,
    worker_labels: Mapping[str, Mapping[str, str]] | None = None,
    worker_resources: Mapping[str, Mapping[str, float]] | None = None,
) -> AsyncIterator[LocalCluster]:
    """A local cluster whose processes come from `server`, which outlives it: one warm process for
    many clusters, one after the other, which may still be importing. See `open_local_cluster`;
    `labels` and `platform` are those of the founding node, `worker_labels` and `worker_resources`
    those of the others, by their names.
    """
    environment = SystemEnvironment()
    secret: GivenSecret = environment.token(32)
    if data_dir is not None:
        secret = await trio.to_thread.run_sync(
            secret_beside_store, Path(data_dir), environment.token
        )
    async with open_node(
        "driver",
        listen="127.0.0.1:0",
        cluster=cluster,
        store=store,
        data_dir=data_dir,
        secret=secret,
        labels=labels,
        call_timeout=call_timeout,
        tracing=tracing,
        on_process_start=on_process_start,
        platform=platform,
    ) as node:
        opened = LocalCluster(node, server, store, hook_path(on_process_start))
        # Here and not in each start, so that one error says what the warm process could not import.
        await server.ready()
        try:
            async with trio.open_nursery() as starting:
                for _ in range(nodes):
                    name = opened._next_name()
                    offered = partial(
                        opened.start_node,
                        labels=(worker_labels or {}).get(name),
                        resources=(worker_resources or {}).get(name),
                    )
                    starting.start_soon(offered, name)
        except BaseExceptionGroup as group:
            raise_as_it_is(_why_not_started(group))
        await node.wait_for(nodes + 1)
        with _announced_with_nodes(node, environment):
            try:
                yield opened
            finally:
                # Each part of it is bounded.
                with trio.CancelScope(shield=True):
                    await opened._close()  # noqa: ASYNC102


@contextmanager
def _announced_with_nodes(node: Node, environment: Environment) -> Iterator[None]:
    """Announce the cluster of its founding `node` within the block, and again whenever its nodes or
    its secret have changed.
    """
    keyring, members = internals_of(node).keyring, internals_of(node).members
    # The watcher outlives no block: the node's nursery would otherwise keep it.
    watching = trio.CancelScope()

    def facts() -> Announcement:
        addresses = (address for member in members.all() for address in member.addresses)
        over_tcp = [where for kind, where in map(split_address, addresses) if kind == "tcp"]
        return Announcement(
            *(node.address, node.cluster, keyring.secrets()[0]),
            *(environment.process(), Path(sys.argv[0]).name),
            tuple(one for one in over_tcp if one != node.address),
        )

    with announced(facts(), environment) as announce:

        def renew() -> None:
            # After the block the file is gone: what woke at its end must not write it again.
            if not watching.cancel_called:
                announce(facts())

        async def watch() -> None:
            with watching:
                try:
                    async for _ in node.watch_members():
                        renew()
                except NotAMemberError:
                    # The cluster has given the founding node up, and the block ends by that.
                    pass

        keyring.on_changed.append(renew)
        internals_of(node).nursery.start_soon(watch)
        try:
            yield
        finally:
            watching.cancel()


def _why_not_started(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of one node that did not start, for all of them: what keeps one from it,
    keeps the others too.
    """
    error = unwrap(group)
    if not isinstance(error, ExceptionGroup):
        return error
    count = sum(1 for _ in leaves(error))
    alone = first(error)
    alone.add_note(f"{count} nodes did not start; this is the error of one of them")
    return alone


def run_node(argument: bytes, report: Callable[[bytes], None]) -> None:
    """Run a node process until it ends; started by the fork server."""
    settings = cbor2.loads(argument)
    write_logs(settings["level"], settings["log_format"], times=False)
    call_hook(settings["on_process_start"])
    try:
        trio.run(_serve, settings, report)
    except UnderstudyError as error:
        # One line, and status 1: that the cluster cannot be entered, or gave this node up, is no
        # mistake in the program that a traceback would show.
        flush_stderr()
        sys.exit(str(error))
    finally:
        if settings["tracing"]:
            Tracing().flush()


async def _serve(settings: dict[str, object], report: Callable[[bytes], None]) -> None:
    opening = open_node(
        str(settings["name"]),
        listen="127.0.0.1:0",
        join=settings["join"],  # type: ignore[arg-type]
        store=settings["store"],  # type: ignore[arg-type]
        cluster=str(settings["cluster"]),
        secret=settings["secret"],  # type: ignore[arg-type]
        labels=settings["labels"],  # type: ignore[arg-type]
        resources=settings["resources"],  # type: ignore[arg-type]
        blocked_limit=settings["blocked_limit"],  # type: ignore[arg-type]
        call_timeout=settings["call_timeout"],  # type: ignore[arg-type]
        tracing=bool(settings["tracing"]),
        on_process_start=str(settings["on_process_start"]) or None,
    )
    async with process_of_node(opening) as node, leaving_on_signals(node):
        settle_collector()
        report(node.address.encode())
        await node.asked_to_leave.wait()


@asynccontextmanager
async def leaving_on_signals(node: Node) -> AsyncIterator[None]:
    """Within the block the first SIGINT or SIGTERM asks the node to leave; from the end of the
    block on, a second one ends the process at once.

    Announce that the node is ready within the block: a signal that comes right after the
    announcement must already be handled.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        _keep_from_forks(
            {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        )
        async with trio.open_nursery() as nursery:

            async def watch(*, task_status: trio.TaskStatus[None]) -> None:
                task_status.started()
                async for _ in signals:
                    node.leave()
                    return

            await nursery.start(watch)
            yield
            nursery.cancel_scope.cancel()
    # From here on a signal does what it does by default: the user does not want to wait for the
    # drain. The first process of a container has no default actions.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL if os.getpid() != 1 else _end_at_once)


def _end_at_once(signum: int, frame: FrameType | None) -> None:
    os._exit(128 + signum)


def _keep_from_forks(defaults: Mapping[signal.Signals, _Handler]) -> None:
    """Give signals their `defaults` in forks that code of an actor makes, for as long as this
    process has the handlers that it has now.

    Those ask the node to leave, which a fork is not: SIGTERM would not end it, and
    `multiprocessing`, which ends its processes so, would wait for them for ever.
    """
    handlers = {signum: signal.getsignal(signum) for signum in defaults}
    forking = threading.local()

    def begin() -> None:
        # Python forgets what comes to a fork before this has set its handlers.
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, defaults)

    def end() -> None:
        # None if the fork was begun before the handlers were set.
        if (mask := getattr(forking, "mask", None)) is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forked() -> None:
        inherited = [one for one in defaults if signal.getsignal(one) is handlers[one]]
        for signum in inherited:
            signal.signal(signum, defaults[signum])
        if inherited:
            # The socket that wakes the event loop is the parent's.
            signal.set_wakeup_fd(-1)
        end()

    os.register_at_fork(before=begin, after_in_parent=end, after_in_child=forked)
