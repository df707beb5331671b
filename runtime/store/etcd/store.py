"""The store in etcd; see `runtime.store.interface.Store` for what it promises."""

from __future__ import annotations

import math
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, cast

import attrs
import trio

from actors.errors import (
    LeaseLostError,
    StoreCompactedError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from runtime.environment import Environment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.gateway import (
    PAUSE_SECONDS,
    AmbiguousError,
    EtcdStream,
    Gateway,
    LostError,
    NotSentError,
)
from runtime.store.etcd.translation import (
    Answer,
    EtcdFullError,
    EtcdRefusalError,
    Json,
    Nested,
    Part,
    Space,
    guarded,
    number,
    outcome_of,
    reading,
    refusal_in,
    refusal_of_watch,
    text_of,
    wrote_marker,
)
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    RangeResult,
    Response,
    Store,
    StoreEvent,
    Transaction,
    TransactionOutcome,
    TransactionResult,
    WatchBatch,
    check_key,
    check_revision,
    check_time_to_live,
    check_transaction,
)
from runtime.timings import Timings

KEPT_WATCHES = 16

MARKER_SECONDS = 60
"""Seconds for which a client's markers exist after it has ended."""

SIDE_BY_SIDE = 16
"""Requests of one batch of transactions that are under way at the same time."""

TOGETHER = 64
"""Transactions in one request. etcd allows 128 operations by default (--max-txn-ops): these, the
marker, and as many in each of them as are left.
"""

MOST_INSIDE = 128 - TOGETHER - 1
"""Conditions or operations in a branch of a transaction that is carried out with others."""

MOST_BYTES = 512 * 1024
"""Keys and values in one request, in bytes; etcd takes 1.5 MiB by default, and JSON makes a third
more of them.
"""

NOT_MADE = StoreError("the transaction was not made")
"""Stands for the outcome of a transaction, until that is known."""

# Resolving transactions whose answer was lost.
#
# Repeating such a transaction could apply it twice, and a read proves nothing while it may still be
# on its way to the leader. So each transaction also writes a marker, on the condition that the
# marker is unchanged. When the answer is lost, we write the marker ourselves, on the same
# condition. If that succeeds, the transaction can never be applied any more. If it fails, the
# marker's value says that the transaction was applied, and with which branch. (What blind repeats
# do: https://jepsen.io/analyses/jetcd-0.8.2.)
#
# A marker serves one transaction at a time. All markers of a client are tied to one lease, so that
# they are deleted when the client is gone.


@attrs.define
class Marker:
    """A key whose value tells whether a transaction was applied, and with which branch. `revision`:
    its mod revision as far as known, 0 if it was never written.
    """

    key: str
    lease: int
    revision: int = 0
    stale: bool = False
    """True if its revision is not known for certain. It is not used again."""

    def slot(self, token: str) -> Json:
        """Return the marker's part of a transaction, for `translation.guarded`. The transaction
        writes the branch that it takes, and `token`.
        """
        return {
            "key": self.key,
            "mod_revision": self.revision,
            "lease": str(self.lease),
            "then": text_of("then " + token),
            "otherwise": text_of("otherwise " + token),
        }

    def cancellation(self, token: str) -> Json:
        """Build a transaction that makes it impossible for the transaction of `token` to be applied
        later, or reads the marker if it was applied already.
        """
        return {
            "compare": [
                {
                    "key": self.key,
                    "target": "MOD",
                    "result": "EQUAL",
                    "mod_revision": str(self.revision),
                }
            ],
            "success": [
                {
                    "request_put": {
                        "key": self.key,
                        "value": text_of("never " + token),
                        "lease": str(self.lease),
                    }
                }
            ],
            "failure": [{"request_range": {"key": self.key}}],
        }


