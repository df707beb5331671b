"""One-way calls that came to where their actor no longer is: they go back to the node that has made
them, and from there to where the actor is now.

An awaited call that is refused is made again by the task that waits for it. No task waits for a
one-way call: without an answer its node would send all further ones to the same place, for as long
as that node lives, and they would all be lost. So the node that refuses one returns it, with its
arguments: there it certainly has not run. The node that has made it puts it into the queue of calls
to that actor, at the place that its number gives it among those that wait. Where one-way calls were
sent to the earlier place, the queue waits a short time until all that were refused are back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

from actors import method
from actors.actor import Actor
from actors.call_context import CallContext
from actors.errors import CallError, EncodeError, NodeDrainingError
from actors.identifiers import NodeId
from actors.method import BoundMethod, MethodDefinition, unknown_method
from actors.options import NO_CALL_OPTIONS
from actors.own_logger import own_logger
from actors.retry import WAIT_FOR_ACTOR
from runtime.annotation_checks import ArgumentTypes
from runtime.calls.call_sender import MOVED
from runtime.calls.client import CallClient
from runtime.calls.pending_calls import OutgoingRequest
from runtime.calls.protocol import CallRequest
from runtime.limited_log import LimitedLog

RETURNS_SERVICE: Final = "@returns"

MOST_ATTEMPTS: Final = 20
"""How often a one-way call is sent: with the pauses in between some ten seconds, the default lease,
after which the store names no node that has ended.
"""

Place = Annotated[list[Any], ArgumentTypes.of(str, int, int)]
"""Node, incarnation and epoch."""

logger = own_logger("understudy.calls")


class CallReturns:
    """Returns the one-way calls that this node refuses. `service(node, incarnation)` is the handle
    of that node's `ReturnedCalls`.
    """

    def __init__(self, caller: CallClient, service: Callable[[str, int], Any]) -> None:
        self._caller = caller
        self._service = service
        self._log = LimitedLog(logger, caller.environment.now)

    def refuse(self, call: CallRequest, refusal: CallError, peer: NodeId | None = None) -> None:
        """Return a one-way call of `peer`, by default of this node itself, if its actor may be
        elsewhere; otherwise log the refusal.
        """
        here = self._caller.routes.identity
        maker = here if peer is None else peer
        # Number 0 has a node of an earlier version, which takes nothing back. Only an actor that
        # was looked up has an epoch.
        if call.number and call.epoch and isinstance(refusal, MOVED):
            back = self._service(*maker).returned
            leaving = isinstance(refusal, NodeDrainingError)
            context = call.context.text if call.context is not None else ""
            place = [*here, call.epoch]
            what = [call.number, call.attempt, call.actor, call.method]
            args = (*what, list(call.args), call.kwargs, place, leaving, context)
            route = self._caller.routes.known(back)
            try:
                if route is not None:
                    request = OutgoingRequest(back, args, {}, math.inf)
                    self._caller.post_one_way(request, self._caller.numbers(), route)
                    return
            except EncodeError as error:
                self._log.warning("a one-way call cannot be returned: %s", error)
        self._log.warning("a one-way call from %s was refused: %s", maker.name, refusal)


class ReturnedCalls(Actor):
    """The service of a process for the one-way calls that it has made, and that come back."""

    def __init__(self, caller: CallClient) -> None:
        self._caller = caller
        self._log = LimitedLog(logger, caller.environment.now)

    @method(concurrent=True, idempotent=True)
    async def all_returned(self) -> None:
        """Answer. What this process has refused before went back over the same link, and arrives
        before the answer.
        """

    @method(concurrent=True)
    async def returned(
        self,
        number: int,
        attempt: int,
        actor: str,
        name: str,
        args: list[object],
        kwargs: dict[str, object],
        place: Place,
        leaving: bool,
        context: str,
    ) -> None:
        """Send the one-way call `number` of the method `name` again, which did not run at `place`
        (node, incarnation, epoch), where `actor` has ended, or which is `leaving`. `attempt`: how
        often it was sent, from 1. If the actor is not found, or not any more, that is logged.
        """
        caller, (node, incarnation, epoch) = self._caller, place
        address = caller.routes.sent_to(actor, epoch)
        if address is None or attempt >= MOST_ATTEMPTS:
            why = "its place is not known here any more" if address is None else "tried too often"
            self._log.warning("a one-way call of %s.%s was not run: %s", actor, name, why)
            return
        definition = MethodDefinition(name=name, function=unknown_method)
        bound: BoundMethod[..., Any] = BoundMethod(caller, address, definition, NO_CALL_OPTIONS)
        # It is looked up: where the address leads, it was refused.
        bound._moved = True
        environment = caller.environment
        pause = WAIT_FOR_ACTOR.delay(attempt, environment.random())
        request = OutgoingRequest(bound, tuple(args), kwargs, math.inf, attempt=attempt + 1)
        request.context = CallContext(context) if context else None
        try:
            await caller.lines.through(
                bound,
                number,
                partial(caller.post_one_way, request, number),
                not_before=environment.now() + pause,
                denied=(node, incarnation, epoch),
                over=not leaving,
            )
        except (CallError, EncodeError) as error:
            self._log.warning("a one-way call of %s.%s was not run: %s", actor, name, error)
