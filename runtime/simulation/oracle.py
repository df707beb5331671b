"""The oracle: actors of a simulation report events to it, and it checks what must never happen.

It stands outside of the cluster: it knows at every moment what has happened everywhere, which no
node does.
"""

from __future__ import annotations

from collections import deque

import attrs

from runtime.simulation.report import Trace

REPORT_SECONDS = 0.5
"""Virtual seconds, at most, from the exit of a child to the report that its supervisor gave up, in
a run without faults.
"""


@attrs.define(eq=False)
class Oracle:
    """Collects the reports of actors. Each violated rule is kept as a sentence."""

    trace: Trace
    runs: int = 0
    executions: dict[str, int] = attrs.field(factory=dict)
    owners: dict[str, int] = attrs.field(factory=dict)
    """By name: the latest epoch that has run anything."""
    fair: bool = False
    """True if no faults were drawn. Then restarts are counted exactly."""
    children: set[str] = attrs.field(factory=set)
    restarts: dict[str, deque[float]] = attrs.field(factory=dict)
    twice: list[str] = attrs.field(factory=list)
    overlaps: list[str] = attrs.field(factory=list)
    beyond: list[str] = attrs.field(factory=list)
    unbounded: list[str] = attrs.field(factory=list)

    def has_successor(self, name: str, epoch: int) -> bool:
        """Return True if a later epoch of the name has run anything."""
        return epoch < self.owners.get(name, 0)

    def saved_late(self, name: str, epoch: int, node: str) -> None:
        """Record that a state was saved although a later epoch had run when the save began."""
        self.trace.violation(
            self.overlaps,
            "",
            f"{name} on {node} saved its state in epoch {epoch}, after epoch {self.owners[name]} "
            "had run",
        )

    def ran_on(self, call: str, place: str) -> None:
        """Record that a repeatable call begins to run. It must not run twice on one incarnation of
        a node.
        """
        key = f"{call} on {place}"
        self.executions[key] = self.executions.get(key, 0) + 1
        if self.executions[key] > 1:
            self.trace.violation(self.twice, "", f"{key} was executed {self.executions[key]} times")

    def ran(self, name: str, epoch: int, node: str, call: str = "") -> None:
        """Record that a method of the named actor begins to run. `call`: an id, if it must run at
        most once.
        """
        self.runs += 1
        latest = self.owners.get(name, 0)
        if epoch < latest:
            self.trace.violation(
                self.overlaps,
                "",
                f"{name} ran on {node} in epoch {epoch}, after epoch {latest} had run elsewhere",
            )
        self.owners[name] = max(latest, epoch)
        if call:
            self.executions[call] = self.executions.get(call, 0) + 1
            if self.executions[call] > 1:
                self.trace.violation(
                    self.twice,
                    "",
                    f"{call} was executed by {name} {self.executions[call]} times, the last time "
                    f"on {node}",
                )

    def started(
        self, supervisor: str, child: str, now: float, intensity: int, period: float
    ) -> None:
        """Record that a supervisor has started a child, other than after the loss of the child's
        node. The first start is no restart.

        Starts may lie closer together than the exits that caused them, when the first of them took
        longer than the last: by milliseconds without faults, so the window is `REPORT_SECONDS`
        shorter; under faults by so much that twice the intensity is allowed.
        """
        if child not in self.children:
            self.children.add(child)
            return
        times = self.restarts.setdefault(supervisor, deque())
        times.append(now)
        # `gave_up` looks as far back.
        while times[0] <= now - period - REPORT_SECONDS:
            times.popleft()
        recent = sum(time > now - period + REPORT_SECONDS for time in times)
        if recent > (intensity if self.fair else 2 * intensity):
            self.trace.violation(
                self.beyond,
                "",
                f"{supervisor} restarted children {recent} times within {period:g} s, its "
                f"intensity is {intensity}",
            )

    def gave_up(self, supervisor: str, now: float, intensity: int, period: float) -> None:
        """Record that a supervisor ended because of too many restarts.

        Under faults restarts fail without a report, so nothing is checked. The supervisor decided
        at the time of the last exit. That was before it had stopped its other children and this was
        reported, so the window begins `REPORT_SECONDS` earlier.
        """
        since = now - period - REPORT_SECONDS
        recent = [time for time in self.restarts.get(supervisor, ()) if time > since]
        if self.fair and len(recent) < intensity:
            text = (
                f"{supervisor} gave up after {len(recent)} restarts within {period:g} s, its "
                f"intensity is {intensity}"
            )
            self.trace.violation(self.beyond, "", text)

    def gave_up_in_vain(self, supervisor: str, why: str) -> None:
        """Record that a supervisor ended because of too many restarts, although its children never
        fail by themselves.
        """
        self.trace.violation(
            self.beyond,
            "",
            f"{supervisor} gave up, though its children only lose their nodes: {why}",
        )

    def waiting(self, name: str, count: int, limit: int) -> None:
        """Record how many calls wait at an actor."""
        if count > limit:
            self.trace.violation(
                self.unbounded, "", f"{count} calls wait at {name}, whose limit is {limit}"
            )
