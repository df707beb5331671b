"""Watches in etcd: streams that are kept from one poll to the next, and begun anew elsewhere when they break or fall silent."""

from __future__ import annotations

from collections import OrderedDict

import trio

from actors.errors import StoreCompactedError, StoreUnavailableError
from runtime.store.etcd.connection import LostError, NotSentError
from runtime.store.etcd.gateway import CALL_SECONDS, PAUSE_SECONDS, Gateway, Stream
from runtime.store.etcd.refusals import refusal_in, refusal_of_watch
from runtime.store.etcd.translation import Json, Space, number
from runtime.store.interface import Event, WatchBatch

SILENT_SECONDS = 5.0
"""After so long without a change, the member at a watch's other end is asked whether it is still in touch with the others."""

KEPT_WATCHES = 16


class Watching:
    """One stream of the changes at or after `from_revision`.

    It asks for those of the revision before as well, and drops them: etcd's compaction at a revision removes the deletions of that very
    revision, and a watch from there is not told (https://github.com/etcd-io/etcd/issues/18089); one from before is refused, as it must be.
    """

    def __init__(self, gateway: Gateway, stream: Stream, space: Space, from_revision: int) -> None:
        self._gateway = gateway
        self._stream = stream
        self._space = space
        self._from_revision = from_revision
        self._events: list[Event] = []

    @classmethod
    async def begun(cls, gateway: Gateway, space: Space, prefix: str, from_revision: int) -> Watching:
        """Begin to watch. Raises `LostError`, `NotSentError` or a `StoreError`."""
        start = max(1, from_revision - 1)
        request = {**space.under(prefix), "start_revision": str(start), "prev_kv": True, "fragment": True}
        stream = await gateway.stream("/v3/watch", {"create_request": request})
        return cls(gateway, stream, space, from_revision)

    async def batch(self) -> WatchBatch:
        """The next changes, those of one revision together. Raises like `begun`; cancelling loses nothing.

        etcd sends whole revisions, but cuts what is too large for it anywhere (`fragment`): what may be incomplete is held back.
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
                    f"changes before revision {result['compact_revision']} are no longer kept; read the keys afresh (range) and "
                    "go on from there"
                )
            refusal = refusal_of_watch(str(result.get("cancel_reason", "")))
        if refusal is not None:
            raise self._gateway.failure(refusal, self._stream.member, self._stream.token)
        return result


class Watches:
    """All watches of one store."""

    def __init__(self, gateway: Gateway, space: Space) -> None:
        self._gateway = gateway
        self._space = space
        # Between two polls, by their prefix and the revision that comes next.
        self._kept: OrderedDict[tuple[str, int], Watching] = OrderedDict()

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        """See `Store.poll`. Raises also `LostError` if the streams were ended on purpose."""
        until = trio.current_time() + CALL_SECONDS
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
            if now - begun >= SILENT_SECONDS:
                # It worked until now.
                until, failures = now + CALL_SECONDS, 0
            if now > until:
                raise StoreUnavailableError(f"no member of the etcd lets us watch: {failure}") from failure
            failures += 1
            await trio.sleep(PAUSE_SECONDS if failures > 1 else 0)

    async def _polled(self, prefix: str, from_revision: int) -> WatchBatch:
        watching = self._kept.pop((prefix, from_revision), None)
        if watching is None:
            watching = await Watching.begun(self._gateway, self._space, prefix, from_revision)
        try:
            while True:
                with trio.move_on_after(SILENT_SECONDS):
                    batch = await watching.batch()
                    self._keep(prefix, batch.revision + 1, watching)
                    return batch
                await watching.confirm()
        except BaseException:
            watching.close()
            raise

    def _keep(self, prefix: str, from_revision: int, watching: Watching) -> None:
        before = self._kept.pop((prefix, from_revision), None)
        self._kept[prefix, from_revision] = watching
        if before is None and len(self._kept) > KEPT_WATCHES:
            before = self._kept.popitem(last=False)[1]
        if before is not None:
            before.close()
