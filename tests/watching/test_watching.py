"""Watching, row by row: one notice for each watch, whatever ends and wherever it was."""

from __future__ import annotations

import pytest
import trio

from actors import ChildSpec, ExitReason, SpawnOptions, Supervisor
from actors.errors import ActorDiedError, ActorNotFoundError
from actors.supervision import RestartType
from runtime import open_node
from runtime.node import internals_of
from tests.live_pair import LONG_LEASE, SECRET, Pair
from tests.waiting import until
from tests.watching.actors_used import Fragile, Watched, Watcher


@pytest.fixture
async def watcher(pair: Pair) -> Watcher:
    """On the node of the tests."""
    return await pair.here.spawn(Watcher)


async def until_nothing_is_left(pair: Pair) -> None:
    """What is given up is given up by one-way words between the nodes."""
    nodes = (pair.here, pair.there)
    await until(
        lambda: [
            count
            for node in nodes
            for count in internals_of(node).watcher.loads().values()
            if count
        ],
        "no watch is left",
        lambda left: not left,
    )


async def test_a_live_actor_that_is_stopped_gives_one_notice_with_reason_and_epoch(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    watched = await pair.here.options(on=where, name="watched").spawn(Watched)
    node, epoch = await watched.where()
    number = await watcher.look_at(watched)
    assert await watcher.told() == []
    await pair.here.stop(watched, reason="enough")
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert (notice.watch, notice.name, notice.epoch, notice.node) == (
        number,
        "watched",
        epoch,
        node,
    )
    assert (notice.reason.kind, notice.reason.text, notice.restarts) == ("stopped", "enough", False)
    await until_nothing_is_left(pair)
    assert len(await watcher.told()) == 1


async def test_the_notice_of_a_crash_has_its_traceback(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    watched = await pair.here.options(on=where).spawn(Watched)
    await watcher.look_at(watched)
    with pytest.raises(ActorDiedError):
        await watched.crash()
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert (notice.reason.kind, notice.reason.text) == ("raised", "RuntimeError: boom")
    assert "explode" in notice.reason.traceback
    await until_nothing_is_left(pair)


async def test_the_notice_of_an_actor_that_ends_right_after_the_watch_has_its_own_reason(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    for _ in range(20):
        watched = await pair.here.options(on=where).spawn(Watched)
        await watcher.look_at(watched)
        await watched.end.send()
    with trio.fail_after(60):
        notices = await watcher.wait_told(20)
    assert [notice.reason.kind for notice in notices] == ["stopped"] * 20


async def test_a_restart_ends_the_old_epoch_and_says_that_a_new_one_is_expected(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    spec = ChildSpec(id="child", actor=Watched, options=SpawnOptions(name="child", on=where))
    tree = await pair.here.options(name="tree").spawn(Supervisor, [spec], intensity=10)
    watched = await pair.here.lookup("child", Watched)
    _, epoch = await watched.where()
    await watcher.look_at(watched)
    with pytest.raises(ActorDiedError):
        await watched.crash()
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
        assert (notice.epoch, notice.restarts) == (epoch, True)
        _, later = await watched.where()
        assert later > epoch
        # The old handle is good for a watch of the new epoch.
        await watcher.look_at(watched)
        await pair.here.stop(tree)
        notice = (await watcher.wait_told(2))[1]
    assert notice.epoch == later
    assert len(await watcher.told()) == 2


async def test_the_notice_of_a_transient_child_that_ends_normally_expects_no_new_epoch(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    kinds: tuple[tuple[RestartType, bool], ...] = (("transient", False), ("permanent", True))
    for number, (restart, expected) in enumerate(kinds):
        name = f"{restart}-child"
        spec = ChildSpec(id=name, actor=Watched, options=SpawnOptions(name=name, on=where))
        spec = spec.changed(restart=restart)
        await pair.here.options(name=restart).spawn(Supervisor, [spec], intensity=10)
        watched = await pair.here.lookup(name, Watched)
        await watcher.look_at(watched)
        await pair.here.stop(watched)
        with trio.fail_after(60):
            notice = (await watcher.wait_told(number + 1))[number]
        assert (notice.reason.kind, notice.restarts) == ("stopped", expected)


async def test_a_watch_of_a_dead_actor_gets_its_notice_at_once(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    unnamed = await pair.here.options(on=where).spawn(Watched)
    named = await pair.here.options(on=where, name="named").spawn(Watched)
    for watched in (unnamed, named):
        await pair.here.stop(watched)
        await watcher.look_at(watched)
    with trio.fail_after(60):
        notices = await watcher.wait_told(2)
    assert [(notice.reason.kind, notice.name) for notice in notices] == [
        ("no such actor", unnamed.name),
        ("no such actor", "named"),
    ]
    await until_nothing_is_left(pair)


async def test_a_watch_of_an_actor_that_has_given_back_its_name_says_nothing_for_the_watch_before(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    watched = await pair.here.options(on=where, name="named").spawn(Watched)
    # The actor's own node would not ask the store.
    late = await pair.here.options(on="there" if where == "here" else "here").spawn(Watcher)
    first = await watcher.look_at(watched)
    await internals_of(pair.here).store.delete("names/named")
    await late.look_at(watched)
    with trio.fail_after(60):
        (notice,) = await late.wait_told(1)
    assert notice.reason.kind == "no such actor"
    assert await watcher.told() == []
    await (
        internals_of(pair.here)
        .endpoint.node_service(where, getattr(pair, where).incarnation)
        .stop_actor("named", 0, ExitReason("stopped"))
    )
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert (notice.watch, notice.reason.kind) == (first, "stopped")
    await until_nothing_is_left(pair)


async def test_a_watch_of_an_actor_on_a_dead_node_gets_its_notice_at_once(
    pair: Pair, watcher: Watcher
) -> None:
    async with open_node("third", join=pair.here.address, secret=SECRET) as third:
        await pair.here.wait_for(3)
        watched = await pair.here.options(on="third").spawn(Watched)
        await third.wait_for(3)
    await pair.here.wait_gone("third")
    await watcher.look_at(watched)
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert (notice.reason.kind, notice.node) == ("node died", "third")


async def test_a_node_that_leaves_gives_one_notice_and_none_when_it_comes_back(
    pair: Pair, watcher: Watcher
) -> None:
    async with open_node("third", join=pair.here.address, secret=SECRET):
        watched = await pair.here.options(on="third", name="moving").spawn(Watched)
        await watcher.look_at(watched)
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert notice.reason.kind in ("shutdown", "node died")
    async with open_node("third", join=pair.here.address, secret=SECRET):
        await pair.here.wait_for(3)
        await pair.here.options(on="third", name="moving").spawn(Watched)
    await pair.here.wait_gone("third")
    assert len(await watcher.told()) == 1
    await until_nothing_is_left(pair)


async def test_no_notice_comes_after_unwatching(pair: Pair, where: str, watcher: Watcher) -> None:
    watched = await pair.here.options(on=where).spawn(Watched)
    unwanted, wanted = await watcher.look_at(watched), await watcher.look_at(watched)
    await watcher.look_away(unwanted)
    await watcher.look_away(unwanted)
    await pair.here.stop(watched)
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert notice.watch == wanted
    await until_nothing_is_left(pair)


async def test_no_notice_comes_after_unwatching_even_if_it_was_under_way(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    watched = await pair.here.options(on=where).spawn(Watched)
    other = await pair.here.options(on=where).spawn(Watched)
    number = await watcher.look_at(watched)
    await watcher.look_at(other)
    assert await watcher.stop_and_look_away(watched, number) == 0
    await pair.here.stop(other)
    with trio.fail_after(60):
        (notice,) = await watcher.wait_told(1)
    assert notice.name == other.name
    await until_nothing_is_left(pair)


async def test_a_node_where_no_actor_watches_any_more_is_forgotten(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    watched = await pair.here.options(on=where).spawn(Watched)
    number = await watcher.look_at(watched)
    await watcher.look_away(number)
    await until_nothing_is_left(pair)


async def test_two_watches_of_one_actor_are_independent(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    watched = await pair.here.options(on=where).spawn(Watched)
    numbers = [await watcher.look_at(watched), await watcher.look_at(watched)]
    await pair.here.stop(watched)
    with trio.fail_after(60):
        notices = await watcher.wait_told(2)
    assert [notice.watch for notice in notices] == numbers
    assert len(set(numbers)) == 2


async def test_a_notice_waits_for_the_running_method_and_for_the_calls_before_it(
    pair: Pair, watcher: Watcher
) -> None:
    watched = await pair.here.spawn(Watched)
    number = await watcher.look_at(watched)
    await watcher.stop_in_its_turn(watched)
    with trio.fail_after(60):
        await watcher.wait_told(1)
    assert await watcher.told_in_order() == ["method over", "before", f"ended {number}"]


async def test_watches_end_with_the_watcher(pair: Pair, where: str, watcher: Watcher) -> None:
    for _ in range(10):
        await watcher.look_at(await pair.here.options(on=where).spawn(Watched))
    await pair.here.stop(watcher)
    await until_nothing_is_left(pair)


async def test_an_error_in_on_ended_ends_the_actor(pair: Pair) -> None:
    fragile = await pair.here.spawn(Fragile)
    watched = await pair.here.spawn(Watched)
    await fragile.look_at(watched)
    await pair.here.stop(watched)
    with trio.fail_after(60):
        ended = await pair.here.wait_ended(fragile)
    assert ended.reason.kind in ("raised", "no such actor")
    with pytest.raises(ActorNotFoundError):
        await fragile.told()


async def test_a_full_mailbox_keeps_no_notice_out(pair: Pair) -> None:
    watcher = await pair.here.options(mailbox_limit=1).spawn(Watcher)
    watched = [await pair.here.spawn(Watched) for _ in range(5)]
    await watcher.look_at_all(watched)
    for one in watched:
        await pair.here.stop(one)
    with trio.fail_after(60):
        assert len(await watcher.wait_told(5)) == 5


async def test_code_outside_of_actors_waits_for_an_end(pair: Pair, where: str) -> None:
    watched = await pair.here.options(on=where, name="watched").spawn(Watched)
    with trio.move_on_after(0.05) as patience:
        await pair.here.wait_ended(watched)
    assert patience.cancelled_caught
    await until_nothing_is_left(pair)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.here.stop, watched)
            ended = await pair.here.wait_ended(watched)
        assert (ended.name, ended.reason.kind) in [
            ("watched", "stopped"),
            ("watched", "no such actor"),
        ]
        assert (await pair.here.wait_ended(watched)).reason.kind == "no such actor"
    await until_nothing_is_left(pair)


@LONG_LEASE
async def test_a_thousand_watches_cost_no_task_while_they_wait(
    pair: Pair, where: str, watcher: Watcher
) -> None:
    crowd = [await pair.here.options(on=where).spawn(Watched) for _ in range(1000)]
    await watcher.look_at_all(crowd)
    assert internals_of(pair.here).watcher.loads()["watches"] == 1000
    assert (
        len(internals_of(pair.here).nursery.child_tasks)
        + len(internals_of(pair.there).nursery.child_tasks)
        < 100
    )
    async with trio.open_nursery() as nursery:
        for one in crowd:
            nursery.start_soon(pair.here.stop, one)
    with trio.fail_after(60):
        notices = await watcher.wait_told(1000)
    assert len({notice.watch for notice in notices}) == len(notices) == 1000
    await until_nothing_is_left(pair)


async def test_what_is_no_handle_is_refused(pair: Pair) -> None:
    with pytest.raises(TypeError, match="take a handle"):
        await pair.here.wait_ended("watched")
