"""Calls by method, from answers of nodes that come, go, and begin to count again."""

from __future__ import annotations

from typing import Any

from actors.errors import NotExecutedError
from actors.method import Address
from runtime.dashboard.call_view import MOST_METHODS, WINDOW_SECONDS, CallView
from runtime.statistics.call_statistics import CallStatistics

SHOP = Address("shop", "w1", 1, 1, "m:Shop")


def told(statistics: CallStatistics, measured: float) -> dict[str, Any]:
    """What a node answers."""
    return {"node": "w1", "measured": measured, **statistics.as_plain(1000)}


def test_rates_and_quantiles_are_of_the_window_and_outcomes_of_all_time() -> None:
    view, statistics = CallView(), CallStatistics()
    for _ in range(100):
        statistics.returned(SHOP, "sell", 5.0)
    rows, _ = view.observe({"w1": told(statistics, 0.0)}, {"w1": 1})
    row = rows["m:Shop\nsell"]
    assert (row["rate"], row["p50"], row["value"]) == (None, None, 100)
    for _ in range(20):
        statistics.returned(SHOP, "sell", 0.0002)
    statistics.failed(SHOP, "sell", NotExecutedError("full"), 0.0002)
    rows, _ = view.observe({"w1": told(statistics, 2.0)}, {"w1": 1})
    row = rows["m:Shop\nsell"]
    assert row["rate"] == 10.5
    assert row["p99"] <= 0.00025, "the slow calls were before"
    assert (row["value"], row["not_executed"], row["failed"]) == (120, 1, 1)
    assert row["reasons"] == {"NotExecutedError": 1}
    for turn in range(int(WINDOW_SECONDS) // 2):
        rows, _ = view.observe({"w1": told(statistics, 4.0 + 2 * turn)}, {"w1": 1})
    assert rows["m:Shop\nsell"]["rate"] == 0.0


def test_a_node_that_counts_anew_makes_no_rate_below_zero() -> None:
    view, before = CallView(), CallStatistics()
    for _ in range(100):
        before.returned(SHOP, "sell", 0.1)
    view.observe({"w1": told(before, 50.0)}, {"w1": 1})
    after = CallStatistics()
    after.returned(SHOP, "sell", 0.1)
    rows, _ = view.observe({"w1": told(after, 1.0)}, {"w1": 1})
    assert rows["m:Shop\nsell"]["rate"] is None
    # Another incarnation that measures for longer than the first one did.
    rows, _ = view.observe({"w1": told(CallStatistics(), 99.0)}, {"w1": 2})
    assert rows == {}


def test_the_time_in_which_no_page_was_open_lowers_no_rate() -> None:
    view, before = CallView(), CallStatistics()
    for seconds in (0.0, 2.0):
        rows, _ = view.observe({"w1": told(before, seconds)}, {"w1": 1})
        for _ in range(200):
            before.returned(SHOP, "sell", 0.1)
    # Nobody looked for an hour, and the node stopped to measure: it begins anew when asked again.
    after = CallStatistics()
    view.observe({"w1": told(after, 0.0)}, {"w1": 1})
    for _ in range(200):
        after.returned(SHOP, "sell", 0.1)
    rows, _ = view.observe({"w1": told(after, 2.0)}, {"w1": 1})
    assert rows["m:Shop\nsell"]["rate"] == 100.0


def test_each_node_counts_over_its_own_time_and_a_silent_one_has_no_rate() -> None:
    view, old, young = CallView(), CallStatistics(), CallStatistics()
    both = {"w1": 1, "w2": 1}
    view.observe({"w1": told(old, 10.0)}, both)
    for _ in range(40):
        old.returned(SHOP, "sell", 0.1)
    view.observe({"w1": told(old, 14.0), "w2": told(young, 0.0)}, both)
    for _ in range(40):
        young.returned(SHOP, "sell", 0.1)
    rows, _ = view.observe({"w1": told(old, 14.0), "w2": told(young, 2.0)}, both)
    assert rows["m:Shop\nsell"]["rate"] == 30.0
    rows, _ = view.observe({"w2": told(young, 2.0)}, both)
    assert rows["m:Shop\nsell"]["rate"] == 20.0
    assert rows["m:Shop\nsell"]["value"] == 80
    # What it did meanwhile is known when it answers again, over the time that this took.
    rows, _ = view.observe({"w1": told(old, 16.0), "w2": told(young, 2.0)}, both)
    assert rows["m:Shop\nsell"]["rate"] == 26.7


def test_a_call_that_is_seen_where_it_runs_alone_has_a_rate_as_well() -> None:
    view, statistics = CallView(), CallStatistics()
    statistics.ran(SHOP, "sell", 0.001, 0.002)
    view.observe({"w1": told(statistics, 0.0)}, {"w1": 1})
    statistics.ran(SHOP, "sell", 0.001, 0.002)
    rows, _ = view.observe({"w1": told(statistics, 2.0)}, {"w1": 1})
    assert rows["m:Shop\nsell"]["rate"] == 0.5
    assert (rows["m:Shop\nsell"]["value"], rows["m:Shop\nsell"]["raised"]) == (2, 0)


def test_two_nodes_are_added_and_the_runtime_s_own_services_left_out() -> None:
    view, one = CallView(), CallStatistics()
    one.returned(SHOP, "sell", 0.1)
    one.returned(Address("@node", "w1", 1), "status", 0.1)
    answers = {"w1": told(one, 0.0), "w2": told(one, 0.0)}
    rows, _ = view.observe(answers, {"w1": 1, "w2": 1})
    assert set(rows) == {"m:Shop\nsell"}
    assert rows["m:Shop\nsell"]["value"] == 2
    rows, _ = view.observe({"w1": answers["w1"]}, {"w1": 1, "w2": 1})
    assert rows["m:Shop\nsell"]["value"] == 2, "a node that is silent for a moment is not forgotten"
    rows, _ = view.observe({"w1": answers["w1"]}, {"w1": 1})
    assert rows["m:Shop\nsell"]["value"] == 1


def test_the_rows_are_bounded() -> None:
    view, one = CallView(), CallStatistics()
    for number in range(MOST_METHODS + 5):
        one.returned(SHOP, f"m{number}", 0.1)
    rows, left_out = view.observe({"w1": told(one, 0.0)}, {"w1": 1})
    assert (len(rows), left_out) == (MOST_METHODS, 5)
