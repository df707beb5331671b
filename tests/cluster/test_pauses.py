"""Nodes that are stopped for longer than their lease have no say when they go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.pausing import judge, pause_nodes


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
async def test_no_actor_of_a_node_that_was_stopped_too_long_runs_after_its_successor() -> None:
    verdict = await pause_nodes(8, seed=1)
    # A stop may fall between the last look at the clock and the first instruction; `make pauses`
    # tells how often. Without that look it is most stops, as
    # `test_nothing_runs_on_a_lease_that_ended_while_the_process_stood_still` shows.
    assert len(verdict.overlaps) <= 1, verdict.overlaps
    assert verdict.backwards == []
    assert verdict.pauses == 8
    # Each time one node at least had an actor, and its successor ran before the node went on:
    # without that nothing could overlap.
    assert verdict.displaced >= 2, str(verdict)
    assert verdict.moves >= verdict.displaced, str(verdict)


def test_the_oracle_knows_an_overlap(tmp_path: Path) -> None:
    register = tmp_path / "register"
    register.write_text("a 5 100\nb 7 110\na 5 120\na 9 130\na 5 140\nb 7 150\n")
    assert judge(register) == (6, 1, ["a ran in epoch 5 at 140, after epoch 9"])
