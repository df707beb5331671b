"""Mutated frames against everything that reads from a connection: `python -m tests.wire.fuzz
[FRAMES] [SEED]`, a million by default.

Real frames (see `corpus`) are flipped, cut, spliced, repeated, reordered and lied about, and given
to what a live node reads them with: the frame reader, the handshake of either side, the session,
the codec and every handler of the dispatch. Nothing but a ProtocolError may come out (of
handshakes, a HandshakeError). Reported are the rate, the longest time for one input, and by how
much the process has grown.
"""

from __future__ import annotations

import logging
import random
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from actors.errors import HandshakeError, ProtocolError
from actors.identifiers import NodeId
from actors.peers import VerifiedPeer
from runtime import Node, open_node
from runtime.links.link import Link, UnhandledFrameError
from runtime.links.settlement import read_answer, read_offer
from runtime.node import internals_of
from runtime.testing import Platform
from runtime.wire.frames import HEADER, UNPROVEN, Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Acceptor, Channel, Dialer, Introduction, Peer
from tests.command_arguments import call_with_arguments
from tests.memory_network import MemoryNetwork
from tests.wire.corpus import SECRET, Talker, capture

SLOW_SECONDS = 0.5
"""What no input may take of this thread's time on a processor, whatever else the machine does: a
hundred times the slowest that is known, and far less than anything takes whose cost is the square
of a control part.
"""

GROWTH_BYTES = 64 * 1024 * 1024
"""By how much the process may grow."""

INPUTS_PER_LINK = 8
LARGE = 8 * 1024
INTERESTING = b"\x00\x01\x7f\x80\x81\x82\x9f\xa0\xbf\xc0\xc2\xd8\xd9\xf6\xf9\xfb\xff\x1a\x1b\x5a\x5b\x7b\x9b\xbb\xdb"
LENGTHS = (
    0,
    1,
    3,
    4,
    7,
    8,
    9,
    255,
    4096,
    4097,
    65_535,
    65_536,
    262_144,
    262_145,
    2**28,
    2**31,
    2**32 - 1,
)
WHOLE_SESSIONS = frozenset(Kind) - {
    Kind.HELLO,
    Kind.CHALLENGE,
    Kind.PROOF,
    Kind.WELCOME,
    Kind.REFUSED,
    Kind.RESUME,
}


def flat(frame: Frame) -> bytes:
    """A frame as it travels."""
    segments = tuple(map(bytes, frame.segments))
    return encode_frame(frame.kind, frame.control, segments, frame.flags) + b"".join(segments)


