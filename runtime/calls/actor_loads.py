"""How many calls actors have, as far as this node knows without asking: its own calls that are
under way, and the calls of others that the replies to its own calls report.

Only for actors that are followed, such as the members of pools: no other call asks for it, or costs
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from actors.identifiers import ActorId
from actors.method import BoundMethod, BoundStream, Caller, Stream
from actors.reference import Reference

R = TypeVar("R")
T = TypeVar("T")

KNOWN_SECONDS = 1.0
"""Seconds for which the number in the latest reply counts. Without an end, an actor that was busy
once would not be chosen again, and so no reply would correct the number.
"""

MOST_TOLD = 1 << 32
"""Numbers in replies are below this."""


class ActorLoad:
    """The calls of one actor. `now`: seconds on any monotonic clock."""

    __slots__ = ("__weakref__", "_now", "_others", "_told_at", "calls")

    def __init__(self, now: Callable[[], float]) -> None:
        self.calls = 0
        """Calls of this node that are under way."""
        self._now = now
        self._others = 0
        self._told_at = 0.0

    @property
    def depth(self) -> int:
        """About how many calls the actor has: those of this node, plus those of all other nodes as
        the latest reply has reported them, if that is not older than `KNOWN_SECONDS`.
        """
        is_known = self._others and self._now() - self._told_at < KNOWN_SECONDS
        return self.calls + self._others if is_known else self.calls

    def on_begun(self) -> None:
        """Another call of this node is under way."""
        self.calls += 1

    def on_ended(self) -> None:
        """A call of this node has ended."""
        self.calls -= 1
        assert self.calls >= 0, "each call ends once"

    def on_depth(self, depth: int) -> None:
        """Note how many other calls a reply reports; the reply's own call has not ended here yet.
        The calls of this node are among them, and are subtracted, because they are counted here.
        """
        self._others = max(0, depth - max(0, self.calls - 1))
        self._told_at = self._now()


class ActorLoads:
    """The loads of the actors that a node follows: there for as long as something refers to
    them.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loads: WeakValueDictionary[ActorId, ActorLoad] = WeakValueDictionary()

    def of(self, actor: ActorId) -> ActorLoad:
        """The load of an actor, one and the same for all that follow it."""
        load = self._loads.get(actor)
        if load is None:
            load = self._loads[actor] = ActorLoad(self._now)
        return load

    def on_depth(self, actor: ActorId, depth: object) -> None:
        """Note how many other calls of its actor a reply reports. Ignored for an actor that is not
        followed, and if it is no number, because peers send it.
        """
        load = self._loads.get(actor)
        if load is not None and type(depth) is int and 0 <= depth < MOST_TOLD:
            load.on_depth(depth)


class CountingCaller:
    """Makes the calls of handles whose actor is followed; implements `actors.method.Caller`.
    `client` carries them out.
    """

    def __init__(self, client: Caller, load: ActorLoad) -> None:
        self.client = client
        self._load = load

    async def call(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> R:
        """Make the call, counted while it runs, and wait for its outcome."""
        load = bound._load = self._load
        load.on_begun()
        try:
            return await self.client.call(bound, args, kwargs)
        finally:
            load.on_ended()

    def send(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, None]:
        """Hand the call to the connection. It is not counted: no answer says when it has ended."""
        return self.client.send(bound, args, kwargs)

    def remote(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call and keep its result with its owner. It counts until the result exists."""
        bound._load = self._load
        return self.client.remote(bound, args, kwargs)

    def stream(
        self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Stream[T]:
        """Return the items of a generator method. It is not counted."""
        return self.client.stream(bound, args, kwargs)
