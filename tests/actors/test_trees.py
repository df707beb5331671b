"""Whole trees of supervisors against the reference: who runs, who was restarted how often, who gave
up, and what requests were answered.

`python -m tests.actors.test_trees [TREES] [SEED]` tries more trees than the test does, without
hypothesis.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.dynamic_restarts import DynamicRestartMachine
from actors.restarts import RestartMachine
from actors.supervision import ChildRule
from tests.actors.driven_trees import DrivenTree
from tests.actors.reference_trees import ReferenceTree
from tests.actors.trees import (
    EXITS,
    REQUESTS,
    ROOT,
    Fortune,
    Happening,
    Plan,
    a_plan,
    levels,
    wishes,
)
from tests.command_arguments import call_with_arguments
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(RestartMachine, DynamicRestartMachine)


TREES = (700, 10_000)
"""How many `make test` tries, and how many `make long`. A profile with more examples than these
raises them: `--hypothesis-profile=...`.
"""


class Pair:
    """One tree of machines and one of the reference, to which the same happens."""

    def __init__(self, plan: Plan, tally: Counter[str]) -> None:
        self.driven = DrivenTree(plan)
        self.reference = ReferenceTree(plan)
        self.tally = tally

    def happen(self, word: str, happening: Happening) -> bool:
        """False when the tree has come to its end."""
        driven, reference = self.driven, self.reference
        before = dict(reference.living)
        driven.happen(happening)
        driven.check()
        reference.happen(happening)
        self.tally["happenings"] += 1
        self.tally[word] += 1
        self.tally.update(f"exit: {kind}" for _, kind in happening.exits)
        self.tally.update(f"asked: {request.kind}" for request in happening.requests)
        assert set(driven.living) == set(reference.living)
        assert driven.state() == reference.state()
        assert driven.gave_up == reference.gave_up
        for request in happening.requests:
            reply = driven.replies.get(request.number)
            if (
                reference.living.get(request.path) is before.get(request.path)
                or reply == "supervisor stopped"
            ):
                assert reply == reference.replies.get(request.number)
            else:
                # It ended in the same moment. What needs no start or stop it may have answered
                # before that.
                assert reference.replies.get(request.number) in (reply, "supervisor stopped")
        assert driven.orphans == reference.orphans
        return ROOT not in driven.gave_up


def play(happenings: int, depth: int, width: int, seed: int, tally: Counter[str]) -> None:
    """Grow a tree and let that much happen to it. Raises AssertionError where the machines and the
    reference do not agree.
    """
    random = Random(seed)
    plan = a_plan(random, ChildRule(ROOT), depth, width)
    fortune, pair = Fortune(random), Pair(plan, tally)
    lives = pair.happen("boot", fortune.beginning(plan))
    for path, wish in wishes(plan):
        if lives and path in pair.driven.living:
            lives = pair.happen("wish", fortune.given(path, wish))
    for _ in range(happenings):
        if not lives:
            break
        living = pair.driven.living
        plans, nodes = (
            {path: each.plan for path, each in living.items()},
            {path: each.node for path, each in living.items()},
        )
        lives = pair.happen(*fortune.next(plans, nodes))
    tally["trees"] += 1
    tally[f"levels: {levels(plan)}"] += 1
    tally.update(pair.driven.seen)


EVENTS = (
    "boot",
    "wish",
    "exits",
    "requests",
    "both",
    "supervisor killed",
    "node died",
    "node left",
    "store away",
    "no node fits",
    "time",
)
KINDS = (*EXITS, "node died")
OUTCOMES = (
    "gave up",
    "root gave up",
    "root did not start",
    "adopted",
    "not kept",
    "orphan stopped",
    "start given up",
)
LOSSES = ("children died together", "restart waits", "orphans wait")
REPLIES = (
    "already present",
    "already started",
    "deleted",
    "ignored",
    "not found",
    "restarting",
    "running",
    "start failed",
    "started",
    "stopped",
    "supervisor stopped",
    "too many children",
)


def missing(tally: Counter[str]) -> list[str]:
    """What has hardly been tried: that in which less than one tree of a thousand has a part."""
    words = [
        *EVENTS,
        *OUTCOMES,
        *LOSSES,
        *(f"levels: {number}" for number in range(1, 5)),
        *(f"exit: {kind}" for kind in KINDS),
    ]
    words += [f"asked: {kind}" for kind in REQUESTS] + [f"answer: {reply}" for reply in REPLIES]
    words += [f"start: {outcome}" for outcome in ("ok", "failed", "ignored", "unplaced")]
    return [f"{word}: {tally[word]}" for word in words if tally[word] * 1000 < tally["trees"]]


def summary(tally: Counter[str]) -> str:
    rest = ", ".join(
        f"{word} {count}"
        for word, count in sorted(tally.items())
        if word not in ("trees", "happenings")
    )
    return f"{tally['trees']} trees and {tally['happenings']} happenings were tried: {rest}\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trees", [TREES[0], pytest.param(TREES[1], marks=pytest.mark.long)])
def test_whole_trees_do_what_the_reference_does_whatever_happens_in_whatever_order(
    trees: int,
) -> None:
    trees = max(trees, settings().max_examples)
    tally: Counter[str] = Counter()

    @settings(max_examples=trees)
    @given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**64 - 1))
    # A leaf takes the name of a supervisor that was to restart a supervisor of its own.
    @example(6, 3, 4, 4535608)
    def trial(happenings: int, depth: int, width: int, seed: int) -> None:
        play(happenings, depth, width, seed, tally)

    trial()
    sys.stdout.write(summary(tally))
    assert missing(tally) == []
    assert tally["trees"] >= trees * 0.9


def main(trees: int = 100_000, seed: int = 0) -> int:
    """Try that many trees. Returns how many of them made a difference, after saying which."""
    tally: Counter[str] = Counter()
    random, wrong = Random(seed), 0
    for _ in range(trees):
        drawn = (
            random.randint(0, 40),
            random.randint(1, 4),
            random.randint(1, 6),
            random.getrandbits(64),
        )
        try:
            play(*drawn, tally)
        except Exception as error:
            wrong += 1
            sys.stdout.write(f"play{drawn}: {type(error).__name__}: {error}\n")
    sys.stdout.write(summary(tally))
    return wrong


if __name__ == "__main__":
    sys.exit(1 if call_with_arguments(main) else 0)
