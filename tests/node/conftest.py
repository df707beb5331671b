"""Two live nodes in the test's own event loop, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest

from runtime import open_node
from runtime.node import Node

SECRET = "a secret for the tests of nodes"


@attrs.frozen
class Pair:
    """The founder of a cluster, whose handles the tests use, and a node that joined it."""

    here: Node
    there: Node


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A cluster of two."""
    async with open_node("here", secret=SECRET) as here, open_node("there", join=here.address, secret=SECRET) as there:
        await here.wait_for(2)
        yield Pair(here, there)


@pytest.fixture(params=["here", "there"])
def where(request: pytest.FixtureRequest) -> str:
    """The node that hosts the actor: the same promises hold on the caller's own node and on another."""
    return str(request.param)
