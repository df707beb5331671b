"""The stores that the suite runs over. A new one is a name in `STORES` and a branch in `store`."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links.transports import SocketNetwork
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.rendezvous.file_store import FileStore
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.store import EtcdStore
from runtime.store.interface import Store
from tests.etcd import shared_etcd

STORES = (
    "memory",
    "disk",
    "remote",
    "directory",
    "etcd",
    pytest.param("etcd of 3", marks=pytest.mark.long),
)

SECRET = b"of the conformance suite"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def etcd_of_one() -> Iterator[str]:
    """The address of an etcd with one member."""
    with shared_etcd(1) as server:
        yield server.address


@pytest.fixture(scope="module")
def etcd_of_three() -> Iterator[str]:
    """The address of an etcd with three members."""
    with shared_etcd(3) as server:
        yield server.address


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    """Which store the test runs over."""
    return str(request.param)


@pytest.fixture
def clock(kind: str) -> trio.testing.MockClock | None:
    """For tests in which time passes: virtual where the whole store lives in this loop, else the
    real one.
    """
    return trio.testing.MockClock(autojump_threshold=0) if kind == "memory" else None


@pytest.fixture
async def store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store of its own for each test. It may hold keys of others, so tests look at theirs
    only.
    """
    if kind in ("memory", "disk"):
        environment = SystemEnvironment()
        embedded = (
            EmbeddedStore(environment)
            if kind == "memory"
            else await EmbeddedStore.on_disk(environment, tmp_path / "store")
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(embedded.run)
            yield embedded
            embedded.close()
    elif kind == "directory":
        shared = FileStore(tmp_path / "shared", SystemEnvironment())
        await shared.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(shared.run)
            yield shared
            shared.close()
    elif kind.startswith("etcd"):
        server = request.getfixturevalue("etcd_of_three" if kind.endswith("3") else "etcd_of_one")
        address = EtcdAddress.parse(server)
        etcd = EtcdStore(address, f"test-{next(NUMBERS)}", SystemEnvironment())
        async with trio.open_nursery() as nursery:
            await nursery.start(etcd.run)
            yield etcd
            etcd.close()
    else:
        async with (
            open_node(cluster="conformance", secret=SECRET) as node,
            open_client(
                node.address,
                ClusterAccess("conformance", SECRET, SystemEnvironment(), SocketNetwork()),
            ) as client,
        ):
            yield client.store
