"""The embedded store: the machine in memory, on its node's clock, with polls that wait; with a
journal, on disk as well.

High availability is etcd's job: this store cannot be reached while its node cannot. In memory only,
it ends with it.

Every call is one step of the machine. With a journal, an answer is given when all that it says is
on disk; who is cancelled while waiting for that may have been served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from actors.errors import (
    StoreDataError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import Environment, raise_alone
from runtime.store.changes import Changes
from runtime.store.disk import Disk, Medium, open_file
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Operation,
    Put,
    RangeResult,
    Store,
    TransactionResult,
    WatchBatch,
)
from runtime.store.memory import Snapshot, StoreMachine

# The way of an embedded store's changes to its file: one writer, and all that was changed while it
# wrote goes into its next commit.


@attrs.define(eq=False)
class Commit:
    """Steps that are committed together. `error`: why they are not."""

    changes: Changes = attrs.field(factory=Changes)
    over: trio.Event = attrs.field(factory=trio.Event)
    error: StoreError | None = None

    async def done(self, *, wrote: bool) -> None:
        """Wait for the end of the commit. If it failed, raise the error for the step that waits,
        which `wrote` something or only read.
        """
        await self.over.wait()
        if self.error is None:
            return
        if not wrote:
            raise StoreUnavailableError(
                f"the store was restored to what is on its disk; ask again: {self.error}"
            ) from self.error
        if isinstance(self.error, StoreOutcomeUnknownError):
            raise StoreOutcomeUnknownError(str(self.error)) from self.error
        raise type(self.error)(f"not written: {self.error}") from self.error

    def fail(self, error: StoreError) -> None:
        """End the commit with `error`: nothing of it may be relied upon."""
        self.error = error
        self.over.set()


class Journal:
    """Commits the steps that are noted to `medium`. A call is answered only after a wait for
    `latest`, so that no answer is known before it is on disk.
    """

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._waiting = Commit()
        self._writing: Commit | None = None
        self._woken = trio.Event()
        self._closing = False

    def note(self, machine: StoreMachine, before: int, leases: frozenset[int]) -> None:
        """A step of the machine has been made; see `Changes.note`."""
        if self._waiting.changes.note(machine, before, leases):
            self._woken.set()

    def latest(self) -> Commit | None:
        """The commit that holds the last step, unless it is over."""
        return self._writing if self._waiting.changes.is_empty else self._waiting

    async def run(
        self, machine: Callable[[], StoreMachine], go_back: Callable[[Snapshot], None]
    ) -> None:
        """Write until closed, and then what is left. `go_back` takes what is on disk when a commit
        has been refused.

        Raises `StoreDataError` if the file can be used no more. However it ends, every wait for a
        commit ends.
        """
        try:
            while True:
                await self._woken.wait()
                if self._waiting.changes.is_empty:
                    break
                # Renewed before the write: a step that is noted during it must wake the next turn.
                if not self._closing:
                    self._woken = trio.Event()
                # Steps that are made while this is written belong to the next commit.
                self._writing, self._waiting = self._waiting, Commit()
                with trio.CancelScope(shield=True):
                    await self._commit(self._writing, machine(), go_back)
                self._writing = None
        finally:
            ended = "the store has ended; see why on its node, and ask again when it is back"
            if self._writing is not None and not self._writing.over.is_set():
                self._writing.fail(StoreOutcomeUnknownError(ended))
            self._waiting.fail(StoreUnavailableError(ended))
            self._medium.close()

    def close(self) -> None:
        """Let `run` come to its end."""
        self._closing = True
        self._woken.set()

    async def _commit(
        self, commit: Commit, machine: StoreMachine, go_back: Callable[[Snapshot], None]
    ) -> None:
        try:
            if commit.changes.everything:
                await self._medium.rewrite(machine.snapshot())
            else:
                await self._medium.write(commit.changes)
        except StoreOutcomeUnknownError as error:
            commit.fail(error)
            raise StoreDataError(str(error)) from error
        except StoreError as error:
            kept = await self._medium.load()
            # What was built upon it meanwhile is as void.
            later, self._waiting = self._waiting, Commit()
            go_back(kept)
            commit.fail(error)
            later.fail(error)
        else:
            commit.over.set()


T = TypeVar("T")


@attrs.define(eq=False)
class _Waiting:
    """A poll for which nothing had happened yet. `since`: the first revision that may concern it,
    once there is one.
    """

    prefix: str
    since: int = 0
    woken: trio.Event = attrs.field(factory=trio.Event)


class EmbeddedStore(Store):
    """See `Store`. `run` must be running for leases to end; `close` is for the owner, who ends
    `run` as well.
    """

    def __init__(
        self,
        environment: Environment,
        machine: StoreMachine | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._environment = environment
        self._machine = StoreMachine() if machine is None else machine
        self._journal = journal
        # A dict for its order: polls are woken in the order in which they came, in every run of a
        # simulation.
        self._waiting: dict[_Waiting, None] = {}
        self._sooner = trio.Event()
        self._asked_for = math.inf
        self._closed = ""
        """Why, once it is."""
        self.silence: trio.Event | None = None
        """For simulations: while it is there nothing is answered, as by a store whose process is
        stopped, until it is set.
        """

    @classmethod
    async def on_disk(
        cls, environment: Environment, directory: Path, disk: Disk = open_file
    ) -> EmbeddedStore:
        """The store in `directory`, a new one if there is none. Its leases have their whole time
        again. Raises `StoreDataError`.
        """
        medium = await disk(directory)
        try:
            kept = await medium.load()
        except BaseException:
            medium.close()
            raise
        journal = Journal(medium)
        return cls(
            environment,
            StoreMachine.restored(kept, environment.now(), environment.timings.restart_grace),
            journal,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End leases when their time is over, and write what is to be written, until the store is
        closed.

        Raises `StoreDataError` if the disk fails so that it is unknown what is on it. The store is
        closed then.
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

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every key: for tests and
        simulations.
        """
        self._machine.check_invariants()

    async def _end_leases(self) -> None:
        """End leases whose time is over, but put the ends off after a time in which the loop did
        not run: holders may have sent renewals that were not handled.

        The lateness of a lease's own end does not show such a pause: the loop may have stood still
        all the time before it. So the loop wakes up every `Timings.expiry_look` during the last
        `Timings.expiry_watch` before an end.
        """
        timings = self._environment.timings
        watch, every = timings.expiry_watch, timings.expiry_look
        while not self._closed:
            self._sooner, self._asked_for = trio.Event(), math.inf
            now, due = self._environment.now(), self._machine.next_expiry()
            look = math.inf if due is None else max(due - watch, min(due, now + every))
            with trio.move_on_after(math.inf if look == math.inf else max(0.0, look - now)):
                await self._sooner.wait()
            await self._not_silent()
            now = self._environment.now()
            late = now - min(look, self._asked_for)
            if late > timings.expiry_late:
                # The loop did not run: renewals may be waiting to be handled.
                self._machine.postpone(now + min(max(late, watch), timings.restart_grace))
            self._step(partial(StoreMachine.expire, now=now))

    def _look_sooner(self) -> None:
        """Wake `run`: the time until which it sleeps has changed."""
        if not self._sooner.is_set():
            self._asked_for = self._environment.now()
            self._sooner.set()

    def close(self) -> None:
        """Refuse calls from now on and end those that wait, with StoreError. Closing twice is
        closing once.
        """
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
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
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
        # `run` sleeps until the end that was next: it needs to know of one before that, and of no
        # other.
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
        """See `Store.poll`. A poll that waits keeps pace: what is compacted meanwhile does not
        concern it.
        """
        await trio.lowlevel.checkpoint()
        await self._not_silent()
        self._refuse_if_closed()
        machine, since = self._machine, from_revision
        while (batch := machine.changes(prefix, since)) is None:
            # Entered with no await since the look: a change in between would be missed.
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
                # The store went back, and the revisions that it skipped for this poll will be
                # others.
                machine, since = self._machine, from_revision
        if self._journal is not None and (commit := self._journal.latest()) is not None:
            # It may take as long as it takes: nothing may have happened at all.
            await commit.done(wrote=False)
        return batch

    async def _open(self) -> None:
        # The only checkpoint before the step: a call that is cancelled here has not been applied,
        # and no other call comes between this and its step.
        await trio.lowlevel.checkpoint()
        seconds = self._environment.timings.store_call
        with trio.move_on_after(seconds) as patience:
            await self._not_silent()
        if patience.cancelled_caught:
            raise StoreUnavailableError(f"the store has not answered within {seconds:g} s")
        self._refuse_if_closed()

    async def _not_silent(self) -> None:
        while self.silence is not None and not self._closed:
            await self.silence.wait()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(self._closed)

    def _step(self, step: Callable[[StoreMachine], T]) -> T:
        """Change the machine; note the change in the journal; wake the polls concerned."""
        # No await from here to the end: the step, its note in the journal and the wake-ups are one.
        before = self._machine.revision
        leases = frozenset(self._machine.leases) if self._journal is not None else frozenset()
        result = step(self._machine)
        if self._journal is not None:
            self._journal.note(self._machine, before, leases)
        self._tell(before)
        return result

    async def _lasting(self, *, wrote: bool) -> None:
        """Wait until all that this call has done, or seen, is on disk: for at most
        `Timings.store_call`, as other nodes do not wait for ever either.
        """
        # The latest commit, also for a read: it may have seen what another call has just written,
        # and must not tell of it before that is on disk.
        commit = self._journal.latest() if self._journal is not None else None
        if commit is None:
            return
        seconds = self._environment.timings.store_call
        with trio.move_on_after(seconds) as patience:
            await commit.done(wrote=wrote)
        if patience.cancelled_caught:
            what = (
                f"the store's disk has not taken what it was given within {seconds:g} s; "
                "is it full, or gone?"
            )
            raise (
                StoreOutcomeUnknownError(f"the outcome of a write is unknown: {what}")
                if wrote
                else StoreUnavailableError(what)
            )

    def _go_back(self, kept: Snapshot) -> None:
        """Restore the machine to what is on disk (`kept`): steps that were not written count as
        never done. Polls that wait for a change go on waiting.
        """
        self._machine = StoreMachine.restored(
            kept, self._environment.now(), self._environment.timings.restart_grace
        )
        self._look_sooner()

    def _tell(self, before: int) -> None:
        """Wake the polls that the changes after revision `before` concern."""
        if self._waiting and self._machine.revision != before:
            changed = self._machine.changed_after(before)
            # A step so large that it pushed its own beginning out of the history: it is unknown
            # which polls that concerned, so all look again.
            partly_forgotten = self._machine.compacted > before
            for waiting in self._waiting:
                if not waiting.since and (
                    partly_forgotten or any(key.startswith(waiting.prefix) for key in changed)
                ):
                    waiting.since = before + 1
                    waiting.woken.set()
