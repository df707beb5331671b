"""Local clusters of real processes: started, killed, left, and gone afterwards."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import (
    ChildSpec,
    DynamicSupervisor,
    NotExecutedError,
    OutcomeUnknownError,
    RetryPolicy,
    SpawnOptions,
    Supervisor,
)
from actors.errors import (
    ActorNotFoundError,
    NodeDiedError,
    NodeNotFoundError,
    NodeUnreachableError,
)
from runtime import LocalCluster, cluster_processes, open_local_cluster, open_node
from runtime.announcements import local_cluster_at
from runtime.environment import SystemEnvironment, process_start
from runtime.links.transports import SocketConnection
from runtime.node import internals_of
from runtime.processes import ChildProcess, ForkServer
from runtime.references.owned_values import OwnedValues
from runtime.supervision.placement import CALLS_ONLY
from tests.cluster.actors_used import Ledger, Sleeper, Stubborn, Teller
from tests.waiting import until

pytestmark = pytest.mark.cluster

SIZE = 8 * 1024
"""Characters of an answer: more than all other frames together."""


def check_ended(pids: list[int]) -> None:
    assert [pid for pid in pids if process_start(pid)] == []


async def test_an_open_cluster_has_all_nodes_and_a_closed_one_no_process() -> None:
    async with open_local_cluster(nodes=4) as cluster:
        names = [member.name for member in cluster.node.members()]
        pids = [process.pid for process in cluster.processes.values()]
        assert names == ["driver", "worker-1", "worker-2", "worker-3", "worker-4"]
        assert len(set(pids)) == 4
    check_ended(pids)


async def test_what_its_node_does_is_not_asked_of_a_cluster_on_trio() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        for name in ("spawn", "lookup", "options"):
            with pytest.raises(AttributeError, match=rf"write cluster\.node\.{name}$"):
                getattr(cluster, name)
        for name in ("spwan", "__no_such_name__"):
            with pytest.raises(AttributeError, match=rf"no attribute '{name}'$"):
                getattr(cluster, name)


async def test_nodes_beyond_what_may_start_at_once_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_processes, "STARTING_AT_ONCE", 1)
    began: list[tuple[str, int]] = []
    opened: list[LocalCluster] = []
    start = ForkServer.start

    async def noted(server: ForkServer, function: str, argument: bytes, name: str) -> ChildProcess:
        began.append((name, len(opened[0].processes)))
        return await start(server, function, argument, name)

    monkeypatch.setattr(ForkServer, "start", noted)
    async with open_local_cluster(nodes=0) as cluster:
        opened.append(cluster)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(cluster.start_node)
        # Each began when the one before had joined.
        assert [joined for _, joined in began] == [0, 1, 2]
        assert len(cluster.node.members()) == 4


async def test_a_running_call_whose_process_is_killed_has_an_unknown_outcome() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        ledger = await cluster.node.options(name="ledger", on="worker-1").spawn(Ledger)
        with trio.fail_after(60), pytest.raises(NodeDiedError) as caught:
            await ledger.die_in_the_middle()
        assert isinstance(caught.value, OutcomeUnknownError)
        assert caught.value.node == "worker-1"
        with trio.fail_after(60), pytest.raises(ActorNotFoundError):
            await ledger.read()


class LateReads:
    """Keeps what this process reads of its links from them, and their ends, while `held`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = False
        self.read = 0
        """Bytes that were kept back."""
        self.go_on = trio.Event()
        receive = SocketConnection.receive

        async def late(connection: SocketConnection) -> bytes:
            kept = b""
            while True:  # noqa: ASYNC913  each turn waits for the socket
                try:
                    data = await receive(connection)
                except OSError:
                    data = b""
                if not self.held:
                    return kept + data
                kept += data
                self.read += len(data)
                if not data:
                    await self.go_on.wait()
                    return kept

        monkeypatch.setattr(SocketConnection, "receive", late)
        monkeypatch.setattr(SocketConnection, "let_others_receive", lambda *given: None)


