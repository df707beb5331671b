"""What hosts actors: nodes, local clusters, and everything between them."""

from typing import TYPE_CHECKING

from runtime.local_cluster import LocalCluster, NodeProcess, open_local_cluster
from runtime.node import Node
from runtime.node.opening import open_node
from runtime.observation.tree import draw_tree
from runtime.version import __version__

if TYPE_CHECKING:
    from runtime.elastic import record

__all__ = [
    "LocalCluster",
    "Node",
    "NodeProcess",
    "__version__",
    "draw_tree",
    "open_local_cluster",
    "open_node",
    "record",
]


def __getattr__(name: str) -> object:
    """`record` is for workers of elastic jobs: other programs do not load what belongs to it."""
    if name == "record":
        from runtime.elastic import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
