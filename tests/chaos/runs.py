"""The three chaos runs: what is started, which faults are drawn, and what is looked for when they
have ended.

- `namespaces`: a founder on a data directory and four more nodes, each on a host of its own, which
  are killed, stopped, cut off, and made unable to reach one another, one way or both;
- `etcd`: the store in an etcd of three members, which are killed and stopped, like the five nodes;
- `founder`: the founder, which keeps the store, is killed under writes, again and again.

In all of them a seed draws the faults; when each comes depends on the machine as well.
"""

from __future__ import annotations

import gc
import random
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from actors.errors import ActorStartError, CallError, JoinError, StoreError
from runtime import Node, open_node
from runtime.node import internals_of
from runtime.testing import EtcdServer, open_etcd
from tests.chaos.books import Books
from tests.chaos.callers import NODE_LABELS, Callers, read_ledgers
from tests.chaos.fleet import SECRET, Fleet, Seat, left_behind
from tests.chaos.hosts import Host, Network, open_network
from tests.free_addresses import free_address
from tests.waiting import until

NODES = 5
SETTLE_SECONDS = 60.0
"""After the last fault: within this nothing may be left of what has ended."""
MEMORY_BYTES = 400 << 20
"""Resident memory that no node may exceed at the end."""
LABELS = tuple(f"--label={key}={value}" for key, value in NODE_LABELS.items())

Strike = Callable[[], Awaitable[None]]


