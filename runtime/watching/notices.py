"""Notices: each reaches its actor as an invocation in the mailbox, in order; for a link, as a
stop.
"""

from __future__ import annotations

import inspect

import attrs
import trio

from actors.actor import Ended
from actors.errors import CallError
from actors.identifiers import ActorId
from actors.method import MethodDefinition
from actors.supervision import ExitReason
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.host import ActorHost
from runtime.user_errors import guarded
from runtime.watching.tables import WatchEntry


class Notices:
    """The notices that the actors of one host have not handled yet, by the number of their watch.
    Also the `ReplySink` of their invocations: no caller waits for an outcome; a failure ends the
    actor.
    """

    def __init__(self, host: ActorHost, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._queued: dict[int, Invocation] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def deliver(self, one: WatchEntry, notice: Ended) -> None:
        """Deliver a notice to the watching actor, or end the linked actor. An actor that has ended
        itself gets no notice.
        """
        cell = live(self._host, one.watcher) if one.watcher is not None else None
        if cell is None or cell.ended is not None:
            return
        if one.is_link and not guarded(
            lambda: bool(cell.instance.handles_exits), lambda failure: False
        ):
            if notice.reason.is_passed_on:
                self._end(cell, notice)
            return
        on_ended = type(cell.instance).on_ended
        definition = MethodDefinition(
            name="on_ended", function=on_ended, in_thread=not inspect.iscoroutinefunction(on_ended)
        )
        invocation = Invocation(
            cell, definition, (notice,), {}, self, None, one.number, float("inf")
        )
        invocation.context = one.context
        # A watch leaves the table with its notice, so there is no second one.
        assert one.number not in self._queued, "each watch gives one notice"
        self._queued[one.number] = invocation
        # Regardless of the mailbox's limit: the actor has asked for each notice.
        cell.append(invocation)
        if not cell.busy and cell.started and not cell.paused:
            cell.busy = True
            self._host.workers.submit(cell)

    def recall(self, number: int) -> None:
        """Drop the notice of a cancelled watch. One whose `on_ended` has begun is not
        interrupted.
        """
        invocation = self._queued.pop(number, None)
        if invocation is not None and not invocation.begun:
            invocation.cancel()

    def value(self, invocation: Invocation, value: object) -> None:
        """`on_ended` has returned; its value is dropped."""
        self._queued.pop(invocation.number, None)

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """`on_ended` has raised. Ends the actor, because no caller would learn of the error."""
        self._queued.pop(invocation.number, None)
        if not issubclass(type(error), SystemExit):
            # SystemExit ends the actor already, in the worker.
            self._host.crash(invocation.cell, error)

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The notice cannot be handled, for example because its filters cannot run. Ends the actor,
        unless it has ended already.
        """
        self._queued.pop(invocation.number, None)
        if invocation.cell.ended is None:
            self._host.crash(invocation.cell, error)

    def _end(self, cell: ActorCell, notice: Ended) -> None:
        reason = notice.reason
        why = attrs.evolve(
            reason,
            text=f"linked to {notice.name} on {notice.node}, which ended: "
            f"{reason.text or reason.kind}",
        )
        # An actor that has not started yet has no task that could be stopped in order.
        if cell.started:
            self._nursery.start_soon(self._stop, cell, why, name=f"end of {cell.address.name}")
        else:
            self._host.end_at_once(cell, why)

    async def _stop(self, cell: ActorCell, reason: ExitReason) -> None:
        await self._host.stop(cell.address.name, cell.address.epoch, reason)


def live(host: ActorHost, actor: ActorId) -> ActorCell | None:
    """Return the actor's cell if this epoch is here and has not ended; one that is being stopped
    has not. None otherwise.
    """
    cell = host.cells.get(actor[0])
    return (
        cell
        if cell is not None and not cell.system and actor[1] in (0, cell.address.epoch)
        else None
    )
