"""Exceptions that do harm wherever they are looked at, and an actor that raises any of them in any
place there is.
"""

from __future__ import annotations

import abc
import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import attrs
import trio
import trio.lowlevel

from actors import Actor, message, method
from actors.actor import Ended
from actors.errors import ActorNotFoundError, DecodeError, ProtocolError, RemoteError
from actors.supervision import ExitReason


class Panic(BaseException):
    """As those of Rust's panics are: no `Exception`."""


class HarmfulText(Exception):  # noqa: N818
    def __str__(self) -> NoReturn:
        raise SystemExit("str")

    def __repr__(self) -> NoReturn:
        raise Panic("repr")


class HarmfulEquality(Exception):  # noqa: N818
    def __eq__(self, other: object) -> NoReturn:
        raise SystemExit("eq")

    def __hash__(self) -> NoReturn:
        raise SystemExit("hash")

    def __bool__(self) -> NoReturn:
        raise SystemExit("bool")

    def __len__(self) -> NoReturn:
        raise SystemExit("len")


class HarmfulEnd(Exception):  # noqa: N818
    def __del__(self) -> NoReturn:
        raise SystemExit("del")


class HarmfulReduction(Exception):  # noqa: N818
    def __reduce__(self) -> NoReturn:
        raise SystemExit("reduce")


