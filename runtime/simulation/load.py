"""The interface of a load: actors and callers that attack one promise, beside the workload that
every seed has.

Most loads run under a share of the seeds only. They are drawn apart from everything else, so the
runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Self

import attrs

from runtime.node import Node
from runtime.simulation.cluster import CLUSTER, SimulatedCluster
from runtime.simulation.oracle import Oracle
from runtime.simulation.report import CheckResult


@attrs.define(eq=False)
class Load(ABC):
    """A load in one run. The workload creates it, runs it on each node, ends it when the faults are
    over, and puts its check results into the report.
    """

    title: ClassVar[str]
    """Its random decisions are drawn by this name."""
    check: ClassVar[str]
    """The name of its check in the report."""
    share: ClassVar[float] = 0.25
    """The share of the seeds that have it."""

    cluster: SimulatedCluster
    oracle: Oracle
    generation: int = 0
    """How often the store was lost with its disk."""
    wrong: list[str] = attrs.field(factory=list)
    over: bool = False

    @classmethod
    def is_drawn(cls, seed: int) -> bool:
        """Return True if the run of a seed has this load."""
        return random.Random(f"{seed} {cls.title}").random() < cls.share

    @classmethod
    def current(cls) -> Self:
        """Return this load of the running simulation."""
        found = getattr(CLUSTER.get().scenario, "loads")[cls]  # noqa: B009  untyped for the cluster
        assert isinstance(found, cls)
        return found

    def attach(self) -> None:
        """Set the hooks of the cluster that this load needs, before its nodes start."""
        return

    @abstractmethod
    async def run(self, node: Node, draw: random.Random) -> None:
        """Attack from one node until the load is `over`, or the process of the node ends."""

    async def end(self) -> None:
        """Begin nothing new: all faults are over."""
        self.over = True

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, what the load has left behind."""
        return

    @abstractmethod
    def summary(self) -> str:
        """Return what was done, for a report without violations."""

    def check_results(self) -> Iterator[CheckResult]:
        """Return the results of the checks."""
        yield CheckResult.of(self.check, self.wrong, self.summary())

    def violated(self, node: str, text: str) -> None:
        """Record a violation of the rule. `node`: "" for the whole cluster."""
        self.cluster.trace.violation(self.wrong, node, text)
