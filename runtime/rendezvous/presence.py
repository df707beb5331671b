"""An agent's record in the store: registered under a lease, renewed, and valid only as long as the
agent's own clock allows.
"""

from __future__ import annotations

import logging
import math
import socket

import trio

from actors.errors import LeaseLostError, StoreError
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.membership.lease import LeaseClock
from runtime.rendezvous.machine import AgentRecord, Keys, encode_agent
from runtime.rendezvous.parameters import AgentSettings, RendezvousStateError
from runtime.rendezvous.view import RENDEZVOUS_RETRY_SECONDS, View
from runtime.store.interface import Compare, Put, Store

logger = own_logger("understudy.rendezvous")


class Presence:
    """This agent's registration. `run` renews its lease and notifies `view` when the lease is in
    doubt. An agent whose lease has ended registers again under another name.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        settings: AgentSettings,
        environment: Environment,
        view: View,
    ) -> None:
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
        self.silent_since = math.inf
        """Since when the store has answered no renewal at all, on this agent's clock. Its watch
        cannot show that: it waits for as long as nothing changes.
        """
        self.job_lease = 0
        """The lease of the job's data. Each agent of the job renews it."""

    def is_held(self) -> bool:
        """True while no other agent can regard this agent as dead, by its own clock."""
        return self._clock is not None and self._clock.is_held(self._environment.now())

    @property
    def doubtful_at(self) -> float:
        """The time at which `is_held` becomes False, unless the lease is renewed before."""
        return self._clock.doubtful_at if self._clock is not None else 0.0

    async def register(self) -> None:
        """Register this agent under a new name. Raises `StoreError`."""
        environment = self._environment
        address = self._settings.parameters.local_addr or socket.gethostname()
        name = f"{address}:{environment.process().pid}:{environment.token(4).hex()}".replace(
            "/", "-"
        )
        # Taken before the request: the store counts the lease's time from a later moment. So this
        # agent stops relying on the lease before the store can end it.
        asked = environment.now()
        lease = await self._store.grant(self._settings.lease_seconds)
        key = self._keys.agent(name)
        record = AgentRecord(environment.process(), lease)
        result = await self._store.transaction(
            [Compare(key, "create_revision", 0)], [Put(key, encode_agent(record), lease)]
        )
        await self._view.caught_up(result.revision)
        # After the view has the record: `_present` takes an agent that the view lacks for a dead
        # one, and would register it a second time.
        self.name, self.lease = name, lease
        self._clock = LeaseClock(
            environment.timings.held_share * self._settings.lease_seconds, asked
        )
        self._registered.set()

    async def run(self) -> None:
        """Renew the leases, and revoke those of agents of this host whose processes have ended,
        until cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew)
            nursery.start_soon(self._renew_job)
            nursery.start_soon(self._look_for_ended)

    async def _renew(self) -> None:
        await self._registered.wait()
        while True:
            renewed = self._clock is not None and await self._renewed(self.lease)
            await trio.sleep(
                self._settings.keep_alive_interval
                if renewed
                else min(RENDEZVOUS_RETRY_SECONDS, self._settings.keep_alive_interval / 3)
            )

    async def _renewed(self, lease: int) -> bool:
        asked, clock = self._environment.now(), self._clock
        was_held = self.is_held()
        try:
            # Early enough for a second attempt before the lease is in doubt.
            with trio.fail_after(
                min(self._settings.timeout.heartbeat, self._settings.keep_alive_interval / 2)
            ):
                await self._store.keep_alive(lease)
        except LeaseLostError:
            # During the request the agent may have registered again; then an older lease was lost.
            if clock is not None and clock is self._clock:
                logger.warning(
                    "the lease of agent %s has ended: other agents treat it as dead", self.name
                )
                self._clock = None
                self._view.notify()
            return False
        except (StoreError, trio.TooSlowError) as error:
            if isinstance(error, trio.TooSlowError):
                self.silent_since = min(self.silent_since, asked)
                # Who waits for a round looks whether that is too long.
                self._view.notify()
            else:
                self.silent_since = math.inf
            level = logging.DEBUG if self._failing else logging.WARNING
            logger.log(
                level,
                "could not renew the lease of agent %s: %s",
                self.name,
                str(error) or "no answer in time",
            )
            self._failing = True
            # `wait_change` then reports this agent as one that has left its round.
            if was_held != self.is_held():
                self._view.notify()
            return False
        self._failing, self.silent_since = False, math.inf
        if clock is not None:
            # By the time of the request, not of the answer, as in `register`.
            clock.on_renewed(asked)
        return True

    async def _renew_job(self) -> None:
        while True:
            # Three renewals in the lease's time, so that one may fail.
            await trio.sleep(min(self._settings.retention / 3, 60.0))
            if self.job_lease:
                try:
                    await self._store.keep_alive(self.job_lease)
                except StoreError as error:
                    logger.debug("could not renew the lease of the job's stores: %s", error)

    async def _look_for_ended(self) -> None:
        """Revoke the lease of an agent of this host whose process has ended, so that the others
        need not wait for the lease's end.
        """
        while True:
            await trio.sleep(min(1.0, self._settings.keep_alive_interval))
            try:
                for name, record in self._view.agents().items():
                    if name != self.name and self._environment.has_ended(record.process):
                        await self._store.revoke(record.lease)
            except (StoreError, RendezvousStateError) as error:
                logger.debug("could not revoke the lease of an agent that has ended: %s", error)

    def stop_renewing(self) -> None:
        """Renew the lease no more. It is held no longer from now on, by this agent's clock."""
        self._clock = None
