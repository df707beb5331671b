"""Floods of frames of HTTP/2, and frames that no client may send: their own connection ends, the
others go on, and the log has a line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import hpack
import pytest
import trio
from hyperframe import frame as frames

from runtime.gateway import server
from runtime.limited_log import BURST
from tests.gateway.conftest import World

TOKEN = "atokenofthetestsofhttp2"
START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames.SettingsFrame(0).serialize()
ADD = "/v1/actors/counter/add"


def head(
    number: int = 1, path: bytes = b"/healthz", *, method: bytes = b"GET", ends: bool = True
) -> bytes:
    """The frame with which a request begins."""
    found = frames.HeadersFrame(number)
    names = [
        (b":method", method),
        (b":scheme", b"http"),
        (b":authority", b"localhost"),
        (b":path", path),
        (b"authorization", f"Bearer {TOKEN}".encode()),
    ]
    found.data = hpack.Encoder().encode(names, huffman=False)
    found.flags.add("END_HEADERS")
    if ends:
        found.flags.add("END_STREAM")
    return bytes(found.serialize())


def resets(path: bytes, method: bytes) -> bytes:
    """Requests that are given up at once."""
    sent = b""
    for number in range(1, 1001, 2):
        reset = frames.RstStreamFrame(number, error_code=8)
        sent += head(number, path, method=method) + reset.serialize()
    return sent


def continuations(size: int) -> bytes:
    """A head without end."""
    first = frames.HeadersFrame(1, data=hpack.Encoder().encode([(b":method", b"GET")]))
    more = frames.ContinuationFrame(1, data=b"\x00\x01a\x01b" * size)
    return bytes(first.serialize() + more.serialize() * 2000)


def priorities() -> bytes:
    """Weights of more streams than hypercorn keeps."""
    return b"".join(
        frames.PriorityFrame(number, depends_on=0, stream_weight=9).serialize()
        for number in range(1, 4001, 2)
    )


FLOODS: dict[str, Callable[[], bytes]] = {
    "resets": lambda: resets(b"/healthz", b"GET"),
    "resets of calls": lambda: resets(b"/v1/actors/counter/read", b"POST"),
    "settings": lambda: frames.SettingsFrame(0, settings={3: 100}).serialize() * 3000,
    "pings": lambda: frames.PingFrame(0, opaque_data=b"12345678").serialize() * 3000,
    "windows": lambda: frames.WindowUpdateFrame(0, window_increment=1).serialize() * 3000,
    "continuations": lambda: continuations(100),
    "empty continuations": lambda: continuations(0),
    "priorities": priorities,
    "data behind its answer": lambda: (
        head(1, ADD.encode(), method=b"POST", ends=False)
        + frames.DataFrame(1, data=b"x" * 10).serialize() * 3000
    ),
    "a path that is no text": lambda: head(1, b"/\xff\xfe"),
    "a method that is no text": lambda: head(1, method=b"\xff"),
}


async def send(world: World, data: bytes) -> None:
    """Send frames, and read what is answered, until the server ends it or has nothing to say."""
    async with (
        await trio.open_tcp_stream("127.0.0.1", world.http.port) as stream,
        trio.open_nursery() as nursery,
    ):

        async def read() -> None:
            try:
                while await stream.receive_some(65536):
                    pass
            except trio.BrokenResourceError:
                # Frames were on their way when it closed.
                pass

        nursery.start_soon(read)
        try:
            await stream.send_all(START + data)
        except trio.BrokenResourceError:
            pass
        # Behind the flood, so that what it does is done when this has its answer.
        assert (await world.http.ask("GET", "/healthz")).status == 200
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_ends_its_own_connection_at_most(
    world: World, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.INFO)
    with trio.fail_after(60):
        await send(world, FLOODS[name]())
    assert (await world.http.call("counter", "add", {"amount": 1})).status == 200
    lines = [one for one in caplog.records if one.name.startswith("understudy.gateway")]
    assert len(lines) <= 1, caplog.text
    # hypercorn's exceptions have the bytes of the request in their texts.
    assert not any(one.exc_info for one in lines)
    assert TOKEN not in caplog.text


async def test_lines_about_such_connections_are_limited(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(BURST + 5):
        await send(world, head(1, b"/\xff\xfe"))
    lines = [one for one in caplog.records if "HTTP/2" in one.getMessage()]
    assert 1 <= len(lines) <= BURST
    assert "UnicodeDecodeError" in lines[0].getMessage()


async def test_few_frames_are_handled_before_others_have_their_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    receive = server._BoundedStream.receive_some

    async def noted(self: server._BoundedStream, max_bytes: int) -> bytes:
        data = await receive(self, max_bytes)
        if self.http.is_http2:
            sizes.append(len(data))
        return data

    monkeypatch.setattr(server._BoundedStream, "receive_some", noted)
    await send(world, FLOODS["windows"]() * 4)
    assert max(sizes) <= server.HTTP2_BYTES
    # Large bodies of HTTP/1 are read in large pieces.
    assert (await world.http.call("counter", "echo", {"value": "x" * 500_000})).status == 200
