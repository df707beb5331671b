"""`fail_after` of the blocking door: whatever blocks within it ends in time, and nothing else."""

from __future__ import annotations

import math
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from actors import Actor, method
from runtime.blocking import Blocking, BlockingLocalCluster, connect, fail_after
from tests.doors.actors_used import Counter

pytestmark = pytest.mark.cluster

OVER = "the time limit of `fail_after` has passed"
SHORT = 0.1


class NeverStarts(Actor):
    async def on_start(self) -> None:
        await trio.sleep_forever()

    @method
    async def read(self) -> None: ...


def test_a_call_is_cancelled_where_it_runs(counter: Blocking[Counter]) -> None:
    text = f"{OVER}; the call that was under way was cancelled, and may have run"
    with pytest.raises(TimeoutError, match=text), fail_after(SHORT):
        counter.hang("late")
    assert counter.wait_for("late cancelled")
    # A new limit, and none, hold for what comes after.
    with fail_after(60.0):
        assert counter.add(1) == 1
    assert counter.add(1) == 2


def test_the_nearest_end_of_nested_limits_holds(counter: Blocking[Counter]) -> None:
    for outer, inner in ((SHORT, 60.0), (60.0, SHORT)):
        with pytest.raises(TimeoutError, match=OVER), fail_after(outer), fail_after(inner):
            counter.hang("nested")
    with fail_after(60.0):
        with pytest.raises(TimeoutError, match=OVER), fail_after(0):
            counter.hang("at once")
        assert counter.add(1) == 1


def test_a_start_and_an_end_that_never_come(
    counter: Blocking[Counter], cluster: BlockingLocalCluster
) -> None:
    text = f"{OVER}; the start that was under way was cancelled; what has started is stopped again"
    with pytest.raises(TimeoutError, match=text), fail_after(SHORT):
        cluster.spawn(NeverStarts)
    text = f"{OVER}; what was under way was cancelled$"
    with pytest.raises(TimeoutError, match=text), fail_after(SHORT):
        cluster.wait_ended(counter)


def test_a_node_that_accepts_and_says_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError, match=OVER),
        fail_after(SHORT),
    ):
        connect(f"127.0.0.1:{silent.getsockname()[1]}", secret="any")


def test_other_threads_have_no_limit(counter: Blocking[Counter]) -> None:
    with ThreadPoolExecutor(1) as pool, fail_after(0):
        assert pool.submit(counter.add, 1).result() == 1


@pytest.mark.parametrize("seconds", [-1, math.nan, 10**400])
def test_no_time_is_no_limit(seconds: float) -> None:
    with pytest.raises(ValueError, match="a time limit must be a number"), fail_after(seconds):
        pytest.fail("entered")


@pytest.mark.parametrize("given", ["1", None, True, [1]])
def test_what_is_no_number_is_refused_with_a_text(given: object) -> None:
    with pytest.raises(TypeError, match="a time limit must be a number of seconds, 0 or more"):
        fail_after(given)  # type: ignore[arg-type]


def test_a_limit_may_be_used_again(counter: Blocking[Counter]) -> None:
    limit = fail_after(60.0)
    with limit, limit:
        assert counter.add(1) == 1
    with limit:
        assert counter.add(1) == 2
    short = fail_after(SHORT)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=OVER), short:
            counter.hang("again")
