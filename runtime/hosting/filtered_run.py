"""One call on its way through its filters, on either side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any

import trio

from actors.class_names import class_name
from actors.errors import CallError, FilterFailedError, FilterRefusedError, NotExecutedError
from actors.filters import Call, Filter
from runtime.user_errors import (
    is_being_cancelled,
    is_cancellation,
    is_interrupt,
    is_same_in_other_groups,
    leaves,
)


class FilteredRun:
    """One call on its way through filters, in order; `last()` is what they are around. `task`: it
    runs in that task alone, or in nurseries that are opened there; None: in any task.
    """

    __slots__ = (
        "_call",
        "_filters",
        "_last",
        "_task",
        "error",
        "is_of_call",
        "reached",
        "returned",
    )

    def __init__(
        self,
        filters: tuple[Filter, ...],
        call: Call,
        last: Callable[[], Awaitable[object]],
        task: trio.lowlevel.Task | None = None,
    ) -> None:
        self._filters = filters
        self._call = call
        self._last = last
        self._task = task
        self.reached = False
        """True once the last filter has gone on."""
        self.returned = False
        """True once what they are around has returned."""
        self.error: BaseException | None = None
        """What it has raised."""
        self.is_of_call = False
        """True if what `run` has raised is the call's own error, or what a filter has made of it;
        False for a refusal by a filter, and for a filter's mistake.
        """

    async def run(self) -> object:
        """Run the call. Raises what it raises, or for a filter that raises `FilterRefusedError` or
        `FilterFailedError`; what a filter raises in place of an error of the call is raised as it
        is, unless that ends more than the call, or says falsely that it was not made.
        """
        try:
            value = await self._step(0, self._call)
        except BaseException as error:  # noqa: ASYNC103  a filter may raise SystemExit as well
            if is_cancellation(error) or is_interrupt(error):
                raise
            if self._stands_for_call(error):
                self.is_of_call = True
                raise
            if not self.reached and issubclass(type(error), NotExecutedError):
                raise
            raise self._mistake(error) from error  # noqa: ASYNC104
        finally:
            # What an error refers to must not be in a circle with it.
            self.error = None
        if type(value) is CoroutineType:
            value.close()
            # The caller would get the coroutine.
            raise self._failed("returned a coroutine (write `return await next(call)`)")
        return value

    def _stands_for_call(self, error: BaseException) -> bool:
        """True if the caller gets `error` as it is: it is the call's own, or what a filter has made
        of that.
        """
        own = self.error
        if own is None:
            return False
        if error is own or is_same_in_other_groups(error, own):
            return True
        # It would end the actor, or the task of the caller, or look like the end of the items.
        allowed = (Exception, trio.Cancelled) if is_being_cancelled() else (Exception,)
        if not all(issubclass(type(one), allowed) for one in leaves(error)) or (
            self._call.kind == "stream" and issubclass(type(error), StopAsyncIteration)
        ):
            return False
        # Raised where the call is made, this says that the method has not run. A filter that makes
        # calls of its own, for example of an audit, raises it by mistake.
        return self._call.side != "client" or not (
            issubclass(type(error), NotExecutedError) and not self._was_refused
        )

    @property
    def _was_refused(self) -> bool:
        """True on the client side if the call has ended with the proof that it has not run. Where a
        method runs, it may itself raise such an error of a call that it has made.
        """
        return self._call.side == "client" and issubclass(type(self.error), NotExecutedError)

    def _mistake(self, error: BaseException) -> CallError:
        """The error for what a filter raises without need: its outcome follows from when that
        was.
        """
        if not self.reached or self._was_refused:
            return FilterRefusedError(self._text(error, "the method did not run"))
        if self.returned:
            then = "the method has run, and its result is lost"
        elif self.error is not None:
            then = f"the call had raised {class_name(type(self.error))}, which is lost"
        else:
            then = "it may run"
        return FilterFailedError(self._text(error, then))

    async def run_alone(self) -> object:
        """The same, where the call is made: its filters leave no cancel scope or nursery open in
        the task, which may be the runtime's own, or has some of the user's around the call.
        """
        # Attributes of trio's that are private: there are no public ones.
        task: Any = trio.lowlevel.current_task()
        before, left_open = len(task.child_nurseries), False
        value: object = None
        try:
            with trio.CancelScope():
                inner = task._cancel_status
                try:
                    value = await self.run()
                finally:
                    left_open = task._cancel_status is not inner
        except RuntimeError as error:
            if not left_open:
                raise
            # trio has closed the scopes; what runs in nurseries is cancelled.
            for nursery in task.child_nurseries[before:]:
                nursery.cancel_scope.cancel()
            del task._child_nurseries[before:]
            raise self._failed("has left a cancel scope or nursery open") from error
        return value

    def _failed(self, what: str) -> CallError:
        """The error for a filter that goes wrong without raising."""
        call, cls = self._call, FilterFailedError if self.reached else FilterRefusedError
        return cls(
            f"a filter on the {call.side} side {what} around {call.actor}.{call.method}; the "
            f"method {'may have run' if self.reached else 'did not run'}"
        )

    def _text(self, error: BaseException, then: str) -> str:
        call = self._call
        return (
            f"a filter on the {call.side} side raised {class_name(type(error))} around "
            f"{call.actor}.{call.method}: {then}"
        )

    async def _step(self, place: int, call: Call) -> object:
        if call is not self._call:
            raise TypeError("a filter passes next(...) the call that it was given, and no other")
        if place == len(self._filters):
            return await self._at_last()
        gone_on = False

        async def go_on(call: Call) -> object:
            nonlocal gone_on
            if gone_on:
                raise RuntimeError(
                    f"{type(self._filters[place]).__name__} has called next(...) twice for one "
                    "call: call it once; to repeat calls, give them a RetryPolicy"
                )
            gone_on = True
            return await self._step(place + 1, call)

        return await self._filters[place].call(go_on, call)

    async def _at_last(self) -> object:
        if self._task is not None and not _is_within(self._task):
            # It would go on when the filter has returned, beside the actor's next method.
            raise RuntimeError(
                "next(...) was awaited in a task that may outlive the filter: await it in the "
                "filter's own task, or in a nursery that the filter opens"
            )
        self.reached = True
        try:
            value = await self._last()
        except BaseException as error:  # noqa: ASYNC103
            # Cancelled too: a filter may raise something else in its place.
            self.error = error
            raise
        self.returned = True
        return value


def _is_within(outer: trio.lowlevel.Task) -> bool:
    """True in the task `outer`, and in nurseries that are opened there."""
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None and task is not outer:
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    return task is outer
