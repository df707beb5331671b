"""Named actors that are started and stopped side by side: the simulator claims their names
together, and looks whether each has its actor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from actors.identifiers import NodeId
from runtime.hosting.start_batches import StartBatch, UnfinishedStarts
from runtime.membership.names import Names
from runtime.simulation import simulate_once
from runtime.simulation.joint_starts import JointStarts

SEEDS = [seed for seed in range(200) if JointStarts.is_drawn(seed)]


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:4])]
)
def test_names_are_claimed_together_and_each_has_its_actor(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    original = Names.claim_many

    async def counted(
        self: Names,
        names: Sequence[str],
        class_path: str,
        resources: Mapping[str, float] | None = None,
    ) -> list[int | Exception]:
        sizes[len(names)] += 1
        found = await original(self, names, class_path, resources)
        outcomes.update(type(one).__name__ for one in found)
        return found

    went_on: list[int] = []
    add = UnfinishedStarts.add

    def noted(
        self: UnfinishedStarts, ticket: str, batch: StartBatch, caller: NodeId | None
    ) -> list[int]:
        numbers = add(self, ticket, batch, caller)
        went_on.extend(numbers)
        return numbers

    monkeypatch.setattr(UnfinishedStarts, "add", noted)
    monkeypatch.setattr(Names, "claim_many", counted)
    report = simulate_once(seed)
    assert report.holds, report.wrong
    assert sum(count for size, count in sizes.items() if size > 1) >= 3
    assert went_on or seed != SEEDS[0], "some starts go on when their message is answered"
    assert outcomes["int"] >= 3
    assert outcomes["NameTakenError"] >= 1
    (said,) = [
        result.text for result in report.check_results if result.name == "names claimed together"
    ]
    assert re.match(r"[0-9]+ actors were started side by side, [0-9]+ names were taken", said)
