"""An etcd for many tests: started once, by a thread of its own, because a test's event loop ends
with the test.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which

import pytest
import trio

from runtime.testing import EtcdServer, open_etcd

needs_etcd = pytest.mark.skipif(
    which("etcd") is None, reason="etcd is not installed: apt-get install etcd-server"
)


@contextmanager
def shared_etcd(members: int) -> Iterator[EtcdServer]:
    """A running etcd. Skips the test, saying why, where there is none."""
    if which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    started: queue.SimpleQueue[
        tuple[EtcdServer, trio.Event, trio.lowlevel.TrioToken] | Exception
    ] = queue.SimpleQueue()

    async def serve() -> None:
        over = trio.Event()
        async with open_etcd(members) as server:
            started.put((server, over, trio.lowlevel.current_trio_token()))
            await over.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except Exception as error:
            started.put(error)

    thread = threading.Thread(target=run, name="etcd of the tests")
    thread.start()
    found = started.get()
    if isinstance(found, Exception):
        raise found
    server, over, token = found
    yield server
    token.run_sync_soon(over.set)
    thread.join()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    """A running etcd of one member, for the tests of a module."""
    with shared_etcd(1) as server:
        yield server
