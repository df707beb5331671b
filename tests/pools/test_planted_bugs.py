"""Each rule of a map is broken on purpose, and one of the first seeds must find that."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import trio

from actors.identifiers import ActorId
from actors.pools import MapCounts
from runtime.environment import first
from runtime.hosting import item_batches
from runtime.pools import map_run, map_schedule, member_plan, pool, supervisor, waiting_items
from runtime.pools.batch_sizes import Batch, BatchSizes, KnownPace
from runtime.pools.map_schedule import MapSchedule
from runtime.pools.member_plan import MemberChanges, plan
from runtime.pools.pool import Router
from runtime.pools.supervisor import PoolSupervisor
from runtime.pools.waiting_items import WaitingItems
from runtime.simulation import SimulationError, simulate
from runtime.simulation.runs import Scenario
from tests.calls import test_filters
from tests.pools import (
    test_map_schedule,
    test_member_plan,
    test_named_pools,
    test_routing,
    test_simulated,
)
from tests.pools.schedule_world import World

pytestmark = pytest.mark.usefixtures("unexplained_assertions")

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
    patch.setattr(BatchSizes, "credit", lambda self, pace: 10**9)


def sends_what_cannot_be_recalled_behind_others(patch: pytest.MonkeyPatch) -> None:
    right = BatchSizes.__init__

    def forget(self: Any, fixed: int | None, known: KnownPace, *, alone: bool) -> None:
        right(self, fixed, known, alone=alone)
        self._alone = False

    patch.setattr(BatchSizes, "__init__", forget)


def gives_up_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_schedule, "MOST_DEATHS", 2)


def retries_before_the_delay_is_over(patch: pytest.MonkeyPatch) -> None:
    right = WaitingItems.bring_back
    patch.setattr(WaitingItems, "bring_back", lambda self, now: right(self, now + 1.0))


def retries_too_often(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule._on_failed

    def on_failed(self: Any, item: Any, error: BaseException, now: float) -> None:
        self._max_retries = 5
        right(self, item, error, now)

    patch.setattr(MapSchedule, "_on_failed", on_failed)


# What counts say.


def counts_with(patch: pytest.MonkeyPatch, change: Callable[[Any, MapCounts], MapCounts]) -> None:
    """Have the schedule say something else than what it knows."""
    right = MapSchedule.counts
    patch.setattr(MapSchedule, "counts", lambda self, now: change(self, right(self, now)))


def counts_batches_for_items(patch: pytest.MonkeyPatch) -> None:
    counts_with(patch, lambda self, told: attrs.evolve(told, running=len(self._batches)))


def counts_no_failures(patch: pytest.MonkeyPatch) -> None:
    counts_with(
        patch, lambda self, told: attrs.evolve(told, failed=0, done=told.done + told.failed)
    )


def counts_nothing_that_waits_for_its_retry(patch: pytest.MonkeyPatch) -> None:
    counts_with(patch, lambda self, told: attrs.evolve(told, waiting=self._waiting.ready))


def counts_no_repeats(patch: pytest.MonkeyPatch) -> None:
    counts_with(patch, lambda self, told: attrs.evolve(told, repeated=0))


def counts_as_repeated_what_was_recalled(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule.on_recalled

    def on_recalled(self: Any, batch: Batch, started: int) -> None:
        back = batch.items[started:] if batch.number in self._batches else []
        right(self, batch, started)
        for item in back:
            item.attempts += 1

    patch.setattr(MapSchedule, "on_recalled", on_recalled)


PLANTS: tuple[tuple[Plant, dict[str, Any]], ...] = (
    (repeats_without_leave, {"repeats": False}),
    (forgets_what_was_recalled, {"batch": 5}),
    (takes_back_what_was_started, {"batch": 5, "repeats": False}),
    (loses_what_was_refused, {"batch": 5}),
    (keeps_no_order, {}),
    (tries_poison_for_ever, {"poison": frozenset({7})}),
    (knows_no_window, {"window": 3}),
    (gives_more_than_the_credit, {}),
    (sends_what_cannot_be_recalled_behind_others, {"alone": True}),
    (gives_up_too_early, {"poison": frozenset({7})}),
    (retries_before_the_delay_is_over, {"raises": frozenset({7, 8}), "retries": 2}),
    (retries_too_often, {"raises": frozenset({7, 8}), "retries": 2}),
    (counts_batches_for_items, {"batch": 5}),
    (counts_no_failures, {"raises": frozenset({7, 8})}),
    (counts_nothing_that_waits_for_its_retry, {"raises": frozenset({7, 8}), "retries": 2}),
    (counts_no_repeats, {}),
    (counts_as_repeated_what_was_recalled, {"batch": 5}),
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


@pytest.mark.long
@pytest.mark.parametrize("world", [world for _, world in PLANTS])
def test_without_the_mistake_the_same_seeds_find_nothing(world: dict[str, Any]) -> None:
    check(range(10), world)


# Where members are: the plan alone.


def stops_none_of_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member_plan, "_excess", lambda count, candidates, placed: ())


def starts_all_on_one_node(patch: pytest.MonkeyPatch) -> None:
    def first(one: Any, *others: Any, key: Any = None) -> Any:
        return min(one, *others) if key is None else one[0]

    # Of all nodes it takes the one with the fewest members.
    patch.setattr(member_plan, "min", first, raising=False)


def leaves_members_on_nodes_that_have_too_many(patch: pytest.MonkeyPatch) -> None:
    def on_each(*args: Any) -> MemberChanges:
        return MemberChanges(right(*args).starts)

    right = member_plan._on_each
    patch.setattr(member_plan, "_on_each", on_each)


def gives_the_opener_members(patch: pytest.MonkeyPatch) -> None:
    def anywhere(*args: Any, opener: str, **options: Any) -> MemberChanges:
        return plan(*args, **options)

    patch.setattr(test_member_plan, "plan", anywhere)


@pytest.mark.parametrize(
    "plant",
    [
        stops_none_of_too_many,
        starts_all_on_one_node,
        leaves_members_on_nodes_that_have_too_many,
        gives_the_opener_members,
    ],
)
def test_a_wrong_plan_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        settle()


def settle() -> None:
    for seed in range(SEEDS):
        test_member_plan.test_whatever_comes_and_goes_the_plan_settles_on_an_even_spread(seed)


# Pools in simulated clusters.


def ignores_its_new_size(patch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []

    def planned(size: Any, *args: Any, **options: Any) -> MemberChanges:
        first.append(size)
        return plan(first[0], *args, **options)

    patch.setattr(supervisor, "plan", planned)


def ignores_nodes_that_join(patch: pytest.MonkeyPatch) -> None:
    known: list[list[str]] = []
    right = PoolSupervisor._nodes

    def nodes(self: PoolSupervisor) -> list[str]:
        known.append(right(self))
        return known[0]

    patch.setattr(PoolSupervisor, "_nodes", nodes)


def replaces_none_that_died(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolSupervisor, "_on_children_changed", lambda self, ids: self._tell())


def has_no_keepers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolSupervisor, "_keep", lambda self: None)


def returns_before_there_is_a_keeper(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolSupervisor, "_keepers", lambda self: {self.node.name})


def forgets_its_size_when_it_moves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervisor, "_saved", lambda state: (None, ""))


def goes_on_with_the_spec_of_any_that_stands_for_it(patch: pytest.MonkeyPatch) -> None:
    async def take_over(self: PoolSupervisor) -> None:
        await self._save()

    patch.setattr(PoolSupervisor, "_take_over", take_over)


def knows_no_members_of_its_predecessor(patch: pytest.MonkeyPatch) -> None:
    async def find_adopted(self: PoolSupervisor) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(PoolSupervisor, "_find_adopted", find_adopted)


def asks_no_keeper(patch: pytest.MonkeyPatch) -> None:
    async def kept_spec(self: PoolSupervisor) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(PoolSupervisor, "_kept_spec", kept_spec)


def sees_no_references(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_run, "references_of", lambda args: [])


def keeps_no_results(patch: pytest.MonkeyPatch) -> None:
    async def kept(self: Any, call: Any) -> object:
        return await (await call).fetch()

    patch.setattr(map_run.MapRun, "_kept", kept)


@pytest.mark.parametrize(
    ("plant", "scenario"),
    [
        (ignores_its_new_size, test_named_pools.lives),
        (ignores_nodes_that_join, test_named_pools.lives),
        (replaces_none_that_died, test_named_pools.lives),
        (has_no_keepers, test_named_pools.opened_and_killed),
        (returns_before_there_is_a_keeper, test_named_pools.opened_and_killed),
        (forgets_its_size_when_it_moves, test_named_pools.resized_and_killed),
        (knows_no_members_of_its_predecessor, test_named_pools.resized_and_killed),
        *(
            pytest.param(plant, test_named_pools.two_alike_at_once, marks=pytest.mark.long)
            for plant in (asks_no_keeper, goes_on_with_the_spec_of_any_that_stands_for_it)
        ),
        (sees_no_references, test_simulated.local_work),
        (keeps_no_results, test_simulated.local_work),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_pool_is_found(
    plant: Plant, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationError):
        # First one that found all of them when they were last looked for.
        simulate(scenario, seeds=[4, *range(4), *range(5, 40)], faults=[])


# Where the items of references run, and what filters make of the items of a batch.


def knows_no_places(patch: pytest.MonkeyPatch) -> None:
    right = MapSchedule.on_member
    patch.setattr(MapSchedule, "on_member", lambda self, member, place="": right(self, member))


def waits_for_a_place_for_ever(patch: pytest.MonkeyPatch) -> None:
    right = WaitingItems.take_first

    def take_first(self: Any, place: str, places: Any, now: float, *, is_idle: bool) -> Any:
        return right(self, place, places, 0.0, is_idle=is_idle)

    patch.setattr(WaitingItems, "take_first", take_first)


def passes_over_an_item_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting_items, "LOOK_AHEAD", 10**9)


def gives_turns_by_chance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "_next", Router._random)


def begins_each_round_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "_next", lambda self, present: present[0])


def moves_all_keys_with_each_member(patch: pytest.MonkeyPatch) -> None:
    def of_key(self: Router, present: Sequence[ActorId], key: object) -> ActorId:
        return present[zlib.crc32(repr(key).encode()) % len(present)]

    patch.setattr(Router, "_of_key", of_key)


def places_keys_by_the_hash_of_the_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool, "_digest", lambda member, key: hash((member.name, key)))


def places_keys_by_chance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "_of_key", lambda self, present, key: self._random(present))


def compares_a_member_with_itself(patch: pytest.MonkeyPatch) -> None:
    def less_loaded(self: Router, present: Sequence[ActorId]) -> ActorId:
        return min(self._random(present), self._random(present), key=self._depth)

    patch.setattr(Router, "_less_loaded", less_loaded)


def sends_all_to_the_least_loaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "_less_loaded", lambda self, present: min(present, key=self._depth))


def prefers_the_more_loaded(patch: pytest.MonkeyPatch) -> None:
    right = Router.__init__

    def turned(
        self: Router,
        draw: Callable[[], float],
        depth: Callable[[ActorId], int],
        bytes_of: Callable[[object], bytes],
    ) -> None:
        right(self, draw, lambda member: -depth(member), bytes_of)

    patch.setattr(Router, "__init__", turned)


def chooses_any_in_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "_random", Router._next)


def takes_refusals_of_filters_for_errors_of_methods(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(item_batches, "RefusedElsewhereError", ZeroDivisionError)


def repeats_nothing_that_a_filter_refused(patch: pytest.MonkeyPatch) -> None:
    def is_again(self: Any, item: Any, error: Any, now: float) -> bool:
        self.held.finish(item, error=error)
        return False

    patch.setattr(MapSchedule, "_is_again", is_again)


def filtered_batch() -> None:
    try:
        trio.run(test_filters.test_each_item_of_a_batch_ends_as_its_filters_say, 5, False)
    except BaseExceptionGroup as group:
        raise first(group) from None


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (
            knows_no_places,
            test_map_schedule.test_an_item_runs_where_its_value_is_if_a_member_is_there,
        ),
        (
            waits_for_a_place_for_ever,
            test_map_schedule.test_a_member_without_local_items_takes_others_after_a_moment,
        ),
        (
            passes_over_an_item_for_ever,
            test_map_schedule.test_local_items_pass_over_others_so_often_and_no_oftener,
        ),
        (gives_turns_by_chance, test_routing.test_each_member_has_its_turn_in_any_order_of_members),
        (
            begins_each_round_anew,
            test_routing.test_no_member_has_two_turns_in_a_row_when_others_come_and_go,
        ),
        (
            moves_all_keys_with_each_member,
            test_routing.test_a_member_that_comes_or_goes_moves_only_keys_of_its_own,
        ),
        (
            places_keys_by_the_hash_of_the_process,
            test_routing.test_a_key_has_one_member_for_all_callers,
        ),
        (places_keys_by_chance, test_routing.test_a_key_has_one_member_for_all_callers),
        *(
            (plant, test_routing.test_of_two_members_the_less_loaded_is_chosen)
            for plant in (
                compares_a_member_with_itself,
                sends_all_to_the_least_loaded,
                prefers_the_more_loaded,
            )
        ),
        (chooses_any_in_turn, test_routing.test_any_member_is_chosen_at_random),
        (takes_refusals_of_filters_for_errors_of_methods, filtered_batch),
        (repeats_nothing_that_a_filter_refused, filtered_batch),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_found_by_a_test(
    plant: Plant, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test()
