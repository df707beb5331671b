"""Incoming calls: what the peer of one link has asked for and not yet been answered.

No I/O and no clock. A call number is accepted once; a repeat of one that is still running is told apart from a new one. Whoever runs the
call finishes it; a cancelled call is finished without an answer.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from actors.errors import ProtocolError

J = TypeVar("J")


class IncomingCalls(Generic[J]):
    """The table of one link; `J` is whatever the host keeps of a running call."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: dict[int, J] = {}

    def accept(self, number: int, job: J) -> None:
        """Enter a call. Raises ProtocolError if the number is in use: the link delivers each frame once."""
        if number in self.running:
            raise ProtocolError(f"call {number} was sent twice on one link")
        self.running[number] = job

    def finish(self, number: int) -> bool:
        """The call has ended; False if the caller had cancelled it before, so that nobody waits for an answer."""
        return self.running.pop(number, None) is not None

    def cancel(self, number: object) -> J | None:
        """The caller gave up: the job to cancel, or None if it has ended already."""
        return self.running.pop(number, None)  # type: ignore[call-overload, no-any-return]

    def end(self) -> list[J]:
        """The link is over: nobody waits for any of these any more."""
        jobs = list(self.running.values())
        self.running.clear()
        return jobs
