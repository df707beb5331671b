"""One agent's record in the store: registered under a lease, renewed, and relied upon only as long as its own clock allows."""

from __future__ import annotations

import logging
import socket

import trio

from actors.errors import LeaseLostError, StoreError
from runtime.environment import Environment
from runtime.membership.lease import LeaseClock
from runtime.rendezvous.errors import RendezvousStateError
from runtime.rendezvous.parameters import AgentSettings
from runtime.rendezvous.state import AgentRecord, Keys, encode_agent
from runtime.rendezvous.view import ASK_AGAIN, View
from runtime.store.interface import Compare, Put, Store

logger = logging.getLogger("understudy.rendezvous")


class Presence:
    """`run` renews the lease; `view` is told when it is in doubt. An agent that lost its lease is registered again under another name."""

    def __init__(self, store: Store, keys: Keys, settings: AgentSettings, environment: Environment, view: View) -> None:
        self._store = store
        self._keys = keys
        self._settings = settings
        self._environment = environment
        self._view = view
        self._clock: LeaseClock | None = None
        self._registered = trio.Event()
        self._failing = False
        self.name = ""
        self.lease = 0
        self.job_lease = 0
        """What the job leaves behind is tied to it; renewed by each of its agents."""

    def is_held(self) -> bool:
        """True while nobody else can take this agent for dead, by its own clock."""
        return self._clock is not None and self._clock.is_held(self._environment.now())

    @property
    def doubtful_at(self) -> float:
        """When that ends, unless the lease is renewed before."""
        return self._clock.doubtful_at if self._clock is not None else 0.0

    async def register(self) -> None:
        """Be there, under a new name. Raises `StoreError`."""
        environment = self._environment
        address = self._settings.parameters.local_addr or socket.gethostname()
        name = f"{address}:{environment.process().pid}:{environment.token(4).hex()}".replace("/", "-")
        asked = environment.now()
        lease = await self._store.grant(self._settings.lease_seconds)
        key = self._keys.agent(name)
        record = AgentRecord(environment.process(), lease)
        result = await self._store.transaction([Compare(key, "create_revision", 0)], [Put(key, encode_agent(record), lease)])
        await self._view.caught_up(result.revision)
        self.name, self.lease = name, lease
        self._clock = LeaseClock(self._settings.lease_seconds, asked)
        self._registered.set()

    async def run(self) -> None:
        """Renew what is held, and look after agents of this host whose processes have ended, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew)
            nursery.start_soon(self._renew_job)
            nursery.start_soon(self._look_for_ended)

    async def _renew(self) -> None:
        await self._registered.wait()
        while True:
            renewed = self._clock is not None and await self._renewed(self.lease)
            await trio.sleep(self._settings.keep_alive_interval if renewed else min(ASK_AGAIN, self._settings.keep_alive_interval / 3))

    async def _renewed(self, lease: int) -> bool:
        asked, clock = self._environment.now(), self._clock
        was_held = self.is_held()
        try:
            # So that a second attempt comes before the lease is in doubt.
            with trio.fail_after(min(self._settings.timeout.heartbeat, self._settings.keep_alive_interval / 2)):
                await self._store.keep_alive(lease)
        except LeaseLostError:
            if clock is not None and clock is self._clock:
                logger.warning("the lease of agent %s has ended: others take it for dead", self.name)
                self._clock = None
                self._view.tell()
            return False
        except (StoreError, trio.TooSlowError) as error:
            level = logging.DEBUG if self._failing else logging.WARNING
            logger.log(level, "the lease of agent %s could not be renewed: %s", self.name, str(error) or "no answer came in time")
            self._failing = True
            if was_held != self.is_held():
                self._view.tell()
            return False
        self._failing = False
        if clock is not None:
            clock.renewed(asked)
        return True

    async def _renew_job(self) -> None:
        while True:
            await trio.sleep(min(self._settings.retention / 3, 60.0))
            if self.job_lease:
                try:
                    await self._store.keep_alive(self.job_lease)
                except StoreError as error:
                    logger.debug("the lease of what the job leaves behind could not be renewed: %s", error)

    async def _look_for_ended(self) -> None:
        """A process of this host that has ended needs no lease to run out: its lease is revoked, as for a node."""
        while True:
            await trio.sleep(min(1.0, self._settings.keep_alive_interval))
            try:
                for name, record in self._view.agents().items():
                    if name != self.name and self._environment.has_ended(record.process):
                        await self._store.revoke(record.lease)
            except (StoreError, RendezvousStateError) as error:
                logger.debug("the lease of an agent that has ended could not be revoked: %s", error)

    def gone(self) -> None:
        """Nothing is renewed any more."""
        self._clock = None
