"""Holds: every event in every state, and every two after each other, as a table that was written down from the protocol's rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest

from runtime.references.claims import Identity, ReferenceId
from runtime.references.holds import Ask, Claim, Effect, Holds, Lost, Release, Settled, Sponsor

ME: Identity = ("me", 1)
O: Identity = ("owner", 1)  # noqa: E741  as in the table
P: Identity = ("new owner", 1)
S: Identity = ("sponsor", 1)
VALUE: ReferenceId = ("maker", 1, 1)
VERSION = 5
SPONSOR = Sponsor(S, 17, 0)

EVENTS: dict[str, Callable[[Holds], list[Effect]]] = {
    "answered": lambda holds: holds.answered(VALUE, VERSION),
    "arrived from S": lambda holds: holds.arrived(VALUE, O, VERSION, SPONSOR),
    "arrived from S at P": lambda holds: holds.arrived(VALUE, P, VERSION, SPONSOR),
    "arrived": lambda holds: holds.arrived(VALUE, O, VERSION, None),
    "arrived at P": lambda holds: holds.arrived(VALUE, P, VERSION, None),
    "awaited from S": lambda holds: holds.awaited(VALUE, ME, VERSION, SPONSOR),
    "begun": lambda holds: holds.begun(VALUE),
    "confirmed by O": lambda holds: holds.confirmed(VALUE, VERSION, O),
    "confirmed by P": lambda holds: holds.confirmed(VALUE, VERSION, P),
    "unknown to O": lambda holds: holds.unknown(VALUE, VERSION, O),
    "unknown to P": lambda holds: holds.unknown(VALUE, VERSION, P),
    "moved to O": lambda holds: holds.moved(VALUE, O),
    "moved to P": lambda holds: holds.moved(VALUE, P),
    "S says O": lambda holds: holds.told(VALUE, S, O),
    "S says P": lambda holds: holds.told(VALUE, S, P),
    "S says it failed": lambda holds: holds.failed(VALUE),
    "S denies": lambda holds: holds.denied(VALUE, S, SPONSOR.number),
    "S denies, asked before": lambda holds: holds.denied(VALUE, S, SPONSOR.number - 1),
    "O died": lambda holds: holds.died(O),
    "P died": lambda holds: holds.died(P),
    "S died": lambda holds: holds.died(S),
    "dropped": lambda holds: holds.dropped(VALUE, VERSION),
    # Said of an earlier hold, or by somebody who has no part in it.
    "answered in another version": lambda holds: holds.answered(VALUE, VERSION - 1),
    "confirmed in another version": lambda holds: holds.confirmed(VALUE, VERSION - 1, O),
    "unknown in another version": lambda holds: holds.unknown(VALUE, VERSION - 1, O),
    "dropped in another version": lambda holds: holds.dropped(VALUE, VERSION - 1),
    "a stranger says P": lambda holds: holds.told(VALUE, ("stranger", 1), P),
    "a stranger denies": lambda holds: holds.denied(VALUE, ("stranger", 1), SPONSOR.number),
    "a stranger died": lambda holds: holds.died(("sponsor", 2)),
}


class State(NamedTuple):
    """What can be seen of a hold. `distance` counts while it may have a sponsor."""

    state: str
    owner: Identity
    is_sponsored: bool = False
    owner_died: bool = False
    failed: bool = False
    is_here: bool = False
    distance: int | None = 1


STATES: dict[str, State | None] = {
    "nothing": None,
    "making": State("making", O, distance=0),
    "claiming": State("claiming", O),
    "claiming, sponsored": State("claiming", O, is_sponsored=True),
    "claiming, nobody nearer": State("claiming", O, distance=0),
    "asking": State("asking", O, is_sponsored=True),
    "asking, owner dead": State("asking", O, is_sponsored=True, owner_died=True),
    "held": State("held", O, distance=0),
    "lost": State("lost", O),
    "lost, nobody nearer": State("lost", O, distance=0),
    "lost, owner dead": State("lost", O, owner_died=True),
    "lost, once held": State("lost", O, owner_died=True, distance=0),
    "failed": State("lost", O, failed=True, distance=None),
    "failed, owner dead": State("lost", O, owner_died=True, failed=True, distance=None),
    "awaited": State("asking", ME, is_sponsored=True, is_here=True),
    "awaited in vain": State("lost", ME, is_here=True),
    "awaited, failed": State("lost", ME, failed=True, is_here=True, distance=None),
}

Row = dict[str, tuple[str, str]]

TABLE: dict[str, Row] = {
    "nothing": {
        "arrived from S": ("claiming, sponsored", "claim O"),
        "arrived from S at P": ("claiming, sponsored / P", "claim P"),
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
        "arrived from S": ("claiming, sponsored", ""),
        "arrived from S at P": ("claiming, sponsored", ""),
        "confirmed by O": ("held", "settled"),
        "unknown to O": ("lost", "lost"),
        "moved to P": ("claiming / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "O died": ("lost, owner dead", "lost with its owner"),
        "dropped": ("nothing", "release O"),
    },
    "claiming, sponsored": {
        "confirmed by O": ("held", "settled"),
        "unknown to O": ("asking", "ask S"),
        "moved to P": ("claiming, sponsored / P", "claim P"),
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
        "moved to P": ("claiming, sponsored / P", "claim P"),
        "S says O": ("claiming, sponsored", "claim O"),
        "S says P": ("claiming, sponsored / P", "claim P"),
        "S says it failed": ("failed", "settled"),
        "S denies": ("lost", "lost"),
        "S denies, asked before": ("asking", "ask S"),
        "O died": ("asking, owner dead", ""),
        "S died": ("lost", "lost"),
        "dropped": ("nothing", "release O"),
    },
    "asking, owner dead": {
        "moved to P": ("claiming, sponsored / P", "claim P"),
        "S says O": ("asking, owner dead", "ask S"),
        "S says P": ("claiming, sponsored / P", "claim P"),
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
        "arrived from S": ("claiming, sponsored", "claim O"),
        "arrived from S at P": ("claiming, sponsored / P", "claim P"),
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
        "arrived from S at P": ("claiming, sponsored / P", "claim P"),
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
        "moved to O": ("claiming, sponsored", "claim O"),
        "moved to P": ("claiming, sponsored / P", "claim P"),
        "S says O": ("claiming, sponsored", "claim O"),
        "S says P": ("claiming, sponsored / P", "claim P"),
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
"""By state: what an event makes of it, and what is to be done. An event that is not there changes nothing.

