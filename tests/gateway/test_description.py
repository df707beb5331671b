"""The OpenAPI description of what may be called, and the page to try it."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from typing import Any

import pytest
import trio
import trio.testing

from runtime.gateway.calls import DESCRIBE_SECONDS, GatewayCalls, SilentNodesError
from runtime.gateway.descriptions import KEPT_SECONDS, MOST_KEPT, Descriptions, Names
from runtime.gateway.media import json_of
from runtime.gateway.openapi import json_of_parts
from runtime.gateway.problems import Problem
from runtime.simulation import Simulation, run_scenario
from tests.failures.error_examples import check_answer
from tests.gateway.actors_used import Counter
from tests.gateway.conftest import World, gateway


async def described(world: World, query: str = "") -> Any:
    """The description."""
    answer = await world.http.ask("GET", f"/v1/openapi.json{query}")
    assert answer.status == 200
    return answer.json


async def test_it_describes_what_may_be_called_and_nothing_else(world: World) -> None:
    found = await described(world)
    assert found["openapi"] == "3.1.0"
    assert set(found["paths"]) == {
        f"/v1/actors/counter/{name}"
        for name in (
            *("add", "add_slowly", "blobs", "count", "echo", "fail", "give", "hold", "order"),
            *("read", "read_slowly", "sell"),
        )
    }
    add = found["paths"]["/v1/actors/counter/add"]["post"]
    assert add["summary"] == "Add, and return the sum."
    assert add["requestBody"]["content"]["application/json"]["schema"] == {
        "type": "object",
        "properties": {"amount": {"type": "integer", "default": 1}},
        "additionalProperties": False,
    }
    assert add["responses"]["200"]["content"]["application/json"]["schema"] == {"type": "integer"}
    async with gateway(world.node, allow=("counter.secret",)) as http:
        more = (await http.ask("GET", "/v1/openapi.json")).json
    assert more["paths"].keys() - found["paths"].keys() == {"/v1/actors/counter/secret"}


async def test_messages_and_streams_have_schemas(world: World) -> None:
    found = await described(world)
    schemas = found["components"]["schemas"]
    order = found["paths"]["/v1/actors/counter/order"]["post"]
    reference = order["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    name = reference.rpartition("/")[2]
    assert schemas[name]["required"] == ["items"]
    assert schemas[name]["properties"]["at"] == {
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]
    }
    item = schemas[schemas[name]["properties"]["items"]["items"]["$ref"].rpartition("/")[2]]
    assert item["required"] == ["name", "price"]
    assert item["properties"]["colour"] == {"enum": ["red", "blue"]}
    count = found["paths"]["/v1/actors/counter/count"]["post"]
    assert set(count["responses"]["200"]["content"]) == {"application/jsonl", "text/event-stream"}
    assert "Idempotency-Key" not in str(count["parameters"])
    # Every reference leads somewhere.
    for target in re.findall(r"#/components/schemas/([^'\"]+)", str(found)):
        assert target in schemas


async def test_one_actor_can_be_asked_for_and_names_are_quoted(world: World) -> None:
    await world.node.options(name="a/b <c> ö?").spawn(Counter)
    one = await described(world, "?actor=a%2Fb%20%3Cc%3E%20%C3%B6%3F")
    paths = [path for path in one["paths"] if path.endswith("/add")]
    assert paths == ["/v1/actors/a%2Fb%20%3Cc%3E%20%C3%B6%3F/add"]
    assert (await world.http.ask("POST", paths[0], b"{}")).json == 1


async def test_the_page_needs_nothing_from_elsewhere_and_lets_nothing_in(world: World) -> None:
    answer = await world.http.ask("GET", "/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert (await world.http.ask("GET", "/docs")).body == answer.body
    head = await world.http.ask("HEAD", "/healthz")
    assert (head.status, head.body) == (200, b"")


def test_a_node_that_does_not_describe_its_actors_is_an_error_in_time() -> None:
    found: list[object] = []

    async def story(simulation: Simulation) -> None:
        node = simulation.node
        for number in (1, 2, 3):
            await node.options(name=f"of {number}", on=f"node-{number}").spawn(Counter)
        calls = GatewayCalls(node, ())
        found.append(len((await calls.described(None)).actors))
        simulation.pause("node-3")
        began = simulation.now()
        with pytest.raises(SilentNodesError) as caught:
            await calls.described(None)
        found.append(caught.value.nodes)
        found.append(simulation.now() - began <= DESCRIBE_SECONDS + 0.5)
        # The others can be asked about.
        found.append(len((await calls.described(["of 2"])).actors))
        simulation.resume("node-3")

    report = run_scenario(story, 1, nodes=3, faults=())
    assert report.holds, report.wrong
    assert found == [3, ["node-3"], True, 1]


async def test_nodes_that_do_not_describe_their_actors_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def described(*_: object) -> None:
        raise SilentNodesError(["worker-1"])

    monkeypatch.setattr(GatewayCalls, "described", described)
    answer = await world.http.ask("GET", "/v1/openapi.json")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    check_answer("NodesSilent", answer.json)
    monkeypatch.undo()
    # It is not kept.
    assert (await world.http.ask("GET", "/v1/openapi.json")).status == 200


async def test_a_description_is_written_once_and_beside_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(_: GatewayCalls, actor: str, method: str) -> bool:
        if method == "secret":
            threads.append(threading.get_ident())
        return False

    monkeypatch.setattr(GatewayCalls, "is_allowed", noted)
    answers: list[bytes] = []

    async def ask() -> None:
        answers.append((await world.http.ask("GET", "/v1/openapi.json")).body)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert len(set(answers)) == 1
    assert b"/v1/actors/counter/add" in answers[0]


async def test_actors_beyond_those_that_a_node_describes_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await described(world))["info"]["description"].endswith("one actor.")
    monkeypatch.setattr("runtime.gateway.calls.MOST_DESCRIBED", 1)
    for name in ("d1", "d2"):
        await world.node.options(name=name).spawn(Counter)
    some = await described(world, "?actor=counter&actor=d1&actor=d2")
    assert some["info"]["description"].endswith("2 actors left out: ask for them with ?actor=NAME.")
    assert {path.split("/")[3] for path in some["paths"]} == {"counter"}
    assert "/v1/actors/d2/add" in (await described(world, "?actor=d2"))["paths"]


def test_a_document_written_in_parts_is_the_document() -> None:
    whole: dict[str, object] = {"a": {}, "b": {"c": {"d": [1]}, 'e"': "\u2028"}, "f": [{"g": 1.5}]}
    for document in ({}, whole):
        assert json_of_parts(document) == json_of(document)


class Maker:
    """Makes descriptions, each when it is let go."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[Names] = []
        self.go_on = trio.Event()
        self.problem: Problem | None = None
        self.descriptions = Descriptions(self.make, lambda: self.now)

    async def make(self, names: Names) -> bytes | Problem:
        """Number them."""
        self.asked.append(names)
        number = len(self.asked)
        await self.go_on.wait()
        return self.problem or b"%d" % number


