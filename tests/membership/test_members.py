"""What nodes see of each other: who is a member, who cannot be reached, and what is not done for
those who are no members any more.
"""

from __future__ import annotations

import operator
from functools import partial

import pytest
import trio
import trio.testing

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import (
    ActorNotFoundError,
    ConnectionLostError,
    LeaseLostError,
    NodeDiedError,
    NotAMemberError,
)
from actors.identifiers import NodeId
from runtime import Node, open_node
from runtime.node import internals_of
from runtime.testing import Platform
from tests.breakable_network import BreakableNetwork
from tests.live_pair import SECRET, Pair, open_pair
from tests.waiting import until


class Ledger(Actor):
    """Counts what is done."""

    def __init__(self) -> None:
        self.entries = 0

    @method
    async def enter(self) -> int:
        self.entries += 1
        return self.entries


class Follower(Actor):
    """Calls another from wherever it is."""

    @method(concurrent=True)
    async def pass_on(self, ledger: Ledger) -> int:
        return await ledger.enter()


async def test_what_a_node_asks_for_after_its_lease_has_ended_is_not_done() -> None:
    async with open_node("here", secret=SECRET) as here:
        # the block is what is tested
        with pytest.raises(LeaseLostError, match="counts node there as dead"):  # noqa: PT012
            async with open_node("there", join=here.address, secret=SECRET) as there:
                await here.wait_for(2)
                await ask_after_the_end(Pair(here, there))


async def ask_after_the_end(pair: Pair) -> None:
    ledger = await pair.here.options(name="ledger").spawn(Ledger)
    follower = await pair.there.spawn(Follower)
    from_there = await pair.there.lookup("ledger", Ledger)
    assert await follower.pass_on(from_there) == 1
    with trio.fail_after(60):
        await internals_of(pair.here).store.revoke(
            internals_of(pair.there).registration.record.lease
        )
        await pair.here.wait_gone("there")
        with pytest.raises((NotAMemberError, ConnectionLostError)):
            # The session may have ended with this call on its way, which it then certainly did not
            # survive either.
            await from_there.enter()
        with pytest.raises(NotAMemberError, match="no longer a member of the cluster"):
            await from_there.enter()
        await from_there.enter.send()
        # The store, to which it has to go to learn of its end, still answers it.
        await pair.there.asked_to_leave.wait()
    assert await ledger.enter() == 2


async def test_a_member_that_cannot_be_reached_is_distinguished_from_one_that_is_gone() -> None:
    network = BreakableNetwork()
    async with open_pair(Platform(network=network)) as pair:
        here, there = pair.here, pair.there
        ledger = await here.options(on="there").spawn(Ledger)
        assert await ledger.enter() == 1
        assert here.unreachable() == ()
        network.take_down()
        with trio.fail_after(60):
            await until(
                here.unreachable, "the other is out of reach", lambda names: names == ("there",)
            )
            assert [member.name for member in here.members()] == ["here", "there"]
            network.up = True
            assert await ledger.enter() == 2
            assert here.unreachable() == ()
        assert there.unreachable() == ()


async def test_the_members_are_sent_again_after_every_change() -> None:
    seen: list[list[str]] = []
    async with open_node("here", secret=SECRET) as here:

        async def watch() -> None:
            async for members in here.watch_members():
                seen.append([f"{member.name}:{member.state}" for member in members])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with open_node("there", join=here.address, secret=SECRET):
                await here.wait_for(2)
                await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60):
                await here.wait_gone("there")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert seen == [
        ["here:up"],
        ["here:up", "there:joining"],
        ["here:up", "there:up"],
        ["here:up", "there:draining"],
        ["here:up"],
    ]


async def test_a_node_that_has_left_asks_for_nothing_any_more_and_says_so_at_once(
    pair: Pair,
) -> None:
    async with open_node("gone", join=pair.here.address, secret=SECRET) as gone:
        ledger = await gone.options(on="there").spawn(Ledger)
        assert await ledger.enter() == 1
    with trio.fail_after(60):
        for ask in (ledger.enter, ledger.enter, lambda: gone.options(on="there").spawn(Ledger)):
            with pytest.raises(NotAMemberError, match="gone has left"):
                await ask()


async def until_on(supervisor: Supervisor, node: str) -> None:
    """Wait until the only child runs on that node."""

    async def places() -> list[tuple[str, str | None]]:
        return [(status.state, status.node) for status in await supervisor.children()]

    await until(places, f"the child runs on {node}", partial(operator.eq, [("running", node)]))


