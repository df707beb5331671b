"""Applied calls, without store or nodes: nothing is applied twice, nothing is kept for ever, and
the bounds hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.errors import AlreadyAppliedError, OutcomeUnknownError
from runtime.hosting.completion_records import (
    KEY_CLIENT,
    MOST_IN_ONE,
    Change,
    CommittedRecords,
    CompletedAnswer,
    CompletionRecords,
    RequestClient,
    RequestId,
)
from runtime.membership.saved_states import changes_of, kept_in
from runtime.store.interface import MAX_OPERATIONS, Entry, Put
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(CompletionRecords)


NAME = "ledger/a:1"
ALICE = RequestClient("alice", 7, "a/b:c")
BOB = RequestClient("bob/3", 9, "")


def call(number: int, client: RequestClient = ALICE) -> RequestId:
    return RequestId(client, number)


class Rows:
    """What the store holds, and whether transactions fit into any store."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[bytes, int]] = {}
        self.revision = 0

    def write(self, change: Change) -> None:
        operations = changes_of(NAME, change)
        assert len(operations) + 2 <= MAX_OPERATIONS
        keys = [operation.key for operation in operations]
        assert len(set(keys)) == len(keys)
        self.revision += 1
        for operation in operations:
            if isinstance(operation, Put):
                self.entries[operation.key] = (operation.value, self.revision)
            else:
                self.entries.pop(operation.key, None)

    def read(self) -> CommittedRecords:
        return kept_in(
            [
                Entry(key, value, revision, revision)
                for key, (value, revision) in self.entries.items()
            ],
            NAME,
        )

    def calls(self) -> Iterable[str]:
        return [key for key in self.entries if "/call/" in key]


def save(table: CompletionRecords, rows: Rows, identity: RequestId, answer: bytes | None) -> int:
    """Returns how many transactions it took."""
    count = 1
    while (change := table.plan(identity, answer)).more:
        rows.write(change)
        table.on_committed(change)
        count += 1
    rows.write(change)
    table.on_committed(change)
    return count


def test_a_call_that_was_committed_is_answered_by_the_next_epoch_and_one_that_was_not_runs() -> (
    None
):
    rows = Rows()
    table = CompletionRecords()
    assert table.find(call(3)) is None
    save(table, rows, call(3), b"three")
    save(table, rows, call(4, BOB), None)
    for later in (table, CompletionRecords(rows.read())):
        assert later.find(call(3)) == CompletedAnswer(b"three")
        assert isinstance(later.find(call(4, BOB)), AlreadyAppliedError)
        assert later.find(call(4)) is None
        assert later.find(call(3, BOB)) is None
        assert later.find(call(3, ALICE._replace(life="another life"))) is None


def test_a_plan_that_is_not_carried_out_changes_nothing() -> None:
    table = CompletionRecords(most_records=2)
    for number in (1, 2):
        table.on_committed(table.plan(call(number), b"x"))
    before = table.kept
    assert table.plan(call(3), b"y").forgotten == (call(1),)
    assert table.kept == before
    assert table.find(call(3)) is None


def test_a_second_save_of_the_same_call_keeps_the_answer_of_the_first_unless_it_has_another() -> (
    None
):
    table = CompletionRecords()
    table.on_committed(table.plan(call(1), b"one"))
    table.on_committed(table.plan(call(1), None))
    assert table.find(call(1)) == CompletedAnswer(b"one")
    table.on_committed(table.plan(call(1), b"other"))
    assert table.find(call(1)) == CompletedAnswer(b"other")
    assert table.stored == (1, 5)


def test_what_a_client_confirms_leaves_the_store_with_the_next_save() -> None:
    rows = Rows()
    table = CompletionRecords()
    for number in range(1, 6):
        save(table, rows, call(number), b"x")
    table.confirm(ALICE, 5)
    assert isinstance(table.find(call(2)), OutcomeUnknownError)
    assert table.find(call(5)) == CompletedAnswer(b"x")
    save(table, rows, call(1, BOB), b"x")
    assert len(list(rows.calls())) == 2


