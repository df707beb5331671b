"""How often is too often: a window over the times of restarts."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from actors.restart_intensity import RestartIntensity


def test_the_window_moves_with_the_restarts_and_is_not_reset() -> None:
    intensity = RestartIntensity(2, 5.0)
    assert [intensity.allows(now) for now in (0.0, 4.0, 5.1, 9.1, 10.2, 14.0)] == [
        True,
        True,
        True,
        True,
        True,
        False,
    ]


def test_a_restart_exactly_one_period_ago_still_counts() -> None:
    intensity = RestartIntensity(1, 5.0)
    assert intensity.allows(1.0)
    assert not intensity.allows(6.0)


def test_no_restart_is_allowed_with_an_intensity_of_zero() -> None:
    assert not RestartIntensity(0, 5.0).allows(0.0)


def test_an_infinite_period_never_forgets() -> None:
    intensity = RestartIntensity(1, math.inf)
    assert intensity.allows(0.0)
    assert not intensity.allows(1e300)
    assert intensity.recent(1e308) == 2


def test_recent_restarts_are_those_within_the_period() -> None:
    intensity = RestartIntensity(5, 5.0)
    for now in (0.0, 1.0, 4.0):
        intensity.allows(now)
    assert [intensity.recent(now) for now in (4.0, 5.0, 5.5, 6.5, 9.0, 9.5)] == [3, 3, 2, 1, 1, 0]


def test_looking_at_the_intensity_changes_nothing() -> None:
    looked_at, left_alone = RestartIntensity(1, 5.0), RestartIntensity(1, 5.0)
    for intensity in (looked_at, left_alone):
        assert intensity.allows(0.0)
    assert looked_at.recent(6.0) == 0
    assert not left_alone.allows(4.0)
    assert not looked_at.allows(4.0)


def test_what_is_said_names_the_numbers_the_child_and_the_last_reason() -> None:
    text = RestartIntensity(3, 0.5).exceeded("worker", "raised: ValueError")
    assert (
        text == "more than 3 restarts within 0.5 s, the last of child 'worker': raised: ValueError"
    )


@given(
    st.integers(0, 4),
    st.integers(1, 10),
    st.lists(st.integers(0, 4), max_size=40),
    st.lists(st.integers(0, 20), max_size=40),
)
def test_it_says_what_counting_all_times_in_the_window_says(
    intensity: int, period: int, gaps: list[int], looks: list[int]
) -> None:
    machine, times, now = RestartIntensity(intensity, period), [], 0
    for gap, look in zip(gaps, [*looks, *[0] * len(gaps)], strict=False):
        now += gap
        times.append(now)
        assert machine.allows(now) == (sum(now - time <= period for time in times) <= intensity)
        assert machine.recent(now + look) == sum(now + look - time <= period for time in times)
