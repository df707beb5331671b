"""Reports of blocked event loops. A node whose loop is blocked answers nothing; its stand-by thread
tells another node what blocks the loop, and `understudy stack` asks all nodes for such reports.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import attrs

from actors.identifiers import NodeId
from runtime.environment import Environment
from runtime.hosting.stacks import MOST_FRAMES

REPORTS_KEPT = 100
"""Reports of blocked loops that are kept, one for each node: the latest ones."""

REPORT_SECONDS = 10.0
"""How old a report may be: it is renewed while the loop is blocked."""

MOST_TEXT = 500
"""Characters of each text of a report."""


@attrs.frozen
class _BlockedReport:
    """`at`: when it came, on this node's clock."""

    at: float
    facts: dict[str, Any]


class BlockedLoops:
    """The blocked loops of other nodes, as these have reported them."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._reports: OrderedDict[NodeId, _BlockedReport] = OrderedDict()

    def tell(self, node: NodeId, facts: dict[str, Any]) -> None:
        """Note a report; one of a loop that runs again ends those before. A report that makes no
        sense is not kept.
        """
        # Taken out first, so that a new report is the last in the order, and the oldest goes.
        self._reports.pop(node, None)
        checked = _checked(facts)
        if checked is None or not checked["seconds"]:
            return
        self._reports[node] = _BlockedReport(self._environment.now(), checked)
        while len(self._reports) > REPORTS_KEPT:
            self._reports.popitem(last=False)
        assert len(self._reports) <= REPORTS_KEPT

    def of(self, node: NodeId) -> dict[str, Any] | None:
        """The report of a node, with its `age` in seconds; None if there is none that is fresh."""
        report = self._reports.get(node)
        if report is None:
            return None
        age = self._environment.now() - report.at
        return {**report.facts, "age": age} if age <= REPORT_SECONDS else None


def _checked(facts: dict[str, Any]) -> dict[str, Any] | None:
    """A report as `blocked_report` makes it, cut to its bounds; None for anything else."""
    seconds, who, stack = facts.get("seconds"), facts.get("who", ""), facts.get("stack", [])
    if not isinstance(seconds, int | float) or not isinstance(who, str):
        return None
    lines: list[list[object]] = []
    for line in stack[: 2 * MOST_FRAMES] if isinstance(stack, list) else []:
        if not isinstance(line, list | tuple) or len(line) != 4:
            return None
        file, number, function, source = line
        if not isinstance(number, int):
            return None
        texts = [str(text)[:MOST_TEXT] for text in (file, function, source)]
        lines.append([texts[0], number, *texts[1:]])
    return {"seconds": float(seconds), "who": who[:MOST_TEXT], "stack": lines}
