"""The decisions of one `map` over a pool: which items travel together, to which member they go,
what is run again, and in which order results are given. No I/O.

Members pull: an idle member takes the next batch, so slow members get less. Each item ends with
one result. What certainly did not run is run again; what may have run is repeated only if `repeats`
says so. An item that may have ended its members `MOST_DEATHS` times is given up.

Times are seconds on any monotonic clock; the caller passes them in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice

import attrs

from actors.errors import (
    CallError,
    EncodeError,
    FilterRefusedError,
    NotExecutedError,
    OutcomeUnknownError,
    PoisonedItemError,
)
from actors.pools import MapCounts

MOST_DEATHS = 3
"""Deaths of members after which the item that they ran is given up."""

MOST_REFUSALS = 5
"""Refusals of one item by members that live, after which it is given up."""

BATCH_SECONDS = 0.05
"""Seconds of work in one batch of tiny items: long beside what a batch costs, which is a
millisecond or two of processor time where processes must wake up, and short beside what people wait
for.
"""

MOST_IN_BATCH = 1024
MOST_BATCH_BYTES = 1024 * 1024
"""Bytes of items in a batch. An item that is larger travels alone."""

GROWTH = 4
"""How much larger than the largest batch so far the next may be: the first items tell how long one
takes, and may be misleading.
"""

PREFETCH_BELOW = 0.1
"""Seconds. A member whose batches take less gets the next one while it runs one, so that it never
waits for the network. Beyond, the wait is too short to matter, and what is with a member when it
dies is of unknown outcome.
"""

PARTS = 3
"""Of the window of each member: one that it works on, one that is on its way, one that waits."""

WEIGHT = 0.3
"""Weight of the latest batch in the mean time per item."""

OVERDUE_FACTOR = 3.0
OVERDUE_SECONDS = 0.05
"""When a batch takes `OVERDUE_FACTOR` times as long as expected and so many seconds more, what it
has not started is recalled if another member is idle.
"""

PLACE_SECONDS = 0.1
"""How long members without local work are turned away from items whose values are on the nodes of
others (delay scheduling; Zaharia and others, 2010).
"""

LOOK_AHEAD = 64
"""Waiting items among which a member's local ones are looked for, and how often the first of them
may be passed over.
"""

LEAST_WINDOW = 64
MOST_WINDOW = 8192
MOST_HELD_BYTES = 64 * 1024 * 1024
"""Bounds of the automatic window: items that were taken from the source and whose results were not
given yet, and their bytes.
"""

RETURNED, RAISED, NOT_STARTED, UNSENDABLE, REFUSED = range(5)
"""What a member says of each item of a batch; see `runtime.hosting.running_batch`."""


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


@attrs.define(eq=False)
class Batch:
    """Items that are with a member in one call."""

    number: int
    member: Hashable
    items: list[MapItem]
    sent_at: float
    expected: float
    recalled: bool = False
    first_at: float = math.inf
    """When it became the first of those with its member, as far as is known."""


@attrs.define(eq=False)
class KnownPace:
    """The time that the items of one method took in the latest map, for the next one."""

    seconds: float | None = None


@attrs.define(eq=False)
class _Pace:
    """The known pace of one member, in seconds per item."""

    batches: dict[int, Batch] = attrs.Factory(dict)
    """Those with it, in the order in which they were sent."""
    seconds: float | None = None
    largest: int = 0
    draining: bool = False
    place: str = ""


def _expected_end(pace: _Pace) -> float:
    """When a member has answered all that it has, as far as is known; infinite if that is not, and
    minus infinity if it is idle.
    """
    if not pace.batches:
        return -math.inf
    first = next(iter(pace.batches.values()))
    return first.first_at + sum(batch.expected for batch in pace.batches.values())


class MapSchedule:
    """One `map`. See the module.

    `repeats`: items of unknown outcome are run again. `max_retries`: how often an item that raised
    what `is_retried` accepts, or timed out, is run again. `batch`: items per batch, None for
    automatic. `alone`: each item travels in a call of its own. Such a call is not recalled, so that
    none is sent to a member that has one. `window`: bound on items that were taken and not given,
    None for automatic.
    `total`: how many items the source has, if it says so. `journalled`: what an item has returned
    is a result only after `on_written`. `known`: what items have taken before; it is kept up.
    """

    def __init__(
        self,
        *,
        ordered: bool = True,
        repeats: bool = False,
        window: int | None = None,
        batch: int | None = None,
        alone: bool = False,
        max_retries: int = 0,
        is_retried: Callable[[BaseException], bool] = lambda error: False,
        delay: Callable[[int], float] = lambda attempt: 0.0,
        total: int | None = None,
        journalled: bool = False,
        known: KnownPace | None = None,
        now: float = 0.0,
    ) -> None:
        self._ordered = ordered
        self._repeats = repeats
        self._window = window
        self._batch = 1 if alone else batch
        self._alone = alone
        self._max_retries = max_retries
        self._is_retried = is_retried
        self._delay = delay
        self._total = total
        self._journalled = journalled
        self._known = known or KnownPace()
        self._with_place = 0
        """Waiting items that have a place: without any, no item is looked for."""
        self._turned_away: float | None = None
        """Since when members are turned away from items of other places."""
        self._unwritten: dict[int, MapItem] = {}
        """What members have returned, and the journal does not have yet."""
        self._to_write: list[MapItem] = []
        """Of these, those that `take_finished` has not given yet."""
        self._resumed = 0
        self._began = now
        self._ended_at: float | None = None
        self._members: dict[Hashable, _Pace] = {}
        self._waiting: deque[MapItem] = deque()
        self._later: list[MapItem] = []
        """Items that wait for the delay of their retry."""
        self._batches: dict[int, Batch] = {}
        self._to_give: deque[MapItem] = deque()
        """In this order results are given. If the order of the source matters, all items that were
        taken and not given; otherwise those of them that have ended.
        """
        self._next_item = 0
        self._next_batch = 0
        self._held = 0
        """Items that were taken and not given."""
        self._held_bytes = 0
        self._open = 0
        """Items without a result yet."""
        self._seconds: float | None = None
        """Mean time per item over all members."""
        self._largest = 1
        self._result_bytes = 0
        """Of the latest batch, for each item."""
        self._source_error: BaseException | None = None
        self._source_over = False
        self._done = self._failed = self._repeated = 0

    # The source

    @property
    def wants_items(self) -> bool:
        """True while there is room for another item."""
        return not self._source_over and self._held < self._limit()

    @property
    def room(self) -> tuple[int, float]:
        """How many more items may be held now, and how many bytes of them, if that is bounded."""
        most = math.inf if self._window is not None else MOST_HELD_BYTES - self._held_bytes
        return (self._limit() - self._held if self.wants_items else 0), most

    @property
    def has_much_room(self) -> bool:
        """True while there is room for a good part of a window: it pays to wake who reads the
        source.
        """
        return not self._source_over and 4 * self._held <= 3 * self._limit()

    def _limit(self) -> int:
        """How many items may be held now."""
        if self._window is not None:
            return self._window
        if self._held and self._held_bytes >= MOST_HELD_BYTES:
            return self._held
        room = 4 * (len(self._members) or 1) * self._largest
        return LEAST_WINDOW if room < LEAST_WINDOW else min(room, MOST_WINDOW)

    def on_item(
        self,
        args: tuple[object, ...],
        weight: int = 0,
        digest: bytes = b"",
        *,
        place: str = "",
        alone: bool = False,
    ) -> int:
        """The source has given an item; returns its index. `place`: where it runs best; it waits
        for a member there, but not for long. `alone`: it travels in a call of its own, and
        only to a member that is idle.
        """
        index = self._next_item
        self._next_item = index + 1
        item = MapItem(index, args, weight, digest, place, alone, recallable=not alone)
        self._waiting.append(item)
        if place:
            self._with_place += 1
        if self._ordered:
            self._to_give.append(item)
        self._open += 1
        self._held += 1
        self._held_bytes += weight
        return index

    def on_items(self, values: Sequence[object], weights: Sequence[int]) -> None:
        """The source has given several values, each the one argument of its item, with their
        weights. They are no references, and there is no journal. Quicker than `on_item` for each.
        """
        first = self._next_item
        numbers = range(first, first + len(values))
        found = [
            MapItem(index, (value,), weight)
            for index, value, weight in zip(numbers, values, weights, strict=True)
        ]
        self._next_item = first + len(found)
        self._waiting.extend(found)
        if self._ordered:
            self._to_give.extend(found)
        self._open += len(found)
        self._held += len(found)
        self._held_bytes += sum(weights)

    def on_misfit(self, index: int, error: BaseException) -> None:
        """The item that was given last is none that a member could be called with."""
        item = self._waiting.pop()
        self._with_place -= bool(item.place)
        assert item.index == index
        self._finish(item, error=error)

    def on_known(self, index: int, value: object) -> None:
        """The item that was given last was done by an earlier run, with this result."""
        item = self._waiting.pop()
        self._with_place -= bool(item.place)
        assert item.index == index
        self._resumed += 1
        item.value = value
        self._settle(item)

    def on_source_over(self, error: BaseException | None = None) -> None:
        """The source has ended, or raised: `error` comes after the results of what it gave."""
        self._source_over = True
        self._source_error = error
        if error is None:
            self._total = self._next_item

    @property
    def source_error(self) -> BaseException | None:
        """The error that the source has raised."""
        return self._source_error

    # The members

    def on_member(self, member: Hashable, place: str = "") -> None:
        """A member may take items from now on; `place`: its node. One that is known is left as it
        is.
        """
        self._members.setdefault(member, _Pace(place=place))

    def on_drained(self, member: Hashable) -> None:
        """The member takes no more items; those that it has it may finish."""
        pace = self._members.get(member)
        if pace is not None:
            pace.draining = True
            self._forget_if_idle(member, pace)

    def known(self) -> list[Hashable]:
        """All members that may take items, or have some."""
        return list(self._members)

    def askers(self) -> list[Hashable]:
        """Members that would take a batch, the idle ones first."""
        if not self._waiting and not self._later:
            return []
        asking = [
            (len(pace.batches), place, member)
            for place, (member, pace) in enumerate(self._members.items())
            if self._would_take(pace)
        ]
        return [member for _, _, member in sorted(asking, key=lambda each: each[:2])]

    @property
    def has_capacity(self) -> bool:
        """True if a member would take a batch, if there were enough items."""
        return any(
            not pace.draining and len(pace.batches) < self._credit(pace)
            for pace in self._members.values()
        )

    @property
    def has_idle_members(self) -> bool:
        """True if a member has nothing to do while others have."""
        return bool(self._batches) and any(not pace.batches for pace in self._members.values())

    @property
    def backlog(self) -> int:
        """How many more members could work now."""
        return -(-len(self._waiting) // max(1, self._largest))

    @property
    def members(self) -> int:
        """How many members take items."""
        return sum(not pace.draining for pace in self._members.values())

    def take(self, member: Hashable, now: float) -> Batch | None:
        """The next batch for a member that asks for one; None if there is none for it now."""
        pace = self._members.get(member)
        if pace is None:
            return None
        self._bring_back(now)
        if not self._waiting or not self._would_take(pace):
            return None
        first = self._take_first(pace, now)
        if first is None:
            return None
        items = [first]
        if not first.alone:
            self._fill(items, self._size(pace))
        for item in items:
            if item.attempts:
                self._repeated += 1
            item.attempts += 1
        self._next_batch += 1
        per_item = pace.seconds if pace.seconds is not None else self._seconds
        expected = math.inf if per_item is None else per_item * len(items)
        batch = Batch(self._next_batch, member, items, now, expected)
        if not pace.batches:
            batch.first_at = now
        self._batches[batch.number] = pace.batches[batch.number] = batch
        return batch

    def next_retry(self) -> float:
        """When the first item that waits for the delay of its retry may go; infinite if none."""
        return min((item.not_before for item in self._later), default=math.inf)

    def recalls(self, now: float) -> list[Batch]:
        """Batches of which what is not started should be taken back now, because members are idle
        and nothing waits. Each is named once.
        """
        idle = sum(not pace.batches and not pace.draining for pace in self._members.values())
        if not idle or self._waiting or self._later:
            return []
        found: list[Batch] = []
        for pace in self._members.values():
            for place, batch in enumerate(pace.batches.values()):
                if batch.recalled or (place == 0 and len(batch.items) == 1):
                    continue
                first = next(iter(pace.batches.values()))
                expected = 0.0 if math.isinf(first.expected) else first.expected
                # What one item more would take is worth a message.
                behind = (
                    place and expected >= BATCH_SECONDS / 2 and now >= first.first_at + expected
                )
                late = now - first.sent_at >= OVERDUE_FACTOR * expected + OVERDUE_SECONDS
                if behind or late:
                    batch.recalled = True
                    found.append(batch)
        return found

    # Events of batches

    def on_recalled(self, batch: Batch, started: int) -> None:
        """The member says that it has started so many of the batch's items, and starts no more."""
        if batch.number not in self._batches:
            return
        started = min(started, len(batch.items))
        self._back(batch.items[started:])
        for item in batch.items[started:]:
            item.attempts -= 1
        del batch.items[started:]
        if not batch.items:
            self._close(batch)

    def on_done(
        self,
        batch: Batch,
        outcomes: Sequence[tuple[int, object]],
        seconds: float,
        now: float,
        weight: int = 0,
    ) -> None:
        """The member's answer: for each item a code and a value, or an exception for what was
        raised. `seconds`: how long those that ran took. `weight`: bytes of all values.
        """
        if batch.number not in self._batches:
            return
        ran = sum([code != NOT_STARTED for code, _ in outcomes])
        self._learn(batch, ran, seconds, weight)
        self._close(batch)
        pace = self._members.get(batch.member)
        if pace is not None and pace.batches:
            following = next(iter(pace.batches.values()))
            following.first_at = min(following.first_at, now)
        unstarted: list[MapItem] = []
        finish = self._finish
        if ran == len(outcomes) == len(batch.items) and not any(code for code, _ in outcomes):
            self._finish_all(batch.items, outcomes)
            return
        for item, (code, value) in zip(batch.items, outcomes, strict=False):
            if code == RETURNED:
                finish(item, value)
            elif code == NOT_STARTED:
                item.attempts -= 1
                unstarted.append(item)
            elif code == REFUSED and isinstance(value, CallError):
                if self._is_again(item, value, now):
                    unstarted.append(item)
            elif isinstance(value, BaseException):
                self._on_failed(item, value, now)
            else:
                raise AssertionError(f"a failure comes as an exception, not as {value!r}")
        # A member that answers too little says nothing of the rest.
        for item in batch.items[len(outcomes) :]:
            self._on_failed(item, self._unknown(item, "its member left it out of the answer"), now)
        self._back(unstarted)

    def on_failed(self, batch: Batch, error: BaseException, now: float) -> None:
        """The call of a batch of one item has ended with an error that is that item's own."""
        if batch.number not in self._batches:
            return
        self._close(batch)
        if len(batch.items) > 1:
            self._separate(batch.items)
            return
        for item in batch.items:
            self._on_failed(item, error, now)

    def on_unsendable(self, batch: Batch, error: EncodeError) -> None:
        """The batch could not be encoded. One item alone is at fault; of several each is tried
        alone.
        """
        if batch.number not in self._batches:
            return
        self._close(batch)
        if len(batch.items) > 1:
            self._separate(batch.items)
            return
        for item in batch.items:
            told = EncodeError(f"item {item.index} cannot be sent: {error}", path=error.path)
            told.__cause__ = error.__cause__
            self._finish(item, error=told)

    def on_refused(self, batch: Batch, error: NotExecutedError, *, gone: bool) -> None:
        """The batch certainly did not run. `gone`: the member has ended, or is leaving."""
        if batch.number not in self._batches:
            return
        self._close(batch)
        if gone:
            self.on_gone(batch.member)
            for item in batch.items:
                item.attempts -= 1
            self._back(batch.items)
            return
        if len(batch.items) > 1:
            for item in batch.items:
                item.attempts -= 1
            self._separate(batch.items)
            return
        self._back([item for item in batch.items if self._is_again_after_refusal(item, error)])

    def on_no_batches(self, batch: Batch) -> None:
        """The batch certainly did not run, because its member takes single items only. So all are,
        from now on.
        """
        self._batch = 1
        self._alone = True
        if batch.number not in self._batches:
            return
        self._close(batch)
        for item in batch.items:
            item.attempts -= 1
        self._separate(batch.items)

    def on_lost(self, batch: Batch, error: OutcomeUnknownError, *, gone: bool) -> None:
        """The batch may have run, in part or as a whole. `gone`: its member has ended.

        Only the first batch of a member can have ended it: those behind were not begun, as far as
        is known.
        """
        pace = self._members.get(batch.member)
        first = pace is not None and next(iter(pace.batches), None) == batch.number
        if batch.number not in self._batches:
            return
        self._close(batch)
        if gone:
            self.on_gone(batch.member)
        again: list[MapItem] = []
        for item in batch.items:
            if first or len(batch.items) == 1:
                item.deaths += (str(error),)
            if self._is_again_after_loss(item, error):
                item.alone = item.alone or gone
                again.append(item)
        self._back(again)

    def on_gone(self, member: Hashable) -> None:
        """The member has ended. The calls of its other batches end by themselves."""
        pace = self._members.get(member)
        if pace is not None:
            pace.draining = True
            self._forget_if_idle(member, pace)

    # The journal

    def take_finished(self) -> list[MapItem]:
        """Return the items to be written to the journal, each once."""
        finished, self._to_write = self._to_write, []
        return finished

    def on_written(self, indices: Iterable[int]) -> None:
        """The journal has these items: their results may be given."""
        for index in indices:
            self._settle(self._unwritten.pop(index))

    # Results

    def next_result(self) -> MapItem | None:
        """The next item whose result is to be given, if there is one. To take it makes room for
        another item.
        """
        if not self._to_give or not self._to_give[0].ended:
            return None
        item = self._to_give.popleft()
        self._held -= 1
        self._held_bytes -= item.weight
        assert 0 <= self._open <= self._held, "what has no result was not given"
        return item

    @property
    def is_over(self) -> bool:
        """True when every item has its result, all of them were given, and no more come."""
        return self._source_over and not self._held

    @property
    def is_done(self) -> bool:
        """True when every item has its result and no more come: members are not needed."""
        return self._source_over and not self._open

    @property
    def has_work(self) -> bool:
        """True while items wait for a member."""
        return bool(self._waiting or self._later)

    def counts(self, now: float) -> MapCounts:
        """How far it has come."""
        running = sum(len(batch.items) for batch in self._batches.values())
        if self.is_done and self._ended_at is None:
            self._ended_at = now
        seconds = (now if self._ended_at is None else self._ended_at) - self._began
        over = self._done + self._failed
        rate = (over - self._resumed) / seconds if seconds > 0 else 0.0
        left = None if self._total is None else max(0, self._total - over)
        return MapCounts(
            done=self._done,
            running=running,
            waiting=len(self._waiting) + len(self._later),
            failed=self._failed,
            repeated=self._repeated,
            total=self._total,
            seconds=seconds,
            rate=rate,
            seconds_left=left / rate if left is not None and rate else (0.0 if left == 0 else None),
            resumed=self._resumed,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at all items: for tests."""
        with_members = [item.index for batch in self._batches.values() for item in batch.items]
        waiting = [item.index for item in (*self._waiting, *self._later)]
        everywhere = with_members + waiting
        assert len(everywhere) == len(set(everywhere)), "an item is in one place"
        everywhere += self._unwritten
        assert len(everywhere) == self._open, (
            "an item without a result waits, is with a member, or is to be written"
        )
        given = [item.index for item in self._to_give if item.ended]
        assert len(given) == len(set(given)), "one result each"
        assert set(everywhere).isdisjoint(given)
        to_give = [item.index for item in self._to_give]
        assert set(to_give) == set(given).union(everywhere if self._ordered else ())
        assert not self._ordered or to_give == sorted(to_give), "in the order of the source"
        assert self._held == self._open + len(given)
        assert self._window is None or self._held <= self._window
        weights = {item.index: item.weight for item in self._to_give}
        for batch in self._batches.values():
            weights |= {item.index: item.weight for item in batch.items}
        for item in (*self._waiting, *self._later, *self._unwritten.values()):
            weights[item.index] = item.weight
        assert self._held_bytes == sum(weights.values())
        assert self._with_place == sum(bool(item.place) for item in self._waiting)
        for member, pace in self._members.items():
            for number, batch in pace.batches.items():
                assert self._batches[number] is batch
                assert batch.member == member
                assert batch.items
            assert not pace.draining or pace.batches, "who has left is forgotten"
        assert sum(len(pace.batches) for pace in self._members.values()) == len(self._batches)

    # How it is done

    def _credit(self, pace: _Pace) -> int:
        """How many batches may be with a member at once."""
        seconds = pace.seconds if pace.seconds is not None else self._seconds
        seconds = seconds if seconds is not None else self._known.seconds
        if seconds is None or not pace.batches or self._alone:
            return 1
        last = next(reversed(pace.batches.values()))
        if not last.items[0].recallable:
            return 1
        return 2 if seconds * len(last.items) < PREFETCH_BELOW else 1

    def _would_take(self, pace: _Pace) -> bool:
        """True if a member takes a batch of what waits now.

        One that is busy takes it only if there are many items. Otherwise a driver that reads its
        source no faster than members work would give them a few at a time, and each batch costs as
        much as many tiny items.
        """
        if pace.draining or len(pace.batches) >= self._credit(pace):
            return False
        if not pace.batches:
            return True
        if self._source_over:
            # The last items are for those who are idle first, or will be: none waits behind another
            # one while a member has nothing to do.
            return len(self._waiting) > len(self._members) or self._is_next_idle(pace)
        part = self._limit() // (PARTS * (len(self._members) or 1))
        return len(self._waiting) >= min(self._full(pace), part)

    def _is_next_idle(self, pace: _Pace) -> bool:
        """True if fewer other members than there are items are to be idle before this one. Only for
        items that take as long as a batch: of shorter ones the last are divided further.
        """
        end = _expected_end(pace)
        if math.isinf(end) or self._full(pace) > 1:
            return False
        before = sum(
            other is not pace
            and not other.draining
            and len(other.batches) < 2
            and _expected_end(other) <= end
            for other in self._members.values()
        )
        return before < len(self._waiting)

    def _take_first(self, pace: _Pace, now: float) -> MapItem | None:
        """The first item of a member's next batch; None if all that it may have are for others, who
        are there.
        """
        head = self._waiting[0]
        chosen: int | None = None
        if not self._with_place or head.passed_over >= LOOK_AHEAD:
            chosen = 0
        else:
            places = {each.place for each in self._members.values() if not each.draining}
            for number, item in enumerate(islice(self._waiting, LOOK_AHEAD)):
                if item.place and item.place == pace.place:
                    chosen, self._turned_away = number, None
                    break
                if chosen is None and (not item.place or item.place not in places):
                    chosen = number
        if chosen is None:
            if self._turned_away is None:
                self._turned_away = now
            if now - self._turned_away < PLACE_SECONDS:
                return None
            chosen = 0
        item = self._waiting[chosen]
        if not item.recallable and pace.batches:
            # Behind an item that takes long it would have to wait for that.
            return None
        if chosen:
            head.passed_over += 1
        del self._waiting[chosen]
        self._with_place -= bool(item.place)
        return item

    def _fill(self, items: list[MapItem], most: int) -> None:
        """Take waiting items for a batch, which has its first, until it is full."""
        waiting, weight = self._waiting, items[0].weight
        for _ in range(min(most - 1, len(waiting))):
            item = waiting[0]
            weight += item.weight
            if item.alone or weight > MOST_BATCH_BYTES:
                return
            items.append(waiting.popleft())
            if item.place:
                self._with_place -= 1

    def _size(self, pace: _Pace) -> int:
        """How many items the next batch of a member may have."""
        if self._batch is not None:
            return self._batch
        full = self._full(pace)
        # Towards the end batches become smaller, so that all members end at about the same time
        # (guided self-scheduling; Polychronopoulos and Kuck, 1987).
        share = -(-len(self._waiting) // max(1, 2 * len(self._members)))
        if not self._source_over:
            share = max(share, -(-len(self._waiting) // max(1, len(self._members))))
        return max(1, min(full, share))

    def _full(self, pace: _Pace) -> int:
        """How many items of those that are known a member's batch may have."""
        if self._batch is not None:
            return self._batch
        per_item = pace.seconds if pace.seconds is not None else self._seconds
        if per_item is None:
            return 1
        most = GROWTH * max(1, pace.largest)
        by_time = MOST_IN_BATCH if per_item <= 0 else int(BATCH_SECONDS / per_item)
        by_bytes = MOST_BATCH_BYTES // max(1, self._result_bytes)
        return max(1, min(by_time, most, by_bytes, MOST_IN_BATCH))

    def _learn(self, batch: Batch, ran: int, seconds: float, weight: int) -> None:
        if not ran:
            return
        self._result_bytes = max(weight // ran, self._result_bytes // 2)
        each = max(0.0, seconds) / ran
        self._seconds = (
            each if self._seconds is None else (self._seconds + WEIGHT * (each - self._seconds))
        )
        pace = self._members.get(batch.member)
        if pace is not None:
            pace.seconds = (
                each if pace.seconds is None else (pace.seconds + WEIGHT * (each - pace.seconds))
            )
            pace.largest = max(pace.largest, len(batch.items))
            self._largest = max(self._largest, 2 * pace.largest)
        self._known.seconds = self._seconds

    def _close(self, batch: Batch) -> None:
        """The batch is with its member no more."""
        del self._batches[batch.number]
        pace = self._members[batch.member]
        del pace.batches[batch.number]
        self._forget_if_idle(batch.member, pace)

    def _forget_if_idle(self, member: Hashable, pace: _Pace) -> None:
        if pace.draining and not pace.batches:
            del self._members[member]

    def _separate(self, items: Iterable[MapItem]) -> None:
        again = list(items)
        for item in again:
            item.alone = True
        self._back(again)

    def _back(self, items: Sequence[MapItem]) -> None:
        """These wait again, before all others: later ones may wait for their results."""
        self._waiting.extendleft(reversed(items))
        self._with_place += sum(bool(item.place) for item in items)

    def _bring_back(self, now: float) -> None:
        """Items whose delay is over wait for a member."""
        due = [item for item in self._later if item.not_before <= now]
        if due:
            self._later = [item for item in self._later if item.not_before > now]
            self._back(due)

    def _is_again(self, item: MapItem, error: CallError, now: float) -> bool:
        """True if an item whose call a filter of the member has ended is to be run again."""
        if isinstance(error, OutcomeUnknownError):
            item.deaths += (str(error),)
            return self._is_again_after_loss(item, error)
        if isinstance(error, NotExecutedError) and not isinstance(error, FilterRefusedError):
            return self._is_again_after_refusal(item, error)
        self._on_failed(item, error, now)
        return False

    def _is_again_after_refusal(self, item: MapItem, error: NotExecutedError) -> bool:
        item.refusals += 1
        if item.refusals >= MOST_REFUSALS:
            self._finish(item, error=error)
            return False
        item.attempts -= 1
        return True

    def _is_again_after_loss(self, item: MapItem, error: OutcomeUnknownError) -> bool:
        if not self._repeats:
            self._finish(item, error=self._same(item, error))
        elif len(item.deaths) >= MOST_DEATHS:
            self._finish(item, error=self._poisoned(item))
        else:
            return True
        return False

    def _on_failed(self, item: MapItem, error: BaseException, now: float) -> None:
        if item.attempts <= self._max_retries and self._is_retried(error):
            delay = self._delay(item.attempts)
            if delay > 0:
                item.not_before = now + delay
                self._later.append(item)
            else:
                self._back([item])
            return
        self._finish(item, error=error)

    def _finish(
        self, item: MapItem, value: object = None, error: BaseException | None = None
    ) -> None:
        item.value, item.error = value, error
        if self._journalled and error is None:
            self._unwritten[item.index] = item
            self._to_write.append(item)
        else:
            self._settle(item)

    def _finish_all(self, items: list[MapItem], outcomes: Sequence[tuple[int, object]]) -> None:
        """All have returned: what `_finish` and `_settle` do, for tiny items by the thousand."""
        if self._journalled:
            for item, (_, value) in zip(items, outcomes, strict=True):
                self._finish(item, value)
            return
        for item, (_, value) in zip(items, outcomes, strict=True):
            assert not item.ended, "an item has one result"
            item.value = value
            item.args = ()
            item.ended = True
        self._open -= len(items)
        self._done += len(items)
        if not self._ordered:
            self._to_give.extend(items)

    def _settle(self, item: MapItem) -> None:
        assert not item.ended, "an item has one result"
        item.ended = True
        # Results may wait long for those before them: large arguments must not.
        item.args = ()
        self._open -= 1
        if item.error is None:
            self._done += 1
        else:
            self._failed += 1
        if not self._ordered:
            self._to_give.append(item)

    def _unknown(self, item: MapItem, why: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(f"item {item.index} may have run: {why}")

    def _same(self, item: MapItem, error: OutcomeUnknownError) -> OutcomeUnknownError:
        """The error of a batch, for one of its items: each caller may annotate its own."""
        told = type(error)(
            f"item {item.index} may have run: {error}. It was not repeated, because its method is "
            "not marked idempotent; to allow it, mark it with @method(idempotent=True), or give "
            "retry=RetryPolicy(repeat_unknown=True)",
            actor=error.actor,
            method=error.method,
            node=error.node,
            epoch=error.epoch,
            attempts=item.attempts,
        )
        told.__cause__ = error
        return told

    def _poisoned(self, item: MapItem) -> PoisonedItemError:
        return PoisonedItemError(
            f"item {item.index} was given up: each of the {len(item.deaths)} members that ran it "
            f"has ended: {'; '.join(item.deaths)}",
            deaths=item.deaths,
            attempts=item.attempts,
        )
