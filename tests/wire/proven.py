"""Mutated frames from peers that have proven themselves: `python -m tests.wire.proven [FRAMES [SEED
[PROCESSES]]]`, a million by default.

A real node listens on a socket. Fuzzing peers dial it, shake hands with the cluster's secret, agree
upon a session, and send what a peer of ours could send, spoiled: as bytes, as values, cut short,
out of order; calls of its actors and of all its services, answers to calls that the node makes to
them, items and credit of streams. When the link is lost they come again as the next incarnation.
Meanwhile a third peer, a healthy node, calls an actor of the node.

The promise: a frame costs its sender the link, and nobody anything. So the node does not end, logs
no error but that a peer broke the protocol, imports nothing, grows by no more than a bound, keeps
nothing of the peers once they have gone, and each call of the healthy peer is answered with what is
right.

What a proven peer may ask for is done: a spawn that is still one starts an actor, and a member may
write to the store. `Harmless` keeps out the few requests whose purpose is to end a node, or to
change what all nodes agree upon.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import random
import resource
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, contextmanager
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import attrs
import cbor2
import trio
from cbor2 import CBORTag

from actors import Actor, method
from actors.errors import EncodeError, HandshakeError, LeaseLostError, ProtocolError
from actors.method import Address
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime import Node, open_node
from runtime.calls.protocol import KEEP_RESULT
from runtime.hosting.node_service import STORE_SERVICE
from runtime.links.link import Link
from runtime.links.loans import FEATURE
from runtime.links.settlement import SettlementAnswerKind
from runtime.links.transports import SocketNetwork
from runtime.node import internals_of
from runtime.store.interface import Compare, Delete, Get, Put, Transaction
from runtime.store.memory import StoreMachine
from runtime.store.transaction_rows import pack_transactions, unpack_transactions
from runtime.wire.frames import LIMITS, Frame, FrameReader, Kind
from runtime.wire.handshake import Dialer, Introduction, Peer
from runtime.wire.tags import MESSAGE
from tests.command_arguments import call_with_arguments
from tests.wire.corpus import SECRET, Colour, OutOfPaintError, Point, Talker, capture
from tests.wire.fuzz import WHOLE_SESSIONS, BrokenPromiseError, Mutator, flat
from tests.wire.shaper import TRAPS, Shaper, parse

PEERS = 6
"""Fuzzing peers at once."""

BATCH = 4
"""Runs of frames between two looks at whether the link stands."""

BYTES = 0.2
"""How many batches end with a run that is spoiled as bytes."""

ASKING = 0.2
"""How many runs have a sound call that has the node call its caller."""

ONE_WAY = 0.1
"""How many calls want no answer."""

BATCHES = 40
"""Batches on one connection, if it is not lost before."""

GROWTH_BYTES = 96 * 1024 * 1024
"""By how much the process may grow after it is warm. All fuzzing peers, and the healthy one, are in
it.
"""

SETTLE_SECONDS = 60.0
"""How long what is kept of peers that have gone may be: their calls go on for ten seconds, and
their sessions for five.
"""

SLOW_SECONDS = 2.0
"""What one receive, of many frames perhaps, may take of the thread's time on a processor."""

LEAST_FRAMES = 20_000
"""Worth a process of its own."""

LOADED_BY_USE = (
    "numpy",
    "zoneinfo",
    "tzdata",
    "importlib",
    "encodings",
    "_strptime",
    "json",
    # A warning looks for where its object was made: `Asker` is given handles of any class, and
    # drops what their methods return.
    "tracemalloc",
    "_tracemalloc",
    # The text of an AttributeError asks for names that are like it, since 3.13 in a module of C.
    "_suggestions",
)
"""Packages that the interpreter, and numpy, load by themselves."""


KINDS = {int(kind): kind.name for kind in Kind}

ANY_INCARNATION = 0x7A7A7A7A
"""Stands in the sound frames where a peer says its own incarnation."""

PASSING = frozenset({Kind.ACK, Kind.PONG, Kind.BEGIN, Kind.PART, Kind.ABANDON})
"""Frames that cost the link unless they are the right ones at the moment: most runs do without."""


ANSWERS: tuple[object, ...] = (
    1,
    None,
    True,
    "x",
    [1, {"key": "x"}],
    [],
    [1],
    [[], []],
    [[["fuzzer", 1]], []],
    [[], [["fuzzer", 1]]],
    [[["fuzzer", "1"]], [None]],
    [["fuzzer", 1]],
    [None],
    ["fuzzer", 1],
    CBORTag(MESSAGE, ["actors.supervision:ExitReason", {"kind": "normal", "text": "x"}]),
    CBORTag(
        MESSAGE, ["actors.supervision:ExitReason", {"kind": "normal", "text": 5, "traceback": []}]
    ),
    [
        CBORTag(
            MESSAGE,
            [
                "runtime.references.values:FailedValue",
                {"code": "raised", "plain": {}, "actor": 1, "method": 2, "node": 3, "epoch": 4},
            ],
        )
    ],
)
"""What services answer, and nearly what they do."""


