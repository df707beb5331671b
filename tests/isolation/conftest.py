"""One node in the test's own event loop, with real processes for its isolated actors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runtime import open_node
from runtime.environment import SystemEnvironment, process_start
from runtime.node import Node
from runtime.testing import Platform
from runtime.timings import Timings

SECRET = "a secret for the tests of isolation"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node alone."""
    # Isolated actors end with the lease of their node, which a busy machine may cost it.
    platform = Platform(environment=SystemEnvironment(Timings(lease=30.0)))
    async with open_node("alone", secret=SECRET, platform=platform) as opened:
        yield opened


def is_running(pid: int) -> bool:
    """Whether there is such a process."""
    return bool(process_start(pid))
