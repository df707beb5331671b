"""Retry policies against real deaths: however many calls are with a process when it dies, each is
repeated as its policy says.
"""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest
import trio

from actors import ChildSpec, RetryPolicy, SpawnOptions, Supervisor
from actors.errors import ActorDiedError, UnderstudyError
from runtime import open_local_cluster, open_node
from runtime.cluster_processes import LocalCluster
from tests.cluster.actors_used import Diligent
from tests.waiting import until

pytestmark = pytest.mark.cluster

POLICY = RetryPolicy(max_retries=5, initial_delay=0.05, max_delay=0.5)


async def supervised(cluster: LocalCluster, options: SpawnOptions) -> Diligent:
    """A child whose supervisor, on the test's own node, restarts it as often as it takes."""
    spec = ChildSpec(id="diligent", actor=Diligent, options=options)
    await cluster.node.options(name="tree").spawn(Supervisor, [spec], intensity=100)
    return await cluster.node.lookup("diligent", Diligent)


class Crowd:
    """Callers, what they were answered and what they met instead."""

    def __init__(self, diligent: Diligent, policy: RetryPolicy) -> None:
        self.work = diligent.work.options(retry=policy)
        self.answers = 0
        self.errors: list[str] = []
        self.over = False

    async def call(self, seconds: float) -> None:
        try:
            await self.work(seconds)
        except UnderstudyError as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        else:
            self.answers += 1

    async def call_on_and_on(self, seconds: float) -> None:
        while not self.over:
            await self.call(seconds)


@pytest.mark.parametrize("isolated", [True, False], ids=["process", "node"])
async def test_every_call_that_is_with_a_process_when_it_dies_is_repeated(isolated: bool) -> None:
    async with open_local_cluster(nodes=2) as cluster:
        where = (
            SpawnOptions(name="diligent", isolation="process")
            if isolated
            else SpawnOptions(name="diligent", labels={"role": "work"})
        )
        if not isolated:
            await cluster.start_node("first", labels={"role": "work"})
            await cluster.start_node("second", labels={"role": "work"})
        diligent = await supervised(cluster, where)
        crowd = Crowd(diligent, POLICY)
        pid = await diligent.work(0)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(crowd.call, 0.5)
                await trio.sleep(0.25)
                os.kill(pid, signal.SIGKILL)
    assert (crowd.errors, crowd.answers) == ([], 60)


async def kill_again_and_again(callers: int, kills: int) -> Crowd:
    async with open_local_cluster(nodes=2) as cluster:
        diligent = await supervised(cluster, SpawnOptions(name="diligent", isolation="process"))
        crowd = Crowd(diligent, POLICY)
        with trio.fail_after(200):
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(crowd.call_on_and_on, 0.2)
                for _ in range(kills):
                    pid = await diligent.work.options(retry=POLICY)(0)
                    enough = crowd.answers + callers
                    await until(lambda: crowd.answers, "answers", lambda n: n >= enough)  # noqa: B023
                    os.kill(pid, signal.SIGKILL)
                crowd.over = True
    return crowd


@pytest.mark.timeout(60)
async def test_a_hundred_callers_and_four_kills_make_no_error() -> None:
    crowd = await kill_again_and_again(100, 4)
    assert crowd.errors == []
    assert crowd.answers >= 400


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_thousand_callers_and_twenty_kills_make_no_error() -> None:
    crowd = await kill_again_and_again(1_000, 20)
    assert crowd.errors == []
    assert crowd.answers >= 20_000


async def test_the_error_of_a_used_up_retry_budget_says_so_and_what_to_do(
    tmp_path: Path,
) -> None:
    async with open_node(secret="a secret for the tests of retries") as node:
        spec = ChildSpec(
            id="diligent",
            actor=Diligent,
            options=SpawnOptions(name="diligent", isolation="process"),
        )
        await node.options(name="tree").spawn(Supervisor, [spec], intensity=100)
        diligent = await node.lookup("diligent", Diligent)

        async def die(policy: RetryPolicy) -> None:
            mark = tmp_path / f"{next(number)}"
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call_to_its_end, policy, str(mark))
                    await until(mark.exists, "the call runs")
                    os.kill(await diligent.work(0), signal.SIGKILL)

        errors: list[ActorDiedError] = []
        number = count()

        async def call_to_its_end(policy: RetryPolicy, mark: str) -> None:
            try:
                await diligent.work_when_repeated.options(retry=policy)(mark)
            except ActorDiedError as error:
                errors.append(error)

        for _ in range(4):
            await die(POLICY)
        assert errors == []
        # The fifth death leaves five tokens and four tenths: one call of each round, and one to
        # learn the pid without a policy.
        await die(POLICY)
        await die(POLICY)
        assert [str(error).count("budget used up") for error in errors] == [1]
        assert "RetryPolicy(budget=None)" in str(errors[0])
        assert "tokens are left" in str(errors[0])
        await die(RetryPolicy(max_retries=5, initial_delay=0.05, budget=None))
        assert len(errors) == 1
