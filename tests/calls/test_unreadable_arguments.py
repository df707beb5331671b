"""A node that cannot read an argument refuses the call with an error that is not repeated, and that
names the argument: also where an actor was to be started there.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, Supervisor, method, register_converter
from actors.errors import (
    ActorNotPlacedError,
    ActorStartError,
    BadArgumentsError,
    MethodNotFoundError,
    SpawnManyError,
)
from actors.messages import import_path, message
from runtime.node import internals_of
from runtime.supervision.spawner import MOST_IN_MESSAGE
from tests.functions import functions_used as used
from tests.live_pair import Pair
from tests.waiting import until


@message
@attrs.frozen
class Parcel:
    """Of a module that the receiver has not imported: it is not found by its name."""

    weight: int


PARCEL = [Parcel]
PATH = import_path(Parcel)
del Parcel


class Scale:
    def __init__(self, unit: str) -> None:
        self.unit = unit


def scale_of(unit: str) -> Scale:
    raise LookupError(f"there are no {unit}s here")


register_converter(Scale, lambda scale: scale.unit, scale_of)


class Shop(Actor):
    def __init__(self, first: object = None, *others: object, sign: object = None) -> None:
        self.first = first

    async def on_start(self) -> None:
        await self.join("shops")

    @method
    async def store(self, parcel: object, *more: object, where: object = None) -> int:
        return 1 + len(more)

    @method
    async def parts(self, parcel: object) -> AsyncIterator[int]:
        yield 1

    @method
    async def burn(self) -> None:
        raise SystemExit("it burns")

    @method
    async def goods(self) -> Any:
        yield 1


def parcel() -> Any:
    """A new one."""
    return PARCEL[0](3)


UNKNOWN = "Parcel is not known to the process that was to read it"

Start = Callable[[Any, Any], Awaitable[object]]

STARTS: dict[str, Start] = {
    "alone": lambda there, what: there.spawn(Shop, what),
    "with a name": lambda there, what: there.options(name="shop").spawn(Shop, what),
    "found or started": lambda there, what: there.options(name="shop").get_or_spawn(Shop, what),
    "in a process": lambda there, what: there.options(isolation="process").spawn(Shop, what),
    "as a supervisor": lambda there, what: there.spawn(
        Supervisor, [ChildSpec.of("shop", Shop, what)]
    ),
}


@pytest.mark.parametrize("way", STARTS)
async def test_a_start_elsewhere_with_what_that_node_cannot_read_fails_at_once(
    pair: Pair, way: str
) -> None:
    there = pair.here.options(on="there")
    name = "children" if way == "as a supervisor" else "first"
    with trio.fail_after(60):
        for what, why in ((parcel(), UNKNOWN), (Scale("stone"), "there are no stones here")):
            with pytest.raises(
                BadArgumentsError,
                match=f"was not started: node there cannot read argument {name}: .*{why}",
            ) as caught:
                await STARTS[way](there, what)
            assert caught.value.attempts == 1
            assert caught.value.node == "there"


WAYS: dict[str, Start] = {
    "call": lambda shop, what: shop.store(what),
    "reference": lambda shop, what: fetched(shop.store.remote(what)),
    "stream": lambda shop, what: anext(aiter(shop.parts(what))),
}


async def fetched(reference: Awaitable[Any]) -> object:
    return await (await reference).fetch()


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_ends_alike_on_the_callers_own_node(pair: Pair, where: str, way: str) -> None:
    shop = await pair.here.options(on=where, name="shop").spawn(Shop)
    with trio.fail_after(60):
        with pytest.raises(
            BadArgumentsError,
            match=rf"^shop.\w+ was not called: node {where} cannot read argument parcel: .*stones",
        ) as caught:
            await WAYS[way](shop, Scale("stone"))
    assert (caught.value.actor, caught.value.node) == ("shop", where)


@pytest.mark.parametrize("way", STARTS)
async def test_a_start_ends_alike_on_the_callers_own_node(pair: Pair, where: str, way: str) -> None:
    name = "children" if way == "as a supervisor" else "first"
    stone: Any = Scale("stone")
    with trio.fail_after(60):
        with pytest.raises(
            BadArgumentsError,
            match=f"(Shop|Supervisor) was not started: node {where} cannot read argument {name}: ",
        ) as caught:
            await STARTS[way](pair.here.options(on=where), Scale("stone"))
        with pytest.raises(SpawnManyError, match="1 of 2 actors") as many:
            await pair.here.options(on=where).spawn_many(Shop, [(Scale("stone"),), (1,)])
        with pytest.raises(BadArgumentsError, match=f"was not run: node {where} cannot read"):
            await pair.here.options(on=where).run(used.double, stone)
    assert (caught.value.attempts, caught.value.node) == (1, where)
    assert isinstance(many.value.errors[0], BadArgumentsError)


async def test_a_one_way_call_is_dropped_alike_on_the_callers_own_node(
    pair: Pair, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = await pair.here.options(on=where).spawn(Shop)
    await shop.store.send(Scale("stone"))
    # Made after it, over the same link.
    assert await shop.store(1) == 1
    assert "a one-way call from here was" in caplog.text
    assert "there are no stones here" in caplog.text


async def test_a_one_way_call_that_waits_for_the_start_of_its_actor_does_not_end_the_node(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    host, shop = internals_of(pair.here).host, await pair.here.spawn(Shop)
    late = internals_of(pair.here).endpoint.make_handle(
        attrs.evolve(shop.address, name="late", epoch=0), Shop
    )
    claim = host.awaited_claims.begin("late")
    await late.store.send(Scale("stone"))
    await late.store.send(threading.Lock())
    host.cells["late"] = host.cells[shop.address.name]
    with trio.fail_after(60):
        host.awaited_claims.end("late", claim, succeeded=True)
        assert await late.store(1) == 1
    del host.cells["late"]
    assert "there are no stones here" in caplog.text
    assert "late.store was not called: argument parcel is a _thread.lock" in caplog.text


async def test_a_group_and_a_pool_answer_alike_with_members_on_the_callers_own_node(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        pool = await pair.here.pool("counters", Shop, size=1, on=where)
        await pool.ready()
        group = pair.here.group("shops", Shop)
        await group.ready()
        await until(group.members, "the group has its member")
        assert await group.broadcast(Shop.store, Scale("stone")) == 1
        for answers in (
            await group.call_all(Shop.store, Scale("stone")),
            await pool.call_all(Shop.store, Scale("stone")),
        ):
            assert [type(answer.error) for answer in answers] == [BadArgumentsError]
        found = [
            one async for one in pool.map(Shop.store, [1, Scale("stone"), 3], on_error="return")
        ]
        assert [type(one) for one in found] == [int, BadArgumentsError, int]
        kept = await pool.submit(Shop.store, Scale("stone"))
        with pytest.raises(BadArgumentsError, match=f"node {where} cannot read argument parcel"):
            await kept.fetch()


async def test_of_many_actors_those_start_whose_arguments_can_be_read(pair: Pair) -> None:
    rows: list[tuple[object, ...]] = [(number,) for number in range(MOST_IN_MESSAGE + 3)]
    rows[1] = (1, parcel())
    rows[-1] = (parcel(),)
    with trio.fail_after(60):
        with pytest.raises(SpawnManyError) as caught:
            await pair.here.options(on="there").spawn_many(Shop, rows)
    assert sorted(caught.value.errors) == [1, len(rows) - 1]
    assert "node there cannot read argument others[0]" in str(caught.value.errors[1])
    assert "node there cannot read argument first" in str(caught.value.errors[len(rows) - 1])
    assert [handle is None for handle in caught.value.handles].count(True) == 2


async def test_a_child_whose_node_cannot_read_its_arguments_has_failed_and_waits_for_nothing(
    pair: Pair,
) -> None:
    # Its own node has imported the class.
    internals_of(pair.here).endpoint.codec._classes[PATH] = PARCEL[0]
    child = ChildSpec.of("shop", Shop, parcel()).changed(on="there")
    with trio.fail_after(60):
        with pytest.raises(ActorStartError, match="node there cannot read argument first") as one:
            await pair.here.options(name="tree").spawn(Supervisor, [child])
        assert not isinstance(one.value, ActorNotPlacedError)
        grown = await pair.here.options(name="grown").spawn(Supervisor)
        with pytest.raises(ActorStartError, match=f"start failed: .*{UNKNOWN}"):
            await grown.start_child(child)


async def test_such_starts_count_as_failures_until_the_supervisor_gives_up(pair: Pair) -> None:
    here, there = (internals_of(node).endpoint.codec for node in (pair.here, pair.there))
    here._classes[PATH] = there._classes[PATH] = PARCEL[0]
    child = ChildSpec.of("shop", Shop, parcel()).changed(on="there")
    with trio.fail_after(60):
        tree = await pair.here.options(name="tree").spawn(Supervisor, [child], intensity=2)
        shop = await pair.here.lookup("tree/shop", Shop)
        # As after a new version of the code.
        del there._classes[PATH]
        await shop.burn.send()
        ended = await pair.here.wait_ended(tree)
    assert ended.reason.kind == "shutdown"
    assert "node there cannot read argument first" in ended.reason.text


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        (lambda: (parcel(),), dict, "parcel"),
        (lambda: ([{"deep": (1, {parcel()})}],), dict, "parcel"),
        (lambda: (1, 2, parcel()), dict, r"more\[1\]"),
        (lambda: (1,), lambda: {"where": [parcel()]}, "where"),
        (lambda: (1, "x" * 200_000, parcel()), dict, r"more\[1\]"),
    ],
    ids=["positional", "nested", "further", "by name", "beside a long one"],
)
async def test_a_call_says_which_argument_cannot_be_read(
    pair: Pair,
    args: Callable[[], tuple[Any, ...]],
    kwargs: Callable[[], dict[str, Any]],
    name: str,
) -> None:
    shop = await pair.here.options(on="there", name="shop").spawn(Shop)
    retry = RetryPolicy(max_retries=9, initial_delay=0.0)
    with trio.fail_after(60):
        with pytest.raises(
            BadArgumentsError,
            match=f"^shop.store was not called: node there cannot read argument {name}: {PATH} is",
        ) as caught:
            await shop.store.options(retry=retry)(*args(), **kwargs())
        assert caught.value.attempts == 1
        assert await shop.store(1, 2) == 2


async def test_a_function_is_not_run_with_what_its_node_cannot_read(pair: Pair) -> None:
    with trio.fail_after(60):
        with pytest.raises(
            BadArgumentsError, match=f"functions_used:double was not run: node there .*{UNKNOWN}"
        ):
            await pair.here.options(on="there").run(used.double, parcel())


async def test_a_call_that_waits_for_the_start_of_its_actor_ends_if_it_cannot_be_read(
    pair: Pair,
) -> None:
    host, shop = internals_of(pair.here).host, await pair.here.spawn(Shop)
    late = internals_of(pair.here).endpoint.make_handle(
        attrs.evolve(shop.address, name="late", epoch=0), Shop
    )
    claim = host.awaited_claims.begin("late")

    async def call() -> None:
        with pytest.raises(BadArgumentsError, match="there are no stones here"):
            await late.store(Scale("stone"))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await until(lambda: claim.calls, "the call waits")
            host.cells["late"] = host.cells[shop.address.name]
            host.awaited_claims.end("late", claim, succeeded=True)
    del host.cells["late"]


async def test_a_stream_that_is_called_for_a_value_is_not_asked_again(pair: Pair) -> None:
    shop = await pair.here.options(on="there").spawn(Shop)
    unknown = internals_of(pair.here).endpoint.make_handle(
        attrs.evolve(shop.address, class_path="")
    )
    retry = RetryPolicy(max_retries=9, initial_delay=0.0)
    with trio.fail_after(60):
        with pytest.raises(MethodNotFoundError, match="is a stream") as caught:
            await unknown.goods.options(retry=retry)()
    assert caught.value.attempts == 1
