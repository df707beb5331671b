"""Members of a pool that end by themselves right after their start, such as those whose own task
raises at once: which of them count, and when the next one is started. No I/O.

Without a pause the pool would start others as fast as they end, hundreds in a second, for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.supervision import ExitReason
from actors.supervisor import DeathReport
from runtime.pools.start_pause import StartPause

EARLY_SECONDS = 1.0
"""A member that ends within this time after its start has not begun to work."""


class EarlyEnds:
    """The early ends of one pool's members. From the first on, one member is started at a time,
    after pauses that grow, until one that was started later has run for `EARLY_SECONDS`.
    """

    def __init__(self) -> None:
        self.pause = StartPause()
        self.latest: ExitReason | None = None
        """How the latest of them has ended; None while members are started as usual."""
        self._seen: DeathReport | None = None
        self._started: dict[str, float] = {}
        """When the members that run were started, by their ids: those since the latest early end,
        which may show that members run again.
        """

    @property
    def is_one_at_a_time(self) -> bool:
        """True if members are started one at a time."""
        return self.latest is not None

    def may_start(self, now: float) -> bool:
        """True if the next one may be started: the pause is over, and the one before has run for
        long enough or has ended.
        """
        return self.pause.is_over(now) and not self._started

    def fresh(self, deaths: Sequence[DeathReport]) -> list[DeathReport]:
        """The reports that were not among those of the call before, the oldest first."""
        found: list[DeathReport] = []
        for report in reversed(deaths):
            if report is self._seen:
                break
            found.append(report)
        if found:
            self._seen = found[0]
        found.reverse()
        return found

    def on_started(self, id: str, now: float) -> None:
        """A member has started."""
        if self.is_one_at_a_time:
            self._started[id] = now

    def forget(self, id: str) -> None:
        """A member has ended."""
        self._started.pop(id, None)

    def on_ended(self, report: DeathReport, now: float) -> bool:
        """A member has ended; True if this was early and is not one of several that were started
        together.
        """
        self.forget(report.id)
        if not _is_early(report):
            return False
        self.latest = report.reason
        return self.pause.on_failed(now)

    def look(self, now: float) -> None:
        """See whether a member runs for long enough: then all that are missing are started."""
        if any(now - started >= EARLY_SECONDS for started in self._started.values()):
            self.latest = None
            self.pause = StartPause()
            self._started.clear()


def _is_early(report: DeathReport) -> bool:
    # Other ends may be the work of an item that the member was given, as that of a process, and as
    # the end of an actor of which a method asks the process to exit: the pool goes on however many
    # members items take down.
    return (
        report.reason.kind == "raised"
        and not report.reason.text.startswith("SystemExit")
        and report.started is not None
        and report.at - report.started < EARLY_SECONDS
    )
