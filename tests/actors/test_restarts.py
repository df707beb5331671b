"""The supervisor's decisions, row by row of OTP's documented behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from actors.messages import message_type
from actors.restarts import ChildRule, ExitReason, RestartBackoff, RestartMachine
from actors.supervision import (
    AllStarted,
    Exit,
    Forgotten,
    StartChild,
    StopChild,
    SupervisorAnswer,
    TryAgain,
)
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(RestartMachine)


NORMAL = ExitReason("normal")
SHUTDOWN = ExitReason("shutdown")
RAISED = ExitReason("raised", "ValueError: bad", "Traceback ...")


def rules(*ids: str, **keywords: Any) -> list[ChildRule]:
    return [ChildRule(id, **keywords) for id in ids]


def permanent(*ids: str) -> list[ChildRule]:
    return rules(*ids)


def booted(children: Sequence[ChildRule], **keywords: Any) -> RestartMachine:
    """A machine whose children all run; room for restarts unless said otherwise."""
    machine = RestartMachine(children, **{"intensity": 100, "period": 10.0, **keywords})
    effects = machine.start(0.0)
    for rule in children:
        assert effects == [StartChild(rule.id)]
        effects = machine.on_started(rule.id, 0.0)
    assert effects == [AllStarted()]
    return machine


def states(machine: RestartMachine) -> dict[str, str]:
    return {view.rule.id: view.state for view in machine.children()}


def last_exit_of(effects: Sequence[object]) -> ExitReason:
    assert isinstance(effects[-1], Exit)
    return effects[-1].reason


# Definition


def test_defaults_are_otps() -> None:
    machine = RestartMachine(permanent("a"))
    machine.start(0.0)
    machine.on_started("a", 0.0)
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]
    machine.on_started("a", 1.0)
    assert isinstance(machine.on_exited("a", RAISED, 5.9)[-1], Exit)
    assert ChildRule("a").restart == "permanent"
    assert ChildRule("a").shutdown == 5.0
    assert not ChildRule("a").significant


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: RestartMachine([*permanent("a", "b"), ChildRule("a")]),
            ValueError,
            "child 'a'.*unique",
        ),
        (
            lambda: RestartMachine(strategy="one-for-none"),  # type: ignore[arg-type]
            ValueError,
            "strategy.*'one-for-one'.*not 'one-for-none'",
        ),
        (
            lambda: RestartMachine(automatic_shutdown="always"),  # type: ignore[arg-type]
            ValueError,
            "automatic_shutdown.*'always'",
        ),
        (lambda: RestartMachine(intensity=-1), ValueError, "intensity.*-1"),
        (lambda: RestartMachine(intensity=True), TypeError, "intensity.*True"),
        (lambda: RestartMachine(intensity=1.5), TypeError, "intensity.*1.5"),  # type: ignore[arg-type]
        (lambda: RestartMachine(period=-1), ValueError, "period.*-1"),
        (lambda: RestartMachine(period=0), ValueError, "period.*0"),
        (lambda: RestartMachine(period=math.nan), ValueError, "period.*nan"),
        (lambda: RestartMachine(period="5"), TypeError, "period.*'5'"),  # type: ignore[arg-type]
        (
            lambda: ChildRule("a", restart="sometimes"),  # type: ignore[arg-type]
            ValueError,
            "child 'a'.*'permanent'.*not 'sometimes'",
        ),
        (lambda: ChildRule("a", restart=[]), ValueError, "child 'a'.*not \\[\\]"),  # type: ignore[arg-type]
        (lambda: ChildRule("a", significant=True), ValueError, "child 'a'.*permanent.*significant"),
        (
            lambda: ChildRule("a", restart="transient", significant=1),  # type: ignore[arg-type]
            TypeError,
            "child 'a'.*significant.*1",
        ),
        (lambda: ChildRule("a", shutdown=-1), ValueError, "child 'a'.*shutdown.*-1"),
        (lambda: ChildRule("a", shutdown=math.nan), ValueError, "child 'a'.*shutdown.*nan"),
        (lambda: ChildRule("a", shutdown=math.inf), ValueError, "child 'a'.*shutdown.*inf"),
        (lambda: ChildRule("a", shutdown=True), TypeError, "child 'a'.*shutdown.*True"),
        (lambda: ChildRule("a", shutdown="soon"), TypeError, "child 'a'.*shutdown.*'soon'"),  # type: ignore[arg-type]
        (lambda: ChildRule(""), ValueError, "id must not be empty"),
        (lambda: ChildRule(7), TypeError, "id must be a str, not 7"),  # type: ignore[arg-type]
        (
            lambda: RestartMachine(rules("s", restart="transient", significant=True)),
            ValueError,
            "child 's'.*automatic_shutdown",
        ),
        (lambda: RestartBackoff(initial_delay=-1), ValueError, "initial_delay.*-1"),
        (lambda: RestartBackoff(backoff=0.5), ValueError, "backoff.*0.5"),
        (lambda: RestartBackoff(jitter=2), ValueError, "jitter.*2"),
        (lambda: RestartBackoff(max_delay=math.inf), ValueError, "max_delay.*inf"),
        (lambda: RestartBackoff(calm=math.nan), ValueError, "calm.*nan"),
        (lambda: ExitReason("bored"), ValueError, "'bored'"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    make: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_significant_child_is_accepted_where_automatic_shutdown_is_on() -> None:
    for restart in ("transient", "temporary"):
        for word in ("any-significant", "all-significant"):
            RestartMachine(rules("s", restart=restart, significant=True), automatic_shutdown=word)


def test_exit_reasons_can_be_sent_and_know_which_of_them_are_normal() -> None:
    assert message_type(ExitReason) is not None
    normal: list[Any] = ["normal", "shutdown", "stopped", "parent stopped", "idle"]
    others: list[Any] = ["raised", "exit code", "signal", "node died", "start failed", "killed"]
    assert [ExitReason(kind).is_normal for kind in (*normal, *others)] == [True] * 5 + [False] * 6
    assert str(ExitReason("signal", "SIGSEGV")) == "signal: SIGSEGV"


# Starting and stopping


def test_children_start_one_after_another_in_order() -> None:
    machine = RestartMachine(permanent("a", "b", "c"))
    assert machine.start(0.0) == [StartChild("a")]
    assert machine.on_started("a", 1.0) == [StartChild("b")]
    assert machine.on_started("b", 2.0) == [StartChild("c")]
    assert machine.phase == "starting"
    assert machine.on_started("c", 3.0) == [AllStarted()]
    assert machine.phase == "running"


def test_a_supervisor_without_children_is_ready_at_once() -> None:
    assert RestartMachine().start(0.0) == [AllStarted()]


def test_a_child_that_ignores_its_start_keeps_its_spec_unless_it_is_temporary() -> None:
    machine = RestartMachine([ChildRule("a"), ChildRule("t", restart="temporary"), ChildRule("b")])
    machine.start(0.0)
    assert machine.on_ignored("a") == [StartChild("t")]
    assert machine.on_ignored("t") == [Forgotten("t"), StartChild("b")]
    machine.on_started("b", 0.0)
    assert states(machine) == {"a": "stopped", "b": "running"}


def test_a_child_that_fails_to_start_stops_those_before_it_and_fails_the_supervisor() -> None:
    machine = RestartMachine(permanent("a", "b", "c", "d"))
    machine.start(0.0)
    machine.on_started("a", 0.0)
    machine.on_started("b", 0.0)
    assert machine.on_start_failed(
        "c", ExitReason("start failed", "OSError: no disk", "the traceback"), 1.0
    ) == [StopChild("b", 5.0)]
    assert machine.on_stopped("b") == [StopChild("a", 5.0)]
    reason = last_exit_of(machine.on_stopped("a"))
    assert reason.kind == "start failed"
    assert "'c'" in reason.text
    assert "OSError: no disk" in reason.text
    assert reason.traceback == "the traceback"
    assert machine.phase == "ended"


def test_an_exit_while_the_supervisor_starts_is_dealt_with_when_it_has_started() -> None:
    machine = RestartMachine(permanent("a", "b"))
    machine.start(0.0)
    machine.on_started("a", 0.0)
    assert machine.on_exited("a", RAISED, 0.5) == []
    assert machine.on_started("b", 1.0) == [AllStarted(), StartChild("a")]


def test_a_start_that_is_put_off_comes_after_the_restart_of_the_child_before_it() -> None:
    machine = RestartMachine(permanent("a", "b", "c"))
    machine.start(0.0)
    machine.on_started("a", 0.0)
    assert not machine.holds_up("b")
    machine.on_exited("a", RAISED, 0.5)
    assert machine.holds_up("b")
    assert machine.put_off("b", 1.0) == [StartChild("a")]
    assert not machine.holds_up("a")
    assert machine.waits("b")
    assert machine.on_started("a", 1.0) == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [StartChild("c")]
    assert machine.on_started("c", 1.0) == [AllStarted()]


def test_a_start_that_is_put_off_for_a_child_that_was_not_placed_is_put_off_again() -> None:
    machine = RestartMachine(permanent("a", "b"))
    machine.start(0.0)
    machine.on_started("a", 0.0)
    machine.on_exited("a", RAISED, 0.5)
    machine.put_off("b", 1.0)
    # It waits for its time, and the other start is made meanwhile.
    again, start = machine.on_start_failed("a", ExitReason("not placed"), 1.0)
    assert isinstance(again, TryAgain)
    assert start == StartChild("b")
    assert not machine.holds_up("b")
    assert machine.try_again("a", again.at, has_room=True) == []
    assert machine.holds_up("b")
    assert machine.put_off("b", again.at) == [StartChild("a")]
    assert machine.on_started("a", again.at) == [StartChild("b")]
    assert machine.on_started("b", again.at) == [AllStarted()]


def test_only_children_before_it_that_are_restarted_are_held_up_by_a_start() -> None:
    children = [ChildRule("gone", restart="temporary"), *permanent("a", "b")]
    machine = booted(children)
    machine.on_exited("a", RAISED, 1.0)
    machine.on_exited("gone", RAISED, 1.0)
    machine.on_exited("b", RAISED, 1.0)
    assert not machine.holds_up("a")
    machine.stop(2.0)
    assert machine.put_off("a", 2.0) != [StartChild("a")]
    assert machine.phase == "ended"


@pytest.mark.parametrize("strategy", ["one-for-all", "rest-for-one"])
def test_a_start_that_is_put_off_is_made_once_with_its_group(strategy: Any) -> None:
    machine = RestartMachine(permanent("a", "b", "c"), strategy)
    machine.start(0.0)
    machine.on_started("a", 0.0)
    machine.on_exited("a", RAISED, 0.5)
    assert machine.put_off("b", 1.0) == [StartChild("a")]
    assert machine.on_started("a", 1.0) == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [StartChild("c")]
    assert machine.on_started("c", 1.0) == [AllStarted()]


def test_children_stop_one_after_another_in_reverse_order_each_by_its_rule() -> None:
    machine = booted(
        [
            ChildRule("a", shutdown=None),
            ChildRule("b", shutdown="kill"),
            ChildRule("c", shutdown=0.5),
        ]
    )
    assert machine.stop(1.0) == [StopChild("c", 0.5)]
    assert machine.on_stopped("c") == [StopChild("b", "kill")]
    assert machine.on_stopped("b") == [StopChild("a", None)]
    assert machine.on_stopped("a") == [Exit(ExitReason("stopped"))]


def test_a_supervisor_ends_with_the_reason_that_it_was_stopped_for() -> None:
    assert booted([]).stop(1.0, ExitReason("parent stopped")) == [
        Exit(ExitReason("parent stopped"))
    ]
    assert RestartMachine(permanent("a")).stop(0.0) == [Exit(ExitReason("stopped"))]


def test_stopping_twice_is_stopping_once() -> None:
    machine = booted(permanent("a"))
    machine.stop(1.0)
    assert machine.stop(2.0, ExitReason("killed")) == []
    assert machine.on_stopped("a") == [Exit(ExitReason("stopped"))]
    assert machine.stop(3.0) == []


def test_a_child_that_exits_with_another_reason_while_being_stopped_is_not_restarted() -> None:
    machine = booted(permanent("a", "b"))
    machine.stop(1.0)
    assert machine.on_exited("b", RAISED, 1.0) == [StopChild("a", 5.0)]
    assert machine.on_stopped("b") == []
    assert machine.on_exited("a", RAISED, 1.0) == [Exit(ExitReason("stopped"))]
    assert [view.last_exit for view in machine.children()] == [RAISED, RAISED]


def test_a_child_that_ended_before_its_turn_to_be_stopped_is_passed_over() -> None:
    machine = booted(permanent("a", "b", "c"))
    machine.stop(1.0)
    assert machine.on_exited("b", RAISED, 1.0) == []
    assert machine.on_stopped("c") == [StopChild("a", 5.0)]


def test_a_supervisor_that_is_stopped_while_restarting_gives_the_restart_up() -> None:
    machine = booted(permanent("a", "b", "c"), strategy="one-for-all")
    machine.on_exited("b", RAISED, 1.0)
    machine.on_stopped("c")
    assert machine.on_stopped("a") == [StartChild("a")]
    machine.on_started("a", 1.0)
    assert machine.stop(2.0) == [StopChild("b", 5.0)]
    assert machine.on_started("b", 2.0) == []
    assert machine.on_stopped("b") == [StopChild("a", 5.0)]
    assert machine.on_stopped("a") == [Exit(ExitReason("stopped"))]


def test_a_supervisor_that_is_stopped_while_its_first_child_never_starts_ends_all_the_same() -> (
    None
):
    machine = RestartMachine(permanent("a", "b"))
    machine.start(0.0)
    assert machine.stop(9.0) == [StopChild("a", 5.0)]
    assert machine.on_start_failed("a", RAISED, 9.0) == [Exit(ExitReason("stopped"))]
    assert machine.on_stopped("a") == []


def test_late_news_of_a_start_that_was_stopped_is_of_no_consequence() -> None:
    machine = RestartMachine([ChildRule("a"), ChildRule("t", restart="temporary")])
    machine.start(0.0)
    machine.on_started("a", 0.0)
    assert machine.stop(1.0) == [StopChild("t", 5.0)]
    assert machine.on_stopped("t") == [Forgotten("t"), StopChild("a", 5.0)]
    for late in (
        machine.on_started("t", 1.0),
        machine.on_start_failed("t", RAISED, 1.0),
        machine.on_ignored("t"),
        machine.on_stopped("t"),
    ):
        assert late == []
    assert machine.on_stopped("a") == [Exit(ExitReason("stopped"))]


def test_a_supervisor_that_is_stopped_while_a_child_waits_for_its_restart_forgets_the_restart() -> (
    None
):
    machine = booted(permanent("a"), backoff=RestartBackoff(jitter=0))
    assert machine.on_exited("a", RAISED, 1.0) == [TryAgain("a", 1.1)]
    assert machine.stop(1.05) == [Exit(ExitReason("stopped"))]
    assert machine.try_again("a", 1.1) == []


# Exits and restarts


@pytest.mark.parametrize(
    "reason", [NORMAL, SHUTDOWN, RAISED, ExitReason("node died"), ExitReason("idle")]
)
def test_a_permanent_child_is_restarted_whatever_the_reason(reason: ExitReason) -> None:
    machine = booted(permanent("a", "b"))
    assert machine.on_exited("a", reason, 1.0) == [StartChild("a")]
    assert states(machine) == {"a": "restarting", "b": "running"}
    assert machine.on_started("a", 1.0) == []
    (a, b) = machine.children()
    assert (a.state, a.restarts, a.last_exit) == ("running", 1, reason)
    assert (b.state, b.restarts, b.last_exit) == ("running", 0, None)


@pytest.mark.parametrize("kind", ["normal", "shutdown", "stopped", "parent stopped", "idle"])
def test_a_transient_child_that_ends_normally_is_not_restarted_and_keeps_its_spec(
    kind: Any,
) -> None:
    machine = booted(rules("a", restart="transient"))
    assert machine.on_exited("a", ExitReason(kind), 1.0) == []
    assert states(machine) == {"a": "stopped"}


@pytest.mark.parametrize(
    "kind", ["raised", "exit code", "signal", "node died", "start failed", "killed"]
)
def test_a_transient_child_that_ends_otherwise_is_restarted(kind: Any) -> None:
    assert booted(rules("a", restart="transient")).on_exited("a", ExitReason(kind), 1.0) == [
        StartChild("a")
    ]


@pytest.mark.parametrize("reason", [NORMAL, RAISED])
def test_a_temporary_child_is_never_restarted_and_its_spec_is_dropped(reason: ExitReason) -> None:
    machine = booted(rules("a", restart="temporary"))
    assert machine.on_exited("a", reason, 1.0) == [Forgotten("a")]
    assert machine.children() == []


def test_a_temporary_child_that_a_siblings_death_stops_is_dropped_as_well() -> None:
    machine = booted([ChildRule("a"), ChildRule("t", restart="temporary")], strategy="one-for-all")
    assert machine.on_exited("a", RAISED, 1.0) == [StopChild("t", 5.0)]
    assert machine.on_stopped("t") == [Forgotten("t"), StartChild("a")]
    assert machine.on_started("a", 1.0) == []
    assert states(machine) == {"a": "running"}


def test_one_for_all_stops_the_others_in_reverse_order_and_then_starts_all_in_order() -> None:
    machine = booted(permanent("a", "b", "c"), strategy="one-for-all")
    assert machine.on_exited("b", RAISED, 1.0) == [StopChild("c", 5.0)]
    assert machine.on_stopped("c") == [StopChild("a", 5.0)]
    assert machine.on_stopped("a") == [StartChild("a")]
    assert machine.on_started("a", 1.0) == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [StartChild("c")]
    assert machine.on_started("c", 1.0) == []
    assert [view.restarts for view in machine.children()] == [1, 1, 1]


def test_rest_for_one_restarts_the_child_and_those_started_later() -> None:
    machine = booted(permanent("a", "b", "c", "d"), strategy="rest-for-one")
    assert machine.on_exited("b", RAISED, 1.0) == [StopChild("d", 5.0)]
    assert machine.on_stopped("d") == [StopChild("c", 5.0)]
    assert machine.on_stopped("c") == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [StartChild("c")]
    assert machine.on_started("c", 1.0) == [StartChild("d")]
    assert machine.on_started("d", 1.0) == []
    assert [view.restarts for view in machine.children()] == [0, 1, 1, 1]


def test_a_restart_that_fails_counts_until_the_intensity_is_exceeded() -> None:
    machine = booted(permanent("a", "b"), intensity=3)
    assert machine.on_exited("b", RAISED, 1.0) == [StartChild("b")]
    assert machine.on_start_failed("b", RAISED, 1.0) == [StartChild("b")]
    assert states(machine)["b"] == "restarting"
    assert machine.on_start_failed("b", RAISED, 1.0) == [StartChild("b")]
    failed = ExitReason("start failed", "OSError: no disk", "the traceback")
    assert machine.on_start_failed("b", failed, 1.0) == [StopChild("a", 5.0)]
    reason = last_exit_of(machine.on_stopped("a"))
    assert reason.kind == "shutdown"
    assert "3 restarts within 10 s" in reason.text
    assert "'b'" in reason.text
    assert "OSError: no disk" in reason.text
    assert reason.traceback == "the traceback"


def test_others_in_line_come_before_the_next_try_of_a_failed_restart() -> None:
    machine = booted(permanent("a", "b"))
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_exited("b", RAISED, 1.0) == []
    assert machine.delete("a", "question") == []
    assert machine.on_start_failed("a", RAISED, 1.0) == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [
        SupervisorAnswer("question", "restarting"),
        StartChild("a"),
    ]


def test_a_sibling_that_fails_to_start_again_is_the_one_that_is_tried_again() -> None:
    machine = booted(permanent("a", "b", "c"), strategy="rest-for-one")
    machine.on_exited("a", RAISED, 1.0)
    machine.on_stopped("c")
    machine.on_stopped("b")
    machine.on_started("a", 1.0)
    assert machine.on_start_failed("b", RAISED, 1.0) == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [StartChild("c")]


def test_a_child_whose_sibling_fails_to_start_again_is_no_longer_being_restarted_itself() -> None:
    machine = booted(permanent("a", "b"), strategy="one-for-all")
    machine.on_exited("b", RAISED, 0.0)
    assert machine.on_stopped("a") == [StartChild("a")]
    assert states(machine) == {"a": "restarting", "b": "restarting"}
    machine.terminate("a", 1)
    assert machine.on_start_failed("a", RAISED, 1.0) == [SupervisorAnswer(1, "stopped")]
    assert states(machine) == {"a": "stopped", "b": "stopped"}
    assert machine.restart("b", 2) == [StartChild("b")]


def test_a_queued_exit_of_an_earlier_life_does_not_count_for_the_next() -> None:
    machine = booted(permanent("a", "b"), strategy="one-for-all", intensity=1, period=5.0)
    machine.add(ChildRule("c"), 1)
    machine.on_exited("b", RAISED, 1.0)
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_started("c", 1.0) == [SupervisorAnswer(1, "started"), StopChild("c", 5.0)]
    machine.on_stopped("c")
    machine.on_started("a", 1.0)
    assert machine.on_exited("a", RAISED, 9.0) == []
    machine.on_started("b", 9.0)
    assert machine.on_started("c", 9.0) == [StopChild("c", 5.0)]
    assert machine.phase == "running"


def test_a_failed_restart_under_one_for_all_stops_what_was_started_already() -> None:
    machine = booted(permanent("a", "b"), strategy="one-for-all")
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_stopped("b") == [StartChild("a")]
    assert machine.on_started("a", 1.0) == [StartChild("b")]
    assert machine.on_start_failed("b", RAISED, 1.0) == [StopChild("a", 5.0)]
    assert machine.on_stopped("a") == [StartChild("a")]


def test_intensity_zero_allows_no_restart() -> None:
    machine = booted(permanent("a", "b"), intensity=0)
    assert machine.on_exited("b", RAISED, 1.0) == [StopChild("a", 5.0)]
    assert last_exit_of(machine.on_stopped("a")).kind == "shutdown"


def test_intensity_is_counted_over_the_last_period_and_not_reset() -> None:
    machine = booted(permanent("a"), intensity=2, period=5.0)
    for now in (0.0, 4.0, 5.1, 9.1, 10.2):
        assert machine.on_exited("a", RAISED, now) == [StartChild("a")], now
        machine.on_started("a", now)
    assert isinstance(machine.on_exited("a", RAISED, 14.0)[-1], Exit)


def test_a_restart_exactly_one_period_ago_still_counts() -> None:
    machine = booted(permanent("a"), intensity=1, period=5.0)
    machine.on_exited("a", RAISED, 1.0)
    machine.on_started("a", 1.0)
    assert isinstance(machine.on_exited("a", RAISED, 6.0)[-1], Exit)


def test_a_look_at_the_recent_restarts_does_not_make_room_for_a_failure_that_stands_in_line() -> (
    None
):
    machine = booted(permanent("a", "b"), intensity=1, period=5.0)
    machine.on_exited("a", RAISED, 0.0)
    assert machine.on_exited("b", RAISED, 4.0) == []
    assert machine.intensity.recent(9.0) == 0
    assert machine.on_started("a", 9.0) == [StopChild("a", 5.0)]


def test_restarts_of_all_children_count_together() -> None:
    machine = booted(permanent("a", "b"), intensity=1)
    machine.on_exited("a", RAISED, 1.0)
    machine.on_started("a", 1.0)
    assert machine.on_exited("b", RAISED, 1.0) == [StopChild("a", 5.0)]


def test_an_infinite_period_never_forgets_a_restart() -> None:
    machine = booted(permanent("a"), intensity=1, period=math.inf)
    machine.on_exited("a", RAISED, 1.0)
    machine.on_started("a", 1.0)
    assert isinstance(machine.on_exited("a", RAISED, 1e12)[-1], Exit)


def test_a_transient_supervisor_that_gave_up_is_not_restarted_by_its_parent() -> None:
    inner = booted(permanent("worker"), intensity=0)
    reason = last_exit_of(inner.on_exited("worker", RAISED, 1.0))
    assert booted(rules("inner", restart="transient")).on_exited("inner", reason, 1.0) == []
    assert booted(permanent("inner")).on_exited("inner", reason, 1.0) == [StartChild("inner")]


@pytest.mark.parametrize(
    ("restart", "reason"), [("transient", NORMAL), ("temporary", NORMAL), ("temporary", RAISED)]
)
def test_any_significant_child_that_ends_by_itself_ends_the_supervisor(
    restart: Any, reason: ExitReason
) -> None:
    children = [ChildRule("a"), *rules("s", "s2", restart=restart, significant=True)]
    machine = booted(children, automatic_shutdown="any-significant")
    assert StopChild("s2", 5.0) in machine.on_exited("s", reason, 1.0)
    machine.on_stopped("s2")
    assert last_exit_of(machine.on_stopped("a")).kind == "shutdown"


def test_a_significant_transient_child_that_crashes_is_restarted() -> None:
    machine = booted(
        rules("s", restart="transient", significant=True), automatic_shutdown="any-significant"
    )
    assert machine.on_exited("s", RAISED, 1.0) == [StartChild("s")]


def test_the_last_of_all_significant_children_ends_the_supervisor() -> None:
    children = [ChildRule("a"), *rules("s", "s2", restart="transient", significant=True)]
    machine = booted(children, automatic_shutdown="all-significant")
    assert machine.on_exited("s2", NORMAL, 1.0) == []
    assert machine.on_exited("s", NORMAL, 2.0) == [StopChild("a", 5.0)]


def test_a_significant_child_that_is_about_to_be_restarted_has_not_ended() -> None:
    children = rules("s", "s2", restart="transient", significant=True)
    machine = booted(
        children, automatic_shutdown="all-significant", backoff=RestartBackoff(jitter=0)
    )
    machine.on_exited("s", RAISED, 1.0)
    assert machine.on_exited("s2", NORMAL, 1.0) == []
    machine.try_again("s", 1.1)
    machine.on_started("s", 1.1)
    assert last_exit_of(machine.on_exited("s", NORMAL, 2.0)).kind == "shutdown"


def test_stopping_a_significant_child_by_request_does_not_end_the_supervisor() -> None:
    machine = booted(
        rules("s", "s2", restart="transient", significant=True),
        automatic_shutdown="any-significant",
    )
    machine.terminate("s", 1)
    assert machine.on_stopped("s") == [SupervisorAnswer(1, "stopped")]
    assert machine.phase == "running"


def test_a_significant_child_that_a_siblings_death_stops_does_not_end_the_supervisor() -> None:
    children = [ChildRule("a"), ChildRule("s", restart="temporary", significant=True)]
    machine = booted(children, automatic_shutdown="all-significant", strategy="one-for-all")
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_stopped("s") == [Forgotten("s"), StartChild("a")]


def test_the_exit_of_something_that_is_not_a_child_is_ignored() -> None:
    machine = booted([ChildRule("a", restart="transient")])
    assert machine.on_exited("stranger", RAISED, 1.0) == []
    machine.on_exited("a", NORMAL, 2.0)
    assert machine.on_exited("a", RAISED, 3.0) == []
    assert states(machine) == {"a": "stopped"}


def test_a_child_that_exits_while_it_starts_has_failed_to_start() -> None:
    machine = booted(permanent("a"))
    machine.on_exited("a", RAISED, 1.0)
    assert machine.on_exited("a", RAISED, 2.0) == [StartChild("a")]


def test_a_child_that_ended_while_a_sibling_was_restarted_is_restarted_after_it() -> None:
    machine = booted(permanent("a", "b"))
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]
    assert machine.on_exited("b", RAISED, 1.5) == []
    assert machine.on_started("a", 2.0) == [StartChild("b")]


def test_a_child_that_ended_before_its_siblings_death_would_have_stopped_it_is_restarted_once() -> (
    None
):
    machine = booted(permanent("a", "b", "c"), strategy="one-for-all")
    assert machine.on_exited("a", RAISED, 1.0) == [StopChild("c", 5.0)]
    assert machine.on_exited("b", RAISED, 1.0) == []
    assert machine.on_stopped("c") == [StartChild("a")]
    machine.on_started("a", 1.0)
    machine.on_started("b", 1.0)
    assert machine.on_started("c", 1.0) == []


# Changing a running supervisor


def test_an_added_child_is_started_last_in_the_order() -> None:
    machine = booted(permanent("a"))
    assert machine.add(ChildRule("b"), "request") == [StartChild("b")]
    assert machine.on_started("b", 1.0) == [SupervisorAnswer("request", "started")]
    assert machine.stop(2.0) == [StopChild("b", 5.0)]


def test_adding_a_child_that_is_there_answers_already_started_or_already_present() -> None:
    machine = booted(rules("a", "b", restart="transient"))
    machine.on_exited("b", NORMAL, 1.0)
    assert machine.add(ChildRule("a"), 1) == [SupervisorAnswer(1, "already started")]
    assert machine.add(ChildRule("b"), 2) == [SupervisorAnswer(2, "already present")]


def test_adding_a_child_that_waits_for_its_restart_answers_already_present() -> None:
    machine = booted(permanent("a"), backoff=RestartBackoff())
    machine.on_exited("a", RAISED, 1.0)
    assert machine.add(ChildRule("a"), 1) == [SupervisorAnswer(1, "already present")]


def test_an_added_child_that_fails_to_start_leaves_no_spec() -> None:
    machine = booted(permanent("a"))
    machine.add(ChildRule("b"), 1)
    assert machine.on_start_failed("b", RAISED, 1.0) == [
        Forgotten("b"),
        SupervisorAnswer(1, "start failed", RAISED),
    ]
    assert states(machine) == {"a": "running"}


def test_an_added_child_that_ignores_its_start_keeps_its_spec_unless_it_is_temporary() -> None:
    machine = booted([])
    machine.add(ChildRule("a"), 1)
    assert machine.on_ignored("a") == [SupervisorAnswer(1, "ignored")]
    machine.add(ChildRule("t", restart="temporary"), 2)
    assert machine.on_ignored("t") == [Forgotten("t"), SupervisorAnswer(2, "ignored")]
    assert states(machine) == {"a": "stopped"}


def test_an_added_child_whose_rule_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="child 's'"):
        booted([]).add(ChildRule("s", restart="transient", significant=True), 1)


def test_a_terminated_child_keeps_its_spec_unless_it_is_temporary() -> None:
    machine = booted([ChildRule("a"), ChildRule("t", restart="temporary")])
    assert machine.terminate("a", 1) == [StopChild("a", 5.0)]
    assert machine.on_stopped("a") == [SupervisorAnswer(1, "stopped")]
    assert machine.terminate("a", 2) == [SupervisorAnswer(2, "stopped")]
    assert machine.terminate("t", 3) == [StopChild("t", 5.0)]
    assert machine.on_stopped("t") == [Forgotten("t"), SupervisorAnswer(3, "stopped")]
    assert machine.terminate("t", 4) == [SupervisorAnswer(4, "not found")]
    assert states(machine) == {"a": "stopped"}


def test_terminating_a_child_that_waits_for_its_restart_ends_the_wait() -> None:
    machine = booted(permanent("a"), backoff=RestartBackoff(jitter=0))
    assert machine.on_exited("a", RAISED, 1.0) == [TryAgain("a", 1.1)]
    assert machine.terminate("a", 1) == [SupervisorAnswer(1, "stopped")]
    assert machine.try_again("a", 1.1) == []


def test_terminating_a_child_while_its_restart_fails_ends_the_tries() -> None:
    machine = booted(permanent("a"))
    machine.on_exited("a", RAISED, 1.0)
    assert machine.terminate("a", 1) == []
    assert machine.on_start_failed("a", RAISED, 1.0) == [SupervisorAnswer(1, "stopped")]
    assert states(machine) == {"a": "stopped"}


def test_only_a_child_without_an_actor_can_be_restarted_by_request() -> None:
    machine = booted(rules("a", restart="transient"), backoff=RestartBackoff(jitter=0))
    assert machine.restart("a", 1) == [SupervisorAnswer(1, "running")]
    assert machine.restart("x", 2) == [SupervisorAnswer(2, "not found")]
    machine.on_exited("a", RAISED, 1.0)
    assert machine.restart("a", 3) == [SupervisorAnswer(3, "restarting")]
    machine.terminate("a", 4)
    assert machine.restart("a", 5) == [StartChild("a")]
    assert machine.on_start_failed("a", RAISED, 2.0) == [
        SupervisorAnswer(5, "start failed", RAISED)
    ]
    assert machine.restart("a", 6) == [StartChild("a")]
    assert machine.on_started("a", 2.0) == [SupervisorAnswer(6, "started")]


def test_only_a_child_without_an_actor_can_be_deleted() -> None:
    machine = booted(rules("a", restart="transient"), backoff=RestartBackoff(jitter=0))
    assert machine.delete("a", 1) == [SupervisorAnswer(1, "running")]
    assert machine.delete("x", 2) == [SupervisorAnswer(2, "not found")]
    machine.on_exited("a", RAISED, 1.0)
    assert machine.delete("a", 3) == [SupervisorAnswer(3, "restarting")]
    machine.terminate("a", 4)
    assert machine.delete("a", 5) == [Forgotten("a"), SupervisorAnswer(5, "deleted")]
    assert machine.children() == []


def test_requests_wait_for_what_is_going_on() -> None:
    machine = booted(permanent("a", "b"))
    machine.on_exited("a", RAISED, 1.0)
    assert machine.terminate("b", 1) == []
    assert machine.restart("b", 2) == []
    assert machine.on_started("a", 1.0) == [StopChild("b", 5.0)]
    assert machine.on_stopped("b") == [SupervisorAnswer(1, "stopped"), StartChild("b")]
    assert machine.on_started("b", 1.0) == [SupervisorAnswer(2, "started")]


def test_children_can_be_looked_at_while_one_is_starting() -> None:
    machine = booted(permanent("a", "b"))
    machine.on_exited("a", RAISED, 1.0)
    assert states(machine) == {"a": "restarting", "b": "running"}


def test_every_request_is_answered_when_the_supervisor_stops() -> None:
    machine = booted(permanent("a"))
    machine.add(ChildRule("b"), 1)
    machine.delete("a", 2)
    assert machine.stop(1.0) == [
        SupervisorAnswer(1, "supervisor stopped"),
        SupervisorAnswer(2, "supervisor stopped"),
        StopChild("b", 5.0),
    ]
    assert machine.terminate("a", 3) == [SupervisorAnswer(3, "supervisor stopped")]
    machine.on_stopped("b")
    machine.on_stopped("a")
    assert machine.phase == "ended"
    assert machine.add(ChildRule("c"), 4) == [SupervisorAnswer(4, "supervisor stopped")]


def test_a_child_that_was_terminated_is_started_again_with_its_group_as_otp_does() -> None:
    machine = booted(permanent("a", "b"), strategy="one-for-all")
    machine.terminate("b", 1)
    machine.on_stopped("b")
    assert machine.on_exited("a", RAISED, 1.0) == [StartChild("a")]
    assert machine.on_started("a", 1.0) == [StartChild("b")]


# Back-off


def test_waits_between_restarts_grow_and_start_over_after_a_calm_time() -> None:
    machine = booted(
        permanent("a"),
        backoff=RestartBackoff(initial_delay=1, backoff=2, max_delay=5, jitter=0, calm=60),
        period=1.0,
    )
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert machine.on_exited("a", RAISED, now) == [TryAgain("a", now + wait)]
        assert states(machine) == {"a": "restarting"}
        assert machine.try_again("a", now + wait / 2) == []
        now += wait
        assert machine.try_again("a", now) == [StartChild("a")]
        machine.on_started("a", now)
    now += 60
    assert machine.on_exited("a", RAISED, now) == [TryAgain("a", now + 1.0)]


def test_a_start_that_fails_waits_longer_than_the_exit_before_it() -> None:
    machine = booted(permanent("a"), backoff=RestartBackoff(initial_delay=1, backoff=2, jitter=0))
    machine.on_exited("a", RAISED, 0.0)
    machine.try_again("a", 1.0)
    assert machine.on_start_failed("a", RAISED, 1.0) == [TryAgain("a", 3.0)]
    assert machine.try_again("a", 3.0) == [StartChild("a")]


def test_a_move_to_another_node_is_not_waited_for() -> None:
    machine = booted(permanent("a"), backoff=RestartBackoff(initial_delay=1, backoff=2, jitter=0))
    assert machine.on_exited("a", ExitReason("node left"), 0.0) == [StartChild("a")]
    machine.on_started("a", 0.0)
    assert machine.on_exited("a", RAISED, 1.0) == [TryAgain("a", 2.0)]
    machine.try_again("a", 2.0)
    machine.on_started("a", 2.0)
    assert machine.on_exited("a", ExitReason("node left"), 3.0) == [StartChild("a")]


def test_the_draw_picks_the_point_in_the_waits_jitter_band() -> None:
    machine = booted(
        permanent("a"), backoff=RestartBackoff(initial_delay=1, jitter=0.5), draw=lambda: 0.0
    )
    assert machine.on_exited("a", RAISED, 0.0) == [TryAgain("a", 0.5)]


def test_while_a_child_waits_for_its_restart_the_supervisor_serves_others() -> None:
    machine = booted(permanent("a", "b"), backoff=RestartBackoff(initial_delay=1, jitter=0))
    assert machine.on_exited("a", RAISED, 0.0) == [TryAgain("a", 1.0)]
    assert machine.on_exited("b", RAISED, 0.5) == [TryAgain("b", 1.5)]
    assert machine.add(ChildRule("c"), 1) == [StartChild("c")]
    assert machine.try_again("a", 1.0) == []
    assert machine.on_started("c", 1.0) == [SupervisorAnswer(1, "started"), StartChild("a")]
    machine.on_started("a", 1.0)
    assert machine.try_again("b", 1.5) == [StartChild("b")]


def test_a_child_that_was_not_placed_is_started_before_its_time_if_a_node_has_room() -> None:
    machine = booted(permanent("a"), backoff=RestartBackoff(initial_delay=1, jitter=0))
    machine.on_exited("a", ExitReason("node left"), 0.0)
    (wait,) = machine.on_start_failed("a", ExitReason("not placed"), 0.0)
    assert isinstance(wait, TryAgain)
    assert machine.try_again("a", wait.at / 2) == []
    assert machine.try_again("a", wait.at / 2, has_room=True) == [StartChild("a")]
    # Not twice.
    assert machine.try_again("a", wait.at, has_room=True) == []
    machine.on_started("a", 5.0)
    # The pause after a failure of its own is for that, and not for room.
    (wait,) = machine.on_exited("a", RAISED, 6.0)
    assert isinstance(wait, TryAgain)
    assert machine.try_again("a", 6.1, has_room=True) == []
    assert machine.try_again("a", wait.at, has_room=True) == [StartChild("a")]


def test_siblings_of_a_group_are_stopped_before_the_wait_and_started_after_it() -> None:
    machine = booted(
        permanent("a", "b"),
        strategy="one-for-all",
        backoff=RestartBackoff(initial_delay=1, jitter=0),
    )
    assert machine.on_exited("a", RAISED, 0.0) == [StopChild("b", 5.0)]
    assert machine.on_stopped("b") == [TryAgain("a", 1.0)]
    assert machine.try_again("a", 1.0) == [StartChild("a")]
    assert machine.on_started("a", 1.0) == [StartChild("b")]


def test_the_wait_of_an_earlier_restart_does_not_shorten_a_later_one() -> None:
    machine = booted(permanent("a"), backoff=RestartBackoff(initial_delay=1, backoff=2, jitter=0))
    assert machine.on_exited("a", RAISED, 0.0) == [TryAgain("a", 1.0)]
    machine.terminate("a", 1)
    machine.restart("a", 2)
    machine.on_started("a", 0.1)
    assert machine.on_exited("a", RAISED, 0.2) == [TryAgain("a", 2.2)]
    assert machine.try_again("a", 1.0) == []
    assert machine.try_again("a", 2.2) == [StartChild("a")]


# Misuse


def test_reports_that_nobody_asked_for_are_refused() -> None:
    machine = booted(permanent("a"))
    for report in (
        lambda: machine.on_started("a", 1.0),
        lambda: machine.on_ignored("x"),
        lambda: machine.on_start_failed("a", RAISED, 1.0),
    ):
        with pytest.raises(ValueError, match="was not being started"):
            report()
    assert machine.on_stopped("a") == []
    assert states(machine) == {"a": "running"}


def test_time_that_goes_back_is_refused() -> None:
    machine = booted(permanent("a"))
    machine.on_exited("x", RAISED, 5.0)
    for now in (4.9, math.nan):
        with pytest.raises(ValueError, match="time must not go back"):
            machine.on_exited("a", RAISED, now)


def test_a_machine_is_started_once_and_before_it_is_asked_for_anything() -> None:
    machine = RestartMachine()
    with pytest.raises(RuntimeError, match="not been started"):
        machine.delete("a", 1)
    machine.start(0.0)
    with pytest.raises(RuntimeError, match="was started already"):
        machine.start(0.0)
