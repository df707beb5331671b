"""The home of an actor's own tasks: opened at the first `self.nursery.start_soon`, so that actors without tasks cost none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVarTuple

import trio

from runtime.exception_groups import unwrap
from runtime.hosting.threads import on_loop
from runtime.user_errors import is_cancellation, is_interrupt

Ts = TypeVarTuple("Ts")


class Home:
    """See `actors.ActorNursery`. Lives in the node's nursery; `crashed(error)` is told when one of its tasks raises."""

    def __init__(self, nursery: trio.Nursery, name: str, crashed: Callable[[BaseException], None]) -> None:
        self._nursery = nursery
        self.name = name
        self._crashed = crashed
        self._scope = trio.CancelScope()
        self._own: trio.Nursery | None = None
        self._waiting: list[tuple[Callable[..., Awaitable[object]], tuple[Any, ...], str | None]] = []
        self._opened = False
        self._closed = trio.Event()

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None) -> None:
        """Start a task that ends with the actor; also from a thread of the actor's. Raises RuntimeError if the actor has ended."""
        on_loop(self._start_soon, function, args, name)

    def _start_soon(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...], name: str | None) -> None:
        if self._scope.cancel_called:
            raise RuntimeError(f"{self.name} has ended; it can start no more tasks")
        if self._own is not None:
            self._own.start_soon(self.run, function, args, name=name or function)
            return
        self._waiting.append((function, args, name))
        if not self._opened:
            self._opened = True
            self._nursery.start_soon(self._open, name=f"tasks of {self.name}")

    async def close(self) -> None:
        """Cancel the tasks and wait for them."""
        self._scope.cancel()
        if self._opened:
            await self._closed.wait()

    def cancel(self) -> None:
        """Cancel the tasks without waiting."""
        self._scope.cancel()

    async def run(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        """One task. It is in the stack of the user's code, so that a report of a blocked loop can name the actor.

        What it raises does not leave it: trio itself cannot bear every exception at the end of a task.
        """
        try:
            await function(*args)
        except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
            if is_cancellation(error) or is_interrupt(error):
                raise
            self._scope.cancel()
            self._crashed(unwrap(error))

    async def _open(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as own:
                    self._own = own
                    for function, args, name in self._waiting:
                        own.start_soon(self.run, function, args, name=name or function)
                    self._waiting.clear()
                    await trio.sleep_forever()
        finally:
            self._own = None
            self._closed.set()
