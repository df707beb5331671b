"""What each role may not do, written out apart from the table of rights, which a change of it would
change as well.
"""

from __future__ import annotations

import pytest

from actors.peers import PeerRole, VerifiedPeer
from runtime.calls.rights import service_refusal
from runtime.store.interface import Compare, Delete, Get, Put

STOPS = (
    "@node.stop_actor",
    "@node.stop_many",
    "@node.take_back_started",
    "@node.leave_cluster",
)
READS = ("@logs.read", "@logs.ends", "@inspection.stacks", "@inspection.state")
RUNS = ("@debug.debug", "@debug.command", "@debug.failures", "@inspection.profile")
SHUTS_OUT = ("@expulsions.expel", "@expulsions.readmit", "@journals.remove_journal")
STARTS = ("@node.spawn", "@node.spawn_many", "@node.take_back")
CALLS = ("@plain.call", "@plain.call_keyed", "@plain.stream")
VALUES = ("@references.update", "@references.where", "@references.fetch", "@references.outcomes")
NODES_ONLY = (
    *("@keyring.facts", "@keyring.install", "@keyring.use", "@keyring.keep"),
    *("@expulsions.on_expelled", "@references.call", "@watching.ended", "@store.put"),
    *("@store.delete", "@store.grant", "@store.revoke", "@node.unheard_of"),
)

REFUSED: dict[PeerRole, tuple[str, ...]] = {
    "operator": NODES_ONLY,
    "client": (*NODES_ONLY, *STOPS, *READS, *RUNS, *SHUTS_OUT),
    "observer": (*NODES_ONLY, *STOPS, *RUNS, *SHUTS_OUT, *STARTS, *CALLS, *VALUES),
}


def peer(role: PeerRole) -> VerifiedPeer:
    return VerifiedPeer(role, "ann", "client-1", 1, "certificate")


@pytest.mark.parametrize("role", REFUSED)
def test_what_no_process_of_a_role_may_do_is_refused(role: PeerRole) -> None:
    for each in REFUSED[role]:
        service, _, method = each.partition(".")
        assert service_refusal(peer(role), service, method, (), {}), each
        assert not service_refusal(peer("node"), service, method, (), {}), each


def test_what_the_others_may_do_is_not_refused() -> None:
    """The lists above are of methods that there are."""
    for role, methods in (
        ("operator", (*STOPS, *READS, *RUNS, *SHUTS_OUT, *STARTS, *CALLS, *VALUES)),
        ("client", (*STARTS, *CALLS, *VALUES)),
        ("observer", READS),
    ):
        for each in methods:
            service, _, method = each.partition(".")
            assert not service_refusal(peer(role), service, method, (), {}), each  # type: ignore[arg-type]


def test_the_store_is_read_as_far_as_the_role_goes() -> None:
    for role, key, allowed in (
        ("operator", "states/x", True),
        ("client", "states/x", False),
        ("client", "names/x", True),
        ("client", "logs/x", False),
        ("observer", "states/x", False),
        ("observer", "logs/x", True),
    ):
        refused = service_refusal(peer(role), "@store", "get", (key,), {})  # type: ignore[arg-type]
        assert bool(refused) is not allowed, (role, key)


@pytest.mark.parametrize("role", REFUSED)
def test_no_transaction_writes_the_store_or_depends_on_what_may_not_be_read(role: PeerRole) -> None:
    read, write = Get("names/x"), Put("names/x", b"")
    assert not service_refusal(peer(role), "@store", "transaction", ([], [read], [read]), {})
    tried: tuple[tuple[object, ...], ...] = (
        ([], [write], []),
        ([], [read], [write]),
        ([], [Delete("names/x")]),
        ([], write),
        ([Compare("names/x", "version", 1)], [read]),
    )
    for arguments in tried:
        assert service_refusal(peer(role), "@store", "transaction", arguments, {}), arguments
        named = {"compare": [], "then": arguments[1]}
        assert service_refusal(peer(role), "@store", "transaction", (), named)
