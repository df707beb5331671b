"""The call client: all kinds of calls that handles can make, over one call sender."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from threading import get_ident
from typing import Any, TypeVar

from actors.call_context import CURRENT, CallContext
from actors.errors import CallError
from actors.filters import Call
from actors.method import BoundMethod, BoundStream, Stream
from actors.peers import VerifiedPeer
from actors.reference import Reference
from runtime.calls import first_attempts
from runtime.calls.call_sender import Args, CallSender, Kwargs
from runtime.calls.callback_call import CallbackCall
from runtime.calls.pending_calls import OutgoingRequest
from runtime.calls.protocol import TELL_DEPTH
from runtime.calls.retained_calls import call_retained
from runtime.calls.retrying_call import RetryingCall
from runtime.calls.routes import Route
from runtime.calls.stream_reader import StreamReader

T = TypeVar("T")

R = TypeVar("R")


class CallClient(CallSender):
    """Makes the calls of one node: awaited and one-way calls as `CallSender` does, calls that need
    several attempts, calls whose results stay with their owners, calls whose outcomes go to
    functions, and streams.
    """

    async def make_again(
        self,
        bound: BoundMethod[..., Any],
        args: Args,
        kwargs: Kwargs,
        expires: float,
        order: int,
        seen: Call | None,
        route: Route | None = None,
        error: CallError | None = None,
    ) -> Any:
        """Make a call that may take several attempts."""
        again = RetryingCall(self, bound, args, kwargs, expires, order, seen=seen)
        return await again.run(route, error)

    make_first_attempt = first_attempts.make_first_attempt

    def remote(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call and keep the result with its owner. See `BoundMethod.remote`."""
        return call_retained(self, bound, args, kwargs)

    def stream(
        self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Stream[T]:
        """The items of a generator method. See `BoundStream.__call__`."""
        return StreamReader(self, bound, args, kwargs)

    def stream_in(
        self,
        context: CallContext | None,
        bound: BoundStream[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Stream[T]:
        """Like `stream`, in this call context."""
        return StreamReader(self, bound, args, kwargs, context)

    def stream_of(
        self,
        peer: VerifiedPeer | None,
        bound: BoundStream[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Stream[T]:
        """Like `stream`, on behalf of `peer`, with whose rights the method is called: for an actor
        of this node at an address that is not looked up again.
        """
        assert not bound._address.registered, "the actor may be on another node by then"
        return StreamReader(self, bound, args, kwargs, peer=peer)

    def begin(
        self,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        ended: Callable[[CallbackCall], object],
    ) -> CallbackCall | None:
        """Make a call without a task: its outcome goes to `ended`, and no deadline but its timeout
        covers it. Returns None, and has done nothing, where only a task can make it. Raises
        EncodeError.

        In the node's thread, and for no method of an actor of this node.
        """
        assert get_ident() == self._thread
        route, measured = self.routes.known(bound), self.statistics is not None
        counted: Any = bound._counted
        if (
            route is None
            or route.link is None
            or bound._options.retry is not None
            or (self.lines.all and self.lines.ahead_of(bound))
            or self.faults is not None
            or self._recorder is not None
            # `_call` looks up where the calls of a method are counted.
            or (measured and (counted is None or counted.token is not self._token))
        ):
            return None
        expires = self._expiry(bound)
        flags = 0 if bound._load is None else TELL_DEPTH
        request = OutgoingRequest(bound, args, kwargs, expires, flags, context=CURRENT.get())
        counted = counted if measured else None
        made = CallbackCall(self, route, request, expires, ended, counted)
        made.begin()
        return made
