"""Outbursts: actors that raise anything anywhere: objects that are no `Exception`, exceptions that
another library reserves for itself, and ones that do harm when they are inspected.

Whatever user code raises ends its call or its actor, and nothing more. So the node goes on, the
call ends with one of its outcomes, and an actor beside it answers. Only some seeds have them. They
are drawn apart from everything else, so the runs of other seeds are the same as without them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import attrs
import trio

from actors import Actor, message, method
from actors.class_names import class_name
from actors.errors import ActorStartError, CallError, RemoteError, UnderstudyError
from runtime.hosting.orderly_stop import STOP_SECONDS
from runtime.node import Node
from runtime.simulation.load import Load
from runtime.user_errors import is_cancellation

ACTORS = 3
PAUSE = 1.0
"""Mean seconds between the calls of a node."""

SECONDS = 4.0
"""Seconds that a call is given."""

MOST_SECONDS = 10.0
"""Seconds that a start and a call are given together."""

LATE = STOP_SECONDS + 0.2
"""Seconds by which they may exceed that: a start that is cancelled first releases the actor's name,
which may take this long.
"""

WAYS = ("in_turn", "beside", "in_thread", "in_a_nursery", "midway", "on_start", "in_constructor")

KEPT = "a cancellation that was kept"
"""A cancellation that is raised again although nothing is cancelled."""


class PanicError(BaseException):
    """An exception that is no `Exception`, as libraries of other languages have them."""


class TextError(Exception):
    """Its texts raise exceptions that end processes."""

    def __str__(self) -> NoReturn:
        raise SystemExit("str")

    def __repr__(self) -> NoReturn:
        raise PanicError("repr")


class LookError(Exception):
    """Raises for each attribute that is read."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise SystemExit(name)


class EqualityError(Exception):
    """Raises when it is compared, hashed or tested for its truth value."""

    def __eq__(self, other: object) -> NoReturn:
        raise KeyboardInterrupt

    def __hash__(self) -> NoReturn:
        raise KeyboardInterrupt

    def __bool__(self) -> NoReturn:
        raise KeyboardInterrupt


@message
class BuildError(Exception):
    """A registered exception, which would be built again at the receiver, but its class does not
    allow that.
    """

    def __init__(self, one: int, two: int, *, three: int) -> None:
        super().__init__("built")
        self.sum = one + two + three


@message
class AttributeOfItsOwnError(Exception):
    """Has attributes of a call error, whose getters raise."""

    node = property(lambda self: 1 / 0)
    actor = property(lambda self: 1 / 0)


def _group() -> BaseException:
    return BaseExceptionGroup(
        "all at once",
        [
            KeyboardInterrupt(),
            TextError(),
            BaseExceptionGroup("within", [PanicError(), SystemExit(3)]),
        ],
    )


