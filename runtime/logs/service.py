"""The service `@logs` of every node: the latest lines of its log, and how its actors have ended
lately. `understudy logs` asks it; processes of isolated actors add their lines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from actors.actor import Actor
from actors.method import Address, method
from actors.supervision import ExitReason
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.cell import ActorCell
from runtime.logs.capture import LogCapture
from runtime.logs.ring import LogQuestion, cut, entry_of, fitting
from runtime.service_calls import LONG_POLL_SECONDS

LOG_SERVICE = "@logs"

ENDS_KEPT = 100
"""Ends of actors that a node remembers, the latest."""

ENDS_TOLD = 50
"""Of these, in one answer."""

END_TEXT = 2000
END_TRACEBACK = 8000
"""Characters of the reason and of the traceback that are kept of an end."""

MOST_ADDED = 1000
"""Lines that a process may add at once."""


class ActorEnds:
    """The latest ends of actors of a node that did not end in order; implements
    `runtime.hosting.host.HostExtension`. `draining`: whether the node stops its actors.
    """

    def __init__(self, environment: Environment, draining: Callable[[], bool]) -> None:
        self._environment = environment
        self._draining = draining
        self._ends: deque[dict[str, Any]] = deque(maxlen=ENDS_KEPT)
        self.count = 0
        """How many there have been."""
        self.on_end: Callable[[], None] = lambda: None
        """Called after each."""

    def of(self, cell: ActorCell) -> None:
        """Return None: actors have no part of this extension."""

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: an end is recorded when the actor has ended."""

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """Record the end of an actor if it was no normal one, or that of a supervisor."""
        # Of a node that goes on, only a supervisor that gives up ends with "shutdown". All below it
        # ends with it, so that end explains the others, though it counts as a normal one.
        gave_up = reason.kind == "shutdown" and not self._draining()
        if not reason.is_passed_on and not gave_up:
            return
        known = self._ends[-1] if self._ends else None
        if known is not None and (known["name"], known["epoch"]) == (address.name, address.epoch):
            # The same end, reported twice.
            return
        self.count += 1
        self._ends.append(
            {
                "time": self._environment.wall_time(),
                "name": address.name,
                "class": address.class_path,
                "node": address.node,
                "incarnation": address.incarnation,
                "epoch": address.epoch,
                "kind": reason.kind,
                "reason": cut(reason.text, END_TEXT),
                "traceback": reason.traceback[-END_TRACEBACK:],
            }
        )
        self.on_end()

    def latest(self, actor: str = "") -> list[dict[str, Any]]:
        """The latest ends, of one actor if it is named, the oldest first."""
        found = [end for end in self._ends if not actor or end["name"] == actor]
        return found[-ENDS_TOLD:]


class LogService(Actor):
    """Tells the log of a node. Every answer is bounded, and says what it leaves out."""

    def __init__(self, capture: LogCapture, ends: ActorEnds, environment: Environment) -> None:
        self._capture = capture
        self._ends = ends
        self._environment = environment

    @method(concurrent=True, idempotent=True)
    async def read(
        self,
        after: int = 0,
        level: int = 0,
        seconds: float = math.inf,
        actor: str = "",
        wait: bool = False,
    ) -> dict[str, Any]:
        """The lines after the line `after`, from `level` on, of the last `seconds`, of one actor if
        it is named; see `runtime.logs.ring.fitting`. With `wait`, as soon as there are any, or
        after `LONG_POLL_SECONDS`, the earliest first. `last`: the number of the line after which
        to go on. `dropped`: how many of the lines after `after` made room for others before this
        looked at them, of whatever level and actor.

        `seconds` and no time: clocks of two hosts are not compared.
        """
        since = 0.0 if math.isinf(seconds) else self._environment.wall_time() - seconds
        question = LogQuestion(after, level, since, actor)
        dropped, seen = 0, after
        with trio.move_on_after(LONG_POLL_SECONDS if wait else 0):
            while True:
                entries = self._capture.entries()
                if entries:
                    dropped += max(0, entries[0].number - 1 - seen)
                    seen = max(seen, entries[-1].number)
                if any(question.wants(entry) for entry in entries):
                    break
                await self._capture.wait_changed()
        chosen, left_out = fitting(self._capture.entries(), question, onwards=wait)
        return {
            "lines": [entry.plain() for entry in chosen],
            "left_out": left_out,
            "dropped": dropped,
            "last": chosen[-1].number if wait and left_out else max(after, self._capture.last),
            "ends": [] if wait else self._ends.latest(actor),
        }

    @method(concurrent=True, idempotent=True)
    async def ends(self, actor: str = "") -> list[dict[str, Any]]:
        """Return the latest ends of actors here, or of this one, but not those in order."""
        return self._ends.latest(actor)

    @method(concurrent=True)
    async def add(self, lines: list[dict[str, Any]]) -> None:
        """Keep lines of the process of an isolated actor. Lines that are none are left out."""
        for line in lines[:MOST_ADDED]:
            try:
                entry = entry_of(line)
            except ValueError:
                continue
            self._capture.add(entry)


def logs_of(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The service of a node, to be called."""
    return endpoint.system_handle(LogService, LOG_SERVICE, node, incarnation)
