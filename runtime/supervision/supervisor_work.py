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
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import attrs
import trio

from actors.errors import (
    ActorNotNeededError,
    ActorNotPlacedError,
    ActorStartError,
    CallError,
    ChildExistsError,
    ChildNotFoundError,
    ChildRunningError,
    NameTakenError,
    NoPlacementError,
    NotExecutedError,
    OutcomeUnknownError,
    StoreError,
    SupervisorGaveUpError,
    SupervisorStoppingError,
    TooManyChildrenError,
    UnderstudyError,
)
from actors.handle import Handle
from actors.method import Address
from actors.restarts import adopted
from actors.supervision import (
    AllStarted,
    ChildView,
    Effect,
    Exit,
    ExitKind,
    ExitReason,
    Forgotten,
    RestartType,
    Shutdown,
    StartChild,
    StopChild,
    SupervisorAnswer,
    TryAgain,
)
from actors.supervisor import ChildSpec, ChildStatus, DeathReport, Supervisor, SupervisorStatus
from runtime.environment import Environment
from runtime.hosting.cell import with_note
from runtime.statistics.counts import NodeCounts
from runtime.supervision.spawner import ActorSpawner

# What supervisors know of each child.


@attrs.define(eq=False)
class ChildState:
    """The shell's data of a child, beside the machine's. `added`: it was added at run time, not by
    the constructor.
    """

    spec: ChildSpec
    name: str
    added: bool = False
    address: Address | None = None
    adopted: Address | None = None
    """A running actor to adopt instead of starting a new one."""
    promise: Literal["none", "in doubt", "given"] = "none"
    """The restart intent in the store; in doubt while it is being written, and after an attempt to
    write it has failed.
    """
    latest_epoch: int = 0
    started_at: float = 0.0
    last_failure: ExitReason | None = None
    """Its last end or failed start, if that was a failure."""
    scope: trio.CancelScope | None = None
    """The scope of the task that starts and then watches it."""
    fails: bool = False
    """True if its latest start has failed: the first failure is logged, further ones in a row are
    not.
    """

    def status(self, view: ChildView, now: float) -> ChildStatus:
        """Return the child's public status."""
        address = self.address
        return ChildStatus(
            id=self.spec.id,
            name=self.name,
            kind=self.spec.kind,
            restart=self.spec.restart,
            state=view.state,
            node=address.node if address is not None else None,
            epoch=address.epoch if address is not None else None,
            restarts=view.restarts,
            age=now - self.started_at if address is not None else None,
            last_exit=view.last_exit,
        )


def seconds_of(shutdown: Shutdown) -> float:
    """How long a child may take to stop."""
    return float("inf") if shutdown is None else 0.0 if shutdown == "kill" else float(shutdown)


# Starting a child where it fits, as soon as that is possible: what is waited for, and what counts
# as its own failure.

PLACE_AGAIN = 0.5


FREE_NAME_LOOK_SECONDS = 0.05
"""Seconds between attempts to start a child whose name is not free yet."""


NOT_ITS_FAULT = (
    ActorNotPlacedError,
    NoPlacementError,
    NotExecutedError,
    OutcomeUnknownError,
    StoreError,
)
"""Errors of a start that are not the child's fault: its node, or the store, is gone or leaving, or
did not answer. The call errors are those of the runtime's own call to the node; an exception of the
child arrives as an ActorStartError.
"""


logger = logging.getLogger("understudy.supervision")


