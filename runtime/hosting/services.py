"""The services that every node offers to other nodes: system actors under fixed names, called like any actor.

They are the runtime's own protocol, kept as methods so that deadlines, cancellation and the three outcomes hold for it too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import trio

from actors.actor import Actor
from actors.errors import ActorClassError, CallCycleError, DecodeError
from actors.messages import message_type
from actors.method import Address, method
from actors.options import SpawnOptions
from actors.supervision import ExitReason, Shutdown
from runtime.hosting.elsewhere import RefusedElsewhereError
from runtime.hosting.host import Host
from runtime.hosting.stopping import STOP_SECONDS
from runtime.system_calls import LONG_POLL, LONG_POLL_SECONDS
from runtime.wire.classes import find_class, import_class, is_imported

NODE_SERVICE = "@node"
STORE_SERVICE = "@store"


def store_service(identity: str) -> str:
    """The name of the service of one store. Another store at the same address, begun anew after a loss, must not be mistaken for it: what
    was its lease may be somebody else's there.
    """
    return f"{STORE_SERVICE}-{identity[:12]}"


TICKETS_KEPT = 1024
"""Latest spawns that can be taken back: their answers are on the way, which takes no longer than a few others do."""


class NodeControls(Protocol):
    """What the services need of their node."""

    def status(self) -> dict[str, object]:
        """Facts for `understudy status`."""
        ...

    def leave(self) -> None:
        """Drain and leave, soon."""
        ...


class NodeService(Actor):
    """Starts, stops and watches actors on behalf of other nodes, and hands out the values that this node owns."""

    def __init__(self, host: Host, controls: NodeControls, node: str) -> None:
        self._host = host
        self._controls = controls
        self._node = node
        self._tickets: OrderedDict[str, Address] = OrderedDict()

    @method(concurrent=True)
    async def spawn(
        self,
        class_path: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
        on_behalf_of: str = "",
        ticket: str = "",
    ) -> Address:
        """Start an actor here. Raises what `Host.start` raises, and `ActorClassError` if the class cannot be imported here."""
        address = await self._host.start(
            await actor_class(class_path, self._node, self._host.in_thread), args, kwargs, options, class_path, on_behalf_of
        )
        if ticket:
            self._tickets[ticket] = address
            while len(self._tickets) > TICKETS_KEPT:
                self._tickets.popitem(last=False)
        return address

    @method(concurrent=True, idempotent=True, retry=LONG_POLL)
    async def wait_started(self, name: str, epoch: int) -> bool | None:
        """See `Host.wait_started`; None if it is still being started after `LONG_POLL_SECONDS`: ask again."""
        with trio.move_on_after(LONG_POLL_SECONDS):
            try:
                return await self._host.wait_started(name, epoch)
            except CallCycleError as error:
                # For who asked, that is the end of this very call.
                raise RefusedElsewhereError(error) from None
        return None

    @method(concurrent=True)
    async def take_back(self, ticket: str) -> None:
        """Whoever had spawned with this ticket was cancelled, and did not get to know the actor: stop it."""
        address = self._tickets.pop(ticket, None)
        if address is not None:
            await self._host.stop(address.name, address.epoch, ExitReason("stopped", "whoever was spawning it was cancelled"))

    @method(concurrent=True, idempotent=True)
    async def stop_actor(self, name: str, epoch: int, reason: ExitReason, shutdown: Shutdown = STOP_SECONDS) -> ExitReason | None:
        """Stop an actor and wait until it has ended; see `Host.stop`."""
        return await self._host.stop(name, epoch, reason, shutdown)

    @method(concurrent=True, idempotent=True, retry=LONG_POLL)
    async def watch_actor(self, name: str, epoch: int) -> ExitReason | None:
        """How this epoch of the actor has ended, as soon as it has; None if it has not for `LONG_POLL_SECONDS`: ask again."""
        with trio.move_on_after(LONG_POLL_SECONDS):
            return await self._host.watch(name, epoch)
        return None

    @method(concurrent=True, idempotent=True)
    async def status(self) -> dict[str, object]:
        """Facts about this node."""
        return self._controls.status()

    @method(concurrent=True, idempotent=True)
    async def leave_cluster(self) -> None:
        """Tell this node to drain and leave the cluster; answers before it has."""
        self._controls.leave()


async def actor_class(path: str, node: str, in_thread: Callable[[Callable[[], type]], Awaitable[type]]) -> type[Actor]:
    """The class of actors of this path. Raises ActorClassError, which names the node.

    Its module is imported beside the event loop, unless it is already: that runs it, which may take long and raise anything.
    """
    try:
        found = find_class(path) if is_imported(path) else await in_thread(partial(import_class, path))
    except DecodeError as error:
        raise ActorClassError(
            f"{path} cannot be imported on node {node}: {error}; actor classes must be importable where they run", node=node
        ) from error
    if not issubclass(found, Actor) or message_type(found) is not None:
        raise ActorClassError(f"{path} is not a subclass of actors.Actor", node=node)
    return found
