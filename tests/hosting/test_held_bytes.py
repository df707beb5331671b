"""The bytes of arguments: counted while their call waits or runs, and given back once, however the
call ends.
"""

from __future__ import annotations

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import NotAllowedError
from actors.method import Address
from actors.peers import VerifiedPeer
from actors.supervision import ExitReason
from runtime.audit import AuditLog
from runtime.hosting.cell import RefusedElsewhereError
from runtime.hosting.client_quotas import CLIENT_BYTES, ClientQuotas
from runtime.hosting.held_bytes import ByteBudget, HeldBytes


def test_what_finds_nothing_held_has_room_and_the_next_has_not() -> None:
    budget = ByteBudget(100)
    large, small = HeldBytes(1000), HeldBytes(1)
    assert large.count_in(budget, 1000)
    assert not small.count_in(budget, 1)
    large.release()
    assert small.count_in(budget, 1)
    assert budget.held == 1


def test_what_is_released_and_dropped_is_given_back_once() -> None:
    budget = ByteBudget(100)
    one, other = HeldBytes(60), HeldBytes(40)
    assert one.count_in(budget, 60)
    assert other.count_in(budget, 40)
    one.release()
    one.release()
    del one
    gc.collect()
    assert budget.held == 40


def test_what_is_dropped_in_another_thread_is_given_back() -> None:
    budget = ByteBudget(10**9)
    held = [HeldBytes(1) for _ in range(20_000)]
    for one in held:
        assert one.count_in(budget, 1)
    del one
    halves = [held[::2], held[1::2]]
    held.clear()
    threads = [threading.Thread(target=half.clear) for half in halves]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert budget.take(1)
        budget.give_back(1)
    assert budget.held == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60))
def test_the_count_is_that_of_a_model(steps: list[tuple[bool, int]]) -> None:
    budget, held = ByteBudget(100), list[HeldBytes]()
    for adds, size in steps:
        if adds:
            one = HeldBytes(size)
            total = sum(each.size for each in held)
            fits = not held or total + size <= 100
            assert one.count_in(budget, size) is fits
            if fits:
                held.append(one)
        elif held:
            held.pop(size % len(held)).release()
        assert budget.held == sum(each.size for each in held)


def client(name: str = "shop", process: str = "client-1", certificate: str = "ab") -> VerifiedPeer:
    proof = "certificate" if certificate else "secret"
    return VerifiedPeer("client", name, process, 1, proof, certificate)  # type: ignore[arg-type]


class Living:
    """Which actors a node has."""

    def __init__(self, most: int) -> None:
        self.all: set[str] = set()
        self.quotas = ClientQuotas(
            most, "here", AuditLog("here", lambda: 0.0), lambda one: one.name in self.all
        )

    def start(self, peer: VerifiedPeer, *names: str, asked: int = 0) -> None:
        """A client has these started, of as many as it asks for."""
        started: list[Address] = []
        with self.quotas.starting(peer, asked or len(names), started):
            for name in names:
                self.all.add(name)
                started.append(Address(name, "here", 1, 7))
        self.quotas.check_invariants()

    def end(self, name: str) -> None:
        """The actor ends."""
        self.all.discard(name)
        self.quotas.on_ended(Address(name, "here", 1, 7), ExitReason("stopped"))
        self.quotas.check_invariants()


def refusal(living: Living, peer: VerifiedPeer, *names: str) -> str:
    with pytest.raises(RefusedElsewhereError) as refused:
        living.start(peer, *names)
    assert isinstance(refused.value.error, NotAllowedError)
    return str(refused.value.error)


def test_a_client_has_one_quota_over_all_its_processes() -> None:
    living = Living(2)
    living.start(client(process="client-1"), "a")
    living.start(client(process="client-2"), "b")
    assert "2 are allowed" in refusal(living, client(process="client-3"), "c")
    living.start(client("other"), "d")
    living.end("a")
    living.end("a")
    living.start(client(process="client-3"), "c")
    assert living.quotas.actors == 3


def test_starts_that_fail_and_actors_that_end_at_once_do_not_count() -> None:
    living = Living(2)
    living.start(client(), asked=2)
    started = [Address("gone", "here", 1, 7)]
    with living.quotas.starting(client(), 1, started):
        pass
    living.start(client(), "a", "b")
    for name in "ab":
        living.end(name)
    assert not living.quotas._counts


def test_starts_under_way_count() -> None:
    living = Living(2)
    with living.quotas.starting(client(), 2, []):
        refusal(living, client(), "a")
    living.start(client(), "a")


def test_who_names_itself_is_known_by_its_certificate_or_its_process() -> None:
    living = Living(1)
    # With a certificate for every name, the name is the process's own.
    living.start(client("client-1", "client-1"), "a")
    refusal(living, client("client-2", "client-2"), "b")
    living.start(client("client-3", "client-3", certificate=""), "b")
    # A name in a certificate is not that of a process without one.
    living.start(client("client-3", "client-9"), "c")


def test_only_the_client_that_has_started_an_actor_has_started_it() -> None:
    living = Living(5)
    living.start(client(), "a")
    assert living.quotas.has_started(client(process="client-2"), "a", 7)
    assert not living.quotas.has_started(client("other"), "a", 7)
    assert not living.quotas.has_started(client(), "a", 8)
    assert not living.quotas.has_started(client(), "b", 7)


def test_the_bytes_of_a_client_are_those_of_all_its_processes_and_leave_nothing_behind() -> None:
    quotas = Living(1).quotas
    held = HeldBytes(10)
    assert held.count_in(quotas.budget_of(client(process="client-1")), CLIENT_BYTES)
    assert not HeldBytes(1).count_in(quotas.budget_of(client(process="client-2")), 1)
    assert HeldBytes(1).count_in(quotas.budget_of(client("other")), 1)
    del held
    assert not quotas._budgets
