"""Every public operation, while the store is silent or gone and after the node's block: it ends, in
time, with a documented outcome.

A call and what looks for an actor end with a value, a `RemoteError`, a `NotExecutedError` or an
`OutcomeUnknownError`; never with an error of the store, with a bare `RuntimeError` or with a group.
Of a node whose block has ended, everything says `NotAMemberError`, at once.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import CallError, JoinError, LeaseLostError, NotAMemberError, SpawnError
from actors.reference import wait_all, wait_any
from actors.retry import RetryPolicy
from runtime import Node, open_local_cluster, open_node
from runtime.environment import SystemEnvironment
from runtime.testing import Platform, open_etcd
from runtime.timings import Timings
from tests.etcd import needs_etcd

SECRET = "a secret of the tests of outcomes"
UNDERSTUDY = [sys.executable, "-P", "-m", "runtime.command_line"]

PATIENCE = 2.5
"""Seconds that a store is given in these tests. Not less: a busy machine may take its time to set
up a world.
"""

IN_TIME = 25.0
"""Seconds that no operation may take while a store of that patience is away: a few questions, one
after the other.
"""

COMMAND_IN_TIME = 60.0
"""The same for a command, of which several start a Python each on a machine that may be busy."""

AT_ONCE = 5.0
"""Seconds in which a node that has left says so, on a busy machine. Nothing is waited for."""


def impatient() -> Platform:
    """Of a node that gives its store up soon, and itself soon when it leaves without one."""
    timings = Timings(store_call=PATIENCE, etcd_attempt=PATIENCE / 2, drain=2.0)
    return Platform(environment=SystemEnvironment(timings))


class Adder(Actor):
    """Adds."""

    def __init__(self) -> None:
        self.value = 0

    @method(concurrent=True)
    async def add(self, amount: int) -> int:
        """The sum."""
        self.value += amount
        return self.value

    @method(concurrent=True, idempotent=True)
    async def read(self) -> int:
        """The sum so far."""
        return self.value

    @method(concurrent=True)
    async def rest(self) -> None:
        """Never ends."""
        await trio.sleep_forever()

    @method(concurrent=True)
    async def rest_with(self, amount: int) -> int:
        """Never ends, and takes something."""
        await trio.sleep_forever()
        return amount

    @method(concurrent=True)
    async def count(self, to: int) -> AsyncIterator[int]:
        """Numbers."""
        for number in range(to):
            yield number


def double(number: int) -> int:
    """A function that any node can run."""
    return 2 * number


@attrs.define(eq=False, kw_only=True)
class World:
    """The node under test, and what it got hold of while all was well. `other` stays open."""

    node: Node
    other: Node
    near: Adder
    far: Adder
    named_near: Adder
    named_far: Adder
    isolated_near: Adder
    isolated_far: Adder
    pool: Any
    supervisor: Any
    group: Any
    own: Any
    borrowed: Any
    pending: Any


Operation = Callable[[World], Awaitable[object]]


def at_once(ask: Callable[[World], object]) -> Operation:
    """What is answered without waiting."""

    async def run(world: World) -> object:
        await trio.lowlevel.checkpoint()
        return ask(world)

    return run


async def fetched(kept: Awaitable[Any]) -> object:
    """The value of a reference that a call gives."""
    return await (await kept).fetch()


async def listed(items: AsyncIterator[object]) -> object:
    """All that a stream yields."""
    return [item async for item in items]


async def stop_what_was_spawned(world: World) -> object:
    return await world.node.stop(await world.node.spawn(Adder))


async def start_a_child(world: World) -> object:
    spec = ChildSpec(id="late", actor=Adder, start_timeout=2.0)
    return await world.supervisor.start_child.options(timeout=3.0)(spec)


OPERATIONS: dict[str, Operation] = {
    "spawn": lambda world: world.node.spawn(Adder),
    "spawn with a name": lambda world: world.node.options(name="late").spawn(Adder),
    "spawn elsewhere": lambda world: world.node.options(on=world.other.name).spawn(Adder),
    "spawn with a name elsewhere": lambda world: world.node.options(
        name="late-elsewhere", on=world.other.name
    ).spawn(Adder),
    "spawn where it fits": lambda world: world.node.options(placement="spread").spawn(Adder),
    "get or spawn what there is": lambda world: world.node.options(name="named-far").get_or_spawn(
        Adder
    ),
    "get or spawn what there is not": lambda world: world.node.options(name="not-yet").get_or_spawn(
        Adder
    ),
    "singleton": lambda world: world.node.options(name="single").singleton(Adder),
    "lookup": lambda world: world.node.lookup("named-far", Adder),
    "lookup of an unknown name": lambda world: world.node.lookup("nobody"),
    "stop": stop_what_was_spawned,
    "stop by name": lambda world: world.node.stop(world.named_far),
    "put": lambda world: world.node.put([1, 2, 3]),
    "fetch own": lambda world: world.own.fetch(),
    "fetch borrowed": lambda world: world.borrowed.fetch(),
    "local value": at_once(lambda world: world.own.local_value()),
    "reference ready": lambda world: world.borrowed.ready(),
    "method of a value": lambda world: world.borrowed.call.index(2),
    "method of a value kept there": lambda world: fetched(world.borrowed.call.index.remote(2)),
    "wait all that are there": lambda world: wait_all([world.own, world.borrowed]),
    "group made": at_once(lambda world: world.node.group("a group that nobody is in", Adder)),
    "group ready": lambda world: world.node.group("another group", Adder).ready(),
    "group members": at_once(lambda world: world.group.members()),
    "choose": lambda world: world.group.choose().read.options(timeout=1.0)(),
    "broadcast": lambda world: world.group.broadcast(Adder.add, 1),
    "broadcast to a new group": lambda world: world.node.group("one more group", Adder).broadcast(
        Adder.add, 1
    ),
    "call all": lambda world: world.group.options(timeout=1.0).call_all(Adder.read),
    "tree": lambda world: world.node.tree(),
    "members": at_once(lambda world: world.node.members()),
    "unreachable": at_once(lambda world: world.node.unreachable()),
    "call here": lambda world: world.near.add(1),
    "call there": lambda world: world.far.add(1),
    # Named actors pause while their lease is in doubt.
    "call by name here": lambda world: world.named_near.add.options(timeout=1.0)(1),
    "call by name there": lambda world: world.named_far.add.options(timeout=1.0)(1),
    "call with retries": lambda world: world.named_far.read.options(
        timeout=2.0, retry=RetryPolicy(max_retries=100, attempt_timeout=0.5)
    )(),
    "send here": lambda world: world.near.add.send(1),
    "send there": lambda world: world.far.add.send(1),
    "remote here": lambda world: fetched(world.near.add.remote(1)),
    "remote there": lambda world: fetched(world.far.add.remote(1)),
    "remote with retries": lambda world: fetched(
        world.far.read.options(timeout=2.0, retry=RetryPolicy(max_retries=5)).remote()
    ),
    "stream from here": lambda world: listed(world.near.count(3)),
    "stream from there": lambda world: listed(world.far.count(3)),
    "children of a supervisor": lambda world: world.supervisor.children.options(timeout=1.0)(),
    "status of a supervisor": lambda world: world.supervisor.status.options(timeout=1.0)(),
    "start a child": start_a_child,
    "restart a child": lambda world: world.supervisor.restart_child.options(timeout=1.0)(
        "there is no such child"
    ),
    "status": at_once(lambda world: world.node.status()),
    "wait any": lambda world: wait_any([world.own, world.borrowed]),
    "spawn in a process": lambda world: world.node.options(isolation="process").spawn(Adder),
    "spawn many": lambda world: world.node.spawn_many(Adder, [(), ()]),
    "spawn many with names": lambda world: world.node.spawn_many(
        Adder, [(), ()], names=["one-of-many", "another-of-many"]
    ),
    "spawn many elsewhere": lambda world: world.node.options(on=world.other.name).spawn_many(
        Adder, [(), ()]
    ),
    "run": lambda world: world.node.run(double, 2),
    "run elsewhere": lambda world: world.node.options(on=world.other.name).run(double, 2),
    "call in a process here": lambda world: world.isolated_near.add.options(timeout=1.0)(1),
    "call in a process there": lambda world: world.isolated_far.add.options(timeout=1.0)(1),
    "send to a process here": lambda world: world.isolated_near.add.send(1),
    "remote in a process here": lambda world: fetched(world.isolated_near.add.remote(1)),
    "stream from a process here": lambda world: listed(world.isolated_near.count(3)),
    "stream from a process there": lambda world: listed(world.isolated_far.count(3)),
    "pool": lambda world: world.node.pool("late-pool", Adder, size=1),
    "pool that there is": lambda world: world.node.pool("pool", Adder, size=2),
    "pool without a name": lambda world: world.node.pool(None, Adder, size=1),
    "lookup of a pool": lambda world: world.node.lookup_pool("pool", Adder),
    "lookup of an unknown pool": lambda world: world.node.lookup_pool("no-pool", Adder),
    "pool journals": lambda world: world.node.pool_journals(),
    "remove a pool journal": lambda world: world.node.remove_pool_journal("nothing"),
    "remove a journal": lambda world: world.pool.remove_journal("nothing"),
    "pool members": at_once(lambda world: world.pool.members()),
    "pool ready": lambda world: world.pool.ready(),
    "map": lambda world: listed(world.pool.map(Adder.add, [1, 2])),
    "map of nothing": lambda world: listed(world.pool.map(Adder.add, [])),
    "map as they come": lambda world: listed(world.pool.map(Adder.add, [1], ordered=False)),
    "map with kept results": lambda world: listed(world.pool.map(Adder.add, [1], keep=True)),
    "starmap": lambda world: listed(world.pool.starmap(Adder.add, [(1,), (2,)])),
    "submit": lambda world: fetched(world.pool.submit(Adder.add, 1)),
    "call all of a pool": lambda world: world.pool.call_all(Adder.read),
    "choose of a pool": lambda world: world.pool.choose().read(),
}


AFTER_THE_BLOCK: dict[str, Operation] = {
    "resize": lambda world: world.pool.resize(2),
    "stop a pool": lambda world: world.pool.stop(),
}
"""What else is asked of a node that has left. Before, the first waits for a named actor, which
pauses without a store, and the second ends what the others need.
"""


WAITING: dict[str, Operation] = {
    "wait ended": lambda world: world.node.wait_ended(world.far),
    "wait ended by name": lambda world: world.node.wait_ended(world.named_near),
    "wait for more nodes": lambda world: world.node.wait_for(99),
    "wait gone": lambda world: world.node.wait_gone(world.other.name),
    "watch members": lambda world: listed(world.node.watch_members()),
    "watch a group": lambda world: listed(world.group.watch()),
    "call that rests here": lambda world: world.near.rest(),
    "call that rests there": lambda world: world.far.rest(),
    "fetch of what is not there yet": lambda world: world.pending.fetch(),
    "wait all of what is not there yet": lambda world: wait_all([world.pending]),
    "call that rests in a process": lambda world: world.isolated_near.rest(),
    "pool ready with more members": lambda world: world.pool.ready(99),
    "map that rests": lambda world: listed(world.pool.map(Adder.rest_with, [1, 2])),
    "call all that rests": lambda world: world.pool.call_all(Adder.rest),
}
"""What waits for something to happen in the cluster, for as long as that takes."""


async def a_world(node: Node, other: Node) -> World:
    """Actors, references and a group on two nodes that see each other."""
    await node.wait_for(2)
    await other.wait_for(2)
    giver = await node.lookup((await other.options(name="giver").spawn(Giver)).name, Giver)
    far = await giver.an_adder()
    await other.options(name="named-far").spawn(Adder)
    await other.options(name="supervisor").spawn(Supervisor, [])
    await other.spawn(Joining)
    group = node.group("adders", Adder)
    async for found in group.watch():
        if found:
            break
    isolated = node.options(isolation="process")
    return World(
        node=node,
        other=other,
        near=await node.spawn(Adder),
        far=far,
        named_near=await node.options(name="named-near").spawn(Adder),
        named_far=await node.lookup("named-far", Adder),
        isolated_near=await isolated.spawn(Adder),
        isolated_far=await isolated.options(on=other.name).spawn(Adder),
        pool=await node.pool("pool", Adder, size=2),
        supervisor=await node.lookup("supervisor", Supervisor),
        group=group,
        own=await node.put([1, 2, 3]),
        borrowed=await giver.a_value(),
        pending=await far.rest.remote(),
    )


class Giver(Actor):
    """Gives what is its node's."""

    @method
    async def an_adder(self) -> Adder:
        """One without a name."""
        return await self.node.spawn(Adder)

    @method
    async def a_value(self) -> Any:
        """A reference to one."""
        return await self.node.put([1, 2, 3])


