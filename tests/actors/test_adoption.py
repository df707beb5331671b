"""Adoption: who is kept of those that outlived their supervisor, who is stopped in which order, and
that nobody is started twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adoption import adopted
from actors.restarts import RestartMachine
from actors.supervision import AllStarted, ChildRule, ExitReason, StartChild, Strategy
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(RestartMachine)


ORDER = ("a", "b", "c", "d")
STRATEGIES: tuple[Strategy, ...] = ("one-for-one", "one-for-all", "rest-for-one")


@pytest.mark.parametrize(
    ("strategy", "living", "kept", "stopped"),
    [
        ("one-for-one", "abcd", "abcd", ""),
        ("one-for-one", "bd", "bd", ""),
        ("one-for-one", "", "", ""),
        ("one-for-all", "abcd", "abcd", ""),
        ("one-for-all", "abd", "", "dba"),
        ("one-for-all", "", "", ""),
        ("rest-for-one", "abcd", "abcd", ""),
        ("rest-for-one", "abd", "ab", "d"),
        ("rest-for-one", "bcd", "", "dcb"),
        ("rest-for-one", "", "", ""),
    ],
)
def test_each_strategy_keeps_what_does_not_stand_on_the_dead(
    strategy: Strategy, living: str, kept: str, stopped: str
) -> None:
    assert adopted(strategy, ORDER, set(living)) == (list(kept), list(stopped))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_no_child_is_left_alone(strategy: Strategy) -> None:
    assert adopted(strategy, (), {"stranger"}) == ([], [])
    assert adopted(strategy, ("a",), {"stranger", "a"}) == (["a"], [])


orders = st.lists(st.sampled_from("abcdefgh"), unique=True)
livings = st.sets(st.sampled_from("abcdefghxy"))


@given(st.sampled_from(STRATEGIES), orders, livings)
def test_all_that_live_are_either_kept_in_order_or_stopped_in_reverse_order(
    strategy: Strategy, order: list[str], living: set[str]
) -> None:
    kept, stopped = adopted(strategy, order, living)
    assert set(kept) | set(stopped) == living & set(order)
    assert not set(kept) & set(stopped)
    assert kept == sorted(kept, key=order.index)
    assert stopped == sorted(stopped, key=order.index, reverse=True)


@given(st.sampled_from(STRATEGIES), orders, livings)
def test_kept_is_who_would_not_have_been_restarted_had_the_dead_died_under_a_supervisor(
    strategy: Strategy, order: list[str], living: set[str]
) -> None:
    """The last that died is told first, so that the group of the first covers all that any of them
    had covered.
    """
    machine = RestartMachine([ChildRule(id) for id in order], strategy, intensity=100)
    run_to_rest(machine, machine.start(0.0), [], 0.0)
    begun: list[str] = []
    for id in reversed([id for id in order if id not in living]):
        run_to_rest(machine, machine.on_exited(id, ExitReason("node died"), 1.0), begun, 1.0)
    kept, _ = adopted(strategy, order, living)
    assert kept == [id for id in order if id not in begun]


def run_to_rest(
    machine: RestartMachine, effects: Sequence[object], begun: list[str], now: float
) -> None:
    """Carry all effects out at once; `begun` gathers what is started."""
    waiting: list[Any] = list(effects)
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, StartChild):
            begun.append(effect.id)
            waiting += machine.on_started(effect.id, now)
        elif not isinstance(effect, AllStarted):
            waiting += machine.on_stopped(effect.id)


@given(st.sampled_from(STRATEGIES), orders, livings)
def test_nobody_is_started_while_it_lives_and_in_the_end_all_live(
    strategy: Strategy, order: list[str], living: set[str]
) -> None:
    kept, stopped = adopted(strategy, order, living)
    alive = living & set(order)
    for id in stopped:
        later = alive.intersection(order[order.index(id) + 1 :])
        assert not later, f"{id} is stopped before {later}"
        alive.remove(id)
    machine, begun = RestartMachine([ChildRule(id) for id in order], strategy), []  # type: ignore[var-annotated]
    run_to_rest(machine, machine.start(0.0), begun, 0.0)
    assert begun == order
    started = [id for id in begun if id not in kept]
    assert not alive.intersection(started)
    assert alive.union(started) == set(order)
    if strategy != "one-for-one":
        assert all(order.index(id) < order.index(first) for id in kept for first in started), (
            "kept stands on what is started later"
        )
