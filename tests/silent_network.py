"""A simulated network of which single hosts can be silenced, for tests on a virtual clock."""

from __future__ import annotations

import random

from runtime.simulation.network import SimulatedNetwork
from runtime.simulation.report import Trace
from tests.memory_network import RunClock


class SilentNetwork(SimulatedNetwork):
    """Hosts of which one can stop to send and to receive. `hosts`: the names of all."""

    def __init__(self, *hosts: str) -> None:
        clock = RunClock()
        super().__init__(random.Random(0), Trace(clock.current_time), clock)
        self._all_hosts = hosts

    def silence(self, host: str) -> None:
        """What is sent to it and by it does not arrive; no connection breaks."""
        self._block(host, 1)

    def hear(self, host: str) -> None:
        """It arrives again, also what was sent meanwhile."""
        self._block(host, 0)
        self.freed()

    def _block(self, host: str, faults: int) -> None:
        for other in self._all_hosts:
            self.path(host, other).blocked = faults
            self.path(other, host).blocked = faults
