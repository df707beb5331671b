"""First contacts between many nodes at once, while connections break: no call fails, and each pair
settles on one connection.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest
from click.testing import CliRunner

from runtime.command_line.simulate import simulate
from runtime.simulation import Report, first_contacts
from tests.simulation.planted import with_bug


def check(report: Report) -> None:
    assert report.holds, report.wrong


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 10))]
)
def test_no_call_fails_when_eight_nodes_meet_at_once(seed: int) -> None:
    report = first_contacts(seed, rounds=3)
    check(report)
    assert report.calls == {"ok": 3 * 8 * 7 * 2}


def test_no_call_fails_when_thirty_nodes_meet_at_once() -> None:
    check(first_contacts(0, nodes=30, times=1))


def test_no_call_fails_while_nodes_that_met_live_on() -> None:
    report = first_contacts(0, nodes=5, rounds=2, seconds=60.0)
    check(report)
    # Each of five nodes calls another every ten seconds on average, for a minute, twice.
    assert 2 * 5 * 4 * 2 + 30 <= report.calls["ok"] <= 2 * 5 * 4 * 2 + 90
    assert report.seconds > 120


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 100))]
)
def test_nodes_of_one_host_lend_memory_whichever_of_their_dials_stands(seed: int) -> None:
    report = first_contacts(seed, nodes=4, rounds=6, nodes_of_host=2)
    check(report)
    (lent,) = (result for result in report.check_results if result.name == "nobody declines memory")
    assert lent.text != "0 bytes were lent" or not hasattr(os, "memfd_create")


@pytest.mark.parametrize("nodes_of_host", [1, 2])
def test_one_seed_is_one_run(nodes_of_host: int) -> None:
    one, again, other = (
        first_contacts(seed, nodes_of_host=nodes_of_host).trace_hash for seed in (3, 3, 4)
    )
    assert one == again != other


def test_the_command_runs_rounds_of_first_contacts() -> None:
    command = [
        sys.executable,
        "-m",
        "runtime.command_line",
        "simulate",
        "--first-contacts",
        "2",
        "--nodes",
        "5",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--verbose",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "2 seeds, 0 of them broke a promise"
    # A line for each seed, so that a run of hours can be watched.
    lines = done.stderr.splitlines()
    assert [line.partition(" virtual")[0].rpartition(",")[0] for line in lines] == [
        "seed 0: 80 calls",
        "seed 1: 80 calls",
    ]
    assert all(line.endswith(" s, all promises hold") for line in lines)


def test_the_command_has_nodes_share_hosts() -> None:
    given = ["--first-contacts", "1", "--nodes", "4", "--nodes-per-host", "2", "--json"]
    done = CliRunner().invoke(simulate, given)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    lent = {one["name"]: one["text"] for one in facts["check_results"]}["nobody declines memory"]
    assert int(lent.partition(" ")[0]) > 0
    assert facts["trace_hash"] == first_contacts(0, nodes=4, nodes_of_host=2).trace_hash


def test_a_seed_that_breaks_a_promise_is_named_with_all_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def here(seeds: Iterable[int], jobs: int, run: Callable[[int], Report]) -> Iterator[Report]:
        return map(run, seeds)

    # In this process, which has the bug.
    monkeypatch.setattr("runtime.command_line.simulate._side_by_side", here)
    with with_bug("memory is lent before the peer knows of it"):
        given = ["--first-contacts", "6", "--nodes", "4", "--nodes-per-host", "2"]
        done = CliRunner().invoke(simulate, [*given, "--seeds", "5", "--minutes", "0.1"])
        assert done.exit_code == 1, done.output
        again = re.search(r"see it again with  understudy simulate (.*)", done.output)
        assert again is not None, done.output
        assert "--first-contacts 6 --nodes-per-host 2 --minutes 0.1" in again[1]
        assert CliRunner().invoke(simulate, again[1].split()).exit_code == 1


@pytest.mark.parametrize("given", [["--nodes-per-host", "2"], ["--nodes-per-host", "0"]])
def test_nodes_share_hosts_in_first_contacts_only(given: list[str]) -> None:
    done = CliRunner().invoke(simulate, given)
    assert done.exit_code == 2
    assert "--nodes-per-host" in done.output


def test_one_node_has_no_first_contacts() -> None:
    done = CliRunner().invoke(simulate, ["--first-contacts", "1", "--nodes", "1"])
    assert done.exit_code == 2
    assert "--first-contacts needs at least two nodes" in done.output


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_no_call_fails_in_rounds_of_a_hundred_nodes_that_meet_at_once(seed: int) -> None:
    check(first_contacts(seed, nodes=100, rounds=4, times=1))
