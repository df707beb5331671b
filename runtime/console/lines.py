"""Where a console reads its lines: from a terminal, with editing, history and completion, or from a
pipe or file. Both block, and are for a thread.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from runtime.console.completion import Completer

INTERRUPT = "\x03"
"""What Ctrl-C types while a line is read. Programs have no such character elsewhere."""

INTERRUPT_KEY = r'"\C-c": "\C-v\C-c\C-m"'
"""Quote the character, so that it is shown as ^C, and end the line."""

HISTORY_LINES = 5_000


class InterruptedLineError(Exception):
    """Ctrl-C was pressed instead of the end of a line."""


class UnreadableLineError(Exception):
    """The bytes that were read are not text."""


class Lines(Protocol):
    """A source of lines."""

    def read(self, prompt: str) -> str | None:
        """Block until there is a line; None at the end of input. Raises `InterruptedLineError`, and
        `UnreadableLineError` for bytes that are no text.
        """
        ...

    def close(self) -> None:
        """Leave the terminal as it was, also while a thread still reads a line."""
        ...


class PipedLines:
    """Lines of a pipe or a file, without prompts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def read(self, prompt: str) -> str | None:
        """Return the next line; None at the end. Raises `UnreadableLineError` for bytes that are no
        text.
        """
        try:
            line = self._stream.readline()
        except UnicodeDecodeError as error:
            raise UnreadableLineError(str(error)) from None
        return line.rstrip("\r\n") if line else None

    def close(self) -> None:
        """Does nothing: a pipe has no state to restore."""


class Terminal:
    """Lines that are typed.

    While a line is read, Ctrl-C is a key and no signal: a signal would come to the main thread,
    which runs the event loop, and could not end the reading in this one.
    """

    def __init__(self, completer: Completer, history: Path | None) -> None:
        import termios

        self._completer = completer
        self._termios = termios
        self._stdin = sys.stdin.fileno()
        self._attributes = termios.tcgetattr(self._stdin)
        self._found: list[str] = []
        self._history = history
        self._closed = False
        self._kept = 0
        """Lines of the history that are in the file already."""
        self._readline: Any = _readline()
        self._key = self._readline is not None and "libedit" not in (self._readline.__doc__ or "")
        if self._readline is not None:
            self._readline.set_completer(self._complete)
            self._readline.parse_and_bind("tab: complete")
            if self._key:
                self._readline.parse_and_bind(INTERRUPT_KEY)
            self._read_history()

    def read(self, prompt: str) -> str | None:
        """Return the line that is typed; None after Ctrl-D. Raises `InterruptedLineError` after
        Ctrl-C.
        """
        if self._closed:
            return None
        try:
            with self._interrupt_as_key():
                line = input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise UnreadableLineError(str(error)) from None
        if INTERRUPT in line:
            self._forget_last()
            raise InterruptedLineError
        self._keep_last()
        return line

    def close(self) -> None:
        """See `Lines.close`. A thread that begins to read at this very moment may still change the
        terminal: close it once more, later.
        """
        self._closed = True
        self._set(self._attributes)

    @contextmanager
    def _interrupt_as_key(self) -> Iterator[None]:
        if not self._key:
            yield
            return
        before = self._termios.tcgetattr(self._stdin)
        changed = [*before[:6], list(before[6])]
        changed[6][self._termios.VINTR] = b"\0"
        self._set(changed)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, attributes: list[Any]) -> None:
        try:
            # After what was printed; what was typed ahead is kept.
            self._termios.tcsetattr(self._stdin, self._termios.TCSADRAIN, attributes)
        except self._termios.error:
            # The terminal is gone.
            return

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            line = self._readline.get_line_buffer()[: self._readline.get_endidx()]
            self._found = self._completer.matches(line, word)
        return self._found[state] if state < len(self._found) else None

    def _read_history(self) -> None:
        self._readline.set_history_length(HISTORY_LINES)
        if self._history is None:
            return
        try:
            self._history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made here, because what was typed may be a secret: for its owner alone from the first.
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._readline.read_history_file(self._history)
            self._kept = self._readline.get_current_history_length()
        except OSError:
            # The shell works without.
            self._history = None

    def _keep_last(self) -> None:
        """Write the line that was just read to the history: no end of the shell loses it."""
        if self._readline is None or self._history is None:
            return
        # An empty line, and one that is the same as the last, is not added.
        length = self._readline.get_current_history_length()
        if length > self._kept:
            try:
                self._readline.append_history_file(length - self._kept, self._history)
            except OSError:
                self._history = None
        self._kept = length

    def _forget_last(self) -> None:
        length = self._readline.get_current_history_length()
        if length > self._kept:
            self._readline.remove_history_item(length - 1)


def is_terminal() -> bool:
    """True if lines are typed, and their output is seen: only then can lines be edited."""
    try:
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        # One of them is closed, or no file.
        return False


def _readline() -> Any:
    """The module, where Python has it."""
    try:
        import readline
    except ImportError:
        return None
    return readline
