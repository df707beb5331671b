"""Starts that many tasks make at the same time on one other node travel together; one alone does
not wait, and a task that is cancelled leaves no actor behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import ClassVar

import attrs
import pytest
import trio
import trio.testing

from actors import Actor, method
from actors.actor import Member
from actors.errors import (
    ActorNotFoundError,
    NameTakenError,
    NodeDiedError,
    OutcomeUnknownError,
)
from actors.method import Address
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime.lifetime import Lifetime
from runtime.node import internals_of
from runtime.supervision.gathered_starts import Outcome, StartGatherer, StartKind
from tests.live_pair import Pair
from tests.waiting import until

MOST = 8
OPTIONS = SpawnOptions()


class Small(Actor):
    @method
    async def read(self) -> int:
        return 16


class Careful(Actor):
    """Does something when it is stopped."""

    ended: ClassVar[list[str]] = []

    async def on_stop(self, reason: ExitReason) -> None:
        await trio.lowlevel.checkpoint()
        self.ended.append(reason.kind)


class Unheeding(Actor):
    """Its start does not end by a cancellation."""

    begun: ClassVar[trio.Event]
    go: ClassVar[trio.Event]

    async def on_start(self) -> None:
        self.begun.set()
        with trio.CancelScope(shield=True):
            await self.go.wait()


class Other(Actor):
    """Another class."""


def member(name: str = "there") -> Member:
    return Member(name, 3, ("127.0.0.1:7400",), "host", 1)


@attrs.define
class Far:
    """The far side: answers when it is let."""

    answers: trio.Event = attrs.field(factory=trio.Event)
    messages: list[tuple[str, type[Actor], SpawnOptions, int]] = attrs.field(factory=list)
    alone: int = 0
    undone: list[str] = attrs.field(factory=list)
    numbers: count[int] = attrs.field(factory=count)
    error: Exception | None = None

    def address(self) -> Address:
        return Address(f"small-{next(self.numbers)}", "there", 3, 3)

    async def start_alone(self) -> Address:
        self.alone += 1
        await self.answers.wait()
        return self.address()

    async def ask(self, kind: StartKind, names: list[str]) -> list[Outcome]:
        self.messages.append((kind.member.name, kind.cls, kind.options, len(names)))
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return [self.address() for _ in names]

    async def undo(self, addresses: Sequence[Address]) -> None:
        self.undone += [address.name for address in addresses]


@asynccontextmanager
async def gathering(far: Far) -> AsyncIterator[StartGatherer]:
    async with trio.open_nursery() as nursery:
        gatherer = StartGatherer(far.ask, far.undo, nursery, MOST, 1.0)
        yield gatherer
        gatherer.check_invariants()


async def start_many(
    gatherer: StartGatherer,
    far: Far,
    number: int,
    what: Callable[[int], tuple[Member, type[Actor], SpawnOptions]] = lambda index: (
        member(),
        Small,
        OPTIONS,
    ),
) -> list[Outcome]:
    """So many tasks at once; what each of them got."""
    found: list[Outcome] = []

    async def start(index: int) -> None:
        try:
            found.append(await gatherer.start(*what(index), far.start_alone))
        except Exception as error:
            found.append(error)

    async with trio.open_nursery() as nursery:
        for index in range(number):
            nursery.start_soon(start, index)
        await trio.testing.wait_all_tasks_blocked()
        gatherer.check_invariants()
        far.answers.set()
    return found


async def test_one_after_the_other_is_never_gathered() -> None:
    far = Far()
    far.answers.set()
    async with gathering(far) as gatherer:
        for _ in range(5):
            await gatherer.start(member(), Small, OPTIONS, far.start_alone)
            gatherer.check_invariants()
    assert (far.alone, far.messages) == (5, [])


async def test_those_that_come_together_travel_together_in_bounded_messages() -> None:
    far = Far()
    async with gathering(far) as gatherer:
        found = await start_many(gatherer, far, 2 * MOST + 4)
    assert far.alone == 1
    assert sorted(number for *_, number in far.messages) == [3, MOST, MOST]
    names = {one.name for one in found if isinstance(one, Address)}
    assert len(names) == 2 * MOST + 4


async def test_classes_options_and_nodes_are_kept_apart() -> None:
    far = Far()
    limited = SpawnOptions(mailbox_limit=5)

    def what(index: int) -> tuple[Member, type[Actor], SpawnOptions]:
        # Equal options that are no longer the same object are alike.
        options = attrs.evolve(OPTIONS) if index % 2 else limited
        return member("there" if index % 3 else "elsewhere"), Other if index % 5 else Small, options

    async with gathering(far) as gatherer:
        # At least two of each kind: the first that comes to a node goes alone, whichever it is.
        found = await start_many(gatherer, far, 60, what)
    assert len(found) == 60
    assert sum(number for *_, number in far.messages) == 58
    assert far.alone == 2
    kinds = [(where, cls, options.mailbox_limit) for where, cls, options, _ in far.messages]
    assert len(set(kinds)) == 8


@pytest.mark.parametrize("sent", [False, True])
async def test_a_cancelled_task_leaves_no_actor_and_disturbs_nobody(sent: bool) -> None:
    far = Far()
    found: list[str] = []
    scopes = [trio.CancelScope() for _ in range(6)]
    async with gathering(far) as gatherer, trio.open_nursery() as nursery:

        async def start(scope: trio.CancelScope) -> None:
            with scope:
                address = await gatherer.start(member(), Small, OPTIONS, far.start_alone)
                found.append(address.name)

        nursery.start_soon(start, scopes[0])
        await trio.testing.wait_all_tasks_blocked()
        assert far.alone == 1
        for scope in scopes[1:]:
            nursery.start_soon(start, scope)
        if sent:
            await trio.testing.wait_all_tasks_blocked()
        for scope in scopes[4:]:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        far.answers.set()
    assert len(found) == 4
    assert [number for *_, number in far.messages] == ([5] if sent else [3])
    assert len(far.undone) == (2 if sent else 0)
    assert not set(found) & set(far.undone)


@pytest.mark.parametrize("answer", ["address", "error", "none in time"])
async def test_a_cancelled_task_goes_on_when_its_start_is_taken_back_or_the_time_for_it_is_over(
    answer: str, autojump_clock: trio.testing.MockClock
) -> None:
    far = Far(error=NodeDiedError("gone", node="there") if answer == "error" else None)
    ended: list[tuple[float, int]] = []
    async with gathering(far) as gatherer, trio.open_nursery() as nursery:

        async def start_alone() -> None:
            try:
                await gatherer.start(member(), Small, OPTIONS, far.start_alone)
            except NodeDiedError:
                assert answer == "error"

        nursery.start_soon(start_alone)
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def start() -> None:
            with scope:
                await gatherer.start(member(), Small, OPTIONS, far.start_alone)
            ended.append((trio.current_time(), len(far.undone)))

        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        if answer == "none in time":
            await trio.sleep(2.0)
            assert ended == [(began + 1.0, 0)]
        far.answers.set()
    assert len(ended) == 1
    assert ended[0][1] == (1 if answer == "address" else 0)
    assert ended[0][0] == began + (1.0 if answer == "none in time" else 0.0)
    assert len(far.undone) == (0 if answer == "error" else 1)


async def test_each_task_has_an_error_of_its_own() -> None:
    far = Far(error=NodeDiedError("gone", node="there"))
    async with gathering(far) as gatherer:
        found = await start_many(gatherer, far, 5)
    errors = [one for one in found if isinstance(one, Exception)]
    assert len(errors) == 4
    assert len({id(error) for error in errors}) == 4
    assert all(type(error) is NodeDiedError and error.node == "there" for error in errors)


async def test_the_end_of_the_node_ends_the_wait() -> None:
    far = Far()
    found: list[BaseException] = []

    async def start(gatherer: StartGatherer) -> None:
        try:
            await gatherer.start(member(), Small, OPTIONS, far.start_alone)
        except OutcomeUnknownError as error:
            found.append(error)

    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as node:
            gatherer = StartGatherer(far.ask, far.undo, node, MOST, 1.0)
            for _ in range(4):
                callers.start_soon(start, gatherer)
            await trio.testing.wait_all_tasks_blocked()
            node.cancel_scope.cancel()
        far.answers.set()
    assert len(found) == 3


@pytest.mark.parametrize("why", ["left the cluster", "was expelled"])
async def test_a_node_that_leaves_or_is_given_up_interrupts_the_starts_that_wait(why: str) -> None:
    far, lifetime = Far(), Lifetime("here")
    ended: list[int] = []

    async def start(number: int) -> None:
        with (
            pytest.raises(OutcomeUnknownError, match=f"it was not started, as .* {why}"),
            lifetime.asking("it was not started", acts=True, waits=False) as asking,
        ):
            await gatherer.start(member(), Small, OPTIONS, far.start_alone, asking)
        ended.append(number)

    async with gathering(far) as gatherer, trio.open_nursery() as callers:
        for number in range(4):
            callers.start_soon(start, number)
        await trio.testing.wait_all_tasks_blocked()
        if "left" in why:
            lifetime.end()
        else:
            lifetime.give_up(f"node here {why}")
        # Before any answer: perhaps none comes.
        await until(lambda: len(ended) == 4, "all starts have ended")
        gatherer.check_invariants()
        # A node that was given up leaves later.
        lifetime.end()
        far.answers.set()
    # The first one travelled alone, and its task takes it back by itself.
    assert len(far.undone) == 3


@pytest.mark.parametrize("why", ["left the cluster", "was expelled"])
async def test_a_start_that_is_made_again_when_its_node_has_just_ended_is_interrupted(
    why: str,
) -> None:
    """The refusal came in the same pass of the loop as the end, so its task was not parked."""
    lifetime = Lifetime("here")

    async def start() -> None:
        with lifetime.asking("it was not started", acts=True, waits=False) as asking:
            if "left" in why:
                lifetime.end()
            else:
                lifetime.give_up(f"node here {why}")
            asking.wait()
            await trio.sleep_forever()

    with pytest.raises(OutcomeUnknownError, match=f"it was not started, as .* {why}"):
        await start()


async def test_many_spawns_at_once_on_a_real_node(pair: Pair) -> None:
    placed, found = pair.here.options(on="there"), list[Small]()

    async def spawn() -> None:
        found.append(await placed.spawn(Small))

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(spawn)
    assert len({one.name for one in found}) == 200
    assert [await one.read() for one in found] == [16] * 200


async def test_names_travel_together_and_apart_from_those_without() -> None:
    far = Far()

    def what(index: int) -> tuple[Member, type[Actor], SpawnOptions]:
        return member(), Small, SpawnOptions(name=f"a-{index}") if index % 2 else OPTIONS

    async with gathering(far) as gatherer:
        found = await start_many(gatherer, far, 12, what)
    assert len({one.name for one in found if isinstance(one, Address)}) == 12
    # One of each kind went alone: they do not wait for each other.
    assert far.alone == 2
    assert sorted(number for *_, number in far.messages) == [5, 5]
    assert all(options.name is None for _, _, options, _ in far.messages)


async def test_while_messages_are_under_way_further_ones_wait_for_an_answer() -> None:
    far = Far()
    async with gathering(far) as gatherer, trio.open_nursery() as nursery:

        async def start() -> None:
            await gatherer.start(member(), Small, OPTIONS, far.start_alone)

        for _ in range(6):
            nursery.start_soon(start)
            await trio.testing.wait_all_tasks_blocked()
            gatherer.check_invariants()
        # One alone, one message, and what came after them is still here.
        assert (far.alone, [number for *_, number in far.messages]) == (1, [1])
        far.answers.set()
    assert [number for *_, number in far.messages] == [1, 4]


async def test_of_many_spawns_of_one_name_at_once_one_succeeds(pair: Pair) -> None:
    placed, started, refused = pair.here.options(on="there"), list[Small](), list[str]()

    async def spawn(name: str) -> None:
        try:
            started.append(await placed.options(name=name).spawn(Small))
        except NameTakenError as error:
            refused.append(str(error.actor))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            for name in ("one", "two", "three", "four"):
                nursery.start_soon(spawn, name)
    assert sorted(one.name for one in started) == ["four", "one", "three", "two"]
    assert len(refused) == 16
    assert not internals_of(pair.there).host.awaited_claims.by_name
    assert [await one.read() for one in started] == [16] * 4
    async with trio.open_nursery() as nursery:
        for one in started * 2:
            nursery.start_soon(pair.here.stop, one)
    assert await internals_of(pair.here).names.all() == []
    # The names are free on the line after that.
    for name in ("one", "two", "three", "four"):
        await placed.options(name=name).spawn(Small)


@pytest.mark.parametrize("found", [True, False])
async def test_of_cancelled_starts_only_actors_that_nobody_has_found_are_taken_back(
    pair: Pair, found: bool
) -> None:
    names = [f"shared-{number}" for number in range(3)]
    placed = pair.here.options(on="there")
    answered, go_on = trio.Event(), trio.Event()
    spawner = internals_of(pair.here).spawner
    gatherer = spawner._gatherer._gatherer
    ask = gatherer._ask

    async def held(*batch: object) -> object:
        """Keep the answer of the node back for a while, as the network does."""
        outcomes = await ask(*batch)  # type: ignore[arg-type]
        answered.set()
        await go_on.wait()
        return outcomes

    gatherer._ask = held  # type: ignore[assignment]
    # Something is under way: the starts are gathered.
    gatherer._under_way[internals_of(pair.there).endpoint.identity, True] += 1
    handles: list[Small] = []
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(placed.options(name=name).spawn, Small)
        await answered.wait()
        if found:
            handles += [await pair.there.options(name=name).get_or_spawn(Small) for name in names]
        nursery.cancel_scope.cancel()
        go_on.set()
    if found:
        assert [await one.read() for one in handles] == [16] * 3
    else:
        # The cancelled tasks have waited for it.
        assert await internals_of(pair.here).names.all() == []


async def test_an_old_handle_stops_the_actor_that_has_the_name_now(pair: Pair) -> None:
    old = await pair.here.options(name="moving", on="there").spawn(Small)
    await pair.here.stop(old)
    new = await pair.there.options(name="moving", on="here").spawn(Small)
    await pair.here.stop(old)
    with pytest.raises(ActorNotFoundError):
        await new.read()


async def test_what_is_at_work_stops_in_its_time_also_beside_others(pair: Pair) -> None:
    placed = pair.here.options(on="there")
    idle = [await placed.options(name=f"idle-{number}").spawn(Small) for number in range(4)]
    busy = await placed.options(name="busy").spawn(Careful)
    async with trio.open_nursery() as nursery:
        for one in (*idle, busy):
            nursery.start_soon(pair.here.stop, one)
    assert Careful.ended == ["stopped"]
    assert await internals_of(pair.here).names.all() == []


async def test_a_spawn_that_is_cancelled_leaves_its_name_free(pair: Pair) -> None:
    placed = pair.here.options(on="there")
    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(placed.options(name=f"short-{number}").spawn, Small)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    with trio.fail_after(60):
        for number in range(30):
            while True:
                try:
                    await placed.options(name=f"short-{number}").spawn(Small)
                    break
                except NameTakenError:
                    await trio.sleep(0.01)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", [None, "late"])
async def test_a_start_that_ends_as_if_it_were_not_cancelled_is_taken_back(
    pair: Pair, name: str | None, many: bool
) -> None:
    Unheeding.begun, Unheeding.go = trio.Event(), trio.Event()
    placed = pair.here.options(on="there")
    async with trio.open_nursery() as nursery:
        if many:
            names = [name] if name is not None else None
            nursery.start_soon(partial(placed.spawn_many, Unheeding, [()], names=names))
        else:
            nursery.start_soon(placed.options(name=name).spawn, Unheeding)
        await Unheeding.begun.wait()
        nursery.cancel_scope.cancel()
    # A later request of this node: what takes the start back has been received before it.
    there = internals_of(pair.there).endpoint.identity
    assert await internals_of(pair.here).endpoint.node_service(*there).methods("nobody") == {}
    Unheeding.go.set()
    await until(
        lambda: [name for name in internals_of(pair.there).cells if not name.startswith("@")],
        "it is gone",
        lambda left: not left,
    )
    await until(internals_of(pair.here).names.all, "its name is free", lambda names: not names)
