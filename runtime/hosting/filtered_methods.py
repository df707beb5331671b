"""Methods with filters around them, where they run.

An actor that has filters gets other method definitions when it starts. So a call of an actor
without filters does not even look for them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import trio

from actors import errors
from actors.class_names import bases, is_one_of
from actors.errors import CallError, EncodeError, FilterRefusedError
from actors.filters import Call, Filter
from actors.method import InThread, MethodDefinition
from runtime.hosting.cell import Invocation, RefusedElsewhereError
from runtime.hosting.filtered_run import FilteredRun
from runtime.user_errors import guarded, summary_of, text_of

_OURS = frozenset(
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, CallError)
)

Running = Mapping[trio.lowlevel.Task, Invocation]

Check = Callable[[object], object]


@attrs.frozen
class FilteredMethod(MethodDefinition):
    """A method with filters around it. `running`: the invocations of the node, by their tasks.
    `check`: raises EncodeError, or anything else, for a value that cannot be sent.
    """

    inner: MethodDefinition = attrs.field(kw_only=True)
    filters: tuple[Filter, ...] = attrs.field(kw_only=True)
    running: Running = attrs.field(kw_only=True, repr=False, eq=False)
    check: Check = attrs.field(kw_only=True, repr=False, eq=False)

    def run(
        self,
        instance: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        in_thread: InThread,
    ) -> Coroutine[Any, Any, object]:
        """Return the coroutine that runs the method within its filters. Raises TypeError if the
        arguments do not fit.
        """
        # Made first: it raises TypeError for arguments that do not fit, before any filter runs.
        return self.around(self.inner.run(instance, args, kwargs, in_thread), args, kwargs)

    def items(
        self, instance: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AsyncGenerator[object, None]:
        """Return the generator of the method's items. The filters are not around it but around the
        task that sends the items: see `around`.
        """
        return self.inner.items(instance, args, kwargs)

    async def around(
        self,
        method: Coroutine[Any, Any, object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Run the filters around one run of the method."""
        try:
            task = trio.lowlevel.current_task()
            invocation = self.running[task]
            call = _call_of(invocation, self.name, args, kwargs)
            run = FilteredRun(self.filters, call, lambda: method, task)
            try:
                value = await run.run()
                if invocation.stream_output is not None:
                    # It has ended with its last item: there is no value to send.
                    return None
                if not run.reached and call.kind != "send":
                    self._check_answer(call, value)
                return value
            except CallError as error:
                if run.is_of_call:
                    raise
                # Said by the runtime or a filter, and not raised by the method.
                raise RefusedElsewhereError(_plain_refusal(error)) from error
        finally:
            # Where no filter has gone on to it. One that runs in a nursery which a filter has left
            # open is not closed here: it is cancelled, in its own task.
            if inspect.getcoroutinestate(method) == inspect.CORO_CREATED:
                method.close()

    def _check_answer(self, call: Call, value: object) -> None:
        """Raise FilterRefusedError if what a filter has answered in place of the method cannot be
        sent: the caller would get an error that says that the method has run.
        """
        # Code of users is asked what the value is.
        why = guarded(partial(_after, self.check, value), _why_unsendable)
        if why:
            raise FilterRefusedError(
                f"{call.actor}.{call.method} did not run: a filter on the server side has answered "
                f"in its place, and its answer cannot be sent: {why}"
            )


def _after(check: Check, value: object) -> str:
    check(value)
    return ""


def _why_unsendable(error: BaseException) -> str:
    if issubclass(type(error), EncodeError):
        return text_of(error)
    return f"looking at it raised {summary_of(error)}"


def filtered(
    methods: Mapping[str, MethodDefinition],
    filters: tuple[Filter, ...],
    running: Running,
    check: Check,
) -> Mapping[str, MethodDefinition]:
    """Return the methods with these filters around each; see `FilteredMethod`."""
    return MappingProxyType(
        {
            name: FilteredMethod(
                **{
                    field.name: getattr(definition, field.name)
                    for field in attrs.fields(MethodDefinition)
                },
                inner=definition,
                filters=filters,
                running=running,
                check=check,
            )
            for name, definition in methods.items()
        }
    )


def _plain_refusal(error: CallError) -> CallError:
    """The error as an object of a class of ours: callers know no class that users derive from it,
    and its text is code of theirs.
    """
    cls = next(base for base in bases(type(error)) if is_one_of(base, _OURS))
    return error if cls is type(error) else cls(text_of(error))


def has_filters(methods: Mapping[str, MethodDefinition]) -> bool:
    """True if `filtered` has made these methods."""
    return any(isinstance(one, FilteredMethod) for one in methods.values())


def _call_of(
    invocation: Invocation, method: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> Call:
    address = invocation.cell.address
    return Call(
        side="server",
        kind="stream"
        if invocation.stream_output is not None
        else "send"
        if invocation.link is None
        else "call",
        actor=address.name,
        class_path=address.class_path,
        # Not that of the invocation: that may be a batch of calls.
        method=method,
        node=address.node,
        epoch=address.epoch,
        incarnation=address.incarnation,
        args=args,
        kwargs=kwargs,
        deadline=invocation.deadline,
        attempt=invocation.attempt,
        peer=invocation.verified,
    )
