"""An address at which no node listens, but a server of another protocol: the error says at once
what is there.
"""

from __future__ import annotations

import functools
import http.server
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
import trio

from actors.errors import JoinError
from runtime import open_node

LINE_END = b"\r\n\r\n"


async def talks_first(stream: trio.SocketStream, banner: bytes) -> None:
    """As servers of SSH, mail and VNC do."""
    await stream.send_all(banner)
    await trio.sleep_forever()


async def read_request(stream: trio.SocketStream) -> None:
    received = b""
    while LINE_END not in received:
        received += await stream.receive_some()


async def waits_for_a_line(stream: trio.SocketStream, answer: bytes) -> None:
    """As servers of HTTP and Redis do."""
    await read_request(stream)
    await stream.send_all(answer)
    await trio.sleep_forever()


async def ends(stream: trio.SocketStream, last: bytes) -> None:
    # What is not read would reset the connection, and the answer may be lost.
    await read_request(stream)
    await stream.send_all(last)
    await stream.aclose()


OTHERS: list[tuple[Callable[..., object], bytes, str]] = [
    (talks_first, b"SSH-2.0-OpenSSH_9.2\r\n", "answers as an SSH server does"),
    (talks_first, b"220 mail.example ESMTP\r\n", "answers as a mail or FTP server does"),
    (talks_first, b"RFB 003.008\n", "answers as a VNC server does"),
    (waits_for_a_line, b"-ERR unknown command\r\n", "answers as Redis does"),
    (waits_for_a_line, b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers as an HTTP server does"),
    (ends, b"hello?\n", r"it sent b'hello\?\\n', which no node sends"),
    (ends, b"no", "it sent b'no', which no node sends"),
    (ends, b"x" * 5000, "it sent b'x{24}', which no node sends"),
]


@pytest.mark.parametrize(("serve", "said", "text"), OTHERS)
async def test_it_is_said_what_answers_at_the_address(
    serve: Callable[..., object], said: bytes, text: str
) -> None:
    async def handler(stream: trio.SocketStream) -> None:
        try:
            await serve(stream, said)  # type: ignore[misc]
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(
            functools.partial(trio.serve_tcp, handler, 0, host="127.0.0.1")
        )
        host, port = listener.socket.getsockname()
        # Less than one step of a handshake may take.
        with (
            trio.fail_after(4),
            pytest.raises(JoinError, match=f"{host}:{port} does not speak .*{text}.; check the"),
        ):
            async with open_node(join=f"{host}:{port}"):
                pytest.fail("joined")
        nursery.cancel_scope.cancel()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web_server() -> Iterator[str]:
    """The address of a real one."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_a_web_server_answers_at_once(web_server: str) -> None:
    with trio.fail_after(4), pytest.raises(JoinError, match="answers as an HTTP server does"):
        async with open_node(join=web_server):
            pytest.fail("joined")


async def test_what_a_stranger_sends_is_not_in_the_log_of_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_node() as node:
        host, _, port = node.address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"GET /a-secret HTTP/1.1\r\n\r\n")
            assert await stream.receive_some() == b""
    assert "a-secret" not in caplog.text
