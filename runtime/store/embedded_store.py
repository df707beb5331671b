"""The embedded store: a state machine in memory, served by one node.

`EmbeddedStore` adds to the machine the node's clock, polls that wait, and optionally a journal that
writes to disk. It can be reached only while its node can; use etcd for high availability. Without a
journal its data ends with the process.

Every call is one step of the machine. With a journal, a call returns only when everything that its
answer says is on disk. A call that is cancelled during that wait may have been applied.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
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
from actors.own_logger import own_logger
from runtime.environment import Environment, raise_alone
from runtime.limited_log import LimitedLog
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
    Transaction,
    TransactionOutcome,
    TransactionResult,
    WatchBatch,
)
from runtime.store.memory import Snapshot, StoreMachine

logger = own_logger("understudy.store")

PAGE_BYTES = 4096
"""Of the files of SQLite, and of most file systems."""

SMALL_BYTES = 64 * 1024
"""Keys and values of a transaction that may use the reserve of the disk, see `StoreFile`."""

T = TypeVar("T")

# The path of an embedded store's changes to its file: group commit with one writer. Everything that
# is changed during a write goes into the next commit.


@attrs.define(eq=False)
class Commit:
    """Steps that are written together. `error` is set if the commit failed."""

    changes: Changes = attrs.field(factory=Changes)
    over: trio.Event = attrs.field(factory=trio.Event)
    error: StoreError | None = None

    async def done(self, *, wrote: bool) -> None:
        """Wait until the commit has ended. `wrote`: whether the waiting step changed anything.

        If the commit failed, raises `StoreUnavailableError` for a step that only read (it may be
        repeated), and for one that wrote the error of the commit: `StoreOutcomeUnknownError` if it
        may be on disk.
        """
        await self.over.wait()
        if self.error is None:
            return
        if not wrote:
            raise StoreUnavailableError(
                "nothing was read or changed, since the store goes back to what is on its disk "
                f"after the write of another request failed; repeat this request: {self.error}"
            ) from self.error
        if isinstance(self.error, StoreOutcomeUnknownError):
            raise StoreOutcomeUnknownError(str(self.error)) from self.error
        raise type(self.error)(f"not written: {self.error}") from self.error

    def fail(self, error: StoreError) -> None:
        """End the commit with `error`. None of its steps may be answered with success."""
        assert not self.over.is_set(), "a commit ends once"
        self.error = error
        self.over.set()


class Journal:
    """Commits the steps that are noted to `medium`.

    A call is answered only after it has waited for the commit `latest`, so no answer says what is
    not yet on disk.
    """

    def __init__(self, medium: Medium, now: Callable[[], float]) -> None:
        # Two commits exist at most: one is on its way to the disk and closed for new steps, the
        # other collects. A step is in exactly one of them, and waits for that one.
        self._medium = medium
        self._waiting = Commit()
        self._writing: Commit | None = None
        self._woken = trio.Event()
        self._closing = False
        self._log = LimitedLog(logger, now, burst=1)
        self._refused_bytes = 0
        """Of the last commit that the medium refused, in whole pages; 0 once it has taken one of
        that size.
        """
        self._asked = 0
        """Bytes of the steps that wait for the answer whether there is room for them."""

    async def check_room(self, size: int) -> None:
        """Check that there is room for a step of so many bytes beside those that are noted. Raises
        `StoreDataError`. The step must follow without an await.
        """
        self._asked += size
        try:
            await self._medium.check_room(self._asked + self._waiting.changes.size)
        except StoreDataError as error:
            # As in `_commit`; but here no other step is refused with this one.
            self._refused_bytes = (size // PAGE_BYTES + 1) * PAGE_BYTES
            self._log.log(logging.ERROR, "the store could not write changes: %s", error)
            raise StoreDataError(f"not written: {error}") from error
        finally:
            self._asked -= size

    def note(self, machine: StoreMachine, before: int, leases: Mapping[int, float]) -> None:
        """Add a step that the machine has just made to the next commit; see `Changes.note`."""
        if self._waiting.changes.note(machine, before, leases):
            self._woken.set()

    def latest(self) -> Commit | None:
        """Return the commit that holds the latest step, or None if everything is on disk."""
        return self._writing if self._waiting.changes.is_empty else self._waiting

    async def run(
        self, machine: Callable[[], StoreMachine], go_back: Callable[[Snapshot], None]
    ) -> None:
        """Write commits until `close`, then write what is left and return.

        `machine` returns the present machine. `go_back` is called with what is on disk after a
        commit was refused. Raises `StoreDataError` if the file can no longer be used. On every way
        out, all tasks that wait for a commit are woken.
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
                assert self._writing is None, "one commit is written at a time"
                self._writing, self._waiting = self._waiting, Commit()
                # Shielded: a commit that was begun must end before the medium is closed, and the
                # tasks that wait for it need its outcome. The medium's own time-outs bound it.
                with trio.CancelScope(shield=True):
                    await self._commit(self._writing, machine(), go_back)
                self._writing = None
        finally:
            ended = "the store has ended; its node says why. Repeat the request when it is back"
            if self._writing is not None and not self._writing.over.is_set():
                self._writing.fail(StoreOutcomeUnknownError(ended))
            self._waiting.fail(StoreUnavailableError(ended))
            # Last, after everyone was woken: closing moves the log into the file, which takes time.
            self._medium.close()

    def close(self) -> None:
        """Ask `run` to write what is left and to return."""
        self._closing = True
        self._woken.set()

    def check_invariants(self, machine: StoreMachine) -> None:
        """Assert what holds between two steps of a task: for tests and simulations. `machine`: the
        one whose steps are noted.
        """
        waiting = self._waiting.changes
        assert self._writing is None or not self._writing.changes.is_empty
        if not waiting.is_empty:
            assert waiting.revision == machine.revision, "every step is noted"
            assert self._woken.is_set(), "what waits will be written"
            assert waiting.everything or all(
                machine.get(key) == entry for key, entry in waiting.entries.items()
            ), "the newest value of a key is written"

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
            # The machine in memory may be ahead of the disk, and that cannot be found out. Going on
            # would answer reads with what a restart may take back, so the store ends.
            raise StoreDataError(str(error)) from error
        except StoreError as error:
            # What is on disk is read, not computed: only the disk knows which steps it has.
            kept = await self._medium.load()
            # The steps made during the write were built on state that is not on disk, so they fail
            # as well. No await between here and `go_back`: a call in between would read the refused
            # state.
            later, self._waiting = self._waiting, Commit()
            go_back(kept)
            self._refused_bytes = _pages(commit.changes)
            # Its caller has the error, too; who looks at a node that starts nothing reads its log.
            self._log.log(logging.ERROR, "the store could not write changes: %s", error)
            commit.fail(error)
            later.fail(error)
        else:
            assert not commit.over.is_set(), "a commit ends once"
            commit.over.set()
            if self._refused_bytes:
                self._on_written_again(_pages(commit.changes))

    def _on_written_again(self, size: int) -> None:
        """Say what is known of the disk after a commit of this size: one that is full may take a
        small commit, and refuse the next larger one.
        """
        if size >= self._refused_bytes:
            self._refused_bytes = 0
            self._log.log(logging.WARNING, "the store writes changes again")
        else:
            self._log.log(
                logging.WARNING,
                "the store has written %s bytes of changes, and could not write %s bytes before: "
                "larger ones may still be refused",
                f"{size:,}",
                f"{self._refused_bytes:,}",
            )


