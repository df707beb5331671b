"""The chain of a call on the wire: bounded, left out where there is none, and no more than a link's
worth of harm in it.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from actors.errors import ProtocolError
from runtime.calls.protocol import ReadContexts, call_frame, request
from runtime.hosting.chains import LONGEST, Chain, ChainLink
from runtime.wire.codec import Codec
from runtime.wire.frames import Kind

CODEC = Codec([], sentinel=b"12345678")
PREFIX = b"".join(cbor2.dumps(part) for part in ("one", 7, "get"))


def items(frame: bytes) -> list[Any]:
    """The control part of a frame without segments."""
    assert frame[0] == Kind.CALL
    decoded: list[Any] = cbor2.loads(frame[-int.from_bytes(frame[4:8], "big") :])
    return decoded


def chain(length: int) -> Chain:
    return Chain.of([ChainLink(f"actor-{number}", "ask", number + 1) for number in range(length)])


@pytest.mark.parametrize("remaining", [None, 1.5])
@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize("kept", [None, (3, 4)])
def test_a_chain_arrives_beside_whatever_else_a_call_says(
    remaining: float | None, first: int, kept: tuple[int, int] | None
) -> None:
    frame = call_frame(5, 0, PREFIX, b"\x80", (), remaining, first, kept, chain(3))
    call = request(items(frame), CODEC, ReadContexts())
    assert call.chain is not None
    assert call.chain.links == chain(3).links
    assert (call.number, call.actor, call.first) == (5, "one", first)
    assert call.kept == (kept or (0, 0))
    assert call.remaining == (1.5 if remaining else float("inf"))


def test_a_call_that_no_method_waits_for_says_nothing_of_it() -> None:
    assert (
        request(items(call_frame(5, 0, PREFIX, b"\x80", (), None)), CODEC, ReadContexts()).chain
        is None
    )


def test_a_newer_peer_may_say_more() -> None:
    told = [*items(call_frame(5, 0, PREFIX, b"\x80", (), None, 0, None, chain(1))), "more"]
    told[8] += "\tand more"
    call = request(told, CODEC, ReadContexts())
    assert call.chain is not None
    assert call.chain.links == chain(1).links


def test_a_chain_keeps_its_latest_links() -> None:
    long = chain(LONGEST + 10)
    assert len(long.links) == LONGEST
    assert LONGEST + 10 in long
    assert 1 not in long
    told = items(call_frame(5, 0, PREFIX, b"\x80", (), None, 0, None, chain(2)))
    told[8] = "\n".join(f"a\tb\t{number}" for number in range(1_000))
    call = request(told, CODEC, ReadContexts())
    assert call.chain is not None
    assert len(call.chain.links) == LONGEST


def test_a_long_chain_keeps_the_first_run_of_each_method_and_the_last_run() -> None:
    """The first has the turn of its actor: without it a recursion would wait for itself."""
    links = [ChainLink("one", "open", 1)]
    for number in range(2, 300, 2):
        links += [ChainLink("one", "ask", number), ChainLink("two", "ask", number + 1)]
    kept = Chain.of(links)
    assert kept.links == (*links[:3], links[-1])
    again = Chain.of([*links, *chain(LONGEST).links])
    assert len(again.links) == LONGEST


@pytest.mark.parametrize("told", [5, {}, [], ["a\tb\t5"], b"a\tb\t5", True])
def test_a_chain_that_is_no_text_breaks_the_protocol(told: object) -> None:
    frame = items(call_frame(5, 0, PREFIX, b"\x80", (), None, 0, None, chain(1)))
    frame[8] = told
    with pytest.raises(ProtocolError, match="chain"):
        request(frame, CODEC, ReadContexts())


@pytest.mark.parametrize(
    "told",
    [
        "",
        "\n\n",
        "text",
        "a\tb",
        "a\tb\tc",
        "a\tb\t-5",
        "a\tb\t" + "9" * 5_000,
        "a\tb\t\N{SUPERSCRIPT TWO}",
    ],
)
def test_what_makes_no_sense_in_a_chain_is_left_out(told: str) -> None:
    frame = items(call_frame(5, 0, PREFIX, b"\x80", (), None, 0, None, chain(1)))
    frame[8] = f"{told}\none\task\t7"
    call = request(frame, CODEC, ReadContexts())
    assert call.chain is not None
    assert call.chain.links == (ChainLink("one", "ask", 7),)


def test_the_text_of_a_chain_leaves_out_what_no_user_has_called() -> None:
    links = [
        ChainLink("one", "ask", 1),
        ChainLink("one", "ask", 2),
        ChainLink("@node", "spawn", 3),
        ChainLink("two", "relay", 4),
    ]
    assert Chain.of(links).text("one", "get") == "one.ask -> two.relay -> one.get"
    assert Chain.of(links[:1]).text("one", "ask") == "one.ask -> one.ask"
