"""A job's store over the coordination store: transactions for what must be one step, watches for
what is waited for.

Everything is below one prefix: the keys in `k/`, barriers in `b/`, queues in `q/`, each value with
a number for its place. What is written is tied to the job's lease, so nothing outlives the job for
long. The store of a round has a fence, a key that exists from when the round is complete until the
next one opens: each call checks it in its own transaction, and calls that wait watch it.

A write whose answer was lost raises `RendezvousConnectionError`: it may have been done, and is not
repeated blindly.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from actors.errors import (
    LeaseLostError,
    StoreCompactedError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import Environment, raise_alone
from runtime.rendezvous.parameters import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RoundOverError,
    StoreTimeoutError,
)
from runtime.store.interface import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    Store,
    TransactionResult,
)

T = TypeVar("T")

WITHDRAW_SECONDS = 2.0
"""Seconds for a caller that stops waiting at a barrier to say so. If the store does not answer by
then, the barrier counts it as arrived.
"""
WRITE_RETRY_SECONDS = 0.01
"""Seconds to wait at most after the first write that another agent has overtaken; twenty times as
many after the twentieth.
"""


@attrs.frozen
class Scope:
    """The job or round that a store belongs to. `fence`: a key and the value that it must have for
    every write; None for no fence.
    """

    store: Store
    environment: Environment
    root: str
    lease: int
    fence: tuple[str, bytes] | None = None
    what: str = "the job"
    timeout: float = 300.0


class JobStore:
    """The `KeyValueStore` of a job or a round. `prefix`: before every key, with its slash.

    Every call raises `RendezvousConnectionError` if the store does not answer, and `RoundOverError`
    if the round is over.
    """

    def __init__(self, scope: Scope, prefix: str = "") -> None:
        self._scope = scope
        self._store = scope.store
        self._prefix = prefix

    def prefixed(self, prefix: str) -> JobStore:
        """Return a view of this store in which every key begins with `prefix` and a slash."""
        return JobStore(self._scope, f"{self._prefix}{prefix}/")

    async def set(self, key: str, value: bytes) -> None:
        """Write the value of a key."""
        await self._write([], [self._put(self._key(key), value)])

    async def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the value of a key, once it exists. Raises `StoreTimeoutError` after `timeout`
        seconds.
        """
        return (await self.multi_get([key], timeout=timeout))[0]

    async def peek(self, key: str) -> bytes | None:
        """Return the value that a key has now, or None."""
        entry = await self._entry(self._key(key))
        return entry.value if entry is not None else None

    async def add(self, key: str, amount: int) -> int:
        """Add `amount` to a counter, which begins at 0, and return the sum. Raises ValueError if
        the key holds no number.
        """

        def added(value: bytes | None) -> bytes:
            return b"%d" % (_number(key, value) + amount)

        return int(await self._changed(self._key(key), added))

    async def compare_set(
        self, key: str, expected: bytes | None, value: bytes
    ) -> tuple[bool, bytes | None]:
        """Write `value` if the key holds `expected` (None: if it does not exist). Returns whether
        it was written, and the value that the key has then.
        """
        full = self._key(key)
        condition = (
            Compare(full, "create_revision", 0)
            if expected is None
            else Compare(full, "value", expected)
        )
        result = await self._write([condition], [self._put(full, value)], [Get(full)])
        if result.succeeded:
            return True, value
        entry = result.responses[0]
        return False, entry.value if isinstance(entry, Entry) else None

    async def wait(self, keys: Sequence[str], *, timeout: float | None = None) -> None:
        """Wait until all keys exist. Raises `StoreTimeoutError` after `timeout` seconds."""
        await self._all(keys, timeout)

    async def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist now."""
        return all(
            entry is not None for entry in await self._entries([self._key(key) for key in keys])
        )

    async def append(self, key: str, value: bytes) -> None:
        """Append `value` to the value of a key, in one step."""
        await self._changed(self._key(key), lambda before: (before or b"") + value)

    async def multi_get(self, keys: Sequence[str], *, timeout: float | None = None) -> list[bytes]:
        """Return the values of several keys, once all exist. Raises `StoreTimeoutError` after
        `timeout` seconds.
        """
        return [entry.value for entry in await self._all(keys, timeout)]

    async def multi_set(self, values: Mapping[str, bytes]) -> None:
        """Write several keys in one step. Raises ValueError for more keys than one transaction has
        room for.
        """
        if len(values) > MAX_OPERATIONS:
            raise ValueError(
                f"multi_set sets at most {MAX_OPERATIONS} keys in one step, not {len(values)}; "
                "set them in several"
            )
        await self._write([], [self._put(self._key(key), value) for key, value in values.items()])

    async def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it existed."""
        return bool((await self._write([], [Delete(self._key(key))])).responses[0])

    async def num_keys(self) -> int:
        """Return the number of keys."""
        return len(await self.list_keys())

    async def list_keys(self) -> list[str]:
        """Return all keys, in order, without the prefix."""
        root = self._key("")
        return [entry.key.removeprefix(root) for entry in (await self._range(root))]

    async def barrier(self, name: str, count: int, *, timeout: float | None = None) -> None:
        """Wait until `count` callers have arrived at the barrier of this name. A caller that stops
        waiting does not count as arrived. Raises `StoreTimeoutError` after `timeout` seconds, and
        ValueError for a count below one.
        """
        if count < 1:
            raise ValueError(f"the count of a barrier must be at least one, not {count}")
        key = f"{self._scope.root}b/{self._prefix}{name}"

        def arrived(value: bytes | None) -> bytes:
            generation, there = _barrier(key, value)
            return (
                _barrier_value(generation + 1, 0)
                if there + 1 >= count
                else _barrier_value(generation, there + 1)
            )

        async with self._within(timeout, lambda: f"the barrier {name!r}, for {count},"):
            after, there = _barrier(key, await self._changed(key, arrived))
            # The last caller to arrive has raised the generation, which releases the others.
            if not there:
                return
            try:
                await self._until(key, lambda value: _barrier(key, value)[0] > after)
            except BaseException:
                with trio.CancelScope(shield=True), trio.move_on_after(WITHDRAW_SECONDS):
                    await self._withdraw(key, after)
                raise

    async def queue_push(self, key: str, value: bytes) -> None:
        """Put a value at the end of a queue."""
        items, last = self._queue(key), self._queue_last(key)
        for attempt in _attempts():
            entry = await self._entry(last)
            number = _number(key, entry.value if entry is not None else None) + 1
            # Sixteen digits: the store sorts keys as texts, and the order of the keys is that of
            # the queue.
            then = [self._put(last, b"%d" % number), self._put(f"{items}{number:016d}", value)]
            if (await self._write([_unchanged(last, entry)], then)).succeeded:
                return
            await self._step_back(attempt)

    async def queue_pop(self, key: str, *, timeout: float | None = None) -> bytes:
        """Take a value from the beginning of a queue, once there is one. Raises `StoreTimeoutError`
        after `timeout` seconds.
        """
        items = self._queue(key)
        async with self._within(timeout, lambda: f"a value in the queue {key!r}"):
            for attempt in _attempts():
                found = await self._asked(lambda: self._store.range(items))
                if not found.entries:
                    await self._or_round_over(partial(self._store.poll, items, found.revision + 1))
                    continue
                # Not always the first value: consumers that take at the same moment would all
                # compete for the same one.
                entry = found.entries[0] if attempt < 2 else self._any_of(found.entries)
                if (
                    await self._write([_unchanged(entry.key, entry)], [Delete(entry.key)])
                ).succeeded:
                    return entry.value
                await self._step_back(attempt)
        raise AssertionError("attempts end only with a value")

    async def queue_len(self, key: str) -> int:
        """Return how many values a queue has now."""
        return len(await self._range(self._queue(key)))

    def _key(self, key: str) -> str:
        return f"{self._scope.root}k/{self._prefix}{key}"

    def _queue(self, key: str) -> str:
        # Escape slashes: without that, the values of queue "a/b" would look like values of queue
        # "a".
        return (
            f"{self._scope.root}q/{(self._prefix + key).replace('%', '%25').replace('/', '%2F')}/"
        )

    def _queue_last(self, key: str) -> str:
        return f"{self._scope.root}n/{self._prefix}{key}"

    def _put(self, key: str, value: bytes) -> Put:
        return Put(key, value, self._scope.lease)

    def _any_of(self, entries: Sequence[Entry]) -> Entry:
        return entries[int(self._scope.environment.random() * len(entries))]

    async def _step_back(self, attempt: int) -> None:
        seconds = WRITE_RETRY_SECONDS * min(attempt + 1, 20)
        await trio.sleep(self._scope.environment.random() * seconds)

    async def _changed(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace a value by the result of `change`, atomically. Returns the new value."""
        entry = await self._entry(key)
        for attempt in _attempts():
            value = change(entry.value if entry is not None else None)
            result = await self._write(
                [_unchanged(key, entry)], [self._put(key, value)], [Get(key)]
            )
            if result.succeeded:
                return value
            found = result.responses[0]
            entry = found if isinstance(found, Entry) else None
            if attempt:
                await self._step_back(attempt)
        raise AssertionError("attempts end only with a value")

    async def _withdraw(self, key: str, generation: int) -> None:
        def withdrawn(value: bytes | None) -> bytes:
            now, there = _barrier(key, value)
            return _barrier_value(now, max(0, there - 1) if now == generation else there)

        try:
            await self._changed(key, withdrawn)
        except (RendezvousConnectionError, RoundOverError):
            # No call waits at the barrier any more either.
            pass

    async def _write(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Run a transaction on the condition that the fence is there. If the fence is gone, raises
        `RoundOverError`, whatever the other conditions are.
        """
        fence = self._scope.fence
        if fence is None:
            return await self._asked(lambda: self._store.transaction(compare, then, otherwise))
        # Checked in the same transaction: if it were read before, the fence could go in between.
        guard = [Compare(fence[0], "value", fence[1])]
        result = await self._asked(
            lambda: self._store.transaction([*guard, *compare], then, [*otherwise, Get(fence[0])])
        )
        if not result.succeeded:
            found = result.responses[-1]
            if not isinstance(found, Entry) or found.value != fence[1]:
                raise self._over()
            return attrs.evolve(result, responses=result.responses[:-1])
        return result

    async def _entry(self, key: str) -> Entry | None:
        return (await self._entries([key]))[0]

    async def _entries(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return the values as they are now, up to a hundred of one revision."""
        found: list[Entry | None] = []
        for start in range(0, len(keys), MAX_OPERATIONS - 1):
            some = keys[start : start + MAX_OPERATIONS - 1]
            result = await self._write([], [Get(key) for key in some])
            found.extend(entry if isinstance(entry, Entry) else None for entry in result.responses)
        return found

    async def _range(self, prefix: str) -> Sequence[Entry]:
        return (await self._asked(lambda: self._store.range(prefix))).entries

    async def _all(self, keys: Sequence[str], timeout: float | None) -> list[Entry]:
        """Return the keys once all of them exist."""
        full = [self._key(key) for key in keys]
        found: list[Entry | None] = []

        def what() -> str:
            return ", ".join(
                repr(key) for key, entry in itertools.zip_longest(keys, found) if entry is None
            )

        async with self._within(timeout, what):
            while True:
                found = await self._entries(full)
                missing = [key for key, entry in zip(full, found, strict=True) if entry is None]
                if not missing:
                    return [entry for entry in found if entry is not None]
                await self._until(missing[0], lambda value: value is not None)

    async def _until(self, key: str, holds: Callable[[bytes | None], bool]) -> None:
        """Wait until the value of a key meets a condition. Uses a watch."""
        while True:
            found = await self._asked(lambda: self._store.range(key))
            entry = next((entry for entry in found.entries if entry.key == key), None)
            if holds(entry.value if entry is not None else None):
                return
            # From the revision of this read on, so that no change falls between read and watch.
            await self._or_round_over(partial(self._key_changed, key, found.revision + 1))

    async def _key_changed(self, key: str, from_revision: int) -> None:
        """Wait for a change of this key. The watch is for a prefix, so it also reports others."""
        while True:
            batch = await self._store.poll(key, from_revision)
            if any(event.key == key for event in batch.events):
                return
            from_revision = batch.revision + 1

    async def _or_round_over(self, change: Callable[[], Awaitable[object]]) -> None:
        """Wait for a change, or raise `RoundOverError` when the round ends."""
        if self._scope.fence is None:
            await self._polled(change)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._round_over)
                await self._polled(change)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            ours, others = group.split(RendezvousError)
            # Both tasks may fail at once for the same reason, and the caller may be cancelled at
            # the same moment. One error is enough.
            enough = ours is not None and (
                others is None or others.split(trio.Cancelled)[1] is None
            )
            raise_alone(_first(ours) if ours is not None and enough else group)

    async def _polled(self, change: Callable[[], Awaitable[object]]) -> None:
        """A watch that was compacted, or whose store is briefly away, only means that the value
        must be read again.
        """
        try:
            await change()
        except StoreCompactedError:
            pass
        except StoreUnavailableError:
            await trio.sleep(0.5)
        except StoreError as error:
            raise _connection(error) from error

    async def _round_over(self) -> None:
        assert self._scope.fence is not None
        fence, value = self._scope.fence
        while True:
            found = await self._asked(lambda: self._store.range(fence))
            if not any(entry.key == fence and entry.value == value for entry in found.entries):
                raise self._over()
            await self._polled(partial(self._key_changed, fence, found.revision + 1))

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except LeaseLostError as error:
            raise RoundOverError(
                f"the store has deleted the data of {self._scope.what}: its lease ended, because "
                "none of its agents renewed it"
            ) from error
        except StoreError as error:
            raise _connection(error) from error

    def _over(self) -> RoundOverError:
        return RoundOverError(
            f"{self._scope.what} is over: another round has begun, or the rendezvous is gone; ask "
            "for the next one"
        )

    @asynccontextmanager
    async def _within(self, timeout: float | None, what: Callable[[], str]) -> AsyncIterator[None]:
        """Raise `StoreTimeoutError` if the block takes longer."""
        seconds = self._scope.timeout if timeout is None else timeout
        with trio.move_on_after(seconds) as scope:  # noqa: ASYNC100  its caller waits
            yield
        if scope.cancelled_caught:
            raise StoreTimeoutError(f"{what()} did not come within {seconds:g} s")


def _first(group: BaseExceptionGroup[RendezvousError]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _attempts() -> Iterator[int]:
    # Without an end: each attempt that fails is the write of another agent that succeeded. What
    # bounds the time is the caller's cancel scope.
    return itertools.count()


def _unchanged(key: str, entry: Entry | None) -> Compare:
    return Compare(key, "mod_revision", entry.mod_revision if entry is not None else 0)


def _number(key: str, value: bytes | None) -> int:
    try:
        return int(value) if value is not None else 0
    except ValueError:
        raise ValueError(
            f"the key {key!r} holds {value!r}, which is not a number, so nothing can be added to it"
        ) from None


def _barrier(key: str, value: bytes | None) -> tuple[int, int]:
    """A barrier: how often all have arrived (its generation), and how many have arrived now."""
    if value is None:
        return 0, 0
    try:
        generation, there = json.loads(value)
        return int(generation), int(there)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RendezvousStateError(
            f"the record of a barrier at {key!r} cannot be understood ({error}); delete it"
        ) from None


def _barrier_value(generation: int, there: int) -> bytes:
    return json.dumps([generation, there]).encode()


def _connection(error: StoreError) -> RendezvousConnectionError:
    if isinstance(error, StoreOutcomeUnknownError):
        return RendezvousConnectionError(
            f"the answer to a write to the job's store was lost, and the write may have been done; "
            f"read the key before you write again: {error}"
        )
    return RendezvousConnectionError(f"the job's store does not answer: {error}")
