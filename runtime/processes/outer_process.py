"""The outer process: the parent of the warm process, which ends all that the warm process leaves
behind if that ends unexpectedly.

The warm process cannot end its descendants if it is killed itself. The kernel kills the children
that it has forked, but not what these have started. So the interpreter that the parent starts forks
once, before it imports anything of size: the fork becomes the warm process, and this one only waits
for it. It is a subreaper (prctl(2)), so the orphans of the warm process become its children, also
daemons in sessions of their own. It kills them until there are none. The user's program itself is
no subreaper, because that would be so for everything that it starts.

It kills the warm process as well when its own parent ends: the warm process does the same by
itself, unless it is stopped or its imports hang. If the outer process is killed, the kernel tells
the warm process, which ends all and then itself. Only if both are killed at the same moment, what
the children have started lives on.

Its memory is that of a bare interpreter: it imports nothing but `linux_processes` and a few modules
of the standard library.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from runtime.processes.linux_processes import (
    adopt_orphans,
    children_of_this_process,
    die_with_parent,
    kill_quietly,
    name_process,
    write_no_core,
)

_NAME = "outer process"

_END_SECONDS = 2
"""Seconds after which the parent learns of the end of the warm process although processes remain
that the kernel cannot end, or that may not be signalled by us.
"""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end everything."""


def fork_warm_process(descriptor: int, parent: int) -> int:
    """Fork, and return in the fork only, which is to become the warm process: the pid of its
    parent, the outer process. `descriptor`: the socket of the warm process. `parent`: the pid of
    the process that started us.

    The outer process ends as the warm process has ended, with its exit code or by the same signal.
    """
    # Until the outer process has its handlers, the kernel may kill it: the fork notices.
    die_with_parent(signal.SIGKILL, parent)
    adopt_orphans()
    # The process that started us may ignore it, and that is inherited: the kernel would reap the
    # children, and this process would not learn how they ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    outer = os.getpid()
    warm = os.fork()
    if warm == 0:
        return outer
    name_process(_NAME)
    _end_as(_end_of(warm, parent), descriptor)


def _end_of(warm: int, parent: int) -> os.waitid_result:
    """Wait for the end of the warm process. End it when the parent ends, or by a signal."""

    def end(signum: int, frame: object) -> None:
        # It is not reaped while this handler is set, so the pid is its own.
        kill_quietly(warm, signal.SIGKILL)

    for signum in _ENDING:
        # Under nohup(1) the end of a terminal ends nothing.
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, end)
    # The mask is inherited, too.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_ENDING, signal.SIGALRM})
    die_with_parent(signal.SIGTERM, parent)
    result = os.waitid(os.P_PID, warm, os.WEXITED | os.WNOWAIT)
    assert result is not None, "only a call that does not wait returns nothing"
    for signum in _ENDING:
        signal.signal(signum, signal.SIG_IGN)
    return result


def _end_as(result: os.waitid_result, descriptor: int) -> NoReturn:
    """Kill and reap what the warm process has left, and end as it has ended."""
    # This is the last copy of the socket, and it is closed when everything has ended: only then the
    # parent reports the end of the children, because their successors must not meet processes of
    # theirs. But it must not wait for what cannot be ended.
    signal.signal(signal.SIGALRM, lambda signum, frame: os.close(descriptor))
    signal.alarm(_END_SECONDS)
    # Orphans of those that are killed become our children, hence the loop. Zombies are in the list,
    # so that it is empty only when all have been reaped, or the kernel does not offer it.
    while children := children_of_this_process():
        for child in children:
            # Safe from pid reuse: only this process reaps its children.
            kill_quietly(child, signal.SIGKILL)
        os.waitpid(-1, 0)
    if result.si_code == os.CLD_EXITED:
        os._exit(result.si_status)
    # One core dump is enough.
    write_no_core()
    if result.si_status != signal.SIGKILL:
        signal.signal(result.si_status, signal.SIG_DFL)
    os.kill(os.getpid(), result.si_status)
    # The signal is blocked: with the exit code that a shell reports for it.
    os._exit(128 + result.si_status)
