"""Whoever does not belong: each mistake has a named error on the side that can act on it, and
disturbs nobody else.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import cbor2
import pytest
import trio

from actors import Actor, method
from actors.errors import (
    HandshakeTimeoutError,
    JoinError,
    NodeNameTakenError,
    ProtocolVersionError,
    UnderstudyError,
    WrongClusterError,
    WrongPeerError,
    WrongSecretError,
)
from actors.identifiers import NodeId
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links.settlement import SettlementAnswerKind
from runtime.links.transports import SocketNetwork
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from runtime.wire.frames import HEADER, Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import VERSIONS, Acceptor, Dialer, Introduction, Peer
from runtime.wire.tags import ENUM
from tests.failures.error_examples import check_shown, said
from tests.live_pair import SECRET, Pair
from tests.waiting import until


class Patient(Actor):
    """Has a call in flight while strangers try their luck."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.count = 0

    @method
    async def wait(self) -> int:
        await self.gate.wait()
        return self.count

    @method(concurrent=True)
    async def count_up(self) -> int:
        self.count += 1
        return self.count

    @method(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()


@attrs.define
class Scene:
    """A live cluster with a call in flight in each direction. `undisturbed` is what strangers must
    leave true.
    """

    pair: Pair
    patients: list[Patient]
    connections: dict[str, int]
    answers: list[int] = attrs.field(factory=list)

    async def undisturbed(self) -> None:
        """All actors answer, the calls in flight are still in flight, over the same connections as
        before.
        """
        for number, patient in enumerate(self.patients):
            before = await patient.count_up()
            assert await patient.count_up() == before + 1, number
        assert self.answers == []
        assert _connections(self.pair) == self.connections
        assert [member.name for member in self.pair.here.members()] == ["here", "there"]


def _connections(pair: Pair) -> dict[str, int]:
    links = pair.here.status()["links"]
    return {link["peer"]: link["connections"] for link in links if link["peer"] == "there"}  # type: ignore[attr-defined]


@pytest.fixture
async def scene(pair: Pair) -> AsyncIterator[Scene]:
    patients = [
        await pair.here.options(on="there").spawn(Patient),
        await pair.there.options(on="here").spawn(Patient),
    ]
    scene = Scene(pair, patients, _connections(pair))

    async def wait(patient: Patient) -> None:
        scene.answers.append(await patient.wait())

    async with trio.open_nursery() as nursery:
        for patient in patients:
            nursery.start_soon(wait, patient)
        yield scene
        with trio.fail_after(60):
            await scene.undisturbed()
            for patient in patients:
                await patient.open_gate()
    assert len(scene.answers) == 2


def introduction(
    cluster: str = "understudy", versions: tuple[int, int] = VERSIONS, name: str = "stranger"
) -> Introduction:
    return Introduction(
        cluster=cluster, peer=Peer(name=name, incarnation=10**6, role="client"), versions=versions
    )


async def dial(node: Node) -> trio.SocketStream:
    host, _, port = node.address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def wait_closed(stream: trio.SocketStream) -> bytes:
    """All that the node says before it closes the connection."""
    said = b""
    try:
        while data := await stream.receive_some():
            said += data
    except trio.BrokenResourceError:
        # Closed with what we sent unread: to us that is a reset.
        pass
    return said


async def next_frame(stream: trio.SocketStream, reader: FrameReader) -> Frame:
    frames: list[Frame] = []
    while not frames:
        data = await stream.receive_some()
        assert data, "closed instead of answered"
        frames = reader.feed(data)
    return frames[0]


async def shake_hands(
    stream: trio.SocketStream,
    me: Introduction,
    secret: bytes = SECRET.encode(),
    expected: NodeId | None = None,
) -> FrameReader:
    """As any peer would; raises what a dialler raises."""
    reader = FrameReader()
    dialer = Dialer(me, secret, os.urandom(32), expected)
    await stream.send_all(encode_frame(*dialer.start()))
    while dialer.peer is None:
        frame = await next_frame(stream, reader)
        answer = dialer.receive(frame.kind, frame.control)
        if answer is not None:
            await stream.send_all(encode_frame(*answer))
    return reader


LINKS = itertools.count(1)


async def offer(
    stream: trio.SocketStream, reader: FrameReader, link: int, peer_link: int = 0, dial: int = 1
) -> SettlementAnswerKind:
    """Offer to go on with a session of which nothing was received; what is said to that."""
    await stream.send_all(encode_frame(Kind.RESUME, cbor2.dumps([link, peer_link, dial, 0, 0])))
    answer = await next_frame(stream, reader)
    assert answer.kind == Kind.RESUME
    return SettlementAnswerKind(cbor2.loads(answer.control)[0])


async def settle(stream: trio.SocketStream) -> FrameReader:
    """A link of our own: the handshake and the agreement on a new session."""
    reader = await shake_hands(stream, introduction())
    assert await offer(stream, reader, next(LINKS)) == SettlementAnswerKind.ACCEPTED
    return reader


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    """Waits until the nodes have logged one of some texts."""
    caplog.set_level(logging.DEBUG, "understudy")

    async def logged(*texts: str) -> None:
        await until(
            lambda: any(text in caplog.text for text in texts),
            f"the log has one of {texts}",
            every=0.001,
        )

    return logged


Log = Callable[..., Awaitable[None]]


async def refused(error: type[UnderstudyError], node: Node, text: str, **changes: Any) -> None:
    """Joining fails with `error`, which names the address dialled."""
    options = {"join": node.address, "secret": SECRET, **changes}
    with trio.fail_after(60), pytest.raises(error, match=text) as caught:
        async with open_node("stranger", **options):
            pytest.fail("joined")
    assert options["join"] in str(caught.value)


async def test_a_wrong_secret_is_named_on_both_sides(scene: Scene, log: Log) -> None:
    await refused(WrongSecretError, scene.pair.here, "UNDERSTUDY_SECRET", secret="a wrong secret")
    await log("refused a connection: node 'client-")
    await log("could not prove to node 'here' that it knows the secret")


async def test_a_wrong_cluster_is_named_on_both_sides(scene: Scene, log: Log) -> None:
    await refused(
        WrongClusterError,
        scene.pair.there,
        "cluster 'elsewhere'.*cluster 'understudy'",
        cluster="elsewhere",
    )
    await log("of cluster 'elsewhere' dialled node 'there'")


async def test_a_node_name_in_use_is_refused(scene: Scene) -> None:
    with trio.fail_after(60), pytest.raises(NodeNameTakenError, match="'there'"):
        async with open_node("there", join=scene.pair.here.address, secret=SECRET):
            pytest.fail("joined")


async def test_a_wrong_protocol_version_is_named_on_both_sides(scene: Scene, log: Log) -> None:
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            with pytest.raises(
                ProtocolVersionError, match="3 to 9, node 'here' 2 to 2: upgrade the older"
            ) as caught:
                await shake_hands(stream, introduction(versions=(3, 9)))
            check_shown("ProtocolVersionError", said(caught.value))
            assert await wait_closed(stream) == b""
    await log("speaks protocol versions 3 to 9")


async def test_a_dialler_learns_that_the_node_it_joins_speaks_another_version(scene: Scene) -> None:
    async with other_end(answer_with(introduction(versions=(7, 7)))) as address:
        await refused(ProtocolVersionError, scene.pair.here, "7 to 7", join=address)


async def test_a_namesake_from_another_store_ends_no_link_of_a_member(
    scene: Scene, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    # A store that was lost and begun anew counts incarnations from the beginning again.
    there = scene.pair.there
    peer = Peer(
        there.name, there.incarnation, "node", store="the one before", life="of another process"
    )
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            reader = await shake_hands(stream, Introduction("understudy", peer))
            assert reader is not None
            await stream.send_all(encode_frame(Kind.RESUME, cbor2.dumps([next(LINKS), 0, 1, 0, 0])))
            assert await wait_closed(stream) == b""
    await log("know different stores")
    (refused,) = (one for one in caplog.messages if "know different stores" in one)
    check_shown("WrongStoreError", refused)


@pytest.mark.parametrize("seed", range(5))
async def test_garbage_closes_its_own_connection_and_is_logged(
    scene: Scene, log: Log, seed: int
) -> None:
    garbage = random.Random(seed).randbytes(10_000)
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await stream.send_all(garbage)
            assert await wait_closed(stream) == b""
    await log("closed a connection: ")


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        # A fatal alert: "decode error", for this is no handshake that can be read.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600), b"\x15\x03\x03\0\2\2\x32"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b""),
    ],
    ids=["http", "tls", "ssh"],
)
async def test_other_protocols_are_turned_away(
    scene: Scene, log: Log, first: bytes, answer: bytes
) -> None:
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await stream.send_all(first)
            assert await wait_closed(stream) == answer
    await log("closed a connection")


