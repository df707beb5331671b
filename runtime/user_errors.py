"""Exceptions that user code raises: distinguished from interrupts and cancellations of the process
itself, and examined without trusting any of their code.

An exception is an object of the user's like any other. Its `__str__`, `__repr__`, `__class__`,
properties and metaclass run user code, which may raise any exception, `SystemExit` included. So the
runtime asks the interpreter's own descriptors where these know the answer, and guards the rest.
Nothing here raises but a genuine interrupt.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType, GetSetDescriptorType, MethodType, TracebackType
from typing import Any, Final, Generic, TypeVar, cast, final

import trio

import actors
from actors.class_names import bases, class_name, is_one_of, own_attributes, qualified_name
from actors.errors import UnderstudyError
from actors.short_repr import MOST_OBJECTS, objects_in, short_repr
from runtime.error_to_raise import ErrorToRaise
from runtime.printable import many
from runtime.source_lines import known_line, module_of, places

T = TypeVar("T")

MOST_TEXT = 1024 * 1024
"""Characters of an exception's text, or of the repr of one of its arguments, that are looked at."""

FRAME_LINE: Final = re.compile(
    r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE
)
"""The line of a traceback that says where a frame is."""

MOST_CHAINED = 200
"""Exceptions of a chain of causes and contexts that a traceback shows."""

MOST_RELATED = 1000
"""Members of groups, causes, contexts and notes of which a traceback is made. Python looks at the
frames of each, also of those that it does not show.
"""

OBJECTS_OF_RELATED = 100
"""Objects in containers that each of them writes, on average. One may write `MOST_OBJECTS`."""

MOST_WRITTEN = 10
"""Arguments of an exception that are written, where all of them would be too long."""

MOST_TRACEBACK = 16 * 1024
"""Characters of a traceback that travel, or are written to a log."""

BUILTIN: Final = frozenset(
    cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException)
)
"""The exceptions of the interpreter itself."""

_MACHINERY: Final = (
    os.path.join(os.path.dirname(actors.__file__), ""),
    os.path.join(os.path.dirname(__file__), ""),
    os.path.join(os.path.dirname(trio.__file__), ""),
    # trio's own package for results of tasks.
    os.path.join(os.path.dirname(os.path.dirname(trio.__file__)), "outcome", ""),
    contextlib.__file__,
)
"""Where the files are whose frames say nothing about the user's code."""

# The interpreter's own ways to what a class can define anew.
_TRACEBACK = cast("GetSetDescriptorType", vars(BaseException)["__traceback__"])
_CAUSE = cast("GetSetDescriptorType", vars(BaseException)["__cause__"])
_CONTEXT = cast("GetSetDescriptorType", vars(BaseException)["__context__"])
_ARGS = cast("Any", vars(BaseException)["args"])
_MEMBERS = cast("Any", vars(BaseExceptionGroup)["exceptions"])
_DICT = cast("Any", vars(BaseException)["__dict__"])

_CHECKED_IN: Final = frozenset({"runtime.isolation.base_node", "runtime.pools.pool"})
"""The modules of the methods that check what users give, where `CHECKS` lets errors end."""


def is_interrupt(error: BaseException) -> bool:
    """True if the process was interrupted (SIGINT, Ctrl-C), and `error` is how Python says so,
    alone or in a group: it must go on.

    A genuine `KeyboardInterrupt` is raised by the handler of the signal, trio's or the
    application's, which Python runs on top of whatever the main thread is doing; or by trio at a
    checkpoint of its main task. So its innermost frame is the handler's, or trio's. One that user
    code raises has the user's own frame there, and is an error like any other.
    """
    return any(
        issubclass(type(one), KeyboardInterrupt) and _raised_by_signal(one) for one in leaves(error)
    )


def is_being_cancelled() -> bool:
    """True if a scope around the running task is cancelled: of the runtime, or around the runtime.

    Asked where user code has just been left, with all scopes of its own. Only then is a
    `trio.Cancelled` that comes out of it trio's, which trio raises for a cancelled scope and for
    nothing else; otherwise user code has kept one, and raised it again.

    Also True where no loop runs: the interpreter closes the coroutines that a loop has left behind,
    by a `GeneratorExit`.
    """
    return not trio.lowlevel.in_trio_task() or trio.current_effective_deadline() == -math.inf


