"""The rendezvous of an agent that has its job to itself: the handler of all back-ends, over a store
in the memory of its process.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from runtime.environment import SystemEnvironment
from runtime.rendezvous.back_ends import standalone
from runtime.rendezvous.parameters import RendezvousClosedError, RoundOverError

DAYS = 30 * 86400.0


async def test_each_round_is_complete_at_once_and_has_a_store_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with standalone("job", SystemEnvironment()) as handler:
        began = trio.current_time()
        first = await handler.next_rendezvous()
        assert (first.round, first.rank, first.world_size) == (0, 0, 1)
        assert first.participants == (handler.name,)
        assert first.job_store is not None
        await first.store.set("of", b"the round")
        await first.job_store.set("of", b"the job")
        second = await handler.next_rendezvous()
        assert (second.round, second.rank, second.world_size) == (1, 0, 1)
        assert second.job_store is not None
        assert await second.job_store.get("of") == b"the job"
        assert await second.store.peek("of") is None
        with pytest.raises(RoundOverError):
            await first.store.get("of")
        assert await handler.num_nodes_waiting() == 0
        await handler.set_closed("that was all", finished=True)
        assert await handler.is_closed()
        with pytest.raises(RendezvousClosedError, match="that was all"):
            await handler.next_rendezvous()
        assert trio.current_time() == began


async def test_an_agent_that_was_stopped_for_days_has_not_lost_its_place(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A lease that had ended meanwhile would have its workers restarted for nothing."""
    async with standalone("job", SystemEnvironment()) as handler:
        info = await handler.next_rendezvous()
        await info.store.set("key", b"value")
        changes = []

        async def watch() -> None:
            changes.append(await handler.wait_change(info.round))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(DAYS)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert changes == []
            nursery.cancel_scope.cancel()
        assert await info.store.get("key") == b"value"
        assert (await handler.next_rendezvous()).participants == info.participants