class Joining(Adder):
    """A member of the group."""

    async def on_start(self) -> None:
        """Join it."""
        await self.join("adders")


async def outcomes(
    world: World, operations: dict[str, Operation], seconds: float
) -> dict[str, object]:
    """What each of them ends with, all at once; "nothing" for what has not ended in time."""
    found: dict[str, object] = {}

    async def run(name: str, one: Operation) -> None:
        with trio.move_on_after(seconds) as patience:
            try:
                found[name] = await one(world)
            except Exception as error:
                found[name] = error
        if patience.cancelled_caught:
            found[name] = "nothing"

    async with trio.open_nursery() as nursery:
        for name, one in operations.items():
            nursery.start_soon(run, name, one)
    return found


def not_allowed(found: dict[str, object]) -> list[str]:
    """Those that did not end, or with something that is not documented."""
    wrong = []
    for name, outcome in found.items():
        starts = "spawn" in name or name == "singleton" or name.startswith("pool")
        allowed = (CallError, SpawnError) if starts else CallError
        if outcome == "nothing" or (
            isinstance(outcome, BaseException) and not isinstance(outcome, allowed)
        ):
            wrong.append(f"{name}: {outcome!r}")
    return wrong


COMMANDS = [
    ["call", "--timeout", "3", "named-far", "read"],
    ["call", "--timeout", "3", "nobody", "read"],
    ["status"],
    ["tree"],
    ["refs"],
    ["stop", "--actor", "named-far"],
    ["stop", "nobody"],
]


