"""What happens to a test that hangs, seen from a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLUGIN = """
pytest_plugins = ["tests.hangs"]

def pytest_configure(config):
    from tests import hangs
    hangs.STUCK_SECONDS = 1.0
"""
HANGING = """
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import trio

pytestmark = pytest.mark.timeout(2)

@pytest.fixture
def never_torn_down():
    yield
    time.sleep(600)

async def waits_for_ever():
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

def note(kind, pid):
    with open(os.environ["NOTED"], "a") as file:
        print(kind, pid, file=file)

def start_processes():
    note("started", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid)
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    note("forked", forked.pid)

async def test_first():
    start_processes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits_for_ever)

def test_second(never_torn_down):
    pass

def test_third():
    note("started", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)

def test_fourth():
    pass
"""


@pytest.mark.slow
@pytest.mark.long
def test_each_is_ended_and_shown_with_its_tasks_and_those_after_it_run(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--numprocesses=1",
        "--rootdir",
        str(tmp_path),
        "-c",
        str(tmp_path / "pytest.ini"),
    ]
    done = subprocess.run(
        [*command, "-o", f"pythonpath={Path(__file__).parents[1]}", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        env={**os.environ, "NOTED": str(tmp_path / "noted")},
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert "3 failed" in shown
    for name in ("test_first", "test_second", "test_third"):
        assert f"crashed while running 'test_hanging.py::{name}'" in shown
    assert "test_hanging.py::test_first hung for 2 s" in shown
    assert "in waits_for_ever" in shown
    assert "in never_torn_down" in shown
    assert "in test_third" in shown
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    assert [kind for kind, _ in noted] == ["started", "forked", "started"]
    for kind, pid in noted:
        assert gone(int(pid)), f"the {kind} process {pid} of a test that hung still runs"


def gone(pid: int) -> bool:
    """True once a process has ended; a zombie has. What ends it is on its way when this is
    asked.
    """
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False
