"""Call records: at most once for calls that may be made again.

No I/O and no clock. One table for each client incarnation. A repeatable call is recorded when it
arrives. Its repeat joins the run that is still going on, or gets the recorded answer, and never
runs a second time here. The client confirms calls that it will not repeat, and their records are
deleted. Above the bounds the oldest answers are evicted earlier; a repeat of an evicted call is
refused and does not run.

A large answer travels in parts, and its link delivers it once, however often its connection breaks.
So a call whose answer a link has taken stays on record when the bytes of the answer are evicted: a
repeat that comes meanwhile needs no second copy.

The states are RIFL's (Lee et al., SOSP 2015: new, in progress, completed, stale). Within one
incarnation only: records do not survive their node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

import attrs

from actors.errors import CallError, MailboxFullError, OutcomeUnknownError
from runtime.wire.frames import Buffer

T = TypeVar("T")

MOST_RECORDS = 10_000
MOST_BYTES = 16 * 1024 * 1024

MOST_RECORDS_IN_ALL = 100_000
MOST_BYTES_IN_ALL = 256 * 1024 * 1024
"""The limit for all clients of a node together: there may be thousands of clients, and one peer can
be many of them.
"""

LEAST_RECORDS = 100
"""Calls that each client may have on record in any case: the calls of one peer must not keep all
others out.
"""

RECORD_BYTES = 300
"""Bytes of a record without its answer, about."""


@attrs.define(eq=False)
class RecordsTotal:
    """The records and bytes in the tables of all clients of a node."""

    records: int = 0
    bytes: int = 0
    most_records: int = MOST_RECORDS_IN_ALL
    most_bytes: int = MOST_BYTES_IN_ALL

    @property
    def is_over(self) -> bool:
        """True if answers must be evicted."""
        return self.bytes > self.most_bytes


class CallRecord(Generic[T]):
    """The record of one repeatable call. `invocation`: what it runs as, while it runs; `answer`:
    the frame that answered; `transfer`: that of the answer, if it travels in parts.
    """

    __slots__ = (
        "answer",
        "given_up",
        "invocation",
        "number",
        "size",
        "state",
        "target",
        "transfer",
        "unknown",
    )

    def __init__(self, number: int, target: tuple[str, int]) -> None:
        self.number = number
        self.target = target
        """Name and epoch of the actor. A plain tuple, which takes less time to make than an
        `ActorId`: each repeatable call has one.
        """
        self.state: Literal["new", "running", "answered", "sent"] = "new"
        """"sent": answered, and the bytes of the answer were evicted; its transfer has them."""
        self.invocation: T | None = None
        self.answer: tuple[Buffer, ...] = ()
        self.transfer: object = None
        self.size = RECORD_BYTES
        self.unknown = False
        """True if the answer is that the outcome is unknown, because the actor died."""
        self.given_up = False
        """True if the client has given up the call, and the table has no record of it any more."""


def evicted() -> OutcomeUnknownError:
    """Return the error for a repeat whose answer is not on record any more."""
    return OutcomeUnknownError(
        "this call was sent before, and the record of its outcome was evicted; it may have run"
    )


class DedupTable(Generic[T]):
    """The table of one client. At most `most_records` calls and `most_bytes` of answers. `total`:
    of all tables of the node.
    """

    __slots__ = (
        "_answered",
        "_bytes",
        "_evicted",
        "_most_bytes",
        "_most_records",
        "_sent",
        "_total",
        "_watermark",
        "records",
    )

    def __init__(
        self,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        total: RecordsTotal | None = None,
    ) -> None:
        self._total = total or RecordsTotal()
        self.records: dict[int, CallRecord[T]] = {}
        self._answered: dict[int, CallRecord[T]] = {}
        self._sent: dict[int, CallRecord[T]] = {}
        """Answered, too, without the bytes: those first whose bytes were evicted first."""
        self._bytes = 0
        self._watermark = 0
        self._evicted = 0
        """The highest number that was evicted before the client confirmed it."""
        self._most_records = most_records
        self._most_bytes = most_bytes

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self._bytes

    def arrive(
        self, number: int, target: tuple[str, int], *, repeat: bool
    ) -> CallRecord[T] | CallError:
        """Note that a repeatable call has arrived; `repeat`: its client has sent it before.

        The state of the returned record says what to do: run it ("new", then call `on_started`),
        nothing ("running": its answer goes to the link that asked last), send `answer`
        ("answered"), or refuse it ("sent"); the last two unless its transfer is under way. Returns
        an error if the call must be refused: its record is gone, or there is no room for one.
        """
        record = self.records.get(number)
        if record is not None:
            if record.unknown and record.target != target:
                # What ran, or did not, died with an earlier epoch; the client may make the call
                # again, and does, to another.
                self._remove(record)
            else:
                return record
        # No record: it was confirmed, or evicted. A first attempt above the watermark never ran
        # here.
        elif number < self._watermark or (repeat and number <= self._evicted):
            return evicted()
        # Records of running calls are never evicted: a repeat could start a second run.
        kept, total = len(self.records), self._total
        if kept >= self._most_records and not self._evict_one():
            return MailboxFullError(
                f"{len(self.records)} repeatable calls of this client are running here, its "
                "limit; slow down"
            )
        if (
            total.records >= total.most_records
            and len(self.records) >= LEAST_RECORDS
            and not self._evict_one()
        ):
            most = total.records
            return MailboxFullError(
                f"{most} repeatable calls of all clients are on record here, the limit of this "
                "node; try again later"
            )
        record = self.records[number] = CallRecord(number, target)
        self._bytes += RECORD_BYTES
        total.records += 1
        total.bytes += RECORD_BYTES
        return record

    def on_started(self, record: CallRecord[T], invocation: T) -> None:
        """Note that the call was handed to its actor."""
        record.state = "running"
        record.invocation = invocation

    def on_answered(
        self,
        record: CallRecord[T],
        answer: tuple[Buffer, ...],
        *,
        unknown: bool = False,
        transfer: object = None,
    ) -> None:
        """Record the answer of a call that has ended, for repeats, unless the client has given it
        up. `transfer`: that of the answer, if it travels in parts.
        """
        record.invocation = None
        # Given up while it ran: the table does not have it any more, and its bytes are not counted.
        if record.given_up:
            return
        assert record.state in ("new", "running"), "a call has one outcome"
        record.state = "answered"
        record.answer = answer
        record.transfer = transfer
        record.unknown = unknown
        grown = len(answer[0]) if len(answer) == 1 else sum(map(len, answer))
        record.size += grown
        self._bytes += grown
        self._total.bytes += grown
        self._answered[record.number] = record
        # May evict the answer just recorded, if it alone is above the bound.
        while self._bytes > self._most_bytes and self._evict_bytes():
            pass

    def on_sent_again(self, record: CallRecord[T], transfer: object) -> None:
        """Note the transfer of a recorded answer that was sent for a repeat."""
        record.transfer = transfer

    def on_not_executed(self, record: CallRecord[T]) -> None:
        """Delete the record of a call that was refused: it certainly did not run, so a repeat may
        run.
        """
        self._remove(record)

    def confirm(self, watermark: int, beyond: Iterable[int]) -> list[T]:
        """Apply a confirmation: the client will repeat no call below `watermark`, nor those in
        `beyond`. Return the invocations of these that still run; no caller waits for them.
        """
        return self.forget(watermark, self.covered(watermark, beyond))

    def covered(self, watermark: int, beyond: Iterable[int]) -> list[CallRecord[T]]:
        """Return the records that a confirmation of these would delete."""
        records = self.records
        found = [records[number] for number in beyond if number in records]
        known = self._watermark
        if watermark - known < len(records):
            # Fewer numbers than records: of many calls that run, few are confirmed at a time. What
            # is beyond the watermark was not found above.
            found += [records[number] for number in range(known, watermark) if number in records]
        elif watermark > known:
            # Arrival is nearly in the order of numbers, but the first attempt of a call may have
            # been lost.
            found += [record for number, record in records.items() if number < watermark]
        return found

    def forget(self, watermark: int, records: Iterable[CallRecord[T]]) -> list[T]:
        """Apply a confirmation whose `covered` records are known; see `confirm`."""
        invocations = [self.give_up(record.number) for record in records]
        self._watermark = max(self._watermark, watermark)
        return [invocation for invocation in invocations if invocation is not None]

    def give_up(self, number: int) -> T | None:
        """Delete the record of a call that the client has given up; return its invocation, if that
        still runs.
        """
        record = self.records.get(number)
        if record is None:
            return None
        record.given_up = True
        del self.records[number]
        self._answered.pop(number, None)
        self._sent.pop(number, None)
        self._bytes -= record.size
        total = self._total
        total.records -= 1
        total.bytes -= record.size
        # The invocation leads to the record as well: what keeps one of them must not keep both
        # until the cyclic collector comes.
        invocation, record.invocation = record.invocation, None
        return invocation

    def end(self) -> list[T]:
        """Delete all records, because the client has ended; return the invocations that still
        run.
        """
        invocations = [
            record.invocation for record in self.records.values() if record.invocation is not None
        ]
        for record in self.records.values():
            record.given_up = True
            record.invocation = None
        self._total.records -= len(self.records)
        self._count(-self._bytes)
        self.records.clear()
        self._answered.clear()
        self._sent.clear()
        return invocations

    def make_room(self) -> None:
        """Evict the oldest answers until all clients together are within their bounds, or this one
        has no more.
        """
        while self._total.is_over and self._evict_bytes():
            pass

    @property
    def kept(self) -> int:
        """How many answers the table holds."""
        return len(self._answered)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every record: for tests and
        simulations.
        """
        assert len(self.records) <= self._most_records
        assert self._bytes == sum(record.size for record in self.records.values())
        for number, record in self.records.items():
            assert number == record.number >= self._watermark, "what is confirmed is forgotten"
            assert not record.given_up
            assert (record.state == "answered") == (self._answered.get(number) is record)
            assert (record.state == "sent") == (self._sent.get(number) is record)
            assert record.state != "sent" or (record.transfer is not None and not record.answer)
            assert (record.state == "running") == (record.invocation is not None)
            grown = sum(len(buffer) for buffer in record.answer)
            assert record.size == RECORD_BYTES + grown
        assert self._answered.keys() <= self.records.keys(), "an answer belongs to a record"
        assert self._sent.keys() <= self.records.keys(), "what was sent is on record"
        assert self._total.records >= len(self.records)
        assert self._total.bytes >= self._bytes

    def _evict_bytes(self) -> bool:
        """Evict the bytes of the oldest answer, and its record unless it was given to a transfer;
        False if there is none.
        """
        for record in self._answered.values():
            if record.transfer is None:
                self._evict(record)
            else:
                del self._answered[record.number]
                self._sent[record.number] = record
                self._count(RECORD_BYTES - record.size)
                record.state, record.answer, record.size = "sent", (), RECORD_BYTES
            return True
        return False

    def _evict_one(self) -> bool:
        """Evict the oldest record of an answer; False if there is none."""
        for records in (self._sent, self._answered):
            for record in records.values():
                self._evict(record)
                return True
        return False

    def _evict(self, record: CallRecord[T]) -> None:
        # Remembered before it goes: a repeat at or below this number may have run.
        self._evicted = max(self._evicted, record.number)
        self._remove(record)

    def _remove(self, record: CallRecord[T]) -> None:
        if self.records.get(record.number) is record:
            del self.records[record.number]
            self._answered.pop(record.number, None)
            self._sent.pop(record.number, None)
            self._total.records -= 1
            self._count(-record.size)

    def _count(self, grown: int) -> None:
        self._bytes += grown
        self._total.bytes += grown
