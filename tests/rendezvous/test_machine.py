"""The decisions of a rendezvous: one by one, and then in any order against what must hold of every
state.
"""

from __future__ import annotations

import random

import attrs
import pytest

from runtime.rendezvous.interface import RendezvousChange
from runtime.rendezvous.machine import (
    Fail,
    Finish,
    Joining,
    RoundId,
    RoundWatch,
    State,
    StateWrite,
    Wait,
    close,
    complete,
    decode_agent,
    decode_state,
    encode_state,
    join,
    leave,
    remove_dead,
    reopen,
)
from runtime.rendezvous.parameters import RendezvousStateError, RendezvousTimeout

TIMEOUT = RendezvousTimeout()


def fresh(least: int = 2, most: int = 3) -> State:
    return State(least, most, "life", 1)


def of(state: State, *names: str) -> State:
    for name in names:
        state = join(state, name)
    return state


def joining(
    name: str, least: int = 2, most: int = 3, *, now: float = 0.0, **more: object
) -> Joining:
    return Joining(name, least, most, TIMEOUT, now, **more)  # type: ignore[arg-type]


def test_a_round_is_open_until_as_many_have_come_as_may_be() -> None:
    state = of(fresh(), "a", "b")
    assert (state.complete, state.participants, state.call) == (False, ("a", "b"), 1)
    state = of(state, "c")
    assert (state.complete, state.roster, state.call) == (True, ("a", "b", "c"), 0)


def test_coming_twice_is_coming_once() -> None:
    assert of(fresh(), "a", "a") == of(fresh(), "a")
    full = of(fresh(), "a", "b", "c", "d")
    assert of(full, "d") == full


def test_below_the_minimum_there_is_no_last_call_and_the_next_is_another() -> None:
    state = leave(of(fresh(), "a", "b"), ["a"])
    assert state.call == 0
    assert of(state, "c").call == 2


def test_who_comes_to_a_round_that_is_complete_waits_and_to_a_full_one_is_a_spare() -> None:
    state = complete(of(fresh(), "a", "b"))
    state = of(state, "c", "d")
    assert (state.participants, state.waiting, state.spares) == (("a", "b"), ("c",), ("d",))


def test_a_place_that_becomes_free_is_for_the_first_spare() -> None:
    state = leave(of(fresh(), "a", "b", "c", "d", "e"), ["b"])
    assert (state.participants, state.waiting, state.spares) == (("a", "c"), ("d",), ("e",))


def test_the_next_round_opens_when_all_have_left_the_last_and_those_who_were_in_it_come_first() -> (
    None
):
    state = of(fresh(), "a", "b", "c", "d")
    for name in ("c", "a"):
        state = join(state, name)
        assert state.round == 0
    state = join(state, "b")
    assert (state.round, state.complete, state.participants, state.spares) == (
        1,
        True,
        ("a", "b", "c"),
        ("d",),
    )


def test_when_all_have_died_those_who_wait_go_on() -> None:
    state = remove_dead(of(fresh(), "a", "b", "c", "d", "e"), {"d", "e"})
    assert (state.round, state.complete, state.participants, state.call) == (
        1,
        False,
        ("d", "e"),
        2,
    )


def test_the_roster_of_a_complete_round_stays_when_its_agents_go() -> None:
    state = leave(of(fresh(), "a", "b", "c"), ["a", "b"])
    assert (state.roster, state.participants) == (("a", "b", "c"), ("c",))


def test_ranks_are_kept_where_that_is_possible_and_rank_0_is_never_new_if_anyone_stayed() -> None:
    state = of(fresh(1, 4), "a", "b", "c", "d")
    assert state.roster == ("a", "b", "c", "d")
    state = leave(state, ["b"])
    for name in ("new", "d", "c", "a"):
        state = join(state, name)
    assert state.roster == ("a", "new", "c", "d")
    state = leave(state, ["a"])
    for name in ("0", "d", "c", "new"):
        state = join(state, name)
    assert state.roster == ("new", "0", "c", "d")


def test_a_closed_rendezvous_takes_nobody_and_keeps_its_first_reason_until_it_is_opened_again() -> (
    None
):
    state = close(close(of(fresh(), "a"), "done"), "later")
    assert state.closed == "done"
    assert of(state, "b") == state
    assert of(reopen(state), "b").participants == ("a", "b")
    assert close(fresh(), "").closed


