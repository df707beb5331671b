"""The floor: the same frames through trio and cbor2 between two processes, with no actor machinery.

No names, epochs, errors, deadlines, acknowledgements, limits or proof of identity: what is left is
what any such runtime pays at least. One receive loop parses all frames of a receive; the writer
gathers what one pass of the scheduler queued into one send, and what comes alone is sent at once;
the server's mailbox is drained by one task. It can spin, too: so many rounds of looking and letting
others have a turn before it sleeps, always and without a thought.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import cbor2
import trio

HEADER = struct.Struct("!BBHI")
CALL, REPLY, ECHO = 1, 2, 3
PREFIX = cbor2.dumps("counter") + cbor2.dumps(7) + cbor2.dumps("read")
BUFFER = 1024 * 1024
LARGE = 64 * 1024
LEAST = HEADER.size + 6 + len(PREFIX)
"""Bytes of the smallest request: a receive of less than two of these was one call alone."""


class Pipe:
    """One end of a connection: a receive loop and a gathering writer."""

    def __init__(
        self, connected: socket.socket, on_frame: Callable[[int, bytes], None], spin: int = 0
    ) -> None:
        connected.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        self.socket = connected
        self.on_frame = on_frame
        self.out: list[bytes] = []
        self.writer: trio.lowlevel.Task | None = None
        self.spin = spin
        self.batch = 0

    def post(self, kind: int, control: bytes, *, at_once: bool = False) -> None:
        """Queue a frame, or send it if nothing else is to be sent."""
        header = HEADER.pack(kind, 0, 0, len(control))
        if at_once and not self.out and self.writer is not None:
            data = header + control
            sent = self.socket.send(data)
            if sent == len(data):
                return
            self.out.append(data[sent:])
            trio.lowlevel.reschedule(self.writer)
            self.writer = None
            return
        self.out += [header, control] if len(control) > LARGE else [header + control]
        if self.writer is not None:
            trio.lowlevel.reschedule(self.writer)
            self.writer = None

    async def write(self) -> None:
        """Send what was queued, for ever."""

        def abort(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            self.writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:  # noqa: ASYNC913  each turn waits for a post or the socket
            if not self.out:
                self.writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abort)
            out, self.out = self.out, []
            whole = out if len(out) == 2 and len(out[1]) > LARGE else [b"".join(out)]
            for data in [memoryview(each) for each in whole]:
                while data:
                    try:
                        data = data[self.socket.send(data) :]
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(self.socket)

    async def read(self) -> None:
        """Hand frames to `on_frame` until the other end closes."""
        rest = b""
        while True:  # noqa: ASYNC913  each turn waits for the socket
            data = await self._receive()
            if not data:
                return
            data = rest + data
            position, end = 0, len(data)
            self.batch = end
            while end - position >= HEADER.size:
                kind, _, _, length = HEADER.unpack_from(data, position)
                start = position + HEADER.size
                after = start + length
                if length > LARGE:
                    self.on_frame(kind, await self._rest(data[start:], length))
                    position = end
                    break
                if after > end:
                    break
                self.on_frame(kind, data[start:after])
                position = after
            rest = data[position:]

    async def _receive(self) -> bytes:
        for _ in range(self.spin):
            await trio.lowlevel.checkpoint()
            try:
                return self.socket.recv(LARGE)
            except BlockingIOError:
                continue
        await trio.lowlevel.wait_readable(self.socket)
        return self.socket.recv(LARGE)

    async def _rest(self, begun: bytes, length: int) -> bytes:
        """A large frame, received straight into its buffer; the next one is not sent before it is
        answered.
        """
        whole = bytearray(length)
        whole[: len(begun)] = begun
        missing = memoryview(whole)[len(begun) :]
        while missing:
            await trio.lowlevel.wait_readable(self.socket)
            missing = missing[self.socket.recv_into(missing) :]
        return whole  # type: ignore[return-value]


class Client:
    """The calling end."""

    def __init__(self, connected: socket.socket, spin: int) -> None:
        self.pipe = Pipe(connected, self.on_frame, spin)
        self.waiting: dict[int, list[object]] = {}
        self.number = 0

    async def call(self) -> object:
        """One request and its answer."""
        self.number += 1
        slot: list[object] = [trio.lowlevel.current_task(), None]
        alone = not self.waiting
        self.waiting[self.number] = slot
        self.pipe.post(
            CALL, b"\x85\x1a%b%b\x80" % (self.number.to_bytes(4, "big"), PREFIX), at_once=alone
        )
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)
        return slot[1]

    async def echo(self, data: bytes) -> int:
        """Raw bytes there and back."""
        slot: list[object] = [trio.lowlevel.current_task(), None]
        self.waiting[0] = slot
        self.pipe.post(ECHO, data)
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)
        return len(slot[1])  # type: ignore[arg-type]

    def on_frame(self, kind: int, control: bytes) -> None:
        """Wake the caller."""
        number, value = (0, control) if kind == ECHO else cbor2.loads(control)
        slot = self.waiting.pop(number)
        slot[1] = value
        trio.lowlevel.reschedule(slot[0])  # type: ignore[arg-type]


@asynccontextmanager
async def open_floor(spin: int = 0) -> AsyncIterator[Client]:
    """A client whose server is another process; both spin for so many rounds before they sleep."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(  # noqa: ASYNC220  before anything is measured
        [sys.executable, "-m", "tests.benchmarks.floor", str(theirs.fileno()), str(spin)],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    client = Client(ours, spin)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.pipe.read)
            nursery.start_soon(client.pipe.write)
            yield client
            nursery.cancel_scope.cancel()
    finally:
        ours.close()
        process.wait()


async def serve(connected: socket.socket, spin: int) -> None:
    """The other process: one mailbox, one task that drains it."""
    mailbox: deque[bytes] = deque()
    parked: list[trio.lowlevel.Task] = []

    def on_frame(kind: int, control: bytes) -> None:
        if kind == ECHO:
            pipe.post(ECHO, control)
            return
        mailbox.append(control)
        if parked:
            trio.lowlevel.reschedule(parked.pop())

    async def actor() -> None:
        while True:
            while mailbox:
                number, _target, _epoch, _method, args = cbor2.loads(mailbox.popleft())
                value = await read(*args)
                reply = b"\x82\x1a%b%b" % (number.to_bytes(4, "big"), cbor2.dumps(value))
                pipe.post(REPLY, reply, at_once=pipe.batch < 2 * LEAST)
            parked.append(trio.lowlevel.current_task())
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)

    async def read() -> int:
        return 16

    pipe = Pipe(connected, on_frame, spin)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor)
        nursery.start_soon(pipe.write)
        await pipe.read()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(serve, socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    os._exit(0)
