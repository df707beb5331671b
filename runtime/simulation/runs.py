"""Whole runs: the built-in workload under the faults of one seed, and the results of the
checkers.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import ClassVar

import attrs
import trio

from actors.errors import UnderstudyError
from actors.short_repr import short_repr
from runtime.environment import real_seconds
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.node import Node, internals_of
from runtime.simulation.cluster import SimulatedCluster, all_up
from runtime.simulation.faults import (
    KINDS,
    FaultInjector,
    check_kinds,
    check_seconds,
    check_sides,
    draw_faults,
)
from runtime.simulation.linearizability import RegisterModel, UndecidedError, check
from runtime.simulation.report import CheckResult, Report
from runtime.simulation.scheduler import VirtualClock, belonging_to, run
from runtime.simulation.workload import FETCH_SECONDS, Register, Workload
from runtime.user_errors import is_cancellation, is_interrupt, text_of, whole_traceback_of

# Simulations of one's own actors: a scenario is an async function, run once for each seed on a
# cluster that meets that seed's faults.

OWN = "scenario"
"""The name of the node that a scenario runs on."""


WITHOUT_DISK = "lost disk"
"""The fault that a scenario meets only if it asks for it: after it, what was saved is gone."""


LIMIT_SECONDS = 900.0
"""Virtual seconds that a scenario may take."""


CALM_SECONDS = 60.0
"""Virtual seconds from the last fault until the cluster must be whole again."""


FAULT_SECONDS = 60.0
"""Virtual seconds for which faults are injected into a scenario, unless it ends them earlier. Then
it can complete what needs a healthy cluster.
"""


Scenario = Callable[["Simulation"], Awaitable[None]]

START_SECONDS = 60.0
"""Virtual seconds in which the nodes must have found each other."""

SHORT_LIMIT = 3.0
"""Seconds for which the lease of a node whose loop is blocked is kept in some of the runs."""

MOST_CALLS = 12
"""Calls of the runtime itself that an idle node may have open: watches of the store and of
children.
"""


class SimulationError(UnderstudyError):
    """A scenario failed under a seed. It fails in the same way when that seed is run again.
    `report` has the events.
    """

    has_page: ClassVar[bool] = True

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.report), vars(self)


class Simulation:
    """What a scenario gets: a cluster whose nodes are killed, stopped and cut off while it runs.
    Its own node is spared. `random`: for random choices of the scenario, by the seed.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        node: Node,
        injector: FaultInjector,
        fault_scope: trio.CancelScope,
    ) -> None:
        self._node = node
        self.random = random.Random(f"{cluster.seed} scenario")
        self._cluster = cluster
        self._injector = injector
        self._fault_scope = fault_scope

    @property
    def node(self) -> Node:
        """The scenario's own node, a member like the others.

        No fault hits it. But if the store is away for longer than its lease, it loses its
        membership like any other node and is opened again. Then this is the new node, and
        everything of the old one, including handles, raises errors.
        """
        self._node = self._cluster.live(OWN) or self._node
        return self._node

    @property
    def seed(self) -> int:
        """The seed of this run."""
        return self._cluster.seed

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that faults may hit. The first one keeps the cluster's store."""
        return tuple(name for name in self._cluster.machines if name != OWN)

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._cluster.now()

    def note(self, text: str) -> None:
        """Add a note to the time line of the report."""
        self._cluster.trace.tell(OWN, "note", text)

    def kill(self, name: str, restart_after: float = 0.5) -> None:
        """Kill the process of a node. It is started again after `restart_after` seconds."""
        check_seconds("restart_after", restart_after, 0.0)
        self._cluster.machines[self._not_own(name)].restart_after = restart_after
        self._cluster.crash(name)

    def pause(self, name: str) -> None:
        """Stop the process of a node until `resume`."""
        self._cluster.pause(self._not_own(name))

    def resume(self, name: str) -> None:
        """Let a stopped process go on."""
        self._cluster.resume(self._known(name))

    def block(self, name: str) -> None:
        """Stop the event loop of a node, as an `async def` method does that computes, until
        `unblock`; its lease is kept meanwhile.
        """
        self._cluster.block_loop(self._not_own(name))

    def unblock(self, name: str) -> None:
        """Let a blocked loop go on."""
        self._cluster.unblock_loop(self._known(name))

    def partition(self, *sides: Iterable[str]) -> Callable[[], None]:
        """Block the network between nodes of different sides. Returns a function that ends this."""
        named = check_sides(sides)
        return self._cluster.partition(*([self._known(name) for name in side] for side in named))

    async def calm(self) -> None:
        """End all faults permanently, and wait until all nodes are members again. Raises
        `TimeoutError` if that takes a minute.
        """
        self._fault_scope.cancel()
        self._injector.heal()
        with trio.move_on_after(CALM_SECONDS) as patience:
            await all_up(self._cluster)
        if patience.cancelled_caught:
            raise TimeoutError(
                f"the cluster was not whole again {CALM_SECONDS:g} s after the last fault"
            )

    def _known(self, name: str) -> str:
        if name not in self._cluster.machines:
            raise ValueError(
                f"there is no node {name!r} in this simulation; there are: "
                f"{', '.join(self._cluster.machines)}"
            )
        return name

    def _not_own(self, name: str) -> str:
        # The scenario runs there. A process that is killed or stopped takes no step any more, and
        # so the scenario would never end.
        if self._known(name) == OWN:
            raise ValueError(
                f"the node {OWN!r} is the scenario's own, and is spared from this fault; it may "
                f"hit: {', '.join(self.nodes)}"
            )
        return name


