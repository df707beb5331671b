"""Chrome's trace event format as a JSON schema: what its document says of the events that timelines
have, and nothing beside.

The document: "Trace Event Format", by the authors of Chrome's tracing, which Perfetto's importer of
JSON follows as well.
"""

from __future__ import annotations

import json
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
"""Of a process or a thread: importers read them as 32 bits."""

_TIME: Final = {"type": "number", "minimum": 0, "maximum": 2**63 / 1000 - 1}
"""Microseconds, which importers keep as nanoseconds in 64 bits."""

_TEXT: Final = {"type": "string", "minLength": 1}


def _event(phase: str, /, optional: tuple[str, ...] = (), **fields: object) -> dict[str, Any]:
    """The schema of events of one phase: exactly these fields beside those that all have."""
    properties = {"ph": {"const": phase}, "pid": _NUMBER, "tid": _NUMBER, "name": _TEXT, **fields}
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties.keys() - set(optional)),
        "additionalProperties": False,
    }


def _metadata(name: str, /, **arguments: object) -> dict[str, Any]:
    told = {
        "type": "object",
        "properties": arguments,
        "required": sorted(arguments),
        "additionalProperties": False,
    }
    return _event("M", name={"const": name}, args=told)


EVENTS: Final = {
    "X": _event("X", cat=_TEXT, ts=_TIME, dur=_TIME, args={"type": "object"}),
    "i": _event("i", cat=_TEXT, ts=_TIME, s={"enum": ["g", "p", "t"]}, args={"type": "object"}),
    "s": _event("s", cat=_TEXT, ts=_TIME, id={"type": ["integer", "string"]}),
    # By `bp` an arrow ends in the slice around it, and not at the next one.
    "f": _event("f", cat=_TEXT, ts=_TIME, id={"type": ["integer", "string"]}, bp={"const": "e"}),
    "process_name": _metadata("process_name", name=_TEXT),
    "process_labels": _metadata("process_labels", labels=_TEXT),
    "process_sort_index": _metadata("process_sort_index", sort_index={"type": "integer"}),
    "thread_name": _metadata("thread_name", name=_TEXT),
    "thread_sort_index": _metadata("thread_sort_index", sort_index={"type": "integer"}),
}
"""By phase; metadata by name."""

TRACE: Final = {
    "type": "object",
    "properties": {
        "traceEvents": {"type": "array", "items": {"type": "object", "required": ["ph"]}},
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}
"""The file without its events."""

_CHECKS: Final = {key: Draft202012Validator(schema) for key, schema in EVENTS.items()}


def check_format(trace: object) -> None:
    """Raises AssertionError, KeyError or jsonschema's ValidationError for what is not in the
    format.
    """
    # As a file has it: tuples are arrays, and there is no infinity.
    read = json.loads(json.dumps(trace, allow_nan=False))
    Draft202012Validator(TRACE).validate(read)
    for event in read["traceEvents"]:
        _CHECKS[event["name"] if event["ph"] == "M" else event["ph"]].validate(event)
