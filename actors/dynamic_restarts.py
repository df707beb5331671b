"""The decisions of a supervisor whose children come and go: each for itself, side by side,
thousands of them.

What OTP calls simple_one_for_one, and Elixir a DynamicSupervisor. Beside `actors.restarts`, whose
inputs and effects these are: any number of starts and stops may be outstanding here, so a child
that is slow to start or to stop holds up no other child; a child that ends without a restart, or is
stopped by request, is forgotten, for it would never be started again. Each input costs the same,
however many children there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal

import attrs

from actors.restart_intensity import RestartDelay, RestartIntensity
from actors.retry import check_whole_number
from actors.supervision import (
    AllStarted,
    ChildRule,
    ChildState,
    ChildView,
    Effect,
    Exit,
    ExitReason,
    Forgotten,
    Phase,
    Reply,
    RestartBackoff,
    StartChild,
    StopChild,
    SupervisorAnswer,
    TryAgain,
)


@attrs.define(eq=False)
class _DynamicChild:
    rule: ChildRule
    state: Literal["starting", "running", "restarting", "stopping"] = "starting"
    adding: object = None
    """The request that is answered when it has started for the first time."""
    terminating: list[object] = attrs.Factory(list)
    """The requests that are answered when it has stopped."""
    begun: bool = False
    restarts: int = 0
    delay: RestartDelay = attrs.Factory(RestartDelay)
    running_since: float = -math.inf
    due: float | None = None
    last_exit: ExitReason | None = None


class DynamicRestartMachine:
    """One supervisor of children that are added while it runs. See `actors.restarts.RestartMachine`
    for the inputs and what they return.

    `max_children`: more are refused, with "too many children"; None for no limit.
    """

    def __init__(
        self,
        intensity: int = 1,
        period: float = 5.0,
        max_children: int | None = None,
        backoff: RestartBackoff | None = None,
        draw: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.intensity = RestartIntensity(intensity, period)
        if max_children is not None:
            check_whole_number("max_children", max_children)
        self._max_children = max_children
        self._backoff = backoff
        self._draw = draw
        self._phase: Phase = "new"
        self._now = -math.inf
        self._children: dict[str, _DynamicChild] = {}
        self._reason: ExitReason | None = None
        self._effects: list[Effect] = []

    @property
    def phase(self) -> Phase:
        """The phase of the supervisor's life."""
        return self._phase

    def children(self, most: int | None = None) -> list[ChildView]:
        """All children, the oldest first, or the first `most` of them."""
        return [
            ChildView(child.rule, _seen(child), child.restarts, child.last_exit)
            for child in islice(self._children.values(), most)
        ]

    def is_running(self, id: str) -> bool:
        """True if the child has started, and has neither ended nor begun to stop."""
        child = self._children.get(id)
        return child is not None and child.state == "running"

    def rests(self, id: str) -> bool:
        """False: a child that has no actor, and gets none, is forgotten."""
        return False

    def waits(self, id: str) -> bool:
        """False: see `rests`. There is nothing to be decided."""
        return False

    def due(self, id: str) -> float | None:
        """When the child is started again, which waits for that after its last end; else None."""
        child = self._children.get(id)
        return None if child is None or child.state != "restarting" else child.due

    def start(self, now: float) -> list[Effect]:
        """Start without children. Raises RuntimeError if it was started before."""
        if self._phase != "new":
            raise RuntimeError(
                "this machine was started already; make a new one for each start of its supervisor"
            )
        self._tick(now)
        self._phase = "running"
        self._effects.append(AllStarted())
        return self._taken()

    def stop(self, now: float, reason: ExitReason | None = None) -> list[Effect]:
        """Stop all children, side by side, and end with `reason` ("stopped")."""
        self._tick(now)
        self._shut_down(reason or ExitReason("stopped"))
        return self._taken()

    def on_started(self, id: str, now: float) -> list[Effect]:
        """Note that the child has started. Ignored for one that is being stopped: its end will be
        reported.
        """
        self._tick(now)
        child = self._children.get(id)
        if child is not None and child.state == "starting":
            # The first start is no restart.
            child.restarts += child.begun
            child.begun = True
            child.state = "running"
            child.running_since = now
            self._answer_adding(child, "started")
        return self._taken()

    def on_ignored(self, id: str) -> list[Effect]:
        """Note that the child raised `Ignore`: it is forgotten."""
        child = self._children.get(id)
        if child is not None and child.state == "starting":
            self._answer_adding(child, "ignored")
            self._forget(child)
        elif child is not None:
            return self.on_stopped(id)
        return self._taken()

    def on_start_failed(self, id: str, reason: ExitReason, now: float) -> list[Effect]:
        """Note that the child could not be started. At the first start its request gets this as the
        answer; later it counts as a failure.

        A child that was added to an earlier epoch (`add` with None for the request) is kept, and
        tried again, while it cannot be placed. Ignored for one that is not being started.
        """
        self._tick(now)
        child = self._children.get(id)
        if child is None or child.state != "starting":
            return self.on_stopped(id)
        child.last_exit = reason
        # The first start: its request gets the error, and nothing is retried. A child of an earlier
        # epoch has no request, so that one is retried while it cannot be placed.
        if not child.begun and (child.adding is not None or reason.is_failure):
            self._answer_adding(child, "start failed", reason)
            self._forget(child)
        else:
            child.begun = True
            self._restart(child, now)
        return self._taken()

    def on_exited(self, id: str, reason: ExitReason, now: float) -> list[Effect]:
        """Note that the child ended by itself, or before its stop took effect. Ignored for an id
        that is not a child's.
        """
        self._tick(now)
        child = self._children.get(id)
        # A late report: this end was handled already, or the child was forgotten.
        if child is None or child.state == "restarting":
            return self._taken()
        if child.state == "starting":
            return self.on_start_failed(id, reason, now)
        child.last_exit = reason
        if child.state == "stopping":
            return self.on_stopped(id)
        if child.rule.restart == "permanent" or (
            child.rule.restart == "transient" and not reason.is_normal
        ):
            child.delay.on_ran(now - child.running_since, self._backoff)
            self._restart(child, now)
        else:
            self._forget(child)
        return self._taken()

    def on_lost(self, ids: Iterable[str], reason: ExitReason, now: float) -> list[Effect]:
        """Note that these children have ended at the same moment, with their node. In a dynamic
        supervisor each is restarted for itself.
        """
        effects: list[Effect] = []
        for id in ids:
            child = self._children.get(id)
            if child is not None and child.state == "running":
                effects += self.on_exited(id, reason, now)
        return effects

    def on_stopped(self, id: str) -> list[Effect]:
        """Note that a child that was being stopped has ended. Ignored for others."""
        child = self._children.get(id)
        if child is not None and child.state == "stopping":
            self._forget(child)
            self._effects.extend(
                SupervisorAnswer(request, "stopped") for request in child.terminating
            )
            self._end_if_empty()
        return self._taken()

    def try_again(self, id: str, now: float, *, has_room: bool = False) -> list[Effect]:
        """The time that `TryAgain` named has come, or before it a node `has_room` for a child that
        was not placed. Ignored if neither is so, or if the child no longer waits.
        """
        self._tick(now)
        child = self._children.get(id)
        # The child may have been stopped during its wait, or have another wait since.
        if child is not None and child.state == "restarting" and child.due is not None:
            last = child.last_exit
            unplaced = last is not None and last.kind == "not placed"
            if now >= child.due or (has_room and unplaced):
                self._begin(child)
        return self._taken()

    def add(self, rule: ChildRule, request: object) -> list[Effect]:
        """Start a child; answers "started", "ignored", "start failed", "already started", "already
        present" or "too many children".

        Raises ValueError for a significant child, RuntimeError before `start`.
        """
        if rule.significant:
            raise ValueError(
                f"child {rule.id!r}: significant has no meaning in a dynamic supervisor, which "
                "does not end with its children"
            )
        if not self._refuses(request):
            known = self._children.get(rule.id)
            if known is not None:
                self._effects.append(
                    SupervisorAnswer(
                        request,
                        "already present" if known.state == "restarting" else "already started",
                    )
                )
            elif self._max_children is not None and len(self._children) >= self._max_children:
                self._effects.append(SupervisorAnswer(request, "too many children"))
            else:
                child = self._children[rule.id] = _DynamicChild(rule, adding=request)
                self._effects.append(StartChild(child.rule.id))
        return self._taken()

    def terminate(self, id: str, request: object) -> list[Effect]:
        """Stop a child and forget it; answers "stopped" or "not found"."""
        if not self._refuses(request):
            child = self._children.get(id)
            if child is None:
                self._effects.append(SupervisorAnswer(request, "not found"))
            elif child.state == "restarting":
                self._forget(child)
                self._effects.append(SupervisorAnswer(request, "stopped"))
            else:
                # Answered when the child has ended; several requests may wait for one end.
                child.terminating.append(request)
                self._stop(child)
        return self._taken()

    def restart(self, id: str, request: object) -> list[Effect]:
        """Answers "running", "restarting" or "not found": a child without an actor is never kept,
        so there is nothing to restart.
        """
        if not self._refuses(request):
            self._effects.append(SupervisorAnswer(request, self._state_of(id)))
        return self._taken()

    def delete(self, id: str, request: object) -> list[Effect]:
        """Answers "running", "restarting" or "not found": a child without an actor is never kept,
        so there is nothing to delete.
        """
        return self.restart(id, request)

    def _state_of(self, id: str) -> Reply:
        child = self._children.get(id)
        if child is None:
            return "not found"
        return "restarting" if child.state == "restarting" else "running"

    def _refuses(self, request: object) -> bool:
        if self._phase == "new":
            raise RuntimeError("the supervisor has not been started")
        if self._phase == "running":
            return False
        self._effects.append(SupervisorAnswer(request, "supervisor stopped"))
        return True

    def _restart(self, child: _DynamicChild, now: float) -> None:
        """Count a restart, if the child itself has failed; give up if that makes too many, else
        begin it, at once or after its wait.
        """
        reason = child.last_exit
        assert reason is not None
        child.state = "restarting"
        # Only failures of the child count: not the loss of its node, and not a missing place.
        if reason.is_failure and not self.intensity.allows(now):
            self._shut_down(
                ExitReason(
                    "shutdown", self.intensity.exceeded(child.rule.id, reason), reason.traceback
                )
            )
            return
        delay = child.delay.next(reason, self._backoff, self._draw)
        if delay > 0:
            child.due = now + delay
            self._effects.append(TryAgain(child.rule.id, child.due))
        else:
            self._begin(child)

    def _begin(self, child: _DynamicChild) -> None:
        child.state = "starting"
        child.due = None
        self._effects.append(StartChild(child.rule.id))

    def _stop(self, child: _DynamicChild) -> None:
        if child.state != "stopping":
            child.state = "stopping"
            self._answer_adding(
                child,
                "supervisor stopped" if self._phase == "stopping" else "start failed",
                ExitReason("stopped"),
            )
            self._effects.append(StopChild(child.rule.id, child.rule.shutdown))

    def _shut_down(self, reason: ExitReason) -> None:
        if self._phase in ("stopping", "ended"):
            return
        self._phase = "stopping"
        self._reason = reason
        # A copy, for those that have no actor are forgotten at once.
        for child in tuple(self._children.values()):
            if child.state == "restarting":
                self._forget(child)
            else:
                self._stop(child)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._phase == "stopping" and not self._children:
            assert self._reason is not None
            self._phase = "ended"
            self._effects.append(Exit(self._reason))

    def _answer_adding(
        self, child: _DynamicChild, reply: Reply, reason: ExitReason | None = None
    ) -> None:
        request, child.adding = child.adding, None
        if request is not None:
            self._effects.append(
                SupervisorAnswer(request, reply, reason if reply == "start failed" else None)
            )

    def _forget(self, child: _DynamicChild) -> None:
        del self._children[child.rule.id]
        self._effects.append(Forgotten(child.rule.id))

    def _tick(self, now: float) -> None:
        if not now >= self._now:
            raise ValueError(f"time must not go back: {now!r} after {self._now!r}")
        self._now = now

    def check_invariants(self) -> None:
        """Assert what must hold between any two inputs. Looks at all children: for tests and
        simulations.
        """
        assert self._phase in ("running", "stopping") or not self._children
        assert self._phase != "stopping" or self._children, "without children it has ended"
        assert (self._reason is None) == (self._phase in ("new", "running"))
        assert self._max_children is None or len(self._children) <= self._max_children
        for name, child in self._children.items():
            assert name == child.rule.id
            assert self._phase == "running" or child.state == "stopping"
            assert (child.due is not None) == (child.state == "restarting"), "a wait has an end"
            assert child.adding is None or (child.state == "starting" and not child.begun)
            assert not child.terminating or child.state == "stopping"
            assert child.begun or not child.restarts
        self.intensity.check_invariants()

    def _taken(self) -> list[Effect]:
        assert not (self._phase == "ended" and self._children)
        effects, self._effects = self._effects, []
        return effects


def _seen(child: _DynamicChild) -> ChildState:
    return "restarting" if child.state == "starting" and child.begun else child.state
