"""What happens to an isolated actor happens to nobody else, and its end is told of as what
it was.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import trio
import trio.testing

from actors import Actor, ChildSpec, Supervisor
from actors.errors import ActorDiedError, ActorNotFoundError, ActorStartError, CallTimeoutError
from actors.supervision import ExitReason
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node, internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.isolation.actors_used import Counter, Victim
from tests.isolation.conftest import SECRET, is_running
from tests.limits import out_of_descriptors
from tests.waiting import until

pytestmark = pytest.mark.cluster

MEBIBYTE = 1024 * 1024
STOPPED = ExitReason("stopped", "the test asked for it")


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("segfault", "signal", "killed by SIGSEGV"),
        ("SIGABRT", "signal", "killed by SIGABRT"),
        ("SIGKILL", "signal", "killed by SIGKILL"),
        ("SIGTERM", "signal", "killed by SIGTERM"),
        ("exit", "exit code", "exited with code 3"),
        ("task", "raised", "ValueError: a task of its own"),
    ],
)
async def test_a_call_in_the_middle_of_the_end_of_its_process_ends_at_once_and_the_reason_is_known(
    node: Node, how: str, kind: str, text: str
) -> None:
    bystander = await node.options(isolation="process").spawn(Counter)
    victim = await node.options(name="victim", isolation="process").spawn(Victim)
    address = victim.address

    async def wait_behind() -> None:
        with pytest.raises(ActorNotFoundError):
            await victim.block_for(0)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_behind)
            with pytest.raises(ActorDiedError, match=text):
                await victim.suffer(how)
        reason = await internals_of(node).spawner.watch_address(address)
        assert (reason.kind, reason.text) == (kind, text)
        assert bool(reason.traceback) == (how == "task")
        assert "a task of its own" in reason.traceback or how != "task"
        with pytest.raises(ActorNotFoundError, match="victim"):
            await victim.pid()
        assert await bystander.add(1) == 1
        again = await node.options(name="victim", isolation="process").spawn(Victim)
        assert await again.block_for(0) == "back"


async def test_a_method_that_asks_its_process_to_exit_ends_as_it_would_without_isolation(
    node: Node,
) -> None:
    seen: list[tuple[str, str, str]] = []
    for isolation in ("none", "process"):
        victim = await node.options(isolation=isolation).spawn(Victim)
        with trio.fail_after(60):
            with pytest.raises(Exception, match="SystemExit: 4") as caught:
                await victim.suffer("sys.exit")
            reason = await internals_of(node).spawner.watch_address(victim.address)
        seen.append((type(caught.value).__name__, reason.kind, reason.text))
    assert seen[0] == seen[1]


async def test_a_blocked_loop_holds_up_nobody_else_and_its_actor_is_killed_when_it_is_stopped(
    node: Node,
) -> None:
    victim = await node.options(isolation="process").spawn(Victim)
    bystander = await node.options(isolation="process").spawn(Counter)
    pid = await victim.pid()
    with pytest.raises(CallTimeoutError), trio.fail_after(60):
        await victim.suffer.options(timeout=1.0)("block")
    assert await bystander.add(1) == 1
    with trio.fail_after(60):
        await internals_of(node).spawner.stop_address(victim.address, STOPPED, 0.3)
    assert not is_running(pid)


class StartsForever(Actor):
    """Waits in its start."""

    async def on_start(self) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("how", ["by its node", "by another node", "in a process"])
async def test_the_stacks_of_an_actor_that_starts_show_where_its_start_waits(
    node: Node, how: str
) -> None:
    inspection = inspection_of(internals_of(node).endpoint, node.name, node.incarnation)

    async def shown() -> dict[str, Any]:
        try:
            stacks: dict[str, Any] = await inspection.stacks("slow")
        except ActorNotFoundError:
            return {}
        return stacks.get("process", {} if how == "in a process" else stacks)

    with trio.fail_after(60):
        async with (
            open_node("other", join=node.address, secret=SECRET) as other,
            trio.open_nursery() as nursery,
        ):
            spawner = (other if how == "by another node" else node).options(name="slow", on="alone")
            if how == "in a process":
                spawner = spawner.options(isolation="process")
            nursery.start_soon(spawner.spawn, StartsForever)
            await until(
                shown,
                "the line of its start is shown",
                lambda stacks: "await trio.sleep_forever()" in str(stacks),
                seconds=10,
            )
            found = await shown()
            assert "silent" not in found
            # No task of the runtime is shown as the actor's, but for that which waits for its
            # process.
            assert [(one["actor"], one["method"]) for one in found["tasks"]] == [
                ("slow", "on_start")
            ]
            nursery.cancel_scope.cancel()


async def test_an_actor_whose_process_is_stopped_by_a_signal_can_be_stopped_or_goes_on(
    node: Node,
) -> None:
    victim = await node.options(isolation="process").spawn(Victim)
    pid = await victim.pid()
    with pytest.raises(CallTimeoutError), trio.fail_after(60):
        await victim.suffer.options(timeout=1.0)("SIGSTOP")
    inspection = inspection_of(internals_of(node).endpoint, node.name, node.incarnation)
    for shown in (await inspection.state(victim.name), await inspection.stacks(victim.name)):
        assert f"SIGSTOP; `kill -CONT {pid}` continues it" in str(shown)
    os.kill(pid, signal.SIGCONT)
    with trio.fail_after(60):
        assert await victim.pid() == pid
        os.kill(pid, signal.SIGSTOP)
        await internals_of(node).spawner.stop_address(victim.address, STOPPED, 0.3)
    assert not is_running(pid)


async def test_an_actor_that_closes_the_connection_of_its_process_goes_on_over_another(
    node: Node,
) -> None:
    victim = await node.options(isolation="process").spawn(Victim)
    pid = await victim.pid()
    with trio.fail_after(60):
        for _ in range(3):
            await victim.suffer("close the link")
            assert await victim.pid() == pid


async def test_a_process_that_cannot_be_reached_any_more_is_killed_and_its_actor_restarted() -> (
    None
):
    # The node keeps the session of a process without a connection for 1.5 s.
    timings = Timings(lease=30.0, client_leases=0.05)
    platform = Platform(environment=SystemEnvironment(timings))
    async with open_node("alone", secret=SECRET, platform=platform) as node:
        child = ChildSpec.of("victim", Victim).changed(isolation="process", name="victim")
        await node.spawn(Supervisor, [child])
        victim = await node.lookup("victim", Victim)
        with trio.fail_after(60):
            pid = await victim.pid()
            lost = "signal: its process has lost its connection to the node"
            with pytest.raises(ActorDiedError, match=lost):
                await victim.suffer("close the link and block")
            assert not is_running(pid)
            assert await victim.pid() != pid


async def test_a_process_that_is_stopped_keeps_its_connection_when_peers_prove_themselves_again(
    node: Node,
) -> None:
    victim = await node.options(isolation="process").spawn(Victim)
    pid = await victim.pid()
    peers = internals_of(node).endpoint.peers
    os.kill(pid, signal.SIGSTOP)
    try:
        peers.prove_again()
        await trio.testing.wait_all_tasks_blocked()
        assert all(link.connected for link in peers.links.values())
    finally:
        os.kill(pid, signal.SIGCONT)
    with trio.fail_after(60):
        assert await victim.pid() == pid


@pytest.mark.slow
async def test_a_process_that_is_busy_for_longer_than_any_silence_between_nodes_answers_in_the_end(
    node: Node,
) -> None:
    victim = await node.options(isolation="process").spawn(Victim)
    with trio.fail_after(60):
        assert await victim.block_for(9.0) == "back"
        assert await victim.block_for(0) == "back"


async def test_memory_beyond_the_limit_is_refused_in_the_process_and_nowhere_else(
    node: Node,
) -> None:
    victim = await node.options(isolation="process", memory_limit=1024 * MEBIBYTE).spawn(Victim)
    free = await node.options(isolation="process").spawn(Victim)
    with trio.fail_after(60):
        with pytest.raises(MemoryError):
            await victim.allocate(1024 * MEBIBYTE)
        assert await victim.allocate(MEBIBYTE) == MEBIBYTE
        assert await free.allocate(1024 * MEBIBYTE) == 1024 * MEBIBYTE


async def test_the_end_of_the_warm_process_ends_the_actors_and_later_ones_get_another(
    node: Node,
) -> None:
    victim = await node.options(isolation="process").spawn(Victim)
    warm = internals_of(node).isolation._server.pid  # type: ignore[attr-defined]
    with trio.fail_after(60):
        os.kill(warm, signal.SIGKILL)
        reason = await internals_of(node).spawner.watch_address(victim.address)
        assert reason.kind == "signal"
        while True:
            again = await node.options(isolation="process").spawn(Victim)
            if internals_of(node).isolation._server.pid != warm:  # type: ignore[attr-defined]
                break
        assert await again.block_for(0) == "back"


async def test_a_process_that_the_system_does_not_grant_costs_the_start(node: Node) -> None:
    with out_of_descriptors(), pytest.raises(ActorStartError, match=r"no further process.*ulimit"):
        await node.options(isolation="process").spawn(Counter)
    assert await (await node.options(isolation="process").spawn(Counter)).add(1) == 1