@attrs.define
class Run:
    """One run under way. `open_callers`: opens the callers' node. `strikes`: the faults by name;
    each takes its own time.
    """

    open_callers: Callable[[], AbstractAsyncContextManager[Node]]
    fleet: Fleet
    books: Books
    draw: random.Random
    strikes: dict[str, Strike] = attrs.field(factory=dict)

    async def kill(self, name: str) -> None:
        """End a node's process at once; the fleet starts it again."""
        if self.fleet.signal(name, signal.SIGKILL):
            await trio.sleep(self.draw.uniform(0.5, 3))

    async def pause(self, name: str) -> None:
        """Stop a node's process, often for longer than its lease."""
        if self.fleet.signal(name, signal.SIGSTOP):
            await trio.sleep(self.draw.uniform(0.2, 9))
            self.fleet.signal(name, signal.SIGCONT)

    def any_node(self) -> str:
        """A node that may be killed or stopped."""
        return self.draw.choice(sorted(self.fleet.seats))

    async def strike_for(self, seconds: float) -> None:
        """Draw faults and let them happen, two at a time, until the time is over and each has been
        taken back.
        """
        end = trio.current_time() + seconds

        async def strike() -> None:
            while trio.current_time() < end:
                name = self.draw.choice(sorted(self.strikes))
                self.books.faults[name] += 1
                await self.strikes[name]()
                await trio.sleep(self.draw.uniform(0.2, 2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(strike)
            nursery.start_soon(strike)


@asynccontextmanager
async def open_fleet(books: Books) -> AsyncIterator[Fleet]:
    """A fleet without nodes. What lives of its processes after the block is a leak."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="understudy-chaos-") as directory:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(nursery, mark, Path(directory))
            try:
                yield fleet
            finally:
                with trio.CancelScope(shield=True):
                    await fleet.stop()
                nursery.cancel_scope.cancel()
    books.leaks += [f"a process was left behind: {each}" for each in left_behind(mark)]


async def attack(run: Run, strike: Callable[[], Awaitable[None]]) -> None:
    """Call while `strike` runs, then look at what is left."""
    callers = Callers(run.books, run.draw.getrandbits(32))
    began = trio.current_time()

    async def strike_then_stop() -> None:
        await strike()
        callers.stopping = True
        run.books.seconds = trio.current_time() - began

    async with trio.open_nursery() as nursery:
        nursery.start_soon(strike_then_stop)
        over = False
        while not over:
            # A store that is away for longer than a lease costs the callers' node its place, like
            # any other: it comes back as a new one.
            async with lost_place(run.books), run.open_callers() as node:
                await callers.run(node)
                if callers.stopping:
                    await read_ledgers(node, run.books)
                    await look_for_leaks(run, node)
                    over = True


@asynccontextmanager
async def lost_place(books: Books) -> AsyncIterator[None]:
    """The callers' node may find no store, or lose it: counted, and tried again."""
    try:
        yield
    except (CallError, StoreError, JoinError, ActorStartError) as error:
        books.errors[f"callers' node: {type(error).__name__}"] += 1
        await trio.sleep(0.2)


async def look_for_leaks(run: Run, node: Node) -> None:
    """Wait until every node runs and nothing is kept of what has ended; what is still there after
    the time for that is a leak.
    """
    # A call that failed may be kept by the traceback of its error, which is a cycle: no leak of the
    # runtime's.
    gc.collect()
    leaks: list[str] = ["no node was asked"]
    with trio.move_on_after(SETTLE_SECONDS):
        while leaks:
            leaks = await _leaks(run, node)
            if leaks:
                await trio.sleep(1)
    run.books.leaks += leaks


async def _leaks(run: Run, node: Node) -> list[str]:
    members = {member.name: member.incarnation for member in node.members()}
    found = [f"{name} is no member" for name in run.fleet.seats if name not in members]
    seen: list[str] = []
    for name, incarnation in sorted(members.items()):
        try:
            facts = (
                await internals_of(node)
                .endpoint.node_service(name, incarnation)
                .options(timeout=3.0)
                .status()
            )
        except CallError as error:
            found.append(f"{name} does not answer: {error!r}")
            continue
        seen += [actor["name"] for actor in facts["actors"]]
        references = facts["references"]
        if references["owned"] or references["held"]:
            found.append(
                f"{name} has references: owned {references['owned']}, held {references['held']}: "
                f"{await _listed(node, name, incarnation)}"
            )
        found += [
            f"{name} has a link to {link['peer']}, which is gone"
            for link in facts["links"]
            if link["peer"] not in members
        ]
        used = _resident(facts["pid"], run.fleet.seats.get(name))
        if used > MEMORY_BYTES:
            found.append(f"{name} uses {used >> 20} MiB")
    return found + [
        f"{name} runs {seen.count(name)} times"
        for name in sorted(set(seen))
        if seen.count(name) > 1
    ]


async def _listed(node: Node, name: str, incarnation: int) -> object:
    """The references of a node one by one, to find out why they are still there."""
    try:
        return (
            await internals_of(node)
            .endpoint.reference_service(name, incarnation)
            .options(timeout=3.0)
            .listing(10)
        )
    except CallError as error:
        return repr(error)


def _resident(pid: int, seat: Seat | None) -> int:
    """Bytes of resident memory of a process, which in another process namespace calls
    itself `pid`.
    """
    real = seat.pid if seat is not None else pid
    text = (
        Path(f"/proc/{real}/status").read_text() if real and Path(f"/proc/{real}").exists() else ""
    )
    return next(
        (int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS")), 0
    )


async def run_namespaces(seconds: float, seed: int) -> Books:
    """Five nodes on five hosts of a network with faults."""
    books = Books()
    tag = f"{random.SystemRandom().randrange(1 << 16):04x}"
    with tempfile.TemporaryDirectory(prefix="understudy-founder-") as directory:
        async with open_network(NODES, tag) as network, open_fleet(books) as fleet:
            hosts = {f"n{number}": host for number, host in enumerate(network.hosts)}
            first = f"{hosts['n0'].address}:7400"
            for name, host in hosts.items():
                way = ("--data-dir", directory) if name == "n0" else ("--join", first)
                await fleet.add(
                    name, "--listen", f"{host.address}:7400", *way, *LABELS, prefix=host.prefix
                )
            callers = partial(
                open_node, "callers", secret=SECRET, join=first, listen=f"{network.address}:0"
            )
            run = Run(callers, fleet, books, random.Random(seed))
            run.strikes = _network_faults(run, network, hosts) | _node_faults(run)
            await attack(run, partial(run.strike_for, seconds))
    return books


def _node_faults(run: Run) -> dict[str, Strike]:
    return {
        "node killed": lambda: run.kill(run.any_node()),
        "node stopped": lambda: run.pause(run.any_node()),
    }


def _network_faults(run: Run, network: Network, hosts: dict[str, Host]) -> dict[str, Strike]:
    """Faults of the network; each ends before it returns. A host has one of a kind at a time:
    taking back one would take back another.
    """
    cut: set[str] = set()
    deaf: set[tuple[str, str]] = set()

    async def cut_off() -> None:
        name = run.any_node()
        if name in cut:
            return
        cut.add(name)
        await network.cut(hosts[name])
        await trio.sleep(run.draw.uniform(0.2, 8))
        await network.join(hosts[name])
        cut.discard(name)

    async def part(pairs: list[tuple[str, str]]) -> None:
        new = [pair for pair in pairs if pair not in deaf]
        deaf.update(new)
        for one, other in new:
            await network.deafen(hosts[one], hosts[other])
        await trio.sleep(run.draw.uniform(0.2, 8))
        for one, other in new:
            await network.restore(hosts[one], hosts[other])
        deaf.difference_update(new)

    async def one_way() -> None:
        one, other = run.draw.sample(sorted(hosts), 2)
        await part([(one, other)])

    async def partition() -> None:
        side = set(run.draw.sample(sorted(hosts), 2))
        pairs = [(one, other) for one in side for other in hosts if other not in side]
        await part(pairs + [(other, one) for one, other in pairs])

    return {"host cut off": cut_off, "one way lost": one_way, "partition": partition}


async def run_etcd(seconds: float, seed: int) -> Books:
    """Five nodes whose store is an etcd of three members."""
    books = Books()
    async with open_etcd(3) as etcd, open_fleet(books) as fleet:
        for number in range(NODES):
            await fleet.add(
                f"n{number}", "--store", etcd.address, "--listen", "127.0.0.1:0", *LABELS
            )
        run = Run(
            partial(open_node, "callers", secret=SECRET, store=etcd.address),
            fleet,
            books,
            random.Random(seed),
        )
        run.strikes = _store_faults(run, etcd) | _node_faults(run)
        await attack(run, partial(run.strike_for, seconds))
    return books


def _store_faults(run: Run, etcd: EtcdServer) -> dict[str, Strike]:
    """Faults of etcd's members, one member at a time: with two of three gone there is no store at
    all, which would only end all leases.
    """
    lock = trio.Lock()

    async def kill() -> None:
        async with lock:
            index = run.draw.randrange(len(etcd.members))
            etcd.kill(index)
            await trio.sleep(run.draw.uniform(0.2, 3))
            await etcd.start(index)
            await etcd.ready()

    async def pause() -> None:
        async with lock:
            index = run.draw.randrange(len(etcd.members))
            etcd.pause(index)
            await trio.sleep(run.draw.uniform(0.2, 5))
            etcd.resume(index)

    return {"store's member killed": kill, "store's member stopped": pause}


async def run_founder(kills: int, seed: int) -> Books:
    """Three nodes under a founder that is killed `kills` times while ledgers save."""
    books = Books()
    with tempfile.TemporaryDirectory(prefix="understudy-founder-") as directory:
        async with open_fleet(books) as fleet:
            # The founder comes back to it.
            first = free_address()
            founder = await fleet.add("founder", "--listen", first, "--data-dir", directory)
            for number in range(3):
                await fleet.add(f"n{number}", "--join", first, "--listen", "127.0.0.1:0", *LABELS)
            run = Run(
                partial(open_node, "callers", secret=SECRET, join=first),
                fleet,
                books,
                random.Random(seed),
            )

            async def kill() -> None:
                while books.faults["founder killed"] < kills:
                    with trio.fail_after(60):
                        await founder.ready.wait()
                    await trio.sleep(run.draw.uniform(0.0, 1.5))
                    books.faults["founder killed"] += fleet.signal("founder", signal.SIGKILL)
                    await until(
                        lambda: not founder.ready.is_set(), "the fleet has seen its end", every=0.01
                    )

            await attack(run, kill)
    return books
