"""`pdb` without a terminal: it reads lines from a `DebugConversation` and prints into it.

While it waits for a line, only the code that it debugs waits: in a thread the thread, on the event
loop the task (see `runtime.hosting.breakpoints`). Trace functions belong to a thread, and all tasks
of the loop share theirs. So tracing is off while the debugger waits, and it stops only in its own
task.
"""

from __future__ import annotations

import pdb
import sys
from bdb import BdbQuit
from collections.abc import Callable
from fnmatch import fnmatchcase
from io import TextIOBase
from types import FrameType, TracebackType
from typing import IO, Any, Final, cast

from runtime.hosting.debug_conversation import DebugConversation
from runtime.source_lines import module_of
from runtime.user_errors import guarded, summary_of

NOT_ENTERED: Final = (
    *("runtime.*", "actors.*", "actors", "trio.*", "trio", "greenback.*", "greenlet.*"),
    *("outcome.*", "contextlib", "threading"),
)
"""Modules in which the debugger does not stop: what lies between two lines of an actor."""

REFUSED: Final = (
    *("break", "b", "tbreak", "clear", "cl", "commands", "condition", "enable", "disable"),
    *("ignore", "interact", "debug", "run", "restart"),
)
"""Commands of pdb that need a terminal, or keep tracing on after the method has ended."""


class _PdbInput(TextIOBase):
    def __init__(self, read_line: Callable[[], str]) -> None:
        self._read_line = read_line

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        # Other tasks run on this thread meanwhile, which must not be traced.
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return self._read_line()
        finally:
            sys.settrace(tracer)


class _PdbOutput(TextIOBase):
    def __init__(self, conversation: DebugConversation) -> None:
        self._conversation = conversation

    def write(self, text: str) -> int:
        self._conversation.write(text)
        return len(text)


class RemotePdb(pdb.Pdb):
    """A debugger of one method, or of one failure.

    `read_line` blocks until there is a line. `within()`: True in the task or thread that is
    debugged; `over()`: True when its method has ended. `conversation.end` is called by `on_loop`.
    """

    def __init__(
        self,
        conversation: DebugConversation,
        read_line: Callable[[], str],
        within: Callable[[], bool],
        over: Callable[[], bool],
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(
            stdin=cast("IO[str]", _PdbInput(read_line)),
            stdout=cast("IO[str]", _PdbOutput(conversation)),
            skip=NOT_ENTERED,
            nosigint=True,
            readrc=False,
        )
        # The user's terminal prints its own, when the debugger waits.
        self.prompt = ""
        self._conversation = conversation
        self._within = within
        self._over = over
        self._on_loop = on_loop
        self._outermost: FrameType | None = None

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        """Stop in this frame: before Python 3.13 at its next line, since then at the line that has
        called `breakpoint()`, like pdb itself.
        """
        self._outermost = None if frame is None else _outermost_user_frame(frame)
        super().set_trace(frame, **options)

    def post_mortem(self, trace: TracebackType) -> None:
        """Debug the frames of a failure until the user has left."""
        self.reset()
        try:
            self.interaction(None, trace)
        finally:
            # Otherwise they live as long as the last debugger.
            self.forget()

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace, until the method has ended: then nothing else on this thread is traced."""
        if self._over():
            self._release()
            return None
        return super().trace_dispatch(frame, event, arg)

    def stop_here(self, frame: FrameType) -> bool:
        """True where the debugger stops: in the task that it debugs alone, and in what its code
        calls there.
        """
        return self._within() and super().stop_here(frame) and self._is_called_by_user(frame)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop where an exception passes, but not in the runtime below the method: bdb does, for
        the StopIteration with which a coroutine returns.
        """
        if not _is_runtime(frame) and self._is_called_by_user(frame):
            super().user_exception(frame, exc_info)

    def _is_called_by_user(self, frame: FrameType) -> bool:
        """False for functions of libraries that the runtime calls around the method, and trio
        between two steps of its task: there the debugger could not wait for a line.
        """
        caller: FrameType | None = frame
        while caller is not None and caller is not self._outermost:
            caller = caller.f_back
        return caller is self._outermost

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames of the user's code."""
        stack, index = super().get_stack(f, t)
        kept = [entry for entry in stack if not _is_runtime(entry[0])]
        inner = sum(not _is_runtime(frame) for frame, _ in stack[:index])
        return (kept, min(inner, len(kept) - 1)) if kept else (stack, index)

    def onecmd(self, line: str) -> bool:
        """Run one command."""
        word = line.strip().partition(" ")[0]
        if word in REFUSED:
            self.message(
                f"{word} is not available here: write breakpoint() in the source, or `until LINE`"
            )
            return False
        try:
            return bool(super().onecmd(line))
        except BdbQuit:
            raise
        except Exception as error:
            # As for the source of a frame whose loader is the user's: it is no end of the method.
            self.message(f"*** {summary_of(error)}")
            return False

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """A frame as text, with its line if that can be read."""
        frame, line = frame_lineno
        return guarded(
            lambda: super(RemotePdb, self).format_stack_entry(frame_lineno, lprefix),
            lambda error: f"{frame.f_code.co_filename}({line}){frame.f_code.co_name}()",
        )

    def do_continue(self, arg: str) -> bool | None:
        """c(ont(inue)): Let the code go on; the debugger ends."""
        super().do_continue(arg)
        self._outermost = None
        self._on_loop(self._conversation.end)
        return True

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> bool | None:
        """q(uit): Let the code go on as well: a method is not ended by its debugger."""
        return self.do_continue(arg)

    do_q = do_exit = do_EOF = do_quit  # noqa: N815  names of cmd.Cmd

    def _release(self) -> None:
        if sys.gettrace() == self.trace_dispatch:
            # Besides this, it lets go of the frames: Python 3.13 traced each of their instructions.
            self.set_continue()
            sys.settrace(None)
        self._outermost = None
        if self._conversation.state != "ended":
            self._on_loop(self._conversation.end)


def _outermost_user_frame(frame: FrameType) -> FrameType:
    found, caller = frame, frame.f_back
    while caller is not None:
        if not _is_runtime(caller):
            found = caller
        caller = caller.f_back
    return found


def _is_runtime(frame: FrameType) -> bool:
    module = module_of(frame)
    return any(fnmatchcase(module, pattern) for pattern in NOT_ENTERED)
