"""What an isolated actor watches and is linked to. Its node keeps this, and is asked to change it;
notices come back into the mailbox here.
"""

from __future__ import annotations

import inspect
import math
from functools import partial

import attrs
import trio

from actors.actor import Ended, Watch
from actors.call_context import CURRENT
from actors.errors import CallError, UnderstudyError
from actors.handle import Handle
from actors.method import Address, MethodDefinition
from actors.own_logger import own_logger
from actors.short_repr import short_repr
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.host import ActorHost
from runtime.isolation.node_api import NodeApi

logger = own_logger("understudy.watching")


class WatchingClient:
    """The watches and links of the actor in this process; see
    `runtime.hosting.host.HostExtension`. `nursery`: the process's.
    """

    def __init__(self, api: NodeApi, nursery: trio.Nursery) -> None:
        self.api = api
        self._nursery = nursery
        self._deliveries: dict[int, _NoticeDelivery] = {}
        """By watch: the node sends one notice of a watch, and one notice at a time."""
        self._cancelled: set[int] = set()
        """Watches that the actor has cancelled, until the node has confirmed that no notice of them
        follows.
        """

    def of(self, cell: ActorCell) -> ActorWatchingClient:
        """Return the watches and links of one actor, as it sees them."""
        return ActorWatchingClient(self, cell)

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: the node does it."""

    def on_ended(self, address: object, reason: object) -> None:
        """Does nothing: the node does it."""

    async def tell(self, host: ActorHost, cell: ActorCell, notice: Ended) -> bool:
        """Deliver a notice to the actor in its turn, and wait until `on_ended` has returned.
        Returns False if the actor has ended; an exception in `on_ended` ends it.
        """
        if cell.ended is not None:
            return False
        if notice.watch in self._cancelled:
            return True
        on_ended = type(cell.instance).on_ended
        definition = MethodDefinition(
            name="on_ended", function=on_ended, in_thread=not inspect.iscoroutinefunction(on_ended)
        )
        delivery = self._deliveries[notice.watch] = _NoticeDelivery(host)
        delivery.invocation = invocation = Invocation(
            cell, definition, (notice,), {}, delivery, None, notice.watch, math.inf
        )
        # The context of the code that watches: the node calls this service in that context.
        invocation.context = CURRENT.get()
        # Regardless of the mailbox's limit: the node sends one notice at a time, and the actor has
        # asked for each of them.
        cell.append(invocation)
        if not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            host.workers.submit(cell)
        try:
            await delivery.over.wait()
        except trio.Cancelled:
            invocation.cancel()
            raise
        finally:
            del self._deliveries[notice.watch]
        return cell.ended is None

    def cancel(self, cell: ActorCell, number: int) -> None:
        """Cancel the watch of this number, here and on the node. An `on_ended` that has begun is
        not interrupted.
        """
        if number in self._cancelled:
            return
        # Noted here before the node is asked, because a notice may be on its way from the node.
        self._cancelled.add(number)
        delivery = self._deliveries.get(number)
        if delivery is not None:
            delivery.recall()
        self._nursery.start_soon(self._unwatch, cell, number, name="unwatch")

    async def _unwatch(self, cell: ActorCell, number: int) -> None:
        try:
            await self.api.unwatch(cell.address.name, cell.address.epoch, number)
        except UnderstudyError as error:
            # The number stays among the cancelled ones: the node may still send a notice.
            logger.info(
                "could not tell the node that %s has cancelled a watch: %s",
                cell.address.name,
                error,
            )
        else:
            self._cancelled.discard(number)


class _NoticeDelivery:
    """One notice on its way through the mailbox of this process. Also the `ReplySink` of its
    invocation: a failure ends the actor.
    """

    def __init__(self, host: ActorHost) -> None:
        self._host = host
        self.invocation: Invocation | None = None
        self.over = trio.Event()

    def recall(self) -> None:
        """Drop the notice, if its `on_ended` has not begun: the watch was cancelled."""
        if self.invocation is not None and not self.invocation.begun:
            self.invocation.cancel()
            self.over.set()

    def value(self, invocation: Invocation, value: object) -> None:
        """`on_ended` has returned."""
        self.over.set()

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """`on_ended` has raised. Ends the actor, because no caller would learn of the error."""
        if not issubclass(type(error), SystemExit):
            # SystemExit ends the actor already, in the worker.
            self._host.crash(invocation.cell, error)
        self.over.set()

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The notice cannot be handled. Ends the actor, unless it has ended already."""
        if invocation.cell.ended is None:
            self._host.crash(invocation.cell, error)
        self.over.set()


@attrs.frozen
class ActorWatchingClient:
    """The watching methods of one actor; see `actors.actor.ActorWatching`."""

    _watching: WatchingClient
    _cell: ActorCell

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor, through the node. Raises like `Observer.watch`."""
        number, name, epoch = await self._watching.api.watch(*self._watched(handle))
        return Watch(number, name, epoch, partial(self._watching.cancel, self._cell, number))

    async def link(self, handle: object) -> None:
        """Link this actor with another, through the node."""
        await self._watching.api.link(*self._watched(handle))

    async def unlink(self, handle: object) -> None:
        """End the links of this actor with another, through the node."""
        if not isinstance(handle, Handle):
            raise TypeError(f"unlink takes a handle, not {short_repr(handle)}")
        own = self._cell.address
        await self._watching.api.unlink(own.name, own.epoch, handle.address)

    def _watched(self, handle: object) -> tuple[str, int, Address]:
        own = self._cell.address
        if not isinstance(handle, Handle):
            raise TypeError(f"watching and linking take a handle, not {short_repr(handle)}")
        if self._cell.ended is not None:
            raise RuntimeError(
                f"{own.name} has ended; it can no longer watch or be linked to other actors"
            )
        return own.name, own.epoch, handle.address
