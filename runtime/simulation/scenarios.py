"""Simulations of one's own actors: a scenario is an async function, run once for each seed on a cluster that meets that seed's faults."""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from actors.errors import UnderstudyError
from runtime.environment import real_seconds
from runtime.node import Node
from runtime.simulation.cluster import SimulatedCluster
from runtime.simulation.faults import KINDS, Weather, check_kinds, draw_faults
from runtime.simulation.report import Report, Verdict
from runtime.simulation.scheduler import VirtualClock, belonging_to, run
from runtime.simulation.waiting import all_up

OWN = "scenario"
"""The name of the node that a scenario runs on."""

WITHOUT_DISK = "lost disk"
"""The fault that a scenario meets only if it asks for it: after it, what was saved is gone."""

LIMIT_SECONDS = 900.0
CALM_SECONDS = 60.0

FAULT_SECONDS = 60.0
"""Faults befall a scenario for so long, in virtual seconds, or until it asks for calm. Whatever must be done in the end gets done then."""

Scenario = Callable[["Simulation"], Awaitable[None]]


class SimulationError(UnderstudyError):
    """A scenario failed under a seed, which will fail in the same way when it is tried again. `report` tells what happened."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.report), vars(self)


class Simulation:
    """What a scenario is given: a cluster whose nodes are killed, stopped and cut off while it runs. Its own node is spared.

    `random`: for whatever the scenario draws, by the seed.
    """

    def __init__(self, cluster: SimulatedCluster, node: Node, weather: Weather, bad_weather: trio.CancelScope) -> None:
        self._node = node
        self.random = random.Random(f"{cluster.seed} scenario")
        self._cluster = cluster
        self._weather = weather
        self._bad_weather = bad_weather

    @property
    def node(self) -> Node:
        """The scenario's own, a member of the cluster like the others. No fault befalls it, but if the store is away for longer than its
        lease it loses its place like any other, and is opened again: then this is the new one, and what belongs to the old one, handles
        as well, raises errors.
        """
        self._node = self._cluster.live(OWN) or self._node
        return self._node

    @property
    def seed(self) -> int:
        """The seed of this run."""
        return self._cluster.seed

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that faults befall; the first keeps the cluster's store."""
        return tuple(name for name in self._cluster.machines if name != OWN)

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._cluster.now()

    def note(self, text: str) -> None:
        """Put something on the time line of the report."""
        self._cluster.trace.tell(OWN, "note", text)

    def kill(self, name: str, restart_after: float = 0.5) -> None:
        """Kill the process of a node; it is started again after so many seconds."""
        self._cluster.machines[self._known(name)].restart_after = restart_after
        self._cluster.crash(name)

    def pause(self, name: str) -> None:
        """Stop the process of a node until `resume`."""
        self._cluster.pause(self._known(name))

    def resume(self, name: str) -> None:
        """Let it go on."""
        self._cluster.resume(self._known(name))

    def block(self, name: str) -> None:
        """Stop the event loop of a node, as an `async def` method does that computes, until `unblock`; its lease is kept meanwhile."""
        self._cluster.block_loop(self._known(name))

    def unblock(self, name: str) -> None:
        """Let it go on."""
        self._cluster.unblock_loop(self._known(name))

    def partition(self, *sides: Iterable[str]) -> Callable[[], None]:
        """Let nothing through between nodes of different sides; returns what ends it."""
        return self._cluster.partition(*([self._known(name) for name in side] for side in sides))

    async def calm(self) -> None:
        """End all faults, for good, and wait until all nodes are members again. Raises `TimeoutError` if that takes a minute."""
        self._bad_weather.cancel()
        self._weather.heal()
        with trio.move_on_after(CALM_SECONDS) as patience:
            await all_up(self._cluster)
        if patience.cancelled_caught:
            raise TimeoutError(f"the cluster was not whole again {CALM_SECONDS:g} s after the last fault")

    def _known(self, name: str) -> str:
        if name not in self._cluster.machines:
            raise ValueError(f"there is no node {name!r} in this simulation; there are: {', '.join(self._cluster.machines)}")
        return name


