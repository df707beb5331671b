"""The stand-by: a second event loop, in a thread. While user code blocks the node's loop, it
reports the blocking code and renews the node's lease.

Normally the node's loop renews the lease itself. Only if a renewal is overdue and the loop does not
move, or moves so slowly that a request and its answer take many of its passes' time, the stand-by
connects to the store, as any client does, and renews instead. (A blocking socket would need a
second implementation of handshake and calls.)

This is safe because a node is fenced by the clock of its lease (`LeaseClock`), not by the loop that
renews: no named actor begins to run, and no outcome is sent, while that clock says that the lease
is in doubt, and a loop that was blocked reads it first.

After `limit` seconds the stand-by stops renewing: the lease ends, the names go to other nodes, and
the node leaves when its loop runs again. Code that holds the interpreter's lock (GIL) for longer
than a lease stops the stand-by as well; the lease ends then, as after SIGSTOP.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from types import FrameType

import trio

from actors.errors import LeaseLostError, StoreUnavailableError, UnderstudyError
from actors.own_logger import own_logger
from runtime.environment import Environment, NoThreadError
from runtime.hosting.loop_watch import LoopWatch, remedy, running_code
from runtime.hosting.stacks import blocked_report
from runtime.limited_log import LimitedLog
from runtime.links.keyring import Keyring
from runtime.links.transports import Network
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.membership.lease import LeaseClock
from runtime.store.interface import Store
from runtime.user_errors import guarded, text_of
from runtime.wire.handshake import Peer

BLOCKED_LIMIT_SECONDS = 30.0
"""For how many seconds, by default, the stand-by renews the lease of a blocked node."""

Reach = Callable[[Environment], AbstractAsyncContextManager[Store]]
"""The way to the cluster's store from another event loop, whose environment is given."""

Report = Callable[
    [Environment],
    AbstractAsyncContextManager[Callable[[dict[str, object]], Awaitable[None]]],
]
"""The way to report from another event loop, to another node, what blocks this node's loop."""

REPORT_EVERY_SECONDS = 1.0
"""From one report to the next while the loop is blocked."""

LINES_AT_ONCE = 4

READ_SECONDS = 1.0
"""How long a report waits for the lines of source that it shows."""

logger = own_logger("understudy.node")


