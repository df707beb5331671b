"""What an actor says of its own state when it is inspected: its hook `on_inspect` runs in its turn,
for a short time, and what it returns becomes a bounded text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import attrs
import trio

from actors.actor import Actor
from actors.class_names import module_name
from actors.errors import CallError
from actors.method import MethodDefinition
from runtime.environment import Environment
from runtime.hosting.bounded_text import bounded_text, cut
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.host import ActorHost
from runtime.user_errors import is_cancellation, is_interrupt, raised_at, summary_of

MOST_STATE: Final = 8192
"""Bytes of the text of a state."""


@attrs.frozen
class ActorState:
    """The state that an actor shows. `text`: None if it shows nothing; then `problem` says why, and
    it may show something later. `is_cut`: True if `text` is only the beginning.
    """

    text: str | None = None
    problem: str = ""
    is_cut: bool = False

    @classmethod
    def of(cls, text: str) -> ActorState:
        """Make one of the first `MOST_STATE` bytes of a text."""
        encoded = text.encode("utf-8", "backslashreplace")
        return cls(encoded[:MOST_STATE].decode("utf-8", "ignore"), "", len(encoded) > MOST_STATE)


def gives_state(cls: type[Actor]) -> bool:
    """True if a class has the hook."""
    return cls.on_inspect is not Actor.on_inspect


class ActorStates:
    """Asks the actors of one host for their states."""

    def __init__(self, host: ActorHost, environment: Environment) -> None:
        self._host = host
        self._environment = environment
        self._in_threads: dict[ActorCell, float] = {}
        """Actors with a thread that runs their hook, or writes its result, and since when. Each has
        one at most: while one that was left running has not ended, the hook is not called again.
        """

    async def read(self, cell: ActorCell) -> ActorState:
        """The state of an actor, within `Timings.inspection`; without the hook, an empty one."""
        if not gives_state(type(cell.instance)):
            return ActorState()
        now = self._host.now
        if problem := hindrance(cell, now()):
            return ActorState(problem=problem)
        since = self._in_threads.get(cell)
        if since is not None:
            text = f"on_inspect, which was called {now() - since:.1f} s ago, has not returned"
            return ActorState(problem=text)
        answer = _StateSink()
        definition = MethodDefinition(name="on_inspect", function=self._ask)
        invocation = Invocation(cell, definition, (cell,), {}, answer, None, 0, float("inf"))
        # In front of the calls that wait, and whatever their number: it is short, and those who
        # inspect an actor do so because too much waits.
        cell.put_back(invocation)
        if not cell.busy:
            cell.busy = True
            self._host.workers.submit(cell)
        seconds = self._environment.timings.inspection
        with trio.move_on_after(seconds):
            try:
                await answer.over.wait()
            finally:
                if not answer.over.is_set():
                    invocation.cancel()
        if invocation.begun:
            # Not one of the calls that it serves for others.
            cell.served -= 1
        if answer.state is None:
            what = "on_inspect did not return" if invocation.begun else "its turn did not come"
            return ActorState(problem=f"{what} within {seconds:g} s")
        return answer.state

    async def _ask(self, instance: Actor, cell: ActorCell) -> ActorState:
        try:
            value = await self._value(instance, cell)
            # In the turn, because the value may be what the methods change; and in a thread,
            # because `__repr__` may take long.
            write = partial(bounded_text, value, MOST_STATE + 1)
            return ActorState.of(await self._in_thread(cell, write))
        except BaseException as error:  # noqa: ASYNC103  user code raises these as well
            if is_cancellation(error) or is_interrupt(error):
                raise
            place = raised_at(error, module_name(type(instance)))
            text = f"on_inspect raised {summary_of(error)}" + (f" ({place})" if place else "")
            return ActorState(problem=cut(text, MOST_STATE))  # noqa: ASYNC104

    async def _value(self, instance: Actor, cell: ActorCell) -> object:
        hook: Callable[[], Any] = instance.on_inspect
        if inspect.iscoroutinefunction(hook):
            return cast("object", await hook())
        # In a tuple: trio refuses a coroutine as the result of a thread.
        (value,) = await self._in_thread(cell, lambda: (hook(),))
        return cast("object", await value) if inspect.isawaitable(value) else value

    async def _in_thread(self, cell: ActorCell, function: Callable[[], Any]) -> Any:
        """Run it in a thread that is left running when its time is over."""
        since = self._host.now()

        def run() -> Any:
            # In the thread: one that is cancelled before it has begun leaves nothing here.
            self._in_threads[cell] = since
            try:
                return function()
            finally:
                del self._in_threads[cell]

        return await self._host.in_thread(run, abandon=True)


def hindrance(cell: ActorCell, now: float) -> str:
    """Why an actor cannot run its hook at this moment; "" if it can."""
    turn = cell.turn
    if cell.ended is not None:
        return f"it has ended: {cell.ended}"
    if not cell.started:
        return "it is starting: on_start has not returned"
    if cell.paused:
        return "it is paused"
    if turn is not None and turn.definition.name != "on_inspect":
        since = f" for {now - turn.suspended_at:.1f} s" if turn.suspended_at else ""
        return f"busy: it runs {turn.definition.name}{since}; on_inspect runs between methods"
    return ""


class _StateSink:
    """The `ReplySink` of one run of the hook."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.state: ActorState | None = None

    def value(self, invocation: Invocation, value: object) -> None:
        """The hook has returned the state to report."""
        assert isinstance(value, ActorState)
        self.state = value
        self.over.set()

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The hook has raised: answer with the error."""
        self.state = ActorState(problem=summary_of(error))
        self.over.set()

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The actor has ended before the hook could run: answer with that error."""
        self.state = ActorState(problem=str(error))
        self.over.set()
