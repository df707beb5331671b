"""Forks: every event in every state, and every two after each other."""

from __future__ import annotations

import itertools

import pytest

from actors.identifiers import NodeId
from runtime.references.forks import Forks

PEER = NodeId("peer", 1)
OTHER = NodeId("peer", 2)
"""The same name, another incarnation."""

EVENTS = (
    "landed",
    "ask",
    "ask another",
    "settled",
    "unsettled",
    "peer died",
    "other died",
)

TABLE = {
    "on its way": (
        "landed",
        "on its way",
        "on its way",
        "on its way",
        "on its way",
        None,
        "on its way",
    ),
    "landed": ("landed", "asked", "landed", "landed", "landed", None, "landed"),
    "asked": ("asked", "asked", "asked", None, "landed", None, "asked"),
    None: (None, None, None, None, None, None, None),
}
"""By state (None: settled): what each of the events makes of it."""


def expected(state: str | None, event: str) -> str | None:
    return TABLE[state][EVENTS.index(event)]


def in_state(state: str | None) -> tuple[Forks[str], int]:
    forks: Forks[str] = Forks()
    number = forks.add("thing", PEER)
    if state != "on its way":
        forks.on_landed(number)
    if state in ("asked", None):
        assert forks.ask(PEER, 10) == [number]
    if state is None:
        forks.on_answered([number], ())
    return forks, number


def happens(forks: Forks[str], number: int, event: str) -> None:
    if event == "landed":
        forks.on_landed(number)
    elif event == "ask":
        due = forks.due()
        asked = forks.ask(PEER, 10)
        assert asked == ([number] if PEER in due else [])
    elif event == "ask another":
        assert forks.ask(OTHER, 10) == []
    elif event == "settled":
        forks.on_answered([number], ())
    elif event == "unsettled":
        forks.on_answered([number], [number])
    else:
        forks.on_node_ended(PEER if event == "peer died" else OTHER)


def assert_is(forks: Forks[str], number: int, state: str | None) -> None:
    assert forks.state(number) == state
    assert len(forks) == (state is not None)
    assert forks.due() == ([PEER] if state == "landed" else [])


@pytest.mark.parametrize("state", TABLE)
def test_every_event_and_every_two_of_them_in_every_state(state: str | None) -> None:
    for events in [*itertools.product(EVENTS, repeat=1), *itertools.product(EVENTS, repeat=2)]:
        forks, number = in_state(state)
        assert_is(forks, number, state)
        now = state
        for event in events:
            happens(forks, number, event)
            now = expected(now, event)
            assert_is(forks, number, now)


def test_what_is_kept_lives_until_it_is_settled_and_no_longer() -> None:
    class Thing:
        """May be freed."""

    import weakref

    thing = Thing()
    seen = weakref.ref(thing)
    forks: Forks[Thing] = Forks()
    number = forks.add(thing, PEER)
    del thing
    forks.on_landed(number)
    forks.ask(PEER, 1)
    forks.on_answered([number], [number])
    assert seen() is not None
    forks.ask(PEER, 1)
    forks.on_answered([number], [])
    assert seen() is None


def test_questions_are_asked_in_parts_and_about_what_has_landed_only() -> None:
    forks: Forks[str] = Forks()
    numbers = [forks.add("thing", PEER) for _ in range(5)]
    elsewhere = forks.add("thing", OTHER)
    for number in (*numbers[:4], elsewhere):
        forks.on_landed(number)
    assert forks.ask(PEER, 3) == numbers[:3]
    assert forks.due() == [PEER, OTHER]
    assert forks.ask(PEER, 3) == numbers[3:4]
    assert forks.due() == [OTHER]
    forks.on_answered(numbers, numbers[1:2])
    assert [forks.state(number) for number in numbers] == [
        None,
        "landed",
        None,
        None,
        "on its way",
    ]
    forks.on_node_ended(PEER)
    assert len(forks) == 1
    assert forks.state(elsewhere) == "landed"


def test_a_number_that_was_never_given_means_nothing() -> None:
    forks: Forks[str] = Forks()
    forks.on_landed(7)
    forks.on_answered([7], [7])
    assert forks.state(7) is None
    assert forks.due() == []
