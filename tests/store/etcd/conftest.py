"""One etcd for the tests of this folder, and stores in it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from runtime.environment import SystemEnvironment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.store import EtcdStore
from runtime.testing import EtcdServer
from runtime.timings import Timings
from tests.etcd import shared_etcd

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    """A running etcd of one member."""
    with shared_etcd(1) as server:
        yield server


@asynccontextmanager
async def store_at(
    address: str, cluster: str = "", timings: Timings | None = None
) -> AsyncIterator[EtcdStore]:
    """A store of its own there."""
    store = EtcdStore(
        EtcdAddress.parse(address),
        cluster or f"cluster-{next(NUMBERS)}",
        SystemEnvironment(timings),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store._gateway.check_invariants()
        store._markers.check_invariants()
        store.close()
