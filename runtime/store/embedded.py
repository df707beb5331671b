"""The embedded store: the machine in memory, on its node's clock, with polls that wait; with a journal, on disk as well.

High availability is etcd's job: this store is away while its node is. In memory only, it ends with it.

Every call is a checkpoint first and then one step of the machine without another: one that is cancelled before has not been applied, and
no two calls interleave. With a journal, an answer is given when all that it says is on disk; who is cancelled while waiting for that may
have been served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from actors.errors import StoreError, StoreOutcomeUnknownError, StoreUnavailableError
from runtime.environment import Environment
from runtime.exception_groups import raise_alone
from runtime.store.disk import Disk, open_file
from runtime.store.interface import Compare, Delete, Entry, Operation, Put, RangeResult, Store, TransactionResult, WatchBatch
from runtime.store.journal import Journal
from runtime.store.memory import Snapshot, StoreMachine

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""The least that a lease has left when a store is served again: its holder must find the way back first."""

RENEWAL_SECONDS = 2.0
"""Before a lease is ended, this store's loop has run for so long: what its holder sent in time has been handled."""

LATE_SECONDS = 0.5
"""A loop that runs later than this has not run meanwhile: the process was stopped, the loop blocked, the machine asleep."""

CALL_SECONDS = 10.0
"""How long a call waits for the disk before the store counts as away, also for the node that serves it: a disk may hang for ever."""

LOOK_SECONDS = 0.25
"""How often the loop is looked at during `RENEWAL_SECONDS`."""


@attrs.define(eq=False)
class _Waiting:
    """A poll for which nothing had happened yet. `since`: the first revision that may concern it, once there is one."""

    prefix: str
    since: int = 0
    woken: trio.Event = attrs.field(factory=trio.Event)


