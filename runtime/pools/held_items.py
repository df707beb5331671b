"""The items that a `map` has taken from its source and whose results it has not given yet. This
file decides which of them have a result, and in which order results are given. No I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import attrs


@attrs.define(eq=False)
class MapItem:
    """One item on its way, and how it has ended. `args`: what its method is called with, nothing
    once it has ended. `weight`: bytes, about.
    """

    index: int
    args: tuple[object, ...]
    weight: int = 0
    digest: bytes = b""
    """Of `args`, if there is a journal."""
    place: str = ""
    """The node that has its value, if it is a reference."""
    alone: bool = False
    """True once a batch with it has failed as a whole: it travels alone, so that no other item
    shares its fate.
    """
    most: int = 0
    """The most items in a batch with it, since a larger one was refused; 0: no bound."""
    recallable: bool = True
    """False for one that travels in a call of its own, as references do: what waits with a member
    in such a call cannot be taken back.
    """
    passed_over: int = 0
    """How often another item was taken before it."""
    deaths: tuple[str, ...] = ()
    refusals: int = 0
    attempts: int = 0
    not_before: float = -math.inf
    ended: bool = False
    """True when it has its result: `value`, or `error` if that is not None."""
    value: object = None
    error: BaseException | None = None


class HeldItems:
    """The held items of one `map`. `ordered`: results are given in the order of the source, else in
    the order in which items end. `journalled`: what an item has returned is a result only after
    `on_written`.
    """

    def __init__(self, *, ordered: bool, journalled: bool) -> None:
        self._ordered = ordered
        self._journalled = journalled
        self._to_give: deque[MapItem] = deque()
        """In this order results are given. If the order of the source matters, all held items;
        otherwise those of them that have ended.
        """
        self._unwritten: dict[int, MapItem] = {}
        """Items that have returned, and that the journal does not have yet."""
        self._to_write: list[MapItem] = []
        """Of these, those that `take_finished` has not given yet."""
        self.count = 0
        self.bytes = 0
        self.open = 0
        """How many have no result yet."""
        self.done = 0
        self.failed = 0
        self.resumed = 0
        """How many of `done` an earlier run had done."""

    def add(self, item: MapItem) -> None:
        """Hold an item of the source, the last one so far."""
        if self._ordered:
            self._to_give.append(item)
        self.open += 1
        self.count += 1
        self.bytes += item.weight

    def add_all(self, items: Sequence[MapItem], weight: int) -> None:
        """Like `add` for each, and quicker. `weight`: of all of them."""
        if self._ordered:
            self._to_give.extend(items)
        self.open += len(items)
        self.count += len(items)
        self.bytes += weight

    def finish(
        self, item: MapItem, value: object = None, error: BaseException | None = None
    ) -> None:
        """End an item with a value or an error. A value waits for the journal, if there is one."""
        item.value, item.error = value, error
        if self._journalled and error is None:
            self._unwritten[item.index] = item
            self._to_write.append(item)
        else:
            self._settle(item)

    def finish_all(self, items: list[MapItem], outcomes: Sequence[tuple[int, object]]) -> None:
        """End items that have all returned: what `finish` does, for tiny items by the thousand."""
        if self._journalled:
            for item, (_, value) in zip(items, outcomes, strict=True):
                self.finish(item, value)
            return
        for item, (_, value) in zip(items, outcomes, strict=True):
            assert not item.ended, "an item has one result"
            item.value = value
            item.args = ()
            item.ended = True
        self.open -= len(items)
        self.done += len(items)
        if not self._ordered:
            self._to_give.extend(items)

    def resume(self, item: MapItem, value: object) -> None:
        """End an item that an earlier run has done, with this result: the journal has it."""
        self.resumed += 1
        item.value = value
        self._settle(item)

    def take_finished(self) -> list[MapItem]:
        """Return the items to be written to the journal, each once."""
        finished, self._to_write = self._to_write, []
        return finished

    def on_written(self, indices: Iterable[int]) -> None:
        """Note that the journal has these items: their results may be given."""
        for index in indices:
            self._settle(self._unwritten.pop(index))

    def next_result(self) -> MapItem | None:
        """Take the next item whose result is to be given, if there is one. It is held no more."""
        if not self._to_give or not self._to_give[0].ended:
            return None
        item = self._to_give.popleft()
        self.count -= 1
        self.bytes -= item.weight
        assert 0 <= self.open <= self.count, "what has no result was not given"
        return item

    def ended(self) -> list[MapItem]:
        """Return the items that have a result which was not given. Looks at all: for tests."""
        return [item for item in self._to_give if item.ended]

    def check_invariants(self, elsewhere: Sequence[MapItem]) -> None:
        """Assert what must hold between any two steps. `elsewhere`: the items that wait, or are
        with a member. Looks at all items: for tests.
        """
        unended = [*elsewhere, *self._unwritten.values()]
        assert len(unended) == self.open, (
            "an item without a result waits, is with a member, or is to be written"
        )
        indices = {item.index for item in unended}
        given = [item.index for item in self.ended()]
        assert len(given) == len(set(given)), "one result each"
        assert indices.isdisjoint(given)
        to_give = [item.index for item in self._to_give]
        assert set(to_give) == set(given).union(indices if self._ordered else ())
        assert not self._ordered or to_give == sorted(to_give), "in the order of the source"
        assert self.count == self.open + len(given)
        weights = {item.index: item.weight for item in (*self._to_give, *unended)}
        assert self.bytes == sum(weights.values())

    def _settle(self, item: MapItem) -> None:
        assert not item.ended, "an item has one result"
        item.ended = True
        # Results may wait long for those before them: large arguments must not.
        item.args = ()
        self.open -= 1
        if item.error is None:
            self.done += 1
        else:
            self.failed += 1
        if not self._ordered:
            self._to_give.append(item)