class StandBy:
    """Watches the loop of one node from a thread, and renews the node's lease while the loop is
    blocked, for at most `limit` seconds at a time, or too slow to renew it.
    """

    def __init__(
        self, node: str, environment: Environment, clock: LeaseClock, limit: float
    ) -> None:
        self._node = node
        self._environment = environment
        self._clock = clock
        self._limit = limit
        self._timings = timings = environment.timings
        self._watch = LoopWatch(
            environment.now(), timings.loop_beat, timings.loop_look + timings.loop_late
        )
        # Seconds for which the node's loop has been blocked. Written by `_watch_loop` alone, and
        # read by other tasks of the stand-by's own loop: no lock is needed.
        self._blocked = 0.0
        # True while the loop runs and each of its passes takes long. Likewise.
        self._slow = False
        # Lines of logs that are written at once. A limiter of their own: those that a handler holds
        # up take no thread from what renews the lease.
        self._lines = trio.CapacityLimiter(LINES_AT_ONCE)
        # Set while either is: what acts upon a block has nothing to look for before one.
        self._block = trio.Event()
        self._last = ""
        self._last_at = -math.inf
        # The text about the last long block, and when it was last seen. Written by the stand-by's
        # thread, read by the node's: the text first, so that a time is never of a text before.

    def why(self, since: float) -> str:
        """A text about the last long block of the loop, if it lasted until after `since`; "" if
        there was none: an earlier one has not cost what came later.
        """
        return self._last if self._last_at >= since else ""

    async def beat(self) -> None:
        """Report that the loop runs, every `Timings.loop_beat`, for ever. Run in the loop that is
        watched.
        """
        while True:
            self._watch.beat(self._environment.now())
            await trio.sleep(self._timings.loop_beat)

    async def run(
        self,
        environment: Environment,
        stack: Callable[[], FrameType | None],
        lease: int,
        reach: Reach | None,
        report: Report | None = None,
        serves_store: bool = False,
    ) -> None:
        """Watch until cancelled. Runs in the second loop, whose environment has the same clock.
        `stack` returns the stack of the watched loop. `reach`: None if there is nothing to renew,
        because the blocked loop itself serves the store (`serves_store`), which discounts its own
        pauses, or if there is no way to the store. `report`: None if there is no way to tell
        another node.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_loop, environment, stack, nursery)
            if reach is not None and self._limit > 0:
                nursery.start_soon(self._stand_in, environment, lease, reach, nursery)
            if serves_store:
                nursery.start_soon(self._vouch, environment)
            if report is not None:
                nursery.start_soon(self._report, environment, stack, report, nursery)

    async def _watch_loop(
        self, environment: Environment, stack: Callable[[], FrameType | None], nursery: trio.Nursery
    ) -> None:
        reported, let_go, longest = False, False, 0.0
        while True:
            await trio.sleep(self._timings.loop_look)
            now = environment.now()
            blocked = self._blocked = self._watch.look(now)
            self._slow = self._watch.late(now) >= self._timings.loop_still
            if blocked or self._slow:
                self._block.set()
            elif self._block.is_set():
                # A new one for the next block: an event cannot be taken back.
                self._block = trio.Event()
            if reported and not blocked:
                self._log(
                    environment,
                    nursery,
                    logging.WARNING,
                    f"the event loop of node {self._node} runs again, after {longest:.1f} s",
                )
                reported, let_go = False, False
            longest = blocked
            if blocked and reported:
                self._last_at = now
            if not reported and blocked >= self._timings.block_reported:
                reported = True
                # Read while the other thread goes on: what it says is a guess, and only shown.
                innermost = stack()
                who, lines = running_code(innermost)
                if not let_go:
                    self._last = f"its event loop was blocked by {who}"
                    self._last_at = now
                self._log(
                    environment,
                    nursery,
                    logging.WARNING,
                    f"the event loop of node {self._node} has been blocked for {blocked:.1f} s by "
                    f"{who}: nothing else on the node runs "
                    f"meanwhile. {remedy(innermost, who)}. It runs:{lines}",
                )
            if not let_go and blocked > self._limit:
                let_go = True
                who, _ = running_code(stack())
                self._last = f"its event loop was blocked for more than {self._limit:g} s by {who}"
                self._log(
                    environment,
                    nursery,
                    logging.ERROR,
                    f"the event loop of node {self._node} has been blocked for more than "
                    f"{self._limit:g} s, now by {who}: its lease is "
                    "renewed no more, and its named actors will be started elsewhere",
                )

    async def _next_look(self) -> None:
        """Wait until the loop is blocked or slow; while it is, for the time of a look."""
        if self._block.is_set():
            await trio.sleep(self._timings.loop_look)
        else:
            await self._block.wait()

    def _log(self, environment: Environment, nursery: trio.Nursery, level: int, text: str) -> None:
        self._write(environment, nursery, partial(logger.log, level, "%s", text))

    def _write(
        self, environment: Environment, nursery: trio.Nursery, line: Callable[[], None] | None
    ) -> None:
        if line is None:
            return

        async def write() -> None:
            # In a thread of its own: what blocks the loop may be a handler of logs, whose lock
            # would block this loop as well. Without a thread the line is lost, and not this loop.
            with suppress(NoThreadError):
                # Nor may a handler end it, whatever it raises.
                work = partial(guarded, line, lambda _: None)
                await environment.in_thread(work, self._lines, abandon=True)

        nursery.start_soon(write)

    async def _report(
        self,
        environment: Environment,
        stack: Callable[[], FrameType | None],
        report: Report,
        nursery: trio.Nursery,
    ) -> None:
        """Report to another node what blocks the loop, while it is blocked: this node answers no
        requests.
        """
        timings = self._timings
        log = LimitedLog(logger, environment.now)
        # Threads that read source, of which one may never return: the next report does without.
        readers = trio.CapacityLimiter(1)
        while True:
            await self._next_look()
            if self._blocked < timings.block_reported:
                continue
            try:
                with trio.move_on_after(timings.lease) as patience:
                    async with report(environment) as tell:
                        # Dialling is bounded; what follows is by each call's own time.
                        patience.deadline = float("inf")
                        while self._blocked >= timings.block_reported:
                            facts = await self._describe(environment, stack(), readers)
                            await tell(facts)
                            await trio.sleep(REPORT_EVERY_SECONDS)
                        await tell({"seconds": 0})
            except Exception as error:
                # Whatever it is, this task goes on: its end would be that of the stand-by, which
                # renews the lease. RuntimeError, for one: the members are read while their own loop
                # may go on.
                text = "node %s could not tell of its blocked loop: %s"
                line = log.line(logging.DEBUG, text, self._node, text_of(error))
                self._write(environment, nursery, line)
                await trio.sleep(REPORT_EVERY_SECONDS)

    async def _describe(
        self, environment: Environment, innermost: FrameType | None, readers: trio.CapacityLimiter
    ) -> dict[str, object]:
        """What blocks the loop, with the lines of its source if they can be read soon."""
        seconds = self._blocked
        # From a disk that may not answer, so not in this loop, which renews the lease.
        read = partial(
            guarded, partial(blocked_report, innermost, seconds), lambda _: dict[str, object]()
        )
        facts: dict[str, object] = {}
        with trio.move_on_after(READ_SECONDS), suppress(NoThreadError):
            facts = await environment.in_thread(read, readers, abandon=True)
        return facts or blocked_report(innermost, seconds, source=False)

    def _stands_still(self) -> bool:
        # The upper bound: a loop that stays blocked must not keep its names forever.
        return self._timings.loop_still <= self._blocked <= self._limit

    def _is_wanted(self) -> bool:
        # A renewal by the loop takes several of its passes: to ask, to write, to read, to wake the
        # task that waits. Passes of some tenths of a second are no block, but too slow for that.
        return self._stands_still() or (self._slow and self._blocked <= self._limit)

    async def _vouch(self, environment: Environment) -> None:
        """Report that the node keeps its lease while its loop is blocked. The store ends no leases
        meanwhile, because it is blocked too, and adds the time of the block to all of them
        afterwards.
        """
        while True:
            await self._next_look()
            if self._stands_still():
                self._clock.report(environment.now())

    async def _stand_in(
        self, environment: Environment, lease: int, reach: Reach, nursery: trio.Nursery
    ) -> None:
        timings = self._timings
        log = LimitedLog(logger, environment.now)
        while True:
            await self._next_look()
            # Later than the loop itself would have renewed.
            if self._is_wanted() and environment.now() - self._clock.asked > timings.stood_in_after:
                try:
                    await self._renew(environment, lease, reach)
                except LeaseLostError:
                    # The loop finds out by itself when it runs again.
                    return
                except (UnderstudyError, OSError) as error:
                    # Every such failure, also that no node answers, is only logged: this loop
                    # watches the other, and renews for it, as long as the node lives.
                    text = "node %s: the stand-by loop could not renew its lease: %s"
                    line = log.line(logging.INFO, text, self._node, text_of(error))
                    self._write(environment, nursery, line)

    async def _renew(self, environment: Environment, lease: int, reach: Reach) -> None:
        """Renew the lease for as long as that is wanted. Raises the errors of the store, and of
        `reach`.
        """
        renew_every = self._timings.renew_every
        # Dialling is given up after the length of a lease: a store that cannot be reached then is
        # found by the next attempt.
        with trio.move_on_after(self._timings.lease) as patience:
            async with reach(environment) as store:
                patience.deadline = float("inf")
                while self._is_wanted():
                    # Counted from before the request, which is the safe side. Both loops may renew
                    # at the same time: the clock only moves forwards, and a lost update leaves an
                    # earlier time, which is safe as well.
                    asked = environment.now()
                    with trio.move_on_after(renew_every):
                        await store.keep_alive(lease)
                        self._clock.on_renewed(asked)
                    again = asked + renew_every
                    # the other loop can set no event of this one
                    while self._is_wanted() and environment.now() < again:  # noqa: ASYNC110
                        await trio.sleep(self._timings.loop_look)


@asynccontextmanager
async def reach_by_member(
    peer: Callable[[], Peer],
    identity: str,
    cluster: str,
    secret: bytes | Keyring,
    network: Network,
    environment: Environment,
) -> AsyncIterator[Store]:
    """The store `identity`, served by the node that `peer()` is at the moment, as a client of it.
    Raises what `open_client` raises.
    """
    address = next(address for address in peer().addresses if address.startswith("tcp:"))
    access = ClusterAccess(cluster, secret, environment, network)
    async with open_client(address.removeprefix("tcp:"), access, all_members=False) as client:
        if client.status["store"]["identity"] != identity:
            # What is our lease in our store may be another's there.
            raise StoreUnavailableError(f"another store is served at {address} now")
        yield client.store
