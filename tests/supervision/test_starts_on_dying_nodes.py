"""A start that was placed on a node which has ended: it is placed again if it certainly did not run
there, and its error is about the actor, not about the service of the node that was to start it.
"""

from __future__ import annotations

import traceback

import pytest
import trio

from actors import Actor, method
from actors.actor import Member
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    OutcomeUnknownError,
)
from runtime.node import internals_of
from runtime.simulation.cluster import CLUSTER
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


@pytest.mark.parametrize(
    ("kind", "named", "text"),
    [
        (
            CallTimeoutError,
            False,
            "where may have started on node worker-1, whose answer has not come after 2.0 s, and "
            "will not; if it has, it is stopped again, as no task has its handle; start it again, "
            "or elsewhere",
        ),
        (
            OutcomeUnknownError,
            True,
            "where may have started on node worker-1, whose answer has not come after 2.0 s, and "
            "will not; if it has, it goes on: look it up by its name, or start it again",
        ),
        (
            CallTimeoutError,
            True,
            "where may have started on node worker-1, whose answer has not come after 2.0 s, and "
            "will not; if it has, it goes on: look it up by its name, or start it again",
        ),
        (
            DeadlineExceededError,
            False,
            "where was not started: node worker-1 had not begun with it after 2.0 s, and will not; "
            "start it again, or elsewhere",
        ),
    ],
)
def test_an_error_of_the_service_that_starts_is_about_the_start(
    kind: type[CallError], named: bool, text: str
) -> None:
    said = "@node.spawn gave no answer within 2 s\nattempt 1, after 0.25 s: @node.spawn did not run"
    error = kind(said, actor="@node", method="spawn", node="worker-1", attempts=3)
    member = Member("worker-1", 7, (), "", 0)
    clock = iter([1.0, 3.0])
    with (
        pytest.raises(kind) as found,
        about_start("where", member, lambda: next(clock), known=named),
    ):
        raise error
    assert str(found.value) == text
    assert (found.value.node, found.value.attempts) == ("worker-1", 3)


STARTED = (
    "node worker-1 left while where was starting there: it has not started; its constructor and "
    "on_start may have begun"
)


def after_a_repeat(last: CallError) -> CallError:
    """The error of a call whose first attempt had no answer in its time."""
    error = OutcomeUnknownError("may have run in one of its 2 attempts", actor="@node")
    error.__cause__ = last
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            NodeDrainingError("@node.spawn did not run", actor="@node"),
            "where was not started: node worker-1 left the cluster before it began with it; start "
            "it again, or elsewhere",
        ),
        (ActorDiedError("@node ended while the call was running", actor="@node"), STARTED),
        (after_a_repeat(NodeDrainingError("@node.spawn did not run", actor="@node")), STARTED),
    ],
    ids=["not taken", "cut short", "repeat not taken"],
)
def test_a_start_on_a_node_that_leaves_is_refused_and_has_not_died(
    error: CallError, text: str
) -> None:
    member = Member("worker-1", 7, (), "", 0)
    with (
        pytest.raises(NodeDrainingError) as found,
        about_start("where", member, lambda: 1.0, known=False),
    ):
        raise error
    assert str(found.value) == text
    assert found.value.node == "worker-1"


class Unhurried(Actor):
    """Starts within four seconds, whatever is cancelled meanwhile."""

    def __init__(self, seconds: float = 4.0) -> None:
        self.seconds = seconds

    async def on_start(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(self.seconds)


@pytest.mark.parametrize("many", [False, True])
async def test_a_time_limit_ends_a_spawn_as_a_time_limit_and_the_actor_is_taken_back(
    cluster: VirtualCluster, many: bool
) -> None:
    """Also where the limit passes soon after one of the attempts that the runtime makes by itself:
    these are at 0.25, 0.5, 1 and 2 seconds.
    """
    wrong: list[str] = []

    async def spawn(limit: float) -> None:
        spawner = cluster.node.options(on="worker-1")
        try:
            with trio.fail_after(limit):
                if many:
                    await spawner.spawn_many(Unhurried, [(4.0,)] * 2)
                else:
                    await spawner.spawn(Unhurried, 4.0)
        except trio.TooSlowError as error:
            told = "".join(traceback.format_exception(error))
            if "Unhurried on node worker-1 had no answer after " not in told:
                wrong.append("no note")
        except Exception as error:
            wrong.append(f"{limit}: {error!r}")

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(spawn, 0.2 + number * 0.05)
    assert wrong == []
    await trio.sleep(10.0)
    node = CLUSTER.get().live("worker-1")
    assert node is not None
    assert [name for name in internals_of(node).host.cells if "Unhurried" in name] == []


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
