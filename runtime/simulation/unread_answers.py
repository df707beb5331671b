"""Callers that stop reading.

One node goes on calling and does not read the answers, for as long as the seed says. What the
called node keeps for it must stay bounded, other callers must be served as before, and when the
caller reads again, each of its calls must end with a true outcome.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any

import attrs
import trio

from actors import Actor, method
from actors.errors import AnswerDroppedError, NotExecutedError, UnderstudyError
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.method import Address
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import real_seconds
from runtime.links.transports import Connection
from runtime.simulation.first_contacts import open_endpoint
from runtime.simulation.network import SimulatedNetwork
from runtime.simulation.report import CheckResult, Report, Trace
from runtime.simulation.scheduler import VirtualClock, run

SERVICE = "server"
BACKLOG = 4 * 1024 * 1024
"""The bound of this scenario, in bytes. The real one would take minutes to fill."""

ANSWERS = (10, 2_000, 60_000, 2_000_000)
"""Bytes of an answer, one of these: small ones, whole frames, and one that is sent in parts."""

CALLS = 400
PATIENCE = 120.0
HONEST_SECONDS = 5.0
"""Virtual seconds that a call of a client that reads its answers may take."""


class Answerer(Actor):
    """Returns answers of the requested size, after a while."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()

    @method(concurrent=True)
    async def answer(self, call: int, size: int, seconds: float) -> bytes:
        """Return this many bytes."""
        self.ran[call] += 1
        await trio.sleep(seconds)
        return bytes(size)


