"""The growth of costs is judged by the end of their curves, and every subject can be measured."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.growth import __main__ as command
from tests.growth import bursts, nodes, resident
from tests.growth.curves import SUBJECTS
from tests.growth.measuring import Curve, measure, table, verdict


def curve(power: float, fixed: float = 0.0) -> Curve:
    """Costs that grow with this power of the number, beside fixed ones."""
    return Curve("things", {10**n: fixed + 1e-6 * 10 ** (n * power) for n in range(6)})


@pytest.mark.parametrize(
    ("measured", "worse"),
    [
        (curve(1.0), False),
        (curve(1.1), False),
        (curve(2.0), True),
        (curve(1.5), True),
        # Fixed costs at the beginning hide nothing.
        (curve(2.0, fixed=1.0), True),
        (curve(1.0, fixed=1.0), False),
        (Curve("few", {1: 0.1, 10: 100.0}), False),
    ],
)
def test_what_is_worse_than_linear_is_said_to_be(measured: Curve, worse: bool) -> None:
    assert measured.is_worse_than_linear is worse
    assert ("worse than linear" in verdict(measured)) is worse


async def test_small_counts_are_measured_several_times_and_the_median_counts() -> None:
    asked: list[int] = []

    async def work(count: int) -> float:
        asked.append(count)
        return float(len(asked))

    measured = await measure("things", work, 10_000)
    assert asked == [1] * 3 + [10] * 3 + [100] * 3 + [1_000] * 3 + [10_000]
    assert measured.seconds == {1: 2.0, 10: 5.0, 100: 8.0, 1_000: 11.0, 10_000: 13.0}


def test_a_table_has_a_line_for_each_subject() -> None:
    lines = table([curve(2.0), Curve("few", {1: 0.5})]).splitlines()
    assert lines[0].split("|")[2:5] == [" 1 ", " 10 ", " 100 "]
    assert len(lines) == 4
    assert lines[2].endswith("| worse than linear: n^2.00 |")
    assert "500,000" in lines[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_each_subject_can_be_measured(name: str) -> None:
    if not SUBJECTS[name].is_there:
        pytest.skip(f"{SUBJECTS[name].needs} is not installed")
    result = CliRunner().invoke(command.main, ["--only", name, "--most", "10"])
    assert result.exit_code == 0, result.output
    assert SUBJECTS[name].what in result.output


@pytest.mark.slow
def test_nodes_are_measured() -> None:
    result = CliRunner().invoke(nodes.main, ["2"])
    assert result.exit_code == 0, result.output
    row = result.output.splitlines()[-1].strip("| ").split(" | ")
    count, up, each, *_, own, called, known = row
    assert count == "2"
    assert float(up) > 0
    assert float(each) > 0
    assert float(own) > 1
    assert float(called.replace(",", "")) > 1
    assert float(known) > 0


@pytest.mark.slow
def test_bursts_are_measured() -> None:
    result = CliRunner().invoke(bursts.main, ["10", "100"])
    assert result.exit_code == 0, result.output
    rows = [line.strip("| ").split(" | ") for line in result.output.splitlines()[-2:]]
    assert [row[0] for row in rows] == ["10", "100"]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)


@pytest.mark.long
def test_resident_memory_is_measured() -> None:
    result = CliRunner().invoke(resident.main, ["10", "10", "10", "--ended", "5"])
    rows = [line.strip("| ").split(" | ") for line in result.output.splitlines()[-3:]]
    assert [row[:2] for row in rows] == [
        ["calls", "10"],
        ["references", "10"],
        ["connections", "10"],
    ]
    assert all(float(size) > 1 for row in rows for size in row[2:])


def test_memory_that_grows_after_the_first_part_is_seen() -> None:
    flat = [50 * resident.MEBIBYTE] * resident.PARTS
    warm = [20 * resident.MEBIBYTE, *flat[1:]]
    leaking = [size + part * resident.MEBIBYTE for part, size in enumerate(flat)]
    assert resident.Resident("calls", 10, flat, warm).growth == 0
    for caller, called in ((leaking, flat), (flat, leaking)):
        assert resident.Resident("calls", 10, caller, called).growth > resident.ALLOWED
