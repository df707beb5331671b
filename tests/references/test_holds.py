"""Holds: every event in every state, and every two after each other, as a table that was written
down from the protocol's rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest

from actors.identifiers import NodeId, ReferenceId
from runtime.references.table import (
    Ask,
    BorrowedReferences,
    Claim,
    Forwarder,
    HoldEffect,
    HoldLost,
    HoldSettled,
    Release,
)

ME = NodeId("me", 1)
O = NodeId("owner", 1)  # noqa: E741  as in the table
P = NodeId("new owner", 1)
S = NodeId("forwarder", 1)
VALUE: ReferenceId = ("maker", 1, 1)
VERSION = 5
FORWARDER = Forwarder(S, 17, 0)

EVENTS: dict[str, Callable[[BorrowedReferences], list[HoldEffect]]] = {
    "answered": lambda borrowed: borrowed.on_call_answered(VALUE, VERSION),
    "arrived from S": lambda borrowed: borrowed.on_arrived(VALUE, O, VERSION, FORWARDER),
    "arrived from S at P": lambda borrowed: borrowed.on_arrived(VALUE, P, VERSION, FORWARDER),
    "arrived": lambda borrowed: borrowed.on_arrived(VALUE, O, VERSION, None),
    "arrived at P": lambda borrowed: borrowed.on_arrived(VALUE, P, VERSION, None),
    "awaited from S": lambda borrowed: borrowed.on_arrived_at_owner(VALUE, ME, VERSION, FORWARDER),
    "begun": lambda borrowed: borrowed.on_call_arrived(VALUE),
    "confirmed by O": lambda borrowed: borrowed.on_confirmed(VALUE, VERSION, O),
    "confirmed by P": lambda borrowed: borrowed.on_confirmed(VALUE, VERSION, P),
    "unknown to O": lambda borrowed: borrowed.on_unknown(VALUE, VERSION, O),
    "unknown to P": lambda borrowed: borrowed.on_unknown(VALUE, VERSION, P),
    "moved to O": lambda borrowed: borrowed.on_moved(VALUE, O),
    "moved to P": lambda borrowed: borrowed.on_moved(VALUE, P),
    "S says O": lambda borrowed: borrowed.on_located(VALUE, S, O),
    "S says P": lambda borrowed: borrowed.on_located(VALUE, S, P),
    "S says it failed": lambda borrowed: borrowed.on_failed(VALUE),
    "S denies": lambda borrowed: borrowed.on_denied(VALUE, S, FORWARDER.number),
    "S denies, asked before": lambda borrowed: borrowed.on_denied(VALUE, S, FORWARDER.number - 1),
    "O died": lambda borrowed: borrowed.on_node_ended(VALUE, O),
    "P died": lambda borrowed: borrowed.on_node_ended(VALUE, P),
    "S died": lambda borrowed: borrowed.on_node_ended(VALUE, S),
    "dropped": lambda borrowed: borrowed.on_dropped(VALUE, VERSION),
    # Said of an earlier hold, or by a node that has no part in it.
    "answered in another version": lambda borrowed: borrowed.on_call_answered(VALUE, VERSION - 1),
    "confirmed in another version": lambda borrowed: borrowed.on_confirmed(VALUE, VERSION - 1, O),
    "unknown in another version": lambda borrowed: borrowed.on_unknown(VALUE, VERSION - 1, O),
    "dropped in another version": lambda borrowed: borrowed.on_dropped(VALUE, VERSION - 1),
    "a stranger says P": lambda borrowed: borrowed.on_located(VALUE, NodeId("stranger", 1), P),
    "a stranger denies": lambda borrowed: borrowed.on_denied(
        VALUE, NodeId("stranger", 1), FORWARDER.number
    ),
    "a stranger died": lambda borrowed: borrowed.on_node_ended(VALUE, NodeId("forwarder", 2)),
}


class State(NamedTuple):
    """What can be seen of a hold. `distance` counts while it may have a forwarder."""

    state: str
    owner: NodeId
    has_forwarder: bool = False
    owner_died: bool = False
    failed: bool = False
    is_here: bool = False
    distance: int | None = 1


STATES: dict[str, State | None] = {
    "nothing": None,
    "making": State("making", O, distance=0),
    "claiming": State("claiming", O),
    "claiming, forwarded": State("claiming", O, has_forwarder=True),
    "claiming, nobody nearer": State("claiming", O, distance=0),
    "asking": State("asking", O, has_forwarder=True),
    "asking, owner dead": State("asking", O, has_forwarder=True, owner_died=True),
    "held": State("held", O, distance=0),
    "lost": State("lost", O),
    "lost, nobody nearer": State("lost", O, distance=0),
    "lost, owner dead": State("lost", O, owner_died=True),
    "lost, once held": State("lost", O, owner_died=True, distance=0),
    "failed": State("lost", O, failed=True, distance=None),
    "failed, owner dead": State("lost", O, owner_died=True, failed=True, distance=None),
    "awaited": State("asking", ME, has_forwarder=True, is_here=True),
    "awaited in vain": State("lost", ME, is_here=True),
    "awaited, failed": State("lost", ME, failed=True, is_here=True, distance=None),
}

Row = dict[str, tuple[str, str]]

TABLE: dict[str, Row] = {
    "nothing": {
        "arrived from S": ("claiming, forwarded", "claim O"),
        "arrived from S at P": ("claiming, forwarded / P", "claim P"),
        "arrived": ("claiming", "claim O"),
        "arrived at P": ("claiming / P", "claim P"),
        "awaited from S": ("awaited", "ask S"),
    },
    "making": {
        "answered": ("held", "settled"),
        "moved to P": ("claiming, nobody nearer / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "dropped": ("nothing", "release O"),
    },
    "claiming": {
        "arrived from S": ("claiming, forwarded", ""),
        "arrived from S at P": ("claiming, forwarded", ""),
        "confirmed by O": ("held", "settled"),
        "unknown to O": ("lost", "lost"),
        "moved to P": ("claiming / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "O died": ("lost, owner dead", "lost with its owner"),
        "dropped": ("nothing", "release O"),
    },
    "claiming, forwarded": {
        "confirmed by O": ("held", "settled"),
        "unknown to O": ("asking", "ask S"),
        "moved to P": ("claiming, forwarded / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "O died": ("asking, owner dead", "ask S"),
        "S died": ("claiming", ""),
        "dropped": ("nothing", "release O"),
    },
    "claiming, nobody nearer": {
        "confirmed by O": ("held", "settled"),
        "unknown to O": ("lost, nobody nearer", "lost"),
        "moved to P": ("claiming, nobody nearer / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "O died": ("lost, once held", "lost with its owner"),
        "dropped": ("nothing", "release O"),
    },
    "asking": {
        "confirmed by O": ("held", "settled"),
        "moved to P": ("claiming, forwarded / P", "claim P"),
        "S says O": ("claiming, forwarded", "claim O"),
        "S says P": ("claiming, forwarded / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "S denies": ("lost", "lost"),
        "S denies, asked before": ("asking", "ask S"),
        "O died": ("asking, owner dead", ""),
        "S died": ("lost", "lost"),
        "dropped": ("nothing", "release O"),
    },
    "asking, owner dead": {
        "moved to P": ("claiming, forwarded / P", "claim P"),
        "S says O": ("asking, owner dead", "ask S"),
        "S says P": ("claiming, forwarded / P", "claim P"),
        "S says it failed": ("failed, owner dead", "settled"),
        "S denies": ("lost, owner dead", "lost with its owner"),
        "S denies, asked before": ("asking, owner dead", "ask S"),
        "S died": ("lost, owner dead", "lost with its owner"),
        "dropped": ("nothing", ""),
    },
    "held": {
        "moved to P": ("claiming, nobody nearer / P", "claim P"),
        "O died": ("lost, once held", "lost with its owner"),
        "dropped": ("nothing", "release O"),
    },
    "lost": {
        "arrived from S": ("claiming, forwarded", "claim O"),
        "arrived from S at P": ("claiming, forwarded / P", "claim P"),
        "arrived": ("claiming", "claim O"),
        "arrived at P": ("claiming / P", "claim P"),
        "moved to P": ("claiming / P", "claim P"),
        # The owner may have heard of the claim after all.
        "dropped": ("nothing", "release O"),
    },
    "lost, nobody nearer": {
        "arrived from S": ("claiming, nobody nearer", "claim O"),
        "arrived from S at P": ("claiming, nobody nearer / P", "claim P"),
        "arrived": ("claiming, nobody nearer", "claim O"),
        "arrived at P": ("claiming, nobody nearer / P", "claim P"),
        "moved to P": ("claiming, nobody nearer / P", "claim P"),
        "dropped": ("nothing", "release O"),
    },
    "lost, owner dead": {
        "arrived from S at P": ("claiming, forwarded / P", "claim P"),
        "arrived at P": ("claiming / P", "claim P"),
        "moved to P": ("claiming / P", "claim P"),
        "dropped": ("nothing", ""),
    },
    "lost, once held": {
        "arrived from S at P": ("claiming, nobody nearer / P", "claim P"),
        "arrived at P": ("claiming, nobody nearer / P", "claim P"),
        "moved to P": ("claiming, nobody nearer / P", "claim P"),
        "dropped": ("nothing", ""),
    },
    "failed": {"dropped": ("nothing", "release O")},
    "failed, owner dead": {"dropped": ("nothing", "")},
    "awaited": {
        "begun": ("nothing", "settled"),
        "moved to O": ("claiming, forwarded", "claim O"),
        "moved to P": ("claiming, forwarded / P", "claim P"),
        "S says O": ("claiming, forwarded", "claim O"),
        "S says P": ("claiming, forwarded / P", "claim P"),
        "S says it failed": ("awaited, failed", "settled"),
        "S denies": ("awaited in vain", "lost"),
        "S denies, asked before": ("awaited", "ask S"),
        "S died": ("awaited in vain", "lost"),
        "dropped": ("nothing", ""),
    },
    "awaited in vain": {
        "awaited from S": ("awaited", "ask S"),
        "begun": ("nothing", "settled"),
        "moved to O": ("claiming", "claim O"),
        "moved to P": ("claiming / P", "claim P"),
        "dropped": ("nothing", ""),
    },
    "awaited, failed": {
        "begun": ("nothing", "settled"),
        "dropped": ("nothing", ""),
    },
}
"""By state: what an event makes of it, and what is to be done. An event that is not there changes
nothing.

