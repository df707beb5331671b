"""One node in the test's own event loop, with real processes for its isolated actors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runtime import open_node
from runtime.environment import process_start
from runtime.node import Node

SECRET = "a secret for the tests of isolation"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node alone."""
    async with open_node("alone", secret=SECRET) as opened:
        yield opened


def is_running(pid: int) -> bool:
    """Whether there is such a process."""
    return bool(process_start(pid))
