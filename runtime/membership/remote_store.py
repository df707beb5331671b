"""The embedded store as other nodes see it: a system actor on the founding node, and a `Store` that
calls it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import attrs
import trio

from actors.actor import Actor
from actors.errors import (
    BadArgumentsError,
    CallError,
    CallTimeoutError,
    MethodNotFoundError,
    NodeUnreachableError,
    NotAllowedError,
    NotExecutedError,
    RemoteError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.messages import message
from actors.method import method
from runtime.calls.error_codec import plain_error
from runtime.gatherer import Gatherer
from runtime.service_calls import LONG_POLL, LONG_POLL_SECONDS
from runtime.store.event_rows import PackedChanges, is_small, unpack_changes
from runtime.store.interface import (
    Compare,
    Entry,
    Operation,
    Put,
    RangeResult,
    Store,
    Transaction,
    TransactionOutcome,
    TransactionResult,
    WatchBatch,
    check_key,
    check_revision,
    check_time_to_live,
    check_transaction,
)
from runtime.store.transaction_rows import (
    pack_outcomes,
    pack_transactions,
    refusal,
    unpack_outcomes,
    unpack_transactions,
)

T = TypeVar("T")

MOST_TOGETHER = 64
"""Transactions in one message."""

SMALL_BYTES = 4096
"""Bytes of values that a transaction may write to be made together with others: those that wait
for it must not wait for long.
"""

FEW_OPERATIONS = 4
"""Operations of either branch, likewise."""

NOT_READ, WERE_NOT_READ = (f"{verb} not read, and nothing was changed" for verb in ("was", "were"))

NO_OUTCOMES = pack_outcomes([])
"""The answer to no transactions, for which the store is not asked."""


@message
@attrs.frozen
class TransactionRefused:
    """One of several transactions that the store has refused: the name of the error's class, and
    its text.
    """

    kind: str
    text: str

    def error(self) -> Exception:
        """Build the error again."""
        return refusal(self.kind, self.text)


@attrs.define(eq=False)
class GatheredWrite:
    """A write that travels with those of other tasks. `wanted`: its task still waits for it."""

    transaction: Transaction
    wanted: bool = True


class StoreService(Actor):
    """Offers a store's operations as methods; see `Store` for what they do."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._packed = PackedChanges()

    @method(concurrent=True, idempotent=True)
    async def get(self, key: str) -> Entry | None:
        """Read a key."""
        return await self._store.get(key)

    @method(concurrent=True, idempotent=True)
    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Read the keys under a prefix."""
        return await self._store.range(prefix, limit)

    @method(concurrent=True)
    async def put(self, key: str, value: bytes, lease: int) -> int:
        """Write a key, at most once: a lost answer is `StoreOutcomeUnknownError`."""
        return await self._store.put(key, value, lease)

    @method(concurrent=True)
    async def delete(self, key: str) -> bool:
        """Delete a key, at most once."""
        return await self._store.delete(key)

    @method(concurrent=True)
    async def transaction(
        self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TransactionResult:
        """Carry out a transaction; a lost answer is an unknown outcome only if a branch writes."""
        return await self._store.transaction(compare, then, otherwise)

    @method(concurrent=True)
    async def transactions(
        self, batch: Sequence[Transaction]
    ) -> list[TransactionResult | TransactionRefused]:
        """Carry out several transactions, each in a step of its own."""
        return [
            outcome
            if isinstance(outcome, TransactionResult)
            else TransactionRefused(type(outcome).__name__, str(outcome))
            for outcome in await self._store.transactions(batch)
        ]

    @method(concurrent=True)
    async def transact(self, packed: bytes) -> bytes:
        """Carry out several transactions that are packed, each in a step of its own; returns their
        packed outcomes. Raises ValueError for bytes that are no packed transactions.
        """
        return pack_outcomes(await self._store.transactions(unpack_transactions(packed)))

    @method(concurrent=True)
    async def grant(self, ttl: float) -> int:
        """Make a lease. One whose answer is lost ends by itself."""
        return await self._store.grant(ttl)

    @method(concurrent=True, idempotent=True)
    async def keep_alive(self, lease: int) -> float:
        """Renew a lease. Repeated while the store moves, because renewing twice does no harm."""
        return await self._store.keep_alive(lease)

    @method(concurrent=True, idempotent=True)
    async def time_to_live(self, lease: int) -> float:
        """Return the seconds that the lease has left."""
        return await self._store.time_to_live(lease)

    @method(concurrent=True)
    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys, at most once."""
        await self._store.revoke(lease)

    @method(concurrent=True, idempotent=True, retry=LONG_POLL)
    async def poll(self, prefix: str, from_revision: int) -> WatchBatch | None:
        """Wait for changes under `prefix`, by long polls. None if nothing has happened for
        `LONG_POLL_SECONDS`: ask again.
        """
        with trio.move_on_after(LONG_POLL_SECONDS):
            return await self._store.poll(prefix, from_revision)
        return None

    @method(concurrent=True, idempotent=True, retry=LONG_POLL)
    async def follow(self, prefix: str, from_revision: int) -> bytes | WatchBatch | None:
        """Like `poll`, with the changes packed unless they are large."""
        with trio.move_on_after(LONG_POLL_SECONDS):
            batch = await self._store.poll(prefix, from_revision)
            return self._packed.of(prefix, batch) if is_small(batch) else batch
        return None


