"""Polls: tasks that call an actor of another node one call after the other, and poll for the
answers, while some of them are interrupted or cancelled at any moment.

That ends the call of the task which it meets, and no other. Only seeds whose connections spin have
polls. They are drawn apart from everything else, so the runs of other seeds are the same as without
them.
"""

from __future__ import annotations

import random

import attrs
import trio

from actors import Actor, method
from actors.errors import UnderstudyError
from runtime.node import Node
from runtime.simulation.cluster import has_polling
from runtime.simulation.interrupts import interrupted_after
from runtime.simulation.load import Load
from runtime.simulation.name_races import cancelled_after

PAUSE = 2.5
"""Mean virtual seconds between the bursts of calls that a node makes."""

TASKS = 5
"""Tasks of one node in a burst, at most."""

CALLS = 4
"""Calls that each of them makes, one after the other."""

INTERRUPTED = 0.6
CANCELLED = 0.1
"""The shares of the calls that are interrupted and cancelled."""

LINES = (20, 60, 150)
"""An interrupt comes within so many lines of the runtime that the caller executes, one of these."""

SPINNING = 0.1
"""The share of the interrupts that may come while the caller spins as well. A spin executes so many
lines that those which count them seldom meet anything else.
"""

STEPS = (4, 12, 40)
"""A cancellation comes within so many steps of tasks, one of these."""

CALL_SECONDS = 5.0
"""Virtual seconds that a call is given. Without faults each has its answer far sooner."""

LATE = 0.2
"""Virtual seconds by which a call may exceed its time."""


class Echo(Actor):
    """Answers with what it was asked."""

    @method(concurrent=True)
    async def echo(self, number: int) -> int:
        """Return the number."""
        return number


@attrs.define(eq=False)
class Polls(Load):
    """How the calls ended, and what was wrong with it."""

    title = "polls"
    check = "an interrupt ends its own call"

    answered: int = 0
    interrupted: int = 0
    cancelled: int = 0
    _numbers: int = 0
    _echoes: dict[str, str] = attrs.field(factory=dict)
    """By node: the name of its actor."""

    @classmethod
    def is_drawn(cls, seed: int) -> bool:
        """Return True if tasks poll in the run of a seed."""
        return has_polling(seed)

    def summary(self) -> str:
        """Return how the calls ended."""
        return (
            f"{self.answered} calls were answered, {self.interrupted} were interrupted, "
            f"{self.cancelled} cancelled"
        )

    async def run(self, node: Node, draw: random.Random) -> None:
        """Make bursts of calls from one node until it is `over`."""
        name = f"echo {node.name} {node.incarnation} {self._next()}"
        try:
            await node.options(name=name, on=node.name).spawn(Echo)
        except UnderstudyError:
            return
        self._echoes[node.name] = name
        handles: dict[str, Echo] = {}
        while True:
            await trio.sleep(draw.expovariate(1 / PAUSE))
            if self.over:
                return
            others = [name for host, name in self._echoes.items() if host != node.name]
            if others:
                chosen = draw.choice(others)
                try:
                    with trio.move_on_after(CALL_SECONDS):
                        if chosen not in handles:
                            handles[chosen] = await node.lookup(chosen, Echo)
                except UnderstudyError:
                    continue
                if chosen in handles:
                    await self._burst(node, handles[chosen], draw)

    async def _burst(self, node: Node, echo: Echo, draw: random.Random) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(draw.randrange(TASKS) + 1):
                nursery.start_soon(self._call, node, echo, random.Random(draw.random()))

    async def _call(self, node: Node, echo: Echo, draw: random.Random) -> None:
        for _ in range(draw.randrange(CALLS) + 1):
            chance, number = draw.random(), self._next()
            lines = draw.randrange(draw.choice(LINES)) + 1 if chance < INTERRUPTED else 0
            steps = (
                draw.randrange(draw.choice(STEPS)) + 1
                if INTERRUPTED < chance < INTERRUPTED + CANCELLED
                else 0
            )
            spinning = draw.random() < SPINNING
            began, answer, error = self.cluster.now(), None, None
            scope: trio.CancelScope | None = None
            try:
                with (
                    cancelled_after(steps) as scope,
                    interrupted_after(lines, spinning=spinning),
                ):
                    answer = await echo.echo.options(timeout=CALL_SECONDS)(number)
            except KeyboardInterrupt:
                self.interrupted += 1
            except UnderstudyError as caught:
                error = caught
            self.cancelled += scope is not None and scope.cancelled_caught
            self._look(node, number, answer, error, began)

    def _look(
        self,
        node: Node,
        number: int,
        answer: int | None,
        error: UnderstudyError | None,
        began: float,
    ) -> None:
        """Check how a call has ended."""
        took = self.cluster.now() - began - self.cluster.stopped(node.name, began)
        text = ""
        if answer not in (None, number):
            text = f"was answered {answer}"
        elif error is not None and self.oracle.fair:
            text = f"ended with {type(error).__name__}: {error}"
        elif took > CALL_SECONDS + LATE:
            text = f"took {took:.3f} s"
        self.answered += answer is not None
        # What leaves in the end takes its calls with it.
        if text and not self.over:
            self.violated(node.name, f"call {number} {text}")

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers
