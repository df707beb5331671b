"""Histograms: what they count, and how near their quantiles are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.statistics.histograms import BOUNDS, Histogram, quantile


def test_a_duration_is_counted_in_the_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.0001, BOUNDS[-1], BOUNDS[-1] * 2):
        histogram.add(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-2:] == [1, 1]
    assert histogram.count == 5


@given(st.lists(st.floats(0, 20), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    estimate = quantile(histogram.counts, share)
    assert estimate is not None
    # The smallest of the values that at least this share does not exceed.
    ordered = sorted(values)
    true = next(v for n, v in enumerate(ordered, 1) if n >= share * len(ordered) - 1e-9)
    upper = next((bound for bound in BOUNDS if true <= bound), BOUNDS[-1])
    lower = max((bound for bound in BOUNDS if bound < true), default=0.0)
    assert min(lower, BOUNDS[-1]) <= estimate <= upper + 1e-12


def test_quantiles_of_many_durations_are_near() -> None:
    draw, histogram = random.Random(5), Histogram()
    values = sorted(draw.expovariate(1 / 0.004) for _ in range(20_000))
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.9, 0.99):
        estimate = quantile(histogram.counts, share)
        assert estimate is not None
        assert estimate == pytest.approx(values[int(share * len(values))], rel=0.4)


def test_the_difference_of_two_readings_is_the_window_between() -> None:
    histogram = Histogram()
    for _ in range(1000):
        histogram.add(0.2)
    before = list(histogram.counts)
    for _ in range(10):
        histogram.add(0.003)
    window = [late - early for late, early in zip(histogram.counts, before, strict=True)]
    found = quantile(window, 0.5)
    assert found is not None
    assert 0.0025 < found <= 0.005


def test_nothing_has_no_quantile() -> None:
    assert quantile(Histogram().counts, 0.5) is None
    assert Histogram().as_plain() is None


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="a share is between 0 and 1"):
        quantile([1], share)
