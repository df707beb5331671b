"""Nodes decide themselves what their actors take: what is placed there by an outdated view is
refused, started elsewhere, or waits for room; and what has ended takes nothing any more.

The nodes of these tests never see what is taken: each placement finds all nodes empty.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from actors import Actor, ChildSpec, ExitReason, Supervisor, method
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    DeadlineExceededError,
    NameTakenError,
    NoPlacementError,
    OutcomeUnknownError,
    RemoteError,
    SpawnManyError,
    UnderstudyError,
)
from actors.method import Address
from actors.options import SpawnOptions
from runtime import open_node
from runtime.hosting.orderly_stop import LAST_SECONDS
from runtime.isolation.actor_proxy import ActorProxy
from runtime.isolation.child_process import ChildProcessHandle
from runtime.membership.names import Names
from runtime.node import Node, internals_of
from runtime.supervision.actor_placement import ActorPlacement
from runtime.supervision.placement import NEXT_STEP, NodeLoads
from tests.functions import functions_used as used
from tests.waiting import until

SECRET = "a secret for the tests of room"
GPU = {"gpu": 1.0}


class Quiet(Actor):
    pass


class Model(Actor):
    """One with a constructor: it waits, fails or ends as it is asked to."""

    def __init__(self, device: int = 0) -> None:
        self.device = device

    @method(concurrent=True)
    async def crash(self) -> None:
        raise SystemExit("out of memory")


class Broken(Actor):
    def __init__(self) -> None:
        raise OSError("no such device")


class BrokenLater(Actor):
    async def on_start(self) -> None:
        raise OSError("no such device")


class Slow(Actor):
    """Its start takes until it is cancelled."""

    async def on_start(self) -> None:
        await trio.sleep_forever()


class Stubborn(Actor):
    """Its start goes on when it is cancelled."""

    begun: ClassVar[trio.Event]
    goes_on: ClassVar[trio.Event]

    async def on_start(self) -> None:
        self.begun.set()
        with trio.CancelScope(shield=True):
            await self.goes_on.wait()


class SlowThere(Actor):
    """The same, on one of two nodes."""

    async def on_start(self) -> None:
        if self.node.name == "there":
            await trio.sleep_forever()


class Spawning(Actor):
    """Starts actors from a process of its own."""

    @method
    async def start(self, count: int) -> list[str]:
        options = self.node.options(resources=GPU)
        names: list[str] = []
        for _ in range(count):
            names.append((await options.spawn(Quiet)).address.name)
        return names


NODES: list[Node] = []
"""Both nodes of `here`."""


@pytest.fixture(autouse=True)
def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: ActorPlacement) -> None:
        return

    def nothing(*given: object) -> None:
        return

    monkeypatch.setattr(ActorPlacement, "_ask", ask)
    monkeypatch.setattr(NodeLoads, "_add", nothing)
    monkeypatch.setattr(NodeLoads, "_take", nothing)


@pytest.fixture
async def here() -> AsyncIterator[Node]:
    """One of two nodes with one GPU each."""
    async with (
        open_node("here", secret=SECRET, resources=GPU) as node,
        open_node("there", join=node.address, secret=SECRET, resources=GPU) as there,
    ):
        await node.wait_for(2)
        NODES[:] = [node, there]
        yield node
        for one in (node, there):
            internals_of(one).host.check_invariants()


@pytest.fixture
async def alone() -> AsyncIterator[Node]:
    async with open_node("alone", secret=SECRET, resources=GPU) as node:
        yield node
        internals_of(node).host.check_invariants()


def holders(node: Node) -> list[str]:
    return [name for name, _ in internals_of(node).host.allocations.holders]


Way = Callable[[Any], Awaitable[Any]]

WAYS: dict[str, Way] = {
    "alone": lambda options: options.spawn(Quiet),
    "with a constructor": lambda options: options.spawn(Model, 1),
    "with arguments that travel alone": lambda options: options.spawn(Model, device=[1]),
    "in a process": lambda options: options.options(isolation="process").spawn(Model),
    "with a name": lambda options: options.options(name="model").spawn(Model),
    "found or started": lambda options: options.options(name="model").get_or_spawn(Model),
    "many": lambda options: options.spawn_many(Quiet, [()]),
    "many with arguments": lambda options: options.spawn_many(Model, [(1,)]),
    "many with names": lambda options: options.spawn_many(Quiet, [()], names=["model"]),
}


def reason_of(error: UnderstudyError) -> UnderstudyError:
    return error.errors[0] if isinstance(error, SpawnManyError) else error  # type: ignore[return-value]


@pytest.mark.parametrize("way", WAYS)
async def test_a_full_node_refuses_and_says_what_is_left_and_what_is_asked_for(
    here: Node, way: str
) -> None:
    for on in ("here", "there"):
        options = here.options(on=on, resources=GPU)
        first = await options.spawn(Quiet)
        with pytest.raises((NoPlacementError, SpawnManyError)) as raised:
            await WAYS[way](options)
        error = reason_of(raised.value)
        assert type(error) is NoPlacementError
        assert re.fullmatch(
            rf"no node fits \S+( \S+)?: "
            rf"node {on} has 0 gpu left of 1, and \S+ asks for 1{NEXT_STEP}",
            str(error),
        )
        await here.stop(first)
        found = await WAYS[way](options)
        await here.stop(found[0] if isinstance(found, list) else found)


@pytest.mark.parametrize("way", WAYS)
async def test_what_one_node_refuses_is_started_on_another(here: Node, way: str) -> None:
    full = "here"
    await here.options(on=full, resources=GPU).spawn(Quiet)
    for _ in range(2):
        # Whichever is chosen first.
        found = await WAYS[way](here.options(resources=GPU))
        handle = found[0] if isinstance(found, list) else found
        assert handle.address.node == "there"
        await here.stop(handle)


@pytest.mark.parametrize("way", WAYS)
async def test_where_all_refuse_the_error_says_why_each_does(here: Node, way: str) -> None:
    for on in ("here", "there"):
        await here.options(on=on, resources=GPU).spawn(Quiet)
    with pytest.raises((NoPlacementError, SpawnManyError)) as raised:
        await WAYS[way](here.options(resources=GPU))
    text = str(reason_of(raised.value))
    for node in ("here", "there"):
        assert f"node {node} has 0 gpu left of 1" in text


async def test_of_many_as_many_start_as_there_is_room_for(here: Node) -> None:
    await here.options(on="here", resources=GPU).spawn(Quiet)
    with pytest.raises(SpawnManyError) as raised:
        await here.options(resources=GPU).spawn_many(Model, [(1,), (2,)])
    started = [handle for handle in raised.value.handles if handle is not None]
    assert len(started) == 1
    (error,) = raised.value.errors.values()
    assert type(error) is NoPlacementError


async def test_an_actor_in_a_process_of_its_own_is_refused_as_any_other(alone: Node) -> None:
    spawning = await alone.options(isolation="process").spawn(Spawning)
    (name,) = await spawning.start(1)
    # Its name is in the store, as that of any actor that takes resources.
    assert (await alone.lookup(name)) is not None
    assert holders(alone) == [name]
    with pytest.raises(UnderstudyError, match="node alone has 0 gpu left of 1") as raised:
        await spawning.start(1)
    assert isinstance(raised.value, NoPlacementError)


async def test_what_does_not_start_takes_nothing(alone: Node) -> None:
    options = alone.options(resources=GPU)
    for _ in range(2):
        for broken in (Broken, BrokenLater):
            with pytest.raises(ActorStartError):
                await options.spawn(broken)
            with pytest.raises(SpawnManyError):
                await options.spawn_many(broken, [()])
        with trio.move_on_after(0.01):
            await options.spawn(Slow)
        with trio.move_on_after(0.01):
            await options.spawn_many(Slow, [()])
    await until(lambda: not holders(alone), "the cancelled starts are over")
    model = await options.options(name="model").spawn(Model)
    await alone.stop(model)
    taken = await alone.options(name="model").spawn(Quiet)
    with pytest.raises(NameTakenError):
        await options.options(name="model").spawn(Model)
    with pytest.raises(SpawnManyError, match="is taken"):
        await options.spawn_many(Quiet, [()], names=["model"])
    await alone.stop(taken)
    assert not holders(alone)
    await options.spawn(Model)


@pytest.mark.parametrize("isolation", ["none", "process"])
async def test_what_has_ended_takes_nothing(alone: Node, isolation: Any) -> None:
    options = alone.options(resources=GPU, isolation=isolation)
    for way in ("stop", "crash", "idle", "together"):
        model = await (options.options(idle_timeout=0.01) if way == "idle" else options).spawn(
            Model
        )
        assert len(holders(alone)) == 1 or way == "idle"
        if way == "crash":
            with pytest.raises(RemoteError):
                await model.crash()
        elif way == "stop":
            await alone.stop(model)
        elif way == "together":
            reason = ExitReason("stopped", "together")
            address: Address = model.address
            await internals_of(alone).host.stop_ready([address.actor_id], reason)
            await alone.stop(model)
        await alone.wait_ended(model)
        assert not holders(alone)


async def test_what_is_stopped_while_it_starts_keeps_what_it_takes_until_its_code_has_ended(
    alone: Node,
) -> None:
    """The memory of its device is in use until then."""
    options = alone.options(name="model", resources=GPU)
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            with pytest.raises(ActorStartError, match="ended while it was starting: stopped"):
                await options.spawn(Stubborn)

        Stubborn.begun, Stubborn.goes_on = trio.Event(), trio.Event()
        nursery.start_soon(start)
        await Stubborn.begun.wait()
        host = internals_of(alone).host
        nursery.start_soon(host.stop, "model", 0, ExitReason("stopped", "as asked"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(NoPlacementError):
            await alone.options(resources=GPU).spawn(Quiet)
        Stubborn.goes_on.set()
    assert not holders(alone)
    await options.spawn(Quiet)


async def test_the_start_of_what_is_stopped_is_cancelled(alone: Node) -> None:
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            with pytest.raises(ActorStartError, match="ended while it was starting: stopped"):
                await alone.options(name="slow").spawn(Slow)

        nursery.start_soon(start)
        await until(lambda: "slow" in internals_of(alone).cells, "it starts")
        await alone.stop(await alone.lookup("slow"))


async def test_a_child_is_restarted_where_it_has_taken_the_last(alone: Node) -> None:
    spec = ChildSpec.of("model", Model).changed(resources=GPU)
    top = await alone.options(name="top").spawn(Supervisor, [spec], intensity=10)
    for _ in range(3):
        model = await alone.lookup("top/model", Model)
        with pytest.raises(RemoteError):
            await model.crash()
        await alone.wait_ended(model)
        # Waits for its restart.
        await alone.lookup("top/model", Model)
        assert holders(alone) == ["top/model"]
    assert (await top.status()).recent_restarts >= 3


async def test_a_supervisor_waits_for_room_and_counts_no_restart(alone: Node) -> None:
    first = await alone.options(resources=GPU).spawn(Quiet)
    spec = ChildSpec.of("model", Model).changed(resources=GPU)
    supervisors: list[Any] = []

    async def start() -> None:
        supervisors.append(await alone.options(name="top").spawn(Supervisor, [spec], intensity=0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await until(lambda: "top" in internals_of(alone).cells, "the supervisor starts")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not supervisors
        await alone.stop(first)
    assert holders(alone) == ["top/model"]


async def test_many_that_are_cancelled_give_back_what_those_have_taken_that_had_started(
    here: Node,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.options(resources=GPU).spawn_many, SlowThere, [(), ()])
        await until(lambda: holders(here), "one has started")
        # Its message is answered as well.
        await trio.testing.wait_all_tasks_blocked(0.05)
        nursery.cancel_scope.cancel()
    assert not holders(here)
    await here.options(on="there", resources=GPU).spawn(Quiet)


async def test_a_function_that_is_refused_waits_until_there_is_room(alone: Node) -> None:
    first = await alone.options(resources=GPU).spawn(Quiet)
    results: list[int] = []

    async def run() -> None:
        results.append(await alone.options(resources=GPU).run(used.double, 21))

    with pytest.raises(DeadlineExceededError, match="no node had room for it"):
        await alone.options(resources=GPU, timeout=0.2).run(used.double, 21)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not results
        await alone.stop(first)
    assert results == [42]
    assert not holders(alone)


async def test_get_or_spawn_finds_the_actor_that_has_taken_the_last(
    alone: Node,
) -> None:
    options = alone.options(name="model", resources=GPU)
    found: list[Any] = []

    async def get() -> None:
        found.append(await options.get_or_spawn(Model))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(get)
    assert len(found) == 10
    assert holders(alone) == ["model"]


async def test_a_node_of_the_previous_version_is_served_and_counted(alone: Node) -> None:
    """It sends the options as ever, and no ticket."""
    service = internals_of(alone).endpoint.node_service("alone", alone.incarnation)
    path = f"{__name__}:Quiet"
    for number in range(2):
        await service.spawn(path, (), {}, SpawnOptions(name=f"plain-{number}"))
    await service.spawn(path, (), {}, SpawnOptions(name="model", resources=GPU))
    with pytest.raises(UnderstudyError, match="node alone has 0 gpu left of 1"):
        await service.spawn(path, (), {}, SpawnOptions(resources=GPU))
    assert holders(alone) == ["model"]


class LostAnswers:
    """The service of a node whose answers to starts do not arrive."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        if not name.startswith(("spawn", "finish")):
            return method

        async def lost(*args: object) -> object:
            await method(*args)
            raise OutcomeUnknownError("no answer", actor="@node", method=name)

        return lost


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    "way",
    ["alone", "with a constructor", "with arguments that travel alone", "many", "in a process"],
)
async def test_an_actor_whose_made_up_name_no_task_knows_is_taken_back_if_the_answer_is_lost(
    here: Node, monkeypatch: pytest.MonkeyPatch, way: str, together: bool
) -> None:
    """Otherwise it would keep its GPU for ever."""
    (there,) = [peer for peer in NODES if peer.name == "there"]
    endpoint = internals_of(here).endpoint
    service = endpoint.node_service
    monkeypatch.setattr(endpoint, "node_service", lambda *node: LostAnswers(service(*node)))
    options = here.options(on="there", resources={"gpu": 0.25})

    async def start() -> None:
        with pytest.raises((OutcomeUnknownError, SpawnManyError)) as raised:
            await WAYS[way](options)
        error = reason_of(raised.value)
        assert type(error) is OutcomeUnknownError
        assert "it is stopped again" in str(error)

    async with trio.open_nursery() as nursery:
        for _ in range(4 if together else 1):
            nursery.start_soon(start)
    await until(lambda: not holders(there), "they are taken back")
    # One whose name was given can be found by it, and stays.
    with pytest.raises(OutcomeUnknownError, match="look it up by its name"):
        await options.options(name="model").spawn(Model)
    assert holders(there) == ["model"]


