"""Hand-overs: every event in every state, and every two after each other."""

from __future__ import annotations

import itertools

import pytest

from runtime.references.claims import Identity
from runtime.references.hand_overs import HandOvers

PEER: Identity = ("peer", 1)
OTHER: Identity = ("peer", 2)
"""The same name, another incarnation."""

EVENTS = ("landed", "ask", "ask another", "settled", "unsettled", "failed", "peer died", "other died")

TABLE = {
    "on its way": ("landed", "on its way", "on its way", "on its way", "on its way", "on its way", None, "on its way"),
    "landed": ("landed", "asked", "landed", "landed", "landed", "landed", None, "landed"),
    "asked": ("asked", "asked", "asked", None, "landed", "landed", None, "asked"),
    None: (None, None, None, None, None, None, None, None),
}
"""By state (None: settled): what each of the events makes of it."""


def expected(state: str | None, event: str) -> str | None:
    return TABLE[state][EVENTS.index(event)]


def in_state(state: str | None) -> tuple[HandOvers[str], int]:
    hand_overs: HandOvers[str] = HandOvers()
    number = hand_overs.hand_on("thing", PEER)
    if state != "on its way":
        hand_overs.landed(number)
    if state in ("asked", None):
        assert hand_overs.ask(PEER, 10) == [number]
    if state is None:
        hand_overs.answered([number], ())
    return hand_overs, number


def happens(hand_overs: HandOvers[str], number: int, event: str) -> None:
    if event == "landed":
        hand_overs.landed(number)
    elif event == "ask":
        due = hand_overs.due()
        asked = hand_overs.ask(PEER, 10)
        assert asked == ([number] if PEER in due else [])
    elif event == "ask another":
        assert hand_overs.ask(OTHER, 10) == []
    elif event == "settled":
        hand_overs.answered([number], ())
    elif event == "unsettled":
        hand_overs.answered([number], [number])
    elif event == "failed":
        hand_overs.failed([number])
    else:
        hand_overs.died(PEER if event == "peer died" else OTHER)


def assert_is(hand_overs: HandOvers[str], number: int, state: str | None) -> None:
    assert hand_overs.state(number) == state
    assert len(hand_overs) == (state is not None)
    assert hand_overs.due() == ([PEER] if state == "landed" else [])


@pytest.mark.parametrize("state", TABLE)
def test_every_event_and_every_two_of_them_in_every_state(state: str | None) -> None:
    for events in [*itertools.product(EVENTS, repeat=1), *itertools.product(EVENTS, repeat=2)]:
        hand_overs, number = in_state(state)
        assert_is(hand_overs, number, state)
        now = state
        for event in events:
            happens(hand_overs, number, event)
            now = expected(now, event)
            assert_is(hand_overs, number, now)


def test_what_is_kept_lives_until_it_is_settled_and_no_longer() -> None:
    class Thing:
        """May be freed."""

    import weakref

    thing = Thing()
    seen = weakref.ref(thing)
    hand_overs: HandOvers[Thing] = HandOvers()
    number = hand_overs.hand_on(thing, PEER)
    del thing
    hand_overs.landed(number)
    hand_overs.ask(PEER, 1)
    hand_overs.answered([number], [number])
    assert seen() is not None
    hand_overs.ask(PEER, 1)
    hand_overs.answered([number], [])
    assert seen() is None


def test_questions_are_asked_in_parts_and_about_what_has_landed_only() -> None:
    hand_overs: HandOvers[str] = HandOvers()
    numbers = [hand_overs.hand_on("thing", PEER) for _ in range(5)]
    elsewhere = hand_overs.hand_on("thing", OTHER)
    for number in (*numbers[:4], elsewhere):
        hand_overs.landed(number)
    assert hand_overs.ask(PEER, 3) == numbers[:3]
    assert hand_overs.due() == [PEER, OTHER]
    assert hand_overs.ask(PEER, 3) == numbers[3:4]
    assert hand_overs.due() == [OTHER]
    hand_overs.answered(numbers, numbers[1:2])
    assert [hand_overs.state(number) for number in numbers] == [None, "landed", None, None, "on its way"]
    hand_overs.died(PEER)
    assert len(hand_overs) == 1
    assert hand_overs.state(elsewhere) == "landed"


def test_a_number_that_was_never_given_means_nothing() -> None:
    hand_overs: HandOvers[str] = HandOvers()
    hand_overs.landed(7)
    hand_overs.answered([7], [7])
    hand_overs.failed([7])
    assert hand_overs.state(7) is None
    assert hand_overs.due() == []
