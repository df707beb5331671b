"""Supervision work: starts a supervisor's children on nodes that fit, watches them, and carries out
what the restart machine decides.

Effects are carried out in the machine's order by one task; each running child is watched by a call
that its node answers when the child has ended. Restart intents for the names of children are
written to the store, so that calls to a child that is being restarted wait for it instead of
failing. A supervisor that begins where another of its name ended adopts the children that live: see
`actors.restarts`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import trio

from actors.adoption import adopted
from actors.errors import (
    ActorNotNeededError,
    ActorNotPlacedError,
    ActorStartError,
    CallError,
    ChildExistsError,
    ChildRunningError,
    StoreError,
    SupervisorGaveUpError,
    SupervisorStoppingError,
    TooManyChildrenError,
    UnderstudyError,
)
from actors.handle import Handle
from actors.method import Address
from actors.own_logger import own_logger
from actors.restarts import RestartMachine
from actors.supervision import (
    AllStarted,
    Effect,
    Exit,
    ExitKind,
    ExitReason,
    Forgotten,
    StartChild,
    StopChild,
    SupervisorAnswer,
    TryAgain,
)
from actors.supervisor import (
    ChildSpec,
    ChildStatus,
    DeathReport,
    Supervisor,
    SupervisorStatus,
    check_child_name,
)
from runtime.environment import Environment
from runtime.hosting.cell import with_note
from runtime.statistics.counts import NodeCounts
from runtime.supervision.child_start import NO_ROOM, ChildStart, StartPutOffError, is_its_fault
from runtime.supervision.children import ChildState, ChildTable, seconds_of
from runtime.supervision.end_lines import AFTER_TEMPORARY, end_line, lost_line
from runtime.supervision.shared_deadlines import SharedDeadlines
from runtime.supervision.spawner import ActorSpawner

logger = own_logger("understudy.supervision")


STOP_MARGIN = 1.0
"""Seconds for the request to stop, and its answer, beyond the `shutdown` time of a child."""


DEATHS_KEPT = 50
"""Latest ends of children in a supervisor's status."""


MOST_DEPTH = 20
"""Most levels of a tree: this ends a supervisor that starts itself, directly or through others."""


MOST_RECORDED = 1_000
"""How many ended children are recorded in the store for callers that wait for them."""


BEGUN_IN_A_ROW = 50
"""Starts and stops of children that are begun before the other tasks of the event loop have their
turns: thousands may be due at once, and the task of each runs in the same pass of the scheduler.
"""


START_PATIENCE = 1.0
"""Seconds between two looks whether a start holds up the restart of a child before it. It is given
up at the second look in a row that finds this. Each time they are twice as long, so that a start
that takes its time, and waits for no other child, succeeds in the end.
"""