async def start_somewhere(
    child: ChildState,
    supervisor: str,
    promise: Callable[[], Awaitable[None]],
    spawner: ActorSpawner,
    environment: Environment,
) -> Address:
    """Start the child's actor within its start timeout, or adopt it, after `promise()` has written
    its restart intent. Waits for its name and, at the first start, for a node that fits. Raises
    what its start raises, one of `NOT_ITS_FAULT` if it cannot be placed, and ActorStartError when
    its time is over.
    """
    last: Exception | None = None
    spec, now = child.spec, environment.now()
    options = attrs.evolve(spec.options, name=child.name)
    free_until = now + environment.timings.succession
    fits_until = now if child.started_at else now + environment.timings.first_placement
    with trio.move_on_after(math.inf if spec.start_timeout is None else spec.start_timeout):
        while True:
            try:
                await promise()
                if child.adopted is not None:
                    address, child.adopted = child.adopted, None
                    return address
                start = partial(spawner.start_actor, spec.actor, spec.args, dict(spec.kwargs))
                if not child.started_at:
                    return await start(options, supervisor)
                # A trace of its own: that of the supervisor's start may be of last month.
                facts = {"understudy.actor": child.name, "understudy.supervisor": supervisor}
                with spawner.spans.span("actor.restart", facts, root=True):
                    return await start(options, supervisor)
            except NameTakenError as error:
                last = error
                # what is asked now decides whether it was an error
                owner = (await spawner.living(supervisor, [child.name])).get(child.name)  # noqa: ASYNC120
                if owner is not None and owner.epoch > child.latest_epoch:
                    # An attempt of unknown outcome has started it after all.
                    return owner
                if environment.now() >= free_until:
                    raise
                await trio.sleep(FREE_NAME_LOOK_SECONDS)
            except NOT_ITS_FAULT as error:
                last = error
                if environment.now() >= fits_until:
                    raise
                logger.info(
                    "%s/%s waits for a node that can start it: %s", supervisor, spec.id, error
                )
                await spawner.members_changed(PLACE_AGAIN)
    if isinstance(last, NOT_ITS_FAULT):
        # It was not even begun.
        raise last
    why = f"; the last attempt: {last}" if last is not None else ""
    raise ActorStartError(
        f"{supervisor}/{spec.id} has not started within {spec.start_timeout:g} s, its "
        f"start_timeout{why}",
        actor=child.name,
    )


# The children of one supervisor by their ids, those included that wait for an id which another has
# still. No I/O.


class ChildTable:
    """Beside what the machine knows of them. Children whose specs say no name are called after
    `supervisor`, its name, and their ids.
    """

    def __init__(self, supervisor: str, specs: Iterable[ChildSpec]) -> None:
        self._supervisor = supervisor
        self._children: dict[str, ChildState] = {}
        self._ids: dict[str, str] = {}
        """By the names of their actors."""
        self._wanted: dict[object, ChildState] = {}
        """Those that were asked for, by request, until that is answered."""
        self._requests: dict[str, dict[object, None]] = {}
        """The requests for each id, in their order: what is done for one child must not cost more
        because there are many.
        """
        for spec in specs:
            self.put(spec)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[ChildState]:
        return iter(tuple(self._children.values()))

    def __getitem__(self, id: str) -> ChildState:
        return self._children[id]

    def get(self, id: str) -> ChildState | None:
        """The child of this id."""
        return self._children.get(id)

    def put(self, spec: ChildSpec, *, added: bool = False) -> ChildState:
        """Enter a child."""
        child = self._child(spec, added)
        self._enter(child)
        return child

    def want(self, spec: ChildSpec, request: object) -> None:
        """Add a child on request: at once, or when the present one of its id has gone."""
        child = self._wanted[request] = self._child(spec, True)
        self._requests.setdefault(spec.id, {})[request] = None
        if spec.id not in self._children:
            self._enter(child)

    def settle(self, answer: SupervisorAnswer) -> None:
        """Drop a request for a child that has been answered."""
        child = self._wanted.pop(answer.request, None)
        if child is None:
            return
        requests = self._requests[child.spec.id]
        del requests[answer.request]
        if not requests:
            del self._requests[child.spec.id]
        if answer.reply == "too many children" and self._children.get(child.spec.id) is child:
            self._remove(child)

    def forget(self, id: str) -> ChildState:
        """Drop the child of this id. Another that was requested takes its place."""
        child = self._children[id]
        self._remove(child)
        for request in self._requests.get(id, ()):
            if self._wanted[request] is not child:
                self._enter(self._wanted[request])
                break
        return child

    def id_of(self, child: str | Handle) -> str:
        """The id of a child that was named by it, by its path, by the actor's name, or by a handle.
        Raises `ChildNotFoundError`.
        """
        name = child.name if isinstance(child, Handle) else child
        for id in (name, name.removeprefix(f"{self._supervisor}/")):
            if id in self._children:
                return id
        found = self._ids.get(name)
        if found is None:
            raise self.not_found(name)
        return found

    def _enter(self, child: ChildState) -> None:
        self._children[child.spec.id] = child
        self._ids[child.name] = child.spec.id

    def _remove(self, child: ChildState) -> None:
        del self._children[child.spec.id]
        if self._ids.get(child.name) == child.spec.id:
            del self._ids[child.name]

    def not_found(self, id: str) -> ChildNotFoundError:
        """Return the error for an id that no child has."""
        some = sorted(self._children)[:10]
        more = (
            f" and {len(self._children) - len(some)} more"
            if len(self._children) > len(some)
            else ""
        )
        return ChildNotFoundError(
            f"{self._supervisor} has no child {id!r}; it has: {', '.join(some) or 'none'}{more}"
        )

    def _child(self, spec: ChildSpec, added: bool) -> ChildState:
        return ChildState(spec, spec.options.name or f"{self._supervisor}/{spec.id}", added)


