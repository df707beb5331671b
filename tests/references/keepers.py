"""Actors that make values, keep references to them and use them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import attrs
import trio

from actors import Actor, Reference, message, method, wait_all


@message
@attrs.frozen
class Point:
    """A value with methods."""

    x: int
    y: int

    def moved(self, by: int) -> Point:
        """One that lies elsewhere."""
        return Point(self.x + by, self.y + by)

    def total(self) -> int:
        """Of both."""
        return self.x + self.y

    def _secret(self) -> int:
        return self.x

    def fail(self) -> None:
        """Always."""
        raise LookupError("no such point")

    def leave(self) -> None:
        """As scripts do at their end."""
        sys.exit(2)


@message
class OutOfStockError(Exception):
    """What a method may raise."""


class Maker(Actor):
    """Makes values."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.runs = 0
        self.list = [1]

    @method
    async def make(self, value: Any) -> Any:
        """`value`."""
        self.runs += 1
        return value

    @method
    async def fail(self, text: str) -> int:
        """Always."""
        raise OutOfStockError(text)

    @method(concurrent=True)
    async def make_in_the_end(self, value: Any, failures: int) -> Any:
        """`value`, after it has failed so often, and never before the gate is open."""
        self.runs += 1
        if self.runs <= failures:
            raise OutOfStockError(f"attempt {self.runs}")
        await self.gate.wait()
        return value

    @method(concurrent=True)
    async def make_at_gate(self, value: Any) -> Any:
        """`value`, once the gate is open."""
        self.runs += 1
        await self.gate.wait()
        return value

    @method
    async def make_slowly(self, value: Any) -> Any:
        """`value`, after a while."""
        await trio.sleep(0.3)
        return value

    @method(concurrent=True)
    async def open_gate(self) -> None:
        """See `make_at_gate`."""
        self.gate.set()

    @method
    async def make_and_change(self) -> list[int]:
        """A list that is changed a moment later."""
        return self.list

    @method
    async def change(self) -> list[int]:
        """Change it."""
        self.list.append(2)
        return self.list

    @method
    async def unsendable(self) -> object:
        """Something that cannot be kept."""
        return object()

    @method
    async def put(self, value: Any) -> Reference[Any]:
        """A reference to `value` of the node's own."""
        return await self.node.put(value)

    @method
    async def crash(self) -> None:
        """End the actor."""
        raise SystemExit(3)

    @method
    async def count(self) -> int:
        """How often it has made something."""
        return self.runs


class Keeper(Actor):
    """Keeps references, and uses them."""

    def __init__(self) -> None:
        self.kept: dict[str, Reference[Any]] = {}

    @method
    async def keep(self, name: str, reference: Reference[Any]) -> None:
        """Hold it."""
        self.kept[name] = reference

    @method
    async def keep_all(self, references: list[Reference[Any]]) -> int:
        """Hold all of them, which are inside another value."""
        for index, reference in enumerate(references):
            self.kept[str(index)] = reference
        return len(references)

    @method
    async def give(self, name: str) -> Reference[Any]:
        """Hand it on."""
        return self.kept[name]

    @method
    async def give_all(self) -> list[Reference[Any]]:
        """Hand all of them on."""
        return list(self.kept.values())

    @method
    async def stream(self, name: str) -> AsyncIterator[Reference[Any]]:
        """Hand it on as an item."""
        yield self.kept.pop(name)

    @method
    async def stream_all(self) -> AsyncIterator[list[Reference[Any]]]:
        """Hand all of them on as one item."""
        yield list(self.kept.values())

    @method
    async def let_go(self, name: str) -> None:
        """Hold it no longer."""
        del self.kept[name]

    @method(concurrent=True)
    async def fetch(self, name: str) -> Any:
        """The value."""
        return await self.kept[name].fetch()

    @method(concurrent=True)
    async def local_value(self, name: str) -> Any:
        """The value, if it is here."""
        return self.kept[name].local_value()

    @method(concurrent=True)
    async def is_ready(self, name: str) -> bool:
        """Whether it is there."""
        return await self.kept[name].ready()

    @method
    async def refuse(self, count: int, reference: Reference[Any]) -> None:
        """Take what it does not keep."""


class Adder(Actor):
    """Takes values, and is given references to them."""

    @method
    async def add(self, one: int, other: int) -> int:
        """Their sum."""
        return one + other

    @method
    async def add_all(self, *numbers: int, start: int = 0) -> int:
        """Their sum."""
        return sum(numbers, start)

    @method
    async def kind(self, value: object) -> str:
        """What it is given."""
        return type(value).__name__

    @method
    async def kinds(self, values: list[Reference[int]]) -> list[str]:
        """What it is given inside a list."""
        return [type(value).__name__ for value in values]

    @method
    async def scan(self, numbers: list[int]) -> AsyncIterator[int]:
        """One by one."""
        for number in numbers:
            yield number

    @method
    def total(self, array: list[float]) -> float:
        """Of a value, in a thread."""
        return float(sum(array))


class Waiter(Actor):
    """Waits for what others have asked for."""

    @method
    async def wait(self, references: list[Reference[int]]) -> None:
        """For all of three."""
        done, rest = await wait_all(references)
        if (len(done), rest) != (3, []):
            raise AssertionError(f"{done} are done and {rest} are not")


class Viewer(Actor):
    """Looks at the same memory again and again."""

    def __init__(self) -> None:
        self.array: Any = None

    @method
    async def view(self, reference: Reference[Any]) -> int:
        """Begin."""
        self.array = await reference.fetch()
        return int(self.array[0])

    @method
    async def look(self) -> int:
        """Once more."""
        return int(self.array[0])
