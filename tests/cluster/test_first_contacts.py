"""Nodes that call each other for the first time in the same moment: both ends of each link dial."""

from __future__ import annotations

import time

import pytest
import trio

from runtime import open_local_cluster
from tests.cluster.actors_used import Caller
from tests.cluster.meeting import Outcome, run_rounds

pytestmark = pytest.mark.cluster


async def first_contacts(nodes: int, times: int, log_file: str = "") -> list[str]:
    """All nodes of a cluster call all others for the first time at once; the errors that
    they got.
    """
    errors: list[str] = []
    async with open_local_cluster(nodes=nodes) as cluster:
        callers = [
            await cluster.node.options(name=f"caller-{name}", on=name).spawn(Caller)
            for name in cluster.processes
        ]
        names = [f"caller-{name}" for name in cluster.processes]
        begin = time.monotonic() + 0.5 + 0.02 * nodes

        async def contact(caller: Caller, own: str) -> None:
            errors.extend(
                await caller.call_all([name for name in names if name != own], begin, times)
            )

        async with trio.open_nursery() as nursery:
            for caller, name in zip(callers, names, strict=True):
                nursery.start_soon(contact, caller, name)
    return errors


async def test_no_call_fails_when_eight_nodes_call_each_other_for_the_first_time_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for _ in range(3):
        assert await first_contacts(nodes=8, times=20) == []
    assert "WARNING" not in capfd.readouterr().err


def check(outcome: Outcome, calls: int) -> None:
    assert outcome.wrong == []
    assert outcome.warnings == []
    assert outcome.calls == calls * outcome.rounds


async def test_no_call_fails_when_nodes_that_share_processes_meet_again_and_again() -> None:
    outcome = await run_rounds(12, 3, 5, 60.0, 2, lambda text: None)
    check(outcome, 12 * 11 * 2)
    assert outcome.rounds == 5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processes", [10, 50])
async def test_no_call_fails_when_a_hundred_nodes_meet_at_once(processes: int) -> None:
    """As many rounds as fit into two minutes; `python -m tests.cluster.meeting` runs a hundred."""
    outcome = await run_rounds(100, processes, 100, 120.0, 1, lambda text: None)
    check(outcome, 100 * 99)
    assert outcome.rounds
