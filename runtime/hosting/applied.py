"""Applied calls: which calls led to the state that an actor has saved, and what they are answered.

No I/O and no clock. One table for each actor, of calls that their callers may make again: by their identities, which stay the same over
all attempts at any node. A call enters the table in the transaction that saves the state it led to, so a successor that gets that state
gets the call as well, and does not apply it again.

The client's word that a call is over, and the end of the client, let its record go. What is over the bounds goes earlier, the oldest
first; then a mark stays behind, the highest number of that client that had to go, and a repeat at or below it is refused rather than run.
Marks are bounded too: those that go raise one for all clients, the highest incarnation whose marks are gone.

After RIFL (Lee et al., SOSP 2015), whose completion records move with the object that their call has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import attrs

from actors.errors import AlreadyAppliedError, CallError, OutcomeUnknownError

MOST_RECORDS = 1_000
MOST_BYTES = 1024 * 1024
"""Of answers."""

MOST_MARKS = 1_000

MOST_IN_ONE = 32
"""Records, and marks, that one transaction takes away: each is an operation, of which a store takes 120 in one."""


class Client(NamedTuple):
    """Whose calls they are: one start of one process. `life`: see `Peer.life`."""

    name: str
    incarnation: int
    life: str


class CallIdentity(NamedTuple):
    """A call, over all attempts at it: the number of its first one."""

    client: Client
    number: int


class Origin(NamedTuple):
    """What an attempt tells of its call."""

    identity: CallIdentity
    repeated: bool
    """An earlier attempt may have run."""
    elsewhere: bool
    """One that may have run was made to another epoch of the actor, or to another node."""


@attrs.frozen
class Answer:
    """What a call that was applied is answered: an encoded value."""

    encoded: bytes


@attrs.frozen
class Change:
    """What one transaction writes besides the state itself. `more`: commit this first, and plan again: there was no room."""

    record: tuple[CallIdentity, bytes | None] | None = None
    forgotten: tuple[CallIdentity, ...] = ()
    marks: Mapping[Client, int] = attrs.field(factory=dict)
    unmarked: tuple[Client, ...] = ()
    floor: int | None = None
    more: bool = False


@attrs.frozen
class Kept:
    """What was committed before, as it is read back; the records from the oldest to the newest."""

    records: tuple[tuple[CallIdentity, bytes | None], ...] = ()
    marks: Mapping[Client, int] = attrs.field(factory=dict)
    floor: int = -1


class AppliedCalls:
    """The table of one actor, which begins with what is `kept`. Nothing is changed by a plan until it is told that it was `committed`."""

    def __init__(
        self, kept: Kept | None = None, *, most_records: int = MOST_RECORDS, most_bytes: int = MOST_BYTES, most_marks: int = MOST_MARKS
    ) -> None:
        kept = Kept() if kept is None else kept
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._most_marks = most_marks
        self._records = dict(kept.records)
        self._marks = dict(kept.marks)
        self._floor = kept.floor
        self._numbers: dict[Client, dict[int, None]] = {}
        for client, number in self._records:
            self._numbers.setdefault(client, {})[number] = None
        self._unwanted: dict[CallIdentity, int] = {}
        """What nobody will repeat, and the size of its answer: still in the store, until the next transaction."""
        self._unmarked: dict[Client, None] = {}
        self._confirmed: dict[Client, int] = {}
        self._bytes = sum(map(_size, self._records.values()))

    @property
    def clients(self) -> set[Client]:
        """Those of whose calls anything is kept."""
        return self._numbers.keys() | self._marks.keys()

    @property
    def kept(self) -> Kept:
        """What is in the store, apart from what is only to be taken away."""
        return Kept(tuple(self._records.items()), dict(self._marks), self._floor)

    @property
    def stored(self) -> tuple[int, int]:
        """How many records the store has, and bytes of answers."""
        return len(self._records) + len(self._unwanted), self._bytes

    def find(self, call: CallIdentity) -> Answer | CallError | None:
        """What to do with a call that was made before: give the answer, refuse it with the error, or, with None, run it."""
        client, number = call
        if call in self._records:
            answer = self._records[call]
            if answer is not None:
                return Answer(answer)
            return AlreadyAppliedError("the call was applied: its effect was saved before the actor was started again, its answer was not")
        if number <= self._marks.get(client, -1) or number < self._confirmed.get(client, 0) or client.incarnation <= self._floor:
            return OutcomeUnknownError(
                "the call was made before, and whether it led to the saved state is no longer on record; it may have"
            )
        return None

    def plan(self, call: CallIdentity, answer: bytes | None) -> Change:
        """How to commit that `call` led to the state that is being saved, and is to be answered `answer`; None if that is not known.

        An answer that the same call has saved before stays if there is no other.
        """
        client, number = call
        before = self._records.get(call)
        record = None if number < self._confirmed.get(client, 0) else (call, before if answer is None else answer)
        count, size = self.stored
        if record is not None:
            count += call not in self._records and call not in self._unwanted
            size += _size(record[1]) - (self._unwanted[call] if call in self._unwanted else _size(before))
        forgotten: list[CallIdentity] = []
        for unwanted, its in self._unwanted.items():
            if len(forgotten) == MOST_IN_ONE:
                break
            if record is None or unwanted != call:
                forgotten.append(unwanted)
                count, size = count - 1, size - its
        marks: dict[Client, int] = {}
        oldest = iter(self._records.items())
        while (count > self._most_records or size > self._most_bytes) and len(forgotten) < MOST_IN_ONE:
            found = next(oldest, None)
            if found is None:
                break
            victim, its_answer = found
            if victim != call:
                forgotten.append(victim)
                marks[victim.client] = max(victim.number, marks.get(victim.client, -1), self._marks.get(victim.client, -1))
                count, size = count - 1, size - _size(its_answer)
        over = count > self._most_records or size > self._most_bytes
        more = over and len(forgotten) == MOST_IN_ONE
        unmarked, floor = self._unmark(marks)
        return Change(None if more else record, tuple(forgotten), marks, unmarked, floor, more)

    def committed(self, change: Change) -> None:
        """The transaction has been carried out."""
        for call in change.forgotten:
            self._bytes -= self._unwanted.pop(call) if call in self._unwanted else _size(self._records.get(call))
            self._drop(call)
        for client in change.unmarked:
            self._marks.pop(client, None)
            self._unmarked.pop(client, None)
        for client, number in change.marks.items():
            # The one that was raised last is the last to go.
            self._marks.pop(client, None)
            self._marks[client] = number
            self._unmarked.pop(client, None)
        if change.floor is not None:
            self._floor = change.floor
        if change.record is not None:
            call, answer = change.record
            self._bytes += _size(answer) - (self._unwanted.pop(call) if call in self._unwanted else _size(self._records.get(call)))
            self._records[call] = answer
            self._numbers.setdefault(call.client, {})[call.number] = None
            if call.number < self._confirmed.get(call.client, 0):
                # Its client has said so while the transaction was under way.
                self._let_go(call.client, [call.number])

    def after_doubt(self, change: Change, kept: Kept) -> AppliedCalls:
        """The table to go on with after a transaction of which nobody knows whether it has been, or may yet be, carried out.

        `kept` is what was read since. The call is not run again by this epoch, whatever the store says of it now.
        """
        marks = [self._marks, change.marks]
        if change.record is not None:
            marks.append({change.record[0].client: change.record[0].number})
        table = AppliedCalls(kept, most_records=self._most_records, most_bytes=self._most_bytes, most_marks=self._most_marks)
        for client, number in (item for some in marks for item in some.items()):
            table._marks[client] = max(number, table._marks.get(client, -1))
        table._floor = max(table._floor, self._floor)
        for client, number in self._confirmed.items():
            table.confirm(client, number)
        return table

    def confirm(self, client: Client, watermark: int) -> None:
        """The client will make no call below `watermark` again, anywhere."""
        if watermark <= self._confirmed.get(client, 0):
            return
        self._confirmed[client] = watermark
        self._let_go(client, [number for number in self._numbers.get(client, ()) if number < watermark])
        if self._marks.get(client, watermark) < watermark:
            del self._marks[client]
            self._unmarked[client] = None

    def over(self, call: CallIdentity) -> None:
        """The client will not make this call again, whatever is still open below it."""
        if call in self._records:
            self._let_go(call.client, [call.number])

    def ended(self, client: Client) -> None:
        """The client is no more, and repeats nothing."""
        self._let_go(client, list(self._numbers.get(client, ())))
        self._confirmed.pop(client, None)
        if self._marks.pop(client, None) is not None:
            self._unmarked[client] = None

    def _unmark(self, marks: Mapping[Client, int]) -> tuple[tuple[Client, ...], int | None]:
        """The marks that go with a transaction that sets `marks`, and what they raise the mark of all clients to."""
        # Neither list is walked further than it is taken: a save must not cost more for the many clients there have been.
        surplus = len(self._marks) + sum(client not in self._marks for client in marks) - self._most_marks
        going = list(islice((client for client in self._marks if client not in marks), max(0, surplus)))
        floor = max((client.incarnation for client in going), default=self._floor)
        idle = list(islice((client for client in self._unmarked if client not in marks), MOST_IN_ONE - len(going)))
        return (*going, *idle), floor if floor > self._floor else None

    def _let_go(self, client: Client, numbers: Iterable[int]) -> None:
        for number in numbers:
            call = CallIdentity(client, number)
            self._unwanted[call] = _size(self._records[call])
            self._drop(call)

    def _drop(self, call: CallIdentity) -> None:
        if call in self._records:
            del self._records[call]
            numbers = self._numbers[call.client]
            del numbers[call.number]
            if not numbers:
                del self._numbers[call.client]


def _size(answer: bytes | None) -> int:
    return len(answer) if answer is not None else 0
