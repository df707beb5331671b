"""Name races: named actors that tasks on all nodes find, start, stop and take back at the same
moment.

Starts, searches and stops are cancelled between any two steps of tasks. A handle that
`get_or_spawn` has returned must answer a call, unless a stop was asked for that could still be on
its way when the search began, or came later. Only some seeds have name races. They are drawn apart
from everything else, so the runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import trio

from actors import Actor, method
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    CallError,
    UnderstudyError,
)
from runtime.node import Node
from runtime.simulation.load import Load

NAMES = 2
"""Names that all nodes choose from at a time. The actors of half of them take their time to start
and to stop.
"""

TURN_SECONDS = 2.0
"""Virtual seconds after which all nodes choose from other names."""

TURNS = 4
"""After so many turns the names are the first ones again. Every second time nothing is stopped: a
stop that is under way excuses a handle that does not answer.
"""

PAUSE = 0.8
"""Mean seconds between the races that a node begins."""

TASKS = 3
"""Tasks of one node in a race, at most."""

ACTS = 4
"""What each of them does, at most."""

CANCELLED = 0.6
"""The share of the starts, searches and stops that are cancelled."""

STEPS = (12, 40, 150)
"""A cancellation comes within so many steps of tasks, one of these."""

SLOW_SECONDS = 0.4
"""The most virtual seconds that a slow actor takes to start, and to stop."""

CALL_SECONDS = 5.0
"""Seconds that a call to an actor is given."""

ON_ITS_WAY = 2.0
"""Virtual seconds for which a stop that was given up may still arrive, without faults."""

ON_ITS_WAY_AT_MOST = 30.0
"""Likewise under faults, which delay messages."""


class Contended(Actor):
    """An actor whose start waits only for its name."""

    @method
    async def answer(self) -> int:
        """Return the epoch."""
        return self.epoch


class SlowContended(Contended):
    """One that takes its time to start and to stop."""

    async def on_start(self) -> None:
        """Wait for a drawn time."""
        await trio.sleep(NameRaces.current().slow_seconds())

    async def on_stop(self, reason: object) -> None:
        """Wait for a drawn time."""
        await trio.sleep(NameRaces.current().slow_seconds())


class _CancelAfter(trio.abc.Instrument):
    """Cancels `scope` after so many steps of tasks."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self._left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step, and cancel after the last one."""
        self._left -= 1
        if self._left == 0:
            # Also if the process was killed meanwhile, whose tasks take no step any more.
            trio.lowlevel.remove_instrument(self)
            self._scope.cancel()

    def withdraw(self) -> None:
        """Cancel nothing from now on."""
        if self._left > 0:
            self._left = 0
            trio.lowlevel.remove_instrument(self)


@contextmanager
def cancelled_after(steps: int) -> Iterator[trio.CancelScope]:
    """A scope that is cancelled after so many steps of tasks; 0: never."""
    with trio.CancelScope() as scope:
        if not steps:
            yield scope
            return
        instrument = _CancelAfter(scope, steps)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield scope
        finally:
            instrument.withdraw()


@attrs.define(eq=False)
class _Stop:
    """A stop that was asked for: of the actor that has the name when the request arrives. `ended`:
    its position in the order of all acts; 0 while it has not ended. `ended_at`: virtual seconds.
    """

    node: Node
    ended: int = 0
    ended_at: float = 0.0
    completed: bool = False


@attrs.define(eq=False)
class NameRaces(Load):
    """What nodes have found, started and stopped, and the handles that did not answer."""

    title = "name races"
    check = "what is found answers"

    answered: int = 0
    cancelled: int = 0
    """Starts, searches and stops."""
    _stops: dict[str, list[_Stop]] = attrs.field(factory=dict)
    """By name."""
    _order: int = 0
    _draw: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(f"{self.cluster.seed} slow starts of name races")

    def slow_seconds(self) -> float:
        """Return how long a start or stop takes."""
        return self._draw.random() * SLOW_SECONDS

    async def run(self, node: Node, draw: random.Random) -> None:
        """Begin races on one node until it is `over`."""
        generation = self.generation
        while True:
            await trio.sleep(draw.expovariate(1 / PAUSE))
            if self.over:
                return
            cycle, turn = divmod(int(self.cluster.now() / TURN_SECONDS), TURNS)
            acts = ("spawn", "get_or_spawn", "get_or_spawn", *(("stop",) if cycle % 2 else ()))
            number = draw.randrange(NAMES)
            name = f"contended-{generation}-{turn}-{number}"
            cls = SlowContended if number % 2 else Contended
            async with trio.open_nursery() as nursery:
                for _ in range(draw.randrange(TASKS) + 1):
                    own = random.Random(draw.random())
                    nursery.start_soon(self._take_part, node, own, name, cls, acts)

    def summary(self) -> str:
        """Return how many handles answered, and how many acts were cancelled."""
        return f"{self.answered} handles answered, {self.cancelled} acts were cancelled"

    async def _take_part(
        self,
        node: Node,
        draw: random.Random,
        name: str,
        cls: type[Contended],
        acts: tuple[str, ...],
    ) -> None:
        handle: Any = None
        for _ in range(draw.randrange(ACTS) + 1):
            act = draw.choice(acts)
            steps = draw.randrange(draw.choice(STEPS)) + 1 if draw.random() < CANCELLED else 0
            up = [member.name for member in node.members() if member.state == "up"]
            options = node.options(name=name, on=draw.choice([None, *up]))
            began = self._next()
            found: Any = None
            with cancelled_after(steps) as scope, suppress(UnderstudyError):
                if act == "stop":
                    if handle is not None:
                        await self._stop(node, handle)
                else:
                    found = await getattr(options, act)(cls)
            self.cancelled += scope.cancelled_caught
            if found is not None:
                handle = found
                await self._call(node, handle, act, began)

    async def _stop(self, node: Node, handle: Any) -> None:
        stop = _Stop(node)
        self._stops.setdefault(handle.name, []).append(stop)
        try:
            await node.stop(handle)
            stop.completed = True
        finally:
            stop.ended, stop.ended_at = self._next(), self.cluster.now()

    def _may_be_stopped(self, node: Node, name: str, began: int) -> bool:
        """Return True if a stop was asked for that may be carried out after a search that `node`
        began: it had not ended, or another node had given it up, so that it may be on its way.
        """
        soon = self.cluster.now() - (ON_ITS_WAY if self.oracle.fair else ON_ITS_WAY_AT_MOST)
        return any(
            not 0 < stop.ended < began
            or (not stop.completed and stop.node is not node and stop.ended_at > soon)
            for stop in self._stops.get(name, ())
        )

    async def _call(self, node: Node, handle: Any, act: str, began: int) -> None:
        address = handle.address
        places = [
            self.cluster.place(node.name, node.incarnation),
            self.cluster.place(address.node, address.incarnation),
        ]
        try:
            await handle.answer.options(timeout=CALL_SECONDS)()
        except CallError as error:
            about_actor = isinstance(error, ActorNotFoundError | ActorDiedError)
            if (
                not self.over
                and (self.oracle.fair or about_actor)
                and all(map(self.cluster.is_well, places))
                and not self._may_be_stopped(node, address.name, began)
            ):
                self.violated(
                    "",
                    f"{node.name} got a handle of {address.name} on {address.node}, epoch "
                    f"{address.epoch}, from {act}, and its call ended with "
                    f"{type(error).__name__}: {error}",
                )
        except UnderstudyError:
            # Its own node has left the cluster.
            return
        else:
            self.answered += 1

    def _next(self) -> int:
        self._order += 1
        return self._order
