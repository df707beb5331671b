"""What the short programs of the pages take for granted: actors, and functions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy

from actors import Actor, call_context, method


def resize(image: int, width: int = 100) -> int:
    return min(image, width)


class Candidate(Actor):
    """Any actor."""


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(idempotent=True)
    async def read(self) -> int:
        return self.value

    @method
    async def scan(self, start: int) -> AsyncIterator[int]:
        for number in range(start, start + 3):
            yield number


class Directory(Actor):
    @method
    async def find(self, name: str) -> Counter:
        return await self.node.options(name=name).get_or_spawn(Counter)

    @method
    async def register(self, counter: Counter) -> None:
        await counter.add(1)


class Account(Actor):
    @method
    async def deposit(self, amount: int) -> int:
        return amount


class Cart(Actor):
    @method
    async def buy(self, amount: int) -> None:
        assert call_context.get().get("tenant") == "acme"


class Resizer(Actor):
    @method
    async def run(self, image: int) -> int:
        return resize(image)


class User(Actor):
    def __init__(self, number: int, name: str) -> None:
        self.name_of_user = name


class Parser(Actor):
    pass


class Index(Actor):
    pass


class Library(Actor):
    @method
    async def scan(self, start: int) -> AsyncIterator[int]:
        for number in range(start, start + 3):
            yield number


class Adder(Actor):
    @method
    async def add(self, one: int, other: int) -> int:
        return one + other


class TextReader(Actor):
    @method
    async def read(self) -> numpy.ndarray:
        return numpy.arange(100)


class Stage(Actor):
    @method
    async def only_letters(self, text: numpy.ndarray) -> numpy.ndarray:
        return text


class Reader(Actor):
    async def on_start(self) -> None:
        await self.join("news")

    @method
    async def on_news(self, text: str) -> None: ...

    @method
    async def unread(self) -> int:
        return 0
