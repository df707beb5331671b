"""The orderly stop of an actor: what it waits for, for how long, and what it leaves behind."""

from __future__ import annotations

import math

import trio

from actors.actor import Actor
from actors.own_logger import own_logger
from actors.supervision import ExitReason
from runtime.hosting.cell import ActorCell
from runtime.hosting.lazy_nursery import LazyNursery
from runtime.hosting.threads import Threads
from runtime.user_errors import is_cancellation, is_interrupt, traceback_of

logger = own_logger("understudy.actors")

STOP_SECONDS = 5.0
"""Default time for an actor to stop that is no supervisor."""

STOPS_IN_A_ROW = 50
"""Actors with nothing to do that are stopped before the other tasks of the event loop have their
turns: about a millisecond's work.
"""

LAST_SECONDS = 1.0
"""Seconds that `on_stop`, and an actor's own tasks, get at least when methods have used all of the
time.
"""


def usual_seconds(cell: ActorCell) -> float | None:
    """Return the time for an actor to stop that nothing was said about, as `ChildSpec` has it: no
    limit for a supervisor, whose children have times of their own. From OTP.
    """
    return None if type(cell.instance).supervises is True else STOP_SECONDS


async def bring_to_an_end(
    cell: ActorCell,
    own_tasks: LazyNursery | None,
    reason: ExitReason,
    seconds: float | None,
    nursery: trio.Nursery,
    threads: Threads,
) -> bool:
    """Let the invocations of the cell finish, and call `on_stop`, within `seconds`; then cancel the
    rest. Must not be cancelled itself.

    `own_tasks`: the nursery of the actor's own tasks, None if it was never used. Returns False if
    anything had to be cancelled or was left behind: it did not stop in its time.

    A supervisor's `on_stop` comes first, because it ends the supervisor's running methods. There is
    none for an actor whose constructor has not returned: it may lack what `on_stop` uses. Code
    that cannot be cancelled, because it shields itself, is left behind in `nursery`, which is the
    node's.
    """
    if own_tasks is None and stops_at_once(cell):
        return True
    until = trio.current_time() + (math.inf if seconds is None else seconds)
    if not cell.constructed:
        # Its start is cancelled, and no call has begun. Its constructor may have begun tasks.
        in_time = True
    elif type(cell.instance).supervises is True:
        in_time = await _say_goodbye(cell, reason, until, nursery, threads)
        await _finish(cell, trio.current_time() + LAST_SECONDS)
    else:
        finished = await _finish(cell, until)
        in_time = (
            await _say_goodbye(
                cell, reason, max(until, trio.current_time() + LAST_SECONDS), nursery, threads
            )
            and finished
        )
    with trio.move_on_after(LAST_SECONDS):
        if own_tasks is not None:
            await own_tasks.close()
    return in_time


async def _finish(cell: ActorCell, until: float) -> bool:
    with trio.move_on_at(until):
        await cell.wait_quiet()
    late = tuple(cell.running)
    for invocation in late:
        if invocation.runner is not None:
            invocation.runner.cancel()
    return not late


async def _say_goodbye(
    cell: ActorCell, reason: ExitReason, until: float, nursery: trio.Nursery, threads: Threads
) -> bool:
    over = trio.Event()
    nursery.start_soon(
        run_on_stop, cell, reason, until, threads, over, name=on_stop_of(cell.address.name)
    )
    with trio.move_on_at(until + LAST_SECONDS):
        await over.wait()
    if not over.is_set():
        logger.error(
            "%s: on_stop has not returned in its time and ignores cancellation; it is left running",
            cell.address.name,
        )
    # An on_stop that was cancelled at `until` returned no earlier than that: not in time.
    return over.is_set() and trio.current_time() < until


def on_stop_of(actor: str) -> str:
    """The name of the task that runs the `on_stop` of an actor."""
    return f"on_stop of {actor}"


async def run_on_stop(
    cell: ActorCell, reason: ExitReason, until: float, threads: Threads, over: trio.Event
) -> None:
    """Call `on_stop` and cancel it at the time `until`, then set `over`. An exception is logged."""
    try:
        with trio.CancelScope(deadline=until):
            await threads.hook(cell.instance.on_stop, reason)
    except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
        if is_cancellation(error) or is_interrupt(error):
            raise
        logger.error("%s: on_stop raised\n%s", cell.address.name, traceback_of(error))
    finally:
        over.set()


def stops_at_once(cell: ActorCell) -> bool:
    """Return True for an actor without calls that run or wait, and whose class has no `on_stop` of
    its own: its stop waits for nothing.
    """
    cls = type(cell.instance)
    return (
        cls.on_stop is Actor.on_stop
        and cls.__getattribute__ is object.__getattribute__
        and "on_stop" not in cell.instance.__dict__
        and not cell.running
        and not cell.mailbox
    )
