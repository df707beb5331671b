"""What etcd answers instead of what it was asked for, sorted by what its client has to do then. No I/O.

The texts and codes are those of etcd's `api/v3rpc/rpctypes/error.go`; codes are gRPC's (https://grpc.io/docs/guides/status-codes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from actors.errors import LeaseLostError, StoreCompactedError, StoreError

Kind = Literal["lease lost", "compacted", "token", "denied", "full", "too large", "busy", "refused", "unsure", "stranger"]
"""`token`: to be renewed. `busy`: not done, another time it would be. `unsure`: perhaps done, perhaps another member knows better.
`refused`, `denied` and `too large`: every member would say so. `full`: nobody knows whether it was done. `stranger`: that is no etcd.
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

_CODES: dict[int, Kind] = {3: "refused", 5: "refused", 6: "refused", 7: "denied", 9: "refused", 11: "refused", 12: "refused", 16: "token"}
"""Others are those of a member in trouble, or of one on its way to or from a leader."""

_PROXIES = (502, 503, 504)
"""What stands in front of an etcd answers so while there is none behind it."""

_REASON = re.compile(r"rpc error: code = (\w+) desc = (.*)", re.DOTALL)
_NAMES = {"InvalidArgument": 3, "NotFound": 5, "PermissionDenied": 7, "ResourceExhausted": 8, "FailedPrecondition": 9, "OutOfRange": 11}
_NAMES |= {"Unavailable": 14, "Unauthenticated": 16}


class EtcdRefusalError(StoreError):
    """etcd answered that it will not do it."""


class EtcdFullError(EtcdRefusalError):
    """etcd has no room left: it may have done this last thing all the same (https://github.com/etcd-io/etcd/issues/16659)."""


@attrs.frozen
class Refusal:
    """`text` is etcd's own."""

    kind: Kind
    text: str


def refusal_in(answer: Mapping[str, Any], status: int) -> Refusal | None:
    """What an answer with HTTP status `status` says in place of a result; None if it is one.

    A call whose answer is a stream reports an error as an object within it (grpc-gateway's `StreamError`), others as their whole answer.
    """
    if status == 200 and "error" not in answer:
        return None
    found = answer.get("error")
    if isinstance(found, Mapping):
        return _sorted(str(found.get("message", found)), _code(found.get("grpc_code")), status)
    return _sorted(str(found or answer.get("message") or f"HTTP status {status}"), _code(answer.get("code")), status)


def refusal_of_watch(reason: str) -> Refusal:
    """Why a watch was ended, by its `cancel_reason`."""
    match = _REASON.match(reason)
    return _sorted(match[2], _NAMES.get(match[1], 14), 200) if match is not None else _sorted(reason or "the watch was ended", 14, 200)


def raise_refusal(refusal: Refusal, where: str, prefix: str) -> None:
    """Raise for what no other member would answer differently: `LeaseLostError`, `StoreCompactedError`, `EtcdRefusalError`; else return.

    `where`: the member. `prefix`: of the keys that we use.
    """
    text = refusal.text
    if refusal.kind == "lease lost":
        raise LeaseLostError("the lease has expired or was revoked")
    if refusal.kind == "compacted":
        raise StoreCompactedError("the changes asked for are no longer kept; read the keys afresh (range) and go on from there")
    if refusal.kind == "full":
        raise EtcdFullError(
            f"etcd at {where} has no room left ({text}); make room there: etcdctl compact REVISION, etcdctl defrag, etcdctl alarm disarm; "
            "--auto-compaction-retention keeps it from coming back"
        )
    if refusal.kind == "too large":
        raise EtcdRefusalError(
            f"this is too large for etcd at {where} ({text}): split it, or give etcd a higher --max-request-bytes (1.5 MiB by default)"
        )
    if refusal.kind == "denied":
        raise EtcdRefusalError(
            f"etcd at {where} does not let us in ({text}); give a user whose role may read and write (READWRITE) the keys under "
            f"{prefix + '/'!r}: etcd://USER@HOST:PORT?password-file=FILE"
        )
    if refusal.kind == "refused":
        raise EtcdRefusalError(f"etcd at {where} refused: {text}")
    if refusal.kind == "stranger":
        raise EtcdRefusalError(f"what answers at {where} is no etcd, or one without its JSON gateway ({text}); check the address")


def _code(found: object) -> int:
    return found if isinstance(found, int) else 0


def _sorted(text: str, code: int, status: int) -> Refusal:
    for part, kind in _TEXTS:
        if part in text:
            return Refusal(kind, text)
    if code:
        return Refusal(_CODES.get(code, "unsure"), text)
    return Refusal("unsure" if status in _PROXIES else "stranger", text)
