"""The pair of nodes that the tests of nodes have."""

from tests.node.conftest import pair, where

__all__ = ["pair", "where"]
