"""The start of a supervisor's child: what it waits for, and which errors count as the child's own
failure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from actors.errors import (
    ActorNotPlacedError,
    ActorStartError,
    BadArgumentsError,
    NameTakenError,
    NodeNotFoundError,
    NoPlacementError,
    NotExecutedError,
    OutcomeUnknownError,
    StoreError,
)
from actors.identifiers import NodeId
from actors.method import Address
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.supervision.children import ChildState
from runtime.supervision.shared_deadlines import SharedDeadlines
from runtime.supervision.spawner import ActorSpawner

PLACE_RETRY_SECONDS = 0.5
"""Seconds between two attempts to find a node that fits, unless there is one before."""


FREE_NAME_LOOK_SECONDS = 0.05
"""Seconds between attempts to start a child whose name is not free yet."""


NOT_ITS_FAULT = (
    ActorNotPlacedError,
    NoPlacementError,
    NotExecutedError,
    OutcomeUnknownError,
    StoreError,
)
"""Errors of a start that are not the child's fault: its node, or the store, is gone or leaving, or
did not answer. The call errors are those of the runtime's own call to the node; an exception of the
child arrives as an ActorStartError. A BadArgumentsError is the child's own, see `is_its_fault`.
"""


NO_ROOM = (NoPlacementError, NodeNotFoundError)
"""Those of them that say that no node fits, so that the next attempt may wait for one."""


logger = own_logger("understudy.supervision")


class StartPutOffError(Exception):
    """The start was given up so that another child of the supervisor can be started first."""


def is_its_fault(error: Exception) -> bool:
    """True for the error of a start that counts as the child's own failure: it started and failed,
    or its node cannot read its arguments, which waiting does not change.
    """
    return isinstance(error, BadArgumentsError) or not isinstance(error, NOT_ITS_FAULT)


@attrs.frozen(eq=False)
class ChildStart:
    """One start of a supervisor's child. `write_intent` writes the child's restart intent;
    `deadlines` give the start its timeout.
    """

    child: ChildState
    supervisor: str
    write_intent: Callable[[], Awaitable[None]]
    spawner: ActorSpawner
    environment: Environment
    deadlines: SharedDeadlines
    unknown: list[tuple[NodeId, str]] = attrs.field(factory=list)
    """The attempts whose outcomes are not known; see `ActorSpawner.take_back_unknown`."""
    over: trio.Event = attrs.field(factory=trio.Event)
    """Set when the start has ended, in whatever way."""
    given_up: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancelled to put the start off: it then ends with StartPutOffError."""

    async def start_in_turn(self) -> Address:
        """`start_somewhere`, unless the start is put off: then raise StartPutOffError."""
        try:
            with self.given_up:
                return await self.start_somewhere()
        finally:
            self.over.set()
        raise StartPutOffError(self.child.name)

    async def start_somewhere(self) -> Address:
        """Start the child's actor within its start timeout, or adopt it, after its restart intent
        is written. Waits for its name and, at the first start, for a node that fits. Raises what
        its start raises, one of `NOT_ITS_FAULT` if it cannot be placed,
        BadArgumentsError if its node cannot read its arguments, and ActorStartError when
        its time is over.
        """
        child, supervisor = self.child, self.supervisor
        last: Exception | None = None
        is_intended, shown = False, ""
        spec, now = child.spec, self.environment.now()
        options = spec.options.changed(name=child.name)
        free_until = now + self.environment.timings.succession
        fits_until = now if child.started_at else now + self.environment.timings.first_placement
        with self.deadlines.given(math.inf if spec.start_timeout is None else spec.start_timeout):
            while True:
                child.room_seen = self.spawner.room.changes
                try:
                    # Before the start, so that no actor of this name is lost without an intent.
                    is_intended = False
                    await self.write_intent()
                    is_intended = True
                    if child.adopted is not None:
                        address, child.adopted = child.adopted, None
                        return address
                    start = partial(
                        self.spawner.start_actor,
                        *(spec.actor, spec.args, dict(spec.kwargs)),
                        # While it waits for room, it looks every half second: what has become
                        # free is seen by then, and full nodes need not be asked each time.
                        asks=type(last) is not NoPlacementError,
                        unknown=self.unknown,
                    )
                    if not child.started_at:
                        return await start(options, supervisor)
                    # A trace of its own: that of the supervisor's start may have ended long ago.
                    facts = {"understudy.actor": child.name, "understudy.supervisor": supervisor}
                    with self.spawner.spans.span("actor.restart", facts, root=True):
                        return await start(options, supervisor)
                except NameTakenError as error:
                    last = error
                    # The owner of the name decides whether this is an error.
                    owner = await self._started_after_all()  # noqa: ASYNC120
                    if owner is not None:
                        return owner
                    if self.environment.now() >= free_until:
                        raise
                    await trio.sleep(FREE_NAME_LOOK_SECONDS)
                except NOT_ITS_FAULT as error:
                    if is_its_fault(error):
                        raise
                    last = error
                    if isinstance(error, NoPlacementError):
                        # It may have taken itself what it finds no room for.
                        owner = await self._started_after_all()  # noqa: ASYNC120
                        if owner is not None:
                            return owner
                    if self.environment.now() >= fits_until:
                        raise
                    logger.log(
                        logging.DEBUG if str(error) == shown else logging.INFO,
                        "%s/%s waits for a node that can start it: %s",
                        supervisor,
                        spec.id,
                        error,
                    )
                    shown = str(error)
                    await self.spawner.wait_for_room(options, child.room_seen, PLACE_RETRY_SECONDS)
        raise self._out_of_time(last, is_intended=is_intended)

    def _out_of_time(self, last: Exception | None, *, is_intended: bool) -> Exception:
        """Return the error of a start whose start timeout is over. `last`: that of its last
        attempt; `is_intended`: its restart intent was written.
        """
        child = self.child
        seconds = child.spec.start_timeout
        if isinstance(last, NOT_ITS_FAULT):
            # No start of it has begun, so the time that is over is not the child's own.
            return last
        if not is_intended:
            # Nor here. One that is to be adopted runs: it is adopted when the store is there again.
            return ActorNotPlacedError(
                f"{self.supervisor}/{child.spec.id} was not started: its restart intent was not "
                f"written to the store within {seconds:g} s, its start_timeout",
                actor=child.name,
            )
        why = f"; the last attempt: {last}" if last is not None else ""
        return ActorStartError(
            f"{self.supervisor}/{child.spec.id} has not started within {seconds:g} s, its "
            f"start_timeout{why}",
            actor=child.name,
        )

    async def _started_after_all(self) -> Address | None:
        """Return the actor of the child that an attempt of unknown outcome has started, if there is
        one.
        """
        name = self.child.name
        owner = (await self.spawner.living(self.supervisor, [name])).get(name)
        return owner if owner is not None and owner.epoch > self.child.latest_epoch else None
