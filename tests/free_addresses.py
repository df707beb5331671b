"""Addresses on which no process listens, for those that are to listen there later, or never."""

from __future__ import annotations

import os
import socket


def free_address() -> str:
    """Return `HOST:PORT` of a loopback address that only this process gives away.

    A port of 127.0.0.1 that was free a moment ago may be taken meanwhile, by any process that asks
    for a free one or connects to another. All of 127.0.0.0/8 is this machine's, and nothing of what
    runs beside the tests binds an address that has the number of this process in it.
    """
    number = os.getpid()
    # 127.64.0.0/10: up to 4 million processes, as many as Linux has at most.
    host = f"127.{64 | number >> 16 & 63}.{number >> 8 & 255}.{number & 255}"
    with socket.create_server((host, 0)) as server:
        return f"{host}:{server.getsockname()[1]}"
