"""The decisions of a map: every rule alone, and all together under seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import (
    EncodeError,
    NodeDiedError,
    NotAllowedError,
    NotExecutedError,
    OutcomeUnknownError,
    PoisonedItemError,
)
from runtime.hosting.running_batch import NOT_STARTED, RAISED, RETURNED
from runtime.pools.batch_sizes import BATCH_SECONDS, Batch, KnownPace
from runtime.pools.held_items import MapItem
from runtime.pools.map_schedule import (
    LEAST_WINDOW,
    MOST_REFUSALS,
    MapSchedule,
)
from runtime.pools.waiting_items import LOOK_AHEAD, PLACE_SECONDS
from tests.pools.schedule_world import World


def filled(count: int, *, members: int = 1, **options: object) -> MapSchedule:
    """A schedule with so many items, and a source that has ended."""
    schedule = MapSchedule(**options)  # type: ignore[arg-type]
    for number in range(members):
        schedule.on_member(f"member-{number}")
    for index in range(count):
        schedule.on_item((index,))
    schedule.on_source_over()
    return schedule


def taken(schedule: MapSchedule, member: str = "member-0", now: float = 0.0) -> Batch:
    batch = schedule.take(member, now)
    assert batch is not None
    return batch


def indices(batch: Batch) -> list[int]:
    return [item.index for item in batch.items]


def answer(schedule: MapSchedule, batch: Batch, seconds: float = 0.0) -> None:
    schedule.on_done(batch, [(RETURNED, item.index) for item in batch.items], seconds, 1.0)


def results(schedule: MapSchedule) -> list[MapItem]:
    found = []
    while (result := schedule.held.next_result()) is not None:
        found.append(result)
    return found


@pytest.mark.parametrize("why", ["not allowed", "not sendable"])
def test_few_items_that_are_refused_are_found_in_few_batches(why: str) -> None:
    refused = {7, 200, 201, 511}
    schedule = filled(512, batch=512, window=512, max_retries=3)
    batches = 0
    while not schedule.is_done:
        batch = taken(schedule)
        batches += 1
        if not refused & {*indices(batch)}:
            answer(schedule, batch)
        elif why == "not allowed":
            schedule.on_refused(batch, NotAllowedError("not these"), gone=False)
        else:
            schedule.on_unsendable(batch, EncodeError("a socket", path="items"))
        schedule.check_invariants()
    # Each is found by halves; the others of its batch do not travel one by one.
    assert batches < 2 * len(refused) * 10
    ended = results(schedule)
    assert [item.index for item in ended] == list(range(512))
    assert {item.index for item in ended if item.error is not None} == refused
    assert schedule.counts(1.0).repeated == 0, "none of them has run"


@given(
    seed=st.integers(0, 2**32),
    ordered=st.booleans(),
    repeats=st.booleans(),
    window=st.sampled_from([None, 1, 3, 40]),
    batch=st.sampled_from([None, 1, 5]),
    poison=st.frozensets(st.integers(0, 59), max_size=2),
    raises=st.frozensets(st.integers(0, 59), max_size=3),
)
def test_whatever_happens_each_item_ends_once_and_runs_no_more_often_than_allowed(
    seed: int,
    ordered: bool,
    repeats: bool,
    window: int | None,
    batch: int | None,
    poison: frozenset[int],
    raises: frozenset[int],
) -> None:
    world = World(
        seed,
        ordered=ordered,
        repeats=repeats,
        window=window,
        batch=batch,
        poison=poison,
        raises=raises - poison,
    )
    world.run()
    world.judge()


def test_tiny_items_travel_together_and_large_ones_alone() -> None:
    tiny = filled(500)
    answer(tiny, taken(tiny), 0.000_01)
    assert len(taken(tiny).items) > 1
    large = filled(500)
    answer(large, taken(large), 2 * BATCH_SECONDS)
    assert len(taken(large).items) == 1


def test_the_first_batch_of_a_member_is_one_item_and_later_ones_grow_by_steps() -> None:
    schedule = filled(5000)
    sizes = []
    for _ in range(4):
        batch = taken(schedule)
        sizes.append(len(batch.items))
        answer(schedule, batch, 1e-6 * len(batch.items))
    assert sizes == [1, 4, 16, 64]


def test_items_of_many_bytes_do_not_fill_a_frame() -> None:
    schedule = MapSchedule(batch=100)
    schedule.on_member("member-0")
    for index in range(10):
        schedule.on_item((index,), 400_000)
    assert indices(taken(schedule)) == [0, 1]


def test_results_of_many_bytes_make_small_batches() -> None:
    schedule = filled(2000)
    for _ in range(3):
        batch = taken(schedule)
        outcomes = [(RETURNED, item.index) for item in batch.items]
        schedule.on_done(batch, outcomes, 1e-6, 1.0, 500_000 * len(outcomes))
    assert len(taken(schedule).items) == 2


def test_towards_the_end_batches_become_small_so_that_all_end_together() -> None:
    schedule = filled(40, members=4)
    for number in range(4):
        answer(schedule, taken(schedule, f"member-{number}"), 1e-6)
    assert len(taken(schedule, "member-0").items) <= 5


def test_a_member_that_is_slow_gets_one_batch_and_a_fast_one_the_next_while_it_runs_one() -> None:
    schedule = filled(100)
    answer(schedule, taken(schedule), 0.001)
    first = taken(schedule)
    assert taken(schedule) is not first
    assert schedule.take("member-0", 0.0) is None
    slow = filled(100)
    answer(slow, taken(slow), 1.0)
    taken(slow)
    assert slow.take("member-0", 0.0) is None


def test_what_waits_behind_a_slow_item_is_recalled_when_another_member_is_idle() -> None:
    schedule = filled(10, members=2, batch=5)
    answer(schedule, taken(schedule, "member-1"), 0.001)
    stuck = taken(schedule, "member-0", 1.0)
    assert schedule.take("member-1", 1.0) is None
    assert schedule.recalls(1.01) == []
    assert schedule.recalls(1.2) == [stuck]
    assert schedule.recalls(1.3) == [], "once"
    schedule.on_recalled(stuck, 1)
    assert indices(taken(schedule, "member-1", 1.3)) == [6, 7, 8, 9]
    schedule.on_done(stuck, [(RETURNED, 25), *[(NOT_STARTED, None)] * 4], 0.3, 1.4)
    schedule.check_invariants()


def test_the_last_items_follow_in_the_members_that_are_the_next_to_be_idle() -> None:
    """Items as long as a batch: a member that asked for its last one first when it was idle would
    wait for it.
    """
    schedule = filled(5, members=3)
    began = {"member-0": 0.0, "member-1": 0.01, "member-2": 0.02}
    for member in began:
        answer(schedule, taken(schedule, member), 0.05)
    for member in ("member-0", "member-1"):
        taken(schedule, member, 2.0 + began[member])
    assert not schedule.has_work, "two items, and each has one"
    schedule = filled(7, members=3)
    for member in began:
        answer(schedule, taken(schedule, member), 0.05)
    for member, now in began.items():
        taken(schedule, member, 2.0 + now)
    assert schedule.take("member-2", 2.02) is None, "two others are idle before it"
    assert schedule.take("member-1", 2.02) is None, "one item, and one other is idle before it"
    assert indices(taken(schedule, "member-0", 2.02)) == [6]


def test_an_item_behind_one_that_takes_longer_than_it_should_goes_to_who_is_idle() -> None:
    schedule = filled(5, members=2)
    for number in (0, 1):
        answer(schedule, taken(schedule, f"member-{number}"), 0.05)
    first, other = taken(schedule, "member-0", 2.0), taken(schedule, "member-1", 2.01)
    behind = taken(schedule, "member-0", 2.01)
    schedule.on_done(other, [(RETURNED, 9)], 0.01, 2.02)
    assert schedule.recalls(2.04) == [], "it is about to be done"
    assert schedule.recalls(2.06) == [behind]
    schedule.on_recalled(behind, 0)
    assert indices(taken(schedule, "member-1", 2.06)) == [4]
    schedule.on_done(first, [(RETURNED, 9)], 0.1, 2.1)
    schedule.check_invariants()


def test_what_items_took_in_the_map_before_lets_the_second_follow_the_first() -> None:
    known = KnownPace()
    schedule = filled(9, members=2, known=known)
    taken(schedule)
    assert schedule.take("member-0", 0.0) is None, "nobody knows how long it takes"
    answer(schedule, taken(schedule, "member-1"), 0.03)
    assert len(taken(schedule).items) == 1, "the other one has told"
    for seconds, batches in ((0.03, 2), (3.0, 1)):
        known.seconds = seconds
        again = filled(9, members=2, known=known)
        found = [again.take("member-0", 0.0) for _ in range(3)]
        assert [len(batch.items) for batch in found if batch is not None] == [1] * batches


def test_nothing_is_recalled_while_all_members_work() -> None:
    schedule = filled(10, members=2, batch=5)
    taken(schedule, "member-0")
    taken(schedule, "member-1")
    assert schedule.recalls(100.0) == []


def test_results_come_in_the_order_of_the_items_or_as_they_are_there() -> None:
    for ordered, expected in ((True, [0, 1, 2]), (False, [1, 2, 0])):
        schedule = filled(3, members=3, ordered=ordered)
        batches = [taken(schedule, f"member-{number}") for number in range(3)]
        for number in (1, 2, 0):
            answer(schedule, batches[number])
        assert [result.index for result in results(schedule)] == expected
        assert schedule.is_over


def test_the_window_bounds_what_was_taken_and_not_given() -> None:
    schedule = MapSchedule(window=3)
    schedule.on_member("member-0")
    for index in range(3):
        assert schedule.wants_items
        schedule.on_item((index,))
    assert not schedule.wants_items
    answer(schedule, taken(schedule))
    assert not schedule.wants_items, "its result was not given yet"
    assert len(results(schedule)) == 1
    assert schedule.wants_items


def test_the_automatic_window_is_bounded_by_bytes_as_well() -> None:
    schedule = MapSchedule()
    for index in range(LEAST_WINDOW):
        if not schedule.wants_items:
            break
        schedule.on_item((index,), 16 * 1024 * 1024)
    assert index == 4


def test_what_may_have_run_is_not_repeated_without_leave() -> None:
    schedule = filled(2, batch=2)
    schedule.on_lost(taken(schedule), NodeDiedError("gone", node="n"), gone=True)
    first, second = results(schedule)
    assert isinstance(first.error, NodeDiedError)
    assert first.error is not second.error
    assert "item 0 may have run" in str(first.error)
    assert "idempotent" in str(first.error)
    assert schedule.counts(1.0).failed == 2


def test_what_may_have_run_is_repeated_with_leave_and_alone() -> None:
    schedule = filled(3, batch=3, repeats=True)
    schedule.on_lost(taken(schedule), NodeDiedError("gone"), gone=True)
    schedule.on_member("member-1")
    assert indices(taken(schedule, "member-1")) == [0]


def test_an_item_that_ends_three_members_is_given_up_with_how_each_of_them_ended() -> None:
    schedule = filled(1, repeats=True)
    for number in range(3):
        schedule.on_member(f"member-{number}")
        batch = taken(schedule, f"member-{number}")
        schedule.on_lost(batch, NodeDiedError(f"death {number}"), gone=True)
    (result,) = results(schedule)
    assert isinstance(result.error, PoisonedItemError)
    assert result.error.deaths == ("death 0", "death 1", "death 2")
    assert result.error.attempts == 3


def test_batches_behind_the_one_that_ended_a_member_count_no_death() -> None:
    schedule = filled(40, repeats=True, batch=4)
    for number in range(4):
        member = f"member-{number}"
        schedule.on_member(member)
        answer(schedule, taken(schedule, member), 1e-6)
        first, behind = taken(schedule, member), taken(schedule, member)
        schedule.on_lost(first, NodeDiedError("gone"), gone=True)
        schedule.on_lost(behind, NodeDiedError("gone"), gone=True)
        assert all(len(item.deaths) == 0 for item in behind.items if not item.alone)
        schedule.check_invariants()


def test_an_item_in_a_call_of_its_own_is_not_sent_behind_another() -> None:
    """It could not be recalled from there, and its time would run out."""
    schedule = filled(40, alone=True)
    answer(schedule, taken(schedule), 1e-6)
    batch = taken(schedule)
    assert schedule.take("member-0", 1.0) is None
    assert not schedule.has_capacity
    answer(schedule, batch, 1e-6)
    assert indices(taken(schedule)) == [2]


def test_a_reference_is_sent_neither_behind_another_item_nor_before_one() -> None:
    schedule = MapSchedule(ordered=False, batch=1)
    schedule.on_member("member-0")
    for index in range(40):
        schedule.on_item((index,), alone=index == 2)
    answer(schedule, taken(schedule), 1e-6)
    before = taken(schedule)
    assert schedule.take("member-0", 1.0) is None
    answer(schedule, before, 1e-6)
    reference = taken(schedule)
    assert indices(reference) == [2]
    assert schedule.take("member-0", 1.0) is None
    answer(schedule, reference, 1e-6)
    assert indices(taken(schedule)) == [3]
    assert indices(taken(schedule)) == [4], "others are"


def test_what_certainly_did_not_run_is_run_again_by_itself() -> None:
    schedule = filled(2, batch=2)
    schedule.on_refused(taken(schedule), NotExecutedError("gone"), gone=True)
    assert schedule.known() == []
    schedule.on_member("member-1")
    again = taken(schedule, "member-1")
    assert indices(again) == [0, 1]
    answer(schedule, again)
    assert schedule.counts(1.0).repeated == 0


def test_an_item_that_members_keep_refusing_is_given_up_and_the_others_are_not() -> None:
    schedule = filled(3, batch=3)
    error = NotExecutedError("cannot read it")
    refusals = 0
    while not schedule.is_done:
        batch = taken(schedule)
        if 1 in indices(batch):
            refusals += 1
            schedule.on_refused(batch, error, gone=False)
        else:
            answer(schedule, batch)
    assert [result.error for result in results(schedule)] == [None, error, None]
    assert refusals == MOST_REFUSALS + 1


def test_an_item_that_cannot_be_sent_is_named_and_the_others_are_unharmed() -> None:
    schedule = filled(3, batch=3)
    while not schedule.is_done:
        batch = taken(schedule)
        if 1 in indices(batch):
            schedule.on_unsendable(batch, EncodeError("a socket", path="items"))
        else:
            answer(schedule, batch)
    found = results(schedule)
    assert [result.error is None for result in found] == [True, False, True]
    assert str(found[1].error) == "item 1 cannot be sent: a socket"


def test_what_an_item_raises_is_its_own_and_retried_if_the_policy_says_so() -> None:
    schedule = filled(
        1,
        max_retries=2,
        is_retried=lambda error: isinstance(error, ValueError),
        delay=lambda attempt: 1.0,
    )
    raised = ValueError("no")
    for attempt in range(3):
        batch = taken(schedule, now=2.0 * attempt)
        schedule.on_done(batch, [(RAISED, raised)], 0.1, 2.0 * attempt)
        if attempt < 2:
            assert schedule.next_retry() == 2.0 * attempt + 1.0
            assert schedule.take("member-0", 2.0 * attempt + 0.5) is None
    assert [result.error for result in results(schedule)] == [raised]
    assert schedule.counts(9.0).repeated == 2


def test_a_drained_member_finishes_and_is_forgotten() -> None:
    schedule = filled(5)
    batch = taken(schedule)
    schedule.on_drained("member-0")
    assert schedule.take("member-0", 0.0) is None
    answer(schedule, batch)
    assert schedule.known() == []


def test_a_member_that_comes_back_takes_items_again_while_it_still_has_some() -> None:
    schedule = filled(8, members=1, batch=2)
    held = taken(schedule, "member-0", 0.0)
    schedule.on_drained("member-0")
    schedule.on_member("member-0")
    answer(schedule, held)
    assert indices(taken(schedule)) == [2, 3]


@pytest.mark.parametrize("sent", [False, True])
def test_what_is_taken_back_is_run_by_another_member_and_its_late_answer_is_ignored(
    sent: bool,
) -> None:
    schedule = filled(3, members=2, batch=3)
    lost = taken(schedule, "member-0", 0.0)
    schedule.on_drained("member-0")
    schedule.on_taken_back(lost, sent=sent)
    assert schedule.known() == ["member-1"]
    again = taken(schedule, "member-1", 0.1)
    assert indices(again) == [0, 1, 2]
    assert schedule.counts(0.1).repeated == (3 if sent else 0), "what was not sent is not repeated"
    schedule.on_done(lost, [(RETURNED, "late")] * 3, 0.01, 0.2)
    schedule.on_done(again, [(RETURNED, "in time")] * 3, 0.01, 0.3)
    assert {item.value for item in results(schedule)} == {"in time"}


def test_what_was_sent_is_taken_back_only_with_leave_and_after_a_while_for_who_is_idle() -> None:
    def may(schedule: MapSchedule, *, sent: bool = True, seconds: float = 6.0) -> bool:
        return schedule.may_take_back(sent=sent, seconds=seconds, patience=5.0)

    for repeats in (False, True):
        schedule = filled(2, members=2, batch=1, repeats=repeats)
        taken(schedule)
        assert not may(schedule), "an item waits for the member that is idle"
        assert may(schedule, sent=False)
        other = taken(schedule, "member-1", 0.0)
        assert not may(schedule), "no member is idle"
        answer(schedule, other)
        assert may(schedule) == repeats
        assert not may(schedule, seconds=4.0)
        assert may(schedule, sent=False, seconds=0.1)


def test_a_member_that_leaves_an_item_out_of_its_answer_may_have_run_it() -> None:
    schedule = filled(2, batch=2)
    schedule.on_done(taken(schedule), [(RETURNED, 0)], 0.1, 1.0)
    assert isinstance(results(schedule)[1].error, OutcomeUnknownError)


def test_the_error_of_the_source_comes_after_the_results() -> None:
    schedule = MapSchedule()
    schedule.on_member("member-0")
    schedule.on_item((1,))
    schedule.on_source_over(RuntimeError("dry"))
    assert not schedule.is_over
    answer(schedule, taken(schedule))
    assert len(results(schedule)) == 1
    assert schedule.is_over
    assert isinstance(schedule.source_error, RuntimeError)


def test_counts_say_how_far_it_has_come_and_how_long_it_will_take() -> None:
    schedule = MapSchedule(batch=2, total=8)
    schedule.on_member("member-0")
    for index in range(4):
        schedule.on_item((index,))
    batch = taken(schedule)
    counts = schedule.counts(0.0)
    assert (counts.done, counts.running, counts.waiting, counts.total) == (0, 2, 2, 8)
    assert counts.seconds_left is None
    answer(schedule, batch)
    counts = schedule.counts(2.0)
    assert (counts.done, counts.rate, counts.seconds_left) == (2, 1.0, 6.0)


@pytest.mark.parametrize("total", [0, 1])
def test_a_map_of_nothing_is_over_when_its_source_is(total: int) -> None:
    schedule = filled(total)
    assert schedule.is_over is (total == 0)


def placed(*places: str, members: dict[str, str]) -> MapSchedule:
    """Items with these places, and members with theirs."""
    schedule = MapSchedule(ordered=False, batch=1)
    for member, place in members.items():
        schedule.on_member(member, place)
    for index, place in enumerate(places):
        schedule.on_item((index,), place=place, alone=bool(place))
    return schedule


def test_an_item_runs_where_its_value_is_if_a_member_is_there() -> None:
    schedule = placed("b", "a", "", "c", members={"a-1": "a", "b-1": "b"})
    assert indices(taken(schedule, "a-1")) == [1]
    assert indices(taken(schedule, "b-1")) == [0]
    schedule.on_member("b-2", "b")
    assert indices(taken(schedule, "b-2")) == [2], "what is nowhere, it takes like anyone"
    schedule.on_member("b-3", "b")
    assert indices(taken(schedule, "b-3")) == [3], "no member is where that is"


def test_a_member_without_local_items_takes_others_after_a_moment() -> None:
    schedule = placed("a", "a", "a", members={"a-1": "a", "b-1": "b"})
    assert schedule.take("b-1", 1.0) is None
    assert schedule.has_work
    assert schedule.take("b-1", 1.0 + 0.9 * PLACE_SECONDS) is None
    late = 1.0 + 1.1 * PLACE_SECONDS
    assert indices(taken(schedule, "b-1", late)) == [0]
    assert indices(taken(schedule, "a-1", late)) == [1], "which begins it anew"
    schedule.on_member("b-2", "b")
    assert schedule.take("b-2", late) is None
    schedule.on_drained("a-1")
    assert indices(taken(schedule, "b-2", late)) == [2], "that member takes no more"


def test_local_items_pass_over_others_so_often_and_no_oftener() -> None:
    schedule = placed("", *["a"] * 200, members={"a-1": "a"})
    found: list[int] = []
    for _ in range(LOOK_AHEAD + 1):
        batch = taken(schedule, "a-1")
        found += indices(batch)
        answer(schedule, batch)
        schedule.check_invariants()
    assert found == [*range(1, LOOK_AHEAD + 1), 0]


@given(st.integers(0, 2**32))
def test_items_in_calls_of_their_own_end_as_others_do(seed: int) -> None:
    world = World(seed, alone=True, repeats=bool(seed % 2))
    world.run()
    world.judge()


@given(st.integers(0, 2**32))
def test_places_change_no_outcome_of_items(seed: int) -> None:
    world = World(seed, places=("", "a", "b"), repeats=bool(seed % 2))
    world.run()
    world.judge()
