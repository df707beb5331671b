"""The decisions of a supervisor whose children come and go, row by row."""

from __future__ import annotations

import math
from typing import Any

import pytest

from actors.dynamic_restarts import DynamicRestartMachine
from actors.supervision import (
    AllStarted,
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
from tests.actors.test_restarts import last_exit_of
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(DynamicRestartMachine)


NORMAL = ExitReason("normal")
RAISED = ExitReason("raised", "ValueError: bad", "Traceback ...")
LEFT = ExitReason("node left")


def booted(*ids: str, restart: Any = "permanent", **keywords: Any) -> DynamicRestartMachine:
    """A machine whose children all run; room for restarts unless said otherwise."""
    machine = DynamicRestartMachine(**{"intensity": 100, "period": 10.0, **keywords})
    assert machine.start(0.0) == [AllStarted()]
    for id in ids:
        assert machine.add(ChildRule(id, restart=restart), id) == [StartChild(id)]
        assert machine.on_started(id, 0.0) == [SupervisorAnswer(id, "started")]
    return machine


def states(machine: DynamicRestartMachine) -> dict[str, str]:
    return {view.rule.id: view.state for view in machine.children()}


# Definition


def test_defaults_are_otps() -> None:
    machine = DynamicRestartMachine()
    machine.start(0.0)
    machine.add(ChildRule("a"), 1)
    machine.on_started("a", 0.0)
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]
    machine.on_started("a", 1.0)
    assert isinstance(machine.on_exited("a", RAISED, 5.9)[-1], Exit)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"intensity": -1}, ValueError, "intensity.*-1"),
        ({"intensity": True}, TypeError, "intensity.*True"),
        ({"period": 0}, ValueError, "period.*0"),
        ({"period": math.nan}, ValueError, "period.*nan"),
        ({"max_children": -1}, ValueError, "max_children.*-1"),
        ({"max_children": 1.5}, TypeError, "max_children.*1.5"),
        ({"max_children": False}, TypeError, "max_children.*False"),
    ],
)
def test_what_makes_no_sense_is_refused(
    keywords: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        DynamicRestartMachine(**keywords)


def test_a_significant_child_is_refused() -> None:
    with pytest.raises(ValueError, match=r"child 's'.*significant"):
        booted().add(ChildRule("s", restart="transient", significant=True), 1)


def test_a_machine_is_started_once_and_before_it_is_asked_for_anything() -> None:
    machine = DynamicRestartMachine()
    for question in (
        lambda: machine.add(ChildRule("a"), 1),
        lambda: machine.terminate("a", 1),
        lambda: machine.delete("a", 1),
    ):
        with pytest.raises(RuntimeError, match="not been started"):
            question()
    assert machine.phase == "new"
    machine.start(0.0)
    assert machine.phase == "running"
    with pytest.raises(RuntimeError, match="was started already"):
        machine.start(0.0)


def test_time_that_goes_back_is_refused() -> None:
    machine = booted("a")
    machine.on_exited("x", RAISED, 5.0)
    for now in (4.9, math.nan):
        with pytest.raises(ValueError, match="time must not go back"):
            machine.on_exited("a", RAISED, now)


# Starting and stopping


def test_any_number_of_children_start_side_by_side_and_in_whatever_order_they_come_to_run() -> None:
    machine = booted()
    assert [machine.add(ChildRule(id), id) for id in "abc"] == [
        [StartChild("a")],
        [StartChild("b")],
        [StartChild("c")],
    ]
    assert machine.on_started("c", 1.0) == [SupervisorAnswer("c", "started")]
    assert states(machine) == {"a": "starting", "b": "starting", "c": "running"}
    assert machine.on_started("a", 1.0) == [SupervisorAnswer("a", "started")]


def test_children_stop_side_by_side_each_by_its_rule_and_the_last_to_stop_ends_the_supervisor() -> (
    None
):
    machine = booted()
    for id, shutdown in (("a", 0.5), ("b", "kill"), ("c", None)):
        rule: Any = ChildRule(id, shutdown=shutdown)  # type: ignore[arg-type]
        machine.add(rule, id)
        machine.on_started(id, 0.0)
    assert machine.stop(1.0) == [StopChild("a", 0.5), StopChild("b", "kill"), StopChild("c", None)]
    assert machine.phase == "stopping"
    assert machine.on_stopped("b") == [Forgotten("b")]
    assert machine.on_exited("c", RAISED, 1.0) == [Forgotten("c")]
    assert machine.on_stopped("a") == [Forgotten("a"), Exit(ExitReason("stopped"))]
    assert machine.phase == "ended"


def test_a_supervisor_without_children_ends_at_once_with_the_reason_that_it_was_stopped_for() -> (
    None
):
    assert booted().stop(1.0, ExitReason("parent stopped")) == [Exit(ExitReason("parent stopped"))]


def test_stopping_twice_is_stopping_once() -> None:
    machine = booted("a")
    machine.stop(1.0)
    assert machine.stop(2.0, ExitReason("killed")) == []
    assert machine.on_stopped("a") == [Forgotten("a"), Exit(ExitReason("stopped"))]
    assert machine.stop(3.0) == []


def test_a_child_that_is_starting_when_its_supervisor_stops_is_stopped() -> None:
    machine = booted()
    machine.add(ChildRule("a"), 1)
    assert machine.stop(1.0) == [SupervisorAnswer(1, "supervisor stopped"), StopChild("a", 5.0)]
    assert machine.on_started("a", 1.0) == []
    assert machine.on_stopped("a") == [Forgotten("a"), Exit(ExitReason("stopped"))]


@pytest.mark.parametrize("news", ["start_failed", "ignored", "exited"])
def test_a_start_that_comes_to_nothing_while_the_supervisor_stops_needs_no_stop(news: str) -> None:
    machine = booted()
    machine.add(ChildRule("a"), 1)
    machine.stop(1.0)
    effects = (
        machine.on_ignored("a")
        if news == "ignored"
        else getattr(machine, f"on_{news}")("a", RAISED, 1.0)
    )
    assert effects == [Forgotten("a"), Exit(ExitReason("stopped"))]
    assert machine.on_stopped("a") == []


def test_a_child_that_waits_for_its_restart_holds_up_no_stop() -> None:
    machine = booted("a", backoff=RestartBackoff(jitter=0))
    machine.on_exited("a", RAISED, 1.0)
    assert machine.stop(1.0) == [Forgotten("a"), Exit(ExitReason("stopped"))]
    assert machine.try_again("a", 1.1) == []


# Exits and restarts


def test_a_child_that_was_not_placed_is_started_before_its_time_if_a_node_has_room() -> None:
    machine = booted("a", backoff=RestartBackoff(initial_delay=1, jitter=0))
    machine.on_exited("a", ExitReason("node left"), 0.0)
    (wait,) = machine.on_start_failed("a", ExitReason("not placed"), 0.0)
    assert isinstance(wait, TryAgain)
    assert machine.try_again("a", wait.at / 2) == []
    assert machine.try_again("a", wait.at / 2, has_room=True) == [StartChild("a")]
    machine.on_started("a", 5.0)
    (wait,) = machine.on_exited("a", RAISED, 6.0)
    assert isinstance(wait, TryAgain)
    assert machine.try_again("a", 6.1, has_room=True) == []
    assert machine.try_again("a", wait.at, has_room=True) == [StartChild("a")]


@pytest.mark.parametrize("reason", [NORMAL, RAISED, ExitReason("node died"), LEFT])
def test_a_permanent_child_is_restarted_alone_whatever_the_reason(reason: ExitReason) -> None:
    machine = booted("a", "b")
    assert machine.on_exited("a", reason, 1.0) == [StartChild("a")]
    assert states(machine) == {"a": "restarting", "b": "running"}
    assert machine.on_started("a", 1.0) == []
    (a, b) = machine.children()
    assert (a.state, a.restarts, a.last_exit) == ("running", 1, reason)
    assert (b.state, b.restarts, b.last_exit) == ("running", 0, None)


@pytest.mark.parametrize("kind", ["normal", "shutdown", "stopped", "parent stopped", "idle"])
def test_a_transient_child_that_ends_normally_is_forgotten(kind: Any) -> None:
    machine = booted("a", restart="transient")
    assert machine.on_exited("a", ExitReason(kind), 1.0) == [Forgotten("a")]
    assert machine.children() == []


@pytest.mark.parametrize(
    "kind", ["raised", "exit code", "signal", "node died", "node left", "killed"]
)
def test_a_transient_child_that_ends_otherwise_is_restarted(kind: Any) -> None:
    assert booted("a", restart="transient").on_exited("a", ExitReason(kind), 1.0) == [
        StartChild("a")
    ]


@pytest.mark.parametrize("reason", [NORMAL, RAISED, LEFT])
def test_a_temporary_child_is_forgotten_however_it_ends(reason: ExitReason) -> None:
    assert booted("a", restart="temporary").on_exited("a", reason, 1.0) == [Forgotten("a")]


def test_restarts_go_on_side_by_side() -> None:
    machine = booted("a", "b")
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]
    assert machine.on_exited("b", RAISED, 1.0) == [StartChild("b")]
    assert machine.on_started("b", 1.0) == []
    assert machine.on_started("a", 1.0) == []
    assert states(machine) == {"a": "running", "b": "running"}


