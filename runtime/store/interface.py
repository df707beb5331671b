"""The coordination store: what the cluster agrees upon.

A linearizable key-value store with revisions, compare-and-swap transactions, leases and watches:
etcd v3's model, cut down to what every implementation can keep
(https://etcd.io/docs/v3.4/learning/api). The rules that hold for all of them, tested in
`tests/store/conformance`:

- Every call takes effect at one moment between its start and its end, and all clients see the same
  order of them.
- The store has one revision. Each call that changes anything raises it by one, whatever number of
  keys it changes; nothing lowers it, not even a restart of the store.
- A key that is deleted and written again has a new, higher create revision, so the create revision
  of a record is a fencing token.
- A lease ends by `revoke`, or some time after its time is over, never before. All keys tied to it
  are then deleted in one revision.
- A watch sees every change once, in order, or learns by `StoreCompactedError` that it cannot.

Keys are text, by convention of parts separated by "/"; a prefix is just text that keys may begin
with, so "a/" does not cover "ab". What the values mean is left to the programs over the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import UnionType
from typing import Any, Literal

import attrs

from actors.errors import StoreError
from actors.messages import message

MAX_OPERATIONS = 120
"""Conditions, and operations in either branch, of one transaction. etcd accepts 128 by default; the
difference is what our etcd client adds.
"""

MAX_LEASE_SECONDS = 9_000_000_000
"""The longest time to live of a lease that etcd accepts, in seconds."""


def check_key(key: object) -> None:
    """Check that every store can keep the key. Raises TypeError or ValueError."""
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    if not key:
        raise ValueError("a key has at least one character")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the key {key!a} holds a lone surrogate, which UTF-8 cannot encode"
            ) from None


def _key(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_key(value)


def _value(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    # Only bytes: a mutable buffer could change after the call, and with it the store's history.
    if not isinstance(value, bytes):
        raise TypeError(f"a value is bytes, not {type(value).__name__}")


def _lease(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"a lease is a number that grant() returned, or 0 for none; not {value!r}")


def _field(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("mod_revision", "create_revision", "version", "value"):
        raise ValueError(
            f"a condition is on mod_revision, create_revision, version or value; not on {value!r}"
        )


def _expected(instance: Compare, attribute: attrs.Attribute[Any], value: object) -> None:
    wanted = bytes if instance.field == "value" else int
    if type(value) is not wanted:
        raise TypeError(
            f"{instance.field} is compared with {wanted.__name__}, not with {type(value).__name__}"
        )


@message
@attrs.frozen
class Entry:
    """The present value of a key. `create_revision` and `mod_revision`: the revisions of its
    creation and of its last write. `version`: the number of writes since its creation, from 1.
    `lease`: 0 if it has none.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int = 1
    lease: int = 0


@message
@attrs.frozen
class Compare:
    """A condition: a field of the key equals `expected`. A missing key has 0 as its revisions and
    version, and no value, so a condition on its value is false.
    """

    key: str = attrs.field(validator=_key)
    field: Literal["mod_revision", "create_revision", "version", "value"] = attrs.field(
        validator=_field
    )
    expected: int | bytes = attrs.field(validator=_expected)

    def holds(self, entry: Entry | None) -> bool:
        """Return whether the condition is true of this entry of its key; None: the key is
        missing.
        """
        if entry is None:
            return self.field != "value" and self.expected == 0
        # No ordering, only equality: etcd could compare by less and greater, but the protocols
        # above need nothing else, and all stores have to agree on every condition.
        return bool(getattr(entry, self.field) == self.expected)


@message
@attrs.frozen
class Put:
    """Write a key and tie it to `lease`, or to none if that is 0; an earlier lease no longer holds
    it. Its response is None.
    """

    key: str = attrs.field(validator=_key)
    value: bytes = attrs.field(validator=_value)
    lease: int = attrs.field(default=0, validator=_lease)


