"""How an actor is brought to its end in order: what is waited for, for how long, and what is left behind."""

from __future__ import annotations

import logging
import math

import trio

from actors.supervision import ExitReason
from runtime.hosting.cell import Cell
from runtime.hosting.home import Home

STOP_SECONDS = 5.0
"""How long an actor is given to stop where nobody says otherwise."""

LAST_SECONDS = 1.0
"""At least for `on_stop`, and for an actor's own tasks to end, when methods have taken all of the time."""

logger = logging.getLogger("understudy.actors")


async def bring_to_an_end(cell: Cell, home: Home | None, reason: ExitReason, seconds: float | None, nursery: trio.Nursery) -> None:
    """Let what runs in the cell finish, and call `on_stop`, within `seconds`; then cancel what is left. Not to be cancelled itself.

    A supervisor's `on_stop` comes first, for it is that which ends its running methods. What cannot be cancelled, because it shields
    itself, is left behind in `nursery`, which is the node's.
    """
    until = trio.current_time() + (math.inf if seconds is None else seconds)
    if cell.instance.supervises:
        await _say_goodbye(cell, reason, until, nursery)
        await _finish(cell, trio.current_time() + LAST_SECONDS)
    else:
        await _finish(cell, until)
        await _say_goodbye(cell, reason, max(until, trio.current_time() + LAST_SECONDS), nursery)
    with trio.move_on_after(LAST_SECONDS):
        if home is not None:
            await home.close()


async def _finish(cell: Cell, until: float) -> None:
    with trio.move_on_at(until):
        await cell.wait_quiet()
    for job in tuple(cell.running):
        if job.runner is not None:
            job.runner.cancel()


async def _say_goodbye(cell: Cell, reason: ExitReason, until: float, nursery: trio.Nursery) -> None:
    over = trio.Event()

    async def goodbye() -> None:
        try:
            with trio.CancelScope(deadline=until):
                await cell.instance.on_stop(reason)
        except Exception:
            logger.exception("%s: on_stop raised", cell.address.name)
        finally:
            over.set()

    nursery.start_soon(goodbye, name=f"on_stop of {cell.address.name}")
    with trio.move_on_at(until + LAST_SECONDS):
        await over.wait()
    if not over.is_set():
        logger.error("%s: on_stop has not returned in its time; it is left behind", cell.address.name)
