"""Starting a child where it fits, as soon as that is possible: what is waited for, and what counts as its own failure."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import attrs
import trio

from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    NameTakenError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    NoPlacementError,
    StoreError,
)
from actors.method import Address
from runtime.environment import Environment
from runtime.supervision.operations import Child, Operations

NAME_SECONDS = 10.0
"""How long a child's start waits for its name, which its dead predecessor's lease may still hold."""

PLACE_SECONDS = 5.0
"""How long the first start of a child waits for a node that fits. A restart does until its start_timeout."""

PLACE_AGAIN = 0.5
LOOK_AGAIN = 0.05

NOT_ITS_FAULT = (
    ActorNotFoundError,
    NoPlacementError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    StoreError,
)
"""Why a start may fail that says nothing about the child: its node, or the store, is gone or going. To try it again at once would use up
the intensity within a moment. An ActorNotFoundError is of the node's own service; what the child raises comes as an ActorStartError.
"""

logger = logging.getLogger("understudy.supervision")


async def start_somewhere(
    child: Child, supervisor: str, promise: Callable[[], Awaitable[None]], operations: Operations, environment: Environment
) -> Address:
    """Start the child's actor within its time, or adopt it, after `promise()`; wait for its name, and for a node that can start it.

    Raises what its start raises, and ActorStartError when its time is over.
    """
    last: Exception | None = None
    spec, now = child.spec, environment.now()
    options = attrs.evolve(spec.options, name=child.name)
    free_until = now + NAME_SECONDS
    # A child that ran before had its node: that one may come back. Another's spec may be wrong, and people wait for the error.
    fits_until = math.inf if child.started_at else now + PLACE_SECONDS
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
                logger.warning("%s/%s waits for a node that can start it: %s", supervisor, spec.id, error)
                await operations.members_changed(PLACE_AGAIN)
    why = f"; the last attempt: {last}" if last is not None else ""
    raise ActorStartError(
        f"{supervisor}/{spec.id} has not started within {spec.start_timeout:g} s, its start_timeout{why}", actor=child.name
    )