class Asker(Actor):
    """Calls whatever it is given a handle of, and so has the node call its peers."""

    @method(concurrent=True)
    async def ask(self, other: Talker, how: int) -> object:
        with trio.fail_after(60):
            if how == 0:
                return await other.echo(1, key="x")  # type: ignore[misc]
            if how == 1:
                await other.echo.send(bytes(100))
                return None
            if how == 2:
                reference = await other.echo.remote(2)
                return await reference.fetch()
            items: Any = other.count(5)
            if inspect.iscoroutine(items):
                # The handle is of no class that is known here, and so of no stream.
                return await items
            async with aclosing(items):
                return [item async for item in items]


class Sum(Actor):
    """What the healthy peer calls."""

    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(concurrent=True)
    async def up_to(self, stop: int) -> AsyncIterator[int]:
        for number in range(stop):
            yield number


@attrs.define
class Report:
    """What came of a run."""

    frames: int = 0
    """Spoiled frames that the node has read."""
    sound: int = 0
    """Frames that were sent between them as they are."""
    links: int = 0
    lost: int = 0
    """Links that the node gave up."""
    healthy: int = 0
    """Answers to the healthy peer."""
    calls_made: int = 0
    """Calls that the node made to fuzzing peers."""
    seconds: float = 0.0
    slowest: float = 0.0
    """Seconds of the processor for one receive."""
    growth: int = 0
    errors: Counter[str] = attrs.field(factory=Counter)
    """Lines of the log that are errors, and may be."""
    handled: Counter[str] = attrs.field(factory=Counter)
    """Frames that reached the session, by kind."""

    def __str__(self) -> str:
        return (
            f"{self.frames} spoiled frames (and {self.sound} sound ones) over {self.links} links "
            f"in {self.seconds:.1f} s "
            f"({self.frames / max(self.seconds, 1e-9):.0f}/s), {self.lost} links were given up; "
            f"{self.healthy} healthy calls answered; "
            f"{self.calls_made} calls were made to the peers; the slowest receive took "
            f"{self.slowest * 1000:.1f} ms of the processor; "
            f"{self.growth / 2**20:.1f} MiB more memory; errors in the log: {dict(self.errors)}; "
            f"handled: {dict(self.handled)}"
        )


class Log(logging.Handler):
    """Keeps what no peer may cause: errors, and tracebacks at whatever level."""

    ALLOWED = (
        "%s broke the protocol: %s; the link is given up",
        "%s broke the protocol: %s; its connection is closed",
    )
    RAISED = "%s.%s raised in a one-way call\n%s"
    """By a method of an actor, which nobody waits for."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self.report = report
        self.wrong: list[str] = []
        self.latest: deque[str] = deque(maxlen=40)
        """Lines of the log, but for those that each lost link writes."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        text = record.getMessage()
        if "fuzzer" not in text:
            self.latest.append(f"{record.created:.3f} {record.levelname} {text}")
        if (
            record.levelno < logging.ERROR
            and record.exc_info is None
            and "Traceback (most recent" not in text
        ):
            return
        # A limited log says at times how much was left out.
        kind = record.msg.partition(" (%d more lines")[0]
        if kind in self.ALLOWED or (kind == self.RAISED and not text.startswith(("@", "sum."))):
            self.report.errors[kind.partition("\n")[0]] += 1
        else:
            self.wrong.append(self.format(record))


_WAIT = cbor2.dumps("wait")


