"""What `understudy debug` asks of one host: a node's, or that of an isolated actor's process."""

from __future__ import annotations

from typing import Any, Final

from runtime.hosting.host import ActorHost

MOST_LINE: Final = 4096
"""Characters of a line for a debugger."""

MOST_SECONDS: Final = 10.0
"""How long one request waits for a debugger to print."""

NOT_KEPT: Final = "started without --post-mortem or --debuggable"
NOT_DEBUGGABLE: Final = "started without --debuggable"


class DebugRequests:
    """Reports the failures that a host keeps, and passes lines on to its debuggers."""

    def __init__(self, host: ActorHost) -> None:
        self._host = host

    def failures(self, actor: str) -> dict[str, Any]:
        """The last failures of the actors of this name, the latest last, and the breakpoints at
        which its methods wait, the earliest first. `problem`: why no failures are kept; `dropped`:
        how many, of all actors, came too fast to be kept.
        """
        kept = self._host.post_mortems
        return {
            "failures": [] if kept is None else [failure.plain() for failure in kept.of(actor)],
            "breakpoints": self.breakpoints(actor),
            "dropped": self.dropped,
            "problem": NOT_KEPT if kept is None else "",
        }

    def breakpoints(self, actor: str) -> list[dict[str, object]]:
        """The breakpoints at which methods of this actor wait, the earliest first."""
        opened = self._host.breakpoints
        return [] if opened is None else [one.plain() for one in opened.waiting(actor)]

    @property
    def dropped(self) -> int:
        """How many failures, of all actors, were not kept because they came too fast."""
        return 0 if self._host.post_mortems is None else self._host.post_mortems.dropped

    def debug(self, actor: str, number: int) -> dict[str, Any]:
        """Open a debugger of the frames of a failure: its number, or the `problem`."""
        kept, breakpoints = self._host.post_mortems, self._host.breakpoints
        if kept is None or breakpoints is None:
            return {"number": 0, "problem": NOT_DEBUGGABLE}
        record = next((one for one in kept.of(actor) if one.number == number), None)
        if record is None or not record.live:
            return {"number": 0, "problem": f"failure {number} is not kept any more"}
        opened = breakpoints.debug_failure(record)
        if opened is None:
            return {"number": 0, "problem": "too many debuggers are open on it"}
        return {"number": opened.number, "problem": ""}

    async def command(self, number: int, line: str | None, seconds: float) -> dict[str, str]:
        """Send a line to a debugger, or none, and return what it has printed when it waits for the
        next line, after `seconds` at the latest; its state; and the `problem`, if there is one.
        """
        breakpoints = self._host.breakpoints
        conversation = None if breakpoints is None else breakpoints.conversation(number)
        if conversation is None:
            return {"text": "", "state": "ended", "problem": "the debugger has ended"}
        if line is not None and (len(line) > MOST_LINE or "\n" in line):
            problem = f"send one line of {MOST_LINE} characters at most"
            return {"text": "", "state": conversation.state, "problem": problem}
        return await conversation.ask(line, min(max(seconds, 0.0), MOST_SECONDS))
