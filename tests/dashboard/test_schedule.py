"""When a dashboard asks: only while a page is open, once at a time, and as often for many pages as
for one.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.dashboard.schedule import ACTOR, LONGEST_REST, MOST_ACTORS, SamplingSchedule, is_topic


def questions(pages: int, seconds: int) -> int:
    """How often the cluster is asked while so many pages are open."""
    schedule = SamplingSchedule()
    for _ in range(pages):
        assert schedule.want("cluster", 0.0)
    asked = 0
    for tick in range(seconds * 10):
        for topic in schedule.begin(tick / 10):
            asked += 1
            schedule.finished(topic, tick / 10)
    return asked


def test_fifty_pages_ask_as_often_as_one() -> None:
    assert questions(1, 30) == questions(50, 30) == 30
    assert questions(0, 30) == 0


def test_nothing_is_asked_once_the_last_page_is_closed() -> None:
    schedule = SamplingSchedule()
    schedule.want("tree", 0.0)
    schedule.want("tree", 0.0)
    assert schedule.begin(0.0) == ["tree"]
    schedule.finished("tree", 0.1)
    schedule.unwant("tree")
    assert schedule.begin(10.0) == ["tree"]
    schedule.unwant("tree")
    schedule.finished("tree", 10.1)
    assert (schedule.begin(20.0), schedule.next_at()) == ([], float("inf"))


def test_a_page_that_comes_while_an_answer_is_awaited_does_not_ask_beside_it() -> None:
    schedule = SamplingSchedule()
    schedule.want("calls", 0.0)
    assert schedule.begin(0.0) == ["calls"]
    schedule.unwant("calls")
    schedule.want("calls", 0.5)
    assert schedule.begin(9.0) == []
    schedule.finished("calls", 9.0)
    assert schedule.begin(9.0 + LONGEST_REST) == ["calls"]


def test_a_cluster_that_answers_late_is_asked_less_often() -> None:
    schedule = SamplingSchedule()
    schedule.want("cluster", 0.0)
    schedule.begin(0.0)
    schedule.finished("cluster", 2.0)
    assert schedule.next_at() == 3.0
    schedule.begin(3.0)
    schedule.finished("cluster", 60.0)
    assert schedule.next_at() == 60.0 + LONGEST_REST


def test_the_number_of_actors_that_are_looked_at_is_bounded() -> None:
    schedule = SamplingSchedule()
    names = [f"{ACTOR}{number}" for number in range(MOST_ACTORS)]
    assert all(schedule.want(name, 0.0) for name in names)
    assert not schedule.want(f"{ACTOR}one more", 0.0)
    assert schedule.want(names[0], 0.0), "another page may look at the same actor"
    schedule.unwant(names[1])
    assert schedule.want(f"{ACTOR}one more", 0.0)


def test_only_topics_that_there_are_can_be_asked_for() -> None:
    assert is_topic("cluster")
    assert is_topic("actor/shop/a")
    for wrong in ("", "actor/", "_cluster", "heard", "__init__", "actor/" + "x" * 1000):
        assert not is_topic(wrong)


class Pages(RuleBasedStateMachine):
    """Pages come, go, and are answered in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = SamplingSchedule()
        self.now = 0.0
        self.open: list[str] = []
        self.asked: list[str] = []

    @rule(topic=st.sampled_from(["cluster", "tree", *(f"{ACTOR}{n}" for n in range(20))]))
    def opened(self, topic: str) -> None:
        if self.schedule.want(topic, self.now):
            self.open.append(topic)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def closed(self, data: st.DataObject) -> None:
        self.schedule.unwant(self.open.pop(data.draw(st.integers(0, len(self.open) - 1))))

    @rule(seconds=st.floats(0, 10))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        found = self.schedule.begin(self.now)
        assert set(found) <= set(self.open)
        assert not set(found) & set(self.asked), "once at a time"
        self.asked += found

    @precondition(lambda self: self.asked)
    @rule()
    def answered(self) -> None:
        self.schedule.finished(self.asked.pop(0), self.now)

    @invariant()
    def holds(self) -> None:
        self.schedule.check_invariants()
        assert set(self.schedule.wanted) == set(self.open)


TestPages = Pages.TestCase