async def test_a_supervised_actor_moves_when_its_node_leaves_and_that_counts_as_no_failure() -> (
    None
):
    leaves: dict[str, trio.Event] = {}

    async def keep(name: str, join: str) -> None:
        leaves[name] = trio.Event()
        async with open_node(name, join=join, secret=SECRET, labels={"keeps": "ledgers"}):
            await leaves[name].wait()

    options = SpawnOptions(name="ledger", labels={"keeps": "ledgers"})
    spec = ChildSpec(id="ledger", actor=Ledger, options=options, restart="transient")
    async with open_node("here", secret=SECRET) as here, trio.open_nursery() as keepers:
        keepers.start_soon(keep, "keeper-0", here.address)
        await here.wait_for(2)
        supervisor = await here.options(name="supervisor").spawn(Supervisor, [spec], intensity=0)
        ledger = await here.lookup("ledger", Ledger)
        for number in range(4):
            keepers.start_soon(keep, f"keeper-{number + 1}", here.address)
            await here.wait_for(3)
            # The node before is gone as soon as its record is; the child may still be on its way.
            await until_on(supervisor, f"keeper-{number}")
            assert await ledger.enter() == 1
            leaves[f"keeper-{number}"].set()
            with trio.fail_after(60):
                await here.wait_gone(f"keeper-{number}")
        with trio.fail_after(60):
            assert await ledger.enter() == 1
        await until_on(supervisor, "keeper-4")
        leaves["keeper-4"].set()


async def test_a_call_to_a_node_that_is_gone_fails_at_once_also_where_a_connection_of_it_came_late(
    pair: Pair,
) -> None:
    async with open_node("third", join=pair.here.address, secret=SECRET) as third:
        await pair.here.wait_for(3)
        ledger = await pair.here.options(on="third").spawn(Ledger)
        peer = internals_of(third).endpoint.peers.introduction.peer
    await pair.here.wait_gone("third")
    # As an accepted connection does before it is settled; this one never is.
    internals_of(pair.here).endpoint.peers.passive_link(peer).fenced = True
    with trio.fail_after(60), pytest.raises((ActorNotFoundError, NodeDiedError)):
        await ledger.enter()
    with trio.fail_after(60):
        await pair.here.stop(ledger)


def id_of(node: Node) -> NodeId:
    """The identity of the incarnation that runs."""
    return NodeId(node.name, node.incarnation)


async def test_an_incarnation_is_current_or_gone_or_newer_than_the_view(pair: Pair) -> None:
    members, there = internals_of(pair.here).members, id_of(pair.there)
    assert members.is_current(there)
    assert not members.is_gone(there)
    earlier = NodeId(there.name, there.incarnation - 1)
    stranger = NodeId("stranger", there.incarnation)
    for ended in (earlier, stranger):
        assert not members.is_current(ended)
        assert members.is_gone(ended)
    newer = NodeId(there.name, members.revision + 1)
    assert not members.is_current(newer)
    assert not members.is_gone(newer)


async def test_an_incarnation_that_is_proven_dead_is_gone_although_the_store_still_has_it(
    pair: Pair,
) -> None:
    members, there = internals_of(pair.here).members, id_of(pair.there)
    shown = members.all()
    internals_of(pair.here).on_proven_end(there, "its process has ended")
    assert members.all() == shown
    assert members.is_gone(there)
    assert not members.is_current(there)
    assert members.current(there) is None
    assert await internals_of(pair.here).endpoint.routes.directory.link_to(*there) is None
    # A later life under the name is another node, whatever is known of this one.
    assert not members.is_gone(NodeId(there.name, members.revision + 1))


async def test_a_proof_about_an_incarnation_that_is_not_in_the_view_is_not_kept(
    pair: Pair,
) -> None:
    # A store that was lost counts from the beginning: it may give that incarnation to a later node.
    members = internals_of(pair.here).members
    later = NodeId("third", members.revision + 1)
    members.mark_dead(later)
    assert not members.is_gone(later)
    members.mark_dead(NodeId(pair.there.name, pair.there.incarnation - 1))
    assert members.is_current(id_of(pair.there))


async def test_who_watches_an_actor_learns_its_death_from_the_proof_and_not_only_from_the_store(
    pair: Pair,
) -> None:
    ledger = await pair.here.options(on=pair.there.name).spawn(Ledger)
    assert await ledger.enter() == 1
    reasons: list[str] = []

    async def watch() -> None:
        reasons.append((await internals_of(pair.here).spawner.watch_address(ledger.address)).kind)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            assert not reasons
            internals_of(pair.here).on_proven_end(id_of(pair.there), "its process has ended")
    # Its lease has not: the record is in the store, and in the view, all the time.
    assert reasons == ["node died"]
    assert internals_of(pair.here).members.find(pair.there.name) is not None


async def test_a_supervisor_that_lived_on_a_dead_node_is_waited_for_no_longer(pair: Pair) -> None:
    there = id_of(pair.there)
    generated = f"supervisor-1@{there.name}.{there.incarnation}"
    assert await internals_of(pair.here).spawner.is_supervised(generated)
    internals_of(pair.here).members.mark_dead(there)
    assert not await internals_of(pair.here).spawner.is_supervised(generated)


async def test_values_are_handed_over_to_no_node_that_is_proven_dead(pair: Pair) -> None:
    there, members = id_of(pair.there), internals_of(pair.here).members
    assert members.staying(pair.here.name) == [there]
    members.mark_dead(there)
    assert members.staying(pair.here.name) == []