def test_a_restart_that_fails_counts_as_a_further_one_until_the_intensity_is_exceeded() -> None:
    machine = booted("a", "b", intensity=2)
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]
    assert machine.on_start_failed("a", RAISED, 1.0) == [StartChild("a")]
    failed = ExitReason("start failed", "OSError: no disk", "the traceback")
    assert machine.on_start_failed("a", failed, 1.0) == [Forgotten("a"), StopChild("b", 5.0)]
    reason = last_exit_of(machine.on_stopped("b"))
    assert reason.kind == "shutdown"
    assert "2 restarts within 10 s" in reason.text
    assert "'a'" in reason.text
    assert "OSError: no disk" in reason.text
    assert reason.traceback == "the traceback"


def test_a_child_that_exits_while_it_is_started_again_has_failed_to_start() -> None:
    machine = booted("a")
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]


def test_restarts_of_all_children_count_together_within_the_period() -> None:
    machine = booted("a", "b", intensity=1, period=5.0)
    machine.on_exited("a", RAISED, 0.0)
    machine.on_started("a", 0.0)
    assert machine.on_exited("b", RAISED, 5.1) == [StartChild("b")]
    machine.on_started("b", 5.1)
    assert machine.on_exited("a", RAISED, 10.1) == [Forgotten("a"), StopChild("b", 5.0)]


