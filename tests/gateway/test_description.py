"""The OpenAPI description of what may be called, and the page to try it."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

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
