"""`Idempotency-Key` is the identity of a call: a repeat never runs it twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from runtime import open_node
from runtime.node import internals_of
from runtime.timings import Timings
from tests.failures.error_examples import check_answer
from tests.gateway.actors_used import Counter, Saving
from tests.gateway.conftest import SECRET, World, gateway
from tests.gateway.http_client import HttpAnswer, HttpClient
from tests.waiting import until


async def test_a_repeat_after_the_end_gets_the_same_answer(world: World) -> None:
    for _ in range(3):
        answer = await world.http.call("counter", "add", {"amount": 5}, Idempotency_Key="k1")
        assert (answer.status, answer.json) == (200, 5)
    assert (await world.http.call("counter", "add", {"amount": 5})).json == 10
    # The spelling of the body, and quotation marks around the key, make no other call.
    spelled = await world.http.ask(
        "POST", "/v1/actors/counter/add", b' { "amount" : 5 } ', {"Idempotency-Key": '"k1"'}
    )
    assert spelled.json == 5


async def test_what_was_raised_is_raised_again_without_a_run(world: World) -> None:
    for _ in range(2):
        answer = await world.http.call("counter", "sell", {"item": "hat"}, Idempotency_Key="k")
        assert (answer.status, answer.json["error"]) == (422, "SoldOutError")


async def test_a_key_of_another_call_is_refused(world: World) -> None:
    assert (await world.http.call("counter", "add", {}, Idempotency_Key="k")).json == 1
    for method, body in (("add", {"amount": 2}), ("read", {})):
        answer = await world.http.call("counter", method, body, Idempotency_Key="k")
        assert (answer.status, answer.json["error"]) == (409, "KeyReusedError")
        assert answer.json["outcome"] == "not executed"
        if method == "add":
            check_answer("KeyReusedError", answer.json)
    # A key counts for one actor.
    await world.node.options(name="other").spawn(Counter)
    assert (await world.http.call("other", "add", {}, Idempotency_Key="k")).json == 1
    assert (await world.http.call("counter", "read", {})).json == 1


async def test_what_was_refused_leaves_its_key_free(world: World) -> None:
    wrong = await world.http.call("counter", "add", {"amount": "x"}, Idempotency_Key="k")
    assert wrong.status == 400
    missing = await world.http.call("later", "add", {}, Idempotency_Key="k")
    assert missing.status == 404
    await world.node.options(name="later").spawn(Counter)
    assert (await world.http.call("later", "add", {}, Idempotency_Key="k")).json == 1
    assert (await world.http.call("counter", "add", {}, Idempotency_Key="k")).json == 1


async def ask(http: HttpClient, word: str, key: str, into: list[HttpAnswer]) -> None:
    """Call `add_slowly`."""
    into.append(await http.call("counter", "add_slowly", {"word": word}, Idempotency_Key=key))


async def test_repeats_while_it_runs_wait_for_the_one_run(world: World) -> None:
    answers: list[HttpAnswer] = []
    async with gateway(world.node) as second, trio.open_nursery() as nursery:
        for http in (world.http, world.http, second, second):
            nursery.start_soon(ask, http, "a", "k", answers)
        await world.counter.wait_for("a begun")
        service: Any = internals_of(world.node).cells["@plain"].instance
        await until(
            lambda: max(
                (call.run.waiters for call in service._keyed._calls.values() if call.run), default=0
            ),
            "both gateways wait",
            lambda waiters: waiters == 2,
        )
        await world.counter.note_word("a may end")
    assert [(one.status, one.json) for one in answers] == [(200, 1)] * 4
    assert (await world.http.call("counter", "read")).json == 1


async def leave_behind(world: World, word: str, key: str) -> None:
    """Call `add_slowly` over a connection that is closed once the method has begun."""
    async with world.http.connect() as connection:
        await connection.send(
            "POST",
            "/v1/actors/counter/add_slowly",
            json.dumps({"word": word}).encode(),
            {"Idempotency-Key": key},
        )
        await world.counter.wait_for(f"{word} begun")


async def test_a_call_with_a_key_survives_its_connection(world: World) -> None:
    await leave_behind(world, "a", "k")
    answers: list[HttpAnswer] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, world.http, "a", "k", answers)
        await world.counter.note_word("a may end")
    assert answers[0].json == 1
    # And also when it has ended while no client waited.
    await leave_behind(world, "b", "k2")
    await world.counter.note_word("b may end")
    await ask(world.http, "b", "k2", answers)
    assert answers[1].json == 2
    assert (await world.http.call("counter", "read")).json == 2


@pytest.mark.parametrize("timings", [Timings(keyed_orphans=0.2)])
async def test_a_call_without_a_waiting_client_is_given_up_in_the_end(world: World) -> None:
    await leave_behind(world, "a", "k")
    with trio.fail_after(60):
        await world.counter.wait_for("a cancelled")
    async with gateway(world.node) as other:
        for http in (world.http, other):
            again = await http.call("counter", "add_slowly", {"word": "a"}, Idempotency_Key="k")
            assert (again.status, again.json["outcome"]) == (504, "unknown")
    assert (await world.http.call("counter", "read")).json == 1


async def test_a_call_that_its_deadline_cancelled_does_not_run_again(world: World) -> None:
    for _ in range(2):
        answer = await world.http.call(
            "counter", "add_slowly", {"word": "a"}, Idempotency_Key="k", Understudy_Timeout="0.2"
        )
        assert answer.status == 504
    assert (await world.http.call("counter", "read")).json == 1


async def test_an_idempotent_method_runs_again_after_an_unknown_outcome_alone(
    world: World,
) -> None:
    first = await world.http.call(
        "counter", "read_slowly", {"word": "a"}, Idempotency_Key="k", Understudy_Timeout="0.2"
    )
    assert first.status == 504
    await world.counter.note_word("a may end")
    second = await world.http.call("counter", "read_slowly", {"word": "a"}, Idempotency_Key="k")
    assert (second.status, second.json) == (200, 0)
    await world.http.call("counter", "add", {})
    # Its outcome is known now: the same answer, though a run would give another.
    third = await world.http.call("counter", "read_slowly", {"word": "a"}, Idempotency_Key="k")
    assert third.json == 0


async def test_a_saved_answer_is_given_after_a_restart_through_any_gateway() -> None:
    async with open_node("one", secret=SECRET) as first:
        saving = await first.options(name="saving").spawn(Saving)
        async with (
            open_node("two", secret=SECRET, join=first.address) as second,
            gateway(first) as here,
            gateway(second) as there,
            gateway(second) as third,
        ):
            answer = await here.call("saving", "add", [5], Idempotency_Key="k")
            assert answer.json == 5
            assert (await there.call("saving", "add", [5], Idempotency_Key="k")).json == 5
            await first.stop(saving)
            await second.options(name="saving").spawn(Saving)
            # The third gateway, and the second node, have no record of their own of that key.
            assert (await third.call("saving", "add", [5], Idempotency_Key="k")).json == 5
            assert (await third.call("saving", "add", [1], Idempotency_Key="n")).json == 6
            assert (await third.call("saving", "add", [1], Idempotency_Key="n")).json == 6
            assert (await third.call("saving", "read", {})).json == 6


async def test_what_was_saved_before_the_call_was_cut_is_found(world: World) -> None:
    await world.node.options(name="saving").spawn(Saving)
    first = await world.http.call(
        "saving", "save_and_hang", {}, Idempotency_Key="k", Understudy_Timeout="0.5"
    )
    assert first.status == 504
    again = await world.http.call("saving", "save_and_hang", {}, Idempotency_Key="k")
    assert (again.status, again.json) == (200, 1)
    assert (await world.http.call("saving", "read", {})).json == 1


async def test_many_at_once_with_few_keys_run_once_each(world: World) -> None:
    answers: list[HttpAnswer] = []

    async def one(http: HttpClient, number: int) -> None:
        answers.append(await http.call("counter", "add", {}, Idempotency_Key=f"key-{number % 10}"))

    async with gateway(world.node) as second, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(one, (world.http, second)[number // 10 % 2], number)
    assert {one.status for one in answers} == {200}
    assert sorted({one.json for one in answers}) == list(range(1, 11))
    assert (await world.http.call("counter", "read")).json == 10
