"""Starting a child where it fits, as soon as that is possible: what is waited for, and what counts as its own failure."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import attrs
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
from runtime.environment import Environment
from runtime.supervision.operations import Child, Operations

NAME_SECONDS = 10.0
"""How long a child's start waits for its name, which its dead predecessor's lease may still hold."""

PLACE_SECONDS = 5.0
"""How long the first start of a child waits for a node that fits: people wait for the error, if its spec is wrong. A restart fails at once
with "not placed", and is tried again after a while, so that others of the supervisor are not kept waiting.
"""

PLACE_AGAIN = 0.5
LOOK_AGAIN = 0.05

NOT_ITS_FAULT = (ActorNotPlacedError, NoPlacementError, NotExecutedError, OutcomeUnknownError, StoreError)
"""Why a start may fail that says nothing about the child: its node, or the store, is gone or going, or no answer came from there. The call
errors are those of the runtime's own call to the node; what the child raises comes as an ActorStartError.
"""

logger = logging.getLogger("understudy.supervision")


async def start_somewhere(
    child: Child, supervisor: str, promise: Callable[[], Awaitable[None]], operations: Operations, environment: Environment
) -> Address:
    """Start the child's actor within its time, or adopt it, after `promise()`; wait for its name, and at first for a node that fits.

    Raises what its start raises, one of `NOT_ITS_FAULT` if it cannot be placed, and ActorStartError when its time is over.
    """
    last: Exception | None = None
    spec, now = child.spec, environment.now()
    options = attrs.evolve(spec.options, name=child.name)
    free_until = now + NAME_SECONDS
    fits_until = now if child.started_at else now + PLACE_SECONDS
    with trio.move_on_after(math.inf if spec.start_timeout is None else spec.start_timeout):
        while True:
            try:
                await promise()
                if child.adopted is not None:
                    address, child.adopted = child.adopted, None
                    return address
                return await operations.start_actor(spec.actor, spec.args, dict(spec.kwargs), options, supervisor)
            except NameTakenError as error:
                last = error
                owner = (await operations.living(supervisor, [child.name])).get(child.name)  # noqa: ASYNC120  what is asked now decides whether it was an error
                if owner is not None and owner.epoch > child.latest_epoch:
                    # An attempt whose outcome nobody learned has started it after all.
                    return owner
                if environment.now() >= free_until:
                    raise
                await trio.sleep(LOOK_AGAIN)
            except NOT_ITS_FAULT as error:
                last = error
                if environment.now() >= fits_until:
                    raise
                logger.info("%s/%s waits for a node that can start it: %s", supervisor, spec.id, error)
                await operations.members_changed(PLACE_AGAIN)
    if isinstance(last, NOT_ITS_FAULT):
        # It was not even begun.
        raise last
    why = f"; the last attempt: {last}" if last is not None else ""
    raise ActorStartError(
        f"{supervisor}/{spec.id} has not started within {spec.start_timeout:g} s, its start_timeout{why}", actor=child.name
    )