RESTART_LOOK_SECONDS = (0.1, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before each look whether a supervisor that has ended is restarted. Its children are
stopped once it is missing at two looks in a row: one reads the store more than once, while others
write. After these, `Orphans` looks at longer intervals.
"""


LEFT_BEHIND_SECONDS = 1.0
"""Seconds for which children that did not stop are gathered for one line of the log."""


LEFT_BEHIND_SHOWN = 10
"""How many of them the line names."""


@attrs.frozen
class _Due:
    """An effect in the queue, with the child that the machine meant: another may have its id by
    now.
    """

    effect: StartChild | StopChild | Forgotten
    child: ChildState


class SupervisionWork:
    """The work of one supervisor: the implementation of `actors.supervisor.SupervisorWork`.

    Requests and events go to the restart machine; its effects are queued and carried out in order.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        address: Address,
        spawner: ActorSpawner,
        environment: Environment,
        counts: NodeCounts,
    ) -> None:
        self._counts = counts
        self._supervisor = supervisor
        self._address = address
        self._name = address.name
        self._lasting = False
        """True if this supervisor will be restarted when it ends, as the store said when it began.
        """
        self._spawner = spawner
        self._environment = environment
        # The machine first: it refuses specs with equal ids.
        self._machine = supervisor.machine(supervisor.specs, environment.random)
        self._children = ChildTable(self._name, supervisor.specs)
        self._queue: deque[Effect | _Due] = deque()
        """Effects that are to be carried out, in the machine's order."""
        self._has_effects = trio.Event()
        self._ready = trio.Event()
        """Set when `start` may return, or must raise."""
        self._over = trio.Event()
        """Set when the supervisor has ended, and no effect is carried out any more."""
        self._stopping = False
        """True once it was asked to stop."""
        self._stops = 0
        """How many calls of `stop` are under way."""
        self._looked = trio.Event()
        """Set when `start` has looked for children to adopt: it carries out effects then, or never
        does.
        """
        self._carries_out = False
        self._has_started = False
        """True once the machine has said so."""
        self._is_ready = False
        """True once `start` has succeeded."""
        self._to_adopt: set[str] = set()
        """Children of a dynamic supervisor that live and are not adopted yet: its start waits for
        them, and for no other child.
        """
        self._exit: ExitReason | None = None
        """Why the supervisor ends; None while it does not."""
        self._answers: dict[object, SupervisorAnswer] = {}
        """The machine's answers, by the numbers of the requests, until their tasks take them."""
        self._answered: dict[object, trio.Event] = {}
        self._requests = 0
        self._spawned = 0
        """How many children `spawn` has made: a part of their ids."""
        self._deaths: deque[DeathReport] = deque(maxlen=DEATHS_KEPT)
        self._start_deadlines = SharedDeadlines()
        self._stop_deadlines = SharedDeadlines(STOP_MARGIN)
        self._left_behind: list[str] = []
        """Children that did not stop in their time, until they are logged."""
        self._node_nursery = spawner.nursery
        self._ended: set[str] = set()
        """Children whose actors have ended. If they are not restarted, their intents are withdrawn,
        so that no caller waits for them.
        """
        self._work = trio.CancelScope()
        self.begin_in_start: Callable[[], None] = lambda: None
        """Called in a task for which the supervisor's start waits: a child that calls its
        supervisor during that start would wait for ever, so such calls are refused.
        """

    # Requests of the supervisor's users

    async def start(self) -> None:
        """Adopt or start all children, and return when all have started; in a dynamic supervisor,
        when those that live are adopted. Raises ActorStartError if one does not start,
        ActorNotPlacedError if that is not its fault or the store is away, and BadArgumentsError if
        the name of one would be too long.
        """
        try:
            for spec in self._supervisor.specs:
                check_child_name(self._name, spec.id, spec.options.name)
            if self._name.count("/") >= MOST_DEPTH:
                raise ActorStartError(
                    f"{self._name} is {MOST_DEPTH} levels deep in its tree: check whether a "
                    "supervisor starts itself, directly or through others",
                    actor=self._name,
                )
            await self._adopt()
        except StoreError as error:
            raise ActorNotPlacedError(
                f"{self._name} cannot be started now: {error}", actor=self._name
            ) from error
        finally:
            self._looked.set()
        if self._stopping:
            raise SupervisorStoppingError(f"{self._name} was stopped before it had any children")
        self._carries_out = True
        self._supervisor.nursery.start_soon(self._carry_out, name=f"supervision of {self._name}")
        self._queue_effects(self._begin())
        await self._ready.wait()
        if self._exit is not None:
            cls = ActorNotPlacedError if self._exit.kind == "not placed" else ActorStartError
            raise with_note(
                cls(
                    f"{self._name}: {self._exit.text}",
                    actor=self._name,
                    remote_traceback=self._exit.traceback,
                )
            )

    async def stop(self, reason: ExitReason) -> None:
        """Stop all children in reverse order, and return when they have ended. Children of a
        supervisor that is restarted on another node keep running.
        """
        self._stopping = True
        self._stops += 1
        try:
            await self._stop(reason)
        finally:
            self._stops -= 1

    async def _stop(self, reason: ExitReason) -> None:
        # Until then it is not known whether it is restarted, and which children live.
        await self._looked.wait()
        if reason.kind == "node left" and self._lasting:
            # It starts again elsewhere, and its children have no reason to end.
            self._work.cancel()
            return
        if not self._carries_out:
            # Its start was still looking, and nothing would set `_over`.
            await self._end(reason)
            return
        self._queue_effects(self._machine.stop(self._environment.now()))
        await self._over.wait()

    async def undo_start(self, reason: ExitReason) -> None:
        """The supervisor's start has failed. Stop the children that it has started in reverse
        order, and withdraw their intents: else calls of them would wait for as long as this node
        lives.
        """
        # Without `_carries_out` it has started none: those that live are its successor's.
        if self._carries_out and not self._over.is_set():
            await self.stop(reason)

    async def abandon(self, reason: ExitReason) -> None:
        """The supervisor has ended without `stop`: by a task of its class that raised, by a start
        that was cut short, or with an `on_stop` of its class that does not call its own. Unless it
        is restarted, calls that wait for the restart of a child fail, and its children are stopped,
        all at the same time. Where that is not known yet, this does not wait until it is.
        """
        if self._exit is not None or self._stops:
            return
        if self._lasting:
            self._node_nursery.start_soon(self._stop_unless_restarted, reason)
            return
        # None of them is started again, or still.
        self._work.cancel()
        # Without this, its intents would hold for as long as its node lives: nothing in the store
        # says that it has ended, and a call without a deadline would wait for ever.
        self._exit = reason
        children = list(self._children)
        await self._record_ends(children, f"it has ended and is not restarted: {reason}")
        await self._withdraw(children, last=True)
        # After the intents: calls of a child that has been stopped do not wait for it. What is not
        # reached in the caller's time is stopped as an orphan (`Orphans`).
        await self._stop_all(children, reason)

    async def _stop_unless_restarted(self, reason: ExitReason) -> None:
        """Stop the children, all at the same time, if the supervisor is not restarted after all:
        its own supervisor may end together with it, or may have stopped it in its start.
        """
        missing = 0
        for seconds in RESTART_LOOK_SECONDS:
            await trio.sleep(seconds)
            try:
                missing = 0 if await self._spawner.is_supervised(self._name) else missing + 1
            except (CallError, StoreError):
                missing = 0
            if missing == 2:
                await self._stop_all(list(self._children), reason)
                return

    async def _stop_all(self, children: Sequence[ChildState], reason: ExitReason) -> None:
        why = ExitReason("parent stopped", f"its supervisor {self._name} has ended: {reason}")
        async with trio.open_nursery() as nursery:
            for child in children:
                address = child.address or child.adopted
                if address is not None:
                    nursery.start_soon(self._stop_at, child, address, why)

    async def start_child(self, spec: ChildSpec) -> Handle:
        """Add a child, and return its handle once it has started. Raises TooManyChildrenError,
        ChildExistsError, SupervisorStoppingError, ActorNotNeededError and ActorStartError; where
        its failure is not the child's fault, ActorNotPlacedError. BadArgumentsError if its name
        would be too long.
        """
        check_child_name(self._name, spec.id, spec.options.name)
        rule = spec.rule()
        answer = await self._ask(lambda request: self._machine.add(rule, request), wanted=spec)
        if answer.reply == "too many children":
            raise TooManyChildrenError(
                f"{self._name} has {self._supervisor.max_children} children, its limit; it starts "
                "no more"
            )
        if answer.reply in ("already started", "already present"):
            state = (
                "runs"
                if answer.reply == "already started"
                else "is kept without an actor, or being restarted"
            )
            raise ChildExistsError(
                f"{self._path(spec.id)} exists already, and {state}; ids are unique in a supervisor"
            )
        return self._started(spec.id, answer)

    def next_id(self, template: ChildSpec) -> str:
        """The id of the next child that `spawn` makes from `template`."""
        # With the epoch: children of earlier epochs may have been adopted.
        return f"{template.id}-{self._address.epoch}-{self._spawned + 1}"

    async def spawn(
        self, template: ChildSpec, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Handle:
        """Add a child made from `template`, with an id of its own and these arguments, if any are
        given. Raises like `start_child`.
        """
        spec = attrs.evolve(
            template,
            id=self.next_id(template),
            args=args or template.args,
            kwargs=kwargs or template.kwargs,
            options=attrs.evolve(template.options, name=None),
        )
        self._spawned += 1
        return await self.start_child(spec)

    async def stop_child(self, child: str | Handle) -> None:
        """Stop a child; its spec stays, unless it is temporary. Raises ChildNotFoundError and
        SupervisorStoppingError.
        """
        id = self._children.id_of(child)
        # Before the stop: the intent is withdrawn as soon as the machine says that the child rests.
        self._ended.add(id)
        answer = await self._ask(lambda request: self._machine.terminate(id, request))
        self._refuse(id, answer)

    async def restart_child(self, child: str | Handle) -> Handle:
        """Start a child again that was stopped, and return its handle. Raises ChildRunningError,
        ChildNotFoundError and the errors of a start.
        """
        id = self._children.id_of(child)
        answer = await self._ask(lambda request: self._machine.restart(id, request))
        self._refuse(id, answer)
        return self._started(id, answer)

    async def delete_child(self, child: str | Handle) -> None:
        """Remove the spec of a stopped child. Raises ChildRunningError, ChildNotFoundError and
        SupervisorStoppingError.
        """
        id = self._children.id_of(child)
        answer = await self._ask(lambda request: self._machine.delete(id, request))
        self._refuse(id, answer)

    @property
    def child_count(self) -> int:
        """The number of children."""
        return len(self._children)

    def status(self, most: int | None = None) -> SupervisorStatus:
        """Return the supervisor's status. `most`: how many children it lists, the first in order;
        None for all.
        """
        now = self._environment.now()
        children: list[ChildStatus] = []
        for view in self._machine.children(most):
            child = self._children.get(view.rule.id)
            if child is not None:
                children.append(child.status(view, now))
        supervisor = self._supervisor
        return SupervisorStatus(
            name=self._name,
            strategy=supervisor.strategy,
            intensity=supervisor.intensity,
            period=supervisor.period,
            recent_restarts=self._machine.intensity.recent(now),
            automatic_shutdown=supervisor.automatic_shutdown,
            max_children=supervisor.max_children,
            children=tuple(children),
            deaths=tuple(self._deaths),
            children_left_out=0 if most is None else max(0, self.child_count - most),
        )

    def is_running(self, id: str) -> bool:
        """True if the child has started, and has neither ended nor begun to stop."""
        return self._machine.is_running(id)

    def running(self, prefix: str) -> list[tuple[str, Address]]:
        """The ids and addresses of the children that run and whose ids begin so, the oldest
        first.
        """
        return [
            (child.spec.id, child.address)
            for child in self._children
            if child.spec.id.startswith(prefix)
            and child.address is not None
            and self._machine.is_running(child.spec.id)
        ]

    def latest_deaths(self) -> Sequence[DeathReport]:
        """The latest ends of children, the oldest first."""
        return self._deaths

    # Requests

    def _path(self, id: str) -> str:
        return f"{self._name}/{id}"

    def _refuse(self, id: str, answer: SupervisorAnswer) -> None:
        """Raise the error of an answer, unless it reports success or the outcome of a start."""
        if answer.reply == "not found":
            raise self._children.not_found(id)
        if answer.reply in ("running", "restarting"):
            raise ChildRunningError(f"{self._path(id)} is {answer.reply}; stop it first")
        if answer.reply == "supervisor stopped":
            raise SupervisorStoppingError(
                f"{self._name} is stopping and takes no more requests for its child {id!r}"
            )

    def _started(self, id: str, answer: SupervisorAnswer) -> Handle:
        """Return the handle of a child that was started on request. Raises if it was not."""
        self._refuse(id, answer)
        child = self._children.get(id)
        if answer.reply == "ignored":
            raise ActorNotNeededError(
                f"{self._path(id)} is not needed: its on_start raised Ignore",
                actor=child.name if child is not None else None,
            )
        if answer.reply == "start failed" or child is None or child.address is None:
            reason = answer.reason or ExitReason("start failed", "it ended at once")
            text = f"{self._path(id)} did not start: {reason}"
            cls = ActorNotPlacedError if reason.kind == "not placed" else ActorStartError
            raise with_note(cls(text, actor=self._path(id), remote_traceback=reason.traceback))
        return self._spawner.handle(child.address)

    async def _ask(
        self, question: Callable[[int], list[Effect]], wanted: ChildSpec | None = None
    ) -> SupervisorAnswer:
        """Return the machine's answer. `wanted`: the child to add; it is added even if the caller
        is cancelled.
        """
        self._requests += 1
        request = self._requests
        event = self._answered[request] = trio.Event()
        try:
            effects = question(request)
            if wanted is not None:
                # Before the effects, which name the child by its id.
                self._children.want(wanted, request)
            self._queue_effects(effects)
            await event.wait()
            return self._answers.pop(request)
        finally:
            del self._answered[request]

    # Adoption

    async def _adopt(self) -> None:
        """Find the children that outlived an earlier epoch of this supervisor; stop those that
        cannot be adopted.
        """
        if not self._address.registered:
            return
        self._lasting = await self._spawner.is_promised(self._name)
        if self._lasting:
            static = [child.name for child in self._children if child.spec.restart != "temporary"]
            await self._spawner.begin_intents(self._address, static)
        for spec in await self._spawner.added(self._address):
            if self._children.get(spec.id) is None:
                self._children.put(spec, added=True)
        living = await self._spawner.living(self._name, [child.name for child in self._children])
        lives = {child.spec.id for child in self._children if child.name in living}
        # A temporary child that has ended is not restarted, so it is not in the order.
        order = [
            child.spec.id
            for child in self._children
            if child.spec.id in lives or child.spec.restart != "temporary"
        ]
        strategy, most = self._supervisor.strategy, self._supervisor.max_children
        kept, given_up = adopted("one-for-one" if strategy == "dynamic" else strategy, order, lives)
        if most is not None and len(kept) > most:
            kept, given_up = kept[:most], kept[: most - 1 : -1]
        for id in given_up:
            child = self._children[id]
            reason = ExitReason(
                "stopped", f"{self._name} was restarted, and cannot keep what it was started with"
            )
            await self._stop_at(child, living[child.name], reason)
        for child in self._children:
            if child.spec.id in kept:
                child.adopted = living[child.name]
            elif child.added and (
                child.spec.restart == "temporary"
                or (strategy == "dynamic" and child.spec.id in given_up)
            ):
                await self._withdraw([self._children.forget(child.spec.id)])
        self._counts.adoptions += len(kept)
        if kept:
            logger.info("%s adopts %s", self._name, ", ".join(kept))

    def _begin(self) -> list[Effect]:
        """Return the first effects. Children that were added to an earlier epoch start like those
        of the constructor.
        """
        added = [child.spec for child in self._children if child.added]
        now = self._environment.now()
        if self._supervisor.strategy == "dynamic":
            self._to_adopt = {
                child.spec.id for child in self._children if child.adopted is not None
            }
            effects = self._machine.start(now)
            for spec in added:
                effects += self._machine.add(spec.rule(), None)
            return effects
        if added:
            self._machine = self._supervisor.machine(
                (*self._supervisor.specs, *added), self._environment.random
            )
        return self._machine.start(now)

    # Effects

    def _queue_effects(self, effects: list[Effect]) -> None:
        """Queue effects; one task carries them out, one after the other. Answers to requests are
        delivered at once.
        """
        for effect in effects:
            if isinstance(effect, SupervisorAnswer):
                self._children.settle(effect)
                if effect.request in self._answered:
                    self._answers[effect.request] = effect
                    self._answered[effect.request].set()
            elif isinstance(effect, Forgotten):
                self._queue.append(_Due(effect, self._children.forget(effect.id)))
                self._on_settled(effect.id)
            elif isinstance(effect, StartChild | StopChild):
                self._queue.append(_Due(effect, self._children[effect.id]))
            else:
                self._queue.append(effect)
        self._has_effects.set()
        if self._is_ready:
            ids = [
                effect.id
                for effect in effects
                if isinstance(effect, StartChild | StopChild | Forgotten)
            ]
            self._supervisor._on_children_changed(ids)

    def _on_settled(self, id: str) -> None:
        """A child is adopted, or forgotten."""
        self._to_adopt.discard(id)
        self._look_whether_ready()

    def _look_whether_ready(self) -> None:
        # A dynamic machine has started at once, but the adoption of a child takes a write to the
        # store. Until then the child counts as starting, and the code after the `on_start` of a
        # dynamic supervisor would take it for dead, and start another one in its place.
        if self._has_started and not self._to_adopt:
            self._is_ready = True
            self._ready.set()

    async def _carry_out(self) -> None:
        if not self._is_ready:
            self.begin_in_start()
        try:
            with self._work:
                async with trio.open_nursery() as tasks:
                    while not self._over.is_set():
                        await self._has_effects.wait()
                        # Replaced before the look at the queue: an effect that is queued from now
                        # on sets the new event.
                        self._has_effects = trio.Event()
                        begun = 0
                        while self._queue:
                            await self._carry_out_one(self._queue.popleft(), tasks)
                            begun += 1
                            if begun % BEGUN_IN_A_ROW == 0:
                                await trio.lowlevel.checkpoint()
                        await self._withdraw_void_intents()
        finally:
            # However this task ends, wake all that wait for it.
            self._ready.set()
            self._over.set()
        if self._exit is not None and self._is_ready and self._exit.kind == "shutdown":
            self._counts.escalations += 1
            raise SupervisorGaveUpError(self._exit.text)

    async def _withdraw_void_intents(self) -> None:
        """Withdraw the restart intents of children that will not be restarted, for example a
        stopped transient child, so that callers waiting for the name fail.
        """
        if self._machine.phase in ("stopping", "ended"):
            # The next epoch of this supervisor may start them again: `_end` decides that.
            return
        void: list[ChildState] = []
        for id in tuple(self._ended):
            child = self._children.get(id)
            if child is None or not self._machine.waits(id):
                self._ended.discard(id)
                if child is not None and self._machine.rests(id):
                    void.append(child)
        await self._withdraw(void, forget=False)

    async def _carry_out_one(self, effect: Effect | _Due, tasks: trio.Nursery) -> None:
        if isinstance(effect, _Due):
            child = effect.child
            if isinstance(effect.effect, StartChild):
                start = self._start_of(child)
                tasks.start_soon(
                    self._start_child, child, start, name=f"child {child.spec.id} of {self._name}"
                )
                # An adoption waits for the store, and for no other child.
                if isinstance(self._machine, RestartMachine) and child.adopted is None:
                    tasks.start_soon(self._give_up_if_it_holds_up, self._machine, start)
            elif isinstance(effect.effect, StopChild):
                tasks.start_soon(self._stop_child, child)
            else:
                # Awaited in the order of the effects, as no start or stop is: a child that is added
                # again under this id writes its intent after this one is gone.
                forgotten = [child, *self._forgotten()]
                for one in forgotten:
                    if one.adopted is not None:
                        # Its adoption has waited for the store until now. No supervisor would stop
                        # it later, nor start it again.
                        tasks.start_soon(self._stop_forgotten, one)
                await self._withdraw(forgotten)
        elif isinstance(effect, TryAgain):
            tasks.start_soon(self._try_again, effect)
        elif isinstance(effect, AllStarted):
            self._has_started = True
            self._look_whether_ready()
        elif isinstance(effect, Exit):
            await self._end(effect.reason)
            tasks.cancel_scope.cancel()

    def _forgotten(self) -> Iterator[ChildState]:
        """Remove and return the children of further `Forgotten` effects at the head of the queue:
        one transaction withdraws many intents.
        """
        # Only from the head: effects are carried out in the order in which the machine gave them.
        while (
            self._queue
            and isinstance(self._queue[0], _Due)
            and isinstance(self._queue[0].effect, Forgotten)
        ):
            yield self._queue[0].child
            self._queue.popleft()

    async def _end(self, reason: ExitReason) -> None:
        """Stop children that were found for adoption and not adopted yet: nothing that this
        supervisor started may outlive it.
        """
        self._exit = reason
        for child in reversed(tuple(self._children)):
            if child.adopted is not None:
                await self._stop_at(
                    child, child.adopted, ExitReason("parent stopped", f"by {self._name}")
                )
        children = list(self._children)
        # Also of those whose intents stay: if this supervisor is not restarted after all, its own
        # supervisor withdraws them, and does not know how they ended.
        await self._record_ends(children)
        if await self._is_restarted():
            # The intents of the constructor's children stay: calls wait for the next epoch, which
            # starts them. If there is none, this supervisor's supervisor withdraws them.
            children = [child for child in children if child.added]
            await self._withdraw(children)
        else:
            await self._withdraw(children, last=True)
        self._ready.set()
        self._over.set()

    async def _is_restarted(self) -> bool:
        """Return True if this supervisor will be restarted, or the store does not answer."""
        if not self._lasting:
            return False
        try:
            return await self._spawner.is_promised(self._name)
        except StoreError:
            return True

    async def _withdraw(
        self, children: Sequence[ChildState], *, forget: bool = True, last: bool = False
    ) -> None:
        """Withdraw the intents for these children from the store. `forget`: delete the specs of
        added children as well. `last`: this supervisor ends, and is not restarted.
        """
        concerned = [child for child in children if child.intent != "none" or child.added]
        for child in concerned:
            child.intent = "none"
        names = [child.name for child in concerned]
        forgotten = [child.spec.id for child in concerned if child.added] if forget else []
        if not names and not (last and self._lasting):
            return
        # Before the intents go: callers that wait then fail, and read how the child has ended.
        if self._exit is None:
            await self._record_ends(concerned)
        try:
            await self._spawner.withdraw_intents(self._address, names, forgotten, last=last)
        except StoreError as error:
            # Else callers would wait for these children as long as this node lives, and the next
            # epoch would start them.
            known = [child for child in concerned if child.written_at]
            self._spawner.withdraw_intents_later(
                self._address,
                {child.name: child.written_at for child in known},
                {child.spec.id: child.written_at for child in known if child.added and forget},
            )
            # Nothing to look into: the store may have left in order, together with this node. That
            # it cannot be reached for long is said elsewhere.
            logger.info(
                "%s withdraws its restart intents for %s later: %s",
                self._name,
                ", ".join(names[:10]),
                error,
            )

    async def _record_ends(self, children: Sequence[ChildState], gave_up: str = "") -> None:
        """Record in the store how these children failed last, or why their supervisor gave up, for
        callers that wait for them.
        """
        if self._exit is not None and self._exit.kind == "shutdown":
            gave_up = str(self._exit)
        ends: dict[str, str] = {}
        for child in children[-MOST_RECORDED:]:
            own = str(child.last_failure) if child.last_failure is not None else ""
            if own or gave_up:
                ends[child.name] = (
                    f"{own}; its supervisor {self._name}: {gave_up}"
                    if own and gave_up
                    else own or gave_up
                )
        if ends:
            try:
                await self._spawner.record_ends(ends)
            except StoreError as error:
                logger.info(
                    "%s could not write to the store how its children have ended: %s",
                    self._name,
                    error,
                )

    def _start_of(self, child: ChildState) -> ChildStart:
        return ChildStart(
            child,
            self._name,
            partial(self._write_intent, child),
            self._spawner,
            self._environment,
            self._start_deadlines,
        )

    async def _give_up_if_it_holds_up(self, machine: RestartMachine, start: ChildStart) -> None:
        """Give the start up if it holds up the restart of a child before it, as its `on_start` does
        when it calls that one: such a call waits for the restart. Else it would wait until the
        start timeout is over.
        """
        id, held_up = start.child.spec.id, False
        while True:
            with trio.move_on_after(START_PATIENCE * 2 ** min(start.child.put_off, 10)):
                await start.over.wait()
            if start.over.is_set():
                return
            if not machine.holds_up(id):
                held_up = False
            elif held_up:
                start.given_up.cancel()
                return
            else:
                held_up = True

    def _on_put_off(self, child: ChildState) -> None:
        # Its name is asked for again: what was started of it is found then, as after a start that
        # took too long.
        child.put_off += 1
        child.scope = None
        logger.info(
            "the start of %s was given up: it begins again after the restart of a child before it",
            child.name,
        )
        assert isinstance(self._machine, RestartMachine)
        self._queue_effects(self._machine.put_off(child.spec.id, self._environment.now()))

    async def _start_child(self, child: ChildState, start: ChildStart) -> None:
        id, is_adopted = child.spec.id, child.adopted is not None
        with trio.CancelScope() as scope:
            child.scope = scope
            try:
                address = await start.start_in_turn()
            except StartPutOffError:
                self._on_put_off(child)
                return
            except trio.Cancelled:
                if scope.cancel_called:
                    self._spawner.take_back_unknown(start.unknown)
                raise
            except ActorNotNeededError as error:
                logger.info("%s is not needed, its on_start raised Ignore: %s", child.name, error)
                self._ended.add(id)
                self._queue_effects(self._machine.on_ignored(id))
                return
            except (CallError, UnderstudyError) as error:
                kind: ExitKind = "start failed" if is_its_fault(error) else "not placed"
                child.lacks_room = isinstance(error, NO_ROOM)
                text = str(error)
                if not text.startswith(child.name):
                    text = f"{child.name}: {text}"
                self._end_of(
                    child,
                    ExitReason(kind, text, getattr(error, "remote_traceback", "")),
                    failed=True,
                )
                if self._children.get(id) is not child or self._machine.rests(id):
                    # Its name is known, but no task asks for it again: it would run for ever.
                    self._spawner.take_back_unknown(start.unknown)
                return
            child.address = address
            child.put_off = 0
            child.lacks_room = False
            child.spec = child.spec.to_keep()
            if child.latest_epoch and child.latest_epoch != address.epoch:
                self._counts.restarted.add(child.name)
            child.latest_epoch = address.epoch
            child.started_at = self._environment.now()
            logger.info("%s runs on %s (epoch %d)", child.name, address.node, address.epoch)
            self._queue_effects(self._machine.on_started(id, child.started_at))
            self._on_settled(id)
            reason = await self._spawner.watch_address(address)
            if scope.cancel_called:
                # Its end was handled by the task that stops it, or as the loss of its node.
                return
            if reason.kind == "node died":
                self._lost_with_node(address, reason)
            else:
                # Its name was claimed, and the start that had claimed it ended with the supervisor
                # which had begun it: nothing to look into.
                self._end_of(child, reason, expected=is_adopted and reason.kind == "no such actor")

    def _lost_with_node(self, at: Address, reason: ExitReason) -> None:
        """Handle the death of a node: all children that were on it are lost, as one event."""
        lost: list[ChildState] = []
        for child in self._children:
            if child.address is not None and (child.address.node, child.address.incarnation) == (
                at.node,
                at.incarnation,
            ):
                lost.append(child)
                self._report(child, child.address, reason)
                child.address = None
                if child.scope is not None:
                    # Its own watch would report the same death again.
                    child.scope.cancel()
                    child.scope = None
        ids = [child.spec.id for child in lost]
        self._ended.update(ids)
        running = self._machine.phase not in ("stopping", "ended")
        effects = self._machine.on_lost(set(ids), reason, self._environment.now())
        level, text = lost_line(
            self._name,
            [(child.spec.id, child.spec.restart) for child in lost],
            reason,
            ends_supervisor=running and self._machine.phase in ("stopping", "ended"),
            temporary=self._supervisor.after_temporary or AFTER_TEMPORARY,
        )
        self._log(level, text, reason)
        self._count(effects, reason)
        self._queue_effects(effects)

    def _log(self, level: int, text: str, reason: ExitReason) -> None:
        if not reason.is_failure and self._spawner.cluster_closes:
            # All nodes leave at once, each in its own time: no child could be started again, and
            # that is no fault to look into.
            level = logging.INFO
        logger.log(level, text)

    def _count(self, effects: list[Effect], reason: ExitReason) -> None:
        """Count an end after which children are started again."""
        if any(isinstance(effect, StartChild | StopChild | TryAgain) for effect in effects):
            named = self._name in self._counts.named_supervisors
            self._counts.restarts.add(self._name if named else "", reason.kind)

    @property
    def name(self) -> str:
        """The supervisor's."""
        return self._name

    @property
    def intensity_used(self) -> float:
        """The share of the restarts allowed within the period that have been made. Above 1 the
        supervisor gives up.
        """
        recent = self._machine.intensity.recent(self._environment.now())
        return recent / max(1, self._supervisor.intensity)

    def _end_of(
        self,
        child: ChildState,
        reason: ExitReason,
        *,
        failed: bool = False,
        expected: bool = False,
    ) -> None:
        """Handle the end of a child's actor that was not stopped, or its failed start. One that is
        `expected` is logged at level INFO, unless the supervisor ends with it.
        """
        # The phase before the machine handles the end, by which it may enter another.
        id, now, running = (
            child.spec.id,
            self._environment.now(),
            self._machine.phase not in ("stopping", "ended"),
        )
        node = child.address.node if child.address is not None else None
        self._ended.add(id)
        self._report(child, child.address, reason)
        child.last_failure = None if reason.is_normal or not reason.is_failure else reason
        child.address = None
        child.scope = None
        effects = (
            self._machine.on_start_failed(id, reason, now)
            if failed
            else self._machine.on_exited(id, reason, now)
        )
        ends_supervisor = running and self._machine.phase in ("stopping", "ended")
        level, text = end_line(
            child.name,
            node,
            reason,
            child.spec.restart,
            failed=failed,
            ends_supervisor=ends_supervisor,
            is_answer=any(
                isinstance(effect, SupervisorAnswer) and effect.reply == "start failed"
                for effect in effects
            ),
            temporary=self._supervisor.after_temporary or AFTER_TEMPORARY,
        )
        is_known = failed and (child.fails or self._supervisor.logs_failed_starts)
        is_quiet = (is_known or expected) and not ends_supervisor
        self._log(logging.INFO if is_quiet else level, text, reason)
        child.fails = failed
        if not ends_supervisor:
            self._count(effects, reason)
        self._queue_effects(effects)

    def _report(self, child: ChildState, address: Address | None, reason: ExitReason) -> None:
        node, epoch = (address.node, address.epoch) if address is not None else (None, None)
        at = self._environment.wall_time()
        # From the age, which is by the monotonic clock: the wall clock may have been set meanwhile.
        started = at - (self._environment.now() - child.started_at) if address is not None else None
        self._deaths.append(
            DeathReport(
                id=child.spec.id,
                name=child.name,
                node=node,
                epoch=epoch,
                reason=reason,
                at=at,
                started=started,
            )
        )

    async def _write_intent(self, child: ChildState) -> None:
        """Write the restart intent for the child's name, if it will be restarted and has none
        yet.
        """
        temporary = child.spec.restart == "temporary"
        if child.intent == "written" or (temporary and not child.added):
            return
        # In doubt until the store has answered: a request that was cut short may have been carried
        # out, and then has to be withdrawn.
        child.intent = "in doubt"
        added = child.spec if child.added else None
        child.written_at = await self._spawner.write_intent(
            child.name, self._address, lasting=self._lasting, added=added
        )
        child.intent = "written"

    async def _stop_child(self, child: ChildState) -> None:
        # A child that is not adopted yet is stopped like an adopted one.
        address, child.address, child.adopted = child.address or child.adopted, None, None
        if child.scope is not None:
            child.scope.cancel()
            child.scope = None
        if address is not None:
            stopping = self._machine.phase == "stopping"
            await self._stop_at(
                child,
                address,
                ExitReason("parent stopped" if stopping else "stopped", f"by {self._name}"),
            )
        self._ended.add(child.spec.id)
        self._queue_effects(self._machine.on_stopped(child.spec.id))

    async def _stop_forgotten(self, child: ChildState) -> None:
        address, child.adopted = child.adopted, None
        assert address is not None, "it was not adopted"
        await self._stop_at(child, address, ExitReason("stopped", f"by {self._name}"))

    async def _stop_at(self, child: ChildState, address: Address, reason: ExitReason) -> None:
        """Stop the actor of a child, within its `shutdown` time. If it ended in another way
        meanwhile, that is reported.
        """
        shutdown = child.spec.shutdown
        with self._stop_deadlines.given(seconds_of(shutdown)) as scope:
            try:
                # Thousands of children that have nothing to do are stopped in a few messages, and
                # their names given back in as many writes. "kill" has an exit reason of its own.
                together = shutdown != "kill" and await self._spawner.stop_together(address, reason)
                ended = (
                    reason
                    if together
                    else await self._spawner.stop_address(address, reason, shutdown)
                )
            except (CallError, UnderstudyError) as error:
                logger.info("%s could not be asked to stop: %s", child.name, error)
            else:
                if (
                    ended is not None
                    and not ended.is_normal
                    and (ended.kind != "killed" or shutdown != "kill")
                ):
                    self._report(child, address, ended)
        if scope.cancelled_caught:
            self._report(
                child,
                address,
                ExitReason(
                    "killed", f"{reason}; it did not stop within {shutdown} s, and is left behind"
                ),
            )
            self._on_left_behind(
                f"{self._path(child.spec.id)} (epoch {address.epoch}) on {address.node}"
            )

    def _on_left_behind(self, child: str) -> None:
        self._left_behind.append(child)
        if len(self._left_behind) == 1:
            self._node_nursery.start_soon(self._report_left_behind)

    async def _report_left_behind(self) -> None:
        """Log the children that did not stop in their time: in one line, however many there are."""
        try:
            await trio.sleep(LEFT_BEHIND_SECONDS)
        finally:
            left, self._left_behind = self._left_behind, []
            shown, others = left[:LEFT_BEHIND_SHOWN], len(left) - LEFT_BEHIND_SHOWN
            logger.error(
                "%s: %d of its children did not stop within their shutdown time, and are left "
                "behind: %s%s",
                self._name,
                len(left),
                ", ".join(shown),
                f" and {others} others" if others > 0 else "",
            )

    async def _try_again(self, effect: TryAgain) -> None:
        child, has_room = self._children.get(effect.id), False
        if child is None or not child.lacks_room:
            await trio.sleep_until(effect.at)
        else:
            seconds = effect.at - self._environment.now()
            has_room = await self._spawner.wait_for_room(
                child.spec.options,
                child.room_seen,
                seconds,
                # It may be stopped, or be started with its group.
                lambda: self._machine.due(effect.id) == effect.at,
            )
        now = self._environment.now()
        self._queue_effects(self._machine.try_again(effect.id, now, has_room=has_room))

    async def wait_for_room(self, spec: ChildSpec, since: int, seconds: float) -> bool:
        """Wait until a child that was not placed may be, for at most so many seconds: True if it
        may. `since`: the `room_changes` before the attempt that has failed.
        """
        return await self._spawner.wait_for_room(spec.options, since, seconds)

    @property
    def room_changes(self) -> int:
        """How often there may have been more room for children, on any node."""
        return self._spawner.room.changes
