"""When a connection is made anew because of the certificate at its other end."""

from __future__ import annotations

import ssl
import time
from typing import cast

import attrs
import pytest

from runtime.environment import SystemEnvironment
from runtime.links.credentials import CLOCK_SECONDS, Validity
from runtime.timings import Timings

DAY = 86400.0
ENDS = ssl.cert_time_to_seconds("Nov 23 12:00:00 2026 GMT")
TIMES = Timings(trust_checked=10.0, connection_age=DAY)


@attrs.define
class Clock:
    """The environment of one connection, and the count of changes to the files."""

    at: float = 1000.0
    wall: float = ENDS - 10 * DAY
    chance: float = 0.5
    timings: Timings = TIMES
    count: int = 0

    def now(self) -> float:
        return self.at

    def wall_time(self) -> float:
        return self.wall

    def random(self) -> float:
        return self.chance

    def changes(self) -> int:
        return self.count

    def validity(self) -> Validity:
        made = Validity(self.changes, self.count, cast("SystemEnvironment", self))
        made.on_shown(cast("ssl.SSLObject", Shown()))
        return made


class Shown:
    def getpeercert(self) -> dict[str, str]:
        return {"notAfter": "Nov 23 12:00:00 2026 GMT"}


def test_a_connection_stands_until_the_certificate_ends_by_the_clock_of_this_machine() -> None:
    clock = Clock()
    validity = clock.validity()
    assert not validity.lapsed()
    clock.wall = ENDS + CLOCK_SECONDS
    assert not validity.lapsed(), "OpenSSL would accept it: it would be made anew over and over"
    clock.wall += 0.01
    assert "expired" in validity.lapsed()


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.99])
def test_a_change_of_the_files_counts_within_ten_seconds(chance: float) -> None:
    clock = Clock(chance=chance)
    validity = clock.validity()
    clock.count += 1
    first = validity.lapsed()
    assert bool(first) == (chance == 0.0)
    # Another change does not put it off.
    clock.count += 1
    clock.at += TIMES.trust_checked * chance - 0.01 if chance else 0.0
    assert bool(validity.lapsed()) == (chance == 0.0)
    clock.at += 0.02
    assert "have changed" in validity.lapsed()


def test_a_change_before_the_handshake_says_nothing() -> None:
    clock = Clock(count=3)
    validity = clock.validity()
    clock.at += 100.0
    assert not validity.lapsed()


@pytest.mark.parametrize("chance", [0.0, 0.99])
def test_it_is_made_anew_after_half_a_day_to_a_day_in_any_case(chance: float) -> None:
    clock = Clock(chance=chance)
    validity = clock.validity()
    clock.at += DAY / 2 - 1
    assert not validity.lapsed()
    clock.at += DAY / 2 + 2
    assert "old" in validity.lapsed()


def test_the_dates_are_those_of_the_system() -> None:
    assert SystemEnvironment().wall_time() == pytest.approx(time.time(), abs=60)
