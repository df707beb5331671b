"""A rendezvous for agents that live in one event loop: complete as soon as enough are there, and
dropped or cut off at will.
"""

from __future__ import annotations

import attrs
import trio

from runtime.environment import SystemEnvironment
from runtime.rendezvous.interface import KeyValueStore, RendezvousChange, RendezvousInfo
from runtime.rendezvous.job_store import JobStore, Scope
from runtime.rendezvous.parameters import (
    RendezvousClosedError,
    RendezvousFinishedError,
    RendezvousGracefulExitError,
)
from runtime.store.embedded_store import EmbeddedStore


def memory_store() -> JobStore:
    """A job's store in this process; nothing in it has a lease, so nothing needs to run for it."""
    environment = SystemEnvironment()
    return JobStore(Scope(EmbeddedStore(environment), environment, "job/", lease=0))


@attrs.define(eq=False, slots=False)
class FakeRendezvous:
    """What all handlers share."""

    least: int = 1
    most: int = 8
    store: JobStore = attrs.field(factory=memory_store)
    round: int = -1
    roster: list[str] = attrs.field(factory=list)
    present: set[str] = attrs.field(factory=set)
    waiting: list[str] = attrs.field(factory=list)
    closed: str = ""
    finished: bool = False
    made: int = 0
    changed: trio.Event = attrs.field(factory=trio.Event)
    rounds: list[tuple[str, ...]] = attrs.field(factory=list)

    @property
    def job_store(self) -> KeyValueStore:
        return self.store.prefixed("job")

    def handler(self) -> FakeHandler:
        self.made += 1
        return FakeHandler(self, f"agent-{self.made - 1}")

    def touch(self) -> None:
        if not self.present and len(self.waiting) >= self.least and not self.closed:
            before = [name for name in self.waiting if name in self.roster]
            queue = before + [name for name in self.waiting if name not in before]
            self.roster, self.waiting = queue[: self.most], queue[self.most :]
            self.present = set(self.roster)
            self.round += 1
            self.rounds.append(tuple(self.roster))
        self.changed.set()
        self.changed = trio.Event()

    def drop(self, name: str) -> None:
        """Its lease has ended."""
        self.present.discard(name)
        if name in self.waiting:
            self.waiting.remove(name)
        self.touch()


class FakeHandler:
    def __init__(self, shared: FakeRendezvous, name: str) -> None:
        self._shared = shared
        self.name = name
        self._told: set[str] = set()
        self._told_waiting: set[str] = set()
        self._told_closed = False

    async def __aenter__(self) -> FakeHandler:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._shared.drop(self.name)

    def get_backend(self) -> str:
        return "fake"

    def get_run_id(self) -> str:
        return "job"

    @property
    def use_agent_store(self) -> bool:
        return False

    async def next_rendezvous(self) -> RendezvousInfo:
        shared = self._shared
        await trio.lowlevel.checkpoint()
        before = shared.round if self.name in shared.roster else -1
        shared.present.discard(self.name)
        shared.waiting.append(self.name)
        shared.touch()
        try:
            while not (self.name in shared.present and shared.round > before):
                if shared.closed:
                    spare = self.name in shared.waiting
                    kind = (
                        RendezvousGracefulExitError
                        if spare
                        else RendezvousFinishedError
                        if shared.finished
                        else RendezvousClosedError
                    )
                    raise kind(f"the rendezvous is closed: {shared.closed} (job 'job')")
                await shared.changed.wait()
        except BaseException:
            shared.drop(self.name)
            raise
        self._told, self._told_waiting = set(), set()
        return RendezvousInfo(
            shared.store.prefixed(f"rounds/{shared.round}"),
            shared.roster.index(self.name),
            len(shared.roster),
            round=shared.round,
            participants=tuple(shared.roster),
            job_store=shared.job_store,
        )

    async def is_closed(self) -> bool:
        return bool(self._shared.closed)

    async def set_closed(self, reason: str = "", *, finished: bool = False) -> None:
        if not self._shared.closed:
            self._shared.closed, self._shared.finished = reason, finished
        self._shared.touch()

    async def num_nodes_waiting(self) -> int:
        return len(self._shared.waiting)

    async def wait_change(self, after: int) -> RendezvousChange:
        shared = self._shared
        while True:
            await trio.lowlevel.checkpoint()
            left = tuple(
                name
                for name in shared.roster
                if name not in shared.present and name not in self._told
            )
            joined = [name for name in shared.waiting if name not in shared.roster]
            room = len(shared.present) < shared.most
            new = {name for name in joined if room} - self._told_waiting
            closed = shared.closed if not self._told_closed else ""
            if after == shared.round and (left or new or closed):
                self._told |= set(left)
                self._told_waiting |= new
                self._told_closed |= bool(closed)
                finished = bool(closed) and shared.finished
                return RendezvousChange(
                    after, left, tuple(new), len(joined) if room else 0, closed, finished
                )
            await shared.changed.wait()

    async def shutdown(self) -> bool:
        await self.set_closed("shut down")
        return True
