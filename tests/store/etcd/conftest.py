"""One etcd for the tests of this folder, and stores in it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from runtime.environment import SystemEnvironment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.store import EtcdStore
from runtime.timings import Timings

NUMBERS = itertools.count()


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
