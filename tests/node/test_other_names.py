"""A peer that has proven who it is, and asks for things in the names of others."""

from __future__ import annotations

import logging
from typing import Any

import cbor2
import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import BadArgumentsError, RemoteError
from actors.method import Address
from actors.supervision import ExitReason
from runtime.calls import dedup_server as dedup_server_module
from runtime.calls import dispatch
from runtime.calls.dedup_server import DedupServer
from runtime.calls.protocol import REPEATABLE
from runtime.hosting.node_service import NODE_SERVICE, NodeService
from runtime.node import internals_of
from runtime.references.service import REFERENCE_SERVICE, ReferenceService
from runtime.timings import Timings
from runtime.watching import watcher
from runtime.watching.watcher import WATCHING_SERVICE, WatchingService
from runtime.wire.frames import Kind, encode_frame
from tests.live_pair import Pair
from tests.node.test_strangers import dial, introduction, offer, shake_hands
from tests.waiting import until

ONCE = RetryPolicy(max_retries=0)
REPEATED = RetryPolicy(max_retries=3, initial_delay=0.01, repeat_unknown=True)
OTHER = ("somebody-else", 7)


class Quiet(Actor):
    """Does nothing."""

    @method(concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()


def hostile(pair: Pair, service: type[Actor], name: str, retry: RetryPolicy = ONCE) -> Any:
    """A service of `here`, as a member calls it that does not keep to what its own code
    would ask.
    """
    handle: Any = internals_of(pair.there).endpoint.system_handle(
        service, name, *internals_of(pair.here).endpoint.identity
    )
    return handle.options(retry=retry, timeout=5.0)


IN_OTHER_NAMES: list[tuple[type[Actor], str, str, tuple[object, ...]]] = [
    (WatchingService, WATCHING_SERVICE, "ask", ("quiet", 0, *OTHER, 1, False)),
    (WatchingService, WATCHING_SERVICE, "take_back", ([("quiet", 0, 1)], *OTHER)),
    (
        WatchingService,
        WATCHING_SERVICE,
        "tell",
        ([("quiet", 0, ExitReason("raised", "it is said"))], *OTHER),
    ),
    (WatchingService, WATCHING_SERVICE, "link_actor", ("quiet", 0, Address("linker", *OTHER, 1))),
    (WatchingService, WATCHING_SERVICE, "unlink_actor", ("quiet", 0, Address("linker", *OTHER, 1))),
    (ReferenceService, REFERENCE_SERVICE, "update", (*OTHER, [], [])),
    (ReferenceService, REFERENCE_SERVICE, "unsettled", (*OTHER, [1, 2])),
    (ReferenceService, REFERENCE_SERVICE, "moved", (["there", 1, 1], *OTHER)),
    (ReferenceService, REFERENCE_SERVICE, "fetch", (["here", 1, 1], [*OTHER, "host", 1, "0"])),
]


@pytest.mark.parametrize("retry", [ONCE, REPEATED], ids=["once", "repeatable"])
@pytest.mark.parametrize(
    ("service", "name", "asked", "args"), IN_OTHER_NAMES, ids=[row[2] for row in IN_OTHER_NAMES]
)
async def test_nothing_is_asked_in_the_name_of_another_node(
    pair: Pair,
    service: type[Actor],
    name: str,
    asked: str,
    args: tuple[object, ...],
    retry: RetryPolicy,
) -> None:
    await pair.here.options(name="quiet").spawn(Quiet)
    before = internals_of(pair.here).watcher.loads()
    with pytest.raises(BadArgumentsError, match="in its own name only"):
        await getattr(hostile(pair, service, name, retry), asked)(*args)
    assert internals_of(pair.here).watcher.loads() == before


async def test_nor_with_arguments_by_name_nor_by_one_way_calls(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "understudy")
    quiet: Any = await pair.here.options(name="quiet").spawn(Quiet)
    service = hostile(pair, WatchingService, WATCHING_SERVICE)
    with pytest.raises(BadArgumentsError, match="in its own name only"):
        await service.ask(
            "quiet", 0, *internals_of(pair.there).endpoint.identity, serial=1, before=False
        )
    await service.ask.send("quiet", quiet.address.epoch, *OTHER, 1, False)
    # What was sent before has been handled when this is answered.
    await hostile(pair, NodeService, NODE_SERVICE).status()
    assert internals_of(pair.here).watcher.loads()["watched"] == 0
    assert "in its own name only" in caplog.text


async def test_a_member_that_floods_watches_has_one_for_each_actor(pair: Pair) -> None:
    quiet: Any = await pair.here.options(name="quiet").spawn(Quiet)
    service = hostile(pair, WatchingService, WATCHING_SERVICE)
    for serial in range(1, 201):
        assert (
            await service.ask(
                "quiet",
                quiet.address.epoch,
                *internals_of(pair.there).endpoint.identity,
                serial,
                False,
            )
            is None
        )
    assert internals_of(pair.here).watcher.loads()["watched"] == 1


async def test_links_that_one_node_ties_are_limited_over_all_actors_and_not_those_of_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MOST_LINKS", 4)
    quiet: list[Any] = [
        await pair.here.options(name=f"quiet-{number}").spawn(Quiet) for number in range(3)
    ]
    linkers: list[Any] = [
        await pair.there.options(name=f"linker-{number}").spawn(Quiet) for number in range(4)
    ]
    service = hostile(pair, WatchingService, WATCHING_SERVICE)
    for number, linker in enumerate(linkers):
        target = quiet[number % 2]
        await service.link_actor(target.name, target.address.epoch, linker.address)
    # The method itself refuses, so its error comes as that of any method does.
    with pytest.raises(RemoteError, match="MailboxFullError: 4 links from node there"):
        await service.link_actor(quiet[2].name, quiet[2].address.epoch, linkers[0].address)
    # Another node's are counted by themselves. It is no member, so its links end with the next look
    # at the store.
    internals_of(pair.here).watcher.on_link(
        quiet[2].name, quiet[2].address.epoch, Address("linker", *OTHER, 1)
    )
    # Links that have ended make room.
    for number, linker in enumerate(linkers):
        target = quiet[number % 2]
        await service.unlink_actor(target.name, target.address.epoch, linker.address)
    await service.link_actor(quiet[2].name, quiet[2].address.epoch, linkers[0].address)


async def test_one_way_calls_of_services_are_limited_by_peer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MOST_SERVICE_CALLS", 10)
    quiet: Any = await pair.here.options(name="quiet").spawn(Quiet)
    service = hostile(pair, NodeService, NODE_SERVICE)
    for _ in range(30):
        await service.watch_actor.send("quiet", quiet.address.epoch)
    await service.status()
    running = internals_of(pair.here).endpoint.dispatch.one_way
    assert dict(running) == {
        internals_of(pair.here).links[internals_of(pair.there).endpoint.identity]: 10
    }
    await pair.here.stop(quiet)
    await until(lambda: not running, "no call is counted any more", every=0.001)


async def test_a_one_way_call_that_a_service_refuses_is_one_line_without_a_traceback(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    service = hostile(pair, ReferenceService, REFERENCE_SERVICE)
    with caplog.at_level(logging.INFO, "understudy"):
        await service.call_and_keep.send(["here", 1, 1], "append", [1], {})
        await until(lambda: "has refused a one-way call" in caplog.text, "it is refused")
    (line,) = [one for one in caplog.records if "one-way" in one.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith(
        "@references.call_and_keep has refused a one-way call from there: ReferenceReleasedError: "
    )
    assert "\n" not in line.getMessage()
    assert "Traceback" not in caplog.text


class Talkative(Actor):
    """Answers at length."""

    @method(concurrent=True)
    async def answer(self, size: int) -> bytes:
        return bytes(size)

    @method(concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()


async def ask_as(pair: Pair, name: str, called: str, *args: object) -> Kind:
    """Make one repeatable call as a client of that name, and go; returns the kind of the answer, or
    PONG if it was read and none came.
    """
    async with await dial(pair.here) as stream:
        reader = await shake_hands(stream, introduction(name=name))
        await offer(stream, reader, 1)
        await stream.send_all(
            encode_frame(
                Kind.CALL, cbor2.dumps([1, "talkative", 0, called, list(args)]), flags=REPEATABLE
            )
        )
        await stream.send_all(encode_frame(Kind.PING, b""))
        kind = None
        while kind is not Kind.PONG or called == "answer":
            for frame in reader.feed(await stream.receive_some()):
                kind = Kind(frame.kind)
                if kind in (Kind.REPLY, Kind.ERROR):
                    return kind
        return kind


def recorded_calls(pair: Pair) -> DedupServer:
    return internals_of(pair.here).endpoint.dedup_server


def running(calls: DedupServer) -> list[str]:
    """The clients that have calls on record, without the other node."""
    clients = calls.clients.items()
    return [name for (name, _), client in clients if client.records.size and name != "there"]


async def test_answers_to_many_clients_are_bounded_together(pair: Pair) -> None:
    """One peer can come as any number of clients, each with a table of its own."""
    await pair.here.options(name="talkative").spawn(Talkative)
    calls = recorded_calls(pair)
    calls.total.most_bytes = 100_000
    with trio.fail_after(60):
        for number in range(40):
            assert await ask_as(pair, f"client-{number}", "answer", 10_000) == Kind.REPLY
            assert calls.total.bytes <= 100_000
    kept = [
        name
        for (name, _), client in calls.clients.items()
        if client.records.kept and name.startswith("client-")
    ]
    # Those of the last clients; the node that stays has its own, which come last.
    assert kept == [f"client-{number}" for number in range(31, 40)]


@pytest.mark.parametrize("timings", [Timings(client_leases=0.02, orphans=600.0)])
async def test_calls_of_clients_that_went_are_given_up_beyond_a_number_of_clients(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_server_module, "MOST_ORPHANS", 3)
    talkative = await pair.here.options(name="talkative").spawn(Talkative)
    calls = recorded_calls(pair)
    with trio.fail_after(100):
        for number in range(10):
            name = f"client-{number}"
            assert await ask_as(pair, name, "wait") == Kind.PONG
            # Its session ends before that of the next: the order in which they are given up.
            await until(
                lambda: [peer for peer, _ in internals_of(pair.here).links],
                "the client's session has ended",
                lambda peers: name not in peers,  # noqa: B023
            )
        names = await until(
            lambda: running(calls), "three clients are left", lambda names: len(names) <= 3
        )
    assert sorted(names) == ["client-7", "client-8", "client-9"]
    await pair.here.stop(talkative)
