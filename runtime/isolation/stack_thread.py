"""A thread in the process of an isolated actor that tells what the other threads run, while the
event loop there is blocked, as such actors may do.

Its node connects to a Unix socket in Linux's abstract namespace, named by the process's identity,
and reads JSON until the end. Only processes of the same user are answered.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import threading

import trio

from runtime.hosting.stacks import stacks_of_threads

MOST_BYTES = 1024 * 1024
"""Of one answer."""

WAITING = 4
"""Connections that wait for an answer; more are refused."""

WRITE_SECONDS = 1.0
"""How long one who asks may take to read the answer."""

logger = logging.getLogger("understudy.isolation")


def answer_from_thread(identity: str) -> None:
    """Start the thread, which ends with the process. `identity`: of this process as a peer."""
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(_path(identity))
        listening.listen(WAITING)
    except OSError as error:
        logger.info("stacks of this process are not told while it is blocked: %s", error)
        return
    threading.Thread(
        target=_answer, args=(listening,), name="answers for a blocked loop", daemon=True
    ).start()


def _answer(listening: socket.socket) -> None:
    while True:
        try:
            asking, _ = listening.accept()
            with asking:
                asking.settimeout(WRITE_SECONDS)
                if _same_user(asking):
                    asking.sendall(json.dumps(stacks_of_threads()[0]).encode())
        except (OSError, ValueError, RuntimeError) as error:
            # The next one is answered: threads come and go while they are read.
            logger.debug("did not tell the stacks of the threads: %s", error)


def _same_user(asking: socket.socket) -> bool:
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


async def ask_thread(identity: str) -> list[dict[str, object]]:
    """What the threads of that process of this machine run; see `stacks_of_threads`. Raises OSError
    or ValueError.
    """
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        await asking.connect(_path(identity))
        found = bytearray()
        while len(found) < MOST_BYTES:
            some = await asking.recv(65_536)
            if not some:
                break
            found += some
    told = json.loads(found)
    if not isinstance(told, list):
        raise ValueError("what was told is no list of threads")
    return told


def _path(identity: str) -> str:
    return f"\0understudy-stacks-{identity}"
