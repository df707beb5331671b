"""A process that outlives the agent by a moment, to end what the agent can no longer end.

Started by the agent with a pipe to it. When the pipe breaks, because the agent has ended in whatever way, `kill -9` included, everything
that carries the agent's mark in its environment is killed: workers, their children, and children that went their own ways in sessions of
their own. The kernel's signal at the death of a parent does the same for the workers alone, and sooner.

Where others may take the workers' places, the agent also says from time to time that it runs. If it does not, because it is stopped, the
guardian kills the workers before that can happen.

A program by itself; nothing but the standard library is imported, and little of that.
"""

from __future__ import annotations

import os
import select
import signal
import sys

MARK = "UNDERSTUDY_WORKER"
"""The environment variable with the mark: the agent's own token, the local rank and the number of the start, with slashes between."""

_PASSES = 200


def is_marked(pid: int, mark: str) -> bool:
    """Whether that process, as far as it can be seen, was started with a mark that begins with `mark`, or by such a process."""
    wanted = f"{MARK}={mark}".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        # Gone already, a kernel thread, or somebody else's.
        return False
    return environment.startswith(wanted) or b"\0" + wanted in environment


def marked(mark: str) -> list[int]:
    """The pids of all processes whose mark begins with `mark`, which were started with it or by such a process; not the caller's own."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_marked(pid, mark)]


def sweep(mark: str) -> int:
    """Kill all of them, until there are none or it has been tried often enough; how many were killed."""
    killed: set[int] = set()
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
    """Wait for the agent's end, then sweep; and sweep whenever the agent has said nothing for so many seconds, if that is not infinity."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    patience = None if seconds == float("inf") else seconds
    while True:
        if not select.select([descriptor], [], [], patience)[0]:
            sweep(mark)
            # Once is enough, until the agent runs again.
            select.select([descriptor], [], [])
        if not os.read(descriptor, 4096):
            break
    sweep(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