def test_a_call_that_is_confirmed_while_it_is_being_saved_is_not_kept_for_ever() -> None:
    rows = Rows()
    table = CompletionRecords()
    change = table.plan(call(1), b"x")
    table.confirm(ALICE, 2)
    rows.write(change)
    table.on_committed(change)
    save(table, rows, call(1), b"again")
    save(table, rows, call(1, BOB), b"x")
    assert len(list(rows.calls())) == 1


def test_what_had_to_go_is_refused_for_ever_also_by_later_epochs() -> None:
    rows = Rows()
    table = CompletionRecords(most_records=3)
    for number in range(1, 10):
        save(table, rows, call(number), b"x")
    for later in (table, CompletionRecords(rows.read())):
        assert isinstance(later.find(call(6)), OutcomeUnknownError)
        assert later.find(call(7)) == CompletedAnswer(b"x")
        assert later.find(call(10)) is None


def test_a_large_answer_makes_room_in_as_many_transactions_as_it_takes() -> None:
    rows = Rows()
    table = CompletionRecords(most_bytes=1000)
    for number in range(1, 101):
        save(table, rows, call(number, RequestClient(f"client-{number}", number, "")), bytes(10))
    assert save(table, rows, call(1), bytes(990)) == 99 // MOST_IN_ONE + 1
    assert table.stored == (2, 1000)
    assert isinstance(table.find(call(5, RequestClient("client-5", 5, ""))), OutcomeUnknownError)


def test_the_marks_of_very_many_clients_become_one_for_all() -> None:
    rows = Rows()
    table = CompletionRecords(most_records=2, most_marks=3)
    clients = [RequestClient(f"client-{number}", number, "") for number in range(100)]
    for client in clients:
        save(table, rows, call(1, client), b"x")
    assert len(rows.entries) <= 2 + 3 + 1
    for later in (table, CompletionRecords(rows.read(), most_records=2, most_marks=3)):
        assert all(
            isinstance(later.find(call(1, client)), OutcomeUnknownError) for client in clients[:-2]
        )
        assert later.find(call(1, RequestClient("new", 200, ""))) is None


def test_a_call_whose_commit_is_unknown_does_not_run_again_in_this_epoch() -> None:
    table = CompletionRecords()
    change = table.plan(call(5), b"x")
    after = table.after_doubt(change, CommittedRecords())
    assert isinstance(after.find(call(5)), OutcomeUnknownError)
    assert after.find(call(6)) is None
    rows = Rows()
    rows.write(change)
    assert isinstance(table.after_doubt(change, rows.read()).find(call(5)), OutcomeUnknownError)
    assert CompletionRecords(rows.read()).find(call(5)) == CompletedAnswer(b"x")


@pytest.mark.parametrize("later", [call(4), call(6, BOB), None])
def test_a_save_that_may_undo_a_call_in_doubt_takes_its_record_away(
    later: RequestId | None,
) -> None:
    rows, table = Rows(), CompletionRecords()
    change = table.plan(call(5), b"x")
    rows.write(change)
    table = table.after_doubt(change, rows.read())
    assert table.disowns
    # What the actor saves next may lack the effect of the call in doubt.
    change = table.plan(later, b"y")
    rows.write(change)
    table.on_committed(change)
    assert not table.disowns
    for each in (table, CompletionRecords(rows.read())):
        assert isinstance(each.find(call(5)), OutcomeUnknownError)
        if later is not None:
            assert each.find(later) == CompletedAnswer(b"y")
    assert len(list(rows.calls())) == (later is not None)


def test_a_method_that_saves_again_after_a_doubt_has_its_call_on_record() -> None:
    rows, table = Rows(), CompletionRecords()
    change = table.plan(call(5), b"x")
    rows.write(change)
    table = table.after_doubt(change, rows.read())
    save(table, rows, call(5), b"again")
    for each in (table, CompletionRecords(rows.read())):
        assert each.find(call(5)) == CompletedAnswer(b"again")
    assert not table.disowns


@attrs.define(eq=False)
class Made:
    """A call as its client knows it."""

    identity: RequestId
    tried: bool = False


