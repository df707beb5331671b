"""One etcd for the tests of this folder, and stores in it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from runtime.environment import SystemEnvironment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.store import EtcdStore
from runtime.store.etcd.translation import Json
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


def let_answers_be_lost(
    store: EtcdStore,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[Json], Exception | None],
) -> None:
    """Let etcd carry out the transactions of this store, which gets an error instead of the answer:
    what `error` makes of the request, or the answer if it makes nothing.
    """
    ask = store._gateway.ask

    async def lost(path: str, body: Json, **options: Any) -> Json:
        answer = await ask(path, body, **options)
        failure = error(body) if path == "/v3/kv/txn" else None
        if failure is not None:
            raise failure
        return answer

    monkeypatch.setattr(store._gateway, "ask", lost)