class HarmfulClass(Exception):  # noqa: N818
    @property
    def __class__(self) -> Any:
        raise SystemExit("class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class HarmfulAttributes(Exception):  # noqa: N818
    def __getattribute__(self, name: str) -> NoReturn:
        raise SystemExit(name)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__qualname__", "__name__", "__mro__"):
            raise SystemExit(name)
        return super().__getattribute__(name)


class HarmfulMeta(Exception, metaclass=Meta):  # noqa: N818
    pass


class FalseTraceback(Exception):  # noqa: N818
    __traceback__ = property(lambda self: 1 / 0)
    __cause__ = property(lambda self: 1 / 0)
    __context__ = property(lambda self: 1 / 0)
    __notes__ = property(lambda self: 1 / 0)


class HarmfulGroup(ExceptionGroup[Exception]):
    def split(self, condition: Any) -> NoReturn:
        raise SystemExit("split")

    def derive(self, excs: Any) -> NoReturn:
        raise SystemExit("derive")

    @property
    def exceptions(self) -> NoReturn:
        raise SystemExit("exceptions")


class Text(str):
    def __str__(self) -> NoReturn:
        raise SystemExit("str of a str")

    def __getitem__(self, index: Any) -> NoReturn:
        raise SystemExit("part of a str")

    def __len__(self) -> int:
        return -5


class TextOfItsOwn(Exception):  # noqa: N818
    def __str__(self) -> str:
        return Text("odd")


# Registered, so that they are built again where they arrive.


@message
@attrs.frozen
class Need(Exception):  # noqa: N818
    need: int


@message
@attrs.define(kw_only=True)
class Slotted(Exception):  # noqa: N818
    sku: str
    left: list[int] = attrs.field(factory=list)


@message
class Named(Exception):  # noqa: N818
    """Has what a call error has, itself."""

    def __init__(self) -> None:
        super().__init__("named")
        self.outcome = "declined"
        self.remote_type = 5

    node = property(lambda self: "mine")
    actor = property(lambda self: 1 / 0)
    method = property(lambda self: "mine")
    attempts = property(lambda self: "mine")


@message
class HarmfulNew(Exception):  # noqa: N818
    made = 0

    def __new__(cls, *args: object) -> HarmfulNew:
        if cls.__name__ != "HarmfulNew" or cls.made:
            raise SystemExit("new")
        return super().__new__(cls, *args)


@message
class HarmfulInit(Exception):  # noqa: N818
    def __init__(self, one: int, two: int, *, three: int) -> None:
        super().__init__("computed")
        self.sum = one + two + three


@message
class HarmfulSetting(Exception):  # noqa: N818
    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise SystemExit(name)


@message
class HarmfulFamily(Exception):  # noqa: N818
    def __init_subclass__(cls, *, needed: int, **more: object) -> None:
        raise SystemExit("subclass")


@message
class ArgsOfItsOwn(Exception):  # noqa: N818
    args = property(lambda self: 1 / 0)


@message
class Abstract(Exception, abc.ABC):  # noqa: N818
    pass


class FinalMeta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> Any:
        if bases != (Exception,):
            raise SystemExit("no subclasses")
        return super().__new__(cls, name, bases, names)


@message
class Final(Exception, metaclass=FinalMeta):  # noqa: N818
    pass


@message
class RegisteredClass(Exception):  # noqa: N818
    @property
    def __class__(self) -> Any:
        raise SystemExit("class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@message
class RegisteredText(Exception):  # noqa: N818
    def __str__(self) -> NoReturn:
        raise SystemExit("str")

    __repr__ = __str__


@message
class RegisteredGroup(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> RegisteredGroup:  # type: ignore[override]
        return RegisteredGroup(self.message, excs)


class Thing:
    def __repr__(self) -> NoReturn:
        raise KeyboardInterrupt


def _syntax_error() -> BaseException:
    error = SyntaxError("x")
    error.msg, error.lineno, error.text, error.offset, error.filename = 2, "x", 5, "y", 7  # type: ignore[assignment]
    return error


def _noted(notes: object) -> BaseException:
    error = ValueError("noted")
    error.__notes__ = notes  # type: ignore[assignment]
    return error


def _caused() -> BaseException:
    error: BaseException = HarmfulText("the first")
    for number in range(300):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    return error


def _cycle() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _nested(depth: int) -> BaseException:
    error: Exception = ValueError("innermost")
    for number in range(depth):
        error = ExceptionGroup(f"level {number}", [error])
    return error


def _traced() -> BaseException:
    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        raise ValueError("deep")

    try:
        deeper(400)
    except ValueError as error:
        return error
    raise AssertionError


async def _kept() -> BaseException:
    """A `trio.Cancelled` that nothing cancels any more."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            kept = cancelled
            raise
    return kept


KINDS: dict[str, Callable[[], BaseException]] = {  # type: ignore[assignment]
    "KeyboardInterrupt": KeyboardInterrupt,
    "asyncio.CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "Panic": lambda: Panic("a panic"),
    "BaseException": lambda: BaseException("base"),
    "StopIteration": lambda: StopIteration(3),
    "StopAsyncIteration": StopAsyncIteration,
    "RuntimeError": lambda: RuntimeError("an ordinary one"),
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "AssertionError": AssertionError,
    "TypeError": lambda: TypeError("not about arguments"),
    "trio.EndOfChannel": trio.EndOfChannel,
    "trio.TooSlowError": trio.TooSlowError,
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "SyntaxError": _syntax_error,
    "AttributeError": lambda: AttributeError("x", name="y", obj=Thing()),
    "OSError": lambda: OSError(2, "no", "name", None, "other"),
    "unprintable argument": lambda: ValueError(Thing()),
    "unsendable argument": lambda: ValueError(threading.Lock()),
    "surrogate": lambda: ValueError("\udc80"),
    "huge": lambda: ValueError("x" * 3_000_000),
    "huge bytes": lambda: ValueError(bytes(1_500_000)),
    "deep argument": lambda: ValueError(
        [[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]
    ),
    "many arguments": lambda: ValueError(*range(1000)),
    "group": lambda: ExceptionGroup("two", [ValueError("one"), Need(2)]),
    "group of base": lambda: BaseExceptionGroup(
        "base", [KeyboardInterrupt(), SystemExit(3), Panic()]
    ),
    "group of all": lambda: ExceptionGroup(
        "all", [HarmfulText(), HarmfulClass(), HarmfulAttributes(), Named(), HarmfulNew()]
    ),
    "group in groups": lambda: _nested(60),
    "group too deep": lambda: _nested(300),
    "wide group": lambda: ExceptionGroup("wide", [ValueError(number) for number in range(500)]),
    "HarmfulGroup": lambda: HarmfulGroup("harmful", [ValueError(1)]),
    "RegisteredGroup": lambda: RegisteredGroup("registered", [ValueError(1), Need(3)]),
    "notes": lambda: _noted([5, None, HarmfulText(), "a note", "\udc80"]),
    "no notes": lambda: _noted(7),
    "causes": _caused,
    "cycle": _cycle,
    "deep": _traced,
    "call error": lambda: ActorNotFoundError("nobody"),
    "remote error": lambda: RemoteError("at once"),
    "protocol error": lambda: ProtocolError("not a peer's"),
    "decode error": lambda: DecodeError("not a peer's"),
    "Need": lambda: Need(4),
    "Slotted": lambda: Slotted(sku="bolts", left=[1]),
    "HarmfulInit": lambda: HarmfulInit(1, 2, three=3),
    "HarmfulSetting": lambda: HarmfulSetting("x"),
} | {
    cls.__name__: cls
    for cls in (
        HarmfulText,
        HarmfulEquality,
        HarmfulEnd,
        HarmfulReduction,
        HarmfulClass,
        HarmfulAttributes,
        FalseTraceback,
        TextOfItsOwn,
        Named,
        HarmfulNew,
        HarmfulFamily,
        ArgsOfItsOwn,
        Abstract,
        Final,
        RegisteredClass,
        RegisteredText,
    )
}
KINDS["HarmfulMeta"] = lambda: HarmfulMeta("meta")
WITH_LOOP = {"kept Cancelled": _kept}
"""Those that only an event loop makes."""

ALL = [*KINDS, *WITH_LOOP]
KINDS["SystemExit"] = lambda: SystemExit(3)
"""Not among all: it ends its actor."""


async def made(kind: str) -> BaseException:
    """One of that kind."""
    return await WITH_LOOP[kind]() if kind in WITH_LOOP else KINDS[kind]()


class Bystander(Actor):
    @method
    async def ping(self) -> str:
        return "pong"


class Raiser(Actor):
    """Raises in `place`, or in any method."""

    def __init__(self, place: str = "", kind: str = "") -> None:
        self.place = place
        self.kind = kind
        if place == "__init__":
            error = KINDS[kind]()
            raise error

    async def on_start(self) -> None:
        if self.place == "on_start":
            raise await made(self.kind)

    async def on_stop(self, reason: ExitReason) -> None:
        if self.place == "on_stop":
            raise await made(self.kind)

    async def on_ended(self, notice: Ended) -> None:
        if self.place == "on_ended":
            raise await made(self.kind)

    @method
    async def follow(self, handle: Bystander) -> None:
        await self.watch(handle)

    @method
    async def fail(self, kind: str) -> None:
        raise await made(kind)

    @method(concurrent=True)
    async def fail_beside(self, kind: str) -> None:
        await trio.lowlevel.checkpoint()
        raise await made(kind)

    @method
    def fail_in_thread(self, kind: str) -> None:
        error = KINDS[kind]()
        raise error

    @method
    async def fail_in_nursery(self, kind: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise await made(kind)

    @method
    async def fail_at_once(self, kind: str) -> AsyncIterator[int]:
        if kind:
            raise await made(kind)
        yield 1

    @method
    async def fail_later(self, kind: str) -> AsyncIterator[int]:
        yield 1
        raise await made(kind)

    @method
    async def fail_in_closing(self, kind: str) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise await made(kind)  # noqa: ASYNC102 (users do that, too)

    @method
    async def begin_task(self, kind: str, after: float) -> None:
        async def task() -> None:
            await trio.sleep(after)
            raise await made(kind)

        self.nursery.start_soon(task)
        self.nursery.start_soon(trio.sleep_forever)

    @method
    async def fail_through(self, other: Raiser, kind: str) -> None:
        await other.fail(kind)

    @method
    async def ping(self) -> str:
        return "pong"
