"""Find the call chain of a task: the method or the start that runs in it, and those that wait for
that.

A start is a turn like a method's: its actor takes no call before `on_start` has returned, and
`on_start` may await calls. A call that comes back to the actor would wait for a start that waits
for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextvars import ContextVar, Token
from hashlib import blake2b
from weakref import ref

import attrs
import trio

from actors.method import Address
from runtime.environment import Environment
from runtime.hosting.cell import Invocation
from runtime.hosting.chains import Chain, ChainLink

CURRENT_START: ContextVar[CurrentStart] = ContextVar("CURRENT_START")
"""Of the running task, or of the constructor or hook that runs in a thread."""


def start_mark(address: Address) -> int:
    """Return the mark of the start of this epoch of an actor. It is even, those of methods are odd.
    It is a hash of name and epoch, so it is the same in the process of an isolated actor.
    """
    return (
        int.from_bytes(
            blake2b(f"{address.name}\t{address.epoch}".encode(), digest_size=6).digest(), "big"
        )
        & ~1
    )


class StartTurn:
    """The start of one actor, constructor and `on_start`, in the task that enters its block: a
    context manager, and no generator, which costs twice as much. `before`: the chain that waits
    for it, where that is known.
    """

    __slots__ = (
        "_address",
        "_before",
        "_current",
        "_depth",
        "_outer",
        "_turns",
        "_waits_in",
        "_within",
        "enclosing",
        "mark",
        "task",
        "tasks",
    )

    def __init__(self, turns: ActorTurns, address: Address, before: Chain | None) -> None:
        self._turns = turns
        self._address = address
        self._before = before
        self.task = trio.lowlevel.current_task()
        self._outer = turns.starts.get(self.task)
        self._waits_in: Chain | None = None
        self._depth = -1
        self._current = CurrentStart(self)
        self._within: Token[CurrentStart]
        around = CURRENT_START.get(None)
        self.enclosing = None if around is None else around.turn
        """The start in whose code this one begins, as the context says."""
        self.mark = start_mark(address)
        self.tasks: list[trio.lowlevel.Task] = []
        """Other tasks that the start waits for."""

    def __enter__(self) -> StartTurn:
        task = self.task
        self._turns.starts[task] = _Part(self, len(task.child_nurseries), self._outer)
        self._within = CURRENT_START.set(self._current)
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Tasks that have begun meanwhile have it in their contexts for as long as they live.
        self._current.turn = None
        CURRENT_START.reset(self._within)
        starts = self._turns.starts
        # Tasks of the actor's own live on, and are part of no start from here on.
        for other in self.tasks:
            starts.pop(other, None)
        if self._outer is None:
            del starts[self.task]
        else:
            starts[self.task] = self._outer

    @property
    def actor(self) -> str:
        """The name of the actor that is being started."""
        return self._address.name

    @property
    def depth(self) -> int:
        """How many methods and other starts wait for this one, each for the next."""
        if self._depth < 0:
            self._depth = (
                self._before.length
                if self._before is not None
                else self._turns.depth_of(self.task, self._outer)
            )
        return self._depth

    def chain_of_calls(self) -> Chain:
        """Return the chain for calls that the start awaits."""
        if self._waits_in is None:
            around = self._before
            if around is None:
                around = self._turns.waiting(self.task, self._outer, None)
            before = around.links if around is not None else ()
            self._waits_in = Chain.of(
                (*before, ChainLink(self._address.name, "on_start", self.mark))
            )
        return self._waits_in


@attrs.frozen(eq=False)
class _Part:
    """Marks a task as part of a start. `nurseries`: how many nurseries the task had open when the
    start began. `outer`: the start around this one.
    """

    turn: StartTurn
    nurseries: int
    outer: _Part | None

    def holds(self, task: trio.lowlevel.Task, through: trio.Nursery | None) -> bool:
        """True if code in the task itself (`through` None), or in this nursery of it, is part of
        the start. A nursery that was open before the start belongs to the code that starts the
        actor.
        """
        return through is None or through in task.child_nurseries[self.nurseries :]


class CurrentStart:
    """The start that a context belongs to; None once that is over."""

    __slots__ = ("turn",)

    def __init__(self, turn: StartTurn) -> None:
        self.turn: StartTurn | None = turn


class ActorTurns:
    """The turns of one node, by task. `running`: the invocations, by the tasks they run in.
    `workers`: the tasks that may ever be among these.
    """

    def __init__(
        self,
        running: Mapping[trio.lowlevel.Task, Invocation],
        workers: Container[trio.lowlevel.Task],
        environment: Environment,
    ) -> None:
        self._running = running
        self._workers = workers
        self._environment = environment
        self._outside: Callable[[], trio.Nursery | None] = lambda: None
        """The nursery, as a weak reference, of the last task that was found to be below no worker.
        It stays below none: neither a nursery nor a task ever gets another parent.
        """
        self.starts: dict[trio.lowlevel.Task, _Part] = {}
        """The innermost start that each task is in. Each start removes its tasks at its end."""

    def start(self, address: Address, before: Chain | None) -> StartTurn:
        """Return a block in which the running task starts the actor of this address.

        `before`: the chain that waits for the start, where the caller knows it; else it is found
        from the task.
        """
        return StartTurn(self, address, before)

    def take_part(self, turn: StartTurn) -> None:
        """Mark the running task, one of the actor's own, as awaited by that start until the start
        is over.
        """
        task = trio.lowlevel.current_task()
        turn.tasks.append(task)
        self.starts[task] = _Part(turn, len(task.child_nurseries), None)

    def chain(self, task: trio.lowlevel.Task) -> Chain | None:
        """Return the chain for a call made in `task`; None if no method waits for it.

        Its last link is the turn that runs in the task or that opened the nursery around it. No
        method waits for a call made in a task of an actor's own nursery.
        """
        if not self.starts and task not in self._workers:
            # The tasks of a program make most of the calls, and one is mostly beside the last.
            nursery = task.parent_nursery
            if nursery is None or nursery is self._outside():
                return None
            if self._is_outside(task):
                self._outside = ref(nursery)
                return None
        return self.waiting(task, self.starts.get(task), None)

    def _is_outside(self, task: trio.lowlevel.Task) -> bool:
        """True if neither the task nor one that it belongs to is a worker's."""
        inside: trio.lowlevel.Task | None = task
        while inside is not None:
            if inside in self._workers:
                return False
            nursery = inside.parent_nursery
            inside = nursery.parent_task if nursery is not None else None
        return True

    def within_start(self, task: trio.lowlevel.Task) -> bool | None:
        """True for a task that is part of a start, False for one that is part of a method; None for
        any other.
        """
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

    def waiting(
        self, inside: trio.lowlevel.Task, part: _Part | None, through: trio.Nursery | None
    ) -> Chain | None:
        """Like `chain`, for the part of the task `inside` and outwards. `through`: the nursery of
        that task in which the call is made; None for the task itself.
        """
        found = self._innermost(inside, part, through)
        if found is None:
            return None
        if isinstance(found, StartTurn):
            return found.chain_of_calls()
        return found.chain_of_calls(self._mark)

    def innermost(self) -> StartTurn | Invocation | None:
        """Return the start or the invocation that the running task belongs to."""
        task = trio.lowlevel.current_task()
        return self._innermost(task, self.starts.get(task), None)

    def depth_of(self, task: trio.lowlevel.Task, part: _Part | None) -> int:
        """Return how many methods and starts wait for what `part` of this task does, each for the
        next.
        """
        found = self._innermost(task, part, None)
        return 0 if found is None else found.depth + 1

    def _innermost(
        self, inside: trio.lowlevel.Task, part: _Part | None, through: trio.Nursery | None
    ) -> StartTurn | Invocation | None:
        """Return the innermost turn that a part of the task `inside` belongs to. `through` as in
        `waiting`.
        """
        below = inside
        while True:
            while part is not None:
                if part.holds(inside, through):
                    return part.turn
                part = part.outer
            invocation = self._running.get(inside)
            if invocation is not None:
                return invocation
            through = inside.parent_nursery
            if through is None:
                # Below the first task of all there are the program's and those of the system. What
                # a constructor calls through `trio.from_thread` runs in one of these, in the
                # context of its thread, which waits for it.
                current = below.context.get(CURRENT_START)
                turn = None if current is None else current.turn
                while turn is not None and turn.task is below:
                    # One that this task has begun itself: it is among the parts above.
                    turn = turn.enclosing
                return turn
            below, inside = inside, through.parent_task
            part = self.starts.get(inside)

    def _mark(self) -> int:
        return int.from_bytes(self._environment.token(6), "big") | 1
