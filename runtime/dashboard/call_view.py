"""The calls of a cluster by method, from one answer of each node after the other: rates and
durations of the last half minute, and outcomes since the nodes began to measure. No I/O and no
clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from runtime.statistics.histograms import quantile

WINDOW_SECONDS = 30.0
"""Over how much of the latest time rates and durations are taken."""

MOST_METHODS = 300

OUTCOMES = ("value", "raised", "cancelled")
PARTS = ("client", "server", "wait", "turn")

Key = tuple[str, str]


@attrs.define
class _MethodCounts:
    """The counts of one method: outcomes, and histograms by their part, as lists."""

    outcomes: Counter[str] = attrs.field(factory=lambda: Counter[str]())
    reasons: Counter[str] = attrs.field(factory=lambda: Counter[str]())
    ran: Counter[str] = attrs.field(factory=lambda: Counter[str]())
    """How runs ended, for methods that no node calls."""
    parts: dict[str, list[int]] = attrs.field(factory=dict)

    def add(self, other: _MethodCounts) -> None:
        self.outcomes.update(other.outcomes)
        self.reasons.update(other.reasons)
        self.ran.update(other.ran)
        for part, counts in other.parts.items():
            self.parts[part] = _sum(self.parts.get(part), counts, 1)

    def less(self, other: _MethodCounts) -> dict[str, list[int]]:
        """The histograms of what came since `other` was read."""
        return {
            part: _sum(counts, other.parts.get(part), -1) for part, counts in self.parts.items()
        }


@attrs.frozen
class _CallInterval:
    """What a node has counted between two answers, and how long that was, by its own clock."""

    seconds: float
    parts: dict[Key, dict[str, list[int]]]


@attrs.define
class _MeasuredNode:
    """The last answer of one node: for how many seconds it measures, what it has counted in all,
    and in the last intervals.
    """

    incarnation: int
    seconds: float
    counts: dict[Key, _MethodCounts]
    window: deque[_CallInterval]

    def after(self, before: _MeasuredNode | None) -> None:
        """Take over the window of the answer before this one, and add what came since."""
        # A node that began to count again, or another incarnation, has no difference yet. Its old
        # window is of a time before the pause: a rate over both would be too low.
        if (
            before is None
            or before.incarnation != self.incarnation
            or before.seconds > self.seconds
        ):
            return
        self.window = before.window
        seconds = self.seconds - before.seconds
        if not seconds:
            return
        parts = {
            key: counts.less(known) if (known := before.counts.get(key)) else counts.parts
            for key, counts in self.counts.items()
        }
        self.window.append(_CallInterval(seconds, parts))
        # One stays however long it was: a node that was silent says what it did meanwhile.
        while sum(one.seconds for one in self.window) - self.window[0].seconds >= WINDOW_SECONDS:
            self.window.popleft()


class CallView:
    """Makes rows of methods from the statistics of nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _MeasuredNode] = {}

    def observe(
        self, answers: Mapping[str, Mapping[str, Any]], incarnations: Mapping[str, int]
    ) -> tuple[dict[str, dict[str, Any]], int]:
        """Take in one round of `statistics`, by the names of nodes. Returns the rows, those with
        most calls first, and how many are left out.
        """
        left_out = 0
        for node, report in answers.items():
            left_out += report["left_out"]
            found = _MeasuredNode(
                incarnations.get(node, 0), report["measured"], _counts(report), deque()
            )
            found.after(self._nodes.get(node))
            self._nodes[node] = found
        # The counts of a node that is gone are lost: no other node has them.
        self._nodes = {name: one for name, one in self._nodes.items() if name in incarnations}
        totals: dict[Key, _MethodCounts] = {}
        for measured in self._nodes.values():
            for key, counts in measured.counts.items():
                totals.setdefault(key, _MethodCounts()).add(counts)
        # Only nodes that answer: of others it is not known which calls they serve.
        heard = [self._nodes[name] for name in answers if name in self._nodes]
        rows = sorted((_row(key, counts, heard) for key, counts in totals.items()), key=_weight)
        shown = {f"{row['class']}\n{row['method']}": row for row in rows[:MOST_METHODS]}
        return shown, left_out + max(0, len(rows) - MOST_METHODS)


def _row(key: Key, counts: _MethodCounts, nodes: Iterable[_MeasuredNode]) -> dict[str, Any]:
    """The row of one method. The rates of nodes are added, each over the time that it measured."""
    parts: dict[str, list[int]] = {}
    rates = dict.fromkeys(PARTS, 0.0)
    measured = False
    for node in nodes:
        seconds = sum(interval.seconds for interval in node.window)
        found: dict[str, list[int]] = {}
        for interval in node.window:
            merge(found, interval.parts.get(key, {}))
        merge(parts, found)
        if seconds:
            measured = True
            for part in PARTS:
                rates[part] += sum(found.get(part, ())) / seconds
    # Calls of clients that are no nodes are seen where they run alone.
    side = "client" if rates["client"] else "server"
    report = counts.outcomes if counts.outcomes.total() else counts.ran
    outcomes = {name: report[name] for name in (*OUTCOMES, "not_executed", "unknown")}
    return {
        "class": key[0],
        "method": key[1],
        "rate": round(rates[side], 1) if measured else None,
        "p50": _seconds(parts.get(side), 0.5),
        "p99": _seconds(parts.get(side), 0.99),
        "wait": _seconds(parts.get("wait"), 0.99),
        "turn": _seconds(parts.get("turn"), 0.99),
        **outcomes,
        "failed": sum(outcomes.values()) - outcomes["value"],
        "reasons": dict(counts.reasons.most_common(8)),
    }


def merge(into: dict[str, list[int]], parts: Mapping[str, list[int]]) -> None:
    """Add histograms to others of the same bounds."""
    for part, counts in parts.items():
        into[part] = _sum(into.get(part), counts, 1)


def _counts(report: Mapping[str, Any]) -> dict[Key, _MethodCounts]:
    """Return the counts of methods in a node's answer, without those of its own services."""
    found: dict[Key, _MethodCounts] = {}
    for one in report["methods"]:
        if one["class"].startswith("@"):
            continue
        counts = _MethodCounts()
        for name in OUTCOMES:
            counts.outcomes[name] = one[name]
        for name in ("not_executed", "unknown"):
            counts.outcomes[name] = sum(one[name].values())
            counts.reasons.update(one[name])
        runs = one["turn"]["count"] if one["turn"] is not None else 0
        counts.ran.update(value=max(0, runs - one["server_raised"]), raised=one["server_raised"])
        for part in PARTS:
            if one[part] is not None:
                counts.parts[part] = one[part]["counts"]
        found[one["class"], one["method"]] = counts
    return found


def _sum(one: list[int] | None, other: list[int] | None, sign: int) -> list[int]:
    if one is None:
        return list(other or ())
    if other is None or len(other) != len(one):
        # Nothing yet, or a node of a version with other bounds.
        return list(one)
    return [a + sign * b for a, b in zip(one, other, strict=True)]


def _seconds(counts: list[int] | None, share: float) -> float | None:
    found = quantile(counts, share) if counts else None
    return None if found is None else float(f"{found:.3g}")


def _weight(row: dict[str, Any]) -> tuple[float, float, str, str]:
    calls = row["value"] + row["failed"]
    return (-(row["rate"] or 0.0), -calls, row["class"], row["method"])