class Harmless:
    """Tells frames whose very purpose is to end things, or to change what all agree upon: those are
    not sent while they are well-formed.
    """

    WRITES = frozenset({"put", "delete", "transaction", "transact", "grant", "revoke"})
    OWN = "fuzz"
    """What the keys begin with that a fuzzing peer may write to."""

    def allows(self, frame: Frame) -> bool:
        """True if a frame, as the node will read it, may be sent."""
        control = frame.control
        if _WAIT in control and (frame.kind == Kind.SEND or frame.flags & KEEP_RESULT):
            # A one-way call goes on without its caller, as one does whose result others may hold,
            # and this one for ever.
            return False
        if frame.kind not in (Kind.CALL, Kind.SEND) or b"@" not in control:
            return True
        try:
            parts = parse(control)
        except (ValueError, TypeError, cbor2.CBORError):
            return True
        if (
            type(parts) is not list
            or len(parts) < 5
            or type(parts[1]) is not str
            or type(parts[3]) is not str
        ):
            return True
        service, name, arguments = parts[1], parts[3], parts[4]
        if (
            service.startswith("@store")
            and name in self.WRITES
            and len(parts) > 5
            and type(parts[5]) is not float
        ):
            # Arguments by name, or what may be taken for them.
            return False
        if service == "@node" and name == "leave_cluster":
            return False
        if service.startswith("@store") and name in self.WRITES:
            return self._only_own(name, arguments)
        starts = (service, name) in (
            ("@node", "spawn"),
            ("@isolation", "start"),
            ("@isolation", "stand"),
        )
        # It is what a spawn is for, to import what it names.
        return not (
            starts and (any(path.encode() in control for path in TRAPS) or b"process" in control)
        )

    def _only_own(self, name: str, arguments: Any) -> bool:
        if type(arguments) is not list or not arguments:
            # A list can be written as a tag as well, and is one again where it is read.
            return type(arguments) in (int, str, bytes, type(None)) or arguments == []
        if name == "transact":
            return all(map(self._writes_only_own, arguments))
        if name in ("grant", "revoke"):
            # A lease that nobody renews is over soon, unless it is for years; and leases of nodes
            # have numbers that can be met. A number can be written as a tag as well, and True is 1.
            return type(arguments[0]) in (str, bytes, type(None))
        keys = list(self._keys(arguments if name == "transaction" else arguments[:1]))
        known = name == "transaction" or type(arguments[0]) is str
        return known and all(key.startswith(self.OWN) for key in keys)

    def _writes_only_own(self, packed: Any) -> bool:
        """True for packed transactions that write to no other keys, and for what is none."""
        if type(packed) is not bytes:
            return type(packed) in (int, str, type(None))
        try:
            batch = unpack_transactions(packed)
        except ValueError:
            return True
        return all(
            one.key.startswith(self.OWN)
            for transaction in batch
            for one in (*transaction.then, *transaction.otherwise)
            if type(one) is not Get
        )

    def _keys(self, value: Any) -> Iterator[str]:
        """All keys that the operations of a transaction name, and what stands in the place
        of one.
        """
        if isinstance(value, CBORTag):
            value = value.value
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            # Of the fields of an operation, the key alone says what it changes.
            yield from self._keys(value.get("key", "no key"))
        elif isinstance(value, Sequence) and not isinstance(value, bytes):
            # A class and its fields; the decoder makes tuples within tags.
            of_class = (
                len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)
            )
            for item in value[1:] if of_class else value:
                yield from self._keys(item)
        elif value is not None and not isinstance(value, (bytes, int, float)):
            yield f"{type(value).__name__}, of which nothing is known"


@contextmanager
def members_keep_their_leases(*nodes: Node) -> Iterator[None]:
    """Have the store refuse to revoke the leases of these nodes, for as long as the block lasts.

    A member may revoke any lease: that is how the death of a process is told. So a sound call that
    names the lease of a node ends it, and `Harmless` sees neither calls in parts nor all ways to
    write a number.
    """
    leases = {internals_of(node).registration.record.lease for node in nodes}
    revoke = StoreMachine.revoke

    def guarded(machine: StoreMachine, lease: int) -> None:
        if lease in leases:
            raise LeaseLostError(f"lease {lease} is a member's, and stays")
        revoke(machine, lease)

    with patch.object(StoreMachine, "revoke", guarded):
        yield


def store_of(node: Node) -> str:
    """The name of the service of the store that a node keeps."""
    return next(name for name in internals_of(node).cells if name.startswith(STORE_SERVICE))