def test_a_move_to_another_node_counts_as_no_restart() -> None:
    machine = booted("a", intensity=0)
    for now in range(5):
        assert machine.on_exited("a", LEFT, now) == [StartChild("a")]
        assert machine.on_started("a", now) == []
    assert isinstance(machine.on_exited("a", RAISED, 5)[-1], Exit)


def test_giving_up_answers_those_who_wait() -> None:
    machine = booted("a", "b", intensity=0)
    machine.add(ChildRule("c"), 1)
    machine.terminate("b", 2)
    assert machine.on_exited("a", RAISED, 1.0) == [
        Forgotten("a"),
        SupervisorAnswer(1, "supervisor stopped"),
        StopChild("c", 5.0),
    ]
    assert machine.on_stopped("b") == [Forgotten("b"), SupervisorAnswer(2, "stopped")]
    assert last_exit_of(machine.on_stopped("c")).kind == "shutdown"


def test_news_of_what_is_not_a_child_or_has_no_actor_is_ignored() -> None:
    machine = booted("a", backoff=RestartBackoff(jitter=0))
    for effects in (
        machine.on_exited("x", RAISED, 1.0),
        machine.on_started("x", 1.0),
        machine.on_start_failed("x", RAISED, 1.0),
        machine.on_ignored("x"),
        machine.on_stopped("x"),
        machine.on_stopped("a"),
        machine.try_again("x", 1.0),
        machine.try_again("a", 1.0),
        machine.on_started("a", 1.0),
        machine.on_ignored("a"),
    ):
        assert effects == []
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_exited("a", RAISED, 1.0) == []
    assert machine.on_started("a", 1.0) == []
    assert machine.on_ignored("a") == []
    assert states(machine) == {"a": "restarting"}


def test_a_failed_start_that_nobody_asked_for_starts_nothing_a_second_time() -> None:
    machine = booted("a", backoff=RestartBackoff(jitter=0))
    assert machine.on_start_failed("a", RAISED, 1.0) == []
    assert states(machine) == {"a": "running"}
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_start_failed("a", RAISED, 1.0) == []
    assert states(machine) == {"a": "restarting"}


