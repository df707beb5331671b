"""First contacts: many nodes call all others for the first time at the same moment, round after
round.

Both ends of each pair dial, at times and over paths that the seed draws. In some seeds connections
break or fall silent meanwhile. The nodes of a round may live on for a while, call each other now
and then, and have more connections broken. No node dies, so no call may fail. Checked are each call
and its single execution, the number of connections that remain, and the log, in which nothing of
this is worth a warning. Only links and calls take part; there are no members and no store.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import starmap
from typing import Any, cast

import attrs
import trio

from actors import Actor, method
from actors.errors import HandshakeError, ProtocolError, UnderstudyError
from actors.handle import Handle
from actors.method import Address
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.routes import PeerDirectory
from runtime.environment import real_seconds
from runtime.hosting.host import ActorHost
from runtime.links.link import Link
from runtime.links.loans import FEATURE
from runtime.links.transports import Connection
from runtime.simulation.cluster import Machine, SimulatedEnvironment
from runtime.simulation.network import HostNetwork, SharedHostPools, SimulatedNetwork
from runtime.simulation.report import CheckResult, Report, Trace
from runtime.simulation.scheduler import VirtualClock, run
from runtime.timings import Timings
from runtime.wire.handshake import Introduction, Peer

GREETER = "@greeter"
PORT = 7400
SECRET = b"simulated"
CLUSTER = "simulated"

SPREADS = (0.0, 0.0005, 0.005, 0.05)
"""Seconds within which all nodes begin; one of these for each round: from one instant to longer
than a handshake takes.
"""

CUTS = (0.0, 0.0, 0.001, 0.02)
"""Mean seconds between two connections that break or fall silent; one of these for each round, 0
for none.
"""

CLOGS = (0.0, 0.0, 0.002, 0.05)
"""Mean seconds between two clogged paths; one of these for each round with cuts, 0 for none."""

CLOGGED = (0.5, 3.0, 8.0)
"""The most seconds that bytes take on a clogged path: also longer than the time-out of a dial, so
that offers arrive that were given up.
"""

DATA = 100_000
"""Bytes of a call between nodes that share hosts: so many are lent."""

AT_LENGTH = 4
"""How many such calls follow each other in the place of one."""

PORT_DIALS = 4
"""How often each of them dials the others of its host at their ports."""

LATER_CALLS = 10.0
"""Mean seconds between two calls of a node that lives on."""

LATER_CUTS = 15.0
"""Mean seconds between two connections that break meanwhile, if any do in that round."""

MOST_CUTS = 200
MOST_CLOGS = 40
ROUND_SECONDS = 120.0
"""Seconds until all calls must have been answered. A connection that has fallen silent costs some
seconds, and there may be several in turn.
"""

SETTLED_SECONDS = 5.0
"""Seconds from the last answer until superseded and broken connections must be gone."""


class Greeter(Actor):
    """Counts the calls that it gets."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    @method(concurrent=True)
    async def greet(self, call: str) -> str:
        """Count the call and return it."""
        self.ran[call] += 1
        return call

    @method(concurrent=True)
    async def greet_at_length(self, call: str, data: bytes) -> bytes:
        """Count the call and return the data."""
        self.ran[call] += 1
        return data


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname}: {record.getMessage()}")


@attrs.frozen(eq=False)
class OpenEndpoint:
    """The links and calls of one simulated node, and its network."""

    endpoint: RpcEndpoint
    network: HostNetwork


@attrs.frozen(eq=False)
class _EndpointMachine(OpenEndpoint):
    """One node of a round."""

    greeter: Greeter


@attrs.frozen(eq=False)
class Hosts:
    """Hosts of so many nodes each. If these are several they are called by numbers, have Unix
    sockets, and share memory, by its names in `memory`.
    """

    nodes: int = 1
    memory: dict[str, dict[int, int]] = attrs.field(factory=lambda: defaultdict(dict))

    def host(self, node: str) -> str:
        """The host of a node."""
        if self.nodes == 1:
            return node
        return f"host-{(int(node.removeprefix('node-')) - 1) // self.nodes + 1}"

    def peer(self, node: str, incarnation: int, life: str = "") -> Peer:
        """What a node says of itself."""
        host = self.host(node)
        if self.nodes == 1:
            return Peer(node, incarnation, "node", (f"tcp:{host}:{PORT}",), host, life=life)
        addresses = f"tcp:{host}:{PORT + int(node.removeprefix('node-'))}", f"unix:@{node}"
        return Peer(node, incarnation, "node", addresses, host, frozenset({FEATURE}), life=life)


