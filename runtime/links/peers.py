"""The peers of a node: one link to each incarnation it deals with, dialled, accepted, redialled and kept warm.

Either side may dial. When both do at once, the connection dialled by the smaller identity stands. A broken connection is redialled with
exponential
back-off and full jitter (AWS's term) until the peer's incarnation is known to have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs
import cbor2
import trio

from actors.errors import HandshakeError, HandshakeTimeoutError, ProtocolError, WrongPeerError
from runtime.environment import Environment
from runtime.links.link import Link, Receiver
from runtime.links.session import Offer
from runtime.links.transports import Connection, Network
from runtime.wire.frames import UNPROVEN, Frame, FrameReader, Kind, Limits, encode_frame
from runtime.wire.handshake import Acceptor, Dialer
from runtime.wire.introduction import Introduction, Peer

HANDSHAKE_SECONDS = 5.0
FIRST_DELAY = 0.02
MOST_DELAY = 1.0
BEAT = 0.5
LOOK_EVERY = BEAT / 2
SILENCE = 2.5
"""Seconds without a byte after which a connection counts as broken; beats are sent every `BEAT` seconds while idle."""

REDIAL_SECONDS = 0.1
"""Seconds without a connection from which a peer counts as unreachable."""

CLIENT_PATIENCE = 5.0
"""Seconds that the session of a client, or of a node that is no member any more, is kept without a connection: nobody dials it."""

logger = logging.getLogger("understudy.links")


@attrs.frozen
class _Settled:
    """What a handshake led to."""

    peer: Peer
    reader: FrameReader


class Peers:
    """All links of one node.

    `broken(link)` is told when a connection of a live link has broken; `outdated(peer)` says whether that incarnation is known to be no
    member any more.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        environment: Environment,
        network: Network,
        receiver: Receiver,
        nursery: trio.Nursery,
        broken: Callable[[Link], None] = lambda link: None,
        outdated: Callable[[Peer], bool] = lambda peer: False,
        limits: Limits | None = None,
    ) -> None:
        self.introduction = introduction
        self.links: dict[tuple[str, int], Link] = {}
        self._secret = secret
        self._environment = environment
        self._network = network
        self._receiver = receiver
        self._nursery = nursery
        self._broken = broken
        self._outdated = outdated
        self._limits = limits or Limits()
        self._dialling: dict[Link, trio.CancelScope] = {}
        self._kept: set[Link] = set()
        self._closing = False

    @property
    def identity(self) -> tuple[str, int]:
        """This side's name and incarnation."""
        return self.introduction.peer.name, self.introduction.peer.incarnation

    @property
    def has_left(self) -> bool:
        """True once this node says goodbye: nobody dials any more."""
        return self._closing

    def link(self, peer: Peer) -> Link:
        """The link to `peer`, dialled from now on if it is new. It may be used at once."""
        link = self._link(peer)
        self._keep_connected(link)
        return link

    async def first_contact(self, address: str) -> Link:
        """Dial `address`, whoever answers. Raises OSError, ValueError or `HandshakeError`."""
        connection = await self._network.connect(address)
        try:
            dialer = Dialer(self.introduction, self._secret, self._environment.token(32), None)
            settled = await self._shake_hands(connection, dialer)
            link = self._link(attrs.evolve(settled.peer, addresses=tuple(dict.fromkeys((*settled.peer.addresses, address)))))
            link.life = settled.peer.life
        except BaseException:
            connection.close()
            raise
        self._nursery.start_soon(self._carry_first, link, connection, settled.reader)
        return link

    async def accept(self, connection: Connection) -> None:
        """Serve a connection that somebody dialled: nothing it sends is acted upon before it has proven itself."""
        try:
            acceptor = Acceptor(self.introduction, self._secret, self._environment.token(32))
            settled = await self._shake_hands(connection, acceptor)
            await self._carry_accepted(settled, connection)
        except HandshakeError as error:
            logger.warning("refused a connection: %s", error)
        except ProtocolError as error:
            logger.warning("closed a connection: %s", error)
        except (OSError, trio.ClosedResourceError) as error:
            logger.debug("a connection broke while it was being set up: %s", error)
        finally:
            connection.close()

    def ended(self, name: str, incarnation: int, reason: str) -> None:
        """That incarnation is known to have ended: end its link and everything that waits on it."""
        link = self.links.pop((name, incarnation), None)
        if link is not None:
            link.end(reason)

    def unreachable(self) -> tuple[str, ...]:
        """The peers that could not be reached for longer than a redial takes. They may be alive: only the store says who is dead."""
        now = self._environment.now()
        return tuple(link.peer.name for link in self.links.values() if link.lost_at is not None and now - link.lost_at > REDIAL_SECONDS)

    async def beat(self) -> None:
        """Acknowledge, ping and watch for silence, for ever. A late turn of our own loop is not held against the peers."""
        due = self._environment.now()
        while True:
            due = self._next_look(due)
            await trio.sleep_until(due)
            now = self._environment.now()
            late = now - due > BEAT
            due = max(due, now)
            for link in tuple(self.links.values()):
                link.acknowledge(at_once=True)
                if not link.connected:
                    continue
                if late:
                    link.last_heard = max(link.last_heard, now - BEAT)
                if now - link.last_heard > SILENCE and not link.watched:
                    link.drop_connection()
                elif now - link.last_heard > BEAT:
                    link.send_control(Kind.PING, at_once=True)

    def _next_look(self, now: float) -> float:
        """When the first of the links may have been silent for so long that it needs a beat; not sooner than in LOOK_EVERY."""
        silent = min((link.last_heard for link in self.links.values() if link.connected), default=now)
        return max(silent + BEAT, now) + LOOK_EVERY

    async def close(self, seconds: float) -> None:
        """Say goodbye to all, after what was posted has left, within `seconds`."""
        self._closing = True
        with trio.CancelScope(shield=True), trio.move_on_after(seconds):
            for link in tuple(self.links.values()):
                if link.connected:
                    link.send_control(Kind.GOODBYE)
                    await link.flushed()
        for link in tuple(self.links.values()):
            link.end("this node has left")
        self.links.clear()

    def _link(self, peer: Peer) -> Link:
        key = (peer.name, peer.incarnation)
        link = self.links.get(key)
        if link is None or link.ended is not None:
            link = self.links[key] = Link(peer, self._receiver)
            link.last_heard = self._environment.now()
        return link

    def _keep_connected(self, link: Link) -> None:
        if link not in self._kept and not self._closing:
            self._kept.add(link)
            self._nursery.start_soon(self._redial, link, name=f"link to {link.peer.name}")

    async def _redial(self, link: Link) -> None:
        """Dial until the link ends; wait while a connection stands."""
        failures = 0
        try:
            while link.ended is None:
                if link.connected:
                    failures = 0
                    await link.disconnected()
                    continue
                if link.peer.role == "client" or link.fenced:
                    await self._expire(link)
                    continue
                if await self._dial(link, self._addresses(link.peer)):
                    failures = 0
                else:
                    failures += 1
                longest = min(MOST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 10))
                if link.ended is None:
                    await trio.sleep(longest * self._environment.random())
        finally:
            self._kept.discard(link)

    async def _expire(self, link: Link) -> None:
        """Of a client, or of a node that is no member any more: its end was told before this link was there, and nobody will tell it
        again.
        """
        with trio.move_on_after(CLIENT_PATIENCE):
            await link.connected_again()
            return
        self.ended(link.peer.name, link.peer.incarnation, "it is no member of the cluster, and did not come back")

    async def _dial(self, link: Link, addresses: Sequence[str]) -> bool:
        """Try the addresses in turn; True if a connection stood."""
        for address in addresses:
            if await self._dialled(link, address):
                return True
        return False

    async def _dialled(self, link: Link, address: str) -> bool:
        """Dial one address and carry the link over it until it breaks; False if it did not come to that."""
        connection: Connection | None = None
        resumed: tuple[FrameReader, list[Frame]] | None = None
        try:
            with trio.CancelScope() as scope:
                self._dialling[link] = scope
                connection = await self._network.connect(address)
                dialer = Dialer(self.introduction, self._secret, self._environment.token(32), (link.peer.name, link.peer.incarnation))
                settled = await self._shake_hands(connection, dialer)
                if not self._is_same(link, settled.peer):
                    return False
                early = await self._resume(link, connection, settled.reader)
                resumed = None if early is None else (settled.reader, early)
            self._dialling.pop(link, None)
            if connection is not None and resumed is not None:
                await self._run(link, connection, *resumed)
            # Otherwise the peer dialled us at the same time, and its connection is the one that stands.
        except WrongPeerError as error:
            logger.info("%s", error)
            return False
        except (HandshakeError, ProtocolError) as error:
            logger.warning("could not settle with %s: %s", link.peer.name, error)
            return False
        except (OSError, ValueError, trio.ClosedResourceError):
            return False
        finally:
            self._dialling.pop(link, None)
            if connection is not None:
                connection.close()
        return True

    def _addresses(self, peer: Peer) -> list[str]:
        """Where to dial: Unix sockets on our own machine, TCP otherwise."""
        same_host = bool(peer.host) and peer.host == self.introduction.peer.host
        usable = [address for address in peer.addresses if same_host or not address.startswith("unix:")]
        return sorted(usable, key=lambda address: not address.startswith("unix:"))

    async def _shake_hands(self, connection: Connection, side: Dialer | Acceptor) -> _Settled:
        with trio.move_on_after(HANDSHAKE_SECONDS):
            return await self._shake_hands_in_time(connection, side)
        raise HandshakeTimeoutError(
            f"the peer did not finish the handshake within {HANDSHAKE_SECONDS:g} s; does the address lead to a node?"
        )

    async def _shake_hands_in_time(self, connection: Connection, side: Dialer | Acceptor) -> _Settled:
        reader = FrameReader(UNPROVEN)
        if isinstance(side, Dialer):
            await _send(connection, *side.start())
        while side.peer is None:
            frame, *more = await _next_frames(connection, reader)
            if more:
                raise ProtocolError("the peer sent more than one frame at a time during the handshake")
            answer = side.receive(frame.kind, frame.control)
            if answer is not None:
                await _send(connection, *answer)
            if isinstance(side, Acceptor) and side.error is not None:
                raise side.error
        reader.limits = self._limits
        return _Settled(side.peer, reader)

    async def _resume(self, link: Link, connection: Connection, reader: FrameReader) -> list[Frame] | None:
        """Agree on where the session goes on over a connection that we dialled, and open it; the frames that came along.

        None if the peer does not know the session any more.
        """
        async with link.settling:
            await link.released()
            offer = link.offer(self._environment.token(16))
            begun = link.session is not None
            await _send(connection, Kind.RESUME, cbor2.dumps([offer.session, offer.received, begun]))
            answer, _, early = await _next_offer(connection, reader)
            if answer.session != offer.session:
                self.ended(link.peer.name, link.peer.incarnation, "the peer no longer knows the session")
                return None
            link.open(connection, offer.session, answer.received)
        return early

    def _is_same(self, link: Link, peer: Peer) -> bool:
        """True if the process at the other end is the one of before, or the first. If not, that one is no more: the link ends."""
        if link.life not in ("", peer.life):
            self.ended(link.peer.name, link.peer.incarnation, "another process has its name and incarnation now: its store was begun anew")
            return False
        link.life = peer.life
        return True

    async def _carry_first(self, link: Link, connection: Connection, reader: FrameReader) -> None:
        """Carry a link over the connection of a first contact; from then on it is redialled like any other."""
        try:
            early = await self._resume(link, connection, reader)
            if early is not None:
                await self._run(link, connection, reader, early)
        except (HandshakeError, ProtocolError) as error:
            logger.warning("could not settle with %s: %s", link.peer.name, error)
        except (OSError, trio.ClosedResourceError) as error:
            logger.debug("the connection to %s broke while it was being set up: %s", link.peer.name, error)
        finally:
            connection.close()
            if link.ended is None:
                self._keep_connected(link)

    async def _carry_accepted(self, settled: _Settled, connection: Connection) -> None:
        peer = settled.peer
        offered, begun, early = await _next_offer(connection, settled.reader)
        link = self._link(peer)
        if not self._is_same(link, peer):
            link = self._link(peer)
        # Asked only now, and a dial lasts until its session goes on: else each side could wait for the other's answer to its own offer.
        dialling = self._dialling.get(link)
        if dialling is not None:
            if self.identity < (peer.name, peer.incarnation):
                return
            dialling.cancel()
        if not begun and link.session is not None:
            self.ended(peer.name, peer.incarnation, "the peer began a new session")
            link = self._link(peer)
        link.life = peer.life
        # Not of links that we dial: whoever has our store, or had it, is asked over one in any case.
        link.fenced = self._outdated(peer)
        try:
            if not await self._open_accepted(link, offered, begun, connection):
                return
        finally:
            if link not in self._kept and link.session is None and not link.settling.locked() and link.ended is None:
                # Nobody dials it: what was posted on it would wait for ever.
                self.ended(peer.name, peer.incarnation, "the peer was gone before a session began")
        await self._run(link, connection, settled.reader, early)

    async def _open_accepted(self, link: Link, offered: Offer, begun: bool, connection: Connection) -> bool:
        """Agree on where the session goes on over a connection that the peer dialled, and open it; False if it is not known here."""
        async with link.settling:
            if link.session is not None and link.session.identity == offered.session and offered.received < link.session.acknowledged:
                # The peer has told us of more since: it gave this dial up for another connection, and its offer was long on the way.
                return False
            await link.released()
            known = not begun if link.session is None else link.session.identity == offered.session
            mine = link.session.offer() if link.session is not None and known else Offer(offered.session if known else b"", 0)
            await _send(connection, Kind.RESUME, cbor2.dumps([mine.session, mine.received, True]))
            if known:
                link.open(connection, offered.session, offered.received)
                self._keep_connected(link)
            return known

    async def _run(self, link: Link, connection: Connection, reader: FrameReader, early: list[Frame]) -> None:
        try:
            await link.run(connection, reader, early)
        except ProtocolError as error:
            logger.error("%s broke the protocol: %s; the link is given up", link.peer.name, error)
            self.ended(link.peer.name, link.peer.incarnation, f"the peer broke the protocol: {error}")
        if link.ended is not None:
            # Another one may have begun to the same peer meanwhile.
            if self.links.get(link.peer.identity) is link:
                del self.links[link.peer.identity]
        elif not self._closing:
            self._broken(link)


