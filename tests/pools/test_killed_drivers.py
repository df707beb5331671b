"""Drivers of a map with a journal, which are killed again and again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from runtime.blocking import open_local_cluster
from tests import forked_python
from tests.etcd import shared_etcd
from tests.pools.journal_program import Recorder

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


def lines(path: Path) -> list[int]:
    """The whole lines of a file."""
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text[: text.rfind("\n") + 1].split()]


def ran(folder: Path) -> Counter[int]:
    """How often the members have run each item."""
    return Counter(item for path in folder.glob("ran-*") for item in lines(path))


def drive(address: str, folder: Path, items: int, life: int) -> subprocess.Popen[str]:
    """Start a driver."""
    return forked_python.Popen(
        [
            *(sys.executable, "-c", "from tests.pools.journal_program import main; main()"),
            *(address, "job", str(items), str(folder / f"given-{life}")),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_again_and_again(folder: Path, items: int, kills: int, store: str | None = None) -> None:
    """Each driver is killed when it has given so many results more; the last one comes to its end.
    Nothing that was given is run again by a later one.
    """
    draw = random.Random(kills)
    squares = [item * item for item in range(items)]
    with (
        open_local_cluster(nodes=2, store=store) as cluster,
        cluster.pool("recorders", Recorder, str(folder), size=2),
    ):
        acknowledged = 0
        for life in range(kills):
            before = ran(folder)
            most = acknowledged + draw.randrange(1, items // kills)
            path = folder / f"given-{life}"
            running = drive(cluster.address, folder, items, life)
            while len(lines(path)) < most and running.poll() is None:
                time.sleep(0.002)
            running.kill()
            running.communicate()
            given = lines(path)
            assert given == squares[: len(given)]
            assert len(given) >= acknowledged
            after = ran(folder)
            assert all(after[item] == before[item] for item in range(acknowledged))
            acknowledged = len(given)
        before = ran(folder)
        last = drive(cluster.address, folder, items, kills)
        assert last.communicate(timeout=100)[0] == "done\n"
        assert lines(folder / f"given-{kills}") == squares
        after = ran(folder)
        assert all(after[item] == before[item] for item in range(acknowledged))
        assert set(after) == set(range(items))
        (journal,) = cluster.pool_journals()
        assert (journal.items, journal.driver) == (items, None)
        assert cluster.remove_pool_journal(journal.name)
        assert cluster.pool_journals() == []


def test_a_driver_that_is_killed_once_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 4_000, 1)


@pytest.mark.long
@pytest.mark.slow
def test_a_journal_in_etcd_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    with shared_etcd(1) as server:
        kill_again_and_again(tmp_path, 4_000, 1, server.address)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_drivers_that_are_killed_many_times_finish_the_job(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 40_000, 8)
