"""Traces as an application's SDK records them: whole over nodes, retries, isolated processes and
restarts, with the names of the semantic conventions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from opentelemetry import trace

from actors import ChildSpec, RetryPolicy, Supervisor, call_context
from actors.errors import FunctionNotImportableError, RemoteError
from runtime import Node, blocking, open_node
from tests.actors.test_call_context import PARENT
from tests.live_pair import SECRET
from tests.tracing.actors_used import Hop
from tests.tracing.recording import FILE_VARIABLE, SpanSeen, fail, provider_for, record, spans_in
from tests.waiting import until


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the spans of this process, and of those that call `record`."""
    path = tmp_path / "spans.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    # The API lets a program set its provider once: a test has a new one each time.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider_for(str(path)))
    return path


@attrs.frozen
class Traced:
    """Two nodes with traces."""

    here: Node
    there: Node
    hop: Hop
    path: Path

    async def spans(self, count: int) -> list[SpanSeen]:
        """The spans of calls, once there are so many."""
        return await until(
            lambda: [one for one in spans_in(self.path) if "/" in one.name],
            f"{count} spans of calls",
            lambda spans: len(spans) >= count,
        )


@pytest.fixture
async def traced(recorded: Path, where: str) -> AsyncIterator[Traced]:
    """See `Traced`."""
    async with (
        open_node("here", secret=SECRET, tracing=True) as here,
        open_node("there", join=here.address, secret=SECRET, tracing=True) as there,
    ):
        await here.wait_for(2)
        yield Traced(here, there, await here.options(on=where, name="hop").spawn(Hop), recorded)


async def test_a_call_is_two_spans_with_the_names_of_the_conventions(
    traced: Traced, where: str
) -> None:
    with call_context.having(tenant="acme"):
        assert await traced.hop.go([]) == "hop"
    server, client = await traced.spans(2)
    assert (client.name, client.kind, client.parent) == ("Hop/go", "CLIENT", "")
    assert (server.name, server.kind, server.parent) == ("Hop/go", "SERVER", client.span)
    assert server.trace == client.trace
    for span in (client, server):
        facts = {
            "rpc.system.name": "understudy",
            "rpc.method": "Hop/go",
            "rpc.status_code": "OK",
            "understudy.actor": "hop",
            "understudy.node": where,
        }
        assert facts.items() <= span.attributes.items()
        assert span.attributes["understudy.incarnation"] > 0
    assert client.attributes["understudy.attempts"] == 1
    assert client.events == ["attempt"]
    address = f"{client.attributes.get('network.peer.address')}:"
    address += str(client.attributes.get("network.peer.port"))
    assert address == ("None:None" if where == "here" else traced.there.address)
    assert server.attributes["understudy.repeat"] is False
    assert server.attributes["understudy.mailbox_wait"] >= 0


async def test_failures_are_named(traced: Traced) -> None:
    with pytest.raises(RemoteError):
        await traced.hop.fail()
    server, client = await traced.spans(2)
    assert server.attributes["rpc.status_code"] == client.attributes["rpc.status_code"] == "RAISED"
    assert server.attributes["error.type"] == "builtins.LookupError"
    assert server.status == client.status == "ERROR"
    with pytest.raises(trio.TooSlowError), trio.fail_after(0):
        await traced.hop.go([])
    spans = await traced.spans(3)
    assert spans[-1].attributes["rpc.status_code"] == "CANCELLED"


async def test_all_attempts_are_one_client_span(traced: Traced) -> None:
    policy = RetryPolicy(max_retries=3, initial_delay=0.001, retry_on=(LookupError,))
    await traced.hop.fail_once.options(retry=policy)()
    spans = await traced.spans(3)
    (client,) = [one for one in spans if one.kind == "CLIENT"]
    servers = [one for one in spans if one.kind == "SERVER"]
    assert client.events == ["attempt", "attempt"]
    assert client.attributes["understudy.attempts"] == 2
    assert [one.parent for one in servers] == [client.span] * 2
    assert [one.attributes["understudy.repeat"] for one in servers] == [False, True]


async def test_a_one_way_call_is_linked_and_no_child(traced: Traced) -> None:
    await traced.hop.go.send([])
    spans = await traced.spans(2)
    (producer,) = [one for one in spans if one.kind == "PRODUCER"]
    (consumer,) = [one for one in spans if one.kind == "CONSUMER"]
    assert consumer.links == [producer.span]
    assert (consumer.parent, consumer.trace != producer.trace) == ("", True)


async def test_a_stream_is_one_span_on_each_side(traced: Traced) -> None:
    with trace.get_tracer("tests").start_as_current_span("reader"):
        async for _ in traced.hop.items():
            # The reader's own spans are not inside of the stream's.
            assert trace.get_current_span().name == "reader"  # type: ignore[attr-defined]
    spans = await traced.spans(2)
    client, server = sorted(spans, key=lambda one: one.kind)
    assert (client.name, server.name) == ("Hop/items", "Hop/items")
    assert server.parent == client.span
    (reader,) = [one for one in spans_in(traced.path) if one.name == "reader"]
    assert client.parent == reader.span


async def test_the_application_s_spans_are_between_ours(traced: Traced) -> None:
    with trace.get_tracer("tests").start_as_current_span("request") as request:
        await traced.hop.own_span()
    spans = {one.name + one.kind: one for one in spans_in(traced.path)}
    assert spans["Hop/own_spanCLIENT"].parent == f"{request.get_span_context().span_id:016x}"
    assert spans["own workINTERNAL"].parent == spans["Hop/own_spanSERVER"].span


