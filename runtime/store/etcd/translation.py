"""Between our terms and etcd's JSON: keys and values in base64, 64-bit numbers as text, what is zero or empty left out."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from runtime.store.interface import Compare, Delete, Entry, Event, Operation, Put, Response

Json = dict[str, Any]

_TARGETS = {"mod_revision": "MOD", "create_revision": "CREATE", "version": "VERSION", "value": "VALUE"}


def number(found: Mapping[str, Any], name: str) -> int:
    """A 64-bit number, 0 if it is left out."""
    return int(found.get(name, 0))


def text_of(data: str | bytes) -> str:
    """As etcd wants bytes in JSON."""
    return b64encode(data.encode() if isinstance(data, str) else data).decode()


def end_of_prefix(prefix: bytes) -> bytes:
    """The first key after all those that begin with `prefix`; zero byte for "no end" if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


@attrs.frozen
class Space:
    """The keys of one store within an etcd that others may use as well: those that begin with `root`."""

    root: str

    def key(self, key: str) -> str:
        """Our key, as etcd's."""
        return text_of(self.root + key)

    def under(self, prefix: str) -> Json:
        """The keys under a prefix."""
        start = (self.root + prefix).encode()
        return {"key": text_of(start), "range_end": text_of(end_of_prefix(start))}

    def condition(self, compare: Compare) -> Json:
        """A condition of a transaction."""
        expected = text_of(compare.expected) if isinstance(compare.expected, bytes) else str(compare.expected)
        return {"key": self.key(compare.key), "target": _TARGETS[compare.field], "result": "EQUAL", compare.field: expected}

    def operation(self, operation: Operation) -> Json:
        """An operation of a transaction."""
        key = self.key(operation.key)
        if isinstance(operation, Put):
            put: Json = {"key": key, "value": text_of(operation.value)}
            if operation.lease:
                put["lease"] = str(operation.lease)
            return {"request_put": put}
        if isinstance(operation, Delete):
            return {"request_delete_range": {"key": key}}
        return {"request_range": {"key": key}}

    def entry(self, found: Mapping[str, Any]) -> Entry:
        """A key with what etcd knows of it."""
        return Entry(
            key=b64decode(found["key"]).decode()[len(self.root) :],
            value=b64decode(found.get("value", "")),
            create_revision=number(found, "create_revision"),
            mod_revision=number(found, "mod_revision"),
            version=number(found, "version"),
            lease=number(found, "lease"),
        )

    def response(self, operation: Operation, answer: Mapping[str, Any]) -> Response:
        """What etcd answered to an operation."""
        if isinstance(operation, Put):
            return None
        if isinstance(operation, Delete):
            return number(answer["response_delete_range"], "deleted") > 0
        found = answer["response_range"].get("kvs", ())
        return self.entry(found[0]) if found else None

    def event(self, found: Mapping[str, Any]) -> Event:
        """A change; etcd leaves the kind out for puts, and the lives of deleted keys to what was there before."""
        now = found["kv"]
        before = found.get("prev_kv")
        key = b64decode(now["key"]).decode()[len(self.root) :]
        previous = b64decode(before.get("value", "")) if before is not None else None
        if found.get("type") == "DELETE":
            created = number(before, "create_revision") if before is not None else 0
            return Event("delete", key, b"", number(now, "mod_revision"), created, previous)
        return Event("put", key, b64decode(now.get("value", "")), number(now, "mod_revision"), number(now, "create_revision"), previous)


def guarded(space: Space, slot: Json, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> Json:
    """A transaction that writes a marker with whatever it writes, and does nothing once its marker was changed by somebody else.

    `slot` has the marker's `key`, its `mod_revision` as known, its `lease`, and two values to write: `then` and `otherwise`; see `markers`.
    What `then` writes is not nested: etcd's quota of space does not count what is (https://github.com/etcd-io/etcd/pull/22134).
    """
    unchanged = {"key": slot["key"], "target": "MOD", "result": "EQUAL", "mod_revision": str(slot["mod_revision"])}

    def branch(operations: Sequence[Operation], value: str) -> list[Json]:
        asked = [space.operation(operation) for operation in operations]
        write = {"request_put": {"key": slot["key"], "value": value, "lease": slot["lease"]}}
        deleted = [operation.key for operation in operations if isinstance(operation, Delete)]
        if any(isinstance(operation, Put) for operation in operations):
            asked.append(write)
        elif deleted:
            # What changes nothing must not raise the revision: no marker if none of these keys was there before.
            absent = [space.condition(Compare(key, "create_revision", 0)) for key in deleted]
            asked.append({"request_txn": {"compare": absent, "failure": [write]}})
        return asked

    guarded_otherwise = {"request_txn": {"compare": [unchanged], "success": branch(otherwise, slot["otherwise"])}}
    return {
        "compare": [unchanged, *map(space.condition, compare)],
        "success": branch(then, slot["then"]),
        "failure": [guarded_otherwise] if compare else [],
    }


def reading(space: Space, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> Json:
    """A transaction that only reads: it needs no marker, and can be made again whatever became of it."""
    return {
        "compare": [space.condition(condition) for condition in compare],
        "success": [space.operation(operation) for operation in then],
        "failure": [space.operation(operation) for operation in otherwise],
    }


def outcome_of(answer: Mapping[str, Any]) -> tuple[bool, Sequence[Mapping[str, Any]]] | None:
    """Which branch a transaction of `guarded` took, and the responses to its operations and its marker; None if its marker was changed."""
    responses: Sequence[Mapping[str, Any]] = answer.get("responses", ())
    if answer.get("succeeded"):
        return True, responses
    inner = responses[0]["response_txn"] if responses else {}
    return (False, inner.get("responses", ())) if inner.get("succeeded") else None


def wrote_marker(operations: Sequence[Operation], responses: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the branch of these operations wrote its marker, by its responses: the marker's comes after those of the operations."""
    if len(responses) == len(operations):
        return False
    last = responses[-1]
    # Of the deletions alone: the marker was written if it was not so that none of the keys was there.
    return "response_put" in last or not last["response_txn"].get("succeeded")
