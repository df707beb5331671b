"""The store in etcd; see `runtime.store.interface.Store` for what it promises."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from actors.errors import LeaseLostError, StoreError, StoreOutcomeUnknownError, StoreUnavailableError
from runtime.environment import Environment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.connection import LostError, NotSentError
from runtime.store.etcd.gateway import CALL_SECONDS, AmbiguousError, Gateway
from runtime.store.etcd.markers import Marker, Markers
from runtime.store.etcd.refusals import EtcdFullError, EtcdRefusalError
from runtime.store.etcd.translation import Json, Space, guarded, number, outcome_of, reading, wrote_marker
from runtime.store.etcd.watching import Watches
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
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
        self._watches = Watches(self._gateway, self._space)
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
        """Refuse calls from now on and end the polls that wait, with StoreError. Closing twice is closing once."""
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
        if all(isinstance(operation, Get) for operation in (*then, *otherwise)):
            return await self._read(compare, then, otherwise)
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
        seconds = number((await self._ask("/v3/lease/keepalive", {"ID": str(lease)}, quick=True)).get("result", {}), "TTL")
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
        """Let etcd forget changes up to `revision`, for everybody who uses it: an operator's decision, or a test's."""
        await self._ask("/v3/kv/compaction", {"revision": str(revision)})

    async def _ask(self, path: str, body: Json, *, once: bool = False, quick: bool = False) -> Json:
        self._refuse_if_closed()
        return await self._gateway.ask(path, body, once=once, quick=quick)

    def _refuse_if_closed(self) -> None:
        if self._over.is_set():
            raise StoreError("the store is closed: its node has left")

    async def _read(self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> TransactionResult:
        """A transaction that changes nothing: its answer can be lost as often as it likes, another attempt gives one as good."""
        answer = await self._ask("/v3/kv/txn", reading(self._space, compare, then, otherwise))
        succeeded = bool(answer.get("succeeded"))
        responses = map(self._space.response, then if succeeded else otherwise, answer.get("responses", ()))
        return TransactionResult(succeeded, number(answer["header"], "revision"), tuple(responses))

    async def _attempt(
        self, marker: Marker, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation], until: float
    ) -> TransactionResult | None:
        """Try a transaction; None if it certainly was not applied and may be tried again."""
        token = self._environment.token(8).hex()
        try:
            answer = await self._ask("/v3/kv/txn", guarded(self._space, marker.slot(token), compare, then, otherwise), once=True)
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

    def _result(self, marker: Marker, answer: Json, then: Sequence[Operation], otherwise: Sequence[Operation]) -> TransactionResult | None:
        outcome = outcome_of(answer)
        if outcome is None:
            # Only somebody who takes our markers away does this.
            marker.stale = True
            return None
        succeeded, responses = outcome
        operations = then if succeeded else otherwise
        revision = number(answer["header"], "revision")
        if wrote_marker(operations, responses):
            marker.revision = revision
        # The marker's response is one more than there are operations.
        return TransactionResult(succeeded, revision, tuple(map(self._space.response, operations, responses)))

    async def _resolve(
        self, marker: Marker, token: str, then: Sequence[Operation], otherwise: Sequence[Operation], lost: AmbiguousError, until: float
    ) -> TransactionResult | None:
        """The answer was lost: see to it that the transaction has been applied, or never will be."""
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
                return await self._told(answer["responses"][0]["response_range"], branch, then, otherwise)
            except AmbiguousError:
                if trio.current_time() > until:
                    raise self._unknown(lost) from lost
            except StoreOutcomeUnknownError:
                raise
            except StoreError as error:
                raise self._unknown(lost) from error

    async def _applied_all_the_same(
        self, marker: Marker, token: str, then: Sequence[Operation], otherwise: Sequence[Operation], full: EtcdFullError
    ) -> TransactionResult:
        """etcd said that it is full, which it says before it does a thing or after: the marker tells. Raises `full` if it was before."""
        try:
            found = await self._ask("/v3/kv/range", {"key": marker.key})
            branch = _branch_told(found, token)
            if branch:
                return await self._told(found, branch, then, otherwise)
        except StoreError as error:
            raise StoreOutcomeUnknownError(f"what became of a write is not known ({error}): {full}") from error
        raise full

    async def _told(
        self, found: Mapping[str, Any], branch: str, then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TransactionResult:
        """The result of a transaction that was applied, by the marker that was found."""
        operations = then if branch == "then" else otherwise
        revision = number(found["kvs"][0], "mod_revision")
        return TransactionResult(branch == "then", revision, await self._answers(operations, revision))

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
    """ "then", "otherwise" or "never": what a marker tells of the transaction of `token`; "" if it is not that transaction's."""
    entries = found.get("kvs", ())
    branch, _, theirs = b64decode(entries[0].get("value", "")).decode().partition(" ") if entries else ("", "", "")
    return branch if theirs == token else ""
