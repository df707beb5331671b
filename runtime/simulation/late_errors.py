"""Late errors: methods that raise, some of them only when the attempt of their caller has had its
time.

What a method raises is the outcome of its call, whenever it comes: unless the policy lists it, the
call is not made again. So no call runs twice in one life of an actor, whatever fails meanwhile.
Only some seeds have late errors. They are drawn apart from everything else, so the runs of other
seeds are the same as without them.
"""

from __future__ import annotations

import random

import attrs
import trio

from actors import Actor, message, method
from actors.errors import UnderstudyError
from actors.retry import RetryPolicy
from runtime.node import Node
from runtime.simulation.load import Load

PAUSE = 1.5
"""Mean virtual seconds between two bursts of calls of a node."""

CALLS = 6
"""Calls of a burst, at most."""

METHOD_SECONDS = (0.0, 0.1, 0.25, 0.6)
"""Virtual seconds after which a method raises, one of these."""

AGAIN = RetryPolicy(max_retries=30, initial_delay=0.3, attempt_timeout=0.2, budget=None)
"""Attempts that most of the methods exceed."""

CALL_SECONDS = 10.0
"""Virtual seconds that a call is given. Without faults each has its outcome far sooner."""


@message
class WornOutError(Exception):
    """What the methods raise."""


class Wearer(Actor):
    """Raises, sooner or later."""

    def __init__(self) -> None:
        self.ran: set[int] = set()

    @method(concurrent=True, idempotent=True)
    async def wear_out(self, call: int, seconds: float) -> None:
        """Raise after so many seconds."""
        if call in self.ran:
            LateErrors.current().violated(self.node.name, f"call {call} ran twice in one actor")
        self.ran.add(call)
        await trio.sleep(seconds)
        raise WornOutError(str(call))


@attrs.define(eq=False)
class LateErrors(Load):
    """How the calls ended, and what was wrong with it."""

    title = "late errors"
    check = "what a method raises is the outcome"
    share = 0.1

    raised: int = 0
    _calls: int = 0
    _wearers: dict[str, str] = attrs.field(factory=dict)
    """By node: the name of its actor."""

    def summary(self) -> str:
        """Return how the calls ended."""
        return f"{self.raised} of {self._calls} calls ended with what their method raised"

    async def run(self, node: Node, draw: random.Random) -> None:
        """Make bursts of calls from one node until it is `over`."""
        self._calls += 1
        name = f"wearer {node.name} {node.incarnation} {self._calls}"
        try:
            await node.options(name=name, on=node.name).spawn(Wearer)
        except UnderstudyError:
            return
        self._wearers[node.name] = name
        async with trio.open_nursery() as nursery:
            while not self.over:
                await trio.sleep(draw.expovariate(1 / PAUSE))
                chosen = draw.choice(list(self._wearers.values()))
                try:
                    wearer = await node.lookup(chosen, Wearer)
                except UnderstudyError:
                    continue
                for _ in range(draw.randrange(CALLS) + 1):
                    nursery.start_soon(self._call, node, wearer, draw.choice(METHOD_SECONDS))

    async def _call(self, node: Node, wearer: Wearer, seconds: float) -> None:
        self._calls += 1
        call = self._calls
        try:
            await wearer.wear_out.options(retry=AGAIN, timeout=CALL_SECONDS)(call, seconds)
        except WornOutError as error:
            self.raised += 1
            if str(error) != str(call):
                self.violated(node.name, f"call {call} ended with the error of call {error}")
        except UnderstudyError as error:
            # What leaves in the end takes its calls with it.
            if self.oracle.fair and not self.over:
                self.violated(node.name, f"call {call} ended with {type(error).__name__}: {error}")
        else:
            self.violated(node.name, f"call {call} returned, and its method raises")
