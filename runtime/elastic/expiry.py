"""`expires`: a worker sets a time limit for a block; the agent kills the worker if the block takes
longer.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.elastic.watchdog import DeadlineRequest, encode_request

WATCHDOG = "UNDERSTUDY_WATCHDOG"
"""The environment variable with the file descriptor of the pipe to the agent."""


@contextmanager
def expires(after: float, scope: str | None = None) -> Iterator[None]:
    """Ask the agent to kill this process if it has not left the block after `after` seconds. If
    this process is the worker, the worker then counts as failed.

    The agent measures the time on its monotonic clock, from when it receives the request. Nothing
    in this process has to run for that, so a call that hangs in C code is ended as well.

    `scope` names the block in the report (by default file and line). Blocks with different names
    may be nested; entering a name again restarts its time. A block belongs to the process that
    entered it: processes forked in it are not watched, and a block that a forked process enters
    ends only that process.

    Does nothing without an agent. Raises ValueError if `after` is not positive or the name is
    longer than about 500 characters.
    """
    if not after > 0 or after == float("inf"):
        raise ValueError(f"a block may take a positive number of seconds, not {after!r}")
    if scope is None:
        # contextlib's __enter__ resumes this generator's frame, and the block's own frame has
        # called __enter__.
        frame = inspect.currentframe()
        caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
        scope = (
            f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
            if caller is not None
            else "?"
        )
    descriptor = os.environ.get(WATCHDOG)
    if descriptor is None:
        yield
        return
    entered = os.getpid()
    enter, leave = (
        encode_request(request)
        for request in (
            DeadlineRequest("enter", scope, after, entered),
            DeadlineRequest("leave", scope, 0.0, entered),
        )
    )
    _tell(int(descriptor), enter)
    try:
        yield
    finally:
        # A process that was forked within the block leaves it too. Only the process that entered it
        # reports that.
        if os.getpid() == entered:
            _tell(int(descriptor), leave)


def _tell(descriptor: int, line: bytes) -> None:
    try:
        os.write(descriptor, line)
    except OSError:
        # The agent has ended, and this process will end with it; or this is a grandchild that did
        # not inherit the pipe.
        pass
