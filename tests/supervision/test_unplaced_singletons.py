"""A singleton that no node can take: those who look it up or call it hear so when their time is
over, and it is started only where its options let it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import DeadlineExceededError, NoPlacementError, RemoteError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links.encryption import Tls, system_network
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.membership.restart_intents import unstarted as key_of
from runtime.node import Node, internals_of

SECRET = "a secret for the tests of singletons"
GPU = {"gpu": 1.0}
LIMIT = 1.0
"""The `call_timeout` of the node here."""


class Quiet(Actor):
    pass


class Model(Actor):
    @method(concurrent=True)
    async def crash(self) -> None:
        raise SystemExit("out of memory")

    @method
    async def where(self) -> str:
        return self.node.name

    @method
    async def count(self) -> AsyncIterator[int]:
        yield 1


class Fussy(Actor):
    """Starts once."""

    async def on_start(self) -> None:
        if await self.saved():
            raise ValueError("no such device")
        await self.save(True)

    @method(concurrent=True)
    async def crash(self) -> None:
        raise SystemExit("out of memory")


class Asking(Actor):
    """Looks up from a process of its own."""

    @method
    async def look(self) -> str:
        with pytest.raises(DeadlineExceededError) as raised:
            await self.node.lookup("model")
        return str(raised.value)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    """A node with a GPU, and one with a label."""
    async with (
        open_node("here", secret=SECRET, resources=GPU, call_timeout=LIMIT) as here,
        open_node("there", join=here.address, secret=SECRET, labels={"disk": "fast"}) as there,
    ):
        await here.wait_for(2)
        await there.wait_for(2)
        yield here, there


async def unstarted(node: Node) -> list[str]:
    found = await internals_of(node).store.range(key_of("model", ""))
    return [one.key for one in found.entries]


async def settled(node: Node, reasons: int) -> None:
    """Wait until so many candidates have a reason in the store."""
    with trio.fail_after(20):
        while len(await unstarted(node)) != reasons:  # noqa: ASYNC110  it is in the store
            await trio.sleep(0.01)


async def displaced(here: Node, there: Node) -> tuple[Any, Any]:
    """A singleton that has lost its place to a guest, and that guest."""
    model = await here.options(name="model", resources=GPU).singleton(Model)
    await there.options(name="model", resources=GPU).singleton(Model)
    with pytest.raises(RemoteError):
        await model.crash()
    await here.wait_ended(model)
    guest = await here.options(resources=GPU).spawn(Quiet)

    await settled(here, 2)
    return model, guest


WHY = (
    "No node has started the singleton model: "
    "node here has 0 gpu left of 1, and model asks for 1; "
    "node there has no gpu, and model asks for 1"
)


async def streamed(model: Any) -> None:
    async for _ in model.count.options(timeout=0.5)():
        pass


WAYS: dict[str, Callable[[Node, Any], Any]] = {
    "lookup": lambda here, model: here.lookup("model", Model),
    "call": lambda here, model: model.where(),
    "own limit": lambda here, model: model.where.options(timeout=0.5)(),
    "stream": lambda here, model: streamed(model),
}


@pytest.mark.parametrize("way", WAYS)
async def test_who_waits_for_a_singleton_without_room_hears_why(
    nodes: tuple[Node, Node], way: str
) -> None:
    model, guest = await displaced(*nodes)
    with trio.fail_after(20), pytest.raises(DeadlineExceededError) as raised:
        await WAYS[way](nodes[0], model)
    assert WHY in str(raised.value)
    assert raised.value.outcome == "not executed"
    # It is found when there is room, and nothing of the reasons is left.
    await nodes[0].stop(guest)
    with trio.fail_after(20):
        assert await (await nodes[1].lookup("model", Model)).where() == "here"
    await settled(nodes[0], 0)


async def test_an_isolated_actor_hears_it_as_well(nodes: tuple[Node, Node]) -> None:
    here, _ = nodes
    await displaced(*nodes)
    asking = await here.options(isolation="process", timeout=30).spawn(Asking)
    assert WHY in await asking.look()


async def test_a_command_does(nodes: tuple[Node, Node]) -> None:
    here, _ = nodes
    await displaced(*nodes)
    environment = SystemEnvironment()
    network = system_network(environment, Tls())
    access = ClusterAccess(here.cluster, SECRET.encode(), environment, network)
    async with open_client(here.address, access) as client:
        with trio.fail_after(20), pytest.raises(DeadlineExceededError) as raised:
            await client.lookup("model", 0.5)
    assert WHY in str(raised.value)


async def test_the_time_limit_of_a_scope_says_it_in_a_note(nodes: tuple[Node, Node]) -> None:
    _, there = nodes
    await displaced(*nodes)
    notes: list[str] = []
    # This node sets no limit of its own.
    with trio.move_on_after(1) as scope:
        try:
            await there.lookup("model", Model)
        except trio.Cancelled as error:
            notes += error.__notes__
            raise
    assert scope.cancelled_caught
    assert [note for note in notes if WHY in note]


async def test_one_whose_starts_fail_is_reported_with_its_last_error(
    nodes: tuple[Node, Node],
) -> None:
    here, _ = nodes
    fussy = await here.options(name="fussy").singleton(Fussy)
    with pytest.raises(RemoteError):
        await fussy.crash()

    async def find() -> None:
        while True:  # while it is being started it is found
            await here.lookup("fussy", Fussy)
            await trio.sleep(0.05)

    with trio.fail_after(20), pytest.raises(DeadlineExceededError) as raised:
        await find()
    assert "No node has started the singleton fussy: " in str(raised.value)
    assert "no such device" in str(raised.value)


async def test_a_child_without_room_is_waited_for_as_long_and_its_supervisor_is_named(
    nodes: tuple[Node, Node],
) -> None:
    here, _ = nodes
    spec = ChildSpec.of("child", Model).changed(labels={"rack": "7"})
    async with open_node("third", join=here.address, secret=SECRET, labels={"rack": "7"}) as third:
        await here.wait_for(3)
        await here.options(name="top").spawn(Supervisor, [spec], intensity=10)
        assert await (await third.lookup("top/child", Model)).where() == "third"
    with trio.fail_after(20), pytest.raises(DeadlineExceededError) as raised:
        await here.lookup("top/child", Model)
    assert "Its supervisor top is to start " in str(raised.value)


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({"labels": {"disk": "fast"}}, "does not carry the label disk=fast"),
        ({"on": "there"}, "is not there, on which alone model may run"),
    ],
)
async def test_a_singleton_is_started_only_where_its_options_let_it(
    nodes: tuple[Node, Node], options: dict[str, Any], lacks: str
) -> None:
    here, there = nodes
    with pytest.raises(NoPlacementError, match=f"^node here {lacks}. A singleton ") as refused:
        await here.options(name="model", **options).singleton(Model)
    assert str(refused.value).endswith(
        "by nodes that ask for it, each on itself: ask for model on a node that its options fit"
    )
    model = await there.options(name="model", **options).singleton(Model)
    assert await model.where() == "there"
    # It stands for it all the same, and does not start it when it ends there.
    assert (await here.options(name="model", **options).singleton(Model)).address == model.address
    for _ in range(2):
        epoch = model.address.epoch
        with pytest.raises(RemoteError):
            await model.crash()
        await there.wait_ended(model)
        with trio.fail_after(20):
            model = await there.lookup("model", Model)
        assert model.address.epoch > epoch
        assert await model.where() == "there"
    assert "model" not in internals_of(here).cells
