"""Streams over HTTP: items as they come, held up by a slow reader, closed when it goes."""

from __future__ import annotations

import json
from typing import Any

import h11
import trio

from runtime.node import internals_of
from tests.gateway.conftest import World, gateway
from tests.waiting import until


def lines(body: bytes) -> list[object]:
    """The lines of JSON in a body."""
    return [json.loads(line) for line in body.splitlines() if line]


async def test_json_lines_say_where_they_end(world: World) -> None:
    for accept in ("application/jsonl", "*/*", "application/x-ndjson"):
        answer = await world.http.call("counter", "count", {"to": 3}, Accept=accept)
        assert answer.status == 200
        assert answer.headers["content-type"] in ("application/jsonl", "application/x-ndjson")
        assert lines(answer.body) == [{"item": 0}, {"item": 1}, {"item": 2}, {"end": True}]
    empty = await world.http.call("counter", "count", {"to": 0}, Accept="application/jsonl")
    assert lines(empty.body) == [{"end": True}]


async def test_server_sent_events(world: World) -> None:
    answer = await world.http.call("counter", "count", {"to": 2}, Accept="text/event-stream")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.body == b"data: 0\n\ndata: 1\n\nevent: end\ndata: {}\n\n"


async def test_an_error_before_the_first_item_is_in_the_status(world: World) -> None:
    answer = await world.http.call(
        "counter", "count", {"to": 0, "then": "no"}, Accept="text/event-stream"
    )
    assert (answer.status, answer.json["error"]) == (422, "ValueError")
    missing = await world.http.call("nobody", "count", {}, Accept="text/event-stream")
    assert missing.status == 404
    wrong = await world.http.call("counter", "count", {"to": "x"}, Accept="text/event-stream")
    assert wrong.status == 400


async def test_an_error_after_an_item_is_the_last_event(world: World) -> None:
    answer = await world.http.call(
        "counter", "count", {"to": 1, "then": "no"}, Accept="text/event-stream"
    )
    assert answer.status == 200
    item, error, rest = answer.body.split(b"\n\n")
    assert (item, rest) == (b"data: 0", b"")
    name, _, data = error.partition(b"\ndata: ")
    assert name == b"event: error"
    assert json.loads(data)["detail"] == "no"
    answer = await world.http.call("counter", "count", {"to": 1, "then": "no"})
    assert lines(answer.body)[1]["error"]["outcome"] == "raised"  # type: ignore[index]


async def test_a_stream_and_a_value_are_not_taken_for_each_other(world: World) -> None:
    value = await world.http.call("counter", "count", {"to": 1}, Accept="application/json")
    assert value.status == 406
    stream = await world.http.call("counter", "add", {}, Accept="text/event-stream")
    assert (stream.status, stream.json["outcome"]) == (406, "not executed")
    key = await world.http.call("counter", "count", {"to": 1}, Idempotency_Key="k")
    assert key.status == 400
    neither = await world.http.call("counter", "add", {}, Accept="text/html")
    assert neither.status == 406
    assert (await world.http.call("counter", "read")).json == 0


async def test_a_reader_that_does_not_read_holds_the_stream_up_and_ends_it_by_going(
    world: World,
) -> None:
    async with world.http.connect() as connection:
        await connection.send(
            "POST",
            "/v1/actors/counter/blobs",
            b'{"size": 100000}',
            {"Accept": "application/jsonl"},
        )
        response = await connection.event()
        assert isinstance(response, h11.Response)
        counter: Any = internals_of(world.node).cells["counter"].instance
        seen = -1

        async def stands_still() -> bool:
            nonlocal seen
            before, seen = seen, counter.value
            await trio.sleep(0.3)
            return before == seen == counter.value

        await until(stands_still, "the stream is held up")
        # What all windows and socket buffers on the way hold, not what the generator could make.
        assert counter.value < 500
    with trio.fail_after(60):
        await world.counter.wait_for("stream closed")
    assert internals_of(world.node).endpoint.loads()["streams"] == 0


async def test_a_timeout_covers_the_whole_stream(world: World) -> None:
    async with gateway(world.node) as http, http.connect() as connection:
        await connection.send(
            "POST",
            "/v1/actors/counter/blobs",
            b'{"size": 10}',
            {"Accept": "application/jsonl", "Understudy-Timeout": "0.3"},
        )
        answer = await connection.answer()
        last = lines(answer.body)[-1]
        assert last["error"]["outcome"] == "unknown"  # type: ignore[index]
        await world.counter.wait_for("stream closed")
