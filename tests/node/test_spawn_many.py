"""Many actors in one message to each node: who starts where, and what is said of those that do
not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from actors import Actor, method
from actors.actor import Member
from actors.errors import (
    ActorStartError,
    BadArgumentsError,
    EncodeError,
    NameTakenError,
    NodeNotFoundError,
    NoPlacementError,
    OutcomeUnknownError,
    SpawnManyError,
)
from actors.identifiers import NodeId
from actors.options import SpawnOptions
from runtime import open_local_cluster
from runtime.node import Node, internals_of
from runtime.supervision.placement import NodeLoad, choose_node, spread_over
from tests.live_pair import Pair
from tests.waiting import until


class Numbered(Actor):
    """Has a number, and may refuse to start."""

    def __init__(self, number: int, other: object = None) -> None:
        if number == 13:
            raise LookupError("no thirteenth floor")
        self.number = number

    @method
    async def read(self) -> tuple[int, str]:
        return self.number, self.node.name


class Plain(Actor):
    """Has no constructor."""

    @method
    async def where(self) -> str:
        return self.node.name


class Slow(Actor):
    """Takes its time."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def on_start(self) -> None:
        if self.number:
            await trio.sleep_forever()


class Deadly(Actor):
    """Takes its node with it, unless that is in process `spared`."""

    def __init__(self, number: int, spared: int) -> None:
        # Three in turn are on three nodes, one of which is the test's own.
        if number in (50, 51, 52) and os.getpid() != spared:
            os._exit(3)


class Spawning(Actor):
    """Starts many from a process of its own."""

    @method
    async def start(self, count: int) -> list[tuple[int, str]]:
        rows = [(number,) for number in range(count)]
        try:
            many = await self.node.options(on="there").spawn_many(Numbered, rows)
        except SpawnManyError as error:
            many = [one for one in error.handles if one is not None]  # type: ignore[misc]
        return [await one.read() for one in many]


def actors_of(node: Node) -> int:
    """How many actors a node has."""
    return sum(not cell.system for cell in internals_of(node).cells.values())


def rows(count: int) -> list[tuple[int]]:
    return [(number,) for number in range(count)]


@pytest.mark.parametrize("on", [None, "here", "there"])
async def test_many_actors_start_in_the_order_of_their_arguments(
    pair: Pair, on: str | None
) -> None:
    many = await pair.here.options(on=on).spawn_many(Numbered, [(n,) for n in range(100, 150)])
    assert [await one.read() for one in many] == [(n, on or "here") for n in range(100, 150)]
    assert len({one.name for one in many}) == 50


async def test_they_are_spread_over_the_nodes(pair: Pair) -> None:
    many = await pair.here.options(placement="spread").spawn_many(Plain, [()] * 40)
    assert Counter([await one.where() for one in many]) == {"here": 20, "there": 20}


async def test_names_are_theirs_and_one_that_is_taken_is_an_error_of_its_own(pair: Pair) -> None:
    await pair.here.options(name="n-3").spawn(Plain)
    with pytest.raises(SpawnManyError, match=r"1 of 5 actors .* argument_list\[3\]") as caught:
        await pair.here.options(on="there").spawn_many(
            Plain, [()] * 5, names=[f"n-{number}" for number in range(5)]
        )
    assert isinstance(caught.value.errors[3], NameTakenError)
    assert [one is None for one in caught.value.handles] == [False] * 3 + [True, False]
    found = await pair.here.lookup("n-4", Plain)
    assert await found.where() == "there"


async def test_one_that_does_not_start_or_cannot_be_sent_is_named_and_the_others_run(
    pair: Pair,
) -> None:
    given: list[tuple[object, ...]] = [(number,) for number in range(20)]
    given[5] = (5, pair)
    with pytest.raises(SpawnManyError) as caught:
        await pair.here.options(on="there").spawn_many(Numbered, given)
    errors, handles = caught.value.errors, caught.value.handles
    assert sorted(errors) == [5, 13]
    assert isinstance(errors[5], EncodeError)
    assert "argument_list[5]" in str(errors[5])
    assert isinstance(errors[13], ActorStartError)
    assert "no thirteenth floor" in str(errors[13])
    assert "LookupError" in errors[13].remote_traceback
    last: Any = handles[19]
    assert await last.read() == (19, "there")