# Requests


def test_an_added_child_that_fails_to_start_is_forgotten() -> None:
    machine = booted()
    machine.add(ChildRule("a"), 1)
    assert machine.on_start_failed("a", RAISED, 1.0) == [
        SupervisorAnswer(1, "start failed", RAISED),
        Forgotten("a"),
    ]
    machine.add(ChildRule("b"), 2)
    assert machine.on_exited("b", RAISED, 1.0) == [
        SupervisorAnswer(2, "start failed", RAISED),
        Forgotten("b"),
    ]
    assert machine.children() == []


@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
def test_an_added_child_that_ignores_its_start_is_forgotten(restart: Any) -> None:
    machine = booted()
    machine.add(ChildRule("a", restart=restart), 1)
    assert machine.on_ignored("a") == [SupervisorAnswer(1, "ignored"), Forgotten("a")]


def test_a_child_that_ignores_its_restart_is_forgotten() -> None:
    machine = booted("a")
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_ignored("a") == [Forgotten("a")]


def test_adding_a_child_that_is_there_answers_already_started_or_already_present() -> None:
    machine = booted("a", "b", backoff=RestartBackoff(jitter=0))
    machine.on_exited("b", RAISED, 1.0)
    machine.add(ChildRule("c"), 1)
    assert machine.add(ChildRule("a"), 2) == [SupervisorAnswer(2, "already started")]
    assert machine.add(ChildRule("b"), 3) == [SupervisorAnswer(3, "already present")]
    assert machine.add(ChildRule("c"), 4) == [SupervisorAnswer(4, "already started")]
    assert machine.on_started("c", 1.0) == [SupervisorAnswer(1, "started")]


def test_a_terminated_child_is_forgotten_and_all_who_asked_are_answered() -> None:
    machine = booted("a", "b")
    assert machine.terminate("a", 1) == [StopChild("a", 5.0)]
    assert machine.terminate("a", 2) == []
    assert states(machine) == {"a": "stopping", "b": "running"}
    assert machine.on_stopped("a") == [
        Forgotten("a"),
        SupervisorAnswer(1, "stopped"),
        SupervisorAnswer(2, "stopped"),
    ]
    assert machine.terminate("a", 3) == [SupervisorAnswer(3, "not found")]
    assert machine.add(ChildRule("a"), 4) == [StartChild("a")]


def test_a_child_that_crashes_while_it_is_stopped_by_request_is_not_restarted() -> None:
    machine = booted("a")
    machine.terminate("a", 1)
    assert machine.on_exited("a", RAISED, 1.0) == [Forgotten("a"), SupervisorAnswer(1, "stopped")]


def test_terminating_a_child_that_is_started_for_the_first_time_fails_its_start() -> None:
    machine = booted()
    machine.add(ChildRule("a"), 1)
    assert machine.terminate("a", 2) == [
        SupervisorAnswer(1, "start failed", ExitReason("stopped")),
        StopChild("a", 5.0),
    ]
    assert machine.on_started("a", 1.0) == []
    assert machine.on_stopped("a") == [Forgotten("a"), SupervisorAnswer(2, "stopped")]


def test_terminating_a_child_that_is_started_again_ends_that() -> None:
    machine = booted("a")
    machine.on_exited("a", RAISED, 1.0)
    assert machine.terminate("a", 1) == [StopChild("a", 5.0)]
    assert machine.on_start_failed("a", RAISED, 1.0) == [
        Forgotten("a"),
        SupervisorAnswer(1, "stopped"),
    ]


def test_terminating_a_child_that_waits_for_its_restart_ends_the_wait() -> None:
    machine = booted("a", backoff=RestartBackoff(jitter=0))
    assert machine.on_exited("a", RAISED, 1.0) == [TryAgain("a", 1.1)]
    assert machine.terminate("a", 1) == [Forgotten("a"), SupervisorAnswer(1, "stopped")]
    assert machine.try_again("a", 1.1) == []


@pytest.mark.parametrize("kind", ["restart", "delete"])
def test_no_child_is_there_without_an_actor_to_be_restarted_or_deleted(kind: str) -> None:
    machine = booted("a", "b", backoff=RestartBackoff(jitter=0))
    machine.on_exited("b", RAISED, 1.0)
    ask = getattr(machine, kind)
    assert ask("a", 1) == [SupervisorAnswer(1, "running")]
    assert ask("b", 2) == [SupervisorAnswer(2, "restarting")]
    assert ask("x", 3) == [SupervisorAnswer(3, "not found")]


