"""The restart budget of a job: pure functions over the list of restarts that all its agents share
in the job's store.

Clocks of hosts are never compared. Each entry has the seconds since the entry before it, measured
by the agent that added it, on its own monotonic clock, from when it first saw that entry. An agent
that saw it late measures too little. So it may refuse a restart too early, but never grant one too
late.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import attrs

from runtime.printable import plain, plain_lines
from runtime.processes.exit_status import ExitStatus
from runtime.rendezvous.parameters import RendezvousStateError

# What is known of a worker that failed, and the report of it; no I/O. Failures are ordered by the
# job's store, never by clocks.

MAX_TEXT = 32 * 1024
"""Characters kept of a message or a traceback. Of longer ones the end is kept, where the error
is.
"""

MAX_KEPT = 256
"""Entries of the list of restarts. Older ones are dropped, and the granted ones among them only
counted.
"""


@attrs.frozen
class WorkerFailure:
    """One worker that failed.

    `number`: from the job's store, in the order in which agents saw the ends of processes. `code`
    or `signal` is set. `why`: what the agent did to the process, if that was the cause. `message`
    and `traceback` are the worker's own.
    """

    number: int
    round: int
    rank: int
    local_rank: int
    role: str
    agent: str
    host: str
    pid: int
    code: int | None = None
    signal: int | None = None
    why: str = ""
    message: str = ""
    traceback: str = ""
    error_file: str = ""

    @property
    def status(self) -> str:
        """The end of the process as text."""
        return self.why or ExitStatus(self.code, self.signal).describe()

    def headline(self) -> str:
        """One line: who, where and how."""
        return (
            f"rank {self.rank} (local rank {self.local_rank}, role {self.role}) on "
            f"{self.host}, pid {self.pid}: {self.status}"
        )


def read_error_file(text: str) -> tuple[str, str]:
    """Read message and traceback from the text of an error file, as our runner and torch's `record`
    write it; return empty texts if there is nothing to read.
    """
    try:
        fields: object = json.loads(text)
    except (ValueError, RecursionError):
        return _end(text.strip()), ""
    message = fields.get("message", "") if isinstance(fields, dict) else fields
    if not isinstance(message, dict):
        return _end(str(message)), ""
    fields_of_message = cast("Mapping[str, object]", message)
    extra = fields_of_message.get("extraInfo")
    traceback = (
        cast("Mapping[str, object]", extra).get("py_callstack", "")
        if isinstance(extra, dict)
        else ""
    )
    return _end(str(fields_of_message.get("message", ""))), _end(str(traceback))


def _end(text: str) -> str:
    return (
        text
        if len(text) <= MAX_TEXT
        else f"[... {len(text) - MAX_TEXT} characters before]\n{text[-MAX_TEXT:]}"
    )


def encode_failure(failure: WorkerFailure) -> bytes:
    """Encode a failure for the job's store."""
    return json.dumps(attrs.asdict(failure)).encode()


def decode_failure(value: bytes) -> WorkerFailure | None:
    """Decode what `encode_failure` wrote. Return None for anything else: a report with some
    failures missing is better than none.
    """
    try:
        fields = json.loads(value)
        return WorkerFailure(
            **{
                field.name: fields[field.name]
                for field in attrs.fields(WorkerFailure)
                if field.name in fields
            }
        )
    except (ValueError, TypeError, RecursionError):
        return None


def in_order(failures: Iterable[WorkerFailure]) -> list[WorkerFailure]:
    """Return each failure once, the one that was seen first in front."""
    unique = {
        (failure.number, failure.agent, failure.local_rank, failure.pid): failure
        for failure in failures
    }
    return sorted(unique.values(), key=lambda failure: (failure.number, failure.rank))