async def test_those_who_ask_meanwhile_share_a_description_and_it_is_kept_a_while() -> None:
    maker, found = Maker(), list[object]()

    async def ask(names: Names) -> None:
        found.append(await maker.descriptions.of(names))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask, None)
        await trio.testing.wait_all_tasks_blocked()
        assert maker.asked == [None]
        # Age counts from the question: the answer knows nothing of what came after that.
        maker.now = 1.0
        maker.go_on.set()
    await ask(None)
    assert found == [b"1"] * 4
    await ask(frozenset(["a"]))
    assert found.pop() == b"2"
    maker.now = KEPT_SECONDS
    await ask(None)
    assert found.pop() == b"3"
    for number in range(2 * MOST_KEPT):
        await ask(frozenset([str(number)]))
    assert len(maker.descriptions._kept) == MOST_KEPT


async def test_a_description_of_a_request_that_is_cancelled_is_made_by_another() -> None:
    maker, found = Maker(), list[object]()

    async def ask() -> None:
        found.append(await maker.descriptions.of(None))

    first = trio.CancelScope()

    async def ask_first() -> None:
        with first:
            await ask()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_first)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert maker.asked == [None, None]
        maker.go_on.set()
    assert found == [b"2", b"2"]


async def test_a_problem_is_shared_by_those_who_wait_and_not_kept() -> None:
    maker, found = Maker(), list[object]()
    maker.problem = Problem(503, "NodesSilent", "no", "not executed", "repeat")

    async def ask() -> None:
        found.append(await maker.descriptions.of(None))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        maker.go_on.set()
    assert found == [maker.problem] * 2
    maker.problem = None
    await ask()
    assert found[2] == b"2"
