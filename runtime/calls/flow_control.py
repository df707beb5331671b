"""Credit: how far the producer of a stream may be ahead of its reader.

No I/O and no clock. The producer may have a bounded number of items, and of their bytes, under way
or waiting at the reader. The reader reports how many it has consumed in all, each time after half
of that bound. It is the credit of Reactive Streams' `request(n)` and of HTTP/2's windows, counted
from the beginning instead of in steps, so that a repeated report does no harm.

The bounds are a part of the protocol: a reader takes more for a breach of it.
"""

from __future__ import annotations

from collections import deque

from actors.errors import ProtocolError
from actors.short_repr import short_repr

MOST_ITEMS = 32
MOST_BYTES = 4 * 1024 * 1024


class SendingWindow:
    """The producer's end. It may send while the window is `open`; the one item that fills it may be
    of any size.
    """

    __slots__ = ("_bytes", "_sizes", "consumed", "open", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.consumed = 0
        """How many items the reader has reported as consumed."""
        self.open = True
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def send(self, size: int) -> None:
        """An item of `size` bytes is sent; the window must be open."""
        if not self.open:
            raise ValueError(
                f"{len(self._sizes)} items of {self._bytes} bytes are not consumed; wait for credit"
            )
        self.sent += 1
        self._sizes.append(size)
        self._bytes += size
        # Asked for by every item, and so kept rather than computed.
        self.open = len(self._sizes) < MOST_ITEMS and self._bytes < MOST_BYTES

    def grant(self, consumed: object) -> None:
        """The reader has consumed `consumed` items in all. Raises ProtocolError for items never
        sent, or fewer than before.
        """
        if type(consumed) is not int or not self.consumed <= consumed <= self.sent:
            raise ProtocolError(
                f"credit for {short_repr(consumed)} items of a stream, where {self.consumed} to "
                f"{self.sent} "
                "were possible"
            )
        for _ in range(consumed - self.consumed):
            self._bytes -= self._sizes.popleft()
        self.consumed = consumed
        self.open = len(self._sizes) < MOST_ITEMS and self._bytes < MOST_BYTES
        assert len(self._sizes) == self.sent - self.consumed
        assert self._bytes >= 0 if self._sizes else self._bytes == 0

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        assert 0 <= self.consumed <= self.sent
        assert self._bytes == sum(self._sizes)
        # The item that filled the window may be of any size, those before it left room for it.
        assert len(self._sizes) <= MOST_ITEMS
        assert self._bytes - (self._sizes[-1] if self._sizes else 0) < MOST_BYTES
        assert self.open == (len(self._sizes) < MOST_ITEMS and self._bytes < MOST_BYTES)


class ReadingWindow:
    """The reader's end. `consumed` items in all were handed to it."""

    __slots__ = ("_bytes", "_granted", "_sizes", "_unsaid_bytes", "consumed")

    def __init__(self) -> None:
        self.consumed = 0
        self._granted = 0
        self._sizes: deque[int] = deque()
        """Bytes of each item that has arrived and was not consumed."""
        self._unsaid_bytes = 0
        """Bytes of items that were consumed, but not yet acknowledged to the producer."""
        self._bytes = 0
        """The sum of both."""

    def arrive(self, size: int) -> None:
        """An item of `size` bytes has arrived. Raises ProtocolError if there was no credit
        for it.
        """
        count = len(self._sizes) + self.consumed - self._granted
        if count >= MOST_ITEMS or self._bytes >= MOST_BYTES:
            raise ProtocolError(
                f"an item of a stream without credit: {count} of {self._bytes} bytes are not "
                "acknowledged"
            )
        self._sizes.append(size)
        self._bytes += size

    def consume(self) -> bool:
        """Take the first item that waits, for the reader; True if the producer is to get credit
        now, with `grant`.
        """
        self._unsaid_bytes += self._sizes.popleft()
        self.consumed += 1
        assert self._unsaid_bytes <= self._bytes
        assert self._granted < self.consumed
        return (
            self.consumed - self._granted
        ) * 2 >= MOST_ITEMS or self._unsaid_bytes * 2 >= MOST_BYTES

    def grant(self) -> int:
        """Return the credit to send to the producer: how many items were consumed in all."""
        self._granted = self.consumed
        self._bytes -= self._unsaid_bytes
        self._unsaid_bytes = 0
        assert self._bytes >= 0 if self._sizes else self._bytes == 0
        return self.consumed

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        assert 0 <= self._granted <= self.consumed
        assert self._bytes == sum(self._sizes) + self._unsaid_bytes
        assert self._unsaid_bytes == 0 or self._granted < self.consumed
        assert len(self._sizes) + self.consumed - self._granted <= MOST_ITEMS, (
            "what may be on its way is bounded by what was granted"
        )
