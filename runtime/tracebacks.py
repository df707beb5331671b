"""Tracebacks as text, for exceptions that are raised again and again.

The module `traceback` looks at the file of each frame, and parses its line to place the marks
below it: some 100 microseconds for two frames, many times what a call takes. What it says of a
frame depends on the code and the instruction only, so that text is kept.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Any, Final, cast

from actors.class_names import bases, module_name, qualified_name
from actors.errors import UnderstudyError
from runtime.source_lines import known_lines
from runtime.user_errors import (
    BUILTIN,
    MOST_TRACEBACK,
    guarded,
    is_written_boundless,
    sendable,
    shortened,
    traceback_of,
    users_part,
)

FRAMES_KEPT = 2048
CLASSES_KEPT = 512
"""How many frames, and classes of exceptions, a writer knows. Beyond it, it begins anew."""

MOST_OF_FRAME = 2048
"""Characters of the text of one frame that is kept; a longer one is written each time."""

STACKS_KEPT = 256
MOST_OF_STACK = 4096
"""How many exceptions' frames, as one text, are kept; a longer text is put together each time."""

_MOST_OF_KEY = 3 * 8
"""Three numbers for each frame."""

MOST_FRAMES = 64
MOST_LINKS = 8
"""Frames of one exception, and exceptions that are causes of each other, which are put together
from kept texts.
"""

ALIKE = 3
"""So many frames of the same line are written; of more, only their number."""

# The interpreter's own ways to what a class can define anew.
_TRACEBACK = cast("Any", vars(BaseException)["__traceback__"])
_CAUSE = cast("Any", vars(BaseException)["__cause__"])
_CONTEXT = cast("Any", vars(BaseException)["__context__"])
_SUPPRESSED = cast("Any", vars(BaseException)["__suppress_context__"])
_DICT = cast("Any", vars(BaseException)["__dict__"])
_NOTES = cast("Any", vars(UnderstudyError)["__notes__"])

_SPECIAL: Final = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)
"""Classes of which the module `traceback` says more than their text, or looks for what was meant.
"""

_ASKED: Final = frozenset(
    {
        "__bool__",
        "__len__",
        "__notes__",
        "__dict__",
        "__class__",
        "__getattr__",
        "__getattribute__",
        "__traceback__",
        "__cause__",
        "__context__",
        "__suppress_context__",
    }
)
"""What the module `traceback` asks an exception for, besides its text."""

_CAUSED: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"


MOST_RUNS = 4
"""Runs whose frames the traceback of one exception may have."""


def drop_earlier_runs(error: BaseException, run: CodeType) -> None:
    """Take from an exception's traceback what earlier runs of `run` have added to it. The first
    frame is that of the present run.

    Python adds the frames that an exception passes to those that it has: the traceback of one that
    user code keeps, and raises in each call, would grow with each call, and hold the frames of all
    of them with their variables.
    """
    last = begin = _TRACEBACK.__get__(error)
    if begin is None:
        return
    count = 1
    while (entry := last.tb_next) is not None and entry.tb_frame.f_code is not run:
        last, count = entry, count + 1
    if entry is None:
        return
    # The run before: where it came the same way, only what followed stays, which is where the
    # exception was raised first.
    earlier, mine = entry, begin
    for _ in range(count):
        if earlier is None or (
            earlier.tb_frame.f_code is not mine.tb_frame.f_code or earlier.tb_lasti != mine.tb_lasti
        ):
            break
        earlier, mine = earlier.tb_next, mine.tb_next
    else:
        last.tb_next = earlier
        return
    runs = 1
    while entry is not None and runs <= MOST_RUNS:
        runs += entry.tb_frame.f_code is run
        entry = entry.tb_next
    if runs > MOST_RUNS:
        last.tb_next = None


