"""The start of a supervisor's child: what it waits for, and which errors count as the child's own
failure.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from actors.errors import (
    ActorNotPlacedError,
    ActorStartError,
    NameTakenError,
    NoPlacementError,
    NotExecutedError,
    OutcomeUnknownError,
    StoreError,
)
from actors.method import Address
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.supervision.children import ChildState
from runtime.supervision.shared_deadlines import SharedDeadlines
from runtime.supervision.spawner import ActorSpawner

PLACE_RETRY_SECONDS = 0.5
"""Seconds between two attempts to find a node that fits, unless the members change before."""


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
child arrives as an ActorStartError.
"""


logger = own_logger("understudy.supervision")


async def start_somewhere(
    child: ChildState,
    supervisor: str,
    write_intent: Callable[[], Awaitable[None]],
    spawner: ActorSpawner,
    environment: Environment,
    deadlines: SharedDeadlines,
) -> Address:
    """Start the child's actor within its start timeout, which `deadlines` give, or adopt it, after
    `write_intent()` has written its restart intent. Waits for its name and, at the first start, for
    a node that fits. Raises what its start raises, one of `NOT_ITS_FAULT` if it cannot be placed,
    and ActorStartError when its time is over.
    """
    last: Exception | None = None
    spec, now = child.spec, environment.now()
    options = spec.options.changed(name=child.name)
    free_until = now + environment.timings.succession
    fits_until = now if child.started_at else now + environment.timings.first_placement
    with deadlines.given(math.inf if spec.start_timeout is None else spec.start_timeout):
        while True:
            try:
                # Before the start, so that no actor of this name is lost without an intent.
                await write_intent()
                if child.adopted is not None:
                    address, child.adopted = child.adopted, None
                    return address
                start = partial(
                    spawner.start_actor,
                    *(spec.actor, spec.args, dict(spec.kwargs)),
                    # While it waits for room, it looks every half second: what has become free is
                    # seen by then, and full nodes need not be asked each time.
                    asks=type(last) is not NoPlacementError,
                )
                if not child.started_at:
                    return await start(options, supervisor)
                # A trace of its own: the supervisor may have started, and its trace ended, long
                # ago.
                facts = {"understudy.actor": child.name, "understudy.supervisor": supervisor}
                with spawner.spans.span("actor.restart", facts, root=True):
                    return await start(options, supervisor)
            except NameTakenError as error:
                last = error
                # the owner of the name decides whether this is an error
                if (owner := await _started_after_all(child, supervisor, spawner)) is not None:  # noqa: ASYNC120
                    return owner
                if environment.now() >= free_until:
                    raise
                await trio.sleep(FREE_NAME_LOOK_SECONDS)
            except NOT_ITS_FAULT as error:
                last = error
                if isinstance(error, NoPlacementError):
                    # It may have taken itself what it finds no room for.
                    owner = await _started_after_all(child, supervisor, spawner)  # noqa: ASYNC120
                    if owner is not None:
                        return owner
                if environment.now() >= fits_until:
                    raise
                logger.info(
                    "%s/%s waits for a node that can start it: %s", supervisor, spec.id, error
                )
                await spawner.members_changed(PLACE_RETRY_SECONDS)
    if isinstance(last, NOT_ITS_FAULT):
        # No start of it has begun, so the time that is over is not the child's own.
        raise last
    why = f"; the last attempt: {last}" if last is not None else ""
    raise ActorStartError(
        f"{supervisor}/{spec.id} has not started within {spec.start_timeout:g} s, its "
        f"start_timeout{why}",
        actor=child.name,
    )


async def _started_after_all(
    child: ChildState, supervisor: str, spawner: ActorSpawner
) -> Address | None:
    """Return the actor of the child that an attempt of unknown outcome has started, if there is
    one.
    """
    owner = (await spawner.living(supervisor, [child.name])).get(child.name)
    return owner if owner is not None and owner.epoch > child.latest_epoch else None
