"""Log lines that others can cause: at most a few of each kind in a while, so that no peer can fill
a log, or a disk, from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import attrs

BURST = 10
PERIOD_SECONDS = 60.0
"""At most `BURST` lines of one kind are written in such a period; the rest is counted."""

MOST_KINDS = 100
"""Kinds that a log tells apart by more than their text."""


@attrs.define
class _LimitedLine:
    """Lines of one kind in the present period."""

    began: float
    written: int = 0
    left_out: int = 0


class LimitedLog:
    """Writes to `logger` at most `burst` lines of a kind in `period` seconds. The first line of a
    later period says how many were left out.

    The kind is the text before its arguments are filled in, so there are only as many kinds as
    calls in the source; and what the line is `about`, if the caller says so, for up to `MOST_KINDS`
    of them in a period. `now` gives seconds.
    """

    def __init__(
        self,
        logger: logging.Logger,
        now: Callable[[], float],
        burst: int = BURST,
        period: float = PERIOD_SECONDS,
    ) -> None:
        self._logger = logger
        self._now = now
        self._burst = burst
        self._period = period
        self._kinds: dict[tuple[str, str], _LimitedLine] = {}

    def log(
        self,
        level: int,
        text: str,
        *arguments: object,
        error: BaseException | None = None,
        about: str = "",
    ) -> None:
        """Write one line, unless too many of its kind were written. With the traceback of `error`.
        Lines `about` different things do not count for each other.
        """
        if write := self.line(level, text, *arguments, error=error, about=about):
            write()

    def line(
        self,
        level: int,
        text: str,
        *arguments: object,
        error: BaseException | None = None,
        about: str = "",
    ) -> Callable[[], None] | None:
        """Return what writes the line that `log` would write, for another thread; None if it would
        write none. Counted here: the clock of an event loop cannot be read in other threads.
        """
        if not self._logger.isEnabledFor(level):
            return None
        now = self._now()
        if about and (text, about) not in self._kinds and len(self._kinds) >= MOST_KINDS:
            self._forget(now)
            if len(self._kinds) >= MOST_KINDS:
                about = ""  # The bound on kinds: further ones share the lines of the text.
        kind = self._kinds.get((text, about))
        left_out = 0
        if kind is None or now - kind.began >= self._period:
            left_out = kind.left_out if kind is not None else 0
            kind = self._kinds[text, about] = _LimitedLine(now)
        if kind.written >= self._burst:
            kind.left_out += 1
            return None
        kind.written += 1
        if left_out:
            text = f"{text} (%d more lines like this one were left out)"
            arguments = (*arguments, left_out)
        return partial(self._logger.log, level, text, *arguments, exc_info=error)

    def _forget(self, now: float) -> None:
        """Forget what lines were about whose period is over. The lines of theirs that were left out
        count as such of the text.
        """
        for (text, about), kind in list(self._kinds.items()):
            if about and now - kind.began >= self._period:
                del self._kinds[text, about]
                if kind.left_out:
                    shared = self._kinds.setdefault((text, ""), _LimitedLine(now))
                    shared.left_out += kind.left_out

    def warning(self, text: str, *arguments: object) -> None:
        """`log` at the level WARNING."""
        self.log(logging.WARNING, text, *arguments)
