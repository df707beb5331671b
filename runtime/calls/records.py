"""Call records: at most once for calls that may be made again.

No I/O and no clock. One table for each client incarnation. A repeatable call is recorded when it arrives; its repeat is attached to the
run that still goes on, or gets the answer that is kept, and never runs a second time here. The client confirms the calls that it will not
repeat, and they are forgotten; what is over the bounds is forgotten earlier, the oldest answers first, and a repeat of such a call is
refused rather than run.

The states are RIFL's (Lee et al., SOSP 2015: new, in progress, completed, stale). Within one incarnation only: records do not survive
their node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

from actors.errors import CallError, MailboxFullError, OutcomeUnknownError
from runtime.wire.frames import Buffer

J = TypeVar("J")

MOST_RECORDS = 10_000
MOST_BYTES = 16 * 1024 * 1024

RECORD_BYTES = 300
"""What a record costs apart from its answer, about."""


class Record(Generic[J]):
    """What is known of one repeatable call. `job` is whatever the host keeps of it while it runs; `answer` is the frame that answered."""

    __slots__ = ("answer", "given_up", "job", "number", "size", "state", "target", "unknown")

    def __init__(self, number: int, target: tuple[str, int]) -> None:
        self.number = number
        self.target = target
        """Name and epoch of the actor."""
        self.state: Literal["new", "running", "answered"] = "new"
        self.job: J | None = None
        self.answer: tuple[Buffer, ...] = ()
        self.size = RECORD_BYTES
        self.unknown = False
        """The answer says that nobody knows whether it ran: the actor died."""
        self.given_up = False
        """Nobody wants the answer, and the table has forgotten the call."""


class CallRecords(Generic[J]):
    """The table of one client. At most `most_records` calls and `most_bytes` of answers."""

    __slots__ = ("_answered", "_bytes", "_evicted", "_most_bytes", "_most_records", "_watermark", "records")

    def __init__(self, most_records: int = MOST_RECORDS, most_bytes: int = MOST_BYTES) -> None:
        self.records: dict[int, Record[J]] = {}
        self._answered: dict[int, Record[J]] = {}
        self._bytes = 0
        self._watermark = 0
        self._evicted = 0
        """The highest number that was forgotten without the client's word."""
        self._most_records = most_records
        self._most_bytes = most_bytes

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self._bytes

    def arrive(self, number: int, target: tuple[str, int], *, repeat: bool) -> Record[J] | CallError:
        """A repeatable call has arrived; `repeat`: its client has sent it before.

        The record says what to do: run it ("new", then tell `started`), nothing ("running": its answer goes to whoever asked last), or
        send `answer` ("answered"). An error where it must be refused: its record is gone, or there is no room for one.
        """
        record = self.records.get(number)
        if record is not None:
            if record.state == "answered" and record.unknown and record.target != target:
                # What ran, or did not, died with an earlier epoch; the client may make the call again, and does, to another.
                self._remove(record)
            else:
                return record
        elif number < self._watermark or (repeat and number <= self._evicted):
            return OutcomeUnknownError("the call was made before, and what came of it is no longer on record here; it may have run")
        if len(self.records) >= self._most_records and not self._evict_one():
            return MailboxFullError(f"{len(self.records)} repeatable calls of this client are running here, its limit; slow down")
        record = self.records[number] = Record(number, target)
        self._bytes += record.size
        return record

    def started(self, record: Record[J], job: J) -> None:
        """The call is on its way through its actor."""
        record.state = "running"
        record.job = job

    def answered(self, record: Record[J], answer: tuple[Buffer, ...], *, unknown: bool = False) -> None:
        """The call has ended and this is its answer. Kept for repeats, unless the client has given it up."""
        record.job = None
        if record.given_up:
            return
        record.state = "answered"
        record.answer = answer
        record.unknown = unknown
        grown = sum(len(buffer) for buffer in answer)
        record.size += grown
        self._bytes += grown
        self._answered[record.number] = record
        while self._bytes > self._most_bytes and self._evict_one():
            pass

    def not_executed(self, record: Record[J]) -> None:
        """The call was refused: it certainly did not run, so a repeat is as good as new."""
        self._remove(record)

    def confirm(self, watermark: int, beyond: Iterable[int]) -> list[J]:
        """The client will repeat no call below `watermark`, nor those `beyond`. Returns what still runs of them: nobody waits for it."""
        jobs = [self.give_up(record.number) for record in self.covered(watermark, beyond)]
        self._watermark = max(self._watermark, watermark)
        return [job for job in jobs if job is not None]

    def covered(self, watermark: int, beyond: Iterable[int]) -> list[Record[J]]:
        """What is on record of the calls that `confirm` would forget."""
        found = [self.records[number] for number in beyond if number in self.records]
        if watermark > self._watermark:
            # Arrival is nearly in the order of numbers, but the first attempt of a call may have been lost.
            found += [record for number, record in self.records.items() if number < watermark]
        return found

    def give_up(self, number: int) -> J | None:
        """The client wants nothing more of this call: forget it; returns its job, if it still runs."""
        record = self.records.get(number)
        if record is None:
            return None
        record.given_up = True
        self._remove(record)
        # The job leads to the record as well: who keeps one of them must not keep both until the cyclic collector comes.
        job, record.job = record.job, None
        return job

    def end(self) -> list[J]:
        """The client is no more: forget everything; returns what still runs."""
        jobs = [record.job for record in self.records.values() if record.job is not None]
        for record in self.records.values():
            record.given_up = True
            record.job = None
        self.records.clear()
        self._answered.clear()
        self._bytes = 0
        return jobs

    def _evict_one(self) -> bool:
        """Forget the oldest answer; False if there is none."""
        for record in self._answered.values():
            self._evicted = max(self._evicted, record.number)
            self._remove(record)
            return True
        return False

    def _remove(self, record: Record[J]) -> None:
        if self.records.get(record.number) is record:
            del self.records[record.number]
            self._answered.pop(record.number, None)
            self._bytes -= record.size
