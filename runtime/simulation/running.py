"""Whole runs: the built-in workload under the faults of one seed, and what the checkers say of it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Sequence

import attrs
import trio

from actors.errors import UnderstudyError
from runtime.environment import real_seconds
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.simulation.cluster import SimulatedCluster
from runtime.simulation.faults import KINDS, Weather, check_kinds, draw_faults
from runtime.simulation.linearizability import RegisterModel, UndecidedError, check
from runtime.simulation.report import Report, Verdict
from runtime.simulation.scheduler import VirtualClock, run
from runtime.simulation.shelves import FETCH_SECONDS
from runtime.simulation.waiting import all_up
from runtime.simulation.workload import Register, Workload

START_SECONDS = 60.0
CONVERGE_SECONDS = 60.0
"""From the last fault until all must be as if there had been none: twelve leases."""

QUIET_SECONDS = 25.0
"""From the last call until nothing of any is left: two leases, and the ten seconds for which orphaned calls are kept."""

SHORT_LIMIT = 3.0
"""Seconds for which the lease of a node whose loop is blocked is kept in some of the runs."""

MOST_CALLS = 12
"""Calls of the runtime itself that a quiet node may have open: watches of the store, and of children."""


@attrs.define(eq=False)
class _Run:
    """One run under way."""

    seed: int
    names: Sequence[str]
    seconds: float
    faults: dict[str, float]
    verdicts: list[Verdict] = attrs.field(factory=list)

    async def main(self, clock: VirtualClock) -> tuple[SimulatedCluster, Workload]:
        """Faults, then calm; the checkers look while the nodes live, and after they have left."""
        cluster = SimulatedCluster(self.seed, self.names, clock)
        # Below the longest fault in half of the seeds: then loops that are blocked lose their leases, too.
        cluster.blocked_limit = random.Random(f"{self.seed} blocked limit").choice((BLOCKED_LIMIT_SECONDS, SHORT_LIMIT))
        work = Workload(cluster)
        work.oracle.fair = not self.faults
        cluster.scenario, cluster.program = work, work.program
        weather = Weather(cluster, self.faults, disk_lost=work.disk_lost)
        try:
            await cluster.run(lambda: self._body(cluster, work, weather))
        except BaseExceptionGroup as group:
            self._say("no error but expected ones", [f"{error!r}" for error in group.exceptions], "")
        return cluster, work

    async def _body(self, cluster: SimulatedCluster, work: Workload, weather: Weather) -> None:
        with trio.move_on_after(START_SECONDS):
            await all_up(cluster)
        with trio.move_on_after(self.seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(weather.run)
                nursery.start_soon(work.watch_queues)
                await trio.sleep_forever()
        weather.heal()
        await self._converge(cluster, work)
        work.calling, work.hands.calm, work.crowds.over = False, True, True
        await trio.sleep(QUIET_SECONDS)
        if any(len(node.station.references) or node.station.references.held for node in map(cluster.live, cluster.machines) if node):
            # The errors of calls lie in cycles, and references with them. Nothing else collects garbage during a run.
            gc.collect()
            await trio.sleep(QUIET_SECONDS)
        self._look_for_leftovers(cluster)

    async def _converge(self, cluster: SimulatedCluster, work: Workload) -> None:
        began = cluster.now()
        wrong: list[str] = []
        with trio.move_on_after(CONVERGE_SECONDS) as patience:
            await all_up(cluster)
            for name in cluster.machines:
                for key in work.keys:
                    await self._answers(cluster, name, key)
        if patience.cancelled_caught:
            for name in cluster.machines:
                node = cluster.live(name)
                seen = [f"{each.name}.{each.incarnation} {each.state}" for each in node.members()] if node is not None else "no node"
                wrong.append(f"{name}: {seen}")
        self._say(
            "converges", wrong, f"all nodes see each other, and all registers answer, {cluster.now() - began:.1f} s after the last fault"
        )

    async def _answers(self, cluster: SimulatedCluster, name: str, key: str) -> None:
        while True:
            node = await cluster.node(name)
            try:
                register = await node.options(name=key).get_or_spawn(Register)
                await register.read.options(timeout=2.0)()
                return
            except UnderstudyError:
                await trio.sleep(0.2)

    def _look_for_leftovers(self, cluster: SimulatedCluster) -> None:
        wrong: list[str] = []
        for name in cluster.machines:
            node = cluster.live(name)
            if node is None:
                wrong.append(f"{name} has no node in the calm")
                continue
            loads = {**node.station.loads(), "references held": node.station.references.held}
            for what, count in loads.items():
                if count > (MOST_CALLS if what == "calls made" else 0):
                    wrong.append(f"{name} still has {count} {what}")
        self._say("nothing is left", wrong, "no call, stream or reference is kept when nobody asks for anything")

    def judge(self, cluster: SimulatedCluster, work: Workload) -> None:
        """What the history and the oracle say."""
        oracle = work.oracle
        self._say("one owner per name", oracle.overlaps, f"{oracle.runs} runs of {len(oracle.owners)} names")
        self._say("at most once", oracle.twice, f"{len(oracle.executions)} calls that may run once were executed")
        self._say("within the intensity", oracle.beyond, f"{sum(map(len, oracle.restarts.values()))} restarts in the last periods")
        self._say("denied is not executed", work.executed_though_denied(), f"{len(work.denied)} calls were reported as never run")
        self._say("answers the question", work.mistaken, "no answer belonged to another call")
        if oracle.fair:
            self._say("heard in order", work.crowds.out_of_order, f"{work.crowds.heard_in_all} calls to an actor that ends now and then")
            self._say("repeated as the policy says", work.crowds.unanswered, f"{work.crowds.answered} calls to it were answered")
        self._say("fetched is what was made", work.hands.mixed_up, f"{work.hands.fetched} values were fetched by those who held them")
        self._say("nothing is freed that is held", work.hands.freed, "no value was gone but with those who had a part in it")
        self._say("one outcome", work.hands.torn, "no reference was a value for one and a failure for another")
        self._say("every fetch ends", work.hands.stuck, f"within {FETCH_SECONDS:g} s, when nothing is in its way")
        self._say("bounded", oracle.unbounded, "no mailbox held more than its limit")
        self._say("every call ends in time", work.late, f"{len(work.history.operations)} calls and {work.lookups} lookups")
        self._say("one of three outcomes", work.not_outcomes, "no call or lookup ended with anything else")
        self._say("no unexpected end", cluster.unexpected, "no process ended by an error that is none of ours")
        wrong: list[str] = []
        keys = work.history.by_key()
        undecided = 0
        for operations in keys.values():
            try:
                violation = check(operations, RegisterModel(), limit=300_000)
            except UndecidedError:
                undecided += 1
                continue
            if violation is not None:
                wrong.append(str(violation))
        said = f"{len(keys)} registers" + (f", {undecided} of them undecided" if undecided else "")
        self._say("linearizable", wrong, said)

    def _say(self, name: str, wrong: Sequence[str], right: str) -> None:
        self.verdicts.append(Verdict(name, not wrong, "\n".join(wrong) if wrong else right))


def simulate_once(seed: int, *, nodes: int = 3, seconds: float = 30.0, faults: Iterable[str] | None = None) -> Report:
    """Run the built-in workload on `nodes` machines under the faults that `seed` draws from `faults` (all there are) for `seconds`.

    The report depends on nothing but the arguments and this version of the code, but for how long it took.
    """
    allowed = tuple(KINDS if faults is None else faults)
    check_kinds(allowed)
    began = real_seconds()
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    drawn = draw_faults(seed, allowed)
    running = _Run(seed, names, seconds, drawn)
    cluster, work = run(seed, running.main)
    running.judge(cluster, work)
    calls: dict[str, int] = {}
    calls.update(dict.fromkeys(("ok", "failed", "unknown", "pending"), 0))
    for operation in work.history.operations:
        calls[operation.outcome] += 1
    return Report(
        seed=seed,
        nodes=tuple(names),
        seconds=cluster.now(),
        took=real_seconds() - began,
        trace_hash=cluster.trace.digest(),
        faults=drawn,
        calls=calls,
        happenings=tuple(cluster.trace.happenings),
        verdicts=tuple(running.verdicts),
    )
