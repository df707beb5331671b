"""The machine's own edges, beyond what every store promises and what the model covers."""

from __future__ import annotations

from typing import Any

import pytest

from actors.errors import LeaseLostError
from runtime.store.interface import Compare, Delete, Get, Put
from runtime.store.memory import StoreMachine
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(StoreMachine)


def machine_with_lease(ttl: float = 5.0, now: float = 100.0) -> tuple[StoreMachine, int]:
    machine = StoreMachine()
    return machine, machine.grant(ttl, now)


def test_a_lease_ends_at_its_time_and_not_an_instant_before() -> None:
    machine, lease = machine_with_lease(ttl=5.0, now=100.0)
    assert machine.next_expiry() == 105.0
    machine.expire(104.999999)
    assert machine.time_to_live(lease, 104.0) == 1.0
    machine.expire(105.0)
    with pytest.raises(LeaseLostError):
        machine.keep_alive(lease, 105.0)


def test_a_lease_that_is_overdue_but_was_not_ended_can_still_be_kept_alive() -> None:
    machine, lease = machine_with_lease(ttl=5.0, now=100.0)
    assert machine.time_to_live(lease, 110.0) == 0.0
    machine.keep_alive(lease, 110.0)
    machine.expire(110.0)
    assert machine.time_to_live(lease, 110.0) == 5.0


def test_a_clock_that_goes_back_does_not_shorten_a_lease() -> None:
    machine, lease = machine_with_lease(ttl=5.0, now=100.0)
    machine.keep_alive(lease, 90.0)
    assert machine.next_expiry() == 105.0


def test_leases_that_end_together_end_in_the_order_of_their_times_each_in_its_revision() -> None:
    machine = StoreMachine()
    later, sooner = machine.grant(3.0, 0.0), machine.grant(2.0, 0.0)
    machine.transaction(
        [], [Put("later", b"", later), Put("sooner/2", b"", sooner), Put("sooner/1", b"", sooner)]
    )
    machine.expire(10.0)
    batch = machine.changes("", 3)
    assert batch is not None
    assert [(event.key, event.revision) for event in batch.events] == [
        ("sooner/1", 3),
        ("sooner/2", 3),
        ("later", 4),
    ]


def test_the_number_of_a_lease_is_never_used_again() -> None:
    machine, first = machine_with_lease()
    machine.revoke(first)
    assert machine.grant(1.0, 0.0) != first


def test_what_is_neither_condition_nor_operation_is_refused_before_anything_is_done() -> None:
    machine = StoreMachine()
    stranger: Any = "t/a"
    for call in (
        lambda: machine.transaction([], [Put("a", b""), stranger]),
        lambda: machine.transaction([], [Put("a", b"")], [stranger]),
        lambda: machine.transaction([stranger], [Put("a", b"")]),
        lambda: machine.transaction([Put("a", b"")], [Put("a", b"")]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError, match="of a transaction"):
            call()
    assert machine.revision == 1
    assert machine.get("a") is None


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("value", 1),
        ("value", "text"),
        ("mod_revision", b""),
        ("create_revision", True),
        ("version", 1.0),
        ("version", None),
    ],
)
def test_a_condition_compares_values_with_bytes_and_the_rest_with_integers(
    field: Any, expected: Any
) -> None:
    with pytest.raises(TypeError, match=f"{field} is compared with"):
        Compare("a", field, expected)


def test_a_condition_on_a_field_that_there_is_not_is_refused() -> None:
    field: Any = "lease"
    with pytest.raises(ValueError, match="not on 'lease'"):
        Compare("a", field, 0)


@pytest.mark.parametrize("key", ["", "a\udc80"])
def test_no_part_of_a_transaction_takes_a_key_that_no_store_can_keep(key: str) -> None:
    for make in (
        lambda: Put(key, b""),
        lambda: Delete(key),
        lambda: Get(key),
        lambda: Compare(key, "version", 0),
    ):
        with pytest.raises(ValueError, match="key"):
            make()


@pytest.mark.parametrize("value", ["text", bytearray(b"x"), memoryview(b"x"), None, 1])
def test_a_value_that_could_change_later_or_is_no_bytes_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a value is bytes"):
        Put("a", value)


@pytest.mark.parametrize("lease", [-1, None, "1", 1.0])
def test_a_lease_is_a_number_that_was_granted_or_none(lease: Any) -> None:
    with pytest.raises(ValueError, match="grant"):
        Put("a", b"", lease)
