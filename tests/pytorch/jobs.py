"""Training jobs on this machine: agents as processes, and what their workers say of themselves in
files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.process_states import lives
from tests.waiting import until_blocking

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0
UNDERSTUDY = (sys.executable, "-P", "-m", "runtime.command_line", "run")
TORCHRUN = (sys.executable, "-P", "-m", "torch.distributed.run", "--monitor-interval", "0.1")
QUICK = "last_call_timeout=2,keep_alive_interval=1,join_timeout=60"


@attrs.frozen
class Worker:
    """One that lives, as it said of itself."""

    rank: int
    world_size: int
    pid: int
    agent: int
    restarts: int


class Job:
    """Agents of one job, which work in `place`. `command`: that of an agent, `options`: those that
    all of them have; `script`: what they start, with `arguments` behind the place.
    """

    def __init__(
        self,
        place: Path,
        command: tuple[str, ...],
        *options: str,
        script: str = "train.py",
        arguments: tuple[str, ...] = ("240",),
    ) -> None:
        self.place = place
        self._command = (*command, *options)
        self._script = (str(ROOT / "tests/pytorch" / script), str(place), *arguments)
        self._started = 0
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        place.mkdir()
        self.allow(0)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Another agent. What it says goes into a file."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "TORCHELASTIC_"))
        }
        with (self.place / f"agent-{self._started}.log").open("wb") as log:
            agent = subprocess.Popen(
                [*self._command, *options, *self._script],
                cwd=self.place,
                env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started += 1
        self.agents[agent.pid] = agent
        return agent

    def allow(self, steps: int) -> None:
        """How far the training may go."""
        (self.place / "limit.new").write_text(str(steps))
        (self.place / "limit.new").replace(self.place / "limit")

    def workers(self) -> list[Worker]:
        """Those that live, by rank."""
        told = [Worker(**json.loads(path.read_text())) for path in self.place.glob("*.worker")]
        return sorted((each for each in told if lives(each.pid)), key=lambda each: each.rank)

    def until_world(self, size: int) -> list[Worker]:
        """Wait until so many workers live, of one world, and no others."""
        self.until(
            lambda: (
                [(each.rank, each.world_size) for each in self.workers()]
                == [(rank, size) for rank in range(size)]
            )
        )
        return self.workers()

    def until_step(self, step: int, world_size: int) -> None:
        """Let a world of this size come so far, and no further; wait for it."""
        self.allow(step)
        self.until(lambda: self.read("progress") == {"step": step, "world_size": world_size})

    def result(self) -> dict[str, Any]:
        """Let them train to the end; return their results."""
        self.allow(1_000_000)
        self.until(lambda: self.read("result"))
        return self.read("result")

    def read(self, name: str) -> dict[str, Any]:
        """What a worker has written; nothing if none has."""
        path = self.place / name
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def until(self, holds: Callable[[], object]) -> None:
        """Other processes set no event."""
        until_blocking(holds, lambda: f"there are {self.workers()}\n{self.logs()}", seconds=LIMIT)

    def logs(self) -> str:
        """What all agents have said."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')}"
            for path in sorted(self.place.glob("agent-*.log"))
        )

    def tell(self, name: str) -> None:
        """Make the file that workers wait for."""
        (self.place / name).touch()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is left."""
        for agent in self.agents.values():
            agent.kill()
            agent.wait()
        for worker in self.workers():
            os.kill(worker.pid, 9)
