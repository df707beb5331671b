"""The supervisor's decisions against an independent model, on random trees and event orders, and
the invariants that need no model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.restarts import ChildRule, ExitReason, RestartMachine
from actors.supervision import Exit, StartChild, StopChild, SupervisorAnswer, TryAgain
from tests.actors.reference_model import Reference
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(RestartMachine)


EXAMPLES = max(300, settings().max_examples)
"""A profile with more examples than these raises them: `--hypothesis-profile=...`."""

RAISED = ExitReason("raised")
UNPLACED = ExitReason("not placed")

Script = tuple[dict[str, Any], list["Event"], list["Step"]]
"""A supervisor, what happens to it while it is idle, and how its operations go, one after
another.
"""

Traced = tuple[str, str, float]
"""What was done ("start" or "stop"), to which child, when."""


@attrs.frozen
class Event:
    """Something that happens to a supervisor. `kind`: how a child exits, what is requested, or
    "stop"; the world decides if it can be.

    `lost`: the children that a node which dies takes with it.
    """

    kind: str
    id: str
    rule: ChildRule
    later: int
    lost: tuple[str, ...] = ()


@attrs.frozen
class Step:
    """How a blocking operation goes: what happens meanwhile, its outcome, and seconds that it
    takes.
    """

    meanwhile: tuple[Event, ...] = ()
    outcome: str = "ok"
    takes: int = 0


class Driven:
    """A `RestartMachine` with a shell around it that carries effects out in a world, with the
    interface of the reference.
    """

    def __init__(
        self,
        children: Sequence[ChildRule],
        strategy: Any,
        intensity: int,
        period: int,
        automatic: Any,
        world: Any,
    ) -> None:
        self.machine = RestartMachine(children, strategy, intensity, period, automatic)
        self.world = world
        self.to_do: deque[object] = deque()
        self.busy = False
        self.ended: str | None = None
        self.replies: dict[int, str] = {}
        self.counted: list[float] = []

    def start(self) -> str:
        self.take(self.machine.start(self.world.now))
        self.run()
        return "fail" if self.ended else "ok"

    def stop(self) -> None:
        self.take(self.machine.stop(self.world.now))

    def exit(self, id: str, kind: Any) -> None:
        self.take(self.machine.on_exited(id, ExitReason(kind), self.world.now))

    def lose(self, ids: Sequence[str], kind: Any) -> None:
        self.take(self.machine.on_lost(ids, ExitReason(kind), self.world.now))

    def due(self, id: str) -> None:
        self.take(self.machine.try_again(id, self.world.now))

    def request(self, number: int, kind: str, rule: ChildRule) -> None:
        self.take(
            self.machine.add(rule, number)
            if kind == "add"
            else getattr(self.machine, kind)(rule.id, number)
        )

    def take(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, TryAgain):
                self.world.wake(effect.at, effect.id)
            elif isinstance(effect, SupervisorAnswer):
                assert isinstance(effect.request, int)
                assert effect.request not in self.replies
                self.replies[effect.request] = effect.reply
            elif isinstance(effect, Exit):
                assert self.ended is None
                self.ended = effect.reason.kind
            elif isinstance(effect, StartChild | StopChild):
                aborts = (
                    self.busy and isinstance(effect, StopChild) and self.machine.phase == "stopping"
                )
                assert not self.to_do, "two things at a time"
                assert not self.busy or aborts, "something new while something is outstanding"
                self.to_do.append(effect)

    def run(self) -> None:
        while self.to_do:
            effect = self.to_do.popleft()
            what, id = (
                ("start", effect.id) if isinstance(effect, StartChild) else ("stop", effect.id)  # type: ignore[attr-defined]
            )
            self.busy = True
            outcome = self.world.operation(what, id)
            self.busy = False
            now = self.world.now
            if self.to_do:
                # Told to stop while this child was starting; that it has started all the same must
                # not matter.
                if outcome == "ok":
                    assert self.machine.on_started(id, now) == []
            else:
                self.report(what, id, outcome, now)

    def report(self, what: str, id: str, outcome: str, now: float) -> None:
        """Tell the machine how an operation went."""
        if what == "stop":
            crashed = outcome == "fail"
            self.take(
                self.machine.on_exited(id, RAISED, now) if crashed else self.machine.on_stopped(id)
            )
        elif outcome == "ok":
            self.take(self.machine.on_started(id, now))
        elif outcome == "ignore":
            self.take(self.machine.on_ignored(id))
        else:
            reason = UNPLACED if outcome == "unplaced" else RAISED
            self.take(self.machine.on_start_failed(id, reason, now))

    def state(self) -> dict[str, str]:
        words = {"stopped": "none", "restarting": "restarting", "running": "actor"}
        return {view.rule.id: words[view.state] for view in self.machine.children()}


class Modelled(Reference):
    """The reference, with its state in words."""

    def state(self) -> dict[str, str]:
        """Those that wait together with one that is restarting are shown as such, too."""
        waiting = {
            each for id, pid in self.pids.items() if pid == "restarting" for each in self.group(id)
        }
        words = {id: "restarting" if id in waiting else "none" for id in self.pids}
        return {id: "actor" if isinstance(pid, int) else words[id] for id, pid in self.pids.items()}


class ScriptedWorld:
    """Plays one script to one supervisor: what it starts and stops goes into `trace`."""

    def __init__(
        self, steps: Sequence[Step], make: Callable[[ScriptedWorld], Driven | Modelled]
    ) -> None:
        self.now = 0.0
        self.steps = deque(steps)
        self.alive: set[str] = set()
        self.trace: list[Traced] = []
        self.requests = 0
        self.told = False
        self.wakes: list[tuple[float, str]] = []
        self.supervisor = make(self)

    def wake(self, at: float, id: str) -> None:
        self.wakes.append((at, id))

    def operation(self, what: str, id: str) -> str:
        self.trace.append((what, id, self.now))
        step = self.steps.popleft() if self.steps else Step()
        told_before = self.told
        for event in step.meanwhile:
            self.happen(event, id)
        self.now += step.takes
        aborted = what == "start" and self.told and not told_before
        outcome = step.outcome if what == "start" or step.outcome == "fail" else "ok"
        if what == "stop" or aborted:
            self.alive.discard(id)
        elif outcome == "ok":
            self.alive.add(id)
        return outcome

    def happen(self, event: Event, busy_with: str | None = None) -> None:
        self.now += event.later
        due = [each for each in self.wakes if each[0] <= self.now]
        self.wakes = [each for each in self.wakes if each not in due]
        for _, id in due:
            self.supervisor.due(id)
            if busy_with is None:
                self.supervisor.run()
        if event.kind in REQUESTS:
            self.requests += 1
            self.supervisor.request(self.requests, event.kind, event.rule)
        elif event.kind == "stop":
            self.told = True
            self.supervisor.stop() if isinstance(self.supervisor, Driven) else setattr(
                self.supervisor, "told", True
            )
        elif event.lost:
            lost = [id for id in event.lost if id in self.alive and id != busy_with]
            self.alive.difference_update(lost)
            # Those that had ended before are named as well: that must not matter.
            self.supervisor.lose(
                lost if isinstance(self.supervisor, Modelled) else event.lost, event.kind
            )
        elif event.id in self.alive and event.id != busy_with:
            self.alive.discard(event.id)
            self.supervisor.exit(event.id, event.kind)
        elif event.id != busy_with and isinstance(self.supervisor, Driven):
            self.supervisor.exit(event.id, event.kind)

    def play(self, events: Sequence[Event]) -> dict[str, object]:
        self.supervisor.start()
        self.supervisor.run()
        for event in events:
            if self.supervisor.ended:
                break
            self.happen(event)
            self.supervisor.run()
        found = self.supervisor
        replies = {number: found.replies.get(number) for number in range(1, self.requests + 1)}
        state = None if found.ended else found.state()
        return {
            "trace": self.trace,
            "ended": found.ended,
            "replies": replies,
            "state": state,
            "now": self.now,
        }


IDS = ("a", "b", "c", "d", "e")
RESTARTS = ("permanent", "permanent", "transient", "temporary")
KINDS = ("raised", "node left", "normal", "shutdown")
REQUESTS = ("add", "terminate", "restart", "delete")


def rules_of(automatic: str, ids: Sequence[str]) -> list[ChildRule]:
    """Every rule that fits, so that one choice draws one: hypothesis covers few large choices
    better than many small ones.
    """
    all_of_them = [ChildRule(id, restart=restart) for id in ids for restart in RESTARTS]  # type: ignore[arg-type]
    significant = [
        attrs.evolve(rule, significant=True) for rule in all_of_them if rule.restart != "permanent"
    ]
    return all_of_them if automatic == "never" else [*all_of_them, *significant]


def events_of(automatic: str) -> list[Event]:
    """Every event there can be, exits more often than requests."""
    exits = [
        Event(kind, id, ChildRule(id), later)
        for kind in KINDS
        for id in IDS
        for later in (0, 0, 1, 3)
    ]
    nodes = [ids for count in (1, 2, 3, 5) for ids in combinations(IDS, count)]
    deaths = [
        Event("node died", "", ChildRule("a"), later, ids)
        for ids in nodes
        for later in (0, 0, 1, 3)
    ]
    deaths.append(Event("node died", "", ChildRule("a"), 70, IDS))
    requests = [
        Event(kind, rule.id, rule, later)
        for kind in REQUESTS
        for rule in rules_of(automatic, IDS)
        for later in (0, 1)
    ]
    return [*exits * 3, *deaths * 2, *requests]


AUTOMATIC = ("never", "any-significant", "all-significant")
STOPS = [Event("stop", "a", ChildRule("a"), later) for later in (0, 1)]

# The strategies are built once. hypothesis looks up each new one by its elements, and to hash
# thousands of events took more time in each example than all that was tried with it.
RULES = {
    (automatic, id): st.sampled_from(rules_of(automatic, [id]))
    for automatic in AUTOMATIC
    for id in IDS
}
STRATEGIES = st.sampled_from(["one-for-one", "one-for-all", "rest-for-one"])
INTENSITIES = st.sampled_from([0, 1, 2, 3, 5, 8, 50])
PERIODS = st.integers(1, 10)
AUTOMATICS = st.sampled_from(["never", *AUTOMATIC])


@st.composite
def supervisors(draw: st.DrawFn) -> dict[str, Any]:
    automatic = draw(AUTOMATICS)
    ids = IDS[: draw(st.integers(0, 4))]
    return {
        "children": [draw(RULES[automatic, id]) for id in ids],
        "strategy": draw(STRATEGIES),
        "intensity": draw(INTENSITIES),
        "period": draw(PERIODS),
        "automatic": automatic,
    }


@cache
def histories(
    automatic: str, fewest_events: int, fewest_steps: int
) -> st.SearchStrategy[tuple[list[Event], list[Step]]]:
    """Events, at least that many, and steps, at least that many, for supervisors of this kind."""
    return st.tuples(
        st.lists(_event(automatic), min_size=fewest_events, max_size=15),
        st.lists(_step(automatic), min_size=fewest_steps, max_size=20),
    )


@cache
def _event(automatic: str) -> st.SearchStrategy[Event]:
    pool = events_of(automatic)
    return st.sampled_from(pool + STOPS * (len(pool) // 80))


@cache
def _step(automatic: str) -> st.SearchStrategy[Step]:
    meanwhile = st.lists(_event(automatic), max_size=4).map(tuple)
    outcomes = st.sampled_from(["ok", "ok", "ok", "ok", "ignore", "fail", "unplaced"])
    return st.builds(Step, st.just(()) | meanwhile, outcomes, st.integers(0, 2))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    supervisor = draw(supervisors())
    start_well = [Step() for _ in supervisor["children"] if draw(st.booleans())]
    fewest = draw(st.integers(0, 8)), draw(st.integers(0, 10))
    events, steps = draw(histories(supervisor["automatic"], *fewest))
    return supervisor, events, [*start_well, *steps]


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(scripts())
def test_a_supervisor_does_what_the_reference_does_whatever_happens_in_whatever_order(
    script: Script,
) -> None:
    supervisor, events, steps = script
    keywords = list(supervisor.values())
    expected = ScriptedWorld(steps, lambda world: Modelled(*keywords, world)).play(events)  # type: ignore[call-arg]
    world = ScriptedWorld(steps, lambda world: Driven(*keywords, world))  # type: ignore[call-arg]
    assert world.play(events) == expected
    running = {id for id, state in world.supervisor.state().items() if state == "actor"}
    assert running == world.alive
    assert not (running and world.supervisor.ended), "something outlived its supervisor"
    assert len(world.supervisor.replies) == world.requests


@attrs.frozen
class Tree:
    """A supervisor of supervisors and leaves; leaves have no `inner`."""

    supervisor: dict[str, Any]
    inner: dict[str, Tree]


class Branch:
    """One supervisor of a tree at work, and those under it. Leaves start as the shared list of
    fates says.
    """

    def __init__(
        self,
        tree: Tree,
        path: str,
        make: Any,
        clock: list[float],
        fates: deque[str],
        trace: list[Traced],
    ) -> None:
        self.tree, self.path, self.make, self.clock, self.fates, self.trace = (
            tree,
            path,
            make,
            clock,
            fates,
            trace,
        )
        self.inner: dict[str, Branch] = {}
        self.wakes: list[tuple[float, str]] = []
        self.supervisor = make(*tree.supervisor.values(), self)

    @property
    def now(self) -> float:
        return self.clock[0]

    def operation(self, what: str, id: str) -> str:
        self.trace.append((what, f"{self.path}/{id}", self.now))
        if id not in self.tree.inner:
            return self.fates.popleft() if what == "start" and self.fates else "ok"
        if what == "stop":
            ending = self.inner.pop(id).supervisor
            ending.stop()
            ending.run()
            return "ok"
        branch = Branch(
            self.tree.inner[id], f"{self.path}/{id}", self.make, self.clock, self.fates, self.trace
        )
        outcome: str = branch.supervisor.start()
        if outcome == "ok":
            self.inner[id] = branch
        return "unplaced" if branch.supervisor.ended == "not placed" else outcome

    def wake(self, at: float, id: str) -> None:
        self.wakes.append((at, id))

    def time_passes(self) -> None:
        """Let those try again whose time has come, the inner ones first."""
        for id, branch in list(self.inner.items()):
            if self.inner.get(id) is branch:
                branch.time_passes()
                self.react(id)
        due = [each for each in self.wakes if each[0] <= self.now]
        self.wakes = [each for each in self.wakes if each not in due]
        for _, id in due:
            self.supervisor.due(id)
            self.supervisor.run()

    def react(self, id: str) -> None:
        """A supervisor below has decided something: perhaps to end."""
        ended = self.inner[id].supervisor.ended
        if ended is not None:
            del self.inner[id]
            self.supervisor.exit(id, ended)
            self.supervisor.run()

    def crash(self, path: Sequence[str], kind: str) -> None:
        """End the leaf, or the last supervisor on the way that there is no way on from, and let
        every level above react.
        """
        id, *rest = path
        if id in self.inner:
            self.inner[id].crash(rest or ["a"], kind)
            self.react(id)
        elif id not in self.tree.inner and self.supervisor.state().get(id) == "actor":
            self.supervisor.exit(id, kind)
            self.supervisor.run()

    def node_dies(self, leaves: Sequence[str]) -> None:
        """Every supervisor of the tree loses these of its leaves in one moment, and reacts: the
        inner ones first.
        """
        for id, branch in list(self.inner.items()):
            if self.inner.get(id) is branch:
                branch.node_dies(leaves)
                self.react(id)
        lost = [
            id
            for id in leaves
            if id not in self.tree.inner and self.supervisor.state().get(id) == "actor"
        ]
        if self.supervisor.ended is None:
            self.supervisor.lose(lost, "node died")
            self.supervisor.run()

    def states(self) -> dict[str, object]:
        return {
            **self.supervisor.state(),
            **{id: branch.states() for id, branch in self.inner.items()},
        }


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Tree:
    supervisor = draw(supervisors())
    ids = [rule.id for rule in supervisor["children"]]
    inner = [id for id in ids if depth > 1 and draw(st.integers(0, 2)) == 0]
    return Tree(supervisor, {id: draw(trees(depth - 1)) for id in inner})


def grown(
    tree: Tree, make: Any, crashes: Sequence[tuple[list[str], str, int]], fates: Sequence[str]
) -> dict[str, object]:
    clock = [0.0]
    root = Branch(tree, "", make, clock, deque(fates), [])
    root.supervisor.start()
    for path, kind, later in crashes:
        if root.supervisor.ended:
            break
        clock[0] += later
        root.time_passes()
        if not root.supervisor.ended:
            root.node_dies(path) if kind == "node died" else root.crash(path, kind)
    ended = root.supervisor.ended
    return {"trace": root.trace, "ended": ended, "states": None if ended else root.states()}


CRASHES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(IDS), min_size=3, max_size=3),
        st.sampled_from([*KINDS, "node died"]),
        st.integers(0, 4),
    ),
    max_size=20,
)
FATES = st.lists(
    st.sampled_from([*["ok"] * 8, "ignore", "fail", "unplaced", "unplaced"]), max_size=40
)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(trees(), CRASHES, FATES)
def test_a_tree_of_supervisors_escalates_as_the_reference_does(
    tree: Tree, crashes: list[tuple[list[str], str, int]], fates: list[str]
) -> None:
    assert grown(tree, Driven, crashes, fates) == grown(tree, Modelled, crashes, fates)


class Yielding(Driven):
    """Gives starts up that hold up a child before them, whatever would have become of them."""

    put_off = 0

    def report(self, what: str, id: str, outcome: str, now: float) -> None:
        # A bound, for a child before it may never be placed.
        if what != "start" or self.put_off == 20 or not self.machine.holds_up(id):
            super().report(what, id, outcome, now)
            return
        self.put_off += 1
        self.world.alive.discard(id)
        order = [view.rule.id for view in self.machine.children()]
        self.take(self.machine.put_off(id, now))
        if self.to_do and self.machine.phase != "stopping":
            (effect,) = self.to_do
            # First those before it; siblings of their groups are stopped for them.
            assert isinstance(effect, StopChild) or order.index(effect.id) <= order.index(id)  # type: ignore[attr-defined]


@settings(max_examples=EXAMPLES)
@given(scripts())
def test_starts_that_are_put_off_leave_no_child_behind_and_no_request_without_an_answer(
    script: Script,
) -> None:
    supervisor, events, steps = script
    keywords = list(supervisor.values())
    world = ScriptedWorld(steps, lambda world: Yielding(*keywords, world))  # type: ignore[call-arg]
    world.play(events)
    running = {id for id, state in world.supervisor.state().items() if state == "actor"}
    assert running == world.alive
    assert not (running and world.supervisor.ended), "something outlived its supervisor"
    assert len(world.supervisor.replies) == world.requests


class WatchfulWorld(ScriptedWorld):
    """Asserts at each start and stop that a child which is later in the order does not
    run.
    """

    def __init__(self, steps: Sequence[Step], supervisor: dict[str, Any]) -> None:
        self.order = [rule.id for rule in supervisor["children"]]
        self.alone = supervisor["strategy"] == "one-for-one"
        super().__init__(steps, lambda world: Driven(*supervisor.values(), world))  # type: ignore[call-arg]

    def operation(self, what: str, id: str) -> str:
        later = self.alive.intersection(self.order[self.order.index(id) + 1 :])
        aborted = what == "stop" and id not in self.alive
        assert not later or (self.alone and (what == "start" or aborted)), (
            f"{what} {id} while {later} run"
        )
        return super().operation(what, id)


@settings(max_examples=EXAMPLES // 4)
@given(scripts())
def test_nothing_starts_after_or_stops_before_what_was_started_later(script: Script) -> None:
    supervisor, events, steps = script
    steps = [
        attrs.evolve(
            step, meanwhile=tuple(each for each in step.meanwhile if each.kind not in REQUESTS)
        )
        for step in steps
    ]
    WatchfulWorld(steps, supervisor).play([event for event in events if event.kind not in REQUESTS])


@settings(max_examples=EXAMPLES // 4)
@given(
    intensity=st.integers(0, 5),
    period=st.integers(1, 10),
    failures=st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3), st.integers(0, 3)), max_size=40
    ),
)
def test_no_window_of_a_period_ever_holds_more_restarts_than_the_intensity(
    intensity: int, period: int, failures: list[tuple[str, int, int]]
) -> None:
    machine = RestartMachine([ChildRule("a"), ChildRule("b")], intensity=intensity, period=period)
    for effects in (machine.start(0), machine.on_started("a", 0), machine.on_started("b", 0)):
        assert effects
    now, restarts = 0, []
    for id, later, failed_starts in failures:
        now += later
        effects = machine.on_exited(id, RAISED, now)
        for _ in range(failed_starts):
            if effects == [StartChild(id)]:
                restarts.append(now)
                effects = machine.on_start_failed(id, RAISED, now)
        if effects != [StartChild(id)]:
            # One restart more would have been too many: the machine gives up then, and not before.
            assert machine.phase == "stopping"
            assert sum(now - time <= period for time in restarts) == intensity
            break
        restarts.append(now)
        machine.on_started(id, now)
    for start in restarts:
        assert sum(start <= time <= start + period for time in restarts) <= intensity