class DeafConnection:
    """A connection that does not read while `deaf` is set; implements `Connection` of
    `runtime.links.transports`.
    """

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.channel = inner.channel
        self.hears = trio.Event()
        self.hears.set()

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send bytes over the real connection."""
        return self._inner.send_some(buffers)

    async def wait_writable(self) -> None:
        """Wait until the real connection may take more."""
        await self._inner.wait_writable()

    async def receive(self) -> bytes:
        """Return what the real connection has received, unless this side reads nothing."""
        await self.hears.wait()
        return await self._inner.receive()

    async def receive_into(self, buffer: memoryview) -> int:
        """Like `receive`, into `buffer`."""
        await self.hears.wait()
        return await self._inner.receive_into(buffer)

    def let_others_receive(self, act: Callable[[bytes], None]) -> None:
        """Return None: only the reader is deaf."""

    def close(self) -> None:
        """Drop the real connection."""
        self.hears.set()
        self._inner.close()


@attrs.define(eq=False)
class _UnreadRun:
    seed: int
    calls: Counter[str] = attrs.field(factory=Counter)
    kept: int = 0
    wrong: list[str] = attrs.field(factory=list)
    beyond: list[str] = attrs.field(factory=list)
    disturbed: list[str] = attrs.field(factory=list)
    late: list[str] = attrs.field(factory=list)

    async def main(self, clock: VirtualClock) -> Trace:
        draw = random.Random(f"{self.seed} unread answers")
        trace = Trace(lambda: clock.now)
        network = SimulatedNetwork(random.Random(f"{self.seed} network"), trace, clock)
        async with trio.open_nursery() as nursery:
            server = await open_endpoint("server", 1, self.seed, network, clock, nursery)
            deaf = await open_endpoint("deaf", 2, self.seed, network, clock, nursery)
            honest = await open_endpoint("honest", 3, self.seed, network, clock, nursery)
            answerer = Answerer()
            server.endpoint.host.add_system(SERVICE, answerer)
            lines: list[DeafConnection] = []
            connect = deaf.network.connect

            async def connect_deaf(address: str) -> Connection:
                lines.append(DeafConnection(await connect(address)))
                return lines[-1]

            deaf.network.connect = connect_deaf  # type: ignore[method-assign]
            await self._call(deaf.endpoint, server.endpoint, answerer, -1, 10, 0.0)
            deaf.endpoint.peers.links[server.endpoint.identity].watched = True
            server.endpoint.peers.links[deaf.endpoint.identity].most_backlog = BACKLOG
            nursery.start_soon(self._look, server.endpoint, deaf.endpoint.identity)
            nursery.start_soon(self._call_honestly, honest.endpoint, server.endpoint, answerer)
            lines[-1].hears = trio.Event()
            with trio.move_on_after(PATIENCE) as patience:
                async with trio.open_nursery() as calls:
                    for number in range(CALLS):
                        size, seconds = (
                            draw.choice(ANSWERS),
                            draw.choice((0.0, 0.0, 0.5)) * draw.random(),
                        )
                        calls.start_soon(
                            self._call,
                            deaf.endpoint,
                            server.endpoint,
                            answerer,
                            number,
                            size,
                            seconds,
                        )
                        await trio.sleep(draw.expovariate(CALLS / 2.0))
                    await trio.sleep(draw.uniform(0.0, 5.0))
                    for line in lines:
                        line.hears.set()
            if patience.cancelled_caught:
                self.late.append(f"not all calls had ended after {PATIENCE:g} s")
            nursery.cancel_scope.cancel()
        return trace

    async def _call(
        self,
        here: RpcEndpoint,
        there: RpcEndpoint,
        answerer: Answerer,
        number: int,
        size: int,
        seconds: float,
    ) -> None:
        handle: Any = Handle(here.caller, Address(SERVICE, *there.identity), Answerer.__methods__)
        least = 1
        try:
            answer = await handle.answer(number, size, seconds)
        except NotExecutedError:
            how, least = "refused", 0
        except AnswerDroppedError:
            how = "dropped"
        except UnderstudyError as error:
            how = "lost"
            self.wrong.append(f"call {number}: {type(error).__name__}: {error}")
        else:
            how = "ok"
            if len(answer) != size:
                self.wrong.append(f"call {number} was answered with {len(answer)} bytes of {size}")
        self.calls[how] += 1
        if answerer.ran[number] != least:
            self.wrong.append(
                f"call {number} ended with {how!r}, and ran {answerer.ran[number]} times"
            )

    async def _call_honestly(
        self, here: RpcEndpoint, there: RpcEndpoint, answerer: Answerer
    ) -> None:
        handle: Any = Handle(here.caller, Address(SERVICE, *there.identity), Answerer.__methods__)
        number = CALLS
        while True:
            number += 1
            with trio.move_on_after(HONEST_SECONDS) as patience:
                try:
                    await handle.answer(number, 2_000, 0.0)
                except UnderstudyError as error:
                    self.disturbed.append(f"{type(error).__name__}: {error}")
            if patience.cancelled_caught:
                self.disturbed.append(f"call {number} took longer than {HONEST_SECONDS:g} s")
            await trio.sleep(0.05)

    async def _look(self, server: RpcEndpoint, deaf: NodeId) -> None:
        """Return the bytes that are kept for the caller, counted without asking the link."""
        while True:
            await trio.sleep(0.01)
            link = server.peers.links.get(deaf)
            kept = (
                link.session.kept_bytes + link._transfers.waiting_bytes if link is not None else 0
            )
            self.kept = max(self.kept, kept)
            if kept > 2 * BACKLOG + max(ANSWERS) + CALLS * 1024:
                self.beyond.append(
                    f"{kept} bytes of answers are kept for a caller that does not read"
                )


def unread_answers(seed: int) -> Report:
    """Run the scenario once. The report depends only on the seed and this version of the code."""
    began = real_seconds()
    running = _UnreadRun(seed)
    trace = run(seed, running.main)
    checks: Iterable[tuple[str, list[str], str]] = (
        (
            "answers are bounded",
            running.beyond,
            f"{running.kept} bytes at most were kept for a caller that did not read",
        ),
        (
            "outcomes are true",
            running.wrong,
            "what was refused did not run, what was dropped ran once",
        ),
        ("others are served", running.disturbed, "a caller that reads was answered all the time"),
        ("every call ends", running.late, f"within {PATIENCE:g} s"),
    )
    names = ("server", "deaf", "honest")
    results = starmap(CheckResult.of, checks)
    return trace.report(seed, names, real_seconds() - began, running.calls, results)
