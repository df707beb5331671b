"""What stands ready for the statements of a console."""

from __future__ import annotations

from runtime import open_node
from runtime.console.namespace import ConsoleCluster


async def test_a_cluster_counts_one_node_as_one() -> None:
    async with open_node(name="a", cluster="shop") as first:
        assert repr(ConsoleCluster(first)) == "<cluster shop: 1 node: a>"
        async with open_node(name="b", cluster="shop", join=first.address) as second:
            assert repr(ConsoleCluster(second)) == "<cluster shop: 2 nodes: a, b>"
