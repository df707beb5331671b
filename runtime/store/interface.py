"""The coordination store: what the cluster agrees upon.

A linearizable key-value store with revisions, compare-and-swap transactions, leases and watches: etcd v3's model, cut down. Every change
has a revision; revisions
only grow. A lease's end deletes the keys tied to it in one revision. A key that is deleted and written again has a new create revision, so
the create revision of a name's record is a fencing token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import attrs

from actors.messages import message


@message
@attrs.frozen
class Entry:
    """A key as it is now. `version` counts its writes since its creation; `lease` is 0 if it is tied to none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int = 1
    lease: int = 0


@message
@attrs.frozen
class Compare:
    """A condition: the field of the key equals what is expected. A key that is not there has revisions and version 0."""

    key: str
    field: Literal["mod_revision", "create_revision", "version", "value"]
    expected: int | bytes


@message
@attrs.frozen
class Put:
    """Write a key; answered with None."""

    key: str
    value: bytes
    lease: int = 0


@message
@attrs.frozen
class Delete:
    """Delete a key; answered with whether it was there."""

    key: str


@message
@attrs.frozen
class Get:
    """Read a key; answered with its `Entry` or None."""

    key: str


Operation = Put | Delete | Get


@message
@attrs.frozen
class TransactionResult:
    """Whether all conditions held, the store's revision afterwards, and an answer for each operation carried out."""

    succeeded: bool
    revision: int
    responses: tuple[object, ...] = ()


@message
@attrs.frozen
class RangeResult:
    """The keys under a prefix, in order, as of `revision`."""

    entries: tuple[Entry, ...]
    revision: int


@message
@attrs.frozen
class Event:
    """One change. `value` is b"" for deletions."""

    kind: Literal["put", "delete"]
    key: str
    value: bytes
    revision: int
    create_revision: int


@message
@attrs.frozen
class WatchBatch:
    """Changes in order. The next poll starts at `revision` + 1."""

    events: tuple[Event, ...]
    revision: int


class Store(ABC):
    """A client's view of the store. Each call raises a `StoreError` if the store does not answer; keys are text, values bytes."""

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """The key as it is now."""

    @abstractmethod
    async def range(self, prefix: str) -> RangeResult:
        """All keys that begin with `prefix`."""

    @abstractmethod
    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a key, tied to `lease` or to none; returns the revision. Raises `LeaseLostError`."""

    @abstractmethod
    async def delete(self, key: str) -> bool:
        """Delete a key; True if it was there."""

    @abstractmethod
    async def transaction(
        self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Carry out `then` if all conditions hold, otherwise `otherwise`, in one step and one revision."""

    @abstractmethod
    async def grant(self, ttl: float) -> int:
        """A new lease that ends `ttl` seconds after it was last kept alive, never earlier."""

    @abstractmethod
    async def keep_alive(self, lease: int) -> float:
        """Begin the lease's time anew; returns its seconds. Raises `LeaseLostError`."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease now and delete its keys. Raises `LeaseLostError` if it has ended."""

    @abstractmethod
    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes under `prefix` at or after `from_revision`. Raises `StoreCompactedError` if they are no longer kept."""

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[WatchBatch]:
        """All batches of changes from `from_revision` on, without a gap, for ever."""
        while True:
            batch = await self.poll(prefix, from_revision)
            yield batch
            from_revision = batch.revision + 1
