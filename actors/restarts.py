"""The supervisor's decisions: it takes starts, exits and requests, and says what to start and stop
next, and when to give up.

The semantics are those of Erlang/OTP's `supervisor`: its callbacks run one after another, and so
does this machine. At most one `StartChild` or `StopChild` is outstanding; events that arrive
meanwhile wait in a queue, as they would in the process's mailbox; a restart that fails goes to the
end of that queue. Beyond OTP, a start can be put off for the restart of a child before it: here
calls wait for the restart of an actor, where those of OTP fail.

No I/O, no clock: times are seconds on a monotonic clock, randomness is a function, and decisions
come back as effects, to be carried out in their order. The runtime carries them out, places
children and reports their ends.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice, takewhile
from typing import Literal

import attrs

from actors.restart_intensity import RestartDelay, RestartIntensity
from actors.supervision import (
    AllStarted,
    AutomaticShutdown,
    ChildRule,
    ChildState,
    ChildView,
    Effect,
    Exit,
    ExitKind,
    ExitReason,
    Forgotten,
    Phase,
    Reply,
    RequestKind,
    RestartBackoff,
    RestartType,
    StartChild,
    StopChild,
    Strategy,
    SupervisorAnswer,
    TryAgain,
    check_word,
)

__all__ = [
    "AutomaticShutdown",
    "ChildRule",
    "ExitReason",
    "RestartBackoff",
    "RestartMachine",
    "RestartType",
    "Strategy",
]


@attrs.define(eq=False)
class _ChildEntry:
    rule: ChildRule
    state: ChildState = "stopped"
    restarts: int = 0
    delay: RestartDelay = attrs.Factory(RestartDelay)
    running_since: float = -math.inf
    due: float | None = None
    last_exit: ExitReason | None = None
    pending: _MachineEvent | None = None


@attrs.frozen
class _MachineEvent:
    kind: Literal["exit", "restart failed", "due", "room"]
    id: str
    now: float


@attrs.frozen
class _ChildRequest:
    kind: RequestKind
    id: str
    token: object
    rule: ChildRule | None = None


@attrs.define
class _Work:
    """The plan that is being carried out: first the stops, from the last, then the starts, from the
    first, and then what `kind` says.
    """

    kind: Literal["boot", "restart", "hold", "request", "shut down"]
    stops: list[str] = attrs.Factory(list)
    starts: deque[str] = attrs.Factory(deque)
    child: str = ""
    at: float = 0.0
    request: _ChildRequest | None = None
    reply: Reply = "stopped"
    reason: ExitReason | None = None


class RestartMachine:
    """One supervisor. Every input returns the effects that follow from it.

    `strategy`: what is restarted with a failed child: itself alone, all, or it and those started
    after it. More than `intensity` restarts within `period` seconds, each at the time of the exit
    or failed start that called for it, and it stops its children and ends with "shutdown".
    `automatic_shutdown`: it does so too when a significant child ended by itself, any or the last
    of all. `backoff`: waits before restarts, with `draw` (a function that gives a number in [0, 1))
    for their jitter. What says nothing about a child, because its node died or left or none fits,
    counts as no restart; `PLACEMENT_BACKOFF` bounds those.

    A start that goes on when the supervisor is stopped is stopped first, for no other child depends
    on it yet; OTP would wait for it. Raises TypeError or ValueError for what makes no sense, naming
    the child where it is one's.
    """

    def __init__(
        self,
        children: Sequence[ChildRule] = (),
        strategy: Strategy = "one-for-one",
        intensity: int = 1,
        period: float = 5.0,
        automatic_shutdown: AutomaticShutdown = "never",
        backoff: RestartBackoff | None = None,
        draw: Callable[[], float] = lambda: 0.5,
    ) -> None:
        check_word("strategy", strategy, Strategy)
        check_word("automatic_shutdown", automatic_shutdown, AutomaticShutdown)
        self.intensity = RestartIntensity(intensity, period)
        self._strategy = strategy
        self._automatic_shutdown = automatic_shutdown
        self._backoff = backoff
        self._draw = draw
        self._phase: Phase = "new"
        self._now = -math.inf
        self._children: dict[str, _ChildEntry] = {}
        self._line: deque[_MachineEvent | _ChildRequest] = deque()
        self._work: _Work | None = None
        self._put_off: list[_Work] = []
        """Plans whose next start was put off, the latest last."""
        self._outstanding: str | None = None
        self._effects: list[Effect] = []
        for rule in children:
            self._check(rule)
            if rule.id in self._children:
                raise ValueError(
                    f"child {rule.id!r}: this id is given to two children; ids are unique in a "
                    "supervisor"
                )
            self._children[rule.id] = _ChildEntry(rule)

    @property
    def phase(self) -> Phase:
        """The phase of the supervisor: "new", "starting", "running", "stopping" or "ended"."""
        return self._phase

    def children(self, most: int | None = None) -> list[ChildView]:
        """All children in the order of their start, or the first `most` of them."""
        coming = self._coming()
        return [
            ChildView(
                c.rule,
                "restarting" if id in coming and c.state in ("starting", "stopped") else c.state,
                c.restarts,
                c.last_exit,
            )
            for id, c in islice(self._children.items(), most)
        ]

    def is_running(self, id: str) -> bool:
        """True if the child has started, and has neither ended nor begun to stop."""
        child = self._children.get(id)
        return child is not None and child.state == "running"

    def rests(self, id: str) -> bool:
        """True if the child has no actor, and none is to come by itself."""
        child = self._children.get(id)
        return child is not None and child.state == "stopped" and not self.waits(id)

    def waits(self, id: str) -> bool:
        """True if the child has no actor at the moment, and it is not decided that this
        stays so.
        """
        child = self._children.get(id)
        if child is None or child.state in ("starting", "running", "stopping"):
            return False
        if child.state != "stopped" or any(id in work.starts for work in self._put_off):
            return True
        # One for one: no child is restarted with another.
        return self._strategy != "one-for-one" and id in self._coming()

    def due(self, id: str) -> float | None:
        """When the child is started again, which waits for that after its last end; else None."""
        child = self._children.get(id)
        return None if child is None or child.state != "restarting" else child.due

    def _coming(self) -> set[str]:
        """The children that are being restarted, with those that wait for it as members of their
        groups.
        """
        work = self._work
        coming: set[str] = set()
        if work is not None and work.kind == "restart":
            coming.update(work.starts)
            if self._outstanding is not None:
                coming.add(self._outstanding)
        for work in self._put_off:
            if work.kind == "restart":
                coming.update(work.starts)
        for child in self._children.values():
            if child.state == "restarting":
                coming.update(each.rule.id for each in self._group(child))
        return coming

    def start(self, now: float) -> list[Effect]:
        """Start all children, in order. Raises RuntimeError if it was started before."""
        if self._phase != "new":
            raise RuntimeError(
                "this machine was started already; make a new one for each start of its supervisor"
            )
        self._tick(now)
        self._phase = "starting"
        self._work = _Work("boot", starts=deque(self._children))
        return self._advance()

    def stop(self, now: float, reason: ExitReason | None = None) -> list[Effect]:
        """Cancel what is under way, stop all children in reverse order, and end with `reason`
        ("stopped"). Later calls do nothing.
        """
        self._tick(now)
        if self._phase not in ("stopping", "ended"):
            self._shut_down(reason or ExitReason("stopped"))
        return self._advance()

    def on_started(self, id: str, now: float) -> list[Effect]:
        """Note that the child has started. Raises ValueError if no start was outstanding."""
        self._tick(now)
        child = self._starting(id)
        if child is not None:
            self._outstanding = None
            child.state = "running"
            child.running_since = now
            child.restarts += self._work is not None and self._work.kind == "restart"
        return self._advance()

    def holds_up(self, id: str) -> bool:
        """True if the child is starting, and a child before it has ended and can only be started
        again when that start is over. The start may wait for that child: then neither would end.
        """
        return (
            id == self._outstanding
            and self._children[id].state == "starting"
            and self._phase in ("starting", "running")
            and self._next_before(id) is not None
        )

    def put_off(self, id: str, now: float) -> list[Effect]:
        """Note that the child's start was given up, because it `holds_up` others: those are started
        again first, and then this child. Raises ValueError if no start was outstanding.
        """
        self._tick(now)
        child = self._starting(id)
        if child is None:
            return self.on_stopped(id)
        work, self._work = self._work, None
        assert work is not None
        self._outstanding = None
        child.state = "stopped"
        work.starts.appendleft(id)
        self._put_off.append(work)
        return self._advance()

    def on_ignored(self, id: str) -> list[Effect]:
        """Note that the child raised `Ignore`: its spec stays, without an actor, unless it is
        temporary. Raises ValueError if no start was outstanding.
        """
        child = self._starting(id)
        if child is None:
            return self.on_stopped(id)
        self._outstanding = None
        if self._work is not None:
            self._work.reply = "ignored"
        self._rest(child)
        return self._advance()

    def on_start_failed(self, id: str, reason: ExitReason, now: float) -> list[Effect]:
        """Note that the child could not be started. Raises ValueError if no start was
        outstanding.
        """
        self._tick(now)
        child = self._starting(id)
        if child is None:
            return self.on_stopped(id)
        work, self._work = self._work, None
        self._outstanding = None
        child.state = "stopped"
        child.last_exit = reason
        assert work is not None
        if work.kind == "boot":
            # A supervisor whose child has no node has none itself, as it were: its own supervisor
            # tries again.
            kind: ExitKind = "start failed" if reason.is_failure else "not placed"
            self._shut_down(
                ExitReason(kind, f"child {id!r} did not start: {reason}", reason.traceback)
            )
        elif work.kind == "restart":
            child.state = "restarting"
            self._wait_in_line(child, "restart failed", now)
        else:
            assert work.request is not None
            if work.request.kind == "add":
                self._forget(child)
            self._effects.append(SupervisorAnswer(work.request.token, "start failed", reason))
        return self._advance()

    def on_exited(self, id: str, reason: ExitReason, now: float) -> list[Effect]:
        """Note that the child ended by itself, or before its stop took effect. Ignored for an id
        that is not a child's, or a child without an actor.
        """
        self._tick(now)
        child = self._children.get(id)
        if child is None or child.state not in ("starting", "running", "stopping"):
            return self._advance()
        if child.state == "starting":
            return self.on_start_failed(id, reason, now)
        child.last_exit = reason
        if child.state == "stopping":
            return self.on_stopped(id)
        child.state = "exited"
        self._wait_in_line(child, "exit", now)
        return self._advance()

    def on_lost(self, ids: Collection[str], reason: ExitReason, now: float) -> list[Effect]:
        """Note that these running children have ended at the same moment, with their node: one
        event, known before anything follows. So children that are restarted together are restarted
        once, and none of them is stopped as if it were running. Ignored for those that do not run.
        """
        self._tick(now)
        gone = [
            child for id, child in self._children.items() if id in ids and child.state == "running"
        ]
        for child in gone:
            child.last_exit = reason
            child.state = "exited"
            # In the order of their start: in rest-for-one the first takes those after it along,
            # whose own events are void then.
            self._wait_in_line(child, "exit", now)
        return self._advance()

    def on_stopped(self, id: str) -> list[Effect]:
        """Note that a child that was being stopped has ended. Ignored for others: their end was
        reported already.
        """
        child = self._children.get(id)
        if child is not None and child.state == "stopping":
            self._outstanding = None
            self._rest(child)
        return self._advance()

    def try_again(self, id: str, now: float, *, has_room: bool = False) -> list[Effect]:
        """The time that `TryAgain` named has come, or before it a node `has_room` for a child that
        was not placed. Ignored if neither is so, or if the child no longer waits.
        """
        self._tick(now)
        # While it starts, too: a start that is put off lets a restart wait for its time.
        if self._phase in ("starting", "running"):
            self._line.append(_MachineEvent("room" if has_room else "due", id, now))
        return self._advance()

    def add(self, rule: ChildRule, request: object) -> list[Effect]:
        """Start a new child, last in the order; answers "started", "ignored", "start failed",
        "already started" or "already present".

        `request` comes back in the `SupervisorAnswer`. Every request is answered "supervisor
        stopped" if that is what happens. Raises ValueError for a rule that does not fit this
        supervisor, RuntimeError before `start`.
        """
        self._check(rule)
        return self._ask(_ChildRequest("add", rule.id, request, rule))

    def terminate(self, id: str, request: object) -> list[Effect]:
        """Stop a child and keep its spec, unless it is temporary; answers "stopped" or "not
        found".
        """
        return self._ask(_ChildRequest("terminate", id, request))

    def restart(self, id: str, request: object) -> list[Effect]:
        """Start a child that has no actor; answers "started", "ignored", "start failed", "running",
        "restarting" or "not found".
        """
        return self._ask(_ChildRequest("restart", id, request))

    def delete(self, id: str, request: object) -> list[Effect]:
        """Forget a child that has no actor; answers "deleted", "running", "restarting" or "not
        found".
        """
        return self._ask(_ChildRequest("delete", id, request))

    def _check(self, rule: ChildRule) -> None:
        if rule.significant and self._automatic_shutdown == "never":
            raise ValueError(
                f"child {rule.id!r}: significant has no meaning while automatic_shutdown is 'never'"
            )

    def _tick(self, now: float) -> None:
        if not now >= self._now:
            raise ValueError(f"time must not go back: {now!r} after {self._now!r}")
        self._now = now

    def _starting(self, id: str) -> _ChildEntry | None:
        """The child whose start is reported, or None if the supervisor is being stopped, so that
        the report is out of date.
        """
        child = self._children.get(id)
        if child is not None and child.state == "starting":
            return child
        if self._phase in ("stopping", "ended"):
            return None
        raise ValueError(f"child {id!r} was not being started")

    def _ask(self, request: _ChildRequest) -> list[Effect]:
        if self._phase == "new":
            raise RuntimeError("the supervisor has not been started")
        if self._phase in ("stopping", "ended"):
            self._effects.append(SupervisorAnswer(request.token, "supervisor stopped"))
        else:
            self._line.append(request)
        return self._advance()

    def _advance(self) -> list[Effect]:
        while self._outstanding is None and self._phase != "ended":
            if self._work is not None:
                self._carry_on(self._work)
            elif self._put_off:
                self._go_on_after_those_before(self._put_off[-1])
            elif not self._line:
                break
            elif isinstance(first := self._line.popleft(), _ChildRequest):
                self._serve(first)
            else:
                self._consider(first)
        # Whatever came in: one child is under way, or there is nothing to do. Only a shutdown ends
        # the life of a supervisor.
        assert self._outstanding is not None or not (self._work or self._line or self._put_off)
        assert (self._phase == "stopping") == (
            self._work is not None and self._work.kind == "shut down"
        )
        effects, self._effects = self._effects, []
        return effects

    def check_invariants(self) -> None:
        """Assert what must hold between any two inputs. Looks at all children: for tests and
        simulations.
        """
        under_way = [
            id for id, child in self._children.items() if child.state in ("starting", "stopping")
        ]
        assert under_way == ([] if self._outstanding is None else [self._outstanding])
        queued = {id(event) for event in self._line if isinstance(event, _MachineEvent)}
        idle = self._outstanding is None
        for name, child in self._children.items():
            assert name == child.rule.id
            assert child.due is None or child.state == "restarting"
            assert child.restarts >= 0
            if self._phase in ("starting", "running"):
                # Otherwise it would be forgotten: nothing else restarts it.
                assert child.state != "exited" or id(child.pending) in queued
                assert not idle or child.state != "restarting" or child.due is not None
            if self._phase in ("new", "ended"):
                assert child.state == "stopped"
        assert self._phase not in ("new", "ended") or not (
            self._work or self._line or self._put_off
        )
        self.intensity.check_invariants()

    def _carry_on(self, work: _Work) -> None:
        while work.stops:
            child = self._children.get(work.stops.pop())
            if child is None:
                continue
            # One at a time, and in reverse order: a later child may depend on an earlier one.
            if child.state == "running":
                child.state = "stopping"
                self._outstanding = child.rule.id
                self._effects.append(StopChild(child.rule.id, child.rule.shutdown))
                return
            self._rest(child)
        if work.starts:
            child = self._children[work.starts.popleft()]
            assert child.state == "stopped", "a child is never started twice"
            child.state = "starting"
            self._outstanding = child.rule.id
            self._effects.append(StartChild(child.rule.id))
            return
        self._work = None
        self._finish(work)

    def _next_before(self, id: str) -> int | None:
        """The place in the line of the first event by which a child before this one is started
        again, now or after a wait.
        """
        before = set(takewhile(lambda other: other != id, self._children))
        for place, event in enumerate(self._line):
            if not isinstance(event, _MachineEvent) or event.id not in before:
                continue
            child = self._children[event.id]
            if event.kind in ("due", "room"):
                is_restart = child.state == "restarting" and self._is_time(child, event)
            else:
                is_restart = event is child.pending and (
                    child.state == "restarting"
                    or (child.state == "exited" and self._is_restarted(child))
                )
            if is_restart:
                return place
        return None

    def _go_on_after_those_before(self, work: _Work) -> None:
        """Consider what starts a child again that is before the next start of a plan that was put
        off; if there is nothing more, go on with the plan.
        """
        while work.starts and work.starts[0] not in self._children:
            work.starts.popleft()
        place = self._next_before(work.starts[0]) if work.starts else None
        if place is not None:
            event = self._line[place]
            del self._line[place]
            assert isinstance(event, _MachineEvent)
            self._consider(event)
            return
        self._put_off.pop()
        # Those of its group may have been started with the child before it, or wait with it.
        coming = set() if self._strategy == "one-for-one" else self._coming()
        work.starts = deque(
            id
            for id in work.starts
            if id in self._children and self._children[id].state == "stopped" and id not in coming
        )
        self._work = work

    def _finish(self, work: _Work) -> None:
        if work.kind == "boot":
            self._phase = "running"
            self._effects.append(AllStarted())
        elif work.kind == "hold":
            self._children[work.child].due = work.at
            self._effects.append(TryAgain(work.child, work.at))
        elif work.request is not None:
            self._effects.append(SupervisorAnswer(work.request.token, work.reply))
        elif work.kind == "shut down":
            assert work.reason is not None
            # Exits that came meanwhile: nothing follows from them any more.
            self._line.clear()
            self._phase = "ended"
            self._effects.append(Exit(work.reason))

    def _serve(self, request: _ChildRequest) -> None:
        child = self._children.get(request.id)
        reply: Reply
        if request.kind == "add" and child is None:
            assert request.rule is not None
            self._children[request.id] = _ChildEntry(request.rule)
            self._work = _Work(
                "request", starts=deque([request.id]), request=request, reply="started"
            )
            return
        if child is None:
            reply = "not found"
        elif request.kind == "add":
            reply = (
                "already present" if child.state in ("stopped", "restarting") else "already started"
            )
        elif request.kind == "terminate":
            self._work = _Work("request", stops=[request.id], request=request)
            return
        elif child.state != "stopped":
            reply = "restarting" if child.state == "restarting" else "running"
        elif request.kind == "restart":
            self._work = _Work(
                "request", starts=deque([request.id]), request=request, reply="started"
            )
            return
        else:
            self._forget(child)
            reply = "deleted"
        self._effects.append(SupervisorAnswer(request.token, reply))

    def _wait_in_line(
        self, child: _ChildEntry, kind: Literal["exit", "restart failed"], now: float
    ) -> None:
        # What an earlier life of the child left in line is void from here on.
        child.pending = _MachineEvent(kind, child.rule.id, now)
        self._line.append(child.pending)

    def _consider(self, event: _MachineEvent) -> None:
        """Handle an event, unless the child has been stopped, started again or forgotten while the
        event was queued.
        """
        child = self._children.get(event.id)
        if child is None:
            return
        if event.kind in ("due", "room"):
            if child.state == "restarting" and self._is_time(child, event):
                self._begin_restart(child)
        elif event is child.pending and child.state == "exited":
            self._consider_exit(child, event.now)
        elif event is child.pending and child.state == "restarting":
            self._consider_restart(child, event.now)

    def _is_time(self, child: _ChildEntry, event: _MachineEvent) -> bool:
        """True if the child waits for its restart, and the event ends the wait."""
        last = child.last_exit
        unplaced = last is not None and last.kind == "not placed"
        return child.due is not None and (
            event.now >= child.due or (event.kind == "room" and unplaced)
        )

    def _is_restarted(self, child: _ChildEntry) -> bool:
        """True if its rule says that the child is started again after its last end."""
        assert child.last_exit is not None
        return child.rule.restart == "permanent" or (
            child.rule.restart == "transient" and not child.last_exit.is_normal
        )

    def _consider_exit(self, child: _ChildEntry, now: float) -> None:
        reason = child.last_exit
        assert reason is not None
        if self._is_restarted(child):
            child.delay.on_ran(now - child.running_since, self._backoff)
            self._consider_restart(child, now)
            return
        self._rest(child)
        if child.rule.significant and self._ends_with_its_significant_children():
            self._shut_down(
                ExitReason("shutdown", f"significant child {child.rule.id!r} ended: {reason}")
            )

    def _ends_with_its_significant_children(self) -> bool:
        if self._automatic_shutdown == "any-significant":
            return True
        return not any(
            child.rule.significant and child.state != "stopped" for child in self._children.values()
        )

    def _consider_restart(self, child: _ChildEntry, now: float) -> None:
        """Count a restart, if the child itself has failed; give up if that makes too many, else
        begin it, at once or after its wait.
        """
        last = child.last_exit or ExitReason("normal")
        if last.is_failure and not self.intensity.allows(now):
            self._shut_down(
                ExitReason("shutdown", self.intensity.exceeded(child.rule.id, last), last.traceback)
            )
            return
        child.state = "restarting"
        delay = child.delay.next(last, self._backoff, self._draw)
        if delay > 0:
            others = [each.rule.id for each in self._group(child) if each is not child]
            self._work = _Work("hold", stops=others, child=child.rule.id, at=now + delay)
        else:
            self._begin_restart(child)

    def _begin_restart(self, child: _ChildEntry) -> None:
        group = self._group(child)
        self._work = _Work(
            "restart",
            stops=[each.rule.id for each in group],
            starts=deque(each.rule.id for each in group if each.rule.restart != "temporary"),
        )

    def _group(self, child: _ChildEntry) -> Sequence[_ChildEntry]:
        """The children that are restarted with this one, itself included, in the order of their
        start.
        """
        if self._strategy == "one-for-one":
            return (child,)
        everyone = list(self._children.values())
        return everyone if self._strategy == "one-for-all" else everyone[everyone.index(child) :]

    def _rest(self, child: _ChildEntry) -> None:
        """The child has no actor now, and none is to come by itself."""
        child.state = "stopped"
        child.due = None
        if child.rule.restart == "temporary":
            self._forget(child)

    def _forget(self, child: _ChildEntry) -> None:
        del self._children[child.rule.id]
        self._effects.append(Forgotten(child.rule.id))

    def _shut_down(self, reason: ExitReason) -> None:
        requests = [each for each in self._line if isinstance(each, _ChildRequest)]
        for work in (*self._put_off, self._work):
            if work is not None and work.request is not None:
                requests.insert(0, work.request)
        self._effects.extend(
            SupervisorAnswer(request.token, "supervisor stopped") for request in requests
        )
        self._put_off.clear()
        self._line.clear()  # Nor is what comes later served: this work goes on until the end.
        self._phase = "stopping"
        self._work = _Work("shut down", stops=list(self._children), reason=reason)
        child = None if self._outstanding is None else self._children[self._outstanding]
        if child is not None and child.state == "starting":
            child.state = "stopping"
            self._effects.append(StopChild(child.rule.id, child.rule.shutdown))
