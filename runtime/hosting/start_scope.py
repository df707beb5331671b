"""The cancel scope around the start of an actor, which is entered when the start needs one.

To enter a scope and to leave it takes a quarter of the time of a start with a constructor. A start
that waits in the queue of constructors can be woken without one: most starts never enter theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import trio


class StartScope:
    """Cancels one start, which runs within its block: like a `trio.CancelScope` around it."""

    __slots__ = ("_over", "_scope", "_wake", "cancel_called")

    def __init__(self) -> None:
        self.cancel_called = False
        self._scope: trio.CancelScope | None = None
        self._wake: Callable[[], None] | None = None
        self._over: trio.Event | None = None
        """There once a task waits for the end of the block."""

    def __enter__(self) -> StartScope:
        return self

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._over is not None:
            self._over.set()
        return None if self._scope is None else self._scope.__exit__(kind, error, trace)

    @trio.lowlevel.enable_ki_protection
    def enter(self) -> None:
        """Let the rest of the block be cancelled like any other code. Called in the task of the
        block, before all that may open a scope of its own, or wait for anything but a `wake`.
        """
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._scope.__enter__()
            if self.cancel_called:
                self._scope.cancel()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Let `cancel` call `wake` until the scope is entered. The task that goes on by it enters
        the scope. `wake` does nothing once the task goes on for another reason.
        """
        self._wake = wake

    @trio.lowlevel.enable_ki_protection
    def cancel(self) -> None:
        """Cancel what runs in the block, now or later."""
        self.cancel_called = True
        if self._scope is not None:
            self._scope.cancel()
        elif self._wake is not None:
            self._wake()

    async def wait_over(self) -> None:
        """Wait for the end of the block."""
        if self._over is None:
            self._over = trio.Event()
        await self._over.wait()