def requests(node: Node) -> list[Frame]:
    """A sound call of each kind that the services of a node take, and some of its actors."""
    codec = internals_of(node).endpoint.codec
    me = ("fuzzer", ANY_INCARNATION)
    address = Address("talker", *me, 3, "tests.wire.corpus:Talker")
    handle = internals_of(node).endpoint.make_handle(address)
    store = store_of(node)
    reference = [node.name, node.incarnation, 5]
    spawned = ("tests.wire.corpus:Talker", (), {}, SpawnOptions(name="fuzzed"))  # type: ignore[var-annotated]
    watched = ("talker", 0)
    calls: dict[tuple[str, str], list[tuple[object, ...]]] = {
        ("@node", "spawn"): [spawned, (*spawned[:3], SpawnOptions(), "", "ticket")],
        ("@node", "wait_started"): [watched],
        ("@node", "take_back"): [("ticket",)],
        ("@node", "take_back_started"): [([("fuzzed", 0)],)],
        ("@node", "stop_actor"): [
            ("fuzzed", 0, ExitReason("stopped", "by its fuzzer")),
            ("nobody", 1, ExitReason("stopped", "x"), 0.1),
        ],
        ("@node", "watch_actor"): [watched, ("nobody", 0)],
        ("@node", "methods"): [("nobody",)],
        ("@node", "status"): [()],
        ("@watching", "ask"): [(*watched, *me, 1, False), ("nobody", 3, *me, 2, True)],
        ("@watching", "take_back"): [([("talker", 0, 1)], *me)],
        ("@watching", "tell"): [([("talker", 3, ExitReason("normal", "done"))], *me)],
        ("@watching", "link_actor"): [(*watched, address)],
        ("@watching", "unlink_actor"): [(*watched, address)],
        ("@references", "update"): [(*me, [[*reference, 1]], []), (*me, [], [[*reference, 1]])],
        ("@references", "unsettled"): [(*me, [1, 2, 3])],
        ("@references", "where"): [([reference],)],
        ("@references", "conclude"): [([reference],)],
        ("@references", "fetch"): [(reference,), (reference, [*me])],
        ("@references", "outcomes"): [([reference], False), ([reference], True)],
        ("@references", "adopt"): [([*me, 1], [1, 2], [[*me, 1]], "fuzzer", "", [[*me]])],
        ("@references", "moved"): [(reference, *me)],
        ("@references", "call_value"): [(reference, "append", [1], {})],
        ("@references", "call_and_keep"): [(reference, "append", [1], {})],
        ("@references", "listing"): [(10,)],
        ("@isolation", "wait"): [("ticket",)],
        ("@isolation", "take"): [("ticket",)],
        ("@isolation", "begun"): [("ticket", None)],
        ("@isolation", "ended"): [("ticket", ExitReason("normal", ""))],
        ("@isolation", "find"): [("talker", False)],
        ("@isolation", "lookup"): [("talker",), ("nobody",)],
        ("@isolation", "locate"): [("talker",)],
        ("@isolation", "place"): [(node.name, node.incarnation), me],
        ("@isolation", "saved_state"): [("talker",)],
        ("@isolation", "put"): [([1, 2],)],
        ("@isolation", "wait_ended"): [(address,)],
        ("@isolation", "watch"): [("talker", 0, address)],
        ("@isolation", "members"): [()],
        (store, "get"): [("fuzz/a",)],
        (store, "range"): [("fuzz/",)],
        (store, "put"): [("fuzz/a", b"value", 0)],
        (store, "delete"): [("fuzz/a",)],
        (store, "transaction"): [
            (
                [Compare("fuzz/a", "version", 1)],
                [Put("fuzz/b", b"1"), Get("fuzz/a")],
                [Get("fuzz/b")],
            )
        ],
        (store, "transact"): [
            (
                pack_transactions(
                    [
                        Transaction(
                            (Compare("fuzz/c", "version", 1),), (Put("fuzz/c", b"1"),), (Get("a"),)
                        ),
                        Transaction((), (Delete("fuzz/c"), Get("fuzz/d"))),
                    ]
                ),
            )
        ],
        (store, "keep_alive"): [(10**6,)],
        (store, "time_to_live"): [(10**6,)],
        (store, "poll"): [("fuzz/", 1)],
        ("talker", "echo"): [(1, "two", Point(1)), (Colour.RED, OutOfPaintError("x"))],
        ("talker", "fail"): [(0,), (1,), (2,)],
        ("talker", "count"): [(50,), (3, bytes(2_000))],
        ("talker", "wait"): [(1,)],
        ("asker", "ask"): [(handle, how) for how in range(4)],
    }
    frames: list[Frame] = []
    for (service, name), variants in calls.items():
        for args in variants:
            arguments = parse(codec.encode_arguments(args, {}, segments := []))  # type: ignore[var-annotated]
            flags = 8 if name in ("count", "members") else 2 if len(frames) % 3 == 0 else 0
            control = Shaper.written([len(frames) + 1, service, 0, name, arguments])
            frames.append(Frame(Kind.CALL, flags, control, tuple(map(bytes, segments))))
    return frames


def aimed(frames: Sequence[Frame], node: Node) -> list[Frame]:
    """Frames of the corpus for this node: its store's name, and whatever epoch its actors have."""
    store = store_of(node)
    found: list[Frame] = []
    for frame in frames:
        if frame.kind in (Kind.CALL, Kind.SEND):
            parts = parse(frame.control)
            parts[1:3] = [store if parts[1].startswith("@store") else parts[1], 0]
            frame = frame._replace(control=Shaper.written(parts))
        found.append(frame)
    return found