def report(job: str, failures: Iterable[WorkerFailure], text: str) -> str:
    """Write the report that the user reads when a job has failed: the root cause first, with its
    traceback, and then the others. Texts of workers, and of other agents, have no characters that
    control a terminal.
    """
    ordered = in_order(failures)
    rule = "=" * 72
    lines = [rule, plain_lines(f"job {job} failed" + (f": {text}" if text else ""))]
    for number, failure in enumerate(ordered):
        lines.append("-" * 72)
        lines.append(
            f"{'root cause' if number == 0 else f'failure {number + 1} (seen later)'}: "
            f"{plain(failure.headline())}"
        )
        if text_of_worker := (failure.traceback or failure.message).rstrip():
            lines += ["", plain_lines(text_of_worker)]
        else:
            lines.append(
                "  it left no traceback: it ended without a Python exception, or was started with "
                "--no-python"
            )
        if failure.error_file:
            lines.append(f"  error file: {plain(failure.error_file)}")
    lines.append(rule)
    return "\n".join(lines)


@attrs.frozen
class Counted:
    """One request for a restart: its incident, the agent that asked, the seconds since the request
    before, and whether it was granted.
    """

    incident: str
    agent: str
    gap: float
    granted: bool


@attrs.frozen
class RestartHistory:
    """The list of requests, and the number of granted ones that were dropped from it."""

    counted: tuple[Counted, ...] = ()
    dropped: int = 0

    @property
    def granted(self) -> int:
        """How many restarts the job has had."""
        return self.dropped + sum(entry.granted for entry in self.counted)


@attrs.frozen
class RestartDecision:
    """Whether a restart may happen, the list afterwards (unchanged if the incident was counted
    before), and how many granted restarts lie in the window.
    """

    granted: bool
    history: RestartHistory
    recent: int


def recent(history: RestartHistory, gap: float, window: float) -> int:
    """Count granted restarts within the last `window` seconds, when the last entry is `gap` seconds
    old.
    """
    if window == math.inf:
        return history.granted
    age = gap
    found = 0
    for entry in reversed(history.counted):
        if age > window:
            break
        found += entry.granted
        age += entry.gap
    return found


def ask(
    history: RestartHistory, incident: str, agent: str, gap: float, limit: int, window: float
) -> RestartDecision:
    """Ask for a restart because of `incident`; `gap` is the age of the last entry in seconds, 0
    where there is none.

    An incident is counted once, whichever agent asks: a failure in a group fails all of it, and
    every agent may ask for the same restart. At most `limit` restarts are granted within `window`
    seconds.
    """
    # Before the budget is checked: a restart that was granted to one agent of a group is granted to
    # all.
    for entry in history.counted:
        if entry.incident == incident:
            return RestartDecision(entry.granted, history, recent(history, gap, window))
    used = recent(history, gap, window)
    granted = used < limit
    counted = (*history.counted, Counted(incident, agent, gap, granted))
    dropped = counted[:-MAX_KEPT]
    kept = RestartHistory(
        counted[-MAX_KEPT:], history.dropped + sum(entry.granted for entry in dropped)
    )
    assert kept.granted == history.granted + granted, "what is dropped still counts"
    assert len(kept.counted) <= MAX_KEPT
    return RestartDecision(granted, kept, used + granted)


def encode_history(history: RestartHistory) -> bytes:
    """Encode the list of restarts for the job's store."""
    return json.dumps(
        {"dropped": history.dropped, "counted": [attrs.astuple(entry) for entry in history.counted]}
    ).encode()


def decode_history(value: bytes | None) -> RestartHistory:
    """Decode what `encode_history` wrote; return an empty list for None. Raises
    `RendezvousStateError`.
    """
    if value is None:
        return RestartHistory()
    try:
        fields = json.loads(value)
        return RestartHistory(
            tuple(_counted(entry) for entry in fields["counted"]), int(fields["dropped"])
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RendezvousStateError(
            f"the list of restarts in the job's store is malformed: {error}"
        ) from error


def _counted(entry: Sequence[object]) -> Counted:
    incident, agent, gap, granted = entry
    if not isinstance(gap, int | float) or isinstance(gap, bool) or not math.isfinite(gap):
        raise ValueError(f"{gap!r} is not a number of seconds")
    return Counted(str(incident), str(agent), float(gap), bool(granted))
