"""A test that hangs is named, shown and ended, whatever it hangs in, and the tests after it run.

pytest-timeout's own ways are too gentle here. Raising in the middle of an event loop shows the loop
and none of its tasks, leaves the loop behind, so that nothing more can run in that process, and
does nothing for a tear-down that hangs after it. So the process ends, after it has shown where each
task and thread stands; pytest-xdist names the test as failed and goes on with another process. What
the test had started ends with it: see `tests/sweeper.py`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import trio

from tests import sweeper

STUCK_SECONDS = 30.0
"""After its timeout, for a process that cannot even run a signal handler."""
FINISH_SECONDS = 120.0
"""For what is left to do after the last test."""
EXIT_STATUS = 70
TRIO = "/trio/_core/"
"""What every task waits in; its callers tell them apart."""

errors = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # While a test runs its number means a file that catches what is written there.
    config.stash[errors] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    sweeper.start_sweeper()


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[errors])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    output = item.config.stash[errors]

    def end(number: int, frame: FrameType | None) -> None:
        os.write(
            output,
            f"\n+ {item.nodeid} hung for {settings.timeout:g} s; its process ends. Where it "
            f"stood:\n\n{tasks()}".encode(),
        )
        faulthandler.dump_traceback(output, all_threads=True)
        sweeper.end(sweeper.below(os.getpid()))
        os._exit(EXIT_STATUS)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    faulthandler.dump_traceback_later(settings.timeout + STUCK_SECONDS, exit=True, file=output)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        faulthandler.dump_traceback_later(
            FINISH_SECONDS, exit=True, file=session.config.stash[errors]
        )


def tasks() -> str:
    """Where each task of trio's waits, children under their parents."""
    root = trio.lowlevel.current_root_task() if trio.lowlevel.in_trio_run() else None
    return "".join(_tree(root, 0)) if root else ""


def _tree(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    indent = "  " * depth
    yield f"{indent}{task.name}\n"
    for frame, line in task.iter_await_frames():
        if TRIO not in frame.f_code.co_filename:
            yield f"{indent}  {frame.f_code.co_filename}:{line} in {frame.f_code.co_name}\n"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda each: each.name):
            yield from _tree(child, depth + 1)