def cluster_of(simulation: Simulation) -> SimulatedCluster:
    """Return the machines, the network and the trace of a simulation: for tests of the runtime
    itself. Scenarios of users have the methods of `Simulation`.
    """
    return simulation._cluster


def simulate(
    scenario: Scenario,
    *,
    seeds: Iterable[int] = range(20),
    nodes: int = 3,
    faults: Iterable[str] | None = None,
) -> None:
    """Run `scenario(simulation)` once for each of `seeds`, on `nodes` nodes and its own, under the
    faults that the seed draws.

    Must not be called inside an event loop. `faults`: kinds that may happen, see
    `runtime.simulation.faults.KINDS`; all but "lost disk" if None, none if empty. Actors are found
    by their import path, as on any cluster; those of the test's own module will do.

    Raises `SimulationError` for the first seed under which the scenario raises, or a process ends
    by an error that is not one of ours. What is no `Exception`, as what `pytest.fail` and
    `pytest.skip` raise, is raised itself, and a note has the seed. Raises ValueError for arguments
    that make no sense.
    """
    for seed in checked_seeds(seeds):
        report = run_scenario(scenario, seed, nodes=nodes, faults=faults)
        wrong = report.wrong
        if wrong:
            # Not among the words of the first line: a test's summary shows that one only.
            raise SimulationError(
                f"seed {seed} fails: {wrong[0].text.splitlines()[0]}\n"
                f"{_again(scenario, seed, nodes)}\n"
                f"faults: {', '.join(report.faults) or 'none'}\n\n{wrong[0].text}",
                report,
            )


def checked_seeds(seeds: object) -> Iterator[int]:
    """Return the seeds, of which there may be any number, one after the other. Raises ValueError
    for what is no seed, and if there is none: nothing would be tried, and nothing fail.
    """
    if not isinstance(seeds, Iterable) or isinstance(seeds, str | bytes):
        raise ValueError(f"seeds are numbers, such as range(20) or [7], not {short_repr(seeds)}")
    tried = False
    for seed in seeds:
        # Also the whole numbers of other libraries.
        if not isinstance(seed, Integral):
            raise ValueError(f"a seed is a whole number, not {short_repr(seed)}")
        tried = True
        yield int(seed)
    if not tried:
        raise ValueError("seeds has none, so that nothing would be tried")


def _again(scenario: Scenario, seed: int, nodes: int) -> str:
    name = getattr(scenario, "__name__", "scenario")
    return f"to see it again: simulate({name}, seeds=[{seed}], nodes={nodes})"


def run_scenario(
    scenario: Scenario, seed: int, *, nodes: int = 3, faults: Iterable[str] | None = None
) -> Report:
    """Run a scenario under one seed, and report. Raises what the scenario raises if that is no
    `Exception`.
    """
    if type(nodes) is not int or nodes < 1:
        raise ValueError(f"a cluster has one node at least, not {short_repr(nodes)}")
    if isinstance(faults, str):
        raise ValueError(f"faults are kinds in a list, such as [{faults!r}], not {faults!r}")
    allowed = (
        tuple(kind for kind in KINDS if kind != WITHOUT_DISK) if faults is None else tuple(faults)
    )
    check_kinds(allowed)
    began = real_seconds()
    performance = _Performance(
        scenario,
        seed,
        [*(f"node-{number}" for number in range(1, nodes + 1)), OWN],
        draw_faults(seed, allowed),
    )
    cluster = run(seed, performance.main)
    error = performance.error
    if error is not None and not isinstance(error, Exception):
        # Not one of the scenario's failures alone: pytest's, which also skips by it; the end of the
        # interpreter; Ctrl-C.
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        error.add_note(f"simulated with seed {seed}; {_again(scenario, seed, nodes)}")
        raise error
    return cluster.trace.report(
        seed,
        cluster.machines,
        real_seconds() - began,
        {},
        performance.check_results,
        performance.faults,
    )


