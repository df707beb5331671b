"""A node that has no memory for what arrives: that costs the link that it came by, and not the
node.
"""

from __future__ import annotations

import pytest
import trio

from actors import Actor, method
from actors.errors import ConnectionLostError, NodeUnreachableError
from runtime.links import transfers
from runtime.wire import frames
from runtime.wire.frames import ReceivedSegment
from tests.live_pair import Pair

LARGE = 4 * 1024 * 1024


class NoRoom(ReceivedSegment):
    """Memory that is granted for small segments only."""

    def __init__(self, size: int) -> None:
        if size >= LARGE:
            raise MemoryError
        super().__init__(size)


class Lengths(Actor):
    """Takes what is large."""

    @method
    async def length(self, data: bytes) -> int:
        return len(data)


async def test_what_does_not_fit_into_memory_ends_its_call_and_not_the_node(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = await pair.here.options(on="there").spawn(Lengths)
    data = bytes(LARGE)
    with pytest.MonkeyPatch.context() as patch:
        for module in (transfers, frames):
            patch.setattr(module, "ReceivedSegment", NoRoom)
        for _ in range(3):
            with (
                trio.fail_after(60),
                pytest.raises((NodeUnreachableError, ConnectionLostError)),
            ):
                await lengths.length(data)
            assert await lengths.length(b"small") == 5
    assert await lengths.length(data) == LARGE
    assert "no memory here for what it has sent" in caplog.text
