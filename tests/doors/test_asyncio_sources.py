"""Generators of asyncio that trio reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest
import trio

from runtime.doors.asyncio_sources import asyncio_source


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An asyncio loop that runs in a thread."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


async def test_a_generator_that_catches_its_cancellation_is_closed_all_the_same(
    loop: asyncio.AbstractEventLoop,
) -> None:
    token = trio.lowlevel.current_trio_token()
    waits, closed = trio.Event(), trio.Event()

    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            yield 1
            try:
                token.run_sync_soon(waits.set)
                await asyncio.sleep(3600)
            except asyncio.CancelledError:  # noqa: ASYNC103  as hostile code does
                yield 2  # noqa: ASYNC104
        finally:
            token.run_sync_soon(closed.set)

    items = asyncio_source(stubborn(), loop)
    assert await anext(items) == 1

    async def read_on() -> None:
        await anext(items)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_on)
        await waits.wait()
        nursery.cancel_scope.cancel()
    assert closed.is_set()
