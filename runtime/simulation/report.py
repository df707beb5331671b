"""The report of a simulated run: plain facts, for checks, the command line and HTML pages."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import attrs

MOST_LINES = 20
"""Lines about what one checker found."""

_PACK = struct.Struct("<dqqq").pack

VIOLATIONS_KEPT = 20
"""How many violations of each kind are kept as text."""

Outcome = Literal["pending", "ok", "failed", "unknown"]
"""How an operation ended: `failed` certainly had no effect; `unknown` may have one at any time
after the call, or never.
"""


@attrs.frozen
class TraceEvent:
    """Something that happened at `at`, in virtual seconds, on `node`; "" for the network or the
    whole cluster.

    `kind` is one word: "start", "up", "leave", "crash", "restart", "pause", "block", "resume",
    "partition", "heal", "cut", "clog", "slow disk", "calm" (the faults are over), "call", "ok",
    "failed", "unknown", "log" (a warning of the runtime), "note" (of a scenario), "wrong" (a check
    failed).
    """

    at: float
    node: str
    kind: str
    text: str


@attrs.frozen
class CheckResult:
    """The result of one checker. `text`: what it looked at, or what is wrong and where to look."""

    name: str
    holds: bool
    text: str

    @classmethod
    def of(cls, name: str, wrong: Sequence[str], right: str) -> CheckResult:
        """The result of a checker that found what is `wrong`. `right`: its text for nothing."""
        lines = list(wrong[:MOST_LINES])
        if len(wrong) > MOST_LINES:
            lines.append(f"and {len(wrong) - MOST_LINES} more")
        return cls(name, not wrong, "\n".join(lines) or right)


@attrs.frozen(kw_only=True)
class Report:
    """One run. `seconds` are virtual, `took` is real time in seconds; `faults` are those that the
    seed has drawn, with their strengths.
    """

    seed: int
    nodes: tuple[str, ...]
    seconds: float
    took: float
    trace_hash: str
    faults: dict[str, float]
    calls: dict[str, int]
    """How many calls ended in each way: "ok", "failed", "unknown", "pending"."""
    events: tuple[TraceEvent, ...] = attrs.field(repr=False)
    check_results: tuple[CheckResult, ...]

    @property
    def wrong(self) -> list[CheckResult]:
        """The results of the checkers that found something."""
        return [result for result in self.check_results if not result.holds]

    @property
    def holds(self) -> bool:
        """True if nothing is wrong."""
        return not self.wrong


# One number for a whole run: two runs with the same number did the same, byte by byte and at the
# same times.


class Trace:
    """The events of a run, and a hash over them and over all network traffic. `now` returns virtual
    seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        self.events: list[TraceEvent] = []
        self._judges = True

    def note(self, first: int, second: int, third: int) -> None:
        """Record an event that is too small for the time line and happens a hundred times a second.
        Packed, because that is fastest.
        """
        self._pending += _PACK(self._now(), first, second, third)

    def tell(self, node: str, kind: str, text: str) -> None:
        """Record an event for people to read; see `TraceEvent`."""
        self.events.append(TraceEvent(self._now(), node, kind, text))
        self._pending += f"{self._now()!r} {node} {kind} {text}\n".encode()

    def violation(self, found: list[str], node: str, text: str) -> None:
        """Record that a promise was broken. The first `VIOLATIONS_KEPT` texts stand in `found`."""
        if not self._judges:
            return
        if len(found) < VIOLATIONS_KEPT:
            found.append(text)
        self.tell(node, "wrong", text)

    def end_judging(self) -> None:
        """All nodes have ended. What is called a violation from now on was seen by a process that
        had been killed: its tasks take their last steps at the end of the run.
        """
        self._judges = False

    def digest(self) -> str:
        """The hash so far, in hexadecimal."""
        self._hash.update(self._pending)
        self._pending.clear()
        return self._hash.hexdigest()

    def report(
        self,
        seed: int,
        nodes: Iterable[str],
        took: float,
        calls: Mapping[str, int],
        check_results: Iterable[CheckResult],
        faults: Mapping[str, float] = MappingProxyType({}),
    ) -> Report:
        """The report of the run, which ends now; see its fields."""
        return Report(
            seed=seed,
            nodes=tuple(nodes),
            seconds=self._now(),
            took=took,
            trace_hash=self.digest(),
            faults=dict(faults),
            calls=dict(calls),
            events=tuple(self.events),
            check_results=tuple(check_results),
        )


# What the clients of a simulated cluster requested and got, in one global order of events.
#
# A history only records; `runtime.simulation.linearizability` judges it. The time is passed in.


@attrs.define
class Operation:
    """One operation of one client on one key. `what`: its name, for example "read", "write" or
    "add".
    """

    client: str
    key: str
    what: str
    argument: object
    called: int
    """Position in the global order of events: every call and every completion gets the next
    number.
    """
    called_at: float
    """Virtual seconds."""
    result: object = None
    returned: int | None = None
    """The position at which the client learned the outcome. For an unknown outcome it is when the
    client gave up, and says nothing about the effect.
    """
    returned_at: float | None = None
    outcome: Outcome = "pending"
    error: str = ""

    def __str__(self) -> str:
        ended = {
            "ok": f"-> {self.result!r}",
            "pending": "is pending",
            "failed": "failed",
            "unknown": "has unknown outcome",
        }[self.outcome]
        # Positions and not only times, because in virtual time many events have the same time.
        until = "" if self.returned is None else f" to #{self.returned} ({self.returned_at:g} s)"
        error = f": {self.error}" if self.error else ""
        return (
            f"{self.client}: {self.what}({self.argument!r}) {ended}{error}, #{self.called} "
            f"({self.called_at:g} s){until}"
        )


class CallHistory:
    """Operations in the order of their calls, with the outcome of each."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._events = 0

    def invoke(self, client: str, key: str, what: str, argument: object, now: float) -> Operation:
        """Record a call. The operation is pending until one of `ok`, `failed` and `unknown`
        completes it.
        """
        operation = Operation(client, key, what, argument, self._next(), now)
        self.operations.append(operation)
        return operation

    def ok(self, operation: Operation, result: object, now: float) -> None:
        """Record that the operation took effect between its call and now, with this result."""
        self._complete(operation, "ok", now)
        operation.result = result

    def failed(self, operation: Operation, error: str, now: float) -> None:
        """Record that the operation certainly did not take effect, and never will."""
        self._complete(operation, "failed", now)
        operation.error = error

    def unknown(self, operation: Operation, error: str, now: float) -> None:
        """Record that the client gave up. The operation may have taken effect, may do so at any
        later time, or never.
        """
        self._complete(operation, "unknown", now)
        operation.error = error

    def by_key(self) -> dict[str, list[Operation]]:
        """Return the operations of each key, in the order of their calls."""
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            found.setdefault(operation.key, []).append(operation)
        return found

    def _complete(self, operation: Operation, outcome: Outcome, now: float) -> None:
        if operation.outcome != "pending":
            raise ValueError(
                f"an operation completes once, and this one has completed: {operation}"
            )
        operation.outcome = outcome
        operation.returned = self._next()
        operation.returned_at = now

    def _next(self) -> int:
        self._events += 1
        return self._events
