"""A store whose requests are measured: how long each kind takes, and how many had no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from actors.errors import StoreOutcomeUnknownError, StoreUnavailableError
from runtime.statistics.histograms import Histogram
from runtime.store.interface import (
    Compare,
    Entry,
    Operation,
    RangeResult,
    Store,
    Transaction,
    TransactionOutcome,
    TransactionResult,
    WatchBatch,
)
from runtime.tracing import NO_SPANS, Spans

T = TypeVar("T")

RENEWAL = "keep_alive"
"""The operation that renews the lease of the node."""

OPERATIONS = (
    "get",
    "range",
    "put",
    "delete",
    "transaction",
    "grant",
    RENEWAL,
    "time_to_live",
    "revoke",
)
"""The operations that are measured. `poll` waits for changes, for as long as there are none."""


class MeasuredStore(Store):
    """Passes everything on to `store`. A request that is cancelled is not counted: its time says
    nothing. `stopwatch`: see `Environment.stopwatch`. `spans`: a transaction that is part of a
    trace has a span.
    """

    def __init__(
        self, store: Store, stopwatch: Callable[[], float], spans: Spans = NO_SPANS
    ) -> None:
        self._store = store
        self._stopwatch = stopwatch
        self._spans = spans
        self.seconds = {name: Histogram() for name in OPERATIONS}
        """How long requests took that were answered, also with a refusal."""
        self.unavailable = 0
        """Requests that did not reach the store."""
        self.unknown = 0
        """Requests whose outcome is unknown."""
        self.revision = 0
        """The latest revision of the store that an answer has named."""
        self.watch_lag = 0
        """By how many revisions the latest changes that a watch brought were behind that."""

    @property
    def size(self) -> int | None:
        """Bytes of the store's keys and values; None if the store does not say."""
        return self._store.size

    async def get(self, key: str) -> Entry | None:
        """Read a key, and count how long the store took."""
        return await self._measured("get", self._store.get(key))

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Read the keys under a prefix, and count how long the store took."""
        found = await self._measured("range", self._store.range(prefix, limit))
        self._heard(found.revision)
        return found

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a key, and count how long the store took."""
        revision = await self._measured("put", self._store.put(key, value, lease))
        self._heard(revision)
        return revision

    async def delete(self, key: str) -> bool:
        """Delete a key, and count how long the store took."""
        return await self._measured("delete", self._store.delete(key))

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Carry out a transaction, and count how long the store took."""
        with self._spans.part("store.txn", {"understudy.store.operations": len(then)}):
            result = await self._measured(
                "transaction", self._store.transaction(compare, then, otherwise)
            )
        self._heard(result.revision)
        return result

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        """Carry out several transactions, and count how long the store took, once for all."""
        operations = sum(len(one.then) for one in batch)
        with self._spans.part("store.txn", {"understudy.store.operations": operations}):
            outcomes = await self._measured("transaction", self._store.transactions(batch))
        for outcome in outcomes:
            if isinstance(outcome, TransactionResult):
                self._heard(outcome.revision)
        return outcomes

    async def grant(self, ttl: float) -> int:
        """Make a lease, and count how long the store took."""
        return await self._measured("grant", self._store.grant(ttl))

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease, and count how long the store took."""
        return await self._measured(RENEWAL, self._store.keep_alive(lease))

    async def time_to_live(self, lease: int) -> float:
        """Ask for the rest of a lease, and count how long the store took."""
        return await self._measured("time_to_live", self._store.time_to_live(lease))

    async def revoke(self, lease: int) -> None:
        """End a lease, and count how long the store took."""
        await self._measured("revoke", self._store.revoke(lease))

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes. How long that takes says nothing about the store; how far they are
        behind what other requests have seen does.
        """
        batch = await self._store.poll(prefix, from_revision)
        self.watch_lag = max(0, self.revision - batch.revision)
        self._heard(batch.revision)
        return batch

    def _heard(self, revision: int) -> None:
        self.revision = max(self.revision, revision)

    async def _measured(self, name: str, request: Awaitable[T]) -> T:
        began = self._stopwatch()
        try:
            answer = await request
        except StoreUnavailableError:
            self.unavailable += 1
            raise
        except StoreOutcomeUnknownError:
            self.unknown += 1
            raise
        except Exception:
            self.seconds[name].add(self._stopwatch() - began)
            raise
        self.seconds[name].add(self._stopwatch() - began)
        return answer
