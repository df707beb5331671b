"""How the end of a supervised actor is told of in the log: one line, with what follows from it. No I/O."""

from __future__ import annotations

import logging
import re

from actors.supervision import ExitReason, RestartType

_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)


def told(name: str, node: str | None, reason: ExitReason, restart: RestartType, *, failed: bool, ends_supervisor: bool) -> tuple[int, str]:
    """The level and the line for the end of a child, or for its start that `failed`.

    What was meant to happen is INFO, a death WARNING, and ERROR if it `ends_supervisor`: that gives up, with all its other children.
    """
    orderly = not failed and (reason.is_normal or reason.kind == "node left")
    what = f"{name} did not start" if failed else f"{name} has ended" if node is None else f"{name} has ended on {node}"
    if ends_supervisor:
        level, follows = (logging.INFO if orderly else logging.ERROR), "its supervisor ends with it, and stops its other children"
    else:
        level = logging.INFO if orderly else logging.WARNING
        again = restart == "permanent" or (restart == "transient" and (failed or not reason.is_normal))
        follows = "it is started again" if again else f"it is not started again, being {restart}"
    return level, f"{what} ({_in_one_line(reason)}); {follows}"


def _in_one_line(reason: ExitReason) -> str:
    """The reason, and where in the user's code it was raised, if that is known."""
    text = " ".join(str(reason).split("\n\n")[0].split())
    # What a start has failed of tells its place itself.
    frames = list(_FRAME.finditer(reason.traceback)) if reason.kind != "start failed" else []
    return f"{text}, at {frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}" if frames else text
