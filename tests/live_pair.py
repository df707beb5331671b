"""Two live nodes in the test's own event loop, over real sockets: the fixtures `pair` and `where`,
for the tests of all rooms.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node
from runtime.testing import Platform
from runtime.timings import Timings

T = TypeVar("T")

SECRET = "a secret for the tests of nodes"


@attrs.frozen
class Pair:
    """The founder of a cluster, whose handles the tests use, and a node that joined it."""

    here: Node
    there: Node


@asynccontextmanager
async def open_pair(
    here: Platform | None = None, there: Platform | None = None
) -> AsyncIterator[Pair]:
    """Open the two nodes, each on its platform. Without one, `there` runs on that of `here`."""
    async with (
        open_node("here", secret=SECRET, platform=here) as founder,
        open_node("there", join=founder.address, secret=SECRET, platform=there or here) as joined,
    ):
        await founder.wait_for(2)
        yield Pair(founder, joined)


def in_virtual_time(
    setting: Callable[[], AbstractAsyncContextManager[T]], test: Callable[[T], Awaitable[None]]
) -> None:
    """Run a test whose waits take no time: the clock jumps when all tasks wait. With sockets it
    would jump ahead of what is on its way.
    """

    async def main() -> None:
        with trio.fail_after(600):
            async with setting() as both:
                await test(both)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.fixture
def timings() -> Timings:
    """Of both nodes of the pair; a test parametrizes it to have others.

    Leases are long: on a busy machine a loop with two nodes may stand still for longer than the
    usual ones allow, and would lose them, as it must. Nothing here waits for one to end.
    """
    return Timings(lease=30.0)


LONG_LEASE = pytest.mark.parametrize(
    "timings", [Timings(lease=60.0, store_call=40.0)], ids=["long lease"]
)
"""For a test that loads the machine, and in which leases and the store are not the point: with the
usual ones a node whose loop is busy for longer loses its place, and what it asked the store ends
without an answer, as it must.
"""


@pytest.fixture
async def pair(timings: Timings) -> AsyncIterator[Pair]:
    """A cluster of two."""
    one = Platform(environment=SystemEnvironment(timings))
    other = Platform(environment=SystemEnvironment(timings))
    async with open_pair(one, other) as opened:
        yield opened


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
