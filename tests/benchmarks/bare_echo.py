"""The floor of the rows with TLS: the same bytes there and back through blocking sockets of Python,
with TLS by `ssl.SSLSocket` and without, and nothing of the runtime.

`python -m tests.benchmarks.bare_echo PORT tls|plain` is the process that answers.
"""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from runtime.links.credentials import client_context, server_context
from runtime.links.transports import SOCKET_BUFFER
from runtime.wire.certificates import RANDOM_BYTES, self_signed

SMALL = 64
"""Bytes of a message that follows its answer: about those of a small call."""


class BareEcho:
    """A connection to a process that sends back what it receives. For one thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = memoryview(bytearray(0))

    def _exchange(self, data: bytes) -> None:
        if len(self._buffer) != len(data):
            self._buffer = memoryview(bytearray(len(data)))
        self._socket.sendall(len(data).to_bytes(8, "big"))
        self._socket.sendall(data)
        _fill(self._socket, self._buffer)

    async def rate(self, size: int, seconds: float) -> float:
        """How often in a second so many bytes go there and come back."""
        data = bytes(size)

        def run() -> float:
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                self._exchange(data)
                count += 1
            return count / (time.perf_counter() - began)

        return await trio.to_thread.run_sync(run)


@contextmanager
def open_bare_echo(*, tls: bool) -> Iterator[BareEcho]:
    """A connection to a process of its own, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kind = "tls" if tls else "plain"
        command = [sys.executable, "-m", __name__, str(listener.getsockname()[1]), kind]
        with subprocess.Popen(command) as process:
            connected = _tuned(listener.accept()[0])
            if tls:
                identity = self_signed("bench", random.Random(1).randbytes(RANDOM_BYTES))
                connected = server_context(identity).wrap_socket(connected, server_side=True)
            try:
                yield BareEcho(connected)
            finally:
                connected.close()
                process.wait()


def _tuned(connected: socket.socket) -> socket.socket:
    """With the options that connections of nodes have."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connected.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    return connected


def _fill(connected: socket.socket, buffer: memoryview) -> bool:
    """Receive all of `buffer`; False at the end of the connection."""
    while buffer:
        count = connected.recv_into(buffer)
        if not count:
            return False
        buffer = buffer[count:]
    return True


def _answer(port: int, kind: str) -> None:
    connected = _tuned(socket.create_connection(("127.0.0.1", port)))
    if kind == "tls":
        connected = client_context().wrap_socket(connected)
    head = memoryview(bytearray(8))
    whole = memoryview(bytearray(0))
    try:
        while _fill(connected, head):
            size = int.from_bytes(head, "big")
            if len(whole) != size:
                whole = memoryview(bytearray(size))
            if not _fill(connected, whole):
                return
            connected.sendall(whole)
    except (ssl.SSLError, OSError):
        # The other end has closed.
        return


if __name__ == "__main__":
    _answer(int(sys.argv[1]), sys.argv[2])
