"""How many items of a `map` travel in one call, and how many such batches are with a member at
once, from the time that items have taken. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import attrs

from runtime.pools.held_items import MapItem

BATCH_SECONDS = 0.05
"""Seconds of work in one batch of tiny items: long beside what a batch costs, which is a
millisecond or two of processor time where processes must wake up, and short beside what people wait
for.
"""

MOST_IN_BATCH = 1024
MOST_BATCH_BYTES = 1024 * 1024
"""Bytes of items in a batch. An item that is larger travels alone."""

GROWTH = 4
"""By which factor the next batch may be larger than the largest so far: the time that the first
items take may be misleading.
"""

PREFETCH_BELOW = 0.1
"""Seconds. A member whose batches take less gets the next one while it runs one, so that it never
waits for the network. Beside longer batches that wait is too short to matter, and items that a
member has when it dies have an unknown outcome.
"""

WEIGHT = 0.3
"""Weight of the latest batch in the mean time per item."""


@attrs.define(eq=False)
class Batch:
    """Items that are with a member in one call."""

    number: int
    member: Hashable
    items: list[MapItem]
    sent_at: float
    expected: float
    """Seconds that it takes, as far as is known; infinite if that is not."""
    recalled: bool = False
    first_at: float = math.inf
    """When it became the first of those with its member, as far as is known."""


@attrs.define(eq=False)
class KnownPace:
    """The time that the items of one method took in the latest map, for the next one."""

    seconds: float | None = None


@attrs.define(eq=False)
class MemberPace:
    """The known pace of one member, in seconds per item, and the batches that it has."""

    batches: dict[int, Batch] = attrs.Factory(dict)
    """Those with it, in the order in which they were sent."""
    seconds: float | None = None
    largest: int = 0
    draining: bool = False
    place: str = ""

    def expected_end(self) -> float:
        """Return when the member has answered all that it has, as far as is known; infinite if that
        is not, and minus infinity if it is idle.
        """
        if not self.batches:
            return -math.inf
        first = next(iter(self.batches.values()))
        return first.first_at + sum(batch.expected for batch in self.batches.values())


class BatchSizes:
    """The batch sizes of one `map`. `fixed`: items per batch, None for automatic. `alone`: each
    item travels in a call of its own; such a call is not recalled, so none is sent to a member that
    has one. `known`: the time that items took in earlier maps; it is kept up to date.
    """

    def __init__(self, fixed: int | None, known: KnownPace, *, alone: bool) -> None:
        self._fixed = 1 if alone else fixed
        self._alone = alone
        self._known = known
        self._seconds: float | None = None
        """Mean time per item over all members."""
        self._result_bytes = 0
        """Of the latest batch, for each item."""
        self.largest = 1
        """How many items the largest batch may soon have."""

    def forbid_batches(self) -> None:
        """Send each item in a call of its own from now on."""
        self._fixed = 1
        self._alone = True

    def expected(self, pace: MemberPace, count: int) -> float:
        """Return the seconds that so many items take; infinite if that is not known."""
        per_item = pace.seconds if pace.seconds is not None else self._seconds
        return math.inf if per_item is None else per_item * count

    def credit(self, pace: MemberPace) -> int:
        """Return how many batches may be with a member at once."""
        seconds = pace.seconds if pace.seconds is not None else self._seconds
        seconds = seconds if seconds is not None else self._known.seconds
        if seconds is None or not pace.batches or self._alone:
            return 1
        last = next(reversed(pace.batches.values()))
        if not last.items[0].recallable:
            return 1
        return 2 if seconds * len(last.items) < PREFETCH_BELOW else 1

    def full(self, pace: MemberPace) -> int:
        """Return how many items a member's batch may have, if enough of them wait."""
        if self._fixed is not None:
            return self._fixed
        per_item = pace.seconds if pace.seconds is not None else self._seconds
        if per_item is None:
            return 1
        most = GROWTH * max(1, pace.largest)
        by_time = MOST_IN_BATCH if per_item <= 0 else int(BATCH_SECONDS / per_item)
        by_bytes = MOST_BATCH_BYTES // max(1, self._result_bytes)
        return max(1, min(by_time, most, by_bytes, MOST_IN_BATCH))

    def next_size(self, pace: MemberPace, waiting: int, members: int, *, is_last: bool) -> int:
        """Return how many items the next batch of a member may have. `waiting`: how many items
        wait, for so many `members`. `is_last`: no more items come.
        """
        if self._fixed is not None:
            return self._fixed
        # Towards the end batches become smaller, so that all members end at about the same time
        # (guided self-scheduling; Polychronopoulos and Kuck, 1987).
        share = -(-waiting // max(1, 2 * members))
        if not is_last:
            share = max(share, -(-waiting // max(1, members)))
        return max(1, min(self.full(pace), share))

    def on_answered(
        self, batch: Batch, pace: MemberPace | None, ran: int, seconds: float, weight: int
    ) -> None:
        """Learn from an answer: `ran` items of the batch took so many `seconds`, and their results
        have `weight` bytes. `pace`: that of its member, if that is still there.
        """
        if not ran:
            return
        self._result_bytes = max(weight // ran, self._result_bytes // 2)
        each = max(0.0, seconds) / ran
        self._seconds = _mean(self._seconds, each)
        if pace is not None:
            pace.seconds = _mean(pace.seconds, each)
            pace.largest = max(pace.largest, len(batch.items))
            self.largest = max(self.largest, 2 * pace.largest)
        self._known.seconds = self._seconds


def _mean(before: float | None, latest: float) -> float:
    return latest if before is None else before + WEIGHT * (latest - before)
