"""Idle connections: one end pings, and its pings and their answers serve both."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio

from actors.handle import Handle
from actors.method import Address
from runtime.links.link import Link
from runtime.simulation.first_contacts import GREETER, Greeter, OpenEndpoint, open_endpoint
from runtime.simulation.network import SimulatedNetwork
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import VirtualClock, run
from runtime.timings import Timings
from runtime.wire.frames import Kind

SECONDS = 60.0


def pings(
    monkeypatch: pytest.MonkeyPatch, first: Timings, second: Timings
) -> tuple[Counter[str], set[int]]:
    """How many pings each of two nodes sends to the other while nothing else is sent, and how many
    connections they have had.
    """
    sent: Counter[str] = Counter()
    send_control = Link.send_control

    def counted(self: Link, kind: Kind, control: bytes = b"", *, at_once: bool = False) -> None:
        if kind == Kind.PING:
            sent[{"a": "b", "b": "a"}[self.peer.name]] += 1
        send_control(self, kind, control, at_once=at_once)

    monkeypatch.setattr(Link, "send_control", counted)

    async def main(clock: VirtualClock) -> set[int]:
        network = SimulatedNetwork(random.Random(1), Trace(lambda: clock.now), clock)
        async with trio.open_nursery() as nursery:
            ends: list[OpenEndpoint] = []
            for number, (name, timings) in enumerate((("a", first), ("b", second))):
                end = await open_endpoint(name, number + 1, 1, network, clock, nursery, timings)
                end.endpoint.host.add_system(GREETER, Greeter())
                ends.append(end)
            a, b = (end.endpoint for end in ends)
            handle: Any = Handle(a.caller, Address(GREETER, *b.identity), Greeter.__methods__)
            await handle.greet("hello")
            await trio.sleep(SECONDS)
            had = {link.counters.connections for end in (a, b) for link in end.peers.links.values()}
            nursery.cancel_scope.cancel()
        return had

    return sent, run(1, main)


def test_only_the_end_that_leads_pings_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, connections = pings(monkeypatch, Timings(), Timings())
    assert sent["b"] == 0
    # Each time its own look at the links comes by after a beat.
    assert (
        SECONDS / (Timings().beat + 2 * Timings().link_look) <= sent["a"] < SECONDS / Timings().beat
    )
    assert connections == {1}


def test_the_other_end_pings_when_it_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, connections = pings(monkeypatch, Timings(lease=1000.0), Timings())
    assert sent["a"] == 0
    assert sent["b"] >= SECONDS / (2 * Timings().answering_beat)
    assert connections == {1}