class Spoiler(Mutator):
    """Of bytes, as any mutator, and of values. Calls get fresh numbers: the same one twice would
    cost the link whatever else is sent.
    """

    def __init__(self, frames: Sequence[Frame]) -> None:
        super().__init__(random.Random(0), frames)
        self.shaper = Shaper(self.draw)
        self._lasting = [frame for frame in frames if frame.kind not in PASSING]
        self._asking = [frame for frame in frames if b"asker" in frame.control]
        self._incarnation = b""
        self._number = 0

    def begin(self, incarnation: int, draw: random.Random) -> None:
        """Go on as another incarnation: what is drawn depends on it alone."""
        self.draw = self.shaper.draw = draw
        self._incarnation = b"\x1a" + incarnation.to_bytes(4, "big")
        self._number = 1000

    def values(self) -> bytes:
        """Some frames as they are, or nearly, and one of which some values are others. Many of
        these do not cost the link.
        """
        draw = self.draw
        frames = [self._fresh(draw.choice(self._lasting)) for _ in range(draw.choice((1, 1, 2, 3)))]
        if draw.random() < ASKING:
            frames.insert(0, self._fresh(draw.choice(self._asking)))
        spoiled = frames[-1]
        control = self.shaper.control(spoiled.control)
        frames[-1] = spoiled._replace(
            # A larger one is no frame, and costs the link: that is what `run_of` is for.
            control=control if len(control) <= LIMITS.control else spoiled.control,
            flags=spoiled.flags if draw.random() < 0.8 else draw.randrange(32),
        )
        return b"".join(map(flat, frames))

    def run_of(self) -> bytes:
        """Frames of which one is spoiled as bytes, or cut short: nearly always the last that is
        read.
        """
        if self.draw.random() < 0.1:
            whole = flat(self._fresh(self.draw.choice(self._lasting)))
            return whole[: self.draw.randrange(1, len(whole))]
        return super().run_of()

    def _fresh(self, frame: Frame) -> Frame:
        frame = Frame(
            frame.kind, frame.flags, frame.control.replace(_ANY, self._incarnation), frame.segments
        )
        if frame.kind != Kind.CALL or frame.control[1:2] != b"\x1a":
            return frame
        if self.draw.random() < ONE_WAY:
            frame = frame._replace(kind=Kind.SEND)
        self._number += 1
        # At times one that is in use, perhaps.
        number = (
            self._number
            if self.draw.random() < 0.98
            else self.draw.randrange(1000, self._number + 1)
        )
        return frame._replace(
            control=frame.control[:2] + number.to_bytes(4, "big") + frame.control[6:]
        )

    def answer(self, number: int, flags: int) -> bytes:
        """What comes back for a call of the node's: right or wrong, spoiled or not."""
        draw = self.draw
        value = self.shaper.value() if draw.random() < 0.4 else draw.choice(ANSWERS)
        if draw.random() < 0.2:
            value = self.shaper.other(value)
        described = {
            "type": draw.choice(
                ("builtins:ValueError", "tests.wire.corpus:OutOfPaintError", *TRAPS)
            ),
            "args": [value],
            "fields": {"a": value},
            "notes": ["x"],
            "text": "x",
            "traceback": "x",
        }
        kind, parts = draw.choice(
            (
                (Kind.REPLY, [number, value]),
                (Kind.REPLY, [number, None]),
                (Kind.ERROR, [number, "raised", described]),
                (
                    Kind.ERROR,
                    [
                        number,
                        draw.choice(("MailboxFullError", "unknown", "__class__", value)),
                        {"text": "x", "fields": {"attempts": value}},
                    ],
                ),
                (Kind.ITEM, [number, value]),
                (Kind.ITEM, [number, 1]),
            )
        )
        try:
            frame = Frame(kind, 0, Shaper.written(parts), ())
            return self.frame(frame) if draw.random() < 0.1 else flat(frame)
        except (ValueError, TypeError, OverflowError, cbor2.CBORError, EncodeError):
            # What cannot be written, or is larger than a frame may be.
            return b""


_ANY = cbor2.dumps(ANY_INCARNATION)


def read(data: bytes) -> tuple[list[Frame], bool]:
    """The frames that a node reads of some bytes, and whether it then waits for the rest of
    another, or for nothing.
    """
    reader = FrameReader()
    frames: list[Frame] = []
    try:
        while data:
            room = reader.receive_buffer()
            if room is None:
                frames += reader.feed(data)
                break
            size = min(len(room), len(data))
            room[:size] = data[:size]
            frames += reader.filled(size)
            data = data[size:]
    except ProtocolError:
        return frames, False
    return frames, bool(reader._rest) or reader._head is not None