async def _send(connection: Connection, kind: Kind, control: bytes) -> None:
    data = memoryview(encode_frame(kind, control))
    while data:
        count = connection.send_some((data,))
        data = data[count:]
        if data:
            await connection.wait_writable()


async def _next_frames(connection: Connection, reader: FrameReader) -> list[Frame]:
    """At least one frame."""
    while True:
        data = await connection.receive()
        if not data:
            raise ProtocolError("the peer closed the connection during the handshake")
        if frames := reader.feed(data):
            return frames


async def _next_offer(connection: Connection, reader: FrameReader) -> tuple[Offer, bool, list[Frame]]:
    """The peer's resume offer, whether it had begun the session before, and the frames that came with it."""
    with trio.move_on_after(HANDSHAKE_SECONDS):
        first, *early = await _next_frames(connection, reader)
        return (*_offer(first), early)
    raise HandshakeTimeoutError(f"the peer made no resume offer within {HANDSHAKE_SECONDS:g} s")


def _offer(frame: Frame) -> tuple[Offer, bool]:
    """A RESUME frame: `[session, received, begun]`."""
    if frame.kind != Kind.RESUME:
        raise ProtocolError(f"a frame of kind {frame.kind} where a resume offer was expected")
    try:
        session, received, begun = cbor2.loads(frame.control, max_depth=2, allow_indefinite=False)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise ProtocolError(f"a malformed resume offer: {error}") from error
    if not (isinstance(session, bytes) and isinstance(received, int) and isinstance(begun, bool)):
        raise ProtocolError("a malformed resume offer")
    return Offer(session, received), begun
