"""What may be called from outside: the `@method` decorator and the typed call that it makes possible.

Only decorated methods can be called on a handle. On a handle, `handle.add` is a `BoundMethod`: calling it makes a remote call,
`.options(...)` gives a changed copy, `.send(...)` a one-way call, `.remote(...)` a call whose result stays where it was made. Inside the
actor, `self.add(1)` is an
ordinary call that runs within the current turn.

The typing (a descriptor over ParamSpec) was checked to accept right and refuse wrong arguments under mypy --strict and basedpyright.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import attrs
import trio

from actors.messages import message
from actors.options import NO_CALL_OPTIONS, CallChanges, CallOptions
from actors.reference import Reference

P = ParamSpec("P")
R = TypeVar("R")


@attrs.frozen
class MethodDefinition:
    """A callable method as the runtime sees it: the function and the flags it was marked with.

    `idempotent`: running it twice does no harm, so the runtime may repeat a call whose outcome is unknown.
    `concurrent`: runs beside other calls of the same actor instead of in turn.
    `in_thread`: a plain `def`; runs in a worker thread, so that it may block.
    `options`: how it is called where the call does not say otherwise.
    """

    name: str
    function: Callable[..., Any]
    idempotent: bool = False
    concurrent: bool = False
    in_thread: bool = False
    options: CallOptions = NO_CALL_OPTIONS

    def run(self, instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, object]:
        """The coroutine of one run on `instance`. Raises TypeError if the arguments do not fit."""
        if self.in_thread:
            inspect.signature(self.function).bind(instance, *args, **kwargs)
            return _run_in_thread(self.function, instance, args, kwargs)
        coroutine: Coroutine[Any, Any, object] = self.function(instance, *args, **kwargs)
        return coroutine


async def _run_in_thread(function: Callable[..., object], instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    # Not abandoned on cancellation: a thread cannot be stopped, and the actor must not take its next message while one still runs in it.
    return await trio.to_thread.run_sync(lambda: function(instance, *args, **kwargs))


class Caller(Protocol):
    """What carries out calls for handles; the runtime's side of this module."""

    def call(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, R]:
        """Make the call and wait for its outcome."""
        ...

    def send(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, None]:
        """Hand the call to the connection and do not wait for an outcome."""
        ...

    def remote(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call and keep its result with its owner."""
        ...


@message
@attrs.frozen
class Address:
    """Where an actor is, as far as the holder knows.

    `registered` actors are found again by `name` when they have moved; others end with their node's incarnation.
    `epoch` 0 means any epoch. `class_path` is `module:Class`.
    """

    name: str
    node: str
    incarnation: int
    epoch: int = 0
    class_path: str = ""
    registered: bool = False


class BoundMethod(Generic[P, R]):
    """A method of one actor, ready to be called from anywhere. Cheap; keep it or make it anew."""

    __slots__ = ("_caller", "address", "definition", "moved", "options_", "route")

    def __init__(self, caller: Caller, address: Address, definition: MethodDefinition, options: CallOptions) -> None:
        self._caller = caller
        self.address = address
        self.definition = definition
        self.options_ = options
        self.route: object = None
        """Where the caller found the actor last: its own cache, nobody else's business."""
        self.moved = False
        """True once the actor was not where `address` says."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call and wait for the outcome: the value, or one of the three errors of `actors.errors`."""
        return self._caller.call(self, args, kwargs)

    def options(self, **changes: Unpack[CallChanges]) -> BoundMethod[P, R]:
        """The same method with other call options, for example `options(timeout=2.0)`; see `CallOptions`."""
        changed = BoundMethod[P, R](self._caller, self.address, self.definition, CallOptions(**changes).over(self.options_))
        changed.route, changed.moved = self.route, self.moved
        return changed

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]:
        """Call one way: returns when the connection has taken the message; what becomes of it stays unknown.

        At most once, in order with other calls from this node. An exception in the method is logged where the actor runs.
        """
        return self._caller.send(self, args, kwargs)

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Reference[R]]:
        """Call and leave the result with its owner; returns a `Reference` to fetch it by, or to hand on."""
        return self._caller.remote(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<method {self.address.name}.{self.definition.name} on {self.address.node}>"


class OwnMethod(Generic[P, R]):
    """A method seen from inside its own actor: calling it runs it here and now, within the current turn."""

    __slots__ = ("_definition", "_instance")

    def __init__(self, instance: object, definition: MethodDefinition) -> None:
        self._instance = instance
        self._definition = definition

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the method as an ordinary function of this object."""
        return cast("Coroutine[Any, Any, R]", self._definition.run(self._instance, args, kwargs))

    def __getattr__(self, attribute: str) -> object:
        # `self.add.send(1)` puts a message to oneself into the mailbox: the way of the handle.
        handle = getattr(self._instance, "handle")  # noqa: B009  the instance is any actor, known only by duck typing here
        return getattr(getattr(handle, self._definition.name), attribute)


class Method(Generic[P, R]):
    """The descriptor that `@method` leaves in the class."""

    def __init__(self, definition: MethodDefinition) -> None:
        self.definition = definition
        self.__doc__ = definition.function.__doc__
        self.__wrapped__ = definition.function

    @overload
    def __get__(self, instance: None, owner: type) -> Method[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundMethod[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Method[P, R] | BoundMethod[P, R]:
        if instance is None:
            return self
        # To the type checker an actor and its handle look alike; both kinds of method are called and awaited in the same way.
        return cast("BoundMethod[P, R]", OwnMethod[P, R](instance, self.definition))


class MethodDecorator(Protocol):
    """`@method(...)` with flags."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Method[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Method[P, R]: ...


@overload
def method(function: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Method[P, R]: ...
@overload
def method(function: Callable[Concatenate[Any, P], R], /) -> Method[P, R]: ...
@overload
def method(*, idempotent: bool = False, concurrent: bool = False, **options: Unpack[CallChanges]) -> MethodDecorator: ...
def method(
    function: Callable[..., Any] | None = None, /, *, idempotent: bool = False, concurrent: bool = False, **options: Unpack[CallChanges]
) -> Any:
    """Mark a method of an `Actor` as callable from outside.

    `async def` runs on the node's event loop; plain `def` runs in a worker thread, so it may block. Either way one call at a time per
    actor, in order, unless `concurrent=True`. `idempotent=True` allows the runtime to repeat a call of unknown outcome. `timeout` (seconds)
    and `retry` are defaults for every call of it.
    """

    def decorate(function: Callable[..., Any]) -> Method[..., Any]:
        if not inspect.isfunction(function):
            raise TypeError(f"@method goes onto a function, not onto {function!r}; put it outermost")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"@method: {function.__qualname__} is a generator; return a list, or make it an ordinary method")
        return Method(
            MethodDefinition(
                name=function.__name__,
                function=function,
                idempotent=idempotent,
                concurrent=concurrent,
                in_thread=not inspect.iscoroutinefunction(function),
                # The shared object where nothing was said: callers tell the short way by it.
                options=CallOptions(**options) if options else NO_CALL_OPTIONS,
            )
        )

    return decorate if function is None else decorate(function)