async def commands(address: str, place: Path) -> list[str]:
    """What is wrong with the ends of the commands, all at once: each ends in time, and says what it
    could not do in one line.
    """
    secret = place / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    wrong = []

    async def run(words: list[str]) -> None:
        line = [*UNDERSTUDY, words[0], "--address", address, "--secret-file", str(secret)]
        with trio.move_on_after(COMMAND_IN_TIME) as patience:
            done = await trio.run_process(
                [*line, *words[1:]], check=False, capture_stdout=True, capture_stderr=True
            )
        if patience.cancelled_caught:
            wrong.append(f"{words}: nothing")
            return
        said = done.stderr.decode().splitlines()
        if (
            done.returncode not in (0, 1)
            or len(said) > 1
            or any("should not happen" in text for text in said)
        ):
            wrong.append(f"{words}: {done.returncode} {said}")

    async with trio.open_nursery() as nursery:
        for words in COMMANDS:
            nursery.start_soon(run, words)
    return wrong


@needs_etcd
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["silent", pytest.param("refusing", marks=pytest.mark.long)])
async def test_while_the_store_is_away_every_operation_ends_in_time_with_a_documented_outcome(
    how: str, tmp_path: Path
) -> None:
    with trio.fail_after(150):
        async with (
            open_etcd() as etcd,
            open_node("other", store=etcd.address, secret=SECRET, platform=impatient()) as other,
            open_node("node", store=etcd.address, secret=SECRET, platform=impatient()) as node,
        ):
            world = await a_world(node, other)
            if how == "silent":
                etcd.pause()
            else:
                etcd.kill()
            found = await outcomes(world, OPERATIONS, IN_TIME)
            wrong = not_allowed(found) + await commands(node.address, tmp_path)
            # Only now: a process that is stopped does not end either.
            etcd.kill()
    assert "\n".join(wrong) == ""