async def test_a_trace_from_outside_goes_on(traced: Traced) -> None:
    token = call_context.set(call_context.get().with_trace(PARENT, "x=1", "k=v"))
    await traced.hop.go([])
    call_context.reset(token)
    spans = await traced.spans(2)
    assert {one.trace for one in spans} == {PARENT.split("-")[1]}
    (client,) = [one for one in spans if one.kind == "CLIENT"]
    assert client.parent == PARENT.split("-")[2]


async def test_starts_restarts_joins_and_fetches(recorded: Path) -> None:
    async with open_node("here", secret=SECRET, tracing=True) as here:
        await here.options(name="boss").spawn(Supervisor, [ChildSpec.of("worker", Hop)])
        worker = await here.lookup("boss/worker", Hop)
        reference = await worker.go.remote([])
        assert await reference.fetch() == "boss/worker"
        epoch = worker.epoch  # type: ignore[unused-ignore]
        with pytest.raises(Exception):  # noqa: B017, PT011  how it ends is not the point
            await worker.crash()
        found: Any = await until(
            lambda: here.lookup("boss/worker", Hop), "restarted", lambda one: one.epoch > epoch
        )
        await found.go([])
    spans = spans_in(recorded)
    names = [one.name for one in spans]
    assert "node.join" in names
    assert "reference.fetch" in names
    starts = [
        one
        for one in spans
        if one.name == "actor.start" and one.attributes["understudy.actor"] == "boss/worker"
    ]
    (again,) = [one for one in spans if one.name == "actor.restart"]
    assert again.parent == ""
    assert [one.parent == again.span for one in starts] == [False, True]
    transactions = [one for one in spans if one.name == "store.txn"]
    assert all(one.attributes["understudy.store.operations"] > 0 for one in transactions)
    # The claim of the name; what the node writes in the background begins no trace.
    boss = next(one for one in spans if one.attributes.get("understudy.actor") == "boss")
    assert boss.span in {one.parent for one in transactions}
    assert all(one.parent for one in transactions)


@pytest.mark.cluster
def test_one_trace_over_four_hops_a_retry_and_an_isolated_process(recorded: Path) -> None:
    """In real processes, each with an SDK of its own."""
    with blocking.open_local_cluster(3, tracing=True, on_process_start=record) as cluster:
        hops: list[Any] = [
            cluster.options(on="worker-1", name="one").spawn(Hop),
            cluster.options(on="worker-2", isolation="process", name="two").spawn(Hop),
            cluster.options(on="worker-3", name="three").spawn(Hop),
            cluster.options(on="worker-1", isolation="process", name="four").spawn(Hop),
        ]
        with trace.get_tracer("tests").start_as_current_span("script") as span:
            assert hops[0].go(hops[1:]) == "one two three four"
            policy = RetryPolicy(max_retries=3, initial_delay=0.001, retry_on=(LookupError,))
            hops[1].fail_once.options(retry=policy)()
        whole = f"{span.get_span_context().trace_id:032x}"
    spans = [one for one in spans_in(recorded) if one.trace == whole]
    by_id = {one.span: one for one in spans}
    (root,) = [one for one in spans if not one.parent]
    assert root.name == "script"
    # Unbroken: every span but the script's has its parent among them.
    assert all(one.parent in by_id for one in spans if one is not root)
    goes = [one for one in spans if one.name == "Hop/go"]
    # Four calls; the isolated actors have a span in their nodes and one in their processes.
    assert sorted(one.kind for one in goes) == ["CLIENT"] * 4 + ["SERVER"] * 6
    assert len({one.pid for one in spans}) == 6
    (last,) = [
        one
        for one in goes
        if one.attributes["understudy.actor"] == "four"
        and one.kind == "SERVER"
        and by_id[one.parent].kind == "SERVER"
    ]
    depth, above = 0, last
    while above is not root:
        depth, above = depth + 1, by_id[above.parent]
    assert depth == 10
    (retried,) = [one for one in spans if one.name == "Hop/fail_once" and one.kind == "CLIENT"]
    assert retried.events == ["attempt", "attempt"]


@pytest.mark.cluster
async def test_a_hook_that_fails_ends_nothing(recorded: Path, caplog: Any) -> None:
    async with open_node(secret=SECRET, tracing=True, on_process_start=fail) as node:
        isolated = await node.options(isolation="process").spawn(Hop)
        assert await isolated.go([]) == isolated.name  # type: ignore[unused-ignore]


async def test_a_hook_that_is_none_is_refused() -> None:
    for wrong in ("no.such.module:hook", "nothing", lambda: None):
        with pytest.raises(FunctionNotImportableError):
            await open_node(secret=SECRET, on_process_start=wrong).__aenter__()
    with pytest.raises(TypeError, match=r"on_process_start is a function, .*, not 7"):
        await open_node(secret=SECRET, on_process_start=7).__aenter__()  # type: ignore[arg-type]


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
import trio
from actors import call_context
from runtime import open_node
from tests.calls.context_actors import Teller

async def main():
    try:
        async with open_node(secret="x" * 20, tracing=True):
            print("opened")
    except ModuleNotFoundError as error:
        print(error)
    async with open_node(secret="x" * 20) as node:
        call_context.set(call_context.get().with_trace(sys.argv[1]))
        print(await (await node.options(isolation="process").spawn(Teller)).tell())

if __name__ == "__main__":
    trio.run(main)
"""


@pytest.mark.cluster
def test_without_opentelemetry_the_trace_is_carried_and_the_extra_is_named(tmp_path: Path) -> None:
    script = tmp_path / "without.py"
    script.write_text(WITHOUT)
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script), PARENT],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    assert done.stdout.splitlines() == [
        "traces need an extra: pip install 'understudy-actors[otel]'",
        PARENT,
    ], done.stderr
