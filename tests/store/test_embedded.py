"""What the embedded store adds to its machine: waiting."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.errors import StoreCompactedError
from runtime.environment import SystemEnvironment
from runtime.store.embedded import EmbeddedStore
from runtime.store.history import History
from runtime.store.memory import StoreMachine


async def test_a_poll_learns_of_a_step_so_large_that_it_pushes_its_own_beginning_out_of_the_history(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    store = EmbeddedStore(SystemEnvironment(), StoreMachine(History(10)))
    await nursery.start(store.run)
    first, second = await store.grant(5), await store.grant(5)
    await store.put("nodes/a", b"", first)
    for number in range(20):
        await store.put(f"names/{number}", b"", second)
    revision = (await store.range("")).revision
    # Both leases end at one moment: the deletion of the node is forgotten before anybody was told of it.
    with trio.fail_after(60), pytest.raises(StoreCompactedError):
        await store.poll("nodes/", revision + 1)
    assert await store.get("nodes/a") is None
