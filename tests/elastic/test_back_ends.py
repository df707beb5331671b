"""`understudy run` over a rendezvous of the registry: agents in processes of their own that come,
fail, finish and are killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pytest
import trio
from click.testing import CliRunner, Result

from runtime.command_line.main import main
from runtime.rendezvous.parameters import RendezvousFinishedError, RendezvousParameters
from runtime.rendezvous.registry import create_handler
from tests.etcd import shared_etcd
from tests.free_addresses import free_address
from tests.process_states import lives
from tests.waiting import until_blocking

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 45.0
CONF = "last_call_timeout=0.5,keep_alive_interval=0.5,join_timeout=30"

WORKER = """
import json, os, sys, time
from pathlib import Path
place = Path(sys.argv[1])
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
(place / f"{os.getpid()}.new").write_text(json.dumps({name: os.environ[name] for name in names} | {"pid": os.getpid()}))
os.rename(place / f"{os.getpid()}.new", place / f"{os.getpid()}.json")
orders = [place / name for name in (f"order-{os.environ['RANK']}", f"order-{os.getpid()}", "order")]
while not (given := [order for order in orders if order.exists()]):
    time.sleep(0.02)
word = given[0].read_text()
if word.startswith("with "):
    # As collectives do: what takes the other end with it takes this one, too.
    while Path(f"/proc/{word[5:]}").exists():
        time.sleep(0.001)
    raise ConnectionResetError("the other end is gone")
if word == "fail":
    raise ValueError("on purpose")
