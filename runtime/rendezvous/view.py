"""An agent's view of its rendezvous: the state and the agents, in the order in which the store
changed.
"""

from __future__ import annotations

import math

import trio

from actors.errors import StoreCompactedError, StoreError
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.rendezvous.machine import AgentRecord, Keys, State, decode_agent, decode_state
from runtime.store.interface import Entry, Store

logger = own_logger("understudy.rendezvous")


RENDEZVOUS_RETRY_SECONDS = 0.5
"""Seconds between two attempts while the store cannot be reached."""


class View:
    """The view, kept up to date by `run`. `revision`: the view holds everything up to this revision
    of the store.
    """

    def __init__(self, store: Store, keys: Keys, environment: Environment) -> None:
        self._store = store
        self._keys = keys
        self._environment = environment
        self._agents: dict[str, Entry] = {}
        self._state: Entry | None = None
        self.revision = 0
        self.away_since = math.inf
        """Since when the store has not answered, on this agent's clock."""
        self.changed = trio.Event()
        """Set at the next change, and then replaced."""

    @property
    def state_revision(self) -> int:
        """The revision at which the state was written; 0 if there is none."""
        return self._state.mod_revision if self._state is not None else 0

    def state(self) -> State | None:
        """The state, if there is one. Raises `RendezvousStateError`."""
        return (
            decode_state(self._state.value, self._keys.state) if self._state is not None else None
        )

    def agents(self) -> dict[str, AgentRecord]:
        """Return the live agents, by name. Raises `RendezvousStateError`."""
        return {name: decode_agent(entry.value, entry.key) for name, entry in self._agents.items()}

    @property
    def alive(self) -> frozenset[str]:
        """The names of the live agents."""
        return frozenset(self._agents)

    def notify(self) -> None:
        """Wake the tasks that wait for a change."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def refresh(self) -> None:
        """Update the view to the present state. Raises `StoreError`."""
        found = await self._store.range(self._keys.control)
        # The watch was faster: the view is newer than what was read.
        if found.revision < self.revision:
            return
        self._agents, self._state = {}, None
        for entry in found.entries:
            self._put(entry)
        self.revision = found.revision
        self.away_since = math.inf
        self.notify()

    async def caught_up(self, revision: int) -> None:
        """Wait until the view holds everything up to `revision`. Raises `StoreError`."""
        if self.revision < revision:
            await self.refresh()

    async def run(self) -> None:
        """Follow the store from `revision` on, until cancelled. While the store cannot be reached,
        the view stays as it is.
        """
        while True:
            try:
                batch = await self._store.poll(self._keys.control, self.revision + 1)
            # What changed in between is no longer in the store's history, so the whole state is
            # read again.
            except StoreCompactedError:
                await self._refresh_or_wait()
                continue
            except StoreError as error:
                await self._away(error)
                continue
            self.away_since = math.inf
            for event in batch.events:
                # A refresh while the poll was waiting may have read beyond these events.
                if event.revision > self.revision:
                    if event.kind == "put":
                        self._put(
                            Entry(event.key, event.value, event.create_revision, event.revision)
                        )
                    else:
                        self._take_out(event.key)
            if batch.revision > self.revision:
                self.revision = batch.revision
                self.notify()

    async def _refresh_or_wait(self) -> None:
        try:
            await self.refresh()
        except StoreError as error:
            await self._away(error)

    async def _away(self, error: StoreError) -> None:
        if self.away_since == math.inf:
            logger.warning("the store of the rendezvous does not answer: %s", error)
            self.away_since = self._environment.now()
        self.notify()
        await trio.sleep(RENDEZVOUS_RETRY_SECONDS * (0.5 + self._environment.random()))

    def _put(self, entry: Entry) -> None:
        if entry.key == self._keys.state:
            self._state = entry
        elif entry.key.startswith(self._keys.agents):
            self._agents[entry.key.removeprefix(self._keys.agents)] = entry
        else:
            logger.debug("ignoring the unknown key %r; a later version may know it", entry.key)

    def _take_out(self, key: str) -> None:
        if key == self._keys.state:
            self._state = None
        else:
            self._agents.pop(key.removeprefix(self._keys.agents), None)
