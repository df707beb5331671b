"""The node: its life, how it starts actors, and what it says of itself."""

from runtime.node.node import Node

__all__ = ["Node"]