class _FixedDirectory:
    """A directory in which all nodes are known from the beginning."""

    def __init__(self, hosts: Hosts) -> None:
        self.endpoint: RpcEndpoint | None = None
        self._hosts = hosts

    async def locate(self, name: str) -> Address:
        raise AssertionError("nothing is looked up here")

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        await trio.lowlevel.checkpoint()
        assert self.endpoint is not None
        return self.endpoint.peers.link(self._hosts.peer(node, incarnation))


async def open_endpoint(
    name: str,
    incarnation: int,
    seed: int,
    network: SimulatedNetwork,
    clock: VirtualClock,
    nursery: trio.Nursery,
    timings: Timings | None = None,
    hosts: Hosts | None = None,
) -> OpenEndpoint:
    """Open an endpoint that listens at `tcp:NAME:PORT`, or as `hosts` says, and finds others by
    their names.
    """
    hosts = hosts or Hosts()
    host = hosts.host(name)
    machine = Machine(host, random.Random(f"{seed} {name}"))
    environment = SimulatedEnvironment(
        machine, 1, f"{seed} {name} {incarnation}", lambda: clock.now, timings=timings
    )
    host_network, directory = HostNetwork(network, host), _FixedDirectory(hosts)
    peer = hosts.peer(name, incarnation, environment.token(8).hex())
    endpoint = directory.endpoint = RpcEndpoint(
        Introduction(CLUSTER, peer),
        SECRET,
        environment,
        host_network,
        nursery,
        PeerDirectory(directory.locate, directory.link_to),
        lambda endpoint: ActorHost(
            cast("Any", peer),
            nursery,
            environment,
            lambda: cast("Any", None),
            endpoint.make_handle,
            lambda supervisor, address: None,
        ),
    )

    async def accept(connection: Connection) -> None:
        await endpoint.peers.accept(connection)

    if FEATURE in peer.features:
        host_network.shares_memory = True
        endpoint.peers.lending_pools = SharedHostPools(environment, hosts.memory[host])
    for address in peer.addresses:
        await nursery.start(host_network.listen, address, accept)
    nursery.start_soon(endpoint.peers.beat)
    return OpenEndpoint(endpoint, host_network)


