"""Agents of torch in our rendezvous, without torch: who meets where, who is told of what, and who
closes what.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from runtime.elastic import guardian
from runtime.environment import SystemEnvironment
from runtime.rendezvous.parameters import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
    RoundOverError,
    StoreTimeoutError,
)
from runtime.rendezvous.registry import create_handler
from runtime.torchrun.agent import (
    AgentLostError,
    Guard,
    Round,
    TorchAgent,
    is_guarded,
    parameters_of,
)
from tests.waiting import until

QUICK = {"last_call_timeout": 0.3, "keep_alive_interval": 0.5, "join_timeout": 20}
LIMIT = 50.0


@attrs.define
class Server:
    """Serves nothing."""

    port: int


class World:
    """Agents of one job, over a directory."""

    def __init__(self, place: Path, **options: object) -> None:
        self._place = place
        self._options = {**QUICK, **options}
        self.served: list[Server] = []

    def parameters(self, least: int, most: int) -> RendezvousParameters:
        return parameters_of(str(self._place), "job", least, most, None, self._options)

    def serve(self, address: str) -> Server:
        self.served.append(Server(50_000 + len(self.served)))
        return self.served[-1]

    @asynccontextmanager
    async def agent(self, least: int = 1, most: int = 3) -> AsyncIterator[TorchAgent]:
        environment = SystemEnvironment()
        parameters = self.parameters(least, most)
        agent = TorchAgent(
            lambda: create_handler(parameters, environment),
            self.serve,
            environment,
            "10.1.2.3",
            LIMIT,
            60.0,
        )
        stopping = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run, stopping)  # noqa: ASYNC113  the next line waits for it
            await trio.testing.wait_all_tasks_blocked()
            try:
                yield agent
            finally:
                stopping.set()


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a guardian watched this process: its agents start no guardian."""
    monkeypatch.setenv(guardian.MARK, "tests/0/0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def together(*agents: TorchAgent) -> list[Round]:
    """Each of them in its next round."""
    found: dict[TorchAgent, Round] = {}

    async def join(agent: TorchAgent) -> None:
        found[agent] = await agent.next_round()

    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for agent in agents:
                nursery.start_soon(join, agent)
    return [found[agent] for agent in agents]


async def until_reason(agent: TorchAgent) -> None:
    """Until there is one for another round."""
    await until(agent.waiting, "one waits for another round")
    assert await agent.waiting() == 1


async def test_all_agents_of_a_round_learn_where_its_workers_meet(tmp_path: Path) -> None:
    # A busy machine that stands still for a second or two loses none of them.
    world = World(tmp_path, keep_alive_interval=10)
    async with world.agent(2) as first, world.agent(2) as second:
        rounds = await together(first, second)
        assert sorted(each.info.rank for each in rounds) == [0, 1]
        assert {(each.info.world_size, each.address, each.port) for each in rounds} == {
            (2, "10.1.2.3", 50_000)
        }
        assert [await first.waiting(), await second.waiting()] == [0, 0]


async def test_each_round_has_a_store_of_its_own_for_its_workers(world: World) -> None:
    async with world.agent(2) as first, world.agent(2) as second:
        for number in range(3):
            assert {each.port for each in await together(first, second)} == {50_000 + number}


async def test_an_agent_that_leaves_is_a_reason_for_another_round(world: World) -> None:
    async with world.agent() as first:
        async with world.agent() as second:
            await together(first, second)
        await until_reason(first)
        assert [each.info.world_size for each in await together(first)] == [1]
        assert await first.waiting() == 0


async def test_an_agent_that_comes_is_one_as_well(world: World) -> None:
    async with world.agent() as first, world.agent() as second, trio.open_nursery() as nursery:
        await together(first)
        nursery.start_soon(second.next_round)
        await until_reason(first)
        assert [each.info.world_size for each in await together(first)] == [2]


async def test_an_agent_that_is_lost_before_all_are_here_costs_another_attempt_and_no_failure(
    world: World,
) -> None:
    found: list[Round] = []

    async with world.agent(1, 2) as first:
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:

                async def join() -> None:
                    found.append(await first.next_round())

                # One that comes into the round, and goes before it has said that it is here.
                async with create_handler(world.parameters(1, 2)) as other:
                    nursery.start_soon(join)
                    assert (await other.next_rendezvous()).world_size == 2
        assert (found[0].info.world_size, found[0].info.round) == (1, 1)


async def test_who_waits_in_the_store_hears_of_an_agent_that_has_gone(world: World) -> None:
    async with world.agent() as first:
        async with world.agent() as second:
            mine, _ = await together(first, second)
            await second.store_call(mine, lambda store: store.set("early", b"1"))
        with pytest.raises(AgentLostError, match="is gone"), trio.fail_after(LIMIT):
            await first.store_call(mine, lambda store: store.get("never", timeout=300))
        assert await first.store_call(mine, lambda store: store.get("early")) == b"1", (
            "what is there is there"
        )


async def test_an_agent_that_ends_because_another_was_lost_does_not_close_the_rendezvous(
    world: World,
) -> None:
    async with world.agent() as first:
        async with world.agent() as second:
            mine, _ = await together(first, second)
        with pytest.raises(AgentLostError):
            await first.store_call(
                mine, lambda store: store.wait(["the exit barrier"], timeout=300)
            )
        assert await first.shut_down()
    async with world.agent() as third:
        assert [each.info.world_size for each in await together(third)] == [1]


async def test_an_agent_whose_part_is_done_closes_it_for_all(world: World) -> None:
    async with world.agent() as first, world.agent() as second:
        await together(first, second)
        assert await first.shut_down()
        await until(second.is_closed, "the second is closed")
        # Its workers are as good as before, and no round can follow.
        assert await second.waiting() == 0
        with pytest.raises(RendezvousClosedError):
            await second.next_round()


async def test_a_call_that_takes_too_long_is_a_timeout_and_no_reason_to_leave_the_rendezvous_open(
    world: World,
) -> None:
    async with world.agent() as first:
        (mine,) = await together(first)
        with pytest.raises(StoreTimeoutError):
            await first.store_call(mine, lambda store: store.get("never", timeout=0.05))
        await first.shut_down()
    async with world.agent() as late:
        with pytest.raises(RendezvousClosedError):
            await late.next_round()


async def test_the_store_of_a_round_takes_nothing_once_another_has_begun(world: World) -> None:
    async with world.agent() as first:
        (old,) = await together(first)
        await together(first)
        with pytest.raises(RoundOverError):
            await first.store_call(old, lambda store: store.set("key", b""))


async def test_too_few_agents_are_a_timeout(tmp_path: Path) -> None:
    async with World(tmp_path, join_timeout=0.5).agent(2) as alone:
        with pytest.raises(RendezvousTimeoutError):
            await alone.next_round()


async def test_a_rendezvous_that_is_not_there_is_waited_for_and_then_an_error(
    tmp_path: Path,
) -> None:
    environment = SystemEnvironment()
    parameters = parameters_of("127.0.0.1:9", "job", 1, 1, None, {**QUICK, "connect_timeout": 0.5})
    agent = TorchAgent(
        lambda: create_handler(parameters, environment),
        lambda _: Server(1),
        environment,
        "10.1.2.3",
        0.5,
        60.0,
    )
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run, stopping)  # noqa: ASYNC113  the next line waits for it
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RendezvousConnectionError, match=r"127\.0\.0\.1:9"):
            await agent.next_round()
        stopping.set()


async def test_what_a_process_starts_is_marked_while_it_is_guarded_and_killed_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(guardian.MARK)
    guard = Guard(SystemEnvironment(), "a mark of its own", 1.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.beat)
        assert is_guarded()
        # it has no part in the nursery
        worker = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: ASYNC220
        # Beats go on until the end, and not on a descriptor that is closed.
        await trio.sleep(1.6)
        assert worker.poll() is None
        await guard.aclose()
    assert not is_guarded()
    assert worker.wait(LIMIT) == -9


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_environment() -> Iterator[None]:
    yield
    assert os.environ.get(guardian.MARK, "tests/0/0") == "tests/0/0"
