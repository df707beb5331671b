"""Handshakes that take long: each step has a time of its own, and not all of them together."""

from __future__ import annotations

import random
from typing import Any

import trio

from actors.handle import Handle
from actors.method import Address
from runtime.simulation.first_contacts import GREETER, Greeter, open_endpoint
from runtime.simulation.network import Path, SimulatedNetwork
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import VirtualClock, run
from runtime.timings import Timings

ONE_WAY = 1.0


class SlowNetwork(SimulatedNetwork):
    """All that is sent is under way for the same time."""

    def path(self, there: str, back: str) -> Path:
        """The path of all."""
        return Path(ONE_WAY, 0.0, 1e9)


def test_a_handshake_whose_steps_take_long_together_is_waited_for() -> None:
    # HELLO, CHALLENGE, PROOF, WELCOME: together they take longer than a step may, and no step does.
    timings = Timings(handshake=2.5 * ONE_WAY)
    assert timings.silence > 2 * ONE_WAY, "the connection would be dropped once it stands"
    connections: list[int] = []

    async def main(clock: VirtualClock) -> tuple[Trace, float]:
        trace = Trace(lambda: clock.now)
        network = SlowNetwork(random.Random(1), trace, clock)
        async with trio.open_nursery() as nursery:
            here = await open_endpoint("here", 1, 1, network, clock, nursery, timings)
            there = await open_endpoint("there", 2, 1, network, clock, nursery, timings)
            there.endpoint.host.add_system(GREETER, Greeter())
            handle: Any = Handle(
                here.endpoint.caller,
                Address(GREETER, *there.endpoint.identity),
                Greeter.__methods__,
            )
            with trio.fail_after(60):
                assert await handle.greet("hello") == "hello"
            connections.append(len(network.connections))
            nursery.cancel_scope.cancel()
        return trace, clock.now

    run(1, main)
    assert connections == [1], "the first dial must have stood"
