"""The actor host: starts, finds and ends the actors of one node.

It knows nothing of links or stores: names are claimed and released through `NameClaims`, calls come
in as invocations.
"""

from __future__ import annotations

import difflib
import functools
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, cast

import trio

from actors.actor import Actor, NodeInterface
from actors.class_names import module_name
from actors.errors import (
    ActorNotFoundError,
    CallCycleError,
    CallError,
    MethodNotFoundError,
    NameTakenError,
    NodeDrainingError,
    NoPlacementError,
    SpawnError,
    StaleEpochError,
    StoreError,
    UnderstudyError,
)
from actors.filters import Filter, on_side
from actors.identifiers import ActorId, NodeId
from actors.method import Address, MethodDefinition
from actors.options import SpawnOptions
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from actors.supervision import ExitReason, Shutdown
from actors.supervisor import Supervisor
from runtime.environment import Environment
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.actor_turns import ActorTurns, StartTurn, start_mark
from runtime.hosting.allocations import NOTHING, Allocation, Allocations
from runtime.hosting.awaited_claims import AwaitedClaims
from runtime.hosting.breakpoints import OF_NODE, Breakpoints
from runtime.hosting.cell import (
    REPORTED,
    ActorCell,
    Invocation,
    StartFailedElsewhereError,
    with_note,
)
from runtime.hosting.chains import Chain
from runtime.hosting.completion_log import CompletionLog, SavedStates
from runtime.hosting.departure import Departure
from runtime.hosting.exits import Exits, reason_of_crash
from runtime.hosting.filtered_methods import filtered, has_filters
from runtime.hosting.held_bytes import COUNTED_FROM, ByteBudget
from runtime.hosting.instances import name_part, plain_instance
from runtime.hosting.item_batches import BATCH_METHODS, ItemBatches
from runtime.hosting.lazy_nursery import LazyNursery, NurseryEndedError, own_task_of
from runtime.hosting.orderly_stop import (
    STOP_SECONDS,
    STOPS_IN_A_ROW,
    bring_to_an_end,
    stops_at_once,
    usual_seconds,
)
from runtime.hosting.post_mortem import PostMortems
from runtime.hosting.start_scope import StartScope
from runtime.hosting.starts import STARTING, EndedInStartError, Starts, starts_at_once
from runtime.hosting.thread_limits import ThreadLimits
from runtime.hosting.threads import ACTOR_THREADS, NODE_THREADS, Threads, on_loop
from runtime.hosting.timeline_recorder import TimelineRecorder
from runtime.hosting.workers import TaskWorkers
from runtime.limited_log import LimitedLog
from runtime.statistics.call_statistics import class_of, reason_of
from runtime.statistics.counts import NodeCounts
from runtime.tracing import NO_SPANS, Spans
from runtime.user_errors import (
    begin_with_users_part,
    is_cancellation,
    is_interrupt,
    traceback_of,
)

logger = own_logger("understudy.actors")

UNDO_SECONDS = 1.0
"""For which a cancelled start of a supervisor stops the children that have started."""

StopAnswer = Literal["stopped", "gone", "busy"]
"""The answer about an actor that was to be stopped at once: it has ended now, was not here, or
needs its time.
"""

# What a hosted actor sees of its host, and what a host needs from the store.


class NameClaims(SavedStates, Protocol):
    """Claims and releases names, and reads saved states, in the store: `Names` of a node, or what
    the process of an isolated actor has in its place.
    """

    async def claim(
        self, name: str, class_path: str, on_behalf_of: str, resources: Mapping[str, float]
    ) -> int:
        """Take a name for this node; returns the epoch. Raises `NameTakenError`."""
        ...

    async def claim_many(
        self, names: Sequence[str], class_path: str, resources: Mapping[str, float]
    ) -> list[int | Exception]:
        """Take names for actors of one class; returns the epoch of each, or what `claim` raises."""
        ...

    async def release(self, name: str, epoch: int, reason: ExitReason | None = None) -> None:
        """Give a name back if this epoch still has it. `reason`: how the actor has ended."""
        ...

    async def release_many(
        self, actors: Sequence[ActorId], reason: ExitReason | None = None
    ) -> None:
        """Give back the names that these epochs still have, whose actors have ended for `reason`.
        Raises `StoreError` if that is not certain of all; what could not be released is released
        later.
        """
        ...

    async def saved(self, name: str) -> Any:
        """Return the state that an earlier epoch of `name` has saved, or None."""
        ...