@attrs.define(eq=False)
class _Performance:
    scenario: Scenario
    seed: int
    names: list[str]
    faults: dict[str, float]
    check_results: list[CheckResult] = attrs.field(factory=list)
    error: BaseException | None = None

    async def main(self, clock: VirtualClock) -> SimulatedCluster:
        cluster = SimulatedCluster(self.seed, self.names, clock)
        await cluster.run(lambda: self._body(cluster))
        text = "" if self.error is None else _text_of(self.error)
        if text:
            cluster.trace.tell(OWN, "wrong", text.splitlines()[0])
        self.check_results += [
            CheckResult("the scenario", self.error is None, text or "it ended without an error"),
            CheckResult.of(
                "no unexpected end",
                cluster.unexpected,
                "no process ended by an error that is none of ours",
            ),
        ]
        return cluster

    async def _body(self, cluster: SimulatedCluster) -> None:
        injector = FaultInjector(cluster, self.faults, frozenset({OWN}))
        await all_up(cluster)
        node = await cluster.node(OWN)
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            fault_scope = await nursery.start(_inject, injector)
            with belonging_to(cluster.machines[OWN].process):
                nursery.start_soon(
                    self._play, Simulation(cluster, node, injector, fault_scope), over
                )
            with trio.move_on_after(LIMIT_SECONDS):
                await over.wait()
            if not over.is_set():
                self.error = TimeoutError(
                    f"the scenario had not ended after {LIMIT_SECONDS:g} virtual seconds"
                )
            nursery.cancel_scope.cancel()
        injector.heal()

    async def _play(self, simulation: Simulation, over: trio.Event) -> None:
        try:
            await self.scenario(simulation)
        except BaseException as error:  # noqa: ASYNC103  a cancellation goes on
            # Of the limit.
            if is_cancellation(error):
                raise
            # `run_scenario` reports or raises it, without the groups of the nurseries in between.
            self.error = error
        finally:
            over.set()


