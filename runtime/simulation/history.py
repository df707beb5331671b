"""What the clients of a simulated cluster asked for and were told, in one global order of events.

A history only records; `runtime.simulation.linearizability` judges it. The time is passed in.
"""

from __future__ import annotations

from typing import Literal

import attrs

Outcome = Literal["pending", "ok", "failed", "unknown"]
"""How an operation ended: `failed` certainly had no effect; `unknown` may have one at any time after the call, or never."""


@attrs.define
class Operation:
    """One operation of one client on one key. `what`: its name, for example "read", "write" or "add"."""

    client: str
    key: str
    what: str
    argument: object
    called: int
    """Position in the global order of events: every call and every completion gets the next number."""
    called_at: float
    """Virtual seconds."""
    result: object = None
    returned: int | None = None
    """Position at which the client learned the outcome. Of an unknown one it says when the client gave up, and nothing of the effect."""
    returned_at: float | None = None
    outcome: Outcome = "pending"
    error: str = ""

    def __str__(self) -> str:
        ended = {"ok": f"-> {self.result!r}", "pending": "is pending", "failed": "failed", "unknown": "has unknown outcome"}[self.outcome]
        # Positions as well as times: in virtual time, much happens at the same instant.
        until = "" if self.returned is None else f" to #{self.returned} ({self.returned_at:g} s)"
        error = f": {self.error}" if self.error else ""
        return f"{self.client}: {self.what}({self.argument!r}) {ended}{error}, #{self.called} ({self.called_at:g} s){until}"


class History:
    """Operations in the order of their calls, and how each of them ended."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._events = 0

    def invoke(self, client: str, key: str, what: str, argument: object, now: float) -> Operation:
        """A client calls; the operation is pending until one of `ok`, `failed` and `unknown` completes it."""
        operation = Operation(client, key, what, argument, self._next(), now)
        self.operations.append(operation)
        return operation

    def ok(self, operation: Operation, result: object, now: float) -> None:
        """It took effect between its call and now, and gave this result."""
        self._complete(operation, "ok", now)
        operation.result = result

    def failed(self, operation: Operation, error: str, now: float) -> None:
        """It certainly did not take effect, and never will."""
        self._complete(operation, "failed", now)
        operation.error = error

    def unknown(self, operation: Operation, error: str, now: float) -> None:
        """The client gave up; it may have taken effect, may do so at any later time, or never."""
        self._complete(operation, "unknown", now)
        operation.error = error

    def by_key(self) -> dict[str, list[Operation]]:
        """The operations of each key, in the order of their calls."""
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            found.setdefault(operation.key, []).append(operation)
        return found

    def _complete(self, operation: Operation, outcome: Outcome, now: float) -> None:
        if operation.outcome != "pending":
            raise ValueError(f"an operation completes once, and this one has completed: {operation}")
        operation.outcome = outcome
        operation.returned = self._next()
        operation.returned_at = now

    def _next(self) -> int:
        self._events += 1
        return self._events
