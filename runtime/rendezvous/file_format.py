"""A store as the content of one file, and back. No I/O."""

from __future__ import annotations

import zlib
from typing import Any, cast

import attrs
import cbor2

from actors.errors import StoreDataError
from runtime.store.history import History
from runtime.store.interface import Entry, Event
from runtime.store.memory import Snapshot, StoreMachine

MAGIC = b"understudy rendezvous 1\n"
HISTORY_EVENTS = 200
HISTORY_BYTES = 1024 * 1024
KEPT_TOKENS = 200


@attrs.frozen
class Content:
    """A store after its commit `number`. `tokens`: of the latest commits, this one's last. `suspects`: leases that may have ended, and the
    token of who says so.
    """

    number: int
    snapshot: Snapshot
    tokens: tuple[bytes, ...] = ()
    suspects: dict[int, bytes] = attrs.field(factory=dict)

    def machine(self) -> StoreMachine:
        """As a machine, on a clock that stands still: leases are timed by observers."""
        return StoreMachine.restored(self.snapshot, 0.0, 0.0, History(HISTORY_EVENTS, HISTORY_BYTES))

    def followed_by(self, machine: StoreMachine, suspects: dict[int, bytes], token: bytes) -> Content | None:
        """The next commit, which makes the store what `machine` is; None if nothing has changed."""
        kept, before = machine.snapshot(), self.snapshot
        suspects = {lease: who for lease, who in suspects.items() if lease in kept.leases}
        same = (kept.revision, kept.next_lease, kept.leases) == (before.revision, before.next_lease, before.leases)
        if same and suspects == self.suspects:
            return None
        return Content(self.number + 1, kept, (*self.tokens[1 - KEPT_TOKENS :], token), suspects)


def empty() -> Content:
    """A store in which nothing has been."""
    return Content(0, StoreMachine(History(HISTORY_EVENTS, HISTORY_BYTES)).snapshot())


def encode(content: Content) -> bytes:
    """The file."""
    kept = content.snapshot
    body = cbor2.dumps(
        [
            content.number,
            list(content.tokens),
            content.suspects,
            [kept.revision, kept.compacted, kept.next_lease, kept.leases],
            [list(attrs.astuple(entry)) for entry in kept.entries],
            [list(attrs.astuple(event)) for event in kept.events],
        ]
    )
    return MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def decode(data: bytes, where: str) -> Content:
    """What `encode` made. Raises `StoreDataError`, naming the file, for anything else."""
    start = len(MAGIC) + 4
    body = data[start:]
    try:
        if not data.startswith(MAGIC) or data[len(MAGIC) : start] != zlib.crc32(body).to_bytes(4, "big"):
            raise ValueError("it is not as it was written")
        number, tokens, suspects, (revision, compacted, next_lease, leases), entries, events = cast("Any", cbor2.loads(body))
        snapshot = Snapshot(
            revision, compacted, next_lease, leases, tuple(Entry(*entry) for entry in entries), tuple(Event(*event) for event in events)
        )
        return Content(number, snapshot, tuple(tokens), suspects)
    except (ValueError, TypeError, cbor2.CBORDecodeError) as error:
        raise StoreDataError(f"{where} is no store of a rendezvous ({error}); give the job another directory, or delete this one") from None