@pytest.mark.parametrize("end", ["kill", "leave"])
async def test_a_call_after_the_wait_for_the_end_of_a_process_is_not_sent_there(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its outcome would be unknown. What the process has answered before its end is not lost."""
    late = LateReads(monkeypatch)
    async with open_local_cluster(nodes=1) as cluster:
        process = cluster.process("worker-1")
        ledger = await cluster.node.options(name="ledger", on="worker-1").spawn(Ledger)
        sleeper = await cluster.node.options(on="worker-1").spawn(Sleeper)
        answers: list[str] = []
        returned = trio.Event()

        async def ask() -> None:
            answers.append(await sleeper.answer(SIZE))

        async def wait() -> None:
            await (process.wait() if end == "kill" else process.leave())
            returned.set()

        async with trio.open_nursery() as nursery:
            if end == "kill":
                late.held = True
                nursery.start_soon(ask)
                await until(lambda: late.read > SIZE, "the answer has come")
                process.kill()
            nursery.start_soon(wait)
            await until(lambda: not process.running, "it has ended")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert returned.is_set() == (end == "leave")
            late.go_on.set()
            await returned.wait()
            with pytest.raises(NotExecutedError):
                await ledger.add(1)
        assert answers == (["a" * SIZE] if end == "kill" else [])


async def test_the_wait_for_the_end_of_a_process_ends_whatever_its_connections_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = LateReads(monkeypatch)
    async with open_local_cluster(nodes=2) as cluster:
        process, other = cluster.process("worker-1"), cluster.process("worker-2")
        await (await cluster.node.options(on="worker-1").spawn(Sleeper)).sleep(0)
        late.held = True
        process.kill()
        with trio.fail_after(60):
            await process.wait()
        late.go_on.set()
        late.held = False
    with trio.fail_after(60):
        # There is no node any more that would see its end.
        await other.wait()
        await process.wait()


async def test_a_node_that_leaves_finishes_the_calls_it_has_and_refuses_later_ones() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        sleeper = await cluster.node.options(name="sleeper", on="worker-1").spawn(Sleeper)
        answers: list[str] = []

        async def ask() -> None:
            answers.append(await sleeper.sleep(0.3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await sleeper.sleep(0)
            status = await cluster.process("worker-1").leave()
        assert answers == ["worker-1"]
        assert status.code == 0
        with trio.fail_after(60), pytest.raises(NotExecutedError):
            await sleeper.sleep(0)


async def test_values_that_are_held_are_not_moved_when_the_whole_cluster_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved, lines = 0, list[str]()
    real = OwnedValues.adopt

    async def adopt(self: OwnedValues, *args: Any) -> Any:
        nonlocal moved
        moved += 1
        return await real(self, *args)

    monkeypatch.setattr(OwnedValues, "adopt", adopt)
    async with open_local_cluster(
        nodes=1, on_line=lambda name, line: lines.append(line)
    ) as cluster:
        teller = await cluster.node.options(on="worker-1").spawn(Teller)
        held = [await teller.tell.remote(number) for number in range(200)]
        assert await held[-1].fetch() == 199
    # Those that the worker moved before it saw that all leave.
    assert moved < 20
    assert lines == []


async def test_supervised_actors_end_in_silence_when_the_whole_cluster_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = list[str]()
    async with open_local_cluster(
        nodes=3, on_line=lambda name, line: lines.append(line)
    ) as cluster:
        node = cluster.node
        for number in range(12):
            # Each on one worker, with children on others: whatever leaves first, some supervisor
            # sees it, and has no node left for its child.
            await node.options(on=f"worker-{1 + number % 3}").spawn(
                Supervisor, [ChildSpec(id=f"child-{other}", actor=Teller) for other in range(3)]
            )
        dynamic = await node.options(on="worker-2").spawn(DynamicSupervisor)
        for number in range(8):
            # Some of them run on the founding node, which stops its actors first.
            on = SpawnOptions(on="driver" if number % 2 else None)
            await dynamic.start_child(ChildSpec(id=f"added-{number}", actor=Teller, options=on))
    assert lines == []
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_pool_that_a_client_has_opened_ends_in_silence_with_the_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its supervisor has just moved from the client to the founding node when that stops its
    actors, and moves on to a worker, which leaves next.
    """
    lines = list[str]()
    async with (
        open_local_cluster(nodes=1, on_line=lambda name, line: lines.append(line)) as cluster,
        open_node(
            "caller",
            join=cluster.node.address,
            cluster=cluster.node.cluster,
            secret=list(internals_of(cluster.node).keyring.secrets()),
            labels={CALLS_ONLY: "true"},
        ) as caller,
    ):
        await caller.pool("pool", Teller, size=1)
    assert lines == []
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_node_that_is_not_there_is_named_in_the_error() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        with pytest.raises(NodeNotFoundError, match="worker-9"):
            await cluster.node.options(on="worker-9").spawn(Ledger)


async def test_a_paused_node_does_not_leave_and_says_so() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        process, other = cluster.process("worker-1"), cluster.process("worker-2")
        process.pause()
        with pytest.raises(NodeUnreachableError, match=r"it is paused.*`resume`.*`kill`"):
            await process.leave()
        process.resume()
        # Stopped by another process.
        os.kill(other.pid, signal.SIGSTOP)
        await _wait_stopped(other.pid)
        with pytest.raises(NodeUnreachableError, match="it is paused"):
            await other.leave()
        os.kill(other.pid, signal.SIGCONT)
        assert (await other.leave()).code == 0
        # It was not asked while it was paused.
        assert process.running
        process.pause()
    # The end of the block does not wait for what cannot leave.
    assert not process.running


async def test_a_paused_node_answers_when_it_goes_on() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        sleeper = await cluster.node.options(on="worker-1").spawn(Sleeper)
        process = cluster.process("worker-1")
        process.pause()
        await _wait_stopped(process.pid)
        answered = trio.Event()

        async def ask() -> None:
            await sleeper.sleep(0)
            answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.move_on_after(0.2):
                await answered.wait()
            assert not answered.is_set()
            process.resume()
            with trio.fail_after(60):
                await answered.wait()


@pytest.mark.slow
async def test_a_node_paused_for_longer_than_its_lease_is_replaced_and_exits_with_1() -> None:
    lines: list[tuple[str, str]] = []
    async with open_local_cluster(
        nodes=0, on_line=lambda name, line: lines.append((name, line))
    ) as cluster:
        for name in ("left", "right"):
            await cluster.start_node(name, labels={"role": "ledger"})
        spec = ChildSpec(
            id="ledger",
            actor=Ledger,
            options=SpawnOptions(name="ledger", labels={"role": "ledger"}),
        )
        await cluster.node.options(name="tree").spawn(Supervisor, [spec])
        ledger = await cluster.node.lookup("ledger", Ledger)
        assert await ledger.add(1) == 1
        home, epoch = await ledger.where()
        process = cluster.process(home)
        process.pause()
        await _wait_stopped(process.pid)
        with trio.fail_after(60):
            elsewhere, later_epoch = await ledger.where.options(
                retry=RetryPolicy(max_retries=20, initial_delay=0.1)
            )()
            assert elsewhere != home
            assert later_epoch > epoch
            assert await ledger.add(1) == 2
            process.resume()
            # It finds its lease gone, answers nobody for the name any more, leaves, and says why.
            status = await process.wait()
            assert status.code == 1
            assert any(
                name == home and f"the cluster counts node {home} as dead: its lease" in line
                for name, line in lines
            )
            assert await ledger.where() == (elsewhere, later_epoch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]
)
async def test_every_call_ends_and_nothing_saved_is_lost_while_processes_are_killed_at_random(
    seed: int,
) -> None:
    """Callers add to supervised ledgers whose processes are killed; a sum may exceed what was
    acknowledged, never fall short of it.
    """
    draw = random.Random(seed)
    acknowledged = {"a": 0, "b": 0}
    unknown = {"a": 0, "b": 0}
    async with open_local_cluster(nodes=3) as cluster:
        options = [SpawnOptions(name=name, labels={"role": "ledger"}) for name in acknowledged]
        for _ in range(2):
            await cluster.start_node(f"ledger-{_}", labels={"role": "ledger"})
        specs = [ChildSpec(id=str(option.name), actor=Ledger, options=option) for option in options]
        await cluster.node.options(name="tree").spawn(Supervisor, specs, intensity=100)
        ledgers = {name: await cluster.node.lookup(name, Ledger) for name in acknowledged}
        stop = trio.Event()

        async def call(name: str) -> None:
            while not stop.is_set():
                try:
                    with trio.fail_after(60):
                        await ledgers[name].add(1)
                except OutcomeUnknownError:
                    unknown[name] += 1
                except NotExecutedError:
                    await trio.sleep(0.01)
                else:
                    acknowledged[name] += 1

        with trio.fail_after(45):
            async with trio.open_nursery() as nursery:
                for name in acknowledged:
                    for _ in range(4):
                        nursery.start_soon(call, name)
                for number in range(6):
                    await trio.sleep(draw.uniform(0.05, 0.3))
                    node, _epoch = await ledgers[draw.choice(sorted(acknowledged))].where()
                    await cluster.start_node(f"fresh-{number}", labels={"role": "ledger"})
                    cluster.process(node).kill()
                await trio.sleep(0.2)
                stop.set()
            for name, ledger in ledgers.items():
                total = await ledger.read()
                assert acknowledged[name] <= total <= acknowledged[name] + unknown[name], (
                    f"seed {seed}"
                )
        assert sum(unknown.values()) > 0 or sum(acknowledged.values()) > 100


