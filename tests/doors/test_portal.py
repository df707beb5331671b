"""The portal by which threads run functions in a trio loop."""

from __future__ import annotations

import pytest
import trio

from actors.errors import OutcomeUnknownError
from runtime.doors.portal import Portal


@pytest.mark.parametrize("tasks", [0, 2])
async def test_a_portal_that_closes_ends_its_calls_with_an_error_of_ours(tasks: int) -> None:
    begun = trio.Event()

    async def wait() -> None:
        # With tasks: when it is cancelled, a group of cancellations comes out of it.
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(trio.sleep_forever)
            begun.set()
            await trio.sleep_forever()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            portal = Portal(trio.lowlevel.current_trio_token(), nursery, "a portal")
            future = portal.future(wait)
            await begun.wait()
            portal.close()
    # Not raised here: what runs this test would take a group of cancellations for its own.
    error = future.exception(timeout=0)
    assert isinstance(error, OutcomeUnknownError)
    assert "closed while this call was under way" in str(error)
