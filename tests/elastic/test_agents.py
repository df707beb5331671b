"""Several agents of one job, with real workers, around a rendezvous that the test holds in its
hand.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from runtime.elastic import reaper
from runtime.elastic.agent import Agent, JobOutcome
from runtime.elastic.budget import WorkerFailure
from runtime.elastic.machine import Policy, Rules
from runtime.elastic.rounds import reserve_port
from runtime.elastic.settings import ElasticSettings
from runtime.environment import SystemEnvironment
from runtime.rendezvous.parameters import RendezvousConnectionError
from tests.elastic.fakes import FakeHandler, FakeRendezvous
from tests.process_states import lives
from tests.waiting import until

pytestmark = pytest.mark.cluster

WORKER = """
import json, os, signal, sys, time
from pathlib import Path

place = Path(sys.argv[1])
keep = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "UNDERSTUDY_MEMBERSHIP_FILE")
said = {name: os.environ[name] for name in keep} | {"pid": os.getpid(), "agent": sys.argv[2]}
(place / f"{os.getpid()}.new").write_text(json.dumps(said))
os.rename(place / f"{os.getpid()}.new", place / f"{os.getpid()}.json")

def told(signum, frame):
    (place / f"told-{os.getpid()}.new").write_text(Path(os.environ["UNDERSTUDY_MEMBERSHIP_FILE"]).read_text())
    os.rename(place / f"told-{os.getpid()}.new", place / f"told-{os.getpid()}")

signal.signal(signal.SIGUSR1, told)
order = place / f"order-{os.getpid()}"
while not order.exists():
    time.sleep(0.01)
word = order.read_text()
if word == "raise":
    raise ValueError(f"on purpose, by {os.getpid()}")
