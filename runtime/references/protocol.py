"""The reference protocol's client: sends claims, releases, questions and moves to other nodes, in
batches that are repeated until they are answered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sized
from typing import Any, NamedTuple

import trio

from actors.errors import CallError, OutcomeUnknownError
from actors.identifiers import NodeId, ReferenceId
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.references.table import Effect, ReferenceTable
from runtime.references.values import FailedValue
from runtime.service_calls import SERVICE_ENDED

logger = own_logger("understudy.references")

MOST_UPDATES = 2_000
"""Claims, and releases, in one message: applying them holds up the receiver's event loop for some
milliseconds. A node may drop a million references at once.
"""

GATHER_SECONDS = 0.02
"""How many seconds the first update waits for others, at most. Random, so that nodes that learn of
an event at the same moment do not answer at the same moment.
"""

COLLECTOR_LOOK_SECONDS = (0.005, 0.2)
"""How often the garbage collector's notes are read while there are references, in seconds: the
first value after there were any, then doubled up to the second.
"""

SEND_AGAIN_SECONDS = 0.1
"""Seconds until an update batch that failed is sent again."""

MOST_ITEMS = 10_000
"""Items of one kind in one update batch."""

MOST_CONCLUSIONS = 100
"""Conclusions in one update batch: they contain errors, so they are larger."""


# The pending updates for one other node.
#
# No I/O and no clock. Every update is sent again until it is answered, and may be applied twice.


class UpdateQueue(NamedTuple):
    """Claims and releases that are sent together, each with its version."""

    claims: dict[ReferenceId, int]
    releases: dict[ReferenceId, int]


class UpdateBatch:
    """The pending updates for one node. A time beside an update is the earliest at which to send
    it.
    """

    __slots__ = (
        "asks",
        "claims",
        "conclusions",
        "counted",
        "moves",
        "not_before",
        "questions_at",
        "releases",
        "under_way",
    )

    def __init__(self) -> None:
        self.claims: dict[ReferenceId, tuple[int, float]] = {}
        self.releases: dict[ReferenceId, int] = {}
        self.counted: set[ReferenceId] = set()
        """Claims that the receiver may have applied, although it has not answered them."""
        self.asks: dict[ReferenceId, tuple[int, float]] = {}
        self.moves: dict[ReferenceId, int] = {}
        """Values that were moved to this node, with the versions in which the receiver held
        them.
        """
        self.conclusions: dict[ReferenceId, FailedValue] = {}
        """Values whose calls this node has given up, with the failures."""
        self.questions_at = math.inf
        self.not_before = -math.inf
        self.under_way = False

    @property
    def is_empty(self) -> bool:
        """True if the batch has nothing left to send and can be dropped."""
        has_no_updates = not (
            self.claims or self.releases or self.asks or self.moves or self.conclusions
        )
        return has_no_updates and self.questions_at == math.inf and not self.under_way

    def due_at(self) -> float:
        """When the next update is due; minus infinity means at once."""
        first = -math.inf if self.releases or self.moves or self.conclusions else self.questions_at
        for _, at in self.claims.values():
            if first == -math.inf:
                # Nothing can be due earlier, and there may be hundreds of thousands.
                break
            first = min(first, at)
        for _, at in self.asks.values():
            if first == -math.inf:
                break
            first = min(first, at)
        return max(first, self.not_before)

    def claim(self, identity: ReferenceId, version: int, at: float, *, again: bool) -> None:
        """Add a claim of a value of the receiver, to send at time `at` or later. `again`: the
        receiver may have registered it already.
        """
        self.claims[identity] = (version, at)
        if again:
            self.counted.add(identity)

    def on_counted(self, identity: ReferenceId) -> None:
        """Note that the receiver counts this node as a holder without a claim: it got the value and
        its registers from another node.
        """
        if identity in self.claims:
            self.counted.add(identity)

    def release(self, identity: ReferenceId, version: int) -> None:
        """Add a release. A hold that began and ended between two batches is not sent."""
        claim = self.claims.get(identity)
        if claim is not None and claim[0] <= version:
            del self.claims[identity]
            if identity not in self.counted:
                return
            self.counted.remove(identity)
        self.releases[identity] = max(version, self.releases.get(identity, 0))
        assert len(self.counted) <= len(self.claims), "more claims are counted than there are"

    def due_updates(self, now: float) -> UpdateQueue:
        """Return the updates to send now, at most `MOST_UPDATES` of each kind; they are returned
        again until `on_answered` is called.
        """
        due = ((identity, version) for identity, (version, at) in self.claims.items() if at <= now)
        claims = dict(itertools.islice(due, MOST_UPDATES))
        # From now on the receiver may apply them: a release must follow, even if the answer is
        # lost.
        self.counted.update(claims)
        return UpdateQueue(claims, dict(itertools.islice(self.releases.items(), MOST_UPDATES)))

    def on_answered(self, updates: UpdateQueue) -> None:
        """Record that these updates were answered."""
        self.counted.difference_update(updates.claims)
        for identity, version in updates.claims.items():
            if self.claims.get(identity, (0, 0.0))[0] == version:
                del self.claims[identity]
        for identity, version in updates.releases.items():
            if self.releases.get(identity) == version:
                del self.releases[identity]
        assert len(self.counted) <= len(self.claims), "more claims are counted than there are"


# The task that gathers the updates for other nodes and sends them: claims, releases, questions, and
# values that this node owns now.
#
# At most one batch to each node is under way at a time; later updates go into the next. A batch
# without an answer is sent again as long as its receiver may be alive. Every update may be applied
# twice, so a lost answer does no harm.


class ReferenceProtocol:
    """Sends updates about references to other nodes, in batches.

    `service(node, incarnation)` gives a handle of a node's `ReferenceService`. Answers are events
    of the `table`, whose effects `apply` carries out; `tidy` handles some of what the garbage
    collector has noted, and returns whether there was anything; `has_notes` is true while there is
    more, `is_busy` while there may be.
    """

    def __init__(
        self,
        table: ReferenceTable,
        apply: Callable[[Iterable[Effect]], None],
        tidy: Callable[[], bool],
        has_notes: Callable[[], bool],
        is_busy: Callable[[], bool],
        service: Callable[[str, int], Any],
        environment: Environment,
    ) -> None:
        self._table = table
        self._apply = apply
        self._tidy = tidy
        self._has_notes = has_notes
        self._is_busy = is_busy
        self._identity = table.identity
        self._service = service
        self._environment = environment
        self._now = environment.now
        self._batches: dict[NodeId, UpdateBatch] = {}
        self._awake: trio.Event | None = None
        self._is_looking = True

    def claim(
        self, owner: NodeId, identity: ReferenceId, version: int, after: float, *, again: bool
    ) -> None:
        """Claim a value at `owner`, in `after` seconds. `again`: the owner may have registered the
        claim already.
        """
        self._batch(owner).claim(
            identity, version, self._now() + after if after else -math.inf, again=again
        )
        self.wake_sender()

    def on_counted(self, owner: NodeId, identity: ReferenceId) -> None:
        """Note that `owner` counts this node as a holder already; see `UpdateBatch.on_counted`."""
        batch = self._batches.get(owner)
        if batch is not None:
            batch.on_counted(identity)

    def release(self, owner: NodeId, identity: ReferenceId, version: int) -> None:
        """Release a value at `owner`."""
        self._batch(owner).release(identity, version)
        self.wake_sender()

    def ask(self, forwarder: NodeId, identity: ReferenceId, number: int, after: float) -> None:
        """Ask `forwarder`, in `after` seconds, where a value is. `number` is not sent,
        and goes with the answer; see `runtime.references.table.Ask`.
        """
        self._batch(forwarder).asks[identity] = (
            number,
            self._now() + after if after else -math.inf,
        )
        self.wake_sender()

    def announce(self, holder: NodeId, identity: ReferenceId, version: int) -> None:
        """Notify `holder`, which held a value in `version` when its owner left, that this node owns
        it now. It may have released the value at the old owner only.
        """
        self._batch(holder).moves[identity] = version
        self.wake_sender()

    def conclude(self, owner: NodeId, identity: ReferenceId, failure: FailedValue) -> None:
        """Notify `owner` that the call which makes a value was given up; see
        `ReferenceTable.conclude`.
        """
        self._batch(owner).conclusions[identity] = failure
        self.wake_sender()

    def ask_unsettled(self, peer: NodeId) -> None:
        """Ask `peer` which forks are not settled there."""
        batch = self._batch(peer)
        batch.questions_at = min(batch.questions_at, self._now())
        self.wake_sender()

    def on_node_ended(self, peer: NodeId) -> None:
        """Drop the updates for a node that has ended."""
        self._batches.pop(peer, None)

    def wake(self) -> None:
        """Read the garbage collector's notes from now on: there is a reference, which may be
        dropped at any time.
        """
        if not self._is_looking and self._awake is not None:
            self._awake.set()

    async def run(self) -> None:
        """Send all updates as they come up, for as long as the node lives."""
        async with trio.open_nursery() as nursery:
            pause = COLLECTOR_LOOK_SECONDS[1]
            while True:
                # Renewed before the notes are read: what comes up from here on ends the wait below.
                self._awake = trio.Event()
                news = self._tidy()
                soonest = self._dispatch(nursery)
                if self._has_notes():
                    # A million references may have been dropped at once. Give the other tasks of
                    # the event loop their turns, beats of links and the lease included.
                    await trio.lowlevel.checkpoint()
                    continue
                pause = (
                    COLLECTOR_LOOK_SECONDS[0] if news else min(2 * pause, COLLECTOR_LOOK_SECONDS[1])
                )
                self._is_looking = self._is_busy()
                with trio.move_on_at(
                    min(soonest, self._now() + pause if self._is_looking else math.inf)
                ):
                    await self._awake.wait()
                    # Updates often come up together: wait for the others.
                    await trio.sleep(GATHER_SECONDS * self._environment.random())

    def _dispatch(self, nursery: trio.Nursery) -> float:
        """Start to send the batches that are due; return when the next one is due."""
        now = self._now()
        soonest = math.inf
        for peer, batch in list(self._batches.items()):
            # One at a time, so that updates for one value arrive in their order.
            if batch.under_way:
                continue
            if batch.is_empty:
                del self._batches[peer]
                continue
            due = batch.due_at()
            if due <= now:
                assert not batch.is_empty, "an empty batch is never sent"
                batch.under_way = True
                nursery.start_soon(self._write, peer, batch)
            else:
                soonest = min(soonest, due)
        return soonest

    async def _write(self, peer: NodeId, batch: UpdateBatch) -> None:
        try:
            await self._send_updates(peer, batch)
            await self._send_moves(peer, batch)
            await self._send_conclusions(peer, batch)
            await self._send_asks(peer, batch)
            await self._send_questions(peer, batch)
        except SERVICE_ENDED:
            # The membership may not report that end, because the peer may not have been a member.
            self._apply(self._table.on_node_ended(peer))
        except CallError as error:
            logger.info(
                "an update batch about references to node %s failed and is sent again: %s",
                peer[0],
                error,
            )
            batch.not_before = self._now() + SEND_AGAIN_SECONDS
        finally:
            assert batch.under_way, "one batch to a node is under way at a time"
            batch.under_way = False
            self.wake_sender()

    async def _send_updates(self, peer: NodeId, batch: UpdateBatch) -> None:
        while await self._send_some(peer, batch):
            pass

    async def _send_some(self, peer: NodeId, batch: UpdateBatch) -> bool:
        """Send one message of updates that are due. Returns True if there may be more: that it was
        full.
        """
        updates = batch.due_updates(self._now())
        claims, releases = updates
        if not claims and not releases:
            return False
        answers = await self._service(*peer).update(
            *self._identity,
            [[*identity, version] for identity, version in claims.items()],
            [[*identity, version] for identity, version in releases.items()],
        )
        _check_number(answers[0], claims, peer)
        _check_number(answers[1], releases, peer)
        # Removed only after the answer: without one, the same updates are sent again.
        batch.on_answered(updates)
        for (identity, version), answer in zip(claims.items(), answers[0], strict=True):
            self._apply(self._table.on_claim_answered(identity, version, peer, _identity(answer)))
        for (identity, version), answer in zip(releases.items(), answers[1], strict=True):
            owner = _identity(answer)
            if owner is not None and owner != peer:
                self.release(owner, identity, version)
        return MOST_UPDATES in (len(claims), len(releases))

    async def _send_moves(self, peer: NodeId, batch: UpdateBatch) -> None:
        for identity, version in list(batch.moves.items()):
            if not await self._service(*peer).moved(list(identity), *self._identity):
                self._table.release(identity, peer, version)
            # A newer version may have been added while this batch was being sent. It stays.
            if batch.moves.get(identity) == version:
                del batch.moves[identity]

    async def _send_conclusions(self, peer: NodeId, batch: UpdateBatch) -> None:
        given_up = dict(itertools.islice(batch.conclusions.items(), MOST_CONCLUSIONS))
        if not given_up:
            return
        answers = await self._service(*peer).conclude(
            [[list(identity), failure] for identity, failure in given_up.items()]
        )
        _check_number(answers, given_up, peer)
        for (identity, failure), answer in zip(given_up.items(), answers, strict=True):
            # A failure that was noted while this one was under way is of the same call, and says
            # the same.
            batch.conclusions.pop(identity, None)
            owner = _identity(answer) if isinstance(answer, list) else answer
            self._apply(self._table.on_conclusion_answered(identity, failure, owner))

    async def _send_asks(self, peer: NodeId, batch: UpdateBatch) -> None:
        while await self._send_some_asks(peer, batch):
            pass

    async def _send_some_asks(self, peer: NodeId, batch: UpdateBatch) -> bool:
        """Send one message of questions that are due. Returns True if there may be more."""
        now = self._now()
        due = ((identity, number) for identity, (number, at) in batch.asks.items() if at <= now)
        asks = dict(itertools.islice(due, MOST_UPDATES))
        if not asks:
            return False
        answers = await self._service(*peer).where([list(identity) for identity in asks])
        _check_number(answers, asks, peer)
        for identity, number in asks.items():
            # A newer question about the same value, of a later fork, stays.
            if batch.asks.get(identity, (-1, 0.0))[0] == number:
                del batch.asks[identity]
        for (identity, number), answer in zip(asks.items(), answers, strict=True):
            owner = _identity(answer) if isinstance(answer, list) else answer
            self._apply(self._table.on_where_answered(identity, peer, number, owner))
        return len(asks) == MOST_UPDATES

    async def _send_questions(self, peer: NodeId, batch: UpdateBatch) -> None:
        if batch.questions_at > self._now():
            return
        batch.questions_at = math.inf
        numbers = self._table.forks_to_ask(peer, MOST_ITEMS)
        if not numbers:
            return
        try:
            unsettled = await self._service(*peer).unsettled(*self._identity, numbers)
        except BaseException:
            self._table.on_unsettled_answered(numbers, numbers)
            # No answer: the forks count as landed as before, and are asked about again with the
            # next batch.
            batch.questions_at = -math.inf
            raise
        self._table.on_unsettled_answered(numbers, frozenset(unsettled))
        if unsettled or len(numbers) == MOST_ITEMS:
            batch.questions_at = self._now() + COLLECTOR_LOOK_SECONDS[0]

    def check_invariants(self) -> None:
        """Assert the invariants of all batches: for tests and simulations."""
        for batch in self._batches.values():
            assert batch.counted <= batch.claims.keys(), "only claims that are open are counted"
            assert not (batch.claims.keys() & batch.releases.keys()) or all(
                batch.claims[identity][0] > batch.releases[identity]
                for identity in batch.claims.keys() & batch.releases.keys()
            ), "a value that is claimed and released was released first"

    def _batch(self, peer: NodeId) -> UpdateBatch:
        batch = self._batches.get(peer)
        if batch is None:
            batch = self._batches[peer] = UpdateBatch()
        return batch

    def wake_sender(self) -> None:
        """Send what has come up, and handle what was noted, soon."""
        if self._awake is not None:
            self._awake.set()


def _check_number(answers: Sized, asked: Sized, peer: NodeId) -> None:
    """Check that a peer has answered each item once. Raises CallError if not."""
    if len(answers) != len(asked):
        raise OutcomeUnknownError(
            f"node {peer[0]} gave {len(answers)} answers to {len(asked)} updates about references",
            node=peer[0],
        )


def _identity(answer: Any) -> NodeId | None:
    return NodeId(answer[0], answer[1]) if answer is not None else None
