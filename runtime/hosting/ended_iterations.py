"""What a method's caller is shown when `StopIteration` or `StopAsyncIteration` has come out of it.

Neither can come out of a coroutine or an async generator: for Python they end the iteration that
runs around it, so it raises a `RuntimeError` in their place (PEP 479), whose text names neither the
method nor the line. The caller's own coroutines would do the same with an error that is also an
instance of these classes; so it gets the `RuntimeError`, with a text that says what has happened.
"""

from __future__ import annotations

from typing import Any, Final, cast

from actors.class_names import class_name
from runtime.user_errors import raised_at, repr_of

_OF_PYTHON: Final = frozenset(
    {
        "coroutine raised StopIteration",
        "async generator raised StopIteration",
        "async generator raised StopAsyncIteration",
    }
)
"""The texts of those errors."""

_MOST_OF_VALUE: Final = 200
"""Characters of the value that is shown."""

# The interpreter's own ways to what a class can define anew.
_ARGS: Final = cast("Any", vars(BaseException)["args"])
_CAUSE: Final = cast("Any", vars(BaseException)["__cause__"])


def explain_ended_iteration(error: BaseException, what: str) -> None:
    """If `error` is one of Python's for an iteration that has ended, give it a text that says so of
    `what`, a method or a function.
    """
    if type(error) is not RuntimeError:
        return
    args: tuple[object, ...] = _ARGS.__get__(error)
    if len(args) != 1 or type(args[0]) is not str or args[0] not in _OF_PYTHON:
        return
    cause: BaseException | None = _CAUSE.__get__(error)
    if cause is None or not issubclass(type(cause), StopIteration | StopAsyncIteration):
        # A RuntimeError of the user's with such a text.
        return
    values: tuple[object, ...] = _ARGS.__get__(cause)
    with_value = f" with the value {repr_of(values[0])[:_MOST_OF_VALUE]}" if values else ""
    place = raised_at(cause)
    at = f" at {place}" if place else ""
    step = "next" if issubclass(type(cause), StopIteration) else "anext"
    text = (
        f"{what} raised {class_name(type(cause))}{with_value}{at}: that is how Python ends "
        f"iterations, and it cannot come out of a call. Use {step}(iterator, default), or catch it "
        "there"
    )
    _ARGS.__set__(error, (text,))
