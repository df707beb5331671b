"""What methods raise in one-way calls, whose callers wait for no outcome: only the log says it."""

from __future__ import annotations

import logging
from typing import Final

from actors.class_names import class_name
from actors.errors import UnderstudyError
from runtime.hosting.cell import Invocation
from runtime.limited_log import LimitedLog
from runtime.user_errors import summary_of, traceback_of

_REFUSALS: Final = (RuntimeError, TypeError, UnderstudyError, ValueError)
"""What services of the runtime raise where they do not do what a caller asks for."""


def log_one_way_failure(log: LimitedLog, invocation: Invocation, error: BaseException) -> None:
    """Write the error of a one-way call with its traceback; in one line if a service of the runtime
    refuses what another node asks for, which is no mistake of this node.

    Lines are counted for each class of actors, method and class of errors, so that one actor that
    fails all the time does not hide the others; not for each actor, since a program may have
    thousands of one class.
    """
    cell, method, peer = invocation.cell, invocation.definition.name, invocation.verified
    about = f"{class_name(type(cell.instance))}.{method} {class_name(type(error))}"
    if cell.system and peer is not None and issubclass(type(error), _REFUSALS):
        log.log(
            logging.WARNING,
            "%s.%s has refused a one-way call from %s: %s",
            cell.address.name,
            method,
            peer.name,
            summary_of(error),
            about=about,
        )
        return
    log.log(
        logging.ERROR,
        "%s.%s raised in a one-way call\n%s",
        cell.address.name,
        method,
        traceback_of(error),
        about=about,
    )
