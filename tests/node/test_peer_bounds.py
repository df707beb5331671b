"""What one peer can make a node keep is bounded: sessions, calls of services, links between actors,
and lines in its log.
"""

from __future__ import annotations

import fnmatch
import logging
from typing import Any

import attrs
import cbor2
import pytest
import trio

from actors import Actor, method
from actors.errors import HandshakeError, MailboxFullError, RemoteError
from actors.method import Address
from runtime.calls import dispatch
from runtime.links import peers
from runtime.links.settlement import SettlementAnswerKind
from runtime.node import internals_of
from runtime.observation.inspection_service import InspectionService
from runtime.references import owned_values
from runtime.references.table import state_of
from runtime.timings import Timings
from runtime.watching import watcher
from runtime.wire.frames import Kind, encode_frame
from tests.live_pair import Pair
from tests.node.test_strangers import dial, introduction, offer, settle, shake_hands, wait_closed
from tests.waiting import until


class Quiet(Actor):
    """Does nothing."""

    @method(concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()


async def test_a_flood_of_clients_that_come_and_go_leaves_no_more_sessions_than_the_limit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MOST_STRANGERS", 8)
    table = internals_of(pair.here).links
    with trio.fail_after(60):
        for number in range(40):
            async with await dial(pair.here) as stream:
                reader = await shake_hands(stream, introduction(name=f"client-{number}"))
                assert await offer(stream, reader, 1) == SettlementAnswerKind.ACCEPTED
            await until(
                lambda: (
                    not any(
                        link.connected
                        for link in table.values()
                        if link.peer.name == f"client-{number}"  # noqa: B023
                    )
                ),
                "the client's connection is gone",
                every=0.001,
            )
            assert sum(link.peer.name.startswith("client-") for link in table.values()) <= 8
    assert [link.peer.name for link in table.values() if link.peer.name == "there"] == ["there"]


async def test_a_client_beyond_the_limit_is_turned_away_and_members_are_not(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "MOST_STRANGERS", 2)
    with trio.fail_after(60):
        async with (
            await dial(pair.here) as one,
            await dial(pair.here) as two,
            await dial(pair.here) as three,
        ):
            for number, stream in enumerate((one, two)):
                reader = await shake_hands(stream, introduction(name=f"client-{number}"))
                assert await offer(stream, reader, 1) == SettlementAnswerKind.ACCEPTED
            with pytest.raises(HandshakeError, match="client-3 is refused"):
                await shake_hands(three, introduction(name="client-3"))
            assert await three.receive_some() == b""
        assert "client-3 is refused" in caplog.text
        internals_of(pair.here).endpoint.peers.on_peer_ended(
            "there", pair.there.incarnation, "ended by the test, which is not told to the other end"
        )
        actor = await pair.there.options(on="here").spawn(Quiet)
        await pair.there.stop(actor)


@pytest.mark.parametrize("timings", [Timings(client_leases=0.01)])
async def test_what_calls_itself_a_node_and_is_no_member_is_neither_dialled_nor_kept(
    pair: Pair,
) -> None:
    ghost = introduction(name="ghost")
    # Later than all that the members' view knows: it can say nothing about it, neither that it
    # lives nor that it has ended.
    ghost = attrs.evolve(
        ghost,
        peer=attrs.evolve(
            ghost.peer, role="node", incarnation=2**40, addresses=("tcp:127.0.0.1:9",)
        ),
    )
    with trio.fail_after(60):
        async with await dial(pair.here) as stream:
            reader = await shake_hands(stream, ghost)
            assert await offer(stream, reader, 1) == SettlementAnswerKind.ACCEPTED
        links = internals_of(pair.here).links
        await until(
            lambda: all(link.peer.name != "ghost" for link in links.values()),
            "no link to it is left",
        )


async def test_calls_of_services_are_limited_by_peer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MOST_SERVICE_CALLS", 10)
    quiet = await pair.here.options(name="quiet").spawn(Quiet)
    with trio.fail_after(60):
        async with await dial(pair.here) as stream:
            reader = await settle(stream)
            for number in range(1, 31):
                call = [number, "@node", 0, "watch_actor", ["quiet", 0]]
                await stream.send_all(encode_frame(Kind.CALL, cbor2.dumps(call)))
            codes: list[str] = []
            while len(codes) < 20:
                data = await stream.receive_some()
                assert data
                codes += [
                    cbor2.loads(frame.control)[1]
                    for frame in reader.feed(data)
                    if frame.kind == Kind.ERROR
                ]
            assert set(codes) == {MailboxFullError.__name__}
            # Another peer is served.
            await pair.there.stop(await pair.there.options(on="here").spawn(Quiet))
    await pair.here.stop(quiet)


async def test_links_that_others_tie_to_one_actor_are_limited(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MOST_LINKS", 5)
    await pair.here.options(name="quiet").spawn(Quiet)
    desk = internals_of(pair.here).watcher
    for number in range(5):
        desk.on_link("quiet", 0, Address(f"linker-{number}", "there", pair.there.incarnation, 1))
    with pytest.raises(MailboxFullError, match="its limit"):
        desk.on_link("quiet", 0, Address("linker-5", "there", pair.there.incarnation, 1))


async def test_lines_that_strangers_cause_are_limited(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy")
    with trio.fail_after(60):
        for _ in range(50):
            async with await dial(pair.here) as stream:
                with pytest.raises(HandshakeError):
                    await shake_hands(stream, introduction(), b"a wrong secret")
        for _ in range(50):
            async with await dial(pair.here) as stream:
                await stream.send_all(b"GET / HTTP/1.1\r\n\r\n" * 10)
                await wait_closed(stream)
    assert sum("could not prove" in record.getMessage() for record in caplog.records) == 10
    assert len(caplog.records) <= 30


class Gate(Actor):
    """Answers when it is opened."""

    def __init__(self) -> None:
        self.opened = trio.Event()

    @method(concurrent=True)
    async def passed(self) -> int:
        await self.opened.wait()
        return 1

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()

    @method(concurrent=True)
    async def echo(self, number: int) -> int:
        return number


async def test_questions_about_values_are_looked_at_when_one_of_those_changes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = await pair.here.options(name="gate").spawn(Gate)
    reference = await gate.passed.remote()
    identity = list(state_of(reference).identity)
    service = internals_of(pair.there).endpoint.reference_service(
        *internals_of(pair.here).endpoint.identity
    )
    looks, answers = [0], []
    look = owned_values.settled_places

    def counted(states: Any) -> list[int]:
        looks[0] += 1
        return look(states)

    monkeypatch.setattr(owned_values, "settled_places", counted)

    async def ask() -> None:
        answers.append(await service.outcomes([identity] * 1000, True))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
        await until(lambda: looks[0] == 20, "all of the questions wait")
        for number in range(100):
            assert await (await gate.echo.remote(number)).fetch() == number
        # Each question is about a thousand values, and a peer may ask as many as it has room for.
        assert looks[0] == 20
        await gate.open()
    assert answers == [list(range(1000))] * 20


async def test_patterns_of_a_question_are_short_and_few_and_none_is_kept(pair: Pair) -> None:
    service: Any = internals_of(pair.there).endpoint.system_handle(
        InspectionService, "@inspection", *internals_of(pair.here).endpoint.identity
    )
    kept = fnmatch._compile_pattern.cache_info().currsize  # type: ignore[attr-defined]
    assert not (await service.actors([["name", "=", "*a" * 127]], "name", 10))["actors"]
    # It takes most of a second of the node's loop, and 40 MB, to compile one of these.
    with pytest.raises(RemoteError, match="compares with 255 characters at most"):
        await service.actors([["name", "=", "*a" * 60_000]], "name", 10)
    with pytest.raises(RemoteError, match="at most 20 conditions"):
        await service.actors([["name", "=", "*a" * 60_000]] * 21, "name", 10)
    assert await service.near("a" * 100_000) == []
    assert fnmatch._compile_pattern.cache_info().currsize == kept  # type: ignore[attr-defined]
