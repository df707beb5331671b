"""Records what a node does while a timeline is requested: the turns of its actors, the calls that
it makes, starts and ends of actors, and pauses of its event loop.

A node that records has other functions in place of those that run turns and make calls; one that
does not record has nothing on their way. All times are seconds on the node's clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from actors.method import Address
from actors.supervision import ExitReason
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.chains import Chain

MOST_EVENTS = 30_000
"""Events of one recording; of those beyond, only the number is kept."""

MOST_ACTORS = 300
"""Actors of which one recording has events: the first that do something."""

MOST_NUMBERS = 20
"""Attempts of one call that are recorded."""

MOST_TEXT = 300
"""Characters of a name or a reason."""

PAUSE_SECONDS = 0.02
"""How late the loop may be before that is a pause."""

LOOK_SECONDS = 0.01
"""Seconds between two looks at whether the loop is late."""

MOST_OUTER_TASKS = 64
"""Tasks around a task that are looked at for the method that it belongs to."""


@attrs.define(eq=False)
class MadeCall:
    """A call that this node makes and that has not ended. `turn`: the number of the turn that makes
    it, 0 for a call from outside of all recorded turns. `numbers`: those of its attempts.
    """

    began: float
    actor: str
    turn: int
    address: Address
    method: str
    node: str
    numbers: list[int] = attrs.field(factory=list)


class TimelineRecorder:
    """Records the events of one timeline. `running`: the invocations of the node, by their tasks.
    `now` is the node's clock.
    """

    def __init__(
        self, now: Callable[[], float], running: Mapping[trio.lowlevel.Task, Invocation]
    ) -> None:
        self._now = now
        self._running = running
        self._events: list[dict[str, Any]] = []
        self._left_out = 0
        self._actors: dict[str, str] = {}
        self._other_actors = 0
        self._turns: dict[Invocation, tuple[int, float]] = {}
        self._numbered = 0
        self._over = False
        self._calls: dict[int, MadeCall] = {}
        self._earlier = {
            id(invocation): invocation
            for invocation in running.values()
            if not invocation.cell.system and invocation.begun
        }
        self.began = now()

    async def run(self, run: Callable[[Invocation, Any, Any], Awaitable[None]], *args: Any) -> None:
        """Run an invocation by `run(invocation, ...)`, and record its turn. One that does not come
        to its turn, because it is refused or put back, is not recorded.
        """
        invocation: Invocation = args[0]
        if invocation.cell.system:
            await run(*args)
            return
        self._numbered += 1
        number, began = self._numbered, self._now()
        self._turns[invocation] = number, began
        try:
            await run(*args)
        finally:
            del self._turns[invocation]
            if invocation.begun:
                self._turn(invocation, number, began, self._now())

    def _turn(self, invocation: Invocation, number: int, began: float, ended: float | None) -> None:
        address = invocation.cell.address
        peer = getattr(invocation.link, "peer", None)
        self._add(
            address.name,
            address.class_path,
            {
                "kind": "turn",
                "began": began,
                "ended": ended,
                "method": invocation.definition.name[:MOST_TEXT],
                "turn": number,
                "epoch": address.epoch,
                "waited": max(0.0, began - invocation.queued_at) if invocation.queued_at else 0.0,
                "attempt": invocation.attempt,
                # A call of this node has its own pending call in the place of the link.
                "from": [peer.name, peer.incarnation] if peer is not None else None,
                "number": invocation.number
                if peer is not None
                else getattr(invocation.link, "number", 0),
            },
        )

    def begin_call(
        self, address: Address, method: str, kwargs: Mapping[str, object]
    ) -> MadeCall | None:
        """Note a call that the running task makes; None for the runtime's own. `kwargs`: its
        keyword arguments, as the dict that belongs to this call alone.
        """
        if address.name[:1] == "@":
            return None
        actor, turn = self._maker(trio.lowlevel.current_task())
        made = MadeCall(self._now(), actor, turn, address, method, address.node)
        # By the dict, because an attempt may leave in another task: that of a queue of calls.
        self._calls[id(kwargs)] = made
        return made

    def posted(
        self,
        number: int,
        address: Address,
        method: str,
        kwargs: Mapping[str, object],
        chain: Chain | None,
    ) -> None:
        """Note an attempt that has left: of a call that a task waits for, or of one that no task
        waits for, such as a stream. `chain`: the methods that wait for it.
        """
        if address.name[:1] == "@":
            return
        made = self._calls.get(id(kwargs))
        if made is not None:
            made.node = address.node
            if len(made.numbers) < MOST_NUMBERS:
                made.numbers.append(number)
            return
        actor = chain.links[-1].actor if chain is not None else ""
        made = MadeCall(self._now(), actor, 0, address, method, address.node, [number])
        self._call("post", made, made.began, "")

    def end_call(self, made: MadeCall, kwargs: Mapping[str, object], outcome: str) -> None:
        """Note that a call has ended: `outcome` is "returned", "raised TYPE", or the name of the
        error's class.
        """
        self._calls.pop(id(kwargs), None)
        self._call("call", made, self._now(), outcome)

    def _call(self, kind: str, made: MadeCall, ended: float | None, outcome: str) -> None:
        self._add(
            made.actor,
            "",
            {
                "kind": kind,
                "began": made.began,
                "ended": ended,
                "turn": made.turn,
                "to": made.address.name[:MOST_TEXT],
                "method": made.method[:MOST_TEXT],
                "node": made.node,
                "numbers": made.numbers,
                "outcome": outcome,
            },
        )

    def started(self, cell: ActorCell, began: float, supervisor: str) -> None:
        """Note that an actor's constructor and `on_start` have returned. `supervisor`: its name, ""
        for none.
        """
        address = cell.address
        self._add(
            address.name,
            address.class_path,
            {
                "kind": "start",
                "began": began,
                "ended": self._now(),
                "epoch": address.epoch,
                "supervisor": supervisor[:MOST_TEXT],
            },
        )

    def of(self, cell: ActorCell) -> None:
        """Return None: actors have no part of this extension."""

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: the end is recorded when the actor has ended."""

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """Record the end of an actor."""
        last = self._events[-1] if self._events else None
        event = {
            "kind": "end",
            "began": self._now(),
            "epoch": address.epoch,
            "reason": reason.kind,
            "text": reason.text[:MOST_TEXT],
        }
        if last is not None and (last["kind"], last["actor"], last.get("epoch")) == (
            "end",
            address.name[:MOST_TEXT],
            address.epoch,
        ):
            # The same end, reported twice.
            return
        self._add(address.name, address.class_path, event)

    async def watch_loop(self) -> None:
        """Record the pauses of the event loop, until cancelled."""
        while True:
            due = self._now() + LOOK_SECONDS
            await trio.sleep_until(due)
            late = self._now() - due
            if late > PAUSE_SECONDS and not self._over:
                self._keep({"kind": "pause", "actor": "", "began": due, "ended": due + late})

    def finish(self) -> dict[str, Any]:
        """Return everything as plain data. What has not ended yet has no `ended`; turns that began
        before the recording begin with it.
        """
        ended = self._now()
        running = {id(invocation) for invocation in self._running.values()}
        for key, invocation in self._earlier.items():
            if key in running and invocation not in self._turns:
                self._numbered += 1
                self._turn(invocation, self._numbered, self.began, None)
        for invocation, (number, began) in self._turns.items():
            if invocation.begun:
                self._turn(invocation, number, began, None)
        for made in self._calls.values():
            self._call("call", made, None, "")
        # What still runs has its wrapper until it ends: it changes nothing that was given away.
        self._over = True
        assert len(self._events) <= MOST_EVENTS
        assert len(self._actors) <= MOST_ACTORS
        return {
            "began": self.began,
            "ended": ended,
            "events": self._events,
            "classes": self._actors,
            "left_out": self._left_out,
            "left_out_of_other_actors": self._other_actors,
        }

    def _maker(self, task: trio.lowlevel.Task) -> tuple[str, int]:
        """The actor whose method makes a call in `task`, and the number of its turn: that of the
        task, or of the task whose nursery it is in.
        """
        inside: trio.lowlevel.Task | None = task
        for _ in range(MOST_OUTER_TASKS):
            if inside is None:
                break
            invocation = self._running.get(inside)
            if invocation is not None:
                return invocation.cell.address.name, self._turns.get(invocation, (0, 0.0))[0]
            nursery = inside.parent_nursery
            inside = nursery.parent_task if nursery is not None else None
        return "", 0

    def _add(self, actor: str, class_path: str, event: dict[str, Any]) -> None:
        actor = actor[:MOST_TEXT]
        if self._over:
            return
        if actor and not self._actors.get(actor):
            if actor not in self._actors and len(self._actors) >= MOST_ACTORS:
                self._other_actors += 1
                return
            self._actors[actor] = class_path[:MOST_TEXT]
        event["actor"] = actor
        self._keep(event)

    def _keep(self, event: dict[str, Any]) -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)
        else:
            self._left_out += 1