A state "/ P" is the same with P as the owner, so its row is the same with O and P exchanged.
"""

PATHS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "making": ("made",),
    "claiming": ("arrived",),
    "claiming, forwarded": ("arrived from S",),
    "claiming, nobody nearer": ("arrived at P", "confirmed by P", "moved to O"),
    "asking": ("arrived from S", "unknown to O"),
    "asking, owner dead": ("arrived from S", "O died"),
    "held": ("arrived from S", "confirmed by O"),
    "lost": ("arrived", "unknown to O"),
    "lost, nobody nearer": ("arrived at P", "confirmed by P", "moved to O", "unknown to O"),
    "lost, owner dead": ("arrived", "O died"),
    "lost, once held": ("made", "answered", "O died"),
    "failed": ("made", "S says it failed"),
    "failed, owner dead": ("arrived from S", "O died", "S says it failed"),
    "awaited": ("awaited from S",),
    "awaited in vain": ("awaited from S", "S denies"),
    "awaited, failed": ("awaited from S", "S says it failed"),
}
"""What leads to each state."""


def exchanged(text: str) -> str:
    """The same with O and P exchanged. Where an arrival does not say where, that is O."""
    if text in ("arrived", "arrived from S"):
        return f"{text} at P"
    if text in ("arrived at P", "arrived from S at P"):
        return text.removesuffix(" at P")
    return " ".join({"O": "P", "P": "O"}.get(word, word) for word in text.split(" "))


def elsewhere(state: str) -> str:
    """The state with the other owner."""
    if state == "nothing" or state.startswith("awaited"):
        return state
    return state.removesuffix(" / P") if state.endswith(" / P") else f"{state} / P"


def expected(state: str, event: str) -> tuple[str, str]:
    if not state.endswith(" / P"):
        return TABLE[state].get(event, (state, ""))
    after, effects = TABLE[elsewhere(state)].get(exchanged(event), (elsewhere(state), ""))
    return elsewhere(after), exchanged(effects)


def told(effects: list[HoldEffect]) -> str:
    """Effects as they stand in the table."""
    names = {O: "O", P: "P", S: "S", ME: "me"}
    said = []
    for effect in effects:
        assert effect.identity == VALUE
        if isinstance(effect, Claim | Release):
            assert effect.version == VERSION
            said.append(f"{type(effect).__name__.lower()} {names[effect.owner]}")
        elif isinstance(effect, Ask):
            said.append(f"ask {names[effect.forwarder]}")
        elif isinstance(effect, HoldLost):
            said.append("lost with its owner" if effect.owner_died else "lost")
        else:
            assert isinstance(effect, HoldSettled)
            said.append("settled")
    return ", ".join(said)


def holds_in(state: str) -> BorrowedReferences:
    borrowed = BorrowedReferences()
    path = PATHS[state.removesuffix(" / P")]
    for event in map(exchanged, path) if state.endswith(" / P") else path:
        if event == "made":
            borrowed.on_call_sent(VALUE, P if state.endswith(" / P") else O, VERSION)
        else:
            EVENTS[event](borrowed)
    return borrowed


def assert_is(borrowed: BorrowedReferences, name: str) -> None:
    state, hold = STATES[name.removesuffix(" / P")], borrowed.all.get(VALUE)
    if state is None:
        assert hold is None
        assert borrowed.unsettled(S, [16, 17]) == []
        assert borrowed._open == {}
        return
    assert hold is not None
    owner = P if name.endswith(" / P") else state.owner
    distance = hold.distance if state.distance is not None else None
    seen = State(
        hold.state,
        hold.owner,
        bool(hold.forwarders),
        hold.owner_died,
        hold.failed,
        hold.is_here,
        distance,
    )
    assert seen == state._replace(owner=owner)
    assert borrowed.unsettled(S, [16, 17]) == ([17] if state.has_forwarder else [])


OWNED = [state for state in TABLE if elsewhere(state) != state]


@pytest.mark.parametrize("state", [*TABLE, *map(elsewhere, OWNED)])
def test_every_event_and_every_two_of_them_in_every_state(state: str) -> None:
    for events in [*itertools.product(EVENTS, repeat=1), *itertools.product(EVENTS, repeat=2)]:
        borrowed, now = holds_in(state), state
        assert_is(borrowed, now)
        for event in events:
            now, effects = expected(now, event)
            assert told(EVENTS[event](borrowed)) == effects, (state, events, event)
            assert_is(borrowed, now)


def test_the_table_names_only_events_and_states_that_there_are() -> None:
    for row in TABLE.values():
        assert row.keys() <= EVENTS.keys()
        assert {after.removesuffix(" / P") for after, _ in row.values()} <= STATES.keys()


def test_an_owner_that_does_not_know_a_value_is_asked_less_and_less_often() -> None:
    borrowed = holds_in("claiming, forwarded")
    pauses = []
    for _ in range(12):
        borrowed.on_unknown(VALUE, VERSION, O)
        (claim,) = borrowed.on_located(VALUE, S, O)
        assert isinstance(claim, Claim)
        pauses.append(claim.after)
    assert pauses[:4] == [0.002, 0.004, 0.008, 0.016]
    assert pauses[-3:] == [0.25, 0.25, 0.25]
    (claim,) = borrowed.on_moved(VALUE, P)
    assert isinstance(claim, Claim)
    assert claim.after == 0.0


def test_an_owner_that_waits_for_the_call_asks_its_forwarder_less_and_less_often() -> None:
    borrowed = holds_in("awaited")
    pauses = []
    for _ in range(9):
        (ask,) = borrowed.on_located(VALUE, S, ME)
        assert isinstance(ask, Ask)
        pauses.append(ask.after)
    assert pauses == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.25]


def test_all_forwarders_are_asked_before_a_reference_is_lost() -> None:
    borrowed = holds_in("claiming, forwarded")
    second, third = NodeId("second", 1), NodeId("third", 1)
    for number, forwarder in enumerate((second, third, second)):
        assert borrowed.on_arrived(VALUE, O, 9, Forwarder(forwarder, number)) == []
    assert borrowed.unsettled(second, range(5)) == [0, 2]
    assert borrowed.on_unknown(VALUE, VERSION, O) == [Ask(S, VALUE, 17)]
    assert borrowed.on_node_ended(VALUE, third) == []
    assert borrowed.on_denied(VALUE, S, 17) == [Ask(second, VALUE, 2)]
    assert borrowed.unsettled(S, [17]) == []
    assert borrowed.on_denied(VALUE, S, 17) == [], "that was said already"
    assert borrowed.on_denied(VALUE, second, 1) == [Ask(second, VALUE, 2)], (
        "it has handed it on again since it was asked"
    )
    assert borrowed.unsettled(second, range(5)) == [2]
    assert borrowed.on_denied(VALUE, second, 2) == [HoldLost(VALUE, O, False)]
    assert borrowed.unsettled(second, range(5)) == []


def test_only_who_is_nearer_to_those_that_know_is_a_forwarder() -> None:
    borrowed = BorrowedReferences()
    borrowed.on_arrived(VALUE, O, VERSION, Forwarder(S, 1, 3))
    assert borrowed.distance(VALUE) == 4
    borrowed.on_arrived(VALUE, O, VERSION, Forwarder(NodeId("level", 1), 1, 4))
    borrowed.on_arrived(VALUE, O, VERSION, Forwarder(NodeId("below", 1), 1, 9))
    assert borrowed.unsettled(NodeId("level", 1), [1]) == []
    assert borrowed.unsettled(NodeId("below", 1), [1]) == []
    borrowed.on_arrived(VALUE, O, VERSION, Forwarder(NodeId("nearer", 1), 1, 0))
    assert borrowed.unsettled(NodeId("nearer", 1), [1]) == [1]
    borrowed.on_confirmed(VALUE, VERSION, O)
    assert borrowed.distance(VALUE) == 0
    assert borrowed.distance(("maker", 1, 2)) == 0, "an owner knows"


def test_a_peer_that_uses_one_fork_number_for_two_values_harms_nobody_else() -> None:
    other: ReferenceId = ("maker", 1, 2)
    for end in ("confirmed", "dead"):
        borrowed = BorrowedReferences()
        for value in (VALUE, other):
            assert borrowed.on_arrived(value, O, VERSION, FORWARDER)
        if end == "confirmed":
            for value in (VALUE, other):
                assert borrowed.on_confirmed(value, VERSION, O) == [HoldSettled(value)]
        else:
            for value in (VALUE, other):
                borrowed.on_node_ended(value, S)
        borrowed.check_invariants()
