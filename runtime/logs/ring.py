"""A bounded memory of the latest log lines, by bytes.

Pure: entries in, entries out. It is not thread-safe; `runtime.logs.capture` guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import attrs

LINE_BYTES = 16 * 1024
"""The most that is kept of one line, with its traceback."""

OVERHEAD_BYTES = 200
"""What an entry takes beside its text, roughly: a line without text must count as well."""

ANSWER_BYTES = 96 * 1024
"""The most of one answer: its frame must stay below the limit of a control part (256 KiB), also if
each character takes two bytes more than it counts.
"""

_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int,),
    "time": (int, float),
    "level": (int,),
    "epoch": (int,),
    "pid": (int,),
}


@attrs.frozen
class LogEntry:
    """One line. `number`: ascending on its node. `time`: seconds since 1970 by the node's clock.
    `level`: as in `logging`. Fields that are not known are "" or 0; `call` is the id that the
    caller's node gave to the call.
    """

    number: int
    time: float
    level: int
    logger: str
    text: str
    actor: str = ""
    epoch: int = 0
    method: str = ""
    call: str = ""
    trace_id: str = ""
    span_id: str = ""
    pid: int = 0

    @property
    def size(self) -> int:
        """Bytes that the line counts for."""
        return OVERHEAD_BYTES + len(self.text) + len(self.logger) + len(self.actor)

    def plain(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return {name: getattr(self, name) for name in FIELDS}


FIELDS: tuple[str, ...] = tuple(field.name for field in attrs.fields(LogEntry))


def entry_of(plain: object) -> LogEntry:
    """Decode the entry that a peer has sent. Raises ValueError for what is none."""
    if not isinstance(plain, dict):
        raise ValueError("a log entry is a dict")
    values: dict[str, Any] = {}
    for name in FIELDS:
        # An entry of an earlier version has fewer fields, one of a later version more.
        value = plain.get(name, "" if name not in _TYPES else 0)
        if not isinstance(value, _TYPES.get(name, (str,))):
            raise ValueError(f"{name} of a log entry is a {type(value).__name__}")
        values[name] = value
    values["text"] = cut(values["text"])
    for name in ("logger", "actor", "method", "call", "trace_id", "span_id"):
        values[name] = values[name][:500]
    return LogEntry(**values)


def cut(text: str, most: int = LINE_BYTES) -> str:
    """The beginning of a text that is too long, and how much of it is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... [{len(text) - most:,} more characters are left out]"


@attrs.frozen
class LogQuestion:
    """A question for log lines: those after the line `after`, at this level or above, not before
    `since` (seconds since 1970, by the node's clock), of this actor if it is not "".
    """

    after: int = 0
    level: int = 0
    since: float = 0.0
    actor: str = ""

    def wants(self, entry: LogEntry) -> bool:
        """True if this entry is one of them."""
        return (
            entry.number > self.after
            and entry.level >= self.level
            and entry.time >= self.since
            and (not self.actor or entry.actor == self.actor)
        )


class LogRing:
    """The latest lines of a node, at most `limit` bytes of them; 0 keeps none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.last = 0
        """The number of the latest line; 0 if there was none."""
        self._entries: deque[LogEntry] = deque()

    def add(self, entry: LogEntry) -> LogEntry:
        """Keep a line under the next number, which its copy that is returned has; older ones may
        go.
        """
        self.last += 1
        entry = attrs.evolve(entry, number=self.last)
        self._entries.append(entry)
        self.size += entry.size
        while self.size > self.limit and self._entries:
            self.size -= self._entries.popleft().size
        return entry

    def entries(self) -> tuple[LogEntry, ...]:
        """All that is kept, the oldest first."""
        return tuple(self._entries)

    def check_invariants(self) -> None:
        """Assert what must hold between any two changes. Looks at all entries: for tests."""
        assert self.size == sum(entry.size for entry in self._entries) <= self.limit
        numbers = [entry.number for entry in self._entries]
        assert numbers == sorted(set(numbers)), "the numbers ascend"
        assert not numbers or numbers[-1] == self.last


def fitting(
    entries: Iterable[LogEntry],
    question: LogQuestion,
    *,
    onwards: bool = False,
    most: int = ANSWER_BYTES,
) -> tuple[list[LogEntry], int]:
    """The wanted entries that fit into one answer, the oldest first; and how many do not. The
    latest are taken; with `onwards` the earliest, so that one who asks again passes over none.
    """
    wanted = [entry for entry in entries if question.wants(entry)]
    ordered = wanted if onwards else wanted[::-1]
    size, count = 0, 0
    for entry in ordered:
        size += entry.size
        if size > most:
            break
        count += 1
    chosen = ordered[:count]
    return (chosen if onwards else chosen[::-1]), len(wanted) - count
