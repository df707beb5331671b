"""Actors in processes of their own, lost connections between nodes, and a gateway inside of another
application.
"""

from __future__ import annotations

import json
from typing import cast

import pytest
import trio
from starlette.applications import Starlette
from starlette.routing import Mount

from runtime import open_node
from runtime.faults import Faults, Point
from runtime.gateway import application
from runtime.gateway.requests import Message
from runtime.testing import Platform
from tests.gateway.actors_used import Counter, Saving
from tests.gateway.conftest import SECRET, World, gateway
from tests.gateway.http_client import HttpAnswer


@pytest.mark.cluster
async def test_an_isolated_actor_is_called_like_any_other() -> None:
    async with open_node("one", secret=SECRET) as node, gateway(node) as http:
        await node.options(name="counter", isolation="process").spawn(Counter)
        saving = await node.options(name="saving", isolation="process").spawn(Saving)
        order = {"items": [{"name": "hat", "price": "1.50", "colour": "red"}], "at": None}
        answer = await http.call("counter", "order", {"order": order})
        assert (answer.status, answer.json) == (200, order)
        sold = await http.call("counter", "sell", {"item": "hat"})
        assert (sold.status, sold.json["error"]) == (422, "SoldOutError")
        assert sold.json["fields"] == {"item": "hat", "left": 0}
        assert (await http.call("counter", "secret", {})).status == 403
        lines = (await http.call("counter", "count", {"to": 1})).body.splitlines()
        assert lines == [b'{"item":0}', b'{"end":true}']
        paths = (await http.ask("GET", "/v1/openapi.json")).json["paths"]
        assert "/v1/actors/counter/order" in paths
        for _ in range(2):
            assert (await http.call("saving", "add", [5], Idempotency_Key="k")).json == 5
        await node.stop(saving)
        await node.options(name="saving", isolation="process").spawn(Saving)
        async with open_node("two", secret=SECRET, join=node.address) as other:
            await node.stop(await node.lookup("saving"))
            await other.options(name="saving").spawn(Saving)
            async with gateway(other) as fresh:
                again = await fresh.call("saving", "add", [5], Idempotency_Key="k")
                assert (again.status, again.json) == (200, 5)
                assert (await fresh.call("saving", "read", {})).json == 5


@pytest.mark.parametrize("fault", ["cut", "in-flight", "request-repeated"])
async def test_lost_connections_between_gateway_and_actor_double_nothing(fault: str) -> None:
    faults = Faults()
    faults.add(cast("Point", fault), 0.3, method="call_keyed")
    async with (
        open_node("one", secret=SECRET) as host,
        open_node(
            "two", secret=SECRET, join=host.address, platform=Platform(faults=faults)
        ) as near,
        gateway(near) as http,
    ):
        counter = await host.options(name="counter").spawn(Counter)
        answers: list[HttpAnswer] = []

        async def one(number: int) -> None:
            answers.append(
                await http.call("counter", "add", {}, Idempotency_Key=f"key-{number % 20}")
            )

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(one, number)
        assert {answer.status for answer in answers} == {200}
        assert sorted({answer.json for answer in answers}) == list(range(1, 21))
        assert await counter.read() == 20


async def test_a_call_without_a_key_whose_answer_is_lost_is_504_and_made_once() -> None:
    faults = Faults()
    faults.add("in-flight", method="call")
    async with (
        open_node("one", secret=SECRET) as host,
        open_node(
            "two", secret=SECRET, join=host.address, platform=Platform(faults=faults)
        ) as near,
        gateway(near) as http,
    ):
        counter = await host.options(name="counter").spawn(Counter)
        answer = await http.call("counter", "add", {})
        assert (answer.status, answer.json["error"]) == (504, "ConnectionLostError")
        assert await counter.read() <= 1


async def test_it_can_be_mounted(world: World) -> None:
    app = Starlette(routes=[Mount("/actors", application(world.node))])
    sent: list[Message] = []
    asked = trio.Event()

    async def receive() -> Message:
        if not asked.is_set():
            asked.set()
            return {"type": "http.request", "body": b'{"amount": 5}', "more_body": False}
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    path = "/actors/v1/actors/counter/add"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"]) == 5
