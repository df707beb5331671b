"""One `map` over a pool as it runs: the tasks that read the source, call the members and wait for
their answers. What is done next is decided by `MapSchedule`.

The tasks live in the node's nursery. The caller's iterator holds this, and nothing here holds the
iterator: when the caller drops it, the run is cancelled, and the members are free.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import attrs
import trio

from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    AnswersUnreadError,
    BadArgumentsError,
    CallError,
    CallTimeoutError,
    ConnectionLostError,
    DecodeError,
    EncodeError,
    FilterRefusedError,
    JournalMismatchError,
    MailboxFullError,
    MethodNotFoundError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    NotAMemberError,
    NotExecutedError,
    OutcomeUnknownError,
    OwnerDiedError,
    ReferenceReleasedError,
    RemoteError,
    ReplyDecodeError,
    ReplyEncodeError,
    StaleEpochError,
    UnderstudyError,
)
from actors.identifiers import ActorId
from actors.method import MethodDefinition
from actors.own_logger import own_logger
from actors.pools import MapCounts, OnError
from actors.reference import Reference, wait_any
from actors.retry import RetryPolicy
from runtime.calls.arguments import refused
from runtime.calls.error_codec import place_of
from runtime.hosting.running_batch import RETURNED
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.pools.answers import AnswerReader
from runtime.pools.batch_sizes import Batch
from runtime.pools.journal_driver import JournalDriver
from runtime.pools.map_schedule import MapSchedule
from runtime.pools.members import PoolMembers
from runtime.pools.progress_bar import show_progress
from runtime.pools.weights import weight
from runtime.user_errors import is_cancellation, is_interrupt
from runtime.wire.exceptions import annotate

R = TypeVar("R")

PULL_AT_ONCE = 1024
"""Items read from a source before other tasks of the node have their turn."""

READ_AT_ONCE = 256
"""Results given before other tasks of the node have their turn."""

RETRY_MEMBER_SECONDS = 0.5
"""After so long a member that could not be reached is tried again, if the pool still has it."""

TURN_SECONDS = 0.005
"""Seconds for which a source may be read before other tasks have their turn."""

LOOK_SECONDS = 0.05
"""Seconds between looks whether batches are overdue while members are idle."""

DEMAND_SECONDS = 0.25
"""Seconds between requests for more members while items wait."""

LINGER_SECONDS = 0.02
"""Seconds between two writes to a journal."""

CLOSE_SECONDS = 1.0
"""How long the source may take to close when the map ends before it."""

END = object()
"""What a source gives when it has ended."""

_GONE = (
    ActorNotFoundError,
    AnswersUnreadError,
    MailboxFullError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    StaleEpochError,
)
"""Refusals whose cause is the member, and not the item."""

_ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)
"""What a reader's loop takes for the end of the results. As a generator does, a map raises another
error in their place, so that no item is lost unseen.
"""

_DEATHS = (ActorDiedError, ConnectionLostError, NodeDiedError)

logger = own_logger("understudy.pools")


@attrs.frozen
class MapOptions:
    """How a `map` runs; see `Pool.map`."""

    ordered: bool
    window: int | None
    batch: int | None
    timeout: float | None
    retry: RetryPolicy | None
    on_error: OnError
    keep: bool
    progress: bool
    """A progress bar on stderr."""
    journal: str | None
    """Which items are done is kept in the store under this name."""
    spread: bool = False
    """Each item is a tuple of arguments."""


class MapRun:
    """The tasks of one map."""

    def __init__(
        self,
        members: PoolMembers,
        schedule: MapSchedule,
        definition: MethodDefinition,
        source: AsyncIterable[object] | Iterable[object],
        options: MapOptions,
        journal: JournalDriver | None = None,
    ) -> None:
        self.schedule = schedule
        self.options = options
        self.failure: BaseException | None = None
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self._members = members
        self._definition = definition
        self._source = source
        self._journal = journal
        self._finished = trio.Event()
        """Set when there may be something for the journal."""
        self._key = members.environment.token(6).hex()
        """Batches of different runs may be with one member."""
        self._single = members.has_filters
        """True if each item is a call of its own."""
        least, most = definition.arity
        self._is_simple = journal is None and not options.spread and least <= 1 <= most
        """True if each item is the one argument of a method that takes one, and none is known."""
        self._answers = AnswerReader(members.endpoint.codec, definition.name)
        self._wake = trio.Event()
        self._room: trio.Event | None = None
        """What the source's reader waits for, while it does."""
        self._result = trio.Event()
        self._resting: set[ActorId] = set()
        self._away: set[ActorId] = set()
        """Members of which the latest look has found the nodes unreachable."""
        self._looked_at = -math.inf
        self._scopes: dict[int, trio.CancelScope] = {}
        """Of the calls of batches, by the batches' numbers."""
        self._asked_at = -math.inf
        self._pulled = 0
        self._hungry = True
        """True while a member would take an item that comes."""

    def check(self) -> None:
        """Raises NotAMemberError after the end of the node."""
        self._members.endpoint.lifetime.check()

    async def run(self) -> None:
        """Run it to its end. Raises only what cancels it."""
        environment = self._members.environment
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    if self.options.progress:
                        what = f"{self._members.name}, {self._definition.name}"
                        nursery.start_soon(show_progress, what, self._counts, environment)
                    if self._journal is not None:
                        await self._open_journal(self._journal, nursery)
                    nursery.start_soon(self._feed)
                    nursery.start_soon(self._follow)
                    await self._conduct(nursery)
                    nursery.cancel_scope.cancel()
        except Exception as error:
            logger.exception("a map over pool %s has failed", self._members.name)
            self.failure = self.failure or error
        finally:
            if self.failure is None and not self.schedule.is_done:
                self.failure = NotAMemberError(
                    f"the map over pool {self._members.name} was given up: it was closed, or the "
                    "node has left the cluster"
                )
            self._result.set()
            if self._journal is not None:
                await self._journal.close()  # noqa: ASYNC102  shielded, and bounded, there
            self.ended.set()

    def _counts(self) -> MapCounts:
        return self.schedule.counts(self._members.environment.now())

    # The journal

    async def _open_journal(self, journal: JournalDriver, nursery: trio.Nursery) -> None:
        try:
            await journal.open()
        except UnderstudyError as error:
            self.failure = error
        else:
            nursery.start_soon(self._write_journal, journal)

    async def _write_journal(self, journal: JournalDriver) -> None:
        """Write what members have returned, as much as there is at a time, and let it be given."""
        try:
            while True:
                await self._finished.wait()
                # Before the look at what has finished: what finishes during the write sets the new
                # event.
                self._finished = trio.Event()
                journal.add(self.schedule.held.take_finished())
                while indices := await journal.write():
                    self.schedule.held.on_written(indices)
                    self._result.set()
                    self._wake.set()
                    journal.add(self.schedule.held.take_finished())
                # Then the next write has many items in it, if they are short.
                await trio.sleep(LINGER_SECONDS)
        except UnderstudyError as error:
            self.failure = error
            self._wake.set()

    # For the caller's iterator

    def on_taken(self) -> None:
        """A result was given: there may be room for other items."""
        if self._room is not None and self.schedule.has_much_room:
            self._room.set()
            self._room = None

    async def wait_result(self) -> None:
        """Wait until there may be another result."""
        await self._result.wait()
        if self.failure is None and not self.schedule.is_done:
            self._result = trio.Event()

    # The source

    async def _feed(self) -> None:
        source = self._source
        try:
            if isinstance(source, AsyncIterable):
                await self._feed_from(source)
            else:
                await self._feed_all(source)
        except BaseException as error:  # noqa: ASYNC103  what is not trio's is the caller's own
            if is_cancellation(error):
                raise
            # Whatever the source raises goes to the reader of the map, after the results.
            self.schedule.on_source_over(error)
        else:
            self.schedule.on_source_over(self._missing())
        self._wake.set()
        self._result.set()
        await trio.lowlevel.checkpoint()

    def _missing(self) -> JournalMismatchError | None:
        """Why this is not the source of the journal; None if it is."""
        try:
            if self._journal is not None:
                self._journal.on_source_over(self._pulled)
        except JournalMismatchError as error:
            return error
        return None

    async def _feed_all(self, source: Iterable[object]) -> None:
        items = iter(source)
        while self._read_some(items):
            # Other tasks have their turn, and members get items: an iterator need not wait for
            # anything, and may take its time.
            await trio.lowlevel.checkpoint()
            await self._wait_room()

    def _read_some(self, items: Iterator[object]) -> bool:
        """Read the source while there is room, for a while; False if it has ended."""
        stopwatch = self._members.environment.stopwatch
        until = stopwatch() + TURN_SECONDS
        room, most = self.schedule.room
        values: list[object] = []
        weights: list[int] = []
        try:
            for _ in range(min(room, PULL_AT_ONCE)):
                item = next(items, END)
                if item is END:
                    return False
                size = weight(item)
                if self._is_simple and not issubclass(type(item), Reference):
                    values.append(item)
                    weights.append(size)
                else:
                    self._add_together(values, weights)
                    self._add(item)
                most -= size
                if most <= 0 or stopwatch() > until:
                    break
        finally:
            # Also those that came before what the source has raised.
            self._add_together(values, weights)
        return True

    def _add_together(self, values: list[object], weights: list[int]) -> None:
        """Add items that need no look, and empty the lists of them."""
        if values:
            worked = self.schedule.has_work
            self.schedule.on_items(values, weights)
            self._pulled += len(values)
            values.clear()
            weights.clear()
            self._wake_up(worked)

    async def _feed_from(self, source: AsyncIterable[object]) -> None:
        items, stopwatch = aiter(source), self._members.environment.stopwatch
        over = False
        until = stopwatch() + TURN_SECONDS
        try:
            while True:  # noqa: ASYNC913  below, at least every few milliseconds
                if not self.schedule.wants_items:
                    await self._wait_room()
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    over = True
                    return
                self._add(item)
                if self._pulled % PULL_AT_ONCE == 0 or stopwatch() > until:
                    # It need not wait for anything either.
                    await trio.lowlevel.checkpoint()
                    until = stopwatch() + TURN_SECONDS
        finally:
            if not over and inspect.isasyncgen(items):
                # The source is the user's code: it may be closed by cancellation, and gets a
                # bounded time.
                with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS):
                    await self._close_source(items)

    async def _close_source(self, items: AsyncGenerator[object, Any]) -> None:
        try:
            await items.aclose()
        except BaseException as error:  # noqa: ASYNC103  what is not trio's is the source's own
            if is_cancellation(error) or is_interrupt(error):
                raise
            # The reader has gone, and hears of no error any more.
            logger.exception(  # noqa: ASYNC104
                "the source of a map over pool %s raised when it was closed", self._members.name
            )

    async def _wait_room(self) -> None:
        while not self.schedule.wants_items:
            # Only the task that reads the source waits here, so the event is replaced by its only
            # waiter.
            self._room = trio.Event()
            await self._room.wait()

    def _add(self, item: object) -> None:
        index = self._pulled
        self._pulled = index + 1
        worked = self.schedule.has_work
        problem: Exception | None = None
        args: tuple[object, ...] = (item,)
        if self.options.spread:
            try:
                args = tuple(cast("Iterable[object]", item))
            except Exception as error:
                problem = error
        # In a batch they would arrive as references: values are fetched for the arguments of calls.
        references = references_of(args)
        place = references[0].owner if references else ""
        known: tuple[object, ...] | None = None
        digest = b""
        if self._journal is not None and problem is None:
            try:
                digest, known = self._journal.find(index, args)
            except (EncodeError, DecodeError) as error:
                problem = error
        self.schedule.on_item(
            args, sum(map(weight, args)), digest, place=place, alone=bool(references)
        )
        least, most = self._definition.arity
        if problem is None and not least <= len(args) <= most:
            try:
                problem = self._definition.refusal(f"pool {self._members.name}", args, {})
            except BadArgumentsError as error:
                problem = error
        if problem is not None:
            self.schedule.on_misfit(index, problem)
            self._result.set()
        elif known is not None:
            self.schedule.on_known(index, known[0])
            self._result.set()
        self._wake_up(worked)

    def _wake_up(self, worked: bool) -> None:
        """Items were added; `worked`: others waited before."""
        # Also when all members are busy: a pool that may grow is asked to.
        if self._hungry or not worked:
            self._wake.set()

    # The members

    async def _follow(self) -> None:
        while True:
            self._see_members()
            await self._members.wait_changed()

    def _see_members(self) -> None:
        present = set(self._members.present()) - self._away
        for member in sorted(present - self._resting):
            self.schedule.on_member(member, self._members.node_of(member))
        for known in self.schedule.known():
            if known not in present:
                self.schedule.on_drained(known)
        if self._members.failure is not None:
            self.failure = self._members.failure
        self._wake.set()

    async def _conduct(self, nursery: trio.Nursery) -> None:
        """Hand out batches whenever there may be some to hand out, until all is done."""
        schedule, now = self.schedule, self._members.environment.now
        while not schedule.is_done and self.failure is None:
            wait = min(schedule.next_retry() - now(), LOOK_SECONDS if self._looks else math.inf)
            with trio.move_on_after(max(0.0, wait)):
                await self._wake.wait()
            self._wake = trio.Event()
            self._look_at_nodes(now())
            while schedule.has_work:
                # Each of them gets one before any gets another.
                taken = [self._hand_out(nursery, cast("ActorId", one)) for one in schedule.askers()]
                if not any(taken):
                    break
            self._hungry = schedule.has_capacity
            for batch in schedule.recalls(now()):
                nursery.start_soon(self._recall, batch)
            if schedule.has_work and now() >= self._asked_at + DEMAND_SECONDS:
                self._asked_at = now()
                nursery.start_soon(self._members.ask_for, schedule.members + schedule.backlog)

    def _look_at_nodes(self, now: float) -> None:
        """See which members can be reached: the others get no items, and those that wait to be sent
        to them go to members that can.
        """
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        away = self._members.out_of_reach()
        if away != self._away:
            self._away = away
            self._see_members()
        for member in self.schedule.known():
            self._take_back(cast("ActorId", member), now)

    def _take_back(self, member: ActorId, now: float) -> None:
        """Take back what is with a member whose node is unreachable, as far as that is allowed."""
        peers, place = self._members.endpoint.peers, self._members.place_of(member)
        since = None if place is None else peers.unreachable_since(place)
        if place is None or since is None:
            return
        unsent_since = peers.unsent_since(place)
        # A node whose loop a method blocks is silent as well, and dead only after so long: repeated
        # before, an item that blocks would block one member after the other.
        patience = BLOCKED_LIMIT_SECONDS + self._members.environment.timings.lease
        for batch in self.schedule.batches_of(member):
            scope = self._scopes.get(batch.number)
            if scope is None:
                # Its task has not run yet, and would send it all the same.
                continue
            sent = batch.sent_at <= unsent_since
            if self.schedule.may_take_back(sent=sent, seconds=now - since, patience=patience):
                # Both in one step: trio withdraws the call of a parked task at once, and no
                # connection can open in between and take it along.
                self.schedule.on_taken_back(batch, sent=sent)
                scope.cancel()

    @property
    def _looks(self) -> bool:
        """True while the next decision may depend on the time."""
        return self.schedule.has_idle_members or self.schedule.has_work

    def _hand_out(self, nursery: trio.Nursery, member: ActorId) -> bool:
        batch = self.schedule.take(member, self._members.environment.now())
        if batch is None:
            self._hungry = True
            return False
        nursery.start_soon(self._carry, nursery, batch)
        return True

    async def _carry(self, nursery: trio.Nursery, batch: Batch) -> None:
        """Have a batch run, and the next one after it."""
        member = cast("ActorId", batch.member)
        schedule, now = self.schedule, self._members.environment.now
        try:
            # Cancelled if the batch is taken back.
            with trio.CancelScope() as scope:
                self._scopes[batch.number] = scope
                await self._call(batch, member)
        except EncodeError as error:
            schedule.on_unsendable(batch, self._unsendable(batch, error))
        except FilterRefusedError as error:
            # The item's own: another member, or another time, has the same filters.
            schedule.on_failed(batch, error, now())
        except NotExecutedError as error:
            gone = isinstance(error, _GONE)
            if isinstance(error, NotAMemberError) and self._members.endpoint.lifetime.is_over:
                self.failure = error
            schedule.on_refused(batch, error, gone=gone)
            if gone:
                self._rest(nursery, member)
        except (CallTimeoutError, ReplyDecodeError, ReplyEncodeError) as error:
            # Its member lives.
            schedule.on_failed(batch, error, now())
        except OutcomeUnknownError as error:
            gone = isinstance(error, _DEATHS)
            schedule.on_lost(batch, error, gone=gone)
            if gone:
                self._rest(nursery, member)
        except RemoteError as error:
            schedule.on_failed(batch, error, now())
        finally:
            self._scopes.pop(batch.number, None)
        self._result.set()
        self._finished.set()
        # At once, without another task: the member is idle, or will be soon.
        self._hand_out(nursery, member)
        self._wake.set()

    async def _call(self, batch: Batch, member: ActorId) -> None:
        now = self._members.environment.now
        first, timeout = batch.items[0], self.options.timeout
        if len(batch.items) == 1 and (
            self._single or timeout is not None or self.options.keep or references_of(first.args)
        ):
            bound = getattr(self._members.item_handle(member), self._definition.name)
            if timeout is not None:
                bound = bound.options(timeout=timeout)
            began = now()
            if self.options.keep:
                value: object = await self._kept(bound.remote(*first.args))
            else:
                value = await bound(*first.args)
            self.schedule.on_done(batch, [(RETURNED, value)], now() - began, now())
            return
        items = list(batch.items)
        try:
            answer = await getattr(self._members.handle(member), "@items")(
                self._definition.name,
                f"{self._key}.{batch.number}",
                [list(item.args) for item in items],
            )
        except MethodNotFoundError:
            # The members have no batches: they are in processes of their own, and their nodes have
            # filters.
            self._single = True
            self.schedule.on_no_batches(batch)
            return
        seconds, outcomes, size = self._answers.read(
            answer, items, member, self._members.node_of(member)
        )
        # Those that were given back meanwhile are not the batch's any more.
        self.schedule.on_done(batch, outcomes[: len(batch.items)], seconds, now(), size)

    async def _kept(self, call: Awaitable[Reference[object]]) -> Reference[object]:
        """Return the reference to a result once that is there. Raises what the call has raised, and
        OutcomeUnknownError if the result was lost with its node.
        """
        kept = await call
        await wait_any([kept])
        if kept.has_failed:
            try:
                await kept.fetch()
            except (OwnerDiedError, ReferenceReleasedError) as error:
                raise ConnectionLostError(f"the result was lost: {error}") from error
        return kept

    def _unsendable(self, batch: Batch, error: EncodeError) -> EncodeError:
        """The error that names the argument of the method, and not its place in the batch."""
        first = batch.items[0]
        return refused(
            self._members.endpoint.codec,
            error,
            f"{self._definition.name} was not called",
            self._definition.signature,
            first.args,
            {},
        )

    async def _recall(self, batch: Batch) -> None:
        member = cast("ActorId", batch.member)
        recall = getattr(self._members.handle(member), "@recall")
        try:
            started = await recall(f"{self._key}.{batch.number}")
        except CallError:
            # Its member has ended, or does not answer: the call of the batch says how it went.
            return
        if isinstance(started, int) and started >= 0:
            self.schedule.on_recalled(batch, started)
            self._wake.set()

    def _rest(self, nursery: trio.Nursery, member: ActorId) -> None:
        """The member is left alone for a while, and then tried again if the pool has it still."""
        if member not in self._resting:
            self._resting.add(member)
            nursery.start_soon(self._rested, member)

    async def _rested(self, member: ActorId) -> None:
        await trio.sleep(RETRY_MEMBER_SECONDS)
        self._resting.discard(member)
        self._see_members()


