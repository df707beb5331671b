"""The host: starts, finds and ends the actors of one node.

It knows nothing of links or stores: names are claimed and released through `NameClaims`, calls come in as jobs.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import trio

from actors.actor import Actor, Ignore
from actors.errors import (
    ActorNotFoundError,
    ActorNotNeededError,
    ActorStartError,
    CallError,
    LeaseLostError,
    MethodNotFoundError,
    NodeDrainingError,
    NotExecutedError,
    StaleEpochError,
    StoreError,
    SupervisorGaveUpError,
    UnderstudyError,
)
from actors.method import Address, MethodDefinition
from actors.node import NodeInterface
from actors.options import SpawnOptions
from actors.supervision import ExitReason, Shutdown
from runtime.environment import Environment
from runtime.hosting.cell import Cell, Job
from runtime.hosting.elsewhere import EndedElsewhereError, why_not_started
from runtime.hosting.extensions import Extensions
from runtime.hosting.home import Home
from runtime.hosting.hosted import Hosted, NameClaims
from runtime.hosting.once import Once
from runtime.hosting.stopping import STOP_SECONDS, bring_to_an_end
from runtime.hosting.workers import Workers

EXITS_KEPT = 4096
"""Ends of actors that are remembered for those who ask late."""

logger = logging.getLogger("understudy.actors")


class EndedInStartError(RuntimeError):
    """An actor was stopped, or one of its own tasks raised, before `on_start` had returned."""


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
        make_supervision: Callable[[Any, Address], Any],
        make_instance: Callable[[type[Actor], SpawnOptions], Actor] = plain_instance,
    ) -> None:
        self.node = node
        self._nursery = nursery
        self._environment = environment
        self.claims = claims
        self.make_handle = make_handle
        self.make_supervision = make_supervision
        self._make_instance = make_instance
        self.extensions = Extensions()
        self.workers = Workers(nursery, environment, self.crash, self.pause_names, lambda job, method: self.once.run(job, method))
        self.once = Once(claims, self.workers, environment)
        self.in_thread = environment.in_thread
        self.now = environment.now
        self.cells: dict[str, Cell] = {}
        self.draining = False
        self._homes: dict[Cell, Home] = {}
        self.supervisors: dict[str, str] = {}
        """For whom the actors here were started that have supervisors, by name."""
        self._exits: OrderedDict[tuple[str, int], ExitReason] = OrderedDict()
        self._watchers: dict[tuple[str, int], trio.Event] = {}
        self._next_number = 0
        self._names_paused = False

    def home(self, cell: Cell) -> Home:
        """Where the actor's own tasks live; made when it is first asked for."""
        home = self._homes.get(cell)
        if home is None:
            home = Home(self._nursery, cell.address.name, lambda error: self.crash(cell, error))
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
            epoch = await self.claims().claim(name, class_path, on_behalf_of, options.resources)
        address = Address(name, self.node.name, self.node.incarnation, epoch, class_path, options.name is not None)
        try:
            if on_behalf_of:
                self.supervisors[name] = on_behalf_of
            await self.begin(cls, args, kwargs, options, address)
        except Ignore as ignore:
            await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
            raise ActorNotNeededError(f"{name} is not needed on {self.node.name}: {ignore}", actor=name, node=self.node.name) from None
        except Exception as error:
            await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
            if isinstance(error, EndedInStartError) and self.draining:
                raise NodeDrainingError(f"node {self.node.name} left while {name} was starting there", node=self.node.name) from None
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
        instance._context = Hosted(self, cell)
        self.cells[address.name] = cell
        try:
            instance.__init__(*args, **kwargs)  # type: ignore[misc]
            await instance.on_start()
        except BaseException:
            self._end(cell, ExitReason(kind="start failed", text=f"{address.name} did not start"))
            raise
        if cell.ended is not None:
            self._end(cell, cell.ended)
            raise EndedInStartError(f"{address.name} ended while it was starting: {cell.ended}")
        cell.started = True
        if options.idle_timeout is not None:
            self.home(cell).start_soon(self._stop_when_idle, cell, options.idle_timeout)
        if cell.mailbox:
            cell.busy = True
            self.workers.submit(cell)

    async def stop(self, name: str, epoch: int, reason: ExitReason, shutdown: Shutdown = STOP_SECONDS) -> ExitReason | None:
        """Let the running method finish, call `on_stop`, end the actor and give its name back; returns how it has ended.

        `shutdown`: seconds for that, None for no limit; methods that run on are cancelled then, and what ignores that is left behind.
        "kill": cancelled at once, and without `on_stop`. Ending one that has ended is no error.
        """
        cell = self.cells.get(name)
        if cell is None or cell.system or (epoch and cell.address.epoch != epoch):
            return self._exits.get((name, epoch))
        if cell.ended is None and shutdown == "kill":
            self.end_at_once(cell, ExitReason("killed", str(reason)))
        if cell.ended is not None:
            return await self.watch(name, cell.address.epoch)
        jobs = cell.end(reason)
        for job in jobs:
            job.sink.refused(job, cell.gone())
        self.extensions.ending(cell)
        with trio.CancelScope(shield=True):
            seconds = None if shutdown == "kill" else shutdown
            await bring_to_an_end(cell, self._homes.get(cell), reason, seconds, self._nursery)
            await self._give_back(cell.address)
        self._end(cell, reason)
        return reason

    async def _stop_when_idle(self, cell: Cell, seconds: float) -> None:
        served = -1
        while served != cell.served or cell.running or cell.mailbox:
            served = cell.served
            await trio.sleep(seconds)
        # Not from here: this task is one of the actor's own, which stopping waits for.
        reason = ExitReason("idle", f"no call for {seconds:g} s")
        self._nursery.start_soon(self.stop, cell.address.name, cell.address.epoch, reason)

    async def watch(self, name: str, epoch: int) -> ExitReason:
        """Wait until this epoch of the actor has ended; returns at once if it has already, or never was here."""
        key = (name, epoch)
        if key in self._exits:
            await trio.lowlevel.checkpoint()
            return self._exits[key]
        cell = self.cells.get(name)
        if cell is None or (epoch and cell.address.epoch != epoch):
            await trio.lowlevel.checkpoint()
            return ExitReason(kind="no such actor", text=f"{name} is not on node {self.node.name}")
        key = (name, cell.address.epoch)
        await self._watchers.setdefault(key, trio.Event()).wait()
        return self._exits[key]

    def remembered(self, name: str, epoch: int) -> ExitReason | None:
        """How this epoch of the actor has ended, if that was not long ago."""
        return self._exits.get((name, epoch))

    async def drain(self, seconds: float) -> None:
        """Take no new work, and move the actors whose supervisors are elsewhere: these start them again on other nodes as soon as they end.

        Supervisors among them leave their children to their successors. Then let accepted calls of the others finish for at most `seconds`,
        and stop them, the latest first.
        """
        self.draining = True
        left = ExitReason("node left", f"node {self.node.name} leaves")
        for moving in self._moving():
            async with trio.open_nursery() as stops:
                for address in moving:
                    stops.start_soon(self.stop, address.name, address.epoch, left)
        with trio.move_on_after(seconds):
            for cell in [cell for cell in self.cells.values() if not cell.system]:
                await cell.wait_quiet()
        await self.stop_all(ExitReason(kind="shutdown", text=f"node {self.node.name} leaves"))

    def _moving(self) -> Iterator[list[Address]]:
        """The actors whose supervisors are elsewhere, then those of the supervisors among them, and so on: whoever would restart them here
        has gone first.
        """
        gone = set(self.supervisors.values()) - set(self.cells)
        while gone:
            names = [name for name, supervisor in self.supervisors.items() if supervisor in gone and name in self.cells]
            yield [self.cells[name].address for name in names]
            gone = set(names)

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
                self.crash(cell, error)

    async def stop_all(self, reason: ExitReason) -> None:
        """Stop all actors, the latest first."""
        for cell in [cell for cell in reversed(list(self.cells.values())) if not cell.system]:
            await self.stop(cell.address.name, cell.address.epoch, reason)

    def crash(self, cell: Cell, error: BaseException) -> None:
        """One of the actor's own tasks raised, or a method asked to exit: the actor ends now."""
        if cell.ended is not None:
            logger.error("a task of %s raised while it was ending: %s", cell.address.name, error, exc_info=error)
            return
        reason = _why(error)
        # What the runtime itself says needs no traceback through the runtime.
        logger.error("%s ended: %s", cell.address.name, reason, exc_info=error if reason.kind == "raised" else None)
        self.end_at_once(cell, reason)

    def end_at_once(self, cell: Cell, reason: ExitReason) -> None:
        """End an actor without `on_stop`; what runs of it is cancelled."""
        waiting = cell.end(reason)
        for job in waiting:
            job.sink.refused(job, cell.gone())
        for job in tuple(cell.running):
            if job.runner is not None:
                job.runner.cancel()
        if cell in self._homes:
            self._homes[cell].cancel()
        self.extensions.ending(cell)
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
            self.supervisors.pop(cell.address.name, None)
        self.once.forget(cell)
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
        self.extensions.ending(cell)
        self.extensions.ended(cell.address, reason)


def _why(error: BaseException) -> ExitReason:
    """How the end of an actor whose task raised `error` is told of. A supervisor that gives up ends with "shutdown", as in OTP."""
    if isinstance(error, SupervisorGaveUpError):
        return ExitReason(kind="shutdown", text=str(error))
    if isinstance(error, LeaseLostError):
        return ExitReason(kind="killed", text=str(error))
    if isinstance(error, EndedElsewhereError):
        return error.reason
    return ExitReason(kind="raised", text=f"{type(error).__name__}: {error}", traceback="".join(traceback.format_exception(error)))
