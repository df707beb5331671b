"""Who waits for a call that is made in a task: the method that runs in it, or the start of an actor, and those who wait for that.

A start is a turn like a method's: its actor takes no call before `on_start` has returned, and `on_start` may await calls. One that comes
back to the actor would wait for a start that waits for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b

import attrs
import trio

from actors.method import Address
from runtime.environment import Environment
from runtime.hosting.cell import Job
from runtime.hosting.chains import Chain, Link


def start_mark(address: Address) -> int:
    """The mark of the start of this epoch of an actor. It is even and those of methods are odd, and the same in a process of its own."""
    return int.from_bytes(blake2b(f"{address.name}\t{address.epoch}".encode(), digest_size=6).digest(), "big") & ~1


class StartTurn:
    """The constructor and `on_start` of one actor, running. `around()`: who waits for it."""

    __slots__ = ("_address", "_around", "_waits_in", "tasks")

    def __init__(self, address: Address, around: Callable[[], Chain | None]) -> None:
        self._address = address
        self._around = around
        self._waits_in: Chain | None = None
        self.tasks: list[trio.lowlevel.Task] = []
        """Others that it waits for."""

    def chain_of_calls(self) -> Chain:
        """The chain of the calls that it awaits."""
        if self._waits_in is None:
            around = self._around()
            before = around.links if around is not None else ()
            self._waits_in = Chain.of((*before, Link(self._address.name, "on_start", start_mark(self._address))))
        return self._waits_in


@attrs.frozen(eq=False)
class _Part:
    """That a task is in a start. `nurseries`: how many it had open when that began; `outer`: the start that this one is within."""

    turn: StartTurn
    nurseries: int
    outer: _Part | None

    def holds(self, task: trio.lowlevel.Task, through: trio.Nursery | None) -> bool:
        """True if what runs in the task itself, or in this nursery of it, is part of the start. A nursery that was open before belongs to
        what starts the actor.
        """
        return through is None or through in task.child_nurseries[self.nurseries :]


class Turns:
    """The turns of one node, by the tasks that they run in. `running`: the methods."""

    def __init__(self, running: Mapping[trio.lowlevel.Task, Job], environment: Environment) -> None:
        self._running = running
        self._environment = environment
        self.starts: dict[trio.lowlevel.Task, _Part] = {}
        """The innermost start that each task is in."""

    @contextmanager
    def start(self, address: Address, before: Chain | None) -> Iterator[StartTurn]:
        """Within the block, the running task starts the actor of this address. `before`: who waits for that, if it is known elsewhere."""
        task = trio.lowlevel.current_task()
        outer = self.starts.get(task)
        around = partial(self._waiting, task, outer, None) if before is None else lambda: before
        turn = StartTurn(address, around)
        self.starts[task] = _Part(turn, len(task.child_nurseries), outer)
        try:
            yield turn
        finally:
            for other in turn.tasks:
                self.starts.pop(other, None)
            if outer is None:
                del self.starts[task]
            else:
                self.starts[task] = outer

    def take_part(self, turn: StartTurn) -> None:
        """The running task, one of the actor's own, is awaited by that start until it is over."""
        task = trio.lowlevel.current_task()
        turn.tasks.append(task)
        self.starts[task] = _Part(turn, len(task.child_nurseries), None)

    def chain(self, task: trio.lowlevel.Task) -> Chain | None:
        """Who waits for a call that is made in `task`: what runs in it, or has opened the nursery that it is in, and those who wait for
        that. None if nobody does; what is made in a task of an actor's own nursery is awaited by no method.
        """
        return self._waiting(task, self.starts.get(task), None)

    def within_start(self, task: trio.lowlevel.Task) -> bool | None:
        """True for a task that is part of a start, False for one that is part of a method; None for any other."""
        through: trio.Nursery | None = None
        inside: trio.lowlevel.Task | None = task
        while inside is not None:
            part = self.starts.get(inside)
            while part is not None:
                if part.holds(inside, through):
                    return True
                part = part.outer
            if inside in self._running:
                return False
            through = inside.parent_nursery
            inside = through.parent_task if through is not None else None
        return None

    def _waiting(self, inside: trio.lowlevel.Task, part: _Part | None, through: trio.Nursery | None) -> Chain | None:
        """Like `chain`, from this part of a task on outwards; `through`: the nursery of the task by which the call is in it."""
        while True:
            while part is not None:
                if part.holds(inside, through):
                    return part.turn.chain_of_calls()
                part = part.outer
            job = self._running.get(inside)
            if job is not None:
                return job.chain_of_calls(self._mark)
            through = inside.parent_nursery
            if through is None:
                return None
            inside = through.parent_task
            part = self.starts.get(inside)

    def _mark(self) -> int:
        return int.from_bytes(self._environment.token(6), "big") | 1
