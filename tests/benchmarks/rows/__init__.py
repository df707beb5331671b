"""What is measured: each module has one `measure(settings)`, which returns rows whose figures were
taken in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from tests.benchmarks.measuring import Row, Settings
from tests.benchmarks.rows import (
    admission,
    clusters,
    contexts,
    crowd,
    doors,
    encrypted,
    isolation,
    lent,
    links,
    metrics,
    pages,
    pairs,
    payloads,
    pipelined,
    pools,
    raising,
    references,
    sequential,
    simulation,
    spawning,
    starts,
    unused,
)

Measure = Callable[[Settings], Awaitable[list[Row]]]

GROUPS: Mapping[str, Measure] = MappingProxyType(
    {
        "sequential": sequential.measure,
        "doors": doors.measure,
        "pipelined": pipelined.measure,
        "raising": raising.measure,
        "pairs": pairs.measure,
        "echo": payloads.measure,
        "mixed": payloads.measure_mixed,
        "spawn": spawning.measure,
        "starts": starts.measure,
        "crowd": crowd.measure,
        "links": links.measure,
        "metrics": metrics.measure,
        "unused": unused.measure,
        "tls": encrypted.measure,
        "admission": admission.measure,
        "isolation": isolation.measure,
        "lent": lent.measure,
        "references": references.measure,
        "simulation": simulation.measure,
        "pools": pools.measure,
        "contexts": contexts.measure,
        "clusters": clusters.measure,
        "pages": pages.measure,
    }
)
"""By the word that selects it."""

LONG = frozenset({"pages"})
"""Those that take minutes: they are measured only if they are selected."""
