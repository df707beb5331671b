"""Functions in simulated clusters whose nodes die, pause and are cut off: every call ends, and no
function that may not be repeated runs twice.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from actors import RetryPolicy
from actors.errors import NotExecutedError, OutcomeUnknownError
from runtime.simulation import Simulation, run_scenario
from tests.functions import functions_used as used

CALLS = 30


class Ledger:
    """What was asked for, what ran, and the outcome."""

    def __init__(self) -> None:
        self.ends: dict[int, str] = {}
        self.ran: Counter[int] = Counter()

    async def call(self, simulation: Simulation, key: int) -> None:
        """One call of an `async def` function, some of them repeatable."""
        node = simulation.node.options(timeout=20.0)
        if key % 3 == 0:
            policy = RetryPolicy(max_retries=5, initial_delay=0.5)
            node = node.options(retry=policy, idempotent=True)
        try:
            value = await node.run(used.double_under_trio, key, after=0.3)
            assert value == 2 * key
            self.ends[key] = "value"
        except NotExecutedError:
            self.ends[key] = "not executed"
        except OutcomeUnknownError:
            self.ends[key] = "unknown"
        self.ran[key] = used.RUNS.pop(key, 0)


@pytest.mark.parametrize("seed", range(8))
def test_every_call_ends_and_runs_at_most_once(seed: int) -> None:
    ledger = Ledger()

    async def scenario(simulation: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            for key in range(CALLS):
                nursery.start_soon(ledger.call, simulation, key)
                await trio.sleep(0.2)

    used.RUNS.clear()
    run_scenario(scenario, seed=seed)
    assert len(ledger.ends) == CALLS
    for key, end in ledger.ends.items():
        if end == "value":
            assert ledger.ran[key] >= 1
        if end == "not executed":
            assert ledger.ran[key] == 0
        if key % 3:
            assert ledger.ran[key] <= 1
