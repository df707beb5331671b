"""The command that measures this library beside others: what it prints, and whom it leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import environments
from tests.peers.__main__ import _figures, _table
from tests.peers.environments import NotInstalledError, command
from tests.peers.works import WORKS


@pytest.mark.cluster
def test_two_libraries_are_measured_in_turn_and_the_figures_are_written(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    words = ["--only", "understudy", "--only", "multiprocessing", "--work", "kill"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.peers", *words, "--rounds", "0", "--json", str(rows)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert WORKS["kill"].title in done.stdout
    assert {row["peer"] for row in json.loads(rows.read_text())} == {
        "understudy",
        "multiprocessing",
    }


def test_the_best_is_bold_and_losses_are_named() -> None:
    found = {
        ("understudy", "sequential"): [300.0, 100.0, 200.0],
        ("erlang", "sequential"): [150.0],
        ("understudy", "kill"): [5.0],
        ("erlang", "kill"): [4.0],
        ("erlang", "raise"): [4.0],
    }
    table = "\n".join(_table(["understudy", "erlang"], found))
    assert "| calls/s | **200 (100 to 300)** | 150 |" in table
    assert "| ms | 5 | **4** |" in table
    assert "| calls/s | - | **4** |" in table
    assert "Understudy is ahead in 1 of 2." in table
    assert table.endswith(f"Another library is ahead in: {WORKS['kill'].title}.")


def test_lines_that_a_library_prints_itself_are_passed_over() -> None:
    output = (
        'started\n{"work": "kill", "figure": 5}\n{"other": 1}\n'
        '{"work": "raise", "figure": 2.5e+3}(a library) has a word to say\n{"work": "cut", "fig'
    )
    assert _figures(output) == [("kill", 5.0), ("raise", 2500.0)]


@pytest.mark.long
def test_a_library_that_cannot_be_installed_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = environments.Peer("Nothing", "nothing_peer", ("no-such-distribution-of-this==1",))
    monkeypatch.setitem(environments.PEERS, "nothing", peer)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotInstalledError, match="Nothing could not be installed"):
        command("nothing", tmp_path)
    assert not (tmp_path / "nothing" / "installed").exists()


def test_without_erlang_its_column_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalledError, match="erlang-base"):
        command("erlang", tmp_path)