def is_cancellation(error: BaseException) -> bool:
    """True if `error`, which has just come out of user code, is that the running task is being
    cancelled, and nothing besides.

    Raise it again, or let trio do so at a checkpoint.
    """
    expected = trio.Cancelled if trio.lowlevel.in_trio_task() else GeneratorExit
    return is_being_cancelled() and all(issubclass(type(one), expected) for one in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however deep; of any other exception, itself."""
    waiting = [error]
    while waiting:
        one = waiting.pop()
        members = members_of(one)
        if members:
            waiting.extend(members)
        else:
            yield one


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The members of a group, one level of it; nothing for an exception that is no group. No group
    is empty.
    """
    members: tuple[BaseException, ...] = (
        _MEMBERS.__get__(error) if issubclass(type(error), BaseExceptionGroup) else ()
    )
    return members


def guarded(look: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """Return what `look`, which runs user code, returns; or what `otherwise` makes of the error
    that it raises.
    """
    try:
        return look()
    except BaseException as error:  # noqa: ASYNC103
        # No checkpoint, so that no cancellation comes out of it.
        if is_interrupt(error):
            raise
        return otherwise(error)  # noqa: ASYNC104


class Ran(Generic[T]):
    """The outcome of a function in a thread: its result, or the exception that it raised. Only
    `value` raises that exception.

    Threads of trio's look at an exception themselves on its way: one whose attributes raise would
    end the thread, which is waited for.
    """

    __slots__ = ("_error", "_result")

    def __init__(self, function: Callable[[], T]) -> None:
        self._error: ErrorToRaise | None = None
        try:
            self._result = function()
        except BaseException as error:  # noqa: ASYNC103
            # Raised by `value`; no interrupt comes to a thread.
            self._error = ErrorToRaise(error)

    def value(self) -> T:
        """Return what it returned. Raises what it raised."""
        if self._error is not None:
            self._error.raise_it()
        return self._result


def text_of(error: BaseException) -> str:
    """Return the text of an exception, fit for the wire: `str(error)`, or that there is none."""
    return _shown(
        lambda: _bounded(error) if is_written_boundless(error) else str(error),
        lambda failure: f"<its str() raised {class_name(type(failure))}>",
    )


def is_written_boundless(error: BaseException) -> bool:
    """True for an exception that would be written for very long: the interpreter writes its
    arguments, of which one holds the same containers again and again.
    """
    return _written_objects(error) > MOST_OBJECTS


def _written_objects(error: BaseException) -> int:
    """The objects in the arguments that are written for an exception; more than `MOST_OBJECTS` if
    there are more.
    """
    # All arguments together: a million of them are as long as one with a million objects in it.
    args: tuple[object, ...] = _ARGS.__get__(error)
    return objects_in(args, MOST_OBJECTS) if args and _writes_arguments(type(error)) else 0


def _writes_arguments(cls: type) -> bool:
    """True if the interpreter writes instances of an exception class, by their arguments; it writes
    groups by the number of their members.
    """
    for base in bases(cls):
        if "__str__" in own_attributes(base):
            return is_one_of(base, BUILTIN) and base is not BaseExceptionGroup
    return False


def _bounded(error: BaseException) -> str:
    args: tuple[object, ...] = _ARGS.__get__(error)
    texts = list(map(short_repr, args[:MOST_WRITTEN]))
    if len(args) > MOST_WRITTEN:
        texts.append(f"... ({many(len(args) - MOST_WRITTEN, 'more argument')} left out)")
    return ", ".join(texts)


def repr_of(value: object, objects: int = MOST_OBJECTS) -> str:
    """`repr(value)`, fit for the wire, or what stands for it. `objects`: as many are written of a
    container, at most; see `short_repr`.
    """
    return _shown(
        lambda: short_repr(value, MOST_TEXT, min(objects, MOST_OBJECTS)),
        lambda failure: (
            f"<a {qualified_name(type(value))} whose repr() raised {class_name(type(failure))}>"
        ),
    )


def summary_of(error: BaseException) -> str:
    """`Type: text`, as the last line of a traceback has it."""
    text = text_of(error)
    return f"{class_name(type(error))}: {text}" if text else class_name(type(error))


def traceback_object(error: BaseException) -> TracebackType | None:
    """The traceback of an exception, without asking its class."""
    return cast("TracebackType | None", _TRACEBACK.__get__(error))


def is_machinery(filename: str) -> bool:
    """True for a file of the runtime, or of what it runs on, whose frames say nothing about the
    user's code.
    """
    return filename.startswith(_MACHINERY)


def users_part(entry: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first frame of user code on: what has called that is the runtime.
    The whole of one that has no such frame.
    """
    first = entry
    while first is not None:
        if not is_machinery(first.tb_frame.f_code.co_filename):
            return first
        first = first.tb_next
    return entry


def begin_with_users_part(error: BaseException) -> None:
    """Take the frames that `users_part` leaves out from the exception itself, for one that Python
    will show as the cause of another.
    """
    cast("Any", _TRACEBACK).__set__(error, users_part(traceback_object(error)))


def end_with_users_part(error: BaseException) -> None:
    """Take the runtime's own frames from the exception that follow the frame which is about to
    raise it again, up to the first one of user code.
    """
    entry = traceback_object(error)
    if entry is not None and entry.tb_next is not None:
        rest: TracebackType | None = entry.tb_next
        while rest is not None and is_machinery(rest.tb_frame.f_code.co_filename):
            rest = rest.tb_next
        here = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        cast("Any", _TRACEBACK).__set__(error, here)


def skip_to_users_part(error: BaseException) -> None:
    """Take the runtime's own frames between the one that handles the exception now and the first of
    user code from it. One that has no frame of user code may be a bug, and stays whole.
    """
    entry = traceback_object(error)
    rest = None if entry is None else entry.tb_next
    while rest is not None and is_machinery(rest.tb_frame.f_code.co_filename):
        rest = rest.tb_next
    if entry is not None and rest is not None:
        end_with_users_part(error)


def is_same_in_other_groups(raised: BaseException, error: BaseException) -> bool:
    """True if `raised` has exactly the exceptions of `error`, in other groups or in none."""
    ours = _lasting(raised)
    return raised is not error and bool(ours) and ours == _lasting(error)


def _lasting(error: BaseException) -> set[int]:
    """The ids of the exceptions in it that are no cancellations: the scope that was cancelled
    cancels at the next checkpoint again.
    """
    return {id(one) for one in leaves(error) if not issubclass(type(one), trio.Cancelled)}


@final
class Checks:
    """`with CHECKS:` is a block that only checks what the user has given: its errors end with the
    frame of the block, because their texts say what is wrong, and the frames below say nothing.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            end_with_users_part(error)


CHECKS: Final = Checks()


def end_at_door(error: BaseException) -> None:
    """Take the runtime's own frames from an error that the frame which handles it lets go on to the
    user: of an error of ours, and of a refusal by a check. All others may be bugs, and stay whole.
    """
    *_, (frame, _) = traceback.walk_tb(traceback_object(error))
    if isinstance(error, UnderstudyError) or module_of(frame) in _CHECKED_IN:
        end_with_users_part(error)


def traceback_of(
    error: BaseException, most: int = MOST_TRACEBACK, related: int = MOST_RELATED
) -> str:
    """The traceback as text, from the user's first frame on, with causes and notes, of `most`
    characters at most: what is left out is in the middle. With more than `related` members, causes
    and notes, all of these are left out.
    """
    begin = users_part(traceback_object(error))
    # Python looks through all of a chain again for each of its exceptions: a chain that user code
    # has let grow without end would block the loop for minutes.
    if left_out := guarded(
        lambda: _left_out(error, related), lambda failure: "(most of it is left out)\n"
    ):
        return shortened(left_out + _shown(lambda: _bare_traceback(error), repr_of), most)
    return shortened(_formatted(error, begin), most)


def whole_traceback_of(error: BaseException) -> str:
    """The traceback as text, as Python writes it, with all of its frames."""
    return _formatted(error, traceback_object(error))


def _formatted(error: BaseException, begin: TracebackType | None) -> str:
    # The source of a frame may come from a loader of the user's, which raises: then the lines that
    # are known without it are shown.
    return _shown(
        lambda: "".join(traceback.format_exception(type(error), error, begin)),
        lambda _: _shown(lambda: _with_known_lines(error, begin), lambda _: _bare_traceback(error)),
    )


def _with_known_lines(error: BaseException, begin: TracebackType | None) -> str:
    described = traceback.TracebackException(
        type(error), error, begin, lookup_lines=False, compact=True
    )
    for one in described_errors(described):
        if one.stack:
            # With a text, even an empty one, the line is not looked up.
            one.stack = traceback.StackSummary.from_list(
                [
                    (place.filename, place.lineno or 0, place.name, _known_line(place))
                    for place in one.stack
                ]
            )
    return "".join(described.format())


def _known_line(place: traceback.FrameSummary) -> str:
    return known_line(place.filename, place.lineno or 0, None)


def described_errors(
    described: traceback.TracebackException,
) -> Iterator[traceback.TracebackException]:
    """It, its causes and contexts, and the members of groups."""
    waiting: list[traceback.TracebackException | None] = [described]
    while waiting:
        one = waiting.pop()
        if one is not None:
            yield one
            # An exception that tells of one that was shown already has None there.
            waiting.extend([one.__cause__, one.__context__, *(one.exceptions or ())])


def _left_out(error: BaseException, related: int) -> str:
    """Return what a traceback says of the causes and contexts that it cannot show; "" if it shows
    all.
    """
    one: BaseException | None = error
    for _ in range(MOST_CHAINED + 1):
        if one is None:
            break
        one = _before(one)
    else:
        return f"(more than {MOST_CHAINED} causes and contexts of it are left out)\n"
    count = objects = 0
    for one in _related(error):
        notes = _DICT.__get__(one).get("__notes__")
        count += 1 + (len(notes) if type(notes) is list else 0)
        if count > related:
            what = f"more than {related:,} members, causes, contexts and notes of it"
            return f"({what} are left out)\n"
        written = _written_objects(one)
        objects += written
        if written > MOST_OBJECTS or objects > max(MOST_OBJECTS, related * OBJECTS_OF_RELATED):
            return "(its causes and contexts are left out: the text of one is too long)\n"
    return ""


def _before(error: BaseException) -> BaseException | None:
    """The cause or the context of an exception."""
    cause = cast("BaseException | None", _CAUSE.__get__(error))
    return cause if cause is not None else cast("BaseException | None", _CONTEXT.__get__(error))


def _related(error: BaseException) -> Iterator[BaseException]:
    """The exception, its members, causes and contexts, and theirs, each once."""
    waiting, seen = [error], {0}
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.extend(members_of(one))
        before = _before(one)
        if before is not None:
            waiting.append(before)


def shortened(text: str, most: int) -> str:
    """The text in at most so many characters: what is left out is in the middle, and counted."""
    if len(text) <= most:
        return text
    left_out = f"\n... ({len(text) - most} characters left out)\n"
    return f"{text[: most // 2]}{left_out}{text[-most // 2 :]}"


def raised_at(error: BaseException, module: str = "") -> str:
    """`file:line, in function`, where the exception was raised: the innermost frame of `module` if
    it passed one, otherwise the innermost of user code, or the innermost at all.

    "" if it was never raised, and for an error of ours that no user code has raised: its text says
    what is wrong.
    """
    frames = list(traceback.walk_tb(traceback_object(error)))
    own = [one for one in frames if module and module_of(one[0]) == module]
    if not own:
        users = [one for one in frames if not is_machinery(one[0].f_code.co_filename)]
        if not users and issubclass(type(error), UnderstudyError):
            return ""
        own = users or frames
    if not own:
        return ""
    found = FRAME_LINE.search(places(own[-1:]))
    return f"{found['file']}:{found['line']}, in {found['function']}" if found else ""


def _raised_by_signal(error: BaseException) -> bool:
    frames = list(traceback.walk_tb(traceback_object(error)))
    if not frames:
        return False
    innermost = frames[-1][0]
    if module_of(innermost).startswith("trio._core."):
        return True
    handler = signal.getsignal(signal.SIGINT)
    while isinstance(handler, functools.partial):
        handler = handler.func
    if isinstance(handler, MethodType):
        handler = handler.__func__
    if isinstance(handler, FunctionType):
        return innermost.f_code is handler.__code__
    # Python's own handler leaves no frame behind. trio replaces it wherever signals can arrive, so
    # this is not trio's loop: do as it says.
    return handler is signal.default_int_handler


def _bare_traceback(error: BaseException) -> str:
    """Return a traceback without calling code of the exception itself, nor of loaders."""
    frames = places(traceback.walk_tb(users_part(traceback_object(error))))
    return f"Traceback (most recent call last):\n{frames}{summary_of(error)}\n"


def _shown(look: Callable[[], str], otherwise: Callable[[BaseException], str]) -> str:
    text = guarded(look, otherwise)
    # The slice of a subclass of str is a plain one, by str's own method.
    return sendable(str.__getitem__(text, slice(0, MOST_TEXT)))


def sendable(text: str) -> str:
    """The text with the escapes of lone surrogates, which UTF-8 cannot say."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
