"""An etcd for the tests of a session, and a part of it for each test: the fixture `etcd`."""

from __future__ import annotations

import base64
from collections.abc import Callable

from actors.errors import StoreError
from runtime.doors.loop_thread import OpenBlock
from runtime.environment import SystemEnvironment
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.gateway import Gateway
from runtime.testing.etcd_server import EtcdServer, open_etcd
from runtime.testing.process_cluster import close_block, never, open_block

ATTEMPTS = 3
"""Its ports are free when they are chosen. Another process, such as another worker of pytest-xdist,
may have one of them before it listens."""


class SessionEtcd:
    """One etcd of one member, in the loop of this process."""

    def __init__(self) -> None:
        self._block: OpenBlock[EtcdServer]
        self.server: EtcdServer

    def open(self) -> None:
        """Start it. Raises `StoreError` if it does not start, or is not installed."""
        for attempt in range(1, ATTEMPTS + 1):
            self._block = OpenBlock(open_etcd, "the etcd of the tests", never)
            try:
                self.server = open_block(self._block)
                return
            except StoreError:
                if attempt == ATTEMPTS:
                    raise

    def close(self) -> None:
        """End it."""
        close_block(self._block)

    def namespace(self) -> EtcdNamespace:
        """A new part of it."""
        return EtcdNamespace(self, f"test-{SystemEnvironment().token(8).hex()}")

    def do(self, function: Callable[[], None]) -> None:
        """Call something in the loop."""

        async def called() -> None:
            function()

        self._block.loop.portal.call(called)

    def kill(self) -> None:
        """End it at once."""

        async def killed() -> None:
            # By SIGKILL; the files stay, with the block.
            await self.server.stop()

        self._block.loop.portal.call(killed)

    def start(self) -> None:
        """Start it again if it has ended, let it go on if it is paused, and wait until it
        answers.
        """

        async def again() -> None:
            self.server.resume()
            process = self.server.members[0].process
            if process is None or process.poll() is not None:
                await self.server.start()
            await self.server.ready()

        self._block.loop.portal.call(again)

    def clear(self, prefix: str) -> None:
        """Remove all keys of a namespace."""

        async def removed() -> None:
            gateway = Gateway(EtcdAddress.parse(self.server.address))
            try:
                # From the prefix to the next text that does not begin with it.
                begin, end = f"{prefix}/".encode(), f"{prefix}0".encode()
                await gateway.ask(
                    "/v3/kv/deleterange",
                    {
                        "key": base64.b64encode(begin).decode(),
                        "range_end": base64.b64encode(end).decode(),
                    },
                    seconds=5.0,
                )
            finally:
                gateway.close()

        self._block.loop.portal.call(removed)


class EtcdNamespace:
    """The part of a real etcd that belongs to one test, from the fixture `etcd`. Faults act on the
    whole etcd, and end with the test.
    """

    def __init__(self, etcd: SessionEtcd, prefix: str) -> None:
        self._etcd = etcd
        self.prefix = prefix
        """What all keys of this test begin with."""

    @property
    def address(self) -> str:
        """The address for `open_node(store=...)`, `open_local_cluster(store=...)` and `--store`."""
        return f"{self._etcd.server.address}?prefix={self.prefix}"

    def kill(self) -> None:
        """End the etcd at once (SIGKILL). When this returns it runs no more."""
        self._etcd.kill()

    def start(self) -> None:
        """Start it again, on the files that it had; returns when it answers."""
        self._etcd.start()

    def pause(self) -> None:
        """Stop the etcd from running (SIGSTOP) until `resume`."""
        self._etcd.do(self._etcd.server.pause)

    def resume(self) -> None:
        """Let it go on."""
        self._etcd.do(self._etcd.server.resume)