class Markers:
    """The markers of one client, as keys that begin with `root`."""

    def __init__(self, root: str, environment: Environment) -> None:
        self._root = root
        self._environment = environment
        self._idle: list[Marker] = []

    def take(self, lease: int) -> Marker:
        """Return a marker that no other transaction uses, tied to `lease`."""
        while self._idle:
            marker = self._idle.pop()
            if marker.lease == lease:
                return marker
        return Marker(text_of(self._root + self._environment.token(12).hex()), lease)

    def give_back(self, marker: Marker) -> None:
        """Keep the marker for another transaction, unless it is stale."""
        # A stale one is dropped, not repaired: its key goes with the lease of the markers.
        assert not any(idle is marker for idle in self._idle), "a marker serves one transaction"
        if not marker.stale:
            self._idle.append(marker)

    def check_invariants(self) -> None:
        """Assert what must hold between any two transactions. Looks at all markers: for tests."""
        assert not any(marker.stale for marker in self._idle)
        keys = [marker.key for marker in self._idle]
        assert len(set(keys)) == len(keys), "a key serves one transaction at a time"


# Watches in etcd. A stream is kept from one poll to the next. It is started again at another member
# when it breaks or is silent and its member does not confirm that it is well.


class EtcdWatching:
    """One stream of the changes at or after `from_revision`.

    It starts one revision earlier and drops that revision's changes. etcd's compaction at a
    revision removes the deletions of this very revision, and a watch that starts there does not
    report it (https://github.com/etcd-io/etcd/issues/18089). A watch that starts one revision
    earlier is refused, as it must be.
    """

    def __init__(
        self, gateway: Gateway, stream: EtcdStream, space: Space, from_revision: int
    ) -> None:
        self._gateway = gateway
        self._stream = stream
        self._space = space
        self._from_revision = from_revision
        self._events: list[StoreEvent] = []

    @classmethod
    async def begun(
        cls, gateway: Gateway, space: Space, prefix: str, from_revision: int
    ) -> EtcdWatching:
        """Start a watch. Raises `LostError`, `NotSentError` or a `StoreError`."""
        # One revision earlier, because of etcd's issue 18089; see the class.
        start = max(1, from_revision - 1)
        request = {
            **space.under(prefix),
            "start_revision": str(start),
            "prev_kv": True,
            "fragment": True,
        }
        stream = await gateway.stream("/v3/watch", {"create_request": request})
        return cls(gateway, stream, space, from_revision)

    async def batch(self) -> WatchBatch:
        """Return the next changes, without splitting a revision. Raises like `begun`. No change is
        lost if the call is cancelled.

        With `fragment` etcd may split an answer that is too large within a revision. So the last
        revision of a fragment is held back until the rest has come.
        """
        while True:
            result = self._result(await self._stream.next())
            found = map(self._space.event, result.get("events", ()))
            self._events += [event for event in found if event.revision >= self._from_revision]
            unfinished = self._events[-1].revision if self._events and result.get("fragment") else 0
            whole = [event for event in self._events if event.revision != unfinished]
            if whole:
                self._events = self._events[len(whole) :]
                return WatchBatch(tuple(whole), whole[-1].revision)

    async def confirm(self) -> None:
        """Check that the stream is silent because nothing has changed, and not because its member
        is gone or partitioned. Raises `LostError`.
        """
        await self._gateway.confirm(self._stream.member, self._space.key(""))

    def close(self) -> None:
        """End the stream."""
        self._stream.close()

    def _result(self, answer: Json) -> Json:
        refusal = refusal_in(answer, 200)
        result: Json = answer.get("result", {})
        if result.get("canceled"):
            if number(result, "compact_revision"):
                raise StoreCompactedError(
                    f"changes before revision {result['compact_revision']} are no longer kept; "
                    "read the keys afresh (range) and "
                    "go on from there"
                )
            refusal = refusal_of_watch(str(result.get("cancel_reason", "")))
        if refusal is not None:
            raise self._gateway.failure(refusal, self._stream.member, self._stream.token)
        return result


