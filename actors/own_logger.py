"""The loggers of Understudy itself: what handlers and filters of `logging` raise stays in them.

Most lines are logged in a node's own tasks. A handler, a filter or a record factory of the
program's that raises (a filter that reads a ContextVar without a value, for example) would end
such a task by it, and with it the node.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

_REPORTER: Final = logging.NullHandler()
"""Writes to stderr what was raised, as the handlers of `logging` do for what they catch."""


def own_logger(name: str) -> logging.Logger:
    """Return the logger of this name, which raises nothing that handlers, filters or the record
    factory raise. It is written to stderr instead, unless `logging.raiseExceptions` is false.
    """
    logger = logging.getLogger(name)
    kind = type(logger)
    if kind is logging.Logger:
        logger.__class__ = _OwnLogger
    elif not issubclass(kind, _OwnLogger):
        # A program may have set a class of its own for all loggers: its methods stay.
        logger.__class__ = type(kind.__name__, (_OwnLogger, kind), {})
    return logger


class _OwnLogger(logging.Logger):
    def makeRecord(self, *args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: N802
        try:
            return super().makeRecord(*args, **kwargs)
        except Exception:
            # The line itself is not lost. The seven come first in every version of Python.
            record = logging.LogRecord(*args[:7])
            _report(record)
            return record

    def handle(self, record: logging.LogRecord) -> None:
        try:
            super().handle(record)
        except Exception:
            _report(record)


def _report(record: logging.LogRecord) -> None:
    """Write the exception that is being handled to stderr."""
    # It makes texts of the user's objects, which may raise as well; then there is nothing to say.
    with suppress(Exception):
        _REPORTER.handleError(record)
