"""Faults on purpose, for tests: the fixture `faults`. Its methods return when the fault has begun,
and block nothing, so they are plain functions in every kind of test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, Self

from runtime.cluster_processes import NodeProcess
from runtime.simulation.cluster import SimulatedCluster
from runtime.simulation.faults import check_seconds, check_sides
from runtime.simulation.network import SimulatedConnection
from runtime.testing.virtual_cluster import DRIVER, VirtualRun, known

Do = Callable[[Callable[[], None]], None]
"""Calls a function where faults may be made: in the event loop that they concern."""


class OngoingFault:
    """A fault that lasts: until `heal`, or the end of its `with` block, or of the test."""

    def __init__(self, do: Do, end: Callable[[], None]) -> None:
        self._do = do
        self._end: Callable[[], None] | None = end

    def heal(self) -> None:
        """End it. Ending what has ended does nothing."""
        end, self._end = self._end, None
        if end is not None:
            self._do(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.heal()


class VirtualFaults:
    """Faults of the simulated cluster of the fixture `cluster`. They act on `worker-1`, `worker-2`,
    ...; connections may be those of `driver`, the test's own node, too.
    """

    def __init__(self, run: VirtualRun, do: Do) -> None:
        self._run = run
        self._do = do
        self._ongoing: list[OngoingFault] = []

    def cut(self, name: str, *others: str) -> OngoingFault:
        """Let nothing through between a node and the others, or all nodes if none is named. Calls
        wait, within their deadlines; after longer than a lease the node loses its actors' names.
        """
        self._check(name, *others)
        if name in others:
            raise ValueError(f"nothing is cut between node {name!r} and itself: name others")
        there = others or tuple(each for each in (DRIVER, *self._run.workers) if each != name)
        return self.partition([name], there)

    def partition(self, *sides: Iterable[str]) -> OngoingFault:
        """Let nothing through between nodes of different sides. A node on no side reaches all."""
        named = check_sides(sides)
        for side in named:
            self._check(*side)
        return self._lasting(lambda cluster: cluster.partition(*named))

    def delay(self, one: str, other: str, seconds: float) -> OngoingFault:
        """Let bytes between two nodes take so many seconds longer, in each direction."""
        self._check_two(one, other)
        check_seconds("a delay", seconds, math.ulp(0.0))

        def begin(cluster: SimulatedCluster) -> Callable[[], None]:
            paths = cluster.network.path(one, other), cluster.network.path(other, one)
            for path in paths:
                path.delay += seconds
            cluster.trace.tell("", "clog", f"{one} and {other}: {seconds:g} s")

            def end() -> None:
                for path in paths:
                    path.delay -= seconds
                cluster.trace.tell("", "heal", f"{one} and {other}: {seconds:g} s")

            return end

        return self._lasting(begin)

    def reset(self, one: str, other: str) -> None:
        """Break the connections that two nodes have now. They may dial again at once."""
        self._check_two(one, other)

        def begin() -> None:
            cluster = self._run.current
            for connection in _between(cluster, one, other):
                connection.sends.put(None)
                connection.receives.put(None)
            cluster.trace.tell("", "cut", f"the connections between {one} and {other}")

        self._do(begin)

    def kill(self, name: str, *, restart_after: float | None = None) -> None:
        """Kill a node's process, as SIGKILL does. It is started again after `restart_after` virtual
        seconds, or by `cluster.start_node(name)`.
        """
        known(self._run, name)
        if restart_after is not None:
            check_seconds("restart_after", restart_after, 0.0)

        def begin() -> None:
            machine = self._run.current.machines[name]
            machine.want(running=restart_after is not None)
            machine.restart_after = restart_after or 0.0
            self._run.current.crash(name)

        self._do(begin)

    def pause(self, name: str) -> OngoingFault:
        """Stop a node's process from running, as SIGSTOP does."""
        known(self._run, name)

        def begin(cluster: SimulatedCluster) -> Callable[[], None]:
            cluster.pause(name)
            return lambda: cluster.resume(name)

        return self._lasting(begin)

    def block(self, name: str) -> OngoingFault:
        """Stop a node's event loop, as a method does that computes; its lease is kept meanwhile,
        for a while.
        """
        known(self._run, name)

        def begin(cluster: SimulatedCluster) -> Callable[[], None]:
            cluster.block_loop(name)
            return lambda: cluster.unblock_loop(name)

        return self._lasting(begin)

    def silence_store(self) -> OngoingFault:
        """Let the cluster's store answer nothing, though its node is well."""
        return self._lasting(lambda cluster: cluster.silence_store())

    def heal(self) -> None:
        """End all faults that last. What was killed stays killed; see `cluster.start_node`."""
        ongoing, self._ongoing = self._ongoing, []
        for fault in ongoing:
            fault.heal()

    def _lasting(self, begin: Callable[[SimulatedCluster], Callable[[], None]]) -> OngoingFault:
        ends: list[Callable[[], None]] = []
        self._do(lambda: ends.append(begin(self._run.current)))
        fault = OngoingFault(self._do, ends[0])
        self._ongoing.append(fault)
        return fault

    def _check(self, *names: str) -> None:
        for name in names:
            if name != DRIVER:
                known(self._run, name)

    def _check_two(self, one: str, other: str) -> None:
        self._check(one, other)
        if one == other:
            raise ValueError(f"name two nodes: nothing is between node {one!r} and itself")


def _between(cluster: SimulatedCluster, one: str, other: str) -> list[SimulatedConnection]:
    return [
        each
        for each in cluster.network.connections
        if each.sends.sender_broken is None and set(each.sends.hosts) == {one, other}
    ]


class ProcessFaults:
    """Faults of the processes of the fixture `local_cluster`: real signals."""

    def __init__(self, processes: Callable[[], Mapping[str, NodeProcess]], do: Do) -> None:
        self._processes = processes
        self._do = do
        self._ongoing: list[OngoingFault] = []

    def kill(self, name: str) -> None:
        """Kill a node's process (SIGKILL). When this returns it runs no more."""
        self._do(self._process(name).kill)

    def pause(self, name: str) -> OngoingFault:
        """Stop a node's process from running (SIGSTOP)."""
        process = self._process(name)
        self._do(process.pause)
        fault = OngoingFault(self._do, process.resume)
        self._ongoing.append(fault)
        return fault

    def heal(self) -> None:
        """Let go on what was paused. What was killed stays killed; see
        `local_cluster.start_node`.
        """
        ongoing, self._ongoing = self._ongoing, []
        for fault in ongoing:
            fault.heal()

    def _process(self, name: str) -> NodeProcess:
        processes = self._processes()
        if name not in processes:
            raise ValueError(
                f"there is no process for a node {name!r}; there are: "
                f"{', '.join(processes) or 'none'}"
            )
        return processes[name]

    def __getattr__(self, name: str) -> NoReturn:
        if name in vars(VirtualFaults):
            raise AttributeError(
                f"faults.{name}: nothing stands between real processes that could do this; use the "
                "fixture `cluster`, whose network is simulated"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