@message
@attrs.frozen
class Delete:
    """Delete a key. Its response is True if the key existed."""

    key: str = attrs.field(validator=_key)


@message
@attrs.frozen
class Get:
    """Read a key, after the operations before this one in the transaction. Its response is the
    `Entry` or None.
    """

    key: str = attrs.field(validator=_key)


Operation = Put | Delete | Get
Response = Entry | bool | None


@message
@attrs.frozen
class TransactionResult:
    """Whether all conditions held, the store's revision after the transaction, and a response for
    each operation of the branch.
    """

    succeeded: bool
    revision: int
    responses: tuple[Response, ...] = ()


TransactionOutcome = TransactionResult | Exception


@message
@attrs.frozen
class Transaction:
    """A transaction as a value, to be made together with others."""

    compare: tuple[Compare, ...]
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...] = ()

    @property
    def writes(self) -> bool:
        """True if one of its branches may change anything."""
        return any(type(operation) is not Get for operation in (*self.then, *self.otherwise))


@message
@attrs.frozen
class RangeResult:
    """The keys under a prefix, in order, as of `revision`. A watch from `revision` + 1 sees every
    change after that. `more`: there are further keys, beyond the limit that was asked for.
    """

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False

    def cut(self, limit: int) -> RangeResult:
        """The first `limit` of the keys; all of them for 0."""
        if not limit or len(self.entries) <= limit:
            return self
        return RangeResult(self.entries[:limit], self.revision, more=True)


@message
@attrs.frozen
class StoreEvent:
    """One change. `value`: b"" for deletions. `revision`: that of the change. `create_revision`: of
    the key that was written or deleted, which tells two keys of one name apart. `previous`: the
    value before the change; None if there was none or it is no longer known.
    """

    kind: Literal["put", "delete"]
    key: str
    value: bytes
    revision: int
    create_revision: int
    previous: bytes | None = None


@message
@attrs.frozen
class WatchBatch:
    """Changes in order. Those of one revision are never split. The batch covers everything up to
    `revision`: the next poll starts at `revision` + 1.
    """

    events: tuple[StoreEvent, ...]
    revision: int


