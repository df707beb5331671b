"""What two processes say to each other before a link carries frames: the machines of
`runtime.wire.handshake`, carried over a connection, with a limit for each step.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import attrs
import trio

from actors.errors import EncryptionError, ExpelledError, HandshakeTimeoutError, ProtocolError
from actors.peers import VerifiedPeer
from runtime.links.encryption import is_certificate_refused, tls_reason
from runtime.links.transports import Connection
from runtime.wire.frames import UNPROVEN, Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import ANY_NAME, Acceptor, Channel, Dialer, Peer

_OTHERS: Final = {
    b"HTTP/": "an HTTP server",
    b"<": "an HTTP server",
    b"SSH-": "an SSH server",
    b"-ERR": "Redis",
    b"-NOAUTH": "Redis",
    b"-DENIED": "Redis",
    b"220": "a mail or FTP server",
    b"+OK": "a POP3 server",
    b"* OK": "an IMAP server",
    b"RFB ": "a VNC server",
    b"\x15\x03": "a TLS server",
}
"""Which servers begin an answer so. None of these is how a frame of the handshake begins."""

_SHOWN = 24
"""Bytes of another answer that are shown."""


class RefusedCertificateError(EncryptionError):
    """A peer that has proven itself, by its certificate, refuses that of this process."""


class ClosedEarlyError(ProtocolError):
    """The peer closed a connection before it was settled: it may have given the dial up for
    another.
    """


@attrs.frozen
class ProvenPeer:
    """The result of a handshake. `secret`: the one that both sides have proven."""

    peer: Peer
    reader: FrameReader
    verified: VerifiedPeer
    secret: bytes = attrs.field(repr=False)


async def shake_hands(
    connection: Connection,
    side: Dialer | Acceptor,
    seconds: float,
    on_expelled: Callable[[ExpelledError], None],
) -> ProvenPeer:
    """Prove this side to the process at the other end of `connection`, and have it prove itself.
    `seconds`: for each step. `on_expelled(error)` is called when a peer that has proven the secret
    refuses this node for good.

    Raises `HandshakeError` (`HandshakeTimeoutError` for a step that takes longer), ProtocolError
    (`ClosedEarlyError`) and OSError.
    """
    reader = FrameReader(UNPROVEN)
    dialled = isinstance(side, Dialer)
    answer = side.start() if isinstance(side, Dialer) else None
    while True:
        step = await _step(
            connection, reader, answer, seconds, over=side.peer is not None, dialled=dialled
        )
        if step is None:
            assert side.peer is not None
            verified = verified_peer(side.peer, connection.channel)
            return ProvenPeer(side.peer, reader, verified, side.secret)
        try:
            answer = side.receive(step.kind, step.control)
        except ExpelledError as error:
            if error.proven:
                on_expelled(error)
            raise
        if isinstance(side, Acceptor) and side.error is not None:
            # The refusal goes to the dialer first, so that both sides name the same reason.
            if answer is not None:
                await _step(connection, reader, answer, seconds, over=True, dialled=dialled)
            raise side.error


async def _step(
    connection: Connection,
    reader: FrameReader,
    answer: tuple[Kind, bytes] | None,
    seconds: float,
    *,
    over: bool,
    dialled: bool,
) -> Frame | None:
    """Send what the last frame of a handshake is answered with, and take the next one, unless
    it is `over`.

    Each step has a time of its own: the other side may be a process among hundreds that begin
    in the same moment.
    """
    with trio.move_on_after(seconds):
        if answer is not None:
            await send_frame(connection, *answer)
        if over:
            return None
        frame, *more = await _next_frames(connection, reader, dialled=dialled)
        if more:
            raise ProtocolError("the peer sent more than one frame at a time during the handshake")
        return frame
    raise HandshakeTimeoutError(
        f"the peer did not go on with the handshake within {seconds:g} s; does the "
        "address lead to a node?"
    )


async def next_in_time(
    connection: Connection, reader: FrameReader, seconds: float, what: str
) -> list[Frame]:
    """Return the frame that is due within so many seconds, which errors call `what`, and any that
    came with it. Raises HandshakeTimeoutError.
    """
    with trio.move_on_after(seconds):
        return await _next_frames(connection, reader, dialled=False)
    raise HandshakeTimeoutError(f"the peer sent no {what} within {seconds:g} s")


def verified_peer(peer: Peer, channel: Channel) -> VerifiedPeer:
    """Return the identity and role of a peer. Only after a handshake, which has proven that the
    peer's certificate, if any, grants the rights that it asks for.
    """
    certified = channel.certified
    if certified is None or not certified.role:
        # Every member knows the secret, or is this user over a Unix socket.
        role = peer.rights or "node"
        return VerifiedPeer(role, peer.name, peer.name, peer.incarnation, "secret")
    # A node's certificate may be for every name.
    name = peer.name if certified.name == ANY_NAME else certified.name
    role = peer.rights or certified.role
    return VerifiedPeer(
        role,
        name,
        peer.name,
        peer.incarnation,
        "certificate",
        channel.fingerprint,
        certified.role if certified.role != role else None,
    )


async def send_frame(connection: Connection, kind: Kind, control: bytes) -> None:
    """Send one frame whole, before the link is there that would send it with others."""
    data = memoryview(encode_frame(kind, control))
    while data:
        count = connection.send_some((data,))
        data = data[count:]
        if data:
            await connection.wait_writable()


def _is_of_another_protocol(data: bytes) -> bool:
    """True if no frame of the handshake begins so."""
    return bool(data) and not Kind.HELLO <= data[0] <= Kind.REFUSED


def _other_protocol(data: bytes) -> ProtocolError:
    """Return the error for a peer that has sent something else than frames of the handshake."""
    for begin, what in _OTHERS.items():
        if data.startswith(begin):
            return ProtocolError(f"it answers as {what} does")
    return ProtocolError(f"it sent {data[:_SHOWN]!r}, which no node sends")


async def _next_frames(
    connection: Connection, reader: FrameReader, *, dialled: bool
) -> list[Frame]:
    """Return the next frames, at least one. `dialled`: this side has chosen the address, so errors
    say what is there, if that is no node.
    """
    begun = b""
    while True:
        try:
            data = await connection.receive()
        except ssl.SSLError as error:
            # In TLS 1.3 a client learns that its certificate is refused when it first reads.
            # Not the word of a stranger: the handshake has verified the peer's own certificate.
            kind = RefusedCertificateError if is_certificate_refused(error) else EncryptionError
            raise kind(f"the peer refused the connection: {tls_reason(error)}") from None
        if not data:
            if dialled and _is_of_another_protocol(begun):
                raise _other_protocol(begun)
            raise ClosedEarlyError("the peer closed the connection during the handshake")
        # Of bytes that have not proven anything a reader keeps few.
        begun = begun or data
        try:
            frames = reader.feed(data)
        except ProtocolError:
            if dialled and _is_of_another_protocol(begun):
                raise _other_protocol(begun) from None
            raise
        if frames:
            return frames
