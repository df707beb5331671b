"""What a node leaves in the store for when it has ended: its lines, and what the others know of its
end, also of one that has logged nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio

from actors.identifiers import NodeId
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.logs.archive import (
    ABOUT,
    GONE,
    MOST_NODES,
    TURN_SECONDS,
    ArchivedNode,
    LogArchive,
    NodeEnd,
    archived_nodes,
)
from runtime.logs.capture import LogCapture
from runtime.logs.service import ActorEnds
from runtime.node import internals_of
from runtime.store.embedded_store import EmbeddedStore
from runtime.supervision.placement import CALLS_ONLY
from tests.waiting import until


class _NoLines:
    """A capture of a node that logs nothing."""

    last = 0

    def entries(self) -> tuple[()]:
        return ()

    def wake(self) -> None:
        """Nobody waits in these tests."""


class Oldest:
    """Whether a node is the oldest, to be changed."""

    def __init__(self, holds: bool) -> None:
        self.holds = holds

    def __call__(self) -> bool:
        return self.holds


class Later(SystemEnvironment):
    """An environment whose clock is set forward."""

    later = 0.0

    def now(self) -> float:
        """The time, so many seconds later."""
        return super().now() + self.later


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    async with trio.open_nursery() as nursery:
        opened = EmbeddedStore(SystemEnvironment())
        nursery.start_soon(opened.run)
        yield opened
        nursery.cancel_scope.cancel()


def archive_of(
    store: EmbeddedStore, name: str, is_oldest: Oldest, environment: SystemEnvironment | None = None
) -> LogArchive:
    environment = environment or SystemEnvironment()
    return LogArchive(
        store,
        NodeId(name, 1),
        cast("LogCapture", _NoLines()),
        ActorEnds(environment, lambda: False),
        lambda node: True,
        is_oldest,
        environment,
    )


async def test_the_oldest_node_writes_once_how_another_has_ended(store: EmbeddedStore) -> None:
    first, second = Oldest(True), Oldest(False)
    archives = archive_of(store, "a", first), archive_of(store, "b", second)
    for archive in archives:
        archive.note_end(NodeId("c", 9), "died", "its process has ended")
        await archive.write()
    (found,) = await archived_nodes(store)
    assert (found.node, found.until) == (NodeId("c", 9), None)
    assert found.end is not None
    assert (found.end.how, found.end.reason) == ("died", "its process has ended")
    written = await store.get(f"{GONE}c/9")
    # The one that wrote it ends too: the next writes what it has seen of both, and `c` stays.
    second.holds = True
    archives[1].note_end(NodeId("a", 1), "left", "")
    await archives[1].write()
    assert [one.node.name for one in await archived_nodes(store)] == ["a", "c"]
    assert await store.get(f"{GONE}c/9") == written


async def test_the_next_node_writes_an_end_that_the_oldest_did_not_live_to_write(
    store: EmbeddedStore,
) -> None:
    turn, clock = Oldest(False), Later()
    archive = archive_of(store, "b", turn, clock)
    archive.note_end(NodeId("c", 9), "died", "its lease has ended")
    await archive.write()
    assert await archived_nodes(store) == []
    turn.holds = True
    await archive.write()
    assert [one.node.name for one in await archived_nodes(store)] == ["c"]
    # What is older has been written by another long ago, and may be forgotten again by now.
    turn.holds = False
    archive.note_end(NodeId("d", 10), "left", "")
    clock.later = TURN_SECONDS + 1
    await archive.write()
    turn.holds = True
    await archive.write()
    assert [one.node.name for one in await archived_nodes(store)] == ["c"]


async def test_the_latest_ends_are_kept(store: EmbeddedStore) -> None:
    archive = archive_of(store, "a", Oldest(True))
    for number in range(MOST_NODES + 5):
        archive.note_end(NodeId("w", 2 + number), "died", "its lease has ended")
        await archive.write()
    found = [one.node.incarnation for one in await archived_nodes(store)]
    assert found == list(range(7, 7 + MOST_NODES))


async def test_what_is_no_record_of_an_end_is_passed_over(store: EmbeddedStore) -> None:
    good = {"at": 5.0, "how": "died", "reason": "x" * 10_000}
    for number, value in enumerate(
        [
            {**good, "at": 1e300},
            {**good, "at": float("nan")},
            {**good, "at": -1},
            {**good, "how": "exploded"},
            {**good, "reason": None},
            [],
        ]
    ):
        await store.put(f"{GONE}bad/{number + 1}", json.dumps(value).encode())
    await store.put(f"{GONE}bad/{'9' * 5000}", json.dumps(good).encode())
    await store.put(f"{ABOUT}bad/5", json.dumps({"until": 1e300}).encode())
    await store.put(f"{GONE}w/8", json.dumps(good).encode())
    (found,) = await archived_nodes(store)
    assert found.node == NodeId("w", 8)
    assert found.end is not None
    assert len(found.end.reason) < 5000


def test_the_latest_time_of_a_node_is_that_of_its_end_or_of_its_last_lines() -> None:
    node, end = NodeId("w", 8), NodeEnd(7.0, "left", "")
    assert ArchivedNode(node, 5.0, None).latest == 5.0
    assert ArchivedNode(node, 9.0, end).latest == 9.0
    assert ArchivedNode(node, None, end).latest == 7.0


async def test_a_node_that_has_logged_nothing_leaves_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with open_node("first", secret="a secret of these tests") as first:
        async with open_node("silent", join=first.address, secret="a secret of these tests") as it:
            silent = NodeId(it.name, it.incarnation)
        store = internals_of(first).store

        async def traces() -> list[ArchivedNode]:
            return [one for one in await archived_nodes(store) if one.node == silent]

        (found,) = await until(traces, "its end is in the store")
        # On a busy machine it may be gone before the others have seen it leave.
        assert found.end is not None


async def test_a_node_that_only_made_calls_is_kept_as_one(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    archive = archive_of(store, "a", Oldest(True))
    archive.note_end(NodeId("caller", 2), "died", "its lease has ended", calls_only=True)
    archive.note_end(NodeId("w", 3), "died", "its lease has ended")
    await archive.write()
    # Its own lines say it too, before another node has seen its end.
    about = json.dumps({"until": 5.0, "calls_only": True})
    await store.put(f"{ABOUT}shell/4", about.encode())
    found = {one.node.name: one.calls_only for one in await archived_nodes(store)}
    assert found == {"caller": True, "w": False, "shell": True}
    caplog.set_level(logging.CRITICAL)
    async with open_node("first", secret="a secret of these tests") as first:
        async with open_node(
            "caller",
            join=first.address,
            secret="a secret of these tests",
            labels={CALLS_ONLY: "true"},
        ):
            pass
        store_of_first = internals_of(first).store

        async def traces() -> list[ArchivedNode]:
            kept = await archived_nodes(store_of_first)
            return [one for one in kept if one.node.name == "caller" and one.end is not None]

        (ended,) = await until(traces, "its end is in the store")
        assert ended.calls_only
