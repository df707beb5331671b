"""A supervisor at work: starts children where they fit, watches them, and does what the decision machine says.

Effects are carried out in the machine's order by one task; each running child is watched by a call that its node answers when the child has
ended. Names of children are promised, so that calls to one that is being restarted wait for it instead of failing. A supervisor that begins
where another of its name ended adopts the children that live: see `actors.adoption`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from actors.adoption import adopted
from actors.children import ChildSpec, ChildStatus, DeathReport, SupervisorStatus
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
from actors.supervision import Answer, Effect, Exit, ExitKind, ExitReason, Forgotten, Ready, Start, Stop, TryAgain
from actors.supervisor import Supervisor
from runtime.environment import Environment
from runtime.hosting.elsewhere import with_note
from runtime.supervision.ends import told
from runtime.supervision.margins import Margins
from runtime.supervision.operations import Child, Operations, seconds_of
from runtime.supervision.starts import NOT_ITS_FAULT, start_somewhere
from runtime.supervision.table import ChildTable

DEATHS_KEPT = 50
MOST_DEPTH = 20
"""Levels of a tree: a supervisor that starts itself, by whatever detour, comes to an end here."""

MOST_TOLD = 1_000
"""Children of whose ends those who wait for them are told."""

logger = logging.getLogger("understudy.supervision")


@attrs.frozen
class _Due:
    """Something to be carried out. The child is the one that the machine spoke of then: another may have its id by now."""

    effect: Start | Stop | Forgotten
    child: Child


class SupervisionWork:
    """See `actors.supervisor.SupervisorWork`."""

    def __init__(self, supervisor: Supervisor, address: Address, operations: Operations, environment: Environment) -> None:
        self._supervisor = supervisor
        self._address = address
        self._name = address.name
        self._lasting = False
        """True if somebody starts this supervisor again."""
        self._operations = operations
        self._environment = environment
        self._children = ChildTable(self._name, supervisor.specs)
        self._machine = supervisor.machine(supervisor.specs, environment.random)
        self._queue: deque[Effect | _Due] = deque()
        self._more = trio.Event()
        self._ready = trio.Event()
        self._over = trio.Event()
        self._is_ready = False
        self._exit: ExitReason | None = None
        self._answers: dict[object, Answer] = {}
        self._answered: dict[object, trio.Event] = {}
        self._requests = 0
        self._spawned = 0
        self._deaths: deque[DeathReport] = deque(maxlen=DEATHS_KEPT)
        self._margins = Margins()
        self._ended: set[str] = set()
        """Children whose actors have ended: if they stay so, nobody is to wait for them."""
        self._work = trio.CancelScope()
        self.begin_in_start: Callable[[], None] = lambda: None
        """Says that the supervisor's start waits for the running task: a child that calls its supervisor meanwhile would wait for ever."""

    # What supervisors are asked

    async def start(self) -> None:
        """See `SupervisorWork.start`."""
        if self._name.count("/") >= MOST_DEPTH:
            raise ActorStartError(
                f"{self._name} is {MOST_DEPTH} levels deep in its tree: does a supervisor start itself, perhaps by way of others?",
                actor=self._name,
            )
        try:
            await self._adopt()
        except StoreError as error:
            raise ActorNotPlacedError(f"{self._name} cannot be started now: {error}", actor=self._name) from error
        self._supervisor.nursery.start_soon(self._carry_out, name=f"supervision of {self._name}")
        self._do(self._begin())
        await self._ready.wait()
        if self._exit is not None:
            cls = ActorNotPlacedError if self._exit.kind == "not placed" else ActorStartError
            raise with_note(cls(f"{self._name}: {self._exit.text}", actor=self._name, remote_traceback=self._exit.traceback))

    async def stop(self, reason: ExitReason) -> None:
        """See `SupervisorWork.stop`."""
        if reason.kind == "node left" and self._lasting:
            # It starts again elsewhere, and its children have no reason to end.
            self._work.cancel()
            return
        self._do(self._machine.stop(self._environment.now()))
        await self._over.wait()

    async def start_child(self, spec: ChildSpec) -> Handle:
        """See `Supervisor.start_child`."""
        rule = spec.rule()
        answer = await self._ask(lambda request: self._machine.add(rule, request), wanted=spec)
        if answer.reply == "too many children":
            raise TooManyChildrenError(f"{self._name} has {self._supervisor.max_children} children, its limit; it starts no more")
        if answer.reply in ("already started", "already present"):
            state = "runs" if answer.reply == "already started" else "is kept without an actor, or being restarted"
            raise ChildExistsError(f"{self._path(spec.id)} exists already, and {state}; ids are unique in a supervisor")
        return self._started(spec.id, answer)

    async def spawn(self, template: ChildSpec, args: tuple[object, ...], kwargs: dict[str, object]) -> Handle:
        """See `DynamicSupervisor.spawn`."""
        self._spawned += 1
        spec = attrs.evolve(
            template,
            id=f"{template.id}-{self._address.epoch}-{self._spawned}",
            args=args or template.args,
            kwargs=kwargs or template.kwargs,
            options=attrs.evolve(template.options, name=None),
        )
        return await self.start_child(spec)

    async def stop_child(self, child: str | Handle) -> None:
        """See `Supervisor.stop_child`."""
        id = self._children.id_of(child)
        self._ended.add(id)
        answer = await self._ask(lambda request: self._machine.terminate(id, request))
        self._refuse(id, answer)

    async def restart_child(self, child: str | Handle) -> Handle:
        """See `Supervisor.restart_child`."""
        id = self._children.id_of(child)
        answer = await self._ask(lambda request: self._machine.restart(id, request))
        self._refuse(id, answer)
        return self._started(id, answer)

    async def delete_child(self, child: str | Handle) -> None:
        """See `Supervisor.delete_child`."""
        id = self._children.id_of(child)
        answer = await self._ask(lambda request: self._machine.delete(id, request))
        self._refuse(id, answer)

    def status(self) -> SupervisorStatus:
        """See `Supervisor.status`."""
        now = self._environment.now()
        children: list[ChildStatus] = []
        for view in self._machine.children():
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
        )

    # Requests

    def _path(self, id: str) -> str:
        return f"{self._name}/{id}"

    def _refuse(self, id: str, answer: Answer) -> None:
        """Raise what an answer amounts to, unless it says that all went well, or how a start went."""
        if answer.reply == "not found":
            raise self._children.not_found(id)
        if answer.reply in ("running", "restarting"):
            raise ChildRunningError(f"{self._path(id)} is {answer.reply}; stop it first")
        if answer.reply == "supervisor stopped":
            raise SupervisorStoppingError(f"{self._name} is stopping, and does nothing more for {id!r}")

    def _started(self, id: str, answer: Answer) -> Handle:
        """The handle of a child that was started on request; raises if it was not."""
        self._refuse(id, answer)
        child = self._children.get(id)
        if answer.reply == "ignored":
            raise ActorNotNeededError(f"{self._path(id)} does not want to run", actor=child.name if child is not None else None)
        if answer.reply == "start failed" or child is None or child.address is None:
            reason = answer.reason or ExitReason("start failed", "it ended at once")
            text = f"{self._path(id)} did not start: {reason}"
            raise with_note(ActorStartError(text, actor=self._path(id), remote_traceback=reason.traceback))
        return self._operations.handle(child.address)

    async def _ask(self, question: Callable[[int], list[Effect]], wanted: ChildSpec | None = None) -> Answer:
        """The machine's answer. `wanted`: the child that it is to add; it does, also if nobody waits for the answer any more."""
        self._requests += 1
        request = self._requests
        event = self._answered[request] = trio.Event()
        try:
            effects = question(request)
            if wanted is not None:
                self._children.want(wanted, request)
            self._do(effects)
            await event.wait()
            return self._answers.pop(request)
        finally:
            del self._answered[request]

    # Adoption

    async def _adopt(self) -> None:
        """Find the children that outlived an earlier incarnation of this supervisor; stop those that cannot be kept."""
        if not self._address.registered:
            return
        self._lasting = await self._operations.is_promised(self._name)
        if self._lasting:
            static = [child.name for child in self._children if child.spec.restart != "temporary"]
            await self._operations.begin(self._address, static)
        for spec in await self._operations.added(self._address):
            if self._children.get(spec.id) is None:
                self._children.put(spec, added=True)
        living = await self._operations.living(self._name, [child.name for child in self._children])
        lives = {child.spec.id for child in self._children if child.name in living}
        # A temporary child that has ended was not restarted with the others, and is not missed.
        order = [child.spec.id for child in self._children if child.spec.id in lives or child.spec.restart != "temporary"]
        strategy, most = self._supervisor.strategy, self._supervisor.max_children
        kept, given_up = adopted("one-for-one" if strategy == "dynamic" else strategy, order, lives)
        if most is not None and len(kept) > most:
            kept, given_up = kept[:most], kept[: most - 1 : -1]
        for id in given_up:
            child = self._children[id]
            reason = ExitReason("stopped", f"{self._name} was restarted, and cannot keep what it was started with")
            await self._stop_at(child, living[child.name], reason)
        for child in self._children:
            if child.spec.id in kept:
                child.adopted = living[child.name]
            elif child.added and (child.spec.restart == "temporary" or (strategy == "dynamic" and child.spec.id in given_up)):
                await self._withdraw([self._children.forget(child.spec.id)])
        if kept:
            logger.info("%s adopts %s", self._name, ", ".join(kept))

    def _begin(self) -> list[Effect]:
        """Children that an earlier incarnation was given are as good as those of the constructor."""
        added = [child.spec for child in self._children if child.added]
        now = self._environment.now()
        if self._supervisor.strategy == "dynamic":
            effects = self._machine.start(now)
            for spec in added:
                effects += self._machine.add(spec.rule(), None)
            return effects
        if added:
            self._machine = self._supervisor.machine((*self._supervisor.specs, *added), self._environment.random)
        return self._machine.start(now)

    # Carrying out

    def _do(self, effects: list[Effect]) -> None:
        """Queue effects; they are carried out one after another. What concerns nobody else is done at once."""
        for effect in effects:
            if isinstance(effect, Answer):
                self._children.settle(effect)
                if effect.request in self._answered:
                    self._answers[effect.request] = effect
                    self._answered[effect.request].set()
            elif isinstance(effect, Forgotten):
                self._queue.append(_Due(effect, self._children.forget(effect.id)))
            elif isinstance(effect, Start | Stop):
                self._queue.append(_Due(effect, self._children[effect.id]))
            else:
                self._queue.append(effect)
        self._more.set()

    async def _carry_out(self) -> None:
        if not self._is_ready:
            self.begin_in_start()
        try:
            with self._work:
                async with trio.open_nursery() as tasks:
                    while not self._over.is_set():
                        await self._more.wait()
                        self._more = trio.Event()
                        while self._queue:
                            await self._carry_out_one(self._queue.popleft(), tasks)
                        await self._withdraw_vain_promises()
        finally:
            # However it ends, nobody waits for it any longer.
            self._ready.set()
            self._over.set()
        if self._exit is not None and self._is_ready and self._exit.kind == "shutdown":
            raise SupervisorGaveUpError(str(self._exit))

    async def _withdraw_vain_promises(self) -> None:
        """A child that ended and stays so, a transient one that was stopped for example, is nobody's to wait for."""
        if self._machine.phase in ("stopping", "ended"):
            # What stops now may be started again by the next incarnation: see `_end`.
            return
        vain: list[Child] = []
        for id in tuple(self._ended):
            child = self._children.get(id)
            if child is None or not self._machine.waits(id):
                self._ended.discard(id)
                if child is not None and self._machine.rests(id):
                    vain.append(child)
        await self._withdraw(vain, forget=False)

    async def _carry_out_one(self, effect: Effect | _Due, tasks: trio.Nursery) -> None:
        if isinstance(effect, _Due):
            child = effect.child
            if isinstance(effect.effect, Start):
                tasks.start_soon(self._start_child, child, name=f"child {child.spec.id} of {self._name}")
            elif isinstance(effect.effect, Stop):
                tasks.start_soon(self._stop_child, child)
            else:
                await self._withdraw([child, *self._forgotten()])
        elif isinstance(effect, TryAgain):
            tasks.start_soon(self._try_again, effect)
        elif isinstance(effect, Ready):
            self._is_ready = True
            self._ready.set()
        elif isinstance(effect, Exit):
            await self._end(effect.reason)
            tasks.cancel_scope.cancel()

    def _forgotten(self) -> Iterator[Child]:
        """Those that come next in the queue and are forgotten as well: a transaction takes many."""
        while self._queue and isinstance(self._queue[0], _Due) and isinstance(self._queue[0].effect, Forgotten):
            yield self._queue[0].child
            self._queue.popleft()

    async def _end(self, reason: ExitReason) -> None:
        """Nothing runs any more that was started here. What was to be adopted, and did not come to it, does not outlive this."""
        self._exit = reason
        for child in reversed(tuple(self._children)):
            if child.adopted is not None:
                await self._stop_at(child, child.adopted, ExitReason("parent stopped", f"by {self._name}"))
        children = list(self._children)
        # Also of those that keep their promises: whoever decides that this is not restarted knows nothing of how they ended.
        await self._tell(children)
        if await self._is_restarted():
            # Calls to those that it will begin with again wait for that. Whoever decides that it does not withdraws them.
            children = [child for child in children if child.added]
            await self._withdraw(children)
        else:
            await self._withdraw(children, last=True)
        self._ready.set()
        self._over.set()

    async def _is_restarted(self) -> bool:
        """True if somebody will start this supervisor again, as far as anybody knows."""
        if not self._lasting:
            return False
        try:
            return await self._operations.is_promised(self._name)
        except StoreError:
            return True

    async def _withdraw(self, children: Sequence[Child], *, forget: bool = True, last: bool = False) -> None:
        """Take back what the store knows of these children; but for their specs, unless they are to be forgotten. See `Operations`."""
        concerned = [child for child in children if child.promise != "none" or child.added]
        for child in concerned:
            child.promise = "none"
        names = [child.name for child in concerned]
        forgotten = [child.spec.id for child in concerned if child.added] if forget else []
        if not names and not (last and self._lasting):
            return
        if self._exit is None:
            await self._tell(concerned)
        try:
            await self._operations.withdraw(self._address, names, forgotten, last=last)
        except StoreError as error:
            logger.warning("%s could not take back what it promised of %s: %s", self._name, ", ".join(names[:10]), error)

    async def _tell(self, children: Sequence[Child]) -> None:
        """Let those who wait for these children, and in vain perhaps, know how they failed last, or why their supervisor gave up on all."""
        gave_up = str(self._exit) if self._exit is not None and self._exit.kind == "shutdown" else ""
        ends: dict[str, str] = {}
        for child in children[-MOST_TOLD:]:
            own = str(child.last_failure) if child.last_failure is not None else ""
            if own or gave_up:
                ends[child.name] = f"{own}; its supervisor {self._name}: {gave_up}" if own and gave_up else own or gave_up
        if ends:
            try:
                await self._operations.tell(ends)
            except StoreError as error:
                logger.info("%s could not tell how its children have ended: %s", self._name, error)

    async def _start_child(self, child: Child) -> None:
        id = child.spec.id
        with trio.CancelScope() as scope:
            child.scope = scope
            try:
                address = await start_somewhere(child, self._name, lambda: self._promise(child), self._operations, self._environment)
            except ActorNotNeededError as error:
                logger.info("%s does not want to run: %s", child.name, error)
                self._ended.add(id)
                self._do(self._machine.ignored(id))
                return
            except (CallError, UnderstudyError) as error:
                kind: ExitKind = "not placed" if isinstance(error, NOT_ITS_FAULT) else "start failed"
                self._end_of(child, ExitReason(kind, f"{child.name}: {error}", getattr(error, "remote_traceback", "")), failed=True)
                return
            child.address = address
            child.spec = child.spec.to_keep()
            child.latest_epoch = address.epoch
            child.started_at = self._environment.now()
            logger.info("%s runs on %s (epoch %d)", child.name, address.node, address.epoch)
            self._do(self._machine.started(id, child.started_at))
            reason = await self._operations.watch_address(address)
            if scope.cancel_called:
                # It is being stopped, or was lost with its node, and ended before the watch did: that is told elsewhere.
                return
            if reason.kind == "node died":
                self._lost_with_node(address, reason)
            else:
                self._end_of(child, reason)

    def _lost_with_node(self, at: Address, reason: ExitReason) -> None:
        """The node there has died. What the watch of one child says of it goes for all that were there: one event."""
        lost: list[Child] = []
        for child in self._children:
            if child.address is not None and (child.address.node, child.address.incarnation) == (at.node, at.incarnation):
                lost.append(child)
                self._report(child, child.address, reason)
                child.address = None
                if child.scope is not None:
                    # It waits in its own watch, which would say the same.
                    child.scope.cancel()
                    child.scope = None
        ids = [child.spec.id for child in lost]
        self._ended.update(ids)
        logger.warning("%s has lost %s: %s", self._name, ", ".join(ids[:10]) + ", ..." * (len(ids) > 10), reason)
        self._do(self._machine.lost(set(ids), reason, self._environment.now()))

    def _end_of(self, child: Child, reason: ExitReason, *, failed: bool = False) -> None:
        """A child's actor has ended by itself, or its start has failed."""
        id, now, running = child.spec.id, self._environment.now(), self._machine.phase not in ("stopping", "ended")
        node = child.address.node if child.address is not None else None
        self._ended.add(id)
        self._report(child, child.address, reason)
        child.last_failure = None if reason.is_normal or not reason.is_failure else reason
        child.address = None
        child.scope = None
        effects = self._machine.start_failed(id, reason, now) if failed else self._machine.exited(id, reason, now)
        ends_supervisor = running and self._machine.phase in ("stopping", "ended")
        level, text = told(child.name, node, reason, child.spec.restart, failed=failed, ends_supervisor=ends_supervisor)
        logger.log(logging.INFO if child.fails and failed and not ends_supervisor else level, text)
        child.fails = failed
        self._do(effects)

    def _report(self, child: Child, address: Address | None, reason: ExitReason) -> None:
        node, epoch = (address.node, address.epoch) if address is not None else (None, None)
        at = self._environment.wall_time()
        # The wall clock may have been set meanwhile; the age is not.
        started = at - (self._environment.now() - child.started_at) if address is not None else None
        self._deaths.append(DeathReport(id=child.spec.id, name=child.name, node=node, epoch=epoch, reason=reason, at=at, started=started))

    async def _promise(self, child: Child) -> None:
        """Promise the child's name, if it is to be had again and is not promised yet."""
        temporary = child.spec.restart == "temporary"
        if child.promise == "given" or (temporary and not child.added):
            return
        child.promise = "in doubt"
        added = child.spec if child.added else None
        await self._operations.promise(child.name, self._address, lasting=self._lasting, added=added)
        child.promise = "given"

    async def _stop_child(self, child: Child) -> None:
        # One that was about to be adopted is stopped like one that had been.
        address, child.address, child.adopted = child.address or child.adopted, None, None
        if child.scope is not None:
            child.scope.cancel()
            child.scope = None
        if address is not None:
            stopping = self._machine.phase == "stopping"
            await self._stop_at(child, address, ExitReason("parent stopped" if stopping else "stopped", f"by {self._name}"))
        self._ended.add(child.spec.id)
        self._do(self._machine.stopped(child.spec.id))

    async def _stop_at(self, child: Child, address: Address, reason: ExitReason) -> None:
        """Stop the actor of a child, within the time that it is given. Another end that it came to meanwhile is reported."""
        shutdown = child.spec.shutdown
        with self._margins.given(seconds_of(shutdown)) as scope:
            try:
                ended = await self._operations.stop_address(address, reason, shutdown)
            except (CallError, UnderstudyError) as error:
                logger.info("%s could not be asked to stop: %s", child.name, error)
            else:
                if ended is not None and not ended.is_normal and (ended.kind != "killed" or shutdown != "kill"):
                    self._report(child, address, ended)
        if scope.cancelled_caught:
            self._report(child, address, ExitReason("killed", f"{reason}; it did not stop within {shutdown} s, and is left behind"))
            logger.error(
                "%s on %s did not stop within %s s: it is left behind, and its epoch %d with it",
                self._path(child.spec.id),
                address.node,
                shutdown,
                address.epoch,
            )

    async def _try_again(self, effect: TryAgain) -> None:
        await trio.sleep_until(effect.at)
        self._do(self._machine.try_again(effect.id, self._environment.now()))
