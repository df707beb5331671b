"""The embedded store: the machine in memory, on its node's clock, with polls that wait.

It ends with its node: high availability is etcd's job.

Every call is a checkpoint first and then one step of the machine without another: a call that is cancelled has not been applied, one that
returns has, and no two calls interleave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import trio

from actors.errors import StoreError
from runtime.environment import Environment
from runtime.store.interface import Compare, Delete, Entry, Operation, Put, RangeResult, Store, TransactionResult, WatchBatch
from runtime.store.memory import StoreMachine


@attrs.define(eq=False)
class _Waiting:
    """A poll for which nothing had happened yet. `since`: the first revision that may concern it, once there is one."""

    prefix: str
    since: int = 0
    woken: trio.Event = attrs.field(factory=trio.Event)


class EmbeddedStore(Store):
    """See `Store`. `run` must be running for leases to end; `close` is for the owner, who ends `run` as well."""

    def __init__(self, environment: Environment, machine: StoreMachine | None = None) -> None:
        self._environment = environment
        self._machine = StoreMachine() if machine is None else machine
        # A dict for its order: polls are woken in the order in which they came, in every run of a simulation.
        self._waiting: dict[_Waiting, None] = {}
        self._sooner = trio.Event()
        self._closed = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End leases when their time is over, until the store is closed."""
        task_status.started()
        while not self._closed:
            self._sooner = trio.Event()
            due = self._machine.next_expiry()
            with trio.move_on_after(math.inf if due is None else max(0.0, due - self._environment.now())):
                await self._sooner.wait()
            before = self._machine.revision
            self._machine.expire(self._environment.now())
            self._tell(before)

    def close(self) -> None:
        """Refuse calls from now on and end those that wait, with StoreError. Closing twice is closing once."""
        self._closed = True
        self._sooner.set()
        for waiting in self._waiting:
            waiting.woken.set()

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        await self._open()
        return self._machine.get(key)

    async def range(self, prefix: str) -> RangeResult:
        """See `Store.range`."""
        await self._open()
        return self._machine.range(prefix)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """See `Store.put`."""
        return (await self.transaction([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        """See `Store.delete`."""
        return bool((await self.transaction([], [Delete(key)])).responses[0])

    async def transaction(
        self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """See `Store.transaction`."""
        await self._open()
        before = self._machine.revision
        result = self._machine.transaction(compare, then, otherwise)
        self._tell(before)
        return result

    async def grant(self, ttl: float) -> int:
        """See `Store.grant`."""
        await self._open()
        due = self._machine.next_expiry()
        lease = self._machine.grant(ttl, self._environment.now())
        # `run` sleeps until the end that was next: it needs to know of one before that, and of no other.
        if self._machine.next_expiry() != due:
            self._sooner.set()
        return lease

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
        await self._open()
        return self._machine.keep_alive(lease, self._environment.now())

    async def time_to_live(self, lease: int) -> float:
        """See `Store.time_to_live`."""
        await self._open()
        return self._machine.time_to_live(lease, self._environment.now())

    async def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        await self._open()
        before = self._machine.revision
        self._machine.revoke(lease)
        self._tell(before)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`. A poll that waits keeps pace: what is compacted meanwhile does not concern it."""
        await self._open()
        while (batch := self._machine.changes(prefix, from_revision)) is None:
            waiting = _Waiting(prefix)
            self._waiting[waiting] = None
            try:
                await waiting.woken.wait()
            finally:
                del self._waiting[waiting]
            self._refuse_if_closed()
            from_revision = max(from_revision, waiting.since)
        return batch

    async def _open(self) -> None:
        await trio.lowlevel.checkpoint()
        self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed: its node has left")

    def _tell(self, before: int) -> None:
        if self._waiting and self._machine.revision != before:
            changed = self._machine.changed_after(before)
            # A step so large that it pushed its own beginning out of the history: nobody knows whom that concerned, so all look again.
            partly_forgotten = self._machine.compacted > before
            for waiting in self._waiting:
                if not waiting.since and (partly_forgotten or any(key.startswith(waiting.prefix) for key in changed)):
                    waiting.since = before + 1
                    waiting.woken.set()
