"""Tables of references on several nodes, step by step: what the model has found, and what its
worlds are too mild for.
"""

from __future__ import annotations

from collections import Counter
from typing import cast
from unittest.mock import patch

import attrs
import pytest

from actors.errors import OwnerDiedError, ReferenceReleasedError
from actors.identifiers import NodeId, ReferenceId
from runtime.references.manager import ReferenceParts
from runtime.references.table import (
    BorrowedReferences,
    HoldEffect,
    ReferenceState,
    state_of,
)
from tests.failures.error_examples import check_shown, said
from tests.references.world import GONE, Message, Node, Question, Value, World


@attrs.define(eq=False)
class Stage:
    """Three nodes, between which nothing arrives but what a test lets through."""

    world: World

    @property
    def maker(self) -> Node:
        """Who makes references."""
        return self.world.nodes[NodeId("node-0", 1)]

    @property
    def owner(self) -> Node:
        """Who keeps the values."""
        return self.world.nodes[NodeId("node-1", 2)]

    @property
    def third(self) -> Node:
        """Who is handed references."""
        return self.world.nodes[NodeId("node-2", 3)]

    def call(self) -> tuple[ReferenceState, Message]:
        """The maker calls the owner for a reference; the call is still on its way."""
        state = self.maker.table.make(self.owner.identity, "maker.make")
        self.maker.calls[state.identity[2]] = (self.owner.identity, state)
        message = self.world.send(self.maker, self.owner.identity, [])
        assert message is not None
        message.call = (state.identity, state.version, state.identity[2])
        return state, message

    def forward(self, state: ReferenceState, source: Node, target: Node) -> ReferenceState:
        """A reference goes from one node to another, which keeps it."""
        segments = self.world.send(source, target.identity, [source.table.reference(state)])
        assert segments is not None
        reference = target.table.read(segments.plains[0])
        self.record(target)
        target.references.append(reference)
        self.world.land(segments)
        return state_of(reference)

    def arrive(self, state: ReferenceState, source: Node, target: Node) -> ReferenceState:
        """Like `forward`, but the reference is read and not recorded."""
        message = self.world.send(source, target.identity, [source.table.reference(state)])
        assert message is not None
        plain = cast("ReferenceParts", message.plains[0])
        arrived, effects = target.table.arrive(*plain, 0.0)
        target.table.apply(effects)
        target.references.append(target.table.reference(arrived))
        self.world.land(message)
        state_here: ReferenceState = arrived
        return state_here

    def record(self, node: Node) -> None:
        """What has arrived at a node is recorded."""
        node.table.apply(node.table.record_arrivals(10))

    def question(self, source: Node, text: str) -> Question:
        """What a node has to say that this is part of."""
        source.post.write()
        return next(
            each
            for each in self.world.questions
            if each.source == source.identity and text in each.text
        )

    def deliver(self, source: Node, text: str) -> Question:
        """It is asked, and its answer arrives."""
        question = self.question(source, text)
        self.world.ask(question)
        question.take(question.answers[-1])
        self.world.questions.remove(question)
        return question


@pytest.fixture
def stage() -> Stage:
    """Three nodes."""
    return Stage(World(0, 3, crashes=False))


def test_a_reference_that_is_at_its_owner_before_the_call_that_makes_the_value_waits_for_it(
    stage: Stage,
) -> None:
    state, call = stage.call()
    at_third = stage.forward(state, stage.maker, stage.third)
    at_owner = stage.forward(at_third, stage.third, stage.owner)
    again = stage.forward(state, stage.maker, stage.owner)
    assert at_owner is again
    assert not at_owner.is_settled
    stage.deliver(stage.owner, "ask")
    stage.world.deliver(call)
    stage.owner.jobs[0][2].stored = Value(state.identity)  # type: ignore[assignment]
    assert at_owner.stored is not None, "the call's result goes to those who wait already"
    assert stage.owner.table.owner(state.identity) == stage.owner.identity
    del state, at_third, at_owner, again, call
    stage.world.drain()


def test_a_reference_at_its_owner_is_lost_when_its_forwarders_do_not_have_it_either(
    stage: Stage,
) -> None:
    state, call = stage.call()
    at_third = stage.forward(state, stage.maker, stage.third)
    at_owner = stage.forward(at_third, stage.third, stage.owner)
    # The maker ends, and its call with it.
    stage.world.land(call)
    stage.world.dead.add(stage.maker.identity)
    for node in (stage.owner, stage.third):
        stage.world.hear(node, stage.maker.identity)
    stage.deliver(stage.third, "claim")
    stage.deliver(stage.owner, "ask")
    assert isinstance(at_third.error, ReferenceReleasedError)
    assert isinstance(at_owner.error, ReferenceReleasedError)
    check_shown("ReferenceReleasedError", said(at_third.error))


