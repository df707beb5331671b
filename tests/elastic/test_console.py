"""The console to which an agent writes the output of its workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from runtime.elastic.worker_output import Console


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


async def test_lines_whose_writer_was_cancelled_are_not_waited_for(pipe: tuple[int, int]) -> None:
    console = Console()
    with trio.CancelScope() as given_up:
        given_up.cancel()
        await console.write(pipe[1], "never queued\n")
    with trio.fail_after(60):
        await console.drain(math.inf)


async def test_lines_that_are_queued_while_it_drains_are_written_before_it_returns(
    pipe: tuple[int, int],
) -> None:
    console = Console()
    drained = trio.Event()

    async def drain() -> None:
        await console.drain(math.inf)
        drained.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await console.write(pipe[1], "first\n")
            nursery.start_soon(drain)
            await trio.testing.wait_all_tasks_blocked()
            await console.write(pipe[1], "second\n")
            nursery.start_soon(console.run)
            await drained.wait()
            nursery.cancel_scope.cancel()
    assert os.read(pipe[0], 100) == b"first\nsecond\n"
