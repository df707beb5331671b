"""A thread in the process of an isolated actor that answers with the stacks of the other threads,
or a profile of them, while the event loop there is blocked: isolated actors may block it.

Its node connects to a Unix socket in Linux's abstract namespace, named by the process's identity,
sends a question as JSON, shuts down its side, and reads until the end. It answers, and the node
asks, only processes of the same user: in that namespace a name belongs to the first process that
binds it, whatever its user.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading

import trio

from actors.own_logger import own_logger
from runtime.hosting.profiler import packed_profile
from runtime.hosting.stacks import stacks_of_threads

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of one answer."""

MOST_QUESTION = 1024
"""Bytes of a question."""

WAITING = 4
"""Connections that wait for an answer; more are refused."""

WRITE_SECONDS = 1.0
"""How many seconds a node that asks may take to read the answer."""

logger = own_logger("understudy.isolation")


def answer_from_thread(identity: str) -> None:
    """Start the thread, which ends with the process. `identity`: of this process as a peer."""
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(_path(identity))
        listening.listen(WAITING)
    except OSError as error:
        logger.info("the stacks of this process cannot be reported while it is blocked: %s", error)
        return
    threading.Thread(
        target=_answer, args=(listening,), name="answers for a blocked loop", daemon=True
    ).start()


def _answer(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(WRITE_SECONDS)
                if _same_user(connection):
                    connection.sendall(
                        _answer_to(json.loads(connection.makefile("rb").read(MOST_QUESTION)))
                    )
        except (OSError, ValueError, RuntimeError) as error:
            # The next one is answered: threads come and go while they are read.
            logger.debug("could not report the stacks of the threads: %s", error)


def _answer_to(question: dict[str, object]) -> bytes:
    seconds, rate = question.get("seconds"), question.get("rate")
    if not isinstance(seconds, int | float) or not isinstance(rate, int):
        return json.dumps(stacks_of_threads()[0]).encode()
    return packed_profile(seconds, rate, "", threading.Event())


def _same_user(connection: socket.socket | trio.socket.SocketType) -> bool:
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return bool(user == os.geteuid())


async def ask_for_stacks(identity: str) -> list[dict[str, object]]:
    """Ask a process of this machine for the stacks of its threads; see `stacks_of_threads`. Raises
    OSError if it cannot be reached, ValueError if its answer cannot be read.
    """
    answer = json.loads(await _ask(identity, {}))
    if not isinstance(answer, list):
        raise ValueError("the answer is not a list of threads")
    return answer


async def ask_for_profile(identity: str, seconds: float, rate: int) -> bytes:
    """Profile that process of this machine; see `packed_profile`. Raises OSError."""
    return await _ask(identity, {"seconds": seconds, "rate": rate})


async def _ask(identity: str, question: dict[str, object]) -> bytes:
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        await connection.connect(_path(identity))
        if not _same_user(connection):
            raise PermissionError(f"another user has taken the socket of {identity}")
        await connection.send(json.dumps(question).encode())
        connection.shutdown(socket.SHUT_WR)
        found = bytearray()
        while len(found) < MOST_BYTES:
            some = await connection.recv(65_536)
            if not some:
                break
            found += some
    return bytes(found)


def _path(identity: str) -> str:
    return f"\0understudy-stacks-{identity}"
