"""Errors of statements as their user should see them: without the frames of the runtime and of
trio, whatever the exception is made of.
"""

from __future__ import annotations

import traceback

from runtime.user_errors import MOST_TRACEBACK, described_errors, guarded, is_machinery, summary_of


def users_traceback(error: BaseException, most: int = MOST_TRACEBACK) -> str:
    """The traceback as text that ends with a line break, causes and groups included, of `most`
    characters at most.
    """
    text = guarded(lambda: _formatted(error), lambda failure: f"{summary_of(error)}\n")
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n... ({len(text) - most} characters left out)\n{text[-half:]}"
    return text


def in_one_line(error: BaseException) -> str:
    """`Type: text`, without line breaks, and no more than a line can hold."""
    lines = summary_of(error).strip().splitlines()
    return lines[0][:1000] if lines else type(error).__name__


def _formatted(error: BaseException) -> str:
    described = traceback.TracebackException.from_exception(error, compact=True)
    for one in described_errors(described):
        kept = [frame for frame in one.stack or () if not is_machinery(frame.filename)]
        one.stack = traceback.StackSummary.from_list(kept)
        if not kept:
            # Then there is no heading above no lines either.
            vars(one)["stack"] = None
    return "".join(described.format())
