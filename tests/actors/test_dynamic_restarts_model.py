"""The decisions about children that come and go against an independent model, in which each child
is a procedure of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import combinations
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.dynamic_restarts import DynamicRestartMachine
from actors.supervision import (
    ChildRule,
    Exit,
    ExitReason,
    Forgotten,
    RestartBackoff,
    StartChild,
    StopChild,
    SupervisorAnswer,
    TryAgain,
)
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(DynamicRestartMachine)


EXAMPLES = max(400, settings().max_examples)
"""A profile with more examples than these raises them: `--hypothesis-profile=...`."""

NORMAL = ("normal", "shutdown")
IDS = ("a", "b", "c", "d")

Life = Generator[str, tuple[str, Any], None]
"""Yields what the child is doing, and is sent what happens to it: ("stop", who asked), ("exit",
kind), ("due", time), how a start went.
"""


class Model:
    """Children by id, each the procedure of its life. What they want done is gathered in `wanted`,
    as the effects are that it means.
    """

    def __init__(self, intensity: int, period: int, most: int | None, delay: int) -> None:
        self.intensity, self.period, self.most, self.delay = intensity, period, most, delay
        self.lives: dict[str, Life] = {}
        self.doing: dict[str, str] = {}
        self.times: list[int] = []
        self.now = 0
        self.reason = ""
        self.wanted: list[tuple] = []

    def life(self, rule: ChildRule, request: object) -> Life:
        """A child from its first start until nobody starts it any more."""
        failures = losses = since = 0
        asked = [] if request is None else [request]
        begun = False
        while True:
            self.wanted.append(("start", rule.id))
            what, detail = yield "restarting" if begun else "starting"
            if what == "stop":
                word = "supervisor stopped" if self.reason else "start failed"
                self.wanted += [("answer", each, word) for each in asked]
                return (yield from self.stop(rule, detail))
            unknown = not begun and (asked or what != "unplaced")
            if what == "ignored" or (what in ("failed", "unplaced", "exit") and unknown):
                word = "ignored" if what == "ignored" else "start failed"
                self.wanted += [("answer", each, word) for each in asked]
                return
            if what == "ok":
                self.wanted += [("answer", each, "started") for each in asked]
                asked, begun, since = [], True, self.now
                what, detail = yield "running"
                if what == "stop":
                    return (yield from self.stop(rule, detail))
                if rule.restart == "temporary" or (
                    rule.restart == "transient" and detail in NORMAL
                ):
                    return
                if self.now - since >= 60:
                    losses = 0
            begun, delay = True, 0.0
            if what == "unplaced" or detail == "node died":
                # Nothing is said of the child: at once after a first death, then after 0.1, 0.2,
                # 0.4 ... seconds.
                losses += 1
                delay = (
                    0.0 if losses == 1 and what == "exit" else min(0.1 * 2 ** max(losses - 2, 0), 5)
                )
            elif detail != "node left":
                failures += 1
                self.times.append(self.now)
                if sum(self.now - time <= self.period for time in self.times) > self.intensity:
                    self.wanted.append(("give up",))
                    return
                delay = self.delay * 2 ** (failures - 1)
            if delay:
                due = self.now + delay
                self.wanted.append(("try again", rule.id, round(float(due), 6)))
                while what != "due" or detail < due:
                    what, detail = yield "waiting"
                    if what == "stop":
                        self.wanted += [("answer", detail, "stopped")] if detail else []
                        return

    def stop(self, rule: ChildRule, asked: object) -> Life:
        """From here on the child only comes to an end, whatever is told of it; who asks for that
        too is answered as well.
        """
        self.wanted.append(("stop", rule.id))
        waiting = [asked]
        while (said := (yield "stopping"))[0] in ("stop", "ok", "due"):
            waiting += [said[1]] if said[0] == "stop" else []
        self.wanted += [("answer", each, "stopped") for each in waiting if each]

    def send(self, id: str, what: str, detail: object = None) -> None:
        try:
            self.doing[id] = self.lives[id].send((what, detail))
        except StopIteration:
            self.forget(id)
        if ("give up",) in self.wanted:
            self.wanted.remove(("give up",))
            self.shut_down("shutdown")

    def forget(self, id: str) -> None:
        del self.lives[id], self.doing[id]
        self.wanted.append(("forgotten", id))
        self.end_if_empty()

    def end_if_empty(self) -> None:
        if self.reason and not self.lives:
            self.wanted.append(("exit", self.reason))

    def shut_down(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            if not self.lives:
                self.end_if_empty()
            for id in list(self.lives):
                self.send(id, "stop")

    # What a supervisor is told and asked

    def add(self, rule: ChildRule, request: int | None) -> None:
        """`request`: None for a child that is taken over from an earlier supervisor."""
        if self.reason:
            self.wanted.append(("answer", request, "supervisor stopped"))
        elif rule.id in self.lives:
            self.wanted.append(
                (
                    "answer",
                    request,
                    "already present" if self.doing[rule.id] == "waiting" else "already started",
                )
            )
        elif self.most is not None and len(self.lives) >= self.most:
            self.wanted.append(("answer", request, "too many children"))
        else:
            self.lives[rule.id] = self.life(rule, request)
            self.doing[rule.id] = next(self.lives[rule.id])

    def ask(self, kind: str, id: str, request: int) -> None:
        if self.reason or id not in self.lives:
            self.wanted.append(
                ("answer", request, "supervisor stopped" if self.reason else "not found")
            )
        elif kind == "terminate":
            self.send(id, "stop", request)
        else:
            self.wanted.append(
                ("answer", request, "restarting" if self.doing[id] == "waiting" else "running")
            )


@attrs.frozen
class Step:
    """`kind`: a request, "stop", how a child exits, the outcome of what is going on with it, or
    "time". `later`: seconds before it.
    """

    kind: str
    rule: ChildRule
    later: int
    lost: tuple[str, ...] = ()
    """The children that a node which dies takes with it."""


class Pair:
    """The machine and the model, told the same; what both want is compared after each step."""

    def __init__(self, intensity: int, period: int, most: int | None, delay: int) -> None:
        backoff = (
            RestartBackoff(initial_delay=delay, backoff=2, max_delay=10**9, jitter=0, calm=10**9)
            if delay
            else None
        )
        self.machine = DynamicRestartMachine(intensity, period, most, backoff)
        self.machine.start(0)
        self.model = Model(intensity, period, most, delay)
        self.now = self.requests = 0
        self.answered: set[object] = set()
        self.due: list[tuple[str, float]] = []

    def step(self, step: Step) -> None:
        self.now += step.later
        self.model.now = self.now
        for id, due in [each for each in self.due if each[1] <= self.now]:
            self.due.remove((id, due))
            self.same(
                self.machine.try_again(id, self.now),
                lambda id=id: self.tell(id, "due", self.now, "waiting"),  # type: ignore[misc]
            )
        machine, model, id, kind, now = self.machine, self.model, step.rule.id, step.kind, self.now
        if kind in ("add", "terminate", "restart", "delete"):
            self.requests += 1
            number = self.requests
            if kind == "add":
                self.same(machine.add(step.rule, number), lambda: model.add(step.rule, number))
            else:
                self.same(getattr(machine, kind)(id, number), lambda: model.ask(kind, id, number))
        elif kind == "stop":
            self.same(machine.stop(now), lambda: model.shut_down("stopped"))
        elif kind == "ok":
            self.same(
                machine.on_started(id, now),
                lambda: self.tell(id, "ok", None, "starting", "restarting"),
            )
        elif kind == "ignored":
            self.same(
                machine.on_ignored(id),
                lambda: self.tell(id, "ignored", None, "starting", "restarting", "stopping"),
            )
        elif kind == "failed":
            reason = ExitReason("start failed")
            self.same(
                machine.on_start_failed(id, reason, now),
                lambda: self.tell(id, "failed", None, "starting", "restarting", "stopping"),
            )
        elif kind == "unplaced":
            reason = ExitReason("not placed")
            self.same(
                machine.on_start_failed(id, reason, now),
                lambda: self.tell(id, "unplaced", None, "starting", "restarting", "stopping"),
            )
        elif kind == "take over":
            if id not in model.lives and not model.reason:
                self.same(machine.add(step.rule, None), lambda: model.add(step.rule, None))
        elif step.lost:
            self.same(
                machine.on_lost(step.lost, ExitReason("node died"), now),
                lambda: self.lose(step.lost),
            )
        elif kind == "stopped":
            self.same(machine.on_stopped(id), lambda: self.tell(id, "stopped", None, "stopping"))
        elif kind != "time":
            doing = ("starting", "restarting", "running", "stopping")
            failed = model.doing.get(id) in ("starting", "restarting")
            word: Any = "raised" if failed and kind == "node left" else kind
            self.same(
                machine.on_exited(id, ExitReason(word), now),
                lambda: self.tell(id, "exit", word, *doing),
            )

    def tell(self, id: str, what: str, detail: object, *doing: str) -> None:
        """Tell the model, if its child is doing what this can happen to."""
        if self.model.doing.get(id) in doing:
            self.model.send(id, what, detail)

    def lose(self, ids: Sequence[str]) -> None:
        """Tell the model of a node that has died: each that runs learns of it for itself."""
        for id in ids:
            self.tell(id, "exit", "node died", "running")

    def same(self, effects: Sequence[object], model: Callable[[], None]) -> None:
        model()
        found = [self.in_words(effect) for effect in effects]
        assert sorted(map(repr, found)) == sorted(map(repr, self.model.wanted))
        assert ("exit", self.model.reason) not in found[:-1]
        self.model.wanted = []
        views = {
            view.rule.id: {"restarting": "again"}.get(view.state, view.state)
            for view in self.machine.children()
        }
        words = {"waiting": "again", "restarting": "again"}
        assert views == {id: words.get(doing, doing) for id, doing in self.model.doing.items()}

    def in_words(self, effect: object) -> tuple:
        match effect:
            case StartChild(id):
                return ("start", id)
            case StopChild(id, _):
                return ("stop", id)
            case Forgotten(id):
                return ("forgotten", id)
            case SupervisorAnswer(request, reply, _):
                assert request not in self.answered, "answered twice"
                if request is not None:
                    self.answered.add(request)
                return ("answer", request, reply)
            case TryAgain(id, at):
                self.due.append((id, at))
                return ("try again", id, round(float(at), 6))
            case Exit(reason):
                return ("exit", reason.kind)
        raise AssertionError(f"unexpected: {effect}")


KINDS = (
    *("add",) * 8,
    *("ok",) * 8,
    *("raised",) * 4,
    *("stopped",) * 3,
    *("terminate", "normal", "node left", "failed", "unplaced", "time", "take over") * 2,
    "ignored",
    "restart",
    "delete",
)
RULES = [
    ChildRule(id, restart=restart)
    for id in IDS
    for restart in ("permanent", "permanent", "transient", "temporary")
]
STEPS = [Step(kind, rule, later) for kind in KINDS for rule in RULES for later in (0, 0, 1, 3)]
STEPS += [
    Step("node died", RULES[0], later, ids)
    for count in (1, 2, 3, 4)
    for ids in combinations(IDS, count)
    for later in (0, 1, 3) * 3
]
STEPS += [Step("time", RULES[0], 70)] * 5
STEPS += [Step("stop", RULES[0], 0)] * (len(STEPS) // 60)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    st.sampled_from([0, 1, 2, 3, 5, 50]),
    st.integers(1, 10),
    st.sampled_from([None, None, 0, 2, 3]),
    st.sampled_from([0, 0, 1, 2]),
    st.lists(st.sampled_from(STEPS), max_size=60)
    | st.lists(st.sampled_from(STEPS), min_size=25, max_size=60),
)
def test_children_that_come_and_go_live_as_in_the_model_whatever_happens_in_whatever_order(
    intensity: int, period: int, most: int | None, delay: int, steps: list[Step]
) -> None:
    pair = Pair(intensity, period, most, delay)
    for step in steps:
        pair.step(step)
    # In the end it is stopped: then nothing is left, and every request has had its one answer.
    pair.step(Step("stop", RULES[0], 0))
    for id in IDS:
        pair.step(Step("stopped", ChildRule(id), 0))
    assert pair.machine.phase == "ended"
    assert pair.answered == set(range(1, pair.requests + 1))


@settings(max_examples=EXAMPLES // 4)
@given(
    st.integers(0, 5),
    st.integers(1, 10),
    st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 3), st.booleans()), max_size=40),
)
def test_no_window_of_a_period_ever_holds_more_restarts_than_the_intensity(
    intensity: int, period: int, failures: list[tuple[str, int, bool]]
) -> None:
    machine = DynamicRestartMachine(intensity, period)
    machine.start(0)
    for id in IDS:
        machine.add(ChildRule(id), id)
        machine.on_started(id, 0)
    now = 0
    restarts: list[Any] = []
    for id, later, comes_up in failures:
        now += later
        effects = machine.on_exited(id, ExitReason("raised"), now)
        if effects != [StartChild(id)]:
            assert machine.phase == "stopping"
            assert sum(now - time <= period for time in restarts) == intensity
            break
        restarts.append(now)
        if comes_up:
            assert machine.on_started(id, now) == []
    for start in restarts:
        assert sum(start <= time <= start + period for time in restarts) <= intensity
