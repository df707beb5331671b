"""The log line for the end of a supervised actor: its reason, and whether it is started again. No
I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from actors.supervision import ExitReason, RestartType
from runtime.user_errors import FRAME_LINE

AFTER_TEMPORARY: Final = "not started again, being temporary"
"""What a supervisor does about a temporary child that has ended."""

MOST_IN_LINE = 10
"""Children that one line of the log names."""


def end_line(
    name: str,
    node: str | None,
    reason: ExitReason,
    restart: RestartType,
    *,
    failed: bool,
    ends_supervisor: bool,
    is_answer: bool = False,
    temporary: str = AFTER_TEMPORARY,
) -> tuple[int, str]:
    """Return the log level and the line for the end of a child, or for its start that `failed`. An
    intended end is INFO, a death WARNING, and ERROR if it `ends_supervisor`, which gives up with
    all its other children. `is_answer`: a call has asked for the start, and gets the reason as an
    error. `temporary`: what the supervisor does about a temporary child.
    """
    orderly = not failed and (reason.is_normal or reason.kind == "node left")
    text = _in_one_line(reason)
    # The text of a failed start begins with the name, and where it was.
    has_name = failed and text.startswith(f"{reason.kind}: {name} did not start")
    what = (
        f"{name} did not start"
        if failed
        else f"{name} has ended"
        if node is None
        else f"{name} has ended on {node}"
    )
    if ends_supervisor:
        level, follows = (
            (logging.INFO if orderly else logging.ERROR),
            "its supervisor ends with it, and stops its other children",
        )
    else:
        level = logging.INFO if orderly else logging.WARNING
        again = restart == "permanent" or (
            restart == "transient" and (failed or not reason.is_normal)
        )
        follows = (
            f"it is {temporary}"
            if restart == "temporary"
            else "it is not started again: the call that has asked for it gets this error"
            if is_answer
            else "it is started again"
            if again
            else f"it is not started again, being {restart}"
        )
    said = text.removeprefix(f"{reason.kind}: ") if has_name else f"{what} ({text})"
    return level, f"{said}; {follows}"


def lost_line(
    supervisor: str,
    lost: Sequence[tuple[str, RestartType]],
    reason: ExitReason,
    *,
    ends_supervisor: bool,
    temporary: str = AFTER_TEMPORARY,
) -> tuple[int, str]:
    """Return the log level and the line for the death of a node: `lost` are the ids of the children
    that were on it, and their restart types. `temporary`: as for `end_line`.
    """
    level = logging.WARNING
    ended = [id for id, restart in lost if restart == "temporary"]
    others = [id for id, restart in lost if restart != "temporary"]
    they_are = "it is" if len(lost) == 1 else "they are"
    if ends_supervisor:
        level, follows = logging.ERROR, f"{supervisor} ends with that, and stops its other children"
    elif not ended:
        follows = f"{they_are} started again"
    elif not others:
        follows = f"{they_are} {temporary}"
    else:
        follows = f"started again: {_listed(others)}; {temporary}: {_listed(ended)}"
    what = f"{supervisor} has lost {_listed([id for id, _ in lost])}"
    return level, f"{what} ({_in_one_line(reason)}); {follows}"


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:MOST_IN_LINE]) + ", ..." * (len(ids) > MOST_IN_LINE)


def _in_one_line(reason: ExitReason) -> str:
    """Return the reason, with the place in the user's code where it was raised, if that is
    known.
    """
    text = " ".join(str(reason).split("\n\n")[0].split())
    # The text of a failed start has the place already.
    frames = list(FRAME_LINE.finditer(reason.traceback)) if reason.kind != "start failed" else []
    return (
        f"{text}, at {frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}"
        if frames
        else text
    )
