"""A second event loop, in a thread, for the time when users' code blocks the first: it reports what
blocks, and keeps the lease meanwhile.

Why a second loop and not another way: the lease is kept by the loop itself, as cheaply as before;
only when that has stood still past the time of a renewal does this one dial the store, by the same
handshake and calls as any client, and renew in its place. A blocking socket would need a second
implementation of both. Patience of the store for nodes that say "alive but blocked" would need the
same thread and connection, and teach every store a second kind of lease.

Why that is sound: what fences a node is not who renews but the clock. A renewal is counted from
before it was asked for, on the one clock that both loops share (`LeaseClock`), and no named actor
begins to run, or has its outcome told, when that clock says that the lease is in doubt; a loop that
comes back asks it first. The two loops only ever move the time of the last renewal forwards, and a
lost update leaves an earlier time, which is the safe side.

A loop that is blocked for ever must not keep its names for ever, so after `limit` seconds nothing
is renewed for it: its lease ends within its time to live, its names go to others, and it leaves
when it comes back. Code that holds the interpreter's lock (GIL) for longer than a lease stops this
loop as well: then the lease ends, as after SIGSTOP.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import FrameType

import trio

from actors.errors import LeaseLostError, StoreUnavailableError, UnderstudyError
from runtime.environment import Environment
from runtime.hosting.loop_watch import LoopWatch, running_code
from runtime.links.transports import Network
from runtime.membership.cluster_client import open_client
from runtime.membership.lease import LeaseClock
from runtime.store.interface import Store
from runtime.wire.handshake import Peer

BLOCKED_LIMIT_SECONDS = 30.0
"""Seconds for which the lease of a node is kept while its loop is blocked, by default."""

Reach = Callable[[Environment], AbstractAsyncContextManager[Store]]
"""The way to the cluster's store from another event loop, whose environment is given."""

logger = logging.getLogger("understudy.node")


class StandBy:
    """Watches the loop of one node from beside it, and renews `lease` while it is blocked, for at
    most `limit` seconds a time.

    `reach`: None if there is nothing to renew from here: the store is served by the very loop that
    is blocked, and discounts its own pauses.
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
        self._blocked = 0.0
        self.last = ""
        """The last time that the loop was blocked for long, in words; "" if it never was."""

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
    ) -> None:
        """Watch, for ever. Run in the loop beside, whose environment is given, on the same clock.
        `stack`: of the loop that is watched.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look, environment, stack, nursery)
            if reach is not None and self._limit > 0:
                nursery.start_soon(self._stand_in, environment, lease, reach)

    async def _look(
        self, environment: Environment, stack: Callable[[], FrameType | None], nursery: trio.Nursery
    ) -> None:
        told, let_go, longest = False, False, 0.0
        while True:
            await trio.sleep(self._timings.loop_look)
            blocked = self._blocked = self._watch.look(environment.now())
            if told and not blocked:
                self._tell(
                    environment,
                    nursery,
                    logging.WARNING,
                    f"the event loop of node {self._node} runs again, after {longest:.1f} s",
                )
                told, let_go = False, False
            longest = blocked
            if not told and blocked >= self._timings.block_reported:
                told = True
                who, lines = running_code(stack())
                if not let_go:
                    self.last = f"its event loop was blocked by {who}"
                self._tell(
                    environment,
                    nursery,
                    logging.WARNING,
                    f"the event loop of node {self._node} has been blocked for {blocked:.1f} s by "
                    f"{who}: nothing else on the node runs "
                    "meanwhile. Make it a plain `def`, which runs in a thread, or give the actor "
                    'isolation="process". It runs:' + lines,
                )
            if not let_go and blocked > self._limit:
                let_go = True
                who, _ = running_code(stack())
                self.last = f"its event loop was blocked for more than {self._limit:g} s by {who}"
                self._tell(
                    environment,
                    nursery,
                    logging.ERROR,
                    f"the event loop of node {self._node} has been blocked for more than "
                    f"{self._limit:g} s, now by {who}: its lease is "
                    "renewed no more, and its named actors will be started elsewhere",
                )

    def _tell(self, environment: Environment, nursery: trio.Nursery, level: int, text: str) -> None:
        # In a thread of its own: what blocks the loop may be a handler of logs, whose lock would
        # block this loop as well.
        nursery.start_soon(
            partial(environment.in_thread, partial(logger.log, level, "%s", text), abandon=True)
        )

    def _is_wanted(self) -> bool:
        # The upper bound: a loop that is blocked for ever must not keep its names for ever.
        return self._timings.loop_still <= self._blocked <= self._limit

    async def _stand_in(self, environment: Environment, lease: int, reach: Reach) -> None:
        timings = self._timings
        while True:
            await trio.sleep(self._timings.loop_look)
            # The loop had its time to renew, and a little more: it would have done so if it could.
            if self._is_wanted() and environment.now() - self._clock.asked > timings.stood_in_after:
                try:
                    await self._renew(environment, lease, reach)
                except LeaseLostError:
                    # The loop finds out by itself when it runs again.
                    return
                except (UnderstudyError, OSError) as error:
                    # Every such failure, also that no node answers, is only logged: this loop
                    # watches the other, and renews for it, as long as the node lives.
                    logger.info(
                        "node %s: the stand-by loop could not renew its lease: %s",
                        self._node,
                        error,
                    )

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
    secret: bytes,
    network: Network,
    environment: Environment,
) -> AsyncIterator[Store]:
    """The store `identity`, served by the node that `peer()` is at the moment, as a client of it.
    Raises what `open_client` raises.
    """
    address = next(address for address in peer().addresses if address.startswith("tcp:"))
    async with open_client(
        address.removeprefix("tcp:"), cluster, secret, environment, network
    ) as client:
        if client.status["store"]["identity"] != identity:
            # What is our lease in our store may be another's there.
            raise StoreUnavailableError(f"another store is served at {address} now")
        yield client.store
