"""The store in etcd; see `runtime.store.interface.Store` for what it promises."""

from __future__ import annotations

import math
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

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
    EtcdFullError,
    EtcdRefusalError,
    Json,
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
    Store,
    StoreEvent,
    TransactionResult,
    WatchBatch,
    check_key,
    check_revision,
    check_time_to_live,
    check_transaction,
)
from runtime.timings import Timings

# Whether a transaction took effect whose answer was lost.
#
# Sending it again could apply it twice, and reading alone proves nothing while it may still be on
# its way to the leader. So each transaction of ours writes a marker with what it writes, on the
# condition that the marker is as it was. When the answer is lost, we write the marker ourselves, on
# the same condition: either that succeeds, and then the transaction never can, or the marker tells
# that it has. (What becomes of blind repeats: https://jepsen.io/analyses/jetcd-0.8.2.)
#
# A marker serves one transaction at a time. All of a client's are tied to a lease, so that they go
# when the client has.


@attrs.define
class Marker:
    """A key that tells whether a transaction was applied, and with which branch. `revision`: its
    modification as far as is known, 0 if it was never written.
    """

    key: str
    lease: int
    revision: int = 0
    stale: bool = False
    """True if another client may have changed it: it is not used again."""

    def slot(self, token: str) -> Json:
        """For `translation.guarded`; `token` is what the transaction writes, with the branch that
        it took before it.
        """
        return {
            "key": self.key,
            "mod_revision": self.revision,
            "lease": str(self.lease),
            "then": text_of("then " + token),
            "otherwise": text_of("otherwise " + token),
        }

    def cancellation(self, token: str) -> Json:
        """A transaction that keeps the one of `token` from ever taking effect, or reads what it has
        written.
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
    """The markers of one client, under `root`."""

    def __init__(self, root: str, environment: Environment) -> None:
        self._root = root
        self._environment = environment
        self._idle: list[Marker] = []

    def take(self, lease: int) -> Marker:
        """A marker for one transaction, tied to `lease`."""
        while self._idle:
            marker = self._idle.pop()
            if marker.lease == lease:
                return marker
        return Marker(text_of(self._root + self._environment.token(12).hex()), lease)

    def give_back(self, marker: Marker) -> None:
        """The transaction is over, and what the marker is then is known."""
        if not marker.stale:
            self._idle.append(marker)


# Watches in etcd: streams that are kept from one poll to the next, and begun anew elsewhere when
# they break or fall silent.

KEPT_WATCHES = 16


class EtcdWatching:
    """One stream of the changes at or after `from_revision`.

    It asks for those of the revision before as well, and drops them: etcd's compaction at a
    revision removes the deletions of that very revision, and a watch from there is not notified
    (https://github.com/etcd-io/etcd/issues/18089); one from before is refused, as it must be.
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
        """Begin to watch. Raises `LostError`, `NotSentError` or a `StoreError`."""
        # One earlier: etcd loses the deletions of a revision at which it was compacted.
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
        """The next changes, those of one revision together. Raises like `begun`; cancelling loses
        nothing.

        etcd sends whole revisions, but cuts what is too large for it anywhere (`fragment`): what
        may be incomplete is held back.
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
        """Make sure that silence means that there is nothing to say. Raises `LostError`."""
        await self._gateway.confirm(self._stream.member, self._space.key(""))

    def close(self) -> None:
        """End it."""
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
    """All watches of one store."""

    def __init__(self, gateway: Gateway, space: Space, timings: Timings) -> None:
        self._timings = timings
        self._gateway = gateway
        self._space = space
        # Between two polls, by their prefix and the revision that comes next.
        self._kept: OrderedDict[tuple[str, int], EtcdWatching] = OrderedDict()

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`. Raises also `LostError` if the streams were ended on purpose."""
        until = trio.current_time() + self._timings.store_call
        failures = 0
        while True:  # noqa: ASYNC913  whatever it comes to, it waits for the network
            begun = trio.current_time()
            try:
                return await self._polled(prefix, from_revision)
            except (LostError, NotSentError) as error:
                failure = error
            if self._gateway.is_ending:
                raise failure
            now = trio.current_time()
            if now - begun >= self._timings.etcd_silent:
                # It worked until now.
                until, failures = now + self._timings.store_call, 0
            if now > until:
                raise StoreUnavailableError(
                    f"no member of the etcd accepts a watch: {failure}"
                ) from failure
            failures += 1
            await trio.sleep(PAUSE_SECONDS if failures > 1 else 0)

    async def _polled(self, prefix: str, from_revision: int) -> WatchBatch:
        watching = self._kept.pop((prefix, from_revision), None)
        if watching is None:
            watching = await EtcdWatching.begun(self._gateway, self._space, prefix, from_revision)
        try:
            while True:
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
        self._kept[prefix, from_revision] = watching
        if before is None and len(self._kept) > KEPT_WATCHES:
            before = self._kept.popitem(last=False)[1]
        if before is not None:
            before.close()


MARKER_SECONDS = 60
"""For how long markers outlast their client."""


class EtcdStore(Store):
    """The keys of cluster `cluster` in the etcd at `address`. `run` must be running while it is
    used.
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
        """Keep the markers alive until the store is closed."""
        task_status.started()
        try:
            while not self._over.is_set():
                with trio.move_on_after(MARKER_SECONDS / 3):
                    await self._over.wait()
                if self._lease and not self._over.is_set():
                    try:
                        await self.keep_alive(self._lease)
                    except LeaseLostError:
                        self._lease = 0
                    except StoreError:
                        # The store is away: requests that use it fail on their own.
                        continue
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                await self._say_goodbye()

    def close(self) -> None:
        """Refuse calls from now on and end the polls that wait, with StoreError. Closing twice is
        closing once.
        """
        self._over.set()
        self._gateway.end_streams()

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        check_key(key)
        found = (await self._ask("/v3/kv/range", {"key": self._space.key(key)})).get("kvs", ())
        return self._space.entry(found[0]) if found else None

    async def range(self, prefix: str) -> RangeResult:
        """See `Store.range`."""
        answer = await self._ask("/v3/kv/range", self._space.under(prefix))
        return RangeResult(
            tuple(map(self._space.entry, answer.get("kvs", ()))),
            number(answer["header"], "revision"),
        )

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """See `Store.put`."""
        return (await self.transaction([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        """See `Store.delete`."""
        # Where nothing is there nothing is written, not even a marker: the revision stays.
        gone = await self.transaction([Compare(key, "create_revision", 0)], [], [Delete(key)])
        return not gone.succeeded

    async def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """See `Store.transaction`."""
        check_transaction(compare, then, otherwise)
        if all(isinstance(operation, Get) for operation in (*then, *otherwise)):
            return await self._read(compare, then, otherwise)
        until = trio.current_time() + self._environment.timings.store_call
        while True:
            marker = self._markers.take(await self._marker_lease())
            try:
                result = await self._attempt(marker, compare, then, otherwise, until)
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

    async def grant(self, ttl: float) -> int:
        """See `Store.grant`. etcd counts in whole seconds."""
        check_time_to_live(ttl)
        # A number of our own makes this safe to repeat.
        lease = int.from_bytes(self._environment.token(8), "big") >> 1 | 1
        try:
            await self._ask("/v3/lease/grant", {"ID": str(lease), "TTL": str(math.ceil(ttl))})
        except EtcdRefusalError as error:
            if "lease already exists" not in str(error):
                raise
        return lease

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
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
        """See `Store.time_to_live`."""
        answer = await self._ask("/v3/lease/timetolive", {"ID": str(lease)})
        # What is 0 is left out; a lease that is no more has -1.
        if number(answer, "TTL") < 0:
            raise LeaseLostError(f"lease {lease} has expired or was revoked")
        return float(number(answer, "TTL"))

    async def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)}, once=True)
            return
        except AmbiguousError:
            # Whichever time it did, it has ended afterwards.
            pass
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseLostError:
            pass

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`."""
        check_revision(from_revision)
        self._refuse_if_closed()
        try:
            return await self._watches.poll(prefix, from_revision)
        except (LostError, NotSentError):
            self._refuse_if_closed()
            raise

    async def compact(self, revision: int) -> None:
        """Let etcd forget changes up to `revision`, for all its users: an operator's decision, or a
        test's.
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
        """A transaction that changes nothing: its answer can be lost as often as it likes, another
        attempt gives one as good.
        """
        answer = await self._ask("/v3/kv/txn", reading(self._space, compare, then, otherwise))
        succeeded = bool(answer.get("succeeded"))
        responses = map(
            self._space.response, then if succeeded else otherwise, answer.get("responses", ())
        )
        return TransactionResult(succeeded, number(answer["header"], "revision"), tuple(responses))

    async def _attempt(
        self,
        marker: Marker,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        until: float,
    ) -> TransactionResult | None:
        """Try a transaction; None if it certainly was not applied and may be tried again."""
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
        if await self._is_alive(marker.lease):
            raise failure
        # The markers' own lease has ended, or that as well.
        if marker.lease == self._lease:
            self._lease = 0
        return None

    def _result(
        self,
        marker: Marker,
        answer: Json,
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> TransactionResult | None:
        outcome = outcome_of(answer)
        if outcome is None:
            # This happens only if another client deletes our markers.
            marker.stale = True
            return None
        succeeded, responses = outcome
        operations = then if succeeded else otherwise
        revision = number(answer["header"], "revision")
        if wrote_marker(operations, responses):
            marker.revision = revision
        # The marker's response is one more than there are operations.
        return TransactionResult(
            succeeded, revision, tuple(map(self._space.response, operations, responses))
        )

    async def _resolve(
        self,
        marker: Marker,
        token: str,
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        lost: AmbiguousError,
        until: float,
    ) -> TransactionResult | None:
        """The answer was lost: see to it that the transaction has been applied, or never
        will be.
        """
        while True:  # noqa: ASYNC913  whatever it comes to, it waits for the network
            try:
                answer = await self._ask("/v3/kv/txn", marker.cancellation(token), once=True)
                if answer.get("succeeded"):
                    return None
                branch = _branch_told(answer["responses"][0]["response_range"], token)
                if branch == "never":
                    return None
                if not branch:
                    raise self._unknown(lost)
                return await self._told(
                    answer["responses"][0]["response_range"], branch, then, otherwise
                )
            except AmbiguousError:
                if trio.current_time() > until:
                    raise self._unknown(lost) from lost
            except StoreOutcomeUnknownError:
                raise
            except StoreError as error:
                raise self._unknown(lost) from error

    async def _applied_all_the_same(
        self,
        marker: Marker,
        token: str,
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        full: EtcdFullError,
    ) -> TransactionResult:
        """etcd said that it is full, which it says before it does a thing or after: the marker
        tells. Raises `full` if it was before.
        """
        try:
            found = await self._ask("/v3/kv/range", {"key": marker.key})
            branch = _branch_told(found, token)
            if branch:
                return await self._told(found, branch, then, otherwise)
        except StoreError as error:
            raise StoreOutcomeUnknownError(
                f"the outcome of a write is not known ({error}): {full}"
            ) from error
        raise full

    async def _told(
        self,
        found: Mapping[str, Any],
        branch: str,
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> TransactionResult:
        """The result of a transaction that was applied, by the marker that was found."""
        operations = then if branch == "then" else otherwise
        revision = number(found["kvs"][0], "mod_revision")
        return TransactionResult(
            branch == "then", revision, await self._answers(operations, revision)
        )

    async def _answers(
        self, operations: Sequence[Operation], revision: int
    ) -> tuple[Entry | bool | None, ...]:
        """What a transaction that was applied at `revision` has answered, read from etcd's past."""
        answers: list[Entry | bool | None] = []
        written: set[str] = set()
        for operation in operations:
            if isinstance(operation, Put):
                answers.append(None)
            else:
                seen = revision if operation.key in written else revision - 1
                body = {"key": self._space.key(operation.key), "revision": str(max(1, seen))}
                found = (await self._ask("/v3/kv/range", body)).get("kvs", ())
                answers.append(
                    bool(found)
                    if isinstance(operation, Delete)
                    else self._space.entry(found[0])
                    if found
                    else None
                )
            if isinstance(operation, Put | Delete):
                written.add(operation.key)
        return tuple(answers)

    def _unknown(self, lost: AmbiguousError) -> StoreOutcomeUnknownError:
        return StoreOutcomeUnknownError(
            f"the answer of etcd at {self.address} to a write was lost, and the outcome of the "
            f"write is not known: {lost}"
        )

    async def _marker_lease(self) -> int:
        if not self._lease:
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

    async def _say_goodbye(self) -> None:
        try:
            if self._lease:
                await self._gateway.ask("/v3/lease/revoke", {"ID": str(self._lease)}, seconds=0.5)
        except StoreError:
            # It ends of itself.
            pass
        finally:
            self._gateway.close()


def _branch_told(found: Mapping[str, Any], token: str) -> str:
    """ "then", "otherwise" or "never": what a marker says about the transaction of `token`; "" if
    it is not that transaction's.
    """
    entries = found.get("kvs", ())
    branch, _, theirs = (
        b64decode(entries[0].get("value", "")).decode().partition(" ") if entries else ("", "", "")
    )
    return branch if theirs == token else ""
