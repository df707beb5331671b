"""What methods raise in one-way calls, whose callers wait for no outcome: only the log says it."""

from __future__ import annotations

import logging

from actors.class_names import class_name
from runtime.hosting.cell import Invocation
from runtime.limited_log import LimitedLog
from runtime.user_errors import traceback_of


def log_one_way_failure(log: LimitedLog, invocation: Invocation, error: BaseException) -> None:
    """Write the error of a one-way call with its traceback.

    Lines are counted for each class of actors, method and class of errors, so that one actor that
    fails all the time does not hide the others; not for each actor, since a program may have
    thousands of one class.
    """
    cell, method = invocation.cell, invocation.definition.name
    log.log(
        logging.ERROR,
        "%s.%s raised in a one-way call\n%s",
        cell.address.name,
        method,
        traceback_of(error),
        about=f"{class_name(type(cell.instance))}.{method} {class_name(type(error))}",
    )
