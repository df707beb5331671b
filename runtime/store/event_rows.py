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
"""Bytes of values that a batch may have to be packed. Larger ones are sent as messages, whose large
values travel beside the message without a copy.
"""

_KINDS: Final[dict[object, Literal["put", "delete"]]] = {"put": "put", "delete": "delete"}


def is_small(batch: WatchBatch) -> bool:
    """True for changes that are sent as rows."""
    return (
        sum(len(event.value) + len(event.previous or b"") for event in batch.events) <= SMALL_BYTES
    )


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
