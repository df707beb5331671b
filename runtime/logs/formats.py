"""How log lines look: text for people, JSON lines for programs. Both say which actor and call a
line is from.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal, get_args

from runtime.logs.capture import FIELD_NAMES, LogFields
from runtime.logs.ring import cut
from runtime.printable import without_controls
from runtime.stderr_writer import stderr_handler

LogFormat = Literal["text", "json"]

LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)

CONTINUED = "\n  "
"""Begins the second and later lines of one record in a text log."""

MOST_WRITTEN = 256 * 1024
"""Characters of one record that are written: making a line of it takes time of the event loop."""

_NOTHING = LogFields()


class LogFilter(logging.Filter):
    """Gives each record the fields `node`, `incarnation`, `actor`, `epoch`, `method`, `call`,
    `trace_id` and `span_id`, for the format of your own handler: `handler.addFilter(LogFilter())`,
    then `%(actor)s`. A field is "" (`incarnation` and `epoch`: 0) where there is none. A field of
    your own of the same name stays. It lets every record pass.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to a record. Returns True: it lets every record pass."""
        fields = _fields_of(record)
        for name in FIELD_NAMES:
            if name not in record.__dict__:
                setattr(record, name, fields.get(name, getattr(_NOTHING, name)))
        return True


class TextFormatter(logging.Formatter):
    """A time, the level, the logger and the text; then `[actor.method]` where an actor logs."""

    def __init__(self, *, times: bool = True) -> None:
        super().__init__(("%(asctime)s " if times else "") + "%(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text. Names, reasons and arguments come from anywhere: a terminal
        that shows the line is not controlled by them. Further lines of a text or a traceback are
        indented, so that none of them can pose as another record.
        """
        text = cut(super().format(record), MOST_WRITTEN)
        return without_controls(text).replace("\n", CONTINUED)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return the line, with the actor and the method that have logged it, if they are known."""
        text = super().formatMessage(record)
        fields = _fields_of(record)
        actor, method = fields.get("actor", ""), fields.get("method", "")
        return f"{text} [{actor}{'.' if method else ''}{method}]" if actor else text


class JsonFormatter(logging.Formatter):
    """One JSON object on each line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, and those
    of the fields that are known; `exception` with the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, object] = {
            "time": iso(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": cut(record.getMessage(), MOST_WRITTEN),
        }
        fields = _fields_of(record)
        line.update(fields)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = cut(self.formatException(record.exc_info), MOST_WRITTEN)
        if record.stack_info:
            line["stack"] = record.stack_info
        # ASCII: a lone surrogate, or a terminal that knows no Unicode, must not end the line.
        return json.dumps(line)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    # Other code may set an attribute of this name: only the fields count.
    found: object = getattr(record, "understudy", None)
    if not isinstance(found, dict):
        return {}
    return {name: found[name] for name in FIELD_NAMES if name in found}


def iso(seconds: float) -> str:
    """A time since 1970 as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def write_logs(level: int, log_format: LogFormat, *, times: bool = True) -> None:
    """Write logs from `level` on to stderr, in a process that is the runtime's own. Lines of level
    INFO are made in any case, for `understudy logs`. Changes the handler that an earlier call has
    made; where others have configured logs already, nothing happens, as with `basicConfig`. A
    stderr that is not read blocks nothing: lines are dropped, and counted.
    """
    root = logging.getLogger()
    ours = [one for one in root.handlers if isinstance(one.formatter, _FORMATTERS)]
    if root.handlers and not ours:
        return
    handler = ours[0] if ours else stderr_handler()
    handler.setLevel(level)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(times=times))
    if not ours:
        root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))


_FORMATTERS = (JsonFormatter, TextFormatter)


def written_format() -> LogFormat:
    """Return the format in which this process writes its logs: "json" if a handler of its root
    logger does.
    """
    return (
        "json"
        if any(isinstance(one.formatter, JsonFormatter) for one in logging.getLogger().handlers)
        else "text"
    )


def written_level() -> int:
    """Return the level from which on this process writes logs of the runtime."""
    level = logging.getLogger("understudy").getEffectiveLevel()
    handlers = logging.getLogger().handlers
    return max(level, min((handler.level for handler in handlers), default=level))
