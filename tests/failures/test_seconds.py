"""What callers see, and after how many seconds, when machines, networks and clocks fail: on a
virtual clock, from outside, as docs/failures/index.md says it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, SpawnOptions, Supervisor, method
from actors.errors import (
    CallTimeoutError,
    DeadlineExceededError,
    DirectoryUnavailableError,
    NodeDiedError,
)
from runtime import Node, open_node
from runtime.isolation import WithoutProcesses
from runtime.node import internals_of
from runtime.node.opening import Platform
from runtime.simulation.cluster import CLUSTER, PORT, SECRET, SimulatedEnvironment
from runtime.testing import VirtualCluster, VirtualFaults
from runtime.timings import Timings

TIMINGS = Timings()

MARGIN = 0.5
"""Of the seconds below: a look of the store, the way to the caller."""


class Register(Actor):
    """Counts, waits, and notes when a wait was cancelled."""

    def __init__(self) -> None:
        self.value = 0
        self.cancelled: list[float] = []

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(concurrent=True)
    async def wait(self, seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled.append(trio.current_time())
            raise

    @method(concurrent=True, idempotent=True)
    async def cancellations(self) -> list[float]:
        return self.cancelled

    @method(idempotent=True)
    async def where(self) -> str:
        return self.node.name


@pytest.mark.parametrize("moment", [0.0, 0.6, 1.2])
async def test_the_callers_of_a_machine_that_disappears_learn_it_after_a_lease(
    cluster: VirtualCluster, faults: VirtualFaults, moment: float
) -> None:
    """No reset, no proof: as when the power fails. The last renewal is up to `renew_every` old."""
    register = await cluster.options(on="worker-1").spawn(Register)
    await register.add(1)
    # At different times since the last renewal.
    await trio.sleep(2 + moment)
    began = cluster.now()
    faults.cut("worker-1")
    with pytest.raises(NodeDiedError) as caught:
        await register.wait(100)
    assert caught.value.outcome == "unknown"
    took = cluster.now() - began
    assert TIMINGS.lease - TIMINGS.renew_every <= took <= TIMINGS.lease + MARGIN


async def test_a_supervised_actor_of_a_machine_that_disappears_answers_elsewhere(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    spec = ChildSpec(id="register", actor=Register, options=SpawnOptions(name="register"))
    await cluster.options(name="supervisor", on="driver").spawn(Supervisor, [spec])
    register = await cluster.lookup("register", Register)
    before = await register.where()
    await trio.sleep(3)
    began = cluster.now()
    faults.cut(before)
    patient = RetryPolicy(max_retries=1, initial_delay=0.1)
    assert await register.where.options(retry=patient)() != before
    took = cluster.now() - began
    assert TIMINGS.lease - TIMINGS.renew_every <= took <= TIMINGS.lease + 2 * MARGIN


async def test_two_nodes_that_cannot_reach_each_other_but_the_store_wait_for_each_other(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    """Neither is dead for the cluster, however long it takes."""
    await cluster.options(name="register", on="worker-2").spawn(Register)

    async def call(node: Node) -> None:
        register = await node.lookup("register", Register)
        assert await register.add(1) == 1
        faults.cut("worker-1", "worker-2")
        # The connection is not known to be broken yet: the request may have gone out on it.
        with pytest.raises(CallTimeoutError):
            await register.add.options(timeout=1.0)(1)
        await trio.sleep(TIMINGS.silence)
        assert node.unreachable() == ("worker-2",)
        with pytest.raises(DeadlineExceededError):
            await register.add.options(timeout=1.0)(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_network, register)
            await trio.sleep(6 * TIMINGS.lease)
            assert [member.name for member in node.members()].count("worker-2") == 1
            faults.heal()

    async def wait_for_the_network(register: Register) -> None:
        began = cluster.now()
        # The call that timed out above had gone out: it was cancelled, or it has run.
        assert await register.add(1) in (2, 3)
        assert cluster.now() - began >= 6 * TIMINGS.lease

    await cluster.run_on("worker-1", call)


async def test_the_calls_of_a_caller_that_disappears_are_cancelled_after_a_lease(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(name="register", on="worker-1").spawn(Register)

    async def call(node: Node) -> None:
        await (await node.lookup("register", Register)).wait(100)

    async def call_from_the_lost() -> None:
        await cluster.run_on("worker-2", call)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_from_the_lost)
        await trio.sleep(3)
        began = cluster.now()
        faults.cut("worker-2")
        await trio.sleep(2 * TIMINGS.lease)
        [cancelled] = await register.cancellations()
        took = cancelled - began
        assert TIMINGS.lease - TIMINGS.renew_every <= took <= TIMINGS.lease + MARGIN
        nursery.cancel_scope.cancel()


async def test_what_a_killed_client_leaves_ends_after_its_patience(
    cluster: VirtualCluster,
) -> None:
    register = await cluster.options(name="register", on="worker-1").spawn(Register)

    async def call(node: Node) -> None:
        process = CLUSTER.get().machines[node.name].process
        assert process is not None
        platform = Platform(
            environment=process.environment, network=process.network, isolation=WithoutProcesses
        )
        async with open_node(
            join=f"worker-1:{PORT}",
            cluster="simulated",
            secret=SECRET,
            role="client",
            platform=platform,
        ) as client:
            theirs = await client.lookup("register", Register)
            kept = await theirs.where.remote()
            assert await kept.fetch() == "worker-1"
            await theirs.wait(100)

    simulated = CLUSTER.get()
    simulated.start_on("worker-2", call)
    await trio.sleep(3)
    began = cluster.now()
    simulated.crash("worker-2")
    owner = simulated.live("worker-1")
    assert owner is not None
    await trio.sleep(TIMINGS.client_patience + MARGIN)
    [cancelled] = await register.cancellations()
    assert cancelled - began >= TIMINGS.client_patience - MARGIN
    await trio.sleep(TIMINGS.departed - 2 * MARGIN)
    assert len(internals_of(owner).references) == 1
    await trio.sleep(2 * MARGIN)
    assert len(internals_of(owner).references) == 0


async def test_a_lookup_ends_when_the_store_is_silent(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(on="worker-1").spawn(Register)
    with faults.silence_store():
        began = cluster.now()
        with pytest.raises(DirectoryUnavailableError):
            await cluster.lookup("register", Register)
        assert cluster.now() - began == pytest.approx(TIMINGS.store_call, abs=MARGIN)
        # What has no name goes on, without the store.
        assert await register.add(1) == 1


async def test_a_clock_on_the_wall_that_leaps_ends_nothing(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes count on monotonic clocks only: by a day forth or back, no lease ends, no call."""

    def leaping(self: Any) -> float:
        hour = int(self.now() / 2) % 3 - 1
        return 1.7e9 + hour * 86_400.0 * self.random()

    monkeypatch.setattr(SimulatedEnvironment, "wall_time", leaping)
    register = await cluster.options(name="register", on="worker-1").spawn(Register)
    before = await cluster.members()
    for number in range(1, 21):
        assert await register.add.options(timeout=1.0)(1) == number
        await trio.sleep(1)
    assert await cluster.members() == before
