"""The simulator's network for tests that run trio themselves: no sockets, so that a virtual clock
may jump, and every run is decided by its seeds.
"""

from __future__ import annotations

import errno
import heapq
import math
import random
from collections.abc import Callable

import trio

from runtime.simulation.network import HostNetwork, Path, SimulatedNetwork
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import VirtualClock


class RunClock(VirtualClock):
    """The clock of the run of trio that a test is, with calls at a time: those of one time in the
    order in which they were asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waits: trio.CancelScope | None = None

    def current_time(self) -> float:
        """Seconds on trio's clock."""
        return trio.current_time()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call a function at a time; at once if it has come, and no earlier call is due."""
        if when <= trio.current_time() and not self._due:
            action()
            return
        super().at(when, action)
        if self._waits is None:
            self._waits = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._make_calls)
        # An earlier call than the one that is waited for.
        self._waits.deadline = min(self._waits.deadline, when)

    async def _make_calls(self) -> None:
        while self._due:
            with trio.CancelScope(deadline=self._due[0][0]) as self._waits:
                await trio.sleep_forever()
            while self._due and self._due[0][0] <= trio.current_time():
                heapq.heappop(self._due)[2]()
        self._waits = None


class EvenNetwork(SimulatedNetwork):
    """The simulator's network where all paths are alike: what is sent is under way for up to
    `latency` seconds, drawn anew each time.
    """

    def __init__(self, latency: float, draw: random.Random) -> None:
        clock = RunClock()
        super().__init__(draw, Trace(clock.current_time), clock)
        self._even = Path(0.0, latency, math.inf)

    def path(self, there: str, back: str) -> Path:
        """The path of all."""
        return self._even


class MemoryNetwork(HostNetwork):
    """Connects the nodes of one event loop, as processes of one host. `latency`: see
    `EvenNetwork`; `draw` draws it.
    """

    def __init__(self, latency: float = 0.0, draw: random.Random | None = None) -> None:
        super().__init__(EvenNetwork(latency, draw or random.Random(0)), "127.0.0.1")

    def beside(self) -> None:
        """None: the network of one event loop."""

    def reset_all(self) -> None:
        """Break every connection at once, at both ends; what was on its way is lost."""
        for connection in self.connections:
            connection.sends.break_sender(ConnectionResetError(errno.ECONNRESET, "reset"))