@pytest.mark.parametrize("end", ["kill", "stop", "crash", "no start", "cancelled"])
async def test_what_an_isolated_actor_takes_is_free_when_its_process_is_gone(
    alone: Node, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Not before: the memory of its device is in use until then."""
    options = alone.options(resources=GPU, isolation="process")
    closing, gone = trio.Event(), trio.Event()
    close = ChildProcessHandle.close

    async def slowly(self: ChildProcessHandle, *, graceful: bool) -> None:
        closing.set()
        with trio.CancelScope(shield=True):
            await gone.wait()
        await close(self, graceful=graceful)

    monkeypatch.setattr(ChildProcessHandle, "close", slowly)
    reason = ExitReason("stopped", "as asked")
    host = internals_of(alone).host

    async def run() -> None:
        with pytest.raises(UnderstudyError) if end in ("crash", "no start") else nullcontext():
            if end == "no start":
                await options.spawn(BrokenLater)
            elif end == "cancelled":
                with trio.CancelScope() as scope:
                    nursery.start_soon(cancel_later, scope)
                    await options.spawn(Slow)
            else:
                model = await options.spawn(Model)
                shutdown: Any = "kill" if end == "kill" else "usual"
                if end == "crash":
                    await model.crash()
                else:
                    await host.stop(*model.address.actor_id, reason, shutdown)

    async def cancel_later(scope: trio.CancelScope) -> None:
        await until(
            lambda: any(isinstance(one, ActorProxy) and one.pid for one in instances()),
            "its process runs",
        )
        scope.cancel()

    def instances() -> list[object]:
        return [cell.instance for cell in host.cells.values()]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await closing.wait()
        # Longer than a stop waits for the tasks of an actor, and shorter than it waits for its
        # process.
        try:
            await trio.sleep(LAST_SECONDS + 0.2)
            assert len(holders(alone)) == 1
            with pytest.raises(NoPlacementError):
                await alone.options(resources=GPU).spawn(Quiet)
        finally:
            gone.set()
    await until(lambda: not holders(alone), "its process is gone")
    await alone.options(resources=GPU).spawn(Quiet)


@pytest.mark.parametrize("cls", [Quiet, Model])
async def test_all_that_ask_at_once_for_an_actor_that_takes_the_last_get_it(
    here: Node, monkeypatch: pytest.MonkeyPatch, cls: type[Actor]
) -> None:
    """Also those that are refused before its name is in the store."""
    claim, claim_many, claimed = Names.claim, Names.claim_many, trio.Event()

    async def late(self: Names, *given: Any) -> int:
        await claimed.wait()
        return await claim(self, *given)

    async def many_late(self: Names, *given: Any) -> list[int | Exception]:
        await claimed.wait()
        return await claim_many(self, *given)

    monkeypatch.setattr(Names, "claim", late)
    monkeypatch.setattr(Names, "claim_many", many_late)
    found: list[Any] = []

    async def ask(node: Node) -> None:
        options = node.options(name="model", on="there", resources=GPU)
        found.append(await options.get_or_spawn(cls))

    async with trio.open_nursery() as nursery:
        for node in 4 * NODES:
            nursery.start_soon(ask, node)
        # So that all have been refused but one. Without an answer from the store none starts.
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert not found
        claimed.set()
    assert len({one.address for one in found}) == 1
    assert holders(NODES[1]) == ["model"]


@pytest.mark.parametrize("together", [False, True])
async def test_a_name_is_taken_also_where_its_actor_has_taken_all(
    here: Node, together: bool
) -> None:
    """The error says what is to be done about it."""
    options = here.options(on="there", resources=GPU)
    model = await options.options(name="model").spawn(Quiet)
    start = WAYS["many with names" if together else "with a name"]
    with pytest.raises((NameTakenError, SpawnManyError), match="name 'model' is taken"):
        await start(options)
    await here.stop(model)
    await options.options(name="model").spawn(Model)


async def test_a_singleton_that_has_taken_the_last_is_found_by_all_that_stand_for_it(
    here: Node,
) -> None:
    there = NODES[1]
    model = await here.options(name="model", resources=GPU).singleton(Model)
    # No other room either.
    other = await here.options(on="there", resources=GPU).spawn(Quiet)
    for node in (here, there, here):
        again = await node.options(name="model", resources=GPU).singleton(Model)
        assert again.address == model.address
    for _ in range(2):
        epoch = model.address.epoch
        with pytest.raises(RemoteError):
            await model.crash()
        await here.wait_ended(model)
        model = await here.lookup("model", Model)
        assert model.address.epoch > epoch
        assert model.address.node == "here"
        assert len(holders(here)) == 1
    # The node without room takes it over when it has some.
    await here.stop(other)

    async def take() -> bool:
        # The candidate there takes what is free for a moment, until it finds the singleton.
        with suppress(NoPlacementError):
            await here.options(on="there", name="own", resources={"gpu": 0.5}).spawn(Quiet)
            return True
        return False

    await until(take, "the room is free")
    await here.stop(model)
    with pytest.raises(NoPlacementError):
        await there.options(name="model", resources=GPU).singleton(Model)


async def test_a_stopped_singleton_stays_stopped_though_other_candidates_have_not_seen_its_restart(
    alone: Node,
) -> None:
    for number in range(3):
        options = alone.options(name=f"model-{number}")
        model = await options.singleton(Model)
        for _ in range(3):
            # Candidates of one node share a key in the store.
            await options.singleton(Model)
        with pytest.raises(RemoteError):
            await model.crash()
        await alone.wait_ended(model)
        # One has started it again; the others wait for their turns.
        await alone.stop(await alone.lookup(f"model-{number}", Model))
        # Waits for as long as one of them stands for it.
        with pytest.raises(ActorNotFoundError):
            await alone.lookup(f"model-{number}", Model)


async def test_a_singleton_without_room_is_logged_once_and_started_when_there_is_some(
    here: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.supervision")
    options = here.options(name="model", resources=GPU)
    model = await options.singleton(Model)
    assert model.address.node == "here"
    with pytest.raises(RemoteError):
        await model.crash()
    # Before its candidate starts it again.
    guest = await here.options(on="here", resources=GPU).spawn(Quiet)

    def lines(level: int) -> list[str]:
        texts = [one.getMessage() for one in caplog.records if one.levelno == level]
        return [text for text in texts if "model ended: not placed" in text]

    await until(lambda: lines(logging.INFO), "it tries again", lambda found: len(found) >= 2)
    (line,) = lines(logging.WARNING)
    assert "node here has 0 gpu left of 1" in line
    await here.stop(guest)
    assert (await here.lookup("model", Model)).address.node == "here"