# The log line for the end of a supervised actor: one line, with what follows from it. No
# I/O.

_FRAME = re.compile(
    r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE
)


def told(
    name: str,
    node: str | None,
    reason: ExitReason,
    restart: RestartType,
    *,
    failed: bool,
    ends_supervisor: bool,
) -> tuple[int, str]:
    """Return the log level and the line for the end of a child, or for its start that `failed`. An
    intended end is INFO, a death WARNING, and ERROR if it `ends_supervisor`, which gives up with
    all its other children.
    """
    orderly = not failed and (reason.is_normal or reason.kind == "node left")
    what = (
        f"{name} did not start"
        if failed
        else f"{name} has ended"
        if node is None
        else f"{name} has ended on {node}"
    )
    if ends_supervisor:
        level, follows = (
            (logging.INFO if orderly else logging.ERROR),
            "its supervisor ends with it, and stops its other children",
        )
    else:
        level = logging.INFO if orderly else logging.WARNING
        again = restart == "permanent" or (
            restart == "transient" and (failed or not reason.is_normal)
        )
        follows = "it is started again" if again else f"it is not started again, being {restart}"
    return level, f"{what} ({_in_one_line(reason)}); {follows}"


def _in_one_line(reason: ExitReason) -> str:
    """Return the reason, with the place in the user's code where it was raised, if that is
    known.
    """
    text = " ".join(str(reason).split("\n\n")[0].split())
    # What a start has failed of tells its place itself.
    frames = list(_FRAME.finditer(reason.traceback)) if reason.kind != "start failed" else []
    return (
        f"{text}, at {frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}"
        if frames
        else text
    )


# How long a supervisor waits for the end of children that it stops, beyond the time that each is
# given to stop in.

STOP_MARGIN = 1.0
"""Seconds for the request and its answer."""


STOP_EACH = 0.01
"""Seconds more for each child stopped at the same time: the node that stops thousands has work with
each of them before the last has ended. What ends with its node is known at once, however long this
is.
"""


