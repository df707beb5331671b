"""Outgoing calls: which of this node's calls on one link wait for an answer.

No I/O and no clock. A call is begun once and finished once: by its answer, by the end of its link, or by its caller who gave up. An answer
that finds its call finished is late, and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from actors.errors import CallError
from runtime.calls.failures import Place

T = TypeVar("T")


class PendingCall(Generic[T]):
    """A call that waits. `waiter` is whoever is to be woken; exactly one of `value` and `error` is set by then."""

    __slots__ = ("error", "frame_number", "number", "place", "value", "waiter")

    def __init__(self, number: int, place: Place, waiter: T) -> None:
        self.number = number
        self.place = place
        self.waiter = waiter
        self.frame_number = 0
        self.value: object = None
        self.error: CallError | None = None


class OutgoingCalls(Generic[T]):
    """The table of one link."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, PendingCall[T]] = {}

    def begin(self, call: PendingCall[T]) -> None:
        """Enter a call; its number is new."""
        self.pending[call.number] = call

    def take(self, number: object) -> PendingCall[T] | None:
        """The call of this number, which is finished from now on; None if it was already."""
        return self.pending.pop(number, None)  # type: ignore[call-overload, no-any-return]

    def end(self, outcome: Callable[[PendingCall[T]], CallError]) -> list[PendingCall[T]]:
        """The link is over: every call still waiting ends with what `outcome` says of it. Returns those to wake."""
        ended = list(self.pending.values())
        self.pending.clear()
        for call in ended:
            call.error = outcome(call)
        return ended
