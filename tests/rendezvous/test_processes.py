"""Real agents, in processes that are killed and stopped, over real stores."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.rendezvous.conftest import BACK_ENDS, QUICK

LIMIT = 30.0
MIN, MAX = 2, 4


@attrs.define(eq=False)
class AgentProcess:
    """One of them, and what it has said."""

    process: trio.Process
    said: list[dict[str, Any]] = attrs.field(factory=list)
    paused: bool = False

    @property
    def round(self) -> int:
        """The latest that it was told of, if it is still in it; -1 if not."""
        last = next(
            (line for line in reversed(self.said) if line["kind"] in ("round", "over")), None
        )
        return int(last["round"]) if last is not None and last["kind"] == "round" else -1


class Fleet:
    """All agents of one job."""

    def __init__(self, nursery: trio.Nursery, backend: str, endpoint: str) -> None:
        self._nursery = nursery
        self._arguments = [backend, endpoint, "job", str(MIN), str(MAX), json.dumps(QUICK)]
        self.agents: list[AgentProcess] = []
        self.everybody: list[AgentProcess] = []
        self._said = trio.Event()

    async def start(self) -> None:
        """One more."""
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.rendezvous.agent_process", *self._arguments],
            stdout=subprocess.PIPE,
            cwd=Path.cwd(),
        )
        agent = AgentProcess(process)
        self.agents.append(agent)
        self.everybody.append(agent)
        self._nursery.start_soon(self._listen, agent)

    async def _listen(self, agent: AgentProcess) -> None:
        assert agent.process.stdout is not None
        text = b""
        async with agent.process.stdout:
            async for data in agent.process.stdout:
                *lines, text = (text + data).split(b"\n")
                agent.said.extend(json.loads(line) for line in lines)
                self._said.set()
                self._said = trio.Event()
        await agent.process.wait()

    async def together(self) -> None:
        """Until all that are alive are in one round, and nobody else is."""
        with trio.move_on_after(LIMIT):
            while not self._is_together():
                await self._said.wait()
            return
        pytest.fail(
            "\n".join(
                f"{agent.process.pid} {agent.paused} {agent.said[-6:]}" for agent in self.agents
            )
        )

    def _is_together(self) -> bool:
        there = [agent for agent in self.agents if not agent.paused]
        rounds = {agent.round for agent in there}
        if len(rounds) != 1 or min(rounds) < 0:
            return False
        worlds = [
            line["world"]
            for agent in there
            for line in agent.said
            if line["kind"] == "round" and line["round"] == min(rounds)
        ]
        return worlds == [len(there)] * len(there)

    def kill(self, agent: AgentProcess) -> None:
        """SIGKILL."""
        agent.process.send_signal(signal.SIGKILL)
        self.agents.remove(agent)

    def end(self) -> None:
        """All of them."""
        for agent in self.everybody:
            if agent.process.returncode is None:
                agent.process.send_signal(signal.SIGKILL)

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        """What anyone has ever said of that kind."""
        return (line for agent in self.everybody for line in agent.said if line["kind"] == kind)

    def check(self) -> int:
        """One map for each round; returns how many there were."""
        maps: dict[int, tuple[str, ...]] = {}
        taken: set[tuple[int, int]] = set()
        for line in self.lines("round"):
            number, participants = line["round"], tuple(line["participants"])
            assert maps.setdefault(number, participants) == participants
            assert MIN <= line["world"] == len(participants) == len(set(participants)) <= MAX
            assert (number, line["rank"]) not in taken
            taken.add((number, line["rank"]))
        assert all(line["won"] for line in self.lines("leader"))
        assert len({line["round"] for line in self.lines("leader")}) == len(
            list(self.lines("leader"))
        )
        assert list(self.lines("error")) == []
        for agent in self.everybody:
            own = [line["round"] for line in agent.said if line["kind"] == "round"]
            assert own == sorted(set(own))
        return len(maps)


async def rounds_of(backend: str, endpoint: str, rounds: int, seed: int) -> None:
    """Kill, start, and stop agents until there have been so many rounds."""
    generator = random.Random(seed)
    async with trio.open_nursery() as nursery:
        fleet = Fleet(nursery, backend, endpoint)
        try:
            for _ in range(3):
                await fleet.start()
            await fleet.together()
            while fleet.check() < rounds:
                kind = generator.choice(["kill", "kill", "start", "pause"])
                if len(fleet.agents) <= MIN or (kind == "start" and len(fleet.agents) < MAX):
                    await fleet.start()
                elif kind == "pause":
                    await paused(fleet, generator.choice(fleet.agents))
                else:
                    fleet.kill(generator.choice(fleet.agents))
                await fleet.together()
        finally:
            fleet.end()


async def paused(fleet: Fleet, agent: AgentProcess) -> None:
    """Stopped until the others have gone on without it."""
    agent.process.send_signal(signal.SIGSTOP)
    agent.paused = True
    await fleet.together()
    agent.process.send_signal(signal.SIGCONT)
    agent.paused = False


IN_SHORT = [
    pytest.param(kind, marks=[] if kind == "understudy" else [pytest.mark.long])
    for kind in BACK_ENDS
]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("kind", IN_SHORT, indirect=True)
async def test_rounds_of_processes_that_are_killed_and_stopped_have_one_map_each(
    kind: str, endpoint: str
) -> None:
    await rounds_of(kind.split()[0], endpoint, 5, 1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_fifty_rounds_of_processes_have_one_map_each(kind: str, endpoint: str) -> None:
    await rounds_of(kind.split()[0], endpoint, 50, 2)
