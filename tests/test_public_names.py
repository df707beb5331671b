"""What completion shows of the objects that programs hold: exactly these names. Adding one is a
decision; what only the runtime uses begins with an underscore.
"""

from __future__ import annotations

import pytest

from actors import Actor, method
from runtime import open_local_cluster, open_node

SECRET = "a secret of these tests"

SPAWNER = {"get_or_spawn", "options", "run", "singleton", "spawn", "spawn_many"}
NODE = SPAWNER | {
    "address",
    "asked_to_leave",
    "cluster",
    "group",
    "incarnation",
    "leave",
    "lookup",
    "lookup_pool",
    "members",
    "metrics_address",
    "name",
    "pool",
    "pool_journals",
    "put",
    "remove_pool_journal",
    "status",
    "stop",
    "tree",
    "unreachable",
    "wait_ended",
    "wait_for",
    "wait_gone",
    "watch_members",
}
CLUSTER = {"address", "node", "process", "processes", "start_node"}
PROCESS = {"kill", "leave", "name", "pause", "pid", "resume", "running", "wait"}
ACTOR = {
    "address",
    "call_filters",
    "epoch",
    "handle",
    "handles_exits",
    "join",
    "leave",
    "link",
    "name",
    "node",
    "nursery",
    "on_ended",
    "on_inspect",
    "on_start",
    "on_stop",
    "options",
    "save",
    "saved",
    "supervises",
    "unlink",
    "unwatch",
    "watch",
}
HANDLE = {"address", "epoch", "name", "options"}
BOUND_METHOD = {"options", "remote", "send"}
REFERENCE = {"as_value", "call", "fetch", "has_failed", "local_value", "owner", "ready"}
GROUP = {
    "broadcast",
    "call_all",
    "choose",
    "members",
    "name",
    "options",
    "ready",
    "wait_other_than",
    "watch",
}


class Counter(Actor):
    """Has one method."""

    @method
    async def add(self, amount: int) -> int:
        return amount


def shown(thing: object) -> set[str]:
    """What completion offers before an underscore is typed."""
    return {name for name in dir(thing) if not name.startswith("_")}


async def test_completion_shows_of_a_node_and_what_it_gives_only_what_is_meant_for_programs() -> (
    None
):
    async with open_node(secret=SECRET) as node:
        assert shown(node) == NODE
        assert shown(node.options(name="counter")) == SPAWNER
        counter = await node.options(name="counter").spawn(Counter)
        assert shown(counter) == HANDLE | {"add"}
        assert shown(counter.add) == BOUND_METHOD
        await counter.add(1)
        assert shown(counter) == HANDLE | {"add"}
        assert shown(await node.lookup("counter", Counter)) == HANDLE | {"add"}
        assert shown(await counter.add.remote(1)) == REFERENCE
        assert shown(node.group("counters", Counter)) == GROUP


def test_completion_shows_of_an_actor_only_what_is_meant_for_programs() -> None:
    assert shown(Counter()) == ACTOR | {"add"}


@pytest.mark.cluster
async def test_completion_shows_of_a_local_cluster_only_what_is_meant_for_programs() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        assert shown(cluster) == CLUSTER
        assert shown(cluster.process("worker-1")) == PROCESS