@attrs.define(eq=False)
class _ContactRounds:
    seed: int
    nodes: int
    rounds: int
    times: int
    cuts: bool
    seconds: float
    hosts: Hosts
    calls: Counter[str] = attrs.field(factory=Counter)
    failed: list[str] = attrs.field(factory=list)
    twice: list[str] = attrs.field(factory=list)
    late: list[str] = attrs.field(factory=list)
    crowded: list[str] = attrs.field(factory=list)
    declined: list[str] = attrs.field(factory=list)
    bytes_shared: int = 0
    warned: list[str] = attrs.field(factory=list)
    incarnations: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))

    async def main(self, clock: VirtualClock) -> Trace:
        trace = Trace(lambda: clock.now)
        logger, handler = logging.getLogger("understudy"), _Warnings()
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            for number in range(self.rounds):
                await self._round(number, clock, trace)
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate
        self.warned = handler.texts
        return trace

    async def _round(self, number: int, clock: VirtualClock, trace: Trace) -> None:
        draw = random.Random(f"{self.seed} first contacts {number}")
        network = SimulatedNetwork(random.Random(f"{self.seed} network {number}"), trace, clock)
        async with trio.open_nursery() as nursery:
            places: list[_EndpointMachine] = []
            for index in range(1, self.nodes + 1):
                opened = await open_endpoint(
                    f"node-{index}",
                    next(self.incarnations),
                    self.seed,
                    network,
                    clock,
                    nursery,
                    hosts=self.hosts,
                )
                greeter = Greeter()
                opened.endpoint.host.add_system(GREETER, greeter)
                places.append(_EndpointMachine(opened.endpoint, opened.network, greeter))
            spread, often, clogs = (
                draw.choice(SPREADS),
                draw.choice(CUTS) if self.cuts else 0.0,
                draw.choice(CLOGS) if self.cuts else 0.0,
            )
            text = (
                f"{f'a cut every {often:g} s' if often else 'no cuts'}, "
                f"{f'a path clogged every {clogs:g} s' if clogs else 'no clogs'}"
            )
            trace.tell("", "first contacts", f"round {number}: within {spread:g} s, {text}")
            with trio.move_on_after(ROUND_SECONDS) as patience:
                async with trio.open_nursery() as calls:
                    if often:
                        calls.start_soon(self._cut, network, draw, often, trace)
                    if clogs:
                        calls.start_soon(self._clog, network, draw, clogs, trace)
                    for place in places:
                        calls.start_soon(
                            self._greet_all, place, places, draw.random() * spread, number, trace
                        )
                        if self.hosts.nodes > 1:
                            calls.start_soon(
                                self._dial_ports, place, random.Random(draw.random()), spread
                            )
            if patience.cancelled_caught:
                self.late.append(
                    f"round {number}: not all calls were answered within {ROUND_SECONDS:g} s"
                )
            if self.seconds:
                await self._live_on(number, places, network, draw, trace, breaking=bool(often))
            for connection in network.connections:
                # No more cuts: what was scheduled to break later stays.
                connection.sends.cut_after = connection.receives.cut_after = math.inf
            # Offers that were given up may still be on a path that was clogged.
            await trio.sleep_until(max(clock.now, network.latest) + SETTLED_SECONDS)
            self._look(number, places)
            nursery.cancel_scope.cancel()

    async def _dial_ports(
        self, place: _EndpointMachine, draw: random.Random, spread: float
    ) -> None:
        """Dial the other nodes of the host at their ports, as nodes do that look for the store:
        dials to their Unix sockets that are under way are given up for it.
        """
        name = place.endpoint.identity[0]
        for other in (f"node-{index}" for index in range(1, self.nodes + 1)):
            if other != name and self.hosts.host(other) == self.hosts.host(name):
                for _ in range(PORT_DIALS):
                    await trio.sleep(draw.random() * spread)
                    with suppress(OSError, HandshakeError, ProtocolError):
                        await place.endpoint.peers.first_contact(
                            self.hosts.peer(other, 1).addresses[0]
                        )

    async def _live_on(
        self,
        number: int,
        places: list[_EndpointMachine],
        network: SimulatedNetwork,
        draw: random.Random,
        trace: Trace,
        *,
        breaking: bool,
    ) -> None:
        """Let the nodes live on for `seconds`, and each call another now and then."""
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(ROUND_SECONDS + self.seconds) as patience:
                async with trio.open_nursery() as calls:
                    if breaking:
                        nursery.start_soon(self._cut, network, draw, LATER_CUTS, trace)
                    for place in places:
                        calls.start_soon(
                            self._greet_now_and_then,
                            place,
                            places,
                            random.Random(draw.random()),
                            number,
                            trace,
                        )
            nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            self.late.append(
                f"round {number}: not all later calls were answered within {ROUND_SECONDS:g} s"
            )

    async def _greet_now_and_then(
        self,
        place: _EndpointMachine,
        places: list[_EndpointMachine],
        draw: random.Random,
        number: int,
        trace: Trace,
    ) -> None:
        until, others = trio.current_time() + self.seconds, [one for one in places if one != place]
        for time in itertools.count():
            await trio.sleep(draw.expovariate(1 / LATER_CALLS))
            if trio.current_time() > until:
                return
            other = draw.choice(others)
            call = (
                f"{number}: {place.endpoint.identity[0]} to {other.endpoint.identity[0]}, "
                f"later {time}"
            )
            await self._greet(place, other, call, trace)

    async def _greet_all(
        self,
        place: _EndpointMachine,
        places: list[_EndpointMachine],
        after: float,
        number: int,
        trace: Trace,
    ) -> None:
        await trio.sleep(after)
        async with trio.open_nursery() as nursery:
            for other in places:
                if other is not place:
                    for time in range(self.times):
                        call = (
                            f"{number}: {place.endpoint.identity[0]} to "
                            f"{other.endpoint.identity[0]}, {time}"
                        )
                        nursery.start_soon(self._greet, place, other, call, trace)

    async def _greet(
        self, place: _EndpointMachine, other: _EndpointMachine, call: str, trace: Trace
    ) -> None:
        if self.hosts.nodes == 1:
            await self._call(place, other, call, b"", trace)
            return
        # In turn: memory is announced with the first of them over a connection, and lent then.
        for time in range(AT_LENGTH):
            part = f"{call}, at length {time}"
            await self._call(place, other, part, (part.encode() * DATA)[:DATA], trace)

    async def _call(
        self, place: _EndpointMachine, other: _EndpointMachine, call: str, data: bytes, trace: Trace
    ) -> None:
        # With the default options: a call that may have run is not repeated.
        handle: Any = Handle(
            place.endpoint.caller, Address(GREETER, *other.endpoint.identity), Greeter.__methods__
        )
        try:
            answer = await (handle.greet_at_length(call, data) if data else handle.greet(call))
        except UnderstudyError as error:
            self.calls["failed"] += 1
            text = f"{call}: {type(error).__name__}: {error}"
            self.failed.append(text)
            trace.tell(place.endpoint.identity[0], "wrong", text)
        else:
            self.calls["ok"] += 1
            if answer != (data or call):
                self.failed.append(f"{call} was answered {answer!r:.200}")
        ran = other.greeter.ran[call]
        if ran != 1:
            self.twice.append(f"{call} ran {ran} times")

    async def _cut(
        self, network: SimulatedNetwork, draw: random.Random, often: float, trace: Trace
    ) -> None:
        """Break connections, or make them silent, while there are enough of them."""
        for _ in range(MOST_CUTS):
            await trio.sleep(draw.expovariate(1 / often))
            living = [
                one
                for one in network.connections
                if one.sends.sender_broken is None and not one.closed
            ]
            if not living:
                continue
            connection = draw.choice(living)
            hosts = " and ".join(connection.sends.hosts)
            if draw.random() < 0.2:
                connection.sends.vanished = connection.receives.vanished = True
                trace.tell(
                    "", "cut", f"connection {connection.sends.number} between {hosts} falls silent"
                )
            else:
                pipe = draw.choice((connection.sends, connection.receives))
                pipe.cut_after = pipe.sent + draw.choice((0, 10, 300, 3000)) * draw.random()
                trace.tell("", "cut", f"connection {pipe.number} between {hosts}")

    async def _clog(
        self, network: SimulatedNetwork, draw: random.Random, often: float, trace: Trace
    ) -> None:
        """Clog paths between some nodes, in one direction, for a moment, so that later bytes may be
        slower than earlier ones.
        """
        for _ in range(MOST_CLOGS):
            await trio.sleep(draw.expovariate(1 / often))
            drawn = draw.sample(range(1, self.nodes + 1), 2)
            one, other = (self.hosts.host(f"node-{index}") for index in drawn)
            path, seconds = network.path(one, other), draw.choice(CLOGGED)
            trace.tell("", "clog", f"{one} to {other}: up to {seconds:g} s")
            path.clog += seconds
            await trio.sleep(draw.random() * often)
            path.clog -= seconds

    def _look(self, number: int, places: list[_EndpointMachine]) -> None:
        """Check that each end of each pair has one link, that both belong to one session, and that
        one connection carries it.
        """
        for place in places:
            links = place.endpoint.peers.links
            if len(links) != len(places) - 1:
                self.crowded.append(
                    f"round {number}: {place.endpoint.identity[0]} has {len(links)} links to "
                    f"{len(places) - 1} nodes"
                )
            for link in links.values():
                link.check_invariants()
                self.bytes_shared += link.bytes_shared
                if link.lending is not None and link.lending.lender.is_refused:
                    self.declined.append(
                        f"round {number}: {link.peer.name} declined memory of "
                        f"{place.endpoint.identity[0]}, which is on its host"
                    )
                if not link.connected:
                    self.crowded.append(
                        f"round {number}: {place.endpoint.identity[0]} and {link.peer.name} are "
                        "not connected"
                    )
            open_ones = [
                one
                for one in place.network.connections
                if not one.closed and one.sends.sender_broken is None
            ]
            if len(open_ones) > len(places) - 1:
                self.crowded.append(
                    f"round {number}: {place.endpoint.identity[0]} has {len(open_ones)} connections"
                )


