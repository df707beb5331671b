"""A bound on the connections of an HTTP server, which a flood of silent ones does not fill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class ServedConnection:
    """One connection of `ConnectionLimit`."""

    def __init__(self, waiting: dict[ServedConnection, None]) -> None:
        self.scope = trio.CancelScope()
        self._waiting = waiting
        self._busy = 0
        """Requests that wait for this side."""
        waiting[self] = None

    @contextmanager
    def request(self) -> Iterator[None]:
        """Meanwhile a request is being answered, and the connection is not ended for another."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Meanwhile a request waits for the client to take its answer."""
        self._change(-1)
        try:
            yield
        finally:
            self._change(1)

    def _change(self, by: int) -> None:
        self._busy += by
        self._waiting.pop(self, None)
        if not self._busy and not self.scope.cancel_called:
            # Behind the others, which have done nothing for longer.
            self._waiting[self] = None


class ConnectionLimit:
    """Lets `most` connections be open at once. One more ends that which has waited longest for its
    client: a stranger who opens connections, and then sends or reads nothing, keeps no client out.
    No I/O.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._waiting: dict[ServedConnection, None] = {}
        """Those that wait for their clients, the longest first."""

    @contextmanager
    def admit(self, seconds: float = float("inf")) -> Iterator[ServedConnection | None]:
        """Meanwhile the connection is open, for so many seconds at most; None if all others
        answer requests. When it is ended for another one, its block is cancelled.
        """
        if self._open >= self._most and not self._end_longest():
            yield None
            return
        connection = ServedConnection(self._waiting)
        connection.scope.deadline = trio.current_time() + seconds
        self._open += 1
        try:
            with connection.scope:
                yield connection
        finally:
            self._open -= 1
            self._waiting.pop(connection, None)

    def _end_longest(self) -> bool:
        longest = next(iter(self._waiting), None)
        if longest is None:
            return False
        del self._waiting[longest]
        longest.scope.cancel()
        return True
