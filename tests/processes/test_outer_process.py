"""The outer process by itself, around a warm process that is a line of a test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from tests.processes.conftest import Marked
from tests.waiting import until

pytestmark = pytest.mark.cluster

PROGRAM = """
import os, signal, sys
from runtime.processes import outer_process
outer_process._END_SECONDS = {seconds}
{before}
# All of these may be inherited from programs of users.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD])
outer_process.fork_warm_process(int(sys.argv[1]), os.getppid())
{warm}
"""

LEAVES_A_DAEMON = """
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(int(sys.argv[1]), b"here")
        os.write(writer, b"here")
        while True: signal.pause()
    os._exit(0)
os.read(reader, 4)
"""


@contextmanager
def outer_process(
    warm: str, before: str = "", seconds: int = 600
) -> Iterator[tuple[subprocess.Popen[bytes], trio.SocketStream]]:
    """The process and the other end of its socket. It is killed at the end of the block at the
    latest.
    """
    ours, theirs = socket.socketpair()
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    with stream.socket, theirs:
        text = PROGRAM.format(warm=warm, before=before, seconds=seconds)
        process = subprocess.Popen(
            [sys.executable, "-c", text, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        with process:
            try:
                yield process, stream
            finally:
                process.kill()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGHUP)", -signal.SIGHUP),
    ],
)
async def test_it_ends_what_is_left_and_then_as_the_warm_process_has_ended(
    end: str, code: int, marked: Marked
) -> None:
    with outer_process(LEAVES_A_DAEMON + end) as (process, stream):
        assert b"".join([data async for data in stream]) == b"here"
        # The socket is closed when all have ended.
        assert not marked.pids() - {process.pid}
        assert await trio.to_thread.run_sync(process.wait) == code


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_it_ends_all(signum: signal.Signals, marked: Marked) -> None:
    hanging = LEAVES_A_DAEMON + "while True: signal.pause()"
    with outer_process(hanging) as (process, stream):
        assert await stream.receive_some() == b"here"
        process.send_signal(signum)
        assert await stream.receive_some() == b""
        assert await trio.to_thread.run_sync(process.wait) == -signal.SIGKILL
    assert marked.pids() == set()


async def test_the_end_is_known_although_a_process_that_is_left_cannot_be_ended(
    marked: Marked,
) -> None:
    # As where a process waits for a device, or has another user's rights.
    powerless = "outer_process.kill_quietly = lambda pid, signum: None"
    with outer_process(LEAVES_A_DAEMON + "os._exit(3)", powerless, seconds=1) as (process, stream):
        assert await stream.receive_some() == b"here"
        # The daemon has a copy of the socket, so its end is not seen here; but the number of copies
        # in the outer process is.
        copies = f"/proc/{process.pid}/fd"
        await until(lambda: len(os.listdir(copies)) == 3, "the outer process has closed the socket")
        (left,) = marked.pids() - {process.pid}
        os.kill(left, signal.SIGKILL)
        assert await stream.receive_some() == b""
        assert await trio.to_thread.run_sync(process.wait) == 3
