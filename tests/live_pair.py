"""Two live nodes in the test's own event loop, over real sockets: the fixtures `pair` and `where`,
for the tests of all rooms.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest

from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node
from runtime.testing import Platform
from runtime.timings import Timings

SECRET = "a secret for the tests of nodes"


@attrs.frozen
class Pair:
    """The founder of a cluster, whose handles the tests use, and a node that joined it."""

    here: Node
    there: Node


@pytest.fixture
def timings() -> Timings:
    """Of both nodes of the pair; a test parametrizes it to have others.

    Leases are long: on a busy machine a loop with two nodes may stand still for longer than the
    usual ones allow, and would lose them, as it must. Nothing here waits for one to end.
    """
    return Timings(lease=30.0)


LONG_LEASE = pytest.mark.parametrize("timings", [Timings(lease=60.0)], ids=["long lease"])
"""For a test that loads the machine, and in which leases are not the point: with the usual ones a
node whose loop is busy for longer loses its place, as it must.
"""


@pytest.fixture
async def pair(timings: Timings) -> AsyncIterator[Pair]:
    """A cluster of two."""
    one = Platform(environment=SystemEnvironment(timings))
    other = Platform(environment=SystemEnvironment(timings))
    async with (
        open_node("here", secret=SECRET, platform=one) as here,
        open_node("there", join=here.address, secret=SECRET, platform=other) as there,
    ):
        await here.wait_for(2)
        yield Pair(here, there)


@pytest.fixture(params=["here", "there"])
def where(request: pytest.FixtureRequest) -> str:
    """The node that hosts the actor: the same promises hold on the caller's own node and on
    another.
    """
    return str(request.param)


@pytest.fixture
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has no secret of a cluster: certificates alone admit."""
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
