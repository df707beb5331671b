"""A store in a directory that agents share: one host's, or a network file system's. There is no
daemon and no lock.

The file `state.N` is the whole store after its commit N, written aside and linked into place, which
only one can do for each N. Who links N + 1 has read N; if N is gone by then the commit may have
come too late to be one, and the tokens of later commits tell. Those who commit remove old files. A
lease is a file with a counter, which its holder replaces and the others time, each by its own
clock.

It is for what a rendezvous writes, and for small things of jobs: each commit writes all there is.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import cbor2
import trio

from actors.errors import (
    LeaseLostError,
    StoreDataError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Operation,
    Put,
    RangeResult,
    Store,
    StoreEvent,
    TransactionResult,
    WatchBatch,
    check_key,
    check_time_to_live,
    check_transaction,
)
from runtime.store.memory import ChangeHistory, Snapshot, StoreMachine

logger = own_logger("understudy.rendezvous")

# A store as the content of one file: encoding and decoding. No I/O.

MAGIC = b"understudy rendezvous 1\n"


HISTORY_EVENTS = 200
"""Latest changes that the file holds for watches. A slower watch gets `StoreCompactedError`."""


HISTORY_BYTES = 1024 * 1024
"""Bytes of these changes. Each commit writes them all, so they are few."""


KEPT_TOKENS = 200
"""Latest commits whose tokens the file holds. A writer that was stopped for longer than that many
commits cannot know whether its own was one of them.
"""

LATE_SECONDS = 0.5
"""Seconds. An observer that looks this much later than planned was stopped, so it has seen nothing
meanwhile.
"""

DAY = 86400.0

T = TypeVar("T")

COMMIT_LOOK_SECONDS = 0.05
"""Seconds between two looks for commits of others. A directory that several hosts share notifies no
one of changes, so it is polled.
"""

LEASES_SECONDS = 0.25
"""Seconds between two looks at the leases of the agents."""

KEPT_FILES = 20
"""Latest commits whose files stay, for agents that read one while others commit."""

COMMIT_RETRY_SECONDS = 0.02
"""Seconds to wait at most after the first commit that another agent has overtaken; ten times as
many after the tenth.
"""


@attrs.frozen
class Content:
    """A store after commit number `number`. `tokens`: of the latest commits, at most `KEPT_TOKENS`,
    this one's last. `suspects`: leases that may have ended, each with the token of the agent that
    suspects it.
    """

    number: int
    snapshot: Snapshot
    tokens: tuple[bytes, ...] = ()
    suspects: dict[int, bytes] = attrs.field(factory=dict)

    def machine(self) -> StoreMachine:
        """Return the store as a machine whose clock stands still: leases are timed by observers."""
        return StoreMachine.restored(
            self.snapshot, 0.0, 0.0, ChangeHistory(HISTORY_EVENTS, HISTORY_BYTES)
        )

    def followed_by(
        self, machine: StoreMachine, suspects: dict[int, bytes], token: bytes
    ) -> Content | None:
        """Return the next commit, with the state of `machine` and the writer's `token`; None if
        nothing has changed.
        """
        after, before = machine.snapshot(), self.snapshot
        assert after.revision >= before.revision, "the revision of a store only grows"
        suspects = {lease: token for lease, token in suspects.items() if lease in after.leases}
        same = (after.revision, after.next_lease, after.leases) == (
            before.revision,
            before.next_lease,
            before.leases,
        )
        if same and suspects == self.suspects:
            return None
        tokens = (*self.tokens[1 - KEPT_TOKENS :], token)
        assert len(tokens) <= KEPT_TOKENS, "the tokens of commits are bounded"
        return Content(self.number + 1, after, tokens, suspects)


def empty() -> Content:
    """Return an empty store."""
    return Content(0, StoreMachine(ChangeHistory(HISTORY_EVENTS, HISTORY_BYTES)).snapshot())


def encode(content: Content) -> bytes:
    """Encode the file."""
    kept = content.snapshot
    body = cbor2.dumps(
        [
            content.number,
            list(content.tokens),
            content.suspects,
            [kept.revision, kept.compacted, kept.next_lease, kept.leases],
            [list(attrs.astuple(entry)) for entry in kept.entries],
            [list(attrs.astuple(event)) for event in kept.events],
        ]
    )
    return MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def decode(data: bytes, where: str) -> Content:
    """Decode what `encode` made. Raises `StoreDataError`, which names the file, for anything
    else.
    """
    start = len(MAGIC) + 4
    body = data[start:]
    try:
        if not data.startswith(MAGIC) or data[len(MAGIC) : start] != zlib.crc32(body).to_bytes(
            4, "big"
        ):
            raise ValueError("its checksum is wrong")
        number, tokens, suspects, (revision, compacted, next_lease, leases), entries, events = cast(
            "Any", cbor2.loads(body)
        )
        snapshot = Snapshot(
            revision,
            compacted,
            next_lease,
            leases,
            tuple(Entry(*entry) for entry in entries),
            tuple(StoreEvent(*event) for event in events),
        )
        return Content(number, snapshot, tuple(tokens), suspects)
    except (ValueError, TypeError, cbor2.CBORDecodeError) as error:
        raise StoreDataError(
            f"{where} is not the store of a rendezvous ({error}); give the job another directory, "
            "or delete this one"
        ) from None


# When a lease that exists only in files has ended: each observer measures, on its own clock, for
# how long a lease's counter has not changed. No I/O.
#
# A lease that was not renewed for its time becomes suspected first. It ends only if it is still not
# renewed when every agent could see the suspicion. So a holder that renews it at that moment either
# sees the suspicion and clears it, or sees that it is too late.


@attrs.define
class _Seen:
    beat: bytes
    since: float


class LeaseTimes:
    """The leases as one observer has seen them: one entry for each lease that the store has.
    `look_every`: the planned seconds between two looks.
    """

    def __init__(self, look_every: float) -> None:
        self._look_every = look_every
        self._seen: dict[int, _Seen] = {}
        self._looked = math.nan

    def look(self, leases: dict[int, float], beats: dict[int, bytes], now: float) -> list[int]:
        """Return the overdue leases. `leases`: seconds by lease; `beats`: the counters that their
        holders wrote last.
        """
        late = now - self._looked - self._look_every
        if late > LATE_SECONDS:
            # This process was stopped, or its loop blocked. What it reads now may be older than
            # what the holders have written meanwhile, so this time does not count.
            for seen in self._seen.values():
                seen.since += late
        self._looked = now
        self._seen = {lease: seen for lease, seen in self._seen.items() if lease in leases}
        overdue = []
        for lease, seconds in leases.items():
            beat = beats.get(lease, b"")
            known = self._seen.get(lease)
            if known is None or known.beat != beat:
                self._seen[lease] = _Seen(beat, now)
            elif now - known.since >= seconds:
                overdue.append(lease)
        assert self._seen.keys() == leases.keys(), "each lease of the store is timed, and no other"
        return overdue

    def left(self, lease: int, seconds: float, now: float) -> float:
        """Return the seconds that a lease has left, as far as this observer knows."""
        seen = self._seen.get(lease)
        return seconds if seen is None else max(0.0, seen.since + seconds - now)


# Removing the directories that old jobs have left beside that of a job.


def remove_leftovers(own: Path, retention: float, token: str) -> list[str]:
    """Remove the directories beside `own` in which no agent has written for a day, or for
    `retention` seconds if that is longer. Returns their names. Blocking.

    Agents of a running job write every few seconds. Ages are measured by the clock of the file
    system alone. Directories that are not ours stay, and so do those that cannot be removed,
    because they belong to another user.
    """
    probe = own / f"new.{token}"
    removed: list[str] = []
    try:
        probe.write_bytes(b"")
        oldest = probe.stat().st_mtime - max(retention, DAY)
        for directory in own.parent.iterdir():
            if directory != own and _is_left(directory, oldest):
                # Renaming is atomic: an agent that starts there now creates a new directory instead
                # of using one that is being deleted.
                aside = own.parent / f".removed-{token}-{len(removed)}"
                directory.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
                removed.append(directory.name)
    except OSError:
        # Not ours to tidy up.
        pass
    finally:
        probe.unlink(missing_ok=True)
    return removed


def _is_left(directory: Path, oldest: float) -> bool:
    """Return True if everything in the directory is a store of ours, and that old."""
    try:
        if not directory.is_dir() or directory.stat().st_mtime > oldest:
            return False
        with os.scandir(directory) as found:
            entries = list(found)
        states = [entry for entry in entries if entry.name.startswith("state.")]
        if not states or any(
            not entry.name.startswith(("state.", "lease.", "new.")) or entry.is_dir()
            for entry in entries
        ):
            return False
        if any(entry.stat().st_mtime > oldest for entry in entries):
            return False
        return all(_begins_with_magic(Path(entry.path)) for entry in states)
    except OSError:
        return False


def _begins_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class FileStore(Store):
    """A `Store` in a directory. `run` must be running while it is used. Every call raises
    `StoreUnavailableError` if the directory cannot be used, `StoreDataError` if a file in it is
    damaged, and StoreError after `close`.
    """

    def __init__(self, directory: Path, environment: Environment) -> None:
        self._directory = directory
        self._environment = environment
        self._content = empty()
        self._machine = self._content.machine()
        """The same, for reading."""
        self._times = LeaseTimes(LEASES_SECONDS)
        self._moved = trio.Event()
        self._closed = False

    async def open(self) -> None:
        """Make the directory if there is none, and read what it has. Raises `StoreUnavailableError`
        or `StoreDataError`.
        """
        await self._in_thread(lambda: self._directory.mkdir(parents=True, exist_ok=True))
        await self._read()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the commits of others and end expired leases, until the store is closed."""
        task_status.started()
        leases_at = self._environment.now()
        while not self._closed:
            try:
                await self._read()
                if (now := self._environment.now()) >= leases_at:
                    leases_at = now + LEASES_SECONDS
                    await self._look_at_leases()
            except StoreError as error:
                logger.debug("the store in %s does not answer: %s", self._directory, error)
            await trio.sleep(COMMIT_LOOK_SECONDS)

    def close(self) -> None:
        """Refuse calls from now on, and end waiting calls with StoreError."""
        self._closed = True
        # Not replaced as in `_use`: what waits for it now, and what still comes to wait, ends.
        self._moved.set()

    async def get(self, key: str) -> Entry | None:
        """Return the entry of a key in the latest commit, or None."""
        check_key(key)
        return (await self._reading()).get(key)

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Return the entries whose keys begin with `prefix`, with the revision of the latest
        commit.
        """
        return (await self._reading()).range(prefix, limit)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a value, tied to `lease` if that is not 0; returns the revision. Raises
        `LeaseLostError` if the lease has ended.
        """
        return (await self.transaction([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        """Delete a key; returns whether it existed."""
        return bool((await self.transaction([], [Delete(key)])).responses[0])

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Run `then` if all conditions of `compare` hold, else `otherwise`, in one commit. Raises
        `StoreOutcomeUnknownError` if so many commits followed that this one cannot be found among
        them.
        """
        check_transaction(compare, then, otherwise)
        return await self._commit(
            lambda machine, suspects: machine.transaction(compare, then, otherwise)
        )

    async def grant(self, ttl: float) -> int:
        """Create a lease of `ttl` seconds and return its number."""
        check_time_to_live(ttl)
        return await self._commit(lambda machine, suspects: machine.grant(ttl, 0.0))

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease by a new beat in its file; returns its seconds. Raises `LeaseLostError` if
        it has ended.
        """
        _held(await self._read(), lease)
        await self._in_thread(lambda: self._replace(self._beat(lease), self._environment.token(8)))
        # Only after that: an agent that suspects the lease from now on will see the new beat.
        content = await self._read()
        seconds = _held(content, lease)
        if lease in content.suspects:
            await self._commit(lambda machine, suspects: _cleared(machine, suspects, lease))
        return seconds

    async def time_to_live(self, lease: int) -> float:
        """Return the seconds that a lease has left, as far as this process knows. Raises
        `LeaseLostError` if it has ended.
        """
        return self._times.left(lease, _held(await self._read(), lease), self._environment.now())

    async def revoke(self, lease: int) -> None:
        """End a lease and delete the keys that are tied to it. Raises `LeaseLostError` if it has
        ended before.
        """
        await self._commit(lambda machine, suspects: _revoked(machine, suspects, lease))
        await self._in_thread(lambda: self._beat(lease).unlink(missing_ok=True))

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes of keys that begin with `prefix`, from `from_revision` on. Raises
        `StoreCompactedError` if the file holds them no more.
        """
        await self._read()
        while True:
            # Taken before the look, so that a commit after the look sets this event.
            moved = self._moved
            batch = self._machine.changes(prefix, from_revision)
            if batch is not None:
                return batch
            await moved.wait()
            self._refuse_if_closed()

    async def _look_at_leases(self) -> None:
        content = self._content
        leases = content.snapshot.leases
        beats = await self._in_thread(lambda: {lease: self._beat_of(lease) for lease in leases})
        for lease in self._times.look(leases, beats, self._environment.now()):
            with contextlib.suppress(LeaseLostError):
                await self._end(lease, beats[lease])

    async def _end(self, lease: int, beat: bytes) -> None:
        """End a lease, unless its holder has written a new beat."""
        token = self._environment.token(8)
        await self._commit(lambda machine, suspects: _suspected(machine, suspects, lease, token))
        # Read after the suspicion was committed: a holder that beats later reads the suspicion, and
        # clears it.
        if await self._in_thread(lambda: self._beat_of(lease)) == beat:
            await self._commit(lambda machine, suspects: _ended(machine, suspects, lease, token))
            await self._in_thread(lambda: self._beat(lease).unlink(missing_ok=True))

    async def _commit(self, step: Callable[[StoreMachine, dict[int, bytes]], T]) -> T:
        """Apply `step` to the latest state and commit the result, if it changed anything. Returns
        the result of `step`.

        Repeats when another agent commits first (optimistic concurrency).
        """
        token = self._environment.token(8)
        attempt = 0
        while True:
            content = await self._read()
            machine, suspects = content.machine(), dict(content.suspects)
            result = step(machine, suspects)
            after = content.followed_by(machine, suspects, token)
            if after is None:
                return result
            if await self._in_thread(
                partial(self._link, after.number, encode(after), token)
            ) and await self._is_applied(after, token):
                return result
            attempt += 1
            # Each lost attempt is the commit of another agent, so all together make progress.
            await trio.sleep(self._environment.random() * COMMIT_RETRY_SECONDS * min(attempt, 10))

    async def _is_applied(self, after: Content, token: bytes) -> bool:
        """The link was made. It was the next commit only if the previous file still exists, because
        the oldest files are removed first: without it, this commit may have come too late.
        """
        before = self._path(after.number - 1)
        if after.number == 1 or await self._in_thread(before.exists):
            self._use(after)
            return True
        content = await self._read()
        if token in content.tokens:
            return True
        if content.number - after.number < KEPT_TOKENS:
            return False
        raise StoreOutcomeUnknownError(
            f"a write to {self._directory} took so long that its outcome is unknown; read the key "
            "before you write again"
        )

    async def _read(self) -> Content:
        """Return the latest state."""
        self._refuse_if_closed()
        known = self._content
        found = await self._in_thread(lambda: self._latest(known))
        if found is not None and found.number > self._content.number:
            self._use(found)
        return self._content

    async def _reading(self) -> StoreMachine:
        await self._read()
        return self._machine

    def _use(self, content: Content) -> None:
        # Two tasks may read at once, and the thread of the older read may end last.
        if content.number > self._content.number:
            self._content, self._machine = content, content.machine()
            moved, self._moved = self._moved, trio.Event()
            moved.set()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed, because its agent has left; open another one")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        try:
            return await self._environment.in_thread(function)
        except OSError as error:
            raise StoreUnavailableError(
                f"cannot use the directory {self._directory}: {error}"
            ) from error

    def _path(self, number: int) -> Path:
        return self._directory / f"state.{number:012d}"

    def _beat(self, lease: int) -> Path:
        return self._directory / f"lease.{lease}"

    def _beat_of(self, lease: int) -> bytes:
        try:
            return self._beat(lease).read_bytes()
        except FileNotFoundError:
            return b""

    def _numbers(self) -> list[int]:
        numbers = []
        for name in os.listdir(self._directory):
            kind, _, number = name.partition(".")
            if kind == "state" and number.isdigit():
                numbers.append(int(number))
        return sorted(numbers)

    def _latest(self, known: Content) -> Content | None:
        """Return the latest commit, or None if that is `known`. Blocking."""
        while True:
            numbers = self._numbers()
            if not numbers or numbers[-1] <= known.number:
                if not numbers and known.number:
                    raise StoreDataError(
                        f"the files of the rendezvous in {self._directory} have been removed; "
                        "give the job another directory"
                    )
                return None
            path = self._path(numbers[-1])
            try:
                content = decode(path.read_bytes(), str(path))
            except FileNotFoundError:
                # Removed since the directory was listed, so there are newer ones.
                continue
            return content

    def _link(self, number: int, data: bytes, token: bytes) -> bool:
        """Link the file under the name of a commit, if no other agent has done so. Blocking."""
        aside = self._directory / f"new.{token.hex()}"
        try:
            self._write(aside, data)
            try:
                os.link(aside, self._path(number))
            except FileExistsError:
                # On a network file system, the answer to the link may be lost and its repetition
                # fail although the link was made. The file's link count tells whether it was.
                if aside.stat().st_nlink < 2:
                    return False
        finally:
            aside.unlink(missing_ok=True)
        # The oldest first: `_is_applied` concludes from a file that exists that all later ones do.
        for old in self._numbers():
            if old <= number - KEPT_FILES:
                self._path(old).unlink(missing_ok=True)
        return True

    def _replace(self, path: Path, data: bytes) -> None:
        aside = path.with_name(f"new.{path.name}.{data.hex()}")
        try:
            self._write(aside, data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _held(content: Content, lease: int) -> float:
    seconds = content.snapshot.leases.get(lease)
    if seconds is None:
        raise LeaseLostError(f"lease {lease} has expired or was revoked")
    return seconds


def _cleared(machine: StoreMachine, suspects: dict[int, bytes], lease: int) -> None:
    machine.keep_alive(lease, 0.0)
    suspects.pop(lease, None)


def _revoked(machine: StoreMachine, suspects: dict[int, bytes], lease: int) -> None:
    machine.revoke(lease)
    suspects.pop(lease, None)


def _suspected(machine: StoreMachine, suspects: dict[int, bytes], lease: int, token: bytes) -> None:
    machine.keep_alive(lease, 0.0)
    suspects[lease] = token


def _ended(machine: StoreMachine, suspects: dict[int, bytes], lease: int, token: bytes) -> None:
    # Another token: the holder has cleared our suspicion, and another agent suspects it anew.
    if suspects.get(lease) == token:
        machine.revoke(lease)
