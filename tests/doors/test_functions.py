"""Functions and the executor at the blocking and the asyncio door."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError, as_completed
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from actors import RetryPolicy
from actors.errors import (
    ActorDiedError,
    FunctionNotImportableError,
    NotAMemberError,
    OutcomeUnknownError,
    RemoteError,
    WrongDoorError,
)
from runtime import aio
from runtime.blocking import Blocking, BlockingLocalCluster, connect
from tests import forked_python
from tests.doors.actors_used import Counter
from tests.doors.test_programs import ended, program
from tests.functions import functions_used as used
from tests.waiting import until_blocking

pytestmark = pytest.mark.cluster

PATIENCE = 60.0


def noted(path: Path, lines: int = 1) -> list[str]:
    """The lines that functions have noted in a file, once there are so many."""
    return until_blocking(
        lambda: path.read_text().splitlines() if path.exists() else [],
        f"{path} has {lines} lines",
        lambda found: len(found) >= lines,
    )


def test_run_and_future(cluster: BlockingLocalCluster, tmp_path: Path) -> None:
    assert cluster.run(used.double, 21) == 42
    assert cluster.run(used.double_under_trio, number=21) == 42
    assert cluster.options(on="worker-1").run(used.pid) != cluster.processes["worker-1"].pid
    with pytest.raises(ValueError, match="so it is"):
        cluster.run(used.fail, "so it is")
    with pytest.raises(FunctionNotImportableError, match="lambda"):
        cluster.run(lambda: 1)
    assert cluster.future(used.double, 2).result(timeout=PATIENCE) == 4
    path = tmp_path / "cancelled"
    future = cluster.future(used.wait_for_cancellation, str(path))
    assert len(noted(path)) == 1
    assert future.cancel()
    assert noted(path, 2)[1] == "cancelled"
    with connect(cluster.address, name="script") as script:
        # Nothing runs in the program that asks.
        assert script.run(used.double, 3) == 6


def test_an_actor_runs_functions(cluster: BlockingLocalCluster, counter: Blocking[Counter]) -> None:
    isolated = cluster.options(on="worker-1", isolation="process").spawn(Counter)
    for actor in (counter, isolated):
        assert actor.run_double(4) == 8
        with pytest.raises(RemoteError, match="so it is") as caught:
            actor.run_fail("so it is")
        assert isinstance(caught.value, ValueError)


def test_an_executor_maps_and_survives_its_workers(
    cluster: BlockingLocalCluster, tmp_path: Path
) -> None:
    with cluster.executor(max_workers=4) as executor:
        assert list(executor.map(used.double, range(100))) == [2 * n for n in range(100)]
        items = [tmp_path / "one", tmp_path / "two"]
        dying = [executor.submit(used.die_unless, str(item)) for item in items]
        fine = [executor.submit(used.double, n) for n in range(20)]
        failed = executor.submit(used.fail, "no")
        for future in dying:
            assert isinstance(future.exception(timeout=PATIENCE), ActorDiedError)
        assert sum(f.result(timeout=PATIENCE) for f in as_completed(fine)) == 380
        error = failed.exception(timeout=PATIENCE)
        assert isinstance(error, ValueError)
        assert isinstance(error, RemoteError)
        assert "functions_used.py" in error.remote_traceback
        # Endless, a few at a time.
        endless = executor.map(used.double, count(), buffersize=2)
        assert [next(endless) for _ in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(used.double, 1)
    again = RetryPolicy(max_retries=2, initial_delay=0.01)
    with cluster.options(retry=again, idempotent=True).executor() as repeating:
        mark = str(tmp_path / "three")
        assert repeating.submit(used.die_unless, mark).result(timeout=PATIENCE) == "repeated"


def test_what_waits_in_an_executor_is_cancelled_and_what_runs_is_not(
    cluster: BlockingLocalCluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    executor = cluster.executor(max_workers=1)
    running = executor.submit(used.wait_for_file, str(go))
    waiting = executor.submit(used.note, str(tmp_path / "notes"), "never")
    others = [executor.submit(used.note, str(tmp_path / "notes"), "never") for _ in range(3)]
    assert waiting.cancel()
    assert not running.cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in others)
    with pytest.raises(CancelledError):
        others[0].result()
    go.touch()
    assert running.result(timeout=PATIENCE)
    executor.shutdown()
    assert not (tmp_path / "notes").exists()


@pytest.mark.parametrize("most", [0, -1, True, "4", 1.5])
def test_a_number_of_workers_that_makes_no_sense(cluster: BlockingLocalCluster, most: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_workers"):
        cluster.executor(max_workers=most)


def test_closing_the_connection_ends_all_that_an_executor_has(
    cluster: BlockingLocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / "blocks"
    connection = connect(cluster.address)
    executor = connection.executor(max_workers=1)
    running = executor.submit(used.wait_for_cancellation, str(path))
    waiting = executor.submit(used.double, 1)
    noted(path)
    connection.close()
    assert isinstance(running.exception(timeout=PATIENCE), OutcomeUnknownError)
    assert isinstance(waiting.exception(timeout=PATIENCE), NotAMemberError)
    executor.shutdown()
    assert noted(path, 2)[1] == "cancelled"


def test_ctrl_c_ends_what_an_executor_runs(
    cluster: BlockingLocalCluster, counter: Blocking[Counter], tmp_path: Path
) -> None:
    path = tmp_path / "waits"
    text = f"""
