"""Real frames of every kind, captured from two nodes that talk over a network in memory: what
mutations begin with.

Clock, scheduler and chance are seeded, so that the same code gives the same frames and a seed of
the fuzzer leads to the same bytes again.
"""

from __future__ import annotations

import enum
import logging
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from unittest.mock import patch
from uuid import UUID

import attrs
import numpy
import trio
from trio.testing import MockClock

from actors import Actor, RetryPolicy, message, method
from actors.errors import HandshakeError, OutcomeUnknownError
from runtime import Node, open_node
from runtime.links.transports import Connection
from runtime.simulation.network import Pipe, SimulatedConnection
from runtime.simulation.scheduler import ordered_by
from runtime.testing import Faults, Platform
from runtime.wire.frames import HEADER, Frame, FrameReader, Kind
from tests.memory_network import MemoryNetwork
from tests.scheduling import SeededEnvironment

SECRET = b"a secret of the fuzzer's corpus"
AGAIN = RetryPolicy(max_retries=5, initial_delay=0.01, attempt_timeout=0.5)


class Colour(enum.Enum):
    RED = 1


@message
@attrs.frozen
class Point:
    x: int
    y: float = 0.0
    names: tuple[str, ...] = ()


@message
class OutOfPaintError(Exception):
    """One that travels as itself."""


class Talker(Actor):
    """Has a method for each kind of traffic."""

    @method(idempotent=True)  # type: ignore[arg-type]
    async def echo(self, *values: object, **more: object) -> object:
        return [values, more]

    @method(concurrent=True)
    async def wait(self, *values: object) -> None:
        await trio.sleep_forever()

    @method
    async def fail(self, how: int) -> None:
        raise [ValueError("a", 1), OutOfPaintError("red"), RuntimeError(Talker)][how]

    @method
    async def unsendable(self) -> object:
        return object()

    @method
    async def count(self, stop: int, padding: bytes = b"") -> AsyncIterator[object]:
        for number in range(stop):
            yield [number, padding]


VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    2**70,
    1.5,
    "text",
    "ümläut",
    b"bytes",
    [1, [2, [3]]],
    (1, "two"),
    {"a": {"b": 1}},
    {1: 2, (3, 4): 5},
    {1, 2},
    frozenset({"x"}),
    datetime(2026, 11, 21, 4, 5, 6, tzinfo=timezone(timedelta(hours=1))),
    date(2026, 11, 21),
    time(4, 5),
    timedelta(days=1, microseconds=3),
    Decimal("1.50"),
    UUID(int=7),
    Colour.RED,
    Point(1, 2.0, ("p", "q")),
    numpy.arange(6, dtype="<i4").reshape(2, 3),
    numpy.float32(2.5),
    bytes(20_000),
    numpy.zeros(9_000),
    list(range(30_000)),
    [bytes(17_000), bytes(18_000)],
)


