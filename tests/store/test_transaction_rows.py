"""Packed transactions and outcomes come back as they were, and nothing that a peer may send in
their place does more than a ValueError.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import LeaseLostError, StoreError
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Put,
    Transaction,
    TransactionResult,
)
from runtime.store.transaction_rows import (
    pack_outcomes,
    pack_transactions,
    unpack_outcomes,
    unpack_transactions,
)

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.binary(max_size=20)
numbers = st.integers(0, 2**63 - 1)
operations = st.one_of(
    st.builds(Get, keys), st.builds(Delete, keys), st.builds(Put, keys, values, numbers)
)
conditions = st.one_of(
    st.builds(
        Compare, keys, st.sampled_from(["mod_revision", "create_revision", "version"]), numbers
    ),
    st.builds(Compare, keys, st.just("value"), values),
)
branches = st.lists(operations, max_size=4).map(tuple)
transactions = st.builds(
    Transaction, st.lists(conditions, max_size=3).map(tuple), branches, branches
)
entries = st.builds(Entry, keys, values, numbers, numbers, numbers, numbers)
results = st.builds(
    TransactionResult,
    st.booleans(),
    numbers,
    st.lists(st.one_of(st.none(), st.booleans(), entries), max_size=4).map(tuple),
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.lists(transactions, max_size=5))
def test_transactions_come_back_as_they_were(batch: list[Transaction]) -> None:
    assert unpack_transactions(pack_transactions(batch)) == batch


@given(st.lists(results, max_size=5))
def test_results_come_back_as_they_were(outcomes: list[TransactionResult]) -> None:
    found = unpack_outcomes(pack_outcomes(outcomes))
    assert found == outcomes
    # True is 1, and would pass for it.
    assert [
        list(map(type, one.responses)) for one in found if isinstance(one, TransactionResult)
    ] == [list(map(type, one.responses)) for one in outcomes]


def test_errors_come_back_with_their_class_and_text() -> None:
    found = unpack_outcomes(
        pack_outcomes([LeaseLostError("lease 3 has ended"), ValueError("twice"), KeyError("odd")])
    )
    assert [(type(one), str(one)) for one in found] == [
        (LeaseLostError, "lease 3 has ended"),
        (ValueError, "twice"),
        # Of what no store raises, the text is left.
        (StoreError, "'odd'"),
    ]


@given(st.one_of(st.binary(max_size=40), plain.map(cbor2.dumps)))
def test_other_bytes_are_refused_with_a_value_error(data: bytes) -> None:
    for unpack in (unpack_transactions, unpack_outcomes):
        try:
            found: list[Any] = unpack(data)
        except ValueError:
            continue
        assert type(found) is list


@pytest.mark.parametrize(
    "rows",
    [
        [[[["a", "create_revision", True]], [], []]],
        [[[["a", "size", 1]], [], []]],
        [[[], [["a", "text", 1]], []]],
        [[[], [["a", b"x", -1]], []]],
        [[[], [["a", b"x"]], []]],
        [[[], [["a", False, 3]], []]],
        [[[], [[""]], []]],
        [[[], [["a", b"x", 1, 2]], []]],
        [[[], []]],
        {},
        cbor2.CBORTag(258, [1]),
        [cbor2.CBORTag(35, "(a+)+$")],
    ],
)
def test_rows_that_are_no_transactions_are_refused(rows: object) -> None:
    with pytest.raises(ValueError, match="not packed transactions"):
        unpack_transactions(cbor2.dumps(rows))


@pytest.mark.parametrize(
    "row",
    [
        [1, 2, []],
        [True, "2", []],
        [True, 2, [1]],
        [True, 2, [["a", b"x", 1, 2, 3]]],
        [True, 2, [["a", "x", 1, 2, 3, 4]]],
        [True, 2, [["a", b"x", 1, 2, 3, True]]],
        [True, 2],
        ["ValueError", 2],
        "abc",
    ],
)
def test_rows_that_are_no_outcomes_are_refused(row: object) -> None:
    with pytest.raises(ValueError, match="not packed outcomes"):
        unpack_outcomes(cbor2.dumps([row]))