@attrs.define(eq=False)
class Opened:
    """A node in a task of its own, so that each can be closed before or after any other."""

    node: Node
    leaves: trio.Event = attrs.field(factory=trio.Event)
    left: trio.Event = attrs.field(factory=trio.Event)

    async def close(self) -> None:
        """Let its block end."""
        self.leaves.set()
        await self.left.wait()


async def opened(nursery: trio.Nursery, name: str, join: Opened | None = None) -> Opened:
    """Open a node, to be closed whenever that is wanted."""

    async def live(task_status: trio.TaskStatus[Opened]) -> None:  # noqa: ASYNC114 (it is a startable function, used right below)
        async with open_node(
            name,
            join=join.node.address if join is not None else None,
            secret=SECRET,
            platform=impatient(),
        ) as node:
            one = Opened(node)
            task_status.started(one)
            await one.leaves.wait()
        one.left.set()

    found: Opened = await nursery.start(live)
    return found


@pytest.mark.parametrize("which", ["founder", "member"])
async def test_a_node_whose_block_has_ended_says_so_at_once_whatever_it_is_asked(
    which: str,
) -> None:
    under_way: dict[str, object] = {}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            if which == "founder":
                closing = await opened(nursery, "node")
                other = await opened(nursery, "other", closing)
            else:
                other = await opened(nursery, "other")
                closing = await opened(nursery, "node", other)
            world = await a_world(closing.node, other.node)
            # Made before the end, and read after it.
            results = world.pool.map(Adder.add, [1, 2])

            async def run_until_closed() -> None:
                under_way.update(await outcomes(world, WAITING, 20.0))

            async with trio.open_nursery() as waiting_ones:
                waiting_ones.start_soon(run_until_closed)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await closing.close()
            made: dict[str, Operation] = {"map made before": lambda world: listed(results)}
            found = await outcomes(world, OPERATIONS | WAITING | AFTER_THE_BLOCK | made, AT_ONCE)
            await other.close()
    wrong = [
        f"{name}: {outcome!r}"
        for name, outcome in found.items()
        if not isinstance(outcome, NotAMemberError)
    ]
    wrong += [f"under way: {line}" for line in not_allowed(under_way)]
    assert "\n".join(wrong) == ""