def test_no_more_children_than_max_children_are_there_whatever_they_do() -> None:
    machine = booted("a", max_children=2, backoff=RestartBackoff(jitter=0))
    machine.add(ChildRule("b"), 1)
    assert machine.add(ChildRule("c"), 2) == [SupervisorAnswer(2, "too many children")]
    assert machine.add(ChildRule("a"), 3) == [SupervisorAnswer(3, "already started")]
    machine.on_exited("a", RAISED, 1.0)
    assert machine.add(ChildRule("c"), 4) == [SupervisorAnswer(4, "too many children")]
    machine.on_start_failed("b", RAISED, 1.0)
    assert machine.add(ChildRule("c"), 5) == [StartChild("c")]
    assert booted(max_children=0).add(ChildRule("a"), 6) == [
        SupervisorAnswer(6, "too many children")
    ]


def test_every_request_to_a_supervisor_that_stops_is_answered_so() -> None:
    machine = booted("a")
    machine.stop(1.0)
    questions = [
        machine.add(ChildRule("b"), 1),
        machine.terminate("a", 2),
        machine.restart("a", 3),
        machine.delete("a", 4),
    ]
    assert questions == [
        [SupervisorAnswer(number, "supervisor stopped")] for number in (1, 2, 3, 4)
    ]


# Back-off


def test_waits_between_restarts_grow_for_each_child_by_itself_and_start_over_when_it_was_calm() -> (
    None
):
    backoff = RestartBackoff(initial_delay=1, backoff=2, max_delay=5, jitter=0, calm=60)
    machine = booted("a", "b", backoff=backoff, period=1.0)
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 5.0):
        assert machine.on_exited("a", RAISED, now) == [TryAgain("a", now + wait)]
        assert machine.try_again("a", now + wait / 2) == []
        now += wait
        assert machine.try_again("a", now) == [StartChild("a")]
        machine.on_started("a", now)
    assert machine.on_exited("b", RAISED, now) == [TryAgain("b", now + 1.0)]
    now += 60
    assert machine.on_exited("a", RAISED, now) == [TryAgain("a", now + 1.0)]


def test_a_start_that_fails_waits_longer_than_the_exit_before_it() -> None:
    machine = booted("a", backoff=RestartBackoff(initial_delay=1, backoff=2, jitter=0))
    machine.on_exited("a", RAISED, 0.0)
    machine.try_again("a", 1.0)
    assert machine.on_start_failed("a", RAISED, 1.0) == [TryAgain("a", 3.0)]


def test_a_move_to_another_node_is_not_waited_for() -> None:
    machine = booted("a", backoff=RestartBackoff(initial_delay=1, backoff=2, jitter=0))
    assert machine.on_exited("a", LEFT, 0.0) == [StartChild("a")]
    machine.on_started("a", 0.0)
    assert machine.on_exited("a", RAISED, 1.0) == [TryAgain("a", 2.0)]
    machine.try_again("a", 2.0)
    machine.on_started("a", 2.0)
    assert machine.on_exited("a", LEFT, 3.0) == [StartChild("a")]


def test_the_draw_picks_the_point_in_the_waits_jitter_band() -> None:
    machine = booted("a", backoff=RestartBackoff(initial_delay=1, jitter=0.5), draw=lambda: 0.0)
    assert machine.on_exited("a", RAISED, 0.0) == [TryAgain("a", 0.5)]


def test_the_wait_of_an_earlier_life_does_not_shorten_that_of_a_later_one() -> None:
    machine = booted("a", backoff=RestartBackoff(initial_delay=1, backoff=2, jitter=0))
    assert machine.on_exited("a", RAISED, 0.0) == [TryAgain("a", 1.0)]
    machine.terminate("a", 1)
    machine.add(ChildRule("a"), 2)
    machine.on_started("a", 0.5)
    assert machine.on_exited("a", RAISED, 0.6) == [TryAgain("a", 1.6)]
    assert machine.try_again("a", 1.0) == []
    assert machine.try_again("a", 1.6) == [StartChild("a")]