class Hosted:
    """The `actors.actor.ActorContext` of one actor: through it the actor reaches its host. There is
    one for each actor, so it has almost no state of its own, to save memory.
    """

    __slots__ = ("_cell", "_host", "start_turn")

    def __init__(self, host: ActorHost, cell: ActorCell) -> None:
        self._host = host
        self._cell = cell
        self.start_turn: StartTurn | None = None
        """Set while the actor starts; else None."""

    @property
    def node(self) -> NodeInterface:
        """The node that hosts the actor, as its code sees it."""
        return self._host.node

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._cell.address.name

    @property
    def epoch(self) -> int:
        """The actor's epoch."""
        return self._cell.address.epoch

    @property
    def nursery(self) -> LazyNursery:
        """The nursery of the actor's own tasks; also from a thread of the actor's."""
        return on_loop(self._host.nursery_of, self._cell)

    @property
    def handle(self) -> Any:
        """A handle of the actor, whose calls this node makes."""
        return self._host.make_handle(self._cell.address)

    async def save(self, state: object, answer: object) -> None:
        """Save the actor's state in the store, with the answer of the running call if there is one.
        Raises SpawnError for an actor with a generated name, and `StoreError`.
        """
        if not self._cell.address.registered:
            raise SpawnError(
                f"{self.name} cannot save: its name was generated, so its state could not be "
                "found again; spawn it with a name",
                actor=self.name,
            )
        await self._host.completion_log.save(self._cell, state, answer)

    async def saved(self) -> Any:
        """Return the state that an earlier epoch of the name has saved, or None. Raises
        `StoreError`.
        """
        return await self._host.claims().saved(self.name) if self._cell.address.registered else None

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function in one of the actor's threads, and return its result."""
        return await self._host.threads.method(function, self._cell.threads)

    async def call_in_thread(self, function: Callable[[], Any]) -> Any:
        """Like `in_thread`, where the function is all that the running call runs; see
        `Threads.call`.
        """
        return await self._host.threads.call(function, self._cell.threads)

    @property
    def watching(self) -> Any:
        """The actor's watches and links."""
        return self._host.extensions.of("watching", self._cell)

    @property
    def groups(self) -> Any:
        """The actor's memberships in groups."""
        return self._host.extensions.of("groups", self._cell)

    async def run_items(self, method: object, batch: object, rows: object) -> object:
        """Run a batch of a pool's items on this actor, and return the outcomes."""
        return await self._host.item_batches.run(self._cell, method, batch, rows)

    async def judge_items(self, rows: object) -> None:
        """Have the application judge the items of a batch for the process of this actor. Raises
        RefusedElsewhereError.
        """
        await self._host.item_batches.judge_rows(rows)

    async def recall_items(self, batch: object) -> int:
        """Cancel the items of a batch that have not begun; returns how many."""
        return self._host.item_batches.recall(self._cell, str(batch))

    def supervise(self, supervisor: Any) -> Any:
        """Return the work of a supervisor that is hosted here. Its start then counts as waiting for
        the starts of its children.
        """
        self._cell.supervises_since = self._host.now()
        work = self._host.make_supervision(supervisor, self._cell.address)
        if self.start_turn is not None:
            work.begin_in_start = partial(self._host.turns.take_part, self.start_turn)
        return work


# Features that higher rooms add to actors: each makes a part for every actor, and is notified when
# an actor ends.


class HostExtension(Protocol):
    """Gives actors a feature of a higher room: watching and groups, each in a node and in the
    process of an isolated actor.
    """

    def of(self, cell: ActorCell) -> Any:
        """Return the part for one actor."""
        ...

    def on_ending(self, cell: ActorCell) -> None:
        """The actor takes no more mail. May be called twice for one actor."""
        ...

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """The actor has ended, and its name is released. May be called twice for one actor."""
        ...


class Extensions:
    """The extensions of one host, by name; the node adds them before it starts any actor."""

    def __init__(self) -> None:
        self._all: dict[str, HostExtension] = {}

    def add(self, name: str, extension: HostExtension) -> None:
        """Give this extension to all actors."""
        self._all[name] = extension

    def remove(self, name: str) -> None:
        """Take back an extension that no actor has a part of."""
        del self._all[name]

    def of(self, name: str, cell: ActorCell) -> Any:
        """Return one actor's part of the extension `name`."""
        return self._all[name].of(cell)

    def on_ending(self, cell: ActorCell) -> None:
        """The actor takes no more mail: pass that on to all extensions."""
        for extension in self._all.values():
            extension.on_ending(cell)

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """The actor has ended: pass that on to all extensions."""
        for extension in tuple(self._all.values()):
            extension.on_ended(address, reason)