class Mutator:
    """Spoils frames, by one generator of chance."""

    def __init__(self, draw: random.Random, frames: Sequence[Frame]) -> None:
        self.draw = draw
        self.frames = list(frames)
        self._small = [frame for frame in frames if len(flat(frame)) < LARGE]
        self._flat = {id(frame): flat(frame) for frame in frames}
        self._spoilers: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._flip,
            self._set,
            self._cut_out,
            self._insert,
            self._swap,
        )

    def run_of(self) -> bytes:
        """Some frames as they follow each other in real traffic, and at least one of them
        spoiled.
        """
        draw = self.draw
        many = draw.random() < 0.1
        frames = self.frames if many else self._small
        first = draw.randrange(len(frames))
        chosen = frames[first : first + draw.randint(1, 12 if many else 3)]
        spoiled = draw.randrange(len(chosen))
        pieces = [
            self.frame(frame) if index == spoiled else self._as_sent(frame)
            for index, frame in enumerate(chosen)
        ]
        order = draw.random()
        if order < 0.05:
            pieces.insert(draw.randrange(len(pieces) + 1), draw.choice(pieces))
        elif order < 0.1:
            draw.shuffle(pieces)
        return b"".join(pieces)

    def frame(self, frame: Frame) -> bytes:
        """One frame, spoiled."""
        draw = self.draw
        how = draw.random()
        if how < 0.55:
            # The control part, in a frame that is sound: this reaches the codec and the handlers.
            control = self.bytes(frame.control)
            return b"".join(
                (
                    self._head(frame.kind, frame.flags, control, frame.segments),
                    *map(bytes, frame.segments),
                )
            )
        if how < 0.7:
            kind = draw.choice((draw.randrange(256), int(draw.choice(self.frames).kind)))
            flags = draw.choice((frame.flags, draw.randrange(256)))
            return b"".join(
                (
                    self._head(kind, flags, frame.control, frame.segments),
                    *map(bytes, frame.segments),
                )
            )
        if how < 0.8:
            return self._lie(frame)
        return self.bytes(self._as_sent(frame))

    def bytes(self, data: bytes) -> bytes:
        """Bytes, spoiled."""
        draw = self.draw
        changed = bytearray(data)
        if draw.random() < 0.15:
            other = draw.choice(self._small).control
            return bytes(
                changed[: draw.randrange(len(changed) + 1)]
                + other[draw.randrange(len(other) + 1) :]
            )
        for _ in range(draw.choice((1, 1, 1, 2, 4, 8))):
            draw.choice(self._spoilers)(changed)
        return bytes(changed)

    def _as_sent(self, frame: Frame) -> bytes:  # type: ignore[valid-type]
        return self._flat.get(id(frame)) or flat(frame)

    def _head(self, kind: int, flags: int, control: bytes, segments: Sequence[object]) -> bytes:  # type: ignore[valid-type]
        sizes = [len(segment) for segment in segments]  # type: ignore[arg-type]
        return (
            HEADER.pack(kind, flags, len(sizes), len(control))
            + struct.pack(f"!{len(sizes)}I", *sizes)
            + control
        )

    def _lie(self, frame: Frame) -> bytes:  # type: ignore[valid-type]
        """A header that says something else than what follows."""
        draw = self.draw
        data = bytearray(self._as_sent(frame))
        length = draw.choice((*LENGTHS, len(frame.control) + draw.randint(-3, 3)))
        where = draw.randrange(3)
        if where == 0:
            data[4:8] = struct.pack("!I", max(0, length))
        elif where == 1:
            data[2:4] = struct.pack("!H", draw.choice((0, 1, 2, 1024, 1025, 65_535)))
        elif frame.segments:
            data[8:12] = struct.pack("!I", max(0, length))
        else:
            # A segment where there is none.
            data[2:4] = b"\0\1"
            data[8:8] = struct.pack("!I", max(0, length))
        return bytes(data)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)

    def _set(self, data: bytearray) -> None:
        if data:
            data[self.draw.randrange(len(data))] = self.draw.choice(INTERESTING)

    def _cut_out(self, data: bytearray) -> None:
        start = self.draw.randrange(len(data) + 1)
        del data[start : start + self.draw.choice((1, 2, 8, len(data)))]

    def _insert(self, data: bytearray) -> None:
        start = self.draw.randrange(len(data) + 1)
        piece = bytes([self.draw.choice(INTERESTING)]) * self.draw.choice((1, 1, 2, 40))
        data[start:start] = self.draw.choice(
            (piece, self.draw.randbytes(self.draw.randrange(1, 9)))
        )

    def _swap(self, data: bytearray) -> None:
        if len(data) > 1:
            one, other = self.draw.randrange(len(data)), self.draw.randrange(len(data))
            data[one], data[other] = data[other], data[one]


def proven(peer: Peer) -> VerifiedPeer:
    """What the handshake finds: the peer knows the secret, which every member has."""
    return VerifiedPeer("node", peer.name, peer.name, peer.incarnation, "secret")


class Deaf:
    """A connection that takes everything and says nothing."""

    channel = Channel()

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        return sum(map(len, buffers))

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        await trio.sleep_forever()

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.sleep_forever()

    def let_others_receive(self, act: Callable[[bytes], None]) -> None:
        return None

    def close(self) -> None:
        pass


class Target:
    """A live node, and links of it that lead nowhere."""

    def __init__(self, node: Node, draw: random.Random) -> None:
        self._node = node
        self._draw = draw
        self._number = 0
        self._inputs = 0
        self._link = self._new_link()

    def _new_link(self) -> Link:
        self._number += 1
        peers = internals_of(self._node).endpoint.peers
        link = Link(Peer(name="fuzzer", incarnation=self._number, role="client"), peers.receiver)
        link.on_verified(proven(link.peer))
        link.open(Deaf(), 0)
        self._reader = FrameReader(peers.limits)
        link.attach(self._reader)
        self._inputs = 0
        return link

    def renew(self) -> None:
        """Forget all that was received: as when the peer's incarnation has ended."""
        self._link.end("the end of this input")
        internals_of(self._node).endpoint.on_peer_ended(
            NodeId("fuzzer", self._number), "the end of this input"
        )
        self._link = self._new_link()

    def feed(self, data: bytes) -> None:
        """Receive as a link does, in one piece or in several."""
        if self._inputs >= INPUTS_PER_LINK:
            self.renew()
        self._inputs += 1
        try:
            if self._draw.random() < 0.7:
                self._receive(data)
                return
            while data:
                size = self._draw.choice((1, 7, 8, 64, 1000, 70_000))
                self._receive(data[:size])
                data = data[size:]
        except UnhandledFrameError:
            raise
        except ProtocolError:
            self.renew()

    def _receive(self, data: bytes) -> None:
        while data:
            buffer = self._reader.receive_buffer()
            if buffer is None:
                frames, size = self._reader.feed(data), len(data)
            else:
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                frames = self._reader.filled(size)
            if self._link.on_frames(frames, size) or self._link.ended is not None:
                self.renew()
                return
            data = data[size:]


