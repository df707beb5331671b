"""What etcd's answers mean, as etcd 3.4 gives them through its gateway and what stands
before it.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.errors import LeaseLostError, StoreCompactedError, StoreError
from runtime.store.etcd.translation import (
    EtcdFullError,
    EtcdRefusalError,
    Refusal,
    raise_refusal,
    refusal_in,
    refusal_of_watch,
)


def said(text: str, code: int) -> dict[str, Any]:
    return {"error": text, "message": text, "code": code}


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (said("etcdserver: requested lease not found", 5), 404, "lease lost"),
        (said("etcdserver: mvcc: required revision has been compacted", 11), 400, "compacted"),
        (said("etcdserver: invalid auth token", 16), 401, "token"),
        (said("etcdserver: revision of auth store is old", 3), 400, "token"),
        (said("etcdserver: authentication failed, invalid user ID or password", 3), 400, "denied"),
        (said("etcdserver: user name is empty", 3), 400, "denied"),
        (said("etcdserver: permission denied", 7), 403, "denied"),
        (said("etcdserver: mvcc: database space exceeded", 8), 429, "full"),
        (said("etcdserver: request is too large", 3), 400, "too large"),
        (said("grpc: received message larger than max (3000029 vs. 2097152)", 8), 429, "too large"),
        (said("etcdserver: too many requests", 8), 429, "busy"),
        (said("etcdserver: authentication is not enabled", 9), 400, "refused"),
        (said("etcdserver: no leader", 14), 503, "unsure"),
        (said("etcdserver: leader changed", 14), 503, "unsure"),
        (
            said("etcdserver: request timed out, possibly due to previous leader failure", 14),
            503,
            "unsure",
        ),
        (said("context deadline exceeded", 4), 408, "unsure"),
        # A call whose answer is a stream wraps its error, under either status.
        (
            {
                "error": {
                    "grpc_code": 14,
                    "http_code": 503,
                    "message": "etcdserver: no leader",
                    "http_status": "Service Unavailable",
                }
            },
            200,
            "unsure",
        ),
        (
            {
                "error": {
                    "grpc_code": 5,
                    "http_code": 404,
                    "message": "etcdserver: requested lease not found",
                }
            },
            404,
            "lease lost",
        ),
        ({"error": "b'<html>' is not an answer of etcd"}, 503, "unsure"),
        ({"error": "b'<html>' is not an answer of etcd"}, 200, "not etcd"),
        ({"error": "b'Not Found' is not an answer of etcd"}, 404, "not etcd"),
        ({"error": ["surprise"], "code": "x"}, 200, "not etcd"),
        ({}, 418, "not etcd"),
    ],
)
def test_an_answer_is_sorted_by_what_is_to_be_done(
    answer: dict[str, Any], status: int, kind: str
) -> None:
    found = refusal_in(answer, status)
    assert found is not None
    assert found.kind == kind


def test_a_result_is_no_refusal() -> None:
    assert refusal_in({"header": {}}, 200) is None


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied", "denied"),
        ("rpc error: code = InvalidArgument desc = etcdserver: user name is empty", "denied"),
        ("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", "token"),
        ("rpc error: code = Unavailable desc = etcdserver: no leader", "unsure"),
        ("rpc error: code = Another desc = of a later etcd", "unsure"),
        ("whatever", "unsure"),
        ("", "unsure"),
    ],
)
def test_the_end_of_a_watch_is_sorted_as_well(reason: str, kind: str) -> None:
    assert refusal_of_watch(reason).kind == kind


@pytest.mark.parametrize(
    ("kind", "error", "step"),
    [
        ("lease lost", LeaseLostError, "expired or was revoked"),
        ("compacted", StoreCompactedError, "read the keys afresh"),
        ("full", EtcdFullError, "member:1 has no room left .*etcdctl compact"),
        ("too large", EtcdRefusalError, "member:1 .*split it"),
        ("denied", EtcdRefusalError, r"member:1 refuses access .*READWRITE.*'team/'"),
        ("refused", EtcdRefusalError, "member:1 refused: etcd's words"),
        ("not etcd", EtcdRefusalError, "member:1 is not etcd.*check the address"),
    ],
)
def test_what_no_other_attempt_would_change_is_an_error_with_the_next_step(
    kind: Any, error: type[StoreError], step: str
) -> None:
    with pytest.raises(error, match=step):
        raise_refusal(Refusal(kind, "etcd's words"), "member:1", "team")


@pytest.mark.parametrize("kind", ["busy", "unsure", "token"])
def test_what_another_attempt_may_change_is_left_to_it(kind: Any) -> None:
    raise_refusal(Refusal(kind, "etcd's words"), "member:1", "team")
