"""The endpoint of metrics and health, over real connections: what it tells, and what it bears."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import ListenError, RemoteError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.membership.lease import LeaseClock
from runtime.metrics.definitions import DEFINITIONS
from runtime.metrics.endpoint import MOST_CONNECTIONS, MetricsEndpoint
from runtime.metrics.readings import LoopHealth, read
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.live_pair import SECRET
from tests.metrics.scraping import families, get, get_json, scrape
from tests.waiting import until

BLOCKED = threading.Event()
"""Set when the loop stands still."""


class Clerk(Actor):
    """Is called by the tests."""

    @method
    async def add(self, number: int) -> int:
        return number + 1

    @method
    async def fail(self) -> None:
        raise ValueError("on purpose")

    @method
    async def block(self, seconds: float) -> None:
        BLOCKED.set()
        time.sleep(seconds)  # noqa: ASYNC251  what it must not do


CLERK = f"{Clerk.__module__}:{Clerk.__qualname__}"


@pytest.fixture
async def node(timings: Timings) -> AsyncIterator[Node]:
    """A node with metrics."""
    platform = Platform(environment=SystemEnvironment(timings))
    async with open_node("alone", secret=SECRET, metrics="0", platform=platform) as node:
        yield node


async def test_a_scrape_has_every_metric_and_no_other(node: Node) -> None:
    _, text = await get(node.metrics_address, "/metrics")
    found = {name: kind for name, kind in families(text).items() if "process_" not in name}
    assert found == {one.name: one.kind for one in DEFINITIONS}


async def test_the_process_itself_is_reported_as_well(node: Node) -> None:
    assert "process_resident_memory_bytes" in await scrape(node.metrics_address)


async def test_calls_are_reported_by_class_and_method(node: Node) -> None:
    clerk = await node.options(name="the-very-clerk").spawn(Clerk)
    for number in range(7):
        await clerk.add(number)
    with pytest.raises(RemoteError):
        await clerk.fail()
    found = await scrape(node.metrics_address)
    add = (("class", CLERK), ("method", "add"))
    for name in (
        "rpc_client_call_duration_seconds",
        "rpc_server_call_duration_seconds",
        "understudy_mailbox_wait_seconds",
        "understudy_turn_seconds",
    ):
        assert found[f"{name}_count"][add] == 7
        assert found[f"{name}_bucket"][(add[0], ("le", "+Inf"), add[1])] == 7
    outcomes = found["understudy_call_outcomes_total"]
    assert outcomes[(*add, ("outcome", "value"), ("reason", ""))] == 7
    assert (
        sum(
            count
            for labels, count in outcomes.items()
            if ("outcome", "raised") in labels and ("method", "fail") in labels
        )
        == 1
    )
    assert found["understudy_actors"][(("class", CLERK), ("state", "running"))] == 1
    await node.stop(clerk)
    found = await scrape(node.metrics_address)
    assert found["understudy_actors"][(("class", CLERK), ("state", "running"))] == 0
    assert found["understudy_actor_ends_total"][(("class", CLERK), ("kind", "stopped"))] == 1


async def test_no_label_has_the_name_of_an_actor(node: Node) -> None:
    clerk = await node.options(name="the-very-clerk").spawn(Clerk)
    await clerk.add(1)
    _, text = await get(node.metrics_address, "/metrics")
    assert CLERK in text
    assert "the-very-clerk" not in text


ODD_CLASS = 'x"} 1\nunderstudy_forged_total{by="<script>'


async def test_a_label_forges_no_sample(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = type(ODD_CLASS, (Clerk,), {"__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], ODD_CLASS, odd, raising=False)
    clerk = await node.spawn(odd)
    assert await clerk.add(1) == 2
    _, text = await get(node.metrics_address, "/metrics")
    assert "understudy_forged_total" in text
    assert not any(line.startswith("understudy_forged_total") for line in text.splitlines())
    assert "understudy_forged_total" not in await scrape(node.metrics_address)


async def test_a_scrape_does_not_look_at_actors_one_by_one(node: Node) -> None:
    class Unread(dict[str, Any]):
        def refuse(self, *_: object) -> Any:
            raise AssertionError("it looks at all actors")

        __iter__ = items = values = keys = __len__ = refuse

    for _ in range(20):
        await node.spawn(Clerk)
    host = internals_of(node).host
    cells = host.cells
    host.cells = Unread(cells)
    try:
        metrics = internals_of(node).metrics
        assert metrics is not None
        found = read(metrics._parts, metrics._statistics, LoopHealth())
    finally:
        host.cells = cells
    assert ((CLERK, "running"), 20.0) in found.numbers["understudy_actors"]


async def test_health_and_readiness(node: Node) -> None:
    assert await get_json(node.metrics_address, "/healthz") == (
        200,
        {"state": "alive", "node": "alone"},
    )
    assert (await get_json(node.metrics_address, "/readyz"))[0] == 200
    clock = internals_of(node).registration.clock
    internals_of(node).registration.clock = LeaseClock(-1.0, clock.asked)
    status, fields = await get_json(node.metrics_address, "/readyz")
    internals_of(node).registration.clock = clock
    assert (status, fields["reasons"]) == (503, ["the node's lease is in doubt"])
    internals_of(node).host.draining = True
    status, fields = await get_json(node.metrics_address, "/readyz")
    internals_of(node).host.draining = False
    assert (status, fields["reasons"]) == (503, ["the node drains and leaves"])
    assert (await get_json(node.metrics_address, "/healthz"))[0] == 200


@pytest.mark.parametrize("timings", [Timings(loop_answer=0.2)], ids=["impatient"])
async def test_a_blocked_loop_is_reported_with_what_blocks_it(node: Node) -> None:
    clerk = await node.options(name="slow").spawn(Clerk)
    answers: list[tuple[int, str]] = []

    ready: list[bool] = []

    def stands_still() -> None:
        ready.append(True)
        assert BLOCKED.wait(20)

    async def ask(path: str) -> None:
        answers.append(await get(node.metrics_address, path, after=stands_still))

    BLOCKED.clear()
    async with trio.open_nursery() as nursery:
        for path in ("/healthz", "/readyz", "/metrics"):
            nursery.start_soon(ask, path)
        # The threads must be there before the loop can start no more.
        await until(lambda: len(ready) == 3, "the threads wait")
        await clerk.block(2.0)
    assert [status for status, _ in answers] == [503] * 3, answers
    assert all("slow.block" in text for _, text in answers), answers
    assert (await get_json(node.metrics_address, "/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/x", 404),
        ("POST", "/metrics", 405),
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?name=x", 200),
        ("GET", "http://localhost/metrics?name=x", 200),
        ("GET", "http://evil.example/metrics", 403),
        ("GET", "http:///metrics", 400),
    ],
)
async def test_other_requests(node: Node, method: str, path: str, status: int) -> None:
    found, body = await get(node.metrics_address, path, method)
    assert found == status
    assert body or method == "HEAD"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff garbage\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: no\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nx: y\r\n z\r\n\r\n",
    ],
    ids=["garbage", "huge head", "huge path", "no host", "bad length", "line feed", "folded"],
)
async def test_what_is_no_request_is_refused(node: Node, sent: bytes) -> None:
    host, port = node.metrics_address.split(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        try:
            await stream.send_all(sent)
            answer = b"".join([data async for data in stream])
        except trio.BrokenResourceError:
            answer = b""
    assert answer[:10] in (b"HTTP/1.1 4", b"")
    assert (await get_json(node.metrics_address, "/healthz"))[0] == 200


async def asked_as(node: Node, host: str | None, path: str = "/metrics") -> bytes:
    """The answer to a request with this Host header; None for none, as HTTP/1.0 allows."""
    where, port = node.metrics_address.split(":")
    version, header = ("1.0", "") if host is None else ("1.1", f"host: {host}\r\n")
    async with await trio.open_tcp_stream(where, int(port)) as stream:
        await stream.send_all(f"GET {path} HTTP/{version}\r\n{header}\r\n".encode())
        return b"".join([data async for data in stream])


async def test_a_page_cannot_read_it_under_a_name_of_its_own(node: Node) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"):
        for path in ("/metrics", "/healthz", "/readyz"):
            answer = await asked_as(node, host, path)
            assert answer.startswith(b"HTTP/1.1 403"), (host, path)
            assert b"ask for it as localhost" in answer
            assert b"alone" not in answer
    for given in (
        "localhost:9464",
        "LOCALHOST",
        "127.0.0.1",
        "[::1]:1",
        socket.gethostname(),
        None,
    ):
        answer = await asked_as(node, given)
        assert answer.startswith(b"HTTP/1.1 200"), given
        # No page of another site is allowed to read it either.
        assert b"access-control" not in answer.lower()


@pytest.mark.parametrize("timings", [Timings(metrics_request=1e6)], ids=["patient"])
async def test_silent_connections_keep_no_health_check_out(node: Node) -> None:
    host, port = node.metrics_address.split(":")
    streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(3 * MOST_CONNECTIONS)]
    for _ in range(5):
        assert (await get_json(node.metrics_address, "/healthz"))[0] == 200
    # Those that came first were ended for those that came later, and not by the time of a request.
    with trio.fail_after(60):
        for stream in streams[: 2 * MOST_CONNECTIONS]:
            assert await stream.receive_some() == b""
    for stream in streams:
        await stream.aclose()


@pytest.mark.parametrize("timings", [Timings(metrics_request=0.5)], ids=["impatient"])
async def test_clients_that_stand_still_are_cut_off(node: Node) -> None:
    clerk = await node.spawn(Clerk)
    host, port = node.metrics_address.split(":")
    streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(100)]
    for stream in streams[::2]:
        try:
            await stream.send_all(b"GET /metr")
        except trio.BrokenResourceError:
            # One too many: closed already.
            pass
    for number in range(100):
        assert await clerk.add(number) == number + 1
    with trio.fail_after(60):
        for stream in streams:
            try:
                assert await stream.receive_some() == b""
            except trio.BrokenResourceError:
                # Closed with a reset: it had sent something that was not read.
                pass
            await stream.aclose()
        assert (await get_json(node.metrics_address, "/healthz"))[0] == 200


async def test_a_scraper_that_asks_all_the_time_takes_nothing_from_calls(node: Node) -> None:
    clerk = await node.spawn(Clerk)
    done = 0
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            while True:
                assert (await get(node.metrics_address, "/metrics"))[0] == 200

        for _ in range(3):
            nursery.start_soon(ask)
        for number in range(2000):
            done += await clerk.add(number) == number + 1
        nursery.cancel_scope.cancel()
    assert done == 2000


async def test_a_port_in_use_is_named_and_the_node_is_not_opened(node: Node) -> None:
    with pytest.raises(ListenError, match=r"metrics cannot be served at .* in use"):
        async with open_node(
            "other", join=node.address, secret=SECRET, metrics=node.metrics_address
        ):
            raise AssertionError("it is open")
    await node.wait_gone("other")


class _Ended:
    """A thread that was ended before it began."""

    async def end(self) -> None:
        await trio.lowlevel.checkpoint()


class _LateEnvironment(SystemEnvironment):
    def run_beside(self, *_: object) -> Any:
        return _Ended()


async def test_a_port_is_free_again_also_where_serving_has_never_begun(node: Node) -> None:
    opened = internals_of(node).metrics
    assert opened is not None
    parts = attrs.evolve(opened._parts, environment=_LateEnvironment())
    late = MetricsEndpoint(parts, opened._statistics, None)
    async with trio.open_nursery() as nursery:
        address = await late.open("0", nursery)
        with pytest.raises(OSError, match="in use"):
            await trio.open_tcp_listeners(int(address.rpartition(":")[2]), host="127.0.0.1")
        await late.close()
        nursery.cancel_scope.cancel()
    for listener in await trio.open_tcp_listeners(
        int(address.rpartition(":")[2]), host="127.0.0.1"
    ):
        await listener.aclose()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "1.2.3.4:99999", "x:y", ""])
async def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"metrics: .*is not an address"):
        async with open_node(metrics=address):
            raise AssertionError("it is open")


async def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'understudy-actors\[metrics\]'"):
        async with open_node(metrics="0"):
            raise AssertionError("it is open")


async def test_nothing_is_left_when_the_node_has_gone() -> None:
    import gc

    before = list(gc.callbacks)
    async with open_node("gone", secret=SECRET, metrics="0") as node:
        address = node.metrics_address
        assert (await get_json(address, "/healthz"))[0] == 200
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
    with pytest.raises(OSError, match="refused"):
        await get(address, "/healthz")


async def test_a_scrape_has_what_is_defined(node: Node) -> None:
    _, text = await get(node.metrics_address, "/metrics")
    assert {one.name for one in DEFINITIONS} == {
        name for name in families(text) if "process_" not in name
    }
