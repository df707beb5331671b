"""The elastic jobs of a cluster as they are shown: from the records that rendezvous really write,
and from records that nothing of ours has written.
"""

from __future__ import annotations

import json

import attrs
import pytest

from runtime.rendezvous.machine import Keys, State, encode_state
from runtime.rendezvous.overview import MOST_AGENTS, jobs_of, state_of
from runtime.store.interface import Entry

KEYS = Keys("a job/1")

COMPLETE = State(
    min_nodes=1,
    max_nodes=3,
    life="x",
    lease=5,
    round=2,
    complete=True,
    participants=("a", "b"),
    roster=("a", "b", "c"),
    spares=("d",),
)


def entry(key: str, value: bytes) -> Entry:
    return Entry(key, value, 1, 1, 1, 0)


def records(state: State, *alive: str) -> list[Entry]:
    agents = [entry(KEYS.agent(name), b"{}") for name in alive]
    others = entry(KEYS.round(2) + "a/key", b"data")
    return [*agents, entry(KEYS.state, encode_state(state)), others]


def test_agents_that_do_not_renew_their_lease_and_those_that_left_are_named() -> None:
    (job,) = jobs_of(records(COMPLETE, "a", "d")).values()
    assert job["name"] == "a job/1"
    assert (job["agents"], job["participants"], job["spares"]) == (2, ["a", "b"], 1)
    assert (job["silent"], job["gone"]) == (["b"], ["c"])
    assert state_of(job) == "round complete"


@pytest.mark.parametrize("finished", [True, False])
def test_of_a_job_that_has_ended_nobody_is_missed(finished: bool) -> None:
    ended = attrs.evolve(COMPLETE, closed="over " * 1000, finished=finished)
    (job,) = jobs_of(records(ended)).values()
    assert (job["silent"], job["gone"], job["agents"]) == ([], [], 0)
    assert len(job["closed"]) == 400
    assert state_of(job) == ("finished" if finished else "closed")


def test_an_open_round_has_no_agents_that_left_it() -> None:
    state = State(min_nodes=2, max_nodes=2, life="x", lease=5, participants=("a",))
    (job,) = jobs_of(records(state, "a")).values()
    assert (job["silent"], job["gone"]) == ([], [])
    assert state_of(job) == "round open"


def test_of_an_open_round_those_of_the_one_before_are_named_that_do_not_live() -> None:
    roster = ("a", "stopped", "joins")
    state = State(min_nodes=1, max_nodes=3, life="x", lease=5, participants=("a",), roster=roster)
    (job,) = jobs_of(records(state, "a", "joins")).values()
    assert (job["silent"], job["gone"]) == ([], ["stopped"])


def test_what_is_shown_of_many_agents_is_bounded() -> None:
    names = tuple(f"agent-{number}" for number in range(500))
    state = State(min_nodes=1, max_nodes=500, life="x", lease=5, participants=names)
    (job,) = jobs_of(records(state)).values()
    assert len(job["participants"]) == len(job["silent"]) == MOST_AGENTS


@pytest.mark.parametrize(
    "value",
    [b"no JSON", b"[]", b"{}", b"\xff", json.dumps({"participants": 5}).encode(), b"[" * 100_000],
)
def test_a_record_that_cannot_be_read_is_shown_as_such(value: bytes) -> None:
    (job,) = jobs_of([entry(KEYS.state, value)]).values()
    assert job["problem"]
    assert state_of(job) == "unreadable"