sys.exit(int(word))
"""


@attrs.define(eq=False)
class RunningAgent:
    name: str
    agent: Agent
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    outcome: JobOutcome | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)


class Job:
    """The agents of a job and their workers, which do what they are ordered to."""

    def __init__(
        self, place: Path, nursery: trio.Nursery, rendezvous: FakeRendezvous, **rules: Any
    ) -> None:
        self.place = place
        self.rendezvous = rendezvous
        self._nursery = nursery
        self._rules = rules
        (place / "worker.py").write_text(WORKER)

    def start(self, name: str, *, workers: int = 1, **settings: Any) -> RunningAgent:
        made = ElasticSettings(
            run_id="job",
            command=(str(self.place / "worker.py"), str(self.place), name),
            rules=Rules(workers, **{"loss_seconds": 0.0, **self._rules}),
            log_dir=self.place / "logs",
            **{"shutdown_timeout": 5.0, **settings},
        )
        running = RunningAgent(
            name, Agent(made, self.rendezvous.handler, SystemEnvironment(), "127.0.0.1")
        )
        self._nursery.start_soon(self._run, running)
        return running

    async def _run(self, running: RunningAgent) -> None:
        try:
            with running.scope:
                running.outcome = await running.agent.run()
        finally:
            running.ended.set()

    def workers(self) -> list[dict[str, Any]]:
        """All that live."""
        said = [json.loads(path.read_text()) for path in self.place.glob("*.json")]
        return sorted(
            (each for each in said if lives(each["pid"])), key=lambda each: int(each["RANK"])
        )

    async def until(self, holds: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        """Wait for something about the living workers."""
        return await until(self.workers, "the living workers are as expected", holds, every=0.01)

    async def until_world(self, size: int) -> list[dict[str, Any]]:
        """Wait for a whole world of so many workers."""
        return await self.until(
            lambda found: (
                [(each["RANK"], each["WORLD_SIZE"]) for each in found]
                == [(str(r), str(size)) for r in range(size)]
            )
        )

    def order(self, worker: dict[str, Any], word: str) -> None:
        path = self.place / f"order-{worker['pid']}"
        path.with_suffix(".new").write_text(word)
        path.with_suffix(".new").rename(path)


@asynccontextmanager
async def job(
    place: Path, least: int = 1, most: int = 8, policy: Policy = "group", **rules: Any
) -> AsyncIterator[Job]:
    rendezvous = FakeRendezvous(least, most)
    in_time = False
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 50
        opened = Job(place, nursery, rendezvous, policy=policy, **rules)
        yield opened
        in_time = True
        nursery.cancel_scope.cancel()
    assert in_time, "it took too long"
    assert opened.workers() == [], "workers are left behind"


async def outcome_of(running: RunningAgent) -> JobOutcome:
    await running.ended.wait()
    assert running.outcome is not None
    return running.outcome


async def test_agents_form_one_world_and_a_job_that_finishes_is_closed(tmp_path: Path) -> None:
    async with job(tmp_path, least=2) as running:
        agents = [running.start("a", workers=2), running.start("b", workers=1)]
        found = await running.until_world(3)
        assert len({each["MASTER_PORT"] for each in found}) == 1
        for each in found:
            running.order(each, "0")
        assert [(await outcome_of(agent)).code for agent in agents] == [0, 0]
        assert running.rendezvous.closed == "finished"


async def test_an_agent_that_finishes_ends_nothing_and_restarts_nobody(tmp_path: Path) -> None:
    async with job(tmp_path, least=2) as running:
        first, second = running.start("a"), running.start("b")
        found = await running.until_world(2)
        mine = next(each for each in found if each["agent"] == "a")
        running.order(mine, "0")
        assert (await outcome_of(first)).code == 0
        assert running.rendezvous.closed == ""
        assert [each["pid"] for each in running.workers()] == [
            each["pid"] for each in found if each is not mine
        ]
        await trio.testing.wait_all_tasks_blocked(0.2)
        running.order(running.workers()[0], "0")
        assert (await outcome_of(second)).code == 0
        assert running.rendezvous.closed == "finished"
        assert running.rendezvous.round == 0


async def test_a_failure_restarts_the_group_on_all_agents_and_is_counted_once(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, least=2) as running:
        for name in "ab":
            running.start(name, workers=2, max_restarts=1)
        before = await running.until_world(4)
        # Two of different agents fail at the same time, as they do when one takes the other with
        # it.
        for each in (before[0], before[3]):
            running.order(each, "3")
        after = await running.until(
            lambda found: (
                len(found) == 4 and not {w["pid"] for w in found} & {w["pid"] for w in before}
            )
        )
        assert {each["TORCHELASTIC_RESTART_COUNT"] for each in after} == {"1"}
        assert {each["MASTER_PORT"] for each in after} != {each["MASTER_PORT"] for each in before}


async def test_when_no_restart_is_left_all_agents_tell_of_the_root_cause_first(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, least=2) as running:
        agents = [running.start(name, workers=2) for name in "ab"]
        found = await running.until_world(4)
        running.order(found[3], "raise")
        outcomes = [await outcome_of(agent) for agent in agents]
        assert [outcome.code for outcome in outcomes] == [1, 1]
        for outcome in outcomes:
            cause: WorkerFailure = outcome.failures[0]
            assert (cause.rank, cause.pid, cause.code) == (3, found[3]["pid"], 1)
            assert f"ValueError: on purpose, by {cause.pid}" in cause.traceback
        assert "restart" in running.rendezvous.closed


async def test_survivors_of_a_lost_agent_go_on_without_a_restart_being_counted(
    tmp_path: Path,
) -> None:
    async with job(tmp_path) as running:
        first = running.start("a")
        await running.until_world(1)
        second = running.start("b")
        before = await running.until_world(2)
        second.scope.cancel()
        after = await running.until_world(1)
        assert after[0]["agent"] == "a"
        assert after[0]["pid"] not in {each["pid"] for each in before}
        assert after[0]["TORCHELASTIC_RESTART_COUNT"] == "0"
        running.order(after[0], "0")
        assert (await outcome_of(first)).code == 0


async def test_a_failure_without_a_restart_left_ends_an_elastic_job(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, least=1, loss_seconds=1000.0) as running:
        # An agent whose workers have finished is not lost either, though it is not there any more.
        agents = [running.start("a")]
        await running.until_world(1)
        agents += [running.start("b"), running.start("c")]
        found = await running.until_world(3)
        running.order(found[2], "0")
        await running.until(lambda now: len(now) == 2)
        running.order(found[1], "3")
        ended = [(await outcome_of(agent)).code for agent in agents]
        assert sorted(ended) == [0, 1, 1]


async def test_a_failure_that_a_lost_agent_has_caused_costs_no_restart_although_there_is_one(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, loss_seconds=1000.0) as running:
        agents = {"a": running.start("a", max_restarts=1)}
        await running.until_world(1)
        agents["b"] = running.start("b", max_restarts=1)
        before = await running.until_world(2)
        gone = agents[before[1]["agent"]]
        # What it answers for is gone, and nobody knows yet.
        gone.agent._workers.reaper._was_paused = True
        running.order(before[0], "3")
        await running.until(lambda now: before[0]["pid"] not in {each["pid"] for each in now})
        await trio.testing.wait_all_tasks_blocked(0.1)
        gone.scope.cancel()
        after = await running.until_world(1)
        assert (after[0]["agent"], after[0]["TORCHELASTIC_RESTART_COUNT"]) == (
            before[0]["agent"],
            "0",
        )


async def test_only_the_failed_worker_is_restarted_where_workers_are_independent(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, least=2, policy="worker") as running:
        for name in "ab":
            running.start(name, workers=2, max_restarts=2)
        before = await running.until_world(4)
        running.order(before[2], "3")
        after = await running.until(
            lambda found: len(found) == 4 and found[2]["pid"] != before[2]["pid"]
        )
        assert [each["pid"] for each in after if each["RANK"] != "2"] == [
            each["pid"] for each in before if each["RANK"] != "2"
        ]
        assert after[2]["TORCHELASTIC_RESTART_COUNT"] == "1"


async def test_an_independent_worker_that_keeps_failing_does_not_end_the_others(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, least=2, policy="worker") as running:
        agents = [running.start(name, workers=2) for name in "ab"]
        found = await running.until_world(4)
        running.order(found[0], "3")
        await running.until(lambda now: len(now) == 3)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert len(running.workers()) == 3
        for each in found[1:]:
            running.order(each, "0")
        outcomes = {agent.name: await outcome_of(agent) for agent in agents}
        assert outcomes.pop(found[0]["agent"]).code == 1
        assert [outcome.code for outcome in outcomes.values()] == [0]


async def test_a_spare_takes_the_place_of_an_agent_that_is_gone_and_nobody_else_is_restarted(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, least=2, most=2, policy="spare") as running:
        first = running.start("a")
        await running.rendezvous.changed.wait()
        second = running.start("b")
        before = await running.until_world(2)
        running.start("c")
        gone = second if before[1]["agent"] == "b" else first
        gone.scope.cancel()
        after = await running.until(
            lambda found: (
                len(found) == 2
                and {each["agent"] for each in found} == {"a", "b", "c"} - {gone.name}
            )
        )
        assert after[0] == before[0]
        assert (after[1]["agent"], after[1]["RANK"]) == ("c", "1")


async def test_an_agent_whose_worker_failed_gives_its_place_to_a_spare(tmp_path: Path) -> None:
    async with job(tmp_path, least=2, most=2, policy="spare") as running:
        for name in "ab":
            running.start(name, max_restarts=1)
        before = await running.until_world(2)
        running.start("c", max_restarts=1)
        await running.rendezvous.changed.wait()
        running.order(before[1], "3")
        after = await running.until(lambda found: len(found) == 2 and found[1]["agent"] == "c")
        assert after[0] == before[0]


async def test_an_agent_that_is_cut_off_has_stopped_its_workers_before_others_take_over(
    tmp_path: Path,
) -> None:
    async with job(tmp_path) as running:
        running.start("a")
        await running.until_world(1)
        running.start("b")
        before = await running.until_world(2)
        cut = next(each for each in before if each["agent"] == "a")
        running.rendezvous.drop(
            next(name for name in running.rendezvous.roster if name == "agent-0")
        )
        await running.until(lambda found: cut["pid"] not in {each["pid"] for each in found})
        # It comes again, as it can reach the rendezvous.
        after = await running.until_world(2)
        assert {each["agent"] for each in after} == {"a", "b"}


async def test_workers_that_want_notices_of_a_new_membership_are_not_restarted(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, notify=True) as running:
        running.start("a", membership_signal=signal.SIGUSR1)
        (first,) = await running.until_world(1)
        running.start("b", membership_signal=signal.SIGUSR1)
        await running.until(lambda found: len(found) == 2)
        told = tmp_path / f"told-{first['pid']}"
        await running.until(lambda _: told.exists())
        said = json.loads(told.read_text())
        assert (said["world_size"], said["ranks"], said["group_world_size"]) == (2, {"0": 0}, 2)
        assert lives(first["pid"])


async def test_a_guardian_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with job(tmp_path) as running:
        agent = running.start("a", fence_seconds=0.8)
        (worker,) = await running.until_world(1)
        first = agent.agent.guardian_pid
        os.kill(first, signal.SIGKILL)
        await running.until(lambda _: agent.agent.guardian_pid != first)
        assert [each["pid"] for each in running.workers()] == [worker["pid"]]


async def test_a_guardian_hears_nothing_any_more_when_its_pipe_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So often that it would happen while the agent waits for the guardian's end.
    monkeypatch.setattr(reaper, "BEATS", 100_000)
    async with job(tmp_path) as running:
        agent = running.start("a", fence_seconds=30.0)
        (worker,) = await running.until_world(1)
        running.order(worker, "0")
        assert (await outcome_of(agent)).code == 0


class SlowHandler(FakeHandler):
    """One whose rendezvous is not there yet."""

    async def __aenter__(self) -> FakeHandler:
        await trio.sleep_forever()


async def test_an_agent_that_waits_for_its_rendezvous_to_be_there_listens_to_signals(
    tmp_path: Path,
) -> None:
    async with job(tmp_path) as running:
        running.rendezvous.handler = lambda: SlowHandler(running.rendezvous, "a")  # type: ignore[method-assign]
        agent = running.start("a", signals=(signal.SIGUSR2,))
        await trio.testing.wait_all_tasks_blocked(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (await outcome_of(agent)).code == 128 + signal.SIGUSR2


class AbsentHandler(FakeHandler):
    """One whose rendezvous was not there for as long as it was to be waited for."""

    async def __aenter__(self) -> FakeHandler:
        raise RendezvousConnectionError("nobody answers at nowhere:7400")


async def test_a_rendezvous_that_was_never_there_ends_the_agent_with_what_was_wrong(
    tmp_path: Path,
) -> None:
    async with job(tmp_path) as running:
        running.rendezvous.handler = lambda: AbsentHandler(running.rendezvous, "a")  # type: ignore[method-assign]
        outcome = await outcome_of(running.start("a"))
        assert (outcome.code, outcome.text) == (1, "nobody answers at nowhere:7400")


async def test_a_rendezvous_that_was_there_once_is_tried_again_by_who_comes_back(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, policy="spare") as running:
        make, tries = running.rendezvous.handler, list[int]()

        def handler() -> FakeHandler:
            tries.append(1)
            return AbsentHandler(running.rendezvous, "a") if len(tries) in (2, 3) else make()

        running.rendezvous.handler = handler  # type: ignore[method-assign]
        agent = running.start("a", max_restarts=1)
        (before,) = await running.until_world(1)
        running.order(before, "3")
        (after,) = await running.until(
            lambda found: len(found) == 1 and found[0]["pid"] != before["pid"]
        )
        assert len(tries) == 4
        running.order(after, "0")
        assert (await outcome_of(agent)).code == 0


async def test_cancelling_an_agent_ends_its_workers_and_all_that_they_started(
    tmp_path: Path,
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    settings = ElasticSettings(
        "job", (str(script),), Rules(1, loss_seconds=0.0), log_dir=tmp_path / "logs"
    )
    agent = Agent(settings, FakeRendezvous().handler, SystemEnvironment(), "127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        child = tmp_path / "child"
        await until(
            lambda: child.exists() and child.read_text(), "the worker has a child", every=0.01
        )
        nursery.cancel_scope.cancel()
    assert not lives(int((tmp_path / "child").read_text()))


async def test_the_port_of_rank_0_is_free_for_it_and_for_nobody_who_asks_for_any() -> None:
    reserved = reserve_port()
    others = [reserve_port() for _ in range(200)]
    assert reserved.port not in {other.port for other in others}
    listeners = await trio.open_tcp_listeners(reserved.port, host="127.0.0.1")
    for each in listeners:
        await each.aclose()
    for each in [*others, reserved]:  # type: ignore[assignment]
        each.close()  # type: ignore[attr-defined]