class LostError(Exception):
    """The node has closed the connection."""


@attrs.define(eq=False)
class FuzzingPeer:
    """One incarnation of a peer, and its connections."""

    node: Node
    network: SocketNetwork
    address: str
    report: Report
    number: int
    """Of the incarnation: what it sends is drawn by it."""
    draw: random.Random
    spoiler: Spoiler
    sent: list[bytes]
    """What it has sent last, for who asks what broke a promise."""
    harmless: Harmless = attrs.field(factory=Harmless)
    answers: list[bytes] = attrs.field(factory=list)
    received: int = 0
    dials: int = 0
    peer_link: int = 0
    connection: Any = None
    arrived: deque[Frame] = attrs.field(factory=deque)
    reader: FrameReader = attrs.field(factory=FrameReader)

    async def run(self, most: int) -> None:
        """Send up to so many spoiled frames, over one connection or a few."""
        role: Any = self.draw.choice(("client", "client", "node"))
        addresses = ("tcp:127.0.0.1:1",) if role == "node" and self.draw.random() < 0.3 else ()
        # Half of them say that they share the node's memory, as processes of one host do.
        features = frozenset({FEATURE} if self.number % 2 else ())
        me = Introduction(
            "understudy", Peer("fuzzer", self.number, role, addresses, features=features)
        )
        for _ in range(self.draw.choice((1, 1, 1, 2, 4))):
            self.connection = await self.network.connect(self.address)
            try:
                await self._shake_hands(me)
                await self._settle()
                self.report.links += 1
                most -= await self._spoil(most)
            except (LostError, OSError, trio.ClosedResourceError, HandshakeError, ProtocolError):
                # Protocol and handshake: it was this side that spoiled them.
                self.report.lost += 1
                return
            finally:
                self.connection.close()
            if most <= 0:
                return

    async def _shake_hands(self, me: Introduction) -> None:
        dialer = Dialer(me, SECRET, self.draw.randbytes(32))
        self.reader = FrameReader()
        spoiled = self.draw.randrange(60)
        message: tuple[int, bytes] | None = dialer.start()
        step = 0
        while message is not None:
            frame = Frame(message[0], 0, message[1], ())
            data = flat(frame)
            if step == spoiled:
                data = self.spoiler.frame(frame)
                self.report.frames += 1
            await self._send(data, last=step == spoiled)
            step += 1
            answer = await self._next()
            message = dialer.receive(answer.kind, answer.control)

    async def _settle(self) -> None:
        self.dials += 1
        frame = Frame(
            Kind.RESUME, 0, cbor2.dumps([1, self.peer_link, self.dials, 0, self.received]), ()
        )
        data, spoiled = flat(frame), self.draw.random() < 0.05
        if spoiled:
            data = self.spoiler.frame(frame)
            self.report.frames += 1
        await self._send(data, last=spoiled)
        answer = await self._next()
        kind, link, _ = cbor2.loads(answer.control)
        if spoiled or answer.kind != Kind.RESUME or kind != SettlementAnswerKind.ACCEPTED:
            raise LostError
        self.peer_link = link

    async def _spoil(self, most: int) -> int:
        """Send batch after batch; returns how many spoiled frames the node has read. Raises
        `LostError` when it closes the connection.
        """
        done = 0
        for _ in range(BATCHES):
            if done >= most:
                break
            data, spoiled = self._batch()
            frames, waits = read(data)
            if not all(map(self.harmless.allows, frames)):
                continue
            # At least the one that costs the link is read.
            self.report.frames += 1
            self.report.sound += len(frames) - spoiled
            done += spoiled
            await self._send(
                data if waits else data + flat(Frame(Kind.PING, 0, b"", ())), last=waits
            )
            while (await self._next()).kind != Kind.PONG:
                pass
            self.report.frames += spoiled - 1
        return done

    def _batch(self) -> tuple[bytes, int]:
        pieces = [self.spoiler.values() for _ in range(self.draw.randint(1, BATCH))]
        spoiled = len(pieces)
        for answer in self.answers:
            frames, waits = read(answer)
            if frames and not waits:
                pieces.append(answer)
        self.answers.clear()
        if self.draw.random() < 0.7:
            pieces.append(flat(Frame(Kind.ACK, 0, self.received.to_bytes(8, "big"), ())))
        if self.draw.random() < BYTES:
            pieces.append(self.spoiler.run_of())
            spoiled += 1
        return b"".join(pieces), spoiled

    async def _send(self, data: bytes, *, last: bool) -> None:
        """`last`: nothing follows, so that the node does not wait for the rest of what is no whole
        frame.
        """
        self.sent.append(data)
        left = memoryview(data)
        pieces = self.draw.random() < 0.2
        while left:
            piece = left[: self.draw.choice((1, 7, 8, 64, 1000, 70_000))] if pieces else left
            count = self.connection.send_some((piece,))
            left = left[count:]
            if not count:
                await self.connection.wait_writable()
        if last:
            # By another descriptor of the same socket, which the connection keeps open.
            with socket.socket(fileno=os.dup(self.connection.descriptor)) as same:
                same.shutdown(socket.SHUT_WR)

    async def _next(self) -> Frame:
        """The next frame that is no numbered one: those are counted, and calls answered with the
        next batch.
        """
        while True:
            while self.arrived:
                frame = self.arrived.popleft()
                if frame.kind >= Kind.PING:
                    return frame
                self.received += 1
                if frame.kind == Kind.CALL:
                    self.report.calls_made += 1
                    number = int.from_bytes(frame.control[2:6], "big")
                    self.answers += [
                        self.spoiler.answer(number, frame.flags)
                        for _ in range(self.draw.randint(1, 3))
                    ]
            buffer = self.reader.receive_buffer()
            if buffer is not None:
                size = await self.connection.receive_into(buffer)
                self.arrived.extend(self.reader.filled(size))
            else:
                data = await self.connection.receive()
                size = len(data)
                self.arrived.extend(self.reader.feed(data))
            if not size:
                raise LostError


