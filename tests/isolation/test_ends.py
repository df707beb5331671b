"""No process outlives its actor or its node; an actor that loses its process gets another from its
supervisor.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from actors.errors import ActorDiedError, CallError, RemoteError
from runtime import open_local_cluster, open_node
from runtime.command_line import dashboard, gateway
from runtime.membership.cluster_secret import VARIABLE
from runtime.node import Node, internals_of
from runtime.processes import open_fork_server
from runtime.processes.inherited_environment import SECRET_VARIABLES
from runtime.simulation import Simulation, run_scenario
from tests.isolation.actors_used import Counter, Guest, Quitter, Starter, Victim
from tests.isolation.conftest import SECRET, is_running
from tests.waiting import until

pytestmark = pytest.mark.cluster

AT_A_TIME = 8


def living(marker: bytes) -> set[int]:
    """The processes that have `marker` in the environment that they were started with, and run."""
    found: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            marked = marker in (directory / "environ").read_bytes()
        except OSError:
            continue
        if marked and is_running(int(directory.name)):
            found.add(int(directory.name))
    return found


async def until_gone(pids: list[int]) -> None:
    await until(
        lambda: [pid for pid in pids if is_running(pid)], "all have ended", lambda left: not left
    )


async def test_calls_after_the_end_of_an_isolated_actor_name_it_as_its_callers_do() -> None:
    with trio.fail_after(60):
        async with open_node("alone", secret=SECRET) as node:
            for _ in range(6):
                victim = await node.options(isolation="process").spawn(Quitter)
                with pytest.raises(RemoteError, match="SystemExit"):
                    await anext(victim.quit())
                # The process ends meanwhile: it refuses the call, or has ended with it.
                with pytest.raises(CallError) as caught:
                    await victim.ping()
                assert "@resident" not in str(caught.value)
                assert "Quitter" in str(caught.value)


async def test_a_leaving_node_leaves_no_process_behind() -> None:
    with trio.fail_after(40):
        async with open_node("alone", secret=SECRET) as node:
            actors = [await node.options(isolation="process").spawn(Counter) for _ in range(3)]
            pids = [await actor.pid() for actor in actors]
            await until(lambda: internals_of(node).isolation._spares, "there is a spare process")  # type: ignore[attr-defined]
            pids += [spare.pid for spare in internals_of(node).isolation._spares]  # type: ignore[attr-defined]
            pids.append(internals_of(node).isolation._server.pid)  # type: ignore[attr-defined]
            assert all(map(is_running, pids))
            os.kill(pids[0], signal.SIGSTOP)
        assert not any(map(is_running, pids))


async def test_a_spare_process_that_is_killed_is_missed_by_nobody(node: Node) -> None:
    with trio.fail_after(60):
        for wait in (False, True):
            await node.options(isolation="process").spawn(Counter)
            await until(lambda: internals_of(node).isolation._spares, "there is a spare process")  # type: ignore[attr-defined]
            (spare,) = internals_of(node).isolation._spares  # type: ignore[attr-defined]
            os.kill(spare.pid, signal.SIGKILL)
            if wait:
                await until_gone([spare.pid])
            counter = await node.options(isolation="process").spawn(Counter, 3)
            assert await counter.add(1) == 4


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_subprocess_that_an_isolated_actor_has_started_ends_with_it(
    node: Node, how: str
) -> None:
    starter = await node.options(isolation="process").spawn(Starter)
    with trio.fail_after(60):
        pid, started = await starter.start()
        assert is_running(started)
        if how == "killed":
            os.kill(pid, signal.SIGKILL)
        else:
            await node.stop(starter)
        await until_gone([pid, started])


async def test_no_process_of_an_isolated_actor_inherits_the_secret_of_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {VARIABLE, dashboard.TOKEN_VARIABLE, gateway.TOKEN_VARIABLE} == SECRET_VARIABLES
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("UNDERSTUDY_SPIN", "off")
    async with open_node("alone") as node:
        starter = await node.options(isolation="process").spawn(Starter)
        with trio.fail_after(60):
            pid, started = await starter.start()
        assert started in living(b"UNDERSTUDY_SPIN=off"), "it inherits what the process has"
        server: int = internals_of(node).isolation._server.pid  # type: ignore[attr-defined]
        assert not living(SECRET.encode()) & {pid, started, server}


async def test_a_block_that_raises_leaves_no_process_behind() -> None:
    pids: list[int] = []
    with trio.fail_after(60):
        with pytest.raises(KeyError):  # noqa: PT012  the block is what is tested
            async with open_node("alone", secret=SECRET) as node:
                pids.append(await (await node.options(isolation="process").spawn(Counter)).pid())
                raise KeyError("of the user")
        assert not any(map(is_running, pids))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("parents", [8, pytest.param(200, marks=pytest.mark.long)])
async def test_parents_killed_at_any_moment_leave_no_orphan(
    parents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"UNDERSTUDY_TEST_MARK={os.urandom(8).hex()}"
    monkeypatch.setenv(*marker.split("="))
    draw = random.Random(parents)
    left = [parents]
    told = 0
    async with open_fork_server(preload=["tests.isolation.parents"]) as server:
        # This server, and the Python that is forked for it if no test before has started that.
        ours = living(marker.encode())

        async def kill_parents() -> None:
            nonlocal told
            while left[0] > 0:
                left[0] = number = left[0] - 1
                parent = await server.start(
                    "tests.isolation.parents:be_parent", b"", f"parent-{number}"
                )
                pids: list[int] = []
                with trio.move_on_after(0.5 * draw.random() if number % 2 else 30):
                    pids = cbor2.loads(await parent.ready())
                    assert all(map(is_running, pids))
                    told += 1
                parent.send_signal(signal.SIGKILL)
                assert (await parent.wait()).signal == signal.SIGKILL
                with trio.fail_after(60):
                    await until_gone(pids)

        async with trio.open_nursery() as nursery:
            for _ in range(AT_A_TIME):
                nursery.start_soon(kill_parents)
        assert told >= parents // 2
        await until(
            lambda: living(marker.encode()) - ours,
            "no process is left",
            lambda left: not left,
            every=0.02,
        )
        assert living(marker.encode()) - ours == set()


async def test_an_actor_whose_process_is_killed_is_started_again_by_its_supervisor_with_its_state(
    node: Node,
) -> None:
    spec = ChildSpec(
        id="guest", actor=Guest, options=SpawnOptions(name="guest", isolation="process")
    )
    await node.options(name="supervisor").spawn(Supervisor, [spec], intensity=100)
    guest = await node.lookup("guest", Guest)
    pids: set[int] = set()
    with trio.fail_after(60):
        for number in range(5):
            *_, epoch, _, pid = await guest.itself()
            assert pid not in pids
            pids.add(pid)
            await guest.remember(number)
            os.kill(pid, signal.SIGKILL)
            while True:
                try:
                    if (await guest.itself())[3] > epoch:
                        break
                except ActorDiedError:
                    continue
            assert await guest.remembered() == number


async def test_isolated_children_that_fail_too_often_end_their_supervisor(node: Node) -> None:
    spec = ChildSpec.of("victim", Victim).changed(isolation="process")
    supervisor = await node.options(name="supervisor").spawn(
        Supervisor, [spec], intensity=1, period=60.0
    )
    victim = await node.lookup("supervisor/victim", Victim)
    with trio.fail_after(60):
        for _ in range(2):
            with pytest.raises(ActorDiedError):
                await victim.suffer("segfault")
        reason = await internals_of(node).spawner.watch_address(supervisor.address)
        assert reason.kind == "shutdown"


@pytest.mark.parametrize(
    ("how", "isolation"),
    [
        ("exit 0", "process"),
        ("sys.exit 0", "process"),
        ("sys.exit 0", "none"),
        ("sys.exit False", "process"),
        ("sys.exit False", "none"),
    ],
)
async def test_an_exit_with_0_is_a_normal_end_for_a_transient_child(
    node: Node, how: str, isolation: Any
) -> None:
    spec = ChildSpec.of("victim", Victim).changed(restart="transient", isolation=isolation)
    await node.options(name="supervisor").spawn(Supervisor, [spec], intensity=100)
    victim = await node.lookup("supervisor/victim", Victim)
    with trio.fail_after(60):
        first = victim.address
        with pytest.raises(CallError):
            await victim.suffer("exit" if isolation == "process" else "sys.exit")
        assert (await internals_of(node).spawner.watch_address(first)).kind != "normal"
        again = await node.lookup("supervisor/victim", Victim)
        assert again.address.epoch > first.epoch
        with pytest.raises(CallError):
            await again.suffer(how)
        reason = await internals_of(node).spawner.watch_address(again.address)
        assert (reason.kind, reason.text) == ("normal", "it exited with code 0")
        # No other start of it is on its way: the supervisor itself says so.
        supervisor = await node.lookup("supervisor", Supervisor)
        await until(
            supervisor.count, "nothing is active", lambda count: not count.active, every=0.01
        )
        assert (await supervisor.count()).active == 0


@pytest.mark.slow
async def test_a_process_ends_when_its_node_is_not_heard_of_for_longer_than_a_lease() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        counter = await cluster.node.options(on="worker-1", isolation="process").spawn(Counter)
        pid = await counter.pid()
        cluster.process("worker-1").pause()
        with trio.fail_after(60):
            await until_gone([pid])
        cluster.process("worker-1").kill()


async def in_simulation(simulation: Simulation) -> None:
    options = simulation.node.options(
        on="node-1", name="isolated", isolation="process", memory_limit=10_000_000
    )
    counter = await options.spawn(Counter, 1)
    assert await counter.pid() == os.getpid()


def test_a_simulated_node_runs_isolated_actors_in_itself() -> None:
    run_scenario(in_simulation, seed=1, faults=())
