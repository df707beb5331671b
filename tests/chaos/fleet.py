"""Node processes as a service manager keeps them: `understudy node`, started again whenever it
ends.

Each process may live in a network and process namespace of its own (`hosts.py`). Faults are signals
to the process itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import trio

from runtime.processes.linux_processes import children_of

SECRET = "a secret of the chaos runs"
MARK = "UNDERSTUDY_CHAOS"
"""In the environment of each process of a run, and of what it starts: how the run finds what it has
left behind.
"""

RESTART_SECONDS = 0.3
STOP_SECONDS = 20.0


@attrs.define
class Seat:
    """One node of the fleet: its command line, and the process that runs now. `prefix`: a command
    that starts it on its host.
    """

    name: str
    arguments: Sequence[str]
    prefix: Sequence[str] = ()
    process: trio.Process | None = None
    starts: int = 0
    exits: list[int] = attrs.field(factory=list)
    ready: trio.Event = attrs.field(factory=trio.Event)

    @property
    def pid(self) -> int | None:
        """The process id of the node itself, None while it does not run."""
        if self.process is None or self.process.returncode is not None:
            return None
        if not self.prefix:
            return self.process.pid
        # The prefix stays the parent of the node, which is in another process namespace.
        below = children_of(self.process.pid)
        return below[0] if below else None


class Fleet:
    """The processes of one run. `mark`: unique to the run. `logs`: a directory for what
    they print.
    """

    def __init__(
        self, nursery: trio.Nursery, mark: str, logs: Path, environment: Mapping[str, str] = {}
    ) -> None:
        self.seats: dict[str, Seat] = {}
        self._nursery = nursery
        self._mark = mark
        self._logs = logs
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")
        } | {
            "UNDERSTUDY_SECRET": SECRET,
            MARK: mark,
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self._stopping = False

    async def add(self, name: str, *arguments: str, prefix: Sequence[str] = ()) -> Seat:
        """Keep a node running from now on; returns when it is ready for the first time."""
        seat = self.seats[name] = Seat(name, ("--name", name, *arguments), prefix)
        self._nursery.start_soon(self._keep, seat)
        with trio.fail_after(60):
            await seat.ready.wait()
        return seat

    def signal(self, name: str, signum: signal.Signals) -> bool:
        """Send a signal to a node's process; False if there is none now."""
        pid = self.seats[name].pid
        if pid is None:
            return False
        os.kill(pid, signum)
        return True

    async def stop(self) -> None:
        """Ask all to leave, and end what does not."""
        self._stopping = True
        for name in self.seats:
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
        with trio.move_on_after(STOP_SECONDS):
            for seat in self.seats.values():
                if seat.process is not None:
                    await seat.process.wait()
        for name, seat in self.seats.items():
            self.signal(name, signal.SIGKILL)
            if seat.process is not None:
                await seat.process.wait()

    async def _keep(self, seat: Seat) -> None:
        command = [
            *seat.prefix,
            sys.executable,
            "-m",
            "runtime.command_line",
            "node",
            "--json",
            *seat.arguments,
        ]
        while not self._stopping:
            with (self._logs / f"{seat.name}.log").open("ab") as log:
                seat.process = await trio.lowlevel.open_process(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                )
            seat.starts += 1
            assert seat.process.stdout is not None
            try:
                line = b""
                async for piece in seat.process.stdout:
                    line += piece
                    if line.endswith(b"\n") and "node" in json.loads(line.splitlines()[-1]):
                        seat.ready.set()
                await seat.process.wait()
            finally:
                with trio.CancelScope(shield=True):
                    if seat.process.returncode is None:
                        pid = seat.pid
                        if pid is not None:
                            os.kill(pid, signal.SIGKILL)
                        seat.process.kill()
                        await seat.process.wait()
                    await seat.process.stdout.aclose()
            seat.exits.append(seat.process.returncode or 0)
            if not self._stopping:
                seat.ready = trio.Event()
                await trio.sleep(RESTART_SECONDS)


def left_behind(mark: str) -> list[str]:
    """Processes of a run that still live, by command line; the caller's own is left out."""
    found: list[str] = []
    wanted = f"{MARK}={mark}".encode()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(
                    f"{directory.name}: "
                    + (directory / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
        except OSError:
            # It ended meanwhile, or is a kernel thread.
            continue
    return found
