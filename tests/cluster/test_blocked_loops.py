"""Nodes whose event loop users' code blocks for longer than a lease: in real processes, with each
kind of store.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from actors.errors import CallError
from runtime import LocalCluster, open_local_cluster
from runtime.node import internals_of
from runtime.testing import open_etcd
from runtime.timings import Timings
from tests.cluster.blocking_actors import Blocker
from tests.etcd import needs_etcd
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

LONG = Timings().lease + 2.5
"""Seconds for which a loop is blocked: without help its lease is lost, and others know."""


class Lines:
    """What the nodes print, as it comes."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def take(self, name: str, line: str) -> None:
        self.all.append((name, line))

    def have(self, name: str, text: str) -> bool:
        return any(name == one and text in line for one, line in self.all)


@asynccontextmanager
async def cluster_of(store: str, lines: Lines) -> AsyncIterator[LocalCluster]:
    if store == "etcd":
        async with (
            open_etcd() as etcd,
            open_local_cluster(nodes=1, store=etcd.address, on_line=lines.take) as cluster,
        ):
            yield cluster
    else:
        async with open_local_cluster(nodes=1, on_line=lines.take) as cluster:
            yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("store", ["embedded", pytest.param("etcd", marks=needs_etcd)])
async def test_a_loop_blocked_for_longer_than_its_lease_keeps_it_and_is_reported(
    store: str,
) -> None:
    lines = Lines()
    async with cluster_of(store, lines) as cluster:
        blocker = await cluster.node.options(name="blocker", on="worker-1").spawn(Blocker)
        before = await blocker.where()
        isolated = await cluster.node.options(on="worker-1", isolation="process").spawn(Blocker)
        assert await isolated.block(0) == 1
        process = await isolated.where()
        answers: list[int] = []

        async def block() -> None:
            answers.append(await blocker.block(LONG))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(block)
                await until(
                    lambda: lines.have("worker-1", "by blocker.block ("),
                    "the block is reported",
                    every=0.05,
                )
                assert answers == [], "told only when it was over"
            assert answers == [1]
            assert await blocker.where() == (*before[:2], 1)
            # Its process has heard nothing of its node meanwhile, which it takes for the node's end
            # unless the lease is renewed.
            assert await isolated.where() == process
        assert "worker-1" in [member.name for member in cluster.node.members()]
        assert not lines.have("worker-1", "has not renewed its lease")


@pytest.mark.slow
async def test_code_whose_loader_has_no_source_may_block_the_loop_and_raise() -> None:
    lines = Lines()
    async with cluster_of("embedded", lines) as cluster:
        blocker = await cluster.node.options(name="blocker", on="worker-1").spawn(Blocker)
        before = await blocker.where()
        with trio.fail_after(60):
            with pytest.raises(ZeroDivisionError):
                await blocker.block_in_template(LONG)
            assert await blocker.where() == before
        assert lines.have("worker-1", "by blocker.block_in_template (")
        assert cluster.process("worker-1").running


@pytest.mark.slow
async def test_a_founder_whose_loop_is_blocked_ends_no_lease_of_others() -> None:
    lines = Lines()
    async with cluster_of("embedded", lines) as cluster:
        blocker = await cluster.node.options(name="blocker", on="worker-1").spawn(Blocker)
        own = await cluster.node.options(name="own").spawn(Blocker)
        isolated = await cluster.node.options(isolation="process").spawn(Blocker)
        before = await blocker.where(), await own.where(), await isolated.where()
        # The founder's loop, with the store in it: this test's own.
        time.sleep(LONG)  # noqa: ASYNC251  it is to be blocked
        with trio.fail_after(60):
            after = await blocker.where(), await own.where(), await isolated.where()
        assert after == before
        assert internals_of(cluster.node).given_up is None
        assert cluster.process("worker-1").running


@pytest.mark.slow
async def test_a_loop_blocked_beyond_the_limit_loses_its_lease_and_names() -> None:
    lines = Lines()
    async with open_local_cluster(nodes=0, on_line=lines.take) as cluster:
        process = await cluster.start_node("stuck", blocked_limit=1.0)
        blocker = await cluster.node.options(name="blocker", on="stuck").spawn(Blocker)
        outcomes: list[object] = []

        async def block() -> None:
            try:
                outcomes.append(await blocker.block(15))
            except CallError as error:
                outcomes.append(type(error))

        with trio.fail_after(90):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(block)
                # The name is free while the loop is still blocked.
                await cluster.node.wait_gone("stuck")
                assert lines.have(
                    "stuck", "has been blocked for more than 1 s, now by blocker.block ("
                )
                again = await cluster.node.options(name="blocker").spawn(Blocker)
                assert await again.block(0) == 1
            status = await process.wait()
        assert len(outcomes) == 1
        assert isinstance(outcomes[0], type), (
            f"the answer {outcomes[0]} of one that had lost its name was taken"
        )
        assert status.code == 1
        assert lines.have(
            "stuck", "its event loop was blocked for more than 1 s by blocker.block ("
        )
