"""Short versions of `make chaos`: real node processes under faults, and an oracle for what is lost,
doubled or left behind.
"""

from __future__ import annotations

import pytest

from tests.chaos.books import Books
from tests.chaos.hosts import missing
from tests.chaos.runs import run_etcd, run_founder, run_namespaces
from tests.etcd import needs_etcd

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


def check(books: Books) -> None:
    """Nothing lost, doubled or left behind, in a run that did what it is for."""
    assert not books.mistakes(), books.summary() + "\n".join(books.mistakes()[:20])
    assert sum(outcome == "value" for outcome in books.outcomes.values()) > 100
    assert sum(books.faults.values()) >= 5


@pytest.mark.skipif(bool(missing()), reason=missing() or "hosts can be made")
async def test_five_hosts_under_faults_of_machines_and_network() -> None:
    check(await run_namespaces(40, 1))


@needs_etcd
async def test_a_cluster_in_etcd_while_its_members_and_nodes_are_killed() -> None:
    check(await run_etcd(40, 1))


async def test_a_founder_that_is_killed_under_writes() -> None:
    check(await run_founder(10, 1))
