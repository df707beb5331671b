"""Agents of torchrun over our rendezvous, which are killed, stopped, told to end, and come late;
their workers need no torch.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process_states import lives
from tests.pytorch.jobs import QUICK, TORCHRUN, Job, Worker

pytest.importorskip(
    "torch", reason="PyTorch is not installed: `make torch` runs these tests where it is"
)

pytestmark = [pytest.mark.torch, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    rendezvous = (
        "--rdzv-backend",
        "understudy",
        "--rdzv-endpoint",
        f"{tmp_path}/rendezvous",
        "--rdzv-id",
        "job",
        "--rdzv-conf",
        QUICK,
    )
    with Job(tmp_path / "job", TORCHRUN, *rendezvous, script="waiting.py", arguments=()) as job:
        yield job


def ended(job: Job, *agents: subprocess.Popen[bytes]) -> list[int]:
    """Their exit statuses."""
    for agent in agents:
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"an agent does not end\n{job.logs()}")
    return [agent.returncode for agent in agents]


def agent_of(job: Job, worker: Worker) -> subprocess.Popen[bytes]:
    return job.agents[worker.agent]


def test_an_agent_that_is_killed_takes_its_workers_with_it_and_costs_no_restart(job: Job) -> None:
    for _ in range(2):
        job.start("--nnodes", "1:2", "--nproc-per-node", "2")
    before = job.until_world(4)
    gone = agent_of(job, before[0])
    gone.send_signal(signal.SIGKILL)
    after = job.until_world(2)
    assert not {each.pid for each in before} & {each.pid for each in after}
    assert {each.restarts for each in after} == {0}, (
        "its end was told before anybody ran into it, and none was allowed"
    )
    job.start("--nnodes", "1:2", "--nproc-per-node", "2")
    job.until_world(4)
    job.tell("finish")
    assert ended(job, *(agent for agent in job.agents.values() if agent is not gone)) == [0, 0]


def test_an_agent_that_is_stopped_has_lost_its_workers_before_others_take_their_places(
    job: Job,
) -> None:
    agents = [job.start("--nnodes", "1:2", "--max-restarts", "3") for _ in range(2)]
    before = job.until_world(2)
    stopped = agent_of(job, before[0])
    stopped.send_signal(signal.SIGSTOP)
    job.until(lambda: {each.pid for each in job.workers()} - {each.pid for each in before})
    assert not lives(before[0].pid)
    assert [(each.rank, each.world_size) for each in job.workers()] == [(0, 1)]
    stopped.send_signal(signal.SIGCONT)
    job.until_world(2)
    job.tell("finish")
    assert ended(job, *agents) == [0, 0]


def test_an_agent_that_is_terminated_leaves_and_the_others_go_on(job: Job) -> None:
    agents = [job.start("--nnodes", "1:2") for _ in range(2)]
    before = job.until_world(2)
    leaving = agent_of(job, before[1])
    leaving.send_signal(signal.SIGTERM)
    (after,) = job.until_world(1)
    assert after.pid not in {each.pid for each in before}
    assert ended(job, leaving) != [0]
    job.tell("finish")
    assert ended(job, *(agent for agent in agents if agent is not leaving)) == [0]


def test_a_worker_that_fails_is_started_again_with_all_others(job: Job) -> None:
    agents = [job.start("--nnodes", "2", "--max-restarts", "1") for _ in range(2)]
    before = job.until_world(2)
    job.tell(f"fail-{before[1].pid}")
    job.until(lambda: not {each.pid for each in before} & {each.pid for each in job.workers()})
    after = job.until_world(2)
    assert {each.restarts for each in after} == {0, 1}, (
        "torch counts for each agent by itself: for the other one an agent came and went"
    )
    job.tell("finish")
    assert ended(job, *agents) == [0, 0]


def test_a_job_that_fails_closes_the_rendezvous_for_all(job: Job) -> None:
    first = job.start("--nnodes", "1:2")
    (worker,) = job.until_world(1)
    job.tell(f"fail-{worker.pid}")
    assert ended(job, first) == [1]
    assert ended(job, job.start("--nnodes", "1:2")) == [1]
    assert "RendezvousClosedError: the rendezvous is closed" in job.logs()


def test_who_has_finished_does_not_wait_for_an_agent_that_is_gone_and_leaves_the_job_to_the_others(
    job: Job,
) -> None:
    for _ in range(2):
        job.start("--nnodes", "1:2")
    before = job.until_world(2)
    job.tell(f"finish-{before[0].pid}")
    job.until(lambda: not lives(before[0].pid))
    # It waits for the other one now, for five minutes by torch's own rules.
    gone = agent_of(job, before[1])
    gone.send_signal(signal.SIGKILL)
    assert ended(job, agent_of(job, before[0])) == [0]
    late = job.start("--nnodes", "1:2")
    job.until_world(1)
    job.tell("finish")
    assert ended(job, late) == [0]


def test_a_missing_endpoint_is_an_error_of_torchrun(tmp_path: Path) -> None:
    with Job(
        tmp_path / "job",
        TORCHRUN,
        "--rdzv-backend",
        "understudy",
        script="waiting.py",
        arguments=(),
    ) as job:
        assert ended(job, job.start("--nnodes", "2")) == [1]
        assert "ValueError: --rdzv-endpoint is missing" in job.logs()