def test_in_a_closed_rendezvous_nothing_follows_from_who_leaves() -> None:
    state = close(of(fresh(), "a", "b", "c", "d"), "done")
    assert leave(state, ["a"]).spares == ("d",), "who was not needed is not called now"
    gone = leave(state, ["a", "b", "c"])
    assert (gone.round, gone.complete, gone.roster) == (0, True, ("a", "b", "c"))
    assert reopen(gone).round == 1


def test_the_reason_of_its_closing_is_reported_as_given() -> None:
    done = close(of(fresh(), "a", "b", "c"), "for people", finished=True)
    assert close(done, "failed").finished
    assert not close(close(fresh(), "failed"), "for people", finished=True).finished
    assert not reopen(done).finished
    fail = joining("new").decide(done, {"a", "b", "c", "new"}, 0.0)
    assert isinstance(fail, Fail)
    assert fail.kind == "finished"
    watch = RoundWatch("a", of(fresh(), "a", "b", "c"))
    assert watch.look(done, {"a", "b", "c"}, cut_off=False) == RendezvousChange(
        0, closed="for people", finished=True
    )
    failed = RoundWatch("a", done).look(
        close(of(fresh(), "a", "b", "c"), "failed"), {"a", "b", "c"}, cut_off=False
    )
    assert failed == RendezvousChange(0, closed="failed")
    with pytest.raises(RendezvousStateError):
        decode_state(encode_state(done).replace(b'"closed":"for people"', b'"closed":""'), "key")


def test_without_a_last_call_enough_are_complete_in_the_same_step() -> None:
    agent = Joining("b", 2, 3, RendezvousTimeout(last_call=0), 0.0)
    decision = agent.decide(of(fresh(), "a"), {"a", "b"}, 0.0)
    assert isinstance(decision, StateWrite)
    assert decision.state.complete


def test_the_last_call_is_timed_by_who_waits_from_when_it_was_seen() -> None:
    agent, state = joining("b"), of(fresh(), "a", "b")
    assert agent.decide(state, {"a", "b"}, 100.0) == Wait(130.0)
    assert agent.decide(state, {"a", "b"}, 129.9) == Wait(130.0)
    # One who has died takes the call with it; the next begins anew.
    fewer = leave(state, ["a"])
    assert agent.decide(fewer, {"b"}, 129.9) == Wait(600.0)
    again = of(fewer, "c")
    assert agent.decide(again, {"b", "c"}, 131.0) == Wait(161.0)
    assert agent.decide(again, {"b", "c"}, 161.0) == StateWrite(complete(again))


def test_a_dead_agent_is_removed_by_the_first_agent_that_sees_it() -> None:
    state = of(fresh(), "a", "b")
    assert joining("b").decide(state, {"b"}, 0.0) == StateWrite(leave(state, ["a"]))


def test_who_is_late_to_look_still_has_its_rank_though_others_have_gone() -> None:
    state = leave(of(fresh(), "a", "b", "c"), ["a"])
    decision = joining("c").decide(state, {"b", "c"}, 0.0)
    assert isinstance(decision, Finish)
    assert (decision.rank, decision.state.roster) == (2, ("a", "b", "c"))


def test_who_leaves_a_round_does_not_take_it_for_the_next() -> None:
    state = of(fresh(), "a", "b", "c")
    agent = joining("a", left=RoundId("life", 0))
    decision = agent.decide(state, {"a", "b", "c"}, 0.0)
    assert decision == StateWrite(join(state, "a"))
    assert isinstance(decision, StateWrite)
    assert decision.state.waiting == ("a",)
    assert agent.decide(decision.state, {"a", "b", "c"}, 1.0) == Wait(600.0)


def test_a_round_of_another_life_is_another_round() -> None:
    state = attrs.evolve(of(fresh(), "a", "b", "c"), life="second")
    assert isinstance(
        joining("a", left=RoundId("life", 0)).decide(state, {"a", "b", "c"}, 0.0), Finish
    )


def test_time_that_is_over_fails_with_what_was_missing() -> None:
    agent, state = joining("a"), of(fresh(), "a")
    assert agent.decide(state, {"a"}, 599.0) == Wait(600.0)
    fail = agent.decide(state, {"a"}, 600.0)
    assert fail == Fail(
        "timeout", "1 of at least 2 agents have come within 600 s; trying again is safe"
    )