class ActorHost:
    """The actors of one node.

    `make_handle` turns an address into a handle whose calls this node makes. `claims` returns the
    `NameClaims` of the node. `make_instance(cls, options)` returns the instance that is
    constructed, started and called: the actor itself, or an actor proxy. `is_gone(name,
    incarnation)`: True for a node that is known to have ended. `resources`: amounts by name that
    the actors may take.
    """

    check_answer: Callable[[object], object]
    """Raises EncodeError for an answer of a filter that cannot be sent. Set by the endpoint."""

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
        is_gone: Callable[[str, int], bool] = lambda name, incarnation: False,
        resources: Mapping[str, float] = NOTHING,
    ) -> None:
        self.node = node
        self._nursery, self._environment = nursery, environment
        self.claims = claims
        self.make_handle = make_handle
        self.make_supervision = make_supervision
        self._make_instance = make_instance
        self._nobody: Actor = object.__new__(Actor)
        """Takes the place of instances whose actors have ended."""
        self.extensions = Extensions()
        self._log = LimitedLog(logger, environment.now)
        self.threads = Threads(environment, nursery, threads)
        self.workers = TaskWorkers(
            nursery,
            environment,
            self.crash,
            self.pause_names,
            # The log reads which calls the workers run, and the workers run repeated calls through
            # the log: one of the two comes second.
            lambda invocation, method: self.completion_log.run(invocation, method),
            self.threads,
        )
        self.turns = ActorTurns(self.workers.running, self.workers.tasks, environment)
        self.threads.innermost = self.turns.innermost
        self.completion_log = CompletionLog(claims, self.workers, environment, is_gone)
        self.counts = NodeCounts()
        """Usage counters of this node's actors, and of higher rooms."""
        self.arguments = ByteBudget(sys.maxsize)
        """The bytes of large arguments of all calls that wait or run here."""
        self.now, self.in_thread = environment.now, environment.in_thread
        self.cells: dict[str, ActorCell] = {}
        """By name; also those of actors that are starting or ending."""
        self.draining = self._closed = False
        """True once this node takes no new work from others, and once it has left."""
        self._nurseries: dict[ActorCell, LazyNursery] = {}
        """Of the actors that have asked for theirs."""
        self._under_way: dict[ActorCell, StartScope] = {}
        """By the actors that are starting."""
        self.supervisors: dict[str, str] = {}
        """The supervisors' names, by the names of the supervised actors here."""
        self.exits = Exits(node, self.cells)
        self.starts = Starts(node, self.cells, self.turns)
        self._departure = Departure(node, self.cells, self.supervisors, self.stop)
        self._next_number = 0
        self.spans: Spans = NO_SPANS
        self.post_mortems: PostMortems | None = None
        """Keeps the frames of failures; None if the node was not asked to. See `keep_failures`."""
        self.breakpoints: Breakpoints | None = None
        self.recorder: TimelineRecorder | None = None
        """Records what happens here; None while nothing is recorded. See `record`."""
        self.filters: tuple[Filter, ...] = ()
        """Wraps the methods of all actors that start from now on. Set by the endpoint."""
        self.item_batches: ItemBatches
        """Set by the endpoint, which knows how errors and values are encoded."""
        self.names_paused = False
        """True while named actors pause because the lease is in doubt."""
        self.awaited_claims = AwaitedClaims(nursery, self.cells)
        self.allocations = Allocations(node.name, resources)

    def allow_breakpoints(self, nursery: trio.Nursery, address: str) -> None:
        """Let `breakpoint()` in methods wait for a debugger from now on. `nursery`: for debuggers
        of failures.
        """
        self.breakpoints = Breakpoints(
            self._environment,
            nursery,
            self.workers,
            lambda: STARTING.get(None),
            own_task_of,
            address,
        )
        self.workers.prepare_by(self.breakpoints.prepare, self.breakpoints.inner_tasks)
        self.workers.context.run(OF_NODE.set, self.breakpoints)

    def keep_failures(self, post_mortems: PostMortems) -> None:
        """Keep the frames of the last failures of actors from now on."""
        self.post_mortems = post_mortems
        self.workers.keep_failures(post_mortems.on_failure)

    def record(self, recorder: TimelineRecorder | None) -> None:
        """Record turns, starts and ends of actors from now on; None: stop."""
        if self.recorder is not None:
            self.extensions.remove("timeline")
        self.recorder = recorder
        self.workers.record(recorder)
        if recorder is not None:
            self.extensions.add("timeline", recorder)

    def nursery_of(self, cell: ActorCell) -> LazyNursery:
        """Return the nursery of the actor's own tasks, made when it is first asked for."""
        nursery = self._nurseries.get(cell)
        if nursery is None:
            nursery = LazyNursery(
                self._nursery,
                cell.address.name,
                lambda error: self.crash(cell, error),
                self.workers.inner_tasks,
            )
            if cell.ended is None:
                self._nurseries[cell] = nursery
            else:
                nursery.cancel()
        return nursery

    def add_system(self, name: str, instance: Actor, *, ahead: bool = False) -> None:
        """Host one of the runtime's own services under a fixed name; it takes no part in names,
        draining or stopping. `ahead`: its concurrent methods run before all that waits here.
        """
        address = Address(name, self.node.name, self.node.incarnation)
        cell = self.cells[name] = ActorCell(address, instance, 100_000, system=True)
        cell.ahead = ahead

    def has(self, address: Address) -> bool:
        """True while this epoch of an actor is here, its start and its end included."""
        cell = self.cells.get(address.name)
        return cell is not None and cell.address.epoch == address.epoch

    def asking_peer(self) -> VerifiedPeer | None:
        """Return the proven identity of the peer whose call this task runs; None for calls of this
        process, and outside of calls.
        """
        invocation = self.workers.running.get(trio.lowlevel.current_task())
        return invocation.verified if invocation is not None else None

    def find(
        self,
        name: str,
        epoch: int,
        method: str,
        *,
        stream: bool = False,
        from_here: bool = False,
    ) -> tuple[ActorCell, MethodDefinition] | CallError:
        """Find the cell and method that a call is for; return an error if the call must be refused.
        `stream`: the caller asks for items, not for one value. `from_here`: the caller is on this
        node.
        """
        cell = self.cells.get(name)
        if cell is None:
            if self._closed:
                return self._left(name)
            return ActorNotFoundError(f"there is no actor {name!r} on node {self.node.name}")
        if epoch and cell.address.epoch != epoch:
            self.counts.stale_epochs += 1
            return StaleEpochError(
                f"{name} on {self.node.name} has epoch {cell.address.epoch} now, not {epoch}; "
                "look it up again"
            )
        definition = cell.methods.get(method)
        if definition is None and self._takes(cell, method):
            # Of the class: an instance may not be constructed yet, and have a `__getattr__`.
            definition = getattr(type(cell.instance), "batch_methods", BATCH_METHODS)[method]
        if definition is None:
            near = difflib.get_close_matches(method, cell.methods, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            offered = ", ".join(sorted(cell.methods)) or "none"
            return MethodNotFoundError(
                f"{cell.address.class_path or name} has no @method {method!r}; it offers: "
                f"{offered}{hint}"
            )
        if definition.stream is not stream:
            text = (
                "is a stream, and was called for one value"
                if definition.stream
                else "returns one value, and was called as a stream"
            )
            # A class of error that is not retried: as code and caller are, it has no such method.
            return MethodNotFoundError(
                f"{name}.{method} {text}; use a handle that knows the class as node "
                f"{self.node.name} has it"
            )
        # Calls from this node itself go on until their actor is stopped: calls that were accepted
        # before the drain need them to end, and so does an `on_stop` that calls an actor which was
        # started before its own.
        if self.draining and not cell.system and not from_here:
            return NodeDrainingError(
                f"node {self.node.name} is leaving the cluster and takes no new calls for {name}"
            )
        return cell, definition

    def _left(self, name: str) -> NodeDrainingError:
        """Make the error for a call that comes after this node has left."""
        node = self.node.name
        return NodeDrainingError(f"node {node} has left the cluster and takes no calls for {name}")

    def _takes(self, cell: ActorCell, method: str) -> bool:
        """Return True if `method` is one of the methods of batches, and the actor takes it. One in
        a process of its own takes none where its node has filters: they are around the way into
        that process, and see single calls.
        """
        if method not in BATCH_METHODS or cell.system:
            return False
        is_proxy = hasattr(type(cell.instance), "batch_methods")
        return method != "@items" or not (is_proxy and has_filters(cell.methods))

    def deliver(self, invocation: Invocation, counted: bool = False) -> CallError | None:
        """Queue an invocation, or run it now if its method is concurrent; return an error if
        refused. `counted`: the caller is on this node and counts the call.
        """
        cell = invocation.cell
        held = invocation.held_bytes
        if held is not None and held.size >= COUNTED_FROM and not cell.system:
            # First: what is concurrent does not wait, and holds its arguments as well.
            refused = cell.count_bytes(held)
            if refused is not None:
                self.counts.refused.add(reason_of(refused))
                return refused
            held.count_in(self.arguments, held.size)
        statistics = self.workers.statistics
        if statistics is not None and not counted:
            # Inline, for the hot path.
            path = cell.address.class_path or class_of(cell.address)
            try:
                one = statistics.by_class[path][invocation.definition.name]
            except KeyError:
                one = statistics.of(path, invocation.definition.name)
            sampler = one.arrived
            left = sampler.left = sampler.left - 1
            if not left:
                invocation.timer = one.timed(sampler, self._environment.stopwatch())
        if (
            invocation.definition.concurrent
            and cell.started
            and not cell.paused
            and cell.ended is None
        ):
            if cell.ahead:
                self.workers.submit_ahead(invocation)
            else:
                self.workers.submit(invocation)
            return None
        if cell.following is not None and cell.following(invocation):
            return None
        if invocation.chain is not None:
            if not cell.started and start_mark(cell.address) in invocation.chain:
                return self.starts.cycle(invocation.chain, cell, invocation.definition.name)
            if not invocation.definition.concurrent and cell.waits_for(invocation):
                return self._let_in(invocation)
        refusal = cell.offer(invocation, self._environment.now)
        if refusal is not None:
            self.counts.refused.add(reason_of(refusal))
        # A busy cell is with a worker, or queued for one: the mail is seen without another
        # submission.
        elif not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            self.workers.submit(cell)
        return refusal

    def _let_in(self, invocation: Invocation) -> CallError | None:
        """Run a call beside the turn that waits for it, if that turn's method is reentrant; else
        return the CallCycleError that describes the cycle.
        """
        cell, turn = invocation.cell, invocation.cell.turn
        assert turn is not None
        assert invocation.chain is not None
        name, running = cell.address.name, turn.definition.name
        if turn.definition.reentrant and not cell.paused and cell.ended is None:
            self.workers.submit(invocation)
            return None
        return CallCycleError(
            f"call cycle: {invocation.chain.text(name, invocation.definition.name)}. "
            f"{name}.{running} waits for this call, and the call for it. "
            f"Mark {running} with @method(reentrant=True) to let calls of its own chain in while "
            f"it waits, or {invocation.definition.name} as concurrent, or send one of the calls "
            "one way"
        )

    async def start(self, start: ActorStart, name: str | None = None) -> Address:
        """Start an actor here; returns its address once `on_start` has returned. `name`: instead
        of that in its options.

        Raises `NameTakenError`, `ActorStartError`, `NodeDrainingError`, or `NoPlacementError` if
        less of a resource is left here than the actor takes, for another reason than that an actor
        of its name has it.
        """
        if self.draining:
            raise NodeDrainingError(
                f"node {self.node.name} is leaving the cluster and starts no actors",
                node=self.node.name,
            )
        name = name or start.options.name
        if name is None:
            self._next_number += 1
            node, incarnation = self.node.name, self.node.incarnation
            name = f"{name_part(start.cls)}-{self._next_number}@{node}.{incarnation}"
            address = Address(name, node, incarnation, incarnation, start.class_path, False)
            allocation = self.allocations.take(name, start.options.resources)
            return await self._start_at(address, start, allocation)
        over = self.starts.announce(name)
        try:
            # Before the claim, which other nodes see: what is refused here leaves no trace there.
            allocation = await self._allocate(name, start.options.resources)
            epoch = await self._claim(name, start, allocation)
            return await self.start_claimed(name, epoch, start, allocation)
        finally:
            self.starts.on_over(name, over)

    async def _allocate(self, name: str, amounts: Mapping[str, float]) -> Allocation | None:
        """Like `Allocations.take`. Raises NameTakenError if an actor of this name is here: what is
        missing may be what that one takes, and a caller of `get_or_spawn` is to find it.
        """
        while True:  # noqa: ASYNC913  each turn waits for a claim, or is the last
            try:
                return self.allocations.take(name, amounts)
            except NoPlacementError:
                if name in self.cells:
                    raise NameTakenError(
                        f"the name {name!r} is taken by an actor on node {self.node.name}",
                        actor=name,
                        node=self.node.name,
                    ) from None
                # A start of the same name has taken it, and the store may not show the name yet:
                # the caller would look it up in vain. The claim decides whether it is an error.
                if not await self.awaited_claims.wait_over(name):  # noqa: ASYNC120
                    raise

    async def wait_for_claim(self, name: str, epoch: int) -> None:
        """Wait until the claim of this name that is under way here is over, unless this epoch is
        here, or has ended. For questions about an actor that others have found in the store: they
        may see the claim before this node has its answer, which would say "no such actor".
        """
        cell = self.cells.get(name)
        is_here = cell is not None and cell.address.epoch == epoch
        if not is_here and self.exits.of(ActorId(name, epoch)) is None:
            await self.awaited_claims.wait_over(name)

    async def start_claimed(
        self, name: str, epoch: int, start: ActorStart, allocation: Allocation | None
    ) -> Address:
        """Start the actor of a name that this node has claimed. Its cell exists before this waits
        for anything. Gives the name and `allocation` back if it does not start.
        """
        node, incarnation = self.node.name, self.node.incarnation
        address = Address(name, node, incarnation, epoch, start.class_path, True)
        return await self._start_at(address, start, allocation)

    async def _start_at(
        self, address: Address, start: ActorStart, allocation: Allocation | None
    ) -> Address:
        name = address.name
        if allocation is not None:
            self.allocations.assign(allocation, address.actor_id)
        try:
            if self.draining:
                # Since the claim of its name has begun: no stop would find it, as the node drains.
                raise EndedInStartError.of(address, ExitReason("node left", "it has not begun"))
            if start.on_behalf_of:
                self.supervisors[name] = start.on_behalf_of
            if self.spans is NO_SPANS:
                await self.begin(start, address)
            else:
                facts = {"understudy.actor": name, "understudy.node": address.node}
                with self.spans.span("actor.start", facts):
                    await self.begin(start, address)
        except BaseException as error:
            # If it was not released before the end of its cell.
            self.allocations.release(address.actor_id)
            cancelled = is_cancellation(error)
            if cancelled or is_interrupt(error):
                # shielded and bounded in there
                await self._release_shielded(address)  # noqa: ASYNC102, ASYNC120
                raise
            failure = self.starts.failure(name, error, module_name(start.cls))
            if issubclass(type(error), EndedInStartError) and (
                self.draining or cast("EndedInStartError", error).reason.kind == "node left"
            ):
                node = self.node.name
                # shielded and bounded in there
                await self._release_shielded(address)  # noqa: ASYNC102, ASYNC120
                left = NodeDrainingError(left_meanwhile(node, name), node=node)
                raise left from None  # noqa: ASYNC104
            self.starts.on_failed(address, failure)
            # shielded and bounded in there
            await self._release_shielded(address)  # noqa: ASYNC102, ASYNC120
            if type(error) is StartFailedElsewhereError:
                raise with_note(failure()) from None  # noqa: ASYNC104  as before
            begin_with_users_part(error)
            raise failure() from error  # noqa: ASYNC104  it is no cancellation
        return address

    async def _claim(self, name: str, start: ActorStart, allocation: Allocation | None) -> int:
        """Claim the name; give `allocation` back if that fails. Calls that arrive meanwhile are
        handled when the actor's cell exists, or the claim has failed.
        """
        claim = self.awaited_claims.begin(name)
        succeeded = False
        try:
            epoch = await self.claims().claim(
                name, start.class_path, start.on_behalf_of, start.options.resources
            )
            succeeded = True
            return epoch
        finally:
            self.awaited_claims.end(name, claim, succeeded=succeeded)
            if not succeeded:
                self.allocations.give_back(allocation)

    async def begin(self, start: ActorStart, address: Address, before: Chain | None = None) -> None:
        """Start an actor that has its address already. Raises what its constructor or `on_start`
        raises.

        `before`: the chain that waits for the start, where the caller knows it.
        """
        cell, context = self._make_cell(start, address)
        instance = cell.instance
        began = self._environment.now() if self.recorder is not None else 0.0
        if not start.args and not start.kwargs and starts_at_once(type(instance)):
            # Nothing of the user's runs that could wait, call others, or end the actor.
            cell.constructed = True
            self._on_started(cell, start.options, began)
            return
        class_path = class_of(address)
        self.counts.starting.add(class_path)
        within = STARTING.set(cell)
        # A start may run in the task of another, whose `on_start` asks for it.
        task = trio.lowlevel.current_task()
        around = self.workers.starting.get(task)
        self.workers.starting[task] = cell
        try:
            try:
                await self._construct_and_start(cell, context, start, before)
            except BaseException as error:
                # shielded and bounded in there, where it is cancelled
                await self._undo_start(cell, error)  # noqa: ASYNC102
                raise
            if cell.ended is not None:
                await self._undo_start(cell)
        except BaseException as error:
            if self.post_mortems is not None and not is_cancellation(error):
                self.post_mortems.on_failure(cell, "its start", error)
            with trio.CancelScope(shield=True):
                await self._release_resources(address)
            ended = cell.ended
            if ended is None or is_cancellation(error) or is_interrupt(error):
                failed = ExitReason(kind="start failed", text=f"{address.name} did not start")
                self._end(cell, failed)
                raise
            self._end(cell, ended)
            # What its code made of the cancellation, or of an `on_stop` that ran beside it, says
            # nothing. It is none of the caller's.
            raise EndedInStartError.of(address, ended) from error  # noqa: ASYNC104
        finally:
            self.counts.starting.add(class_path, count=-1)
            STARTING.reset(within)
            if around is None:
                del self.workers.starting[task]
            else:
                self.workers.starting[task] = around
        # The actor was stopped, or one of its own tasks raised, while `on_start` ran.
        if cell.ended is not None:
            with trio.CancelScope(shield=True):
                await self._release_resources(address)
            self._end(cell, cell.ended)
            raise EndedInStartError.of(address, cell.ended)
        self._on_started(cell, start.options, began)

    async def _construct_and_start(
        self, cell: ActorCell, context: Hosted, start: ActorStart, before: Chain | None
    ) -> None:
        """Call the constructor and `on_start`. Returns as well when the actor is stopped meanwhile,
        or one of its own tasks raises.
        """
        scope = self._under_way[cell] = StartScope()
        try:
            with self.turns.start(cell.address, before) as turn, scope:
                context.start_turn = turn
                await self._construct(start, cell.instance, scope, turn)
                cell.constructed = True
                on_start = cell.instance.on_start
                # Most classes have none of their own.
                if getattr(on_start, "__func__", None) is not Actor.on_start:
                    scope.enter()
                    await self.threads.start_hook(on_start, turn)
        finally:
            context.start_turn = None
            del self._under_way[cell]

    async def _undo_start(self, cell: ActorCell, error: BaseException | None = None) -> None:
        """Stop the children of a supervisor whose start has failed with this error, or was ended
        otherwise: an `on_start` that users write goes on after they have started.
        """
        supervisor = cell.instance
        if not issubclass(type(supervisor), Supervisor) or (
            error is not None and is_interrupt(error)
        ):
            return
        reason = cell.ended or ExitReason("start failed", f"{cell.address.name} did not start")
        try:
            if error is not None and cell.ended is None and not is_cancellation(error):
                # Not through the instance, as in `_leave_children`.
                await Supervisor._on_failed_start(cast("Supervisor", supervisor), reason)
        finally:
            # Those that are left: a start that is cancelled does not wait for them in order, and
            # its caller not for long. `Orphans` stops what is not reached in this time.
            cancelled = error is not None and is_cancellation(error)
            with trio.CancelScope(shield=True):
                await self._leave_children(
                    cell, reason, UNDO_SECONDS if cancelled else STOP_SECONDS
                )

    def _within(self, seconds: float) -> float:
        """When so many seconds are over, or this node leaves."""
        return min(trio.current_time() + seconds, self._departure.leaves_by)

    def _make_cell(self, start: ActorStart, address: Address) -> tuple[ActorCell, Hosted]:
        """Make the cell of an actor that is about to start. Calls that arrive during the start wait
        in its mailbox.
        """
        options = start.options
        instance = self._make_instance(start.cls, options)
        cell = ActorCell(address, instance, options.mailbox_limit, options.mailbox_bytes)
        own = type(instance).call_filters
        if own or self.filters:
            filters = (*self.filters, *on_side(own, "server"))
            if filters:
                cell.methods = filtered(
                    cell.methods, filters, self.workers.running, self.check_answer
                )
        if any(
            definition.in_thread and definition.concurrent for definition in cell.methods.values()
        ):
            cell.threads = ThreadLimits(options.thread_limit or ACTOR_THREADS)
        instance._context = context = Hosted(self, cell)
        # May replace the cell of an earlier epoch: its name was released before its end was
        # handled. `_end` therefore compares the cell.
        self.cells[address.name] = cell
        class_path = class_of(address)
        self.counts.starts.add(class_path)
        self.counts.living.add(class_path)
        return cell, context

    def _on_started(self, cell: ActorCell, options: SpawnOptions, began: float) -> None:
        """Submit a started actor that has mail. `began`: when its start began, 0 while no turns are
        recorded.
        """
        cell.started = True
        if self.recorder is not None and began:
            self.recorder.started(cell, began, self.supervisors.get(cell.address.name, ""))
        if options.idle_timeout is not None:
            self.nursery_of(cell).start_soon(self._stop_when_idle, cell, options.idle_timeout)
        if cell.mailbox:
            cell.busy = True
            self.workers.submit(cell)

    async def _construct(
        self, start: ActorStart, instance: Actor, scope: StartScope, turn: StartTurn
    ) -> None:
        """Call the constructor in a thread: it may compute, read and wait without blocking the
        node.
        """
        construct = functools.partial(
            instance.__init__,  # type: ignore[misc]
            *start.args,
            **start.kwargs,
        )
        if not isinstance(instance, start.cls) or type(instance).__init__ is object.__init__:
            # An actor proxy, or a class without a constructor of the user's: it does not block.
            construct()
        else:
            await self.threads.construct(construct, scope, turn)

    async def stop(
        self,
        name: str,
        epoch: int,
        reason: ExitReason,
        shutdown: Shutdown | Literal["usual"] = "usual",
    ) -> ExitReason | None:
        """Let the running method finish, call `on_stop`, end the actor and release its name;
        returns its exit reason. An actor that has ended may be stopped.

        `shutdown`: seconds for that, None for no limit, "usual" for `usual_seconds`; then running
        methods are cancelled, and code that ignores the cancellation is left running. "kill":
        cancel them at once, and do not call `on_stop`; the same holds when the time of a leaving
        node is over. An actor that did not stop in time has ended as "killed" if `reason` was a
        normal one; another reason, such as "node left", stays, because it says nothing about the
        actor.
        """
        left = self._departure.leaves_by - trio.current_time()
        cell = self.cells.get(name)
        if cell is None or cell.system or (epoch and cell.address.epoch != epoch):
            return self.exits.of(ActorId(name, epoch))
        if cell.ended is None and (shutdown == "kill" or left <= 0):
            killed = ExitReason("killed", str(reason))
            self.end_at_once(cell, killed if shutdown == "kill" or reason.is_normal else reason)
        if cell.ended is not None:
            return await self.exits.wait(name, cell.address.epoch)
        invocations = cell.end(reason)
        self._cancel_start(cell)
        for invocation in invocations:
            invocation.sink.refused(invocation, cell.gone())
        self.extensions.on_ending(cell)
        # Shielded, and bounded by `shutdown`: a stop that was abandoned would leave the name taken.
        with trio.CancelScope(shield=True):
            limit = usual_seconds(cell) if shutdown == "usual" else shutdown
            seconds = left if limit is None or limit == "kill" else min(limit, left)
            in_time = await bring_to_an_end(
                cell, self._nurseries.get(cell), reason, seconds, self._nursery, self.threads
            )
            if not in_time and reason.is_normal:
                reason = ExitReason("killed", f"{reason}; it did not stop within {seconds:g} s")
            if (under_way := self._under_way.get(cell)) is not None:
                # The start of a supervisor whose `on_stop` is over. It would go on without what
                # that has ended.
                under_way.cancel()
            # Its class may have an `on_stop` of its own that does not call that of the supervisor.
            await self._leave_children(cell, reason)
            # Before the end is reported: a supervisor that restarts the actor must find the name
            # free.
            await self._give_back(cell.address, reason)
        self._end(cell, reason)
        return reason

    def _cancel_start(self, cell: ActorCell) -> None:
        """Cancel the start of an actor that has ended before it was over. That of a supervisor
        which is constructed ends by its `on_stop`, which stops its children.
        """
        under_way = self._under_way.get(cell)
        supervises = cell.constructed and type(cell.instance).supervises is True
        if under_way is not None and not supervises:
            under_way.cancel()

    async def _release_resources(self, address: Address) -> None:
        """Release what the actor takes, once its start and its own tasks are over. One of them is
        that of the process of an isolated actor: only when that is gone is its device free.
        """
        if address.actor_id in self.allocations.holders:
            cell = self.cells.get(address.name)
            if cell is not None:
                # Bounded: code that ignores its cancellation does not keep the resources.
                with trio.move_on_at(self._within(STOP_SECONDS)):
                    if (under_way := self._under_way.get(cell)) is not None:
                        await under_way.wait_over()
                    if (nursery := self._nurseries.get(cell)) is not None:
                        await nursery.close()
            self.allocations.release(address.actor_id)

    async def take_back(self, name: str, epoch: int) -> None:
        """Stop an actor whose spawner was cancelled, unless others have got the answer meanwhile
        that it has started: they may hold handles of it.
        """
        cell = self.cells.get(name)
        if cell is not None and cell.address.epoch == epoch and not cell.found:
            reason = ExitReason("stopped", "the task that spawned it was cancelled")
            await self.stop(name, epoch, reason)

    async def stop_ready(self, actors: Sequence[ActorId], reason: ExitReason) -> list[StopAnswer]:
        """Stop those of these actors for whose stop nothing needs to be waited for but the store,
        which releases their names together. Leaves the others as they are.
        """
        answers: list[StopAnswer] = []
        stopping: list[ActorCell] = []
        for number, (name, epoch) in enumerate(actors, 1):
            if number % STOPS_IN_A_ROW == 0:
                # Not one that can be cancelled: what has begun to end here has to end.
                await trio.lowlevel.cancel_shielded_checkpoint()
            cell = self.cells.get(name)
            if cell is None or cell.system or cell.address.epoch != epoch:
                answers.append("gone")
            elif (
                cell.ended is not None
                or not cell.started
                or cell in self._nurseries
                or not stops_at_once(cell)
                or type(cell.instance).supervises is True
            ):
                answers.append("busy")
            else:
                answers.append("stopped")
                stopping.append(cell)
                waiting = cell.end(reason)
                assert not waiting, "what stops at once has no mail"
                self.extensions.on_ending(cell)
        for cell in stopping:
            self.allocations.release(cell.address.actor_id)
        named = [cell.address.actor_id for cell in stopping if cell.address.registered]
        # Shielded, and bounded, as in `stop`. Before the ends are reported.
        with trio.CancelScope(shield=True):
            if named:
                what = ", ".join(actor.name for actor in named[:3])
                await self._released(what, partial(self.claims().release_many, named, reason))
            for number, cell in enumerate(stopping, 1):
                self._end(cell, reason)
                if number % STOPS_IN_A_ROW == 0:
                    await trio.lowlevel.checkpoint()
        return answers

    async def _stop_when_idle(self, cell: ActorCell, seconds: float) -> None:
        served = -1
        while served != cell.served:
            # However long its calls take, the idle time begins when the last of them has ended.
            await cell.wait_quiet()
            served = cell.served
            await trio.sleep(seconds)
        # In another task: this one belongs to the actor, and stopping waits for the actor's tasks.
        self._nursery.start_soon(self._end_of_idleness, cell, served, seconds)

    async def _end_of_idleness(self, cell: ActorCell, served: int, seconds: float) -> None:
        # A call may have arrived since the actor was found idle, or may wait for a worker. No
        # checkpoint lies between this check and the end of its mailbox, so no later call is lost.
        if cell.ended is None and (
            cell.served != served or cell.is_in_use or self.workers.is_queued(cell)
        ):
            self.nursery_of(cell).start_soon(self._stop_when_idle, cell, seconds)
            return
        await self.stop(
            cell.address.name, cell.address.epoch, ExitReason("idle", f"no call for {seconds:g} s")
        )

    def take_no_new_work(self) -> None:
        """Refuse new actors, and new calls to actors, from now on: this node is going to leave."""
        self.draining = True

    async def drain(self, seconds: float, in_all: float) -> None:
        """Take no new work, and stop all actors as `Departure.drain` does."""
        self.take_no_new_work()
        await self._departure.drain(seconds, in_all)

    async def stop_all(self, reason: ExitReason, *, moved: ExitReason, in_all: float) -> None:
        """Stop all actors within `in_all` seconds, as `Departure.stop_all` does."""
        await self._departure.stop_all(reason, moved, in_all=in_all)

    def pause_names(self) -> None:
        """Pause all named actors, because other nodes may get the names soon: mail waits and
        outcomes are held back.
        """
        if not self.names_paused:
            logger.log(
                # A node that leaves may have been left by the one that keeps the store.
                logging.INFO if self.draining else logging.WARNING,
                "node %s has not renewed its lease in time, since the store of the cluster does "
                "not answer, or the node itself stood still: its named actors pause until it has",
                self.node.name,
            )
            self.names_paused = True
        for cell in self.cells.values():
            if cell.leased:
                cell.paused = True

    def hold_names_until(self, doubtful_at: float) -> None:
        """End the pause: the names are this node's until `doubtful_at`, on its own clock. Held-back
        outcomes are reported.
        """
        self.workers.hold_names_until(doubtful_at)
        if not self.names_paused:
            return
        logger.warning("node %s still has its lease: its named actors run again", self.node.name)
        self.names_paused = False
        for cell in self.cells.values():
            if cell.paused and cell.resume():
                cell.busy = True
                self.workers.submit(cell)

    def abandon_names(self, error: UnderstudyError) -> None:
        """End all named actors at once: other nodes may own the names now."""
        self.take_no_new_work()
        for cell in list(self.cells.values()):
            if cell.leased:
                self.crash(cell, error)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every actor: for tests and
        simulations.
        """
        for name, cell in self.cells.items():
            assert name == cell.address.name
            assert cell.system == (name[:1] == "@"), "no actor takes the place of a service"
            cell.check_invariants()
        self.allocations.check_invariants()
        present = {cell.address.actor_id for cell in self.cells.values()}
        assert self.allocations.holders <= present, "an actor that has ended takes nothing"
        self.exits.check_invariants()
        self.starts.check_invariants()
        self.completion_log.check_invariants()

    def close(self) -> None:
        """End the actors that could not be stopped in time, after the node has left: refuse all
        their calls.
        """
        reason = ExitReason("shutdown", f"node {self.node.name} has left")
        # The worker that would come to them may come after the goodbye.
        queued: dict[ActorCell, list[Invocation]] = {}
        for invocation in self.workers.take_queued():
            queued.setdefault(invocation.cell, []).append(invocation)
        for cell in self.cells.values():
            for invocation in (*cell.running, *cell.end(reason), *queued.pop(cell, ())):
                error: CallError = cell.gone()
                if invocation.begun:
                    error = cell.died()
                elif cell.system:
                    error = self._left(cell.address.name)
                invocation.sink.refused(invocation, error)
                # The methods that run are cancelled later, with the tasks of the node: what they
                # report then would be a second outcome.
                invocation.sink = REPORTED
            self.allocations.release(cell.address.actor_id)
        for cell, invocations in queued.items():
            # Its name was another's by now.
            for invocation in invocations:
                invocation.sink.refused(invocation, cell.gone())
        self.cells.clear()
        self._closed = True
        # Their claims may end too late, or never. Now they find that the node has left.
        self.awaited_claims.close()

    def crash(self, cell: ActorCell, error: BaseException) -> None:
        """End the actor now: one of its own tasks raised, or a method asked to exit."""
        reason = reason_of_crash(error)
        if cell.ended is not None:
            # A supervisor that gives up because its nodes leave ends in any case. So does a task
            # that goes on once more before it is cancelled, and begins another one then.
            expected = reason.kind != "raised" or type(error) is NurseryEndedError
            logger.log(
                logging.DEBUG if expected else logging.ERROR,
                "a task of %s raised while it was ending\n%s",
                cell.address.name,
                traceback_of(error),
            )
            return
        # SystemExit comes from a method, and the workers have kept that failure.
        if self.post_mortems is not None and not issubclass(type(error), SystemExit):
            self.post_mortems.on_failure(cell, "a task of its own", error)
        # An end that the runtime itself caused, and an intended end, need no traceback through the
        # runtime. The end of a supervised actor is reported by its supervisor, in one line with the
        # consequence; here the traceback is logged at level INFO.
        level = (
            logging.INFO
            if reason.kind in ("normal", "idle") or cell.address.name in self.supervisors
            else logging.ERROR
        )
        logger.log(
            level,
            "%s ended: %s%s",
            cell.address.name,
            reason,
            f"\n{reason.traceback}" if reason.kind == "raised" else "",
        )
        self.end_at_once(cell, reason)

    def end_at_once(self, cell: ActorCell, reason: ExitReason) -> None:
        """End an actor without `on_stop`; its running methods and tasks are cancelled."""
        waiting = cell.end(reason)
        if (under_way := self._under_way.get(cell)) is not None:
            # Also that of a supervisor: no `on_stop` would end it.
            under_way.cancel()
        for invocation in waiting:
            invocation.sink.refused(invocation, cell.gone())
        for invocation in tuple(cell.running):
            if invocation.runner is not None:
                invocation.runner.cancel()
        if cell in self._nurseries:
            self._nurseries[cell].cancel()
        self.extensions.on_ending(cell)
        # The end of an actor that is still starting is reported by `begin`, which finds it ended.
        if cell.started:
            self._nursery.start_soon(self._finish_crash, cell, reason)

    async def _finish_crash(self, cell: ActorCell, reason: ExitReason) -> None:
        # Before the name is free: only the supervisor that has it may write about its children.
        await self._leave_children(cell, reason)
        await self._give_back(cell.address, reason)
        self._end(cell, reason)

    async def _leave_children(
        self, cell: ActorCell, reason: ExitReason, seconds: float = STOP_SECONDS
    ) -> None:
        """Stop the children of a supervisor that has ended without having stopped them, unless it
        is restarted: a crash calls no `on_stop`. At most `seconds` are waited for that.
        """
        if not issubclass(type(cell.instance), Supervisor):
            return
        with trio.move_on_at(self._within(seconds)):
            try:
                # Not through the instance: its class is the user's, and may have this name, too.
                await Supervisor._on_crash(cast("Supervisor", cell.instance), reason)
            except Exception as error:
                logger.error(
                    "%s: calls of its children may wait for restarts that do not come\n%s",
                    cell.address.name,
                    traceback_of(error),
                )

    async def _give_back(self, address: Address, reason: ExitReason | None = None) -> None:
        # Before the name is free: a node that sees it free places an actor here, which must find
        # room.
        await self._release_resources(address)
        if address.registered:
            await self._released(
                address.name, partial(self.claims().release, address.name, address.epoch, reason)
            )

    async def _released(self, names: str, release: Callable[[], Awaitable[None]]) -> None:
        # Bounded: without the store the name stays until the lease ends.
        with trio.move_on_at(self._within(STOP_SECONDS)):
            try:
                await release()
            except StoreError as error:
                # Limited: thousands may stop while the store is away. A node that leaves ends its
                # lease as well; the store may have left before it.
                self._log.log(
                    logging.INFO if self.draining else logging.WARNING,
                    "%s: the name could not be released; it becomes free when the store answers "
                    "again, or when the node's lease ends: %s",
                    names,
                    error,
                )

    async def _release_shielded(self, address: Address) -> None:
        # A cancelled start must not keep the name until the lease ends. Bounded by the time that a
        # request to the store may take.
        with trio.CancelScope(shield=True):
            await self._give_back(address)

    def _end(self, cell: ActorCell, reason: ExitReason) -> None:
        if cell.ended is None:
            for invocation in cell.end(reason):
                invocation.sink.refused(invocation, cell.gone())
        if self.cells.get(cell.address.name) is cell:
            del self.cells[cell.address.name]
            self.supervisors.pop(cell.address.name, None)
            class_path = class_of(cell.address)
            self.counts.living.add(class_path, count=-1)
            self.counts.ends.add(class_path, reason.kind)
        self.completion_log.forget(cell)
        nursery = self._nurseries.pop(cell, None)
        if nursery is not None:
            nursery.cancel()
        self.exits.add(cell.address.actor_id, reason)
        self.extensions.on_ending(cell)
        self.extensions.on_ended(cell.address, reason)
        if not cell.running:
            # The instance has its cell, by which it reaches the host: without this circle its state
            # is freed now, and not when the cyclic garbage collector runs. A method that still
            # runs, because it ignores its cancellation, may look for it.
            cell.instance = self._nobody


def left_meanwhile(node: str, what: str) -> str:
    """Say of a start that it was ended by the leaving of its node."""
    return (
        f"node {node} left while {what} was starting there: it has not started; its constructor "
        "and on_start may have begun"
    )


def birthplace(name: str) -> NodeId | None:
    """Return node and incarnation from a generated actor name; None for a name that a user gave."""
    place = name.rpartition("@")[2] if "@" in name else ""
    node, _, incarnation = place.rpartition(".")
    return NodeId(node, int(incarnation)) if node and incarnation.isdecimal() else None