def first_contacts(
    seed: int,
    *,
    nodes: int = 8,
    rounds: int = 1,
    times: int = 2,
    cuts: bool = True,
    seconds: float = 0.0,
    nodes_of_host: int = 1,
) -> Report:
    """Run `rounds` rounds in which `nodes` nodes that never met call all others at once, `times`
    times each. `cuts`: connections break in some of the rounds. `seconds`: virtual seconds for
    which the nodes of a round live on, call each other now and then, and lose connections if they
    did before. `nodes_of_host`: so many are on each host, dial each other's Unix sockets as well as
    ports, call with large data, and lend each other memory. The report depends only on the
    arguments and this version of the code.
    """
    began = real_seconds()
    running = _ContactRounds(seed, nodes, rounds, times, cuts, seconds, Hosts(nodes_of_host))
    trace = run(seed, running.main)
    checks: Iterable[tuple[str, list[str], str]] = (
        ("no call fails", running.failed, f"{running.calls['ok']} calls were answered"),
        (
            "each call runs once",
            running.twice,
            "no call ran twice, or was answered without having run",
        ),
        ("every call ends", running.late, f"within {ROUND_SECONDS:g} s"),
        ("one session and one connection for each pair", running.crowded, "all pairs have settled"),
        ("nobody declines memory", running.declined, f"{running.bytes_shared} bytes were lent"),
        ("no warnings", running.warned, "nothing that is normal was worth a warning"),
    )
    names = [f"node-{index}" for index in range(1, nodes + 1)]
    results = starmap(CheckResult.of, checks)
    return trace.report(seed, names, real_seconds() - began, running.calls, results)
