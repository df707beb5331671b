"""Trees of the real machines, each with a small shell around it that carries its effects out in a
world of paths and watches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs

from actors.adoption import adopted
from actors.dynamic_restarts import DynamicRestartMachine
from actors.restarts import RestartMachine
from actors.supervision import (
    ChildView,
    Effect,
    Exit,
    ExitReason,
    Forgotten,
    StartChild,
    StopChild,
    SupervisorAnswer,
    TryAgain,
)
from tests.actors.trees import ROOT, Happening, Plan, Request, id_of, is_adrift, parent_of

RAISED = ExitReason("raised")


@attrs.define(eq=False)
class Acting:
    """What lives: a leaf, or with a `machine` a supervisor. `offered`: all that it was ever asked
    to have as a child.

    `disturbed`: requests reached it in this moment, so that starts need not be restarts.
    `restarts`: when it restarted a child alone.
    """

    path: str
    plan: Plan
    node: int
    machine: RestartMachine | DynamicRestartMachine | None = None
    offered: list[Plan] = attrs.Factory(list)
    queue: list[Effect] = attrs.Factory(list)
    exit: ExitReason | None = None
    disturbed: bool = False
    alone: set[str] = attrs.Factory(set)
    """Those whose stop was called for while the supervisor itself was not to stop."""
    restarts: list[int] = attrs.Factory(list)
    alarms: dict[str, float] = attrs.Factory(dict)
    """When to try again to restart which child."""

    @property
    def deciding(self) -> Any:
        """The machine of a supervisor."""
        assert self.machine is not None
        return self.machine

    def plan_of(self, rule: object) -> Plan:
        return next(plan for plan in self.offered if plan.rule is rule)

    def view(self, id: str) -> ChildView | None:
        return next((view for view in self.deciding.children() if view.rule.id == id), None)


class DrivenTree:
    """See `ReferenceTree`. `unanswered`: requests that nobody has answered yet, with the path of
    who should.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.living: dict[str, Acting] = {}
        self.orphans: set[str] = set()
        self.book: dict[str, list[Plan]] = {}
        self.told: set[str] = set()
        self.replies: dict[int, str] = {}
        self.unanswered: dict[int, str] = {}
        self.gave_up: list[str] = []
        self.seen: set[str] = set()
        """Words for what has happened, for those who ask if it ever did."""

    def happen(self, happening: Happening) -> None:
        self.happening, random = happening, Random(happening.seed)
        self.chance = Random(happening.seed + 1)
        self.fates = {path: [word, times] for path, word, times in happening.fates}
        for each in self.living.values():
            each.disturbed = False
        if ROOT not in self.living and ROOT not in self.gave_up:
            self.told.add("")
        self.lose(happening)
        for path in sorted(self.living):
            self.ring(self.living[path])
        for request in happening.requests:
            self.ask(request)
        while self.told:
            self.act(random.choice(sorted(self.told)))
        while adrift := [path for path in self.orphans if not self.will_live(parent_of(path))]:
            self.end(adrift[0])
            self.orphans.discard(adrift[0])
            self.seen.add("orphan stopped")
        if self.orphans:
            self.seen.add("orphans wait")
        # Who will not be started again has been forgotten, and what it was given with it.
        self.book = {
            path: plans
            for path, plans in self.book.items()
            if path not in self.living and self.will_live(path)
        }

    def will_live(self, path: str) -> bool:
        """It lives, or its supervisor will start it again, or would if it was there."""
        if path in self.living or path == ROOT:
            return path not in self.gave_up
        supervisor = self.living.get(parent_of(path))
        if supervisor is None:
            return self.will_live(parent_of(path))
        if supervisor.machine is None:
            # The supervisor that once had it was stopped, and a leaf was added under its name.
            return False
        view = supervisor.view(id_of(path))
        return view is not None and view.state == "restarting"

    def ring(self, supervisor: Acting) -> None:
        """It is time to try again."""
        now = self.happening.now
        for id in sorted(id for id, at in supervisor.alarms.items() if at <= now):
            del supervisor.alarms[id]
            self.take(supervisor, supervisor.deciding.try_again(id, now))
            self.told.add(supervisor.path)

    def lose(self, happening: Happening) -> None:
        """Some end, all at once; then those supervisors are told that have not ended with them."""
        lost = [(self.living.pop(path), ExitReason(kind)) for path, kind in happening.exits]  # type: ignore[arg-type]
        for each, _ in lost:
            self.told.discard(each.path)
            if each.path == ROOT:
                self.told.add("")
            if each.machine is None:
                continue
            first = {plan.rule.id for plan in each.plan.first}
            views = each.machine.children()
            self.book[each.path] = [
                each.plan_of(view.rule) for view in views if view.rule.id not in first
            ]
            self.orphans.update(
                path for view in views if (path := f"{each.path}/{view.rule.id}") in self.living
            )
        deaths: dict[str, list[str]] = {}
        for each, reason in lost:
            if reason.kind != "node died":
                self.tell(each.path, reason)
            elif each.path in self.orphans:
                self.orphans.discard(each.path)
            else:
                deaths.setdefault(parent_of(each.path), []).append(id_of(each.path))
        for path, ids in deaths.items():
            supervisor = self.living.get(path)
            if supervisor is not None:
                if len(ids) > 1:
                    self.seen.add("children died together")
                # The order in which they are named must not matter, nor that others are.
                self.chance.shuffle(ids)
                died = ExitReason("node died")
                self.take(
                    supervisor, supervisor.deciding.on_lost(["stranger", *ids], died, happening.now)
                )
                self.told.add(path)

    def tell(self, path: str, reason: ExitReason) -> None:
        """A child has ended: its supervisor hears of it, if there is one."""
        supervisor = self.living.get(parent_of(path))
        if path in self.orphans:
            self.orphans.discard(path)
        elif supervisor is not None:
            self.take(
                supervisor, supervisor.deciding.on_exited(id_of(path), reason, self.happening.now)
            )
            self.told.add(supervisor.path)

    def ask(self, request: Request) -> None:
        supervisor = self.living.get(request.path)
        if supervisor is None or supervisor.machine is None:
            return
        at_once = supervisor.plan.strategy == "dynamic"
        if at_once and request.path in self.told:
            self.act(request.path)
        self.unanswered[request.number] = request.path
        supervisor.disturbed = True
        supervisor.offered.append(request.plan)
        rule, machine = request.plan.rule, supervisor.deciding
        answer = (
            machine.add(rule, request.number)
            if request.kind == "add"
            else getattr(machine, request.kind)(rule.id, request.number)
        )
        self.take(supervisor, answer)
        self.told.add(request.path)
        if at_once:
            self.act(request.path)

    def act(self, path: str) -> None:
        self.told.discard(path)
        if path == "":
            if self.begin(ROOT, self.plan) in ("failed", "ignored"):
                self.gave_up.append(ROOT)
                self.seen.add("root did not start")
            return
        supervisor = self.living.get(path)
        if supervisor is None:
            return
        self.disturb(supervisor)
        self.run(supervisor)
        if supervisor.exit is not None:
            assert supervisor.exit.kind == "shutdown"
            if not is_adrift(path, self.orphans):
                self.gave_up.append(path)
            self.seen.add("root gave up" if path == ROOT else "gave up")
            self.tell(path, supervisor.exit)

    def disturb(self, supervisor: Acting) -> None:
        """What comes late, twice, or from strangers must not matter."""
        machine, now = supervisor.deciding, self.happening.now
        noises = (
            lambda: machine.on_exited("stranger", RAISED, now),
            lambda: machine.on_stopped("stranger"),
            lambda: machine.try_again(
                self.chance.choice([view.rule.id for view in machine.children()] or ["a"]), now
            ),
            list,
        )
        assert self.chance.choice(noises)() == []

    # Effects

    def take(self, supervisor: Acting, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SupervisorAnswer):
                if effect.request is not None:
                    assert isinstance(effect.request, int)
                    assert self.unanswered.pop(effect.request) == supervisor.path, (
                        "answered twice, or by another"
                    )
                    self.replies[effect.request] = effect.reply
                    self.seen.add(f"answer: {effect.reply}")
            elif isinstance(effect, TryAgain):
                assert effect.at > self.happening.now
                supervisor.alarms[effect.id] = effect.at
                self.seen.add("restart waits")
            elif not isinstance(effect, Forgotten):
                supervisor.queue.append(effect)
                if (
                    isinstance(effect, StopChild)
                    and supervisor.machine is not None
                    and supervisor.machine.phase == "running"
                ):
                    supervisor.alone.add(effect.id)

    def run(self, supervisor: Acting) -> None:
        """Carry out what the machine wants, until it wants nothing more. Dynamic ones do not mind
        in which order it is done.
        """
        queue = supervisor.queue
        while queue and supervisor.exit is None:
            index = 0
            if supervisor.plan.strategy == "dynamic":
                index = self.chance.randrange(len(queue))
                id = getattr(queue[index], "id", None)
                index = next(
                    number
                    for number, effect in enumerate(queue)
                    if getattr(effect, "id", None) == id
                )
            effect = queue.pop(index)
            if isinstance(effect, StartChild):
                self.carry_out_start(supervisor, effect.id)
            elif isinstance(effect, StopChild):
                self.carry_out_stop(supervisor, effect.id)
            elif isinstance(effect, Exit):
                if supervisor.plan.strategy == "dynamic" and any(
                    not isinstance(each, Exit) for each in queue
                ):
                    queue.append(effect)
                    continue
                supervisor.exit = effect.reason
                self.end_those_not_taken_over(supervisor)
                del self.living[supervisor.path]
                self.told.discard(supervisor.path)

    def carry_out_start(self, supervisor: Acting, id: str) -> None:
        machine, now = supervisor.deciding, self.happening.now
        if machine.phase in ("stopping", "ended"):
            # A stop is on its way: whether it had started until then must not matter.
            if self.chance.random() < 0.5:
                self.take(supervisor, machine.on_started(id, now))
            self.seen.add("start given up")
            return
        view = supervisor.view(id)
        assert view is not None
        self.check_start(supervisor, view)
        outcome = self.begin(f"{supervisor.path}/{id}", supervisor.plan_of(view.rule))
        self.seen.add(f"start: {outcome}")
        if outcome == "ok":
            self.take(supervisor, machine.on_started(id, now))
        elif outcome == "ignored":
            self.take(supervisor, machine.on_ignored(id))
        else:
            report = self.chance.choice((machine.on_start_failed, machine.on_exited))
            self.take(
                supervisor,
                report(
                    id, ExitReason("not placed" if outcome == "unplaced" else "start failed"), now
                ),
            )

    def carry_out_stop(self, supervisor: Acting, id: str) -> None:
        machine, path = supervisor.deciding, f"{supervisor.path}/{id}"
        crashed = False
        if path in self.living:
            crashed = self.chance.random() < 0.2
            if (
                supervisor.plan.strategy != "dynamic"
                and machine.phase == "stopping"
                and id not in supervisor.alone
            ):
                later = self.later(supervisor, id)
                assert not later, f"{path} is stopped before {later}"
            self.end(path)
        supervisor.alone.discard(id)
        self.take(
            supervisor,
            machine.on_exited(id, RAISED, self.happening.now)
            if crashed
            else machine.on_stopped(id),
        )
        assert machine.on_stopped("stranger") == []

    def check_start(self, supervisor: Acting, view: ChildView) -> None:
        """In order: nobody who comes later runs. And never more restarts in a period than the
        intensity.
        """
        plan, now = supervisor.plan, self.happening.now
        if supervisor.disturbed:
            return
        if supervisor.deciding.phase == "starting" or plan.strategy in (
            "one-for-all",
            "rest-for-one",
        ):
            later = self.later(supervisor, view.rule.id)
            assert not later, f"{view.rule.id} is started after {later}"
            return
        if view.last_exit is not None and view.last_exit.is_failure:
            supervisor.restarts.append(now)
            assert sum(now - time <= plan.period for time in supervisor.restarts) <= plan.intensity

    def later(self, supervisor: Acting, id: str) -> list[str]:
        """Children that come after this one in the order and live, as far as they are not still to
        be adopted.
        """
        ids = [view.rule.id for view in supervisor.deciding.children()]
        paths = [f"{supervisor.path}/{each}" for each in ids[ids.index(id) + 1 :]]
        return [path for path in paths if path in self.living and path not in self.orphans]

    # Starting and stopping

    def begin(self, path: str, plan: Plan) -> str:
        if self.happening.store_away:
            return "unplaced"
        if path in self.orphans:
            self.orphans.discard(path)
            self.seen.add("adopted")
            return "ok"
        assert path not in self.living, f"{path} is started a second time"
        fate = self.fates.get(path)
        if fate and fate[1] and (fate[0] == "unplaced" or not plan.strategy):
            fate[1] -= 1  # type: ignore[operator]
            return str(fate[0])
        each = self.living[path] = Acting(path, plan, self.happening.node_of(path))
        if not plan.strategy:
            return "ok"
        first = list(plan.first)
        added = [
            one
            for one in self.book.pop(path, ())
            if one.rule.restart != "temporary" or f"{path}/{one.rule.id}" in self.orphans
        ]
        each.offered = [
            *first,
            *(one for one in added if one.rule.id not in {plan.rule.id for plan in first}),
        ]
        self.adopt(each)
        if plan.strategy == "dynamic":
            machine: Any = DynamicRestartMachine(plan.intensity, plan.period, plan.most)
            self.take(each, machine.start(self.happening.now))
            for one in added:
                self.take(each, machine.add(one.rule, None))
        else:
            word: Any = plan.strategy
            automatic: Any = plan.automatic
            machine = RestartMachine(
                [one.rule for one in each.offered], word, plan.intensity, plan.period, automatic
            )
            self.take(each, machine.start(self.happening.now))
        each.machine = machine
        self.run(each)
        if each.exit is None:
            return "ok"
        return "unplaced" if each.exit.kind == "not placed" else "failed"

    def adopt(self, supervisor: Acting) -> None:
        """Stop those that outlived the predecessor and cannot be kept; the others wait for their
        start.
        """
        strategy: Any = (
            "one-for-one" if supervisor.plan.strategy == "dynamic" else supervisor.plan.strategy
        )
        order = [plan.rule.id for plan in supervisor.offered]
        living = {id for id in order if f"{supervisor.path}/{id}" in self.orphans}
        _, given_up = adopted(strategy, order, living)
        for id in given_up:
            self.end(f"{supervisor.path}/{id}")
            self.orphans.discard(f"{supervisor.path}/{id}")
            self.seen.add("not kept")

    def end_those_not_taken_over(self, supervisor: Acting) -> None:
        """Those that were to be adopted, by a supervisor whose start has failed before that."""
        for plan in reversed(supervisor.offered):
            if (path := f"{supervisor.path}/{plan.rule.id}") in self.orphans:
                self.end(path)
                self.orphans.discard(path)
                self.seen.add("adopted in vain")

    def end(self, path: str) -> None:
        each = self.living[path]
        if each.machine is None:
            del self.living[path]
            return
        self.take(each, each.machine.stop(self.happening.now))
        self.run(each)
        assert each.exit is not None, f"{path} does not stop"

    # What it looks like

    def check(self) -> None:
        """What must be so whenever everything has settled."""
        assert all(
            parent_of(path) not in self.living and self.will_live(parent_of(path))
            for path in self.orphans
        )
        for path, each in self.living.items():
            assert path == ROOT or parent_of(path) in self.living or path in self.orphans, (
                f"{path} outlived its supervisor"
            )
            if each.machine is not None:
                running = {
                    f"{path}/{view.rule.id}"
                    for view in each.machine.children()
                    if view.state == "running"
                }
                assert running == {other for other in self.living if parent_of(other) == path}
        assert [number for number, path in self.unanswered.items() if path in self.living] == []

    def state(self) -> dict[str, object]:
        seen: dict[str, object] = {}
        for path, each in self.living.items():
            if each.machine is not None:
                seen[path + "/"] = each.machine.intensity.recent(self.happening.now)
                for view in each.machine.children():
                    seen[f"{path}/{view.rule.id}"] = (view.state, view.restarts)
        return seen