"""


@attrs.frozen
class Told:
    """A worker that lives, as it said of itself."""

    rank: int
    world_size: int
    restarts: int
    pid: int


class Job:
    """Agents of one job on this machine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.backend, self.endpoint = "file", str(place / "rendezvous")
        (place / "worker.py").write_text(WORKER)
        (place / "rendezvous").mkdir()
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, nodes: str, *options: str) -> subprocess.Popen[bytes]:
        rendezvous = [
            "--rdzv-backend",
            self.backend,
            "--rdzv-endpoint",
            self.endpoint,
            "--rdzv-id",
            "job",
            "--rdzv-conf",
            CONF,
        ]
        return self.command(
            "run", "--nnodes", nodes, *rendezvous, *options, "worker.py", str(self.place)
        )

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Any command; what it prints is in the file `agent-N`, for the N-th of them."""
        with (self.place / f"agent-{len(self.agents)}").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runtime.command_line", *words],
                cwd=self.place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )
        self.agents.append(process)
        return process

    def workers(self) -> list[Told]:
        said = [json.loads(path.read_text()) for path in self.place.glob("*.json")]
        told = [
            Told(
                int(s["RANK"]), int(s["WORLD_SIZE"]), int(s["TORCHELASTIC_RESTART_COUNT"]), s["pid"]
            )
            for s in said
            if lives(s["pid"])
        ]
        return sorted(told, key=lambda each: each.rank)

    def until(self, holds: Callable[[list[Told]], bool]) -> list[Told]:
        return until_blocking(self.workers, "the workers are as expected", holds, seconds=LIMIT)

    def until_world(self, size: int) -> list[Told]:
        return self.until(
            lambda found: (
                [(each.rank, each.world_size) for each in found]
                == [(rank, size) for rank in range(size)]
            )
        )

    def order(self, word: str, rank: str = "") -> None:
        name = f"order-{rank}" if rank else "order"
        (self.place / f"{name}.new").write_text(word)
        (self.place / f"{name}.new").rename(self.place / name)


def codes(agents: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """How they end."""
    return [agent.wait(LIMIT) for agent in agents]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    opened = Job(tmp_path)
    yield opened
    for process in opened.agents:
        process.kill()
        process.wait()
    for path in sorted(tmp_path.glob("agent-*")):
        # For the reader of a failed test.
        sys.stderr.write(f"{path.name}:\n{path.read_text()}")


@pytest.mark.long
def test_a_job_loses_an_agent_goes_on_gains_one_and_finishes(job: Job) -> None:
    agents = [job.start("1:3", "--nproc-per-node", "2") for _ in range(2)]
    before = job.until_world(4)
    agents[0].send_signal(signal.SIGKILL)
    after = job.until_world(2)
    assert not {each.pid for each in before} & {each.pid for each in after}
    agents[0] = job.start("1:3", "--nproc-per-node", "2")
    assert {each.restarts for each in job.until_world(4)} == {0}, (
        "who comes and goes costs no restart"
    )
    job.order("finish")
    assert codes(agents) == [0, 0]
    late = job.start("1:3", "--nproc-per-node", "2")
    assert late.wait(LIMIT) == 0, "there is nothing left to do"


@pytest.fixture(scope="module")
def etcd_server() -> Iterator[str]:
    """The address of an etcd with one member, without its scheme."""
    with shared_etcd(1) as server:
        yield server.address.rpartition("://")[2]


@pytest.mark.parametrize("backend", ["understudy", pytest.param("etcd", marks=pytest.mark.long)])
def test_a_job_over_a_store_of_its_own_loses_an_agent_and_finishes(
    job: Job, backend: str, request: pytest.FixtureRequest
) -> None:
    job.backend = backend
    job.endpoint = free_address()
    if backend == "etcd":
        job.endpoint = request.getfixturevalue("etcd_server")
    agents = [job.start("1:2") for _ in range(2)]
    if backend == "understudy":
        # After those who wait for it.
        log = job.place / "agent-0"
        until_blocking(lambda: "Connection refused" in log.read_text(), "the agent is refused")
        job.command("node", "--name", "founder", "--listen", job.endpoint)
    before = job.until_world(2)
    agents.pop(0).send_signal(signal.SIGKILL)
    (after,) = job.until_world(1)
    assert after.pid not in {each.pid for each in before}
    job.order("finish")
    assert codes(agents) == [0]


@pytest.mark.long
def test_a_job_of_fixed_ranks_waits_for_the_agent_of_a_rank_that_was_lost(job: Job) -> None:
    job.backend = "static"
    agents = [job.start("2", "--nproc-per-node", "1", "--node-rank", str(rank)) for rank in (1, 0)]
    before = job.until_world(2)
    assert [parent_of(each.pid) for each in before] == [agents[1].pid, agents[0].pid]
    agents.pop(0).send_signal(signal.SIGKILL)
    job.until(lambda found: found == [])
    agents.append(job.start("2", "--nproc-per-node", "1", "--node-rank", "1"))
    assert [parent_of(each.pid) for each in job.until_world(2)] == [agent.pid for agent in agents]
    job.order("finish")
    assert codes(agents) == [0, 0]


@pytest.mark.long
def test_fixed_ranks_are_those_of_the_agents_and_a_rank_given_twice_is_an_error(job: Job) -> None:
    job.backend = "static"
    agents = [job.start("2", "--node-rank", str(rank)) for rank in (1, 0)]
    assert [parent_of(each.pid) for each in job.until_world(2)] == [agents[1].pid, agents[0].pid]
    assert job.start("2", "--node-rank", "1").wait(LIMIT) == 1
    assert "two agents ask for rank 1" in (job.place / "agent-2").read_text()
    job.order("finish")
    assert codes(agents) == [0, 0]


def test_an_endpoint_at_which_nobody_answers_is_an_error_after_the_time_that_it_says(
    job: Job,
) -> None:
    job.backend, job.endpoint = "understudy", "127.0.0.1:1"
    agent = job.start("2", "--rdzv-conf", f"{CONF},connect_timeout=0.5")
    assert agent.wait(LIMIT) == 1
    said = (job.place / "agent-0").read_text()
    assert "no node answers at 127.0.0.1:1" in said
    assert "Traceback" not in said
    assert said.count("trying again for 0 s") == 1


async def test_a_job_that_was_closed_is_opened_again_by_its_operator(tmp_path: Path) -> None:
    def command(job: str, *more: str) -> Result:
        words = [
            "reopen",
            "--rdzv-backend",
            "file",
            "--rdzv-endpoint",
            str(tmp_path),
            "--rdzv-id",
            job,
            *more,
        ]
        return CliRunner().invoke(main, words)

    async with create_handler(
        RendezvousParameters("file", str(tmp_path), "job", 1, 2, last_call_timeout=0)
    ) as handler:
        await handler.set_closed("finished", finished=True)
        with pytest.raises(RendezvousFinishedError):
            await handler.next_rendezvous()
        done = await trio.to_thread.run_sync(command, "job")
        assert (done.exit_code, done.output) == (0, "the rendezvous of 'job' is open again\n")
        assert (await handler.next_rendezvous()).world_size == 1
    for job in ("job", "another"):
        done = await trio.to_thread.run_sync(command, job)
        assert (done.exit_code, done.output) == (
            0,
            f"the rendezvous of '{job}' was not closed, or is not there\n",
        )
    assert json.loads((await trio.to_thread.run_sync(command, "job", "--json")).output) == {
        "run_id": "job",
        "was_closed": False,
    }
    done = await trio.to_thread.run_sync(command, "job", "--rdzv-conf", "clutser=x")
    assert (done.exit_code, "has no option 'clutser'" in done.output) == (2, True)


@pytest.mark.long
def test_workers_that_fail_because_an_agent_was_lost_end_no_job_although_no_restart_is_left(
    job: Job,
) -> None:
    agents = {agent.pid: agent for agent in (job.start("1:2") for _ in range(2))}
    before = job.until_world(2)
    job.order(f"with {before[0].pid}", rank=str(before[1].pid))
    gone = agents.pop(parent_of(before[0].pid))
    gone.send_signal(signal.SIGKILL)
    (after,) = job.until_world(1)
    assert after.pid not in {each.pid for each in before}
    assert after.restarts == 0
    job.order("finish")
    (agent,) = agents.values()
    assert agent.wait(LIMIT) == 0


@pytest.mark.long
def test_all_agents_tell_of_one_root_cause_and_restart_together(job: Job) -> None:
    agents = [job.start("2", "--nproc-per-node", "1", "--max-restarts", "1") for _ in range(2)]
    job.until_world(2)
    job.order("fail", rank="1")
    # The second time is one too many.
    assert codes(agents) == [1, 1]
    for number in range(2):
        output = (job.place / f"agent-{number}").read_text()
        report = output[output.index("job job failed") :]
        assert "root cause: rank 1 " in report
        assert "ValueError: on purpose" in report
    lives = [json.loads(path.read_text()) for path in job.place.glob("*.json")]
    assert {int(life["TORCHELASTIC_RESTART_COUNT"]) for life in lives if life["RANK"] == "1"} == {
        0,
        1,
    }


@pytest.mark.long
def test_a_spare_replaces_an_agent_that_was_killed_and_the_others_run_on(job: Job) -> None:
    agents = [job.start("2", "--restart-policy", "spare") for _ in range(2)]
    before = job.until_world(2)
    spare = job.start("2", "--restart-policy", "spare")
    # Not that of rank 0: where it listens would change.
    gone = next(agent for agent in agents if agent.pid == parent_of(before[1].pid))
    gone.send_signal(signal.SIGKILL)
    after = job.until(lambda found: len(found) == 2 and found[1].pid != before[1].pid)
    assert after[0] == before[0]
    job.order("finish")
    assert codes([agent for agent in (*agents, spare) if agent is not gone]) == [0, 0]


@pytest.mark.long
def test_an_agent_that_is_stopped_has_lost_its_workers_before_others_take_their_places(
    job: Job,
) -> None:
    agents = [job.start("1:2") for _ in range(2)]
    before = job.until_world(2)
    agents[0].send_signal(signal.SIGSTOP)
    # Two workers of different rounds never live at the same time: the old ones are gone when the
    # first of the new ones is there.
    old = {each.pid for each in before}
    found = job.until(lambda found: bool({each.pid for each in found} - old))
    assert not {each.pid for each in found} & old
    assert [(each.rank, each.world_size) for each in found] == [(0, 1)]
    agents[0].send_signal(signal.SIGCONT)
    assert {each.restarts for each in job.until_world(2)} == {0}, (
        "it comes again, and no restart was counted"
    )
    job.order("finish")
    assert codes(agents) == [0, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rdzv-backend", "fil", "--rdzv-endpoint", "/tmp"], "did you mean 'file'"),
        (
            ["--rdzv-backend", "file", "--rdzv-endpoint", "/tmp", "--rdzv-conf", "join_timout=5"],
            "did you mean 'join_timeout'",
        ),
        (["--rdzv-backend", "static", "--rdzv-endpoint", "/tmp", "--node-rank", "7"], "rank"),
    ],
)
def test_an_impossible_rendezvous_is_an_error_of_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(
        main, ["run", "--nnodes", "2", "--rdzv-id", "job", *options, str(tmp_path / "train.py")]
    )
    assert done.exit_code == 2
    assert said in done.output
