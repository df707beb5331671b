"""Exceptions as users write them, and actors that raise them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import attrs

from actors import Actor, message, method


@message
@attrs.frozen
class Line:
    """A value within an exception."""

    item: str
    count: int = 1


@message
@attrs.frozen
class FrozenError(Exception):
    """Fields with and without defaults, and values in them; nothing of it can be set."""

    need: int
    lines: list[Line] = attrs.field(factory=list)
    text: str = "as by default"


@message
@attrs.define
class DefinedError(Exception):
    """A field that is a message itself."""

    need: int
    line: Line = attrs.field(factory=lambda: Line("pen"))


@message
@dataclasses.dataclass
class DataError(Exception):
    """A dataclass."""

    code: int
    tags: dict[str, list[Line]] = dataclasses.field(default_factory=dict)


@message
class OrderError(Exception):
    """Not to be built from its `args`."""

    def __init__(self, order: int, why: str) -> None:
        super().__init__(f"order {order}: {why}")
        self.order = order
        self.why = why


@message
class LateOrderError(OrderError):
    """Derived from a registered one."""

    def __init__(self, order: int) -> None:
        super().__init__(order, "late")


@message
class PlaceError(Exception):
    """Fields with the names of ours."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node
        self.attempts = 70


@message
@attrs.frozen
class Report:
    """A value with an exception in it."""

    of: Exception


@message
class ShopGroup(ExceptionGroup[Exception]):
    """A group of its own."""

    def derive(self, excs: Sequence[Exception]) -> ShopGroup:  # type: ignore[override]
        return ShopGroup(self.message, excs)


class PrivateError(Exception):
    """Not registered."""


KINDS: dict[str, Callable[[], Exception]] = {
    "frozen": lambda: FrozenError(3, [Line("pen", 2)]),
    "frozen with defaults": lambda: FrozenError(4),
    "defined": lambda: DefinedError(3, Line("ink", 5)),
    "dataclass": lambda: DataError(4, {"all": [Line("pen"), Line("ink", 2)]}),
    "constructor": lambda: OrderError(7, "lost"),
    "derived": lambda: LateOrderError(8),
    "OSError": lambda: FileNotFoundError(2, "no such file", "/pen"),
    "OSError of two files": lambda: OSError(18, "two disks", "/pen", None, "/ink"),
    "OSError without a file": lambda: OSError(5, "no answer", None),
    "BlockingIOError": lambda: BlockingIOError(11, "again", 5),
    "names of ours": lambda: PlaceError("mine"),
    "KeyError": lambda: KeyError("pen"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"ab\xff", 2, 3, "bad"),
    "ImportError": lambda: ImportError("text", name="pen", path="/pen"),
    "SyntaxError": lambda: SyntaxError("bad", ("pen.py", 1, 2, "x y")),
}


def made(kind: str) -> Exception:
    """One of these."""
    return KINDS[kind]()


def group() -> Exception:
    """A group of registered ones, a builtin, one that is private, and groups."""
    inner = ExceptionGroup("inner", [OrderError(1, "lost"), ValueError("value")])
    return ExceptionGroup(
        "outer",
        [
            FrozenError(1),
            inner,
            PrivateError("private"),
            ShopGroup("shop", [DataError(2), LateOrderError(3)]),
        ],
    )


class Raising(Actor):
    """Raises what it is asked to."""

    @method
    async def fail(self, kind: str) -> None:
        raise made(kind)

    @method
    def fail_in_thread(self, kind: str) -> None:
        raise made(kind)

    @method
    async def fail_together(self) -> None:
        raise group()

    @method
    async def fail_for_a_cause(self) -> None:
        raise OrderError(1, "lost") from ValueError("the cause of it")

    @method
    async def fail_while_streaming(self, kind: str) -> AsyncIterator[int]:
        yield 1
        raise made(kind)


class Passing(Actor):
    """Gets exceptions as values, and passes them on."""

    @method
    async def kind(self, error: Exception) -> str:
        return f"{type(error).__module__}:{type(error).__qualname__}"

    @method
    async def echo(self, error: Any) -> Any:
        return error

    @method
    async def stream(self, error: Exception) -> AsyncIterator[Exception]:
        yield error

    @method
    async def caught(self, raising: Raising, kind: str) -> list[Exception]:
        try:
            await raising.fail(kind)
        except Exception as error:
            return [error]
        raise AssertionError("nothing was raised")

    @method
    async def wrap(self, error: Exception) -> None:
        raise LookupError("wrapped", error)


class BadConstructor(Actor):
    """Its constructor raises."""

    def __init__(self, amount: int) -> None:
        self.part = amount / 0  # the line that fails


class BadStart(Actor):
    """Its `on_start` raises."""

    async def on_start(self) -> None:
        raise FrozenError(3)  # the line that fails
