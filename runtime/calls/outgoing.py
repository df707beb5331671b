"""Outgoing calls: which of this node's calls on one link wait for an answer.

No I/O and no clock. A call is begun once and finished once: by its answer, by the end of its link, or by its caller who gave up. An answer
that finds its call finished is late, and dropped. A call that is made again under its number is the same call: the answer to any of its
attempts finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from actors.errors import CallError
from runtime.calls.failures import Place

T = TypeVar("T")


class PendingCall(Generic[T]):
    """A call that waits. `waiter` is whoever is to be woken, None while nobody is parked on it.

    When it is `finished`, `error` is set or `value` is its result. `expired`: its own timeout passed first.
    """

    __slots__ = ("ended", "error", "expired", "finished", "lends", "number", "place", "recalled", "ticket", "value", "waiter")

    def __init__(self, number: int, place: Place, waiter: T | None) -> None:
        self.number = number
        self.place = place
        self.waiter = waiter
        self.ticket: Any = 0
        """What the link said when it took the request; on this node itself, the job."""
        self.lends = False
        """True if the request is sent from memory that its caller may change once the call is over."""
        self.recalled = False
        """True if the request was taken back: it certainly was not received, and will not be."""
        self.value: object = None
        self.error: CallError | None = None
        self.finished = False
        self.expired = False
        self.ended: Callable[[PendingCall[T]], None] | None = None
        """Told of its end if nobody is parked on it."""

    def fail(self, error: CallError) -> None:
        """The call is finished, with `error`."""
        self.error = error
        self.finished = True


class OutgoingCalls(Generic[T]):
    """The table of one link."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, PendingCall[T]] = {}

    def begin(self, call: PendingCall[T]) -> None:
        """Enter a call, or enter it again."""
        self.pending[call.number] = call

    def take(self, number: object) -> PendingCall[T] | None:
        """The call of this number, which is finished from now on; None if it was already."""
        return self.pending.pop(number, None)  # type: ignore[call-overload, no-any-return]

    def end(self, outcome: Callable[[PendingCall[T]], CallError]) -> list[PendingCall[T]]:
        """The link is over: every call still waiting ends with what `outcome` says of it. Returns those to wake."""
        ended = list(self.pending.values())
        self.pending.clear()
        for call in ended:
            call.fail(outcome(call))
        return ended


class OpenCalls:
    """This node's repeatable calls, to whomever, by the numbers of their first attempts: what they are called over all nodes."""

    __slots__ = ("_latest", "_open")

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self._latest = 0

    @property
    def watermark(self) -> int:
        """All calls below it have ended and will not be made again."""
        return next(iter(self._open), self._latest + 1)

    def begin(self, number: int) -> None:
        """A call was made; numbers grow."""
        self._open[number] = None
        self._latest = number

    def end(self, number: int) -> None:
        """It will not be made again."""
        self._open.pop(number, None)


class Confirmations:
    """Which of this node's repeatable calls to one peer have ended, so that the peer may forget what it recorded of them.

    After RIFL (Lee et al., SOSP 2015): all calls below the watermark have ended. A long call would hold the watermark back for all that
    follow, so numbers beyond it are confirmed one by one.
    """

    __slots__ = ("_ended", "_latest", "_open")

    MOST_UNSAID = 32

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self._ended: list[int] = []
        self._latest = 0

    def begin(self, number: int) -> None:
        """A repeatable call was made; numbers grow."""
        self._open[number] = None
        self._latest = max(self._latest, number)

    def end(self, number: int) -> bool:
        """It has ended and will not be made again; True if the peer should be told now."""
        if self._open.pop(number, 0) is None:
            self._ended.append(number)
        return len(self._ended) >= self.MOST_UNSAID or not self._open

    def take(self) -> tuple[int, list[int]]:
        """What to tell: the watermark, below which every call has ended, and those beyond it that have."""
        # Numbers are entered as they are drawn, so the first is the smallest.
        watermark = next(iter(self._open), self._latest + 1)
        beyond = [number for number in self._ended if number > watermark]
        self._ended.clear()
        return watermark, beyond