class RecordingNetwork(MemoryNetwork):
    """Writes down what goes over each connection, in either direction."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[list[bytes]] = []

    async def connect(self, address: str) -> Connection:
        """See `Network.connect`."""
        connection = await super().connect(address)
        assert isinstance(connection, SimulatedConnection)
        for pipe in (connection.sends, connection.receives):
            self._record(pipe)
        return connection

    def _record(self, pipe: Pipe) -> None:
        stream: list[bytes] = []
        self.streams.append(stream)
        put = pipe.put

        def record(data: bytes | None) -> None:
            stream.append(data or b"")
            put(data)

        pipe.put = record  # type: ignore[method-assign]


async def _talk(here: Node, faults: Faults, network: RecordingNetwork) -> None:
    """A bit of everything."""
    talker = await here.options(on="there", name="talker").spawn(Talker)
    for value in VALUES:
        await talker.echo(value)  # type: ignore[misc]
    await talker.echo(*VALUES[:20], key=talker, other=1)  # type: ignore[misc]
    await talker.echo.options(timeout=5)(1)  # type: ignore[misc]
    await talker.echo.send("one way", bytes(17_000))
    reference = await talker.echo.remote(1)
    await talker.echo(reference)
    await reference.fetch()
    for how in range(3):
        try:
            await talker.fail(how)
        except (ValueError, OutOfPaintError, RuntimeError):
            continue
    try:
        await talker.unsendable()
    except OutcomeUnknownError:
        pass
    with trio.move_on_after(0.1):
        await talker.wait(1)
    async for _ in talker.count(40):
        pass
    async for _ in talker.count(3, bytes(20_000)):
        break
    faults.add("request-lost", times=1, method="echo")
    faults.add("request-repeated", times=2, method="echo")
    await talker.echo.options(retry=AGAIN)(1)
    await talker.echo.options(retry=AGAIN)(2)
    await talker.echo(random.Random(0).randbytes(150_000), numpy.arange(9_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talker.wait, random.Random(1).randbytes(500_000))
        for _ in range(6):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    network.reset_all()
    with trio.move_on_after(0):
        await talker.wait(3)
    await talker.echo(4)
    await trio.sleep(3)


@contextmanager
def _one_machine() -> Iterator[None]:
    """The same process on the same machine every time, and parts that are small."""
    with (
        patch("runtime.environment.host_identity", lambda: "host"),
        patch("runtime.environment.process_start", lambda pid: "start"),
        patch("runtime.environment.has_ended", lambda pid, started: False),
        patch("os.getpid", lambda: 4711),
        patch("runtime.links.transfers.WHOLE", 100_000),
        patch("runtime.links.outbound.WHOLE", 100_000),
        patch("runtime.links.transfers.PART", 30_000),
    ):
        yield


def capture() -> list[Frame]:
    """The frames, without repetitions, in the order of their first appearance."""
    network, faults = RecordingNetwork(), Faults()
    environment = SeededEnvironment(random.Random(0))

    async def main() -> None:
        async with (
            open_node(
                "here",
                secret=SECRET,
                platform=Platform(network=network, environment=environment, faults=faults),
            ) as here,
            open_node(
                "there",
                join=here.address,
                secret=SECRET,
                platform=Platform(network=network, environment=environment),
            ),
        ):
            await here.wait_for(2)
            try:
                async with open_node(
                    "stranger",
                    join=here.address,
                    secret="wrong",
                    platform=Platform(network=network, environment=environment),
                ):
                    pass
            except HandshakeError:
                pass
            await _talk(here, faults, network)

    logger = logging.getLogger("understudy")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with _one_machine(), ordered_by(0):
            trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        logger.setLevel(level)
    found: dict[tuple[object, ...], Frame] = {}
    for stream in network.streams:
        for frame in FrameReader().feed(b"".join(stream)):
            plain = Frame(frame.kind, frame.flags, frame.control, tuple(map(bytes, frame.segments)))
            found.setdefault(tuple(plain), plain)
    return [*found.values(), *_of_shared_memory()]


def _of_shared_memory() -> list[Frame]:
    """Frames that only processes of one host exchange: nodes in one process have no need of
    them.
    """
    call = HEADER.pack(Kind.CALL, 0, 1, 4) + struct.pack("!I", 1 << 20) + b"call"
    place = struct.pack("!QHHIQQ", 1, 1, 0, 1, 4096, 1 << 20)
    return [
        Frame(Kind.ARENA, 0, struct.pack("!II16s", 1, 5, bytes(range(16))), ()),
        *(Frame(Kind.ARENA, flag, struct.pack("!I", 1), ()) for flag in (1, 2, 3)),
        Frame(Kind.LOAN, 0, place + call, ()),
        Frame(Kind.RETURNED, 0, struct.pack("!QQ", 1, 2), ()),
    ]


def missing_kinds(frames: list[Frame]) -> set[Kind]:
    """Kinds that a corpus lacks."""
    return set(Kind) - {Kind(frame.kind) for frame in frames}
