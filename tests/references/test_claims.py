"""Claims: every word of a holder in every state, and every two after each other, in whichever order
they come.
"""

from __future__ import annotations

import itertools

import pytest

from actors.identifiers import NodeId
from runtime.references.holder_set import HolderSet

HOLDER = NodeId("holder", 1)
OTHER = NodeId("other", 1)

EVENTS = ("claim 1", "claim 2", "claim 3", "release 1", "release 2", "release 3", "died")

TABLE = {
    "nothing": (
        "claimed 1",
        "claimed 2",
        "claimed 3",
        "released 1",
        "released 2",
        "released 3",
        "nothing",
    ),
    "claimed 1": (
        "claimed 1",
        "claimed 2",
        "claimed 3",
        "released 1",
        "released 2",
        "released 3",
        "nothing",
    ),
    "claimed 2": (
        "claimed 2",
        "claimed 2",
        "claimed 3",
        "claimed 2",
        "released 2",
        "released 3",
        "nothing",
    ),
    "claimed 3": (
        "claimed 3",
        "claimed 3",
        "claimed 3",
        "claimed 3",
        "claimed 3",
        "released 3",
        "nothing",
    ),
    "released 1": (
        "released 1",
        "claimed 2",
        "claimed 3",
        "released 1",
        "released 2",
        "released 3",
        "nothing",
    ),
    "released 2": (
        "released 2",
        "released 2",
        "claimed 3",
        "released 2",
        "released 2",
        "released 3",
        "nothing",
    ),
    "released 3": (
        "released 3",
        "released 3",
        "released 3",
        "released 3",
        "released 3",
        "released 3",
        "nothing",
    ),
}
"""By state: what each of the events makes of it. Of a node that died nothing is known any more: its
late words are not let through.
"""

VERSIONS: dict[str, list[int]] = {"nothing": []}
for number in (1, 2, 3):
    VERSIONS |= {f"claimed {number}": [number], f"released {number}": [-number]}


def expected(state: str, event: str) -> str:
    return TABLE[state][EVENTS.index(event)]


def claims_in(state: str) -> HolderSet:
    claims = HolderSet()
    kind, _, version = state.partition(" ")
    if kind == "claimed":
        claims.claim(HOLDER, int(version))
    elif kind == "released":
        claims.release(HOLDER, int(version))
    return claims


def happens(claims: HolderSet, event: str) -> None:
    kind, _, version = event.partition(" ")
    if kind == "claim":
        claims.claim(HOLDER, int(version))
    elif kind == "release":
        claims.release(HOLDER, int(version))
    else:
        held = HOLDER in claims.holders
        assert claims.on_node_ended(HOLDER) is held


def assert_is(claims: HolderSet, state: str) -> None:
    assert [version for *_, version in claims.versions()] == VERSIONS[state]
    assert claims.held is state.startswith("claimed")
    assert claims.holders == ((HOLDER,) if state.startswith("claimed") else ())


@pytest.mark.parametrize("state", TABLE)
def test_every_event_and_every_two_of_them_in_every_state(state: str) -> None:
    for events in [*itertools.product(EVENTS, repeat=1), *itertools.product(EVENTS, repeat=2)]:
        claims, now = claims_in(state), state
        for event in events:
            happens(claims, event)
            now = expected(now, event)
            assert_is(claims, now)


@pytest.mark.parametrize(
    "updates",
    [
        ("claim 1", "release 1", "claim 2"),
        ("claim 1", "release 1", "claim 2", "release 2"),
        ("claim 1", "claim 3"),
    ],
)
def test_the_last_word_counts_in_whichever_order_and_however_often_all_are_heard(
    updates: tuple[str, ...],
) -> None:
    last = (
        {"claim": "claimed", "release": "released"}[updates[-1].split()[0]]
        + " "
        + updates[-1].split()[1]
    )
    for order in (
        itertools.permutations(updates * 2) if len(updates) < 4 else itertools.permutations(updates)
    ):
        claims = HolderSet()
        for word in order:
            happens(claims, word)
        assert_is(claims, last)


def test_holders_do_not_speak_for_each_other() -> None:
    claims = HolderSet()
    claims.claim(HOLDER, 5)
    claims.claim(OTHER, 1)
    claims.release(OTHER, 7)
    assert claims.holders == (HOLDER,)
    assert not claims.on_node_ended(OTHER)
    assert claims.on_node_ended(HOLDER)
    assert not claims.held
    assert claims.versions() == []
