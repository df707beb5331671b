"""A misspelled option is named with the nearest one, wherever options are given."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import runtime.aio
import runtime.blocking
from actors import (
    Actor,
    CallOptions,
    ChildSpec,
    RetryPolicy,
    SpawnOptions,
    method,
    wait_all,
    wait_any,
)
from actors.errors import BadArgumentsError
from runtime import open_local_cluster, open_node
from runtime.testing import VirtualCluster


class Counter(Actor):
    @method
    async def add(self, amount: int) -> int:
        return amount

    @method
    async def count(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            yield number


@pytest.mark.parametrize(
    ("function", "wrong", "right"),
    [
        (open_node, "nmae", "name"),
        (open_local_cluster, "ndoes", "nodes"),
        (runtime.blocking.connect, "scret", "secret"),
        (runtime.blocking.open_local_cluster, "ndoes", "nodes"),
        (runtime.aio.connect, "scret", "secret"),
        (runtime.aio.open_local_cluster, "ndoes", "nodes"),
        (CallOptions, "tiemout", "timeout"),
        (SpawnOptions, "lables", "labels"),
        (ChildSpec, "restrat", "restart"),
        (ChildSpec(id="a", actor="b:C").changed, "shutdwon", "shutdown"),
        (RetryPolicy, "max_retrys", "max_retries"),
        (method, "idempotnt", "idempotent"),
    ],
)
def test_a_misspelled_option_is_named_with_the_nearest_and_all_others(
    function: Callable[..., object], wrong: str, right: str
) -> None:
    with pytest.raises(TypeError, match=f"takes no '{wrong}'; did you mean '{right}'.* It takes "):
        function(**{wrong: 1})


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'address'"):
        runtime.blocking.connect()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="max_retries must be"):
        RetryPolicy(max_retries="x")  # type: ignore[arg-type]
    assert "name" in inspect.signature(open_node).parameters
    assert "timeout" in inspect.signature(SpawnOptions).parameters


async def test_options_of_nodes_handles_methods_and_calls(cluster: VirtualCluster) -> None:
    node = cluster.node
    with pytest.raises(TypeError, match="did you mean 'mailbox_limit'"):
        node.options(mailbox_limits=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'name'"):
        node.options(on="worker-1").options(nane="x")  # type: ignore[call-arg]
    counter = await node.spawn(Counter)
    for bound in (counter, counter.add, counter.count):
        with pytest.raises(TypeError, match="did you mean 'timeout'"):
            bound.options(tiemout=1)  # type: ignore[call-arg]
    with pytest.raises(BadArgumentsError, match=r"before the start: node\.options\(name=\.\.\.\)"):
        await node.spawn(Counter, name="counter")  # type: ignore[call-arg]
    with pytest.raises(BadArgumentsError, match=r"before the call: add\.options\(timeout=\.\.\.\)"):
        await counter.add(1, timeout=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text"),
    [
        (ChildSpec, ("a", Counter), {}, r"takes keywords, such as id=\.\.\..*ChildSpec\.of\("),
        (ChildSpec, (), {"id": "a", "actor": Counter, "on": "w1"}, r"takes no 'on'.*\.changed\("),
        (RetryPolicy, (3,), {}, r"takes keywords, such as max_retries=\.\.\."),
        (CallOptions, (2.0,), {}, r"takes keywords, such as timeout=\.\.\."),
    ],
)
def test_options_by_their_place_and_options_of_something_else_are_type_errors(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    text: str,
) -> None:
    with pytest.raises(TypeError, match=text):
        function(*args, **kwargs)


async def test_an_option_without_its_name_is_refused_with_the_names(
    cluster: VirtualCluster,
) -> None:
    node: Any = cluster.node
    counter: Any = await node.spawn(Counter)
    opening: Any = open_node
    others: Any = (open_local_cluster, runtime.blocking.connect, wait_any, wait_all)
    local, connect, any_of, all_of = others
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: node.options("counter"), "options.*nothing.*'counter' has none.* name, "),
        (lambda: node.options(on="w").options("counter"), "'counter' has none.* name, "),
        (lambda: counter.options(2.0), r"2\.0 has none.*which is timeout or retry"),
        (lambda: counter.add.options(2.0), r"2\.0 has none.*which is timeout or retry"),
        (lambda: counter.count.options(2.0), r"2\.0 has none.*which is timeout$"),
        (lambda: node.stop(counter, "enough"), "stop.*takes handle.*'enough'.*is reason$"),
        (lambda: any_of([], 5), "wait_any.*takes references.*5 has none.*count or timeout"),
        (lambda: all_of([], 5), "wait_all.*takes references.*5 has none.*is timeout$"),
        (lambda: opening("a", "127.0.0.1:1"), "open_node.*takes name.*one of join, listen"),
        (lambda: local(2, "a"), "takes nodes.*'a' has none.*one of cluster, store"),
        (lambda: connect("a:1", "n"), "connect.*takes address.*one of cluster, secret"),
        (lambda: node.remove_pool_journal("a", 3.0), r"takes name.*3\.0.*is unused_for$"),
    ]
    for make, text in mistakes:
        with pytest.raises(TypeError, match=text):
            make()


async def test_a_pool_without_a_name_or_a_size_says_where_they_go(cluster: VirtualCluster) -> None:
    node: Any = cluster.node
    with pytest.raises(TypeError, match=r"pool\(None, Counter, size=2\)"):
        await node.pool(Counter, 2)
    with pytest.raises(TypeError, match=r"pool\(None, Counter, size=8\)"):
        await node.pool(Counter, "counters", size=8)
    with pytest.raises(ValueError, match=r"give size=8.*behind the class is for the constructor"):
        await node.pool("counters", Counter, 2)
