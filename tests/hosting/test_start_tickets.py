"""Starts can be taken back by their tickets while their answers may be under way."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.method import Address
from runtime.hosting import start_tickets
from runtime.hosting.start_tickets import KEPT_SECONDS, TICKETS_KEPT, StartTickets


def end(tickets: StartTickets, first: int, count: int) -> None:
    """So many starts end, with numbers from `first` as their tickets."""
    for number in range(first, first + count):
        with tickets.issued(f"{number}") as started:
            started.append(Address(f"actor-{number}", "here", 3, 3))


async def kept(tickets: StartTickets, first: int, count: int) -> int:
    """How many of these starts can be taken back. They are forgotten."""
    return sum([len(await tickets.take(f"{number}")) for number in range(first, first + count)])


async def test_all_starts_that_end_at_once_can_be_taken_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tickets, many = StartTickets(), 3 * TICKETS_KEPT
    end(tickets, 0, many)
    await trio.sleep(KEPT_SECONDS / 2)
    end(tickets, many, 10)
    assert await kept(tickets, 0, many + 10) == many + 10


async def test_of_those_that_ended_long_ago_the_latest_are_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tickets, many = StartTickets(), 3 * TICKETS_KEPT
    end(tickets, 0, many)
    await trio.sleep(2 * KEPT_SECONDS)
    end(tickets, many, 10)
    assert await kept(tickets, many, 10) == 10
    assert await kept(tickets, 0, many) == TICKETS_KEPT - 10


async def test_no_more_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_tickets, "MOST_TICKETS", 2 * TICKETS_KEPT)
    tickets, many = StartTickets(), 3 * TICKETS_KEPT
    end(tickets, 0, many)
    assert await kept(tickets, 0, many) == 2 * TICKETS_KEPT
