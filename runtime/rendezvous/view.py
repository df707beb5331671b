"""What one agent knows of its rendezvous: the state and the agents, in the order in which the store changed them."""

from __future__ import annotations

import logging
import math

import trio

from actors.errors import StoreCompactedError, StoreError
from runtime.environment import Environment
from runtime.rendezvous.state import AgentRecord, Keys, State, decode_agent, decode_state
from runtime.store.interface import Entry, Store

ASK_AGAIN = 0.5
"""Seconds between two attempts while the store is away."""

logger = logging.getLogger("understudy.rendezvous")


class View:
    """`run` keeps it up to date. `revision`: it holds all that happened up to this revision of the store."""

    def __init__(self, store: Store, keys: Keys, environment: Environment) -> None:
        self._store = store
        self._keys = keys
        self._environment = environment
        self._agents: dict[str, Entry] = {}
        self._state: Entry | None = None
        self.revision = 0
        self.away_since = math.inf
        """When the store stopped to answer, by this agent's clock."""
        self.changed = trio.Event()
        """Set at the next change; another one takes its place then."""

    @property
    def state_revision(self) -> int:
        """Which the state was written at; 0 if there is none."""
        return self._state.mod_revision if self._state is not None else 0

    def state(self) -> State | None:
        """The state, if there is one. Raises `RendezvousStateError`."""
        return decode_state(self._state.value, self._keys.state) if self._state is not None else None

    def agents(self) -> dict[str, AgentRecord]:
        """Those who are alive, by name. Raises `RendezvousStateError`."""
        return {name: decode_agent(entry.value, entry.key) for name, entry in self._agents.items()}

    @property
    def alive(self) -> frozenset[str]:
        """Their names."""
        return frozenset(self._agents)

    def tell(self) -> None:
        """Wake those who wait for a change."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def refresh(self) -> None:
        """Bring it up to this moment. Raises `StoreError`."""
        found = await self._store.range(self._keys.control)
        if found.revision < self.revision:
            return
        self._agents, self._state = {}, None
        for entry in found.entries:
            self._put(entry)
        self.revision = found.revision
        self.away_since = math.inf
        self.tell()

    async def caught_up(self, revision: int) -> None:
        """Wait until it holds everything up to `revision`. Raises `StoreError`."""
        if self.revision < revision:
            await self.refresh()

    async def run(self) -> None:
        """Follow the store for ever, from `revision` on. A store that is away leaves the view as it is."""
        while True:
            try:
                batch = await self._store.poll(self._keys.control, self.revision + 1)
            except StoreCompactedError:
                await self._refresh_or_wait()
                continue
            except StoreError as error:
                await self._away(error)
                continue
            self.away_since = math.inf
            for event in batch.events:
                if event.revision > self.revision:
                    if event.kind == "put":
                        self._put(Entry(event.key, event.value, event.create_revision, event.revision))
                    else:
                        self._take_out(event.key)
            if batch.revision > self.revision:
                self.revision = batch.revision
                self.tell()

    async def _refresh_or_wait(self) -> None:
        try:
            await self.refresh()
        except StoreError as error:
            await self._away(error)

    async def _away(self, error: StoreError) -> None:
        if self.away_since == math.inf:
            logger.warning("the store of the rendezvous is away: %s", error)
            self.away_since = self._environment.now()
        self.tell()
        await trio.sleep(ASK_AGAIN * (0.5 + self._environment.random()))

    def _put(self, entry: Entry) -> None:
        if entry.key == self._keys.state:
            self._state = entry
        elif entry.key.startswith(self._keys.agents):
            self._agents[entry.key.removeprefix(self._keys.agents)] = entry
        else:
            logger.debug("nobody here knows what %r is for; a later version may", entry.key)

    def _take_out(self, key: str) -> None:
        if key == self._keys.state:
            self._state = None
        else:
            self._agents.pop(key.removeprefix(self._keys.agents), None)
