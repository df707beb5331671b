"""The node: its life, how it starts actors, and what it says of itself."""

from runtime.node.node import CLOSE_SECONDS, DRAIN_SECONDS, Node

__all__ = ["CLOSE_SECONDS", "DRAIN_SECONDS", "Node"]
