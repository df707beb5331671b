"""The conversation of a debugger with its user: the debugger waits for a line, the user sends one
and waits for its output.

All methods but `write` belong to the event loop.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import attrs
import trio

MOST_OUTPUT: Final = 64 * 1024
"""Characters that one command may print; the rest is cut off."""

UNATTENDED_SECONDS: Final = 600.0
"""How long a debugger waits for the next line. Then the code goes on."""

ConversationState = Literal["waiting", "running", "ended"]
"""`waiting` for a line; `running`: the code goes on, and may stop again; `ended` for good."""


@attrs.define(eq=False)
class DebugConversation:
    """The conversation with one debugger. `number`: its number on this node. `place`: the line
    where it stopped first. `since`: when, in seconds since 1970 UTC. `turn`: the invocation of the
    method, if a method stopped.
    """

    number: int
    actor: str
    what: str
    place: str
    since: float
    turn: object = None
    state: ConversationState = "running"
    _line: str | None = None
    _output: deque[str] = attrs.field(factory=deque)
    _room: int = MOST_OUTPUT
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def plain(self) -> dict[str, object]:
        """As plain data."""
        return {
            "number": self.number,
            "actor": self.actor,
            "what": self.what,
            "place": self.place,
            "since": self.since,
        }

    async def next_line(self) -> str:
        """The next line for the debugger; an empty one if none has come for a long time, or if the
        conversation has ended.
        """
        if self.state == "ended":
            return ""
        self._become("waiting")
        try:
            with trio.move_on_after(UNATTENDED_SECONDS):
                while self._line is None:
                    await self._changed.wait()
        except BaseException:
            # The method was cancelled: nothing will ever read a line.
            self.end()
            raise
        line, self._line = self._line, None
        self._become("running")
        return line or ""

    async def ask(self, line: str | None, seconds: float) -> dict[str, str]:
        """Send a line, or none, and wait `seconds` at most for the debugger to wait for the next
        one. Returns what it has printed, the state, and the `problem` if it takes no line now.
        """
        problem = ""
        if line is not None:
            if self.state == "waiting" and self._line is None:
                self._line = line + "\n"
                self._become("running")
            else:
                problem = f"the debugger is {self.state}, and reads no line"
        with trio.move_on_after(seconds):
            while self.state == "running":
                await self._changed.wait()
        # Taken one by one: a thread may write meanwhile.
        text = "".join(self._output.popleft() for _ in range(len(self._output)))
        self._room = MOST_OUTPUT
        return {"text": text, "state": self.state, "problem": problem}

    def write(self, text: str) -> None:
        """Keep what the debugger prints for the next answer, up to a bound. From any thread."""
        if self._room > 0:
            self._output.append(text[: self._room])
        self._room -= len(text)

    def end(self) -> None:
        """The debugger has let go of the code."""
        self._become("ended")

    def _become(self, state: ConversationState) -> None:
        self.state = state
        # Set, then replaced: a task that waits holds the event that it has seen, and misses no
        # change.
        self._changed.set()
        self._changed = trio.Event()
