"""What the warm process does once is not left to each node process."""

from __future__ import annotations

import sys

import pytest

from actors import Actor, method
from runtime import open_local_cluster
from runtime.local_cluster import PRELOADED

pytestmark = pytest.mark.cluster


class Loaded(Actor):
    """Says what its process has loaded."""

    @method
    async def modules(self) -> set[str]:
        return set(sys.modules)


async def test_a_forked_node_has_loaded_what_it_would_load_at_its_first_dial() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        loaded = await cluster.node.options(on="worker-1").spawn(Loaded)
        assert {*PRELOADED, "encodings.idna"} <= await loaded.modules()
