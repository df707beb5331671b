"""The calls of a gateway: it finds the node that hosts the actor, and asks the service `@plain`
there.

A call with an `Idempotency-Key` is recorded here and at its actor's node. The record here attaches
repeats to the first call while that runs, answers them after it has ended, and knows of calls whose
node has died. The record there meets repeats that come through another gateway.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Collection
from fnmatch import fnmatchcase
from typing import cast

import attrs
import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    MethodNotFoundError,
    NodeUnreachableError,
    NotExecutedError,
    OutcomeUnknownError,
    RemoteError,
)
from actors.identifiers import NodeId
from actors.method import Address, BoundMethod, BoundStream
from actors.options import NO_CALL_OPTIONS, CallOptions
from actors.own_logger import own_logger
from runtime.calls.rights import PLAIN_SERVICE
from runtime.gateway.openapi import DescribedActors
from runtime.limited_log import LimitedLog
from runtime.node import Node, internals_of
from runtime.plain_calls.keyed_calls import (
    CallKey,
    KeyedCall,
    KeyedCalls,
    PlainOutcome,
    fingerprint,
)
from runtime.plain_calls.service import (
    MOST_DESCRIBED,
    PlainCallService,
    PlainTarget,
    described_error,
)
from runtime.printable import one_of
from runtime.service_calls import LONG_POLL

ANSWER_SECONDS = 2.0
"""Seconds beyond the timeout of a call: within them its node can report the exact outcome."""

DESCRIBE_SECONDS = 5.0
"""Seconds in which a node is to describe its actors: a thousand take it about one."""

FIRST_WAIT = 0.02
LONGEST_WAIT = 0.5
"""Seconds between two looks for an actor that is moving."""

_MOVED = frozenset({"ActorNotFoundError", "StaleEpochError", "NodeDrainingError"})
"""Errors of a node that the actor has just left, or has not reached yet."""

ONCE = NO_CALL_OPTIONS
REPEATED = CallOptions(retry=LONG_POLL)
"""A keyed call may be sent again when its answer is lost: its node runs it once."""

logger = own_logger("understudy.gateway")


@attrs.frozen
class HttpCall:
    """One call that a client asks for. `seconds`: None for no limit. `key`: "" for none."""

    name: str
    method: str
    body: bytes = attrs.field(repr=False)
    seconds: float | None
    key: str = attrs.field(repr=False)


class SilentNodesError(Exception):
    """Nodes did not describe their actors. `nodes`: their names, in order. It never leaves the
    gateway: clients get a problem.
    """

    def __init__(self, nodes: list[str]) -> None:
        super().__init__(
            f"within {DESCRIBE_SECONDS:g} s there was no description from {one_of(nodes)}"
        )
        self.nodes = nodes


class _KeyedAttempt:
    """A keyed call on its way, and the requests that wait for it."""

    __slots__ = ("ended", "left", "outcome", "posted", "waiters")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.outcome: PlainOutcome | None = None
        self.waiters = 0
        self.left = trio.Event()
        """Set when one stops waiting, and made anew."""
        self.posted = False
        """True once it may have reached its actor's node."""

    def enter(self) -> None:
        """A request waits for it."""
        self.waiters += 1

    def leave(self) -> None:
        """A request does not wait any more."""
        assert self.waiters > 0, "what leaves has entered"
        self.waiters -= 1
        # Both in one step: a task that is woken by the old event waits for the new one.
        self.left.set()
        self.left = trio.Event()


