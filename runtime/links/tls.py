"""TLS over any connection: a `Connection` that encrypts what another one carries. No policy: which
connections are encrypted, and what is done about a failure, is decided in
`runtime.links.encryption`.

OpenSSL works on memory here (`ssl.SSLObject`), not on the socket: many records leave in one send
and arrive in one receive, the receive of the connection below may spin (`runtime.links.spin`), and
reading never has to wait for room to write. On a socket each record is sent by a call of the kernel
and received by two, which costs as much processor time for large values and more for small ones.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import trio

from runtime.links.spinner import RECEIVE_SIZE, PollableConnection
from runtime.links.transports import Connection
from runtime.wire.certificates import certificate_hash
from runtime.wire.handshake import Channel

RECORD = 16 * 1024
"""Bytes of the largest record (RFC 8446, 5.1). Smaller buffers are joined before encryption."""

MOST_ENCRYPTED = RECORD + 256 + 5
"""Bytes of the largest record as it travels (RFC 8446, 5.2)."""

PIECE = 64 * 1024
"""Bytes that OpenSSL is given at once. It fills the memory that it takes them into with zeros, and
copies them in and out, so that memory is to stay in the cache of the processor.
"""

ROUND = 2 * PIECE + RECORD
"""Bytes that may be encrypted before the connection below has taken them: for the same reason not
many.
"""

LARGE_RECEIVE = 256 * 1024
"""Bytes that are received at once where a large value is under way: each receive costs a turn of
the event loop.
"""

HANDSHAKE_BYTES = 128 * 1024
"""Bytes that a peer may send in its handshake: its certificates, and a few hundred bytes."""

FIRST_BYTE = 0x16
"""The first byte of a TLS connection: the record type "handshake". No frame of ours does."""

NOT_HERE = b"\x15\x03\x01\x00\x02\x02\x46"
"""The alert "protocol version" (RFC 8446, 6.2), for a client that expects TLS where there is none.
It goes without encryption, so anyone between the two can send it.
"""


class TlsConnection:
    """A `Connection` over `inner`, which it owns from now on. Nothing may be sent or received
    before `shake_hands` has returned.

    `own_certificate`: the server's, as DER, None for a client.
    """

    def __init__(
        self, inner: Connection, context: ssl.SSLContext, own_certificate: bytes | None = None
    ) -> None:
        self.channel = Channel()
        self._inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._own_certificate = own_certificate
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=own_certificate is not None
        )
        self._unsent: list[memoryview] = []
        """The encrypted bytes that the connection below has not taken yet."""
        self._ahead = 0
        """How many of the next bytes to send are already encrypted, or sent: 0 or 1; see
        `send_some`.
        """
        self._more = False
        """True while something may be left that was received and is not decrypted."""
        self._large: memoryview | None = None
        """The buffer of large receives; made with the first of them."""
        self._received = memoryview(b"")
        """What is left of the last of them, for OpenSSL to be given."""
        self._failure: ssl.SSLError | None = None
        """Why what was received cannot be decrypted; raised by the next receive."""

    async def shake_hands(self) -> None:
        """Do the TLS handshake, and set `channel` to what it proves.

        Raises `ssl.SSLError` if the peer does not speak TLS or is refused, EOFError if it has
        closed the connection, OSError if the connection is broken.
        """
        taken, done = 0, False
        while not done:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                # The alert that tells the peer why, if there is room for it at once.
                with contextlib.suppress(OSError):
                    self._inner.send_some((self._outgoing.read(),))
                raise
            await self._send_all(self._outgoing.read())
            if not done:
                data = await self._inner.receive()
                if not data:
                    raise EOFError("the peer closed the connection during the TLS handshake")
                taken += len(data)
                # OpenSSL has bounds of its own for each message; none for all of them.
                if taken > HANDSHAKE_BYTES:
                    raise ssl.SSLError(f"a TLS handshake of more than {HANDSHAKE_BYTES} bytes")
                self._incoming.write(data)
        # A client that sends its first frame with the last step of the handshake.
        self._more = True
        certificate = self._own_certificate or self._tls.getpeercert(binary_form=True)
        assert certificate is not None, "a server without a certificate has no handshake"
        self.channel = Channel(certificate_hash(certificate))

    def on_verified(self, channel: Channel) -> None:
        """Set what the peer's certificate proves. Call it before anything is sent or received."""
        assert channel.binding == self.channel.binding
        self.channel = channel

    @property
    def tls(self) -> ssl.SSLObject:
        """The TLS object, for facts about the peer. Callers must not read or write with it."""
        return self._tls

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """See `Connection.send_some`.

        Bytes that are encrypted must be the next ones to be sent. So the last of them counts as not
        taken until all have left: the caller comes back for that byte, as it would not if no byte
        were left, and it is found to be sent. The caller cannot take back a frame of which a part
        was sent, and no frame is a single byte.
        """
        if self._unsent and not self._flush():
            return 0
        ahead = self._ahead
        if not ahead and len(buffers) == 1 and 0 < len(buffers[0]) <= RECORD:
            # Most sends: to memory, so that the record is taken whole.
            size = self._tls.write(buffers[0])
            data = self._outgoing.read()
            count = self._inner.send_some((data,))
            if count == len(data):
                return size
            self._unsent = [memoryview(data)[count:]]
        else:
            self._ahead = 0
            size, self._unsent = self._encrypt(buffers, ahead)
        if self._flush() or not size:
            return ahead + size
        self._ahead = 1
        return ahead + size - 1

    def _encrypt(
        self, buffers: Sequence[bytes | bytearray | memoryview], ahead: int
    ) -> tuple[int, list[memoryview]]:
        """Encrypt what comes after the first `ahead` bytes, small pieces together, large ones from
        where they lie; returns how many bytes that were, and the records with them.
        """
        size, small = 0, bytearray()
        encrypted: list[memoryview] = []
        for buffer in buffers:
            if size >= ROUND:
                break
            data = memoryview(buffer)
            if ahead:
                data, ahead = data[ahead:], 0
            data = data[: ROUND - size]
            size += len(data)
            if len(small) + len(data) <= RECORD:
                small += data
                continue
            self._write(memoryview(small), encrypted)
            small = bytearray()
            if len(data) <= RECORD:
                small += data
            else:
                for start in range(0, len(data), PIECE):
                    self._write(data[start : start + PIECE], encrypted)
        self._write(memoryview(small), encrypted)
        if self._outgoing.pending:
            encrypted.append(memoryview(self._outgoing.read()))
        return size, encrypted

    def _write(self, data: memoryview, encrypted: list[memoryview]) -> None:
        # To memory, so that all is taken, at once or, where OpenSSL is set to partial writes,
        # record by record.
        while data:
            data = data[self._tls.write(data) :]
        if self._outgoing.pending >= PIECE:
            encrypted.append(memoryview(self._outgoing.read()))

    def _flush(self) -> bool:
        """Give encrypted bytes to the connection below; return True if none are left."""
        unsent = self._unsent
        while unsent:
            count = self._inner.send_some(unsent)
            if not count:
                return False
            while count:
                step = min(count, len(unsent[0]))
                count -= step
                if step == len(unsent[0]):
                    del unsent[0]
                else:
                    unsent[0] = unsent[0][step:]
        return True

    async def _send_all(self, data: bytes) -> None:
        self._unsent = [memoryview(data)] if data else []
        while not self._flush():
            await self._inner.wait_writable()

    async def wait_writable(self) -> None:
        """Wait until `send_some` may take more."""
        await self._inner.wait_writable()

    # A receive that finds bytes here which have arrived does not wait, not even for a pass of the
    # scheduler: they are no more than one receive of the connection below has brought, and that
    # has waited.

    async def receive(self) -> bytes:
        """Return the next decrypted bytes; b"" when the peer has ended. Raises OSError if the
        connection is broken or the bytes cannot be decrypted.
        """
        while True:  # noqa: ASYNC913  each turn waits for the connection below, or is the last
            room = RECORD
            if not self._more:
                assert not self._received, "what came before is decrypted first"
                try:
                    data = await self._inner.receive()
                except trio.ClosedResourceError:
                    # By a task that polled in the place of this one.
                    if self._failure is not None:
                        raise self._failure from None
                    raise
                # A connection that is cut looks as one that was closed: the session above counts
                # frames, so that nothing is lost by it.
                if not data:
                    return b""
                self._incoming.write(data)
                room = len(data)
            plain = self._decrypt(room)
            if plain is not None:
                return plain

    async def receive_into(self, buffer: memoryview) -> int:
        """Like `receive`, into `buffer`; returns the count, 0 at the end."""
        while True:  # noqa: ASYNC913  each turn waits for the connection below, or is the last
            if not self._more and not await self._arrived_large():
                return 0
            count = self._decrypt_into(buffer)
            if count is not None:
                return count

    def _decrypt(self, room: int) -> bytes | None:
        """Decrypt some of what OpenSSL was given; b"" if the peer has ended, None if no record is
        whole. `room`: about how many bytes that will be; what is decrypted is no longer than what
        it was. Raises `ssl.SSLError` for bytes that cannot be decrypted.
        """
        if self._failure is not None:
            raise self._failure
        if room > RECORD:
            room = RECORD
        try:
            plain = self._tls.read(room)
        except ssl.SSLWantReadError:
            self._more = self._give()
            return None
        if len(plain) < room and not self._incoming.pending and not self._received:
            # Most receives: one record, which is read to its end where it leaves room.
            self._more = False
            return plain
        return self._decrypt_more(plain)

    def _decrypt_more(self, first: bytes) -> bytes:
        """Decrypt what follows `first`; returns all of it together."""
        incoming, tls = self._incoming, self._tls
        pieces, size, ended = [first], len(first), not first
        try:
            while not ended and size < RECEIVE_SIZE and (incoming.pending or tls.pending()):
                # Where much more has arrived, the record may have been the head of a large frame.
                # What follows belongs straight into its place then.
                if incoming.pending + len(self._received) >= PIECE:
                    break
                pieces.append(tls.read(RECORD))
                ended = not pieces[-1]
                size += len(pieces[-1])
            # The end is found again by the next receive, after what came before it.
            self._more = bool(ended or incoming.pending or self._received or tls.pending())
        except ssl.SSLWantReadError:
            self._more = self._give()
        except ssl.SSLError as error:
            # Likewise.
            self._failure, self._more = error, True
        return b"".join(pieces)

    def _decrypt_into(self, buffer: memoryview) -> int | None:
        """Like `_decrypt`, into `buffer`; returns the count."""
        if self._failure is not None:
            raise self._failure
        incoming = self._incoming
        # typeshed does not know that it returns a number where it is given a buffer.
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        size, room = 0, len(buffer)
        self._more = True
        while size < room:
            # A read that finds half a record costs an error: its rest comes first, if it is here.
            if incoming.pending < MOST_ENCRYPTED:
                self._give()
            try:
                count = read(room - size, buffer[size:])
            except ssl.SSLWantReadError:
                if self._give():
                    continue
                self._more = False
                break
            if not count:
                return size
            size += count
        return size or None

    def let_others_receive(self, act: Callable[[bytes], None]) -> PollableConnection | None:
        """See `Connection.let_others_receive`. They poll the connection below, and what they
        receive is decrypted for `act`.
        """
        return self._inner.let_others_receive(partial(self._act, act))

    def _act(self, act: Callable[[bytes], None], data: bytes) -> None:
        """Decrypt what another task has received in the place of the reader, and act upon it.

        The reader waits in `receive` meanwhile, so nothing is left from before but the beginning
        of a record, which OpenSSL keeps. All of it is decrypted here: the reader looks at nothing
        but what it receives itself.
        """
        assert not self._more, "the reader receives only after it has decrypted all"
        self._incoming.write(data)
        plain, ended = self._decrypt_all(len(data))
        if ended:
            # The reader finds it closed, and raises the error if there was one.
            self.close()
        if plain:
            act(plain)

    def _decrypt_all(self, room: int) -> tuple[bytes, bool]:
        """Decrypt all that OpenSSL was given; returns it, and whether nothing can follow: because
        the peer has ended, or for `_failure`. `room`: see `_decrypt`.
        """
        plain = b""
        try:
            more = self._decrypt(room)
            while more:
                plain = plain + more if plain else more
                more = self._decrypt(RECORD) if self._more else None
        except ssl.SSLError as error:
            self._failure = error
            return plain, True
        return plain, more is not None

    async def _arrived_large(self) -> bool:
        """Take what has arrived below, into a buffer that is used again; False at its end."""
        assert not self._received, "what came before is decrypted first"
        if self._large is None:
            self._large = memoryview(bytearray(LARGE_RECEIVE))
        count = await self._inner.receive_into(self._large)
        self._received = self._large[:count]
        return self._give()

    def _give(self) -> bool:
        """Give OpenSSL the next of what was received; False if nothing is left of it."""
        if not self._received:
            return False
        self._incoming.write(self._received[:PIECE])
        self._received = self._received[PIECE:]
        return True

    def close(self) -> None:
        """Drop the connection at once. Waiting calls raise trio.ClosedResourceError."""
        self._inner.close()
