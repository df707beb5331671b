"""The call context in a CALL and a SEND: absent when empty, beside whatever else a call says, and
no harm in what a peer sends in its place.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import cbor2
import pytest

from actors import CallContext
from actors.call_context import MOST_TEXT
from runtime.calls.protocol import SHORT_REST, ReadContexts, call_frame, request, send_control
from runtime.hosting.chains import Chain, ChainLink
from runtime.wire.codec import Codec
from tests.actors.test_call_context import PARENT
from tests.hosting.test_chains import PREFIX, chain, items

CODEC = Codec([], sentinel=b"12345678")
NONE = b"\x80"


@pytest.mark.parametrize("size", [0, 10, SHORT_REST + 1000])
@pytest.mark.parametrize("attempt", [1, 7])
def test_it_arrives_beside_whatever_else_a_call_says(size: int, attempt: int) -> None:
    for others in product([5, 1 << 40], [None, 1.5], [0, 9], [None, (3, 4)], [0, 3]):
        _check_beside(size, attempt, *others)


def _check_beside(
    size: int,
    attempt: int,
    number: int,
    remaining: float | None,
    first: int,
    kept: tuple[int, int] | None,
    links: int,
) -> None:
    context = CallContext.of({"value": "x" * size}, traceparent=PARENT) if size else None
    waiting = chain(links) if links else None
    told = items(
        call_frame(number, 0, PREFIX, NONE, (), remaining, first, kept, waiting, context, attempt)
    )
    call = request(told, CODEC, ReadContexts())
    assert (call.number, call.actor, call.epoch, call.method) == (number, "one", 7, "get")
    assert call.remaining == (1.5 if remaining else float("inf"))
    assert (call.first, call.kept, call.attempt) == (first, kept or (0, 0), attempt)
    assert (call.chain.links if call.chain else ()) == (waiting.links if waiting else ())
    assert (call.context.text if call.context is not None else "") == (
        context.text if context is not None else ""
    )
    # What a node that knows neither reads is the same call.
    older = request(told[:9], CODEC, ReadContexts())
    assert older[:9] == call[:9]
    assert older.context is None


def test_nothing_is_sent_of_an_empty_one() -> None:
    assert len(items(call_frame(5, 0, PREFIX, NONE, (), None))) == 5
    assert len(cbor2.loads(send_control(1, PREFIX, NONE, None))) == 5
    waiting = Chain.of([ChainLink("a", "b", 1)])
    assert len(items(call_frame(5, 0, PREFIX, NONE, (), None, 0, None, waiting))) == 9


def test_a_trace_costs_sixty_bytes() -> None:
    context = CallContext.of(traceparent=PARENT)
    bare = call_frame(5, 0, PREFIX, NONE, (), None)
    assert len(call_frame(5, 0, PREFIX, NONE, (), None, context=context)) <= len(bare) + 62


def test_a_one_way_call_has_it() -> None:
    told = cbor2.loads(send_control(1, PREFIX, NONE, CallContext.of(traceparent=PARENT)))
    call = request(told, CODEC, ReadContexts())
    assert call.context is not None
    assert (call.number, call.context.traceparent) == (1, PARENT)


@pytest.mark.parametrize(
    "told", [7, None, b"x", ["x"], {"a": 1}, "", "x" * (MOST_TEXT + 1), 1.5, True]
)
@pytest.mark.parametrize("attempt", [0, -1, "x", None, 1 << 70, True])
def test_what_is_none_is_left_out_and_costs_no_call(told: object, attempt: object) -> None:
    sent: list[Any] = [*items(call_frame(5, 0, PREFIX, NONE, (), None)), None, None, None, None]
    call = request([*sent, told, attempt], CODEC, ReadContexts())
    assert (call.method, call.context, call.attempt) == ("get", None, 1)


def test_what_is_malformed_is_not_passed_on() -> None:
    sent = [*items(call_frame(5, 0, PREFIX, NONE, (), None)), None, None, None, None]
    call = request([*sent, "no parent\nx=1", 1, "more", "from a newer peer"], CODEC, ReadContexts())
    assert call.context is not None
    onwards = items(call_frame(5, 0, PREFIX, NONE, (), None, context=call.context))
    assert request(onwards, CODEC, ReadContexts()).context is None


def test_calls_of_one_trace_share_their_context_and_others_do_not() -> None:
    contexts = ReadContexts()
    first = contexts.read(f"{PARENT}\n\n\n")
    assert contexts.read(f"{PARENT}\n\n\n") is first
    # What is malformed is not shared with what it becomes.
    wrong = contexts.read("no parent\n\nuser=1")
    assert (wrong.traceparent, wrong.baggage) == ("", "user=1")
    assert wrong.text == "\n\nuser=1"
    assert contexts.read("no parent\n\nuser=1") is wrong
    again = contexts.read(PARENT)
    assert again is not first
    assert again.traceparent == first.traceparent == PARENT