class EmbeddedStore(Store):
    """See `Store`. `run` must be running for leases to end; `close` is for the owner, who ends `run` as well."""

    def __init__(self, environment: Environment, machine: StoreMachine | None = None, journal: Journal | None = None) -> None:
        self._environment = environment
        self._machine = StoreMachine() if machine is None else machine
        self._journal = journal
        # A dict for its order: polls are woken in the order in which they came, in every run of a simulation.
        self._waiting: dict[_Waiting, None] = {}
        self._sooner = trio.Event()
        self._asked_for = math.inf
        self._closed = ""
        """Why, once it is."""
        self.silence: trio.Event | None = None
        """For simulations: while it is there nothing is answered, as by a store whose process is stopped, until it is set."""

    @classmethod
    async def on_disk(cls, environment: Environment, directory: Path, disk: Disk = open_file) -> EmbeddedStore:
        """The store in `directory`, a new one if there is none. Its leases have their whole time again. Raises `StoreDataError`."""
        medium = await disk(directory)
        try:
            kept = await medium.load()
        except BaseException:
            medium.close()
            raise
        journal = Journal(medium)
        return cls(environment, StoreMachine.restored(kept, environment.now(), GRACE_SECONDS), journal)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End leases when their time is over, and write what is to be written, until the store is closed.

        Raises `StoreDataError` if the disk fails so that nobody can tell what is on it. The store is closed then.
        """
        try:
            async with trio.open_nursery() as nursery:
                if self._journal is not None:
                    nursery.start_soon(self._journal.run, lambda: self._machine, self._go_back)
                task_status.started()
                await self._end_leases()
        except BaseExceptionGroup as group:
            raise_alone(group)
        finally:
            self._close("the store has ended; see why on its node")

    async def _end_leases(self) -> None:
        """The ends of leases are put off while the loop does not run: holders may have renewed them, and nobody has looked.

        How late a lease's own end is handled does not tell: the loop may have stood still all the time before it.
        """
        while not self._closed:
            self._sooner, self._asked_for = trio.Event(), math.inf
            now, due = self._environment.now(), self._machine.next_expiry()
            look = math.inf if due is None else max(due - RENEWAL_SECONDS, min(due, now + LOOK_SECONDS))
            with trio.move_on_after(math.inf if look == math.inf else max(0.0, look - now)):
                await self._sooner.wait()
            await self._not_silent()
            now = self._environment.now()
            late = now - min(look, self._asked_for)
            if late > LATE_SECONDS:
                self._machine.postpone(now + min(max(late, RENEWAL_SECONDS), GRACE_SECONDS))
            self._step(partial(StoreMachine.expire, now=now))

    def _look_sooner(self) -> None:
        """What `run` sleeps for has changed."""
        if not self._sooner.is_set():
            self._asked_for = self._environment.now()
            self._sooner.set()

    def close(self) -> None:
        """Refuse calls from now on and end those that wait, with StoreError. Closing twice is closing once."""
        self._close("the store is closed: its node has left")

    def _close(self, why: str) -> None:
        self._closed = self._closed or why
        self._sooner.set()
        if self.silence is not None:
            self.silence.set()
        if self._journal is not None:
            self._journal.close()
        for waiting in self._waiting:
            waiting.woken.set()

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        await self._open()
        found = self._machine.get(key)
        await self._lasting(wrote=False)
        return found

    async def range(self, prefix: str) -> RangeResult:
        """See `Store.range`."""
        await self._open()
        found = self._machine.range(prefix)
        await self._lasting(wrote=False)
        return found

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
        result = self._step(lambda machine: machine.transaction(compare, then, otherwise))
        await self._lasting(wrote=result.revision != before)
        return result

    async def grant(self, ttl: float) -> int:
        """See `Store.grant`."""
        await self._open()
        due = self._machine.next_expiry()
        lease = self._step(lambda machine: machine.grant(ttl, self._environment.now()))
        # `run` sleeps until the end that was next: it needs to know of one before that, and of no other.
        if self._machine.next_expiry() != due:
            self._look_sooner()
        await self._lasting(wrote=True)
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
        self._step(lambda machine: machine.revoke(lease))
        await self._lasting(wrote=True)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`. A poll that waits keeps pace: what is compacted meanwhile does not concern it."""
        await trio.lowlevel.checkpoint()
        await self._not_silent()
        self._refuse_if_closed()
        machine, since = self._machine, from_revision
        while (batch := machine.changes(prefix, since)) is None:
            waiting = _Waiting(prefix)
            self._waiting[waiting] = None
            try:
                await waiting.woken.wait()
            finally:
                del self._waiting[waiting]
            await self._not_silent()
            self._refuse_if_closed()
            if machine is self._machine:
                since = max(since, waiting.since)
            else:
                # The store went back, and the revisions that it skipped for this poll will be others.
                machine, since = self._machine, from_revision
        if self._journal is not None and (commit := self._journal.latest()) is not None:
            # It may take as long as it takes: nothing may have happened at all.
            await commit.done(wrote=False)
        return batch

    async def _open(self) -> None:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(CALL_SECONDS) as patience:
            await self._not_silent()
        if patience.cancelled_caught:
            raise StoreUnavailableError(f"the store has not answered within {CALL_SECONDS:g} s")
        self._refuse_if_closed()

    async def _not_silent(self) -> None:
        while self.silence is not None and not self._closed:
            await self.silence.wait()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(self._closed)

    def _step(self, step: Callable[[StoreMachine], T]) -> T:
        """Change the machine; tell those whom it concerns, and the journal."""
        before = self._machine.revision
        leases = frozenset(self._machine.leases) if self._journal is not None else frozenset()
        result = step(self._machine)
        if self._journal is not None:
            self._journal.note(self._machine, before, leases)
        self._tell(before)
        return result

    async def _lasting(self, *, wrote: bool) -> None:
        """Wait until all that this call has done, or seen, is on disk; not for ever, as other nodes do not wait for it for ever either."""
        commit = self._journal.latest() if self._journal is not None else None
        if commit is None:
            return
        with trio.move_on_after(CALL_SECONDS) as patience:
            await commit.done(wrote=wrote)
        if patience.cancelled_caught:
            what = f"the store's disk has not taken what it was given within {CALL_SECONDS:g} s; is it full, or gone?"
            raise StoreOutcomeUnknownError(f"a write may last or not: {what}") if wrote else StoreUnavailableError(what)

    def _go_back(self, kept: Snapshot) -> None:
        """Nothing that was not written has happened. Who waits for a change of it waits on."""
        self._machine = StoreMachine.restored(kept, self._environment.now(), GRACE_SECONDS)
        self._look_sooner()

    def _tell(self, before: int) -> None:
        """Wake the polls that the changes after revision `before` concern."""
        if self._waiting and self._machine.revision != before:
            changed = self._machine.changed_after(before)
            # A step so large that it pushed its own beginning out of the history: nobody knows whom that concerned, so all look again.
            partly_forgotten = self._machine.compacted > before
            for waiting in self._waiting:
                if not waiting.since and (partly_forgotten or any(key.startswith(waiting.prefix) for key in changed)):
                    waiting.since = before + 1
                    waiting.woken.set()
