"""The machine against a model that remembers everything, over any sequence of steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from actors.errors import LeaseLostError, StoreCompactedError
from runtime.store.interface import Compare, Delete, Get, Operation, Put, StoreEvent, WatchBatch
from runtime.store.memory import ChangeHistory, StoreMachine
from tests.store.naive_model import Lease, LostError, NaiveStore

KEYS = ("a", "a/", "a/1", "a/2", "a0", "ab", "b", "\u00e9/1", "\U0001f600")
PREFIXES = ("", "a", "a/", "a/1", "ab", "b/", "c", "\u00e9", "\uffff")
VALUES = (b"", b"x", b"yy", b"z" * 30)
NEVER_GRANTED = 10**6
SMALL = 12
"""Events that the forgetful machine keeps; it keeps 200 bytes of them as well."""

keys = st.sampled_from(KEYS)
values = st.sampled_from(VALUES)
small_numbers = st.integers(0, 40)
conditions = st.one_of(
    st.builds(Compare, keys, st.sampled_from(["mod_revision", "create_revision"]), small_numbers),
    st.builds(Compare, keys, st.just("version"), st.integers(0, 3)),
    st.builds(Compare, keys, st.just("value"), values),
)


def operations(leases: st.SearchStrategy[int]) -> st.SearchStrategy[list[Operation]]:
    one: st.SearchStrategy[Operation] = st.one_of(
        st.builds(Put, keys, values, leases),
        st.builds(Put, keys, values),
        st.builds(Delete, keys),
        st.builds(Get, keys),
    )
    return st.lists(
        one, max_size=5, unique_by=lambda operation: (operation.key, type(operation) is Get)
    )


class StoreComparison(RuleBasedStateMachine):
    """Every step is taken by the model, by a machine that keeps all history, and by one that keeps
    little; all must agree.
    """

    leases: Bundle[int] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.model = NaiveStore()
        self.machine = StoreMachine()
        self.forgetful_history = ChangeHistory(max_events=SMALL, max_bytes=200)
        self.forgetful = StoreMachine(self.forgetful_history)
        self.now = 1000.0
        self.granted = 0

    @initialize(target=leases)
    def leases_that_are_none(self) -> MultipleResults[int]:
        return multiple(0, NEVER_GRANTED)

    def both(self, step: Callable[[StoreMachine], object], expected: Callable[[], object]) -> None:
        try:
            wanted = expected()
        except LostError:
            for machine in (self.machine, self.forgetful):
                with pytest.raises(LeaseLostError):
                    step(machine)
            return
        assert step(self.machine) == wanted
        assert step(self.forgetful) == wanted

    @rule(key=keys)
    def get(self, key: str) -> None:
        self.both(lambda machine: machine.get(key), lambda: self.model.keys.get(key))

    @rule(prefix=st.sampled_from(PREFIXES))
    def range(self, prefix: str) -> None:
        self.both(
            lambda machine: machine.range(prefix).entries, lambda: tuple(self.model.range(prefix))
        )

    @rule(key=keys, value=values, lease=leases)
    def put(self, key: str, value: bytes, lease: int) -> None:
        self.transact([], [Put(key, value, lease)], [])

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.transact([], [Delete(key)], [])

    @rule(
        compare=st.lists(conditions, max_size=2),
        then=operations(leases),
        otherwise=operations(leases),
    )
    def transaction(
        self, compare: list[Compare], then: list[Operation], otherwise: list[Operation]
    ) -> None:
        self.transact(compare, then, otherwise)

    def transact(
        self, compare: list[Compare], then: list[Operation], otherwise: list[Operation]
    ) -> None:
        def step(machine: StoreMachine) -> object:
            result = machine.transaction(compare, then, otherwise)
            return result.succeeded, list(result.responses), result.revision

        self.both(
            step, lambda: (*self.model.transaction(compare, then, otherwise), self.model.revision)
        )

    @rule(target=leases, ttl=st.sampled_from([0.5, 2.0, 3.0, 10.0]))
    def grant(self, ttl: float) -> int:
        self.granted += 1
        assert (
            self.machine.grant(ttl, self.now) == self.forgetful.grant(ttl, self.now) == self.granted
        )
        self.model.leases[self.granted] = Lease(ttl, self.now + ttl)
        return self.granted

    @rule(lease=leases)
    def keep_alive(self, lease: int) -> None:
        def expected() -> float:
            found = self.model.leases.get(lease)
            if found is None:
                raise LostError
            found.ends = self.now + found.ttl
            return found.ttl

        self.both(lambda machine: machine.keep_alive(lease, self.now), expected)

    @rule(lease=leases)
    def time_to_live(self, lease: int) -> None:
        def expected() -> float:
            found = self.model.leases.get(lease)
            if found is None:
                raise LostError
            return max(0.0, found.ends - self.now)

        self.both(lambda machine: machine.time_to_live(lease, self.now), expected)

    @rule(lease=consumes(leases))
    def revoke(self, lease: int) -> None:
        self.both(lambda machine: machine.revoke(lease), lambda: self.model.revoke(lease))

    @rule(seconds=st.sampled_from([0.0, 0.4, 0.5, 1.0, 2.5, 100.0]), is_noticed=st.booleans())
    def time_passes(self, seconds: float, is_noticed: bool) -> None:
        self.now += seconds
        if is_noticed:
            self.both(lambda machine: machine.expire(self.now), lambda: self.model.expire(self.now))

    @rule(revision=small_numbers)
    def compact(self, revision: int) -> None:
        if revision <= self.forgetful.revision:
            self.forgetful.compact(revision)
            assert self.forgetful_history.compacted >= revision
        else:
            with pytest.raises(ValueError, match="nothing to forget"):
                self.forgetful.compact(revision)

    @rule(prefix=st.sampled_from(PREFIXES), from_revision=st.integers(1, 50))
    def changes(self, prefix: str, from_revision: int) -> None:
        wanted = self.model.changes(prefix, from_revision)
        self.check(self.machine.changes(prefix, from_revision), wanted)
        if from_revision <= self.forgetful_history.compacted:
            with pytest.raises(StoreCompactedError):
                self.forgetful.changes(prefix, from_revision)
        else:
            self.check(self.forgetful.changes(prefix, from_revision), wanted)

    def check(self, batch: WatchBatch | None, wanted: list[set[StoreEvent]]) -> None:
        if batch is None:
            assert wanted == []
            return
        assert [
            set(events) for _, events in groupby(batch.events, lambda event: event.revision)
        ] == wanted
        assert batch.revision == self.model.revision

    @invariant()
    def the_revision_is_the_number_of_changes(self) -> None:
        assert self.machine.revision == self.forgetful.revision == self.model.revision

    @invariant()
    def the_machines_know_when_the_next_lease_ends(self) -> None:
        ends = [lease.ends for lease in self.model.leases.values()]
        assert self.machine.next_expiry() == (min(ends) if ends else None)

    @invariant()
    def the_machines_are_whole(self) -> None:
        self.machine.check_invariants()
        self.forgetful.check_invariants()

    @invariant()
    def little_history_is_kept_and_never_half_a_revision(self) -> None:
        kept = self.forgetful_history.after(0)
        assert len(kept) <= SMALL or len({event.revision for event in kept}) == 1
        assert [event.revision for event in kept] == sorted(event.revision for event in kept)
        assert {event.revision for event in kept} == set(
            range(self.forgetful_history.compacted + 1, self.model.revision + 1)
        ) - {1}


TestStoreMachine = StoreComparison.TestCase
TestStoreMachine.settings = settings(
    max_examples=max(60, settings().max_examples), stateful_step_count=60
)