from tests.functions import functions_used as used
try:
    with cluster.executor(max_workers=1) as executor:
        futures = [executor.submit(used.wait_for_cancellation, {str(path)!r}) for _ in range(3)]
        futures[0].result()
except KeyboardInterrupt:
    print(all(future.done() for future in futures), futures[1].cancelled(), counter.add(1))
"""
    with program(cluster, counter, "executor", text) as running:
        noted(path)
        running.send_signal(signal.SIGINT)
        code, out, err = ended(running)
    assert (code, out) == (0, "True True 1\n"), err
    assert noted(path, 2)[1] == "cancelled"


def test_a_script_runs_its_own_functions(cluster: BlockingLocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "own_script.py"
    script.write_text(
        "from runtime.blocking import open_local_cluster\n"
        "def triple(number):\n    return 3 * number\n"
        "if __name__ == '__main__':\n"
        "    with open_local_cluster(1) as cluster:\n"
        "        print(cluster.options(on='worker-1').run(triple, 4), cluster.run(triple, 5))\n"
        "        with cluster.executor() as executor:\n"
        "            print(*executor.map(triple, range(4)))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = forked_python.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "12 15\n0 3 6 9\n"), done.stderr


def test_asyncio_runs_functions(cluster: BlockingLocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "waits"

    async def main() -> None:
        async with aio.connect(cluster.address) as connection:
            assert await connection.run(used.double, 21) == 42
            assert await connection.options(on="worker-1").run(used.double_under_trio, 1) == 2
            with pytest.raises(ValueError, match="so it is"):
                await connection.run(used.fail, "so it is")
            task = asyncio.create_task(connection.run(used.wait_for_cancellation, str(path)))
            await asyncio.to_thread(noted, path)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # An executor of the blocking door, where asyncio takes one.
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(executor, used.double, 4) == 8
            with pytest.raises(WrongDoorError, match=r"runtime\.aio"):
                executor.shutdown()
            await asyncio.to_thread(executor.shutdown)

    executor = cluster.executor()
    asyncio.run(main())
    assert noted(path, 2)[1] == "cancelled"


def test_threads_share_an_executor(cluster: BlockingLocalCluster) -> None:
    with cluster.executor(max_workers=3) as executor:
        results: list[int] = []

        def some() -> None:
            results.extend(executor.map(used.double, range(20)))

        threads = [threading.Thread(target=some) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == sorted(list(range(0, 40, 2)) * 5)
