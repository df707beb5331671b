"""A batch that runs in a thread while it is recalled: what was started and what was not are all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from runtime.hosting.running_batch import RunningBatch


@pytest.fixture
def threads_that_switch_often() -> Iterator[None]:
    """Many switches between any two steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_that_switch_often")
def test_a_batch_recalled_while_a_thread_runs_it_has_each_item_started_or_recalled() -> None:
    seen = set()
    for size in range(0, 200, 2):
        running = RunningBatch([[number] for number in range(size)], lambda: True)
        ran: list[object] = []
        enough = threading.Event()

        def run(
            running: RunningBatch = running,
            ran: list[object] = ran,
            enough: threading.Event = enough,
            half: int = size // 2,
        ) -> None:
            for (number,) in running:
                ran.append(number)
                if len(ran) > half:
                    enough.set()
            enough.set()

        thread = threading.Thread(target=run)
        thread.start()
        enough.wait()
        started = running.close()
        thread.join()
        assert ran == list(range(started)), "those that it says, in order, and no other one"
        assert running.close() == started, "to close twice is to close once"
        seen.add(started < size)
    assert True in seen, "some were recalled in time"


def test_a_batch_whose_actor_is_paused_starts_no_more_and_says_how_many() -> None:
    ran: list[object] = []
    running = RunningBatch([[number] for number in range(10)], lambda: len(ran) < 4)
    for (number,) in running:
        ran.append(number)
    assert ran == [0, 1, 2, 3]
    assert running.close() == 4
