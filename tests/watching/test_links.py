"""Links, row by row: an abnormal end of either stops the other, over nodes and with nodes."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest
import trio

from actors.errors import ActorDiedError, ActorStartError
from runtime import open_node
from runtime.node import internals_of
from tests.live_pair import SECRET, Pair
from tests.watching.actors_used import LinksAtStart, Partner, Survivor
from tests.watching.test_watching import until_nothing_is_left

Couple = tuple[Partner, Partner]


@pytest.fixture
async def couple(pair: Pair, where: str) -> Couple:
    """Two that are linked by the first, which is on the node of the tests."""
    one, other = (
        await pair.here.spawn(Partner),
        await pair.here.options(on=where, name="other").spawn(Partner),
    )
    await one.tie(other)
    return one, other


async def crash(partner: Partner) -> None:
    with pytest.raises(ActorDiedError):
        await partner.crash()


@pytest.mark.parametrize("end", [(0, 1), (1, 0)], ids=["linker", "linked"])
async def test_an_abnormal_end_of_either_stops_the_other_with_the_same_reason(
    pair: Pair, couple: Couple, end: tuple[int, int]
) -> None:
    first, second = couple[end[0]], couple[end[1]]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash, first)
            ended = await pair.here.wait_ended(second)
    assert ended.reason.kind == "raised"
    assert f"linked to {first.name} on" in ended.reason.text
    assert "RuntimeError: boom" in ended.reason.text
    await until_nothing_is_left(pair)


@pytest.mark.parametrize("end", [(0, 1), (1, 0)], ids=["linker", "linked"])
async def test_a_normal_end_leaves_the_other_alone(
    pair: Pair, couple: Couple, end: tuple[int, int]
) -> None:
    await pair.here.stop(couple[end[0]])
    await until_nothing_is_left(pair)
    assert await couple[end[1]].ping()


@pytest.mark.parametrize("end", [(0, 1), (1, 0)], ids=["linker", "linked"])
@pytest.mark.parametrize("who", [(0, 1), (1, 0)], ids=["unlinked by linker", "unlinked by linked"])
async def test_unlinked_actors_are_nothing_to_each_other(
    pair: Pair, couple: Couple, end: tuple[int, int], who: tuple[int, int]
) -> None:
    await couple[who[0]].untie(couple[who[1]])
    await couple[who[0]].untie(couple[who[1]])
    await crash(couple[end[0]])
    await until_nothing_is_left(pair)
    assert await couple[end[1]].ping()


async def test_two_have_one_link_at_most(pair: Pair, couple: Couple) -> None:
    one, other = couple
    await one.tie(other)
    await other.tie(one)
    await one.tie(one)
    await other.untie(one)
    await crash(other)
    await until_nothing_is_left(pair)
    assert await one.ping()


async def test_one_that_handles_exits_gets_a_message_instead(pair: Pair, where: str) -> None:
    survivor = await pair.here.spawn(Survivor)
    crashing, stopping = (
        await pair.here.options(on=where).spawn(Partner),
        await pair.here.options(on=where).spawn(Partner),
    )
    await survivor.tie(crashing)
    await stopping.tie(survivor)
    await crash(crashing)
    with trio.fail_after(60):
        await survivor.wait_told(1)
        await pair.here.stop(stopping)
        notices = await survivor.wait_told(2)
    assert [(notice.name, notice.reason.kind) for notice in notices] == [
        (crashing.name, "raised"),
        (stopping.name, "stopped"),
    ]
    assert notices[0].reason.text == "RuntimeError: boom"
    await until_nothing_is_left(pair)


async def test_linking_to_a_dead_actor_ends_or_notifies_the_linker_at_once(
    pair: Pair, where: str
) -> None:
    dead = await pair.here.options(on=where).spawn(Partner)
    await pair.here.stop(dead)
    survivor, partner = await pair.here.spawn(Survivor), await pair.here.spawn(Partner)
    await survivor.tie(dead)
    with trio.fail_after(60):
        (notice,) = await survivor.wait_told(1)
        assert notice.reason.kind == "no such actor"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, lambda: partner.tie(dead))
            ended = await pair.here.wait_ended(partner)
    assert ended.reason.kind == "no such actor"
    await until_nothing_is_left(pair)


async def attempt(call: Callable[[], Awaitable[None]]) -> None:
    """The caller of what ends may be told so."""
    try:
        await call()
    except ActorDiedError:
        pass


async def test_an_actor_that_links_to_a_dead_one_while_it_starts_does_not_start(
    pair: Pair, where: str
) -> None:
    dead = await pair.here.options(on=where).spawn(Partner)
    await pair.here.stop(dead)
    with pytest.raises(ActorStartError, match="no such actor"):
        await pair.here.spawn(LinksAtStart, dead)
    await until_nothing_is_left(pair)


async def test_an_end_runs_along_a_chain_of_links(pair: Pair) -> None:
    chain = [
        await pair.here.options(on=("here", "there")[number % 2]).spawn(Partner)
        for number in range(6)
    ]
    for one, other in itertools.pairwise(chain):
        await one.tie(other)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for one in chain[1:]:
                nursery.start_soon(pair.here.wait_ended, one)
            await crash(chain[0])
    await until_nothing_is_left(pair)


async def test_the_end_of_a_node_is_an_abnormal_end_of_what_lives_there(pair: Pair) -> None:
    """It leaves without a word to its actors: only its record goes."""
    async with open_node("third", join=pair.here.address, secret=SECRET) as third:
        await pair.here.wait_for(3)
        far, near = (
            await pair.here.options(on="third").spawn(Partner),
            await pair.here.spawn(Partner),
        )
        survivor = await pair.here.spawn(Survivor)
        await near.tie(far)
        await far.tie(survivor)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    internals_of(pair.here).store.revoke,
                    internals_of(third).registration.record.lease,
                )
                ended = await pair.here.wait_ended(near)
            (notice,) = await survivor.wait_told(1)
        assert ended.reason.kind == notice.reason.kind == "node died"
    await until_nothing_is_left(pair)