def _pages(changes: Changes) -> int:
    """The bytes of a commit in whole pages, at least one: files grow by these."""
    return (changes.size // PAGE_BYTES + 1) * PAGE_BYTES


@attrs.define(eq=False)
class _Waiting:
    """A poll that waits for a change. `since`: the revision of the first change that may concern
    it, 0 while there is none.
    """

    prefix: str
    since: int = 0
    woken: trio.Event = attrs.field(factory=trio.Event)


class EmbeddedStore(Store):
    """The store that one node serves; see `Store` for what it promises.

    `run` must be running, or no lease ends and nothing is written. The owner calls `close`, which
    also ends `run`.
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
        # A dict, because it keeps insertion order: polls are woken in the order in which they came,
        # so that runs of a simulation are reproducible.
        self._waiting: dict[_Waiting, None] = {}
        self._sooner = trio.Event()
        self._asked_for = math.inf
        self._last_backlog: Callable[[int], float] = lambda lease: -math.inf
        self._closed = ""
        """Why the store refuses calls; empty while it is open."""
        self.silence: trio.Event | None = None
        """For simulations: while this event exists and is not set, no call is answered, as by a
        store whose process is stopped.
        """

    @property
    def size(self) -> int | None:
        """Bytes of the store's keys and values."""
        return self._machine.size

    @classmethod
    async def on_disk(
        cls, environment: Environment, directory: Path, disk: Disk = open_file
    ) -> EmbeddedStore:
        """Open the store in `directory`, or create one there. Every lease gets its full time again,
        because renewals could not arrive while the store was away. Raises `StoreDataError`.
        """
        medium = await disk(directory)
        try:
            kept = await medium.load()
        except BaseException:
            # It holds the lock of the directory, which another process, or a next attempt, needs.
            medium.close()
            raise
        journal = Journal(medium, environment.now)
        return cls(
            environment,
            StoreMachine.restored(kept, environment.now(), environment.timings.restart_grace),
            journal,
        )

    def spare_backlogs_by(self, last_backlog: Callable[[int], float]) -> None:
        """End no lease whose renewals may wait behind much else that its holder has sent.
        `last_backlog(lease)`: the latest time at which so much from the holder was read at once
        that more may wait; -inf if that never was.
        """
        self._last_backlog = last_backlog

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End expired leases and write commits, until the store is closed.

        Raises `StoreDataError` after a disk error that leaves it unknown what is on disk. The store
        is closed then.
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
            # Also when the journal failed: calls that wait for a commit or a change must end with
            # an error. Otherwise they would wait for a store that no task drives.
            self._close("the store has ended; see why on its node")

    def check_invariants(self) -> None:
        """Assert the invariants of the machine. Looks at every key: for tests and simulations."""
        self._machine.check_invariants()
        assert all(
            waiting.woken.is_set() == bool(waiting.since or self._closed)
            for waiting in self._waiting
        ), "a poll is woken exactly by a change or by the end"
        if self._journal is not None:
            self._journal.check_invariants(self._machine)

    async def _end_leases(self) -> None:
        """End leases whose time is over. If the loop did not run for some time, postpone that:
        renewals may have arrived and not been handled.

        How late one wake-up is does not show such a pause, because the loop may have stood still
        before it as well. So the loop wakes every `Timings.expiry_look` seconds during the last
        `Timings.expiry_watch` seconds before an expiry.
        """
        timings = self._environment.timings
        watch, every = timings.expiry_watch, timings.expiry_look
        while not self._closed:
            # Renewed before `next_expiry` is read: a lease that is granted in between sets the new
            # event, and the wait below returns at once.
            self._sooner, self._asked_for = trio.Event(), math.inf
            now, due = self._environment.now(), self._machine.next_expiry()
            look = math.inf if due is None else max(due - watch, min(due, now + every))
            with trio.move_on_after(math.inf if look == math.inf else max(0.0, look - now)):
                await self._sooner.wait()
            await self._not_silent()
            now = self._environment.now()
            # Counted from when it was to wake: by its own plan, or because a call asked for it.
            late = now - min(look, self._asked_for)
            if late > timings.expiry_late:
                # The loop stood still, so renewals may be waiting in its sockets. Expiring now
                # would take leases from holders that renewed in time.
                self._machine.postpone(now + min(max(late, watch), timings.restart_grace))
            self._spare_backlogs(now)
            self._step(partial(StoreMachine.expire, now=now))

    def _spare_backlogs(self, now: float) -> None:
        """Postpone the end of the overdue leases whose renewals may wait unread."""
        # A link delivers in order: a renewal waits behind all answers and calls that its node sent
        # before. A slow loop, none of whose passes is late enough to count as a pause, may need
        # longer for them than a lease lasts. From the last backlog on, its holder has as long as
        # after any renewal: a dead node, of which soon nothing is left to read, is found as late.
        for lease in self._machine.overdue(now):
            until = self._last_backlog(lease) + self._environment.timings.restart_grace
            self._machine.postpone_one(lease, until)

    def _look_sooner(self) -> None:
        """Wake `_end_leases`: the next expiry is earlier or later than it assumed."""
        if not self._sooner.is_set():
            self._asked_for = self._environment.now()
            self._sooner.set()

    def close(self) -> None:
        """Refuse calls from now on, and end waiting calls with `StoreError`. Does nothing the
        second time.
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
        """Return the key as the machine has it, once that is on disk."""
        await self._open()
        found = self._machine.get(key)
        await self._lasting(wrote=False)
        return found

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Return the keys under `prefix`, all of one step, once that step is on disk."""
        await self._open()
        found = self._machine.range(prefix, limit)
        await self._lasting(wrote=False)
        return found

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a key in a transaction of its own; returns the revision when it is on disk."""
        return (await self.transaction([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        """Delete a key in a transaction of its own; True if it was there."""
        return bool((await self.transaction([], [Delete(key)])).responses[0])

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Apply the transaction in one step of the machine; returns when it is on disk."""
        await self._open()
        await self._room_for(_size_of(then) + _size_of(otherwise))
        before = self._machine.revision
        result = self._step(lambda machine: machine.transaction(compare, then, otherwise))
        await self._lasting(wrote=result.revision != before)
        return result

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        """Apply the transactions one after the other, with nothing between them; returns when all
        are on disk.
        """
        await self._open()
        # Of many small ones none is refused.
        sizes = [_size_of(one.then) + _size_of(one.otherwise) for one in batch]
        await self._room_for(sum(sizes) if max(sizes, default=0) > SMALL_BYTES else 0)
        before = self._machine.revision
        outcomes = self._step(partial(_carried_out, batch=batch))
        await self._lasting(wrote=self._machine.revision != before)
        return outcomes

    async def grant(self, ttl: float) -> int:
        """Make a lease by the clock of this node; returns its number when it is on disk."""
        await self._open()
        due = self._machine.next_expiry()
        lease = self._step(lambda machine: machine.grant(ttl, self._environment.now()))
        # `_end_leases` sleeps until the earliest expiry. Wake it only if the new lease changes
        # that.
        if self._machine.next_expiry() != due:
            self._look_sooner()
        await self._lasting(wrote=True)
        return lease

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease, in memory only: a restart gives every lease its full time again."""
        await self._open()
        # Not through `_step`, and without waiting for the disk: a disk that hangs for some seconds
        # must not cost the nodes their leases.
        return self._machine.keep_alive(lease, self._environment.now())

    async def time_to_live(self, lease: int) -> float:
        """Return the seconds that the lease has left by the clock of this node."""
        await self._open()
        return self._machine.time_to_live(lease, self._environment.now())

    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys; returns when that is on disk."""
        await self._open()
        self._step(lambda machine: machine.revoke(lease))
        await self._lasting(wrote=True)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes under `prefix`; returns them when they are on disk. A compaction during
        the wait does not end a poll that has seen everything before it.
        """
        await trio.lowlevel.checkpoint()
        await self._not_silent()
        self._refuse_if_closed()
        # `since` moves on while the poll waits, because what it has seen may be compacted. A poll
        # that has seen everything is not refused for changes under other prefixes.
        machine, since = self._machine, from_revision
        while (batch := machine.changes(prefix, since)) is None:
            # No await between the look at the history and this registration, or a change in between
            # would be missed.
            waiting = _Waiting(prefix)
            self._waiting[waiting] = None
            try:
                await waiting.woken.wait()
            finally:
                del self._waiting[waiting]
            await self._not_silent()
            self._refuse_if_closed()
            if machine is self._machine:
                # Start at the change that woke this poll. All revisions before it were looked at,
                # and may be compacted by now.
                since = max(since, waiting.since)
            else:
                # The store went back to its disk. Revisions that this poll has skipped will be used
                # again for other changes, so it must look at all of them again.
                machine, since = self._machine, from_revision
        if self._journal is not None and (commit := self._journal.latest()) is not None:
            # Without a time-out, unlike other calls: a poll may wait for any time, so its caller
            # cannot take silence for a failure.
            await commit.done(wrote=False)
        return batch

    async def _open(self) -> None:
        # The only checkpoint before the step. A call that is cancelled here has not been applied,
        # and no other call runs between this checkpoint and its own step.
        await trio.lowlevel.checkpoint()
        # A time limit costs as much as the step itself, and the store is hardly ever silent.
        if self.silence is not None:
            seconds = self._environment.timings.store_call
            with trio.move_on_after(seconds) as patience:
                await self._not_silent()
            if patience.cancelled_caught:
                raise StoreUnavailableError(
                    f"the store has not answered within {seconds:g} s; nothing was changed"
                )
        self._refuse_if_closed()

    async def _room_for(self, size: int) -> None:
        """Refuse what brings much if the disk has no room for it, before it is a step: a commit
        that the disk refuses takes others' steps with it. Raises `StoreDataError`.
        """
        if size > SMALL_BYTES and self._journal is not None:
            await self._journal.check_room(size)
            self._refuse_if_closed()

    async def _not_silent(self) -> None:
        while self.silence is not None and not self._closed:
            await self.silence.wait()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(self._closed)

    def _step(self, step: Callable[[StoreMachine], T]) -> T:
        """Run `step` on the machine, note it in the journal, and wake the polls that it
        concerns.
        """
        # No await from here to the end. A call in between could see the step before it is in the
        # journal, and answer with what is not on disk.
        before = self._machine.revision
        leases = self._machine.leases
        result = step(self._machine)
        if self._journal is not None:
            self._journal.note(self._machine, before, leases)
        self._wake_polls(before)
        return result

    async def _lasting(self, *, wrote: bool) -> None:
        """Wait until everything that this call changed or read is on disk.

        Waits at most `Timings.store_call` seconds, because remote callers give up then too. After
        that, raises `StoreOutcomeUnknownError` if the call wrote something, and
        `StoreUnavailableError` otherwise.
        """
        # Reads wait as well: a read may have seen a write that is not yet on disk, and must not
        # report it before it is.
        commit = self._journal.latest() if self._journal is not None else None
        if commit is None:
            return
        seconds = self._environment.timings.store_call
        with trio.move_on_after(seconds) as patience:
            await commit.done(wrote=wrote)
        if patience.cancelled_caught:
            what = (
                f"the store's disk did not complete a write within {seconds:g} s; "
                "is the disk full, or disconnected?"
            )
            raise (
                StoreOutcomeUnknownError(f"the outcome of a write is unknown: {what}")
                if wrote
                else StoreUnavailableError(
                    "nothing was read or changed, since the write of an earlier request comes "
                    f"first, and {what}"
                )
            )

    def _go_back(self, kept: Snapshot) -> None:
        """Replace the machine by one with the state on disk (`kept`). Steps that were not written
        are undone. Waiting polls go on waiting.
        """
        self._machine = StoreMachine.restored(
            kept, self._environment.now(), self._environment.timings.restart_grace
        )
        # The restored leases end at other times than those that `_end_leases` waits for.
        self._look_sooner()

    def _wake_polls(self, before: int) -> None:
        """Wake the polls that the changes after revision `before` may concern."""
        if self._waiting and self._machine.revision != before:
            changed = self._machine.changed_after(before)
            # The step had more events than the history keeps, so it is unknown which keys it
            # changed: every poll must look again.
            partly_forgotten = self._machine.compacted > before
            for waiting in self._waiting:
                # Only the first change counts: a poll that was woken but has not run yet must begin
                # to look there, or it would skip changes.
                if not waiting.since and (
                    partly_forgotten or any(key.startswith(waiting.prefix) for key in changed)
                ):
                    waiting.since = before + 1
                    waiting.woken.set()


def _size_of(operations: Sequence[Operation]) -> int:
    """The bytes of the keys and values that they write."""
    return sum(len(each.key) + len(each.value) for each in operations if isinstance(each, Put))


def _carried_out(machine: StoreMachine, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
    outcomes: list[TransactionOutcome] = []
    for one in batch:
        # One that is refused has changed nothing, and says nothing about the others.
        try:
            outcomes.append(machine.transaction(one.compare, one.then, one.otherwise))
        except (StoreError, ValueError, TypeError) as error:
            outcomes.append(error)
    return outcomes
