"""What happens to a job, as JSON lines in a file, and the counts of it for whoever measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import attrs

from runtime.environment import Environment


class EventLog:
    """Lines in a file, each whole: an object with `time` (seconds since 1970, for people), `event`, and what belongs to it."""

    def __init__(self, path: Path | None, environment: Environment, **common: object) -> None:
        self._file: IO[str] | None = open(path, "a", buffering=1, encoding="utf-8") if path is not None else None  # noqa: SIM115 - see close
        self._environment = environment
        self._common = common

    def write(self, event: str, **fields: object) -> None:
        """Add a line. What is None is left out. A disk that is full costs the line, not the job."""
        if self._file is None:
            return
        told = {"time": round(self._environment.wall_time(), 3), "event": event, **self._common}
        told.update({name: value for name, value in fields.items() if value is not None})
        try:
            self._file.write(json.dumps(told) + "\n")
        except OSError:
            pass

    def close(self) -> None:
        """No line follows."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass


@attrs.define
class Counts:
    """What an agent has seen since it began."""

    rounds: int = 0
    worker_starts: int = 0
    worker_failures: int = 0
    workers_stuck: int = 0
    restarts_granted: int = 0
    restarts_refused: int = 0
    membership_changes: int = 0
    cut_off: int = 0
    rendezvous_seconds: float = 0.0


def prometheus_text(counts: Counts, state: str, workers: dict[str, int], labels: dict[str, str]) -> str:
    """All of it in Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats/"""

    def value(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    common = ",".join(f'{name}="{value(text)}"' for name, text in labels.items())
    lines: list[str] = []
    for field in attrs.fields(Counts):
        name = f"understudy_elastic_{field.name}_total"
        lines += [f"# TYPE {name} counter", f"{name}{{{common}}} {getattr(counts, field.name):g}"]
    lines += ["# TYPE understudy_elastic_agent_state gauge", f'understudy_elastic_agent_state{{{common},state="{value(state)}"}} 1']
    lines.append("# TYPE understudy_elastic_workers gauge")
    lines += [f'understudy_elastic_workers{{{common},state="{name}"}} {number}' for name, number in workers.items()]
    return "\n".join(lines) + "\n"
