"""Sites: where in a user's program a value was made."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import trio

import actors

OURS = (f"{Path(actors.__file__).parent}/", f"{Path(__file__).parents[1]}/")
TRIO = f"{Path(trio.__file__).parent}/"


def calling_site() -> str:
    """File and line of whoever called into the runtime, as `/home/me/job.py:12`; empty if that was nobody's code on this stack.

    The first frame outside of `actors` and `runtime` counts. Where trio's frames come first, the task began with a call of the runtime, so
    that what follows is only who runs the event loop.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(TRIO):
            return ""
        if not path.startswith(OURS):
            return f"{path if path.startswith('<') else Path(path).absolute()}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
