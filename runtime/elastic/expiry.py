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
    """Have the agent kill this process if it has not left the block after `after` seconds. If this
    process is the worker, the worker then counts as failed.

    The agent measures the time, on its monotonic clock, from when it hears of it: nothing in this
    process has to run for that, so a call that is stuck in C code ends as well. `scope` names the
    block in the report (left out: file and line); blocks with different names may be nested, and
    one that is entered again while it is open is watched anew. It belongs to the process that
    entered it: what that forks meanwhile is not watched, and what a forked process enters ends that
    one alone. Without an agent it changes nothing. Raises ValueError if `after` is not positive, or
    the name is longer than some 500 characters.
    """
    if not after > 0 or after == float("inf"):
        raise ValueError(f"a block may take a positive number of seconds, not {after!r}")
    if scope is None:
        # This generator's frame is resumed by contextlib's __enter__, which the block's own frame
        # has called.
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
        # A process that was forked within the block leaves it as well; only the process that
        # entered it reports that.
        if os.getpid() == entered:
            _tell(int(descriptor), leave)


def _tell(descriptor: int, line: bytes) -> None:
    try:
        os.write(descriptor, line)
    except OSError:
        # The agent has ended, and this process ends with it; or this is a grandchild, which did not
        # inherit the pipe.
        pass
