"""The progress bar of a `map`, on stderr: drawn by rich (the extra `cli`) on a terminal, otherwise
one line of plain text. Both say what `progress_text` says.

A terminal may be stopped, and a pipe full: everything is written in a thread, so that the node's
event loop does not wait for either.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TextIO

import trio

from actors.own_logger import own_logger
from actors.pools import MapCounts
from runtime.environment import Environment
from runtime.user_errors import summary_of

DRAW_SECONDS = 0.25
"""Seconds between two states of a bar on a terminal."""

LINE_SECONDS = 30.0
"""Seconds between two lines where no line can be written over, such as in the log of a job."""

END_SECONDS = 1.0
"""How long the last state may take to be written."""

logger = own_logger("understudy.pools")


class ProgressBar(Protocol):
    """Shows the counts of a map. The methods block, and raise whatever the stream raises."""

    every: float
    """Seconds between two states."""

    def show(self, counts: MapCounts) -> None:
        """Show how far it has come."""
        ...

    def close(self, counts: MapCounts) -> None:
        """Show the last state, and leave it there."""
        ...


def progress_text(counts: MapCounts) -> str:
    """Counts in words, such as `120 of 400 done (30%), 2 failed, 40.1/s, 7 s left`."""
    over = counts.done + counts.failed
    if counts.total is None:
        parts = [f"{over} done"]
    else:
        share = f" ({100 * over // counts.total}%)" if counts.total else ""
        parts = [f"{over} of {counts.total} done{share}"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.resumed:
        parts.append(f"{counts.resumed} of them from the journal")
    if counts.repeated:
        parts.append(f"{counts.repeated} repeated")
    if counts.rate:
        parts.append(f"{counts.rate:.0f}/s" if counts.rate >= 100 else f"{counts.rate:.3g}/s")
    if counts.seconds_left:
        parts.append(f"{duration_text(counts.seconds_left)} left")
    elif over == counts.total:
        parts.append(f"in {duration_text(counts.seconds)}")
    else:
        parts.append(f"{duration_text(counts.seconds)} so far")
    return ", ".join(parts)


def duration_text(seconds: float) -> str:
    """Seconds for people: `7 s`, `2 min 5 s`, `3 h 20 min`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class PlainBar:
    """Lines of text: on a terminal one that is written over, elsewhere one now and then."""

    def __init__(self, what: str, stream: TextIO, *, in_place: bool) -> None:
        self.every = DRAW_SECONDS if in_place else LINE_SECONDS
        self._what = what
        self._stream = stream
        self._in_place = in_place
        self._first = True

    def show(self, counts: MapCounts) -> None:
        """Write the present counts."""
        if not self._in_place and self._first:
            # Nothing is done yet, and a short map gets by with the one line of its end.
            self._first = False
            return
        self._write(counts, "" if self._in_place else "\n")

    def close(self, counts: MapCounts) -> None:
        """Write the last counts, and end the line."""
        self._write(counts, "\n")

    def _write(self, counts: MapCounts, end: str) -> None:
        # Return to the beginning of the line, and clear it to its end.
        start = "\r\x1b[K" if self._in_place else ""
        self._stream.write(f"{start}{self._what}: {progress_text(counts)}{end}")
        self._stream.flush()


class RichBar:
    """A bar drawn by rich."""

    def __init__(self, what: str, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self.every = DRAW_SECONDS
        # Without a thread of its own, and without taking over stdout: what a program prints there
        # would end up on stderr.
        self._progress: Any = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[what]}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(file=stream),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: Any = self._progress.add_task("", total=None, what=what, text="")

    def show(self, counts: MapCounts) -> None:
        """Draw the present counts. Hides the cursor from the first time on."""
        # Here and not where it is made: from now on the cursor is hidden, until `close`.
        self._progress.start()
        self._progress.update(
            self._task,
            total=counts.total,
            completed=counts.done + counts.failed,
            text=progress_text(counts),
        )
        self._progress.refresh()

    def close(self, counts: MapCounts) -> None:
        """Draw the last counts, and show the cursor again."""
        try:
            self.show(counts)
        finally:
            self._progress.stop()


def open_bar(what: str, stream: TextIO | None) -> ProgressBar | None:
    """The bar for a stream; None if the process has none, as daemons have none."""
    if stream is None:
        return None
    if not stream.isatty():
        return PlainBar(what, stream, in_place=False)
    try:
        return RichBar(what, stream)
    except ImportError:
        return PlainBar(what, stream, in_place=True)


async def show_progress(
    what: str, counts: Callable[[], MapCounts], environment: Environment
) -> None:
    """Show the counts on stderr until it is cancelled, and once more then. Raises only
    Cancelled: a stream that fails ends the bar, and not the map.
    """
    lock = threading.Lock()
    closed = False

    def show(bar: ProgressBar, present: MapCounts) -> None:
        with lock:
            # A thread that was left to itself must not hide the cursor again.
            if not closed:
                bar.show(present)

    def close(bar: ProgressBar, present: MapCounts) -> None:
        nonlocal closed
        with lock:
            closed = True
            bar.close(present)

    try:
        bar = await environment.in_thread(partial(open_bar, what, sys.stderr), abandon=True)
        if bar is None:
            return
        try:
            while True:
                await environment.in_thread(partial(show, bar, counts()), abandon=True)
                await trio.sleep(bar.every)
        finally:
            # Also when the map is left in the middle: a terminal gets its cursor back.
            with trio.CancelScope(shield=True), trio.move_on_after(END_SECONDS):
                await environment.in_thread(partial(close, bar, counts()), abandon=True)
    except Exception as error:  # whatever sys.stderr is: closed, or an object of the user's
        logger.info("the progress of %s is not shown any more: %s", what, summary_of(error))
