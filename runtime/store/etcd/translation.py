"""Translates between the store's terms and etcd's JSON: keys and values are base64, 64-bit numbers
are text, and fields that are zero or empty are left out.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actors.errors import LeaseLostError, StoreCompactedError, StoreError
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Operation,
    Put,
    Response,
    StoreEvent,
    Transaction,
    TransactionResult,
)

# etcd's error answers, classified by what a client has to do. No I/O.
#
# The texts and codes are those of etcd's `api/v3rpc/rpctypes/error.go`; the codes are gRPC's
# (https://grpc.io/docs/guides/status-codes).

Kind = Literal[
    "lease lost",
    "compacted",
    "token",
    "denied",
    "full",
    "too large",
    "busy",
    "refused",
    "unsure",
    "not etcd",
]
"""The meaning of a refusal for a client. `token`: fetch a new token. `busy`: not executed, repeat
it. `unsure`: perhaps executed; another member may answer better. `refused`, `denied`, `too large`:
every member would refuse. `full`: no space; it is unknown whether the request was executed. `not
etcd`: another program answered.
"""


_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("requested lease not found", "lease lost"),
    ("required revision has been compacted", "compacted"),
    ("invalid auth token", "token"),
    ("revision of auth store is old", "token"),
    ("authentication failed", "denied"),
    ("user name is empty", "denied"),
    ("permission denied", "denied"),
    ("database space exceeded", "full"),
    ("request is too large", "too large"),
    ("larger than max", "too large"),
    ("too many requests", "busy"),
)


_CODES: dict[int, Kind] = {
    3: "refused",
    5: "refused",
    6: "refused",
    7: "denied",
    9: "refused",
    11: "refused",
    12: "refused",
    16: "token",
}
"""Other codes come from a member in trouble, or from one that is gaining or losing its leader."""


_PROXIES = (502, 503, 504)
"""The answers of a proxy in front of etcd while etcd is down."""


_REASON = re.compile(r"rpc error: code = (\w+) desc = (.*)", re.DOTALL)


_NAMES = {
    "InvalidArgument": 3,
    "NotFound": 5,
    "PermissionDenied": 7,
    "ResourceExhausted": 8,
    "FailedPrecondition": 9,
    "OutOfRange": 11,
}


_NAMES |= {"Unavailable": 14, "Unauthenticated": 16}

Json = dict[str, Any]

Answer = Response | TransactionResult
"""The answer to a part of a transaction: one that is nested has a result of its own."""

_TARGETS = {
    "mod_revision": "MOD",
    "create_revision": "CREATE",
    "version": "VERSION",
    "value": "VALUE",
}


class EtcdRefusalError(StoreError):
    """etcd refused a request."""


class EtcdFullError(EtcdRefusalError):
    """etcd has no space left. It may nevertheless have applied the request
    (https://github.com/etcd-io/etcd/issues/16659).
    """


@attrs.frozen
class Refusal:
    """A refusal. `text` is etcd's own message."""

    kind: Kind
    text: str


def refusal_in(answer: Mapping[str, Any], status: int) -> Refusal | None:
    """Classify an answer with HTTP status `status`; None if it is a result.

    An error in a stream comes as an object within it (grpc-gateway's `StreamError`), other errors
    are the whole answer.
    """
    if status == 200 and "error" not in answer:
        return None
    found = answer.get("error")
    if isinstance(found, Mapping):
        return _sorted(str(found.get("message", found)), _code(found.get("grpc_code")), status)
    return _sorted(
        str(found or answer.get("message") or f"HTTP status {status}"),
        _code(answer.get("code")),
        status,
    )


def refusal_of_watch(reason: str) -> Refusal:
    """Classify the `cancel_reason` of a watch that etcd ended."""
    match = _REASON.match(reason)
    return (
        _sorted(match[2], _NAMES.get(match[1], 14), 200)
        if match is not None
        else _sorted(reason or "the watch was ended", 14, 200)
    )


def raise_refusal(refusal: Refusal, where: str, prefix: str) -> None:
    """Raise the error for a refusal that every member would repeat: `LeaseLostError`,
    `StoreCompactedError` or `EtcdRefusalError`. Returns for other refusals. `where`: the member.
    `prefix`: of the keys that we use.
    """
    text = refusal.text
    if refusal.kind == "lease lost":
        raise LeaseLostError("the lease has expired or was revoked")
    if refusal.kind == "compacted":
        raise StoreCompactedError(
            "the changes asked for are no longer kept; read the keys afresh (range) and go on "
            "from there"
        )
    if refusal.kind == "full":
        raise EtcdFullError(
            f"etcd at {where} has no room left ({text}); make room there: etcdctl compact "
            "REVISION, etcdctl defrag, etcdctl alarm disarm; "
            "--auto-compaction-retention keeps it from coming back"
        )
    if refusal.kind == "too large":
        raise EtcdRefusalError(
            f"this is too large for etcd at {where} ({text}): split it, or give etcd a higher "
            "--max-request-bytes (1.5 MiB by default)"
        )
    if refusal.kind == "denied":
        raise EtcdRefusalError(
            f"etcd at {where} refuses access ({text}); give a user whose role may read and write "
            f"(READWRITE) the keys under {prefix + '/'!r}: "
            "etcd://USER@HOST:PORT?password-file=FILE"
        )
    if refusal.kind == "refused":
        raise EtcdRefusalError(f"etcd at {where} refused: {text}")
    if refusal.kind == "not etcd":
        raise EtcdRefusalError(
            f"the server at {where} is not etcd, or an etcd without its JSON gateway ({text}); "
            "check the address"
        )


def _code(found: object) -> int:
    return found if isinstance(found, int) else 0


def _sorted(text: str, code: int, status: int) -> Refusal:
    for part, kind in _TEXTS:
        if part in text:
            return Refusal(kind, text)
    if code:
        return Refusal(_CODES.get(code, "unsure"), text)
    return Refusal("unsure" if status in _PROXIES else "not etcd", text)


def number(found: Mapping[str, Any], name: str) -> int:
    """Read a 64-bit number, which is 0 if it is left out."""
    return int(found.get(name, 0))


def text_of(data: str | bytes) -> str:
    """Encode bytes as etcd's JSON expects them: base64."""
    return b64encode(data.encode() if isinstance(data, str) else data).decode()


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with `prefix`; a zero byte, which means "no
    end", if there is none.
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


@attrs.frozen
class Nested:
    """A transaction as a part of another one, with conditions of its own."""

    transaction: Transaction


Part = Operation | Nested
"""What the branches of a transaction in etcd consist of."""


@attrs.frozen
class Space:
    """The keys of one store within an etcd that others may use as well: those that begin with
    `root`.
    """

    root: str

    def key(self, key: str) -> str:
        """Encode a key of ours."""
        return text_of(self.root + key)

    def under(self, prefix: str) -> Json:
        """Return the key range of a prefix."""
        start = (self.root + prefix).encode()
        return {"key": text_of(start), "range_end": text_of(end_of_prefix(start))}

    def condition(self, compare: Compare) -> Json:
        """Encode a condition of a transaction."""
        expected = (
            text_of(compare.expected)
            if isinstance(compare.expected, bytes)
            else str(compare.expected)
        )
        return {
            "key": self.key(compare.key),
            "target": _TARGETS[compare.field],
            "result": "EQUAL",
            compare.field: expected,
        }

    def part(self, part: Part) -> Json:
        """Encode a part of a transaction."""
        if isinstance(part, Nested):
            inner = part.transaction
            return {"request_txn": reading(self, inner.compare, inner.then, inner.otherwise)}
        return self.operation(part)

    def operation(self, operation: Operation) -> Json:
        """Encode an operation of a transaction."""
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
        """Decode a key with its metadata."""
        return Entry(
            key=b64decode(found["key"]).decode()[len(self.root) :],
            value=b64decode(found.get("value", "")),
            create_revision=number(found, "create_revision"),
            mod_revision=number(found, "mod_revision"),
            version=number(found, "version"),
            lease=number(found, "lease"),
        )

    def response(self, operation: Operation, answer: Mapping[str, Any]) -> Response:
        """Decode etcd's response to an operation."""
        if isinstance(operation, Put):
            return None
        if isinstance(operation, Delete):
            return number(answer["response_delete_range"], "deleted") > 0
        found = answer["response_range"].get("kvs", ())
        return self.entry(found[0]) if found else None

    def answer(self, part: Part, answer: Mapping[str, Any], revision: int) -> Answer:
        """Decode etcd's response to a part of a transaction that was applied at `revision`."""
        if isinstance(part, Nested):
            inner = part.transaction
            return self.result(inner.then, inner.otherwise, answer["response_txn"], revision)
        return self.response(part, answer)

    def result(
        self,
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        answer: Mapping[str, Any],
        revision: int,
    ) -> TransactionResult:
        """Decode etcd's answer to a transaction without a marker."""
        succeeded = bool(answer.get("succeeded"))
        operations = then if succeeded else otherwise
        responses = map(self.response, operations, answer.get("responses", ()))
        return TransactionResult(succeeded, revision, tuple(responses))

    def event(self, found: Mapping[str, Any]) -> StoreEvent:
        """Decode a change. etcd leaves out the kind of puts. It has no create revision for
        deletions, so that is taken from the previous value.
        """
        now = found["kv"]
        before = found.get("prev_kv")
        key = b64decode(now["key"]).decode()[len(self.root) :]
        previous = b64decode(before.get("value", "")) if before is not None else None
        if found.get("type") == "DELETE":
            created = number(before, "create_revision") if before is not None else 0
            return StoreEvent("delete", key, b"", number(now, "mod_revision"), created, previous)
        return StoreEvent(
            "put",
            key,
            b64decode(now.get("value", "")),
            number(now, "mod_revision"),
            number(now, "create_revision"),
            previous,
        )


def guarded(
    space: Space,
    slot: Json,
    compare: Sequence[Compare],
    then: Sequence[Part],
    otherwise: Sequence[Part],
) -> Json:
    """Build a transaction that also writes a marker, and that does nothing if another client has
    changed the marker.

    `slot` has the marker's `key`, its known `mod_revision`, its `lease`, and the values to write in
    either branch: `then` and `otherwise`; see `runtime.store.etcd.store.Marker`. What `then` writes
    is not nested, because etcd's space quota does not count nested writes
    (https://github.com/etcd-io/etcd/pull/22134). Beside transactions that are nested all the same,
    the marker is counted: a full etcd refuses the whole.
    """
    unchanged = {
        "key": slot["key"],
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": str(slot["mod_revision"]),
    }

    def branch(operations: Sequence[Part], value: str) -> list[Json]:
        asked = [space.part(operation) for operation in operations]
        write = {"request_put": {"key": slot["key"], "value": value, "lease": slot["lease"]}}
        deleted = [operation.key for operation in operations if isinstance(operation, Delete)]
        if any(isinstance(operation, Put | Nested) for operation in operations):
            asked.append(write)
        elif deleted:
            # A branch that changes nothing must not raise the revision, so it writes the marker
            # only if one of its keys exists.
            absent = [space.condition(Compare(key, "create_revision", 0)) for key in deleted]
            asked.append({"request_txn": {"compare": absent, "failure": [write]}})
        return asked

    guarded_otherwise = {
        "request_txn": {"compare": [unchanged], "success": branch(otherwise, slot["otherwise"])}
    }
    return {
        "compare": [unchanged, *map(space.condition, compare)],
        "success": branch(then, slot["then"]),
        "failure": [guarded_otherwise] if compare else [],
    }


def reading(
    space: Space,
    compare: Sequence[Compare],
    then: Sequence[Operation],
    otherwise: Sequence[Operation],
) -> Json:
    """Build a transaction that only reads. It needs no marker, because it can be repeated in any
    case.
    """
    return {
        "compare": [space.condition(condition) for condition in compare],
        "success": [space.operation(operation) for operation in then],
        "failure": [space.operation(operation) for operation in otherwise],
    }


def outcome_of(answer: Mapping[str, Any]) -> tuple[bool, Sequence[Mapping[str, Any]]] | None:
    """Return which branch a transaction of `guarded` took, and the responses to its operations and
    its marker. None if its marker was changed by another client.
    """
    responses: Sequence[Mapping[str, Any]] = answer.get("responses", ())
    if answer.get("succeeded"):
        return True, responses
    inner = responses[0]["response_txn"] if responses else {}
    return (False, inner.get("responses", ())) if inner.get("succeeded") else None


def wrote_marker(operations: Sequence[Part], responses: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the branch of these operations wrote its marker: its response comes after
    those of the operations.
    """
    if len(responses) == len(operations):
        return False
    last = responses[-1]
    # The branch has only deletions. It wrote its marker if at least one of its keys existed.
    return "response_put" in last or not last["response_txn"].get("succeeded")
