"""One local cluster for all tests of the doors: the processes take a second or more to start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from runtime.blocking import Blocking, BlockingLocalCluster, open_local_cluster
from tests.doors.actors_used import Counter

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingLocalCluster]:
    """A cluster with one node process, worker-1, opened at the blocking door."""
    with open_local_cluster(1) as opened:
        yield opened


@pytest.fixture
def counter(cluster: BlockingLocalCluster) -> Blocking[Counter]:
    """A new named counter on worker-1."""
    name = f"counter-{next(NUMBERS)}"
    return cluster.options(name=name, on="worker-1").spawn(Counter)


def raised(function: Callable[[], object]) -> Exception | None:
    """What a function raises, for functions that are run where pytest.raises cannot be."""
    try:
        function()
    except Exception as error:
        return error
    return None
