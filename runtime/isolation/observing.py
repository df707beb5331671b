"""What an isolated actor watches, is linked to and has joined: its node knows, and is asked. Notices come back into its own mailbox."""

from __future__ import annotations

import inspect
import logging
import math
from functools import partial
from typing import Any

import attrs
import trio

from actors.errors import CallError, UnderstudyError
from actors.groups import check_group_name
from actors.handle import Handle
from actors.method import MethodDefinition
from actors.watching import Ended, Watch
from runtime.hosting.cell import Cell, Job
from runtime.hosting.host import Host
from runtime.isolation.surroundings import NodeNextDoor

logger = logging.getLogger("understudy.watching")


class WatchingNextDoor:
    """The watches and links of the actor in this process; see `runtime.hosting.extensions.Extension`. `nursery`: the process's."""

    def __init__(self, next_door: NodeNextDoor, nursery: trio.Nursery) -> None:
        self.next_door = next_door
        self._nursery = nursery
        self._under_way: dict[int, _Told] = {}
        self._cancelled: set[int] = set()
        """Watches that the actor has let go of, until the node has said that nothing more comes of them."""

    def of(self, cell: Cell) -> WatchingSide:
        """See `Extension.of`."""
        return WatchingSide(self, cell)

    def ending(self, cell: Cell) -> None:
        """Nothing to do: the node does it."""

    def ended(self, address: object, reason: object) -> None:
        """Nothing to do: the node does it."""

    async def tell(self, host: Host, cell: Cell, notice: Ended) -> bool:
        """Let the actor have a notice in its turn, and wait for that. False if it has ended; an exception in `on_ended` ends it."""
        if cell.ended is not None:
            return False
        if notice.watch in self._cancelled:
            return True
        on_ended = type(cell.instance).on_ended
        definition = MethodDefinition(name="on_ended", function=on_ended, in_thread=not inspect.iscoroutinefunction(on_ended))
        told = self._under_way[notice.watch] = _Told(host)
        told.job = job = Job(cell, definition, (notice,), {}, told, None, notice.watch, math.inf)
        # Whatever the mailbox's limit is: the node has its turns, and the actor has asked for each of them.
        cell.append(job)
        if not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            host.workers.submit(cell)
        try:
            await told.over.wait()
        except trio.Cancelled:
            job.cancel()
            raise
        finally:
            del self._under_way[notice.watch]
        return cell.ended is None

    def cancel(self, cell: Cell, number: int) -> None:
        """See `Watch.cancel`. One that is being told already is told to the end."""
        if number in self._cancelled:
            return
        self._cancelled.add(number)
        told = self._under_way.get(number)
        if told is not None:
            told.recall()
        self._nursery.start_soon(self._unwatch, cell, number, name="unwatch")

    async def _unwatch(self, cell: Cell, number: int) -> None:
        try:
            await self.next_door.ask("unwatch_for", cell.address.name, cell.address.epoch, number)
        except UnderstudyError as error:
            logger.info("the node was not told that %s watches no more: %s", cell.address.name, error)
        else:
            self._cancelled.discard(number)


class _Told:
    """One notice on its way through the mailbox of this process. Also the `Sink` of its job: a failure ends the actor."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.job: Job | None = None
        self.over = trio.Event()

    def recall(self) -> None:
        """Nobody wants it any more; if it has not begun, it does not."""
        if self.job is not None and not self.job.begun:
            self.job.cancel()
            self.over.set()

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        self.over.set()

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`: nobody else would learn of it."""
        if not issubclass(type(error), SystemExit):
            # That one ends the actor by itself.
            self._host.crash(job.cell, error)
        self.over.set()

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        if job.cell.ended is None:
            self._host.crash(job.cell, error)
        self.over.set()


@attrs.frozen
class WatchingSide:
    """What the actor sees; see `actors.watching.ActorWatching`."""

    _watching: WatchingNextDoor
    _cell: Cell

    async def watch(self, handle: object) -> Watch:
        """See `Observing.watch`."""
        number, name, epoch = await self._ask("watch_for", handle)
        return Watch(number, name, epoch, partial(self._watching.cancel, self._cell, number))

    async def link(self, handle: object) -> None:
        """See `Observing.link`."""
        await self._ask("link_for", handle)

    async def unlink(self, handle: object) -> None:
        """See `Observing.unlink`."""
        if not isinstance(handle, Handle):
            raise TypeError(f"unlink takes a handle, not {handle!r}")
        await self._watching.next_door.ask("unlink_for", self._cell.address.name, self._cell.address.epoch, handle.address)

    async def _ask(self, question: str, handle: object) -> Any:
        if not isinstance(handle, Handle):
            raise TypeError(f"watching and linking take a handle, not {handle!r}")
        if self._cell.ended is not None:
            raise RuntimeError(f"{self._cell.address.name} has ended; it can watch nothing and be linked to nothing any more")
        return await self._watching.next_door.ask(question, self._cell.address.name, self._cell.address.epoch, handle.address)


class JoiningNextDoor:
    """The memberships of the actor in this process; see `runtime.hosting.extensions.Extension`."""

    def __init__(self, next_door: NodeNextDoor) -> None:
        self._next_door = next_door

    def of(self, cell: Cell) -> JoiningSide:
        """See `Extension.of`."""
        return JoiningSide(self._next_door, cell)

    def ending(self, cell: Cell) -> None:
        """Nothing to do: the node does it."""

    def ended(self, address: object, reason: object) -> None:
        """Nothing to do: the node does it."""


@attrs.frozen
class JoiningSide:
    """What the actor sees; see `actors.watching.ActorGroups`."""

    _next_door: NodeNextDoor
    _cell: Cell

    async def join(self, group: str) -> None:
        """See `Observing.join`."""
        check_group_name(group)
        if self._cell.ended is not None:
            raise RuntimeError(f"{self._cell.address.name} has ended; it can join no group any more")
        await self._next_door.ask("join_for", self._cell.address.name, self._cell.address.epoch, group)

    async def leave(self, group: str) -> bool:
        """See `Observing.leave`."""
        return bool(await self._next_door.ask("leave_for", self._cell.address.name, self._cell.address.epoch, group))
