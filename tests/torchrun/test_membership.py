"""When an agent of torch begins another round."""

from __future__ import annotations

import pytest

from runtime.rendezvous.interface import RendezvousChange
from runtime.rendezvous.parameters import RendezvousStateError
from runtime.torchrun.agent import AgentMembership


def test_nothing_has_happened_to_a_new_round() -> None:
    assert AgentMembership().reasons_for_another() == 0


def test_waiting_agents_are_counted_as_last_reported() -> None:
    membership = AgentMembership()
    membership.on_change(RendezvousChange(0, joined=("c",), waiting=1))
    membership.on_change(RendezvousChange(0, joined=("d",), waiting=2))
    assert membership.reasons_for_another() == 2


def test_who_has_gone_is_a_reason_as_well() -> None:
    membership = AgentMembership()
    membership.on_change(RendezvousChange(0, left=("b",)))
    assert membership.reasons_for_another() == 1


def test_an_agent_that_was_cut_off_begins_again() -> None:
    membership = AgentMembership()
    membership.on_change(RendezvousChange(0, left=("a",)))
    assert membership.lost == ("a",)
    assert membership.reasons_for_another() == 1


@pytest.mark.parametrize("first", ["closed", "left"])
def test_nobody_begins_another_round_once_none_can_follow(first: str) -> None:
    membership = AgentMembership()
    changes = [
        RendezvousChange(0, closed="it has finished"),
        RendezvousChange(0, left=("b",), waiting=1),
    ]
    for change in changes if first == "closed" else reversed(changes):
        membership.on_change(change)
    assert membership.reasons_for_another() == 0


def test_trouble_is_raised_when_it_is_asked_for_and_not_when_it_does_not_matter_any_more() -> None:
    membership = AgentMembership()
    membership.on_failed(RendezvousStateError("damaged"))
    with pytest.raises(RendezvousStateError, match="damaged"):
        membership.reasons_for_another()
    membership.on_change(RendezvousChange(0, closed="it has finished"))
    assert membership.reasons_for_another() == 0
