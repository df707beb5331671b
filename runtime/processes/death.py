"""The kernel's help in leaving no process behind: prctl(2).

Linux only. The parent-death signal is sent when the *thread* that created a process ends, is not inherited by fork, and is lost when
the parent ended before it was asked for; `die_with_parent` closes that last gap.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(signum: int, parent: int) -> None:
    """Have the kernel send `signum` to this process when its parent, whose pid is `parent`, ends.

    Ends this process at once, without clean-up, if the parent has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of the system's init process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Show `name`, cut to 15 bytes, in `ps` and `top`."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def children_of_this_process() -> list[int]:
    """The pids of our direct children, adopted ones included, zombies too. Empty if the kernel does not tell."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()]
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """The pids of the direct children of another process, zombies too. Empty if it is gone or the kernel does not tell."""
    try:
        return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_bytes().split()]
    except OSError:
        return []


def descendants_of(pid: int) -> list[int]:
    """The pids of all that descends from another process, the nearest first. Empty if it is gone or the kernel does not tell."""
    found: list[int] = []
    todo = [pid]
    while todo:
        children = children_of(todo.pop(0))
        found += children
        todo += children
    return found


def state_of(pid: int) -> str:
    """The letter of proc(5) for a process's state, such as `T` for stopped and `Z` for a zombie. Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def kill_quietly(pid: int, signum: int) -> None:
    """Send a signal; a process that is gone, or is no longer ours to signal, is no error."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group_quietly(group: int) -> None:
    """SIGKILL to a whole process group, if it still exists."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _prctl(option: int, argument: int | ctypes.c_char_p) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    # Variadic in C: without explicit types a Python int would be passed as a C int where an unsigned long is read.
    value = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    if library.prctl(ctypes.c_int(option), value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
