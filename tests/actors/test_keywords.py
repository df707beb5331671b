"""A misspelled option is named with the nearest one, wherever options are given."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable

import pytest

import runtime.aio
import runtime.blocking
from actors import Actor, CallOptions, ChildSpec, RetryPolicy, SpawnOptions, method
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
