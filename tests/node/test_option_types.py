"""An option of the wrong type is refused by its own name, wherever options are given."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

import runtime.aio
import runtime.blocking
from actors import Actor, CallOptions, ChildSpec, RetryPolicy, SpawnOptions
from runtime import open_local_cluster, open_node

HUGE = 10**400
"""An int that no float can hold."""

OF_NODES: dict[str, tuple[object, ...]] = {
    "name": (3, b"n"),
    "join": (3, b"127.0.0.1:1"),
    "listen": (3,),
    "advertise": (b"x",),
    "cluster": (3, None),
    "secret": (3, [3]),
    "labels": (3, [("a", "b")], {"a": 1}),
    "resources": ([1], {"a": "1"}),
    "data_dir": (3, b"x", "", "\0", "\ud800"),
    "store": (3, ""),
    "reference_memory": ("1", 1.5),
    "reference_directory": (3, b"x", "\0"),
    "references_on_leave": (3, []),
    "trace_references": (1,),
    "post_mortem": ("yes",),
    "debuggable": (None,),
    "thread_limit": ("4", 0, 1.5),
    "blocked_limit": ("1", -1.0, None),
    "log_memory": ("x", -1),
    "call_timeout": ("3", 0, True),
    "tls": (3, object(), "on"),
    "filters": (3,),
    "metrics": (9090,),
    "measured_supervisors": (3, "one", [3]),
    "tracing": ("yes",),
    "on_process_start": (3,),
    "spawnable": (3, [3]),
    "authorize": (3,),
    "client_actors": ("2", -1),
    "role": (3, "king", []),
    "platform": (3,),
}

OF_STARTED: dict[str, tuple[object, ...]] = {
    "name": (3, b"n", "", "a\nb", "@x", "client-1", "n" * 300),
    "labels": (3, [("a", "b")], {"a": 1}),
    "resources": ([1], {"a": "1"}, {"a": HUGE}),
    "blocked_limit": ("1", -1.0, None, math.nan, HUGE),
}

OF_CLUSTERS: dict[str, tuple[object, ...]] = {
    "nodes": ("2", -1),
    "cluster": (3,),
    "store": (3, ""),
    "data_dir": (3, "\0"),
    "call_timeout": ("3",),
    "tracing": ("yes",),
    "on_process_start": (3,),
    "on_line": (3,),
}

OF_CONNECTIONS: dict[str, tuple[object, ...]] = {
    "address": (3,),
    "name": (3,),
    "cluster": (3,),
    "secret": (3,),
    "call_timeout": ("3", HUGE),
    "tls": (3,),
    "tracing": ("yes",),
    "role": (3,),
}

OF_SPAWNS: dict[str, tuple[object, ...]] = {
    "timeout": ("3", HUGE),
    "retry": (3,),
    "name": (3,),
    "on": (3,),
    "labels": (3,),
    "resources": (3, {"cpu": HUGE}),
    "placement": (3, []),
    "mailbox_limit": ("3", HUGE),
    "mailbox_bytes": ("3", HUGE),
    "thread_limit": ("3", HUGE),
    "idle_timeout": ("3", HUGE),
    "isolation": (3, []),
    "memory_limit": ("3", HUGE),
    "idempotent": (3,),
}

OF_POLICIES: dict[str, tuple[object, ...]] = {
    name: ("x", [3], HUGE) for name in inspect.signature(RetryPolicy).parameters
}

OF_CHILDREN: dict[str, tuple[object, ...]] = {
    "id": (3,),
    "actor": (3,),
    "args": (3,),
    "kwargs": (3,),
    "restart": (3, []),
    "significant": (3,),
    "kind": (3, []),
    "shutdown": ("x", [], HUGE),
    "start_timeout": ("3", HUGE),
    "options": (3,),
}


class Counter(Actor):
    pass


def check(
    make: Callable[..., object], table: dict[str, tuple[object, ...]], what: object = None
) -> None:
    """Each value of the table is refused with its option's name."""
    assert set(table) == set(inspect.signature(what or make).parameters)  # type: ignore[arg-type]
    unnamed: list[str] = []
    for option, values in table.items():
        for value in values:
            try:
                make(**{option: value})
            except (TypeError, ValueError) as error:
                words = str(error).replace("=", " ").replace(":", " ").replace(".", " ").split()
                if option not in words:
                    unnamed.append(f"{option}={value!r}: {error}")
            else:
                unnamed.append(f"{option}={value!r} was taken")
    assert unnamed == []


async def test_those_of_a_node() -> None:
    async def opened(**options: Any) -> None:
        async with open_node(**options):
            pass

    for option, values in OF_NODES.items():
        for value in values:
            with pytest.raises((TypeError, ValueError), match=rf"(^|\W){option}\b"):
                await opened(**{option: value})
    assert set(OF_NODES) == set(inspect.signature(open_node).parameters)


async def test_those_of_a_local_cluster() -> None:
    for option, values in OF_CLUSTERS.items():
        for value in values:
            with pytest.raises((TypeError, ValueError), match=rf"(^|\W){option}\b"):
                async with open_local_cluster(**{"nodes": 0, option: value}):  # type: ignore[arg-type]
                    pass
    assert set(OF_CLUSTERS) == set(inspect.signature(open_local_cluster).parameters)


async def test_those_of_a_node_that_a_local_cluster_starts() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        start: Any = cluster.start_node
        for option, values in OF_STARTED.items():
            for value in values:
                with pytest.raises((TypeError, ValueError), match=rf"(^|\W){option}\b"):
                    await start(**{option: value})
        assert set(OF_STARTED) == set(inspect.signature(start).parameters)
        assert cluster.processes == {}


def test_those_of_the_doors() -> None:
    def connected(**options: Any) -> None:
        runtime.blocking.connect(**{"address": "127.0.0.1:9", **options}).close()

    def awaited(**options: Any) -> None:
        async def main() -> None:
            async with runtime.aio.connect(**{"address": "127.0.0.1:9", **options}):
                pass

        asyncio.run(main())

    check(connected, OF_CONNECTIONS, runtime.blocking.connect)
    check(awaited, OF_CONNECTIONS, runtime.aio.connect)


def test_those_of_spawns_calls_policies_and_children() -> None:
    check(SpawnOptions, OF_SPAWNS)
    check(CallOptions, {name: OF_SPAWNS[name] for name in ("timeout", "retry")})
    check(RetryPolicy, OF_POLICIES)

    def child(**options: Any) -> None:
        ChildSpec(**{"id": "a", "actor": Counter, **options})

    check(child, OF_CHILDREN, ChildSpec)