def leaving(scene: Scene) -> bytes:
    """A call by which a node leaves, where a member makes it."""
    assert "leave_cluster" in internals_of(scene.pair.here).cells["@node"].methods
    return cbor2.dumps([1, "@node", 0, "leave_cluster", []])


async def test_frames_that_are_not_due_before_the_peer_has_proven_itself_are_not_acted_upon(
    scene: Scene, log: Log
) -> None:
    call = leaving(scene)
    for kind in (Kind.CALL, Kind.SEND, Kind.RESUME, Kind.GOODBYE, Kind.PROOF, Kind.WELCOME):
        with trio.fail_after(60):
            async with await dial(scene.pair.here) as stream:
                await stream.send_all(encode_frame(kind, call))
                assert await wait_closed(stream) == b""
        await log(f"a frame of kind {int(kind)} came where HELLO was due")
    assert not scene.pair.here.asked_to_leave.is_set()


async def test_a_call_sent_together_with_the_hello_is_not_acted_upon(
    scene: Scene, log: Log
) -> None:
    hello = Dialer(introduction(), SECRET.encode(), os.urandom(32)).start()
    call = encode_frame(Kind.SEND, leaving(scene))
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await stream.send_all(encode_frame(*hello) + call)
            await wait_closed(stream)
    await log("more than one frame at a time during the handshake")
    assert not scene.pair.here.asked_to_leave.is_set()


