"""Filters: code of yours around calls, where they are made and where they run.

For what many methods need and none should contain: traces, authorization, limits, audits. The
shape is that of Orleans' grain call filters and of gRPC's interceptors.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal, cast

from actors.call_context import CallContext, call_context
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from actors.short_repr import short_repr

Side = Literal["client", "server"]

CallKind = Literal["call", "send", "remote", "stream"]

Next = Callable[["Call"], Awaitable[object]]
"""Goes on with a call: to the next filter, and after the last one to the method. Give it the call
that the filter was given. Returns what the call returns, and raises what it raises; of a stream it
returns None when that is over."""

_SIDES: tuple[Side, ...] = ("client", "server")

logger = own_logger("understudy.filters")


class Call:
    """What a filter sees of a call. It cannot be changed.

    `actor`, `class_path`, `method`, `node`, `incarnation`, `epoch`: whose method, and where; on the
    client side the node is where the actor was last seen. `args`, `kwargs`: on the server side
    copies of the caller's. `side`: "client" where the call is made, "server" where it runs. `kind`:
    how it was made; on the server side "remote" counts as "call". `deadline`: on trio's clock,
    infinite without one. `attempt`: 1, on the server side more for a repeat. `peer`: on the server
    side the proven peer that makes the call; None on the client side, and for calls from within the
    actor's process.
    """

    __slots__ = (
        "_observers",
        "actor",
        "args",
        "attempt",
        "class_path",
        "deadline",
        "epoch",
        "incarnation",
        "kind",
        "kwargs",
        "method",
        "node",
        "peer",
        "peer_addresses",
        "side",
        "waited",
    )

    def __init__(
        self,
        *,
        side: Side,
        kind: CallKind,
        actor: str,
        class_path: str,
        method: str,
        node: str,
        epoch: int,
        incarnation: int = 0,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
        deadline: float = math.inf,
        attempt: int = 1,
        waited: float = 0.0,
        peer: VerifiedPeer | None = None,
    ) -> None:
        self.side = side
        self.kind: CallKind = kind
        self.actor = actor
        self.class_path = class_path
        self.method = method
        self.node = node
        self.epoch = epoch
        self.args = args
        self.kwargs: Mapping[str, object] = MappingProxyType(dict(kwargs or {}))
        self.deadline = deadline
        self.attempt = attempt
        self.waited = waited
        """Seconds in the mailbox behind others; 0 on the client side."""
        self.peer = peer
        self.incarnation = incarnation
        self.peer_addresses: tuple[str, ...] = ()
        """On the client side, of the last attempt: where the node listens that it was sent to, as
        `tcp:HOST:PORT` or `unix:PATH`; empty for the own node.
        """
        self._observers: tuple[Callable[[int, str], None], ...] = ()

    @property
    def context(self) -> CallContext:
        """The call context; what a filter sets before it goes on is what travels."""
        return call_context.get()

    def on_attempt(self, function: Callable[[int, str], None]) -> None:
        """Have `function(number, node)` called for each attempt that is sent, on the client side.
        It must not wait; what it raises is logged.
        """
        self._observers = (*self._observers, function)

    def attempted(self, number: int, node: str, addresses: tuple[str, ...]) -> None:
        """For the runtime: note that an attempt was made, to a node that listens there."""
        self.peer_addresses = addresses
        for function in self._observers:
            try:
                function(number, node)
            except Exception:
                # It runs in the turn of a queue, whose other calls have nothing to do with it.
                logger.exception("an observer of attempts at %s.%s raised", self.actor, self.method)

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.actor}.{self.method}, {self.side} side>"


class Filter:
    """Derive your filters from this class. One object serves many calls at once."""

    sides: ClassVar[Sequence[Side]] = _SIDES
    """On which sides it runs."""

    async def call(self, next: Next, call: Call) -> object:
        """Run around a call. Returns what the caller gets: in general `await next(call)`.
        Of a stream, what it returns is dropped.

        A filter that raises before it goes on refuses the call, which has not run:
        `FilterRefusedError`, or the NotExecutedError that it raises. One that raises when the
        method has returned leaves the outcome unknown: `FilterFailedError`. Going on twice is
        refused, and so is going on with another call.
        """
        return await next(call)


def checked_filters(filters: object) -> tuple[Filter, ...]:
    """Return the filters as a tuple. Raises TypeError for what is none."""
    given: object = filters
    if isinstance(given, Filter) or not isinstance(given, Sequence):
        raise TypeError(f"filters are a sequence of Filter objects, not {short_repr(given)}")
    for one in cast("Sequence[object]", given):
        if not isinstance(one, Filter):
            made = "; make an object of it" if isinstance(one, type) else ""
            raise TypeError(
                f"a filter is an object of a class derived from Filter, not {short_repr(one)}{made}"
            )
        for side in one.sides:
            if side not in _SIDES:
                raise TypeError(
                    f"{short_repr(one)}.sides names {short_repr(side)}; the sides are "
                    f"{', '.join(_SIDES)}"
                )
    return tuple(cast("Sequence[Filter]", given))


def on_side(filters: Sequence[Filter], side: Side) -> tuple[Filter, ...]:
    """Return those that run on this side, in order."""
    return tuple(one for one in filters if side in one.sides)
