"""Many agents in one loop, on a virtual clock: they join, leave, die and are cut off at random. An
oracle sees what they are told.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

from actors.errors import StoreOutcomeUnknownError, StoreUnavailableError
from runtime.environment import SystemEnvironment
from runtime.rendezvous.handler import StoreHandler
from runtime.rendezvous.interface import RendezvousInfo
from runtime.rendezvous.parameters import (
    AgentSettings,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
    RoundOverError,
)
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import (
    Compare,
    Entry,
    Operation,
    RangeResult,
    Store,
    TransactionResult,
    WatchBatch,
)

T = TypeVar("T")


class SeededEnvironment(SystemEnvironment):
    """All chance of an agent, from one seed."""

    def __init__(self, generator: random.Random) -> None:
        super().__init__()
        self._generator = generator

    def token(self, size: int) -> bytes:
        return self._generator.randbytes(size)


class FarStore(Store):
    """A store at the end of a network: calls take time, and while it is `cut` they fail, or their
    answers are lost.
    """

    def __init__(self, store: Store, generator: random.Random) -> None:
        self._store = store
        self._generator = generator
        self.cut = False

    async def _far(self, call: Callable[[], Awaitable[T]], *, reads: bool = False) -> T:
        await trio.sleep(self._generator.random() * 0.02)
        if self.cut:
            await trio.sleep(self._generator.random())
            raise StoreUnavailableError("cut")
        answer = await call()
        await trio.sleep(self._generator.random() * 0.02)
        if self.cut:
            # Of a read nothing is in doubt.
            lost = "cut while the answer came"
            raise StoreUnavailableError(lost) if reads else StoreOutcomeUnknownError(lost)
        return answer

    async def get(self, key: str) -> Entry | None:
        return await self._far(lambda: self._store.get(key), reads=True)

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        return await self._far(lambda: self._store.range(prefix, limit), reads=True)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._far(lambda: self._store.put(key, value, lease))

    async def delete(self, key: str) -> bool:
        return await self._far(lambda: self._store.delete(key))

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        return await self._far(lambda: self._store.transaction(compare, then, otherwise))

    async def grant(self, ttl: float) -> int:
        return await self._far(lambda: self._store.grant(ttl))

    async def keep_alive(self, lease: int) -> float:
        return await self._far(lambda: self._store.keep_alive(lease))

    async def time_to_live(self, lease: int) -> float:
        return await self._far(lambda: self._store.time_to_live(lease), reads=True)

    async def revoke(self, lease: int) -> None:
        await self._far(lambda: self._store.revoke(lease))

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        return await self._far(lambda: self._store.poll(prefix, from_revision), reads=True)


@attrs.define(eq=False)
class Agent:
    """One that lives in the world. `active`: the round that its workers run in, 0 if they do not
    run.
    """

    store: FarStore
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    active: int = -1
    dead: bool = False


class World:
    """`rounds` grows until the director has seen enough."""

    def __init__(self, seed: int, min_nodes: int, max_nodes: int, last_call: float) -> None:
        self.random = random.Random(seed)
        self._nodes = (min_nodes, max_nodes)
        self._last_call = last_call
        self._maps: dict[int, dict[int, str]] = {}
        self._rosters: dict[int, tuple[str, ...]] = {}
        self._agents: list[Agent] = []
        self.deaths = self.cuts = self.leaves = 0

    @property
    def rounds(self) -> int:
        """How many have been seen."""
        return len(self._rosters)

    async def run(self, rounds: int) -> None:
        """Until so many rounds have been complete."""
        environment = SeededEnvironment(self.random)
        store = EmbeddedStore(environment)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for _ in range(self._nodes[1]):
                nursery.start_soon(self._live, store, environment)
            while self.rounds < rounds:
                await trio.sleep(self.random.expovariate(1 / 4))
                self._disturb(nursery, store, environment)
            nursery.cancel_scope.cancel()

    def _disturb(self, nursery: trio.Nursery, store: Store, environment: SeededEnvironment) -> None:
        alive = [agent for agent in self._agents if not agent.dead]
        kind = self.random.choice(["join", "join", "leave", "die", "die", "cut"])
        if kind == "join" or len(alive) <= self._nodes[0]:
            if len(alive) < self._nodes[1] + 2:
                nursery.start_soon(self._live, store, environment)
            return
        agent = self.random.choice(alive)
        if kind == "leave":
            self.leaves += 1
            agent.scope.cancel()
        elif kind == "die":
            # What it could still say does not get through: it is gone without a word.
            self.deaths += 1
            agent.dead, agent.store.cut = True, True
            agent.active = -1
            agent.scope.cancel()
        elif not agent.store.cut:
            self.cuts += 1
            nursery.start_soon(self._cut_for, agent, self.random.choice([1.0, 8.0, 14.0, 30.0]))

    async def _cut_for(self, agent: Agent, seconds: float) -> None:
        agent.store.cut = True
        await trio.sleep(seconds)
        agent.store.cut = agent.dead

    async def _live(self, store: Store, environment: SeededEnvironment) -> None:
        agent = Agent(FarStore(store, self.random))
        self._agents.append(agent)
        options: dict[str, Any] = {
            "last_call_timeout": self._last_call,
            "join_timeout": 60,
            "retention": 10_000,
        }
        settings = AgentSettings.of(
            RendezvousParameters("file", "nowhere", "job", *self._nodes, **options)
        )

        @asynccontextmanager
        async def open_store() -> AsyncIterator[Store]:
            yield agent.store

        try:
            with agent.scope:
                async with StoreHandler(settings, environment, open_store) as handler:
                    try:
                        await self._take_part(agent, handler)
                    finally:
                        # Workers are stopped before their agent leaves.
                        agent.active = -1
        finally:
            self._agents.remove(agent)

    async def _take_part(self, agent: Agent, handler: StoreHandler) -> None:
        previous: RendezvousInfo | None = None
        while True:
            try:
                info = await handler.next_rendezvous()
            except (RendezvousTimeoutError, RendezvousConnectionError):
                continue
            self._check(agent, info, handler.name)
            if previous is not None:
                assert info.round > previous.round
                await self._is_refused(previous)
            previous = info
            await self._lead(info)
            await self._work(agent, handler, info)

    async def _work(self, agent: Agent, handler: StoreHandler, info: RendezvousInfo) -> None:
        """Until something happens to the round; then its workers are stopped, which takes no time
        here.
        """
        change = await handler.wait_change(info.round)
        assert change.round == info.round
        assert change.left or change.joined or change.waiting
        agent.active = -1

    async def _is_refused(self, old: RendezvousInfo) -> None:
        try:
            await old.store.set("late", b"")
        except RoundOverError:
            return
        except RendezvousConnectionError:
            return
        raise AssertionError(f"the store of round {old.round} took a write after its end")

    async def _lead(self, info: RendezvousInfo) -> None:
        if info.rank == 0:
            try:
                won, _ = await info.store.compare_set("leader", None, b"")
            except (RoundOverError, RendezvousConnectionError):
                return
            assert won, f"round {info.round} has two leaders"

    def _check(self, agent: Agent, info: RendezvousInfo, name: str) -> None:
        """One map per round; ranks dense and unique; nobody works in an older round any more."""
        assert self._rosters.setdefault(info.round, info.participants) == info.participants
        assert self._nodes[0] <= info.world_size <= self._nodes[1]
        assert info.world_size == len(info.participants) == len(set(info.participants))
        assert info.participants[info.rank] == name
        assert self._maps.setdefault(info.round, {}).setdefault(info.rank, name) == name
        newest = max(self._rosters)
        if info.round == newest:
            agent.active = info.round
            old = [other.active for other in self._agents if -1 < other.active < newest]
            assert not old, f"round {newest} has begun, and there are workers of {old}"
