"""How many bytes the arguments of calls may take while the calls wait or run.

A mailbox has a limit of calls, and 10,000 calls of 64 MiB are within it. So what arrives from other
processes is counted by its size as well: by the mailbox, and for peers that are no nodes by the
node, over all of its actors. No I/O and no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

COUNTED_FROM: Final = 4096
"""Bytes of arguments from which a call counts for its mailbox. Of smaller calls the limit of calls
allows some 40 MiB, and counting each would cost as much as queueing it.
"""


class ByteBudget:
    """A number of bytes that may be held at once, and how many are. What finds nothing held has
    room, however large it is: each frame has a limit of its own.
    """

    __slots__ = ("__weakref__", "_freed", "_held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._freed: deque[int] = deque()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        while self._freed:
            self._held -= self._freed.popleft()
        assert self._held >= 0, "nothing is given back twice"
        return self._held

    def take(self, size: int) -> bool:
        """Hold `size` more bytes; False if there is no room for them."""
        held = self.held
        if held and held + size > self.limit:
            return False
        self._held += size
        return True

    def take_anyway(self, size: int) -> None:
        """Hold `size` more bytes, even where there is no room: nothing more has room then."""
        self._held += size

    def give_back(self, size: int) -> None:
        """Hold `size` bytes less; also from another thread."""
        # A deque: one step of the interpreter, where a subtraction would be several.
        self._freed.append(size)


class HeldBytes:
    """The arguments of one call, or a result that is kept, counted in budgets until the call has
    ended, or it is nowhere any more: whatever becomes of it, its bytes are given back.
    """

    __slots__ = ("_counted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        """Bytes in which they have arrived."""
        self._counted: tuple[tuple[ByteBudget, int], ...] = ()

    def count_in(self, budget: ByteBudget, size: int) -> bool:
        """Count `size` bytes in a budget; False if it has no room for them."""
        if not budget.take(size):
            return False
        self._counted = (*self._counted, (budget, size))
        return True

    def count_anyway(self, budget: ByteBudget, size: int) -> None:
        """Count `size` bytes in a budget, even where it has no room for them."""
        budget.take_anyway(size)
        self._counted = (*self._counted, (budget, size))

    def release(self) -> None:
        """The call has ended: give the bytes back. Again: nothing."""
        counted, self._counted = self._counted, ()
        for budget, size in counted:
            budget.give_back(size)

    def __del__(self) -> None:
        # A call is dropped in many places: refused, cancelled in its mailbox, left behind by its
        # link or by the end of its actor. It may be the collector that drops it, in any thread.
        self.release()