def test_a_late_word_that_the_call_has_failed_is_nothing_to_an_owner_that_runs_it(
    stage: Stage,
) -> None:
    state, call = stage.call()
    at_owner = stage.forward(state, stage.maker, stage.owner)
    question = stage.question(stage.owner, "ask")
    stage.world.deliver(call)
    question.take(GONE)
    assert at_owner.failure is None


def test_two_who_have_a_reference_of_each_other_do_not_wait_for_ever_when_its_owner_has_ended(
    stage: Stage,
) -> None:
    reference = stage.owner.table.keep(Value(None))
    one = stage.forward(state_of(reference), stage.owner, stage.maker)
    other = stage.forward(one, stage.maker, stage.third)
    assert stage.forward(other, stage.third, stage.maker) is one
    # None of their claims has reached the owner.
    stage.world.dead.add(stage.owner.identity)
    stage.world.hear(stage.third, stage.owner.identity)
    stage.deliver(stage.third, "ask")
    assert other.error is None, "the other node may know more"
    stage.world.hear(stage.maker, stage.owner.identity)
    stage.deliver(stage.third, "ask")
    assert isinstance(one.error, OwnerDiedError)
    assert isinstance(other.error, OwnerDiedError)


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_the_end_of_an_owner_is_the_outcome_of_an_open_call_once_others_hold_the_value_there(
    stage: Stage, is_forwarded: bool
) -> None:
    state, message = stage.call()
    stage.world.deliver(message)
    if is_forwarded:
        stage.forward(state, stage.maker, stage.third)
    # Its call may be made again: it has not ended.
    del stage.maker.calls[state.identity[2]]
    stage.world.dead.add(stage.owner.identity)
    stage.world.hear(stage.maker, stage.owner.identity)
    assert isinstance(state.error, OwnerDiedError) == is_forwarded
    if is_forwarded:
        stage.maker.table.on_call_ended(state, GONE)
        assert state.failure is None, "it has one outcome"
    else:
        stage.maker.table.redirect(state, stage.third.identity)
        assert state.owner_id == stage.third.identity
    stage.maker.table.check_invariants()


def test_a_lost_reference_is_there_again_when_another_holder_sends_it(
    stage: Stage,
) -> None:
    state, call = stage.call()
    at_third = stage.forward(state, stage.maker, stage.third)
    stage.deliver(stage.third, "claim")
    stage.third.table.on_where_answered(state.identity, stage.maker.identity, 1, None)
    assert isinstance(at_third.error, ReferenceReleasedError)
    stage.world.deliver(call)
    stage.forward(state, stage.maker, stage.third)
    assert at_third.error is None
    stage.deliver(stage.third, "claim")
    assert stage.third.table.hold_state(at_third) == "held"
    assert at_third.error is None


def test_a_forwarder_that_has_handed_a_reference_on_since_is_asked_again(
    stage: Stage,
) -> None:
    state, call = stage.call()
    at_third = stage.forward(state, stage.maker, stage.third)
    stage.deliver(stage.third, "claim")
    stage.forward(state, stage.maker, stage.third)
    # The answer was written before that, and comes after it.
    stage.third.table.on_where_answered(state.identity, stage.maker.identity, 1, None)
    assert at_third.error is None
    stage.world.deliver(call)
    stage.deliver(stage.third, "ask")
    stage.deliver(stage.third, "claim")
    assert stage.third.table.hold_state(at_third) == "held"


def test_a_claim_that_counted_although_its_answer_was_lost_is_taken_back_in_the_end(
    stage: Stage,
) -> None:
    state, call = stage.call()
    at_third = stage.forward(state, stage.maker, stage.third)
    claim = stage.deliver(stage.third, "claim")
    stage.world.deliver(call)
    stage.world.ask(claim)
    stage.third.table.on_where_answered(state.identity, stage.maker.identity, 1, None)
    assert stage.third.table.hold_state(at_third) == "lost"
    del state, at_third, call
    stage.world.drain()


