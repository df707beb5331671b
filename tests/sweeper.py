"""Ends what a test process leaves behind: `python -m tests.sweeper MARK` waits for its parent to
end, however it does, and then kills every process that carries MARK in its environment.

A test that hangs ends by `os._exit`, and one that hangs in C by faulthandler; neither runs any
clean-up, and the processes that it had started would go on at full speed beside all tests after it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

VARIABLE = "SWEPT_AFTER"
ROUNDS = 3
"""A process may start another while it is being looked for."""


def start_sweeper() -> None:
    """Mark what this process starts from now on, and have it ended when this process has ended."""
    mark = os.environ[VARIABLE] = f"{os.getpid()}-{os.urandom(8).hex()}"
    # A session of its own, so that Ctrl-C reaches only the tests; and no child of theirs, which may
    # count their children.
    subprocess.run(
        [sys.executable, str(Path(__file__)), mark, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def marked(mark: str) -> list[int]:
    """The processes, but for this one, that were started with this mark in their environment."""
    found: list[int] = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            try:
                if f"{VARIABLE}={mark}".encode() in (directory / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(directory.name))
            except OSError:
                continue
    return found


def below(pid: int) -> list[int]:
    """The processes that descend from `pid`, the youngest last; forked ones carry its own mark,
    which is not theirs.
    """
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in file.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *below(child)]
    return found


def end(pids: list[int]) -> None:
    """SIGKILL, to those that still are there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def main(mark: str, parent: int) -> None:
    """Wait, then sweep."""
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        descriptor = None
    if os.fork():
        os._exit(0)
    if descriptor is not None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    for _ in range(ROUNDS):
        end(marked(mark))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