def test_a_spare_waits_for_ever_and_has_its_whole_time_when_there_is_a_place() -> None:
    agent, state = joining("d"), of(fresh(), "a", "b", "c", "d")
    everyone = {"a", "b", "c", "d"}
    assert agent.decide(state, everyone, 0.0) == Wait(float("inf"))
    assert agent.decide(state, everyone, 10_000.0) == Wait(float("inf"))
    free = leave(state, ["a"])
    assert agent.decide(free, everyone - {"a"}, 10_001.0) == Wait(10_601.0)
    assert isinstance(agent.decide(free, everyone - {"a"}, 10_601.0), Fail)


@pytest.mark.parametrize(
    ("name", "kind"), [("a", "closed"), ("d", "not needed"), ("new", "closed")]
)
def test_when_it_is_closed_spares_go_in_peace_and_the_others_fail(name: str, kind: str) -> None:
    state = close(of(fresh(), "a", "b", "c", "d"), "done")
    fail = joining(name, left=RoundId("life", 0)).decide(state, {"a", "b", "c", "d", "new"}, 0.0)
    assert isinstance(fail, Fail)
    assert (fail.kind, "done" in fail.text) == (kind, True)


@pytest.mark.parametrize("nodes", [(1, 3), (2, 4), (3, 3)])
def test_another_number_of_nodes_is_another_job(nodes: tuple[int, int]) -> None:
    fail = joining("b", *nodes).decide(of(fresh(), "a"), {"a", "b"}, 0.0)
    assert isinstance(fail, Fail)
    assert fail.kind == "mismatch"


@pytest.mark.parametrize(("theirs", "ours"), [(None, 1), (0, None)])
def test_fixed_ranks_and_others_are_two_jobs(theirs: int | None, ours: int | None) -> None:
    fail = joining("b", 2, 2, wanted=ours).decide(join(fresh(2, 2), "a", theirs), {"a", "b"}, 0.0)
    assert isinstance(fail, Fail)
    assert fail.kind == "mismatch"


def test_fixed_ranks_are_those_that_were_asked_for() -> None:
    state = join(join(fresh(2, 2), "a", 1), "b", 0)
    assert state.roster == ("b", "a")


def test_a_rank_that_is_given_twice_is_refused_when_its_holder_has_had_time_to_die() -> None:
    state = join(fresh(2, 2), "a", 1)
    agent = joining("b", 2, 2, wanted=1, lease_seconds=10)
    assert agent.decide(state, {"a", "b"}, 5.0) == Wait(20.0)
    fail = agent.decide(state, {"a", "b"}, 20.0)
    assert fail == Fail(
        "rank taken",
        "two agents ask for rank 1: a has it, and is alive; give each agent a rank of its own",
    )


def test_a_rank_whose_holder_has_died_is_taken_over() -> None:
    state = join(fresh(2, 2), "a", 1)
    agent = joining("b", 2, 2, wanted=1, lease_seconds=10)
    assert isinstance(agent.decide(state, {"a", "b"}, 5.0), Wait)
    decision = agent.decide(state, {"b"}, 15.0)
    assert isinstance(decision, StateWrite)
    assert (decision.state.participants, decision.state.wanted) == (("b",), {"b": 1})


def test_a_watch_reports_each_change_once() -> None:
    state = of(fresh(1, 4), "a", "b", "c", "d")
    watch = RoundWatch("a", state)
    alive = {"a", "b", "c", "d"}
    assert watch.look(state, alive, cut_off=False) is None
    assert watch.look(state, alive - {"b"}, cut_off=False) == RendezvousChange(0, left=("b",))
    state = leave(state, ["b"])
    assert watch.look(state, alive - {"b"}, cut_off=False) is None
    state = of(state, "new")
    alive = {"a", "c", "d", "new"}
    assert watch.look(state, alive, cut_off=False) == RendezvousChange(
        0, joined=("new",), waiting=1
    )
    state = close(state, "done")
    assert watch.look(state, alive, cut_off=False) == RendezvousChange(0, waiting=1, closed="done")
    assert watch.look(state, alive, cut_off=False) is None


def test_who_is_cut_off_finds_its_own_name_among_those_who_left() -> None:
    state = of(fresh(), "a", "b", "c")
    watch = RoundWatch("a", state)
    assert watch.look(state, {"a", "b", "c"}, cut_off=True) == RendezvousChange(0, left=("a",))
    assert RoundWatch("a", state).look(None, set(), cut_off=False) == RendezvousChange(
        0, left=("a", "b", "c")
    )
    later = attrs.evolve(state, round=1)
    assert RoundWatch("a", state).look(later, {"a", "b", "c"}, cut_off=False) == RendezvousChange(
        0, left=("a", "b", "c")
    )


