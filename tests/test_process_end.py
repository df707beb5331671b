"""A process that is there for its node alone ends, whatever runs in its threads."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import trio

from actors import Actor, method
from runtime import open_local_cluster, open_node
from runtime.process_end import process_of_node
from tests.live_pair import SECRET

BEGUN = threading.Event()
RELEASED = threading.Event()


class Stuck(Actor):
    """Its method blocks for ever, or until it is released."""

    @method
    def block(self) -> None:
        BEGUN.set()
        RELEASED.wait()

    @method
    def sleep(self) -> None:
        time.sleep(1000)


async def test_a_process_ends_although_a_method_blocks_in_a_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    statuses: list[int] = []
    BEGUN.clear()
    RELEASED.clear()

    def exit_now(status: int) -> None:
        statuses.append(status)
        RELEASED.set()

    with caplog.at_level(logging.WARNING, "understudy.node"):
        async with process_of_node(open_node("n", secret=SECRET), exit_now, 0.1) as node:
            stuck = await node.options(name="stuck").spawn(Stuck)
            await stuck.block.send()
            await trio.to_thread.run_sync(BEGUN.wait)
    assert statuses == [0]
    assert "which these methods still run: stuck.block" in caplog.text


async def test_a_process_whose_node_leaves_in_time_is_not_ended() -> None:
    statuses: list[int] = []
    with pytest.raises(KeyError):
        async with process_of_node(open_node("n", secret=SECRET), statuses.append):
            raise KeyError
    assert statuses == []


@pytest.mark.long
async def test_a_node_that_is_asked_to_leave_ends_although_a_method_blocks() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        stuck = await cluster.node.options(on="worker-1").spawn(Stuck)
        await stuck.sleep.send()
        with trio.fail_after(30):
            status = await cluster.process("worker-1").leave()
    assert status.code == 0
