"""Changes of the store as plain rows: how a node gets those that it has asked for.

Each node follows the names and the members, so each change travels to every node. As messages, its
parts would be sent with the path of their class, and be looked through and checked one by one. No
I/O.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import cbor2

from runtime.store.interface import StoreEvent, WatchBatch
from runtime.store.rows import read_rows

DEPTH: Final = 3
"""Containers in containers: the batch and a change; and one more, so that what is too deep is
refused by its type.
"""

SMALL_BYTES: Final = 64 * 1024
"""Bytes of the values of one change that are packed in any case. Larger ones are sent as messages,
whose large values travel beside the message without a copy, unless it is the number of the changes
that makes them many: as messages, the 100,000 names of a node that has died would hold up the loop
of the store's node for seconds.
"""

SMALL_EACH: Final = 4 * 1024
"""Bytes of the values of a change, on average, that are packed."""

MANY: Final = 100
"""From so many changes on they are packed once for all."""

_KINDS: Final[dict[object, Literal["put", "delete"]]] = {"put": "put", "delete": "delete"}


def is_small(batch: WatchBatch) -> bool:
    """True for changes that are sent as rows."""
    size = sum(len(event.value) + len(event.previous or b"") for event in batch.events)
    return size <= SMALL_BYTES or size <= SMALL_EACH * len(batch.events)


def pack_changes(batch: WatchBatch) -> bytes:
    """Return changes as bytes."""
    return cbor2.dumps(
        [
            batch.revision,
            *(
                [
                    event.kind,
                    event.key,
                    event.value,
                    event.revision,
                    event.create_revision,
                    event.previous,
                ]
                for event in batch.events
            ),
        ]
    )


class PackedChanges:
    """Packs changes for many nodes that follow the same keys: many changes at once, which cost the
    loop a tenth of a second for 100,000, are packed once for all of them.
    """

    def __init__(self) -> None:
        self._latest: tuple[str, WatchBatch, bytes] | None = None

    def of(self, prefix: str, batch: WatchBatch) -> bytes:
        """Return `batch`, the changes under `prefix`, as bytes."""
        if self._latest is not None:
            its_prefix, its_batch, packed = self._latest
            if prefix == its_prefix and _are_same(batch, its_batch):
                return packed
            if batch.revision > its_batch.revision:
                # All have it who followed closely: its memory is needed no more.
                self._latest = None
        packed = pack_changes(batch)
        if len(batch.events) >= MANY:
            self._latest = prefix, batch, packed
        return packed


def _are_same(one: WatchBatch, other: WatchBatch) -> bool:
    # The history has each change once. The object and not its revision: a store that goes back to
    # its disk uses revisions again.
    return (
        one.revision == other.revision
        and len(one.events) == len(other.events)
        and one.events[0] is other.events[0]
        and one.events[-1] is other.events[-1]
    )


def unpack_changes(packed: bytes) -> WatchBatch:
    """Return the changes that a store's node has packed. Raises ValueError for bytes that are
    none.
    """
    try:
        revision, *rows = read_rows(packed, DEPTH)
        if type(revision) is not int:
            raise TypeError("the revision of a batch is a number")
        return WatchBatch(tuple([_event(*row) for row in rows]), revision)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the bytes are not packed changes: {error}") from None


def _event(
    kind: object,
    key: object,
    value: object,
    revision: object,
    created: object,
    previous: object,
) -> StoreEvent:
    if (
        type(kind) is not str
        or kind not in _KINDS
        or type(key) is not str
        or type(value) is not bytes
        or type(revision) is not int
        or type(created) is not int
        or not (previous is None or type(previous) is bytes)
    ):
        raise TypeError("a change is its kind, a key, a value, two numbers and the value before")
    return StoreEvent(_KINDS[kind], key, value, revision, created, cast("Any", previous))
