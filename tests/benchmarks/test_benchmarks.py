"""That the benchmark runs and its rows are whole; what the figures are is for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


def test_the_rows_are_printed_and_written_as_data(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--seconds", "0.02", "--rounds", "1", "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(target.read_text())
    assert [row["unit"] for row in rows] == ["calls/s", "calls/s", "MiB/s", "ms"]
    for row in rows:
        assert set(row) == {"work", "unit", "ours", "floor", "ratio"}
        assert row["ours"] > 0
        assert row["floor"] > 0
        better = row["floor"] / row["ours"] if row["unit"] == "ms" else row["ours"] / row["floor"]
        assert row["ratio"] == pytest.approx(better)
        assert row["work"] in done.stdout