@attrs.define(eq=False)
class Run:
    """One run under way."""

    count: int
    seed: int
    frames: list[Frame]
    report: Report = attrs.field(factory=Report)
    over: bool = False
    latest: deque[tuple[int, list[bytes]]] = attrs.field(factory=lambda: deque(maxlen=3 * PEERS))
    before: int = 0
    _numbers: int = 0

    async def main(self, log: Log) -> Report:
        """Raises `BrokenPromiseError`."""
        began = time.perf_counter()
        try:
            async with (
                open_node("there", secret=SECRET) as node,
                open_node("healthy", join=node.address, secret=SECRET) as healthy,
            ):
                await self._fuzz(node, healthy, log)
        except Exception as error:
            # The block drops causes, so the traceback goes into the text.
            lines = "\n".join(log.latest)
            raise BrokenPromiseError(
                f"{self._where()}\n{lines}\n{''.join(traceback.format_exception(error))}"
            ) from error
        if log.wrong:
            raise BrokenPromiseError(f"{self._where()}\nthe log has:\n{log.wrong[0]}")
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _where(self) -> str:
        lines = [
            f"  incarnation {number}: {b''.join(sent[-3:]).hex()[:600]}"
            for number, sent in self.latest
        ]
        return (
            f"seed {self.seed}, after {self.report.frames} frames; the last of the latest "
            "incarnations:\n" + "\n".join(lines)
        )

    async def _fuzz(self, node: Node, healthy: Node, log: Log) -> None:
        for name, cls in (("talker", Talker), ("asker", Asker), ("sum", Sum)):
            await node.options(name=name).spawn(cls)
        sums = await healthy.lookup("sum", Sum)
        assert await sums.add(0) == 0
        sound = requests(node) + aimed(self.frames, node)
        known = set(sys.modules)
        address = next(
            each
            for each in internals_of(node).endpoint.peers.introduction.peer.addresses
            if each.startswith("unix:")
        )
        with members_keep_their_leases(node, healthy):
            await self._fuzz_beside(node, healthy, sums, address, sound, log)
        assert not node.asked_to_leave.is_set()
        assert not healthy.asked_to_leave.is_set()
        imported = {
            name for name in set(sys.modules) - known if name.partition(".")[0] not in LOADED_BY_USE
        }
        assert not imported, f"imported meanwhile: {sorted(imported)}"
        await self._settle(node)
        gc.collect()
        self.report.growth = (
            max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.before) * 1024
        )

    async def _fuzz_beside(
        self,
        node: Node,
        healthy: Node,
        sums: Sum,
        address: str,
        sound: list[Frame],
        log: Log,
    ) -> None:
        async with trio.open_nursery() as callers:
            callers.start_soon(self._call, sums)
            async with trio.open_nursery() as nursery:
                for _ in range(PEERS):
                    nursery.start_soon(self._peers, node, address, sound, log)
                nursery.start_soon(self._clear, log, node, healthy)
            self.over = True

    async def _peers(self, node: Node, address: str, sound: list[Frame], log: Log) -> None:
        network, spoiler = SocketNetwork(), Spoiler(sound)
        while (left := self.count - self.report.frames) > 0 and not log.wrong:
            self._numbers += 1
            draw = random.Random(f"{self.seed} {self._numbers}")
            sent: list[bytes] = []
            self.latest.append((self._numbers, sent))
            spoiler.begin(self._numbers, draw)
            await FuzzingPeer(
                node, network, address, self.report, self._numbers, draw, spoiler, sent
            ).run(left)

    async def _call(self, sums: Sum) -> None:
        expected = 0
        while not self.over:
            with trio.fail_after(60):
                amount = self.report.healthy % 7
                expected += amount
                assert await sums.add(amount) == expected
                if amount == 3:
                    assert [number async for number in sums.up_to(20)] == list(range(20))
            self.report.healthy += 1
            await trio.lowlevel.checkpoint()

    async def _clear(self, log: Log, *nodes: Node) -> None:
        """Stop what spawns of fuzzing peers have started, until all is done, or something wrong."""
        while self.report.frames < self.count and not log.wrong:
            await trio.sleep(0.25)
            if not self.before and self.report.frames > min(self.count // 10, 20_000):
                self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for node in nodes:
                for name, cell in list(internals_of(node).cells.items()):
                    if not cell.system and name not in ("talker", "asker", "sum"):
                        await internals_of(node).host.stop(
                            name, cell.address.epoch, ExitReason("stopped", "nobody needs it")
                        )

    async def _settle(self, node: Node) -> None:
        """Nothing is kept of peers that have gone."""
        loads: dict[str, int] = {}
        with trio.move_on_after(SETTLE_SECONDS):
            while True:
                await trio.sleep(0.5)
                gc.collect()
                links = [key for key in internals_of(node).links if key[0] != "healthy"]
                loads = {
                    **internals_of(node).endpoint.loads(),
                    **internals_of(node).watcher.loads(),
                }
                loads |= {
                    "references held": internals_of(node).references.held,
                    "links": len(links),
                }
                if not any(loads.values()):
                    return
        running = [
            f"{one.full_name}{one.args}, of {one.verified}"
            for cell in internals_of(node).cells.values()
            if not cell.system
            for one in cell.running
        ]
        raise BrokenPromiseError(
            f"{SETTLE_SECONDS:g} s after the last of the peers the node keeps {loads}: "
            f"{links[:5]}; its actors run {running[:5]}"
        )


@contextmanager
def watched(report: Report) -> Iterator[Log]:
    """Look at the log, and at how long each receive is looked at, for as long as the block
    lasts.
    """
    logger = logging.getLogger("understudy")
    handler, level, propagate = Log(report), logger.level, logger.propagate
    handle = Link.on_frames

    def timed(self: Link, frames: list[Frame], size: int) -> bool:
        if self.peer.name != "fuzzer":
            return handle(self, frames, size)
        for frame in frames:
            report.handled[KINDS.get(frame.kind, "other")] += 1
        began = time.thread_time()
        try:
            return handle(self, frames, size)
        finally:
            report.slowest = max(report.slowest, time.thread_time() - began)

    def unraisable(error: Any) -> None:
        handler.wrong.append(f"unraisable: {error.exc_value!r} in {error.object!r}")

    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with (
            patch.object(Link, "on_frames", timed),
            patch.object(sys, "unraisablehook", unraisable),
        ):
            yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def fuzz(count: int, seed: int, frames: list[Frame] | None = None) -> Report:
    """Have a node read `count` spoiled frames of `seed`. Raises `BrokenPromiseError` if that breaks
    something. `frames`: the corpus.
    """
    run = Run(
        count,
        seed,
        [
            frame
            for frame in frames or capture()
            if frame.kind in WHOLE_SESSIONS and b"leave" not in frame.control
        ],
    )
    with watched(run.report) as log:
        return trio.run(run.main, log)


def _part(count: int, seed: int) -> Report | str:
    try:
        return fuzz(count, seed)
    except BrokenPromiseError as error:
        return f"{error}"


def main(count: int = 1_000_000, seed: int = 0, processes: int = 0) -> int:
    """Print the outcomes of `count` frames, which `processes` nodes share, by default one for each
    core. Each has a seed of its own: the next ones after `seed`. Returns 0 if all of it is as
    promised.
    """
    parts = processes or max(1, min(os.cpu_count() or 1, count // LEAST_FRAMES))
    wrong = False
    with ProcessPoolExecutor(parts, mp_context=get_context("spawn")) as pool:
        for number, report in enumerate(
            pool.map(_part, [count // parts] * parts, range(seed, seed + parts))
        ):
            again = f"proven peers, {count // parts} {seed + number} 1"
            sys.stdout.write(f"{again}: {report}\n")
            wrong = (
                wrong
                or isinstance(report, str)
                or report.growth > GROWTH_BYTES
                or report.slowest > SLOW_SECONDS
            )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(call_with_arguments(main))