OUTBURSTS: dict[str, Callable[[], BaseException]] = {
    "an ordinary one": lambda: ValueError("ordinary"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "asyncio.CancelledError": asyncio.CancelledError,
    "a panic": lambda: PanicError("a panic"),
    "BaseException": lambda: BaseException("base"),
    "StopIteration": lambda: StopIteration(3),
    "StopAsyncIteration": StopAsyncIteration,
    "one that cannot be shown": TextError,
    "one with an argument that cannot be shown": lambda: ValueError(TextError()),
    "one that cannot be looked at": LookError,
    "one that cannot be compared": EqualityError,
    "one that cannot be built again": lambda: BuildError(1, 2, three=3),
    "one with attributes of its own": lambda: AttributeOfItsOwnError("own"),
    "a group": lambda: ExceptionGroup("two", [ValueError(1), TextError()]),
    "a group of all": _group,
    "a syntax error": lambda: SyntaxError(2, "x"),  # type: ignore[call-overload]
    "an error of the runtime's": lambda: RemoteError("at once"),
}


async def _outburst(what: str) -> BaseException:
    if what != KEPT:
        return OUTBURSTS[what]()
    kept: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            kept.append(cancelled)
            raise
    # The text of a cancellation contains the address of its task in memory, which differs in each
    # run of a seed.
    object.__setattr__(kept[0], "source_task", None)
    kept[0].args = ()
    return kept[0]


class Hothead(Actor):
    """Raises the exceptions that its callers choose, at the places that they choose."""

    def __init__(self, where: str = "", what: str = "") -> None:
        self.where, self.what = where, what
        if where == "in_constructor":
            error = OUTBURSTS[what]()
            raise error

    async def on_start(self) -> None:
        """Raise it in one of the places."""
        if self.where == "on_start":
            raise await _outburst(self.what)

    @method
    async def in_turn(self, what: str) -> None:
        """Raise it in a call behind which others wait."""
        raise await _outburst(what)

    @method(concurrent=True, idempotent=True)
    async def beside(self, what: str) -> None:
        """Raise it in a repeatable call."""
        await trio.lowlevel.checkpoint()
        raise await _outburst(what)

    @method
    def in_thread(self, what: str) -> None:
        """Raise it in a plain method."""
        error = OUTBURSTS[what]()
        raise error

    @method
    async def in_a_nursery(self, what: str) -> None:
        """Raise it together with a cancellation by the nursery."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise await _outburst(what)

    @method
    async def midway(self, what: str) -> AsyncIterator[int]:
        """Raise it between two items of a stream."""
        yield 1
        raise await _outburst(what)


class Bystander(Actor):
    """An actor on the same node that must not be affected."""

    @method
    async def ping(self) -> str:
        """Answer."""
        return "pong"


@attrs.define(eq=False)
class Outbursts(Load):
    """What nodes have provoked, and how it ended."""

    title = "outbursts"
    check = "what is raised ends its call"

    raised: int = 0
    """Calls whose callers got the exception."""
    lost: int = 0
    """Calls that ended with another outcome."""

    async def run(self, node: Node, draw: random.Random) -> None:
        """Provoke outbursts from one node on all nodes, until it is `over`."""
        while True:
            await trio.sleep(draw.expovariate(1 / PAUSE))
            if self.over:
                return
            where, what = draw.choice(WAYS), draw.choice([*OUTBURSTS, KEPT])
            if what == KEPT and where in ("in_thread", "in_constructor", "in_a_nursery"):
                # A cancellation can only be kept on the event loop, and a nursery treats one as its
                # own.
                continue
            on = draw.choice(
                [member.name for member in node.members() if member.state == "up"] or [node.name]
            )
            number = draw.randrange(ACTORS)
            said = f"{what}, {where.replace('_', ' ')}, on {on}, for {node.name}"
            self.cluster.trace.tell(node.name, "outburst", said)
            began = self.cluster.now()
            try:
                with trio.move_on_after(MOST_SECONDS):
                    await self._provoke(node, on, number, where, what)
                    self.violated(node.name, f"{said}: nothing came of it")
                # Starts are repeated while there is time.
                self.lost += 1
            except (RemoteError, ActorStartError):
                self.raised += 1
            except UnderstudyError as error:
                self._ended(node, said, error)
            except BaseException as error:  # noqa: ASYNC103
                # A cancellation goes on, and all else is what must never be seen.
                if is_cancellation(error):
                    raise
                self.violated(
                    node.name,
                    f"{said}: the caller's own task got {class_name(type(error))}",
                )  # noqa: ASYNC104
            if self.cluster.live(node.name) is not node:
                return
            took = self.cluster.now() - began - self.cluster.stopped(node.name, began)
            if took > MOST_SECONDS + LATE:
                self.violated(node.name, f"{said}: it took {took:.3f} s")
            await self._ask_neighbour(node, on, said)

    def summary(self) -> str:
        """Return how many calls got their error."""
        return f"{self.raised} callers got the error that was raised, {self.lost} calls were lost"

    async def _provoke(self, node: Node, on: str, number: int, where: str, what: str) -> None:
        if where in ("on_start", "in_constructor"):
            await node.options(on=on).spawn(Hothead, where, what)
            return
        hothead = await node.options(name=f"hothead-{on}-{number}", on=on).get_or_spawn(Hothead)
        if where == "midway":
            async for _ in hothead.midway.options(timeout=SECONDS)(what):
                pass
            return
        await getattr(hothead, where).options(timeout=SECONDS)(what)

    def _ended(self, node: Node, said: str, error: UnderstudyError) -> None:
        """Check a call that ended with something other than what was raised. That is allowed under
        faults, or if its actor ended, if it is an outcome.
        """
        self.lost += 1
        if not isinstance(error, CallError):
            self.violated(
                node.name,
                f"{said}: it ended with {type(error).__name__}, which is not an outcome of a call: "
                f"{error}",
            )

    async def _ask_neighbour(self, node: Node, on: str, said: str) -> None:
        """Without faults the neighbour must answer, whatever was raised beside it."""
        try:
            with trio.fail_after(2 * SECONDS):
                neighbour = await node.options(name=f"neighbour-{on}", on=on).get_or_spawn(
                    Bystander
                )
                await neighbour.ping()
        except (UnderstudyError, trio.TooSlowError) as error:
            if self.oracle.fair and not self.over:
                self.violated(
                    node.name,
                    f"after {said}: the neighbour did not answer: {type(error).__name__}: {error}",
                )
