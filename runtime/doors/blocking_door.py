"""The blocking door: handles and streams for threads that have no event loop."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from inspect import CO_COROUTINE
from types import FrameType
from typing import Any, ParamSpec, TypeAlias, TypeVar, Unpack

import attrs
import trio

from actors import errors
from actors.blocking import BlockingReference, BlockingStream
from actors.documentation import OfInstance, documented_as
from actors.foreign_names import HasForeignNames, names_for_methods, names_for_streams
from actors.handle import Handle
from actors.keywords import names_keywords
from actors.method import BoundMethod, BoundStream, Method, Stream, StreamChanges, StreamMethod
from actors.options import CallChanges
from actors.process_bound import ProcessBound
from actors.reference import Reference
from runtime.doors.connections import handle_on
from runtime.doors.loop_thread import OpenBlock
from runtime.doors.portal import MethodCall, next_of
from runtime.doors.time_limit import A_CALL, ANYTHING, within_limit
from runtime.node import Node
from runtime.pools.map_run import MapResults
from runtime.source_lines import module_of
from runtime.user_errors import end_at_door

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")

Blocking: TypeAlias = type[A]
"""The type of a blocking handle: `def fill(counter: Blocking[Counter]) -> None`."""

NOTEBOOKS = ("ipykernel", "IPython")
"""Packages that run the cells of a notebook as plain functions within their event loop, which waits
for a cell whatever it does.
"""


@attrs.frozen(eq=False)
class BlockingDoor:
    """Blocks threads for everything that belongs to one connection."""

    session: OpenBlock[Any]
    node: Node

    def wait(self, function: Callable[[], Awaitable[T]], what_ended: str = ANYTHING) -> T:
        """Run the function in the loop, and block until it has ended. `what_ended`: see
        `within_limit`.
        """
        refuse_loops()
        self.session.check()
        try:
            return self.session.portal.call(within_limit(function, what_ended))
        except Exception as error:
            end_at_door(error)
            raise

    def check(self) -> None:
        """Raises ForkedProcessError in a fork of the process that opened the connection, and
        NotAMemberError once it is closed.
        """
        self.session.check()
        self.session.portal.check()

    def future(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run the function in the loop. Does not block, so any thread may call it."""
        self.session.check()
        return self.session.portal.future(function)

    def now(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait, in the loop's thread: objects of the loop may be used
        only there.
        """

        async def called() -> T:
            return function()

        return self.wait(called)

    def reference(self, reference: Reference[R]) -> BlockingReference[R]:
        """The reference, to be waited for here."""
        return BlockingReference(reference._state, reference._source, self.wait)

    def handle(self, handle: object) -> Any:
        """The handle of any door, at this one."""
        return BlockingHandle(self, handle_on(self.node, handle))


class BlockingHandle(Handle):
    """What a blocking handle is at run time; a type checker sees the actor's class. In messages it
    is a handle like any other.
    """

    def __init__(self, door: BlockingDoor, handle: Handle) -> None:
        self._door = door
        self._handle = handle
        super().__init__(handle._caller, handle.address, handle._methods, handle._options)

    @documented_as(Handle.options)
    @names_keywords
    def options(self, **changes: Unpack[CallChanges]) -> BlockingHandle:
        """Return a handle of the same actor with other call options."""
        return BlockingHandle(self._door, self._handle.options(**changes))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # Not the way to a method; and while it is copied, it has no handle to ask yet.
            raise AttributeError(attribute)
        found = getattr(self._handle, attribute)
        method = (
            BlockingStreamMethod(self._door, found)
            if isinstance(found, BoundStream)
            else BlockingMethod(self._door, found)
        )
        # The next access finds it without coming here.
        self.__dict__[attribute] = method
        return method


def _signature_of(method: BlockingMethod[..., Any] | BlockingStreamMethod[..., Any]) -> object:
    return getattr(method._bound, "__signature__")  # noqa: B009  none is in its type


class BlockingMethod(HasForeignNames, ProcessBound, Method[P, R]):
    """A method of one actor, ready to be called by any thread, which blocks meanwhile. Cheap; keep
    it or make it anew.
    """

    _foreign_names = names_for_methods("")
    __signature__ = OfInstance(_signature_of)

    def __init__(self, door: BlockingDoor, bound: BoundMethod[P, R]) -> None:
        super().__init__(bound._definition)
        self._door = door
        self._bound = bound

    @documented_as(Method.__call__)
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call, and block until the outcome is known."""
        bound = self._bound
        if (refusal := bound._refusal(args, kwargs)) is not None:
            raise refusal
        return self._door.wait(MethodCall(bound._caller, bound, args, kwargs), A_CALL)

    @documented_as(Method.options)
    @names_keywords
    def options(self, **changes: Unpack[CallChanges]) -> BlockingMethod[P, R]:
        """Return the same method with other call options."""
        return BlockingMethod(self._door, self._bound.options(**changes))

    @documented_as(Method.send)
    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call one way."""
        bound = self._bound
        if (refusal := bound._refusal(args, kwargs)) is not None:
            raise refusal
        self._door.wait(partial(bound._caller.send, bound, args, kwargs), A_CALL)

    @documented_as(Method.remote)
    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingReference[R]:
        """Call, and leave the result with its owner."""
        bound, door = self._bound, self._door
        if (refusal := bound._refusal(args, kwargs)) is not None:
            raise refusal
        return door.reference(door.wait(partial(bound._caller.remote, bound, args, kwargs), A_CALL))

    @documented_as(Method.future)
    def future(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call without waiting."""
        bound = self._bound
        if (refusal := bound._refusal(args, kwargs)) is not None:
            raise refusal
        return self._door.future(MethodCall(bound._caller, bound, args, kwargs))

    def __repr__(self) -> str:
        return f"<blocking {repr(self._bound).removeprefix('<')}"


class BlockingStreamMethod(HasForeignNames, ProcessBound, StreamMethod[P, T]):
    """A generator method of one actor, whose items any thread can wait for."""

    _foreign_names = names_for_streams("for")
    __signature__ = OfInstance(_signature_of)

    def __init__(self, door: BlockingDoor, bound: BoundStream[P, T]) -> None:
        super().__init__(bound._definition)
        self._door = door
        self._bound = bound

    @documented_as(StreamMethod.__call__)
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingStream[T]:
        """Begin to read the stream."""
        bound = self._bound
        if (refusal := bound._refusal(args, kwargs)) is not None:
            raise refusal
        return BlockingItems(self._door, bound._caller.stream(bound, args, kwargs))

    @documented_as(StreamMethod.options)
    @names_keywords
    def options(self, **changes: Unpack[StreamChanges]) -> BlockingStreamMethod[P, T]:
        """Return the same method with other options."""
        return BlockingStreamMethod(self._door, self._bound.options(**changes))

    def __repr__(self) -> str:
        return f"<blocking {repr(self._bound).removeprefix('<')}"


class BlockingItems(BlockingStream[T]):
    """The items of a stream or of a map, read by one thread at a time."""

    __slots__ = ("_door", "_stream")

    def __init__(self, door: BlockingDoor, stream: Stream[T] | MapResults[T]) -> None:
        self._door = door
        self._stream = stream

    def __next__(self) -> T:
        found = self._door.wait(partial(next_of, self._stream), A_CALL)
        if not found:
            raise StopIteration
        return found[0]

    def close(self) -> None:
        """Stop reading: the far side closes its generator."""
        try:
            self._door.wait(self._stream.aclose)
        except errors.NotAMemberError:
            # Its connection was closed, which has closed the generator as well.
            return


def refuse_loops() -> None:
    """Raises WrongDoorError where blocking would hold up an event loop of this thread."""
    if trio.lowlevel.in_trio_run():
        raise errors.WrongDoorError(
            "a blocking call within a trio program, or in a callback of a future, would hold up "
            "everything else in it; open a node with runtime.open_node there and await its calls"
        )
    # asyncio is not imported for this check: if it was not imported before, none of its loops runs.
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None and not _in_notebook():
        raise errors.WrongDoorError(
            "a blocking call within a running asyncio loop would hold up everything else in it; "
            "use `from runtime.aio import connect` there and await its calls"
        )


def _in_notebook() -> bool:
    """True if the coroutine that runs is a notebook's own, which waits for a plain cell anyway."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_flags & CO_COROUTINE:
            package = module_of(frame).partition(".")[0]
            return package in NOTEBOOKS
        frame = frame.f_back
    return False
