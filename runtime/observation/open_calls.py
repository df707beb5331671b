"""The calls that run or wait on a node, as data; and, from those of all nodes, who waits for whom.

A call that a method awaits carries the chain of methods that wait for it, as text (see
`runtime.hosting.chains`). So each call says by itself on whose behalf it was made: the nodes need
not be asked at the same moment, and an actor in a process of its own is seen like any other.

That is of no use where the node that has the call does not answer, or where the call has not
arrived, since a connection is down. So a node says as well what its own methods await elsewhere.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import trio

from runtime.calls.pending_calls import PendingCall
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.chains import Chain
from runtime.observation.slices import in_slices

MOST_CALLS = 2000
"""Calls that one node reports, those that have run or waited longest."""

MOST_AWAITED = 500
"""Calls to other nodes, of those that methods of one node await, that it reports."""

MOST_STEPS = 64
"""Steps of a chain of waiting calls that are followed."""

State = Literal["running", "waiting", "sent"]
"""Of a call that is known from the node that made it alone: sent."""


@attrs.frozen
class OpenCall:
    """A call that has not ended. `seconds`: for how long it has run or waited, None if its turn has
    only just come. `left`: seconds until its deadline, None if it has none. `caller`: the method
    that awaits it, as (actor, method); None if it was made outside of a method's turn. `from_node`:
    the node that made it, "" where unknown.
    """

    node: str
    actor: str
    method: str
    state: State
    seconds: float | None
    left: float | None
    caller: tuple[str, str] | None
    from_node: str

    @property
    def text(self) -> str:
        """`actor.method`."""
        return f"{self.actor}.{self.method}"


async def describe_all_calls(
    cells: Sequence[ActorCell], node: str, now: Callable[[], float]
) -> dict[str, Any]:
    """`describe_calls` for all actors of a node, in slices. `now`: the node's clock."""
    longest = _LongestCalls()
    await in_slices(cells, longest.add, now)
    return longest.described(node, now())


def describe_calls(cells: Iterable[ActorCell], node: str, now: float) -> dict[str, Any]:
    """Describe the calls of a node's actors: at most `MOST_CALLS`, the longest first. `now`:
    seconds on its clock.
    """
    longest = _LongestCalls()
    longest.add(cells)
    return longest.described(node, now)


class _LongestCalls:
    """The calls that have run or waited longest of all that are added, `MOST_CALLS` of them."""

    def __init__(self) -> None:
        self._longest: list[tuple[float, str, Invocation]] = []
        self._count = 0

    def add(self, cells: Iterable[ActorCell]) -> None:
        found = [
            (_since(invocation, state), state, invocation)
            for cell in cells
            if not cell.system
            for state, invocations in (("running", cell.running), ("waiting", cell.mailbox or ()))
            for invocation in invocations
            # A cancelled method that runs holds its turn until it returns, as in a thread.
            if state == "running" or not invocation.cancelled
        ]
        self._count += len(found)
        if found:
            both = [*self._longest, *found]
            # What has no time has begun just now.
            self._longest = heapq.nsmallest(MOST_CALLS, both, key=lambda one: one[0] or math.inf)
        assert len(self._longest) <= min(MOST_CALLS, self._count)

    def described(self, node: str, now: float) -> dict[str, Any]:
        return {
            "calls": [
                _plain_call(invocation, state, node, now) for _, state, invocation in self._longest
            ],
            "left_out": self._count - len(self._longest),
        }


def _since(invocation: Invocation, state: str) -> float:
    return invocation.suspended_at if state == "running" else invocation.queued_at


def _plain_call(invocation: Invocation, state: str, node: str, now: float) -> dict[str, Any]:
    since = _since(invocation, state)
    # No method waits for one that was cancelled, although it runs.
    awaited = not invocation.cancelled
    links = invocation.chain.links if invocation.chain is not None and awaited else ()
    peer = getattr(invocation.link, "peer", None)
    return {
        "actor": invocation.cell.address.name,
        "method": invocation.definition.name,
        "state": state,
        "seconds": now - since if since else None,
        "left": invocation.deadline - now if awaited and invocation.deadline < math.inf else None,
        "caller": [links[-1].actor, links[-1].method] if links else None,
        "from_node": node if peer is None else str(getattr(peer, "name", "")),
    }