def check_transaction(
    compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> None:
    """Check that every store can carry out the transaction: it has no more than `MAX_OPERATIONS`
    parts, and writes no key twice, because all writes have one revision. Raises ValueError, or
    TypeError for parts that are neither conditions nor operations.
    """
    _check_parts(compare, Compare, "conditions")
    for operations in (then, otherwise):
        _check_parts(operations, Operation, "operations in a branch")
        written: set[str] = set()
        for operation in operations:
            if not isinstance(operation, Get):
                if operation.key in written:
                    raise ValueError(
                        f"a branch of a transaction writes {operation.key!r} twice; all its "
                        "writes have one revision"
                    )
                written.add(operation.key)


def _check_parts(parts: Sequence[object], allowed: type | UnionType, what: str) -> None:
    if len(parts) > MAX_OPERATIONS:
        raise ValueError(
            f"a transaction has at most {MAX_OPERATIONS} {what}, not {len(parts)}; split it"
        )
    for part in parts:
        if not isinstance(part, allowed):
            raise TypeError(f"a {type(part).__name__} among the {what} of a transaction")


def check_time_to_live(ttl: object) -> None:
    """Check that every store can grant a lease of this time. Raises TypeError or ValueError."""
    if not isinstance(ttl, int | float):
        raise TypeError(f"a lease's ttl is a number of seconds, not {type(ttl).__name__}")
    if not 0 < ttl <= MAX_LEASE_SECONDS:
        raise ValueError(
            f"a lease's ttl is a positive number of seconds, at most {MAX_LEASE_SECONDS}, not "
            f"{ttl!r}"
        )


def check_revision(from_revision: int) -> None:
    """Check that a watch can start at this revision. Raises ValueError."""
    if from_revision < 1:
        raise ValueError(f"revisions begin with 1; a watch from {from_revision} was asked for")


class Store(ABC):
    """A client's view of the store.

    Besides the errors named, each call raises `StoreUnavailableError` while the store cannot be
    reached, `StoreOutcomeUnknownError` if it changes something and its answer was lost, and
    `StoreError` after the store was closed. A call that is cancelled may have been applied.
    """

    @property
    def size(self) -> int | None:
        """Bytes of all keys and values, if this process keeps them; else None."""
        return None

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """The key as it is now, or None."""

    @abstractmethod
    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """All keys that begin with `prefix`, as they are at one moment; with "" all there are.
        `limit`: the first so many of them at most, for questions whose answer must stay small.
        """

    @abstractmethod
    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a key, tied to `lease` or to none; returns the revision. Raises `LeaseLostError` if
        the lease has ended.
        """

    @abstractmethod
    async def delete(self, key: str) -> bool:
        """Delete a key; True if it was there. If it was not, the revision stays."""

    @abstractmethod
    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Carry out `then` if all conditions hold, otherwise `otherwise`, in one step and, if it
        changes anything, one revision.

        Without conditions `then` is carried out. Raises `LeaseLostError` if a lease named by the
        branch carried out has ended, and ValueError or TypeError for a transaction that
        `check_transaction` refuses; nothing is changed then.
        """

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        """Carry out transactions, in no particular order; returns the result of each, or the error
        that `transaction` would have raised.

        Some may be carried out in one step, at one revision, and other clients may change the store
        between two others. Raises for all of them what
        `transaction` raises while the store cannot be reached, or if the answer to all was lost.
        """
        outcomes: list[TransactionOutcome] = []
        for one in batch:
            try:
                outcomes.append(await self.transaction(one.compare, one.then, one.otherwise))
            except (StoreError, ValueError, TypeError) as error:
                outcomes.append(error)
        return outcomes

    @abstractmethod
    async def grant(self, ttl: float) -> int:
        """A new lease that ends `ttl` seconds after it was last kept alive, never earlier. Raises
        ValueError if `ttl` is not positive.

        A store may grant more than was asked for (etcd: whole seconds, at least 2); `keep_alive`
        returns what it granted.
        """

    @abstractmethod
    async def keep_alive(self, lease: int) -> float:
        """Begin the lease's time anew; returns how many seconds it has now. Raises
        `LeaseLostError`.
        """

    @abstractmethod
    async def time_to_live(self, lease: int) -> float:
        """Seconds that the lease has left, 0 if it may end at any moment. Raises
        `LeaseLostError`.
        """

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease now and delete its keys in one revision. Raises `LeaseLostError` if it has
        ended.
        """

    @abstractmethod
    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes under `prefix` at or after `from_revision`, and return them as soon as
        there are any.

        `from_revision` may lie in the future. Long batches are cut at a revision: what is left
        comes with the next poll at once. Raises `StoreCompactedError` if changes that may have been
        under the prefix are no longer kept, and ValueError for a revision below 1 (which etcd would
        take for "from now").
        """

    def watch(self, prefix: str, from_revision: int) -> StoreWatch:
        """All changes under `prefix` from `from_revision` on: `async for batch in
        store.watch(...)`.
        """
        return StoreWatch(self, prefix, from_revision)


class StoreWatch:
    """Changes under a prefix in batches, without a gap, for ever.

    Holds nothing between two batches, so it needs no closing. It ends only with an error that
    `Store.poll` raises and stays where it was: after `StoreUnavailableError`, go on with the same
    object; after `StoreCompactedError`, `range` first and watch from there.
    """

    def __init__(self, store: Store, prefix: str, from_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self.from_revision = from_revision
        """The next batch holds changes from this revision on; a new watch from it continues this
        one.
        """

    def __aiter__(self) -> StoreWatch:
        return self

    async def __anext__(self) -> WatchBatch:
        """The next batch. Cancelling loses nothing."""
        batch = await self._store.poll(self._prefix, self.from_revision)
        self.from_revision = batch.revision + 1
        return batch
