"""Names that a node is claiming for actors about to start, with the calls that wait for them.

Other nodes may see a claim in the store before the node that has made it, and call the actor
before its cell exists. A refusal would send them in circles. So their calls wait here, and are
handled in order, before those that arrive once the cell is there.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import attrs
import trio

from actors.options import DEFAULT_MAILBOX_LIMIT
from actors.own_logger import own_logger

logger = own_logger("understudy.actors")


@attrs.define(eq=False)
class AwaitedClaim:
    """A name that a node is claiming, with the calls that have arrived meanwhile, in order."""

    calls: list[Callable[[], None]] = attrs.field(factory=list)
    under_way: int = 0
    """How many starts claim it. At most one of them succeeds."""
    is_over: bool = False
    """True once the calls are about to be handled, in a task of their own."""
    over: trio.Event | None = None
    """Set when it is over; there once a task waits for that."""


class AwaitedClaims:
    """The awaited claims of one node. `cells`: the names of the actors that are there."""

    def __init__(self, nursery: trio.Nursery, cells: Container[str]) -> None:
        self._nursery = nursery
        self._cells = cells
        self.by_name: dict[str, AwaitedClaim] = {}

    def begin(self, name: str) -> AwaitedClaim:
        """Let calls for this name wait from now on, until `end`."""
        claim = self.by_name.setdefault(name, AwaitedClaim())
        claim.under_way += 1
        return claim

    def end(self, name: str, claim: AwaitedClaim, *, succeeded: bool) -> None:
        """Handle the calls that have waited for the claim. If it has succeeded, the caller makes
        the actor's cell before it waits for anything.
        """
        claim.under_way -= 1
        # If two claims for one name run at once, one of them fails, and the calls wait for the
        # other one. They are handled once, whichever ends last.
        if (succeeded or not claim.under_way) and not claim.is_over:
            claim.is_over = True
            if claim.over is not None:
                claim.over.set()
            if claim.calls:
                # Not before the cell is there: the caller goes on to make it in the same step.
                self._nursery.start_soon(self._handle, name, claim)
            else:
                # What arrives from now on finds the cell, or that there is none.
                del self.by_name[name]

    async def wait_over(self, name: str) -> bool:
        """Wait until a claim of this name has succeeded, or all that are under way have failed.
        False at once if none is under way.
        """
        claim = self.by_name.get(name)
        if claim is None or claim.is_over:
            return False
        if claim.over is None:
            claim.over = trio.Event()
        await claim.over.wait()
        return True

    def takes(self, name: str) -> bool:
        """True if a call for this name has to wait, and there is room for it; see `add`."""
        claim = self.by_name.get(name)
        return (
            claim is not None
            and (claim.is_over or name not in self._cells)
            and len(claim.calls) < DEFAULT_MAILBOX_LIMIT
        )

    def add(self, name: str, call: Callable[[], None]) -> None:
        """Let a call wait for a name that `takes` it."""
        self.by_name[name].calls.append(call)

    def close(self) -> None:
        """Handle all calls that wait, and let none wait from now on: the node has left."""
        for name, claim in list(self.by_name.items()):
            claim.is_over = True
            if claim.over is not None:
                claim.over.set()
            self._handle_all(name, claim)

    async def _handle(self, name: str, claim: AwaitedClaim) -> None:
        self._handle_all(name, claim)

    def _handle_all(self, name: str, claim: AwaitedClaim) -> None:
        # Removed only now: calls that have arrived since the cell exists are later than those that
        # wait here, and were appended to them.
        if self.by_name.get(name) is claim:
            del self.by_name[name]
        calls, claim.calls = claim.calls, []
        for call in calls:
            try:
                call()
            except Exception:
                # It fails for its caller only; the other calls go on.
                logger.exception("could not start a call that waited until %s had started", name)
