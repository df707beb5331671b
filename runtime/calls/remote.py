"""Calls whose results stay with their owners, at the caller: nobody waits for them, and what becomes of them is told to their
references.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import trio

from actors.errors import CallError, DeadlineExceededError, NodeDiedError, NotExecutedError, OwnerDiedError, RemoteError
from actors.method import BoundMethod
from actors.reference import Reference
from runtime.calls.answers import facts
from runtime.calls.deadlines import Waiting
from runtime.calls.failures import Place, described, place_of
from runtime.calls.format import KEEP_RESULT
from runtime.calls.local import Attempt
from runtime.calls.outgoing import PendingCall
from runtime.calls.repeating import MOVED, LongCall
from runtime.calls.routes import Route
from runtime.references.anchors import Anchor
from runtime.references.table import ReferenceTable
from runtime.references.values import Failure
from runtime.wire.codec import Codec

if TYPE_CHECKING:
    from runtime.calls.caller import Caller


class RemoteResults:
    """Makes such calls for one node. Those that must be made again are made in `nursery`."""

    def __init__(self, caller: Caller, table: ReferenceTable, codec: Codec, nursery: trio.Nursery) -> None:
        self._caller = caller
        self._table = table
        self._codec = codec
        self._nursery = nursery

    async def remote(self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> Reference[Any]:
        """See `BoundMethod.remote`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        caller, options = self._caller, bound.options_
        expires = math.inf if options.timeout is None else caller.environment.now() + options.timeout
        order = caller.numbers()
        begun: list[tuple[_Result, Reference[Any]]] = []

        def begin(route: Route) -> None:
            owner = (route.address.node, route.address.incarnation)
            anchor = self._table.make(owner, f"{bound.address.name}.{bound.definition.name}")
            anchor.is_open = True
            result = _Result(self, bound, args, kwargs, anchor, expires, order)
            if options.retry is None:
                result.post(route)
            begun.append((result, Reference(anchor)))

        with trio.move_on_at(expires):
            if caller.faults is not None:
                await caller.faults.slow_down(bound.definition.name)
            route = caller.lines.free(bound)
            if route is not None:
                begin(route)
            else:
                await caller.lines.through(bound, order, begin)
        if not begun:
            await trio.lowlevel.checkpoint()
            raise DeadlineExceededError(
                f"{bound.address.name}.{bound.definition.name} could not be handed to its node within its timeout of "
                f"{options.timeout:g} s; it did not run and will not",
                actor=bound.address.name,
                method=bound.definition.name,
            )
        result, reference = begun[0]
        if options.retry is not None:
            await result.start_long()
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return reference

    # What follows is for `_Result`.

    @property
    def caller(self) -> Caller:
        """The node's caller."""
        return self._caller

    @property
    def table(self) -> ReferenceTable:
        """The node's references."""
        return self._table

    def start(self, result: _Result, route: Route | None, error: CallError | None) -> None:
        """Make a call as often as it may be made; see `_Result.run_long`."""
        self._nursery.start_soon(result.run_long, route, error)

    def ended(self, anchor: Anchor, place: Place, error: CallError | None, *, tentative: bool = False) -> None:
        """The call for `anchor` has ended, for good. `tentative`: its owner was told that it may be made again if the method raises."""
        if error is None:
            self._table.answered(anchor, None)
        elif isinstance(error, NodeDiedError) and anchor.owner == place.node:
            if not anchor.is_settled:
                anchor.error = OwnerDiedError(f"{error}; its result went down with it")
            self._table.answered(anchor, None)
        else:
            # Or the owner had ended, and given the value to another node before: that one knows.
            code, plain = described(error, self._codec.size_of)
            # What a method raised may have attributes of these names itself.
            told = place_of(error) or Place(error.actor or place.actor, "", error.node or place.node, error.epoch or place.epoch)
            failure = Failure(code, plain, told.actor, place.method, told.node, told.epoch)
            self._table.answered(anchor, failure, agreed=isinstance(error, RemoteError) and not tentative)


class _Result:
    """One such call. See `LongResult`."""

    def __init__(
        self,
        results: RemoteResults,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        anchor: Anchor,
        expires: float,
        order: int,
    ) -> None:
        self._results = results
        self._bound = bound
        self._args = args
        self._kwargs = kwargs
        self._anchor = anchor
        self._expires = expires
        self._order = order
        self._route: Route | None = None
        self._waiting: trio.Event | None = None

    def post(self, route: Route) -> None:
        """Hand the call to the owner, and return. Raises EncodeError."""
        caller = self._results.caller
        call: Waiting = PendingCall(caller.numbers(), route.place, None)
        self._route = route
        caller.post(call, route, self._bound, self._args, self._kwargs, KEEP_RESULT, self._expires, Attempt(0, False, False, self._anchor))
        if call.finished:
            self._ended(call)
            return
        call.ended = self._ended
        if self._expires != math.inf:
            caller.deadlines.add(self._expires, call)

    async def start_long(self) -> None:
        """Begin to make the call as its policy says, and return once it was handed to the owner for the first time, or failed."""
        self._waiting = trio.Event()
        self._results.start(self, None, None)
        await self._waiting.wait()

    async def run_long(self, route: Route | None, error: CallError | None) -> None:
        """Make the call as often as it may be made. `error`: of an attempt over `route` that was made already."""
        place = Place(self._bound.address.name, self._bound.definition.name, self._anchor.owner, 0)
        outcome: CallError | None = None
        try:
            await LongCall(self._results.caller, self._bound, self._args, self._kwargs, self._expires, self._order, self).run(route, error)
        except CallError as last:
            outcome = last
        finally:
            self.posted()
            policy = self._bound.options_.retry
            self._results.ended(self._anchor, place, outcome, tentative=policy is not None and bool(policy.retry_on))

    def anchor_at(self, route: Route) -> Anchor:
        """See `LongResult.anchor_at`."""
        owner = (route.address.node, route.address.incarnation)
        if owner != self._anchor.home and self._anchor.handed_on:
            raise NotExecutedError(
                f"{route.place.actor} is on node {route.place.node} now, but others were told that its result will be on node "
                f"{self._anchor.owner}; call it again",
                **facts(route.place),
            )
        if not self._anchor.handed_on:
            self._results.table.redirect(self._anchor, owner)
        return self._anchor

    def posted(self) -> None:
        """See `LongResult.posted`."""
        if self._waiting is not None:
            self._waiting.set()

    def _ended(self, ended: PendingCall[trio.lowlevel.Task]) -> None:
        call, route = ended, cast("Route", self._route)
        caller = self._results.caller
        call.ended = None
        if self._expires != math.inf:
            caller.deadlines.done()
        error = call.error
        if call.expired and not call.finished:
            error = caller.expired(call, route, self._bound)
        if isinstance(error, MOVED) and self._bound.address.registered and not self._anchor.handed_on:
            # Certainly not run, and perhaps only because the actor has moved.
            self._anchor.failure = None
            self._results.start(self, route, error)
        else:
            self._results.ended(self._anchor, route.place, error)
