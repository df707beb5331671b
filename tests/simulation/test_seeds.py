"""The runtime's promises under the faults of 500 seeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from runtime.simulation import simulate_once
from runtime.simulation.workload import Workload
from tests.waiting import until

SEEDS = 500
AT_ONCE = 2
"""Seeds of one test: small enough for several workers to have their share of them."""


# `.ci/run` tries all of them by `make simulate`.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_all_promises_hold_under_500_seeds(first: int) -> None:
    command = [
        sys.executable,
        "-m",
        "runtime.command_line",
        "simulate",
        "--seed",
        str(first),
        "--seeds",
        str(AT_ONCE),
        "--jobs",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert done.stdout.strip() == f"{AT_ONCE} seeds, 0 of them broke a promise"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(9,), pytest.param((0, 1, 17, 46), marks=pytest.mark.long)])
def test_one_seed_is_one_run_whatever_process_hash_seed_and_directory(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    code = (
        "from runtime.simulation import simulate_once\n"
        f"for seed in {seeds}: print(seed, simulate_once(seed, seconds=10).trace_hash)\n"
        "import runtime, sys\nprint(runtime.__file__, file=sys.stderr)"
    )
    hashes = set()
    for hash_seed, directory in (("0", "short"), ("4711", "a-name-of-more-letters")):
        checkout = tmp_path / directory
        checkout.symlink_to(Path(__file__).parents[2], target_is_directory=True)
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            # Before the directory in which it is installed.
            "PYTHONPATH": str(checkout),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=tmp_path,
        )
        assert done.stderr.startswith(f"{checkout}/"), "another checkout was imported"
        assert len(done.stdout.splitlines()) == len(seeds)
        hashes.add(done.stdout)
    assert len(hashes) == 1, hashes


def test_what_ran_before_in_the_same_process_changes_nothing() -> None:
    from runtime.simulation import simulate_once

    first = simulate_once(3, seconds=10)
    simulate_once(4, seconds=10)
    garbage = [[number] for number in range(100_000)]
    again = simulate_once(3, seconds=10)
    assert garbage
    assert again.trace_hash == first.trace_hash
    assert again.events == first.events
    assert simulate_once(5, seconds=10).trace_hash != first.trace_hash


async def test_a_run_of_seeds_that_is_killed_leaves_no_process_behind() -> None:
    command = [sys.executable, "-m", "runtime.command_line", "simulate", "--seeds", "100000"]
    run = await trio.lowlevel.open_process([*command, "--jobs", "2"], stdout=subprocess.DEVNULL)
    try:
        children = await until(
            lambda: simulating(run.pid), "two processes simulate", lambda found: len(found) == 2
        )
    finally:
        run.kill()
        with trio.CancelScope(shield=True):
            await run.wait()
    await until(lambda: not any(map(is_alive, children)), "they have ended with it")


def simulating(parent: int) -> list[int]:
    """The children of a process that run code of their own, and not the tracker of semaphores."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [
        int(pid) for pid in listed if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def is_alive(pid: int) -> bool:
    """True while the process runs. A zombie has ended: its new parent may be slow."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ctrl_c_ends_a_run_and_breaks_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(self: Workload) -> None:
        await trio.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Workload, "watch_queues", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate_once(1, seconds=1.0)
