"""How a notice reaches an actor: as a job in its mailbox, in its order, and as a stop where a link says so."""

from __future__ import annotations

import inspect

import attrs
import trio

from actors.errors import CallError
from actors.method import MethodDefinition
from actors.supervision import ExitReason
from actors.watching import Ended
from runtime.hosting.cell import Cell, Job
from runtime.hosting.host import Host
from runtime.user_errors import guarded
from runtime.watching.tables import Actor, Standing


class Notices:
    """Those under way to the actors of one host. Also the `Sink` of their jobs: nobody waits for an outcome; a failure ends the actor."""

    def __init__(self, host: Host, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._queued: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def deliver(self, one: Standing, notice: Ended) -> None:
        """Tell the actor that watches, or end what is linked. One that has ended itself is told nothing."""
        cell = live(self._host, one.watcher) if one.watcher is not None else None
        if cell is None or cell.ended is not None:
            return
        if one.is_link and not guarded(lambda: bool(cell.instance.handles_exits), lambda failure: False):
            if notice.reason.is_passed_on:
                self._end(cell, notice)
            return
        on_ended = type(cell.instance).on_ended
        definition = MethodDefinition(name="on_ended", function=on_ended, in_thread=not inspect.iscoroutinefunction(on_ended))
        job = Job(cell, definition, (notice,), {}, self, None, one.number, float("inf"))
        self._queued[one.number] = job
        # Whatever the mailbox's limit is: the actor has asked for each of them.
        cell.append(job)
        if not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            self._host.workers.submit(cell)

    def recall(self, number: int) -> None:
        """Nobody wants that notice any more. One that is being told already is told to the end."""
        job = self._queued.pop(number, None)
        if job is not None and not job.begun:
            job.cancel()

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        self._queued.pop(job.number, None)

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`: nobody else would learn of it."""
        self._queued.pop(job.number, None)
        if not issubclass(type(error), SystemExit):
            # That one ends the actor by itself.
            self._host.crash(job.cell, error)

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        self._queued.pop(job.number, None)
        if job.cell.ended is None:
            self._host.crash(job.cell, error)

    def _end(self, cell: Cell, notice: Ended) -> None:
        reason = notice.reason
        why = attrs.evolve(reason, text=f"linked to {notice.name} on {notice.node}, which ended: {reason.text or reason.kind}")
        if cell.started:
            self._nursery.start_soon(self._stop, cell, why, name=f"end of {cell.address.name}")
        else:
            self._host.end_at_once(cell, why)

    async def _stop(self, cell: Cell, reason: ExitReason) -> None:
        await self._host.stop(cell.address.name, cell.address.epoch, reason)


def live(host: Host, actor: Actor) -> Cell | None:
    """The actor, if this epoch of it is here and has not ended; one that is being stopped has not."""
    cell = host.cells.get(actor[0])
    return cell if cell is not None and not cell.system and actor[1] in (0, cell.address.epoch) else None