PARENT = """
import sys, trio
from runtime import open_local_cluster
async def main():
    async with open_local_cluster(nodes=3) as cluster:
        print(*[process.pid for process in cluster.processes.values()], flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_parent_that_is_killed(
    tmp_path: Path, signum: signal.Signals
) -> None:
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert parent.stdout is not None
    pids = [int(text) for text in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.send_signal(signum)
    parent.wait()
    # What they print goes to the parent's output: its end is the end of the last of them.
    parent.stdout.read()
    parent.stdout.close()
    trio.run(_wait_ended, pids)
    check_ended(pids)


async def _wait_stopped(pid: int) -> None:
    await until(lambda: _state(pid) == "T", f"process {pid} is stopped", every=0.001)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _wait_ended(pids: list[int]) -> None:
    await until(
        lambda: [pid for pid in pids if process_start(pid)],
        "all have ended",
        lambda left: not left,
    )


async def test_a_process_that_was_killed_answers_no_further_call() -> None:
    async with open_local_cluster(nodes=4) as cluster:
        for process in cluster.processes.values():
            sleeper = await cluster.node.options(on=process.name).spawn(Sleeper)
            await sleeper.sleep(0)
            process.kill()
            assert process_start(process.pid) == ""
            with trio.fail_after(60), pytest.raises((NotExecutedError, OutcomeUnknownError)):
                await sleeper.sleep(0)
            process.kill()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("block_loop", "does not answer what runs there: its event loop may be blocked"),
        ("block_thread", "there runs stubborn.block_thread"),
        ("shield_itself", "there runs stubborn.shield_itself (/"),
        ("ignore_signals", "code there ignores SIGTERM"),
    ],
)
async def test_a_node_that_does_not_leave_is_named_with_what_runs_there_and_killed(
    how: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_local_cluster(nodes=2) as cluster:
        stubborn = await cluster.node.options(name="stubborn", on="worker-1").spawn(Stubborn)
        if how == "ignore_signals":
            await stubborn.ignore_signals()
        elif how == "shield_itself":
            # The call of it has ended, and it runs on.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stubborn.shield_itself)
                await until(stubborn.has_begun, "the method runs")
                nursery.cancel_scope.cancel()
        else:
            await getattr(stubborn, how).send()
    assert (await cluster.process("worker-1").wait()).signal == signal.SIGKILL
    assert (await cluster.process("worker-2").wait()).code == 0
    told = [
        record.getMessage() for record in caplog.records if "it is killed in" in record.getMessage()
    ]
    assert len(told) == 1
    assert "node worker-1 has not left the cluster 2 s after it was asked" in told[0]
    assert why in told[0]


async def test_programs_of_this_user_enter_by_the_address_of_any_node() -> None:
    environment = SystemEnvironment()
    async with open_local_cluster(nodes=1, cluster="shop") as cluster:
        started = await cluster.start_node("late")
        for name in ("driver", "worker-1", started.name):
            (member,) = (one for one in cluster.node.members() if one.name == name)
            address = member.addresses[0].removeprefix("tcp:")
            await until(partial(local_cluster_at, environment, address), "an announced address")
            async with open_node("script", join=address, cluster="shop") as script:
                assert len(script.members()) == 4
        port = cluster.address.rpartition(":")[2]
        for host in ("localhost", "[::1]"):
            found = local_cluster_at(environment, f"{host}:{port}", "shop")
            assert found is not None
            assert found.address == cluster.address
            assert local_cluster_at(environment, f"{host}:{port}", "other") is None
        assert local_cluster_at(environment, "no address") is None
        # Those that have left are not announced.
        await started.leave()
        await until(
            partial(local_cluster_at, environment, address),
            "no announcement",
            lambda one: one is None,
        )
    assert local_cluster_at(environment, cluster.address) is None
