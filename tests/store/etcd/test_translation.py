"""Our terms in etcd's JSON and back, against the store's own machine and an etcd of forty lines."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from runtime.store.etcd.translation import (
    Space,
    end_of_prefix,
    guarded,
    outcome_of,
    text_of,
    wrote_marker,
)
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    StoreEvent,
    check_transaction,
)
from runtime.store.memory import StoreMachine

SPACE = Space("team/cluster/data/")
MARKER = text_of("team/cluster/markers/1")

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)  # type: ignore[arg-type]
NUMBERS = st.integers(0, 2**63 - 1)


def unset_left_out(fields: dict[str, Any]) -> dict[str, Any]:
    """As etcd's gateway does: numbers as text, what is zero, empty or false left out."""
    return {
        name: str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in fields.items()
        if value
    }


def pair(entry: Entry) -> dict[str, Any]:
    """An entry as etcd says it."""
    revisions = {
        "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision,
        "version": entry.version,
    }
    return unset_left_out(
        {
            "key": SPACE.key(entry.key),
            "value": text_of(entry.value),
            "lease": entry.lease,
            **revisions,
        }
    )


@given(TEXT, st.binary(), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_an_entry_comes_back_as_it_was_whatever_it_holds(
    key: str, value: bytes, created: int, changed: int, version: int, lease: int
) -> None:
    entry = Entry(key, value, created, changed, version, lease)
    assert SPACE.entry(json.loads(json.dumps(pair(entry)))) == entry


@given(TEXT, st.binary(), st.none() | st.binary(), NUMBERS, NUMBERS, st.booleans())
def test_an_event_comes_back_as_it_was(
    key: str, value: bytes, previous: bytes | None, created: int, changed: int, deleted: bool
) -> None:
    before = (
        {}
        if previous is None
        else {"prev_kv": pair(Entry(key, previous, created, max(0, changed - 1)))}
    )
    if deleted:
        found = {
            "type": "DELETE",
            "kv": unset_left_out({"key": SPACE.key(key), "mod_revision": changed}),
            **before,
        }
        assert SPACE.event(found) == StoreEvent(
            "delete", key, b"", changed, created if previous is not None else 0, previous
        )
    else:
        assert SPACE.event(
            {"kv": pair(Entry(key, value, created, changed)), **before}
        ) == StoreEvent("put", key, value, changed, created, previous)


@given(st.binary(), st.binary())
def test_a_range_holds_exactly_what_begins_with_its_prefix(prefix: bytes, key: bytes) -> None:
    end = end_of_prefix(prefix)
    assert (prefix <= key and (end == b"\0" or key < end)) == key.startswith(prefix)


def test_another_clusters_keys_are_under_no_prefix_of_ours() -> None:
    under = SPACE.under("")
    for other in (
        "team/cluster/markers/1",
        "team/cluster-two/data/key",
        "team/cluster/data0",
        "team/cluster/data",
    ):
        assert not b64decode(under["key"]) <= other.encode() < b64decode(under["range_end"])


KEYS = ("a", "b", "c")
LEASE = 7

CONDITIONS = st.builds(
    lambda key, field, number, value: Compare(key, field, value if field == "value" else number),
    st.sampled_from(KEYS),
    st.sampled_from(("mod_revision", "create_revision", "version", "value")),
    st.integers(0, 6),
    st.sampled_from((b"", b"1", b"2")),
)
OPERATIONS = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), st.sampled_from((b"", b"1", b"2"))),
    st.builds(Delete, st.sampled_from(KEYS)),
    st.builds(Get, st.sampled_from(KEYS)),
)
BRANCHES = st.lists(OPERATIONS, max_size=5).filter(lambda operations: _is_allowed(operations))


def _is_allowed(operations: list[Operation]) -> bool:
    try:
        check_transaction([], operations, [])
    except ValueError:
        return False
    return True


