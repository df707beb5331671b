"""Many references that are dropped at once: no message and no step of the event loop is as large as
their number.
"""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

from runtime.node import internals_of
from runtime.references.protocol import MOST_UPDATES, UpdateBatch
from tests.references.conftest import Three
from tests.references.keepers import Maker
from tests.waiting import until

MOST = 7


def test_updates_are_sent_in_parts_and_each_of_them_once() -> None:
    batch, count = UpdateBatch(), 2 * MOST_UPDATES + 5
    for number in range(count):
        batch.claim(("claimed", 1, number), 1, -math.inf, again=False)
        batch.release(("released", 1, number), 1)
    sent: list[tuple[int, int]] = []
    seen: set[Any] = set()
    while (updates := batch.due_updates(0.0)) != ({}, {}):
        assert batch.due_updates(0.0) == updates, "until they are answered"
        batch.on_answered(updates)
        assert seen.isdisjoint({*updates.claims, *updates.releases})
        seen.update(updates.claims, updates.releases)
        sent.append((len(updates.claims), len(updates.releases)))
    assert sent == [(MOST_UPDATES,) * 2, (MOST_UPDATES,) * 2, (5, 5)]
    assert len(seen) == 2 * count
    assert batch.is_empty


async def test_all_that_are_dropped_at_once_are_freed_in_parts(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.protocol.MOST_UPDATES", MOST)
    monkeypatch.setattr("runtime.references.manager.NOTES_IN_A_ROW", MOST)
    maker = await three.spawn(Maker, "first")
    held = [await maker.make.remote([1]) for _ in range(10 * MOST)]
    for one in held:
        await one.fetch()
    del one
    references = internals_of(three.first).references
    assert len(references) == len(held)
    held.clear()
    gc.collect()
    await until(lambda: not len(references), "all values are freed")
