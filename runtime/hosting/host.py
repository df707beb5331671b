"""The host: starts, finds and ends the actors of one node.

It knows nothing of links or stores: names are claimed and released through `NameClaims`, calls come in as jobs.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import trio

from actors.actor import Actor
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    CallError,
    LeaseLostError,
    MethodNotFoundError,
    NodeDrainingError,
    NotExecutedError,
    SpawnError,
    StaleEpochError,
    StoreError,
    SupervisorGaveUpError,
    UnderstudyError,
)
from actors.method import Address, MethodDefinition
from actors.node import NodeInterface
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime.environment import Environment
from runtime.hosting.cell import Cell, Job
from runtime.hosting.elsewhere import EndedElsewhereError, why_not_started
from runtime.hosting.home import Home
from runtime.hosting.workers import Workers

STOP_SECONDS = 5.0
"""How long a running method, and then `on_stop`, may take when an actor is stopped."""

EXITS_KEPT = 4096
"""Ends of actors that are remembered for those who ask late."""

logger = logging.getLogger("understudy.actors")


class NameClaims(Protocol):
    """Who owns which name: a program over the store."""

    async def claim(self, name: str, class_path: str, on_behalf_of: str) -> int:
        """Take a name for this node; returns the epoch. Raises `NameTakenError`."""
        ...

    async def release(self, name: str, epoch: int) -> None:
        """Give a name back if this epoch still has it."""
        ...

    async def save(self, name: str, epoch: int, state: object) -> None:
        """See `Actor.save`."""
        ...

    async def saved(self, name: str) -> Any:
        """See `Actor.saved`."""
        ...


class _Hosted:
    """What a hosted actor sees of its host; see `actors.actor.ActorContext`. One for each actor, so it holds nothing of its own."""

    __slots__ = ("_cell", "_host")

    def __init__(self, host: Host, cell: Cell) -> None:
        self._host = host
        self._cell = cell

    @property
    def node(self) -> NodeInterface:
        return self._host.node

    @property
    def name(self) -> str:
        return self._cell.address.name

    @property
    def epoch(self) -> int:
        return self._cell.address.epoch

    @property
    def nursery(self) -> Home:
        return self._host.home(self._cell)

    @property
    def handle(self) -> Any:
        return self._host.make_handle(self._cell.address)

    async def save(self, state: object) -> None:
        if not self._cell.address.registered:
            raise SpawnError(
                f"{self.name} has no name of its own, so nobody could find its state again; spawn it with a name", actor=self.name
            )
        await self._host.claims().save(self.name, self.epoch, state)

    async def saved(self) -> Any:
        return await self._host.claims().saved(self.name) if self._cell.address.registered else None

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await self._host.in_thread(function)

    def supervise(self, supervisor: Any) -> Any:
        return self._host.make_supervision(supervisor, self._cell.address)


def plain_instance(cls: type[Actor], options: SpawnOptions) -> Actor:
    """The actor itself, not constructed yet."""
    return cls.__new__(cls)


class Host:
    """The actors of one node. `make_handle` turns an address into a handle whose calls this node makes; `claims` gives the names.

    `make_instance(cls, options)` gives what is constructed, started and called: the actor itself, or what stands in for it.
    """

    def __init__(
        self,
        node: NodeInterface,
        nursery: trio.Nursery,
        environment: Environment,
        claims: Callable[[], NameClaims],
        make_handle: Callable[[Address], Any],
        make_supervision: Callable[[Any, Any], Any],
        make_instance: Callable[[type[Actor], SpawnOptions], Actor] = plain_instance,
    ) -> None:
        self.node = node
        self._nursery = nursery
        self._environment = environment
        self.claims = claims
        self.make_handle = make_handle
        self.make_supervision = make_supervision
        self._make_instance = make_instance
        self.workers = Workers(nursery, environment, self._crash, self.pause_names)
        self.in_thread = environment.in_thread
        self.cells: dict[str, Cell] = {}
        self.draining = False
        self._homes: dict[Cell, Home] = {}
        self._supervisors: dict[str, str] = {}
        self._exits: OrderedDict[tuple[str, int], ExitReason] = OrderedDict()
        self._watchers: dict[tuple[str, int], trio.Event] = {}
        self._next_number = 0
        self._names_paused = False

    def home(self, cell: Cell) -> Home:
        """Where the actor's own tasks live; made when it is first asked for."""
        home = self._homes.get(cell)
        if home is None:
            home = Home(self._nursery, cell.address.name, lambda error: self._crash(cell, error))
            if cell.ended is None:
                self._homes[cell] = home
            else:
                home.cancel()
        return home

    def add_system(self, name: str, instance: Actor) -> None:
        """Host one of the runtime's own services under a fixed name; it takes no part in names, draining or stopping."""
        address = Address(name, self.node.name, self.node.incarnation)
        self.cells[name] = Cell(address, instance, 100_000, system=True)

    def find(self, name: str, epoch: int, method: str, *, stream: bool = False) -> tuple[Cell, MethodDefinition] | CallError:
        """The cell and method that a call is for, or why it is refused. `stream`: it is asked for items, not for one value."""
        cell = self.cells.get(name)
        if cell is None:
            return ActorNotFoundError(f"there is no actor {name!r} on node {self.node.name}")
        if epoch and cell.address.epoch != epoch:
            return StaleEpochError(f"{name} on {self.node.name} has epoch {cell.address.epoch} now, not {epoch}; look it up again")
        definition = cell.methods.get(method)
        if definition is None:
            offered = ", ".join(sorted(cell.methods)) or "none"
            return MethodNotFoundError(f"{cell.address.class_path or name} has no @method {method!r}; it offers: {offered}")
        if definition.stream is not stream:
            text = "is a stream, and was called for one value" if definition.stream else "returns one value, and was called as a stream"
            return NotExecutedError(f"{name}.{method} {text}; use a handle that knows the class as node {self.node.name} has it")
        if self.draining and not cell.system:
            return NodeDrainingError(f"node {self.node.name} is leaving the cluster and takes no new calls for {name}")
        return cell, definition

    def deliver(self, job: Job) -> CallError | None:
        """Let a job run when its turn comes; an error if it is refused."""
        cell = job.cell
        if job.definition.concurrent and cell.started and not cell.paused and cell.ended is None:
            self.workers.submit(job)
            return None
        refusal = cell.offer(job, self._environment.now)
        if refusal is None and not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            self.workers.submit(cell)
        return refusal

    async def start(
        self,
        cls: type[Actor],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
        class_path: str,
        on_behalf_of: str = "",
    ) -> Address:
        """Start an actor here; returns its address once `on_start` has returned.

        Raises `NameTakenError`, `ActorStartError` or `NodeDrainingError`.
        """
        if self.draining:
            raise NodeDrainingError(f"node {self.node.name} is leaving the cluster and starts no actors", node=self.node.name)
        if options.name is None:
            self._next_number += 1
            name = f"{cls.__name__}-{self._next_number}@{self.node.name}.{self.node.incarnation}"
            epoch = self.node.incarnation
        else:
            name = options.name
            epoch = await self.claims().claim(name, class_path, on_behalf_of)
        address = Address(name, self.node.name, self.node.incarnation, epoch, class_path, options.name is not None)
        try:
            if on_behalf_of:
                self._supervisors[name] = on_behalf_of
            await self.begin(cls, args, kwargs, options, address)
        except Exception as error:
            await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
            what, trace = why_not_started(error)
            text = f"{name} did not start on {self.node.name}: {what}"
            raise ActorStartError(text, actor=name, node=self.node.name, remote_traceback=trace) from error
        except BaseException:
            await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
            raise
        return address

    async def begin(
        self, cls: type[Actor], args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions, address: Address
    ) -> None:
        """Start an actor that has its address already. Raises what its constructor or `on_start` raises."""
        instance = self._make_instance(cls, options)
        cell = Cell(address, instance, options.mailbox_limit)
        instance._context = _Hosted(self, cell)
        self.cells[address.name] = cell
        try:
            instance.__init__(*args, **kwargs)  # type: ignore[misc]
            await instance.on_start()
        except BaseException:
            self._end(cell, ExitReason(kind="start failed", text=f"{address.name} did not start"))
            raise
        if cell.ended is not None:
            self._end(cell, cell.ended)
            raise RuntimeError(f"{address.name} ended while it was starting: {cell.ended}")
        cell.started = True
        if cell.mailbox:
            cell.busy = True
            self.workers.submit(cell)

    async def stop(self, name: str, epoch: int, reason: ExitReason) -> None:
        """Let the running method finish, call `on_stop`, end the actor and give its name back. Ending one that has ended is no error."""
        cell = self.cells.get(name)
        if cell is None or cell.system or (epoch and cell.address.epoch != epoch):
            return
        if cell.ended is not None:
            await self.watch(name, cell.address.epoch)
            return
        jobs = cell.end(reason)
        for job in jobs:
            job.sink.refused(job, cell.gone())
        with trio.CancelScope(shield=True):
            with trio.move_on_after(STOP_SECONDS):
                await cell.wait_quiet()
            for job in tuple(cell.running):
                if job.runner is not None:
                    job.runner.cancel()
            with trio.move_on_after(STOP_SECONDS):
                try:
                    await cell.instance.on_stop(reason)
                except Exception:
                    logger.exception("%s: on_stop raised", name)
            with trio.move_on_after(STOP_SECONDS):
                if cell in self._homes:
                    await self._homes[cell].close()
            await self._give_back(cell.address)
        self._end(cell, reason)

    async def watch(self, name: str, epoch: int) -> ExitReason:
        """Wait until this epoch of the actor has ended; returns at once if it has already, or never was here."""
        key = (name, epoch)
        if key in self._exits:
            await trio.lowlevel.checkpoint()
            return self._exits[key]
        cell = self.cells.get(name)
        if cell is None or (epoch and cell.address.epoch != epoch):
            await trio.lowlevel.checkpoint()
            return ExitReason(kind="stopped", text=f"no such actor: {name} is not on node {self.node.name}")
        key = (name, cell.address.epoch)
        await self._watchers.setdefault(key, trio.Event()).wait()
        return self._exits[key]

    async def drain(self, seconds: float) -> None:
        """Take no new work, and move the actors whose supervisors are elsewhere: these start them again on other nodes as soon as they end.

        Then let accepted calls of the others finish for at most `seconds`, and stop them, the latest first.
        """
        self.draining = True
        moving = [self.cells[name].address for name, supervisor in self._supervisors.items() if supervisor not in self.cells]
        async with trio.open_nursery() as stops:
            for address in moving:
                stops.start_soon(self.stop, address.name, address.epoch, ExitReason("node left", f"node {self.node.name} leaves"))
        with trio.move_on_after(seconds):
            for cell in [cell for cell in self.cells.values() if not cell.system]:
                await cell.wait_quiet()
        await self.stop_all(ExitReason(kind="shutdown", text=f"node {self.node.name} leaves"))

    def pause_names(self) -> None:
        """Somebody else may get the names soon. Their actors are served no more, for now: mail waits and outcomes are held back."""
        if not self._names_paused:
            logger.warning("node %s cannot renew its lease: its named actors pause until it can", self.node.name)
            self._names_paused = True
        for cell in self.cells.values():
            if cell.leased:
                cell.paused = True

    def hold_names_until(self, doubtful_at: float) -> None:
        """The names are this node's until then, on its own clock. Serve their actors, and tell what was held back."""
        self.workers.names_until = doubtful_at
        if not self._names_paused:
            return
        logger.warning("node %s has its lease still: its named actors go on", self.node.name)
        self._names_paused = False
        for cell in self.cells.values():
            if cell.paused and cell.resume():
                cell.busy = True
                self.workers.submit(cell)

    def abandon_names(self, error: UnderstudyError) -> None:
        """End all actors that have a name of their own, at once: somebody else may own it now."""
        self.draining = True
        for cell in list(self.cells.values()):
            if cell.leased:
                self._crash(cell, error)

    async def stop_all(self, reason: ExitReason) -> None:
        """Stop all actors, the latest first."""
        for cell in [cell for cell in reversed(list(self.cells.values())) if not cell.system]:
            await self.stop(cell.address.name, cell.address.epoch, reason)

    def _crash(self, cell: Cell, error: BaseException) -> None:
        """One of the actor's own tasks raised, or a method asked to exit: the actor ends now."""
        if cell.ended is not None:
            logger.error("a task of %s raised while it was ending: %s", cell.address.name, error, exc_info=error)
            return
        reason = _why(error)
        # What the runtime itself says needs no traceback through the runtime.
        logger.error("%s ended: %s", cell.address.name, reason, exc_info=error if reason.kind == "raised" else None)
        waiting = cell.end(reason)
        for job in waiting:
            job.sink.refused(job, cell.gone())
        for job in tuple(cell.running):
            if job.runner is not None:
                job.runner.cancel()
        if cell in self._homes:
            self._homes[cell].cancel()
        if cell.started:
            self._nursery.start_soon(self._finish_crash, cell, reason)

    async def _finish_crash(self, cell: Cell, reason: ExitReason) -> None:
        await self._give_back(cell.address)
        self._end(cell, reason)

    async def _give_back(self, address: Address) -> None:
        with trio.move_on_after(STOP_SECONDS):
            try:
                await self._forget(address)
            except StoreError as error:
                logger.warning("%s: the name could not be given back; it falls with the node's lease: %s", address.name, error)

    async def _forget_in_time(self, address: Address) -> None:
        with trio.CancelScope(shield=True):
            await self._give_back(address)

    async def _forget(self, address: Address) -> None:
        if address.registered:
            await self.claims().release(address.name, address.epoch)

    def _end(self, cell: Cell, reason: ExitReason) -> None:
        if cell.ended is None:
            for job in cell.end(reason):
                job.sink.refused(job, cell.gone())
        if self.cells.get(cell.address.name) is cell:
            del self.cells[cell.address.name]
            self._supervisors.pop(cell.address.name, None)
        home = self._homes.pop(cell, None)
        if home is not None:
            home.cancel()
        key = (cell.address.name, cell.address.epoch)
        self._exits[key] = reason
        while len(self._exits) > EXITS_KEPT:
            self._exits.popitem(last=False)
        watcher = self._watchers.pop(key, None)
        if watcher is not None:
            watcher.set()


def _why(error: BaseException) -> ExitReason:
    """How the end of an actor whose task raised `error` is told of. A supervisor that gives up ends with "shutdown", as in OTP."""
    if isinstance(error, SupervisorGaveUpError):
        return ExitReason(kind="shutdown", text=str(error))
    if isinstance(error, LeaseLostError):
        return ExitReason(kind="killed", text=str(error))
    if isinstance(error, EndedElsewhereError):
        return error.reason
    return ExitReason(kind="raised", text=f"{type(error).__name__}: {error}", traceback="".join(traceback.format_exception(error)))
