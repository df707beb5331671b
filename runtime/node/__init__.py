"""The node: its life, how it starts actors, and what it says of itself."""

from runtime.node.internals import internals_of
from runtime.node.node import Node

__all__ = ["Node", "internals_of"]
