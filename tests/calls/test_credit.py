"""The two ends of a stream's credit, joined by queues that deliver when they please."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import ProtocolError
from runtime.calls.flow_control import MOST_BYTES, MOST_ITEMS, ReadingWindow, SendingWindow
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(SendingWindow, ReadingWindow)


SIZES = st.one_of(
    st.integers(0, 100),
    st.sampled_from(
        [
            MOST_BYTES // 2 - 1,
            MOST_BYTES // 2,
            MOST_BYTES // 2 + 1,
            MOST_BYTES - 1,
            MOST_BYTES,
            3 * MOST_BYTES,
        ]
    ),
    st.integers(0, MOST_BYTES),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "item", "consume", "credit"]), SIZES), max_size=300
)


class Pair:
    """A producer that sends whenever it may, and a reader that says what it must; what each has
    sent is on its way until delivered.
    """

    def __init__(self) -> None:
        self.sending = SendingWindow()
        self.reading = ReadingWindow()
        self.items: deque[int] = deque()
        self.credits: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.unacknowledged: deque[int] = deque()
        self.told = 0

    def send(self, size: int) -> None:
        if self.sending.open:
            # Before it, there was room: the last item alone may be more than the window.
            assert len(self.unacknowledged) < MOST_ITEMS
            assert sum(self.unacknowledged) < MOST_BYTES
            self.sending.send(size)
            self.unacknowledged.append(size)
            self.items.append(size)

    def item(self) -> None:
        if self.items:
            size = self.items.popleft()
            self.reading.arrive(size)
            self.waiting.append(size)

    def consume(self) -> None:
        if self.waiting:
            self.waiting.popleft()
            if self.reading.consume():
                self.credits.append(self.reading.grant())

    def credit(self) -> None:
        if self.credits:
            consumed = self.credits.popleft()
            self.sending.grant(consumed)
            for _ in range(consumed - self.told):
                self.unacknowledged.popleft()
            self.told = consumed


@given(STEPS)
def test_whatever_is_late_the_window_is_kept_and_everything_read_opens_it_again(
    steps: list[tuple[str, int]],
) -> None:
    pair = Pair()
    for step, size in steps:
        pair.send(size) if step == "send" else getattr(pair, step)()
    while pair.items or pair.waiting or pair.credits:
        pair.item()
        pair.consume()
        pair.credit()
    assert pair.sending.open
    assert pair.reading.consumed == pair.sending.sent


@given(st.lists(SIZES, min_size=1, max_size=100))
def test_a_reader_that_consumes_nothing_holds_one_window_and_never_more_than_one_item_over_it(
    sizes: list[int],
) -> None:
    pair = Pair()
    for size in sizes:
        pair.send(size)
        pair.item()
    assert len(pair.waiting) <= MOST_ITEMS
    assert sum(list(pair.waiting)[:-1]) < MOST_BYTES


@given(st.lists(SIZES, min_size=1, max_size=100), st.data())
def test_an_item_without_credit_is_a_breach_however_the_window_was_filled(
    sizes: list[int], data: st.DataObject
) -> None:
    pair = Pair()
    for size in sizes:
        pair.send(size)
        pair.item()
        if data.draw(st.booleans()):
            pair.consume()
    # The reader knows only what it has granted: so all of its credit is used up.
    while pair.sending.open or pair.credits:
        pair.credit()
        pair.send(1)
        pair.item()
    with pytest.raises(ProtocolError, match="without credit"):
        pair.reading.arrive(1)


@pytest.mark.parametrize("consumed", [-1, 4, 1, True, None, 2.0, "3"])
def test_credit_for_what_was_never_sent_or_that_goes_back_is_a_breach(consumed: object) -> None:
    window = SendingWindow()
    for _ in range(3):
        window.send(1)
    window.grant(2)
    with pytest.raises(ProtocolError, match="2 to 3 were possible"):
        window.grant(consumed)


def test_saying_a_credit_twice_does_no_harm() -> None:
    window = SendingWindow()
    for _ in range(MOST_ITEMS):
        window.send(1)
    assert not window.open
    window.grant(1)
    window.grant(1)
    assert window.open
    window.send(1)
    assert not window.open


def test_a_single_item_of_any_size_may_always_be_sent() -> None:
    window = SendingWindow()
    for number in range(3):
        window.send(1000 * MOST_BYTES)
        assert not window.open
        window.grant(number + 1)
        assert window.open


def test_sending_without_credit_is_a_mistake_of_ours() -> None:
    window = SendingWindow()
    window.send(MOST_BYTES)
    with pytest.raises(ValueError, match="wait for credit"):
        window.send(1)
