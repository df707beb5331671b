"""Members that come, work, recall and die at random around a `MapSchedule`, and books on what each
of them has run. One seed is one run.
"""

from __future__ import annotations

import random
from collections import Counter

import attrs

from actors.errors import NodeDiedError, NotExecutedError, PoisonedItemError
from runtime.hosting.running_batch import NOT_STARTED, RAISED, RETURNED
from runtime.pools.batch_sizes import Batch
from runtime.pools.held_items import MapItem
from runtime.pools.map_schedule import MOST_DEATHS, MapSchedule

RETRY_SECONDS = 0.1
"""How long an item that has raised waits, at least."""


class UnluckyError(ValueError):
    """What some items raise."""


@attrs.define(eq=False)
class Worker:
    """A member: it runs its batches in the order in which they came."""

    name: str
    batches: list[Batch] = attrs.Factory(list)
    counts: dict[int, int] = attrs.Factory(dict)
    """Items that each batch has now, by its number: what is recalled is not run."""
    done: dict[int, list[tuple[int, object]]] = attrs.Factory(dict)
    known: bool = False
    """It has told how long an item takes."""


class World:
    """One run under one seed."""

    def __init__(
        self,
        seed: int,
        *,
        items: int = 60,
        ordered: bool = True,
        repeats: bool = True,
        window: int | None = None,
        batch: int | None = None,
        alone: bool = False,
        poison: frozenset[int] = frozenset(),
        raises: frozenset[int] = frozenset(),
        places: tuple[str, ...] = ("",),
        retries: int = 0,
    ) -> None:
        self.draw = random.Random(seed)
        self.items = items
        self.repeats = repeats
        self.ordered = ordered
        self.poison = poison
        self.raises = raises
        self.alone = alone
        self.places = places
        """Where items are, and members: one of them each, or nowhere."""
        self.retries = retries
        self.schedule = MapSchedule(
            ordered=ordered,
            repeats=repeats,
            window=window,
            batch=batch,
            alone=alone,
            max_retries=retries,
            is_retried=lambda error: isinstance(error, UnluckyError),
            delay=lambda attempt: RETRY_SECONDS * attempt,
        )
        self.now = 0.0
        self.workers: list[Worker] = []
        self.everyone: list[Worker] = []
        """With those that have gone."""
        self.born = 0
        self.given = 0
        self.ran: Counter[int] = Counter()
        """How often each item was run, or begun."""
        self.lost: Counter[int] = Counter()
        """How often it had begun on a member that died before it told."""
        self.failed: Counter[int] = Counter()
        """How often its raising was told."""
        self.not_before: dict[int, float] = {}
        """When an item that has raised may be run again."""
        self.results: list[MapItem] = []
        self.tried: set[int] = set()
        """Items of which an attempt has begun, as far as the driver knows, and ended in vain."""
        self.repeated = 0

    def run(self, steps: int = 200_000) -> list[MapItem]:
        """Until every item has its result, in so many steps at most."""
        for _ in range(steps):
            if self.schedule.is_over:
                return self.results
            self.step()
            self.schedule.check_invariants()
            self.check_counts()
        raise AssertionError(
            f"no end: {self.schedule.counts(self.now)}, {len(self.workers)} members"
        )

    def check_counts(self) -> None:
        """What the schedule says of itself is so."""
        counts = self.schedule.counts(self.now)
        assert counts.done + counts.running + counts.waiting + counts.failed == self.given
        assert counts.repeated == self.repeated
        with_members = {batch.number: batch for each in self.workers for batch in each.batches}
        assert counts.running == sum(len(batch.items) for batch in with_members.values())
        over = self.results + self.schedule.held.ended()
        assert counts.failed == sum(item.error is not None for item in over)

    def step(self) -> None:
        """Something happens."""
        self.now += self.draw.random() * 0.01
        pull = self.draw.random()
        if pull < 0.25:
            self.feed()
        elif pull < 0.5:
            self.read()
        elif not self.workers or (len(self.workers) < 4 and pull < 0.52):
            self.born += 1
            worker = Worker(f"member-{self.born}")
            self.workers.append(worker)
            self.everyone.append(worker)
            self.schedule.on_member(worker.name, self.draw.choice(self.places))
        else:
            self.work(self.draw.choice(self.workers))

    def feed(self) -> None:
        """The source gives an item, or several, if there is room."""
        if self.given == self.items:
            if not self.schedule.is_over:
                self.schedule.on_source_over()
        elif self.places == ("",) and self.draw.random() < 0.3:
            count = min(self.schedule.room[0], self.draw.randrange(1, 6), self.items - self.given)
            values = range(self.given, self.given + max(0, count))
            self.schedule.on_items(values, [self.draw.choice([8, 600_000]) for _ in values])
            self.given += len(values)
        elif self.schedule.wants_items:
            index = self.schedule.on_item(
                (self.given,),
                self.draw.choice([0, 100, 600_000]),
                place=self.draw.choice(self.places),
            )
            assert index == self.given
            self.given += 1

    def read(self) -> None:
        """The caller takes a result."""
        result = self.schedule.held.next_result()
        if result is not None:
            self.results.append(result)

    def work(self, worker: Worker) -> None:
        """A member asks, goes on, answers, is recalled, is told to leave, comes back, is out of
        reach, or dies.
        """
        what = self.draw.random()
        if what < 0.4:
            batch = self.schedule.take(worker.name, self.now)
            if batch is not None:
                worker.batches.append(batch)
                worker.counts[batch.number] = len(batch.items)
                worker.done[batch.number] = []
                known = any(each.known for each in self.everyone)
                assert len(worker.batches) <= 1 + known, "more than the credit"
                if self.alone or not batch.items[0].recallable:
                    assert worker.batches == [batch], "it cannot be recalled from behind another"
                for item in batch.items:
                    assert self.now >= self.not_before.get(item.index, 0.0), "before its delay"
                    self.repeated += item.index in self.tried
            elif not worker.batches and worker.name not in self.schedule.known():
                self.workers.remove(worker)
        elif what < 0.85:
            self.go_on(worker)
        elif what < 0.93:
            self.recall(worker)
        elif what < 0.94:
            self.schedule.on_drained(worker.name)
        elif what < 0.95:
            self.schedule.on_member(worker.name)
        elif what < 0.96:
            self.refuse(worker)
        elif what < 0.97:
            self.take_back(worker)
        else:
            self.die(worker)

    def go_on(self, worker: Worker) -> None:
        """Run the next item of the first batch, or answer it."""
        if not worker.batches:
            return
        batch = worker.batches[0]
        done = worker.done[batch.number]
        if len(done) < worker.counts[batch.number] and len(done) < len(batch.items):
            index = batch.items[len(done)].index
            self.ran[index] += 1
            if index in self.poison:
                self.lost[index] += 1
                self.die(worker, begun=index)
            elif index in self.raises:
                done.append((RAISED, UnluckyError(index)))
            else:
                done.append((RETURNED, index * index))
            return
        worker.batches.pop(0)
        worker.known = worker.known or bool(done)
        told = list(done)
        if self.draw.random() < 0.1:
            # As a member of whose batch a part was recalled answers for that part.
            told += [(NOT_STARTED, None)] * (len(batch.items) - len(told))
        for item, (code, _) in zip(batch.items, told, strict=False):
            if code == RAISED:
                self.failed[item.index] += 1
                self.tried.add(item.index)
                self.not_before[item.index] = self.now + RETRY_SECONDS
        self.schedule.on_done(
            batch,
            told + [(NOT_STARTED, None)] * (len(batch.items) - len(told)),
            0.001 * len(done),
            self.now,
            8 * len(done),
        )

    def recall(self, worker: Worker) -> None:
        """Take back what is not started of one of its batches."""
        if worker.batches:
            batch = self.draw.choice(worker.batches)
            started = len(worker.done[batch.number])
            worker.counts[batch.number] = started
            self.schedule.on_recalled(batch, started)
            if not started:
                # It has been told that nothing of it is to be run: its answer comes too late.
                worker.batches.remove(batch)
                self.schedule.on_done(batch, [], 0.0, self.now)

    def refuse(self, worker: Worker) -> None:
        """A batch that was not begun is refused."""
        if worker.batches and not worker.done[worker.batches[-1].number]:
            batch = worker.batches.pop()
            self.schedule.on_refused(batch, NotExecutedError("too many"), gone=True)

    def take_back(self, worker: Worker) -> None:
        """It is out of reach: what was not sent to it is taken back, and what was with leave."""
        if not worker.batches:
            return
        batch = worker.batches[-1]
        done = worker.done[batch.number]
        sent = bool(done) or self.draw.random() < 0.5
        if sent and not self.repeats:
            return
        worker.batches.pop()
        if sent:
            self.tried.update(item.index for item in batch.items)
            for item, _ in zip(batch.items, done, strict=False):
                self.lost[item.index] += 1
        self.schedule.on_taken_back(batch, sent=sent)

    def die(self, worker: Worker, begun: int | None = None) -> None:
        """All that it has not answered may have run."""
        self.workers.remove(worker)
        for batch in worker.batches:
            self.tried.update(item.index for item in batch.items)
            for item, _ in zip(batch.items, worker.done[batch.number], strict=False):
                self.lost[item.index] += 1
            self.schedule.on_lost(batch, NodeDiedError(f"{worker.name} died"), gone=True)
        self.schedule.on_drained(worker.name)

    def judge(self) -> None:
        """Each item has one result, of the right kind, and ran no more often than allowed."""
        indices = [result.index for result in self.results]
        assert sorted(indices) == list(range(self.items)), "one result for each item"
        if self.ordered:
            assert indices == sorted(indices), "in order"
        for result in self.results:
            index, error = result.index, result.error
            ran = self.ran[index]
            if error is None:
                assert result.value == index * index
                assert index not in self.poison | self.raises
            elif isinstance(error, UnluckyError):
                assert index in self.raises
            elif isinstance(error, PoisonedItemError):
                assert self.repeats
                assert len(error.deaths) >= MOST_DEATHS
            else:
                assert isinstance(error, NodeDiedError)
                assert not self.repeats, "what may be repeated is"
            # What ran once more was lost before; without leave to repeat nothing runs twice.
            assert ran <= self.lost[index] + min(self.failed[index], self.retries) + 1
            assert self.repeats or ran <= 1 + min(self.failed[index], self.retries)