class LossMargins:
    """The running stops of one supervisor's children."""

    def __init__(self) -> None:
        self._under_way: dict[trio.CancelScope, None] = {}
        self._room = 1
        """For so many at once those under way are given time: a power of two, so that it is seldom
        that all must be told of more.
        """

    @contextmanager
    def given(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Cancel the block when the time of a child that may take `seconds` is over."""
        before = self._room
        while len(self._under_way) >= self._room:
            self._room *= 2
        if self._room > before:
            # The first to be asked for may be the last to be answered.
            for each in self._under_way:
                each.deadline += STOP_EACH * (self._room - before)
        with trio.CancelScope(
            deadline=trio.current_time() + seconds + STOP_MARGIN + STOP_EACH * self._room
        ) as scope:
            self._under_way[scope] = None
            try:
                yield scope
            finally:
                del self._under_way[scope]
                if not self._under_way:
                    self._room = 1


DEATHS_KEPT = 50


MOST_DEPTH = 20
"""Most levels of a tree: this ends a supervisor that starts itself, directly or through others."""


MOST_TOLD = 1_000
"""How many ended children are recorded in the store for callers that wait for them."""


@attrs.frozen
class _Due:
    """An effect in the queue, with the child that the machine meant: another may have its id by
    now.
    """

    effect: StartChild | StopChild | Forgotten
    child: ChildState


class SupervisionWork:
    """See `actors.supervisor.SupervisorWork`."""

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
        """True if this supervisor will be restarted when it ends."""
        self._spawner = spawner
        self._environment = environment
        self._children = ChildTable(self._name, supervisor.specs)
        self._machine = supervisor.machine(supervisor.specs, environment.random)
        self._queue: deque[Effect | _Due] = deque()
        self._more = trio.Event()
        self._ready = trio.Event()
        self._over = trio.Event()
        self._is_ready = False
        self._exit: ExitReason | None = None
        self._answers: dict[object, SupervisorAnswer] = {}
        self._answered: dict[object, trio.Event] = {}
        self._requests = 0
        self._spawned = 0
        self._deaths: deque[DeathReport] = deque(maxlen=DEATHS_KEPT)
        self._margins = LossMargins()
        self._ended: set[str] = set()
        """Children whose actors have ended. If they are not restarted, their intents are withdrawn,
        so that no caller waits for them.
        """
        self._work = trio.CancelScope()
        self.begin_in_start: Callable[[], None] = lambda: None
        """Says that the supervisor's start waits for the running task: a child that calls its
        supervisor meanwhile would wait for ever.
        """

    # What supervisors are asked

    async def start(self) -> None:
        """See `SupervisorWork.start`."""
        if self._name.count("/") >= MOST_DEPTH:
            raise ActorStartError(
                f"{self._name} is {MOST_DEPTH} levels deep in its tree: check whether a "
                "supervisor starts itself, directly or through others",
                actor=self._name,
            )
        try:
            await self._adopt()
        except StoreError as error:
            raise ActorNotPlacedError(
                f"{self._name} cannot be started now: {error}", actor=self._name
            ) from error
        self._supervisor.nursery.start_soon(self._carry_out, name=f"supervision of {self._name}")
        self._do(self._begin())
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

    async def spawn(
        self, template: ChildSpec, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Handle:
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

    @property
    def child_count(self) -> int:
        """How many children it has."""
        return len(self._children)

    def status(self, most: int | None = None) -> SupervisorStatus:
        """See `Supervisor.status`. `most`: the children that it lists, the first in order."""
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
        """The handle of a child that was started on request; raises if it was not."""
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
            raise with_note(
                ActorStartError(text, actor=self._path(id), remote_traceback=reason.traceback)
            )
        return self._spawner.handle(child.address)

    async def _ask(
        self, question: Callable[[int], list[Effect]], wanted: ChildSpec | None = None
    ) -> SupervisorAnswer:
        """The machine's answer. `wanted`: the child that it is to add; it does, even if the
        caller is cancelled.
        """
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
        """Find the children that outlived an earlier epoch of this supervisor; stop those that
        cannot be adopted.
        """
        if not self._address.registered:
            return
        self._lasting = await self._spawner.is_promised(self._name)
        if self._lasting:
            static = [child.name for child in self._children if child.spec.restart != "temporary"]
            await self._spawner.begin(self._address, static)
        for spec in await self._spawner.added(self._address):
            if self._children.get(spec.id) is None:
                self._children.put(spec, added=True)
        living = await self._spawner.living(self._name, [child.name for child in self._children])
        lives = {child.spec.id for child in self._children if child.name in living}
        # A temporary child that has ended was not restarted with the others, and is not missed.
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
        """Take over the children that were added to an earlier epoch, like those of the
        constructor.
        """
        added = [child.spec for child in self._children if child.added]
        now = self._environment.now()
        if self._supervisor.strategy == "dynamic":
            effects = self._machine.start(now)
            for spec in added:
                effects += self._machine.add(spec.rule(), None)
            return effects
        if added:
            self._machine = self._supervisor.machine(
                (*self._supervisor.specs, *added), self._environment.random
            )
        return self._machine.start(now)

    # Carrying out

    def _do(self, effects: list[Effect]) -> None:
        """Queue effects; they are carried out one after another. Answers to requests are given at
        once.
        """
        for effect in effects:
            if isinstance(effect, SupervisorAnswer):
                self._children.settle(effect)
                if effect.request in self._answered:
                    self._answers[effect.request] = effect
                    self._answered[effect.request].set()
            elif isinstance(effect, Forgotten):
                self._queue.append(_Due(effect, self._children.forget(effect.id)))
            elif isinstance(effect, StartChild | StopChild):
                self._queue.append(_Due(effect, self._children[effect.id]))
            else:
                self._queue.append(effect)
        self._more.set()
        if self._is_ready:
            self._supervisor._on_children_changed()

    async def _carry_out(self) -> None:
        if not self._is_ready:
            self.begin_in_start()
        try:
            with self._work:
                async with trio.open_nursery() as tasks:
                    while not self._over.is_set():
                        await self._more.wait()
                        # Renewed before the queue is looked at: what is queued from now on counts.
                        self._more = trio.Event()
                        while self._queue:
                            await self._carry_out_one(self._queue.popleft(), tasks)
                        await self._withdraw_void_intents()
        finally:
            # However this task ends, wake all that wait for it.
            self._ready.set()
            self._over.set()
        if self._exit is not None and self._is_ready and self._exit.kind == "shutdown":
            self._counts.escalations += 1
            raise SupervisorGaveUpError(str(self._exit))

    async def _withdraw_void_intents(self) -> None:
        """Withdraw the restart intents of children that will not be restarted, for example a
        stopped transient child, so that callers waiting for the name fail.
        """
        if self._machine.phase in ("stopping", "ended"):
            # What stops now may be started again by the next incarnation: see `_end`.
            return
        vain: list[ChildState] = []
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
            if isinstance(effect.effect, StartChild):
                tasks.start_soon(
                    self._start_child, child, name=f"child {child.spec.id} of {self._name}"
                )
            elif isinstance(effect.effect, StopChild):
                tasks.start_soon(self._stop_child, child)
            else:
                await self._withdraw([child, *self._forgotten()])
        elif isinstance(effect, TryAgain):
            tasks.start_soon(self._try_again, effect)
        elif isinstance(effect, AllStarted):
            self._is_ready = True
            self._ready.set()
        elif isinstance(effect, Exit):
            await self._end(effect.reason)
            tasks.cancel_scope.cancel()

    def _forgotten(self) -> Iterator[ChildState]:
        """Those that come next in the queue and are forgotten as well: a transaction takes many."""
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
        # Also of those that keep their promises: if this supervisor is not restarted after all,
        # what decides that does not know how they ended.
        await self._tell(children)
        if await self._is_restarted():
            # Calls to those that it will begin with again wait for that. What decides that it
            # is not restarted withdraws them.
            children = [child for child in children if child.added]
            await self._withdraw(children)
        else:
            await self._withdraw(children, last=True)
        self._ready.set()
        self._over.set()

    async def _is_restarted(self) -> bool:
        """True if this supervisor will be restarted; also if the store cannot say."""
        if not self._lasting:
            return False
        try:
            return await self._spawner.is_promised(self._name)
        except StoreError:
            return True

    async def _withdraw(
        self, children: Sequence[ChildState], *, forget: bool = True, last: bool = False
    ) -> None:
        """Withdraw the intents for these children from the store, and delete the specs of those to
        forget. See `ActorSpawner.withdraw`.
        """
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
            await self._spawner.withdraw(self._address, names, forgotten, last=last)
        except StoreError as error:
            logger.warning(
                "%s could not withdraw from the store its restart intents for %s: %s",
                self._name,
                ", ".join(names[:10]),
                error,
            )

    async def _tell(self, children: Sequence[ChildState]) -> None:
        """Record in the store how these children failed last, or why their supervisor gave up, for
        callers that wait for them.
        """
        gave_up = (
            str(self._exit) if self._exit is not None and self._exit.kind == "shutdown" else ""
        )
        ends: dict[str, str] = {}
        for child in children[-MOST_TOLD:]:
            own = str(child.last_failure) if child.last_failure is not None else ""
            if own or gave_up:
                ends[child.name] = (
                    f"{own}; its supervisor {self._name}: {gave_up}"
                    if own and gave_up
                    else own or gave_up
                )
        if ends:
            try:
                await self._spawner.tell(ends)
            except StoreError as error:
                logger.info(
                    "%s could not write to the store how its children have ended: %s",
                    self._name,
                    error,
                )

    async def _start_child(self, child: ChildState) -> None:
        id = child.spec.id
        with trio.CancelScope() as scope:
            child.scope = scope
            try:
                address = await start_somewhere(
                    child,
                    self._name,
                    lambda: self._promise(child),
                    self._spawner,
                    self._environment,
                )
            except ActorNotNeededError as error:
                logger.info("%s is not needed, its on_start raised Ignore: %s", child.name, error)
                self._ended.add(id)
                self._do(self._machine.on_ignored(id))
                return
            except (CallError, UnderstudyError) as error:
                kind: ExitKind = (
                    "not placed" if isinstance(error, NOT_ITS_FAULT) else "start failed"
                )
                self._end_of(
                    child,
                    ExitReason(
                        kind, f"{child.name}: {error}", getattr(error, "remote_traceback", "")
                    ),
                    failed=True,
                )
                return
            child.address = address
            child.spec = child.spec.to_keep()
            if child.latest_epoch and child.latest_epoch != address.epoch:
                self._counts.restarted.add(child.name)
            child.latest_epoch = address.epoch
            child.started_at = self._environment.now()
            logger.info("%s runs on %s (epoch %d)", child.name, address.node, address.epoch)
            self._do(self._machine.on_started(id, child.started_at))
            reason = await self._spawner.watch_address(address)
            if scope.cancel_called:
                # It is being stopped, or was lost with its node, and ended before the watch did:
                # that is told elsewhere.
                return
            if reason.kind == "node died":
                self._lost_with_node(address, reason)
            else:
                self._end_of(child, reason)

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
                    # It waits in its own watch, which would say the same.
                    child.scope.cancel()
                    child.scope = None
        ids = [child.spec.id for child in lost]
        self._ended.update(ids)
        logger.warning(
            "%s has lost %s: %s",
            self._name,
            ", ".join(ids[:10]) + ", ..." * (len(ids) > 10),
            reason,
        )
        effects = self._machine.on_lost(set(ids), reason, self._environment.now())
        self._count(effects, reason)
        self._do(effects)

    def _count(self, effects: list[Effect], reason: ExitReason) -> None:
        """Count an end after which children are started again."""
        if any(isinstance(effect, StartChild | StopChild | TryAgain) for effect in effects):
            self._counts.restarts.add(reason.kind)

    @property
    def intensity_used(self) -> float:
        """Which share of the restarts that it may make within its period it has made: above 1 it
        gives up.
        """
        recent = self._machine.intensity.recent(self._environment.now())
        return recent / max(1, self._supervisor.intensity)

    def _end_of(self, child: ChildState, reason: ExitReason, *, failed: bool = False) -> None:
        """Handle that a child's actor has ended by itself, or that its start has failed."""
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
        level, text = told(
            child.name,
            node,
            reason,
            child.spec.restart,
            failed=failed,
            ends_supervisor=ends_supervisor,
        )
        logger.log(logging.INFO if child.fails and failed and not ends_supervisor else level, text)
        child.fails = failed
        if not ends_supervisor:
            self._count(effects, reason)
        self._do(effects)

    def _report(self, child: ChildState, address: Address | None, reason: ExitReason) -> None:
        node, epoch = (address.node, address.epoch) if address is not None else (None, None)
        at = self._environment.wall_time()
        # The wall clock may have been set meanwhile; the age is not.
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

    async def _promise(self, child: ChildState) -> None:
        """Write the restart intent for the child's name, if it will be restarted and has none
        yet.
        """
        temporary = child.spec.restart == "temporary"
        if child.promise == "given" or (temporary and not child.added):
            return
        # Until the store has answered: an attempt that was cut short may have been written.
        child.promise = "in doubt"
        added = child.spec if child.added else None
        await self._spawner.promise(child.name, self._address, lasting=self._lasting, added=added)
        child.promise = "given"

    async def _stop_child(self, child: ChildState) -> None:
        # One that was about to be adopted is stopped like one that had been.
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
        self._do(self._machine.on_stopped(child.spec.id))

    async def _stop_at(self, child: ChildState, address: Address, reason: ExitReason) -> None:
        """Stop the actor of a child, within its `shutdown` time. If it ended in another way
        meanwhile, that is reported.
        """
        shutdown = child.spec.shutdown
        with self._margins.given(seconds_of(shutdown)) as scope:
            try:
                ended = await self._spawner.stop_address(address, reason, shutdown)
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
