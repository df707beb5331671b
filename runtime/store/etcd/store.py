"""The store in etcd; see `runtime.store.interface.Store` for what it promises."""

from __future__ import annotations

import math
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Sequence

import trio

from actors.errors import LeaseLostError, StoreCompactedError, StoreError, StoreOutcomeUnknownError, StoreUnavailableError
from runtime.environment import Environment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.connection import LostError, NotSentError
from runtime.store.etcd.gateway import CALL_SECONDS, PAUSE_SECONDS, AmbiguousError, EtcdRefusalError, Gateway, Stream
from runtime.store.etcd.markers import Marker, Markers
from runtime.store.etcd.translation import Json, Space, guarded, number, wrote_marker
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
    check_revision,
    check_time_to_live,
    check_transaction,
)

MARKER_SECONDS = 60
"""For how long markers outlast their client."""

IDLE_SECONDS = 5.0
"""A watch that is silent for so long is begun anew: the member at its other end may be cut off."""

KEPT_WATCHES = 16


class EtcdStore(Store):
    """The keys of cluster `cluster` in the etcd at `address`. `run` must be running while it is used."""

    def __init__(self, address: EtcdAddress, cluster: str, environment: Environment) -> None:
        self.address = address
        root = f"{address.prefix}/{cluster}/"
        self._space = Space(root + "data/")
        self._gateway = Gateway(address)
        self._markers = Markers(root + "markers/", environment)
        self._environment = environment
        self._lease = 0
        self._granting = trio.Lock()
        # Watches between two polls, by their prefix and the revision that comes next.
        self._watches: OrderedDict[tuple[str, int], Stream] = OrderedDict()
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
                        # Away: those who ask it now are told.
                        continue
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                await self._say_goodbye()

    def close(self) -> None:
        """Refuse calls from now on, with StoreError. Closing twice is closing once."""
        self._over.set()

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        check_key(key)
        found = (await self._ask("/v3/kv/range", {"key": self._space.key(key)})).get("kvs", ())
        return self._space.entry(found[0]) if found else None

    async def range(self, prefix: str) -> RangeResult:
        """See `Store.range`."""
        answer = await self._ask("/v3/kv/range", self._space.under(prefix))
        return RangeResult(tuple(map(self._space.entry, answer.get("kvs", ()))), number(answer["header"], "revision"))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """See `Store.put`."""
        return (await self.transaction([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        """See `Store.delete`."""
        # Where nothing is there nothing is written, not even a marker: the revision stays.
        gone = await self.transaction([Compare(key, "create_revision", 0)], [], [Delete(key)])
        return not gone.succeeded

    async def transaction(
        self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """See `Store.transaction`."""
        check_transaction(compare, then, otherwise)
        until = trio.current_time() + CALL_SECONDS
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
                raise StoreUnavailableError(f"etcd at {self.address} lost its answers to a transaction, which was not applied; try again")

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
        seconds = number((await self._ask("/v3/lease/keepalive", {"ID": str(lease)})).get("result", {}), "TTL")
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
        while True:  # noqa: ASYNC913  whatever it comes to, it waits for the network
            stream = self._watches.pop((prefix, from_revision), None)
            if stream is None:
                stream = await self._watch(prefix, from_revision)
            batch: WatchBatch | None = None
            try:
                with trio.move_on_after(IDLE_SECONDS):
                    batch = await self._batch(stream)
            except LostError:
                self._gateway.prefer_another()
            finally:
                if batch is None:
                    stream.close()
            if batch is not None:
                self._keep(prefix, batch.revision + 1, stream)
                return batch

    async def compact(self, revision: int) -> None:
        """Let etcd forget changes up to `revision`, for everybody who uses it: an operator's decision, or a test's."""
        await self._ask("/v3/kv/compaction", {"revision": str(revision)})

    async def _ask(self, path: str, body: Json, *, once: bool = False) -> Json:
        if self._over.is_set():
            raise StoreError("the store is closed: its node has left")
        return await self._gateway.ask(path, body, once=once)

    async def _attempt(
        self, marker: Marker, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation], until: float
    ) -> TransactionResult | None:
        """Try a transaction; None if it certainly was not applied and may be tried again."""
        token = self._environment.token(8).hex()
        answer: Json = {}
        failure: AmbiguousError | LeaseLostError | None = None
        try:
            answer = await self._ask("/v3/kv/txn", guarded(self._space, marker.slot(token), compare, then, otherwise), once=True)
        except (AmbiguousError, LeaseLostError) as error:
            failure = error
        if isinstance(failure, AmbiguousError):
            return await self._resolve(marker, token, then, otherwise, failure, until)
        if failure is not None:
            if marker.lease == self._lease and await self._is_alive(marker.lease):
                raise failure
            # The markers' own lease has ended, or that as well.
            self._lease = 0
            marker.stale = True
            return None
        if not answer.get("succeeded"):
            # Only somebody who takes our markers away does this.
            marker.stale = True
            return None
        inner = answer["responses"][0]["response_txn"]
        succeeded = bool(inner.get("succeeded"))
        operations = then if succeeded else otherwise
        responses = tuple(map(self._space.response, operations, inner.get("responses", ())))
        revision = number(answer["header"], "revision")
        if wrote_marker(inner):
            marker.revision = revision
        return TransactionResult(succeeded, revision, responses)

    async def _resolve(
        self, marker: Marker, token: str, then: Sequence[Operation], otherwise: Sequence[Operation], lost: AmbiguousError, until: float
    ) -> TransactionResult | None:
        """The answer was lost: see to it that the transaction has been applied, or never will be."""
        marker.stale = True
        while True:
            try:
                answer = await self._ask("/v3/kv/txn", marker.cancellation(token), once=True)
            except AmbiguousError:
                if trio.current_time() > until:
                    raise self._unknown(lost) from lost
                continue
            except StoreError as error:
                raise self._unknown(lost) from error
            if answer.get("succeeded"):
                return None
            found = answer["responses"][0]["response_range"].get("kvs", ())
            branch, _, theirs = b64decode(found[0].get("value", "")).decode().partition(" ") if found else ("", "", "")
            if theirs != token:
                raise self._unknown(lost) from lost
            if branch == "never":
                return None
            operations = then if branch == "then" else otherwise
            revision = number(found[0], "mod_revision")
            try:
                return TransactionResult(branch == "then", revision, await self._answers(operations, revision))
            except StoreError as error:
                raise self._unknown(lost) from error

    async def _answers(self, operations: Sequence[Operation], revision: int) -> tuple[Entry | bool | None, ...]:
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
                answers.append(bool(found) if isinstance(operation, Delete) else self._space.entry(found[0]) if found else None)
            if isinstance(operation, Put | Delete):
                written.add(operation.key)
        return tuple(answers)

    def _unknown(self, lost: AmbiguousError) -> StoreOutcomeUnknownError:
        return StoreOutcomeUnknownError(f"the answer of etcd at {self.address} to a write was lost, and what became of it as well: {lost}")

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

    async def _watch(self, prefix: str, from_revision: int) -> Stream:
        """Begin a watch, of whichever member answers."""
        until = trio.current_time() + CALL_SECONDS
        request = {**self._space.under(prefix), "start_revision": str(from_revision), "prev_kv": True}
        while True:
            if self._over.is_set():
                raise StoreError("the store is closed: its node has left")
            try:
                return await self._gateway.stream("/v3/watch", {"create_request": request})
            except (LostError, NotSentError) as error:
                failure = error
            if trio.current_time() > until:
                raise StoreUnavailableError(f"no member of the etcd at {self.address} lets us watch: {failure}") from failure
            await trio.sleep(PAUSE_SECONDS)

    async def _batch(self, stream: Stream) -> WatchBatch:
        """The next changes: etcd sends those of one revision together."""
        while True:
            result = (await stream.next()).get("result", {})
            if result.get("canceled"):
                if number(result, "compact_revision"):
                    raise StoreCompactedError(
                        f"changes before revision {result['compact_revision']} are no longer kept; read the keys afresh (range) and "
                        "go on from there"
                    )
                raise LostError(str(result.get("cancel_reason", "the watch was ended")))
            events = tuple(map(self._space.event, result.get("events", ())))
            if events:
                return WatchBatch(events, events[-1].revision)

    def _keep(self, prefix: str, from_revision: int, stream: Stream) -> None:
        before = self._watches.pop((prefix, from_revision), None)
        self._watches[prefix, from_revision] = stream
        if before is None and len(self._watches) > KEPT_WATCHES:
            before = self._watches.popitem(last=False)[1]
        if before is not None:
            before.close()

    async def _say_goodbye(self) -> None:
        while self._watches:
            self._watches.popitem()[1].close()
        if self._lease:
            try:
                await self._gateway.ask("/v3/lease/revoke", {"ID": str(self._lease)}, seconds=0.5)
            except StoreError:
                # It ends of itself.
                pass
        self._gateway.close()
