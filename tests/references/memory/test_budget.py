"""Which values are written to disk, against a model that looks at all of them each time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.references.memory.spill import MemoryBudget

LIMIT, WORTH = 100, 10
keys = st.integers(0, 12)


class BudgetComparison(RuleBasedStateMachine):
    """The model: when each value was last used, and how large it is."""

    def __init__(self) -> None:
        super().__init__()
        self.budget: MemoryBudget[int] = MemoryBudget(LIMIT, WORTH)
        self.sizes: dict[int, int] = {}
        self.when: dict[int, int] = {}
        self.time = 0

    def touch(self, key: int) -> None:
        self.time += 1
        self.when[key] = self.time

    @rule(key=keys, size=st.integers(0, 60) | st.sampled_from([WORTH - 1, WORTH, LIMIT, LIMIT + 1]))
    def add(self, key: int, size: int) -> None:
        if key in self.sizes:
            with pytest.raises(ValueError, match="there already"):
                self.budget.add(key, size)
            return
        self.budget.add(key, size)
        self.sizes[key] = size
        self.touch(key)

    @rule(key=keys)
    def used(self, key: int) -> None:
        self.budget.on_used(key)
        if key in self.sizes:
            self.touch(key)

    @rule(key=keys)
    def remove(self, key: int) -> None:
        self.budget.remove(key)
        self.sizes.pop(key, None)

    @rule()
    def spill(self) -> None:
        for key in self.budget.victims():
            self.remove(key)
        assert self.budget.victims() == []
        assert self.budget.in_memory <= LIMIT or all(size < WORTH for size in self.sizes.values())

    @invariant()
    def the_victims_are_the_ones_used_longest_ago(self) -> None:
        victims = self.budget.victims()
        worth = sorted(
            (key for key, size in self.sizes.items() if size >= WORTH), key=self.when.__getitem__
        )
        assert victims == worth[: len(victims)]
        total = sum(self.sizes.values())
        rest = total - sum(self.sizes[key] for key in victims)
        assert rest <= LIMIT or len(victims) == len(worth)
        if victims:
            assert rest + self.sizes[victims[-1]] > LIMIT
        assert self.budget.in_memory == total


BudgetComparison.TestCase.settings = settings(
    max_examples=max(100, settings().max_examples), stateful_step_count=40, deadline=None
)
TestBudgetComparison = BudgetComparison.TestCase


def test_a_value_needs_a_size() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        MemoryBudget[str](10).add("negative", -1)


def test_small_values_stay_even_if_they_alone_are_too_many() -> None:
    budget: MemoryBudget[int] = MemoryBudget(100_000)
    for number in range(20):
        budget.add(number, 16 * 1024 - 1)
    assert budget.victims() == []
    budget.add(20, 16 * 1024)
    assert budget.victims() == [20]
