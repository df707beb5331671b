"""Actors of these tests: importable in the processes of their clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from actors import Actor, Reference, call_context, method
from tests.functions.functions_used import double, fail


class Counter(Actor):
    """Counts, and notes which of its methods were cancelled."""

    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.noted: list[str] = []
        self.changed = trio.Event()

    @method
    async def add(self, amount: int) -> int:
        """Add, and return the sum."""
        self.value += amount
        return self.value

    @method(idempotent=True)
    async def read(self) -> int:
        """The sum."""
        return self.value

    @method
    async def append(self, word: str) -> None:
        """Note a word."""
        self._note(word)

    @method(concurrent=True)
    async def hang(self, word: str) -> None:
        """Wait until it is cancelled; note when it began, and that it was."""
        self._note(f"{word} begun")
        try:
            await trio.sleep_forever()
        finally:
            self._note(f"{word} cancelled")

    @method(concurrent=True)
    async def noted_words(self) -> list[str]:
        """All that was noted."""
        return list(self.noted)

    @method(concurrent=True)
    async def wait_for(self, word: str) -> bool:
        """Return once that word was noted."""
        while word not in self.noted:
            await self.changed.wait()
        return True

    @method
    async def fail(self, text: str) -> int:
        """Raise."""
        raise ValueError(text)

    @method
    async def fail_in_group(self) -> int:
        """Raise a group in a group."""
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("alone")])])

    @method
    async def fail_in_nursery(self) -> int:
        """Raise in a task of a nursery."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(self._raise)
        return 0

    async def _raise(self) -> None:
        raise ValueError("alone")

    @method
    async def fail_in_own_task(self) -> None:
        """Raise a group in a task of its own, which ends this."""
        self.nursery.start_soon(self.fail_in_group)
        await trio.sleep_forever()

    @method(concurrent=True)
    async def count(self, stop: int) -> AsyncIterator[int]:
        """Yield the numbers below `stop`; note when it is closed."""
        try:
            for number in range(stop):
                yield number
        finally:
            self._note("count closed")

    @method
    async def total(self, numbers: list[int]) -> int:
        """The sum of a list, which may come by reference."""
        return sum(numbers)

    @method
    async def owner(self, reference: Reference[list[int]]) -> str:
        """Who keeps a value."""
        return reference.owner

    @method
    async def add_to(self, other: Counter, amount: int) -> int:
        """Add to another counter."""
        return await other.add(amount)

    @method
    async def run_double(self, number: int) -> int:
        """Have a function run in a worker process."""
        return await self.node.run(double, number)

    @method
    async def run_fail(self, text: str) -> None:
        """Have a function run that raises."""
        await self.node.options(timeout=30.0).run(fail, text)

    @method
    async def told(self, name: str) -> str | None:
        """A value of the call context."""
        return call_context.get().get(name)

    @method
    async def me(self) -> Counter:
        """A handle of this actor."""
        return self.handle

    def _note(self, word: str) -> None:
        self.noted.append(word)
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class Joining(Counter):
    """A counter that is in a group."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    async def on_start(self) -> None:
        """Join."""
        await self.join(self.group)