A state "/ P" is the same with P as the owner, so its row is the same with O and P exchanged.
"""

PATHS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "making": ("made",),
    "claiming": ("arrived",),
    "claiming, sponsored": ("arrived from S",),
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


def told(effects: list[Effect]) -> str:
    """Effects as they stand in the table."""
    names = {O: "O", P: "P", S: "S", ME: "me"}
    said = []
    for effect in effects:
        assert effect.identity == VALUE
        if isinstance(effect, Claim | Release):
            assert effect.version == VERSION
            said.append(f"{type(effect).__name__.lower()} {names[effect.owner]}")
        elif isinstance(effect, Ask):
            said.append(f"ask {names[effect.sponsor]}")
        elif isinstance(effect, Lost):
            said.append("lost with its owner" if effect.owner_died else "lost")
        else:
            assert isinstance(effect, Settled)
            said.append("settled")
    return ", ".join(said)


def holds_in(state: str) -> Holds:
    holds = Holds()
    path = PATHS[state.removesuffix(" / P")]
    for event in map(exchanged, path) if state.endswith(" / P") else path:
        if event == "made":
            holds.made(VALUE, P if state.endswith(" / P") else O, VERSION)
        else:
            EVENTS[event](holds)
    return holds


def assert_is(holds: Holds, name: str) -> None:
    state, hold = STATES[name.removesuffix(" / P")], holds.all.get(VALUE)
    if state is None:
        assert hold is None
        assert holds.unsettled(S, [16, 17]) == []
        assert holds._open == {}
        return
    assert hold is not None
    owner = P if name.endswith(" / P") else state.owner
    distance = hold.distance if state.distance is not None else None
    seen = State(hold.state, hold.owner, bool(hold.sponsors), hold.owner_died, hold.failed, hold.is_here, distance)
    assert seen == state._replace(owner=owner)
    assert holds.unsettled(S, [16, 17]) == ([17] if state.is_sponsored else [])


OWNED = [state for state in TABLE if elsewhere(state) != state]


@pytest.mark.parametrize("state", [*TABLE, *map(elsewhere, OWNED)])
def test_every_event_and_every_two_of_them_in_every_state(state: str) -> None:
    for events in [*itertools.product(EVENTS, repeat=1), *itertools.product(EVENTS, repeat=2)]:
        holds, now = holds_in(state), state
        assert_is(holds, now)
        for event in events:
            now, effects = expected(now, event)
            assert told(EVENTS[event](holds)) == effects, (state, events, event)
            assert_is(holds, now)


def test_the_table_names_only_events_and_states_that_there_are() -> None:
    for row in TABLE.values():
        assert row.keys() <= EVENTS.keys()
        assert {after.removesuffix(" / P") for after, _ in row.values()} <= STATES.keys()


def test_an_owner_that_does_not_know_is_asked_less_and_less_often_while_a_sponsor_says_that_it_has_the_value() -> None:
    holds = holds_in("claiming, sponsored")
    pauses = []
    for _ in range(12):
        holds.unknown(VALUE, VERSION, O)
        (claim,) = holds.told(VALUE, S, O)
        assert isinstance(claim, Claim)
        pauses.append(claim.after)
    assert pauses[:4] == [0.002, 0.004, 0.008, 0.016]
    assert pauses[-3:] == [0.25, 0.25, 0.25]
    (claim,) = holds.moved(VALUE, P)
    assert isinstance(claim, Claim)
    assert claim.after == 0.0


def test_an_owner_that_waits_for_the_call_asks_its_sponsor_less_and_less_often() -> None:
    holds = holds_in("awaited")
    pauses = []
    for _ in range(9):
        (ask,) = holds.told(VALUE, S, ME)
        assert isinstance(ask, Ask)
        pauses.append(ask.after)
    assert pauses == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.25]


def test_all_sponsors_are_asked_before_a_reference_is_lost() -> None:
    holds = holds_in("claiming, sponsored")
    second, third = ("second", 1), ("third", 1)
    for number, sponsor in enumerate((second, third, second)):
        assert holds.arrived(VALUE, O, 9, Sponsor(sponsor, number)) == []
    assert holds.unsettled(second, range(5)) == [0, 2]
    assert holds.unknown(VALUE, VERSION, O) == [Ask(S, VALUE, 17)]
    assert holds.died(third) == []
    assert holds.denied(VALUE, S, 17) == [Ask(second, VALUE, 2)]
    assert holds.unsettled(S, [17]) == []
    assert holds.denied(VALUE, S, 17) == [], "that was said already"
    assert holds.denied(VALUE, second, 1) == [Ask(second, VALUE, 2)], "it has handed it on again since it was asked"
    assert holds.unsettled(second, range(5)) == [2]
    assert holds.denied(VALUE, second, 2) == [Lost(VALUE, O, False)]
    assert holds.unsettled(second, range(5)) == []


def test_only_who_is_nearer_to_those_that_know_is_a_sponsor() -> None:
    holds = Holds()
    holds.arrived(VALUE, O, VERSION, Sponsor(S, 1, 3))
    assert holds.distance(VALUE) == 4
    holds.arrived(VALUE, O, VERSION, Sponsor(("level", 1), 1, 4))
    holds.arrived(VALUE, O, VERSION, Sponsor(("below", 1), 1, 9))
    assert holds.unsettled(("level", 1), [1]) == holds.unsettled(("below", 1), [1]) == []
    holds.arrived(VALUE, O, VERSION, Sponsor(("nearer", 1), 1, 0))
    assert holds.unsettled(("nearer", 1), [1]) == [1]
    holds.confirmed(VALUE, VERSION, O)
    assert holds.distance(VALUE) == 0
    assert holds.distance(("maker", 1, 2)) == 0, "an owner knows"