async def describe_awaited(
    calls: Sequence[PendingCall[trio.lowlevel.Task]],
    chain: Callable[[trio.lowlevel.Task], Chain | None],
    now: Callable[[], float],
) -> list[dict[str, Any]]:
    """Describe the calls to actors of other nodes that methods here await: at most `MOST_AWAITED`,
    the first that were made. `chain(task)`: the methods that wait for a call made in this task.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}

    def look(calls: Sequence[PendingCall[trio.lowlevel.Task]]) -> None:
        for call in calls:
            place, task = call.place, call.waiter
            # One that no task is parked on has its answer, or is a stream that is not read now.
            if task is None or place.actor.startswith("@") or len(found) >= MOST_AWAITED:
                continue
            made_by = chain(task)
            if made_by is not None and made_by.links:
                last = made_by.links[-1]
                # A thousand calls of one method by another one are one entry.
                key = (last.actor, last.method, place.actor, place.method, place.node)
                found[key] = {
                    "actor": place.actor,
                    "method": place.method,
                    "node": place.node,
                    "caller": [last.actor, last.method],
                }

    await in_slices(calls, look, now)
    return list(found.values())


def read_awaited(node: str, report: dict[str, Any]) -> list[OpenCall]:
    """The calls to other nodes that methods of this node await, as it has reported them. Nodes of
    earlier versions say nothing of them. Raises KeyError, TypeError or ValueError for what is no
    such answer.
    """
    return [
        OpenCall(
            str(one["node"]),
            str(one["actor"]),
            str(one["method"]),
            "sent",
            None,
            None,
            (str(one["caller"][0]), str(one["caller"][1])),
            node,
        )
        for one in report.get("awaited", ())
    ]


def read_calls(node: str, report: dict[str, Any]) -> list[OpenCall]:
    """The calls that a node has reported. Raises KeyError, TypeError or ValueError for what is no
    such answer.
    """
    return [
        OpenCall(
            node,
            str(one["actor"]),
            str(one["method"]),
            "running" if one["state"] == "running" else "waiting",
            None if one["seconds"] is None else float(one["seconds"]),
            None if one["left"] is None else float(one["left"]),
            None if one["caller"] is None else (str(one["caller"][0]), str(one["caller"][1])),
            str(one["from_node"]),
        )
        for one in report["calls"]
    ]


def _longest_first(calls: Iterable[OpenCall], method: str) -> list[OpenCall]:
    chosen = [call for call in calls if not method or call.method == method]
    return sorted(chosen, key=lambda call: -(call.seconds or 0.0))


@attrs.frozen
class WaitStep:
    """One step of an explanation: what an actor runs, and the call that it waits for, None where
    the chain ends: it waits for something else than a call, or computes.
    """

    running: OpenCall
    waits_for: OpenCall | None


class WaitGraph:
    """The graph of actors that wait for each other, by the calls of all nodes at about the same
    time. `sent`: calls as the nodes know them that made them, for those of which no other says
    anything. They lead to no cycle: each may have ended when the next node was asked.
    """

    def __init__(self, calls: Iterable[OpenCall], sent: Iterable[OpenCall] = ()) -> None:
        self._running: dict[str, list[OpenCall]] = {}
        self._waiting: dict[str, list[OpenCall]] = {}
        self._awaited: dict[tuple[str, str], list[OpenCall]] = {}
        for call in calls:
            found = self._running if call.state == "running" else self._waiting
            found.setdefault(call.actor, []).append(call)
            if call.caller is not None:
                self._awaited.setdefault(call.caller, []).append(call)
        self._sent: dict[tuple[str, str], list[OpenCall]] = {}
        for call in sent:
            if call.caller is not None:
                self._sent.setdefault(call.caller, []).append(call)

    def runs(self, actor: str, method: str = "") -> list[OpenCall]:
        """Return the calls that an actor runs, of one method if it is named, the longest first."""
        return _longest_first(self._running.get(actor, ()), method)

    def waits(self, actor: str, method: str) -> list[OpenCall]:
        """The calls of a method in an actor's mailbox, the longest first."""
        return _longest_first(self._waiting.get(actor, ()), method)

    def explain(self, actor: str, method: str = "") -> tuple[list[WaitStep], list[str]]:
        """Why an actor does not get on: what it runs, what that waits for, what runs there, and so
        on. If that comes back to an actor, its cycle is the second result: the names of the actors
        in it. `method`: begin with a call of this method that the actor runs.
        """
        steps: list[WaitStep] = []
        seen: list[str] = []
        # The answers of the nodes are of different moments, so a cycle may be one that never was.
        while len(steps) < MOST_STEPS:
            if actor in seen:
                return steps, seen[seen.index(actor) :]
            seen.append(actor)
            step = self._step(actor, "" if steps else method)
            if step is None:
                break
            steps.append(step)
            if step.waits_for is None or step.waits_for.state == "sent":
                break
            actor = step.waits_for.actor
        return steps, []

    def _step(self, actor: str, method: str) -> WaitStep | None:
        runs = self.runs(actor, method)
        for among in (self._awaited, self._sent):
            for running in runs:
                for awaited in self._awaits(running, among):
                    return WaitStep(running, awaited)
        return WaitStep(runs[0], None) if runs else None

    def _awaits(
        self, running: OpenCall, among: Mapping[tuple[str, str], list[OpenCall]]
    ) -> list[OpenCall]:
        # An isolated actor is two links of a chain, one in its node and one in its process: what it
        # awaits is not its own method again.
        own = (running.actor, running.method)
        return [call for call in among.get(own, ()) if (call.actor, call.method) != own]

    def cycles(self) -> Iterator[list[str]]:
        """Every cycle of actors that wait for each other, once."""
        known: set[frozenset[str]] = set()
        for actor in sorted(self._running):
            _, cycle = self.explain(actor)
            if cycle and frozenset(cycle) not in known:
                known.add(frozenset(cycle))
                yield cycle
