"""Mistakes of the first day: what is not written as it must be says how it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from actors import (
    Actor,
    ChildSpec,
    DynamicSupervisor,
    RestartBackoff,
    Supervisor,
    method,
    wait_all,
    wait_any,
)
from actors.errors import ActorStartError, BadArgumentsError, EncodeError
from runtime import open_local_cluster, open_node
from runtime.node import Node

SECRET = "a secret for the tests of misuse"


class Worker(Actor):
    @method
    async def double(self, number: int) -> int:
        return 2 * number

    @method
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @method
    async def echo(self, value: object) -> object:
        return value


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with open_node("here", secret=SECRET) as opened:
        yield opened


@pytest.mark.parametrize("opens", [open_node, open_local_cluster])
async def test_what_opens_in_a_block_says_so_in_every_other_use(opens: Any) -> None:
    advice = rf"{opens.__name__} opens in a block: `async with {opens.__name__}\("
    with pytest.raises(TypeError, match=advice):
        await opens()
    with pytest.raises(TypeError, match=advice), opens():
        pass
    with pytest.raises(AttributeError, match=f"no 'spawn' before the block: {advice}"):
        await opens().spawn(Worker)


async def test_a_stream_says_that_it_is_read_by_async_for(node: Node) -> None:
    worker: Any = await node.spawn(Worker)
    with pytest.raises(TypeError, match="async for item in"):
        list(worker.count(3))
    with pytest.raises(TypeError, match="async for item in"):
        await worker.count(3)


async def test_a_map_says_that_it_is_read_by_async_for(node: Node) -> None:
    async with await node.pool(None, Worker, size=1) as pool:
        results: Any = pool.map(Worker.double, [1])
        with pytest.raises(TypeError, match="async for result in"):
            await results
        with pytest.raises(TypeError, match="async for result in"):
            list(results)
        assert [found async for found in results] == [2]


async def test_the_results_of_a_map_are_a_source_for_another(node: Node) -> None:
    async with await node.pool(None, Worker, size=1) as pool:
        doubled = pool.map(Worker.double, [1, 2])
        assert [found async for found in pool.map(Worker.double, doubled)] == [4, 8]


async def test_a_pool_says_how_a_method_of_its_members_is_called(node: Node) -> None:
    async with await node.pool(None, Worker, size=1) as opened:
        pool: Any = opened
        with pytest.raises(AttributeError, match=r"pool\.map\(Worker\.double, items\)"):
            pool.double(1)
        with pytest.raises(AttributeError, match="a pool has no attribute 'doubel'"):
            pool.doubel(1)
        assert not hasattr(pool, "__len__")


@pytest.mark.parametrize("supervisor", [Supervisor, DynamicSupervisor])
@pytest.mark.parametrize(
    ("given", "named"), [(Worker, "the class Worker"), ("worker", "of type str")]
)
async def test_a_supervisor_is_given_specs_and_says_what_it_was_given(
    node: Node, supervisor: Any, given: object, named: str
) -> None:
    argument: Any = [ChildSpec.of("fine", Worker), given] if supervisor is Supervisor else given
    where = r"children\[1\]" if supervisor is Supervisor else "template"
    with pytest.raises(BadArgumentsError, match=f"{where} must be a ChildSpec.*not {named}"):
        await node.spawn(supervisor, argument)


async def test_a_supervisor_is_given_a_list_of_specs(node: Node) -> None:
    anything: Any = Supervisor
    for given, named in ((Worker, "the class Worker"), ("worker", "of type str")):
        with pytest.raises(BadArgumentsError, match=rf"children must be a list.*not {named}"):
            await node.spawn(anything, given)


@pytest.mark.parametrize("supervisor", [Supervisor, DynamicSupervisor])
@pytest.mark.parametrize("backoff", [5, "x", {"initial_delay": 1}, RestartBackoff])
async def test_the_backoff_of_a_supervisor_is_checked_where_it_is_given(
    node: Node, supervisor: Any, backoff: object
) -> None:
    with pytest.raises(TypeError, match=r"^backoff must be a RestartBackoff, .* or None, not "):
        supervisor(backoff=backoff)
    with pytest.raises(BadArgumentsError, match="backoff must be a RestartBackoff"):
        await node.spawn(supervisor, backoff=backoff)


class WithoutStart(Supervisor):
    async def on_start(self) -> None:
        pass


class WithoutConstructor(Supervisor):
    def __init__(self) -> None:
        pass


class WithoutBoth(DynamicSupervisor):
    def __init__(self) -> None:
        pass

    async def on_start(self) -> None:
        pass


async def test_a_supervisor_says_what_of_its_base_its_class_has_not_called(node: Node) -> None:
    constructor = r"constructor of \S*WithoutConstructor does not .* super\(\).__init__\(children\)"
    with pytest.raises(ActorStartError, match=constructor):
        await node.spawn(WithoutConstructor)
    for cls, asked in (
        (WithoutStart, "children"),
        (WithoutStart, "count"),
        (WithoutBoth, "status"),
    ):
        supervisor = await node.options(name="s").spawn(cls)
        on_start = rf"s has not started its children: the on_start of \S*{cls.__name__} has not "
        with pytest.raises(RuntimeError, match=rf"{on_start}.* await super\(\).on_start\(\) in it"):
            await getattr(supervisor, asked)()
        await node.stop(supervisor)
    with pytest.raises(RuntimeError, match="was not started by a node"):
        await Supervisor().children()


class Busy(Actor):
    @method
    async def begin(self, kind: str) -> None:
        if kind == "coroutine":
            coroutine: Any = self.work()
            try:
                self.nursery.start_soon(coroutine)
            finally:
                coroutine.close()
        elif kind == "plain":
            self.nursery.start_soon(self.plain)  # type: ignore[arg-type]
        elif kind == "stream":
            self.nursery.start_soon(self.stream)  # type: ignore[arg-type]
        elif kind == "items":
            self.nursery.start_soon(partial(self.items))  # type: ignore[arg-type]
        else:
            self.nursery.start_soon(lambda: self.stream())  # type: ignore[arg-type, return-value]

    @method
    async def look_up(self, name: str) -> object:
        return getattr(self.nursery, name)

    async def work(self) -> None: ...

    async def stream(self) -> AsyncIterator[int]:
        yield 1

    def items(self) -> Iterator[int]:
        yield 1

    def plain(self) -> None: ...

    @method
    async def echo(self, value: int) -> int:
        return value


async def test_a_task_of_an_actor_is_started_by_its_function(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    busy = await node.spawn(Busy)
    with pytest.raises(TypeError, match=r"start_soon\(self.work, 5\), and not the coroutine"):
        await busy.begin("coroutine")
    assert await busy.echo(1) == 1
    await busy.begin("plain")
    ended = await node.wait_ended(busy)
    assert "start_soon takes an `async def` function" in ended.reason.text


async def test_a_task_of_an_actor_is_no_generator(node: Node) -> None:
    busy = await node.spawn(Busy)
    for kind in ("stream", "items"):
        text = rf"start_soon takes an `async def` .*, and \S*{kind} is a generator"
        with pytest.raises(TypeError, match=text):
            await busy.begin(kind)
    assert await busy.echo(1) == 1
    # Only what the function returns says so.
    await busy.begin("lambda")
    ended = await node.wait_ended(busy)
    assert "Busy.stream is a generator, because it has a `yield`" in ended.reason.text


def _logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def hook(*args: object) -> object:
        return function(*args)

    return hook


class Decorated(Actor):
    @_logged
    async def on_start(self) -> AsyncIterator[int]:
        yield 1


async def test_a_hook_that_a_decorator_hides_is_no_generator(node: Node) -> None:
    with pytest.raises(ActorStartError, match=r"returned \S*Decorated.on_start, a generator"):
        await node.spawn(Decorated)


@pytest.mark.parametrize(
    ("name", "instead"),
    [("start", "wait for an Event"), ("cancel_scope", "let its function return"), ("x", "starts")],
)
async def test_the_nursery_of_an_actor_says_what_to_write_instead(
    node: Node, name: str, instead: str
) -> None:
    busy = await node.spawn(Busy)
    with pytest.raises(AttributeError, match=f"has start_soon, and no '{name}': .*{instead}"):
        await busy.look_up(name)


async def test_waits_are_given_a_list_of_references(node: Node) -> None:
    kept: Any = await node.put(3)
    given: Any
    for wait in (wait_any, wait_all):
        for given in (kept, 3):
            with pytest.raises(TypeError, match=rf"{wait.__name__} takes references in a list, as"):
                await wait(given)
        given = [kept, 3]
        with pytest.raises(TypeError, match=rf"{wait.__name__}.*item 1 is of type int"):
            await wait(given)


async def test_changes_of_children_say_what_they_were_given(node: Node) -> None:
    given: Any
    supervisor = await node.spawn(Supervisor, [])
    for given, named in (
        (Worker, "the class"),
        (3, "an object of type int"),
        ("id", "an object of type str"),
    ):
        with pytest.raises(BadArgumentsError, match=rf"takes a ChildSpec.*and not {named}"):
            await supervisor.start_child(given)
    given = 3
    for change in (supervisor.stop_child, supervisor.restart_child, supervisor.delete_child):
        with pytest.raises(TypeError, match=r"its id, its name or its handle, and not .* type int"):
            await change(given)


async def test_an_actor_in_the_place_of_its_handle_is_refused_with_what_to_send(
    node: Node,
) -> None:
    worker = await node.spawn(Worker)
    with pytest.raises(EncodeError, match=r"it is an actor itself; send its handle.*self\.handle"):
        await worker.echo(Worker())
