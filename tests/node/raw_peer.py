"""A peer that shakes hands as any other, and then sends whatever frames a test gives it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import cbor2
import trio

from actors.errors import EncryptionError
from runtime.environment import SystemEnvironment
from runtime.links.encryption import Tls, system_network
from runtime.links.loans import FEATURE
from runtime.links.transports import Connection
from runtime.membership.cluster_secret import find_security
from runtime.node import Node
from runtime.wire.frames import Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Dialer, Introduction, Peer

PROCESSES = itertools.count(10**6)


@attrs.define(eq=False)
class RawPeer:
    """One connection of a process that is no member. `connect` makes it."""

    connection: Connection
    peer: Peer
    reader: FrameReader = attrs.field(factory=FrameReader)
    arrived: list[Frame] = attrs.field(factory=list)
    lost: bool = False
    accepted: bool = False
    """Whether the node goes on with the session that was offered."""

    @classmethod
    async def connect(
        cls, node: Node, credentials: str | Tls, peer: Peer | None = None, **offer: int
    ) -> RawPeer:
        """Connect with a secret alone, or with a certificate alone, and begin a session. Raises
        what the handshake raises.
        """
        environment = SystemEnvironment()
        by_secret = isinstance(credentials, str)
        found, tls = find_security(
            credentials if isinstance(credentials, str) else None,
            None if by_secret else credentials,
            environment.token,
            needs_own=False,
        )
        secret, network = found.secrets()[0], system_network(environment, tls)
        number = next(PROCESSES)
        me = peer or Peer(
            f"client-raw-{number}", number, "client", features=frozenset({FEATURE}), life="raw"
        )
        raw = cls(await network.connect(node.address), me)
        try:
            dialer = Dialer(
                Introduction("understudy", me),
                secret,
                number.to_bytes(32),
                None,
                raw.connection.channel,
            )
            message: tuple[int, bytes] | None = dialer.start()
            while message is not None:
                await raw.send(encode_frame(*message))
                if dialer.peer is not None:
                    break
                frame = await raw.next()
                message = dialer.receive(frame.kind, frame.control)
            offered = [
                offer.get("link", 1),
                offer.get("peer_link", 0),
                1,
                0,
                offer.get("received", 0),
            ]
            await raw.send(frames(Kind.RESUME, offered))
            raw.accepted = cbor2.loads((await raw.next()).control)[0] == 0
        except BaseException:
            raw.close()
            raise
        return raw

    async def send(self, data: bytes) -> None:
        """Send all of it, as far as the node takes it."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.connection.send_some((rest,)) :]
                if rest:
                    await self.connection.wait_writable()
        except (OSError, trio.ClosedResourceError):
            self.lost = True

    async def next(self) -> Frame:
        """The next frame. Raises EOFError when the node has closed the connection."""
        while not self.arrived:
            try:
                data = await self.connection.receive()
            except (OSError, trio.ClosedResourceError, EncryptionError):
                data = b""
            if not data:
                self.lost = True
                raise EOFError
            self.arrived += self.reader.feed(data)
        return self.arrived.pop(0)

    async def stands_after(self, data: bytes) -> tuple[bool, list[Frame]]:
        """Send frames; return whether the link stands when they were handled, and what came."""
        await self.send(data + encode_frame(Kind.PING, b""))
        frames: list[Frame] = []
        try:
            while (frame := await self.next()).kind != Kind.PONG:
                frames.append(frame)
        except EOFError:
            return False, frames
        return True, frames

    async def answer(self, number: int) -> Any:
        """Wait for the answer to a call: the value, or the code of the error. Raises EOFError."""
        while True:
            frame = await self.next()
            if frame.kind in (Kind.REPLY, Kind.ERROR):
                items = cbor2.loads(frame.control)
                if items[0] == number:
                    return items[1]

    def close(self) -> None:
        self.connection.close()


def frames(kind: int, items: Sequence[object], flags: int = 0) -> bytes:
    """A frame whose control part is these items."""
    return encode_frame(kind, cbor2.dumps(list(items)), (), flags)