def test_a_state_comes_back_from_its_record() -> None:
    state = join(close(of(fresh(), "a", "b", "c", "d"), "over"), "e")
    assert decode_state(encode_state(state), "key") == state
    fixed = join(fresh(2, 2), "a", 1)
    assert decode_state(encode_state(fixed), "key") == fixed


BROKEN = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b"3",
    b"[" * 100_000,
    encode_state(fresh()).replace(b'"schema":1', b'"schema":2'),
    encode_state(fresh()).replace(b'"round":0', b'"round":-1'),
    encode_state(fresh()).replace(b'"round":0', b'"round":"0"'),
    encode_state(fresh()).replace(b'"complete":false', b'"complete":0'),
    encode_state(fresh()).replace(b'"participants":[]', b'"participants":["a","a"]'),
    encode_state(fresh()).replace(b'"participants":[]', b'"participants":[1]'),
    encode_state(fresh()).replace(b'"waiting":[]', b'"waiting":null'),
    encode_state(fresh()).replace(b'"wanted":{}', b'"wanted":{"a":"b"}'),
    encode_state(fresh()).replace(b'"wanted":{}', b'"wanted":[]'),
    encode_state(fresh()).replace(b'"min_nodes":2', b'"min_nodes":4'),
    encode_state(fresh()).replace(b'"closed":""', b'"more":1,"closed":""'),
    encode_state(of(fresh(), "a", "b", "c")).replace(b'"roster":["a",', b'"roster":['),
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_state_is_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="rendezvous/job/control/state"):
        decode_state(data, "rendezvous/job/control/state")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"lease":1}',
        b'{"process":3,"lease":1}',
        b'{"process":{"host":"","pid":"1","started":""},"lease":1}',
    ],
)
def test_what_is_no_agent_is_refused(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="agents/a"):
        decode_agent(data, "agents/a")


def check(state: State) -> None:
    """What holds of every state."""
    assert decode_state(encode_state(state), "key") == state
    assert len(state.participants) <= state.max_nodes
    if state.complete:
        assert state.participants or state.closed
        assert set(state.participants) <= set(state.roster)
        assert not state.call
    elif not state.closed:
        assert not state.waiting
        assert not state.spares or len(state.participants) == state.max_nodes
        assert len(state.participants) < state.max_nodes
        assert bool(state.call) == (len(state.participants) >= state.min_nodes)
    assert (
        not state.spares
        or not state.complete
        or len(state.participants) + len(state.waiting) >= state.max_nodes
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_things_keeps_what_must_hold_and_a_complete_round_its_roster(
    seed: int,
) -> None:
    """Decisions of agents whose views are old, against a store that takes a write only if it
    replaces what was seen.
    """
    generator = random.Random(seed)
    least = generator.randint(1, 4)
    most = generator.randint(least, 6)
    states = [fresh(least, most)]
    agents: dict[str, tuple[Joining, int]] = {}
    rosters: dict[int, tuple[str, ...]] = {}
    finished: dict[tuple[int, int], str] = {}
    left: dict[str, int] = {}
    now = 0.0
    for step in range(3_000):
        now += generator.random() * 3
        kind = generator.random()
        if kind < 0.05 and len(agents) < most + 3:
            agents[f"agent {step}"] = (
                Joining(f"agent {step}", least, most, TIMEOUT, now),
                len(states) - 1,
            )
        elif kind < 0.08 and agents:
            agents.pop(generator.choice(list(agents)))
        elif agents:
            name = generator.choice(list(agents))
            agent, seen = agents[name]
            # Views only go forward, and lag as they like.
            seen = generator.randint(seen, len(states) - 1)
            agents[name] = (agent, seen)
            decision = agent.decide(states[seen], set(agents), now)
            if isinstance(decision, StateWrite) and seen == len(states) - 1:
                states.append(decision.state)
                check(decision.state)
            elif isinstance(decision, Finish):
                number = decision.state.round
                assert rosters.setdefault(number, decision.state.roster) == decision.state.roster
                assert finished.setdefault((number, decision.rank), name) == name
                assert left.get(name, -1) < number
                left[name] = number
                agents[name] = (
                    Joining(name, least, most, TIMEOUT, now, left=RoundId("life", number)),
                    seen,
                )
            elif isinstance(decision, Fail):
                assert decision.kind == "timeout"
                agents[name] = (Joining(name, least, most, TIMEOUT, now), seen)
    assert len(rosters) > 3
    for number, roster in rosters.items():
        assert least <= len(roster) <= most
        assert {rank for round_, rank in finished if round_ == number} <= set(range(len(roster)))