def test_a_release_that_comes_before_the_call_is_not_undone_by_an_older_claim_after_it(
    stage: Stage,
) -> None:
    state, call = stage.call()
    stage.forward(state, stage.maker, stage.third)
    claim = stage.question(stage.third, "claim")
    # It is on its way for longer than the link that it came from.
    claim.lose()
    stage.third.references.clear()
    stage.third.table.tidy()
    stage.deliver(stage.third, "release")
    stage.world.deliver(call)
    stage.world.ask(claim)
    assert [stage.owner.table.holders(state) for state in stage.owner.table.own()] == [
        (stage.maker.identity,)
    ]
    del state, call
    stage.world.drain()


def test_an_answer_of_a_node_that_is_known_to_have_ended_holds_nothing(stage: Stage) -> None:
    state, _ = stage.call()
    stage.maker.table.on_node_ended(stage.owner.identity)
    assert state.error is None, "the call says how it ended"
    stage.maker.table.on_call_ended(state, None)
    assert stage.maker.table.hold_state(state) == "lost"
    assert isinstance(state.error, OwnerDiedError)


def test_a_confirmation_of_a_node_that_is_known_to_have_ended_holds_nothing(stage: Stage) -> None:
    state, call = stage.call()
    at_third = stage.forward(state, stage.maker, stage.third)
    stage.world.deliver(call)
    question = stage.question(stage.third, "claim")
    stage.world.ask(question)
    stage.third.table.on_node_ended(stage.owner.identity)
    question.take(question.answers[0])
    assert stage.third.table.hold_state(at_third) == "asking"


@pytest.mark.parametrize("claimed", [True, False], ids=["held", "claimed"])
def test_the_end_of_an_owner_looks_once_at_each_value_and_at_so_many_in_a_row(
    stage: Stage, claimed: bool
) -> None:
    count = 30
    states = [
        stage.forward(state_of(stage.owner.table.keep(Value(None))), stage.owner, stage.third)
        for _ in range(count)
    ]
    table = stage.third.table.pure
    if claimed:
        stage.deliver(stage.third, "claim")
        assert {table.hold_state(state) for state in states} == {"held"}
    looked: Counter[ReferenceId] = Counter()
    real = BorrowedReferences.on_node_ended

    def look(
        self: BorrowedReferences, identity: ReferenceId, peer: NodeId, *, is_forwarded: bool = False
    ) -> list[HoldEffect]:
        looked[identity] += 1
        return real(self, identity, peer, is_forwarded=is_forwarded)

    with patch.object(BorrowedReferences, "on_node_ended", look):
        stage.third.table.apply(table.on_node_ended(stage.owner.identity))
        assert not looked, "there may be a million"
        parts = 0
        while table.has_ends:
            stage.third.table.apply(table.note_ends(7))
            parts += 1
            table.check_invariants()
        assert parts == 5
        assert looked == {state.identity: 1 for state in states}
        assert all(isinstance(state.error, OwnerDiedError) for state in states)
        # Those that let go of a value later release it to none.
        del states
        stage.third.references.clear()
        stage.third.table.tidy()
    assert max(looked.values()) <= 2
    assert table.held == 0


def test_nodes_that_end_during_a_pass_are_noted_in_the_next(stage: Stage) -> None:
    states = [
        stage.forward(state_of(owner.table.keep(Value(None))), owner, stage.third)
        for owner in (stage.owner, stage.maker, stage.owner, stage.maker)
    ]
    table = stage.third.table.pure
    for owner in (stage.owner, stage.maker):
        stage.third.table.apply(table.on_node_ended(owner.identity))
        stage.third.table.apply(table.note_ends(1))
    assert [state.error is not None for state in states] == [True, False, False, False]
    stage.third.table.apply(table.note_ends(3))
    assert [state.error is not None for state in states] == [True, False, True, False]
    stage.third.table.apply(table.note_ends(4))
    assert all(isinstance(state.error, OwnerDiedError) for state in states)
    assert not table.has_ends


def test_forks_to_a_node_that_has_ended_are_dropped(stage: Stage) -> None:
    reference = stage.owner.table.keep(Value(None))
    stage.owner.table.on_node_ended(stage.third.identity)
    message = stage.world.send(stage.owner, stage.third.identity, [reference])
    assert message is not None
    del reference
    assert len(stage.owner.table) == 1
    stage.world.land(message)
    assert stage.owner.table.tidy()
    assert len(stage.owner.table) == 0
    assert stage.owner.table.held == 0


