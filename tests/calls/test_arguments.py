"""Wrong arguments, and those that cannot be sent, are refused where they are given, with the name
of the parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from actors import Actor, ChildSpec, DynamicSupervisor, RetryPolicy, Supervisor, method
from actors.errors import ActorStartError, BadArgumentsError, EncodeError
from runtime.node import internals_of
from tests.live_pair import Pair


class Shop(Actor):
    """Says in `built` how often one was constructed."""

    built = 0

    def __init__(self, start: int, *, step: int = 1) -> None:
        Shop.built += 1

    @method
    async def put(self, key: object, *rest: object, option: object = None) -> object:
        return key

    @method
    async def named(self, *, args: object) -> object:
        return args


class Simple(Actor):
    """Has no constructor of its own."""


class Open(Actor):
    """Takes what comes, as far as its signature says."""

    def __init__(self, *args: int, **kwargs: int) -> None:
        self.sum = sum(args) + kwargs["extra"]

    @method
    async def get(self) -> int:
        return self.sum


def _with_database(constructor: Callable[..., None]) -> Callable[..., None]:
    """Gives the constructor an argument of its own; the signature that others are shown is that of
    the constructor nevertheless.
    """

    @functools.wraps(constructor)
    def construct(self: object, *args: object, **kwargs: object) -> None:
        constructor(self, "database", *args, **kwargs)

    return construct


class Injected(Actor):
    """Constructed with fewer arguments than its constructor seems to take."""

    @_with_database
    def __init__(self, database: str, name: str) -> None:
        self.names = [database, name]

    @method
    async def get(self) -> list[str]:
        return self.names


@pytest.fixture(
    params=[{}, {"on": "there"}, {"isolation": "process"}], ids=["here", "there", "process"]
)
def spawner(pair: Pair, request: pytest.FixtureRequest) -> Any:
    """The ways in which an actor can be started."""
    return pair.here.options(**request.param)


WRONG = [
    (
        (),
        {},
        r"missing a required argument: 'start'; the constructor of Shop takes \(start, \*, "
        r"step=\.\.\.\)",
    ),
    ((1,), {"stpe": 2}, "unexpected keyword argument 'stpe'"),
    ((1,), {"start": 2}, "multiple values for argument 'start'"),
    ((1, 2), {}, "too many positional arguments; the constructor of Shop takes"),
]


@pytest.mark.parametrize(("args", "kwargs", "text"), WRONG)
@pytest.mark.parametrize("start", ["spawn", "get_or_spawn", "singleton"])
async def test_arguments_that_a_constructor_does_not_take_are_refused_at_the_caller(
    pair: Pair, spawner: Any, start: str, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    built = Shop.built
    with pytest.raises(BadArgumentsError, match=f"shop was not started: .*{text}") as caught:
        await getattr(spawner.options(name="shop"), start)(Shop, *args, **kwargs)
    assert isinstance(caught.value, TypeError)
    assert (caught.value.actor, caught.value.method, caught.value.attempts) == (
        "shop",
        "__init__",
        0,
    )
    assert Shop.built == built
    assert await internals_of(pair.here).spawner.find("shop") is None


class Positional(Actor):
    def __init__(self, first: int, /, second: int = 0) -> None:
        pass

    @method
    async def add(self, first: int, second: int = 0, /, third: int = 0) -> int:
        return first + second + third

    @method
    async def rest(self, first: int, /, **rest: int) -> dict[str, int]:
        return {"": first, **rest}

    @method
    async def only(self, first: int, /) -> int:
        return first


async def test_parameters_that_are_positional_only_are_shown_so(pair: Pair, where: str) -> None:
    node: Any = pair.here.options(on=where)
    first = "parameter 'first' is positional only: it is given without its name"
    with pytest.raises(BadArgumentsError, match=rf"{first}; .* takes \(first, /, second=\.\.\.\)"):
        await node.spawn(Positional, first=1)
    actor = await node.spawn(Positional, 1)
    takes = r"it takes \(first, second=\.\.\., /, third=\.\.\.\)"
    with pytest.raises(BadArgumentsError, match=f"add was not called: {first}; {takes}"):
        await actor.add(first=1)
    with pytest.raises(BadArgumentsError, match=rf"{first}; it takes \(first, /\)\n"):
        await actor.only(first=1)
    # `Signature.bind` of 3.13.0 counts it among the rest, and the call of the method refuses it.
    with pytest.raises(
        BadArgumentsError,
        match=r"it takes \(first, /, \*\*rest\)|missing 1 required positional argument: 'first'",
    ):
        await actor.rest(first=1)
    assert await actor.rest(1, first=2) == {"": 1, "first": 2}


async def test_a_class_without_a_constructor_takes_nothing(pair: Pair) -> None:
    with pytest.raises(BadArgumentsError, match=r"class Simple was not started: .*takes \(\)"):
        await cast("Any", pair.here).spawn(Simple, 1)
    await pair.here.spawn(Simple)


async def test_constructors_that_do_not_say_what_they_take_are_left_alone(
    pair: Pair, where: str
) -> None:
    node: Any = pair.here.options(on=where)
    assert await (await node.spawn(Open, 1, 2, extra=3)).get() == 6
    with pytest.raises(ActorStartError, match="KeyError"):
        await node.spawn(Open, 1)
    assert await (await node.spawn(Injected, "shop")).get() == ["database", "shop"]
    with pytest.raises(ActorStartError, match=r"TypeError.*'name'"):
        await node.spawn(Injected)


@pytest.mark.parametrize("where_from", ["inside", "outside"])
async def test_an_isolated_actor_that_starts_others_is_refused_too(
    pair: Pair, where_from: str
) -> None:
    starter = await pair.here.options(
        isolation="process" if where_from == "inside" else "none"
    ).spawn(Starter)
    told = await starter.start_wrongly()
    assert told == ["BadArgumentsError: missing a required argument: 'start'"] * 3 + [
        "EncodeError: start['x'][0]"
    ]


class Starter(Actor):
    """Starts others."""

    @method
    async def start_wrongly(self) -> list[str]:
        told: list[str] = []
        node: Any = self.node.options(name="shop")
        for start in (node.spawn, node.get_or_spawn, node.singleton):
            try:
                await start(Shop)
            except BadArgumentsError as error:
                told.append(
                    f"{type(error).__name__}: "
                    f"{str(error).removeprefix('shop was not started: ').partition(';')[0]}"
                )
        try:
            await node.spawn(Shop, {"x": [object()]})
        except EncodeError as error:
            told.append(f"EncodeError: {error.path}")
        return told


def _child(id: str = "shop", *args: object, **kwargs: object) -> ChildSpec:
    return ChildSpec(id=id, actor=cast("str", Shop), args=args, kwargs=kwargs)


async def _refused(asked: Callable[[], Awaitable[object]], text: str) -> None:
    with pytest.raises(BadArgumentsError, match=text) as caught:
        await asked()
    # The error itself, and not the news of one that was raised somewhere else.
    assert type(caught.value) is BadArgumentsError


async def test_wrong_arguments_of_children_are_refused_before_their_supervisor_starts(
    pair: Pair, where: str
) -> None:
    node: Any = pair.here.options(on=where)
    built = Shop.built
    await _refused(
        lambda: node.spawn(Supervisor, [_child("right", 1), _child("wrong")]),
        "child 'wrong' .* argument: 'start'",
    )
    await _refused(lambda: node.spawn(Supervisor, children=(_child("wrong", 1, stpe=3),)), "'stpe'")
    branch = ChildSpec.of("branch", Supervisor, [_child("leaf")])
    await _refused(lambda: node.spawn(Supervisor, [branch]), "child 'leaf'")
    await _refused(
        lambda: node.spawn(DynamicSupervisor, _child("template", 1, 2, 3)),
        "child 'template'.*too many",
    )
    await _refused(
        lambda: node.options(name="top").singleton(Supervisor, [_child("wrong")]), "child 'wrong'"
    )
    await _refused(lambda: node.spawn(Supervisor, [], strateyg="one-for-all"), "'strateyg'")
    assert Shop.built == built
    with pytest.raises(BadArgumentsError, match=r"child 'shop'.*'stpe'"):
        cast("Any", ChildSpec).of("shop", Shop, 1, stpe=2)


async def test_wrong_arguments_of_further_children_are_refused(pair: Pair, where: str) -> None:
    built = Shop.built
    top: Any = await pair.here.options(on=where, name="top").spawn(Supervisor)
    await _refused(lambda: top.start_child(_child()), "'start'")
    await _refused(lambda: top.start_child(spec=_child()), "'start'")
    await _refused(lambda: top.start_child.send(_child()), "'start'")
    assert await top.children() == []
    # What a template leaves open is given to `spawn`, and only the supervisor knows both.
    pool: Any = await pair.here.options(on=where, name="pool").spawn(DynamicSupervisor, _child())
    await _refused(pool.spawn, "'start'")
    await _refused(lambda: pool.spawn(1, 2), "too many")
    await _refused(lambda: pool.spawn(stpe=1), "'stpe'|'start'")
    assert Shop.built == built
    assert await pool.children() == []
    await pool.spawn(1, step=2)
    await top.start_child(_child("shop", 1))
    assert Shop.built == built + 2


CANNOT_BE_SENT: list[tuple[tuple[object, ...], dict[str, object], str]] = [
    (([1, {"x": object()}],), {}, "key[1]['x']"),
    ((object(),), {}, "key"),
    ((1, 2, {3: [object()]}), {}, "rest[1][3][0]"),
    ((1,), {"option": [object()]}, "option[0]"),
    ((), {"key": {1: object()}}, "key[1]"),
    (("\ud800",), {}, "key"),
]


@pytest.mark.parametrize(("args", "kwargs", "path"), CANNOT_BE_SENT)
@pytest.mark.parametrize("way", ["call", "send", "remote", "policy"])
async def test_the_error_of_an_argument_that_cannot_be_sent_names_its_parameter(
    pair: Pair, where: str, args: tuple[Any, ...], kwargs: dict[str, Any], path: str, way: str
) -> None:
    shop: Any = await pair.here.options(on=where, name="shop").spawn(Shop, 1)
    put = shop.put.options(retry=RetryPolicy(max_retries=1)) if way == "policy" else shop.put
    with pytest.raises(EncodeError) as caught:
        await (put if way in ("call", "policy") else getattr(put, way))(*args, **kwargs)
    assert caught.value.path == path
    # "a" or "an", as what follows begins.
    assert str(caught.value).startswith(f"shop.put was not called: argument {path} is a")


async def test_a_parameter_that_is_called_args_is_no_position(pair: Pair, where: str) -> None:
    shop: Any = await pair.here.options(on=where).spawn(Shop, 1)
    with pytest.raises(EncodeError) as caught:
        await shop.named(args=[1, object()])
    assert caught.value.path == "args[1]"


class Sly:
    """Cannot be looked at."""

    def __reduce__(self) -> Any:
        raise AssertionError


async def test_the_error_of_a_constructor_argument_that_cannot_be_sent_names_its_parameter(
    pair: Pair, spawner: Any
) -> None:
    with pytest.raises(
        EncodeError, match=r"class Shop was not started: argument start\['x'\]\[0\] is a "
    ) as caught:
        await spawner.spawn(Shop, {"x": [Sly()]})
    assert caught.value.path == "start['x'][0]"
    with pytest.raises(EncodeError, match="argument step is a "):
        await spawner.spawn(Shop, 1, step=Sly())
