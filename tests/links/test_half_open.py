"""Connections of peers that have not proven themselves are bounded."""

from __future__ import annotations

import resource

import pytest
import trio
import trio.testing

from runtime.links.encryption import (
    LEAST_HALF_OPEN,
    MOST_HALF_OPEN,
    HalfOpenConnections,
    most_half_open,
)


async def test_one_more_ends_the_oldest_that_has_not_proven_itself() -> None:
    told: list[int] = []
    half_open = HalfOpenConnections(2, told.append)
    ended: list[str] = []
    proven = {name: trio.Event() for name in ("first", "second", "third", "fourth")}
    counted = trio.Event()

    async def serve(name: str, *, task_status: trio.TaskStatus[None]) -> None:
        with half_open.entered() as tell:
            task_status.started()
            try:
                await proven[name].wait()
                tell()
                counted.set()
                await trio.sleep_forever()
            finally:
                ended.append(name)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, "first")
            await nursery.start(serve, "second")
            proven["first"].set()
            await counted.wait()
            await nursery.start(serve, "third")
            await trio.testing.wait_all_tasks_blocked()
            assert (ended, told, len(half_open)) == ([], [], 2)
            await nursery.start(serve, "fourth")
            await trio.testing.wait_all_tasks_blocked()
            assert (ended, told, len(half_open)) == (["second"], [2], 2)
            nursery.cancel_scope.cancel()
    assert not len(half_open)


@pytest.mark.parametrize(
    ("soft", "most"),
    [
        (4, LEAST_HALF_OPEN),
        (256, 128),
        (1024, 512),
        (1 << 20, MOST_HALF_OPEN),
        (resource.RLIM_INFINITY, MOST_HALF_OPEN),
    ],
)
def test_half_of_the_descriptors_are_left(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    assert most_half_open() == most
