"""A store in a directory that agents share: one host's, or a network file system's. There is no daemon, and nobody holds a lock.

The file `state.N` is the whole store after its commit N, written aside and linked into place, which only one can do for each N. Who links
N + 1 has read N; if N is gone by then the commit may have come too late to be one, and the tokens of later commits tell. Those who commit
remove old files. A lease is a file with a counter, which its holder replaces and the others time, each by its own clock.

It is for what a rendezvous writes, and for small things of jobs: each commit writes all there is.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from actors.errors import LeaseLostError, StoreDataError, StoreError, StoreOutcomeUnknownError, StoreUnavailableError
from runtime.environment import Environment
from runtime.rendezvous.file_format import KEPT_TOKENS, Content, decode, empty, encode
from runtime.rendezvous.file_leases import LeaseTimes
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
    check_key,
    check_time_to_live,
    check_transaction,
)
from runtime.store.memory import StoreMachine

T = TypeVar("T")

LOOK_SECONDS = 0.05
"""How often it is looked whether others have committed."""

LEASES_SECONDS = 0.25
"""How often it is looked at their leases."""

KEPT_FILES = 20
BUSY_SECONDS = 0.02

logger = logging.getLogger("understudy.rendezvous")


class FileStore(Store):
    """See `Store`. `run` must be running while it is used. Raises `StoreUnavailableError` where the directory cannot be used."""

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
        """Make the directory if there is none, and read what it has. Raises `StoreUnavailableError` or `StoreDataError`."""
        await self._in_thread(lambda: self._directory.mkdir(parents=True, exist_ok=True))
        await self._read()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow what others commit, and end their leases when it is time, until the store is closed."""
        task_status.started()
        leases_at = self._environment.now()
        while not self._closed:
            try:
                await self._read()
                if (now := self._environment.now()) >= leases_at:
                    leases_at = now + LEASES_SECONDS
                    await self._look_at_leases()
            except StoreError as error:
                logger.debug("the store in %s is away: %s", self._directory, error)
            await trio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Refuse calls from now on, and end those that wait, with StoreError."""
        self._closed = True
        self._moved.set()

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        check_key(key)
        return (await self._reading()).get(key)

    async def range(self, prefix: str) -> RangeResult:
        """See `Store.range`."""
        return (await self._reading()).range(prefix)

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
        check_transaction(compare, then, otherwise)
        return await self._commit(lambda machine, suspects: machine.transaction(compare, then, otherwise))

    async def grant(self, ttl: float) -> int:
        """See `Store.grant`."""
        check_time_to_live(ttl)
        return await self._commit(lambda machine, suspects: machine.grant(ttl, 0.0))

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
        _held(await self._read(), lease)
        await self._in_thread(lambda: self._replace(self._beat(lease), self._environment.token(8)))
        # After that, not before: who suspects the lease from now on will see the beat.
        content = await self._read()
        seconds = _held(content, lease)
        if lease in content.suspects:
            await self._commit(lambda machine, suspects: _cleared(machine, suspects, lease))
        return seconds

    async def time_to_live(self, lease: int) -> float:
        """See `Store.time_to_live`."""
        return self._times.left(lease, _held(await self._read(), lease), self._environment.now())

    async def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        await self._commit(lambda machine, suspects: _revoked(machine, suspects, lease))
        await self._in_thread(lambda: self._beat(lease).unlink(missing_ok=True))

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`."""
        await self._read()
        while True:
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
        """End a lease, unless its holder has written another beat."""
        token = self._environment.token(8)
        await self._commit(lambda machine, suspects: _suspected(machine, suspects, lease, token))
        if await self._in_thread(lambda: self._beat_of(lease)) == beat:
            await self._commit(lambda machine, suspects: _ended(machine, suspects, lease, token))
            await self._in_thread(lambda: self._beat(lease).unlink(missing_ok=True))

    async def _commit(self, step: Callable[[StoreMachine, dict[int, bytes]], T]) -> T:
        """The result of `step`, which is done to the latest state and becomes the next one if it changed anything."""
        token = self._environment.token(8)
        attempt = 0
        while True:
            content = await self._read()
            machine, suspects = content.machine(), dict(content.suspects)
            result = step(machine, suspects)
            after = content.followed_by(machine, suspects, token)
            if after is None:
                return result
            if await self._in_thread(partial(self._link, after.number, encode(after), token)) and await self._is_applied(after, token):
                return result
            attempt += 1
            await trio.sleep(self._environment.random() * BUSY_SECONDS * min(attempt, 10))

    async def _is_applied(self, after: Content, token: bytes) -> bool:
        """The link was made: was it the next one? It was if the one before is still there, for the older ones are removed first."""
        before = self._path(after.number - 1)
        if after.number == 1 or await self._in_thread(before.exists):
            self._use(after)
            return True
        content = await self._read()
        if token in content.tokens:
            return True
        if content.number - after.number < KEPT_TOKENS:
            return False
        raise StoreOutcomeUnknownError(f"a write to {self._directory} took so long that nobody can tell any more what became of it")

    async def _read(self) -> Content:
        """The latest state."""
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
        if content.number > self._content.number:
            self._content, self._machine = content, content.machine()
            moved, self._moved = self._moved, trio.Event()
            moved.set()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed: its agent has left")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        try:
            return await self._environment.in_thread(function)
        except OSError as error:
            raise StoreUnavailableError(f"the directory {self._directory} cannot be used: {error}") from error

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
        """What is newer than `known`; blocks."""
        while True:
            numbers = self._numbers()
            if not numbers or numbers[-1] <= known.number:
                if not numbers and known.number:
                    raise StoreDataError(
                        f"the files of the rendezvous in {self._directory} have been removed; give the job another directory"
                    )
                return None
            path = self._path(numbers[-1])
            try:
                content = decode(path.read_bytes(), str(path))
            except FileNotFoundError:
                # Removed meanwhile, so there are newer ones.
                continue
            return content

    def _link(self, number: int, data: bytes, token: bytes) -> bool:
        """Make this the file of a commit, if nobody else has; blocks."""
        aside = self._directory / f"new.{token.hex()}"
        try:
            self._write(aside, data)
            try:
                os.link(aside, self._path(number))
            except FileExistsError:
                # Over a network the answer to a link that was made may be lost, and that to its repetition come: the count of links tells.
                if aside.stat().st_nlink < 2:
                    return False
        finally:
            aside.unlink(missing_ok=True)
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
    if suspects.get(lease) == token:
        machine.revoke(lease)
