"""Settling, alone: two ends dial, offers cross, are late or lost, and both ends go on with one
session over one connection.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import ProtocolError
from runtime.links.settlement import Offer, Settlement, SettlementAnswer, SettlementAnswerKind


def pair() -> tuple[Settlement, Settlement]:
    return Settlement(3, leads=True), Settlement(8, leads=False)


def accept(dialer: Settlement, acceptor: Settlement, offer: Offer) -> None:
    assert acceptor.judge(offer) == SettlementAnswerKind.ACCEPTED
    assert dialer.on_answered(offer, acceptor.accept(offer, 0))


def test_a_first_contact_gives_each_end_the_number_of_the_others_link() -> None:
    one, other = pair()
    accept(one, other, one.dial(0))
    assert one.peer_number == 8
    assert other.peer_number == 3


def test_of_two_offers_that_cross_the_leading_ends_stands_and_the_other_is_given_up() -> None:
    leading, following = pair()
    ours, theirs = leading.dial(0), following.dial(0)
    assert leading.judge(theirs) == SettlementAnswerKind.CROSSED
    accept(leading, following, ours)
    assert not following.is_open(theirs)


def test_an_offer_that_comes_after_the_one_that_stands_ends_nothing() -> None:
    """What ended links of living nodes: the offer of the losing dial was long under way."""
    leading, following = pair()
    theirs = following.dial(0)
    accept(leading, following, leading.dial(0))
    assert not leading.is_superseded(theirs)
    assert leading.judge(theirs) == SettlementAnswerKind.STALE


def test_an_offer_whose_answer_was_lost_is_repeated_and_goes_on_with_the_same_session() -> None:
    one, other = pair()
    lost = one.dial(0)
    other.accept(lost, 0)
    one.give_up(lost)
    accept(one, other, one.dial(0))
    assert (one.peer_number, other.peer_number) == (8, 3)


def test_the_following_end_may_dial_while_the_leading_one_waits_for_its_answer() -> None:
    leading, following = pair()
    following.accept(leading.dial(0), 0)
    # The connection broke on the way back, and only the following end has noticed.
    accept(following, leading, following.dial(0))


def test_offers_of_one_end_that_overtake_each_other_are_accepted_once() -> None:
    one, other = pair()
    first = one.dial(0)
    accept(one, other, one.dial(0))
    assert other.judge(first) == SettlementAnswerKind.STALE


def test_an_end_that_was_begun_anew_is_met_as_a_new_one_and_the_earlier_ones_session_is_over() -> (
    None
):
    one, other = pair()
    accept(one, other, one.dial(0))
    again = Settlement(4, leads=True)
    assert other.is_superseded(again.dial(0))
    assert again.judge(other.dial(0)) == SettlementAnswerKind.FORGOTTEN
    assert Settlement(9, leads=False).judge(Offer(3, 8, 5, 0, 0)) == SettlementAnswerKind.FORGOTTEN


def test_a_late_offer_of_a_link_that_has_ended_does_not_disturb_its_successor() -> None:
    one, other = pair()
    late = one.dial(0)
    again = Settlement(4, leads=True)
    accept(again, other, again.dial(0))
    assert not other.is_superseded(late)
    assert other.judge(late) == SettlementAnswerKind.STALE


def test_what_no_honest_peer_says_breaks_the_protocol() -> None:
    one, other = pair()
    with pytest.raises(ProtocolError, match="never made here"):
        one.judge(Offer(8, 4, 1, 0, 0))
    accept(one, other, one.dial(0))
    offer = one.dial(0)
    with pytest.raises(ProtocolError, match="with its link 9"):
        one.on_answered(offer, SettlementAnswer(SettlementAnswerKind.ACCEPTED, 9, 0))


@attrs.define(eq=False)
class Line:
    """A connection: what is under way on it in each direction, in order, and which ends still have
    it.
    """

    dialer: int
    offer: Offer
    answer: SettlementAnswer | None = None
    offered: bool = False
    cut: bool = False


class World:
    """Two ends and the connections between them. Each end carries the session over one connection
    at most.
    """

    def __init__(self) -> None:
        self.ends = (Settlement(1, leads=True), Settlement(2, leads=False))
        self.dialled: list[Line | None] = [None, None]
        self.carries: list[Line | None] = [None, None]
        self.lines: list[Line] = []

    def dial(self, end: int) -> None:
        if self.carries[end] is None:
            self.dialled[end] = Line(end, self.ends[end].dial(0))
            self.lines.append(self.dialled[end])  # type: ignore[arg-type]

    def carry(self, end: int, line: Line) -> None:
        self.carries[end] = line
        self.dialled[end] = None

    def step(self, line: Line) -> None:
        """The next message on a connection arrives."""
        dialer, acceptor = line.dialer, 1 - line.dialer
        if not line.offered:
            line.offered = True
            here = self.ends[acceptor]
            assert not here.is_superseded(line.offer)
            kind = here.judge(line.offer)
            assert kind != SettlementAnswerKind.FORGOTTEN
            if kind == SettlementAnswerKind.ACCEPTED:
                line.answer = here.accept(line.offer, 0)
                self.carry(acceptor, line)
            else:
                line.answer = SettlementAnswer(kind)
        elif line.answer is not None:
            answer, line.answer = line.answer, None
            self.lines.remove(line)
            if (
                not line.cut
                and self.dialled[dialer] is line
                and self.ends[dialer].is_open(line.offer)
            ):
                self.dialled[dialer] = None
                if self.ends[dialer].on_answered(line.offer, answer):
                    self.carry(dialer, line)

    def lose(self, end: int) -> None:
        """An end notices that its connection, or its dial, is gone."""
        line = self.carries[end] or self.dialled[end]
        if line is not None:
            line.cut = True
            if self.dialled[end] is line:
                self.ends[end].give_up(line.offer)
                self.dialled[end] = None
            self.carries[end] = None


@settings(max_examples=max(150, settings().max_examples), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["dial", "step", "step", "step", "lose"]),
            st.integers(0, 1),
            st.integers(0, 20),
        ),
        max_size=80,
    )
)
def test_whatever_crosses_is_late_or_lost_both_ends_settle_on_one_connection_of_one_session(
    story: list[tuple[str, int, int]],
) -> None:
    world = World()
    for what, end, which in story:
        if what == "dial":
            world.dial(end)
        elif what == "lose":
            world.lose(end)
        elif world.lines:
            world.step(world.lines[which % len(world.lines)])
    # From here on nothing is lost: what is under way arrives, ends see that the other has dropped a
    # connection, and dial again.
    for _ in range(10):
        while world.lines:
            world.step(world.lines[0])
        for end in (0, 1):
            if world.carries[end] is not None and world.carries[1 - end] is not world.carries[end]:
                world.lose(end)
        if world.carries[0] is not None and world.carries[0] is world.carries[1]:
            break
        for end in (0, 1):
            world.lose(end) if world.dialled[end] is not None else None
            world.dial(end)
    assert world.carries[0] is not None
    assert world.carries[0] is world.carries[1]
    assert [end.peer_number for end in world.ends] == [2, 1]