@pytest.mark.parametrize(
    ("given", "names", "says"),
    [
        ([(1,), 2], None, r"argument_list\[1\] is a tuple"),
        ([(1,), ()], None, r"argument_list\[1\]: .*number"),
        ([(1, 2, 3)], None, r"argument_list\[0\]: "),
        ("ab", None, "a list of argument tuples"),
        (3, None, "a list of argument tuples"),
        ([(1,)], ["a", "b"], "2 names for 1 actors"),
        ([(1,)], "a", "list of names"),
        ([(1,)], [None], "a name for each"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_starts(
    pair: Pair, given: Any, names: Any, says: str
) -> None:
    with pytest.raises((TypeError, ValueError, BadArgumentsError), match=says):
        await pair.here.options(on="there").spawn_many(Numbered, given, names=names)
    assert not actors_of(pair.there)


async def test_nothing_and_no_node_and_no_class(pair: Pair) -> None:
    assert await pair.here.spawn_many(Plain, []) == []
    with pytest.raises(NodeNotFoundError):
        await pair.here.options(on="nowhere").spawn_many(Plain, [()])
    with pytest.raises(NoPlacementError):
        await pair.here.options(labels={"disk": "ssd"}).spawn_many(Plain, [()])
    with pytest.raises(TypeError, match=r"subclass of actors\.Actor"):
        await pair.here.spawn_many(int, [()])
    with pytest.raises(ValueError, match=r"names=\["):
        await pair.here.options(name="one").spawn_many(Plain, [()])


async def test_a_spawner_that_is_cancelled_leaves_nothing_behind(pair: Pair) -> None:
    with trio.move_on_after(0.5) as scope:
        await pair.here.options(on="there").spawn_many(Slow, [(n % 2,) for n in range(10)])
    assert scope.cancelled_caught
    await until(lambda: actors_of(pair.there), "all are gone", lambda left: left == 0)


@pytest.mark.cluster
@pytest.mark.slow
async def test_a_node_that_dies_in_the_middle_and_an_actor_in_a_process_of_its_own() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        deadly = [(number, os.getpid()) for number in range(100)]
        with pytest.raises(SpawnManyError) as caught:
            await cluster.node.options(placement="spread").spawn_many(Deadly, deadly)
        errors = caught.value.errors
        assert all(isinstance(error, OutcomeUnknownError) for error in errors.values())
        assert 0 < len(errors) <= 67
        started = [one for one in caught.value.handles if one is not None]
        assert len(started) + len(errors) == 100


async def test_an_actor_in_a_process_of_its_own_starts_many(pair: Pair) -> None:
    spawning = await pair.here.options(isolation="process").spawn(Spawning)
    found = await spawning.start(20)
    assert found == [(number, "there") for number in range(20) if number != 13]


def members(*names: str) -> list[Member]:
    return [
        Member(name, number + 1, (), "host", 1, state="up", resources={"gpus": 2.0})
        for number, name in enumerate(names)
    ]


def draws() -> Iterator[float]:
    while True:
        yield 0.3
        yield 0.8


@pytest.mark.parametrize("options", [{}, {"resources": {"gpus": 0.5}}, {"placement": "pack"}])
def test_each_of_many_counts_for_those_after_it(options: dict[str, Any]) -> None:
    """As if each were placed alone, with what is known of those before."""
    three = members("a", "b", "c")
    loads = {NodeId("a", 1): NodeLoad(actors=3)}
    made = SpawnOptions(**options)
    draw = draws()
    chosen = spread_over(three, made, loads, 9, lambda: next(draw))
    present = {NodeId(one.name, one.incarnation): 0 for one in three} | {NodeId("a", 1): 3}
    for member in chosen:
        best = (max if made.placement == "pack" else min)(present.values())
        assert present[NodeId(member.name, member.incarnation)] == best
        present[NodeId(member.name, member.incarnation)] += 1
    assert choose_node(three, made, loads, 0.0).name in {one.name for one in three}


def test_more_than_the_resources_allow_is_refused_as_a_whole() -> None:
    with pytest.raises(NoPlacementError):
        spread_over(members("a", "b"), SpawnOptions(resources={"gpus": 1.0}), {}, 5, lambda: 0.5)
