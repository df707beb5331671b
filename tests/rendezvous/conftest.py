"""The back-ends that the suite runs over, each with an endpoint of its own for the test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import open_node
from runtime.rendezvous.parameters import RendezvousParameters
from runtime.rendezvous.registry import OpenableHandler, create_handler
from tests.etcd import shared_etcd

BACK_ENDS = ("understudy", "understudy over etcd", "etcd", "file")
NUMBERS = itertools.count()

QUICK: dict[str, Any] = {"last_call_timeout": 0.3, "join_timeout": 30}
"""So that nothing takes long that must not. The time until a silent agent counts as dead stays as
it is: nothing here dies in silence, and on a busy machine a renewal takes longer than two seconds.
"""

Make = Callable[..., OpenableHandler]


@pytest.fixture(scope="package")
def etcd_server() -> Iterator[str]:
    """The address of an etcd with one member."""
    with shared_etcd(1) as server:
        yield server.address


@pytest.fixture(params=BACK_ENDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which back-end the test runs over."""
    return str(request.param)


@pytest.fixture
async def endpoint(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Where it is."""
    if kind == "file":
        yield str(tmp_path)
    elif kind == "etcd":
        yield request.getfixturevalue("etcd_server")
    else:
        store = request.getfixturevalue("etcd_server") if kind.endswith("etcd") else None
        async with open_node(store=store) as node:
            yield node.address


@pytest.fixture
def make(kind: str, endpoint: str, request: pytest.FixtureRequest) -> Make:
    """Makes handlers, not opened yet: `make(min_nodes, max_nodes, **options)`."""
    job = f"job of {request.node.name} {next(NUMBERS)}"

    def handler(
        min_nodes: int = 1, max_nodes: int = 4, run_id: str = job, **options: Any
    ) -> OpenableHandler:
        return create_handler(
            RendezvousParameters(
                kind.split()[0], endpoint, run_id, min_nodes, max_nodes, **{**QUICK, **options}
            )
        )

    return handler
