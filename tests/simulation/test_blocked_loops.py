"""Nodes whose event loop is blocked for longer than a lease keep their names up to a limit, and
beyond it let them go in order.
"""

from __future__ import annotations

import pytest
import trio

from runtime.simulation import Simulation, run_scenario
from runtime.simulation.blocked_loops import ROUNDS, blocked_loops
from runtime.simulation.runs import cluster_of
from runtime.timings import Timings

LEASE = Timings().lease


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_names_stay_with_a_blocked_node_up_to_the_limit_and_are_free_beyond(seed: int) -> None:
    report = blocked_loops(seed)
    assert report.holds, report.wrong
    assert report.calls["ok"] > 0
    # Within the limit each time, and once beyond: otherwise nothing was tried.
    blocked = [event for event in report.events if event.kind == "block"]
    assert len(blocked) == ROUNDS + 1


@pytest.mark.long
def test_one_seed_is_one_run() -> None:
    assert blocked_loops(3).trace_hash == blocked_loops(3).trace_hash


def _said(simulation: Simulation) -> list[str]:
    return [event.text for event in cluster_of(simulation).trace.events if event.kind == "log"]


def test_a_blocked_loop_is_reported_while_it_is_blocked_and_a_stopped_process_says_nothing() -> (
    None
):
    async def story(simulation: Simulation) -> None:
        simulation.block("node-2")
        await trio.sleep(LEASE)
        assert any(
            "the event loop of node node-2 has been blocked" in text for text in _said(simulation)
        )
        simulation.unblock("node-2")
        simulation.pause("node-3")
        await trio.sleep(LEASE - 1)
        assert not any("the event loop of node node-3" in text for text in _said(simulation))
        # What is stopped is not let go on by the end of a block, nor the other way round.
        simulation.unblock("node-3")
        assert cluster_of(simulation).live("node-3") is None
        simulation.resume("node-3")
        simulation.block("node-2")
        simulation.resume("node-2")
        assert cluster_of(simulation).live("node-2") is None
        simulation.unblock("node-2")
        await simulation.calm()

    report = run_scenario(story, 1, faults=())
    assert report.holds, report.check_results


def test_a_store_that_is_away_while_a_loop_is_blocked_ends_no_watch() -> None:
    async def story(simulation: Simulation) -> None:
        # The way to it is refused at first, and then there is one.
        simulation.kill("node-1", restart_after=LEASE)
        simulation.block("node-2")
        await trio.sleep(2 * LEASE)
        simulation.unblock("node-2")
        await simulation.calm()
        # Until it has been seen that the loop runs again.
        await trio.sleep(1)
        reported = [
            text
            for text in _said(simulation)
            if "the event loop of node node-2 has been blocked" in text
        ]
        simulation.block("node-2")
        await trio.sleep(LEASE)
        again = [
            text
            for text in _said(simulation)
            if "the event loop of node node-2 has been blocked" in text
        ]
        assert len(again) == len(reported) + 1 == 2
        simulation.unblock("node-2")
        await simulation.calm()

    report = run_scenario(story, 1, faults=())
    assert report.holds, report.check_results


def test_a_process_that_is_killed_while_its_loop_is_blocked_renews_nothing_any_more() -> None:
    async def story(simulation: Simulation) -> None:
        node = simulation.node
        incarnation = next(
            member.incarnation for member in node.members() if member.name == "node-2"
        )
        cluster_of(simulation).machines["node-2"].restart_after = 1000.0
        simulation.block("node-2")
        await trio.sleep(2 * LEASE)
        assert incarnation in [member.incarnation for member in node.members()]
        simulation.kill("node-2", restart_after=1000.0)
        await trio.sleep(2 * LEASE)
        assert incarnation not in [member.incarnation for member in node.members()]

    report = run_scenario(story, 1, faults=())
    assert report.holds, report.check_results
