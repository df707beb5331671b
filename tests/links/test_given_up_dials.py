"""Sessions whose connections are Unix sockets, which show both ends that they are processes of one
host, and TCP, which does not: memory is lent only to an end that knows of it.
"""

from __future__ import annotations

import os
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, method
from runtime.links.link import Link
from runtime.links.transports import Connection, SocketConnection
from runtime.node import Node, internals_of
from runtime.wire.frames import Kind
from tests.live_pair import Pair
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="needs memfd_create (Linux)"
)

DATA = bytes(range(256)) * 1024


class Echo(Actor):
    """Answers with what it gets."""

    @method
    async def same(self, data: bytes) -> bytes:
        return data


class GivenUp(SocketConnection):
    """Given up by the end that has dialled it, when the other end has accepted it."""

    given_up: trio.Event

    async def receive(self) -> bytes:
        data = await super().receive()
        if data[:1] == bytes([Kind.RESUME]):
            self.given_up.set()
            raise ConnectionResetError("given up by the test")
        return data


class Dials:
    """Dials for a node, to the address that `kind` says: "unix", "tcp", or "given up": a Unix
    socket is given up before TCP is dialled. While it is "none", nothing is dialled.
    """

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        network = internals_of(node).endpoint.peers.network
        self._made = network.connect
        self.kind = kind
        self._given_up = trio.Event()
        """Once there was one."""
        # Not as the network of its platform: with one of its own a node shares no memory.
        monkeypatch.setattr(network, "connect", self.connect)

    async def connect(self, address: str) -> Connection:
        of_host = address.startswith("unix:")
        if self.kind == "given up" and not of_host:
            await self._given_up.wait()
        elif self.kind != ("unix" if of_host else "tcp") and self.kind != "given up":
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError("refused by the test")
        connection: Any = await self._made(address)
        if self.kind == "given up" and of_host:
            connection.__class__ = GivenUp
            connection.given_up = self._given_up
        return connection

    def made(self, link: Link) -> bool:
        """True if the connection that stands came about as `kind` says."""
        connection: Any = link.connection
        if connection is None or (self.kind == "given up" and not self._given_up.is_set()):
            return False
        return (connection.peer_process() is not None) == (self.kind == "unix")


@attrs.frozen
class Ends:
    """Both ends of one link, of which `there` dials."""

    pair: Pair
    here: Link
    there: Link
    dials: Dials

    async def connect_again(self, kind: str) -> None:
        """Have `there` dial again; wait until a connection stands at both ends."""
        self.dials.kind = kind
        with trio.fail_after(60):
            while True:
                self.there.drop_connection()
                await self.there.disconnected()
                await self.there.connected_again()
                await self.here.connected_again()
                # Another dial may have been under way, and stand.
                if self.dials.made(self.there):
                    break

    async def talk(self) -> None:
        """Send large data both ways, until what is to be announced was announced and answered."""
        with trio.fail_after(60):
            echo = await self.pair.here.options(on="there").spawn(Echo)
            for _ in range(3):
                assert await echo.same(DATA) == DATA
        assert (self.here.ended, self.there.ended) == (None, None)

    def lent(self) -> tuple[int, int]:
        """Bytes that each end has lent."""
        return self.here.bytes_shared, self.there.bytes_shared


async def connected_link(node: Node, peer: str) -> Link:
    """Wait until the node is connected to this peer."""

    def connected() -> list[Link]:
        links = internals_of(node).links.values()
        return [link for link in links if link.peer.name == peer and link.connected]

    (link,) = await until(connected, f"{node.name} is connected to {peer}")
    return link


@pytest.fixture
async def both(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Two nodes with a session that had no other connection than one of TCP so far."""
    # Only one end dials: otherwise it would be open which of the dials stands.
    Dials(pair.here, monkeypatch, "none")
    dials = Dials(pair.there, monkeypatch, "tcp")
    for node, peer in ((pair.here, "there"), (pair.there, "here")):
        link = await connected_link(node, peer)
        internals_of(node).endpoint.peers.give_up(link, "begun anew by the test")
    here = await connected_link(pair.here, "there")
    there = await connected_link(pair.there, "here")
    assert (here.lending, there.lending) == (None, None)
    return Ends(pair, here, there, dials)


async def test_who_gave_up_the_dial_that_showed_the_same_host_is_lent_nothing(both: Ends) -> None:
    await both.connect_again("given up")
    assert both.here.lending is not None, "the other end was accepted over the Unix socket"
    assert both.there.lending is None, "and never learned of it"
    await both.talk()
    assert both.lent() == (0, 0)
    # The same session over a Unix socket that stands.
    await both.connect_again("unix")
    await both.talk()
    assert min(both.lent()) >= len(DATA)


async def test_a_session_goes_on_lending_over_a_connection_that_does_not_show_it(
    both: Ends,
) -> None:
    await both.connect_again("unix")
    await both.talk()
    await both.connect_again("tcp")
    before = both.lent()
    await both.talk()
    assert all(now > then for now, then in zip(both.lent(), before, strict=True))


@pytest.mark.parametrize("blind", ["here", "there"])
async def test_memory_is_declined_where_only_the_peer_sees_that_it_is_of_the_same_host(
    both: Ends, blind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where it runs in a namespace of processes in which it does not see the other, or has
    # become another user since it began to listen.
    monkeypatch.setattr(getattr(both, blind), "share_memory", lambda *_, **__: None)
    await both.connect_again("unix")
    assert [both.here.lending, both.there.lending].count(None) == 1
    await both.talk()
    assert both.lent() == (0, 0)