class RemoteStore(Store):
    """The store of another node, by way of a handle of its `StoreService`. Invalid operations are
    refused here, before they are sent. While no node serves the store, calls wait for up to
    `seconds` until it is served again, perhaps by a new incarnation.

    Small writes that are made while another one is under way travel together, sent by tasks in
    `nursery`.
    """

    def __init__(
        self,
        service: StoreService,
        seconds: float,
        nursery: trio.Nursery,
        unreached: Callable[[], str] = str,
    ) -> None:
        """`unreached`: says at which addresses the store's node is not reached, each with the
        reason; "" if it is, or that is not known.
        """
        self.unreached = unreached
        self._service = service
        self._seconds = seconds
        self._in_time = self._limited(service)
        """`service` with the time limit of a call. Kept: a new handle would look its methods and
        its node up again for each call.
        """
        self._writes = Gatherer[None, None, GatheredWrite, TransactionResult](
            lambda kind, writes: self._make_gathered(writes), None, _closed, nursery, MOST_TOGETHER
        )
        self._takes_packed = True
        """False if the store's node is of an earlier version, which takes messages only."""
        self._takes_many = True
        """False if it is of one before that, which takes one at a time."""
        self._gives_packed = True
        """False if it is of an earlier version, whose changes come as messages."""
        # Set when another incarnation serves the store, and replaced then: calls that failed before
        # wait for it.
        self._moved = trio.Event()
        self._reads: dict[trio.CancelScope, None] = {}
        """The reads that are under way, polls included."""
        self._closed = False

    def _limited(self, service: StoreService) -> StoreService:
        return cast("StoreService", cast("Any", service).options(timeout=self._seconds))

    def close(self) -> None:
        """Refuse calls from now on and end those that wait, with StoreError. Closing twice is
        closing once.
        """
        self._closed = True
        self._moved.set()

    def use(self, service: StoreService) -> None:
        """Use this handle from now on: another incarnation serves the store."""
        self._service, self._in_time = service, self._limited(service)
        self._takes_packed = self._takes_many = self._gives_packed = True
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        # They would wait on the connection to the node before for as long as it may be alive. A
        # write is never asked twice: it ends by itself.
        for scope in self._reads:
            scope.cancel()

    async def get(self, key: str) -> Entry | None:
        """Read a key."""
        check_key(key)
        return await self._asked(lambda service: service.get(key), f"key {key!r} {NOT_READ}")

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Read the keys under a prefix."""
        what = f"the keys under {prefix!r} {WERE_NOT_READ}"
        if limit:
            # Nodes of earlier versions know no limit: they answer with all.
            with suppress(BadArgumentsError):
                return await self._asked(lambda service: service.range(prefix, limit), what)
        return (await self._asked(lambda service: service.range(prefix), what)).cut(limit)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a key, at most once: a lost answer is `StoreOutcomeUnknownError`."""
        put = Put(key, value, lease)
        return await self._asked(
            lambda service: service.put(put.key, put.value, put.lease),
            f"nothing was written to key {key!r}",
            writes=True,
        )

    async def delete(self, key: str) -> bool:
        """Delete a key, at most once."""
        check_key(key)
        what = f"key {key!r} was not deleted"
        return await self._asked(lambda service: service.delete(key), what, writes=True)

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Carry out a transaction; a lost answer is an unknown outcome only if a branch writes."""
        check_transaction(compare, then, otherwise)
        whole = Transaction(tuple(compare), tuple(then), tuple(otherwise))
        # Only writes: a read whose answer is lost is repeated, which the others of its message
        # could not be.
        if not (whole.writes and self._takes_many and _is_small(whole)):
            return await self._make_alone(whole)
        write = GatheredWrite(whole)
        try:
            return await self._writes.request(
                None, None, write, partial(self._make_alone, whole, small=True)
            )
        except trio.Cancelled:
            # If its message has not left, it is left out of it; else its outcome is dropped.
            write.wanted = False
            raise

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        """Carry out several transactions, in one message; a lost answer is an unknown outcome of
        all, if one of them writes.
        """
        return await self._make(lambda: batch, writes=any(one.writes for one in batch))

    async def _make_alone(
        self, transaction: Transaction, *, small: bool = False
    ) -> TransactionResult:
        if small:
            packed = await self._make_packed(lambda: [transaction], writes=True)
            if packed is not None:
                (outcome,) = packed
                if isinstance(outcome, Exception):
                    try:
                        raise outcome
                    finally:
                        # No circle with this frame, which the traceback has.
                        del outcome, packed
                return outcome
        parts = list(transaction.compare), list(transaction.then), list(transaction.otherwise)
        return await self._asked(
            lambda service: service.transaction(*parts),
            partial(_left_undone, [transaction], writes=transaction.writes),
            writes=transaction.writes,
        )

    async def _make_packed(
        self, chosen: Callable[[], Sequence[Transaction]], *, writes: bool
    ) -> list[TransactionOutcome] | None:
        """Like `_make`, with the transactions packed; None if the store's node does not know that,
        and none was made.
        """
        if not self._takes_packed:
            return None
        count = 0

        async def send(service: StoreService) -> bytes:
            nonlocal count
            batch = chosen()
            count = len(batch)
            return await service.transact(pack_transactions(batch)) if batch else NO_OUTCOMES

        # Said only for an error: those that write are many, and this looks at each key.
        undone = partial(_left_undone, chosen(), writes=writes)
        try:
            answers = await self._asked(send, undone, writes=writes)
        except (MethodNotFoundError, NotAllowedError):
            # Of an earlier version; or this is a client, whose rights are for single transactions.
            self._takes_packed = False
            return None
        try:
            outcomes = unpack_outcomes(answers)
            if len(outcomes) != count:
                raise ValueError(f"{len(outcomes)} outcomes of {count} transactions")
        except ValueError as error:
            cls = StoreOutcomeUnknownError if writes else StoreUnavailableError
            raise cls(
                f"the store's answer to {count} transactions cannot be read: {error}"
            ) from None
        return outcomes

    async def _make(
        self, chosen: Callable[[], Sequence[Transaction]], *, writes: bool
    ) -> list[TransactionOutcome]:
        """Carry out transactions in one message. Which ones is asked before each attempt."""
        # Large values are sent beside the message, and not copied into it.
        if all(map(_is_small, chosen())):
            packed = await self._make_packed(chosen, writes=writes)
            if packed is not None:
                return packed
        if not self._takes_many:
            return await super().transactions(chosen())

        async def send(service: StoreService) -> list[TransactionResult | TransactionRefused]:
            batch = list(chosen())
            return await service.transactions(batch) if batch else []

        # Said only for an error: those that write are many, and this looks at each key.
        undone = partial(_left_undone, chosen(), writes=writes)
        try:
            answers = await self._asked(send, undone, writes=writes)
        except MethodNotFoundError:
            self._takes_many = False
            return await super().transactions(chosen())
        return [one if isinstance(one, TransactionResult) else one.error() for one in answers]

    async def _make_gathered(self, writes: Sequence[GatheredWrite]) -> list[TransactionOutcome]:
        sent: list[GatheredWrite] = []

        def wanted() -> list[Transaction]:
            # While the store is away the message waits, and what withdraws a write whose task was
            # cancelled may reach the store first. Such a write must not be sent after that.
            sent[:] = [one for one in writes if one.wanted]
            return [one.transaction for one in sent]

        outcomes = dict(zip(sent, await self._make(wanted, writes=True), strict=True))
        # No task waits for the outcome of the others.
        dropped = StoreOutcomeUnknownError("the write was cancelled before it was sent")
        return [outcomes.get(one, dropped) for one in writes]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        self._writes.check_invariants()

    async def grant(self, ttl: float) -> int:
        """Make a lease. One whose answer is lost ends by itself."""
        check_time_to_live(ttl)
        return await self._asked(
            lambda service: service.grant(ttl), "no lease was made", writes=True
        )

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease. Repeated while the store moves, because renewing twice does no harm."""
        return await self._asked(
            lambda service: service.keep_alive(lease), f"lease {lease} was not renewed"
        )

    async def time_to_live(self, lease: int) -> float:
        """Return the seconds that the lease has left."""
        return await self._asked(
            lambda service: service.time_to_live(lease), f"lease {lease} {NOT_READ}"
        )

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys, at most once."""
        await self._asked(
            lambda service: service.revoke(lease), f"lease {lease} was not ended", writes=True
        )

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes under `prefix`, by long polls."""
        check_revision(from_revision)
        while True:
            batch = (
                await self._followed(prefix, from_revision)
                if self._gives_packed
                else await self._asked(
                    lambda service: service.poll(prefix, from_revision),
                    f"the changes under {prefix!r} {WERE_NOT_READ}",
                    waits=True,
                )
            )
            if batch is not None:
                return batch

    async def _followed(self, prefix: str, from_revision: int) -> WatchBatch | None:
        """Ask for changes that are packed. None if there are none yet, or if the store's node does
        not know that: ask again.
        """
        try:
            answer = await self._asked(
                lambda service: service.follow(prefix, from_revision),
                f"the changes under {prefix!r} {WERE_NOT_READ}",
                waits=True,
            )
        except (MethodNotFoundError, NotAllowedError):
            # Of an earlier version; or this is a client of one.
            self._gives_packed = False
            return None
        if not isinstance(answer, bytes):
            return answer
        try:
            return unpack_changes(answer)
        except ValueError as error:
            raise StoreUnavailableError(
                f"the store's answer about changes of {prefix!r} cannot be read: {error}"
            ) from None

    async def _asked(
        self,
        call: Callable[[StoreService], Awaitable[T]],
        undone: str | Callable[[], str],
        *,
        writes: bool = False,
        waits: bool = False,
    ) -> T:
        """Return the answer to `call`, which is repeated, if that is safe, while the store moves to
        another incarnation. `undone`: what is not done without an answer, for errors. `waits`: it
        may take its time.
        """
        started = trio.current_time()
        while True:
            if self._closed:
                raise StoreError("the store is closed: its node has left")
            # Both before the call. If the store moves while it is under way, the event that is
            # waited for below is set already, and the call is repeated at once.
            asked, moved = self._service if waits else self._in_time, self._moved
            failure: CallError | None = None
            try:
                if writes:
                    return await call(asked)
                with trio.CancelScope() as scope:
                    self._reads[scope] = None
                    try:
                        return await call(asked)
                    finally:
                        del self._reads[scope]
            except RemoteError as error:
                # The store's own errors came over the wire as a method's. Here they are the store's
                # again.
                plain = plain_error(error)
                if plain is None:
                    raise
                try:
                    raise plain from None
                finally:
                    # No circle with this frame, which the traceback has.
                    del plain
            except (NotAllowedError, MethodNotFoundError, BadArgumentsError):
                # Asking again, here or of another incarnation, changes nothing.
                raise
            except CallError as error:
                failure = error
            if failure is None:
                # A read that the move of the store has ended: it is made again.
                assert not writes
                continue
            # Never repeated: a lost lock or a name that is claimed twice costs more than an error.
            if writes and not isinstance(failure, NotExecutedError):
                raise StoreOutcomeUnknownError(
                    f"the store's answer to a write was lost: {failure}"
                ) from failure
            with trio.move_on_at(started + self._seconds) as patience:
                await moved.wait()
            if patience.cancelled_caught:
                why = _without_answer(failure, self._seconds, self.unreached())
                what = undone if isinstance(undone, str) else undone()
                unavailable = f"the store cannot be reached: {what}, since {why}"
                # That of the call may say that it has taken effect, which to read has not.
                raise StoreUnavailableError(unavailable) from (failure if writes else None)


