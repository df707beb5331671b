"""What the Linux kernel offers for leaving no process behind: prctl(2), and the processes that
proc(5) lists.

The outer process is small because it imports only this and a few modules of the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1

_PR_SET_DUMPABLE = 4

_PR_SET_NAME = 15

_PR_SET_CHILD_SUBREAPER = 36

# The options of prctl(2), as in <linux/prctl.h>.
#
# The parent-death signal is sent when the *thread* that created a process ends. It is not inherited
# by fork. It is never sent if the parent ended before it was requested; `die_with_parent` closes
# that gap.


def die_with_parent(signum: int, parent: int) -> None:
    """Ask the kernel to send `signum` to this process when its parent, whose pid is `parent`, ends.
    If the parent has ended already, end this process at once, without clean-up.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become a subreaper: orphans among the descendants of this process become its children,
    instead of the init process's.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Show `name`, cut to 15 bytes, in `ps` and `top`."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def write_no_core() -> None:
    """Let a signal end this process without a core dump."""
    _prctl(_PR_SET_DUMPABLE, 0)


def children_of_this_process() -> list[int]:
    """Return the pids of our direct children, including adopted ones and zombies. Empty if the
    kernel does not offer the list.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """Return the pids of the direct children of another process, including zombies. Empty if the
    process is gone or the kernel does not offer the list.
    """
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        return []
    return found


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all descendants of another process, nearest first. Empty if the process is
    gone or the kernel does not offer the list.
    """
    found: list[int] = []
    todo = [pid]
    while todo:
        children = children_of(todo.pop(0))
        found += children
        todo += children
    return found


def state_of(pid: int) -> str:
    """Return the letter of proc(5) for a process's state, such as `T` for stopped and `Z` for a
    zombie. Empty if the process is gone.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def kill_quietly(pid: int, signum: int) -> None:
    """Send a signal. Does nothing if the process is gone or may not be signalled by us."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group_quietly(group: int) -> None:
    """Kill a whole process group (SIGKILL), if it still exists."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _prctl(option: int, argument: int | ctypes.c_char_p) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    # These functions are variadic in C: without explicit types, ctypes would pass a Python int as a
    # C int where an unsigned long is read.
    value = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    if (
        library.prctl(
            ctypes.c_int(option), value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
        )
        != 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
