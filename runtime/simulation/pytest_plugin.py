"""For pytest, which finds this by its entry point: the fixture `simulated`, and options for how
many seeds, or which one.

    def test_money_is_neither_made_nor_lost(simulated):
        simulated(transfers, seeds=200)

`--simulation-seeds=N` tries N seeds instead of what tests say, `--simulation-seed=S` that one only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runtime.simulation.runs import Scenario


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("understudy", "simulated clusters")
    group.addoption(
        "--simulation-seeds",
        type=int,
        default=None,
        metavar="N",
        help="seeds that each simulation tries",
    )
    group.addoption(
        "--simulation-seed",
        type=int,
        default=None,
        metavar="S",
        help="the only seed that each simulation tries",
    )


class Simulated:
    """Runs scenarios under seeds."""

    def __init__(self, count: int | None, only: int | None) -> None:
        self._count = count
        self._only = only

    def __call__(
        self,
        scenario: Scenario,
        *,
        seeds: int = 20,
        nodes: int = 3,
        faults: Iterable[str] | None = None,
    ) -> None:
        """See `runtime.simulation.simulate`; `seeds` is how many. Raises `SimulationError`."""
        from runtime.simulation.runs import simulate

        chosen = (
            [self._only]
            if self._only is not None
            else range(seeds if self._count is None else self._count)
        )
        simulate(scenario, seeds=chosen, nodes=nodes, faults=faults)


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Simulated:
    """Runs a scenario on simulated clusters, one for each seed."""
    return Simulated(
        request.config.getoption("simulation_seeds"), request.config.getoption("simulation_seed")
    )