class Model(RuleBasedStateMachine):
    """Clients that repeat calls over restarts of the actor, whose table is small.

    The actor saves the set of calls that it knows to have been applied, and believes only a save
    that was answered: so a save of unknown outcome is undone by the next one.
    """

    RECORDS, BYTES, MARKS = 4, 40, 2

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows()
        self.applied: Counter[RequestId] = Counter()
        self.answers: dict[RequestId, bytes | None] = {}
        self.clients: dict[RequestClient, dict[int, Made]] = {}
        self.next = 0
        self.memory: frozenset[RequestId] = frozenset()
        self.state: frozenset[RequestId] = frozenset()
        self.acknowledged: set[RequestId] = set()

    def fresh(self) -> CompletionRecords:
        return CompletionRecords(
            self.rows.read(),
            most_records=self.RECORDS,
            most_bytes=self.BYTES,
            most_marks=self.MARKS,
        )

    @initialize()
    def begin(self) -> None:
        self.table = self.fresh()

    def write(self, change: Change, state: frozenset[RequestId]) -> None:
        self.rows.write(change)
        self.state = state

    @rule()
    def join(self) -> None:
        if len(self.clients) < 6:
            self.next += 1
            self.clients[RequestClient(f"c{self.next}", self.next, "l")] = {}

    def draw(self, data: st.DataObject) -> Made | None:
        calls = [made for client in sorted(self.clients) for made in self.clients[client].values()]
        return data.draw(st.sampled_from(calls)) if calls else None

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def call(self, data: Any) -> None:
        client = data.draw(st.sampled_from(sorted(self.clients)))
        self.next += 1
        self.clients[client][self.next] = Made(RequestId(client, self.next))

    @rule(
        data=st.data(),
        size=st.integers(0, 39) | st.none(),
        fate=st.sampled_from(["kept", "lost", "in doubt, kept", "in doubt, lost"]),
    )
    def attempt(self, data: Any, size: int | None, fate: str) -> None:
        """The call arrives and runs, unless it must not; its answer is never heard of."""
        made = self.draw(data)
        if made is not None:
            self.arrives(made, size, fate)
            # Most callers repeat at once: to the same epoch, that is.
            if data.draw(st.booleans()):
                self.arrives(made, size, fate)

    def arrives(self, made: Made, size: int | None, fate: str) -> None:
        identity = made.identity
        if made.tried:
            found = self.table.find(identity)
            if isinstance(found, CompletedAnswer):
                assert self.applied[identity] == 1
                assert self.answers[identity] == found.encoded
                self.acknowledged.add(identity)
            elif isinstance(found, AlreadyAppliedError):
                assert self.applied[identity] == 1
                self.acknowledged.add(identity)
            if found is not None:
                return
        made.tried = True
        if fate == "lost":
            return
        answer = bytes(size) if size is not None else None
        while (change := self.table.plan(identity, answer)).more:
            self.rows.write(change)
            self.table.on_committed(change)
        if fate != "in doubt, lost":
            self.write(change, self.memory | {identity})
            self.applied[identity] += 1
            self.answers[identity] = answer
        if fate == "kept":
            self.memory = self.state
            self.table.on_committed(change)
        else:
            self.table = self.table.after_doubt(change, self.rows.read())

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        fate=st.sampled_from(["in doubt, kept", "in doubt, lost"]),
        other=st.booleans(),
    )
    def doubt(self, data: Any, fate: str, other: bool) -> None:
        """A save comes into doubt, its call is repeated to the same epoch, and another save
        follows: too rare a row of steps to be left to chance.
        """
        self.call(data)
        made = max(
            (made for calls in self.clients.values() for made in calls.values()),
            key=lambda made: made.identity.number,
        )
        self.arrives(made, 1, fate)
        self.arrives(made, 1, "kept")
        if other:
            self.save_without_a_call()

    @rule()
    def restart(self) -> None:
        self.table = self.fresh()
        self.memory = self.state

    @rule()
    def save_without_a_call(self) -> None:
        """A save by the actor's own task, or in a call that nobody repeats."""
        change = self.table.plan(None, None) if self.table.disowns else Change()
        self.write(change, self.memory)
        self.table.on_committed(change)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def confirm(self, data: Any) -> None:
        """Everything below a number is over."""
        client = data.draw(st.sampled_from(sorted(self.clients)))
        calls = self.clients[client]
        if calls:
            watermark = data.draw(st.sampled_from(sorted(calls))) + data.draw(st.integers(0, 1))
            for number in [number for number in calls if number < watermark]:
                del calls[number]
            self.table.confirm(client, watermark)

    @rule(data=st.data())
    def over(self, data: Any) -> None:
        """One call is over, others before it are not."""
        made = self.draw(data)
        if made is not None:
            del self.clients[made.identity.client][made.identity.number]
            self.table.on_over(made.identity)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        client = data.draw(st.sampled_from(sorted(self.clients)))
        del self.clients[client]
        self.table.on_ended(client)

    @rule()
    def save_and_look(self) -> None:
        """After some saves nothing is left of what is confirmed and of clients that have ended, as
        far as this epoch was told.
        """
        self.next += 1
        client = RequestClient("visitor", self.next, "")
        for _ in range(3):
            save(self.table, self.rows, RequestId(client, 1), b"")
            self.state = self.memory
        self.table.on_ended(client)
        assert {entry for entry, _ in self.rows.read().records} <= {
            entry for entry, _ in self.table.kept.records
        } | {RequestId(client, 1)}

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), count=st.integers(1, 6))
    def many(self, data: Any, count: int) -> None:
        """A client makes calls that are applied one after the other, and confirms none."""
        client = data.draw(st.sampled_from(sorted(self.clients)))
        for _ in range(count):
            self.next += 1
            identity = RequestId(client, self.next)
            self.clients[client][self.next] = Made(identity, tried=True)
            save(self.table, self.rows, identity, b"many")
            self.memory = self.state = self.memory | {identity}
            self.applied[identity] += 1
            self.answers[identity] = b"many"

    @invariant()
    def nothing_is_applied_twice(self) -> None:
        made = [made.identity for calls in self.clients.values() for made in calls.values()]
        assert not [
            identity
            for identity in made
            if self.applied[identity] and self.table.find(identity) is None
        ]
        assert not [identity for identity, count in self.applied.items() if count > 1]

    @invariant()
    def nothing_that_was_acknowledged_is_lost(self) -> None:
        assert self.acknowledged <= self.state, self.acknowledged - self.state

    @invariant()
    def the_bounds_hold(self) -> None:
        kept = self.rows.read()
        assert len(kept.records) <= self.RECORDS
        assert sum(len(answer or b"") for _, answer in kept.records) <= self.BYTES


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=max(80, settings().max_examples), stateful_step_count=50, deadline=None
)


