"""The allocation table of a node: what is granted never exceeds what there is, and all of it comes
back.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.errors import NoPlacementError
from actors.identifiers import ActorId
from runtime.hosting.allocations import TOLERANCE, Allocation, Allocations


def test_a_refusal_names_the_node_the_resource_what_is_asked_for_and_what_is_left() -> None:
    table = Allocations("large", {"gpu": 2, "memory": 64e9})
    table.take("first", {"gpu": 1})
    with pytest.raises(
        NoPlacementError, match=r"^node large has 1 gpu left of 2, and second asks for 1\.5"
    ) as refused:
        table.take("second", {"memory": 1, "gpu": 1.5})
    assert (refused.value.actor, refused.value.node) == ("second", "large")
    with pytest.raises(NoPlacementError, match="has no disk"):
        table.take("second", {"disk": 1})
    table.check_invariants()


def test_a_refused_start_has_taken_nothing() -> None:
    table = Allocations("large", {"gpu": 1, "memory": 8})
    with pytest.raises(NoPlacementError):
        table.take("greedy", {"memory": 8, "gpu": 2})
    assert table.take("modest", {"memory": 8, "gpu": 1}) is not None


def test_what_takes_nothing_is_in_no_table() -> None:
    table = Allocations("bare")
    assert table.take("plain", {}) is None
    table.assign(None, ActorId("plain", 1))
    table.give_back(None)
    assert not table.holders
    assert table.take("curious", {"gpu": 0}) is not None


def test_an_actor_has_its_allocation_until_it_has_ended() -> None:
    table = Allocations("one", {"gpu": 1})
    before = ActorId("model", 7)
    table.assign(table.take("model", {"gpu": 1}), before)
    with pytest.raises(NoPlacementError):
        table.take("model", {"gpu": 1})
    # Its restart asks again. The end of the old epoch, which is reported later, takes nothing away
    # from the new one.
    table.release(before)
    after = ActorId("model", 9)
    table.assign(table.take("model", {"gpu": 1}), after)
    table.release(before)
    assert set(table.holders) == {after}
    with pytest.raises(NoPlacementError):
        table.take("another", {"gpu": 1})
    table.check_invariants()


@given(st.integers(1, 30), st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.1, 1 / 3]))
def test_as_many_fit_as_there_is_room_for_and_not_one_more(count: int, amount: float) -> None:
    table = Allocations("a", {"cores": amount * count})
    for _ in range(3):
        taken = [table.take("worker", {"cores": amount}) for _ in range(count)]
        with pytest.raises(NoPlacementError):
            table.take("worker", {"cores": amount})
        for allocation in taken:
            table.give_back(allocation)
        table.check_invariants()


def test_amounts_below_the_tolerance_do_not_add_up_to_more() -> None:
    table = Allocations("a", {"cores": 1})
    table.take("first", {"cores": 1})
    for _ in range(9):
        table.take("tiny", {"cores": TOLERANCE / 10})
    with pytest.raises(NoPlacementError):
        table.take("small", {"cores": TOLERANCE / 5})
    table.check_invariants()


class Starts(RuleBasedStateMachine):
    """Starts and ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Allocations("node", {"gpu": 2, "cores": 0.3})
        self.starts: list[Allocation] = []
        self.epochs = 0
        self.actors: list[ActorId] = []

    @rule(gpu=st.sampled_from([0, 1, 2, 3]), cores=st.sampled_from([0, 0.1, 0.2, 0.3]))
    def take(self, gpu: float, cores: float) -> None:
        held = [*self.starts, *(self.table._of_actors[one] for one in self.actors)]
        left = {
            name: has - sum(round(float(one.amounts.get(name, 0)), 1) for one in held)
            for name, has in (("gpu", 2), ("cores", 0.3))
        }
        fits = gpu <= left["gpu"] + 1e-9 and cores <= left["cores"] + 1e-9
        try:
            allocation = self.table.take("actor", {"gpu": gpu, "cores": cores})
        except NoPlacementError:
            assert not fits
        else:
            assert fits
            assert allocation is not None
            self.starts.append(allocation)

    @rule(data=st.data())
    def assign(self, data: Any) -> None:
        if self.starts:
            self.epochs += 1
            actor = ActorId(f"actor-{self.epochs % 2}", self.epochs)
            self.table.assign(
                self.starts.pop(data.draw(st.integers(0, len(self.starts) - 1))), actor
            )
            self.actors.append(actor)

    @rule()
    def give_back(self) -> None:
        if self.starts:
            self.table.give_back(self.starts.pop())

    @rule(again=st.booleans())
    def release(self, again: bool) -> None:
        if self.actors:
            actor = self.actors.pop(0)
            self.table.release(actor)
            if again:
                self.table.release(actor)

    @invariant()
    def agrees_with_itself(self) -> None:
        self.table.check_invariants()
        assert set(self.table.holders) == set(self.actors)


TestStarts = Starts.TestCase
