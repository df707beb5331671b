"""Nodes that refuse a start because they leave, or are out of reach: it is made on another node,
unless the caller has named that one.

The other nodes do not know yet that a node leaves: its record in the store still says that it is
up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import (
    NodeDrainingError,
    NodeUnreachableError,
    NoPlacementError,
    SpawnManyError,
    UnderstudyError,
)
from runtime import open_node
from runtime.node import Node, internals_of
from runtime.supervision.placement import NEXT_STEP
from tests.functions import functions_used as used
from tests.supervision.test_room import WAYS, Quiet, Way, reason_of
from tests.waiting import until

SECRET = "a secret for the tests of refused starts"
GPU = {"gpu": 1.0}
BY_PLACEMENT: dict[str, Any] = {"placement": "spread"}
BY_RESOURCES: dict[str, Any] = {"resources": GPU}

Nodes = dict[str, Node]

INTERRUPTED: dict[str, Way] = {
    "alone": lambda options: options.spawn(Interrupted),
    "with its own error": lambda options: options.spawn(Interrupted, True),
    "with a name": lambda options: options.options(name="model").spawn(Interrupted),
    "found or started": lambda options: options.options(name="model").get_or_spawn(Interrupted),
    "many": lambda options: options.spawn_many(Interrupted, [(), ()]),
    "many with names": lambda options: options.spawn_many(
        Interrupted, [(), ()], names=["one", "other"]
    ),
}


class Where(Actor):
    @method(idempotent=True)
    async def node_name(self) -> str:
        return self.node.name


class Placing(Actor):
    """Starts an actor from a process of its own."""

    @method
    async def place(self) -> str:
        return (await self.node.options(resources=GPU).spawn(Quiet)).address.node


class Interrupted(Actor):
    """Its start takes until it is cancelled, but on the node called "here"."""

    begun: ClassVar[list[str]] = []

    def __init__(self, amends: bool = False) -> None:
        self.amends = amends

    async def on_start(self) -> None:
        self.begun.append(self.node.name)
        if self.node.name != "here":
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                if self.amends:
                    raise ValueError("made of a cancellation") from None  # noqa: ASYNC104
                raise


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """Of three nodes with four GPUs each, two are chosen first, since the third has more to do."""
    resources = {"gpu": 4.0}
    async with (
        open_node("here", secret=SECRET, resources=resources) as here,
        open_node("there", join=here.address, secret=SECRET, resources=resources) as there,
        open_node("beyond", join=here.address, secret=SECRET, resources=resources) as beyond,
    ):
        await here.wait_for(3)
        for number in range(3):
            await here.options(name=f"busy-{number}").spawn(Quiet)
        yield {"here": here, "there": there, "beyond": beyond}
        for one in (here, there, beyond):
            internals_of(one).host.check_invariants()


def begin_to_leave(node: Node) -> None:
    """From now on the node refuses, and no other node knows."""
    internals_of(node).host.take_no_new_work()


@pytest.mark.parametrize("options", [BY_PLACEMENT, BY_RESOURCES], ids=["spread", "resources"])
@pytest.mark.parametrize("way", WAYS)
async def test_what_nodes_that_leave_refuse_is_started_on_another(
    nodes: Nodes, way: str, options: dict[str, Any]
) -> None:
    begin_to_leave(nodes["there"])
    begin_to_leave(nodes["beyond"])
    found = await WAYS[way](nodes["here"].options(**options))
    handle = found[0] if isinstance(found, list) else found
    assert handle.address.node == "here"


@pytest.mark.parametrize("way", WAYS)
async def test_where_all_refuse_the_error_says_why_each_does(nodes: Nodes, way: str) -> None:
    for node in nodes.values():
        begin_to_leave(node)
    with pytest.raises((NoPlacementError, SpawnManyError)) as raised:
        await WAYS[way](nodes["here"].options(resources=GPU))
    error = reason_of(raised.value)
    assert type(error) is NoPlacementError
    for name in nodes:
        assert f"node {name} is leaving the cluster and starts no actors" in str(error)
    # Nothing is to be stopped.
    assert NEXT_STEP not in str(error)


async def test_where_one_leaves_and_the_others_are_full_the_error_says_so(nodes: Nodes) -> None:
    here = nodes["here"]
    for name in ("here", "beyond"):
        await here.options(on=name, resources={"gpu": 4.0}).spawn(Quiet)
    begin_to_leave(nodes["there"])
    with pytest.raises(NoPlacementError) as raised:
        await here.options(resources=GPU).spawn(Quiet)
    text = str(raised.value)
    assert "node there is leaving the cluster" in text
    assert "here has 0 gpu left of 4" in text
    assert "beyond has 0 gpu left of 4" in text
    assert text.endswith(NEXT_STEP)


@pytest.mark.parametrize("way", WAYS)
async def test_a_node_that_was_named_refuses_for_itself_alone(nodes: Nodes, way: str) -> None:
    begin_to_leave(nodes["there"])
    with pytest.raises((NodeDrainingError, SpawnManyError)) as raised:
        await WAYS[way](nodes["here"].options(on="there", resources=GPU))
    error = reason_of(raised.value)
    assert type(error) is NodeDrainingError
    assert "node there is leaving the cluster" in str(error)


@pytest.mark.parametrize("way", ["alone", "many"])
async def test_this_node_is_named_where_no_option_asks_for_a_choice(nodes: Nodes, way: str) -> None:
    begin_to_leave(nodes["here"])
    with pytest.raises((NodeDrainingError, SpawnManyError)) as raised:
        await WAYS[way](nodes["here"].options())
    assert type(reason_of(raised.value)) is NodeDrainingError


async def test_thousands_go_elsewhere(nodes: Nodes) -> None:
    begin_to_leave(nodes["there"])
    found = await nodes["here"].options(placement="spread").spawn_many(Where, [()] * 3_000)
    places = [handle.address.node for handle in found]
    assert {*places} == {"here", "beyond"}
    assert abs(places.count("here") - places.count("beyond")) < 1_500


async def test_a_child_is_started_elsewhere_at_its_first_attempt(nodes: Nodes) -> None:
    begin_to_leave(nodes["there"])
    begin_to_leave(nodes["beyond"])
    specs = [
        ChildSpec.of("any", Where).changed(start_timeout=5.0),
        ChildSpec.of("with", Where).changed(resources=GPU, start_timeout=5.0),
    ]
    with trio.fail_after(0.4):
        # Less than a child waits for another look at the nodes.
        top = await nodes["here"].options(name="top").spawn(Supervisor, specs, intensity=0)
    assert [child.node for child in await top.children()] == ["here", "here"]


async def test_an_actor_in_a_process_of_its_own_starts_others_elsewhere(nodes: Nodes) -> None:
    begin_to_leave(nodes["there"])
    begin_to_leave(nodes["beyond"])
    placing = await nodes["here"].options(isolation="process").spawn(Placing)
    assert await placing.place() == "here"


@pytest.mark.parametrize("options", [BY_PLACEMENT, BY_RESOURCES], ids=["spread", "resources"])
@pytest.mark.parametrize("way", INTERRUPTED)
async def test_a_start_that_the_leaving_of_its_node_ends_is_made_on_another(
    way: str, options: dict[str, Any]
) -> None:
    """Several at once, which travel together. The node that leaves answers all of them first."""
    Interrupted.begun.clear()
    leaves = trio.Event()
    found: list[Any] = []

    async def live(join: str, joined: trio.Event) -> None:
        async with open_node("there", join=join, secret=SECRET, resources={"gpu": 4.0}):
            joined.set()
            await leaves.wait()

    async def start(here: Node) -> None:
        handles = await INTERRUPTED[way](here.options(**options))
        found.extend(handles if isinstance(handles, list) else [handles])

    async with (
        open_node("here", secret=SECRET, resources={"gpu": 4.0}) as here,
        trio.open_nursery() as nursery,
    ):
        joined = trio.Event()
        nursery.start_soon(live, here.address, joined)
        await joined.wait()
        for number in range(3):
            await here.options(name=f"busy-{number}").spawn(Quiet)
        count = 1 if "name" in way or "found" in way else 2
        for _ in range(count):
            nursery.start_soon(start, here)
        starts = count * (2 if "many" in way else 1)
        await until(lambda: len(Interrupted.begun) >= starts, "all have begun")
        leaves.set()
        await until(lambda: len(found) == starts, "all have started")
        assert {handle.address.node for handle in found} == {"here"}
        assert len({handle.address for handle in found}) == starts
        host = internals_of(here).host
        assert len(host.allocations.holders) == (starts if "resources" in options else 0)


class OutOfReach:
    """The service of a node that no message reaches."""

    async def _refuse(self, *args: object) -> object:
        raise NodeUnreachableError("no connection", actor="@node")

    def __getattr__(self, name: str) -> Any:
        return self._refuse


@pytest.mark.parametrize("way", WAYS)
async def test_what_cannot_be_handed_to_a_node_is_started_on_another(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    endpoint = internals_of(nodes["here"]).endpoint
    service = endpoint.node_service

    def services(name: str, incarnation: int) -> Any:
        return service(name, incarnation) if name == "here" else OutOfReach()

    monkeypatch.setattr(endpoint, "node_service", services)
    found = await WAYS[way](nodes["here"].options(resources=GPU))
    handle = found[0] if isinstance(found, list) else found
    assert handle.address.node == "here"
    await nodes["here"].stop(handle)
    with pytest.raises((NodeUnreachableError, SpawnManyError)) as raised:
        await WAYS[way](nodes["here"].options(resources=GPU, on="there"))
    assert type(reason_of(raised.value)) is NodeUnreachableError


@pytest.mark.cluster
@pytest.mark.parametrize("options", [{}, BY_RESOURCES], ids=["any", "resources"])
async def test_a_function_is_run_elsewhere(nodes: Nodes, options: dict[str, Any]) -> None:
    """Whichever node is chosen each time."""
    begin_to_leave(nodes["there"])
    begin_to_leave(nodes["beyond"])
    with trio.fail_after(30):
        for number in range(3):
            assert await nodes["here"].options(**options).run(used.double, number) == 2 * number
        # Where there are no others, they are asked, and say why they do not.
        begin_to_leave(nodes["here"])
        with pytest.raises(UnderstudyError, match="is leaving the cluster") as raised:
            await nodes["here"].options(**options).run(used.double, 1)
    assert isinstance(raised.value, NodeDrainingError)
