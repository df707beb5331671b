"""Owners that leave in order give their values to nodes that stay, or say that they are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import trio

from actors import Reference
from actors.errors import OutcomeUnknownError, OwnerDiedError, RemoteError
from actors.identifiers import NodeId, ReferenceId
from runtime import Node, open_node
from runtime.membership.members import Members
from runtime.node import internals_of
from runtime.references.hand_over import HandOver
from runtime.references.owned_values import OwnedValues
from runtime.references.table import ReferenceTable, state_of
from runtime.references.values import FailedValue
from runtime.timings import Timings
from tests.references.conftest import SECRET, Three
from tests.references.keepers import Keeper, Maker, OutOfStockError
from tests.references.test_references import until, values


async def test_values_of_a_node_that_leaves_go_to_one_that_holds_them(three: Three) -> None:
    keeper = await three.spawn(Keeper, "second")
    async with three.another("fourth"):
        maker: Any = await three.spawn(Maker, "fourth")
        small = await maker.make.remote([1, 2])
        big = await three.put("fourth", b"x" * 1_000_000)
        nested = await three.put("fourth", {"in": [small]})
        failed = await maker.fail.remote("no bolts")
        for name, reference in {
            "small": small,
            "big": big,
            "nested": nested,
            "failed": failed,
        }.items():
            await keeper.keep(name, reference)
        del big, nested
        assert small.owner == "fourth"
    assert small.owner != "fourth"
    with trio.fail_after(60):
        assert await small.fetch() == [1, 2]
        assert len(await keeper.fetch("big")) == 1_000_000
        found = await keeper.fetch("nested")
        assert await found["in"][0].fetch() == [1, 2]
        for fetch in (failed.fetch, lambda: keeper.fetch("failed")):
            with pytest.raises(RemoteError, match="no bolts"):
                await fetch()
    with pytest.raises(OutOfStockError):
        await failed.fetch()
    assert await (await keeper.give("big")).call.count(b"x") == 1_000_000
    del small, failed, found, reference
    for name in ("small", "big", "nested", "failed"):
        await keeper.let_go(name)
    for node in (three.driver, three.first, three.second):
        await until(lambda node=node: not values(node) and not internals_of(node).references.held)  # type: ignore[misc]


async def test_a_node_that_gets_a_reference_after_its_value_has_moved_finds_it(
    three: Three,
) -> None:
    keepers = [await three.spawn(Keeper, name) for name in ("first", "second")]
    async with three.another("fourth"):
        reference = await three.put("fourth", "x")
        await keepers[0].keep("it", reference)
        del reference
    with trio.fail_after(60):
        await keepers[1].keep("it", await keepers[0].give("it"))
        await keepers[0].let_go("it")
        assert await keepers[1].fetch("it") == "x"


async def test_a_fetch_that_waits_gets_what_comes_while_the_owner_leaves(three: Three) -> None:
    keeper = await three.spawn(Keeper, "second")
    got: list[object] = []

    async def fetch() -> None:
        got.append(await keeper.fetch("late"))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, three.another("fourth"):
            maker: Any = await three.spawn(Maker, "fourth")
            late = await maker.make_slowly.remote("late")
            await keeper.keep("late", late)
            nursery.start_soon(fetch)
    assert got == ["late"]
    assert await late.fetch() == "late"


async def test_a_node_may_lose_its_values_on_leaving_if_asked(three: Three) -> None:
    async with open_node(
        "fourth", join=three.driver.address, secret=SECRET, references_on_leave="lose"
    ):
        for node in (three.driver, three.first, three.second):
            await node.wait_for(4)
        reference: Reference[str] = await three.put("fourth", "x")
        keeper = await three.spawn(Keeper, "second")
        await keeper.keep("it", reference)
        held = await keeper.give("it")
        waiting: Any = await three.spawn(Maker, "fourth")
        del waiting
    with trio.fail_after(60), pytest.raises(OwnerDiedError, match="fourth"):
        await held.fetch()


@contextmanager
def deaf(times: int) -> Iterator[Callable[[], bool]]:
    """Nobody can be told that a value has moved, so many times; gives whether that is over."""
    original, heard = ReferenceTable.on_moved, 0

    def moved(self: ReferenceTable, identity: ReferenceId, owner: NodeId) -> Any:
        nonlocal heard
        heard += 1
        if heard <= times:
            raise RuntimeError("cannot be told")
        return original(self, identity, owner)

    with patch.object(ReferenceTable, "on_moved", moved):
        yield lambda: heard > times


async def test_a_holder_that_cannot_be_notified_at_once_is_notified_later(three: Three) -> None:
    keeper = await three.spawn(Keeper, "second")
    with deaf(3) as is_over:
        async with three.another("fourth"):
            reference = await three.put("fourth", "x")
            await keeper.keep("it", reference)
        with trio.fail_after(60):
            await until(is_over)
    there = await keeper.give("it")
    with trio.fail_after(60):
        assert await reference.fetch() == await there.fetch() == await keeper.fetch("it") == "x"
    await keeper.let_go("it")
    del reference, there
    for node in (three.driver, three.first, three.second):
        await until(lambda node=node: not values(node) and not internals_of(node).references.held)  # type: ignore[misc]


async def test_a_release_that_only_the_old_owner_got_is_asked_for_by_the_new_owner(
    three: Three,
) -> None:
    service = internals_of(three.driver).endpoint.reference_service(
        three.first.name, three.first.incarnation
    )
    outcome = FailedValue("remote", {}, "maker", "make", "fourth", 1)
    with deaf(3) as is_over:
        await service.adopt(
            ["fourth", 1, 1],
            outcome,
            [[three.second.name, three.second.incarnation, 5]],
            "make",
            "",
        )
        assert values(three.first) == 1
        with trio.fail_after(60):
            await until(lambda: not values(three.first))
            assert is_over()


async def test_values_that_end_because_all_nodes_leave_are_worth_no_warning(
    three: Three, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "understudy")
    with patch.object(Members, "staying", lambda self, own: []):
        async with three.another("fourth"):
            held = await three.put("fourth", [1])
            holds = internals_of(three.driver).references.table.hold_state
            await until(lambda: holds(state_of(held)) == "held")
    (record,) = [one for one in caplog.records if "end with it" in one.getMessage()]
    assert record.levelname == "INFO"
    assert record.getMessage() == (
        "1 referenced values of node fourth end with it: all other nodes leave as well"
    )


async def test_values_refused_by_nodes_that_leave_as_well_are_worth_none_either(
    three: Three, caplog: pytest.LogCaptureFixture
) -> None:
    """The view of the node that leaves shows only later that the others do."""
    caplog.set_level("INFO", "understudy")
    here = NodeId(three.driver.name, three.driver.incarnation)
    shown = False
    real = Members.caught_up

    async def look(self: Members, revision: int) -> None:
        nonlocal shown
        shown = shown or revision > self.revision
        await real(self, revision)

    with (
        patch.object(Members, "caught_up", look),
        patch.object(Members, "staying", lambda self, own: [] if shown else [here]),
    ):
        async with three.another("fourth"):
            held = await three.put("fourth", [1])
            holds = internals_of(three.driver).references.table.hold_state
            await until(lambda: holds(state_of(held)) == "held")
            internals_of(three.driver).references.owned.take_nothing_over()
            shown = False
    (record,) = [one for one in caplog.records if "end with it" in one.getMessage()]
    assert (shown, record.levelname) == (True, "INFO")


async def test_the_last_node_leaves_at_once() -> None:
    with trio.fail_after(5):
        async with open_node("alone", secret=SECRET) as node:
            reference = await node.put(1)
    del reference
    with pytest.raises(ValueError, match="move, lose"):
        async with open_node("odd", secret=SECRET, references_on_leave="stay"):  # type: ignore[arg-type]
            pass


def is_held(node: Node, identity: ReferenceId) -> bool:
    """Whether the owner knows that this node holds a value."""
    state = internals_of(node).references.table.find(identity)
    return state is not None and internals_of(node).references.table.hold_state(state) == "held"


async def test_who_registers_itself_while_a_value_moves_is_known_to_its_new_owner(
    three: Three,
) -> None:
    # The value moves twice here, after several calls: on a loaded machine the usual time for that
    # ends between the two, and then the value is lost with its node, as it must be.
    timings = Timings(drain=150.0)
    keeper = await three.spawn(Keeper, "second")
    original, moves = OwnedValues.adopt, 0
    handed: list[Reference[Any]] = []

    async def adopt(self: OwnedValues, *arguments: Any) -> bool:
        nonlocal moves
        moves += 1
        if moves == 1:
            await keeper.keep("it", handed[0])
            # The old owner says yes, since the value has not moved yet.
            identity = state_of(handed[0]).identity
            await until(lambda: is_held(three.second, identity))
        return await original(self, *arguments)

    with patch.object(OwnedValues, "adopt", adopt):
        async with three.another("fourth", timings):
            handed.append(await three.put("fourth", "x"))
            await until(lambda: is_held(three.driver, state_of(handed[0]).identity))
    assert moves > 1
    handed.clear()
    with trio.fail_after(60):
        assert await keeper.fetch("it") == "x"


async def test_two_nodes_that_leave_together_take_no_value_with_them(three: Three) -> None:
    keeper = await three.spawn(Keeper, "second")
    together = trio.Event()

    async def stay(name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with open_node(name, join=three.driver.address, secret=SECRET):
            task_status.started()
            await together.wait()

    async with trio.open_nursery() as nursery:
        for name in ("fourth", "fifth"):
            await nursery.start(stay, name)
        for node in (three.driver, three.first, three.second):
            await node.wait_for(5)
        # Each has a value that the other holds, too, and may give it to that one.
        for owner, other in (("fourth", "fifth"), ("fifth", "fourth")):
            await keeper.keep(owner, await three.put(owner, f"of {owner}"))
            also = await three.spawn(Keeper, other)
            await also.keep(owner, await keeper.give(owner))
        together.set()
    with trio.fail_after(60):
        assert [await keeper.fetch(name) for name in ("fourth", "fifth")] == [
            "of fourth",
            "of fifth",
        ]


async def test_a_value_that_was_given_on_while_there_was_no_memory_for_it_is_not_taken_back(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    references, values_of = (
        internals_of(three.first).references,
        internals_of(three.first).references.owned,
    )
    reference = await three.first.put("x")
    state = state_of(reference)

    async def room() -> None:
        await trio.lowlevel.checkpoint()
        references.apply(
            references.table.on_given(state, NodeId(three.second.name, three.second.incarnation))
        )

    monkeypatch.setattr(values_of.value_store, "room", room)
    assert not await values_of.adopt(
        state.identity, FailedValue("remote", {}, "maker", "make", "fourth", 1), [], "make", ""
    )
    assert references.table.owner(state.identity) == (three.second.name, three.second.incarnation)


async def test_a_value_whose_new_owner_has_left_before_it_could_answer_goes_to_no_other_node(
    three: Three,
) -> None:
    keepers = [await three.spawn(Keeper, name) for name in ("first", "driver")]
    first, second, driver = (
        NodeId(node.name, node.incarnation) for node in (three.first, three.second, three.driver)
    )
    async with three.another("fourth") as fourth:
        reference = await fourth.put("x")
        state = state_of(reference)
        identity = state.identity
        for count, keeper in enumerate(keepers, 1):
            theirs: Any = three.handle_at(fourth, keeper)
            await theirs.keep("it", reference)
            # The first holder is offered the value first.
            await until(
                lambda count=count: (
                    len(internals_of(fourth).references.table.holders(state)) == count
                )  # type: ignore[misc]
            )

        class Unanswered:
            """The service of a node that gives a value on, and ends, before its answer is there."""

            async def adopt(self, *arguments: Any) -> list[Any]:
                await internals_of(fourth).endpoint.reference_service(*first).adopt(*arguments)
                assert await internals_of(three.first).references.hand_over(lambda: [second]) == 0
                await three.kill(three.first)
                internals_of(fourth).on_proven_end(first, "killed by the test")
                raise OutcomeUnknownError("the answer is lost")

        def service(*node: Any) -> Any:
            return (
                Unanswered()
                if node == first
                else internals_of(fourth).endpoint.reference_service(*node)
            )

        references = internals_of(fourth).references
        with trio.fail_after(60):
            assert (
                await HandOver(
                    references.table, references.apply, references.tidy, references.owned, service
                ).hand_over(lambda: [first, driver])
                == 0
            )
        assert internals_of(fourth).references.table.owner(identity) == second
        assert internals_of(three.driver).references.table.owner(identity) is None
    with trio.fail_after(60):
        assert await keepers[1].fetch("it") == "x"