class TracebackWriter:
    """Writes the same texts as `traceback_of`, and keeps what it has found out about frames and
    classes of exceptions. Both tables are bounded.
    """

    def __init__(self) -> None:
        # By identity: equal code objects may be of different files. The code itself is kept beside
        # the text, so that its identity cannot become that of another one.
        self._frames: dict[tuple[int, int, int], tuple[CodeType, str]] = {}
        # The same of all frames of an exception, for those that have passed few.
        self._stacks: dict[tuple[int, ...], tuple[tuple[CodeType, ...], str]] = {}
        self._classes: dict[type, str] = {}

    def text_of(self, error: BaseException, most: int = MOST_TRACEBACK) -> str:
        """Return what `traceback_of` returns."""
        text = guarded(lambda: self._text(error), lambda failure: "")
        return shortened(sendable(text), most) if text else traceback_of(error, most)

    def stack_of_plain(self, error: BaseException) -> str | None:
        """Return the lines about the frames in what `text_of` returns; None for an exception with a
        cause or context, and where only the module `traceback` knows how to write them. The same
        frames give the same string object again. Runs no code of the user's.
        """
        context = None if _SUPPRESSED.__get__(error) else _CONTEXT.__get__(error)
        if (
            context is not None
            or _CAUSE.__get__(error) is not None
            or "tracebacklimit" in vars(sys)
        ):
            return None
        begin = entry = _TRACEBACK.__get__(error)
        passed: list[int] = []
        while entry is not None and len(passed) < _MOST_OF_KEY:
            passed += id(entry.tb_frame.f_code), entry.tb_lasti, entry.tb_lineno
            entry = entry.tb_next
        if entry is not None:
            return self._stack(users_part(begin))
        key = tuple(passed)
        kept = self._stacks.get(key)
        if kept is not None:
            return kept[1]
        stack = self._stack(users_part(begin))
        if stack is not None and len(stack) <= MOST_OF_STACK:
            if len(self._stacks) >= STACKS_KEPT:
                self._stacks.clear()
            self._stacks[key] = tuple(_codes(begin)), stack
        return stack

    def last_line(self, cls: type, said: str) -> str:
        """Return the last line in what `text_of` returns for an instance without notes whose text
        is `said`; "" where only the module `traceback` knows how to write it.
        """
        head = self._head(cls)
        return f"{head}: {said}\n" if head and said else f"{head}\n" if head else ""

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert len(self._frames) <= FRAMES_KEPT
        assert len(self._classes) <= CLASSES_KEPT
        assert all(id(code) == key[0] for key, (code, _) in self._frames.items())
        assert len(self._stacks) <= STACKS_KEPT
        assert all(
            key[::3] == tuple(map(id, codes)) and len(stack) <= MOST_OF_STACK
            for key, (codes, stack) in self._stacks.items()
        )

    def _text(self, error: BaseException) -> str:
        """The text; "" for an exception that only the module `traceback` knows how to write."""
        text, seen = "", 0
        one: BaseException | None = error
        while one is not None:
            head = self._head(type(one))
            begin = _TRACEBACK.__get__(one)
            stack = self._stack(users_part(begin) if one is error else begin)
            seen += 1
            if not head or stack is None or seen > MOST_LINKS or is_written_boundless(one):
                return ""
            # Of a subclass of str that user code returns: the text alone.
            said = str.__str__(str(one))
            last = f"{head}: {said}\n" if said else f"{head}\n"
            own = issubclass(type(one), UnderstudyError)
            notes = _NOTES.__get__(one) if own else _DICT.__get__(one).get("__notes__")
            if notes is not None:
                if type(notes) is not list or any(type(note) is not str for note in notes):
                    return ""
                last += "".join(f"{note}\n" for note in notes)
            cause = _CAUSE.__get__(one)
            context = None if _SUPPRESSED.__get__(one) else _CONTEXT.__get__(one)
            before = _CAUSED if cause is not None else _MEANWHILE if context is not None else ""
            text = f"{before}{stack}{last}{text}"
            one = cause if cause is not None else context
        return text

    def _head(self, cls: type) -> str:
        """Return the beginning of the last line; "" if instances of the class have to be written
        anew.
        """
        # The hash of a class with a metaclass of its own is code of the user's.
        if type(cls) is not type:
            return ""
        head = self._classes.get(cls)
        if head is None:
            if len(self._classes) >= CLASSES_KEPT:
                self._classes.clear()
            head = self._classes[cls] = _head_of(cls)
        return head

    def _stack(self, entry: TracebackType | None) -> str | None:
        """The frames; None if there are too many of them, or of one line, or if the source of one
        is known to a loader of the user's only.
        """
        if entry is None:
            return ""
        if "tracebacklimit" in vars(sys):
            return None
        texts = ["Traceback (most recent call last):\n"]
        last: CodeType | None = None
        line, alike = 0, 0
        while entry is not None:
            code = entry.tb_frame.f_code
            alike = alike + 1 if line == entry.tb_lineno and _same_place(code, last) else 1
            last, line = code, entry.tb_lineno
            if alike > ALIKE or len(texts) > MOST_FRAMES:
                return None
            kept = self._frames.get((id(code), entry.tb_lasti, line))
            text = self._frame(entry, code) if kept is None else kept[1]
            if text is None:
                return None
            texts.append(text)
            entry = entry.tb_next
        return "".join(texts)

    def _frame(self, entry: TracebackType, code: CodeType) -> str | None:
        text = guarded(lambda: _text_of_frame(entry), lambda failure: None)
        if text is None:
            # Not kept: the user's loader may be able to say it at the next time.
            return None
        if len(text) <= MOST_OF_FRAME:
            if len(self._frames) >= FRAMES_KEPT:
                self._frames.clear()
            self._frames[id(code), entry.tb_lasti, entry.tb_lineno] = code, text
        return text


def _text_of_frame(entry: TracebackType) -> str | None:
    file = entry.tb_frame.f_code.co_filename
    # First, what the module `traceback` does as well: a file may have changed since it was read.
    linecache.checkcache(file)
    if known_lines(file, entry.tb_frame.f_globals) is None:
        return None
    return "".join(traceback.format_tb(entry, limit=1))


def _codes(entry: TracebackType | None) -> Iterator[CodeType]:
    while entry is not None:
        yield entry.tb_frame.f_code
        entry = entry.tb_next


def _same_place(code: CodeType, other: CodeType | None) -> bool:
    return code is other or (
        other is not None
        and code.co_name == other.co_name
        and code.co_filename == other.co_filename
    )


def _head_of(cls: type) -> str:
    if issubclass(cls, _SPECIAL) or any(
        not _ASKED.isdisjoint(vars(base))
        for base in bases(cls)
        if base not in BUILTIN and base is not object and base is not UnderstudyError
    ):
        return ""
    module, name = module_name(cls), qualified_name(cls)
    if not module:
        return ""
    return name if module in ("__main__", "builtins") else f"{module}.{name}"
