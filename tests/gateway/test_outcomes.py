"""Each outcome of a call has its status, and what is no call has one of its own."""

from __future__ import annotations

import json

import cbor2
import pytest
import trio

from actors.errors import StaleEpochError
from actors.method import Address
from runtime.gateway.calls import GatewayCalls, HttpCall, _KeyedAttempt
from runtime.node import internals_of
from runtime.plain_calls.service import described_error
from tests.failures.error_examples import check_answer
from tests.gateway.actors_used import Counter
from tests.gateway.conftest import World, gateway
from tests.waiting import until


async def test_a_value_is_200(world: World) -> None:
    answer = await world.http.call("counter", "add", {"amount": 5})
    assert (answer.status, answer.json) == (200, 5)
    assert answer.headers["content-type"] == "application/json"
    assert (await world.http.call("counter", "add", [2])).json == 7
    assert (await world.http.call("counter", "add", {"args": [1], "kwargs": {}})).json == 8
    assert (await world.http.call("counter", "add")).json == 9
    bare = await world.http.ask("POST", "/v1/actors/counter/read")
    assert (bare.status, bare.json) == (200, 9)


async def test_what_the_method_raises_is_422_with_type_message_and_fields(world: World) -> None:
    answer = await world.http.call("counter", "fail", {"text": "no"})
    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json | {"next": ""} == {
        "explain": "understudy explain RemoteError",
        "type": "about:blank",
        "title": "The method raised",
        "status": 422,
        "detail": "no",
        "outcome": "raised",
        "error": "ValueError",
        "class": "builtins:ValueError",
        "fields": {},
        "actor": "counter",
        "method": "fail",
        "next": "",
    }
    sold = (await world.http.call("counter", "sell", {"item": "hat"})).json
    assert sold["error"] == "SoldOutError"
    assert sold["fields"] == {"item": "hat", "left": 0}


async def test_what_is_not_there_is_404_and_what_may_not_be_called_403(world: World) -> None:
    for actor, method, status, error in (
        ("nobody", "add", 404, "ActorNotFoundError"),
        ("counter", "sub", 404, "MethodNotFoundError"),
        ("counter", "__init__", 404, "MethodNotFoundError"),
        ("counter", "secret", 403, "MethodNotExposedError"),
        ("@node", "status", 404, "ActorNotFoundError"),
        ("@plain", "describe", 404, "ActorNotFoundError"),
        ("%40node", "leave_cluster", 404, "ActorNotFoundError"),
    ):
        answer = await world.http.call(actor, method, {})
        assert (answer.status, answer.json["error"]) == (status, error), answer.body
        assert answer.json["outcome"] == "not executed"
        if method in ("sub", "secret"):
            check_answer(error, answer.json)
    # Who calls over HTTP is not told what other actors there are.
    assert "counter" not in (await world.http.call("countr", "add", {})).json["detail"].lower()
    assert (await world.http.ask("POST", "/v1/actors/counter", b"{}")).status == 404
    assert (await world.http.ask("GET", "/v1/actors/counter/add")).status == 405


async def test_a_list_allows_what_is_not_marked_and_no_service_of_the_runtime(
    world: World,
) -> None:
    async with gateway(world.node, allow=("count*.secret", "*.status")) as http:
        assert (await http.call("counter", "secret", {})).json == "hidden"
        assert (await http.call("counter", "note_word", {"word": "x"})).status == 403
        assert (await http.call("@node", "status", {})).status == 404


async def test_a_full_mailbox_is_503_with_retry_after(world: World) -> None:
    slow = await world.node.options(name="slow", mailbox_limit=1).spawn(Counter)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.hold, "turn")
        await slow.wait_for("turn begun")
        nursery.start_soon(slow.add, 1)
        await until(lambda: internals_of(world.node).cells["slow"].waiting == 1, "a call waits")
        answer = await world.http.call("slow", "add", {})
        assert (answer.status, answer.json["error"]) == (503, "MailboxFullError")
        assert answer.json["outcome"] == "not executed"
        assert answer.headers["retry-after"] == "1"
        await slow.note_word("turn may end")
    assert (await world.http.call("slow", "read")).json == 1


async def test_arguments_that_do_not_fit_are_400_and_nothing_ran(world: World) -> None:
    for body in (
        {"amount": "five"},
        {"amount": 1.5},
        {"amount": True},
        {"amount": None},
        {"sum": 1},
        [1, 2],
        {"args": [1], "kwargs": {"amount": 1}},
        "text",
        7,
    ):
        answer = await world.http.call("counter", "add", body)
        assert (answer.status, answer.json["error"]) == (400, "BadArgumentsError"), body
    assert (await world.http.call("counter", "read")).json == 0


