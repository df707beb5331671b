"""The departure of a node from the view of its actors: in which order they stop, and until when.

A running supervisor restarts a child that ends, and counts the restart. So a supervisor ends before
its children, and stops those itself. What is supervised on another node stops first of all, because
it is started again there as soon as it has ended here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping

import trio

from actors.actor import NodeInterface
from actors.method import Address
from actors.supervision import ExitReason
from runtime.hosting.cell import ActorCell
from runtime.hosting.orderly_stop import STOPS_IN_A_ROW


class Departure:
    """Stops the actors of one host. `cells`: its actors, by name; `supervisors`: the supervisors'
    names, by the names of the supervised actors there. `stop(name, epoch, reason)` stops one.
    """

    def __init__(
        self,
        node: NodeInterface,
        cells: Mapping[str, ActorCell],
        supervisors: Mapping[str, str],
        stop: Callable[[str, int, ExitReason], Awaitable[object]],
    ) -> None:
        self._node = node
        self._cells = cells
        self._supervisors = supervisors
        self._stop = stop
        self.leaves_by = math.inf
        """The time, on trio's clock, at which a node that leaves stops waiting for its actors."""

    async def drain(self, seconds: float, in_all: float) -> None:
        """Stop the actors whose supervisors are on other nodes, which start them again on other
        nodes as soon as they end.

        Supervisors among them leave their children running for their next epochs. Then let accepted
        calls of the other actors finish for at most `seconds`, and stop these actors, the latest
        first. After `in_all` seconds all that are left are cancelled.
        """
        self.leaves_by = trio.current_time() + in_all
        left = ExitReason("node left", f"node {self._node.name} leaves")
        for moving in self._moving():
            async with trio.open_nursery() as stops:
                for number, address in enumerate(moving, 1):
                    stops.start_soon(self._stop, address.name, address.epoch, left)
                    if number % STOPS_IN_A_ROW == 0:
                        await trio.lowlevel.checkpoint()
        with trio.move_on_after(seconds):
            cells = [cell for cell in self._cells.values() if not cell.system]
            for number, cell in enumerate(cells, 1):
                if number % STOPS_IN_A_ROW == 0:
                    await trio.lowlevel.checkpoint()
                if not _ends_what_runs(cell):
                    await cell.wait_quiet()
        await self.stop_all(
            ExitReason(kind="shutdown", text=f"node {self._node.name} leaves"), left
        )

    def _moving(self) -> Iterator[list[Address]]:
        """Yield the actors whose supervisors are on other nodes, then the children of the
        supervisors among them, and so on: a supervisor here that would restart its children has
        ended before they are stopped.
        """
        gone = set(self._supervisors.values()) - set(self._cells)
        while gone:
            names = [
                name
                for name, supervisor in self._supervisors.items()
                if supervisor in gone and name in self._cells
            ]
            yield [self._cells[name].address for name in names]
            gone = set(names)

    async def stop_all(
        self, reason: ExitReason, moved: ExitReason, *, in_all: float = math.inf
    ) -> None:
        """Stop all actors, the latest first; actors that are supervised here by stopping the top of
        their tree.

        `moved`: the exit reason of actors that are supervised on other nodes: it must be no failure
        of theirs, because their supervisors count those. After `in_all` seconds, or at the end of
        an earlier such time, all that are left are cancelled.
        """
        # The stop of an actor is shielded, and the stops follow each other. Without this bound, a
        # slow `on_stop` or a store that does not answer would cost its time for each actor.
        self.leaves_by = min(self.leaves_by, trio.current_time() + in_all)
        cells = [cell for cell in reversed(list(self._cells.values())) if not cell.system]
        for number, cell in enumerate(cells, 1):
            if number % STOPS_IN_A_ROW == 0:
                # The stop of an actor that has nothing to do waits for nothing. What starts or ends
                # in the meantime is no more than what does during a stop that waits.
                await trio.lowlevel.checkpoint()
            top = self._top_of(cell)
            for one in (top, cell) if top is not cell else (cell,):
                # It was starting when the node began to leave: its supervisor on another node
                # starts it again.
                supervisor = self._supervisors.get(one.address.name)
                elsewhere = supervisor is not None and supervisor not in self._cells
                await self._stop(
                    one.address.name, one.address.epoch, moved if elsewhere else reason
                )

    def _top_of(self, cell: ActorCell) -> ActorCell:
        """Return the highest supervisor above the actor that is reached without leaving this node;
        the actor itself if it has none here.
        """
        # `seen` ends the loop if names that were given again form a circle.
        seen = {cell.address.name}
        while (
            (name := self._supervisors.get(cell.address.name)) is not None
            and name in self._cells
            and name not in seen
        ):
            seen.add(name)
            cell = self._cells[name]
        return cell


def _ends_what_runs(cell: ActorCell) -> bool:
    """Return True for a supervisor with nothing under way but streams: its `on_stop` ends them.
    Those of a pool to its users last as long as the pool.
    """
    return (
        type(cell.instance).supervises is True
        and not cell.mailbox
        and all(invocation.definition.stream for invocation in cell.running)
    )
