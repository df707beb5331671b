"""A mark by which these tests find every process that descends from one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.processes import warm_process
from tests.waiting import until

_VARIABLE = "TESTED_PROCESSES"


class Marked:
    """The processes whose environment carries the mark: all descendants inherit it, whichever their
    parent is by now.
    """

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = {_VARIABLE: self.mark}

    def pids(self) -> set[int]:
        """Those that run now, without this one and without zombies."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment = (entry / "environ").read_bytes()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if f"{_VARIABLE}={self.mark}".encode() in environment.split(b"\0") and state != "Z":
                    found.add(int(entry.name))
        return found

    async def gone(self) -> None:
        """Wait until none is left."""
        await until(self.pids, "no marked process is left", lambda pids: not pids)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marked]:
    processes = Marked()
    for name, value in processes.environment.items():
        monkeypatch.setenv(name, value)
    yield processes
    for pid in processes.pids():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def real_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork servers begin as those of users, with a Python of their own."""
    monkeypatch.setattr(warm_process, "subprocess", subprocess)