def references_of(args: tuple[object, ...]) -> list[Reference[object]]:
    """The references among the arguments of an item."""
    # By `type`, and not `isinstance`: that reads the item's `__class__`, which is the user's code
    # and may raise.
    return [
        cast("Reference[object]", argument)
        for argument in args
        if issubclass(type(argument), Reference)
    ]


class MapResults(AsyncIterator[R], Generic[R]):
    """The results of a `map`: `async for result in pool.map(...)`, once. Nothing runs before the
    first is asked for.

    What runs is cancelled, and the members are free, as soon as the reader stops: breaks out of the
    loop, leaves `async with`, is cancelled, calls `aclose`, or drops this. One task reads at a
    time.
    """

    def __init__(self, run: MapRun, nursery: trio.Nursery, now: Callable[[], float]) -> None:
        self._run = run
        self._nursery = nursery
        self._now = now
        self._token: trio.lowlevel.TrioToken | None = None
        self._over = False
        self._reading = False
        self._given = 0

    def counts(self) -> MapCounts:
        """How far it has come."""
        return self._run.schedule.counts(self._now())

    async def progress(self, every: float = 0.5) -> AsyncIterator[MapCounts]:
        """How far it has come, each `every` seconds, until all items are done or it was closed."""
        while True:
            # Read together with the counts, so that the last counts given are the final ones.
            is_last = self._over or self._run.schedule.is_done
            yield self.counts()
            if is_last:
                return
            await trio.sleep(every)

    if not TYPE_CHECKING:  # to a type checker it is neither

        def __await__(self):
            raise TypeError("the results of a map are read one by one: `async for result in ...`")

        def __iter__(self):
            self.__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        """The next result. Raises what its item has ended with, if `on_error` is "raise": the map
        is over then.
        """
        if self._reading:
            raise trio.BusyResourceError(
                "another task waits for the next result of this map; one task reads it at a time"
            )
        if self._over:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        if self._token is None:
            # Before the nursery, which takes no tasks after the end of the node.
            self._run.check()
            self._token = trio.lowlevel.current_trio_token()
            self._nursery.start_soon(self._run.run, name="map")
        self._reading = True
        schedule = self._run.schedule
        try:
            while True:
                while (item := schedule.held.next_result()) is None:
                    await self._wait()
                self._run.on_taken()
                self._given += 1
                if self._given % READ_AT_ONCE:
                    await trio.lowlevel.checkpoint_if_cancelled()
                else:
                    await trio.lowlevel.checkpoint()
                if item.error is None:
                    return cast("R", item.value)
                if self._run.options.on_error != "skip":
                    return cast("R", self._failed(item.index, item.error))
        except BaseException:
            self._end()
            raise
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """Read no more: cancel what runs. Closing twice is closing once."""
        self._end()
        # Not cancellable: the results are closed already.
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def __aenter__(self) -> Self:
        """The results, closed when the block is left."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._token is not None and not self._over:
            # A collector may run this in the middle of anything, in any thread.
            try:
                self._token.run_sync_soon(self._run.scope.cancel)
            except trio.RunFinishedError:
                pass

    async def _wait(self) -> None:
        """Wait until there may be another result. Raises what the map has ended with."""
        run = self._run
        if run.schedule.is_over:
            if run.options.progress:
                # Wait for the bar's last state, so that the program's next output comes below it.
                await run.ended.wait()
            error = run.schedule.source_error
            if error is None:
                raise StopAsyncIteration
            if issubclass(type(error), _ENDS_OF_LOOPS):
                raise RuntimeError(
                    f"the source of a map over a pool has raised {type(error).__name__}"
                ) from error
            raise error
        if run.failure is not None:
            raise run.failure
        await run.wait_result()

    def _failed(self, index: int, error: BaseException) -> BaseException:
        """Return the error of an item if errors are results; otherwise raise it."""
        annotate(error, f"in item {index} of a map over a pool")
        if self._run.options.on_error == "return":
            return error
        if issubclass(type(error), _ENDS_OF_LOOPS):
            place = place_of(error) if isinstance(error, CallError) else None
            raise RemoteError(
                f"item {index} has raised {type(error).__name__}, which would end the loop over "
                "the results",
                **(attrs.asdict(place) if place is not None else {}),
            ) from error
        raise error

    def _end(self) -> None:
        self._over = True
        self._run.scope.cancel()
