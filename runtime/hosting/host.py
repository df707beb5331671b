"""The host: starts, finds and ends the actors of one node.

It knows nothing of links or stores: names are claimed and released through `NameClaims`, calls come in as jobs.
"""

from __future__ import annotations

import difflib
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import trio

from actors.actor import Actor, Ignore
from actors.errors import (
    ActorNotFoundError,
    ActorNotNeededError,
    ActorNotPlacedError,
    ActorStartError,
    CallCycleError,
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
from actors.options import DEFAULT_MAILBOX_LIMIT, SpawnOptions
from actors.supervision import ExitReason, Shutdown
from runtime.environment import Environment
from runtime.hosting.cell import Cell, Job
from runtime.hosting.chains import Chain
from runtime.hosting.elsewhere import EndedElsewhereError, StartFailedElsewhereError, why_not_started, with_note
from runtime.hosting.extensions import Extensions
from runtime.hosting.home import Home
from runtime.hosting.hosted import Hosted, NameClaims
from runtime.hosting.once import Once
from runtime.hosting.stopping import STOP_SECONDS, bring_to_an_end
from runtime.hosting.threads import ACTOR_THREADS, NODE_THREADS, Threads
from runtime.hosting.turns import Turns, start_mark
from runtime.hosting.workers import Workers
from runtime.user_errors import is_cancellation, is_interrupt, module_name, summary_of, text_of, traceback_of

EXITS_KEPT = 4096
"""Ends of actors that are remembered for those who ask late."""

START_FAILURES_KEPT = 1024
"""Latest starts that failed whose errors are remembered for those who wait for the same actors."""

STARTING: ContextVar[Cell] = ContextVar("STARTING")
"""The actor whose constructor or `on_start` the running task is in."""

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
        threads: int = NODE_THREADS,
    ) -> None:
        self.node = node
        self._nursery = nursery
        self._environment = environment
        self.claims = claims
        self.make_handle = make_handle
        self.make_supervision = make_supervision
        self._make_instance = make_instance
        self.extensions = Extensions()
        self.threads = Threads(environment, threads)
        self.workers = Workers(
            nursery, environment, self.crash, self.pause_names, lambda job, method: self.once.run(job, method), self.threads
        )
        self.turns = Turns(self.workers.running, environment)
        self.once = Once(claims, self.workers, environment)
        self.now = environment.now
        self.in_thread = environment.in_thread
        self.cells: dict[str, Cell] = {}
        self.draining = False
        self._homes: dict[Cell, Home] = {}
        self.supervisors: dict[str, str] = {}
        """For whom the actors here were started that have supervisors, by name."""
        self._exits: OrderedDict[tuple[str, int], ExitReason] = OrderedDict()
        self._watchers: dict[tuple[str, int], trio.Event] = {}
        self._starts: dict[str, list[trio.Event]] = {}
        """What is being started here, by name, from before its name is claimed until it has started or failed."""
        self._start_failures: OrderedDict[tuple[str, int], Callable[[], ActorStartError]] = OrderedDict()
        self._next_number = 0
        self._names_paused = False
        self.claiming: dict[str, list[Callable[[], None]]] = {}
        """Names that this node is claiming for actors it is about to start, with the calls that have come for them. Others may see in the
        store that it has the name before it hears of that itself; what they call then must not be refused, while later calls are not.
        """

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
            near = difflib.get_close_matches(method, cell.methods, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            offered = ", ".join(sorted(cell.methods)) or "none"
            return MethodNotFoundError(f"{cell.address.class_path or name} has no @method {method!r}; it offers: {offered}{hint}")
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
        if job.chain is not None:
            if not cell.started and start_mark(cell.address) in job.chain:
                return self._called_in_start(job.chain, cell, job.definition.name)
            if not job.definition.concurrent and cell.waits_for(job):
                return self._let_in(job)
        refusal = cell.offer(job, self._environment.now)
        if refusal is None and not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            self.workers.submit(cell)
        return refusal

    def _let_in(self, job: Job) -> CallError | None:
        """Let a call run beside the turn that waits for it, if its method allows that; else the error that says who waits for whom."""
        cell, turn = job.cell, job.cell.turn
        assert turn is not None
        assert job.chain is not None
        name, running = cell.address.name, turn.definition.name
        if turn.definition.reentrant and not cell.paused and cell.ended is None:
            self.workers.submit(job)
            return None
        return CallCycleError(
            f"call cycle: {job.chain.text(name, job.definition.name)}. {name}.{running} waits for this call, and the call for it. "
            f"Mark {running} with @method(reentrant=True) to let calls of its own chain in while it waits, or {job.definition.name} as "
            "concurrent, or send one of the calls one way"
        )

    def _called_in_start(self, chain: Chain, cell: Cell, method: str = "") -> CallCycleError:
        """Who waits for whom, where the start of an actor waits for a call of this method of it; or for its own end, without a method."""
        name = cell.address.name
        if method:
            what = f"{chain.text(name, method)}. {name} takes no call before its on_start has returned, and that waits for this call"
        else:
            what = f"{chain.text(name, 'on_start')}. The start of {name} waits for a call that waits for the start"
        return CallCycleError(
            f"call cycle: {what}. Let on_start leave it to a task, self.nursery.start_soon(...), which goes on once {name} has started; or "
            "send one of the calls one way",
            actor=name,
            method=method or None,
            node=self.node.name,
            epoch=cell.address.epoch,
        )

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
            address = Address(name, self.node.name, self.node.incarnation, self.node.incarnation, class_path, False)
            return await self._start_at(address, cls, args, kwargs, options, on_behalf_of)
        over = trio.Event()
        # Before others can find the name: they may ask at once whether its actor has started.
        self._starts.setdefault(options.name, []).append(over)
        try:
            epoch = await self._claim(options.name, class_path, on_behalf_of, options)
            address = Address(options.name, self.node.name, self.node.incarnation, epoch, class_path, True)
            return await self._start_at(address, cls, args, kwargs, options, on_behalf_of)
        finally:
            over.set()
            self._starts[options.name].remove(over)
            if not self._starts[options.name]:
                del self._starts[options.name]

    async def wait_started(self, name: str, epoch: int) -> bool:
        """Wait while this epoch of an actor is being started here; True if it has started, False if it is not here.

        Raises the ActorStartError that its start has ended with, an ActorNotNeededError for example; CallCycleError if the start waits for
        this.
        """
        chain = self.turns.chain(trio.lowlevel.current_task())
        while True:
            failure = self._start_failures.get((name, epoch))
            if failure is not None:
                raise with_note(failure())
            cell = self.cells.get(name)
            if cell is not None and cell.started and cell.address.epoch == epoch:
                await trio.lowlevel.checkpoint()
                return True
            if cell is not None and chain is not None and not cell.started and start_mark(cell.address) in chain:
                raise self._called_in_start(chain, cell)
            under_way = self._starts.get(name)
            if not under_way:
                await trio.lowlevel.checkpoint()
                return False
            # Others than the first try to claim the name in vain, if there are others.
            await under_way[0].wait()

    def is_within_start(self) -> bool:
        """True in the constructor or `on_start` of an actor: who waits there for another actor's start may be waited for by that."""
        within = self.turns.within_start(trio.lowlevel.current_task())
        if within is not None:
            # A worker that was started from within a start has that in its context for ever, and runs the methods of others.
            return within
        cell = STARTING.get(None)
        return cell is not None and not cell.started and cell.ended is None

    async def _start_at(
        self,
        address: Address,
        cls: type[Actor],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
        on_behalf_of: str,
    ) -> Address:
        name = address.name
        try:
            if on_behalf_of:
                self.supervisors[name] = on_behalf_of
            await self.begin(cls, args, kwargs, options, address)
        except BaseException as error:
            cancelled = is_cancellation(error)
            if cancelled or is_interrupt(error):
                await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
                raise
            failure = self._not_started(name, error, module_name(cls))
            if issubclass(type(error), EndedInStartError) and self.draining:
                node = self.node.name
                await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
                raise NodeDrainingError(f"node {node} left while {name} was starting there", node=node) from None  # noqa: ASYNC104
            self._failed_to_start(address, failure)
            await self._forget_in_time(address)  # noqa: ASYNC102, ASYNC120  shielded and bounded in there
            if type(error) is StartFailedElsewhereError:
                raise with_note(failure()) from None  # noqa: ASYNC104  as before
            raise failure() from error  # noqa: ASYNC104  it is no cancellation
        return address

    def _not_started(self, name: str, error: BaseException, module: str) -> Callable[[], ActorStartError]:
        """Makes the error to tell of a start that has failed; `module`: that of the actor's class."""
        node = self.node.name
        if issubclass(type(error), Ignore):
            return partial(ActorNotNeededError, f"{name} is not needed on {node}: {text_of(error)}", actor=name, node=node)
        what, trace = why_not_started(error, module)
        cls = ActorNotPlacedError if issubclass(type(error), ActorNotPlacedError) else ActorStartError
        return partial(cls, f"{name} did not start on {node}: {what}", actor=name, node=node, remote_traceback=trace)

    def _failed_to_start(self, address: Address, failure: Callable[[], ActorStartError]) -> None:
        """Others may wait for the same start. Noted before the name is given back: who finds it free begins a start of their own."""
        if address.registered:
            self._start_failures[address.name, address.epoch] = failure
            while len(self._start_failures) > START_FAILURES_KEPT:
                self._start_failures.popitem(last=False)

    async def _claim(self, name: str, class_path: str, on_behalf_of: str, options: SpawnOptions) -> int:
        """Take the name; calls that come meanwhile are looked at when the actor is there to receive them, or is known not to be."""
        waiting = self.claiming.setdefault(name, [])
        try:
            return await self.claims().claim(name, class_path, on_behalf_of, options.resources)
        finally:
            # Of two claims for one name one fails, and that may be the one which ends last.
            if self.claiming.get(name) is waiting:
                del self.claiming[name]
            # Not before the cell is there: `start` goes on to make it in the same step.
            self._nursery.start_soon(self._look_at, waiting)

    async def _look_at(self, waiting: list[Callable[[], None]]) -> None:
        for call in waiting:
            try:
                call()
            except Exception:
                # It is over for its caller, and for nobody else.
                logger.exception("a call that waited for the start of its actor on %s could not be begun", self.node.name)

    def is_about_to_start(self, name: str) -> bool:
        """True if an actor of this name may be here in a moment, and there is room for a call that waits for that; see `claiming`."""
        return name in self.claiming and name not in self.cells and len(self.claiming[name]) < DEFAULT_MAILBOX_LIMIT

    async def begin(
        self,
        cls: type[Actor],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
        address: Address,
        before: Chain | None = None,
    ) -> None:
        """Start an actor that has its address already. `before`: who waits for that, where it is known elsewhere. Raises what its
        constructor or `on_start` raises.
        """
        instance = self._make_instance(cls, options)
        cell = Cell(address, instance, options.mailbox_limit)
        if any(definition.in_thread and definition.concurrent for definition in cell.methods.values()):
            cell.threads = trio.CapacityLimiter(options.thread_limit or ACTOR_THREADS)
        instance._context = context = Hosted(self, cell)
        self.cells[address.name] = cell
        within = STARTING.set(cell)
        try:
            with self.turns.start(address, before) as turn:
                context.start_turn = turn
                await self._construct(cls, instance, args, kwargs)
                await self.threads.hook(instance.on_start)
                context.start_turn = None
        except BaseException:
            self._end(cell, ExitReason(kind="start failed", text=f"{address.name} did not start"))
            raise
        finally:
            STARTING.reset(within)
        if cell.ended is not None:
            self._end(cell, cell.ended)
            raise EndedInStartError(f"{address.name} ended while it was starting: {cell.ended}")
        cell.started = True
        if options.idle_timeout is not None:
            self.home(cell).start_soon(self._stop_when_idle, cell, options.idle_timeout)
        if cell.mailbox:
            cell.busy = True
            self.workers.submit(cell)

    async def _construct(self, cls: type[Actor], instance: Actor, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Call the constructor, in a thread: it may compute, read and wait for what it likes, and the node goes on."""
        construct = functools.partial(instance.__init__, *args, **kwargs)  # type: ignore[misc]
        if not isinstance(instance, cls) or type(instance).__init__ is object.__init__:
            # The runtime's own that stands in for the actor, or nothing of the user's.
            construct()
        else:
            await self.threads.construct(construct)

    async def stop(self, name: str, epoch: int, reason: ExitReason, shutdown: Shutdown = STOP_SECONDS) -> ExitReason | None:
        """Let the running method finish, call `on_stop`, end the actor and give its name back; returns how it has ended.

        `shutdown`: seconds for that, None for no limit; methods that run on are cancelled then, and what ignores that is left behind.
        "kill": cancelled at once, and without `on_stop`. Ending one that has ended is no error. One that did not stop in its time has ended
        as "killed", unless the reason was no normal one: a node that leaves does not wait for ever, and says nothing about its actors.
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
            in_time = await bring_to_an_end(cell, self._homes.get(cell), reason, seconds, self._nursery, self.threads)
            if not in_time and reason.is_normal:
                reason = ExitReason("killed", f"{reason}; it did not stop within {shutdown:g} s")
            await self._give_back(cell.address)
        self._end(cell, reason)
        return reason

    async def _stop_when_idle(self, cell: Cell, seconds: float) -> None:
        served = -1
        while served != cell.served:
            # However long its calls take, the idle time begins when the last of them has ended.
            await cell.wait_quiet()
            served = cell.served
            await trio.sleep(seconds)
        # Not from here: this task is one of the actor's own, which stopping waits for.
        self._nursery.start_soon(self._end_of_idleness, cell, served, seconds)

    async def _end_of_idleness(self, cell: Cell, served: int, seconds: float) -> None:
        # A call may have come since it was found idle, or wait for a worker. From here to the end of its mailbox nothing else runs.
        if cell.ended is None and (cell.served != served or cell.is_in_use or self.workers.is_queued(cell)):
            self.home(cell).start_soon(self._stop_when_idle, cell, seconds)
            return
        await self.stop(cell.address.name, cell.address.epoch, ExitReason("idle", f"no call for {seconds:g} s"))

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

    def close(self) -> None:
        """The node has left: what is still here, because it could not be stopped in time, is not served any more."""
        reason = ExitReason("shutdown", f"node {self.node.name} has left")
        for cell in self.cells.values():
            for job in (*cell.running, *cell.end(reason)):
                job.sink.refused(job, cell.died() if job.begun else cell.gone())
        self.cells.clear()

    async def stop_all(self, reason: ExitReason) -> None:
        """Stop all actors, the latest first."""
        for cell in [cell for cell in reversed(list(self.cells.values())) if not cell.system]:
            await self.stop(cell.address.name, cell.address.epoch, reason)

    def crash(self, cell: Cell, error: BaseException) -> None:
        """One of the actor's own tasks raised, or a method asked to exit: the actor ends now."""
        if cell.ended is not None:
            logger.error("a task of %s raised while it was ending\n%s", cell.address.name, traceback_of(error))
            return
        reason = _why(error)
        # What the runtime itself says needs no traceback through the runtime, and an end that was meant is no error.
        # Of one that is supervised its supervisor tells, in one line with what follows from it; here is the traceback, for who looks.
        level = logging.INFO if reason.kind == "normal" or cell.address.name in self.supervisors else logging.ERROR
        logger.log(level, "%s ended: %s%s", cell.address.name, reason, f"\n{reason.traceback}" if reason.kind == "raised" else "")
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
    if issubclass(type(error), SupervisorGaveUpError):
        return ExitReason(kind="shutdown", text=text_of(error))
    if issubclass(type(error), LeaseLostError):
        # To those who supervise it, that is the death of a node, which says nothing about the actor.
        return ExitReason(kind="node died", text=text_of(error))
    if type(error) is EndedElsewhereError:
        return error.reason
    if issubclass(type(error), SystemExit):
        code: object = cast("Any", vars(SystemExit)["code"]).__get__(error)
        if code is None or (type(code) is int and code == 0):
            # As a process that exits with 0: an actor that has a process of its own and one that has none end alike.
            return ExitReason(kind="normal", text="it exited with code 0")
    return ExitReason(kind="raised", text=summary_of(error), traceback=traceback_of(error))