def _left_undone(transactions: Sequence[Transaction], *, writes: bool) -> str:
    """Say what transactions without an answer have not done, with their first key."""
    keys = list(
        dict.fromkeys(
            one.key
            for transaction in transactions
            for one in (*transaction.compare, *transaction.then, *transaction.otherwise)
        )
    )
    if not keys:
        return "nothing was changed"
    if writes:
        return f"nothing was written to key {keys[0]!r}" + (" and others" if keys[1:] else "")
    if keys[1:]:
        return f"key {keys[0]!r} and {len(keys) - 1} more {WERE_NOT_READ}"
    return f"key {keys[0]!r} {NOT_READ}"


def _without_answer(failure: CallError, seconds: float, unreached: str) -> str:
    """Say why a service of another node gave no answer for so many seconds, as people need it: not
    each attempt with its internal name. `unreached`: why that node is not reached, if it is known.
    """
    last: BaseException = failure
    # A call that was made several times ends with the error of its last attempt as the cause.
    while not isinstance(last, CallTimeoutError) and isinstance(last.__cause__, CallError):
        last = last.__cause__
    node = f"node {getattr(last, 'node', None) or failure.node or 'that keeps it'}"
    if isinstance(last, NodeUnreachableError):
        reasons = f" ({unreached})" if unreached else ""
        return f"there was no connection to {node} for {seconds:g} s{reasons}"
    if isinstance(last, TimeoutError):
        if unreached:
            return f"{node} cannot be reached from here ({unreached})"
        return f"{node} gave no answer for {seconds:g} s"
    return str(last).partition("\n")[0]


def _is_small(transaction: Transaction) -> bool:
    return all(
        len(operations) <= FEW_OPERATIONS
        and sum(len(one.value) for one in operations if type(one) is Put) <= SMALL_BYTES
        for operations in (transaction.then, transaction.otherwise)
    )


def _closed(kind: None) -> Exception:
    return StoreOutcomeUnknownError("the store's answer to a write was lost: this node closed")