@attrs.define
class TinyEtcd:
    """etcd's rules for transactions: conditions are looked at before anything is written; all
    writes have one revision.
    """

    revision: int = 1
    pairs: dict[str, Entry] = attrs.field(factory=dict)

    def transaction(self, asked: dict[str, Any]) -> dict[str, Any]:
        writes: list[str] = []
        answer = self._carried_out(asked, dict(self.pairs), writes)
        self.revision += bool(writes)
        return {**answer, "header": {"revision": str(self.revision)}}

    def _carried_out(
        self, asked: dict[str, Any], before: dict[str, Entry], writes: list[str]
    ) -> dict[str, Any]:
        holds = all(self._holds(condition, before) for condition in asked.get("compare", ()))
        parts = asked.get("success" if holds else "failure", ())
        return unset_left_out(
            {
                "succeeded": holds,
                "responses": [self._response(part, before, writes) for part in parts],
            }
        )

    def _holds(self, condition: dict[str, Any], before: dict[str, Entry]) -> bool:
        assert condition["result"] == "EQUAL"
        field = {
            "MOD": "mod_revision",
            "CREATE": "create_revision",
            "VERSION": "version",
            "VALUE": "value",
        }[condition["target"]]
        entry = before.get(condition["key"])
        if field == "value":
            return entry is not None and entry.value == b64decode(condition["value"])
        return (0 if entry is None else getattr(entry, field)) == int(condition[field])

    def _response(
        self, part: dict[str, Any], before: dict[str, Entry], writes: list[str]
    ) -> dict[str, Any]:
        [(kind, asked)] = part.items()
        if kind == "request_txn":
            return {"response_txn": self._carried_out(asked, before, writes)}
        key = asked["key"]
        entry = self.pairs.get(key)
        if kind == "request_range":
            return {
                "response_range": {} if entry is None else {"kvs": [{**pair(entry), "key": key}]}
            }
        assert key not in writes, "etcd refuses a key that is written twice"
        if kind == "request_delete_range":
            if self.pairs.pop(key, None) is None:
                return {"response_delete_range": {}}
            writes.append(key)
            return {"response_delete_range": {"deleted": "1"}}
        writes.append(key)
        value, lease = b64decode(asked.get("value", "")), int(asked.get("lease", 0))
        now = self.revision + 1
        self.pairs[key] = (
            Entry("", value, now, now, 1, lease)
            if entry is None
            else Entry("", value, entry.create_revision, now, entry.version + 1, lease)
        )
        return {"response_put": {}}


@given(st.lists(st.tuples(st.lists(CONDITIONS, max_size=2), BRANCHES, BRANCHES), max_size=6))
def test_guarded_transactions_do_what_the_store_machine_does(
    steps: list[Any],
) -> None:
    machine, etcd, known = StoreMachine(), TinyEtcd(), 0
    for number, (compare, then, otherwise) in enumerate(steps):
        slot = {
            "key": MARKER,
            "mod_revision": known,
            "lease": str(LEASE),
            "then": text_of(f"then {number}"),
            "otherwise": text_of("o"),
        }
        before = machine.revision
        expected = machine.transaction(compare, then, otherwise)
        answer = json.loads(
            json.dumps(etcd.transaction(guarded(SPACE, slot, compare, then, otherwise)))
        )
        outcome = outcome_of(answer)
        assert outcome is not None
        succeeded, responses = outcome
        operations = then if succeeded else otherwise
        assert succeeded == expected.succeeded
        assert tuple(map(SPACE.response, operations, responses)) == expected.responses
        assert int(answer["header"]["revision"]) == expected.revision
        assert wrote_marker(operations, responses) == (expected.revision > before)
        if expected.revision > before:
            known = expected.revision
            assert etcd.pairs[MARKER].mod_revision == known
            assert etcd.pairs[MARKER].lease == LEASE


@given(st.lists(CONDITIONS, max_size=2), BRANCHES, BRANCHES)
def test_a_transaction_whose_marker_was_changed_does_nothing_and_says_so(
    compare: list[Compare], then: list[Operation], otherwise: list[Operation]
) -> None:
    etcd = TinyEtcd(5, {MARKER: Entry("", b"never 1", 3, 4)})
    for known in (0, 3, 5):
        slot = {
            "key": MARKER,
            "mod_revision": known,
            "lease": str(LEASE),
            "then": b64encode(b"t").decode(),
            "otherwise": "bw==",
        }
        assert outcome_of(etcd.transaction(guarded(SPACE, slot, compare, then, otherwise))) is None
    assert etcd.revision == 5
    assert set(etcd.pairs) == {MARKER}


def test_any_number_of_deletions_of_nothing_raises_no_revision() -> None:
    etcd = TinyEtcd()
    slot = {
        "key": MARKER,
        "mod_revision": 0,
        "lease": str(LEASE),
        "then": "dA==",
        "otherwise": "bw==",
    }
    nothing: list[Operation] = [Delete(f"none/{number}") for number in range(120)]
    outcome = outcome_of(etcd.transaction(guarded(SPACE, slot, [], nothing, [])))
    assert outcome is not None
    assert not wrote_marker(nothing, outcome[1])
    assert etcd.revision == 1