async def _inject(
    injector: FaultInjector, *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.move_on_after(FAULT_SECONDS) as scope:
        task_status.started(scope)
        await injector.run()
    injector.heal()


def _text_of(error: BaseException) -> str:
    """Return what went wrong: one line, and below it where."""
    said = text_of(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}\n\n{whole_traceback_of(error)}"


@attrs.define(eq=False)
class _SimulationRun:
    """One run in progress."""

    seed: int
    names: Sequence[str]
    seconds: float
    faults: dict[str, float]
    check_results: list[CheckResult] = attrs.field(factory=list)

    async def main(self, clock: VirtualClock) -> tuple[SimulatedCluster, Workload]:
        """Inject faults, then end them. The checkers look while the nodes live, and after they have
        left.
        """
        cluster = SimulatedCluster(self.seed, self.names, clock)
        # Below the longest fault in half of the seeds: then loops that are blocked lose their
        # leases, too.
        cluster.blocked_limit = random.Random(f"{self.seed} blocked limit").choice(
            (BLOCKED_LIMIT_SECONDS, SHORT_LIMIT)
        )
        work = Workload(cluster, fair=not self.faults)
        cluster.scenario, cluster.program = work, work.program
        for load in work.loads.values():
            load.attach()
        injector = FaultInjector(cluster, self.faults, disk_lost=work.disk_lost)
        if injector.strikes_joins:
            cluster.at_join = injector.crash_founder
        try:
            await cluster.run(lambda: self._body(cluster, work, injector))
        except BaseExceptionGroup as group:
            if is_interrupt(group):
                # Ctrl-C breaks no promise.
                raise
            self._say(
                "no error but expected ones", [f"{error!r}" for error in group.exceptions], ""
            )
        return cluster, work

    async def _body(
        self, cluster: SimulatedCluster, work: Workload, injector: FaultInjector
    ) -> None:
        with trio.move_on_after(START_SECONDS):
            await all_up(cluster)
        with trio.move_on_after(self.seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(injector.run)
                nursery.start_soon(work.watch_queues)
                await trio.sleep_forever()
        injector.heal()
        await self._converge(cluster, work)
        work.calling, work.reference_oracle.calm = False, True
        for load in work.loads.values():
            await load.end()
        await trio.sleep(cluster.timings.quiescence)
        if any(
            len(internals_of(node).references) or internals_of(node).references.held
            for node in map(cluster.live, cluster.machines)
            if node
        ):
            # The errors of calls are in reference cycles, together with references. Nothing else
            # collects garbage during a run.
            gc.collect()
            await trio.sleep(cluster.timings.quiescence)
        for load in work.loads.values():
            await load.look_for_leftovers()
        self._look_for_leftovers(cluster)
        cluster.check_invariants()

    async def _converge(self, cluster: SimulatedCluster, work: Workload) -> None:
        began = cluster.now()
        wrong: list[str] = []
        with trio.move_on_after(cluster.timings.convergence) as patience:
            await all_up(cluster)
            for name in cluster.machines:
                for key in work.keys:
                    await self._answers(cluster, name, key)
        if patience.cancelled_caught:
            for name in cluster.machines:
                node = cluster.live(name)
                seen = (
                    [f"{each.name}.{each.incarnation} {each.state}" for each in node.members()]
                    if node is not None
                    else "no node"
                )
                wrong.append(f"{name}: {seen}")
        self._say(
            "converges",
            wrong,
            f"all nodes see each other, and all registers answer, {cluster.now() - began:.1f} s "
            "after the last fault",
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
            loads = {
                **internals_of(node).endpoint.loads(),
                "references held": internals_of(node).references.held,
            }
            for what, count in loads.items():
                if count > (MOST_CALLS if what == "calls made" else 0):
                    wrong.append(f"{name} still has {count} {what}")
        self._say(
            "nothing is left",
            wrong,
            "no call, stream or reference is kept after the last request",
        )

    def judge(self, cluster: SimulatedCluster, work: Workload) -> None:
        """Return the results of the checks on the history and the oracle."""
        oracle = work.oracle
        self._say(
            "one owner per name",
            oracle.overlaps,
            f"{oracle.runs} runs of {len(oracle.owners)} names",
        )
        self._say(
            "at most once",
            oracle.twice,
            f"{len(oracle.executions)} calls that may run once were executed",
        )
        self._say(
            "within the intensity",
            oracle.beyond,
            f"{sum(map(len, oracle.restarts.values()))} restarts in the last periods",
        )
        self._say(
            "denied is not executed",
            work.executed_though_denied(),
            f"{len(work.denied)} calls were reported as never run",
        )
        self._say("answers the question", work.mistaken, "no answer belonged to another call")
        for load in work.loads.values():
            self.check_results += load.check_results()
        self._judge_references(work)
        self._say("bounded", oracle.unbounded, "no mailbox held more than its limit")
        self._say(
            "every call ends in time",
            work.late,
            f"{len(work.history.operations)} calls and {work.lookups} lookups",
        )
        self._say(
            "one of three outcomes", work.not_outcomes, "no call or lookup ended with anything else"
        )
        self._say(
            "no unexpected end",
            cluster.unexpected,
            "no process ended by an error that is none of ours",
        )
        self._say(
            "what leaves ends in time",
            cluster.ended_late,
            f"{cluster.leaves} nodes were asked to leave, and ended within "
            f"{cluster.timings.leaving:g} s",
        )
        self._say(
            "tables agree with themselves", cluster.broken, "no invariant of a node's was broken"
        )
        self._judge_history(work)

    def _judge_references(self, work: Workload) -> None:
        """Return the results of the checks on references."""
        self._say(
            "fetched is what was made",
            work.reference_oracle.mixed_up,
            f"{work.reference_oracle.fetched} values were fetched by those who held them",
        )
        self._say(
            "nothing is freed that is held",
            work.reference_oracle.freed,
            "no value was gone but with those who had a part in it",
        )
        self._say(
            "one outcome",
            work.reference_oracle.torn,
            "no reference was a value for one and a failure for another",
        )
        self._say(
            "every fetch ends",
            work.reference_oracle.stuck,
            f"within {FETCH_SECONDS:g} s, when nothing is in its way",
        )

    def _judge_history(self, work: Workload) -> None:
        """Check with Wing and Gong's search that each register is linearizable."""
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
        self.check_results.append(CheckResult.of(name, wrong, right))


def simulate_once(
    seed: int, *, nodes: int = 3, seconds: float = 30.0, faults: Iterable[str] | None = None
) -> Report:
    """Run the built-in workload on `nodes` machines under the faults that `seed` draws from
    `faults` (all there are) for `seconds`.

    The report depends only on the arguments and this version of the code, but for how long
    it took.
    """
    allowed = tuple(KINDS if faults is None else faults)
    check_kinds(allowed)
    began = real_seconds()
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    drawn = draw_faults(seed, allowed)
    running = _SimulationRun(seed, names, seconds, drawn)
    cluster, work = run(seed, running.main)
    running.judge(cluster, work)
    calls: dict[str, int] = {}
    calls.update(dict.fromkeys(("ok", "failed", "unknown", "pending"), 0))
    for operation in work.history.operations:
        calls[operation.outcome] += 1
    return cluster.trace.report(
        seed, names, real_seconds() - began, calls, running.check_results, drawn
    )
