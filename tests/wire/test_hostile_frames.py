"""Frames that a proven peer may send to do harm: they cost it its link at most, import nothing, and
nobody else notices.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio
from cbor2 import CBORTag

from actors import Actor, method
from actors.errors import ProtocolError
from runtime import open_node
from runtime.links.link import Link, UnhandledFrameError
from runtime.node import internals_of
from runtime.testing import Platform
from runtime.wire.frames import Frame, Kind
from runtime.wire.handshake import Peer
from runtime.wire.tags import (
    ARRAY,
    DATETIME,
    DECIMAL,
    ENUM,
    MESSAGE,
    PAIRS,
    SCALAR,
    SEGMENT,
    SET,
    SPILLED,
    TUPLE,
)
from tests.memory_network import MemoryNetwork
from tests.wire.fuzz import Deaf, proven


class Bystander(Actor):
    @method
    async def ping(self, *values: object) -> str:
        return "pong"


UNIMPORTED = (
    "unittest.__main__:x",
    "antigravity:x",
    "this:s",
    "tests.processes.broken_import:X",
    "idlelib.idle:x",
    "lib2to3.__main__:x",
)
"""Modules that end their process, open a browser, or write as they are imported."""

CLASSES = [
    *UNIMPORTED,
    "os:system",
    "sys:exit",
    "builtins:SystemExit",
    "subprocess:Popen",
    "trio:Cancelled",
    "actors.errors:ProtocolError",
    "actors.actor:Actor",
    "runtime.command_line.__main__:x",
    "tests.node.hostile_errors:HarmfulNew",
    "tests.node.hostile_errors:Meta",
    "",
    ":",
    "a",
    "..x:y",
    "os:path.join",
    "x" * 100_000 + ":y",
    "\x00:\x00",
]

VALUES: list[object] = [
    *(CBORTag(MESSAGE, [path, {}]) for path in CLASSES),
    *(CBORTag(MESSAGE, [path, ["a", 1]]) for path in CLASSES),
    *(CBORTag(ENUM, [path, "x"]) for path in CLASSES),
    CBORTag(ENUM, ["signal:Signals", 9]),
    CBORTag(ENUM, ["re:RegexFlag", 2**70]),
    CBORTag(MESSAGE, []),
    CBORTag(MESSAGE, ["actors.method:Address", {"name": 5}]),
    CBORTag(MESSAGE, ["actors.method:Address", {"name": "a", "node": "b", "incarnation": "c"}]),
    CBORTag(MESSAGE, ["tests.node.hostile_errors:Need", ["x"], {1: 2}, []]),
    CBORTag(MESSAGE, ["tests.node.hostile_errors:Need", ["x"], {"need": 3}, [5]]),
    CBORTag(SET, [[1]]),
    CBORTag(SET, [1, 1]),
    CBORTag(SET, [i * (2**61 - 1) for i in range(3000)]),
    CBORTag(PAIRS, [1]),
    CBORTag(PAIRS, [[], 1]),
    CBORTag(TUPLE, 5),
    CBORTag(DECIMAL, "1e" + "9" * 5000),
    CBORTag(DATETIME, ["2026-01-01", 0, "../../etc/passwd"]),
    CBORTag(DATETIME, ["2026-01-01", 0, "America"]),
    CBORTag(DATETIME, ["x" * 1000, 7, 9]),
    CBORTag(ARRAY, ["<i8", [2**62, 4], b""]),
    CBORTag(ARRAY, ["O", [1], b"12345678"]),
    CBORTag(ARRAY, ["<V999999999", [0], b""]),
    CBORTag(SCALAR, ["<i8", b"1"]),
    CBORTag(SEGMENT, 7),
    CBORTag(SPILLED, 0),
    CBORTag(35, "(a+)+$"),
    CBORTag(28, [CBORTag(29, 0)]),
    CBORTag(64_100, CBORTag(MESSAGE, ["unittest.__main__:x", {}])),
    CBORTag(64_100, 5),
    [1],
    {"a": 1},
]


def items(head: list[object], value: object) -> bytes:
    return cbor2.dumps([*head, value])


def call(value: object, actor: str = "bystander", name: str = "ping") -> bytes:
    # With the number as our peers write it.
    return b"\x85\x1a\x00\x00\x00\x07" + b"".join(map(cbor2.dumps, (actor, 0, name, [value])))


def spawn(path: object) -> bytes:
    return b"\x85\x1a\x00\x00\x00\x07" + b"".join(
        map(cbor2.dumps, ("@node", 0, "spawn", [path, CBORTag(TUPLE, []), {}]))
    )


def crafted() -> list[bytes]:
    """What cbor2 would never write: nests of all that nests, and lengths of what is not there."""
    tags = [*range(6), 28, 29, 35, 258, 55_799, MESSAGE, ENUM, SET, PAIRS, TUPLE, DATETIME, ARRAY]
    heads = [cbor2.dumps(CBORTag(tag, 0))[:-1] for tag in tags]
    nests = [b"\x81", b"\xa1\x00", b"\xa1", b"\x9f", b"\xbf\x00", *heads]
    nests += [head + b"\x81" for head in heads] + [head + b"\x82\x61a" for head in heads]
    lengths = [
        bytes([major << 5 | 27]) + size.to_bytes(8, "big") + rest
        for major in range(7)
        for size in (2**24, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
        for rest in (b"", bytes(1000))
    ]
    # As deep as the limit, and as a frame has room for.
    return [
        nest * (most // len(nest)) + b"\0" for nest in nests for most in (100, 250_000)
    ] + lengths


PLACES: dict[str, Callable[[Any], tuple[Kind, bytes]]] = {
    "CALL": lambda value: (Kind.CALL, call(value)),
    "CALL of a service": lambda value: (Kind.CALL, call(value, "@node", "status")),
    "CALL with it as a name": lambda value: (
        Kind.CALL,
        b"\x85\x1a\0\0\0\x07\x65@node\0" + cbor2.dumps(value) + b"\x80",
    ),
    "CALL of a long number": lambda value: (
        Kind.CALL,
        b"\x85\x1b" + bytes(7) + b"\x07" + cbor2.dumps(value) + b"\0\x60\x80",
    ),
    "SEND": lambda value: (Kind.SEND, items([0, "bystander", 0, "ping"], [value])),
    "REPLY": lambda value: (Kind.REPLY, items([7], value)),
    "ERROR": lambda value: (
        Kind.ERROR,
        items(
            [7, "raised"], {"type": "unittest.__main__:x", "args": [value], "fields": {"a": value}}
        ),
    ),
    "ITEM": lambda value: (Kind.ITEM, items([7], value)),
    "FORGET": lambda value: (Kind.FORGET, items([7], value)),
    "CREDIT": lambda value: (Kind.CREDIT, items([7], value)),
    "CANCEL": lambda value: (Kind.CANCEL, items([], value)),
}


def receive(link: Link, kind: Kind, control: bytes) -> ProtocolError | None:
    """What a frame that has arrived makes of its link."""
    try:
        link.on_frames([Frame(int(kind), 0, control, ())], len(control))
    except ProtocolError as error:
        return error
    return None


@pytest.mark.parametrize("place", PLACES)
async def test_a_hostile_frame_costs_its_sender_its_link_and_nobody_anything(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "understudy")
    assert len(VALUES) * len(PLACES) >= 116
    async with open_node("there", secret="s", platform=Platform(network=MemoryNetwork())) as node:
        bystander = await node.options(name="bystander").spawn(Bystander)
        known = set(sys.modules)
        for number, value in enumerate(VALUES):
            link = Link(
                Peer(name="harmful", incarnation=number + 1, role="client"),
                internals_of(node).endpoint.peers.receiver,
            )
            link.on_verified(proven(link.peer))
            link.open(Deaf(), 0)
            kind, control = PLACES[place](value)
            broken = receive(link, kind, control)
            assert not isinstance(broken, UnhandledFrameError), (value, broken)
            with trio.fail_after(60):
                assert await bystander.ping() == "pong", value
            link.end("the end of this frame")
        grown = {
            name
            for name in set(sys.modules) - known
            if name.partition(".")[0] not in ("numpy", "tzdata", "zoneinfo", "importlib")
        }
        assert not grown & {path.partition(":")[0] for path in CLASSES}


@pytest.mark.parametrize("place", PLACES)
async def test_a_crafted_frame_costs_its_sender_its_link_and_nobody_anything(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "understudy")
    kind, control = PLACES[place]("here")
    before, here, after = control.partition(cbor2.dumps("here"))
    assert here
    async with open_node("there", secret="s", platform=Platform(network=MemoryNetwork())) as node:
        bystander = await node.options(name="bystander").spawn(Bystander)
        for number, value in enumerate(crafted()):
            link = Link(
                Peer(name="harmful", incarnation=number + 1, role="client"),
                internals_of(node).endpoint.peers.receiver,
            )
            link.on_verified(proven(link.peer))
            link.open(Deaf(), 0)
            broken = receive(link, kind, before + value + after)
            assert not isinstance(broken, UnhandledFrameError), (value[:20], broken)
            with trio.fail_after(60):
                assert await bystander.ping() == "pong", value[:20]
            link.end("the end of this frame")


@pytest.mark.parametrize("path", [*CLASSES, 5, None, ["x"]])
async def test_a_spawn_of_a_class_that_ends_its_importer_ends_the_spawn(
    path: object,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `unittest.__main__` imports all tests that it finds here.
    monkeypatch.chdir(tmp_path)
    if path in ("antigravity:x", "idlelib.idle:x"):
        pytest.skip("it would open a window")
    caplog.set_level(logging.CRITICAL + 1, "understudy")
    async with open_node("there", secret="s", platform=Platform(network=MemoryNetwork())) as node:
        bystander = await node.options(name="bystander").spawn(Bystander)
        link = Link(
            Peer(name="harmful", incarnation=1, role="client"),
            internals_of(node).endpoint.peers.receiver,
        )
        link.on_verified(proven(link.peer))
        link.open(Deaf(), 0)
        control = spawn(path)
        receive(link, Kind.CALL, control)
        with trio.fail_after(60):
            await trio.sleep(0.05)
            assert await bystander.ping() == "pong"
        link.end("the end of this frame")
