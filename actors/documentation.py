"""What users read of functions: one text for what several classes promise, and a name that they
know for coroutines of the runtime.

The same method exists on a node, at the blocking door and at that of asyncio. `help()` and the
reference show the whole text everywhere, and it is written once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., object])

A_CALL = "call of an actor"
"""What Python names in its warning if a program does not await a call."""


def documented_as(source: object) -> Callable[[T], T]:
    """Decorate a function or class whose docstring goes on with that of `source`: first what is
    particular here, then what holds for all of them. Changes only `__doc__`.
    """

    def append(target: T) -> T:
        parts = (inspect.getdoc(target), inspect.getdoc(source))
        target.__doc__ = "\n\n".join(part for part in parts if part)
        return target

    return append


class OfInstance:
    """A read-only attribute that only instances have. Unlike a property it is nothing on the class,
    where `inspect.signature` and others look for the class's own.
    """

    def __init__(self, read: Callable[[Any], object]) -> None:
        self._read = read

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            raise AttributeError
        return self._read(instance)

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError("it cannot be set")


class _Documentation:
    """The docstring of a class, and that of what an instance of it stands for."""

    def __init__(self, text: str | None, read: Callable[[Any], str | None]) -> None:
        self._text = text
        self._read = read

    def __get__(self, instance: object, owner: type) -> str | None:
        return self._text if instance is None else self._read(instance)

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError("the docstring of a method cannot be set")


def reads_as(read: Callable[[Any], str | None]) -> Callable[[C], C]:
    """Decorate a class whose instances have the docstring that `read(instance)` returns: `help()`
    at a prompt shows it, and that of the class for the class.
    """

    def decorate(cls: C) -> C:
        cls.__doc__ = cast("Any", _Documentation(cls.__doc__, read))
        return cls

    return decorate


def shown_as(name: str) -> Callable[[F], F]:
    """Decorate an `async def` whose coroutines programs hold: Python says "coroutine ... was never
    awaited" with this name. It is read when a coroutine is made, so a call costs nothing more.
    """

    def rename(function: F) -> F:
        function.__qualname__ = name
        return function

    return rename
