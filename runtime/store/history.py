"""The changes that a store still knows, for watches that come late: the latest ones, bounded by number and by bytes.

Older changes are compacted, whole revisions at a time, and a watch that asks for them is told so: it sees everything, or learns that it
does not. The newest revision is always kept, however large, so that a watch that keeps pace is never sent away. etcd's event history works
alike.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby

from actors.errors import StoreCompactedError
from runtime.store.interface import Event, WatchBatch, check_revision

MAX_EVENTS = 10_000
MAX_BYTES = 64 * 1024 * 1024

BATCH_EVENTS = 1_000
"""A batch ends with the revision that brings it to this many changes; a far-away watch gets what it missed in frames of a bounded size."""

BATCH_BYTES = 4 * 1024 * 1024
"""Likewise for the bytes of keys and values."""


class History:
    """Changes in the order of their revisions. `max_bytes` counts keys and values, previous ones included."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        if max_events < 1 or max_bytes < 1:
            raise ValueError(f"a history keeps at least one event and one byte, not {max_events} and {max_bytes}")
        self.compacted = 0
        """Changes up to this revision are no longer kept."""
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[Event] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> None:
        """Remember a change; its revision is that of the one before or higher."""
        assert event.revision > self.compacted
        assert not self._events or event.revision >= self._events[-1].revision
        self._events.append(event)
        self._bytes += _size(event)
        while (len(self._events) > self._max_events or self._bytes > self._max_bytes) and self._events[0].revision < event.revision:
            self.compact(self._events[0].revision)

    def compact(self, revision: int) -> None:
        """Forget the changes up to and including `revision`."""
        while self._events and self._events[0].revision <= revision:
            self._bytes -= _size(self._events.popleft())
        self.compacted = max(self.compacted, revision)

    def after(self, revision: int) -> list[Event]:
        """The changes after `revision`, as far as they are kept. Costs what it returns."""
        found: list[Event] = []
        for event in reversed(self._events):
            if event.revision <= revision:
                break
            found.append(event)
        found.reverse()
        return found

    def since(self, prefix: str, from_revision: int, present: int) -> WatchBatch | None:
        """The first batch of changes under `prefix` at or after `from_revision`; None if there are none yet.

        `present`: the store's revision, up to which a batch that holds all there is reaches. Raises like `Store.poll`.
        """
        check_revision(from_revision)
        if from_revision <= self.compacted:
            raise StoreCompactedError(
                f"changes up to revision {self.compacted} are no longer kept and {from_revision} was asked for; "
                "read the keys afresh (range) and go on from the revision after it"
            )
        found = [event for event in self.after(from_revision - 1) if event.key.startswith(prefix)]
        if not found:
            return None
        batch: list[Event] = []
        size = 0
        for revision, events in groupby(found, lambda event: event.revision):
            for event in events:
                batch.append(event)
                size += _size(event)
            if len(batch) < len(found) and (len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES):
                return WatchBatch(tuple(batch), revision)
        return WatchBatch(tuple(batch), present)


def _size(event: Event) -> int:
    return len(event.key) + len(event.value) + len(event.previous or b"")
