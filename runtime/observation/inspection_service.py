"""The service `@inspection` of every node: what its actors run and wait for, the stacks of its
tasks and threads, and the statistics of its calls. `understudy inspect`, `stack`, `calls` and `why`
ask it, and so do dashboards.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from actors.actor import Actor, Member
from actors.errors import CallError, StoreError
from actors.identifiers import NodeId
from actors.method import method
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.pending_calls import PendingCall
from runtime.environment import Environment
from runtime.hosting.actor_state import ActorStates
from runtime.hosting.host import ActorHost
from runtime.hosting.profiler import packed_profile
from runtime.hosting.stacks import read_stacks
from runtime.isolation.actor_proxy import proxy_of
from runtime.observation.actor_listing import ActorListing
from runtime.observation.blocked_loops import BlockedLoops
from runtime.observation.conditions import read_conditions
from runtime.observation.open_calls import describe_all_calls, describe_awaited, describe_calls
from runtime.observation.overviews import Overviews
from runtime.observation.recordings import Recordings
from runtime.observation.supervision_report import SupervisionReport
from runtime.statistics.call_statistics import CallStatistics
from runtime.user_errors import text_of

INSPECTION_SERVICE = "@inspection"

MOST_METHODS = 1000
"""Methods of which one answer has statistics."""

MOST_OFFERED = 200
"""Methods of an actor: of a class with more, an answer has no names of them."""


class CallMeasurement:
    """Measures the calls of a node while their statistics are read, or all the time. Otherwise they
    are not measured, and that costs nothing.
    """

    def __init__(
        self, endpoint: RpcEndpoint, nursery: trio.Nursery, environment: Environment
    ) -> None:
        self._endpoint = endpoint
        self._nursery = nursery
        self._environment = environment
        self._statistics: CallStatistics | None = None
        self._since = 0.0
        self._until = 0.0

    def keep(self) -> CallStatistics:
        """Measure from now on, until the node ends."""
        statistics = self._measured()
        # The task that waits for the end of the measurement reads this when it next wakes.
        self._until = math.inf
        return statistics

    def read(self) -> tuple[CallStatistics, float]:
        """Return the statistics, and for how many seconds they are kept. The first reading begins
        to measure; reading keeps it on.
        """
        statistics, now = self._measured(), self._environment.now()
        if self._until != math.inf:
            self._until = now + self._environment.timings.statistics_unread
        return statistics, now - self._since

    def _measured(self) -> CallStatistics:
        if self._statistics is None:
            self._since = self._environment.now()
            self._until = self._since + self._environment.timings.statistics_unread
            # Anew each time: counts that were kept over a gap would look like a pause.
            self._statistics = CallStatistics()
            self._endpoint.measure(self._statistics)
            self._nursery.start_soon(self._stop_when_unread, name="end of measuring calls")
        return self._statistics

    async def _stop_when_unread(self) -> None:
        while True:
            # Read again after each wait: a reading in the meantime has put it off.
            left = self._until - self._environment.now()
            if left <= 0:
                break
            await trio.sleep(left)
        self._statistics = None
        self._endpoint.measure(None)


class InspectionService(Actor):
    """Tells what a node does at the moment. Every answer is bounded, and says what it leaves
    out.
    """

    def __init__(
        self,
        host: ActorHost,
        node: str,
        environment: Environment,
        measurement: CallMeasurement,
        facts: Callable[[], dict[str, object]],
        members: Callable[[], Sequence[Member]],
        recordings: Recordings,
        saved_bytes: Callable[[str], Awaitable[int | None]],
        pending: Callable[[], Sequence[PendingCall[trio.lowlevel.Task]]],
    ) -> None:
        self._host = host
        self._node = node
        self._environment = environment
        self._blocked = BlockedLoops(environment)
        self._profiling = False
        self._measurement = measurement
        self._overviews = Overviews(host, environment, facts)
        self._listing = ActorListing(host, node, environment.now)
        self._supervision = SupervisionReport(host, environment.now)
        self._states = ActorStates(host, environment)
        self._members = members
        self._recordings = recordings
        self._saved_bytes = saved_bytes
        self._pending = pending

    @method(concurrent=True, idempotent=True)
    async def overview(self, with_members: bool = False) -> dict[str, Any]:
        """The node and its actors in a bounded answer; see `Overviews.read`. `with_members`: and
        the members of the cluster as the node knows them.
        """
        return self._with_members(await self._overviews.read(), with_members)

    @method(concurrent=True, idempotent=True)
    async def overview_since(self, seen: int, with_members: bool = False) -> dict[str, Any]:
        """The same for those who ask again and again, with the number of the last answer they have
        `seen`; see `Overviews.read_since`.
        """
        return self._with_members(await self._overviews.read_since(seen), with_members)

    def _with_members(self, found: dict[str, Any], with_members: bool) -> dict[str, Any]:
        if with_members:
            found["members"] = [attrs.asdict(member) for member in self._members()]
        return found

    @method(concurrent=True, idempotent=True)
    async def actors(self, conditions: list[list[str]], sort: str, most: int) -> dict[str, Any]:
        """The actors for which all conditions hold, each a column, a sign and a value; see
        `ActorListing.select`.
        """
        return await self._listing.select(read_conditions(conditions), sort, most)

    @method(concurrent=True, idempotent=True)
    async def top(self, sort: str, seconds: float, most: int) -> dict[str, Any]:
        """The actors that have most to do, over the next seconds; see `ActorListing.top`."""
        return await self._listing.top(sort, seconds, most)

    @method(concurrent=True, idempotent=True)
    async def present(self, names: list[str]) -> list[str]:
        """Return those of the names that actors here have."""
        return self._listing.present(names)

    @method(concurrent=True, idempotent=True)
    async def named(self, names: list[str]) -> list[dict[str, Any]]:
        """Rows of the actors of these names; see `ActorListing.named`."""
        return self._listing.named(names)

    @method(concurrent=True, idempotent=True)
    async def near(self, name: str) -> list[str]:
        """Names of actors here that are like this one; see `ActorListing.near`."""
        return await self._listing.near(name)

    @method(concurrent=True, idempotent=True)
    async def supervision(self) -> dict[str, Any]:
        """The supervisors here and their children; see `SupervisionReport.read`."""
        return await self._supervision.read()

    @method(concurrent=True, idempotent=True)
    async def statistics(self, most: int = 200) -> dict[str, Any]:
        """The statistics of the calls that this node makes and runs, by class and method, those
        with most calls first; see `CallStatistics.as_plain` and `MethodStatistics.as_plain`.

        `measured`: for how many seconds they are kept. A node that does not measure all the time
        begins when it is first asked, and stops `Timings.statistics_unread` after the last time;
        then counts begin at 0 again. Rates, and quantiles of a window
        (`runtime.statistics.histograms`), come from the differences between two answers.
        """
        statistics, seconds = self._measurement.read()
        return {
            "node": self._node,
            "measured": seconds,
            **statistics.as_plain(min(most, MOST_METHODS)),
        }

    @method(concurrent=True, idempotent=True)
    async def on_blocked(self, node: str, incarnation: int, facts: dict[str, Any]) -> None:
        """Note what blocks the loop of another node, which cannot report it itself."""
        self._blocked.tell(NodeId(node, incarnation), facts)

    @method(concurrent=True, idempotent=True)
    async def blocked(self, node: str, incarnation: int) -> dict[str, Any] | None:
        """Return what blocks the loop of another node, as it has reported to this one; see
        `blocked_report`.
        """
        return self._blocked.of(NodeId(node, incarnation))

    @method(concurrent=True, idempotent=True)
    async def calls(self) -> dict[str, Any]:
        """The calls that run or wait here, see `describe_calls`; and as `awaited` those to other
        nodes that methods here wait for, see `describe_awaited`.
        """
        cells = list(self._host.cells.values())
        now = self._environment.now
        found = await describe_all_calls(cells, self._node, now)
        found["awaited"] = await describe_awaited(self._pending(), self._host.turns.chain, now)
        return found

    @method(concurrent=True, idempotent=True)
    async def stacks(self, actor: str | None = None) -> dict[str, Any]:
        """The stacks of the tasks and threads of this node, or of the tasks of one actor; see
        `read_stacks`. Of an actor in a process of its own, the stacks in that process as well.
        """
        workers = self._host.workers
        stacks = read_stacks(workers.running, workers.starting, self._environment.now(), actor)
        cell = None if actor is None else self._host.cells.get(actor)
        if (proxy := proxy_of(cell)) is not None:
            stacks["process"] = await proxy.stacks()
        return stacks

    @method(concurrent=True)
    async def profile(self, seconds: float, rate: int, actor: str = "") -> bytes:
        """Sample the threads of this process, or those that run this actor, for some seconds; see
        `packed_profile`. b"" while another profile is taken, which would see this one.
        """
        cell = self._host.cells.get(actor)
        if (proxy := proxy_of(cell)) is not None:
            return await proxy.profile(seconds, rate)
        if self._profiling:
            return b""
        self._profiling = True
        stop = threading.Event()
        try:
            work = partial(packed_profile, seconds, rate, actor, stop)
            return await self._environment.in_thread(work, abandon=True)
        finally:
            # Also when the one who asked has gone: the thread ends at its next sample.
            stop.set()
            self._profiling = False

    @method(concurrent=True, idempotent=True)
    async def clock(self) -> float:
        """Seconds on this node's clock; its zero means nothing. From several answers, a reader
        estimates how far the clocks of two nodes are apart.
        """
        return self._environment.now()

    @method(concurrent=True)
    async def record(self, seconds: float) -> bytes:
        """Record the calls of this node for some seconds, for a timeline; see `Recordings.take`."""
        return await self._recordings.take(seconds)

    @method(concurrent=True, idempotent=True)
    async def state(self, name: str) -> dict[str, Any] | None:
        """Return the state that an actor shows, as the fields of an `ActorState`; None if it is not
        here. Runs its hook `on_inspect`.
        """
        cell = self._host.cells.get(name)
        if cell is None or cell.system:
            return None
        proxy = proxy_of(cell)
        found = await proxy.state() if proxy is not None else await self._states.read(cell)
        return attrs.asdict(found)

    @method(concurrent=True, idempotent=True)
    async def saved_size(self, name: str) -> dict[str, Any]:
        """The size of the state that an actor saved last, `bytes`, None if it has saved none; and
        the `problem`, if the store cannot be asked. Not the state: it may be secret.
        """
        try:
            with trio.fail_after(self._environment.timings.inspection):
                return {"bytes": await self._saved_bytes(name), "problem": ""}
        except (StoreError, CallError) as error:
            return {"bytes": None, "problem": text_of(error)}
        except trio.TooSlowError:
            return {"bytes": None, "problem": "the store does not answer"}

    @method(concurrent=True, idempotent=True)
    async def actor(self, name: str) -> dict[str, Any] | None:
        """Describe one actor; None if it is not here."""
        cell = self._host.cells.get(name)
        if cell is None or cell.system:
            return None
        now = self._environment.now()
        waiting = [invocation for invocation in cell.mailbox or () if not invocation.cancelled]
        oldest = waiting[0] if waiting else None
        proxy = proxy_of(cell)
        return {
            "name": name,
            "class": cell.address.class_path,
            "node": self._node,
            "incarnation": cell.address.incarnation,
            "epoch": cell.address.epoch,
            "registered": cell.address.registered,
            "supervisor": self._host.supervisors.get(name, ""),
            "methods": sorted(cell.methods) if len(cell.methods) <= MOST_OFFERED else [],
            "started": cell.started,
            "paused": cell.paused,
            "served": cell.served,
            "waiting": cell.waiting,
            "given_up": cell.waiting - len(waiting),
            "mailbox_limit": cell.limit,
            "argument_bytes": cell.arguments.held if cell.arguments is not None else 0,
            "mailbox_bytes": cell.byte_limit,
            "oldest_seconds": now - oldest.queued_at if oldest and oldest.queued_at else None,
            "pid": proxy.pid if proxy is not None else None,
            **describe_calls([cell], self._node, now),
        }


def inspection_of(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The inspection service of a node, to be called."""
    return endpoint.system_handle(InspectionService, INSPECTION_SERVICE, node, incarnation)