def shake_spoiled_hands(mutator: Mutator) -> None:
    """A handshake of which one frame is spoiled on its way."""
    draw = mutator.draw
    parties = [
        Introduction(cluster="understudy", peer=Peer(name=name, incarnation=1, role="node"))
        for name in ("one", "two")
    ]
    dialer = Dialer(parties[0], SECRET, b"d" * 32, draw.choice((None, NodeId("two", 1))))
    acceptor = Acceptor(parties[1], SECRET, b"a" * 32)
    spoiled = draw.randrange(4)
    message: tuple[int, bytes] | None = dialer.start()
    try:
        for step in range(4):
            assert message is not None
            data = encode_frame(*message)
            frames = FrameReader(UNPROVEN).feed(
                mutator.frame(Frame(*message[:1], 0, message[1], ())) if step == spoiled else data
            )
            if not frames:
                return
            message = (dialer if step % 2 else acceptor).receive(frames[0].kind, frames[0].control)
            if message is None:
                return
    except (ProtocolError, HandshakeError):
        pass


def offer_spoiled_resume(mutator: Mutator, offers: Sequence[Frame]) -> None:
    """A RESUME that is spoiled."""
    try:
        for frame in FrameReader().feed(mutator.frame(mutator.draw.choice(offers))):
            mutator.draw.choice((read_offer, read_answer))(frame)
    except ProtocolError:
        pass


@attrs.define
class Report:
    """What came of a run."""

    frames: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    growth: int = 0
    kinds: Counter[str] = attrs.field(factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.frames} inputs in {self.seconds:.1f} s ({self.frames / self.seconds:.0f}/s) "
            f"{dict(self.kinds)}; "
            f"the slowest took {self.slowest * 1000:.1f} ms of the processor; "
            f"{self.growth / 2**20:.1f} MiB more memory"
        )


class BrokenPromiseError(Exception):
    """An input had another end than it may have. The text leads back to it."""


@asynccontextmanager
async def _target(draw: random.Random) -> AsyncIterator[Target]:
    async with open_node(
        "there", secret=SECRET, platform=Platform(network=MemoryNetwork())
    ) as node:
        await node.options(name="talker").spawn(Talker)
        yield Target(node, draw)


def _settled(target: Target, data: bytes, seconds: float) -> float:
    """The time that an input takes: if it was long, the shortest of some, for the collector's turns
    count, too.
    """
    if seconds < SLOW_SECONDS / 2 or not data:
        return seconds
    for _ in range(3):
        target.renew()
        began = time.thread_time()
        target.feed(data)
        seconds = min(seconds, time.thread_time() - began)
    return seconds


def fuzz(count: int, seed: int) -> Report:
    """Try `count` inputs of `seed`. Raises `BrokenPromiseError` for the first that breaks
    something.
    """
    logger = logging.getLogger("understudy")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        return trio.run(_fuzz, capture(), count, seed)
    finally:
        logger.setLevel(level)


async def _fuzz(frames: list[Frame], count: int, seed: int) -> Report:
    offers = [frame for frame in frames if frame.kind == Kind.RESUME]
    # The node under test would do as it is told: start actors, and write to its store, for ever.
    lasting = (b"spawn", b"@store")
    sessions = [
        frame
        for frame in frames
        if frame.kind in WHOLE_SESSIONS and not any(word in frame.control for word in lasting)
    ]
    draw = random.Random(seed)
    report = Report()
    warm = min(count // 10, 20_000)
    before = 0
    began = time.perf_counter()
    async with _target(draw) as target:
        mutator = Mutator(draw, sessions)
        for number in range(count):
            if number == warm:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            state = number % 20
            what, data = "handshake", b""
            started = time.thread_time()
            try:
                if state < 2:
                    shake_spoiled_hands(mutator)
                elif state == 2:
                    what = "resume"
                    offer_spoiled_resume(mutator, offers)
                else:
                    what = "session"
                    data = mutator.run_of()
                    started = time.thread_time()
                    target.feed(data)
            except Exception as error:
                # The node's block drops causes, so the traceback goes into the text.
                trace = "".join(traceback.format_exception(error))
                raise BrokenPromiseError(
                    f"seed {seed}, input {number} ({what}): {data.hex()[:4000]}\n{trace}"
                ) from error
            report.slowest = max(
                report.slowest, _settled(target, data, time.thread_time() - started)
            )
            report.kinds[what] += 1
            if not number % 50:
                await trio.lowlevel.checkpoint()
        report.frames = count
    report.seconds = time.perf_counter() - began
    report.growth = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return report


def main(count: int = 1_000_000, seed: int = 0) -> int:
    """Print the outcomes of `count` inputs. Returns 0 if all of it is as promised."""
    report = fuzz(count, seed)
    sys.stdout.write(f"seed {seed}: {report}\n")
    return int(report.slowest > SLOW_SECONDS or report.growth > GROWTH_BYTES)


if __name__ == "__main__":
    sys.exit(call_with_arguments(main))
