"""Packed changes come back as they were, and nothing that a peer may send in their place does more
than a ValueError.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.store.event_rows import pack_changes, unpack_changes
from runtime.store.interface import StoreEvent, WatchBatch

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.binary(max_size=20)
numbers = st.integers(0, 2**63 - 1)
changes = st.builds(
    StoreEvent,
    st.sampled_from(["put", "delete"]),
    keys,
    values,
    numbers,
    numbers,
    st.none() | values,
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.lists(changes, max_size=5), numbers)
def test_changes_come_back_as_they_were(events: list[StoreEvent], revision: int) -> None:
    batch = WatchBatch(tuple(events), revision)
    assert unpack_changes(pack_changes(batch)) == batch


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [True],
        ["8"],
        [8, ["move", "a", b"", 8, 8, None]],
        [8, [["put"], "a", b"", 8, 8, None]],
        [8, ["put", b"a", b"", 8, 8, None]],
        [8, ["put", "a", "", 8, 8, None]],
        [8, ["put", "a", b"", True, 8, None]],
        [8, ["put", "a", b"", 8, 8.0, None]],
        [8, ["put", "a", b"", 8, 8, "x"]],
        [8, ["put", "a", b"", 8, 8]],
        [8, ["put", "a", b"", 8, 8, None, 1]],
        [8, 8],
        {8: []},
    ],
)
def test_rows_that_are_no_changes_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="not packed changes"):
        unpack_changes(cbor2.dumps(rows))


@given(st.binary(max_size=60) | plain.map(cbor2.dumps))
def test_nothing_that_a_peer_sends_raises_another_error(packed: bytes) -> None:
    try:
        batch = unpack_changes(packed)
    except ValueError:
        return
    assert type(batch.revision) is int
