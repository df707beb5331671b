"""Right and wrong uses of streams, for type checkers; nobody runs this. A wrong one carries the
ignore that would otherwise be unused.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import assert_type

from actors import Actor, RetryPolicy, Stream, method


class Typed(Actor):
    """Has one method of each kind."""

    @method
    async def scan(self, start: int, step: int = 1) -> AsyncIterator[int]:
        yield start + step

    @method(concurrent=True, timeout=3.0)
    async def names(self) -> AsyncGenerator[str, None]:
        yield "name"

    @method
    async def total(self, stop: int) -> int:
        return sum([number async for number in self.scan(stop)])

    @method
    def in_thread(self, size: int) -> bytes:
        return bytes(size)


async def right(actor: Typed) -> None:
    """All of it is accepted."""
    assert_type(actor.scan(1), Stream[int])
    async for number in actor.scan(1, step=3):
        assert_type(number, int)
    async with actor.names() as names:
        async for name in names:
            assert_type(name, str)
    async for number in actor.scan.options(timeout=2.0)(1):
        assert_type(number, int)
    assert_type(await anext(actor.scan(1)), int)
    await actor.scan(1).aclose()
    assert_type(await actor.total(1), int)
    assert_type(await actor.in_thread(1), bytes)


async def wrong(actor: Typed) -> None:
    """Every line is refused."""
    actor.scan("1")  # type: ignore[arg-type]
    actor.scan()  # type: ignore[call-arg]
    actor.names(1)  # type: ignore[call-arg]
    actor.scan.options(retry=RetryPolicy())  # type: ignore[call-arg]
    await actor.scan(1)  # type: ignore[misc]
    async for number in actor.total(1):  # type: ignore[attr-defined]
        assert number
