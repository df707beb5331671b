"""What a child process may ask of its node: the operations of the node API, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, Reference, SpawnOptions, method
from actors.errors import (
    ActorNotFoundError,
    BadArgumentsError,
    CallError,
    MethodNotFoundError,
    RemoteError,
    SpawnError,
)
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.messages import import_path
from actors.method import Address, BoundMethod, MethodDefinition
from actors.options import NO_CALL_OPTIONS
from actors.supervision import ExitReason
from runtime.isolation.messages import ISOLATION_SERVICE
from runtime.isolation.node_api import OPERATIONS, IsolationService, NodeApi, NodeApiProxy
from runtime.node import Node, internals_of
from tests.waiting import until

LISTED = {
    "find",
    "join",
    "leave",
    "link",
    "locate",
    "lookup",
    "members",
    "place",
    "put",
    "run",
    "save",
    "saved",
    "stand",
    "start",
    "start_many",
    "stop",
    "take_back",
    "take_back_ticket",
    "unlink",
    "unwatch",
    "wait_ended",
    "watch",
    "watch_group",
    "watch_members",
}
TICKETED = {"begun", "ended", "failed", "take", "wait"}


class Plain(Actor):
    """An actor that does nothing."""

    @method
    async def ping(self) -> str:
        return "pong"


@pytest.fixture
async def proxy(node: Node) -> AsyncIterator[NodeApi]:
    """What a child process has, here in the process of the node itself."""
    with trio.fail_after(60):
        yield NodeApiProxy.of(internals_of(node).endpoint, NodeId(node.name, node.incarnation))


def raw_service(node: Node) -> Any:
    """A handle of the service that sends whatever it is told to."""
    address = Address(ISOLATION_SERVICE, node.name, node.incarnation)
    return Handle(internals_of(node).caller, address, None)


def test_exactly_the_marked_methods_are_offered() -> None:
    assert set(OPERATIONS) == LISTED
    assert set(IsolationService.__methods__) == LISTED | TICKETED


def test_all_that_is_public_is_marked_so_that_what_type_checkers_accept_can_be_asked() -> None:
    assert {name for name in dir(NodeApi) if not name.startswith("_")} == LISTED


@pytest.mark.parametrize(
    "name", ["_names", "_cell", "_lookups", "address", "epoch", "name", "options", "take", "api"]
)
async def test_the_proxy_has_nothing_but_operations(proxy: NodeApi, name: str) -> None:
    with pytest.raises(AttributeError, match="is not an operation of the node API"):
        getattr(proxy, name)


@pytest.mark.parametrize(
    "name", ["_cell", "__init__", "_names", "answer", "api", "_child", "node", "on_stop", "nothing"]
)
async def test_the_service_runs_nothing_but_operations(node: Node, name: str) -> None:
    address = Address(ISOLATION_SERVICE, node.name, node.incarnation)
    definition = MethodDefinition(name=name, function=lambda service: None)
    with pytest.raises(MethodNotFoundError):
        await BoundMethod[[], Any](
            internals_of(node).caller, address, definition, NO_CALL_OPTIONS
        )()


async def test_a_ticket_that_no_process_was_given_is_refused(node: Node) -> None:
    given: dict[str, tuple[object, ...]] = {
        "begun": (None,),
        "ended": (ExitReason("normal"),),
        "failed": ({},),
    }
    for name in sorted(TICKETED):
        args = given.get(name, ())
        with pytest.raises(RemoteError, match="does not expect this process"):
            await getattr(raw_service(node), name)("guessed", *args)


async def test_values_and_items_come_as_the_node_has_them(node: Node, proxy: NodeApi) -> None:
    assert await proxy.members() == node.members()
    assert await proxy.place(node.name, node.incarnation) == node.members()[0]
    assert await proxy.place(node.name, node.incarnation + 1) is None
    address = await proxy.start(import_path(Plain), (), {}, SpawnOptions(name="plain"), "")
    assert (address.name, address.node) == ("plain", node.name)
    assert await proxy.find("plain", True) == await proxy.lookup("plain", None) == address
    assert await proxy.find("nobody", False) is None
    assert await (await node.lookup("plain", Plain)).ping() == "pong"
    reference = await proxy.put([1, 2])
    assert isinstance(reference, Reference)
    assert await reference.fetch() == [1, 2]
    async for members in proxy.watch_members():
        assert members == node.members()
        break
    await proxy.join("plain", address.epoch, "readers")
    async for addresses in proxy.watch_group("readers"):
        assert [one.name for one in addresses] == ["plain"]
        break
    assert await proxy.leave("plain", address.epoch, "readers")
    assert not await proxy.leave("plain", address.epoch, "readers")
    await proxy.stop(address, "enough")
    assert (await proxy.wait_ended(address)).reason.kind == "no such actor"


async def test_errors_of_the_runtime_come_as_themselves_and_others_as_raised_there(
    proxy: NodeApi,
) -> None:
    with pytest.raises(ActorNotFoundError) as missing:
        await proxy.lookup("nobody", None)
    assert not isinstance(missing.value, RemoteError)
    with pytest.raises(SpawnError) as wrong:
        await proxy.start("tests.isolation:Nothing", (), {}, SpawnOptions(), "")
    assert not isinstance(wrong.value, CallError)
    with pytest.raises(RuntimeError, match="nobody has ended on node alone") as ended:
        await proxy.join("nobody", 1, "readers")
    assert isinstance(ended.value, RemoteError)
    with pytest.raises(ValueError, match="a singleton needs a name"):
        await proxy.stand(import_path(Plain), (), {}, SpawnOptions())


async def test_arguments_that_do_not_fit_are_refused_before_and_after_they_travel(
    node: Node, proxy: NodeApi
) -> None:
    with pytest.raises(BadArgumentsError):
        await proxy.lookup()  # type: ignore[call-arg]
    with pytest.raises(BadArgumentsError):
        await proxy.lookup("a", None, "b")  # type: ignore[call-arg]
    service = raw_service(node)
    for args in ((), ("a",), ("a", "b"), ("a", None, "b"), (5, None), (None, None)):
        with pytest.raises(BadArgumentsError):
            await service.lookup(*args)
    with pytest.raises(BadArgumentsError):
        await anext(proxy.watch_group(5))  # type: ignore[arg-type]
    with pytest.raises(BadArgumentsError):
        proxy.watch_group("a", "b")  # type: ignore[call-arg]


async def test_what_is_asked_ends_when_the_asking_is_cancelled(node: Node, proxy: NodeApi) -> None:
    address = await proxy.start(import_path(Plain), (), {}, SpawnOptions(name="plain"), "")
    watching = internals_of(node).watcher
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.wait_ended, address)
        await until(lambda: watching.loads()["watches"], "it waits")
        nursery.cancel_scope.cancel()
    await until(lambda: watching.loads()["watches"], "nobody waits", lambda watches: not watches)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("many", [True, False])
async def test_a_start_whose_answer_was_lost_is_taken_back_with_its_ticket(
    node: Node, proxy: NodeApi, many: bool, found: bool
) -> None:
    options, path = SpawnOptions(), import_path(Plain)
    if many:
        await proxy.start_many(path, [(), ()], ["lost", "lost-too"], options, "ticket")
    else:
        await proxy.start(path, (), {}, options.changed(name="lost"), "ticket")
    if found:
        handle = await node.options(name="lost").get_or_spawn(Plain)
    await proxy.take_back_ticket("another")
    assert await node.lookup("lost")
    await proxy.take_back_ticket("ticket")
    left = [address.name for address in await internals_of(node).names.all()]
    if found:
        assert left == ["lost"]
        assert await handle.ping() == "pong"
    else:
        assert left == []
