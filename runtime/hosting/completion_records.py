"""Completion records: which calls led to the state that an actor has saved, and their answers.

No I/O and no clock. Each actor has one table of the calls that their callers may repeat. The key is
the call's `RequestId`, which stays the same over all attempts at any node. A call enters the table
in the transaction that saves the state it led to. So a successor that gets that state gets the call
as well, and does not apply it again.

A record is removed when its client confirms that the call is over, or when the client ends. Records
beyond the bounds are removed earlier, the oldest first. Then a mark is kept: the highest call
number of that client whose record was removed. A repeat at or below the mark is refused rather than
run. Marks are bounded too: removing some raises the floor, a mark for all clients, to the highest
incarnation whose marks are gone. The mark of a key (`RequestClient.is_key`) is removed without
that: from then on the key is as good as new.

After RIFL (Lee et al., SOSP 2015), whose completion records move with the object that their call
has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import attrs

from actors.errors import AlreadyAppliedError, CallError, OutcomeUnknownError

MOST_RECORDS = 1_000
MOST_BYTES = 1024 * 1024
"""The maximum bytes of answers."""

MOST_MARKS = 1_000

MOST_IN_ONE = 32
"""Records and marks that one transaction removes. Each is one operation, and a store accepts 120 in
one transaction.
"""

KEY_CLIENT = "@key"
"""The client name of calls that a key identifies. No peer can have this name."""


class RequestClient(NamedTuple):
    """The client that makes calls: one start of one process. `life`: see `Peer.life`.

    For a call that its caller identifies by a key of its own, such as HTTP's `Idempotency-Key`,
    each key is a client that makes one call: `life` is the hash of the key, so that any process
    through which the caller repeats it gives the call the same identity.
    """

    name: str
    incarnation: int
    life: str

    @property
    def is_key(self) -> bool:
        """True for the one call of a key: its client never confirms it, and never ends."""
        return self.name == KEY_CLIENT


class RequestId(NamedTuple):
    """Identifies a call over all its attempts. `number`: that of the first attempt."""

    client: RequestClient
    number: int


class RequestOrigin(NamedTuple):
    """What one attempt at a call says of it: its identity, and whether earlier attempts may have
    run.
    """

    identity: RequestId
    repeated: bool
    """True if an earlier attempt may have run."""
    elsewhere: bool
    """True if an attempt that may have run went to another epoch of the actor, or another node."""


def request_origin(
    client: RequestClient, number: int, *, repeated: bool, elsewhere: bool
) -> RequestOrigin:
    """Return the origin of one attempt."""
    # Each repeatable call has one. Past the classes' own constructors, which are written in Python.
    identity = tuple.__new__(RequestId, (client, number))
    return tuple.__new__(RequestOrigin, (identity, repeated, elsewhere))


@attrs.frozen
class CompletedAnswer:
    """The encoded answer to a call that was applied before."""

    encoded: bytes


@attrs.frozen
class Change:
    """The writes of one transaction besides the state itself. `more`: there was no room; commit
    this change first, then plan again.
    """

    record: tuple[RequestId, bytes | None] | None = None
    forgotten: tuple[RequestId, ...] = ()
    marks: Mapping[RequestClient, int] = attrs.field(factory=dict)
    unmarked: tuple[RequestClient, ...] = ()
    floor: int | None = None
    more: bool = False


@attrs.frozen
class CommittedRecords:
    """The committed records as they are read back, oldest first."""

    records: tuple[tuple[RequestId, bytes | None], ...] = ()
    marks: Mapping[RequestClient, int] = attrs.field(factory=dict)
    floor: int = -1


class CompletionRecords:
    """The table of one actor, which begins with the records in `kept`. A plan changes nothing until
    `committed` is called with it.
    """

    def __init__(
        self,
        kept: CommittedRecords | None = None,
        *,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        most_marks: int = MOST_MARKS,
    ) -> None:
        kept = CommittedRecords() if kept is None else kept
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._most_marks = most_marks
        self._records = dict(kept.records)
        self._marks = dict(kept.marks)
        self._floor = kept.floor
        self._numbers: dict[RequestClient, dict[int, None]] = {}
        for client, number in self._records:
            self._numbers.setdefault(client, {})[number] = None
        self._unwanted: dict[RequestId, int] = {}
        """Calls that no client will repeat, with the sizes of their answers. Their records are
        still in the store, until the next transaction.
        """
        self._disowned: dict[RequestId, None] = {}
        """Calls of this epoch whose save came into doubt and turned out to be in the store. The
        actor may not know their effect, and then its next save undoes it: so their records go with
        that save, and marks refuse their repeats. At most one: a save that comes into doubt takes
        the one before away.
        """
        self._unmarked: dict[RequestClient, None] = {}
        self._confirmed: dict[RequestClient, int] = {}
        self._bytes = sum(map(_size, self._records.values()))

    @property
    def clients(self) -> set[RequestClient]:
        """The clients of whose calls a record or a mark is kept."""
        return self._numbers.keys() | self._marks.keys()

    @property
    def kept(self) -> CommittedRecords:
        """The records in the store, without those that only wait to be removed."""
        return CommittedRecords(tuple(self._records.items()), dict(self._marks), self._floor)

    @property
    def stored(self) -> tuple[int, int]:
        """How many records the store has, and how many bytes of answers."""
        return len(self._records) + len(self._unwanted), self._bytes

    @property
    def disowns(self) -> bool:
        """True if the next save must remove a record, whether or not it adds one."""
        return bool(self._disowned)

    def find(self, call: RequestId) -> CompletedAnswer | CallError | None:
        """Decide about a call that was made before: return its answer, the error to refuse it with,
        or None to run it.
        """
        client, number = call
        if call in self._records:
            answer = self._records[call]
            if answer is not None:
                return CompletedAnswer(answer)
            return AlreadyAppliedError(
                "the call took effect: the actor saved the state before it was restarted, but "
                "not the answer"
            )
        if (
            number <= self._marks.get(client, -1)
            or number < self._confirmed.get(client, 0)
            # The floor is an incarnation number, and keys have none.
            or (not client.is_key and client.incarnation <= self._floor)
        ):
            return OutcomeUnknownError(
                "this call was sent before and may have taken effect: its record was evicted, or "
                "the store did not answer that save; read the state before you repeat it"
            )
        return None

    def plan(self, call: RequestId | None, answer: bytes | None) -> Change:
        """Plan the change that records that `call` led to the state being saved. None: no call that
        is recorded led to it.

        `answer` is the call's encoded answer; None if it is not known: then an answer that the same
        call has saved before is kept.
        """
        before = self._records.get(call) if call is not None else None
        record = (
            None
            if call is None or call.number < self._confirmed.get(call.client, 0)
            else (call, before if answer is None else answer)
        )
        count, size = self.stored
        if record is not None:
            its_call = record[0]
            count += its_call not in self._records and its_call not in self._unwanted
            size += _size(record[1]) - (
                self._unwanted[its_call] if its_call in self._unwanted else _size(before)
            )
        forgotten: list[RequestId] = []
        marks: dict[RequestClient, int] = {}
        for disowned in self._disowned:
            if disowned == call:
                # The call still runs in this epoch and saves again: now its effect is known.
                continue
            marks[disowned.client] = max(disowned.number, self._marks.get(disowned.client, -1))
            forgotten.append(disowned)
            count, size = count - 1, size - self._unwanted[disowned]
        for unwanted, its in self._unwanted.items():
            if len(forgotten) == MOST_IN_ONE:
                break
            if unwanted not in self._disowned and (record is None or unwanted != call):
                forgotten.append(unwanted)
                count, size = count - 1, size - its
        oldest = iter(self._records.items())
        while (count > self._most_records or size > self._most_bytes) and len(
            forgotten
        ) < MOST_IN_ONE:
            found = next(oldest, None)
            if found is None:
                break
            victim, its_answer = found
            if victim != call:
                forgotten.append(victim)
                marks[victim.client] = max(
                    victim.number, marks.get(victim.client, -1), self._marks.get(victim.client, -1)
                )
                count, size = count - 1, size - _size(its_answer)
        over = count > self._most_records or size > self._most_bytes
        more = over and len(forgotten) == MOST_IN_ONE
        unmarked, floor = self._unmark(marks)
        # A transaction of the store takes a bounded number of operations.
        assert len(forgotten) <= MOST_IN_ONE
        assert len(marks) <= len(forgotten), "a mark is left by what is taken away"
        assert marks.keys().isdisjoint(unmarked), "no key twice in one transaction"
        return Change(None if more else record, tuple(forgotten), marks, unmarked, floor, more)

    def on_committed(self, change: Change) -> None:
        """The transaction has been carried out."""
        assert not (change.more and change.record), "what makes room records nothing yet"
        for call in change.forgotten:
            self._bytes -= (
                self._unwanted.pop(call)
                if call in self._unwanted
                else _size(self._records.get(call))
            )
            self._disowned.pop(call, None)
            self._drop(call)
        for client in change.unmarked:
            self._marks.pop(client, None)
            self._unmarked.pop(client, None)
        for client, number in change.marks.items():
            # In the order in which the marks were raised: the latest one is removed last.
            self._marks.pop(client, None)
            self._marks[client] = number
            self._unmarked.pop(client, None)
        if change.floor is not None:
            assert change.floor > self._floor, "calls that were refused are never run"
            self._floor = change.floor
        if change.record is not None:
            call, answer = change.record
            self._bytes += _size(answer) - (
                self._unwanted.pop(call)
                if call in self._unwanted
                else _size(self._records.get(call))
            )
            self._disowned.pop(call, None)
            self._records[call] = answer
            self._numbers.setdefault(call.client, {})[call.number] = None
            if call.number < self._confirmed.get(call.client, 0):
                # Its client confirmed the call while the transaction was under way.
                self._let_go(call.client, [call.number])

    def after_doubt(self, change: Change, kept: CommittedRecords) -> CompletionRecords:
        """Return the table to use after a transaction of unknown outcome.

        `kept` was read after that, when the transaction had either been carried out or could not be
        carried out any more. This epoch does not run the call again, and does not answer it from
        the record either: whether the actor has its effect in memory is not known, and what it
        saves next may undo it. A successor that reads the state as it is now answers from the
        record.
        """
        marks = [self._marks, change.marks]
        if change.record is not None:
            marks.append({change.record[0].client: change.record[0].number})
        table = CompletionRecords(
            kept,
            most_records=self._most_records,
            most_bytes=self._most_bytes,
            most_marks=self._most_marks,
        )
        for client, number in (item for some in marks for item in some.items()):
            table._marks[client] = max(number, table._marks.get(client, -1))
        table._floor = max(table._floor, self._floor)
        for call in (*self._disowned, *([change.record[0]] if change.record is not None else [])):
            if call in table._records:
                table._let_go(call.client, [call.number])
                table._disowned[call] = None
        assert len(table._disowned) <= 1, "a save takes away the record that an earlier one left"
        for client, number in self._confirmed.items():
            table.confirm(client, number)
        return table

    def confirm(self, client: RequestClient, watermark: int) -> None:
        """Note that the client will repeat no call below `watermark`, at any node."""
        if watermark <= self._confirmed.get(client, 0):
            return
        self._confirmed[client] = watermark
        self._let_go(
            client, [number for number in self._numbers.get(client, ()) if number < watermark]
        )
        # The call is not repeated, so its record can go without a mark.
        self._own_again(lambda call: call.client == client and call.number < watermark)
        if self._marks.get(client, watermark) < watermark:
            del self._marks[client]
            self._unmarked[client] = None

    def on_over(self, call: RequestId) -> None:
        """Note that the client will not repeat this call, even if calls below it are still open."""
        if call in self._records:
            self._let_go(call.client, [call.number])
        self._own_again(lambda disowned: disowned == call)

    def on_ended(self, client: RequestClient) -> None:
        """Note that the client has ended and repeats nothing."""
        self._let_go(client, list(self._numbers.get(client, ())))
        self._confirmed.pop(client, None)
        self._own_again(lambda call: call.client == client)
        if self._marks.pop(client, None) is not None:
            self._unmarked[client] = None

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every record: for tests and
        simulations.
        """
        assert self._records.keys().isdisjoint(self._unwanted), "a record is wanted or not"
        assert self._bytes == sum(map(_size, self._records.values())) + sum(
            self._unwanted.values()
        ), "the store has both, until the next transaction"
        numbered = {
            RequestId(client, number)
            for client, numbers in self._numbers.items()
            for number in numbers
        }
        assert numbered == self._records.keys()
        assert all(self._numbers.values()), "a client without records is not kept"
        assert self._marks.keys().isdisjoint(self._unmarked), "a mark counts or goes"
        for client, number in self._records:
            assert number >= self._confirmed.get(client, 0), "what is confirmed is let go"
        assert len(self._disowned) <= 1, "a save takes away the record that an earlier one left"
        assert self._disowned.keys() <= self._unwanted.keys(), "its record goes with the next save"

    def _own_again(self, which: Callable[[RequestId], bool]) -> None:
        for call in [call for call in self._disowned if which(call)]:
            del self._disowned[call]

    def _unmark(
        self, marks: Mapping[RequestClient, int]
    ) -> tuple[tuple[RequestClient, ...], int | None]:
        """Return the marks to remove in a transaction that sets `marks`, and the floor that this
        raises, or None.
        """
        # `islice` walks neither list further than needed: the cost of a save must not grow with the
        # number of clients there have been.
        surplus = (
            len(self._marks) + sum(client not in self._marks for client in marks) - self._most_marks
        )
        going = list(
            islice((client for client in self._marks if client not in marks), max(0, surplus))
        )
        floor = max(
            (client.incarnation for client in going if not client.is_key), default=self._floor
        )
        idle = list(
            islice(
                (client for client in self._unmarked if client not in marks),
                MOST_IN_ONE - len(going),
            )
        )
        return (*going, *idle), floor if floor > self._floor else None

    def _let_go(self, client: RequestClient, numbers: Iterable[int]) -> None:
        for number in numbers:
            call = RequestId(client, number)
            assert call not in self._unwanted, "its bytes would count twice"
            # It stays in the store until the actor's next transaction removes it. A transaction of
            # its own would cost more than the space.
            self._unwanted[call] = _size(self._records[call])
            self._drop(call)

    def _drop(self, call: RequestId) -> None:
        if call in self._records:
            del self._records[call]
            numbers = self._numbers[call.client]
            del numbers[call.number]
            if not numbers:
                del self._numbers[call.client]


def _size(answer: bytes | None) -> int:
    return len(answer) if answer is not None else 0