async def test_messages_are_read_by_their_fields(world: World) -> None:
    order = {
        "items": [{"name": "hat", "price": "1.50", "colour": "blue"}],
        "at": "2026-01-02T03:04:05",
    }
    answer = await world.http.call("counter", "order", {"order": order})
    assert (answer.status, answer.json) == (200, order)
    for wrong, path in (
        ({"items": [{"name": 1, "price": "1"}]}, "order.items[0].name"),
        ({"items": [{"name": "a", "price": "x"}]}, "order.items[0].price"),
        ({"items": [], "other": 1}, "order"),
        ({"items": [{"name": "a", "price": "1", "colour": "green"}]}, "order.items[0].colour"),
        ([], "order"),
    ):
        answer = await world.http.call("counter", "order", {"order": wrong})
        assert answer.status == 400
        assert path in answer.json["detail"]


async def test_what_json_cannot_say_is_marked(world: World) -> None:
    for what, said in (
        ("bytes", {"$bytes": "AP8="}),
        ("nan", {"$float": "nan"}),
        ("inf", [{"$float": "inf"}, {"$float": "-inf"}]),
        ("big", {"$int": hex(2**70)}),
        ("pairs", {"$pairs": [[1, "a"], [2, "b"]]}),
        ("dollar", {"$dict": {"$bytes": "no"}}),
        ("enum", "blue"),
        ("set", [1]),
        ("decimal", "1.50"),
        ("handle", {"$actor": "counter"}),
        ("text", "</script><b>&\u2028"),
    ):
        answer = await world.http.call("counter", "give", {"what": what})
        assert (answer.status, answer.json) == (200, said)
        if what not in ("pairs", "handle", "enum", "set", "decimal"):
            back = await world.http.call("counter", "echo", {"value": said})
            assert (back.status, back.json) == (200, said)
    for what in ("object", "huge"):
        answer = await world.http.call("counter", "give", {"what": what})
        assert (answer.status, answer.json["error"]) == (504, "ReplyEncodeError")


async def test_cbor_in_and_out(world: World) -> None:
    answer = await world.http.ask(
        "POST",
        "/v1/actors/counter/echo",
        cbor2.dumps({"value": [b"\x00", float("inf"), 2**70]}),
        {"Content-Type": "application/cbor"},
    )
    assert answer.headers["content-type"] == "application/cbor"
    assert cbor2.loads(answer.body) == [b"\x00", float("inf"), 2**70]
    problem = await world.http.ask(
        "POST",
        "/v1/actors/counter/fail",
        cbor2.dumps(["no"]),
        {"Content-Type": "application/cbor", "Accept": "application/cbor"},
    )
    assert problem.status == 422
    assert cbor2.loads(problem.body)["error"] == "ValueError"


async def test_a_timeout_says_whether_the_method_had_begun(world: World) -> None:
    begun = await world.http.call("counter", "add_slowly", {"word": "a"}, Understudy_Timeout="0.2")
    assert (begun.status, begun.json["outcome"]) == (504, "unknown")
    await world.counter.wait_for("a cancelled")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.counter.hold, "turn")
        await world.counter.wait_for("turn begun")
        behind = await world.http.call("counter", "add", {}, Understudy_Timeout="0.2")
        assert (behind.status, behind.json["error"]) == (503, "DeadlineExceededError")
        assert behind.headers["retry-after"] == "1"
        await world.counter.note_word("turn may end")
    assert (await world.http.call("counter", "read")).json == 1


async def test_a_client_that_goes_cancels_its_call(world: World) -> None:
    async with world.http.connect() as connection:
        await connection.send(
            "POST", "/v1/actors/counter/add_slowly", json.dumps({"word": "a"}).encode()
        )
        await world.counter.wait_for("a begun")
    with trio.fail_after(60):
        await world.counter.wait_for("a cancelled")


async def test_an_actor_that_moved_is_found_again(world: World) -> None:
    assert (await world.http.call("counter", "add", {})).json == 1
    await world.node.stop(world.counter)
    assert (await world.http.call("counter", "add", {})).status == 404
    await world.node.options(name="counter").spawn(Counter)
    assert (await world.http.call("counter", "add", {})).json == 1


async def test_a_refusal_by_an_earlier_place_when_the_time_is_over_is_a_timeout(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = GatewayCalls(world.node, ())

    async def refused(call: HttpCall, address: Address, left: float, *, tried: bool) -> object:
        await trio.sleep(left)
        return described_error(StaleEpochError("it has moved"))

    monkeypatch.setattr(calls, "_asked", refused)
    outcome = await calls._call(
        HttpCall("counter", "add", b"{}", 0.05, ""), _KeyedAttempt(), tried=False
    )
    assert (outcome.outcome, outcome.error["type"]) == ("not executed", "DeadlineExceededError")


async def test_nothing_is_left_after_a_client_has_gone(world: World) -> None:
    async with world.http.connect() as connection:
        await connection.send("POST", "/v1/actors/counter/hold", b'{"word": "a"}')
        await world.counter.wait_for("a begun")
    endpoint = internals_of(world.node).endpoint
    await until(lambda: endpoint.loads()["calls running"] == 0, "no call runs")
