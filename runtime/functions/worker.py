"""The actor in a worker process: it runs the functions that its node's service gives it, one at a
time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from actors.actor import Actor
from actors.class_names import is_one_of
from actors.errors import ArgumentLostError, FunctionNotImportableError
from actors.method import method
from actors.reference import by_value
from runtime.calls.error_codec import PassedOnError
from runtime.functions.function_names import find_function
from runtime.hosting.cell import RefusedElsewhereError
from runtime.hosting.ended_iterations import explain_ended_iteration
from runtime.user_errors import guarded, is_cancellation, is_interrupt

PLAIN: frozenset[type] = frozenset({bool, int, float, str, bytes, type(None)})


class FunctionWorker(Actor):
    """Runs functions by their names. Spawned by `runtime.functions.service` with a process of its
    own.
    """

    def __init__(self) -> None:
        self._found: dict[str, Callable[..., Any]] = {}

    # Only nodes: a path names any function that can be imported.
    @method(allow=())
    def prepare(self, path: str) -> None:
        """Import the function. Raises FunctionNotImportableError."""
        try:
            self._found[path] = find_function(path)
        except FunctionNotImportableError as error:
            raise RefusedElsewhereError(error) from None

    @method(allow=())
    async def call(
        self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Run a function that was prepared: a plain one in a thread, an `async def` in the event
        loop, which is trio's. Raises what it raises.
        """
        function = self._found[path]
        values, named = await _values(path, function, args, kwargs)
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*values, **named)
            # In a tuple: trio refuses a coroutine as the result of a thread.
            (result,) = await self._hosted().call_in_thread(
                lambda: (function(*values, **named),),
            )
            if inspect.isawaitable(result):
                # A plain function around a coroutine function, as decorators make them.
                return await result
            return result
        except Exception as error:
            explain_ended_iteration(error, path)
            raise
        except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
            if is_cancellation(error) or is_interrupt(error):
                raise
            # SystemExit, and whatever else is no Exception: it ends this call, as any error does,
            # and not the actor.
            raise PassedOnError.describing(error, _size_of) from None  # noqa: ASYNC104

    @method(allow=())
    async def idle(self) -> None:
        """Returns when nothing runs any more: its turn comes after that of the running call."""


async def _values(
    path: str, function: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The arguments with the values of references in their places, as methods of actors take
    them.
    """
    values, named = list(args), dict(kwargs)
    # A function that is written in C may have no signature: then it is given what came.
    wanted = guarded(
        lambda: by_value(function, of_actor=False).needs(args, named), lambda error: None
    )
    for place, reference in wanted or ():
        try:
            value = await reference.fetch()
        except Exception as error:
            what = f"argument {place!r}" if isinstance(place, str) else f"argument {place + 1}"
            raise RefusedElsewhereError(
                ArgumentLostError(
                    f"{path} was not run: its {what} is a reference without a value: "
                    f"{type(error).__name__}: {error}"
                )
            ) from error
        if isinstance(place, str):
            named[place] = value
        else:
            values[place] = value
    return values, named


def _size_of(value: object) -> int | None:
    """How many bytes an argument of such an exception takes, None for what does not travel."""
    return 1024 if is_one_of(type(value), PLAIN) else None