class GatewayCalls:
    """Makes the calls of a gateway through its node. `allow`: patterns of ACTOR.METHOD that may be
    called without `@method(http=True)`.
    """

    def __init__(self, node: Node, allow: tuple[str, ...]) -> None:
        self._node = node
        self._allow = allow
        self._keyed: KeyedCalls[_KeyedAttempt] = KeyedCalls()
        self._log = LimitedLog(logger, internals_of(node).environment.now)

    def is_allowed(self, name: str, method: str) -> bool:
        """True if the list allows the method; what is marked with `http=True` needs no list."""
        return any(fnmatchcase(f"{name}.{method}", pattern) for pattern in self._allow)

    async def once(self, call: HttpCall) -> PlainOutcome:
        """Make a call without a key. Never raises but for a cancellation, which goes on to the
        actor.
        """
        return await self._call(call, _KeyedAttempt(), tried=False)

    async def keyed(self, call: HttpCall, gone: trio.Event) -> PlainOutcome | None:
        """Make a call with a key, or wait for the one that runs, or return the outcome on record.

        `gone`: set when the client goes. Then None may be returned; the call goes on where its
        actor is, for a while.
        """
        name, mark = CallKey((call.name, call.key)), fingerprint(call.method, call.body)
        now = internals_of(self._node).environment.now()
        attempt = _KeyedAttempt()
        # No await from the look at the record to its change: of two requests with one key that
        # come at once, one begins the call and the other waits for it.
        try:
            known = self._keyed.find(name, mark, now)
            if known is not None and known.run is not None:
                return await self._joined(known.run, gone)
            if known is not None:
                outcome = cast("PlainOutcome", known.outcome)
                if outcome.outcome != "unknown":
                    return outcome
                # The actor's node may know more, or its successor: what the actor has saved.
                self._keyed.begin_again(known, attempt)
                return await self._made(known, attempt, call, gone, tried=True)
            begun = self._keyed.begin(name, mark, attempt, now)
        except CallError as error:
            return described_error(error)
        return await self._made(begun, attempt, call, gone, tried=False)

    async def stream(self, call: HttpCall) -> AsyncGenerator[PlainOutcome, None]:
        """The items of a stream; an outcome that is no value is the last. To be closed."""
        try:
            address = await self._where(call.name, call.seconds)
            bound = self._service_stream(address)
        except CallError as error:
            yield described_error(error)
            return
        items = bound(self._target(call, address), call.body, call.seconds)
        try:
            async for item in items:
                if not isinstance(item, PlainOutcome):
                    yield described_error(_no_outcome(address, item))
                    return
                yield item
        except CallError as error:
            yield self._of_service(error, call, address)
        finally:
            # Does not wait: it only notifies the producer.
            await items.aclose()  # noqa: ASYNC102, ASYNC120

    async def described(self, names: Collection[str] | None) -> DescribedActors:
        """Ask the hosts of these actors, or of all actors with names, to describe their methods.
        Raises CallError if the names cannot be read, and SilentNodesError if a node does not
        answer: what is left is no description of the cluster.
        """
        node = self._node
        with node._lifetime.asking("the actors could not be listed"):
            found = await internals_of(node).names.all()
        places: dict[NodeId, list[str]] = {}
        for address in found:
            if names is None or address.name in names:
                places.setdefault(address.node_id, []).append(address.name)
        described = DescribedActors()
        silent: list[str] = []
        async with trio.open_nursery() as nursery:
            for place, actors in places.items():
                nursery.start_soon(self._describe, place, actors, described, silent)
        if silent:
            raise SilentNodesError(sorted(silent))
        return described

    async def _describe(
        self, place: NodeId, actors: list[str], described: DescribedActors, silent: list[str]
    ) -> None:
        service = internals_of(self._node).endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, *place, ONCE
        )
        ask = cast(
            "BoundMethod[..., dict[str, object]]",
            service.options(timeout=DESCRIBE_SECONDS).describe,
        )
        try:
            described.add(await ask(sorted(actors)[:MOST_DESCRIBED]))
            described.left_out += max(0, len(actors) - MOST_DESCRIBED)
        except (ActorNotFoundError, MethodNotFoundError):
            # A node of a version without the service: its actors cannot be called through the
            # gateway either, so that the description is complete without them.
            self._log.log(logging.INFO, "node %s has no service to describe actors", place.name)
        except CallError as error:
            # Once for each description that a client asks for.
            self._log.warning("node %s does not describe its actors: %s", place.name, error)
            silent.append(place.name)

    async def _joined(self, attempt: _KeyedAttempt, gone: trio.Event) -> PlainOutcome | None:
        """Wait for a call that another request makes; None if the client has gone before its
        end.
        """
        attempt.enter()
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    await gone.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                await attempt.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            attempt.leave()
        return attempt.outcome

    async def _made(
        self,
        known: KeyedCall[_KeyedAttempt],
        attempt: _KeyedAttempt,
        call: HttpCall,
        gone: trio.Event,
        *,
        tried: bool,
    ) -> PlainOutcome | None:
        """Make the call in this task, also for the repeats that wait for it."""
        outcome: PlainOutcome | None = None
        attempt.enter()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._abandon, attempt, gone, nursery.cancel_scope)
                outcome = await self._call(call, attempt, tried=tried)
                nursery.cancel_scope.cancel()
        finally:
            if outcome is None:
                outcome = _abandoned(call, attempt)
            # On record before the waiting requests are woken: a repeat that comes with them finds
            # the outcome, and does not begin the call anew.
            self._keyed.on_ended(known, outcome, internals_of(self._node).environment.now())
            # The record decides: where an earlier attempt may have run, a repeat that certainly did
            # not run leaves the call unknown.
            attempt.outcome = known.outcome or outcome
            attempt.ended.set()
        return attempt.outcome

    async def _abandon(
        self, attempt: _KeyedAttempt, gone: trio.Event, scope: trio.CancelScope
    ) -> None:
        """Stop waiting for a keyed call when no request waits for it any more. Where its actor is,
        it goes on for a while.
        """
        await gone.wait()
        attempt.leave()
        while attempt.waiters:
            await attempt.left.wait()
        scope.cancel()

    async def _call(self, call: HttpCall, attempt: _KeyedAttempt, *, tried: bool) -> PlainOutcome:
        """Find the actor and make the call; again where it has moved, and certainly did not run."""
        environment = internals_of(self._node).environment
        began = environment.now()
        deadline = math.inf if call.seconds is None else began + call.seconds
        # Bounded also for a call without a time-out: an actor that moves again and again is an
        # error.
        patience, wait = began + environment.timings.denial_patience, FIRST_WAIT
        while True:
            left = None if deadline == math.inf else deadline - environment.now()
            try:
                address = await self._where(call.name, left)
                left = None if deadline == math.inf else deadline - environment.now()
                if left is not None and left <= 0:
                    raise _too_late(call)
            except CallError as error:
                return described_error(error)
            # Before the request leaves: a call that is abandoned from here on may have run.
            attempt.posted = True
            outcome = await self._asked(call, address, left, tried=tried)
            moved = outcome.outcome == "not executed" and str(outcome.error.get("type")) in _MOVED
            now = environment.now()
            if moved and deadline <= now < patience:
                # The refusal says that there is no such actor; it may only be on its way.
                return described_error(_too_late(call))
            if not moved or now >= patience:
                return outcome
            attempt.posted = False
            # The cache would return the same address until the change of the name has come here.
            internals_of(self._node).lookups.forget(call.name)
            await trio.sleep(min(wait, deadline - now))
            wait = min(2 * wait, LONGEST_WAIT)

    async def _asked(
        self, call: HttpCall, address: Address, left: float | None, *, tried: bool
    ) -> PlainOutcome:
        """Send the call to the actor's node, and return its answer."""
        options = REPEATED if call.key else ONCE
        service = internals_of(self._node).endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, address.node, address.incarnation, options
        )
        if left is not None:
            # The node gets `left` as the limit of the call, and ends it by itself: it knows the
            # outcome, which a time-out here would lose.
            service = service.options(timeout=left + ANSWER_SECONDS)
        target = self._target(call, address)
        try:
            if call.key:
                keyed = cast("BoundMethod[..., PlainOutcome]", service.call_keyed)
                return await keyed(target, call.body, left, call.key, tried)
            once = cast("BoundMethod[..., PlainOutcome]", service.call)
            return await once(target, call.body, left)
        except CallError as error:
            return self._of_service(error, call, address)

    def _of_service(self, error: CallError, call: HttpCall, address: Address) -> PlainOutcome:
        """Return the outcome of a call for which the service itself did not answer."""
        if isinstance(error, ActorNotFoundError | MethodNotFoundError):
            return described_error(
                NodeUnreachableError(
                    f"node {address.node} runs a version of Understudy without the service that "
                    "the gateway asks; update it"
                )
            )
        if isinstance(error, RemoteError):
            self._log.log(
                logging.ERROR,
                "the service %s of node %s raised: %s",
                PLAIN_SERVICE,
                address.node,
                error,
            )
            return described_error(
                OutcomeUnknownError(
                    f"node {address.node} failed while it handled the call: {error}"
                )
            )
        # The client has called a method of the actor, and knows nothing of the service.
        text = str(error)
        for method in ("call_keyed", "call", "stream"):
            text = text.replace(f"{PLAIN_SERVICE}.{method}", f"{call.name}.{call.method}")
        return described_error(error, text.replace(PLAIN_SERVICE, call.name))

    def _service_stream(self, address: Address) -> BoundStream[..., object]:
        service = internals_of(self._node).endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, address.node, address.incarnation, ONCE
        )
        return cast("BoundStream[..., object]", service.stream)

    def _target(self, call: HttpCall, address: Address) -> PlainTarget:
        return PlainTarget(
            call.name, address.epoch, call.method, self.is_allowed(call.name, call.method)
        )

    async def _where(self, name: str, seconds: float | None) -> Address:
        """Raises CallError if there is no such actor, or it cannot be found out in time."""
        if not name or name.startswith("@"):
            raise ActorNotFoundError(f"there is no actor {name!r}")
        with trio.move_on_after(math.inf if seconds is None else max(0.0, seconds)):
            node = internals_of(self._node)
            # Not `Node.lookup`: its error names another actor, and clients must not learn of it.
            with node.endpoint.lifetime.asking(f"{name} could not be looked up"):
                return await node.lookups.locate(name)
        raise DeadlineExceededError(
            f"{name} could not be looked up within the timeout of the call; it did not run"
        )


def _too_late(call: HttpCall) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"{call.name}.{call.method} was not made within its timeout of {call.seconds:g} s"
    )


def _abandoned(call: HttpCall, attempt: _KeyedAttempt) -> PlainOutcome:
    """Return the outcome, as far as it is known, of a keyed call that the gateway does not wait for
    any more.
    """
    what = f"the clients of {call.name}.{call.method} had gone"
    if attempt.posted:
        return described_error(
            CallTimeoutError(f"{what} before it ended; it may have taken effect")
        )
    return described_error(NotExecutedError(f"{what} before it was made; it did not run"))


def _no_outcome(address: Address, item: object) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"node {address.node} answered with a value of a type that it never sends: "
        f"{type(item).__name__}"
    )