def test_a_key_is_a_client_without_an_incarnation_that_the_floor_does_not_refuse() -> None:
    keys = [RequestId(RequestClient(KEY_CLIENT, 0, f"{number:032x}"), 1) for number in range(6)]
    records = CompletionRecords(most_records=2, most_marks=2)
    for one in keys:
        assert records.find(one) is None
        while (change := records.plan(one, b"answer")).more:
            records.on_committed(change)
        records.on_committed(change)
    assert records.kept.floor == -1, "keys raise no floor"
    # The latest two have their answers, the two before them are refused, and earlier ones are new.
    for one in keys[4:]:
        assert records.find(one) == CompletedAnswer(b"answer")
    for one in keys[2:4]:
        assert isinstance(records.find(one), OutcomeUnknownError)
    for one in keys[:2]:
        assert records.find(one) is None
    # The floor that incarnations raise refuses no key.
    for number in range(1, 8):
        client = RequestClient("node", number, "life")
        records.on_committed(records.plan(RequestId(client, 1), b""))
    assert records.kept.floor > 0
    assert records.find(keys[0]) is None
    records.check_invariants()


def test_the_identity_of_a_key_survives_the_store() -> None:
    client = RequestClient(KEY_CLIENT, 0, "0" * 32)
    assert client.is_key
    rows = Rows()
    records = CompletionRecords()
    change = records.plan(RequestId(client, 1), b"answer")
    rows.write(change)
    records.on_committed(change)
    assert CompletionRecords(rows.read()).find(RequestId(client, 1)) == CompletedAnswer(b"answer")
