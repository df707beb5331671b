"""Many references that are dropped at once: no message and no step of the event loop is as large as
their number.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from actors import Reference
from actors.errors import (
    DecodeError,
    EncodeError,
    NotExecutedError,
    OutcomeUnknownError,
    OwnerDiedError,
    RemoteError,
)
from actors.identifiers import NodeId
from runtime.node import internals_of
from runtime.references.hand_over import HandOver
from runtime.references.inspection import listing
from runtime.references.owned_values import OwnedValues
from runtime.references.protocol import MOST_UPDATES, UpdateBatch
from runtime.references.table import ReferenceState, state_of
from runtime.references.values import EncodedValue
from tests.references.conftest import Three
from tests.references.keepers import Keeper, Maker
from tests.waiting import until

MOST = 7


def encoded_size(value: Reference[Any]) -> int:
    """The bytes of a value at its owner."""
    return state_of(value).size


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


class Steps(trio.abc.Instrument):
    """Notes by how much a number grows, at most, in one step of one task."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._before = 0
        self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self._before = self._number()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """And waits again."""
        self.most = max(self.most, self._number() - self._before)


async def test_references_of_one_message_are_recorded_in_parts(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.manager.NOTES_IN_A_ROW", MOST)
    keeper = await three.spawn(Keeper, "second")
    values = [await three.driver.put(number) for number in range(10 * MOST)]
    table = internals_of(three.second).references.table
    steps = Steps(lambda: len(table._borrowed.all))
    trio.lowlevel.add_instrument(steps)
    try:
        await keeper.keep_all(values)
        await until(lambda: len(table._borrowed.all) == len(values), "all are recorded")
    finally:
        trio.lowlevel.remove_instrument(steps)
    assert 0 < steps.most <= MOST
    assert table.arrivals == 0
    own = [state_of(value) for value in values]
    driver = internals_of(three.driver).references.table
    second = NodeId(three.second.name, three.second.incarnation)
    await until(lambda: all(driver.holders(one) == (second,) for one in own), "all are claimed")
    await until(lambda: not driver.has_open_forks, "all forks are settled")


async def test_values_are_lost_with_their_owner_in_parts(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.manager.NOTES_IN_A_ROW", MOST)
    async with three.another("fourth") as fourth:
        values = [await three.put("driver", number) for number in range(2 * MOST)]
        maker = await three.spawn(Maker, fourth.name)
        held = [await maker.put(number) for number in range(10 * MOST)]
        states = [state_of(value) for value in held]
        driver = internals_of(three.driver).references
        holds = driver.table.hold_state
        await until(lambda: all(holds(state) == "held" for state in states), "all are held")
        steps = Steps(lambda: sum(holds(state) == "lost" for state in states))
        trio.lowlevel.add_instrument(steps)
        try:
            await three.kill(fourth)
            await until(lambda: all(holds(state) == "lost" for state in states), "all are lost")
        finally:
            trio.lowlevel.remove_instrument(steps)
        assert 0 < steps.most <= MOST
        for value in held:
            with pytest.raises(OwnerDiedError):
                await value.fetch()
        assert [await value.fetch() for value in values] == list(range(2 * MOST))


async def test_a_node_that_leaves_moves_many_values_with_few_tasks(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.hand_over.AT_ONCE", 3)
    monkeypatch.setattr("runtime.references.hand_over.WITHOUT_A_TURN", 2)
    moving, most = 0, 0
    give = HandOver._give

    async def count(self: HandOver, state: ReferenceState, node: NodeId) -> bool:
        nonlocal moving, most
        moving += 1
        most = max(most, moving)
        try:
            return await give(self, state, node)
        finally:
            moving -= 1

    monkeypatch.setattr(HandOver, "_give", count)
    async with three.another("fourth") as fourth:
        # Values that no other node holds are not moved.
        unheld = [await fourth.put(number) for number in range(20)]
        maker = await three.spawn(Maker, fourth.name)
        held = [await maker.put(number) for number in range(20)]
        table = internals_of(three.driver).references.table
        await until(
            lambda: all(table.hold_state(state_of(one)) == "held" for one in held), "all are held"
        )
    assert most == 3
    assert [await one.fetch() for one in held] == list(range(20))
    assert len(unheld) == 20


async def test_a_listing_of_many_values_lets_other_tasks_run(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.inspection.STATES_IN_A_ROW", MOST)
    values = [await three.driver.put("x" * number) for number in range(10 * MOST)]
    references, turns = internals_of(three.driver).references, 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        said = await listing(references, 3)
        nursery.cancel_scope.cancel()
    sizes = sorted((encoded_size(value) for value in values), reverse=True)
    assert turns >= 5
    assert (said["values"], said["left_out"]) == (len(values), len(values) - 3)
    assert said["bytes"] == sum(sizes)
    assert [one["size"] for one in said["listed"]] == sizes[:3]


async def test_more_references_than_one_message_may_have_are_refused_by_its_sender(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.manager.MOST_REFERENCES", MOST)
    keeper = await three.spawn(Keeper, "first")
    values = [await three.driver.put(number) for number in range(MOST + 1)]
    await keeper.keep_all(values[:MOST])
    with pytest.raises(EncodeError, match="one reference more than the 7 that one message") as it:
        await keeper.keep_all(values)
    assert it.value.path == f"args[0][{MOST}]"
    # The traceback has the message in it.
    del it
    # A value that is fetched is one message, too: the bound ends that fetch, and nothing else.
    await keeper.keep("many", await three.driver.put(values))
    with pytest.raises(RemoteError, match=f"more than the {MOST} that one message may have"):
        await keeper.fetch("many")
    await keeper.let_go("many")
    forks = internals_of(three.driver).references.table
    await until(lambda: not forks.has_open_forks, "nothing waits for the message that was refused")


async def test_a_message_is_refused_and_not_its_link_while_too_many_references_wait(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.references.manager.MOST_ARRIVALS", MOST)
    keeper = await three.spawn(Keeper, "first")
    values = [await three.driver.put(number) for number in range(MOST + 1)]
    link = next(iter(internals_of(three.first).links.values()))
    with pytest.raises(NotExecutedError, match="has read 7 references that it has not recorded"):
        await keeper.keep_all(values)
    assert link.ended is None
    table = internals_of(three.first).references.table
    await until(lambda: not table.arrivals, "those of the refused message are recorded")
    assert await keeper.keep_all(values[:MOST]) == MOST


@pytest.fixture
def few_arrivals(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that lets only `MOST` references wait to be recorded from then on."""
    return partial(monkeypatch.setattr, "runtime.references.manager.MOST_ARRIVALS", MOST)


async def _keeper_of(three: Three, count: int) -> Keeper:
    """A keeper on the first node that holds so many values of the second."""
    keeper, maker = await three.spawn(Keeper, "first"), await three.spawn(Maker, "second")
    for number in range(count):
        await keeper.keep(str(number), await maker.put(number))
    references = internals_of(three.driver).references
    # What this node holds is recorded already, and would not wait to be.
    await until(lambda: references.held == 0, "the driver holds none of them any more")
    return keeper


async def _see_all_settled(three: Three) -> None:
    """Wait until the first node has no fork that its peers might still need."""
    table = internals_of(three.first).references.table
    await until(lambda: not table.has_open_forks, "all forks are settled")
    driver = internals_of(three.driver).references.table
    await until(lambda: not driver.arrivals, "what has arrived is recorded")


async def test_an_answer_is_refused_and_not_its_link_while_too_many_references_wait(
    three: Three, few_arrivals: Callable[[], None]
) -> None:
    keeper = await _keeper_of(three, MOST + 1)
    links = dict(internals_of(three.driver).links)
    few_arrivals()
    with pytest.raises(OutcomeUnknownError, match=r"give_all ran, but .* has read") as it:
        await keeper.give_all()
    assert it.value.method == "give_all"
    # The traceback has what was read of the message in it.
    del it
    await _see_all_settled(three)
    assert internals_of(three.driver).links == links
    assert all(link.ended is None for link in links.values())
    await keeper.let_go("0")
    assert [await one.fetch() for one in await keeper.give_all()] == [*range(1, MOST + 1)]
    await _see_all_settled(three)


async def test_an_item_of_a_stream_is_refused_and_not_its_link_while_too_many_references_wait(
    three: Three, few_arrivals: Callable[[], None]
) -> None:
    keeper = await _keeper_of(three, MOST + 1)
    few_arrivals()
    with pytest.raises(OutcomeUnknownError, match=r"yielded an item .* has read"):
        await anext(keeper.stream_all())
    await _see_all_settled(three)
    await keeper.let_go("0")
    assert [len(items) async for items in keeper.stream_all()] == [MOST]
    await _see_all_settled(three)


async def test_a_fetched_value_is_refused_and_not_lost_while_too_many_references_wait(
    three: Three,
) -> None:
    maker = await three.spawn(Maker, "first")
    parts = [await three.put("second", number) for number in range(MOST + 1)]
    whole = await maker.put(parts)
    del parts
    references = internals_of(three.driver).references
    await until(lambda: references.held == 1, "only the whole value is held")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.references.manager.MOST_ARRIVALS", MOST)
        with pytest.raises(DecodeError, match=r"owned by first> has a value .* has read 7") as it:
            await whole.fetch()
        # The traceback has what was read of the value in it.
        del it
        await _see_all_settled(three)
    assert [await one.fetch() for one in await whole.fetch()] == [*range(MOST + 1)]


@pytest.mark.parametrize(
    "answer", [[["second"], 1], ["second", {}], [[], []], [], [1, 2, 3], {}, "second", None]
)
async def test_an_owner_that_answers_what_no_owner_does_costs_the_fetch_and_no_node(
    three: Three, answer: object
) -> None:
    value = await three.put("first", "whole")

    async def serve(self: OwnedValues, *reader: object) -> object:
        await trio.lowlevel.checkpoint()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnedValues, "serve", serve)
        with trio.fail_after(60), pytest.raises(OutcomeUnknownError, match="node first"):
            await value.fetch()
        with trio.fail_after(60), pytest.raises(OutcomeUnknownError, match="node first"):
            await value.call.upper()
    del value
    gc.collect()
    references = internals_of(three.driver).references
    await until(lambda: not references.held, "the value is dropped")
    assert await (await three.put("second", "another")).fetch() == "another"


async def test_a_value_that_cannot_be_read_is_an_error_that_names_it_and_costs_no_link(
    three: Three,
) -> None:
    value = await three.put("first", "whole")

    async def serve(self: OwnedValues, *reader: object) -> EncodedValue:
        await trio.lowlevel.checkpoint()
        return EncodedValue(b"\xff", ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnedValues, "serve", serve)
        with pytest.raises(DecodeError, match="owned by first> has a value that cannot be read"):
            await value.fetch()
    assert await value.fetch() == "whole"
