"""Interrupts: Ctrl-C that meets a task of a simulated process between any two lines of the runtime.

As with a real signal, code that trio protects is not interrupted. The interrupt then meets the next
wait of the task, as if that were the main task of its program.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

import trio

import runtime.calls.call_sender
import runtime.calls.reply_handler
import runtime.links.link
import runtime.links.spinner
from runtime.simulation.scheduler import interrupt_wait

INTERRUPTED = (
    os.path.join(os.path.dirname(runtime.links.link.__file__), ""),
    runtime.calls.call_sender.__file__,
    runtime.calls.reply_handler.__file__,
)
"""Lines are counted in these files: what a caller does between its call and the answer, and nothing
that a process does once only, so that a seed gives the same run whatever ran before it.
"""

SPINNER = runtime.links.spinner.__file__
"""A task that polls executes most of its lines here, and looks for what has not come yet."""


def _as_by_signal() -> None:
    raise KeyboardInterrupt


RAISE = FunctionType(
    _as_by_signal.__code__, {"__name__": "trio._core._ki", "__builtins__": builtins}
)
"""Raises an interrupt whose innermost frame is that of trio's handler of the signal: by this the
runtime knows it from one that user code raises.
"""


class _Interrupt(trio.abc.Instrument):
    """Interrupts `task` after so many lines of the runtime that it executes, those of the spinner
    among them if it is `spinning`.
    """

    def __init__(self, task: trio.lowlevel.Task, lines: int, *, spinning: bool) -> None:
        self.task = task
        self._left = lines
        self._spinning = spinning
        self._before: Any = None
        self._struck = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the lines of this step, if it is one of the task."""
        if task is self.task:
            # Coverage or a debugger may trace as well.
            self._before = sys.gettrace()
            sys.settrace(self._on_call)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count no more. What could not interrupt the step interrupts the wait after it."""
        if task is self.task:
            sys.settrace(self._before)
            if self._left <= 0 and not self._struck:
                self._struck = interrupt_wait(task, RAISE)

    def withdraw(self) -> None:
        """Interrupt nothing from now on."""
        sys.settrace(self._before)
        self._struck = True

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if file.startswith(INTERRUPTED) and (self._spinning or file != SPINNER):
            return self._on_line
        # The lines of this frame are not looked at.
        return None

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not self._struck:
            self._left -= 1
            if self._left <= 0 and not trio.lowlevel.currently_ki_protected():
                self._struck = True
                RAISE()
        return self._on_line


@contextmanager
def interrupted_after(lines: int, *, spinning: bool = True) -> Iterator[None]:
    """Interrupt the running task after so many lines of the runtime, if it is still in this block;
    0: never. Unless `spinning`, the lines of a spin count for nothing, so that most interrupts meet
    what a task does with a call or with frames that it has polled. The KeyboardInterrupt comes out
    of the block.
    """
    if not lines:
        yield
        return
    instrument = _Interrupt(trio.lowlevel.current_task(), lines, spinning=spinning)
    trio.lowlevel.add_instrument(instrument)
    # In the middle of a step.
    instrument.before_task_step(instrument.task)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(instrument)
        instrument.withdraw()
