"""What is known of a worker that failed, and how it is told: pure. The order is that of the job's store, never that of clocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import cast

import attrs

from runtime.processes.status import ExitStatus

MAX_TEXT = 32 * 1024
"""Characters kept of a message or a traceback; of a longer one the end, where the error is."""


@attrs.frozen
class Failure:
    """One worker that failed. `number`: the job's store gave it when its agent saw the end of the process; the lowest was seen first.

    `code` or `signal` is set. `why`: what the agent did to it, where that was the cause. `message` and `traceback` are the worker's own.
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
        """How the process ended."""
        return self.why or ExitStatus(self.code, self.signal).describe()

    def headline(self) -> str:
        """One line: who, where and how."""
        return f"rank {self.rank} (local rank {self.local_rank}, role {self.role}) on {self.host}, pid {self.pid}: {self.status}"


def read_error_file(text: str) -> tuple[str, str]:
    """Message and traceback out of an error file, as our runner and torch's `record` write it; empty where there is nothing to read."""
    try:
        fields: object = json.loads(text)
    except ValueError:
        return _end(text.strip()), ""
    message = fields.get("message", "") if isinstance(fields, dict) else fields
    if not isinstance(message, dict):
        return _end(str(message)), ""
    told = cast("Mapping[str, object]", message)
    extra = told.get("extraInfo")
    traceback = cast("Mapping[str, object]", extra).get("py_callstack", "") if isinstance(extra, dict) else ""
    return _end(str(told.get("message", ""))), _end(str(traceback))


def _end(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"[... {len(text) - MAX_TEXT} characters before]\n{text[-MAX_TEXT:]}"


def encode_failure(failure: Failure) -> bytes:
    """As it is kept in the job's store."""
    return json.dumps(attrs.asdict(failure)).encode()


def decode_failure(value: bytes) -> Failure | None:
    """What `encode_failure` wrote; None for anything else: a report that can be read in part is better than none."""
    try:
        fields = json.loads(value)
        return Failure(**{field.name: fields[field.name] for field in attrs.fields(Failure) if field.name in fields})
    except (ValueError, TypeError):
        return None


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Each once, that which was seen first at the head."""
    unique = {(failure.number, failure.agent, failure.local_rank, failure.pid): failure for failure in failures}
    return sorted(unique.values(), key=lambda failure: (failure.number, failure.rank))


def report(job: str, failures: Iterable[Failure], text: str) -> str:
    """What the user reads when a job has failed: the root cause first, with its traceback, and then the others."""
    ordered = in_order(failures)
    rule = "=" * 72
    lines = [rule, f"job {job} failed" + (f": {text}" if text else "")]
    for number, failure in enumerate(ordered):
        lines.append("-" * 72)
        lines.append(f"{'root cause' if number == 0 else f'failure {number + 1} (seen later)'}: {failure.headline()}")
        if failure.traceback:
            lines += ["", *failure.traceback.rstrip().splitlines()]
        elif failure.message:
            lines += ["", *failure.message.rstrip().splitlines()]
        else:
            lines.append("  it left no traceback: it ended without a Python exception, or was started with --no-python")
        if failure.error_file:
            lines.append(f"  error file: {failure.error_file}")
    lines.append(rule)
    return "\n".join(lines)
