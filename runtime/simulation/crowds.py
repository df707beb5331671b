"""Crowds: many calls at once to an actor that ends again and again and is restarted.

Without faults it is known how each call must end. Calls without a retry policy run in the order in
which they were made, in each life of the actor. Calls with one are all answered, however many of
them the actor had when it ended.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import UnderstudyError
from actors.retry import RetryPolicy
from runtime.node import Node, internals_of
from runtime.simulation.cluster import CLUSTER
from runtime.simulation.load import Load
from runtime.simulation.report import CheckResult

SUPERVISOR = "crowds"
NAME = "crowds/speaker"

CALLERS = 12
"""Calls that a node makes at once."""

CROWDED = 3
"""Frames that wait to be written from which on calls wait for their turns."""

REPEATED = RetryPolicy(max_retries=20, initial_delay=0.05, max_delay=0.5)


class Speaker(Actor):
    """An actor that receives many calls."""

    async def on_start(self) -> None:
        """Take a while, so that calls queue up."""
        await trio.sleep(CLUSTER.get().draw.choice((0.0, 0.05, 0.5)))

    @method
    async def hear(self, caller: str, number: int) -> None:
        """Record the number."""
        Crowds.current().heard(self.epoch, caller, number)

    @method(concurrent=True, idempotent=True)
    async def work(self, seconds: float) -> None:
        """Take some time."""
        await trio.sleep(seconds)

    @method(concurrent=True)
    async def end(self) -> None:
        """End the actor."""
        raise SystemExit(f"{self.name} was asked to")


@attrs.define(eq=False)
class Crowds(Load):
    """What the callers of all nodes do, and how their calls ended."""

    title = "crowds"
    check = "heard in order"

    latest: dict[tuple[int, str], int] = attrs.field(factory=dict)
    heard_in_all: int = 0
    answered: int = 0
    unanswered: list[str] = attrs.field(factory=list)
    _numbers: int = 0

    def heard(self, epoch: int, caller: str, number: int) -> None:
        """Record that a call begins to run."""
        self.heard_in_all += 1
        before = self.latest.get((epoch, caller), 0)
        self.latest[epoch, caller] = number
        if number < before:
            self.violated(
                "",
                f"in its epoch {epoch} {NAME} heard call {number} of {caller} after call "
                f"{before}, which was made later",
            )

    async def run(self, node: Node, draw: random.Random) -> None:
        """The callers of one node, until it is `over`."""
        if node.name == self.cluster.founder:
            spec = ChildSpec(id="speaker", actor=Speaker, options=SpawnOptions(name=NAME))
            await node.options(name=SUPERVISOR).spawn(Supervisor, [spec], intensity=1_000)
        speaker = await self._found(node)
        async with trio.open_nursery() as nursery:
            if node.name == self.cluster.founder:
                nursery.start_soon(self._end_it, speaker, draw)
            nursery.start_soon(self._speak, node, speaker, draw)
            nursery.start_soon(self._have_it_work, node, speaker, draw)

    def summary(self) -> str:
        """Return how many calls ran."""
        return f"{self.heard_in_all} calls to an actor that ends now and then"

    def check_results(self) -> Iterator[CheckResult]:
        """Return the results for calls without a retry policy, and for those with one."""
        yield from super().check_results()
        yield CheckResult.of(
            "repeated as the policy says",
            self.unanswered,
            f"{self.answered} calls to it were answered",
        )

    async def _found(self, node: Node) -> Speaker:
        while True:
            try:
                return await node.lookup(NAME, Speaker)
            except UnderstudyError:
                await trio.sleep(0.2)

    async def _end_it(self, speaker: Speaker, draw: random.Random) -> None:
        while not self.over:
            await trio.sleep(draw.uniform(1.0, 5.0))
            try:
                await speaker.end()
            except UnderstudyError:
                continue

    async def _speak(self, node: Node, speaker: Speaker, draw: random.Random) -> None:
        caller = f"{node.name}.{node.incarnation}"
        async with trio.open_nursery() as nursery:
            while not self.over:
                await trio.sleep(draw.uniform(0.1, 1.0))
                crowd_links(node)
                for _ in range(CALLERS):
                    nursery.start_soon(self._say, speaker, caller)
                    if draw.random() < 0.3:
                        await trio.sleep(draw.choice((0.0, 0.001, 0.01)))

    async def _say(self, speaker: Speaker, caller: str) -> None:
        self._numbers += 1
        try:
            # In one step, so that calls are made in the order of their numbers.
            await speaker.hear.options(timeout=20.0)(caller, self._numbers)
        except UnderstudyError:
            # The actor had the call when it ended.
            return

    async def _have_it_work(self, node: Node, speaker: Speaker, draw: random.Random) -> None:
        while not self.over:
            await trio.sleep(draw.uniform(0.5, 3.0))
            crowd_links(node)
            async with trio.open_nursery() as nursery:
                for _ in range(CALLERS):
                    nursery.start_soon(self._work, speaker, draw.uniform(0.0, 1.0))

    async def _work(self, speaker: Speaker, seconds: float) -> None:
        try:
            await speaker.work.options(timeout=30.0, retry=REPEATED)(seconds)
        except UnderstudyError as error:
            text = f"{NAME}.work was not answered: {type(error).__name__}: {error}"
            self.cluster.trace.violation(self.unanswered, "", text)
        else:
            self.answered += 1


def crowd_links(node: Node) -> None:
    """Let the present links of the node be crowded by few calls."""
    for link in internals_of(node).links.values():
        link.most_unwritten = CROWDED
