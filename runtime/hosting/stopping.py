"""How an actor is brought to its end in order: what is waited for, for how long, and what is left behind."""

from __future__ import annotations

import logging
import math

import trio

from actors.supervision import ExitReason
from runtime.hosting.cell import Cell
from runtime.hosting.home import Home
from runtime.hosting.threads import Threads
from runtime.user_errors import is_cancellation, is_interrupt, traceback_of

STOP_SECONDS = 5.0
"""How long an actor is given to stop where nobody says otherwise."""

LAST_SECONDS = 1.0
"""At least for `on_stop`, and for an actor's own tasks to end, when methods have taken all of the time."""

logger = logging.getLogger("understudy.actors")


async def bring_to_an_end(
    cell: Cell, home: Home | None, reason: ExitReason, seconds: float | None, nursery: trio.Nursery, threads: Threads
) -> bool:
    """Let what runs in the cell finish, and call `on_stop`, within `seconds`; then cancel what is left. Not to be cancelled itself.

    Returns False if anything had to be cancelled, or was left behind: it did not stop in its time.

    A supervisor's `on_stop` comes first, for it is that which ends its running methods. What cannot be cancelled, because it shields
    itself, is left behind in `nursery`, which is the node's.
    """
    until = trio.current_time() + (math.inf if seconds is None else seconds)
    if type(cell.instance).supervises is True:
        in_time = await _say_goodbye(cell, reason, until, nursery, threads)
        await _finish(cell, trio.current_time() + LAST_SECONDS)
    else:
        finished = await _finish(cell, until)
        in_time = await _say_goodbye(cell, reason, max(until, trio.current_time() + LAST_SECONDS), nursery, threads) and finished
    with trio.move_on_after(LAST_SECONDS):
        if home is not None:
            await home.close()
    return in_time


async def _finish(cell: Cell, until: float) -> bool:
    with trio.move_on_at(until):
        await cell.wait_quiet()
    late = tuple(cell.running)
    for job in late:
        if job.runner is not None:
            job.runner.cancel()
    return not late


async def _say_goodbye(cell: Cell, reason: ExitReason, until: float, nursery: trio.Nursery, threads: Threads) -> bool:
    over = trio.Event()
    nursery.start_soon(run_on_stop, cell, reason, until, threads, over, name=f"on_stop of {cell.address.name}")
    with trio.move_on_at(until + LAST_SECONDS):
        await over.wait()
    if not over.is_set():
        logger.error("%s: on_stop has not returned in its time; it is left behind", cell.address.name)
    # What was cancelled at the end of its time has ended no earlier.
    return over.is_set() and trio.current_time() < until


async def run_on_stop(cell: Cell, reason: ExitReason, until: float, threads: Threads, over: trio.Event) -> None:
    """Call the actor's hook, until then, and set `over`. What it raises is logged."""
    try:
        with trio.CancelScope(deadline=until):
            await threads.hook(cell.instance.on_stop, reason)
    except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
        if is_cancellation(error) or is_interrupt(error):
            raise
        logger.error("%s: on_stop raised\n%s", cell.address.name, traceback_of(error))
    finally:
        over.set()
