"""The embedded store: the machine in memory, on its node's clock, with waiting watches. It ends with its node: high availability is etcd's
job.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from actors.errors import StoreError
from runtime.environment import Environment
from runtime.store.interface import Compare, Delete, Entry, Operation, Put, RangeResult, Store, TransactionResult, WatchBatch
from runtime.store.memory import StoreMachine

IDLE = 1.0


class EmbeddedStore(Store):
    """See `Store`. Every call is a checkpoint. `run` must be running for leases to end."""

    def __init__(self, environment: Environment, machine: StoreMachine | None = None) -> None:
        self._environment = environment
        self._machine = machine or StoreMachine()
        self._changed = trio.Event()
        self._closed = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End leases when their time is over, for ever."""
        task_status.started()
        while True:
            await trio.sleep(min(IDLE, max(0.0, (self._machine.next_expiry() or self._environment.now() + IDLE) - self._environment.now())))
            before = self._machine.revision
            self._machine.expire(self._environment.now())
            self._tell(before)

    def close(self) -> None:
        """Refuse calls from now on and end those that wait, with StoreError."""
        self._closed = True
        self._changed.set()

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
        return self._machine.grant(ttl, self._environment.now())

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
        await self._open()
        return self._machine.keep_alive(lease, self._environment.now())

    async def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        await self._open()
        before = self._machine.revision
        self._machine.revoke(lease)
        self._tell(before)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`."""
        await self._open()
        while True:
            batch = self._machine.changes(prefix, from_revision)
            if batch is not None:
                return batch
            await self._changed.wait()
            if self._closed:
                raise StoreError("the store is closed: its node has left")

    async def _open(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise StoreError("the store is closed: its node has left")

    def _tell(self, before: int) -> None:
        if self._machine.revision != before and not self._closed:
            changed, self._changed = self._changed, trio.Event()
            changed.set()