def simulate(scenario: Scenario, *, seeds: Iterable[int] = range(20), nodes: int = 3, faults: Iterable[str] | None = None) -> None:
    """Run `scenario(simulation)` once for each of `seeds`, on `nodes` nodes and its own, under the faults that the seed draws.

    Must not be called inside an event loop. `faults`: kinds that may happen, see `runtime.simulation.faults.KINDS`; all but "lost disk" if
    None, none if empty. Actors are found by their import path, as on any cluster; those of the test's own module will do.

    Raises `SimulationError` for the first seed under which the scenario raises, or a process ends by an error that is not one of ours.
    Raises ValueError for arguments that make no sense.
    """
    for seed in seeds:
        report = run_scenario(scenario, seed, nodes=nodes, faults=faults)
        wrong = [verdict for verdict in report.verdicts if not verdict.holds]
        if wrong:
            # Not among the words of the first line: a test's summary shows that one only.
            raise SimulationError(
                f"seed {seed} fails: {wrong[0].text.splitlines()[0]}\n"
                f"to see it again: simulate({getattr(scenario, '__name__', 'scenario')}, seeds=[{seed}], nodes={nodes})\n"
                f"faults: {', '.join(report.faults) or 'none'}\n\n{wrong[0].text}",
                report,
            )


def run_scenario(scenario: Scenario, seed: int, *, nodes: int = 3, faults: Iterable[str] | None = None) -> Report:
    """Run a scenario under one seed, and report."""
    if nodes < 1:
        raise ValueError(f"a cluster has one node at least, not {nodes}")
    allowed = tuple(kind for kind in KINDS if kind != WITHOUT_DISK) if faults is None else tuple(faults)
    check_kinds(allowed)
    began = real_seconds()
    performance = _Performance(scenario, seed, [*(f"node-{number}" for number in range(1, nodes + 1)), OWN], draw_faults(seed, allowed))
    cluster = run(seed, performance.main)
    return Report(
        seed=seed,
        nodes=tuple(cluster.machines),
        seconds=cluster.now(),
        took=real_seconds() - began,
        trace_hash=cluster.trace.digest(),
        faults=performance.faults,
        calls={},
        happenings=tuple(cluster.trace.happenings),
        verdicts=tuple(performance.verdicts),
    )


@attrs.define(eq=False)
class _Performance:
    scenario: Scenario
    seed: int
    names: list[str]
    faults: dict[str, float]
    verdicts: list[Verdict] = attrs.field(factory=list)
    error: BaseException | None = None

    async def main(self, clock: VirtualClock) -> SimulatedCluster:
        cluster = SimulatedCluster(self.seed, self.names, clock)
        await cluster.run(lambda: self._body(cluster))
        text = "" if self.error is None else _told(self.error)
        if text:
            cluster.trace.tell(OWN, "wrong", text.splitlines()[0])
        self.verdicts.append(Verdict("the scenario", self.error is None, text or "it ended without an error"))
        unexpected = "\n".join(cluster.unexpected)
        self.verdicts.append(
            Verdict("no unexpected end", not unexpected, unexpected or "no process ended by an error that is none of ours")
        )
        return cluster

    async def _body(self, cluster: SimulatedCluster) -> None:
        weather = Weather(cluster, self.faults, frozenset({OWN}))
        await all_up(cluster)
        node = await cluster.node(OWN)
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            bad_weather = await nursery.start(_blow, weather)
            with belonging_to(cluster.machines[OWN].process):
                nursery.start_soon(self._play, Simulation(cluster, node, weather, bad_weather), over)
            with trio.move_on_after(LIMIT_SECONDS):
                await over.wait()
            if not over.is_set():
                self.error = TimeoutError(f"the scenario had not ended after {LIMIT_SECONDS:g} virtual seconds")
            nursery.cancel_scope.cancel()
        weather.heal()

    async def _play(self, simulation: Simulation, over: trio.Event) -> None:
        try:
            await self.scenario(simulation)
        except Exception as error:
            self.error = error
        finally:
            over.set()


async def _blow(weather: Weather, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.move_on_after(FAULT_SECONDS) as scope:
        task_status.started(scope)
        await weather.run()
    weather.heal()


def _told(error: BaseException) -> str:
    """What went wrong, in one line, and below it where."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}\n\n{''.join(traceback.format_exception(error))}"
