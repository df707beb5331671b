"""Actors of these tests: importable in the processes of their clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator

from opentelemetry import trace

from actors import Actor, Handle, method


class Hop(Actor):
    """Passes a call on along a path of others."""

    def __init__(self) -> None:
        self.failures = 0

    @method
    async def go(self, path: list[Handle]) -> str:
        """The names of those that the call came to."""
        if not path:
            return self.name
        further: str = await path[0].go(path[1:])  # type: ignore[misc, unused-ignore]
        return f"{self.name} {further}"

    @method
    def own_span(self) -> None:
        """A span of the application's, in a thread."""
        with trace.get_tracer("tests").start_as_current_span("own work"):
            pass

    @method(idempotent=True)
    async def fail_once(self) -> None:
        self.failures += 1
        if self.failures == 1:
            raise LookupError("not yet")

    @method
    async def fail(self) -> None:
        raise LookupError("never")

    @method
    async def items(self) -> AsyncIterator[int]:
        yield 1
        yield 2

    @method
    async def crash(self) -> None:
        raise SystemExit(3)