def test_a_hold_that_ends_before_its_new_owner_knew_it_is_not_counted_there_for_ever(
    stage: Stage,
) -> None:
    reference = stage.owner.table.keep(Value(None))
    state = stage.forward(state_of(reference), stage.owner, stage.third)
    stage.deliver(stage.third, "claim")
    identity, registers = state.identity, stage.owner.table.registers(state.identity)
    adopted = stage.maker.table.adopt(identity, registers, "", "")
    stage.owner.table.on_given(state_of(reference), stage.maker.identity)
    assert stage.third.table.on_moved(identity, stage.maker.identity)
    # Before it has said so, it does not hold the value any more.
    del state, adopted, reference
    stage.world.drain()


def test_a_lost_reference_that_is_there_again_is_sought_where_it_is_now(stage: Stage) -> None:
    reference = stage.owner.table.keep(Value(None))
    here = stage.forward(state_of(reference), stage.owner, stage.third)
    stage.third.table.on_node_ended(stage.owner.identity)
    stage.third.table.on_where_answered(here.identity, stage.owner.identity, 1, None)
    assert isinstance(here.error, OwnerDiedError)
    adopted = stage.maker.table.adopt(here.identity, [], "", "")
    assert stage.forward(adopted, stage.maker, stage.third) is here
    assert (here.error, here.owner_id) == (None, stage.maker.identity)


def test_a_value_that_comes_back_to_its_maker_counts_for_more_than_the_outcome_of_its_call(
    stage: Stage,
) -> None:
    state, call = stage.call()
    stage.world.deliver(call)
    stage.maker.table.on_call_ended(state, GONE)
    assert state.failure is GONE
    assert stage.maker.table.adopt(state.identity, [], "", "") is state
    assert state.failure is None


def test_a_reference_that_is_not_recorded_yet_is_not_settled_and_can_be_forwarded(
    stage: Stage,
) -> None:
    reference = stage.owner.table.keep(Value(None))
    state = state_of(reference)
    one = stage.arrive(state, stage.owner, stage.maker)
    table = stage.maker.table
    table.check_invariants()
    assert table.arrivals == 1
    assert table.hold_state(one) == "claiming"
    assert table.unsettled(stage.owner.identity, [1, 2]) == [1], "the sender keeps its own hold"
    other = stage.arrive(one, stage.maker, stage.third)
    assert stage.third.table.unsettled(stage.maker.identity, [1]) == [1]
    for node in (stage.third, stage.maker):
        stage.record(node)
        node.table.check_invariants()
        assert node.table.arrivals == 0
        stage.deliver(node, "claim")
    assert table.unsettled(stage.owner.identity, [1]) == []
    assert table.hold_state(one) == stage.third.table.hold_state(other) == "held"
    del reference, state, one, other
    stage.world.drain()


def test_a_reference_that_is_dropped_before_it_is_recorded_is_held_and_released(
    stage: Stage,
) -> None:
    reference = stage.owner.table.keep(Value(None))
    stage.arrive(state_of(reference), stage.owner, stage.maker)
    stage.maker.references.clear()
    stage.record(stage.maker)
    stage.maker.table.tidy()
    stage.maker.table.check_invariants()
    assert stage.maker.table.held == 0
    assert stage.maker.table.unsettled(stage.owner.identity, [1]) == []
    del reference
    stage.world.drain()


def test_a_reference_that_comes_again_before_the_note_of_its_end_keeps_its_hold(
    stage: Stage,
) -> None:
    reference = stage.owner.table.keep(Value(None))
    one = stage.forward(state_of(reference), stage.owner, stage.maker)
    stage.deliver(stage.maker, "claim")
    del one
    stage.maker.references.clear()
    # The note of its end waits to be handled.
    again = stage.arrive(state_of(reference), stage.owner, stage.maker)
    stage.maker.table.check_invariants()
    stage.maker.table.tidy()
    stage.maker.table.check_invariants()
    stage.deliver(stage.maker, "claim")
    assert stage.maker.table.hold_state(again) == "held"
    del again, reference
    stage.world.drain()


def test_a_value_that_has_moved_before_its_reference_is_recorded_is_claimed_where_it_is(
    stage: Stage,
) -> None:
    reference = stage.owner.table.keep(Value(None))
    one = stage.arrive(state_of(reference), stage.owner, stage.maker)
    stage.maker.table.on_moved(one.identity, stage.third.identity)
    assert one.owner_id == stage.third.identity
    assert stage.maker.table.arrivals == 0
    stage.maker.table.check_invariants()
