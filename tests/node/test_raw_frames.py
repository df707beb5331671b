"""Every kind of frame, from a process of every role, and from one that has the bare secret: it
costs its sender the link, is refused, or finds nothing of its own to act upon. Calls, streams,
watches, references and sessions of others go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import cbor2
import pytest
import trio

from actors import Actor, method
from actors.errors import WrongPeerError
from actors.reference import Reference
from actors.supervision import ExitReason
from runtime import open_node
from runtime.calls.protocol import (
    KEEP_RESULT,
    REPEAT,
    REPEATABLE,
    STREAM,
    TENTATIVE,
    call_frame,
)
from runtime.node import Node, internals_of
from runtime.references.table import state_of
from runtime.wire.arrays import array_head
from runtime.wire.frames import HEADER, Kind, encode_frame
from runtime.wire.handshake import Peer
from tests.authority import Authority, node_uri
from tests.node.raw_peer import RawPeer, frames
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")

SECRET = "the bare secret of the tests of raw frames"

ROLES = ("operator", "client", "observer", "secret")

NUMBERS = range(200)
"""Those of all calls that the others have made are among them."""

WORD = "what only alice is told"


class Bank(Actor):
    def __init__(self) -> None:
        self.opened = trio.Event()
        self.waiting: list[str] = []
        self.melted: list[str] = []

    @method(concurrent=True)
    async def hold(self, key: str) -> str:
        self.waiting.append(key)
        await self.opened.wait()
        return f"{WORD}: {key}"

    @method(concurrent=True, idempotent=True)
    async def hold_again(self, key: str) -> str:
        return await self.hold_it(key)

    async def hold_it(self, key: str) -> str:
        self.waiting.append(key)
        await self.opened.wait()
        return f"{WORD}: {key}"

    @method(concurrent=True, idempotent=True)
    async def told(self, key: str) -> str:
        return f"{WORD}: {key}"

    @method(concurrent=True)
    async def count(self) -> AsyncIterator[int]:
        for number in range(10**6):
            yield number

    @method(concurrent=True, allow=())
    async def melt(self, by: str) -> None:
        self.melted.append(by)

    @method(concurrent=True)
    async def release(self) -> None:
        self.opened.set()


class Watched(Actor):
    """Lives until the end of a test."""


@attrs.define(eq=False)
class Scene:
    """What others have under way. `undisturbed` is what no raw peer may make false."""

    here: Node
    there: Node
    alice: Node
    bank: Bank
    far: Bank
    kept: Reference[str]
    items: Any
    credentials: Any
    ends: list[str] = attrs.field(factory=list)
    read: int = 0

    async def undisturbed(self, what: str) -> None:
        """Every call in flight is in flight, the stream goes on, and what is kept is there."""
        assert self.ends == [], what
        assert await anext(self.items) == self.read, what
        self.read += 1
        assert await self.kept.fetch() == f"{WORD}: kept", what
        assert await self.bank.told("now") == f"{WORD}: now", what
        # Who has the secret may call it.
        assert self.vault.melted == [] or self.credentials == SECRET, what
        assert self.connections() == self.first, what

    first: dict[str, int] = attrs.field(factory=dict)

    @property
    def vault(self) -> Bank:
        """The actor itself."""
        instance: Any = internals_of(self.here).cells["bank"].instance
        return instance

    def connections(self) -> dict[str, int]:
        """How many connections the links of the others have had."""
        names = (self.there.name, self.alice.name)
        links = internals_of(self.here).links.values()
        return {
            link.peer.name: link.counters.connections for link in links if link.peer.name in names
        }

    def call(
        self,
        name: str,
        called: str,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
        number: int = 1,
        flags: int = 0,
        **more: Any,
    ) -> bytes:
        """A CALL, as a program of ours would write it."""
        segments: list[Any] = []
        arguments = internals_of(self.here).endpoint.codec.encode_arguments(
            args, dict(kwargs or {}), segments
        )
        assert not segments
        prefix = b"".join(map(cbor2.dumps, (name, 0, called)))
        return call_frame(number, flags, prefix, arguments, (), None, **more)

    def send(self, name: str, called: str, args: tuple[object, ...]) -> bytes:
        """The same call one way."""
        whole = self.call(name, called, args, number=0)
        return encode_frame(Kind.SEND, whole[HEADER.size :])


@asynccontextmanager
async def scene_for(role: str, authority: Authority) -> AsyncIterator[Scene]:
    def credentials(uri: str) -> dict[str, Any]:
        return {"secret": SECRET} if role == "secret" else {"tls": authority.tls(uri)}

    raw = SECRET if role == "secret" else authority.tls(node_uri("mallory", role=role))
    async with (
        open_node("here", **credentials(node_uri("here"))) as here,
        open_node("there", join=here.address, **credentials(node_uri("there"))) as there,
        open_node(
            join=here.address,
            role="client",
            **credentials(node_uri("alice", role="client")),
        ) as alice,
        trio.open_nursery() as nursery,
    ):
        await here.wait_for(2)
        await here.options(name="bank").spawn(Bank)
        far = await here.options(name="far", on="there").spawn(Bank)
        bank = await alice.lookup("bank", Bank)
        kept = await bank.told.remote("kept")
        async with aclosing(bank.count()) as items:
            scene = Scene(here, there, alice, bank, far, kept, items, raw)

            async def wait(call: Any) -> None:
                scene.ends.append(await call)

            calls = [bank.hold("called"), bank.hold_again("called again")]
            for one in [*calls, far.hold("far"), far.hold_again("far again")]:
                nursery.start_soon(wait, one)
            vault = scene.vault
            other: Any = internals_of(there).cells["far"].instance
            await until(lambda: len(vault.waiting) == len(other.waiting) == 2, "all wait")
            scene.first = scene.connections()
            yield scene
            await scene.undisturbed("at the end")
            await bank.release()
            await far.release()
            words = ["called", "called again", "far", "far again"]
            await until(lambda: len(scene.ends) == 4, "all calls are answered")
            assert sorted(scene.ends) == sorted(f"{WORD}: {one}" for one in words)


LOST, STANDS = False, True
EITHER = None

Run = tuple[str, bool | None, Callable[[Scene], bytes]]
"""What it is, whether the link stands after it, and the frames."""


def every_number(kind: Kind, *items: object) -> Callable[[Scene], bytes]:
    rest = b"".join(map(cbor2.dumps, items))
    return lambda scene: b"".join(
        encode_frame(kind, array_head(1 + len(items), number) + rest) for number in NUMBERS
    )


FRAMES: list[Run] = [
    # Of the handshake, after it.
    *(
        (kind.name, LOST, lambda scene, kind=kind: encode_frame(kind, cbor2.dumps({})))
        for kind in (Kind.HELLO, Kind.CHALLENGE, Kind.PROOF, Kind.WELCOME, Kind.REFUSED)
    ),
    ("RESUME", LOST, lambda scene: frames(Kind.RESUME, [1, 1, 2, 0, 0])),
    ("GOODBYE", LOST, lambda scene: encode_frame(Kind.GOODBYE, b"")),
    # Of the link.
    ("PING", STANDS, lambda scene: 100 * encode_frame(Kind.PING, b"")),
    ("ACK of what was never sent", LOST, lambda scene: encode_frame(Kind.ACK, b"\x7f" * 8)),
    ("ACK that is short", LOST, lambda scene: encode_frame(Kind.ACK, b"1")),
    *(
        (f"kind {kind}", LOST, lambda scene, kind=kind: encode_frame(kind, b"\x80"))
        for kind in (16, 31, 36, 39, 46, 200, 255)
    ),
    ("EMPTY", STANDS, lambda scene: encode_frame(Kind.EMPTY, b"")),
    *(
        (
            f"{kind.name} of a large frame that was never begun",
            LOST,
            lambda scene, kind=kind: frames(kind, [1, 2, 3]),
        )
        for kind in (Kind.BEGIN, Kind.PART, Kind.ABANDON, Kind.ARENA, Kind.LOAN, Kind.RETURNED)
    ),
    # About calls and streams of others: by all numbers that they may have.
    ("CANCEL", STANDS, every_number(Kind.CANCEL)),
    ("CREDIT", STANDS, every_number(Kind.CREDIT, 2**40)),
    ("REPLY", STANDS, every_number(Kind.REPLY, "forged")),
    (
        "ERROR",
        STANDS,
        every_number(Kind.ERROR, "NodeDiedError", {"text": "forged", "fields": {}}),
    ),
    ("ITEM", STANDS, every_number(Kind.ITEM, 10**9)),
    ("FORGET", STANDS, lambda scene: frames(Kind.FORGET, [2**40, list(NUMBERS), 2**40])),
    ("FORGET of negative numbers", STANDS, lambda scene: frames(Kind.FORGET, [-1, [-1], -1])),
    ("FORGET of long numbers", EITHER, lambda scene: frames(Kind.FORGET, [2**70, [2**70], 2**70])),
    (
        "CALL with a number of its own twice",
        LOST,
        lambda scene: 2 * scene.call("@node", "watch_actor", ("bank", 0)),
    ),
    (
        "CALL again, as if alice had made it",
        STANDS,
        lambda scene: b"".join(
            scene.call("bank", "melt", ("x",), number=number, flags=REPEATABLE | REPEAT)
            for number in NUMBERS
            if number
        ),
    ),
    (
        "CALL whose first attempt is one of alice's",
        STANDS,
        lambda scene: b"".join(
            scene.call("bank", "melt", ("x",), number=number, flags=REPEATABLE, first=number - 999)
            for number in range(1000, 1200)
        ),
    ),
    (
        "CALL whose result stays under the number of alice's reference",
        STANDS,
        lambda scene: b"".join(
            scene.call(
                "bank",
                "told",
                ("forged",),
                number=number,
                flags=KEEP_RESULT | TENTATIVE,
                kept=(number, 1),
            )
            for number in NUMBERS
            if number
        ),
    ),
    (
        "SEND of a method that is for nodes",
        STANDS,
        lambda scene: scene.send("bank", "melt", ("x",)),
    ),
]


def in_the_name_of_others(scene: Scene) -> list[tuple[str, str, tuple[object, ...]]]:
    """What services keep for others, asked to be changed in their names."""
    alice = internals_of(scene.alice).endpoint.identity
    there = internals_of(scene.there).endpoint.identity
    reference = list(state_of(scene.kept).identity)
    died = ExitReason("killed", "forged")
    epoch = internals_of(scene.there).cells["far"].address.epoch
    return [
        ("@watching", "tell", ([("far", epoch, died)], *there)),
        ("@watching", "ask", ("bank", 0, *alice, 1, False)),
        ("@watching", "take_back", ([("bank", 0, n) for n in range(9)], *alice)),
        ("@references", "update", (*alice, [], [[*reference, n] for n in range(9)])),
        ("@references", "unsettled", (*alice, [1, 2])),
        ("@references", "moved", (reference, *alice)),
        ("@references", "fetch", (reference, [*alice, "", 1, ""])),
    ]


def for_nodes(scene: Scene) -> list[tuple[str, str, tuple[object, ...]]]:
    """What only nodes may ask for, whatever arguments there are."""
    reference = list(state_of(scene.kept).identity)
    store = next(name for name in internals_of(scene.here).cells if name.startswith("@store"))
    cell = internals_of(scene.here).cells["bank"]
    return [
        (store, "put", ("names/bank", b"", 0)),
        (store, "delete", ("names/bank",)),
        (store, "revoke", (internals_of(scene.there).registration.record.lease,)),
        (store, "grant", (5.0,)),
        ("@node", "spawn", (f"{__name__}:Bank", (), {}, None)),
        ("@node", "spawn", (f"{__name__}:Bank", (), {}, None, "bank")),
        ("@node", "spawn_many", (f"{__name__}:Bank", [()], ["bank"], None)),
        ("@references", "call_value", (reference, "upper", [], {})),
        ("@references", "call_and_keep", (reference, "upper", [], {})),
        ("@references", "conclude", ([[reference, None]],)),
        ("@references", "adopt", (reference, "forged", [], "", "")),
        ("@watching", "link_actor", ("bank", cell.address.epoch, cell.address)),
        ("@functions", "run", ("os:getcwd", (), {}, None)),
        ("@keyring", "install", (b"x" * 32,)),
        ("@isolation", "wait", ("ticket",)),
    ]


REFUSALS = ("NotAllowedError", "BadArgumentsError", "NotExecutedError", "MethodNotFoundError")


@pytest.mark.parametrize("role", ROLES)
async def test_a_frame_of_any_kind_harms_no_other(role: str, authority: Authority) -> None:
    assert {kind.name for kind in Kind} - {"PONG"} <= {
        word.strip(",") for what, _, _ in FRAMES for word in what.split()
    }, "a kind of frame that no run sends"
    async with scene_for(role, authority) as scene:
        for what, stands, make in FRAMES:
            raw = await RawPeer.connect(scene.here, scene.credentials)
            assert raw.accepted
            stood, came = await raw.stands_after(make(scene))
            assert stands in (stood, EITHER), (what, stood)
            if role != "secret":
                assert not any(WORD.encode() in frame.control for frame in came), what
            await scene.undisturbed(what)
            raw.close()


@pytest.mark.parametrize("role", ROLES)
async def test_what_services_keep_for_others_is_not_changed_in_their_names(
    role: str, authority: Authority
) -> None:
    async with scene_for(role, authority) as scene:
        asked = in_the_name_of_others(scene) + (for_nodes(scene) if role != "secret" else [])
        raw = await RawPeer.connect(scene.here, scene.credentials)
        number = 0
        for service, called, args in asked:
            # By position, by name, as a repeatable call, as a stream, and one way.
            for flags, kwargs in ((0, {}), (REPEATABLE, {}), (STREAM, {}), (0, {"x": 1})):
                number += 1
                call = scene.call(service, called, args, kwargs, number, flags)
                await raw.send(call)
                answer = await raw.answer(number)
                where = service, called, flags, kwargs, answer
                assert answer in REFUSALS, where
            stood, _ = await raw.stands_after(scene.send(service, called, args))
            assert stood
            await scene.undisturbed(f"{service}.{called}")
        raw.close()


async def spoil(scene: Scene, peer: Peer) -> None:
    """As this process, let go of what it holds and take its calls back."""
    false = await RawPeer.connect(scene.here, scene.credentials, peer)
    args: tuple[object, ...] = (*peer.identity, [], [[*peer.identity, 7, 1]])
    await false.send(scene.call("@references", "update", args, number=9))
    await false.answer(9)
    await false.stands_after(frames(Kind.FORGET, [2**30, [], 0]))
    false.close()


@pytest.mark.parametrize("role", ["operator", "client", "observer"])
@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
async def test_what_a_session_has_left_is_for_the_peer_that_began_it(
    role: str, ended: bool, authority: Authority
) -> None:
    alice = authority.tls(node_uri("alice", role="client"))
    async with scene_for(role, authority) as scene:
        first = await RawPeer.connect(scene.here, alice)
        kept = scene.call("bank", "told", ("x",), number=1, flags=KEEP_RESULT, kept=(7, 1))
        held = scene.call("bank", "hold_again", ("left",), number=2, flags=REPEATABLE)
        await first.send(kept + held)
        await first.answer(1)
        vault, endpoint = scene.vault, internals_of(scene.here).endpoint
        await until(lambda: "left" in vault.waiting, "the second call runs")
        if ended:
            link = endpoint.peers.links[first.peer.identity]
            first.close()
            await until(lambda: not link.connected, "the connection is lost")
            endpoint.peers.give_up(link, "it did not come back in time")
        values, me = len(endpoint.references.own()), first.peer
        for peer in (me, attrs.evolve(me, life="another")):
            with pytest.raises(WrongPeerError, match="client 'alice'"):
                await spoil(scene, peer)
        assert len(endpoint.references.own()) == values
        # Who began it has all of it.
        if ended:
            first = await RawPeer.connect(scene.here, alice, me, link=2)
        assert first.accepted
        again = scene.call("bank", "hold_again", ("left",), number=2, flags=REPEATABLE | REPEAT)
        await first.send(again)
        await until(lambda: endpoint.host.counts.repeats == 1, "the repeat has joined the run")
        fetch = scene.call("@references", "fetch", ([*me.identity, 7],), number=3)
        await first.send(fetch)
        assert WORD in str(await first.answer(3))
        assert vault.waiting.count("left") == 1
        first.close()