async def test_every_operation_without_a_store_has_a_documented_outcome() -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            founder = await opened(nursery, "founder")
            other, node = (
                await opened(nursery, "other", founder),
                await opened(nursery, "node", founder),
            )
            world = await a_world(node.node, other.node)
            await founder.close()
            found = await outcomes(world, OPERATIONS, IN_TIME)
            await node.close()
            await other.close()
    assert "\n".join(not_allowed(found)) == ""


@needs_etcd
@pytest.mark.slow
@pytest.mark.cluster
async def test_a_local_cluster_says_why_no_node_joins_and_that_it_is_over() -> None:
    with trio.fail_after(60):
        async with open_etcd() as etcd:
            # It takes longer than the lease of the driver, which the block says at its end.
            with pytest.raises(LeaseLostError):  # noqa: PT012  the block's end raises it
                async with open_local_cluster(1, store=etcd.address) as cluster:
                    etcd.pause()
                    with pytest.raises(
                        JoinError, match="node worker-2 did not join: no member of the etcd"
                    ) as caught:
                        await cluster.start_node()
                    assert len(str(caught.value).splitlines()) == 1
                    etcd.resume()
                    # The node asks for its lease at intervals: a block that ends between two of
                    # them would leave in order, without having heard that the lease is lost.
                    await cluster.node.asked_to_leave.wait()
            with pytest.raises(NotAMemberError):
                await cluster.start_node()
            process = cluster.process("worker-1")
            for act in (process.kill, process.pause, process.resume):
                act()
            assert await process.leave() == await process.wait()
