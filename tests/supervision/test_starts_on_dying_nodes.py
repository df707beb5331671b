"""A start that was placed on a node which has ended: it is placed again if it certainly did not run
there, and its error is about the actor, not about the service of the node that was to start it.
"""

from __future__ import annotations

import pytest
import trio

from actors import Actor, method
from actors.actor import Member
from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    NodeDiedError,
    NodeNotFoundError,
    OutcomeUnknownError,
)
from runtime.supervision.start_errors import about_start
from runtime.testing import VirtualCluster, VirtualFaults


class Where(Actor):
    def __init__(self) -> None:
        pass

    @method
    async def node_name(self) -> str:
        return self.node.name


async def test_it_is_placed_on_another_node(cluster: VirtualCluster, faults: VirtualFaults) -> None:
    faults.kill("worker-1")
    seen = set()
    for _ in range(6):
        actor = await cluster.node.options(placement="spread").spawn(Where)
        seen.add(await actor.node_name())
    assert seen == {"worker-2", "worker-3"}


async def test_the_error_names_the_node_and_the_class(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    faults.kill("worker-1")
    with pytest.raises(
        NodeDiedError, match="worker-1 ended while it started an actor of class Where"
    ):
        await cluster.node.options(on="worker-1").spawn(Where)
    with pytest.raises(NodeNotFoundError, match="no node called 'worker-1'"):
        await cluster.node.options(on="worker-1").spawn_many(Where, [()])


@pytest.mark.parametrize("kind", [CallTimeoutError, OutcomeUnknownError, DeadlineExceededError])
def test_an_error_of_the_service_that_starts_is_about_the_start(kind: type[CallError]) -> None:
    said = "@node.spawn gave no answer within 2 s\nattempt 1, after 0.25 s: @node.spawn did not run"
    error = kind(said, actor="@node", method="spawn", node="worker-1", attempts=3)
    member = Member("worker-1", 7, (), "", 0)
    with pytest.raises(kind) as found, about_start("where", member):
        raise error
    assert str(found.value) == "the start of where on node worker-1 gave no answer within 2 s"
    assert (found.value.node, found.value.attempts) == ("worker-1", 3)


async def test_a_node_that_is_started_again_under_its_name_is_used(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    """Its predecessor is still a member, and the one that `on=` finds first."""
    faults.kill("worker-1", restart_after=2.0)
    # Then the connection is known to be broken, and nothing is handed to it.
    await trio.sleep(1.0)
    before = {member.name: member.incarnation for member in await cluster.members()}
    actor = await cluster.node.options(name="where", on="worker-1").spawn(Where)
    assert await actor.node_name() == "worker-1"
    after = {member.name: member.incarnation for member in await cluster.members()}
    assert after["worker-1"] > before["worker-1"]


async def test_the_error_of_a_call_says_that_the_node_of_the_actor_has_ended(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    actor = await cluster.node.options(name="where", on="worker-1").spawn(Where)
    assert await actor.node_name() == "worker-1"
    faults.kill("worker-1")
    # Until its lease is over, calls wait for it.
    await trio.sleep(30.0)
    with pytest.raises(
        ActorNotFoundError, match="where was last on node worker-1, which has ended: there is no"
    ):
        await actor.node_name()
