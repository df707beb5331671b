"""The guardian: a process that outlives the agent by a moment and kills the agent's workers.

The agent starts it with a pipe. When the agent ends in any way, `kill -9` included, the pipe
breaks, and the guardian kills every process with the agent's mark in its environment: workers,
their children, and children in sessions of their own. The kernel's parent-death signal does the
same sooner, but only for the workers.

Where other agents may take the workers' places, the agent also writes to the pipe while it runs. If
it stops writing, because it is stopped, the guardian kills the workers before others can take their
places.

It runs as a program of its own, and imports only a few modules of the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import sys

MARK = "UNDERSTUDY_WORKER"
"""The environment variable with the mark: the agent's own token, the local rank and the number of
the start, with slashes between.
"""

_PASSES = 200
"""Rounds of looking for marked processes and killing them."""


def is_marked(pid: int, mark: str) -> bool:
    """Return True if the process, or an ancestor whose environment it inherited, was started with a
    mark that begins with `mark`. False if its environment cannot be read.
    """
    wanted = f"{MARK}={mark}".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        # The process has ended, is a kernel thread, or belongs to another user.
        return False
    return environment.startswith(wanted) or b"\0" + wanted in environment


def marked(mark: str) -> list[int]:
    """Return the pids of all processes whose environment has a mark that begins with `mark`, except
    the caller's own.
    """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_marked(pid, mark)]


def sweep(mark: str) -> int:
    """Kill all processes with the mark, repeatedly until there are none, at most `_PASSES` times.
    Returns how many were killed.
    """
    killed: set[int] = set()
    # Repeat, because a process may have forked after the list was made. Bounded, because a process
    # that forks faster than this would keep the guardian for ever.
    for _ in range(_PASSES):
        pids = marked(mark)
        if not pids:
            break
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        killed.update(pids)
    return len(killed)


def main(descriptor: int, mark: str, seconds: float) -> None:
    """Wait for the agent's end, then kill everything with the mark. Also do that whenever the agent
    has written nothing for `seconds`, unless that is infinity.
    """
    # Ctrl-C and the end of a session reach the whole process group; the guardian must outlive it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    patience = None if seconds == float("inf") else seconds
    while True:
        if not select.select([descriptor], [], [], patience)[0]:
            sweep(mark)
            # Once is enough until the agent runs again.
            select.select([descriptor], [], [])
        if not os.read(descriptor, 4096):
            break
    sweep(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
