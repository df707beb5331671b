"""The session machine, alone: whatever is cut, every frame arrives once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import ProtocolError
from runtime.links.session import ACKNOWLEDGE_FRAMES, WINDOW_BYTES, Session
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(Session)


@given(st.data())
def test_frames_arrive_once_and_in_order_however_often_the_connection_is_cut(
    data: st.DataObject,
) -> None:
    sender, receiver = Session(), Session()
    arrived: list[bytes] = []
    posted = 0
    in_flight: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["post", "deliver", "acknowledge", "cut"]))
        if step == "post":
            posted += 1
            frame = b"%d" % posted
            sender.keep((frame,))
            in_flight.append(frame)
        elif step == "deliver" and in_flight:
            arrived.append(in_flight.pop(0))
            receiver.received += 1
            receiver.on_arrived(1, 1)
        elif step == "acknowledge":
            sender.acknowledge(receiver.acknowledgement())
        elif step == "cut":
            # What was on the way is lost; the resume sends what the receiver does not have.
            in_flight = [buffers[0] for buffers in sender.resume(receiver.acknowledgement())]  # type: ignore[misc]
    in_flight = [buffers[0] for buffers in sender.resume(receiver.acknowledgement())]  # type: ignore[misc]
    arrived.extend(in_flight)
    assert arrived == [b"%d" % number for number in range(1, posted + 1)]


def test_an_acknowledgement_of_what_was_never_sent_breaks_the_protocol() -> None:
    session = Session()
    session.keep((b"one",))
    with pytest.raises(ProtocolError):
        session.acknowledge(2)


def test_an_acknowledgement_that_goes_back_breaks_the_protocol() -> None:
    session = Session()
    session.keep((b"one",))
    session.keep((b"two",))
    session.acknowledge(2)
    with pytest.raises(ProtocolError):
        session.acknowledge(1)


def test_the_window_is_full_when_too_many_bytes_are_not_acknowledged_and_opens_again() -> None:
    session = Session()
    number = session.keep((bytes(WINDOW_BYTES),))
    assert not session.has_room
    session.acknowledge(number)
    assert session.has_room


def test_an_acknowledgement_is_due_after_many_frames_and_then_not_at_once_again() -> None:
    session = Session()
    due = [session.on_arrived(1, 10) for _ in range(ACKNOWLEDGE_FRAMES)]
    assert due == [False] * (ACKNOWLEDGE_FRAMES - 1) + [True]
    session.acknowledgement()
    assert not session.owes_acknowledgement
    assert not session.on_arrived(1, 10)
