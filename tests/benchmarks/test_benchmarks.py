"""That the benchmark runs and its rows are whole; what the figures are is for people to read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.benchmarks.measuring import LESS_IS_BETTER, Figure, Row, at_least, at_most, in_pairs
from tests.benchmarks.profiled import measure
from tests.benchmarks.rows import GROUPS, LONG
from tests.benchmarks.rows.encrypted import share_of_sockets
from tests.benchmarks.rows.pages import Sample, spent

ROOT = Path(__file__).resolve().parents[2]

UNITS = {"calls/s", "actors/s", "items/s", "1/s", "MiB/s", "GiB/s", "ms", "KiB", "MiB", "steps"}
UNITS |= {"x real", "% of plain"}


def run(target: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks",
        "--short",
        "--rounds",
        "1",
        "--json",
        str(target),
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text()), done.stdout


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_rows_are_printed_and_written_as_data(tmp_path: Path) -> None:
    rows, printed = run(tmp_path / "rows.json")
    assert len(rows) >= len(GROUPS.keys() - LONG), "a row of each group, at least"
    assert {row["unit"] for row in rows} <= UNITS
    for row in rows:
        assert {"work", "unit", "ours", "floor", "ratio"} <= set(row)
        assert row["ours"] > 0
        assert row["floor"] > 0
        better = (
            row["floor"] / row["ours"]
            if row["unit"] in LESS_IS_BETTER
            else row["ours"] / row["floor"]
        )
        # Of what was measured in pairs it is the median of their ratios.
        assert row["ratio"] == pytest.approx(better) or row["ratio_range"] is not None
        assert (row["met"] is None) == (row["goal"] == "")
        assert row["work"] in printed


@pytest.mark.cluster
def test_a_word_selects_rows(tmp_path: Path) -> None:
    rows, _ = run(tmp_path / "rows.json", "--only", "links")
    assert len(rows) == 1
    assert "idle links" in rows[0]["work"]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
def test_pages_are_measured_in_pairs(tmp_path: Path) -> None:
    rows, printed = run(tmp_path / "rows.json", "--only", "pages")
    for name, by_the_clock in (("ten pages", True), ("ten with calls", False)):
        own = [row for row in rows if row["work"].startswith(f"{name}: ")]
        assert [row["unit"] for row in own] == ["calls/s"] * 3 + ["ms"] * 2
        assert [row["ratio_range"] is not None for row in own] == [True] * 3 + [False] * 2
        assert [bool(row["goal"]) for row in own] == [True, False, False, by_the_clock, False]
    assert "no page" in printed


def test_every_word_names_a_group_that_says_what_it_measures() -> None:
    assert all(measure.__doc__ for measure in GROUPS.values())


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (at_least(Row("w", "calls/s", Figure(60, 1, 1), Figure(100, 1, 1)), ratio=0.6), True),
        (at_least(Row("w", "calls/s", Figure(59, 1, 1), Figure(100, 1, 1)), ratio=0.6), False),
        (at_least(Row("w", "MiB/s", Figure(2000, 1, 1), Figure(1, 1, 1)), value=2000), True),
        (at_least(Row("w", "MiB/s", Figure(1999, 1, 1), Figure(1, 1, 1)), value=2000), False),
        (at_most(Row("w", "ms", Figure(10, 1, 1), Figure(1, 1, 1)), 10), True),
        (at_most(Row("w", "ms", Figure(10.1, 1, 1), Figure(1, 1, 1)), 10), False),
    ],
)
def test_goals_are_judged_by_the_median(row: Row, met: bool) -> None:
    assert row.goal
    assert row.met == met


def test_what_pages_take_of_a_node_is_what_its_calls_do_not_take() -> None:
    # 1,000 calls a second take 0.1 ms each; with pages half as many are made, and 30 ms are more.
    without = Sample(calls=4000, seconds=4.0, nodes=0.4, beside=0.0)
    pages = Sample(calls=2000, seconds=4.0, nodes=0.2 + 4 * 0.03, beside=1.0)
    assert spent([pages] * 3, [without] * 3).value == pytest.approx(10.0), "of each of three nodes"


async def test_what_differs_by_little_is_measured_in_pairs_in_both_orders() -> None:
    order: list[str] = []
    speed = 0.0

    async def work(name: str, share: float) -> float:
        nonlocal speed
        order.append(name)
        # The machine becomes faster all the time.
        speed += 1.0
        return speed * share

    ours, floor, ratio = await in_pairs(100, partial(work, "ours", 0.9), partial(work, "floor", 1))
    assert order[:4] == ["floor", "ours", "ours", "floor"]
    assert len(order) == 2 * 102
    assert ratio.value == pytest.approx(0.9, rel=0.01)
    assert ratio.least <= ratio.value <= ratio.most
    row = Row("w", "calls/s", ours, floor, paired=ratio)
    assert row.ratio == ratio.value


async def test_pairs_that_differ_too_much_decide_nothing() -> None:
    ratios = [0.90, 0.99] * 50

    async def ours() -> float:
        await trio.lowlevel.checkpoint()
        return ratios.pop()

    async def floor() -> float:
        await trio.lowlevel.checkpoint()
        return 1.0

    ratios += [1.0, 1.0]
    mine, others, ratio = await in_pairs(100, ours, floor)
    assert (ratio.least, ratio.most) == (0.90, 0.99)
    row = Row("w", "calls/s", mine, others, paired=ratio)
    assert at_least(row, ratio=0.97).within_noise
    # All are above the one goal, and below the other.
    assert not at_least(row, ratio=0.89).within_noise
    assert not at_least(row, ratio=0.995).within_noise


def test_a_ratio_says_that_more_is_better_whatever_the_unit() -> None:
    ours, floor = Figure(2, 1, 3), Figure(4, 1, 5)
    assert Row("w", "calls/s", ours, floor).ratio == 0.5
    assert Row("w", "ms", ours, floor).ratio == 2.0
    assert Row("w", "KiB", ours, floor).ratio == 2.0


def test_the_share_that_tls_leaves_is_compared_with_that_of_bare_sockets() -> None:
    def figure(value: float) -> Figure:
        return Figure(value, value, value)

    row = share_of_sockets(64, figure(34), figure(100), figure(52), figure(200))
    assert (row.ours.value, row.floor.value) == (34, 26)
    assert row.met
    row = share_of_sockets(64, figure(20), figure(100), figure(50), figure(200))
    assert row.ratio == pytest.approx(0.8)
    assert row.met is False


@pytest.mark.cluster
def test_a_work_is_profiled_on_both_sides() -> None:
    caller_and_node = [
        line
        for line in trio.run(measure, "named", 4)
        if re.fullmatch(r"(caller|node): [\d,]+ µs of processor time; [\d,]+ function calls", line)
    ]
    assert len(caller_and_node) == 2
