"""What a user mistakes in a call of the runtime is an error with at most two frames of ours: the
user's own line is the last but one or two of the traceback.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
import trio

import runtime.aio
import runtime.blocking
from actors import Actor, ChildSpec, DynamicSupervisor, RetryPolicy, Supervisor, method
from actors.errors import BadArgumentsError, EncodeError, JoinError, NotExecutedError
from actors.options import SpawnOptions
from runtime import open_local_cluster, open_node
from runtime.user_errors import is_machinery
from tests.live_pair import Pair

MOST = 2


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: object) -> None:
        self.value += 1

    @method
    async def count(self, most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number


class Plain:
    pass


def unlike(made: object) -> Any:
    """The same object, of which the type checker knows nothing."""
    return cast("Any", made)


MISTAKES: dict[str, Callable[[Any], object]] = {
    "spawn, no class": lambda node: node.spawn(3),
    "spawn, an instance": lambda node: node.spawn(Counter()),
    "spawn, no actor": lambda node: node.spawn(Plain),
    "spawn, nothing": lambda node: node.spawn(),
    "spawn, positional arguments": lambda node: node.spawn(Counter, 1, 2),
    "spawn, keywords": lambda node: node.spawn(Counter, begin=1),
    "spawn, an option": lambda node: node.spawn(Counter, name="x"),
    "spawn, not sendable": lambda node: node.spawn(Counter, Plain()),
    "spawn, a child": lambda node: node.spawn(Supervisor, [Counter]),
    "spawn with options, no class": lambda node: node.options(name="a").spawn(3),
    "spawn with options, keywords": lambda node: node.options(name="a").spawn(Counter, begin=1),
    "spawn, idempotent": lambda node: node.options(idempotent=True).spawn(Counter),
    "get_or_spawn, no name": lambda node: node.get_or_spawn(Counter),
    "get_or_spawn, no actor": lambda node: node.options(name="a").get_or_spawn(Plain),
    "singleton, no name": lambda node: node.singleton(Counter),
    "singleton, the name first": lambda node: node.singleton("a", Counter),
    "spawn_many, no actor": lambda node: node.spawn_many(Plain, []),
    "spawn_many, no list": lambda node: node.spawn_many(Counter, 3),
    "spawn_many, no tuples": lambda node: node.spawn_many(Counter, [1, 2]),
    "spawn_many, arguments": lambda node: node.spawn_many(Counter, [(1, 2)]),
    "spawn_many, names": lambda node: node.spawn_many(Counter, [(1,)], names=["a", "b"]),
    "pool, no actor": lambda node: node.pool("p", Plain, size=1),
    "pool, no size": lambda node: node.pool("p", Counter),
    "pool, arguments": lambda node: node.pool("p", Counter, 1, 2, size=1),
    "pool, a time-out": lambda node: node.pool("p", Counter, size=1, timeout=1.0),
    "pool, an option": lambda node: node.pool("p", Counter, size=1, lables={}),
    "pool, a name of members": lambda node: node.pool("p", Counter, size=1, name="a"),
    "pool, idempotent members": lambda node: node.pool("p", Counter, size=1, idempotent=True),
    "pool, no name": lambda node: node.pool(3, Counter, size=1),
    "pool, no keywords": lambda node: node.pool("p", Counter, size=1, kwargs=3),
    "pool, a size": lambda node: node.pool("p", Counter, size="x"),
    "lookup_pool, no name": lambda node: node.lookup_pool(3, Counter),
    "group, no name": lambda node: node.group(3, Counter),
    "journal, no name": lambda node: node.remove_pool_journal(3),
    "journal, no seconds": lambda node: node.remove_pool_journal("a", unused_for="x"),
    "run, a lambda": lambda node: node.run(lambda: 1),
    "run, no function": lambda node: node.run(3),
    "run, an option": lambda node: node.options(name="a").run(traceback.format_exc),
    "options, misspelled": lambda node: node.options(nmae="a"),
    "options, a type": lambda node: node.options(name=3),
    "options, a value": lambda node: node.options(isolation="proces"),
    "options, resources": lambda node: node.options(resources={"gpus": "x"}),
    "lookup, no name": lambda node: node.lookup(3),
    "lookup, the class first": lambda node: node.lookup(Counter, "a"),
    "stop, a name": lambda node: node.stop("a"),
    "put, not sendable": lambda node: node.put(Plain()),
    "child, no id": lambda node: ChildSpec(id=unlike(3), actor=unlike(Counter)),
    "child, no actor": lambda node: ChildSpec(id="a", actor=unlike(Plain)),
    "child, no tuple": lambda node: ChildSpec(id="a", actor=unlike(Counter), args=unlike(1)),
    "child, a text": lambda node: ChildSpec(id="a", actor=unlike(Counter), args=unlike("ab")),
    "child, no dict": lambda node: ChildSpec(id="a", actor=unlike(Counter), kwargs=unlike([1])),
    "child, misspelled": lambda node: unlike(ChildSpec)(id="a", actor=Counter, restrat="never"),
    "child, a time-out": lambda node: ChildSpec(
        id="a", actor=unlike(Counter), options=SpawnOptions(timeout=1.0)
    ),
    "child, a retry policy": lambda node: ChildSpec(
        id="a", actor=unlike(Counter), options=SpawnOptions(retry=RetryPolicy())
    ),
    "child, idempotent": lambda node: ChildSpec(
        id="a", actor=unlike(Counter), options=SpawnOptions(idempotent=True)
    ),
    "child, a word": lambda node: ChildSpec(id="a", actor=unlike(Counter), restart=unlike("no")),
    "retry, a value": lambda node: RetryPolicy(max_retries=-1),
}


RULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "strategy": (lambda node: node.spawn(Supervisor, [], strategy="any"), "strategy must be one"),
    "intensity": (lambda node: node.spawn(Supervisor, [], intensity="x"), "intensity must be a"),
    "period": (lambda node: node.spawn(Supervisor, [], period=-1.0), "period must be"),
    "two of one id": (
        lambda node: node.spawn(Supervisor, [ChildSpec.of("a", Counter)] * 2),
        "child 'a': this id is given to two",
    ),
    "two of one name": (
        lambda node: node.spawn(
            Supervisor, [ChildSpec.of(id, Counter).changed(name="n") for id in "ab"]
        ),
        "the name 'n' is given to two",
    ),
    "found or started": (
        lambda node: node.options(name="s").get_or_spawn(Supervisor, [], strategy="any"),
        "s was not started: strategy must be one",
    ),
    "singleton": (
        lambda node: node.options(name="s").singleton(Supervisor, [], strategy="any"),
        "s was not started: strategy must be one",
    ),
    "one of many": (
        lambda node: node.spawn_many(DynamicSupervisor, [(None,), ("x",)]),
        r"argument_list\[1\]: .*template must be a ChildSpec",
    ),
    "children": (
        lambda node: node.spawn(DynamicSupervisor, max_children=-1),
        "max_children must be",
    ),
    "a name for all": (
        lambda node: node.spawn(DynamicSupervisor, ChildSpec.of("a", Counter).changed(name="n")),
        "the template 'a' has the name 'n'",
    ),
}


async def test_rules_of_a_supervisor_that_make_no_sense_are_refused_where_it_is_started() -> None:
    async with open_node() as node:
        for name, (make, text) in RULES.items():
            with pytest.raises(BadArgumentsError, match=text) as caught:
                await make(node)
            assert len(frames_of_ours(caught.value)) <= MOST, name
            # No traceback of the node that would have started it.
            shown = "".join(traceback.format_exception(caught.value))
            assert "site-packages" not in shown, name
        # A class of its own may do anything in its constructor.
        await node.spawn(OwnSupervisor)


class OwnSupervisor(Supervisor):
    """Has its rules from its constructor."""

    def __init__(self) -> None:
        super().__init__([ChildSpec.of("a", Counter)], strategy="rest-for-one")


POOL_MISTAKES: dict[str, Callable[[Any], object]] = {
    "map, no method": lambda pool: pool.map(3, [1]),
    "map, no items": lambda pool: pool.map(Counter.add, 3),
    "map, a window": lambda pool: pool.map(Counter.add, [1], window="x"),
    "map, a time-out": lambda pool: pool.map(Counter.add, [1], timeout="x"),
    "map, a word": lambda pool: pool.map(Counter.add, [1], on_error="x"),
    "map, no journal": lambda pool: pool.map(Counter.add, [1], journal=3),
    "starmap, no method": lambda pool: pool.starmap(3, [(1,)]),
    "resize, a text": lambda pool: pool.resize("x"),
    "resize, nothing": lambda pool: pool.resize(),
    "resize, none": lambda pool: pool.resize(0),
    "submit, no method": lambda pool: pool.submit(3),
    "submit, arguments": lambda pool: pool.submit(Counter.add, 1, 2),
    "call_all, no method": lambda pool: pool.call_all(3),
    "choose, a word": lambda pool: pool.choose("best"),
    "choose, no key": lambda pool: pool.choose("hash"),
    "ready, a text": lambda pool: pool.ready("x"),
    "remove_journal, no name": lambda pool: pool.remove_journal(3),
}


async def test_so_do_those_of_pools() -> None:
    async with open_node() as node:
        pool = await node.pool("p", Counter, size=1)
        for name, make in POOL_MISTAKES.items():
            error = await mistaken(partial(make, pool))
            assert len(frames_of_ours(error)) <= MOST, (name, frames_of_ours(error))


async def mistaken(make: Callable[[], object]) -> Exception:
    try:
        made = make()
        assert isinstance(made, Awaitable)
        await made
    except (TypeError, ValueError, NotExecutedError, EncodeError) as error:
        return error
    raise AssertionError("it raised nothing")


def frames_of_ours(error: BaseException) -> list[str]:
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if is_machinery(frame.filename)
    ]


async def test_a_mistake_shows_at_most_two_frames_of_ours() -> None:
    async with open_node() as node:
        for name, make in MISTAKES.items():
            error = await mistaken(partial(make, node))
            assert len(frames_of_ours(error)) <= MOST, (name, frames_of_ours(error))
            # Not one of Python's own about code of ours.
            assert "object is not iterable" not in str(error), name


@pytest.mark.parametrize("where", ["here", "there"])
async def test_so_does_an_argument_that_cannot_be_sent(pair: Pair, where: str) -> None:
    counter = await pair.here.options(on=where).spawn(Counter)
    error = await mistaken(partial(counter.add, Plain()))
    assert len(frames_of_ours(error)) <= MOST, frames_of_ours(error)
    assert "argument amount is a" in str(error)


async def test_so_does_a_call_to_an_actor_that_has_ended(pair: Pair) -> None:
    counter = await pair.here.options(name="counter", on="there").spawn(Counter)
    await counter.add(1)
    await pair.here.stop(counter)
    error = await mistaken(partial(counter.add, 1))
    assert len(frames_of_ours(error)) <= MOST, frames_of_ours(error)
    # Its caller asked for no repeats: the text does not begin with how many there were.
    text = "counter.add was not executed: there is no actor called 'counter' in the cluster"
    assert str(error).startswith(text)
    cause = error.__cause__
    assert cause is None or cause.__traceback__ is None


WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda counter: counter.add(),
    "too much": lambda counter: counter.add(1, 2),
    "a keyword": lambda counter: counter.add(many=1),
    "one way": lambda counter: counter.add.send(),
    "a reference": lambda counter: counter.add.remote(),
    "of a stream": lambda counter: counter.count(),
}


async def test_arguments_that_do_not_fit_show_one_frame_of_ours() -> None:
    async with open_node() as node:
        counter = await node.spawn(Counter)
        for name, make in WRONG_CALLS.items():
            error = await mistaken(partial(make, counter))
            assert len(frames_of_ours(error)) == 1, (name, frames_of_ours(error))


NOT_AT_DOORS = ("child", "retry", "singleton", "group")


def test_so_does_the_blocking_door() -> None:
    with runtime.blocking.open_local_cluster(nodes=0) as cluster:
        counter = cluster.spawn(Counter)
        mistakes: dict[str, Callable[[], object]] = {
            name: partial(make, cluster) for name, make in MISTAKES.items()
        }
        mistakes["an argument"] = partial(counter.add, Plain())
        mistakes["an unknown name"] = partial(cluster.lookup, "nothing", Counter)
        mistakes |= {name: partial(make, counter) for name, make in WRONG_CALLS.items()}
        pool: Any = cluster.pool("p", Counter, size=1)
        mistakes["a map, a keyword"] = lambda: pool.map(Counter.add, [1], errors="return")
        mistakes["a map, a value"] = lambda: pool.starmap(Counter.add, [(1,)], batch=0)
        for name, make in mistakes.items():
            if not name.startswith(NOT_AT_DOORS):
                with pytest.raises(
                    (TypeError, ValueError, NotExecutedError, EncodeError)
                ) as caught:
                    make()
                most = 1 if name in WRONG_CALLS else MOST
                assert len(frames_of_ours(caught.value)) <= most, (
                    name,
                    frames_of_ours(caught.value),
                )


def test_so_does_the_asyncio_door() -> None:
    async def main() -> None:
        async with runtime.aio.open_local_cluster(nodes=0) as cluster:
            counter = await cluster.spawn(Counter)
            mistakes: dict[str, Callable[[], object]] = {
                name: partial(make, cluster) for name, make in MISTAKES.items()
            }
            mistakes["an argument"] = partial(counter.add, Plain())
            mistakes["an unknown name"] = partial(cluster.lookup, "nothing", Counter)
            mistakes |= {name: partial(make, counter) for name, make in WRONG_CALLS.items()}
            for name, make in mistakes.items():
                if not name.startswith(NOT_AT_DOORS):
                    error = await mistaken(make)
                    most = 1 if name in WRONG_CALLS else MOST
                    assert len(frames_of_ours(error)) <= most, (name, frames_of_ours(error))

    asyncio.run(main())


NO_NODE_THERE = "127.0.0.1:9"


async def test_an_opening_that_fails_shows_one_frame_of_ours() -> None:
    with pytest.raises(JoinError) as caught:
        async with open_node(join=NO_NODE_THERE, secret="none"):
            pass
    assert len(frames_of_ours(caught.value)) == 1, frames_of_ours(caught.value)


def test_an_opening_at_the_blocking_door_shows_three() -> None:
    with pytest.raises(JoinError) as caught:
        runtime.blocking.connect(NO_NODE_THERE, secret="none")
    assert len(frames_of_ours(caught.value)) <= 3, frames_of_ours(caught.value)


def test_an_opening_at_the_asyncio_door_shows_two() -> None:
    async def main() -> None:
        async with runtime.aio.connect(NO_NODE_THERE, secret="none"):
            pass

    with pytest.raises(JoinError) as caught:
        asyncio.run(main())
    assert len(frames_of_ours(caught.value)) <= MOST, frames_of_ours(caught.value)


@pytest.mark.parametrize("opening", [open_node, partial(open_local_cluster, nodes=0)])
async def test_a_block_lets_the_errors_of_its_body_pass(opening: Callable[[], Any]) -> None:
    async def fails(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="alone") as caught:
        async with opening():
            await fails("alone")
    assert frames_of_ours(caught.value) == []
    groups: list[BaseExceptionGroup[BaseException]] = [
        ExceptionGroup("two", [ValueError("one"), ValueError("other")]),
        ExceptionGroup("one", [ValueError("alone")]),
        ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("alone")])]),
        BaseExceptionGroup("of base", [GeneratorExit()]),
    ]
    for group in groups:
        with pytest.raises(BaseExceptionGroup) as several:  # noqa: ASYNC401 (which is asserted)
            async with opening():
                raise group
        assert several.value is group
        assert frames_of_ours(group) == []
        assert group.__context__ is None

        # That is how `except*` has it, too, which makes a group of its own of a bare error.
        seen: list[BaseExceptionGroup[BaseException]] = []
        try:
            async with opening():
                raise group
        except* (ValueError, GeneratorExit) as part:
            seen.append(part)
        assert [repr(one) for one in seen] == [repr(group)]


@pytest.mark.parametrize("opening", [open_node, partial(open_local_cluster, nodes=0)])
async def test_a_block_keeps_the_groups_that_nurseries_in_its_body_make(
    opening: Callable[[], Any],
) -> None:
    raised = ValueError("alone")

    async def fails() -> None:
        raise raised

    with pytest.raises(ExceptionGroup) as caught:  # noqa: ASYNC401 (which is asserted)
        async with opening(), trio.open_nursery() as nursery:  # noqa: ASYNC112 (its group)
            nursery.start_soon(fails)
    assert caught.value.exceptions == (raised,)
    assert frames_of_ours(raised) == []
    # The nursery's own frames, as without the block.
    assert all("trio" in frame for frame in frames_of_ours(caught.value))
    with pytest.raises(ExceptionGroup) as outer:  # noqa: ASYNC401 (which is asserted)
        async with opening(), trio.open_nursery(), trio.open_nursery() as nursery:  # noqa: ASYNC112
            nursery.start_soon(fails)
    (inner,) = outer.value.exceptions
    assert isinstance(inner, ExceptionGroup)
    assert inner.exceptions == (raised,)


def test_the_frames_of_user_code_within_a_check_stay() -> None:
    def numbers() -> Iterator[int]:
        raise ValueError("from the user's generator")
        yield 1

    with pytest.raises(ValueError, match="from the user's generator") as caught:
        ChildSpec(id="a", actor=unlike(Counter), args=unlike(numbers()))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "numbers"
