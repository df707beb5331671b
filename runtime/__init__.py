"""What hosts actors: nodes, local clusters, and everything between them."""

from runtime.local_cluster import LocalCluster, NodeProcess, open_local_cluster
from runtime.node import Node
from runtime.observation.drawing import draw_tree
from runtime.opening import open_node
from runtime.version import __version__

__all__ = ["LocalCluster", "Node", "NodeProcess", "__version__", "draw_tree", "open_local_cluster", "open_node"]
