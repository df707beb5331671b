"""Each rule of a map is broken on purpose, and one of the first seeds must find that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runtime.pools import map_schedule
from runtime.pools.map_schedule import Batch, MapSchedule
from tests.pools.schedule_world import World

SEEDS = 60
STEPS = 20_000
"""Many times as many as a right run takes."""

Plant = Callable[[pytest.MonkeyPatch], None]


def repeats_without_leave(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule.on_lost

    def on_lost(self: Any, *args: Any, **kwargs: Any) -> None:
        self._repeats = True
        right(self, *args, **kwargs)

    patch.setattr(MapSchedule, "on_lost", on_lost)


def forgets_what_was_recalled(patch: pytest.MonkeyPatch) -> None:
    def on_recalled(self: Any, batch: Batch, started: int) -> None:
        del batch.items[started:]

    patch.setattr(MapSchedule, "on_recalled", on_recalled)


def takes_back_what_was_started(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule.on_recalled
    patch.setattr(
        MapSchedule, "on_recalled", lambda self, batch, started: right(self, batch, started - 1)
    )


def loses_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule.on_refused

    def on_refused(self: Any, batch: Batch, *args: Any, **kwargs: Any) -> None:
        batch.items[:] = batch.items[1:] or batch.items
        right(self, batch, *args, **kwargs)

    patch.setattr(MapSchedule, "on_refused", on_refused)


def keeps_no_order(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule.__init__

    def forget(self: Any, **options: Any) -> None:
        right(self, **{**options, "ordered": False})

    patch.setattr(MapSchedule, "__init__", forget)


def tries_poison_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_schedule, "MOST_DEATHS", 10**9)


def knows_no_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MapSchedule, "_limit", lambda self: 10**9)


def gives_more_than_the_credit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MapSchedule, "_credit", lambda self, pace: 10**9)


def gives_up_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_schedule, "MOST_DEATHS", 2)


def retries_before_the_delay_is_over(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule._bring_back
    patch.setattr(MapSchedule, "_bring_back", lambda self, now: right(self, now + 1.0))


def retries_too_often(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule._on_failed

    def on_failed(self: Any, item: Any, error: BaseException, now: float) -> None:
        self._max_retries = 5
        right(self, item, error, now)

    patch.setattr(MapSchedule, "_on_failed", on_failed)


PLANTS: tuple[tuple[Plant, dict[str, Any]], ...] = (
    (repeats_without_leave, {"repeats": False}),
    (forgets_what_was_recalled, {"batch": 5}),
    (takes_back_what_was_started, {"batch": 5, "repeats": False}),
    (loses_what_was_refused, {"batch": 5}),
    (keeps_no_order, {}),
    (tries_poison_for_ever, {"poison": frozenset({7})}),
    (knows_no_window, {"window": 3}),
    (gives_more_than_the_credit, {}),
    (gives_up_too_early, {"poison": frozenset({7})}),
    (retries_before_the_delay_is_over, {"raises": frozenset({7, 8}), "retries": 2}),
    (retries_too_often, {"raises": frozenset({7, 8}), "retries": 2}),
)


@pytest.mark.parametrize(
    ("plant", "world"), PLANTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_rule_is_found(
    plant: Plant, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(range(SEEDS), world)


def check(seeds: range, world: dict[str, Any]) -> None:
    """Run the world under each seed, and judge what came out."""
    for seed in seeds:
        run = World(seed, **world)
        run.run(STEPS)
        run.judge()


@pytest.mark.parametrize("world", [world for _, world in PLANTS])
def test_without_the_mistake_the_same_seeds_find_nothing(world: dict[str, Any]) -> None:
    check(range(10), world)
