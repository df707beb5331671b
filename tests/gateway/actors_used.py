"""Actors of these tests: importable in the processes of their clusters."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs
import trio

from actors import Actor, message, method


class Colour(enum.Enum):
    """Of an item."""

    RED = "red"
    BLUE = "blue"


@message
@attrs.frozen
class Item:
    """One position of an order."""

    name: str
    price: Decimal
    colour: Colour = Colour.RED


@message
@dataclass
class Order:
    """Items, and when they were ordered."""

    items: list[Item]
    at: datetime | None = None


@message
class SoldOutError(Exception):
    """There is none left."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.item = item
        self.left = left


class Counter(Actor):
    """Counts, and notes which of its methods ran, and which were cancelled."""

    def __init__(self) -> None:
        self.value = 0
        self.noted: list[str] = []
        self.changed = trio.Event()

    @method(http=True)
    async def add(self, amount: int = 1) -> int:
        """Add, and return the sum.

        More of what it does.
        """
        self.value += amount
        return self.value

    @method(http=True, idempotent=True, concurrent=True)
    async def read(self) -> int:
        """The sum."""
        return self.value

    @method(http=True, concurrent=True)
    async def add_slowly(self, word: str) -> int:
        """Add, then wait until it is let go, then return the sum."""
        self.value += 1
        self.note(f"{word} begun")
        try:
            await self.until(f"{word} may end")
        except trio.Cancelled:
            self.note(f"{word} cancelled")
            raise
        return self.value

    @method(http=True, idempotent=True, concurrent=True)
    async def read_slowly(self, word: str) -> int:
        """Wait until it is let go, then return the sum."""
        self.note(f"{word} begun")
        await self.until(f"{word} may end")
        return self.value

    @method(http=True)
    async def hold(self, word: str) -> None:
        """Keep the turn until it is let go."""
        self.note(f"{word} begun")
        await self.until(f"{word} may end")

    @method(concurrent=True)
    async def note_word(self, word: str) -> None:
        """Note a word."""
        self.note(word)

    @method(concurrent=True)
    async def wait_for(self, word: str) -> None:
        """Return once that word was noted."""
        await self.until(word)

    @method(allow=("operator",))
    async def for_operators(self) -> str:
        """Not for the gateway."""
        return "done"

    @method
    async def secret(self) -> str:
        """Not for the outside."""
        return "hidden"

    @method(http=True)
    async def fail(self, text: str) -> None:
        """Raise."""
        raise ValueError(text)

    @method(http=True)
    async def sell(self, item: str) -> None:
        """Raise an error with fields."""
        raise SoldOutError(item, 0)

    @method(http=True)
    async def order(self, order: Order, gift: bool = False) -> Order:
        """Give the order back."""
        assert isinstance(order, Order)
        assert all(isinstance(one, Item) for one in order.items)
        return order

    @method(http=True)
    async def give(self, what: str) -> Any:
        """Return what JSON cannot say."""
        return {
            "bytes": b"\x00\xff",
            "nan": float("nan"),
            "inf": [float("inf"), float("-inf")],
            "big": 2**70,
            "pairs": {1: "a", 2: "b"},
            "dollar": {"$bytes": "no"},
            "enum": Colour.BLUE,
            "set": {1},
            "decimal": Decimal("1.50"),
            "object": object(),
            "huge": 1 << 100_000,
            "handle": self.handle,
            "text": "</script><b>&\u2028",
        }[what]

    @method(http=True)
    async def echo(self, value: Any = None) -> Any:
        """Give it back."""
        return value

    @method(http=True, concurrent=True)
    async def count(self, to: int, then: str = "") -> AsyncIterator[int]:
        """The numbers below."""
        try:
            for number in range(to):
                yield number
            if then:
                raise ValueError(then)
        finally:
            self.note("stream closed")

    @method(http=True, concurrent=True)
    async def blobs(self, size: int) -> AsyncIterator[bytes]:
        """Bytes without end."""
        try:
            while True:
                self.value += 1
                yield b"x" * size
        finally:
            self.note("stream closed")

    def note(self, word: str) -> None:
        """Note a word, and wake who waits for it."""
        self.noted.append(word)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, word: str) -> None:
        """Wait until a word is noted."""
        while word not in self.noted:
            await self.changed.wait()


class Saving(Actor):
    """Counts, and saves the sum with the answer to each call."""

    async def on_start(self) -> None:
        """Go on from the state that was saved."""
        self.value: int = await self.saved() or 0

    @method(http=True)
    async def add(self, amount: int) -> int:
        """Add, save, and return the sum."""
        self.value += amount
        await self.save(self.value, answer=self.value)
        return self.value

    @method(http=True, idempotent=True)
    async def read(self) -> int:
        """The sum."""
        return self.value

    @method(http=True)
    async def save_and_hang(self) -> int:
        """Save, and never answer."""
        self.value += 1
        await self.save(self.value, answer=self.value)
        await trio.sleep_forever()
        return self.value
