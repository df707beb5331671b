"""The decisions of one `map` over a pool: to which member items go, and what is run again. Which
items wait, how many travel together, and in which order results are given is decided by
`WaitingItems`, `BatchSizes` and `HeldItems`. No I/O.

Members pull: an idle member takes the next batch, so slow members get less. Each item ends with
one result. What certainly did not run is run again; what may have run is repeated only if `repeats`
says so. An item that may have ended its members `MOST_DEATHS` times is given up.

Times are seconds on any monotonic clock; the caller passes them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

from actors.errors import (
    CallError,
    EncodeError,
    FilterRefusedError,
    NotAllowedError,
    NotExecutedError,
    OutcomeUnknownError,
    PoisonedItemError,
)
from actors.pools import MapCounts
from runtime.hosting.running_batch import NOT_STARTED, REFUSED, RETURNED
from runtime.pools.batch_sizes import BATCH_SECONDS, Batch, BatchSizes, KnownPace, MemberPace
from runtime.pools.held_items import HeldItems, MapItem
from runtime.pools.waiting_items import WaitingItems

MOST_DEATHS = 3
"""Deaths of members after which the item that they ran is given up."""

MOST_REFUSALS = 5
"""Refusals of one item by members that live, after which it is given up."""

PARTS = 3
"""Of the window of each member: one that it works on, one that is on its way, one that waits."""

OVERDUE_FACTOR = 3.0
OVERDUE_SECONDS = 0.05
"""When a batch takes `OVERDUE_FACTOR` times as long as expected and so many seconds more, what it
has not started is recalled if another member is idle.
"""

LEAST_WINDOW = 64
MOST_WINDOW = 8192
MOST_HELD_BYTES = 64 * 1024 * 1024
"""Bounds of the automatic window: items that were taken from the source and whose results were not
given yet, and their bytes.
"""


class MapSchedule:
    """One `map`. See the module.

    `repeats`: items of unknown outcome are run again. `max_retries`: how often an item that raised
    what `is_retried` accepts, or timed out, is run again. `batch`: items per batch, None for
    automatic. `alone`: each item travels in a call of its own. Such a call is not recalled, so that
    none is sent to a member that has one. `window`: bound on items that were taken and not given,
    None for automatic. `total`: how many items the source has, if it says so. `journalled`: what an
    item has returned is a result only after `on_written`. `known`: the time that items took in
    earlier maps; it is updated.
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
        self.held = HeldItems(ordered=ordered, journalled=journalled)
        """The items that were taken and not given, with their results."""
        self._waiting = WaitingItems()
        self._sizes = BatchSizes(batch, known or KnownPace(), alone=alone)
        self._repeats = repeats
        self._window = window
        self._max_retries = max_retries
        self._is_retried = is_retried
        self._delay = delay
        self._total = total
        self._began = now
        self._ended_at: float | None = None
        self._members: dict[Hashable, MemberPace] = {}
        self._batches: dict[int, Batch] = {}
        self._next_item = 0
        self._next_batch = 0
        self._source_error: BaseException | None = None
        self._source_over = False
        self._repeated = 0

    # The source

    @property
    def wants_items(self) -> bool:
        """True while there is room for another item."""
        return not self._source_over and self.held.count < self._limit()

    @property
    def room(self) -> tuple[int, float]:
        """How many more items may be held now, and how many bytes of them, if that is bounded."""
        most = math.inf if self._window is not None else MOST_HELD_BYTES - self.held.bytes
        return (self._limit() - self.held.count if self.wants_items else 0), most

    @property
    def has_much_room(self) -> bool:
        """True while there is room for a good part of a window: it pays to wake who reads the
        source.
        """
        return not self._source_over and 4 * self.held.count <= 3 * self._limit()

    def _limit(self) -> int:
        """How many items may be held now."""
        if self._window is not None:
            return self._window
        if self.held.count and self.held.bytes >= MOST_HELD_BYTES:
            return self.held.count
        room = 4 * (len(self._members) or 1) * self._sizes.largest
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
        """Note that the source has given an item; return its index. `place`: where it runs best; it
        waits for a member there, but not for long. `alone`: it travels in a call of its own, and
        only to a member that is idle.
        """
        index = self._next_item
        self._next_item = index + 1
        item = MapItem(index, args, weight, digest, place, alone, recallable=not alone)
        self._waiting.add(item)
        self.held.add(item)
        return index

    def on_items(self, values: Sequence[object], weights: Sequence[int]) -> None:
        """Like `on_item` for each of several values, and quicker. Each is the one argument of its
        item, has the weight at its place, and is no reference. Only without a journal.
        """
        first = self._next_item
        numbers = range(first, first + len(values))
        found = [
            MapItem(index, (value,), weight)
            for index, value, weight in zip(numbers, values, weights, strict=True)
        ]
        self._next_item = first + len(found)
        self._waiting.add_all(found)
        self.held.add_all(found, sum(weights))

    def on_misfit(self, index: int, error: BaseException) -> None:
        """Note that the item that was given last does not fit the method: it ends with `error`."""
        self.held.finish(self._waiting.take_back(index), error=error)

    def on_known(self, index: int, value: object) -> None:
        """Note that the item that was given last was done by an earlier run, with this result."""
        self.held.resume(self._waiting.take_back(index), value)

    def on_source_over(self, error: BaseException | None = None) -> None:
        """Note that the source has ended, or raised: `error` comes after its items' results."""
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
        """Note that a member may take items from now on, perhaps again; `place`: its node."""
        self._members.setdefault(member, MemberPace(place=place)).draining = False

    def on_drained(self, member: Hashable) -> None:
        """Note that the member takes no more items: it may finish those that it has, or has ended,
        and then the calls of its batches end by themselves.
        """
        pace = self._members.get(member)
        if pace is not None:
            pace.draining = True
            self._forget_if_idle(member, pace)

    def known(self) -> list[Hashable]:
        """Return all members that may take items, or have some."""
        return list(self._members)

    def batches_of(self, member: Hashable) -> list[Batch]:
        """Return the batches that are with a member, in the order in which they were sent."""
        pace = self._members.get(member)
        return [] if pace is None else list(pace.batches.values())

    def askers(self) -> list[Hashable]:
        """Return the members that would take a batch, the idle ones first."""
        if not self._waiting:
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
            not pace.draining and len(pace.batches) < self._sizes.credit(pace)
            for pace in self._members.values()
        )

    @property
    def has_idle_members(self) -> bool:
        """True if a member has nothing to do while others have."""
        return bool(self._batches) and any(not pace.batches for pace in self._members.values())

    @property
    def backlog(self) -> int:
        """How many more members could work now."""
        return -(-self._waiting.ready // max(1, self._sizes.largest))

    @property
    def members(self) -> int:
        """How many members take items."""
        return sum(not pace.draining for pace in self._members.values())

    def take(self, member: Hashable, now: float) -> Batch | None:
        """Return the next batch for a member that asks for one; None if it has to wait."""
        pace = self._members.get(member)
        if pace is None:
            return None
        waiting = self._waiting
        waiting.bring_back(now)
        if not waiting.ready or not self._would_take(pace):
            return None
        places = (each.place for each in self._members.values() if not each.draining)
        first = waiting.take_first(pace.place, places, now, is_idle=not pace.batches)
        if first is None:
            return None
        items = [first]
        if not first.alone:
            members, is_last = len(self._members), self._source_over
            waiting.fill(
                items, self._sizes.next_size(pace, waiting.ready, members, is_last=is_last)
            )
        for item in items:
            if item.attempts:
                self._repeated += 1
            item.attempts += 1
        self._next_batch += 1
        expected = self._sizes.expected(pace, len(items))
        batch = Batch(self._next_batch, member, items, now, expected)
        if not pace.batches:
            batch.first_at = now
        self._batches[batch.number] = pace.batches[batch.number] = batch
        return batch

    def next_retry(self) -> float:
        """Return when the first item that waits for its retry may go; infinite if there is none."""
        return self._waiting.next_retry()

    def recalls(self, now: float) -> list[Batch]:
        """Return batches to recall now, because members are idle and nothing waits: the members
        that have them give back what they have not started. Each batch is named once.
        """
        if not self._lacks_items:
            return []
        found: list[Batch] = []
        for pace in self._members.values():
            for place, batch in enumerate(pace.batches.values()):
                if batch.recalled or (place == 0 and len(batch.items) == 1):
                    continue
                first = next(iter(pace.batches.values()))
                expected = 0.0 if math.isinf(first.expected) else first.expected
                # Another item would take long enough to be worth a message.
                behind = (
                    place and expected >= BATCH_SECONDS / 2 and now >= first.first_at + expected
                )
                late = now - first.sent_at >= OVERDUE_FACTOR * expected + OVERDUE_SECONDS
                if behind or late:
                    batch.recalled = True
                    found.append(batch)
        return found

    def may_take_back(self, *, sent: bool, seconds: float, patience: float) -> bool:
        """True if a batch may be taken from a member that was unreachable for so many `seconds`.

        What was not `sent` can always go to another member. What was sent may be running: it is
        repeated only with leave, and after so much `patience` if another member is idle, because
        most connections come back before.
        """
        return not sent or (self._repeats and seconds > patience and self._lacks_items)

    @property
    def _lacks_items(self) -> bool:
        """True if a member is idle, and no item waits."""
        return not self._waiting and any(
            not pace.batches and not pace.draining for pace in self._members.values()
        )

    # Events of batches

    def on_taken_back(self, batch: Batch, *, sent: bool) -> None:
        """Note that the batch is not waited for any more, because its member is unreachable.
        `sent`: it may run there all the same.
        """
        if batch.number not in self._batches:
            return
        self._close(batch)
        if not sent:
            for item in batch.items:
                item.attempts -= 1
        self._waiting.put_back(batch.items)

    def on_recalled(self, batch: Batch, started: int) -> None:
        """Note that the member has started so many of the batch's items, and starts no more."""
        if batch.number not in self._batches:
            return
        started = min(started, len(batch.items))
        self._waiting.put_back(batch.items[started:])
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
        """Apply the member's answer: for each item a code and a value, or an exception for what was
        raised. `seconds`: how long the items that ran took. `weight`: bytes of all values.
        """
        if batch.number not in self._batches:
            return
        ran = sum([code != NOT_STARTED for code, _ in outcomes])
        pace = self._members.get(batch.member)
        self._sizes.on_answered(batch, pace, ran, seconds, weight)
        self._close(batch)
        if pace is not None and pace.batches:
            following = next(iter(pace.batches.values()))
            following.first_at = min(following.first_at, now)
        unstarted: list[MapItem] = []
        finish = self.held.finish
        if ran == len(outcomes) == len(batch.items) and not any(code for code, _ in outcomes):
            self.held.finish_all(batch.items, outcomes)
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
        # The member has left these items out of its answer: their outcome is unknown.
        for item in batch.items[len(outcomes) :]:
            self._on_failed(item, self._unknown(item, "its member left it out of the answer"), now)
        self._waiting.put_back(unstarted)

    def on_failed(self, batch: Batch, error: BaseException, now: float) -> None:
        """Note that the call of a batch has ended with an error, which is that of its one item. Of
        several items each is tried alone.
        """
        item = self._only_item(batch)
        if item is not None:
            self._on_failed(item, error, now)

    def on_unsendable(self, batch: Batch, error: EncodeError) -> None:
        """Note that the batch could not be encoded. A single item ends with the error; several are
        tried in halves.
        """
        if batch.number not in self._batches:
            return
        self._close(batch)
        if len(batch.items) > 1:
            self._halve(batch.items)
        else:
            item = batch.items[0]
            failure = EncodeError(f"item {item.index} cannot be sent: {error}", path=error.path)
            failure.__cause__ = error.__cause__
            self.held.finish(item, error=failure)

    def on_refused(self, batch: Batch, error: NotExecutedError, *, gone: bool) -> None:
        """Note that the batch certainly did not run. `gone`: the member has ended, or leaves."""
        if batch.number not in self._batches:
            return
        self._close(batch)
        if gone:
            self.on_drained(batch.member)
            for item in batch.items:
                item.attempts -= 1
            self._waiting.put_back(batch.items)
            return
        if len(batch.items) > 1:
            self._halve(batch.items)
            return
        self._waiting.put_back(
            [item for item in batch.items if self._is_again_after_refusal(item, error)]
        )

    def on_no_batches(self, batch: Batch) -> None:
        """Note that the batch certainly did not run, because its member takes single items only.
        From now on every item is sent in a call of its own.
        """
        self._sizes.forbid_batches()
        if batch.number not in self._batches:
            return
        self._close(batch)
        for item in batch.items:
            item.attempts -= 1
        self._separate(batch.items)

    def on_lost(self, batch: Batch, error: OutcomeUnknownError, *, gone: bool) -> None:
        """Note that the batch may have run, in part or as a whole. `gone`: its member has ended.

        Only the first batch of a member can have ended it: those behind were not begun, as far as
        is known.
        """
        pace = self._members.get(batch.member)
        first = pace is not None and next(iter(pace.batches), None) == batch.number
        if batch.number not in self._batches:
            return
        self._close(batch)
        if gone:
            self.on_drained(batch.member)
        again: list[MapItem] = []
        for item in batch.items:
            if first or len(batch.items) == 1:
                item.deaths += (str(error),)
            if self._is_again_after_loss(item, error):
                item.alone = item.alone or gone
                again.append(item)
        self._waiting.put_back(again)

    @property
    def is_over(self) -> bool:
        """True when every item has its result, all of them were given, and no more come."""
        return self._source_over and not self.held.count

    @property
    def is_done(self) -> bool:
        """True when every item has its result and no more come: members are not needed."""
        return self._source_over and not self.held.open

    @property
    def has_work(self) -> bool:
        """True while items wait for a member."""
        return bool(self._waiting)

    def counts(self, now: float) -> MapCounts:
        """Return how far the map has come."""
        running = sum(len(batch.items) for batch in self._batches.values())
        if self.is_done and self._ended_at is None:
            self._ended_at = now
        seconds = (now if self._ended_at is None else self._ended_at) - self._began
        over = self.held.done + self.held.failed
        rate = (over - self.held.resumed) / seconds if seconds > 0 else 0.0
        left = None if self._total is None else max(0, self._total - over)
        return MapCounts(
            done=self.held.done,
            running=running,
            waiting=len(self._waiting),
            failed=self.held.failed,
            repeated=self._repeated,
            total=self._total,
            seconds=seconds,
            rate=rate,
            seconds_left=left / rate if left is not None and rate else (0.0 if left == 0 else None),
            resumed=self.held.resumed,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at all items: for tests."""
        with_members = [item for batch in self._batches.values() for item in batch.items]
        elsewhere = [*with_members, *self._waiting.all()]
        indices = [item.index for item in elsewhere]
        assert len(indices) == len(set(indices)), "an item is in one place"
        self.held.check_invariants(elsewhere)
        assert self._window is None or self.held.count <= self._window
        for member, pace in self._members.items():
            for number, batch in pace.batches.items():
                assert self._batches[number] is batch
                assert batch.member == member
                assert batch.items
            assert not pace.draining or pace.batches, "who has left is forgotten"
        assert sum(len(pace.batches) for pace in self._members.values()) == len(self._batches)

    # How it is done

    def _would_take(self, pace: MemberPace) -> bool:
        """True if a member takes a batch of what waits now.

        One that is busy takes it only if there are many items. Otherwise a driver that reads its
        source no faster than members work would give them a few at a time, and each batch costs as
        much as many tiny items.
        """
        if pace.draining or len(pace.batches) >= self._sizes.credit(pace):
            return False
        if not pace.batches:
            return True
        if self._source_over:
            # The last items go to the members that are idle first, or will be. So no item waits
            # behind another one while a member has nothing to do.
            return self._waiting.ready > len(self._members) or self._is_next_idle(pace)
        part = self._limit() // (PARTS * (len(self._members) or 1))
        return self._waiting.ready >= min(self._sizes.full(pace), part)

    def _is_next_idle(self, pace: MemberPace) -> bool:
        """True if fewer other members than there are items are to be idle before this one. Only for
        items that take as long as a batch: of shorter ones the last are divided further.
        """
        end = pace.expected_end()
        if math.isinf(end) or self._sizes.full(pace) > 1:
            return False
        before = sum(
            other is not pace
            and not other.draining
            and len(other.batches) < 2
            and other.expected_end() <= end
            for other in self._members.values()
        )
        return before < self._waiting.ready

    def _close(self, batch: Batch) -> None:
        """Forget a batch that its member does not have any more."""
        del self._batches[batch.number]
        pace = self._members[batch.member]
        del pace.batches[batch.number]
        self._forget_if_idle(batch.member, pace)

    def _forget_if_idle(self, member: Hashable, pace: MemberPace) -> None:
        if pace.draining and not pace.batches:
            del self._members[member]

    def _only_item(self, batch: Batch) -> MapItem | None:
        """Close a batch that has failed as a whole, and return its item. None if it had several,
        which wait again, or if it is closed already.
        """
        if batch.number not in self._batches:
            return None
        self._close(batch)
        if len(batch.items) > 1:
            self._separate(batch.items)
            return None
        return batch.items[0]

    def _halve(self, items: Sequence[MapItem]) -> None:
        """Let items of which none has run wait again, to travel in batches of half as many: few of
        them may be to blame, and are found in few batches.
        """
        most = len(items) // 2
        for item in items:
            item.attempts -= 1
            item.most, item.alone = most, item.alone or most == 1
        self._waiting.put_back(items)

    def _separate(self, items: Sequence[MapItem]) -> None:
        """Let items wait again, each to travel alone."""
        for item in items:
            item.alone = True
        self._waiting.put_back(items)

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
        # A rule does not pass with time: a call that is not allowed now will not be allowed later.
        if item.refusals >= MOST_REFUSALS or isinstance(error, NotAllowedError):
            self.held.finish(item, error=error)
            return False
        item.attempts -= 1
        return True

    def _is_again_after_loss(self, item: MapItem, error: OutcomeUnknownError) -> bool:
        if not self._repeats:
            self.held.finish(item, error=self._same(item, error))
        elif len(item.deaths) >= MOST_DEATHS:
            self.held.finish(item, error=self._poisoned(item))
        else:
            return True
        return False

    def _on_failed(self, item: MapItem, error: BaseException, now: float) -> None:
        if item.attempts <= self._max_retries and self._is_retried(error):
            delay = self._delay(item.attempts)
            if delay > 0:
                self._waiting.delay(item, now + delay)
            else:
                self._waiting.put_back([item])
            return
        self.held.finish(item, error=error)

    def _unknown(self, item: MapItem, why: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(f"item {item.index} may have run: {why}")

    def _same(self, item: MapItem, error: OutcomeUnknownError) -> OutcomeUnknownError:
        """Return the error of a batch for one of its items: each caller may annotate its own."""
        own = type(error)(
            f"item {item.index} may have run: {error}. It was not repeated, because its method is "
            "not marked idempotent; to allow it, mark it with @method(idempotent=True), or give "
            "retry=RetryPolicy(repeat_unknown=True)",
            actor=error.actor,
            method=error.method,
            node=error.node,
            epoch=error.epoch,
            attempts=item.attempts,
        )
        own.__cause__ = error
        return own

    def _poisoned(self, item: MapItem) -> PoisonedItemError:
        return PoisonedItemError(
            f"item {item.index} was given up: each of the {len(item.deaths)} members that ran it "
            f"has ended: {'; '.join(item.deaths)}",
            deaths=item.deaths,
            attempts=item.attempts,
        )