async def test_an_oversized_frame_before_the_handshake_is_refused_by_its_header(
    scene: Scene, log: Log
) -> None:
    for header in (
        HEADER.pack(Kind.HELLO, 0, 0, 4097),
        HEADER.pack(Kind.HELLO, 0, 1, 100),
        HEADER.pack(Kind.HELLO, 0, 0, 2**32 - 1),
    ):
        with trio.fail_after(60):
            async with await dial(scene.pair.here) as stream:
                await stream.send_all(header)
                assert await wait_closed(stream) == b""
    await log("closed a connection: ")


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(Kind.CALL, 0, 0, 2**30),
        HEADER.pack(Kind.CALL, 0, 1, 10) + (2**32 - 1).to_bytes(4, "big"),
        HEADER.pack(Kind.CALL, 0, 65535, 1),
    ],
    ids=["control", "segment", "segments"],
)
async def test_an_oversized_frame_from_a_proven_peer_ends_its_link_and_no_other(
    scene: Scene, log: Log, header: bytes
) -> None:
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await settle(stream)
            await stream.send_all(header)
            await wait_closed(stream)
    await log("stranger broke the protocol")


NO_SUCH_CLASS = cbor2.CBORTag(ENUM, ["no_such_module:NoSuchClass", "RED"])
"""What cannot be read here, which only values of users may be."""


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(Kind.CALL, b"\xff"),
        encode_frame(Kind.CALL, cbor2.dumps("not a call")),
        encode_frame(Kind.CALL, cbor2.dumps([1, 2, 3, 4, 5])),
        encode_frame(Kind.CALL, cbor2.dumps([2**70, "@node", 0, "status", []])),
        encode_frame(Kind.CALL, cbor2.dumps([1, "@node", 0, "status", [], "soon"])),
        encode_frame(Kind.CALL, cbor2.dumps([1, "@node", 0, "status", [], 1])),
        encode_frame(Kind.CALL, cbor2.dumps([1, "@node", 0, "status", 7])),
        encode_frame(Kind.SEND, cbor2.dumps({})),
        encode_frame(Kind.SEND, b"\xff"),
        encode_frame(Kind.CANCEL, b"\xff"),
        encode_frame(Kind.CANCEL, cbor2.dumps([[]])),
        encode_frame(Kind.CANCEL, cbor2.dumps([{}])),
        encode_frame(Kind.REPLY, cbor2.dumps([1])),
        encode_frame(Kind.REPLY, cbor2.dumps(1)),
        encode_frame(Kind.REPLY, cbor2.dumps([[], 2])),
        encode_frame(Kind.REPLY, b"\xff"),
        encode_frame(Kind.ERROR, cbor2.dumps([1, 2])),
        encode_frame(Kind.ERROR, cbor2.dumps([1, 2, 3])),
        encode_frame(Kind.ERROR, cbor2.dumps([[], 2, 3])),
        encode_frame(Kind.ERROR, b"\xff"),
        *(
            encode_frame(kind, cbor2.dumps(NO_SUCH_CLASS))
            for kind in (Kind.FORGET, Kind.CREDIT, Kind.ITEM, Kind.CANCEL, Kind.CALL, Kind.REPLY)
        ),
        encode_frame(Kind.CALL, cbor2.dumps([1, "@node", 0, ["status"], [NO_SUCH_CLASS]])),
        encode_frame(Kind.CALL, cbor2.dumps([1, ["@node"], 0, "status", [NO_SUCH_CLASS]])),
        encode_frame(9, b""),
        encode_frame(31, b""),
        encode_frame(Kind.ACK, b"123"),
        encode_frame(Kind.ACK, (2**60).to_bytes(8, "big")),
        encode_frame(Kind.HELLO, b""),
        encode_frame(200, b""),
    ],
    ids=lambda frame: frame.hex()[:40],
)
async def test_a_malformed_frame_from_a_proven_peer_never_reaches_beyond_its_link(
    scene: Scene, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be answered with an error, ignored as late, or cost the link: the node and everybody
    else go on. It never looks like a mistake of the runtime's in the log.
    """
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await settle(stream)
            await stream.send_all(frame + encode_frame(Kind.GOODBYE, b""))
            await wait_closed(stream)
    assert "could not be handled" not in caplog.text


async def test_an_offer_that_was_long_on_the_way_ends_no_session_and_breaks_no_connection(
    scene: Scene,
) -> None:
    """A dial that its peer gave up for another connection, on which it has told of more since."""

    def ask(number: int) -> bytes:
        return encode_frame(
            Kind.CALL, cbor2.dumps([number, scene.patients[1].address.name, 0, "count_up", []])
        )

    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream, await dial(scene.pair.here) as late:
            reader = await shake_hands(stream, introduction())
            assert await offer(stream, reader, 1, dial=2) == SettlementAnswerKind.ACCEPTED
            await stream.send_all(ask(1))
            assert (await next_frame(stream, reader)).kind == Kind.REPLY
            await stream.send_all(encode_frame(Kind.ACK, (1).to_bytes(8, "big")) + ask(2))
            assert (await next_frame(stream, reader)).kind == Kind.REPLY
            late_reader = await shake_hands(late, introduction())
            assert await offer(late, late_reader, 1, dial=1) == SettlementAnswerKind.STALE
            assert await wait_closed(late) == b""
            await stream.send_all(ask(3))
            while (await next_frame(stream, reader)).kind != Kind.REPLY:
                pass


async def test_a_call_number_used_twice_ends_the_link(scene: Scene, log: Log) -> None:
    call = encode_frame(Kind.CALL, cbor2.dumps([1, scene.patients[1].address.name, 0, "wait", []]))
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await settle(stream)
            await stream.send_all(call + call)
            await wait_closed(stream)
    await log("broke the protocol")


@pytest.mark.parametrize("timings", [Timings(handshake=1.0)])
async def test_a_peer_that_connects_and_sends_nothing_is_disconnected(
    scene: Scene, log: Log
) -> None:
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            assert await wait_closed(stream) == b""
    await log("nothing, or half of a TLS handshake, came within 1 s")


@pytest.mark.parametrize("timings", [Timings(handshake=1.0)])
async def test_a_peer_that_proves_itself_and_then_sends_nothing_is_disconnected(
    scene: Scene, log: Log
) -> None:
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await shake_hands(stream, introduction())
            assert await wait_closed(stream) == b""
    await log("no resume offer within 1 s")


@pytest.mark.parametrize("timings", [Timings(handshake=1.0)])
async def test_a_peer_that_sends_single_bytes_is_disconnected_too(scene: Scene, log: Log) -> None:
    hello = encode_frame(*Dialer(introduction(), SECRET.encode(), os.urandom(32)).start())
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream, trio.open_nursery() as nursery:

            async def drip() -> None:
                try:
                    for byte in hello:
                        await stream.send_all(bytes([byte]))
                        await trio.sleep(0.01)
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(drip)
            await wait_closed(stream)
            nursery.cancel_scope.cancel()
    await log("did not go on with the handshake")


@pytest.mark.parametrize("said", [0, 1, 20, None], ids=["nothing", "a byte", "a piece", "a hello"])
async def test_a_peer_that_closes_in_the_middle_of_the_handshake_is_logged(
    scene: Scene, log: Log, said: int | None
) -> None:
    hello = encode_frame(*Dialer(introduction(), SECRET.encode(), os.urandom(32)).start())
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            await stream.send_all(hello[:said])
    # Which of the last two depends on whether our end is closed when the answer reaches it.
    await log(
        *(["a connection ended before its first frame"] if said == 0 else []),
        "the peer closed the connection during the handshake",
        "a connection broke while it was being set up",
    )


async def test_a_hundred_silent_connections_keep_nobody_out(scene: Scene) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            streams = [await dial(scene.pair.here) for _ in range(100)]
            async with open_node("third", join=scene.pair.here.address, secret=SECRET) as third:
                await third.wait_for(3)
            await scene.pair.here.wait_gone("third")
            for stream in streams:
                nursery.start_soon(stream.aclose)


async def no_link_to(node: Node, name: str) -> None:
    await until(
        lambda: all(peer != name for peer, _ in internals_of(node).links),
        f"no link to {name} is left",
    )


async def test_a_link_whose_session_never_began_is_not_kept_where_nobody_dials_it(
    scene: Scene,
) -> None:
    """What is posted on it would wait for ever."""
    async with await dial(scene.pair.here) as stream:
        reader = await shake_hands(stream, introduction(name="ghost"))
        # It goes on with a session that nobody here knows.
        assert await offer(stream, reader, 1, peer_link=1) == SettlementAnswerKind.FORGOTTEN
    await no_link_to(scene.pair.here, "ghost")


@pytest.mark.parametrize("timings", [Timings(client_leases=0.01)])
async def test_the_link_of_a_node_that_is_no_member_any_more_ends_when_it_does_not_come_back(
    scene: Scene,
) -> None:
    """Its end was told to all before it dialled; nobody will tell it again."""
    past = introduction(name="past")
    past = attrs.evolve(past, peer=attrs.evolve(past.peer, role="node", incarnation=1))
    async with await dial(scene.pair.here) as stream:
        reader = await shake_hands(stream, past)
        assert await offer(stream, reader, 1) == SettlementAnswerKind.ACCEPTED
        links = internals_of(scene.pair.here).links
        await until(lambda: any(link.fenced for link in links.values()), "a link is fenced")
    await no_link_to(scene.pair.here, "past")


@asynccontextmanager
async def other_end(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Somebody else's server at the address given; `handler` says what it does."""

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await handler(stream)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, handle, listeners)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def answer_with(
    me: Introduction, secret: bytes = SECRET.encode()
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """What an acceptor does."""

    async def handle(stream: trio.SocketStream) -> None:
        reader = FrameReader()
        acceptor = Acceptor(me, secret, os.urandom(32))
        while acceptor.error is None and acceptor.peer is None:
            frame = await next_frame(stream, reader)
            answer = acceptor.receive(frame.kind, frame.control)
            assert answer is not None
            await stream.send_all(encode_frame(*answer))
        await stream.aclose()

    return handle


async def keep_silent(stream: trio.SocketStream) -> None:
    """Accept, and say nothing."""
    await trio.sleep_forever()


async def test_an_impostor_that_does_not_know_the_secret_is_found_out_by_the_one_who_joins(
    scene: Scene,
) -> None:
    async with other_end(answer_with(introduction(), b"a guess")) as address:
        await refused(WrongSecretError, scene.pair.here, "secret", join=address)


async def test_joining_what_says_nothing_ends_with_a_timeout_that_names_the_address(
    scene: Scene,
) -> None:
    async with other_end(keep_silent) as address:
        await refused(
            HandshakeTimeoutError,
            scene.pair.here,
            "does the address lead to a node",
            join=address,
            platform=Platform(environment=SystemEnvironment(Timings(handshake=0.05))),
        )


async def test_joining_what_closes_at_once_is_a_join_error_that_names_the_address(
    scene: Scene,
) -> None:
    async with other_end(lambda stream: stream.aclose()) as address:
        await refused(JoinError, scene.pair.here, "node", join=address)


async def test_joining_a_web_server_is_a_join_error_that_names_the_address(scene: Scene) -> None:
    async with other_end(
        lambda stream: stream.send_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    ) as address:
        await refused(JoinError, scene.pair.here, "node", join=address)


async def test_joining_what_leaves_right_after_the_handshake_is_a_join_error(
    scene: Scene,
) -> None:
    async with other_end(answer_with(introduction())) as address:
        await refused(
            JoinError,
            scene.pair.here,
            "could not say where the cluster's store is",
            join=address,
            platform=Platform(environment=SystemEnvironment(Timings(join_answer=0.3))),
        )


async def test_joining_where_nobody_listens_is_a_join_error_with_the_next_step(
    scene: Scene,
) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    await listeners[0].aclose()
    await refused(JoinError, scene.pair.here, "understudy node", join=address)


async def test_joining_what_is_no_address_says_what_is_expected(scene: Scene) -> None:
    await refused(JoinError, scene.pair.here, "HOST:PORT", join="nonsense")


async def test_joining_its_own_address_is_refused_at_once(scene: Scene) -> None:
    here = scene.pair.here
    with pytest.raises(JoinError, match="is the address of this node itself"):
        async with open_node("other", join=here.address, advertise=here.address, secret=SECRET):
            pass


async def test_a_node_that_answers_for_another_is_refused(
    scene: Scene, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    moved = NodeId("there", 1000)
    with trio.fail_after(60):
        async with await dial(scene.pair.here) as stream:
            with pytest.raises(WrongPeerError, match="look the address up again"):
                await shake_hands(stream, introduction(), expected=moved)
    await log("look the address up again")
    (refused,) = (one for one in caplog.messages if "look the address up again" in one)
    check_shown("WrongPeerError", refused)


async def test_a_node_that_dials_itself_gets_an_error_that_says_so(scene: Scene) -> None:
    here = scene.pair.here
    me = Introduction(
        cluster="understudy", peer=Peer(name="here", incarnation=here.incarnation, role="node")
    )
    with trio.fail_after(60):
        async with await dial(here) as stream:
            with pytest.raises(WrongPeerError, match="dialled itself"):
                await shake_hands(stream, me)


async def test_a_listener_outlives_whatever_connects_to_it(scene: Scene) -> None:
    """Connections that are reset at once, many at a time, through the transport that nodes use."""
    network = SocketNetwork()
    with trio.fail_after(60):
        for _ in range(50):
            connection = await network.connect(f"tcp:{scene.pair.here.address}")
            connection.close()