class EtcdWatches:
    """The watches of one store."""

    def __init__(self, gateway: Gateway, space: Space, timings: Timings) -> None:
        self._timings = timings
        self._gateway = gateway
        self._space = space
        # Streams between two polls, by their prefix and the next poll's revision. At most
        # `KEPT_WATCHES`: one that is not polled any more must not stay for ever.
        self._kept: OrderedDict[tuple[str, int], EtcdWatching] = OrderedDict()

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes, on a stream that is kept between polls. Also raises `LostError` or
        `NotSentError` if the streams were ended by `Gateway.end_streams`.
        """
        until = trio.current_time() + self._timings.store_call
        failures = 0
        while True:  # noqa: ASYNC913  each turn waits for the network
            begun = trio.current_time()
            try:
                return await self._polled(prefix, from_revision)
            except (LostError, NotSentError) as error:
                failure = error
            if self._gateway.is_ending:
                raise failure
            now = trio.current_time()
            if now - begun >= self._timings.etcd_silent:
                # The watch was working for a while, so this is a new failure with its own time-out.
                until, failures = now + self._timings.store_call, 0
            if now > until:
                raise StoreUnavailableError(
                    f"no member of the etcd accepts a watch: {failure}"
                ) from failure
            failures += 1
            await trio.sleep(PAUSE_SECONDS if failures > 1 else 0)

    async def _polled(self, prefix: str, from_revision: int) -> WatchBatch:
        # Taken out while it is used: two polls from one revision must not read one stream.
        watching = self._kept.pop((prefix, from_revision), None)
        if watching is None:
            watching = await EtcdWatching.begun(self._gateway, self._space, prefix, from_revision)
        try:
            while True:
                # A stream that is silent for this long is not given up, it is checked: an idle
                # prefix has no changes to send.
                with trio.move_on_after(self._timings.etcd_silent):
                    batch = await watching.batch()
                    self._keep(prefix, batch.revision + 1, watching)
                    return batch
                await watching.confirm()
        except BaseException:
            watching.close()
            raise

    def _keep(self, prefix: str, from_revision: int, watching: EtcdWatching) -> None:
        before = self._kept.pop((prefix, from_revision), None)
        # Under the revision that its next poll asks for: a poll that begins elsewhere does not find
        # it, and begins a stream of its own.
        self._kept[prefix, from_revision] = watching
        if before is None and len(self._kept) > KEPT_WATCHES:
            before = self._kept.popitem(last=False)[1]
        if before is not None:
            before.close()
            assert len(self._kept) <= KEPT_WATCHES


@attrs.frozen
class _Applied:
    """A transaction that was applied: whether its conditions held, its revision, and the answers to
    the parts of its branch.
    """

    succeeded: bool
    revision: int
    answers: tuple[Answer, ...]


class EtcdStore(Store):
    """The store of cluster `cluster` in the etcd at `address`. Task `run` must be running while it
    is used: it renews the lease of the markers.
    """

    def __init__(self, address: EtcdAddress, cluster: str, environment: Environment) -> None:
        self.address = address
        root = f"{address.prefix}/{cluster}/"
        self._space = Space(root + "data/")
        self._gateway = Gateway(address, environment.timings)
        self._markers = Markers(root + "markers/", environment)
        self._environment = environment
        self._lease = 0
        self._granting = trio.Lock()
        self._watches = EtcdWatches(self._gateway, self._space, environment.timings)
        self._over = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew the lease of the markers until the store is closed, then revoke it and close all
        connections.
        """
        task_status.started()
        try:
            while not self._over.is_set():
                # A third: one renewal may fail and the next still comes in time.
                with trio.move_on_after(MARKER_SECONDS / 3):
                    await self._over.wait()
                if self._lease and not self._over.is_set():
                    try:
                        await self.keep_alive(self._lease)
                    except LeaseLostError:
                        self._lease = 0
                    except StoreError:
                        # The store cannot be reached. Calls that need it raise that themselves;
                        # here the next turn tries again.
                        continue
        finally:
            # Shielded so that a cancelled node still revokes its lease, and bounded because etcd
            # may not answer.
            with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                await self._revoke_markers()

    def close(self) -> None:
        """Refuse calls from now on, and end waiting polls with `StoreError`. Does nothing the
        second time.
        """
        self._over.set()
        self._gateway.end_streams()

    async def get(self, key: str) -> Entry | None:
        """Read a key with a linearizable request."""
        check_key(key)
        found = (await self._ask("/v3/kv/range", {"key": self._space.key(key)})).get("kvs", ())
        return self._space.entry(found[0]) if found else None

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Read the keys under `prefix`, all as of one revision of etcd."""
        # Its limit of 0 means none, as ours does.
        answer = await self._ask("/v3/kv/range", {**self._space.under(prefix), "limit": limit})
        return RangeResult(
            tuple(map(self._space.entry, answer.get("kvs", ()))),
            number(answer["header"], "revision"),
            more=bool(answer.get("more")),
        )

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write a key in a transaction of its own, so that a lost answer can be resolved."""
        return (await self.transaction([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        """Delete a key in a transaction of its own; True if it was there."""
        # Written as a condition, so that deleting a missing key writes nothing, not even a marker:
        # the revision must stay.
        gone = await self.transaction([Compare(key, "create_revision", 0)], [], [Delete(key)])
        return not gone.succeeded

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Carry out a transaction, at most once. A lost answer is resolved by the marker."""
        check_transaction(compare, then, otherwise)
        if all(isinstance(operation, Get) for operation in (*then, *otherwise)):
            return await self._read(compare, then, otherwise)
        applied = await self._carry_out(compare, then, otherwise)
        return TransactionResult(
            applied.succeeded, applied.revision, cast("tuple[Response, ...]", applied.answers)
        )

    async def _carry_out(
        self, compare: Sequence[Compare], then: Sequence[Part], otherwise: Sequence[Part]
    ) -> _Applied:
        """Carry out a transaction that may change something, at most once."""
        until = trio.current_time() + self._environment.timings.store_call
        # Repeated only after an attempt that certainly was not applied, each time with a marker
        # whose revision is known.
        while True:
            marker = self._markers.take(await self._marker_lease())
            try:
                result = await self._attempt(marker, compare, then, otherwise, until)
            # Also for Cancelled: the transaction may or may not have been applied, so the marker's
            # revision is unknown.
            except BaseException:
                marker.stale = True
                raise
            finally:
                self._markers.give_back(marker)
            if result is not None:
                return result
            if trio.current_time() > until:
                raise StoreUnavailableError(
                    f"etcd at {self.address} lost its answers to a transaction, which was not "
                    "applied; try again"
                )

    async def transactions(self, batch: Sequence[Transaction]) -> list[TransactionOutcome]:
        """Carry out several transactions: many in one request, where they have no key in common,
        and the requests side by side. Those of one request have one revision.
        """
        outcomes: list[TransactionOutcome] = [NOT_MADE] * len(batch)
        left = iter(_requests_for(batch))

        async def carry_out() -> None:
            for places in left:
                some = [batch[place] for place in places]
                found = await self._together(some) if len(some) > 1 else None
                if found is None:
                    found = [await self._alone(one) for one in some]
                for place, outcome in zip(places, found, strict=True):
                    outcomes[place] = outcome

        async with trio.open_nursery() as nursery:
            for _ in range(min(SIDE_BY_SIDE, len(batch))):
                nursery.start_soon(carry_out)
        return outcomes

    async def _alone(self, one: Transaction) -> TransactionOutcome:
        try:
            return await self.transaction(one.compare, one.then, one.otherwise)
        except (StoreError, ValueError, TypeError) as error:
            return error

    async def _together(self, some: Sequence[Transaction]) -> Sequence[TransactionOutcome] | None:
        """Carry out transactions that have no key in common, in one request. Returns None if that
        was refused for one of them, and nothing was carried out.
        """
        try:
            applied = await self._carry_out([], list(map(Nested, some)), [])
        except StoreError as error:
            refused = isinstance(error, LeaseLostError | EtcdRefusalError)
            if refused and not isinstance(error, EtcdFullError):
                return None
            # One for each: different tasks raise them.
            return [copy(error) for _ in some]
        return cast("tuple[TransactionResult, ...]", applied.answers)

    async def grant(self, ttl: float) -> int:
        """Make a lease whose number is chosen here. etcd counts in whole seconds, so the time is
        rounded up.
        """
        check_time_to_live(ttl)
        # We choose the lease's id, so repeating a grant whose answer was lost cannot make two
        # leases. etcd refuses the second one because the id exists, which is success here.
        lease = int.from_bytes(self._environment.token(8), "big") >> 1 | 1
        try:
            await self._ask("/v3/lease/grant", {"ID": str(lease), "TTL": str(math.ceil(ttl))})
        except EtcdRefusalError as error:
            if "lease already exists" not in str(error):
                raise
        return lease

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease; returns the seconds that etcd granted."""
        seconds = number(
            (await self._ask("/v3/lease/keepalive", {"ID": str(lease)}, quick=True)).get(
                "result", {}
            ),
            "TTL",
        )
        if seconds <= 0:
            raise LeaseLostError(f"lease {lease} has expired or was revoked")
        return float(seconds)

    async def time_to_live(self, lease: int) -> float:
        """Return the whole seconds that the lease has left."""
        answer = await self._ask("/v3/lease/timetolive", {"ID": str(lease)})
        # The gateway leaves out fields that are 0. A lease that has ended has -1.
        seconds = number(answer, "TTL")
        if seconds < 0:
            raise LeaseLostError(f"lease {lease} has expired or was revoked")
        return float(seconds)

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. A repeated request that finds no lease is a success."""
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)}, once=True)
            return
        except AmbiguousError:
            # The answer was lost. Revoke again: it does not matter which of the two requests ended
            # the lease.
            pass
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseLostError:
            pass

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """Wait for changes, on a stream that is kept between polls."""
        check_revision(from_revision)
        self._refuse_if_closed()
        try:
            return await self._watches.poll(prefix, from_revision)
        except (LostError, NotSentError):
            self._refuse_if_closed()
            raise

    async def compact(self, revision: int) -> None:
        """Make etcd forget the changes up to `revision`, for all its users. For operators and
        tests.
        """
        await self._ask("/v3/kv/compaction", {"revision": str(revision)})

    async def _ask(self, path: str, body: Json, *, once: bool = False, quick: bool = False) -> Json:
        self._refuse_if_closed()
        return await self._gateway.ask(path, body, once=once, quick=quick)

    def _refuse_if_closed(self) -> None:
        if self._over.is_set():
            raise StoreError("the store is closed: its node has left")

    async def _read(
        self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TransactionResult:
        """Run a transaction that changes nothing. It can be repeated freely when an answer is
        lost.
        """
        answer = await self._ask("/v3/kv/txn", reading(self._space, compare, then, otherwise))
        return self._space.result(then, otherwise, answer, number(answer["header"], "revision"))

    async def _attempt(
        self,
        marker: Marker,
        compare: Sequence[Compare],
        then: Sequence[Part],
        otherwise: Sequence[Part],
        until: float,
    ) -> _Applied | None:
        """Try a transaction once. Returns None if it was certainly not applied and may be tried
        again.
        """
        token = self._environment.token(8).hex()
        try:
            answer = await self._ask(
                "/v3/kv/txn",
                guarded(self._space, marker.slot(token), compare, then, otherwise),
                once=True,
            )
        except (AmbiguousError, EtcdFullError, LeaseLostError) as error:
            failure = error
        else:
            return self._result(marker, answer, then, otherwise)
        marker.stale = True
        if isinstance(failure, AmbiguousError):
            return await self._resolve(marker, token, then, otherwise, failure, until)
        if isinstance(failure, EtcdFullError):
            return await self._applied_all_the_same(marker, token, then, otherwise, failure)
        # A lease was missing. If the markers' lease still exists, it was a lease of the caller's.
        if await self._is_alive(marker.lease):
            raise failure
        # The lease of the markers has ended (perhaps the caller's as well, which the next attempt
        # will show).
        # Compared, because another task may have granted the next lease while this one waited.
        if marker.lease == self._lease:
            self._lease = 0
        return None

    def _result(
        self,
        marker: Marker,
        answer: Json,
        then: Sequence[Part],
        otherwise: Sequence[Part],
    ) -> _Applied | None:
        outcome = outcome_of(answer)
        if outcome is None:
            # The marker is not as we left it. Another client has changed or deleted it.
            marker.stale = True
            return None
        succeeded, responses = outcome
        operations = then if succeeded else otherwise
        revision = number(answer["header"], "revision")
        if wrote_marker(operations, responses):
            marker.revision = revision
        # etcd's responses include one for the marker, which `map` leaves out because it is the
        # last.
        return _Applied(
            succeeded,
            revision,
            tuple(
                self._space.answer(part, response, revision)
                for part, response in zip(operations, responses, strict=False)
            ),
        )

    async def _resolve(
        self,
        marker: Marker,
        token: str,
        then: Sequence[Part],
        otherwise: Sequence[Part],
        lost: AmbiguousError,
        until: float,
    ) -> _Applied | None:
        """Resolve a transaction whose answer was lost. Returns its result if it was applied.
        Returns None if it was not, and then it can never be applied any more.

        Raises `StoreOutcomeUnknownError` if that cannot be found out until the time `until`.
        """
        while True:  # noqa: ASYNC913  each turn waits for the network
            try:
                answer = await self._ask("/v3/kv/txn", marker.cancellation(token), once=True)
                if answer.get("succeeded"):
                    return None
                # "never": an earlier cancellation of ours was applied and its answer lost.
                branch = _branch_in(answer["responses"][0]["response_range"], token)
                if branch == "never":
                    return None
                # Neither ours nor empty: the marker was changed by another client, so it says
                # nothing about the transaction.
                if not branch:
                    raise self._unknown(lost)
                return await self._applied_result(
                    answer["responses"][0]["response_range"], branch, then, otherwise
                )
            except AmbiguousError:
                if trio.current_time() > until:
                    raise self._unknown(lost) from lost
            # Raised above. The clause for `StoreError`, its base class, would wrap it again.
            except StoreOutcomeUnknownError:
                raise
            except StoreError as error:
                raise self._unknown(lost) from error

    async def _applied_all_the_same(
        self,
        marker: Marker,
        token: str,
        then: Sequence[Part],
        otherwise: Sequence[Part],
        full: EtcdFullError,
    ) -> _Applied:
        """Resolve a transaction that etcd refused because it is full: etcd may do so before or
        after applying it (issue 16659), which the marker tells. Returns its result if it was
        applied; raises `full` if not.
        """
        try:
            found = await self._ask("/v3/kv/range", {"key": marker.key})
            branch = _branch_in(found, token)
            if branch:
                return await self._applied_result(found, branch, then, otherwise)
        except StoreError as error:
            raise StoreOutcomeUnknownError(
                f"the outcome of a write is not known ({error}): {full}"
            ) from error
        raise full

    async def _applied_result(
        self,
        found: Mapping[str, Any],
        branch: str,
        then: Sequence[Part],
        otherwise: Sequence[Part],
    ) -> _Applied:
        """Return the result of a transaction that was applied, from the marker that was read."""
        operations = then if branch == "then" else otherwise
        revision = number(found["kvs"][0], "mod_revision")
        return _Applied(branch == "then", revision, await self._answers(operations, revision))

    async def _answers(self, operations: Sequence[Part], revision: int) -> tuple[Answer, ...]:
        """Return the responses of a transaction that was applied at `revision`, read from etcd's
        older revisions.

        Keys that the transaction itself wrote before are read at its own revision, others at the
        one before.
        """
        answers: list[Answer] = []
        written: set[str] = set()
        for operation in operations:
            if isinstance(operation, Nested):
                answers.append(await self._nested_result(operation.transaction, revision))
                continue
            if isinstance(operation, Put):
                answers.append(None)
            else:
                seen = revision if operation.key in written else revision - 1
                found = await self._entry_at(operation.key, seen)
                answers.append(found is not None if isinstance(operation, Delete) else found)
            if isinstance(operation, Put | Delete):
                written.add(operation.key)
        return tuple(answers)

    async def _nested_result(self, one: Transaction, revision: int) -> TransactionResult:
        """Return the result of a transaction that was applied with others at `revision`. Its
        conditions were evaluated before any of them, and none of the others has its keys.
        """
        succeeded = True
        for compare in one.compare:
            entry = await self._entry_at(compare.key, revision - 1)
            succeeded = succeeded and compare.holds(entry)
        answers = await self._answers(one.then if succeeded else one.otherwise, revision)
        return TransactionResult(succeeded, revision, cast("tuple[Response, ...]", answers))

    async def _entry_at(self, key: str, revision: int) -> Entry | None:
        body = {"key": self._space.key(key), "revision": str(max(1, revision))}
        found = (await self._ask("/v3/kv/range", body)).get("kvs", ())
        return self._space.entry(found[0]) if found else None

    def _unknown(self, lost: AmbiguousError) -> StoreOutcomeUnknownError:
        return StoreOutcomeUnknownError(
            f"the answer of etcd at {self.address} to a write was lost, and the outcome of the "
            f"write is not known: {lost}"
        )

    async def _marker_lease(self) -> int:
        if not self._lease:
            # One grant for all tasks that wait, each of which looks again when it has the lock.
            async with self._granting:
                if not self._lease:
                    self._lease = await self.grant(MARKER_SECONDS)
        return self._lease

    async def _is_alive(self, lease: int) -> bool:
        try:
            await self.time_to_live(lease)
        except LeaseLostError:
            return False
        return True

    async def _revoke_markers(self) -> None:
        try:
            if self._lease:
                await self._gateway.ask("/v3/lease/revoke", {"ID": str(self._lease)}, seconds=0.5)
        except StoreError:
            # The lease expires by itself after `MARKER_SECONDS`.
            pass
        finally:
            self._gateway.close()


def _branch_in(found: Mapping[str, Any], token: str) -> str:
    """Return what a marker says about the transaction of `token`: "then" or "otherwise" if it was
    applied with this branch, "never" if it was cancelled, and "" if the marker was not written for
    it.
    """
    entries = found.get("kvs", ())
    branch, _, theirs = (
        b64decode(entries[0].get("value", "")).decode().partition(" ") if entries else ("", "", "")
    )
    return branch if theirs == token else ""


def _requests_for(batch: Sequence[Transaction]) -> Iterator[list[int]]:
    """Yield the places of the transactions that one request may carry out together. Whichever is
    carried out first, or whether all are at once, decides nothing: they have no key in common.
    """
    places: list[int] = []
    keys: set[str] = set()
    size = 0
    for place, one in enumerate(batch):
        if not _may_be_nested(one):
            yield [place]
            continue
        parts = (*one.compare, *one.then, *one.otherwise)
        own = {part.key for part in parts}
        length = sum(
            len(part.key) + (len(part.value) if isinstance(part, Put) else 0) for part in parts
        )
        is_full = len(places) == TOGETHER or size + length > MOST_BYTES
        if places and (is_full or not keys.isdisjoint(own)):
            yield places
            places, keys, size = [], set(), 0
        places.append(place)
        keys |= own
        size += length
    if places:
        yield places


def _may_be_nested(one: Transaction) -> bool:
    """True for a transaction that etcd takes as a part of another one. One that only reads is not:
    with a marker it would write, and raise the revision.
    """
    try:
        check_transaction(one.compare, one.then, one.otherwise)
    except (ValueError, TypeError):
        return False
    return one.writes and max(map(len, (one.compare, one.then, one.otherwise))) <= MOST_INSIDE
