"""Functions that the tests run in worker processes, kind and hostile ones."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import trio

from actors import message


@message
@attrs.frozen
class Order:
    """A message of the tests."""

    item: str
    amount: int = 1


@message
@attrs.define(on_setattr=[])
class Stock:
    """A message that can be changed into one that cannot be built again."""

    amount: int = attrs.field(default=1, validator=attrs.validators.gt(0))


def sold_out() -> Stock:
    """No receiver can build what this returns."""
    stock = Stock()
    stock.amount = 0
    return stock


RUNS: Counter[int] = Counter()
"""How often numbers were doubled under trio in this process, which is that of all nodes where these
are simulated.
"""


class Size(Enum):
    """An enum of the tests."""

    SMALL = 1


@message
class OutOfStockError(Exception):
    """An exception of the tests that may be sent."""


def double(number: int) -> int:
    return 2 * number


async def double_under_trio(number: int, *, after: float = 0.0) -> int:
    RUNS[number] += 1
    await trio.sleep(after)
    return 2 * number


def pid() -> int:
    return os.getpid()


def parent_pid() -> int:
    return os.getppid()


def ordered(order: Order, size: Size = Size.SMALL) -> Order:
    assert size is Size.SMALL
    return attrs.evolve(order, amount=order.amount + 1)


def total(numbers: list[int]) -> int:
    return sum(numbers)


def fail(text: str) -> None:
    raise ValueError(text)


def fail_with_message(text: str) -> None:
    raise OutOfStockError(text)


def raise_system_exit() -> None:
    raise SystemExit(3)


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def returns_generator() -> Iterator[int]:
    yield 1


async def raise_generator_exit() -> None:
    raise GeneratorExit


def exit_at_once() -> None:
    os._exit(7)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_unless(path: str) -> str:
    """Dies the first time, and says so in a file; returns the second time."""
    if Path(path).exists():
        return "repeated"
    Path(path).write_text("died")
    os._exit(1)


def unsendable() -> object:
    return object()


def note(path: str, text: str) -> None:
    with Path(path).open("a") as notes:
        notes.write(text + "\n")


def block(path: str) -> None:
    """Notes its process, and blocks for longer than any test."""
    note(path, str(os.getpid()))
    time.sleep(600)


async def block_the_loop(path: str) -> None:
    note(path, str(os.getpid()))
    time.sleep(600)  # noqa: ASYNC251  this is what it is about


async def wait_for_cancellation(path: str) -> None:
    note(path, str(os.getpid()))
    try:
        await trio.sleep_forever()
    finally:
        note(path, "cancelled")


def take_memory(size: int) -> int:
    return len(bytearray(size))


def wait_for_file(path: str) -> bool:
    while not Path(path).exists():
        time.sleep(0.005)
    return True


def leak(size: int) -> int:
    LEAKED.append(bytearray(size))
    return len(LEAKED)


LEAKED: list[bytearray] = []


def returns_coroutine(number: int) -> Any:
    return double_under_trio(number)


def doubled(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def wrapper(number: int) -> int:
        return 2 * function(number)

    return wrapper


@doubled
def decorated(number: int) -> int:
    return number


class Shop:
    """Has a function within a class."""

    @staticmethod
    def price(amount: int) -> int:
        return 3 * amount

    def open(self) -> None:
        """A method of an object."""
