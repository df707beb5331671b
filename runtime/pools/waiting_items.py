"""The items of a `map` that wait for a member: those that may go, in their order, and those that
wait for the delay of their retry. No I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from runtime.pools.batch_sizes import MOST_BATCH_BYTES
from runtime.pools.held_items import MapItem

PLACE_SECONDS = 0.1
"""For how many seconds a member without local items gets none of the items whose values are on the
nodes of other members (delay scheduling; Zaharia and others, 2010).
"""

LOOK_AHEAD = 64
"""Waiting items among which a member's local ones are looked for, and how often the first of them
may be passed over.
"""


class WaitingItems:
    """The waiting items of one `map`."""

    def __init__(self) -> None:
        self._ready: deque[MapItem] = deque()
        self._with_place = 0
        """Ready items that have a place: without any, no item is looked for."""
        self._delayed: list[MapItem] = []
        self._turned_away: float | None = None
        """Since when members have got no items of other places."""

    def __bool__(self) -> bool:
        return bool(self._ready or self._delayed)

    def __len__(self) -> int:
        return len(self._ready) + len(self._delayed)

    @property
    def ready(self) -> int:
        """How many may go to a member now."""
        return len(self._ready)

    def add(self, item: MapItem) -> None:
        """Add an item behind all others."""
        self._ready.append(item)
        if item.place:
            self._with_place += 1

    def add_all(self, items: Iterable[MapItem]) -> None:
        """Add items without places behind all others."""
        self._ready.extend(items)

    def take_back(self, index: int) -> MapItem:
        """Remove the item that was added last, which has this index."""
        item = self._ready.pop()
        self._with_place -= bool(item.place)
        assert item.index == index
        return item

    def put_back(self, items: Sequence[MapItem]) -> None:
        """Add items before all others: later ones may wait for their results."""
        self._ready.extendleft(reversed(items))
        self._with_place += sum(bool(item.place) for item in items)

    def delay(self, item: MapItem, until: float) -> None:
        """Let an item wait until this time, for its retry."""
        item.not_before = until
        self._delayed.append(item)

    def bring_back(self, now: float) -> None:
        """Make the items ready whose delay is over."""
        due = [item for item in self._delayed if item.not_before <= now]
        if due:
            self._delayed = [item for item in self._delayed if item.not_before > now]
            self.put_back(due)

    def next_retry(self) -> float:
        """Return when the first delayed item may go; infinite if there is none."""
        return min((item.not_before for item in self._delayed), default=math.inf)

    def take_first(
        self, place: str, places: Iterable[str], now: float, *, is_idle: bool
    ) -> MapItem | None:
        """Take the first item of the next batch for a member on node `place`, which has nothing to
        do if it `is_idle`; `places`: the nodes of all members. Returns None if all items that it
        may have are for members on other nodes. At least one item must be ready.
        """
        chosen = self._choose(place, places, now)
        if chosen is None:
            return None
        item = self._ready[chosen]
        if not item.recallable and not is_idle:
            # A member that is not idle may have an item that takes long, and this one could not be
            # taken back from behind it.
            return None
        if chosen:
            self._ready[0].passed_over += 1
        del self._ready[chosen]
        self._with_place -= bool(item.place)
        return item

    def _choose(self, place: str, places: Iterable[str], now: float) -> int | None:
        """Return the position of the first item that a member on node `place` may have."""
        if not self._with_place or self._ready[0].passed_over >= LOOK_AHEAD:
            return 0
        chosen: int | None = None
        others = set(places)
        for number, item in enumerate(islice(self._ready, LOOK_AHEAD)):
            if item.place and item.place == place:
                self._turned_away = None
                return number
            if chosen is None and (not item.place or item.place not in others):
                chosen = number
        if chosen is not None:
            return chosen
        if self._turned_away is None:
            self._turned_away = now
        return None if now - self._turned_away < PLACE_SECONDS else 0

    def fill(self, items: list[MapItem], most: int) -> None:
        """Take ready items for a batch that has its first, until it has `most` or is large."""
        ready, weight = self._ready, items[0].weight
        for _ in range(min(most, items[0].most or most, len(ready) + 1) - 1):
            item = ready[0]
            weight += item.weight
            if item.alone or weight > MOST_BATCH_BYTES or 0 < item.most <= len(items):
                return
            items.append(ready.popleft())
            if item.place:
                self._with_place -= 1

    def all(self) -> list[MapItem]:
        """Return all items, and check their counts: for tests."""
        assert self._with_place == sum(bool(item.place) for item in self._ready)
        return [*self._ready, *self._delayed]
