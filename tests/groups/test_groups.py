"""Groups on live nodes: who is seen where, how members are called, and what is left when they have
ended.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio

from actors import Call, Filter, Group, Next, RemoteError
from actors.errors import (
    BadArgumentsError,
    CallTimeoutError,
    DeadlineExceededError,
    EmptyGroupError,
    EncodeError,
    FilterRefusedError,
    NodeUnreachableError,
    NotExecutedError,
)
from actors.identifiers import NodeId
from runtime import open_node
from runtime.groups.followed_groups import MOST_KEPT
from runtime.groups.groups import GROUP_LOOK_SECONDS
from runtime.node import Node, internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of
from runtime.testing import Platform
from tests.breakable_network import BreakableNetwork
from tests.groups.actors_used import Reader
from tests.live_pair import LONG_LEASE, SECRET, Pair, open_pair
from tests.waiting import until


async def until_seen(group: Group[Reader], names: list[str]) -> None:
    """Wait until a group has these members, in any order."""
    with trio.fail_after(60):
        async for members in group.watch():
            if sorted(member.name for member in members) == sorted(names):
                return


@pytest.fixture
async def readers(pair: Pair) -> dict[str, Reader]:
    """Two on each node, in the group "news"."""
    return {
        name: await pair.here.options(name=name, on=on).spawn(Reader, "news")
        for name, on in [("a", "here"), ("b", "there"), ("c", "here"), ("d", "there")]
    }


async def test_members_are_seen_on_all_nodes_those_on_the_own_node_first(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    here, there = pair.here.group("news", Reader), pair.there.group("news", Reader)
    assert {member.name for member in here.members()} == {"a", "c"}
    await until_seen(here, list("abcd"))
    await until_seen(there, list("abcd"))
    assert [member.name for member in here.members()] == ["a", "c", "b", "d"]
    assert [member.name for member in there.members()] == ["b", "d", "a", "c"]
    assert sorted(await readers["a"].sees("news")) == list("abcd")
    assert pair.here.group("others", Reader).members() == ()


async def test_a_group_is_not_mistaken_for_one_whose_name_begins_like_it(pair: Pair) -> None:
    names = ["a", "a/b", "a%2Fb", "a/"]
    for name in names:
        await pair.there.options(name=name).spawn(Reader, name)
    for name in names:
        await until_seen(pair.here.group(name, Reader), [name])


async def test_one_that_joins_several_times_is_in_it_several_times_and_leaves_one_at_a_time(
    pair: Pair, where: str
) -> None:
    reader = await pair.here.options(on=where, name="reader").spawn(Reader)
    group = pair.here.group("news", Reader)
    await reader.enter("news", 3)
    await until_seen(group, ["reader"] * 3)
    for left in (2, 1, 0):
        assert await reader.exit("news")
        await until_seen(group, ["reader"] * left)
    assert not await reader.exit("news")
    assert not await reader.exit("never")


async def test_membership_ends_with_the_actor_however_it_ends(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    group = pair.here.group("news", Reader)
    await until_seen(group, list("abcd"))
    await pair.here.stop(readers["a"])
    assert [member.name for member in group.members()] == ["c", "b", "d"]
    await pair.here.stop(readers["b"])
    await until_seen(group, ["c", "d"])


async def test_membership_ends_with_the_node(pair: Pair, readers: dict[str, Reader]) -> None:
    group = pair.here.group("news", Reader)
    async with open_node("third", join=pair.here.address, secret=SECRET):
        await pair.here.wait_for(3)
        await pair.here.options(on="third", name="e").spawn(Reader, "news")
        await until_seen(group, list("abcde"))
    await until_seen(group, list("abcd"))


async def test_members_of_a_node_that_is_known_to_be_dead_are_dropped_before_the_store_says_so(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    group = pair.here.group("news", Reader)
    await until_seen(group, list("abcd"))
    internals_of(pair.here).on_proven_end(
        NodeId(pair.there.name, pair.there.incarnation), "proven by the test"
    )
    assert [member.name for member in group.members()] == ["a", "c"]


async def test_choosing_takes_local_members_first_and_each_of_them_sometimes(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    group = pair.here.group("news", Reader)
    await until_seen(group, list("abcd"))
    assert {group.choose().name for _ in range(200)} == {"a", "c"}
    for name in ("a", "c"):
        await readers[name].exit("news")
    assert {group.choose().name for _ in range(200)} == {"b", "d"}


async def test_choosing_from_an_empty_group_is_an_error_that_says_so(pair: Pair) -> None:
    with pytest.raises(
        EmptyGroupError, match="the group 'nobody' has no members that node here knows of"
    ) as caught:
        pair.here.group("nobody", Reader).choose()
    assert isinstance(caught.value, NotExecutedError)


async def test_a_broadcast_reaches_all_members_and_says_how_many(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    await readers["a"].enter("news")
    for node in (pair.here, pair.there):
        await until_seen(node.group("news", Reader), list("aabcd"))
    assert await pair.here.group("news", Reader).broadcast(Reader.on_news, "x") == 5
    assert await pair.there.group("news", Reader).broadcast(Reader.on_news, text="y") == 5
    with trio.fail_after(60):
        for name, reader in readers.items():
            # Of two nodes' words, which comes first is not said.
            assert sorted(await reader.wait_heard(4 if name == "a" else 2)) == sorted(
                "xxyy" if name == "a" else "xy"
            )
    assert await pair.here.group("nobody", Reader).broadcast(Reader.on_news, "z") == 0


async def test_a_broadcast_with_arguments_that_the_method_does_not_take_is_refused(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    group = pair.here.group("news", Reader)
    await until_seen(group, list("abcd"))
    with pytest.raises(BadArgumentsError, match=r"on_news was not called: .*text"):
        await group.broadcast(Reader.on_news)  # type: ignore[call-arg]
    with pytest.raises(BadArgumentsError, match=r"on_news was not called: .*txt"):
        await group.broadcast(Reader.on_news, txt="tea")  # type: ignore[call-arg]


@pytest.mark.parametrize("way", ["broadcast", "call_all"])
async def test_the_error_of_a_call_of_all_members_is_freed_with_what_holds_it(
    pair: Pair, readers: dict[str, Reader], way: str
) -> None:
    """Frames of its traceback have the arguments: in a circle with the group of the nursery, they
    would wait for the cyclic collector.
    """
    group: Any = pair.here.group("news", Reader)
    await until_seen(group, list("abcd"))
    freed: list[weakref.ref[EncodeError]] = []
    gc.disable()
    try:
        try:
            await getattr(group, way)(Reader.on_news, object())
        except EncodeError as error:
            freed.append(weakref.ref(error))
        assert freed
        with trio.fail_after(60):
            await until(lambda: freed[0]() is None, "the error is freed")
    finally:
        gc.enable()


class Choosy(Filter):
    """Refuses calls of `b`, and raises a group in place of what a method has raised."""

    async def call(self, next: Next, call: Call) -> object:
        if call.side == "server":
            return await next(call)
        if call.actor == "b" and call.kind == "send":
            raise PermissionError("not b")
        try:
            return await next(call)
        except ValueError as error:
            raise ExceptionGroup("both", [error, LookupError("a second one")]) from None


async def test_a_broadcast_raises_what_a_filter_raises_and_leaves_out_no_other_member() -> None:
    async with open_node("alone", secret=SECRET, filters=[Choosy()]) as node:
        for name in "abc":
            await node.options(name=name).spawn(Reader, "news")
        group = node.group("news", Reader)
        await until_seen(group, list("abc"))
        with pytest.raises(FilterRefusedError, match="raised PermissionError around b") as caught:
            await group.broadcast(Reader.on_news, "x")
        assert "a broadcast, which was sent to 2 members" in caught.value.__notes__
        heard = {one.name: one for one in group.members()}
        with trio.fail_after(60):
            assert await heard["a"].wait_heard(1) == await heard["c"].wait_heard(1) == ["x"]


async def test_a_group_that_a_filter_raises_comes_out_of_call_all_whole() -> None:
    async with open_node("alone", secret=SECRET, filters=[Choosy()]) as node:
        reader = await node.options(name="a").spawn(Reader, "news")
        await reader.on_news("bad")
        group = node.group("news", Reader)
        await until_seen(group, ["a"])
        with pytest.RaisesGroup(ValueError, LookupError, match="both"):
            await group.call_all(Reader.where)


async def test_a_broadcast_is_by_a_method_of_the_class(pair: Pair) -> None:
    with pytest.raises(TypeError, match="by a method of its class"):
        await pair.here.group("news", Reader).broadcast("on_news", "x")  # type: ignore[arg-type]


async def test_all_members_are_called_and_each_answers_or_fails_for_itself(
    pair: Pair, readers: dict[str, Reader]
) -> None:
    group = pair.here.group("news", Reader)
    await until_seen(group, list("abcd"))
    await readers["d"].on_news("broken")
    answers = await group.call_all(Reader.where)
    assert [(answer.member.name, answer.value) for answer in answers] == [
        ("a", "here"),
        ("c", "here"),
        ("b", "there"),
        ("d", None),
    ]
    assert isinstance(answers[3].error, RemoteError)
    assert [answer.error for answer in answers[:3]] == [None] * 3
    late = await group.options(timeout=0.05).call_all(Reader.hang)
    # On a busy machine a call may not even have begun by then, which has an error of its own.
    late_errors = (CallTimeoutError, DeadlineExceededError)
    assert all(isinstance(answer.error, late_errors) for answer in late)
    assert len(late) == 4


@LONG_LEASE
async def test_thousands_of_members_join_in_few_transactions(pair: Pair) -> None:
    group = pair.there.group("crowd", Reader)
    before = (await internals_of(pair.here).store.range("groups/")).revision
    async with trio.open_nursery() as nursery:
        for _ in range(3000):
            nursery.start_soon(pair.here.spawn, Reader, "crowd")
    with trio.fail_after(60):
        async for members in group.watch():
            if len(members) == 3000:
                break
    found = await internals_of(pair.here).store.range("groups/")
    assert len(found.entries) == 15
    # Joins that come while a transaction is under way go into the next. How many that are depends
    # on how fast the machine spawns and how fast it writes: 150 to 540 were seen.
    assert found.revision - before < 1000
    assert len({member.name for member in group.members()}) == 3000
    with trio.fail_after(60):
        assert await group.broadcast(Reader.on_news, "all") == 3000


async def test_a_group_that_leaves_no_member_leaves_nothing_in_the_store(pair: Pair) -> None:
    reader = await pair.there.spawn(Reader, "one", "two")
    group = pair.here.group("one", Reader)
    await until_seen(group, [reader.name])
    await pair.there.stop(reader)
    await until_seen(group, [])
    # The store has forgotten it before its node hears so.
    await until(
        lambda: internals_of(pair.here).store.range("groups/"),
        "it is stored no more",
        lambda it: not it.entries,
    )
    await until(
        lambda: not internals_of(pair.there).groups._memberships._groups, "its node has heard so"
    )
    assert internals_of(pair.there).groups.loads()["memberships"] == 0


@pytest.mark.parametrize("name", ["", " x", "a\nb", "x" * 256])
async def test_what_cannot_be_the_name_of_a_group_is_refused(pair: Pair, name: str) -> None:
    with pytest.raises(ValueError, match="not a usable name of a group"):
        pair.here.group(name, Reader)
    with pytest.raises(TypeError):
        pair.here.group(5, Reader)  # type: ignore[arg-type]


def followers(node: Node) -> int:
    """Tasks that follow groups."""
    return sum(task.name.startswith("group ") for task in internals_of(node).nursery.child_tasks)


async def forgotten(simulation: Simulation) -> None:
    node = simulation.node
    group = node.group("news", Reader)
    again = node.group("news", Reader)
    assert followers(node) == 0 or followers(node) == 1
    await group.ready()
    assert followers(node) == 1
    del group
    gc.collect()
    await trio.sleep(2 * GROUP_LOOK_SECONDS)
    assert followers(node) == 1
    del again
    gc.collect()
    await trio.sleep(2 * GROUP_LOOK_SECONDS)
    assert followers(node) == 0


def test_a_group_that_nobody_holds_any_more_is_not_followed_any_more() -> None:
    simulate(forgotten, seeds=[1], faults=())


async def asked_for_each_time(simulation: Simulation) -> None:
    node = simulation.node
    far = await node.options(on=simulation.nodes[-1]).spawn(Reader, "news")
    await until_seen(node.group("news", Reader), [far.name])
    for number in range(300):
        # No variable holds it, and it is complete nevertheless: it has been followed meanwhile.
        assert await node.group("news", Reader).broadcast(Reader.on_news, str(number)) == 1
        assert followers(node) == 1
    await trio.sleep(3 * GROUP_LOOK_SECONDS)
    assert followers(node) == 0
    assert internals_of(node).groups.loads()["groups followed"] == 0


def test_a_group_that_is_asked_for_with_each_call_is_followed_once() -> None:
    simulate(asked_for_each_time, seeds=[1], faults=())


async def ever_others(simulation: Simulation) -> None:
    node = simulation.node
    held = await node.group("held", Reader).ready()
    for number in range(5 * MOST_KEPT):
        await node.group(f"topic {number}", Reader).ready()
    # Those that are cancelled end when the event loop comes to them.
    await trio.sleep(0.1)
    assert followers(node) == MOST_KEPT + 1
    reader = await node.spawn(Reader, "held")
    await until_seen(held, [reader.name])
    await trio.sleep(3 * GROUP_LOOK_SECONDS)
    assert followers(node) == 1, "the one that is held"


def test_of_ever_other_groups_a_bounded_number_is_followed() -> None:
    simulate(ever_others, seeds=[1], faults=())


async def test_members_whose_node_cannot_be_reached_are_passed_over() -> None:
    network = BreakableNetwork()
    async with (
        open_pair(Platform(network=network)) as pair,
        open_node("beyond", join=pair.here.address, secret=SECRET) as beyond,
    ):
        here, there = pair.here, pair.there
        await here.wait_for(3)
        for node in (there, beyond):
            await node.options(name=node.name).spawn(Reader, "news")
        group = here.group("news", Reader)
        await until_seen(group, ["there", "beyond"])
        assert await group.broadcast(Reader.on_news, "first") == 2
        network.take_down()
        with trio.fail_after(60):
            await until(
                here.unreachable, "the other is out of reach", lambda names: names == ("there",)
            )
            assert [member.name for member in group.members()] == ["beyond", "there"]
            assert {group.choose().name for _ in range(50)} == {"beyond"}
            assert await group.broadcast(Reader.on_news, "second") == 1
            answers = {
                answer.member.name: answer for answer in await group.call_all(Reader.wait_heard, 2)
            }
            assert answers["beyond"].value == ["first", "second"]
            assert isinstance(answers["there"].error, NodeUnreachableError)


async def test_members_of_a_node_that_was_never_reached_are_passed_over() -> None:
    network = BreakableNetwork()
    async with (
        open_pair(None, Platform(network=network)) as pair,
        open_node("beyond", join=pair.here.address, secret=SECRET) as beyond,
    ):
        here, there = pair.here, pair.there
        await there.wait_for(3)
        [unmet] = [member for member in there.members() if member.name == "beyond"]
        network.cut(*unmet.addresses)
        for node in (here, beyond):
            await node.options(name=node.name).spawn(Reader, "news")
        group = there.group("news", Reader)
        await until_seen(group, ["here", "beyond"])
        with trio.fail_after(60):
            # The first contact: nothing is known about the node yet.
            assert await group.broadcast(Reader.on_news, "first") == 2
            await until(there.unreachable, "it is out of reach", lambda names: names == ("beyond",))
            assert {group.choose().name for _ in range(50)} == {"here"}
            assert await group.broadcast(Reader.on_news, "second") == 1
            answers = {
                answer.member.name: answer for answer in await group.call_all(Reader.wait_heard, 2)
            }
            assert answers["here"].value == ["first", "second"]
            assert isinstance(answers["beyond"].error, NodeUnreachableError)
            network.refused.clear()
            await until(there.unreachable, "it is reached", lambda names: not names)
            [member] = [one for one in group.members() if one.name == "beyond"]
            assert await member.wait_heard(1) == ["first"], "what was sent has arrived"


async def silent_at_first(simulation: Simulation) -> None:
    """The first dial of a node gets neither a connection nor a refusal."""
    cluster, node, name = cluster_of(simulation), simulation.node, simulation.nodes[-1]
    await (await cluster.node(name)).options(name=name).spawn(Reader, "news")
    group = node.group("news", Reader)
    await until_seen(group, [name])
    heal = cluster.partition([node.name], [name])
    began, silence = simulation.now(), cluster.timings.silence
    assert await group.broadcast(Reader.on_news, "first") == 1
    await until(
        node.unreachable, "it is out of reach", lambda names: names == (name,), seconds=60.0
    )
    assert silence < simulation.now() - began < silence + cluster.timings.beat
    [answer] = await group.call_all(Reader.wait_heard, 1)
    assert isinstance(answer.error, NodeUnreachableError)
    heal()
    await until(node.unreachable, "it is reached", lambda names: not names, seconds=60.0)
    [answer] = await group.call_all(Reader.wait_heard, 1)
    assert answer.value == ["first"]


def test_a_node_that_was_never_reached_may_be_silent_for_as_long_as_a_connection() -> None:
    simulate(silent_at_first, seeds=range(3), faults=())


@pytest.mark.parametrize("given", [5, None, "Reader", int, Reader.on_news])
async def test_a_group_is_of_a_class_of_actors(pair: Pair, given: Any) -> None:
    with pytest.raises(TypeError, match=r"^the group 'news' is of a (sub)?class of actors"):
        pair.here.group("news", given)
