"""The end of a process that is there for its node alone: it comes, whatever runs in its threads.

A thread cannot be stopped, and trio waits for a plain method that runs in one. A method that blocks
for ever would keep a node's process that was asked to leave: the node has left the cluster, and
service managers and operators wait for a process that does nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from actors.own_logger import own_logger
from runtime.hosting.breakpoints import breakpoints_passed_over
from runtime.node import Node, internals_of

MOST_NAMED = 5
"""Methods that the log names."""

logger = own_logger("understudy.node")


@asynccontextmanager
async def process_of_node(
    opening: AbstractAsyncContextManager[Node],
    exit_now: Callable[[int], object] = os._exit,
    seconds: float | None = None,
) -> AsyncIterator[Node]:
    """Within the block the node is open, as in `opening`. From the end of the block on it has
    `seconds` to leave, by default the time after which its end is cut short and one last step more;
    then the process ends by `exit_now(status)`, even if plain methods still run.
    """
    over = threading.Event()
    failed = False
    try:
        async with opening as node:
            try:
                with breakpoints_passed_over():
                    yield node
            except BaseException:
                failed = True
                raise
            finally:
                timings = internals_of(node).environment.timings
                limit = timings.leaving + timings.goodbye if seconds is None else seconds

                def watch() -> None:
                    # In a thread of its own: the loop may be what is blocked.
                    if not over.wait(limit):
                        _end(node, failed, exit_now)

                try:
                    threading.Thread(target=watch, name="end of process", daemon=True).start()
                except RuntimeError as error:
                    # The system grants no further thread.
                    logger.warning(
                        "the end of this process waits for its threads, as long as they take: %s",
                        error,
                    )
    finally:
        over.set()


def _end(node: Node, failed: bool, exit_now: Callable[[int], object]) -> None:
    failed = failed or node._given_up is not None
    # A copy first: the loop may change it meanwhile.
    running = tuple(internals_of(node).endpoint.host.workers.running.values())
    names = [one.full_name for one in running if one.definition.in_thread]
    which = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    logger.warning(
        "node %s has left, and its process ends now without waiting for its threads%s",
        node.name,
        f", in which these methods still run: {which}" if names else "",
    )
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # Closed, full or not there: nothing is lost that could be kept.
            pass
    exit_now(1 if failed else 0)
