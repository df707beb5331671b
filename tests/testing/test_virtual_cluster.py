"""Simulated clusters for tests: what befalls them, on which clock, and that a seed repeats them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures

import pytest
import trio

from actors import Actor, UnderstudyError, method
from actors.errors import CallError, CallTimeoutError, NotAMemberError
from runtime import Node
from runtime.testing import (
    BlockingVirtualCluster,
    VirtualCluster,
    VirtualClusterError,
    VirtualFaults,
)
from runtime.testing.virtual_cluster import VirtualRun
from runtime.testing.virtual_thread import VirtualThread
from tests.failures.error_examples import check_shown, said


class Register(Actor):
    """Keeps a number."""

    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(concurrent=True)
    async def wait(self, seconds: float) -> float:
        await trio.sleep(seconds)
        return seconds

    @method
    async def fail(self) -> None:
        raise ValueError("on purpose")


def double(number: int) -> int:
    """A function that runs in a worker process, were there any."""
    return 2 * number


async def test_a_node_that_is_cut_off_is_not_reached_until_it_is_healed(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(on="worker-1").spawn(Register)
    with faults.cut("worker-1"), pytest.raises(CallError):
        await register.add.options(timeout=1.0)(1)
    await cluster.wait_whole()
    assert await register.add.options(timeout=30.0)(1) >= 1


async def test_a_node_sees_the_others_only_on_its_own_side(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(name="register", on="worker-2").spawn(Register)

    async def add(node: Node) -> int:
        found = await node.lookup("register", Register)
        return await found.add.options(timeout=1.0)(1)

    assert await cluster.run_on("worker-1", add) == 1
    with faults.cut("worker-1", "worker-2"):
        with pytest.raises(CallError):
            await cluster.run_on("worker-1", add)
        # Not between others.
        assert await cluster.run_on("worker-3", add) >= 2
    assert await register.add(0) >= 2


async def test_a_delay_is_added_to_each_way_and_ends(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(on="worker-1").spawn(Register)
    await register.add(1)
    before = cluster.now()
    await register.add(1)
    usual = cluster.now() - before
    with faults.delay("driver", "worker-1", 0.4):
        before = cluster.now()
        await register.add(1)
        assert cluster.now() - before >= 0.8
    before = cluster.now()
    await register.add(1)
    assert cluster.now() - before < 0.4 + usual


async def test_connections_that_are_reset_lose_nothing(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(on="worker-1").spawn(Register)
    for number in range(1, 6):
        faults.reset("driver", "worker-1")
        assert await register.add(1) == number


async def test_paused_and_blocked_nodes_go_on_when_they_are_healed(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    register = await cluster.options(on="worker-1").spawn(Register)
    for fault in (faults.pause, faults.block):
        fault("worker-1")
        with pytest.raises(CallTimeoutError):
            await register.add.options(timeout=0.5)(1)
        faults.heal()
        assert await register.add.options(timeout=5.0)(1) > 0
        # Healing twice is healing once.
        faults.heal()


async def test_a_killed_node_comes_back_when_that_was_said_and_stays_away_otherwise(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    faults.kill("worker-1", restart_after=3.0)
    faults.kill("worker-2")
    await trio.sleep(60)
    up = {each.name for each in await cluster.members() if each.state == "up"}
    assert up == {"driver", "worker-1", "worker-3"}
    await cluster.wait_whole()
    await cluster.start_node("worker-2")
    assert "worker-2" in {each.name for each in await cluster.members()}


async def test_a_function_in_a_process_that_is_killed_ends_with_it(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    async def kill() -> None:
        await trio.sleep(1)
        faults.kill("worker-1")

    async def wait(node: Node) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        with pytest.raises(ProcessLookupError, match="worker-1"):
            await cluster.run_on("worker-1", wait)
    with pytest.raises(ValueError, match="does not run now"):
        await cluster.run_on("worker-1", wait)

    async def fail(node: Node) -> None:
        raise KeyError(node.name)

    with pytest.raises(KeyError, match="worker-2"):
        await cluster.run_on("worker-2", fail)


async def test_what_a_function_in_a_process_raises_comes_out_and_ends_nothing_else(
    cluster: VirtualCluster,
) -> None:
    async def fails(node: Node) -> None:
        pytest.fail("no exception, as pytest has it")

    async def leaves(node: Node) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise SystemExit(3)

    with pytest.raises(pytest.fail.Exception, match="as pytest has it"):
        await cluster.run_on("worker-1", fails)
    with pytest.RaisesGroup(SystemExit):
        await cluster.run_on("worker-1", leaves)
    await cluster.wait_whole()
    assert [member.name for member in await cluster.members()] == ["driver", *cluster.nodes]


async def test_an_unhealed_cluster_is_not_waited_for_without_end(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    faults.cut("worker-1")
    # Longer than a lease: until then all of them are members.
    await trio.sleep(30)
    with pytest.raises(TimeoutError, match="still cut off"):
        await cluster.wait_whole()


async def test_the_store_can_fall_silent(cluster: VirtualCluster, faults: VirtualFaults) -> None:
    with faults.silence_store(), pytest.raises(UnderstudyError), trio.fail_after(60):
        await cluster.options(name="register", on="worker-1", timeout=2.0).spawn(Register)
    faults.heal()


@pytest.mark.understudy(nodes=1, seed=5)
class TestMarks:
    """The closest mark wins, argument by argument."""

    async def test_of_the_class(self, cluster: VirtualCluster) -> None:
        assert (cluster.nodes, cluster.seed) == (("worker-1",), 5)

    @pytest.mark.understudy(nodes=2)
    def test_of_the_test(self, cluster: BlockingVirtualCluster) -> None:
        assert (cluster.nodes, cluster.seed) == (("worker-1", "worker-2"), 5)
        assert len(cluster.members()) == 3


def test_time_stands_still_between_the_calls_of_a_plain_test(
    cluster: BlockingVirtualCluster,
) -> None:
    register = cluster.spawn(Register)
    before = cluster.now()
    threading.Event().wait(0.05)
    assert cluster.now() == before
    cluster.sleep(100)
    assert 100 <= cluster.now() - before < 101
    with pytest.raises(CallTimeoutError):
        register.wait.options(timeout=50.0)(1000.0)
    assert 150 <= cluster.now() - before < 152
    with pytest.raises(Exception, match="on purpose"):
        register.fail()


def test_futures_of_a_plain_test_go_on_while_it_does_something_else(
    cluster: BlockingVirtualCluster,
) -> None:
    register = cluster.spawn(Register)
    futures: list[Future[float]] = [register.wait.future(seconds) for seconds in (30.0, 20.0, 10.0)]
    done, waiting = wait_for_futures(futures, timeout=60)
    assert not waiting
    assert sum(each.result() for each in done) == 60.0
    cancelled = register.wait.future(1e9)
    assert cancelled.cancel()
    assert register.add(1) == 1


def test_threads_of_a_plain_test_share_its_cluster(cluster: BlockingVirtualCluster) -> None:
    register = cluster.spawn(Register)
    threads = [
        threading.Thread(target=lambda: [register.add(1) for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert register.add(0) == 80


async def test_functions_run_in_the_simulation_too(cluster: VirtualCluster) -> None:
    assert await cluster.run(double, 21) == 42


def trace_of(seed: int) -> list[str]:
    """What happens in a plain test of some calls and a kill."""
    run = VirtualRun(nodes=2, seed=seed)
    thread = VirtualThread(run)
    thread.open()
    faults = VirtualFaults(run, thread.do)
    register = thread.cluster.options(name="register", on="worker-1").spawn(Register)
    for _ in range(5):
        register.add(1)
    faults.kill("worker-1", restart_after=1.0)
    thread.cluster.sleep(10)
    thread.cluster.wait_whole()
    thread.close()
    assert run._trace is not None
    return [*run.events(), run._trace.digest()]


def test_a_seed_repeats_a_plain_test_byte_by_byte() -> None:
    assert trace_of(1) == trace_of(1)
    assert trace_of(1) != trace_of(2)


def test_a_run_can_be_run_again_and_what_it_raises_comes_out_as_it_was() -> None:
    run = VirtualRun(nodes=1, seed=0)
    nodes: list[Node] = []

    async def test() -> None:
        nodes.append(run.driver)
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    for _ in range(2):
        with pytest.raises(ValueError, match="second") as caught:
            run.run(test)
        assert isinstance(caught.value.__cause__, KeyError)
    assert nodes[0] is not nodes[1]
    with pytest.raises(NotAMemberError):
        nodes[0].members()
    with pytest.raises(VirtualClusterError, match="ended with its test") as late:
        _ = run.driver
    check_shown("VirtualClusterError", said(late.value))
