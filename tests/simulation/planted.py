"""Bugs for the simulator to find: each is planted into the runtime for as long as its block lasts.
None of them is in the product.

Most are mistakes that systems like this one have shipped; the last three were its own, found by the
first seeds of the simulator.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import count, islice, repeat
from types import FunctionType
from typing import Any
from unittest.mock import patch

import attrs
import trio

from actors.actor import Member
from actors.errors import (
    AnswersUnreadError,
    NodeUnreachableError,
    NoPlacementError,
    OutcomeUnknownError,
)
from actors.identifiers import ActorId
from actors.method import Address
from actors.restart_intensity import RestartIntensity
from actors.retry import RetryBudget, RetrySchedule
from actors.supervision import ExitReason
from runtime.calls.admission import AccessRequest, CallAdmission
from runtime.calls.call_queues import CallQueues
from runtime.calls.call_sender import CallSender
from runtime.calls.client import CallClient
from runtime.calls.dedup_table import CallRecord, DedupTable
from runtime.calls.local_calls import LocalCalls
from runtime.calls.replies import ReplyEncoder
from runtime.calls.retrying_call import RetryingCall
from runtime.calls.routes import Routes
from runtime.hosting.allocations import Allocations
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.chains import Chain
from runtime.hosting.host import ActorHost
from runtime.hosting.starts import Starts
from runtime.hosting.workers import TaskWorkers
from runtime.lifetime import Lifetime
from runtime.links.deferred_posts import DeferredPosts
from runtime.links.link import Link
from runtime.links.loans import ArenaFlag, Lender, LendingPools
from runtime.links.outbound import Outbound
from runtime.links.peers import Peers
from runtime.links.session import Session
from runtime.links.settlement import Offer, Settlement, SettlementAnswerKind
from runtime.links.spinner import PollableConnection
from runtime.membership import members
from runtime.membership.lease import LeaseClock
from runtime.membership.names import Names
from runtime.membership.owed_deletions import OwedDeletions
from runtime.membership.remote_store import RemoteStore
from runtime.membership.restart_intents import NAMES
from runtime.membership.saved_states import STATES, StateRecords
from runtime.membership.stand_by import StandBy
from runtime.node import Node
from runtime.pools.supervisor import PoolSupervisor
from runtime.references.forks import Forks
from runtime.references.holder_set import HolderSet
from runtime.references.table import BorrowedReferences, Effect, ReferenceState, ReferenceTable
from runtime.simulation import Report, first_contacts, simulate_once
from runtime.simulation.blocked_loops import blocked_loops
from runtime.simulation.cluster import SimulatedCluster, has_polling, runs_in_containers
from runtime.simulation.deep_calls import DeepCalls
from runtime.simulation.departures import departures, used_departures
from runtime.simulation.full_nodes import FullNodes
from runtime.simulation.joins import joins
from runtime.simulation.joint_starts import JointStarts
from runtime.simulation.large_states import LargeStates
from runtime.simulation.late_errors import LateErrors
from runtime.simulation.late_starts import LateStarts
from runtime.simulation.name_races import NameRaces
from runtime.simulation.outbursts import PanicError
from runtime.simulation.programs import Programs
from runtime.simulation.refused_calls import RefusedCalls
from runtime.simulation.shared_devices import SharedDevices
from runtime.simulation.unread_answers import unread_answers
from runtime.store.interface import Put, Transaction
from runtime.supervision.actor_placement import ActorPlacement
from runtime.supervision.placement import NO_REFUSALS, StartRefusal
from runtime.supervision.singletons import Singleton
from runtime.supervision.spawner import ActorSpawner
from runtime.wire.handshake import Peer

Plant = Callable[[], AbstractContextManager[object]]
PLANTS: dict[str, Plant] = {}

Run = Callable[[int], Report]

SEEDS = 100
"""A bug is found by one of so many seeds, from 0 on. Each of those that are not `SELDOM` found is
found by one seed in ten at least, as measured: that a hundred in a row do not, whatever changes the
order of what happens in them, has a probability below 0.00003.
"""

MANY_SEEDS = 600
"""The same for what is found seldom."""

SELDOM = frozenset(
    {
        "actors that others have found are taken back",
        "no epoch check",
        "claims of cancelled starts are kept",
        "held back is taken for never run",
        "lost wake up on watch resume",
        "owner forgets claims that come twice",
        "owner that knows nothing is believed at once",
        "release counts for later versions too",
        "sender does not wait for its receiver to be settled",
        "outcomes are told without a look at the lease",
    }
)
"""Found by fewer, down to one seed in a hundred: they need several rare things at once."""

COSTLY = frozenset(
    {
        "renewal without self fencing",
        "actors that are being stopped are found",
        "actors that were found once are found for ever",
        "a node that joins waits for a store that is gone",
        "unbounded queue",
        "retry after a send that may have run",
        "lease is not looked at on waking",
        "a restarted founder takes itself for the one before",
        "errors of the store come out of lookups",
        "no deduplication",
        "joint claims take names that have owners",
        "room that another start of the name has taken is refused",
        "an exception is looked at unguarded",
        "number of a call reused",
        "parts of saves that were cancelled are left",
        "parts of predecessors are left",
        "parts are deleted before another state is there",
        "parts are numbered alike",
        "answers to a peer that does not read are kept",
        "a node that was given up waits on",
        "a node of a store begun anew is taken for the one before",
        "blocked node is kept for ever",
        "calls on their way to the last life are overtaken",
        "cancelled call never freed",
        "death of a node counts a restart for each child",
        "a cancellation that was kept is taken for trios",
        "holder not removed on death",
        "joint claims of unknown outcome are kept",
        "late offer is accepted",
        "resend buffer dropped on resume",
        "what is no exception ends the node",
        "a start that may have run is made again",
        "a method goes on when its caller is cancelled",
        "calls within each other are cancelled within each other",
        "calls one way are not judged",
        "what comes behind an interrupt takes the place of what it left",
        "an interrupt meets what was polled",
        "an interrupt comes between a call and its wait",
        "a node that leaves is the only one asked",
        "a pool that has found no room looks for none",
        "deferred calls are overtaken",
        "the latest deferred call is first",
        "what seems to be taken is not asked for",
        "what waits for a worker is not answered before a goodbye",
        "a stopped spin is polled on",
        "memory that was closed is taken for all memory",
        "a candidate without room starts the singleton no more",
        "a start on a node that has ended is refused by its service",
        "deduplication only after completion",
        "what has ended goes on to take its part",
        "a call that comes back waits for itself",
        "nodes start what others place there",
        "what a method raises late is not taken",
        "a start that fails goes on to take its part",
        "what a node refuses is started on no other",
        "a goodbye does not say what was taken",
    }
)
"""Found by the first `SEEDS` as well, after more than two seconds of a processor: `make long`
looks for them. `make test` has others, which break the same promises or are caught by the same
checks.
"""

fair: Run = partial(simulate_once, faults=())


def joint(seed: int) -> Report:
    """Run the built-in workload under one of the seeds that start actors side by side."""
    return simulate_once(next(islice(filter(JointStarts.is_drawn, count()), seed, None)))


def racing(seed: int) -> Report:
    """Run it without faults under one of the seeds in which tasks race for names."""
    return fair(next(islice(filter(NameRaces.is_drawn, count()), seed, None)))


def starting_late(seed: int) -> Report:
    """Run it under one of the seeds that start actors on nodes which have ended, while nodes end in
    every way.
    """
    chosen = next(islice(filter(LateStarts.is_drawn, count()), seed, None))
    return simulate_once(chosen, faults=("crash", "power", "leave"))


def calling_deeply(seed: int) -> Report:
    """Run it without faults under one of the seeds with chains of calls."""
    return fair(next(islice(filter(DeepCalls.is_drawn, count()), seed, None)))


def calling_without_right(seed: int) -> Report:
    """Run it without faults under one of the seeds with clients that call what they may not."""
    return fair(next(islice(filter(RefusedCalls.is_drawn, count()), seed, None)))


def waiting(seed: int) -> Report:
    """Run it under one of the seeds whose programs wait without a deadline."""
    return simulate_once(next(islice(filter(Programs.is_drawn, count()), seed, None)))


def polling(seed: int) -> Report:
    """Run it without faults under one of the seeds whose tasks poll for answers."""
    return fair(next(islice(filter(has_polling, count()), seed, None)))


def raising_late(seed: int) -> Report:
    """Run it without faults under one of the seeds whose methods raise late."""
    return fair(next(islice(filter(LateErrors.is_drawn, count()), seed, None)))


def full(seed: int) -> Report:
    """Run it without faults under one of the seeds that start more actors than there is room
    for.
    """
    return fair(next(islice(filter(FullNodes.is_drawn, count()), seed, None)))


def full_while_nodes_leave(seed: int) -> Report:
    """The same, while nodes are asked to leave."""
    chosen = next(islice(filter(FullNodes.is_drawn, count()), seed, None))
    return simulate_once(chosen, faults=("leave",))


def sharing(seed: int) -> Report:
    """Run it without faults under one of the seeds whose nodes share devices."""
    return fair(next(islice(filter(SharedDevices.is_drawn, count()), seed, None)))


def saving(seed: int) -> Report:
    """Run it without faults under one of the seeds whose actors save states in parts."""
    return fair(next(islice(filter(LargeStates.is_drawn, count()), seed, None)))


def saving_while_nodes_end(seed: int) -> Report:
    """The same, while processes are killed."""
    chosen = next(islice(filter(LargeStates.is_drawn, count()), seed, None))
    return simulate_once(chosen, faults=("crash",))


def in_containers(seed: int) -> Report:
    """Run it under one of the seeds whose processes are in containers, which end and start anew."""
    chosen = next(islice(filter(runs_in_containers, count()), seed, None))
    return simulate_once(chosen, faults=("crash", "power"))


small_rounds: Run = partial(first_contacts, nodes=4, rounds=6)

rounds_on_shared_hosts: Run = partial(first_contacts, nodes=4, rounds=6, nodes_of_host=2)

RUNS: dict[str, Run] = {
    "late offer ends the link": small_rounds,
    "late offer is accepted": small_rounds,
    "memory is lent before the peer knows of it": rounds_on_shared_hosts,
    "memory that was closed is taken for all memory": rounds_on_shared_hosts,
    "answers to a peer that does not read are kept": unread_answers,
    "what ran and was dropped is called unexecuted": unread_answers,
    "blocked node is kept for ever": blocked_loops,
    "blocked loop is not stood in for": blocked_loops,
    "lease is not looked at on waking": blocked_loops,
    "outcomes are told without a look at the lease": blocked_loops,
    "silent store is waited for": joins,
    "each actor has its own time to stop": departures,
    "the news of a departure ends the link before its last answers": used_departures,
    "a goodbye does not say what was taken": used_departures,
    "what waits for a worker is not answered before a goodbye": used_departures,
    "joint claims take names that have owners": joint,
    "joint claims of unknown outcome are kept": joint,
    "actors that are being stopped are found": racing,
    "actors that were found once are found for ever": racing,
    "actors that others have found are taken back": racing,
    "a start that may have run is made again": starting_late,
    "a start on a node that has ended is refused by its service": starting_late,
    "a call that comes back waits for itself": calling_deeply,
    "calls within each other are cancelled within each other": calling_deeply,
    "a method goes on when its caller is cancelled": calling_deeply,
    "batches of items are judged by their own name": calling_without_right,
    "calls one way are not judged": calling_without_right,
    "a node that was given up waits on": waiting,
    "what comes behind an interrupt takes the place of what it left": polling,
    "an interrupt meets what was polled": polling,
    "a stopped spin is polled on": polling,
    "an interrupt comes between a call and its wait": polling,
    "what a method raises late is not taken": raising_late,
    "nodes start what others place there": full,
    "what has ended goes on to take its part": full,
    "a start that fails goes on to take its part": full,
    "what a node refuses is started on no other": full,
    "what seems to be taken is not asked for": full,
    "room that another start of the name has taken is refused": full,
    "a node that leaves is the only one asked": full_while_nodes_leave,
    "a pool that has found no room looks for none": sharing,
    "a candidate without room starts the singleton no more": sharing,
    "parts of saves that were cancelled are left": saving,
    "parts of predecessors are left": saving_while_nodes_end,
    "parts are deleted before another state is there": saving_while_nodes_end,
    "parts are numbered alike": saving,
    "a node that joins waits for a store that is gone": joins,
    "a node of a store begun anew is taken for the one before": partial(
        simulate_once, faults=("lost disk",)
    ),
    "a restarted founder takes itself for the one before": in_containers,
    "death of a node counts a restart for each child": partial(
        simulate_once, faults=("crash", "power")
    ),
    "a death is a failure of each call": fair,
    "calls that wait are made as each finds the actor": fair,
    "restart counted twice": fair,
    "first attempt is the outcome for others": partial(simulate_once, faults=("crash", "cut")),
    "cancelled call never freed": partial(simulate_once, faults=("pause", "clog")),
    "resend buffer dropped on resume": partial(simulate_once, faults=("cut", "half-open")),
    "renewal without self fencing": partial(
        simulate_once, faults=("partition", "one-way", "pause")
    ),
    "no epoch check": partial(simulate_once, faults=("pause", "block")),
    "sender does not wait for its receiver to be settled": partial(simulate_once, faults=("clog",)),
    "held back is taken for never run": partial(
        simulate_once, faults=("partition", "pause", "block")
    ),
}
"""What finds a bug, where that is not the built-in workload under all faults: fewer kinds of them
meet more often.
"""


def plant(make: Callable[[], AbstractContextManager[object]]) -> Plant:
    """Enter a bug under its name."""
    PLANTS[make.__name__.replace("_", " ")] = make
    return make


def planted(owner: type, name: str, value: object) -> AbstractContextManager[object]:
    """Replace a part of a class."""
    return patch.object(owner, name, value)


@plant
def no_deduplication() -> AbstractContextManager[object]:
    """A repeated call runs again."""

    def arrive(
        self: DedupTable[Any], number: int, target: tuple[str, int], *, repeat: bool
    ) -> CallRecord[Any]:
        record = self.records[number] = CallRecord(number, target)
        return record

    return planted(DedupTable, "arrive", arrive)


@plant
def deduplication_only_after_completion() -> AbstractContextManager[object]:
    """A repeated call runs again while the first run goes on."""
    original = DedupTable.arrive

    def arrive(self: DedupTable[Any], number: int, target: tuple[str, int], *, repeat: bool) -> Any:
        record = self.records.get(number)
        if record is not None and record.state == "running":
            del self.records[number]
        return original(self, number, target, repeat=repeat)

    return planted(DedupTable, "arrive", arrive)


@plant
def no_epoch_check() -> AbstractContextManager[object]:
    """A name is taken, and its state saved, without a look at who owns it."""

    async def claim(
        self: Any, name: str, class_path: str, on_behalf_of: str = "", resources: object = None
    ) -> int:
        value = self._encode(
            [self._node, self._incarnation, class_path, 0, on_behalf_of, resources or {}]
        )
        result = await self._store.transaction([], [Put(NAMES + name, value, self._lease)])
        return int(result.revision)

    async def put(self: Any, name: str, epoch: int, value: bytes, change: object = None) -> None:
        await self._store.transaction([], [Put(STATES + name, value)])

    stack = ExitStack()
    stack.enter_context(planted(Names, "claim", claim))
    stack.enter_context(planted(StateRecords, "_put", put))
    return stack


@plant
def renewal_without_self_fencing() -> AbstractContextManager[object]:
    """A node relies on its lease until it is told that it has ended."""
    return patch.multiple(
        LeaseClock, is_held=lambda self, now: True, doubtful_at=property(lambda self: float("inf"))
    )


@plant
def retry_after_a_send_that_may_have_run() -> AbstractContextManager[object]:
    """What may have run is made again, though running it twice does harm."""
    original = RetrySchedule.__init__

    def made(self: RetrySchedule, policy: Any, **facts: Any) -> None:
        original(self, policy, **{**facts, "idempotent": True})

    return planted(RetrySchedule, "__init__", made)


@plant
def lost_wake_up_on_watch_resume() -> AbstractContextManager[object]:
    """A watch that was interrupted goes on from what is then the latest, not from where it was."""
    original = RemoteStore.poll

    async def poll(self: Any, prefix: str, from_revision: int) -> Any:
        before = self._service
        batch = await original(self, prefix, from_revision)
        return batch if self._service is before else attrs.evolve(batch, events=())

    return planted(RemoteStore, "poll", poll)


@plant
def resend_buffer_dropped_on_resume() -> AbstractContextManager[object]:
    """What was under way when a connection broke is not sent again."""
    original = Session.resume

    def resume(self: Session, peer_received: int) -> Sequence[Any]:
        original(self, peer_received)
        return ()

    return planted(Session, "resume", resume)


@plant
def number_of_a_call_reused() -> AbstractContextManager[object]:
    """Numbers of repeatable calls come around again while the earlier ones are on record."""
    original = CallClient.repeatable_number
    return planted(CallClient, "repeatable_number", lambda self, link: original(self, link) % 8)


@plant
def unbounded_queue() -> AbstractContextManager[object]:
    """A mailbox takes whatever comes."""
    original = ActorCell.offer

    def offer(self: ActorCell, invocation: Invocation, now: Callable[[], float]) -> Any:
        limit, self.limit = self.limit, 10**9
        try:
            return original(self, invocation, now)
        finally:
            self.limit = limit

    return planted(ActorCell, "offer", offer)


@plant
def holder_not_removed_on_death() -> AbstractContextManager[object]:
    """What a dead node held is kept for ever."""
    return planted(HolderSet, "on_node_ended", lambda self, holder: False)


@plant
def sender_does_not_wait_for_its_receiver_to_be_settled() -> AbstractContextManager[object]:
    """What was handed on is let go of as soon as the message has arrived."""
    return planted(Forks, "on_landed", lambda self, number: self._open.pop(number, None))


@plant
def owner_forgets_claims_that_come_twice() -> AbstractContextManager[object]:
    """A claim that is known already is taken for a mistake, and struck out."""
    original = HolderSet.claim

    def claim(self: HolderSet, holder: Any, version: int) -> None:
        if self._latest(holder):
            self.on_node_ended(holder)
        else:
            original(self, holder, version)

    return planted(HolderSet, "claim", claim)


@plant
def release_counts_for_later_versions_too() -> AbstractContextManager[object]:
    """Whoever has let go of a value once is not heard when it gets another reference to it."""
    original = HolderSet.claim

    def claim(self: HolderSet, holder: Any, version: int) -> None:
        if self._latest(holder) >= 0:
            original(self, holder, version)

    return planted(HolderSet, "claim", claim)


@plant
def owner_that_knows_nothing_is_believed_at_once() -> AbstractContextManager[object]:
    """A claim that overtakes the call which makes the value ends the hold."""
    original = BorrowedReferences.on_unknown

    def unknown(self: BorrowedReferences, identity: Any, version: int, owner: Any) -> Any:
        hold = self.all.get(identity)
        if hold is not None:
            self._settle(hold)
        return original(self, identity, version, owner)

    return planted(BorrowedReferences, "on_unknown", unknown)


@plant
def first_attempt_is_the_outcome_for_others() -> AbstractContextManager[object]:
    """Who has a reference is told what an attempt has failed with, and keeps to that, while its
    maker makes the call again.
    """
    original = ReferenceTable.begin

    def begin(self: ReferenceTable, *call: Any) -> Any:
        state, effects = original(self, *call)
        state.failure = None
        return state, effects

    def attempted(self: ReferenceTable, state: ReferenceState, failure: Any) -> list[Effect]:
        return [] if state.is_settled else self.on_failure_fetched(state, failure)

    stack = ExitStack()
    stack.enter_context(planted(ReferenceTable, "begin", begin))
    stack.enter_context(planted(ReferenceTable, "on_attempt_failed", attempted))
    return stack


@plant
def room_that_another_start_of_the_name_has_taken_is_refused() -> AbstractContextManager[object]:
    """What asks for an actor by its name gets an error, because that actor has what it takes."""

    async def allocate(self: ActorHost, name: str, amounts: Any) -> Any:
        return self.allocations.take(name, amounts)

    return planted(ActorHost, "_allocate", allocate)


@plant
def restart_counted_twice() -> AbstractContextManager[object]:
    """Supervisors give up too early."""
    original = RestartIntensity.allows

    def allows(self: RestartIntensity, now: float) -> bool:
        original(self, now)
        return original(self, now)

    return planted(RestartIntensity, "allows", allows)


@plant
def death_of_a_node_counts_a_restart_for_each_child() -> AbstractContextManager[object]:
    """What says nothing about children uses up the restarts that their supervisor allows them."""
    return planted(ExitReason, "is_failure", property(lambda self: self.kind != "node left"))


@plant
def cancelled_call_never_freed() -> AbstractContextManager[object]:
    """A caller that gives up leaves its entry in the table."""
    return planted(CallClient, "withdraw", lambda self, call, route: None)


@plant
def late_offer_ends_the_link() -> AbstractContextManager[object]:
    """The offer of a dial that lost against the peer's, and was long on its way, is taken for that
    of a new session.
    """

    def is_superseded(self: Settlement, offer: Offer) -> bool:
        return bool(self.peer_number) and not offer.peer_link

    return planted(Settlement, "is_superseded", is_superseded)


@plant
def late_offer_is_accepted() -> AbstractContextManager[object]:
    """An offer is accepted whatever was settled since it was made."""
    return planted(Settlement, "judge", lambda self, offer: SettlementAnswerKind.ACCEPTED)


@plant
def memory_is_lent_before_the_peer_knows_of_it() -> AbstractContextManager[object]:
    """The end that was dialled lends at once, also if that dial was given up."""
    share_memory = Link.share_memory

    def lend_at_once(self: Link, pools: LendingPools, process: int, *, dialled: bool) -> None:
        share_memory(self, pools, process, dialled=True)

    return planted(Link, "share_memory", lend_at_once)


@plant
def memory_that_was_closed_is_taken_for_all_memory() -> AbstractContextManager[object]:
    """What could not be mapped because it was closed on the way ends all lending."""
    on_answered = Lender.on_answered

    def answered(self: Lender, flag: int, number: int) -> None:
        self._refused = self._refused or flag == ArenaFlag.REFUSED
        on_answered(self, flag, number)

    return planted(Lender, "on_answered", answered)


@plant
def answers_to_a_peer_that_does_not_read_are_kept() -> AbstractContextManager[object]:
    """Nobody looks at how much is kept for a peer."""
    return planted(Outbound, "backlog", 0)


@plant
def what_ran_and_was_dropped_is_called_unexecuted() -> AbstractContextManager[object]:
    """What is dropped because its caller does not read is taken for refused."""
    return planted(
        ReplyEncoder,
        "_dropped",
        lambda self, number, link, what: self.of_error(number, link, AnswersUnreadError(what)),
    )


@plant
def claims_of_cancelled_starts_are_kept() -> AbstractContextManager[object]:
    """A name that was claimed without anybody knowing stays taken."""
    return planted(OwedDeletions, "owe", lambda self, ours: None)


@plant
def joint_claims_take_names_that_have_owners() -> AbstractContextManager[object]:
    """Names that are claimed together are taken without a look at who owns them."""

    async def claim_many(
        self: Any, names: Sequence[str], class_path: str, resources: object = None
    ) -> list[Any]:
        batch = [
            Transaction(
                (), (Put(NAMES + name, self._claim_value(class_path, "", None), self._lease),), ()
            )
            for name in names
        ]
        results = await self._store.transactions(batch)
        return [one if isinstance(one, Exception) else one.revision for one in results]

    return planted(Names, "claim_many", claim_many)


@plant
def joint_claims_of_unknown_outcome_are_kept() -> AbstractContextManager[object]:
    """Names that were claimed together stay taken if the answer is lost, or the claim cancelled."""
    original = Names.claim_many

    class Forgetful:
        """The names of a node, without what withdraws claims of unknown outcome."""

        def __init__(self, names: Names) -> None:
            self._names = names
            # That nobody pays.
            self.owed = OwedDeletions(names._store)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._names, name)

    def claim_many(self: Names, *claim: Any) -> Any:
        return original(Forgetful(self), *claim)  # type: ignore[arg-type]

    return planted(Names, "claim_many", claim_many)


@plant
def held_back_is_taken_for_never_run() -> AbstractContextManager[object]:
    """That nothing of a call runs now is taken to mean that nothing of it ever has."""

    def withdraw(self: LocalCalls, call: Any) -> bool:
        if not isinstance(call.ticket, Invocation):
            return True
        waited = call.ticket.runner is None
        call.ticket.cancel()
        return waited

    return planted(LocalCalls, "withdraw", withdraw)


@plant
def a_death_is_a_failure_of_each_call() -> AbstractContextManager[object]:
    """Ten calls that are with an actor when it dies use up its retry budget."""
    original = RetryBudget.failed
    return planted(RetryBudget, "failed", lambda self, incident=None: original(self))


@plant
def calls_that_wait_are_made_as_each_finds_the_actor() -> AbstractContextManager[object]:
    """There is no queue: the call that finds the actor first is first."""

    async def through(
        self: CallQueues,
        bound: Any,
        order: int,
        post: Any,
        *,
        not_before: float = 0.0,
        **facts: Any,
    ) -> None:
        await trio.sleep_until(max(not_before, trio.current_time()))
        post(self._routes.known(bound) or await self._routes.find(bound))

    return planted(CallQueues, "through", through)


@plant
def the_latest_deferred_call_is_first() -> AbstractContextManager[object]:
    """Calls that wait until their link takes more have their turns in the wrong order."""
    original = DeferredPosts.next

    def following(self: DeferredPosts) -> Any:
        self._posts.reverse()
        try:
            return original(self)
        finally:
            self._posts.reverse()

    return planted(DeferredPosts, "next", following)


@plant
def deferred_calls_are_overtaken() -> AbstractContextManager[object]:
    """A call waits for its turn only while there are too many others at the moment."""

    def is_crowded(self: Outbound) -> bool:
        return self.session.sent - self.session.written >= self.most_unwritten

    return planted(Outbound, "is_crowded", property(is_crowded))


@plant
def calls_on_their_way_to_the_last_life_are_overtaken() -> AbstractContextManager[object]:
    """What is called once the next life of an actor is known does not wait for the refusals of what
    was called before.
    """
    return planted(Routes, "waits_at", lambda self, name, place: False)


@plant
def errors_of_the_store_come_out_of_lookups() -> AbstractContextManager[object]:
    """What the store says of itself is what a caller is told."""

    @contextmanager
    def asking(self: Lifetime, what: str, *, acts: bool = False) -> Iterator[None]:
        self.check()
        yield

    return planted(Lifetime, "asking", asking)


@plant
def silent_store_is_waited_for() -> AbstractContextManager[object]:
    """A question to a store that does not answer has no end."""
    begin = RemoteStore.__init__
    return planted(
        RemoteStore,
        "__init__",
        lambda self, service, seconds, nursery: begin(self, service, 1e6, nursery),
    )


@plant
def each_actor_has_its_own_time_to_stop() -> AbstractContextManager[object]:
    """A node that leaves stops one actor after the other, and waits for the store at each: there is
    a limit for each of them, and none for all.
    """
    original = ActorHost.drain
    return planted(
        ActorHost, "drain", lambda self, seconds, in_all: original(self, seconds, math.inf)
    )


@plant
def the_news_of_a_departure_ends_the_link_before_its_last_answers() -> AbstractContextManager[
    object
]:
    """What the store says of a node that leaves may be sooner than what that node has sent."""
    return planted(Peers, "on_peer_left", lambda self, node: None)


@plant
def a_goodbye_does_not_say_what_was_taken() -> AbstractContextManager[object]:
    """Whether a request that crosses a goodbye has run is not known."""
    return planted(Session, "on_goodbye", lambda self, number: None)


@plant
def what_waits_for_a_worker_is_not_answered_before_a_goodbye() -> AbstractContextManager[object]:
    """A node that leaves answers the calls that run, and not those that are about to."""
    return planted(TaskWorkers, "take_queued", lambda self: [])


@plant
def blocked_node_is_kept_for_ever() -> AbstractContextManager[object]:
    """A lease is renewed beside a blocked loop although the node was given up."""
    return planted(StandBy, "_is_wanted", lambda self: self._blocked >= self._timings.loop_still)


@plant
def blocked_loop_is_not_stood_in_for() -> AbstractContextManager[object]:
    """Nobody renews the lease of a node whose loop is blocked."""
    return planted(StandBy, "_is_wanted", lambda self: False)


@plant
def lease_is_not_looked_at_on_waking() -> AbstractContextManager[object]:
    """A loop that comes back runs what has waited, whatever has become of its lease."""
    return planted(TaskWorkers, "_is_in_doubt", lambda self: False)


@plant
def outcomes_are_told_without_a_look_at_the_lease() -> AbstractContextManager[object]:
    """What has run before the loop was blocked is answered when it comes back, though others have
    the name.
    """
    return planted(TaskWorkers, "_doubt_if_in_doubt", lambda self: None)


@plant
def what_is_no_exception_ends_the_node() -> AbstractContextManager[object]:
    """A `BaseException` that a method raises is taken for what the process itself is told.

    Not in groups: trio itself shows what ends a task, and would not survive what is in those of the
    workload.
    """
    mistaken = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, PanicError)
    return patch(
        "runtime.hosting.workers.is_interrupt", lambda error: issubclass(type(error), mistaken)
    )


@plant
def a_cancellation_that_was_kept_is_taken_for_trios() -> AbstractContextManager[object]:
    """The worker that ran it ends, and nobody is told."""
    return patch(
        "runtime.hosting.workers.is_cancellation",
        lambda error: issubclass(type(error), trio.Cancelled),
    )


@plant
def an_exception_is_looked_at_unguarded() -> AbstractContextManager[object]:
    """What is shown of an exception runs its own code, and what that raises goes on."""
    return patch("runtime.user_errors.guarded", lambda look, otherwise: look())


@plant
def a_restarted_founder_takes_itself_for_the_one_before() -> AbstractContextManager[object]:
    """It dials the address of the one before, where it listens itself, and looks at nothing else.
    The leases on the disk are new at each of its starts, so it is refused for ever.
    """
    over, accepts = members.is_certainly_over, members.accepts_connections
    return patch.multiple(
        members,
        is_certainly_over=lambda record, environment, ended_lease: over(record, environment),
        accepts_connections=lambda record, own, network: accepts(record, (), network),
    )


@plant
def actors_that_are_being_stopped_are_found() -> AbstractContextManager[object]:
    """`get_or_spawn` takes an actor that has started for one that answers calls."""
    original = Starts.wait

    async def wait(self: Starts, name: str, epoch: int) -> bool:
        cell = self._cells.get(name)
        if cell is not None and cell.started and cell.address.epoch == epoch:
            await trio.lowlevel.checkpoint()
            return True
        return await original(self, name, epoch)

    return planted(Starts, "wait", wait)


@plant
def actors_that_were_found_once_are_found_for_ever() -> AbstractContextManager[object]:
    """The node of an actor is asked once whether it has started, and not again."""
    original = ActorSpawner.find_started
    known: set[tuple[ActorSpawner, str, int]] = set()

    async def find_started(self: ActorSpawner, name: str, *, waits: bool = True) -> Address | None:
        found = await original(self, name, waits=False)
        if found is None or (self, name, found.epoch) in known:
            return found
        found = await original(self, name, waits=waits)
        if found is not None:
            known.add((self, name, found.epoch))
        return found

    return planted(ActorSpawner, "find_started", find_started)


@plant
def actors_that_others_have_found_are_taken_back() -> AbstractContextManager[object]:
    """The actor of a start that was cancelled is stopped, even if others have its handle."""

    async def take_back(self: ActorHost, name: str, epoch: int) -> None:
        await self.stop(name, epoch, ExitReason("stopped", "its start was cancelled"))

    return planted(ActorHost, "take_back", take_back)


@plant
def a_node_that_was_given_up_waits_on() -> AbstractContextManager[object]:
    """What waits for the cluster goes on waiting when that has given the node up."""
    return planted(Lifetime, "give_up", lambda self, why: None)


@plant
def a_node_that_joins_waits_for_a_store_that_is_gone() -> AbstractContextManager[object]:
    """It waits to see itself among the members for as long as that takes, also when the store that
    took its record was lost in between.
    """
    stack = ExitStack()
    stack.enter_context(planted(Node, "_serve", lambda self, metrics=None: self._start(metrics)))
    stack.enter_context(
        planted(
            Node,
            "_see_itself_up",
            lambda self, revision: self._members.caught_up_with_write(revision),
        )
    )
    return stack


@plant
def a_node_of_a_store_begun_anew_is_taken_for_the_one_before() -> AbstractContextManager[object]:
    """Both have the same name and incarnation, and nothing else is looked at."""

    def is_same(self: Peers, link: Link, peer: Peer) -> bool:
        link.life = peer.life
        return True

    stack = ExitStack()
    stack.enter_context(planted(Peers, "_is_same", is_same))
    stack.enter_context(planted(Peers, "_is_foreign", lambda self, peer: False))
    return stack


@plant
def a_start_that_may_have_run_is_made_again() -> AbstractContextManager[object]:
    """A spawn whose node has ended while it started the actor is taken for one that was never
    handed to it.
    """

    @contextmanager
    def about_start(
        what: str, member: Member, now: Callable[[], float], *, known: bool
    ) -> Iterator[None]:
        try:
            yield
        except OutcomeUnknownError as error:
            raise NodeUnreachableError(str(error), node=member.name) from None

    return patch("runtime.supervision.spawner.about_start", about_start)


@plant
def a_start_on_a_node_that_has_ended_is_refused_by_its_service() -> AbstractContextManager[object]:
    """Users get the error of the call that the spawn makes."""
    return patch("runtime.supervision.spawner.about_start", lambda *about, known: nullcontext())


@plant
def a_call_that_comes_back_waits_for_itself() -> AbstractContextManager[object]:
    """No cycle of calls is seen."""
    return planted(Chain, "__contains__", lambda self, mark: False)


@plant
def calls_within_each_other_are_cancelled_within_each_other() -> AbstractContextManager[object]:
    """A recursion that is cancelled is as deep on Python's stack as it is long."""

    def withdraw(self: LocalCalls, call: Any) -> bool:
        if not isinstance(call.ticket, Invocation):
            return True
        waited = not call.ticket.begun
        call.ticket.cancel()
        return waited

    return planted(LocalCalls, "withdraw", withdraw)


@plant
def a_method_goes_on_when_its_caller_is_cancelled() -> AbstractContextManager[object]:
    """A node that is asked to stop a call does not."""
    return patch("runtime.calls.dispatch.taken_back", lambda invocation: None)


@plant
def batches_of_items_are_judged_by_their_own_name() -> AbstractContextManager[object]:
    """What travels in a batch is not looked at."""
    stack = ExitStack()
    stack.enter_context(patch("runtime.calls.admission.BATCH_METHODS", {}))
    stack.enter_context(
        patch("runtime.calls.admission.calls_in", lambda method, *given: [(method, *given)])
    )
    return stack


@plant
def calls_one_way_are_not_judged() -> AbstractContextManager[object]:
    """Nobody waits for their refusal."""
    original = CallAdmission.refusal

    def refusal(self: CallAdmission, asked: AccessRequest) -> Any:
        return None if asked.kind == "send" else original(self, asked)

    return planted(CallAdmission, "refusal", refusal)


@plant
def what_a_method_raises_late_is_not_taken() -> AbstractContextManager[object]:
    """Where an attempt has had its time, only a value is taken from its answer. After an exception
    the method runs again.
    """

    def is_answered(self: Any) -> bool:
        call = self._call
        return bool(call and call.finished and not self._judged and call.error is None)

    return planted(RetryingCall, "_is_answered", property(is_answered))


@plant
def nodes_start_what_others_place_there() -> AbstractContextManager[object]:
    """A node does not look whether it has room, as if those who place actors on it knew."""
    original = Allocations.take

    def take(self: Allocations, actor: str, amounts: Any) -> Any:
        return original(self, actor, {})

    return planted(Allocations, "take", take)


@plant
def what_has_ended_goes_on_to_take_its_part() -> AbstractContextManager[object]:
    """The allocations of actors are never released."""
    return planted(Allocations, "release", lambda self, actor: None)


@plant
def a_start_that_fails_goes_on_to_take_its_part() -> AbstractContextManager[object]:
    """The allocation of an actor that has no epoch yet is forgotten, and not given back."""
    return planted(Allocations, "give_back", lambda self, allocation: None)


@plant
def what_a_node_refuses_is_started_on_no_other() -> AbstractContextManager[object]:
    """The error of one node is taken for that of all."""
    original = ActorPlacement.place

    async def place(
        self: ActorPlacement, options: Any, refusals: Any = NO_REFUSALS, *, asks: bool = False
    ) -> Member:
        for why in refusals.values():
            raise NoPlacementError(why.text)
        return await original(self, options, asks=asks)

    return planted(ActorPlacement, "place", place)


@plant
def what_seems_to_be_taken_is_not_asked_for() -> AbstractContextManager[object]:
    """A node that sees no room takes that for true, although others may have made some."""
    return planted(ActorPlacement, "_nearest", lambda self, *about: None)


@plant
def a_node_that_leaves_is_the_only_one_asked() -> AbstractContextManager[object]:
    """Only a lack of resources says nothing about the other nodes."""

    def refusal_of(error: BaseException, options: Any) -> StartRefusal | None:
        return StartRefusal(str(error)) if isinstance(error, NoPlacementError) else None

    return patch("runtime.supervision.spawner.refusal_of", refusal_of)


@plant
def a_pool_that_has_found_no_room_looks_for_none() -> AbstractContextManager[object]:
    """The first member that finds no room is the last one that looks."""
    return planted(PoolSupervisor, "_due", lambda self, starts: [] if self._no_room else starts)


@plant
def a_candidate_without_room_starts_the_singleton_no_more() -> AbstractContextManager[object]:
    """It takes the lack of room for the end of the singleton."""
    original: Any = vars(Singleton)["_current"]

    async def current(self: Singleton, ended: Address | None) -> Any:
        try:
            return await original(self, ended)
        except NoPlacementError:
            if ended is None:
                raise
            return None

    return planted(Singleton, "_current", current)


def interruptible(owner: type, name: str) -> AbstractContextManager[object]:
    """Let Ctrl-C meet a function that trio protects from it."""
    protected = vars(owner)[name]
    found = FunctionType(
        protected.__code__.replace(), protected.__globals__, closure=protected.__closure__
    )
    found.__kwdefaults__ = protected.__kwdefaults__
    # Said of the function itself: those that call it are protected, too.
    return planted(owner, name, trio.lowlevel.disable_ki_protection(found))


@plant
def what_comes_behind_an_interrupt_takes_the_place_of_what_it_left() -> AbstractContextManager[
    object
]:
    """Ctrl-C meets a task while it handles what it has polled. Until the connection is closed,
    others poll, and count, what arrives behind the frames that are left.
    """
    stack = ExitStack()
    stack.enter_context(interruptible(PollableConnection, "poll"))
    stack.enter_context(
        patch.object(
            Link,
            "_interrupted",
            property(lambda self: None, lambda self, reader: None),
            create=True,
        )
    )
    return stack


@plant
def an_interrupt_meets_what_was_polled() -> AbstractContextManager[object]:
    """Likewise, but nothing is taken from that connection any more: the frame that is met, and what
    was received and not handed on, are lost nevertheless.
    """
    return interruptible(PollableConnection, "poll")


@plant
def a_stopped_spin_is_polled_on() -> AbstractContextManager[object]:
    """Until the reader has its turn, tasks poll where another poll has just stopped the spin."""
    return planted(
        PollableConnection,
        "may_be_relieved",
        property(lambda self: self.act is not None and not self._relieved),
    )


@plant
def an_interrupt_comes_between_a_call_and_its_wait() -> AbstractContextManager[object]:
    """The answer wakes a task that is not parked; or what is numbered is not written."""
    stack = ExitStack()
    stack.enter_context(interruptible(CallSender, "_call"))
    stack.enter_context(interruptible(Outbound, "post"))
    return stack


@plant
def parts_of_saves_that_were_cancelled_are_left() -> AbstractContextManager[object]:
    """Nothing deletes the parts of a save that has not succeeded."""
    return planted(StateRecords, "_owe", lambda *_: None)


@plant
def parts_of_predecessors_are_left() -> AbstractContextManager[object]:
    """An epoch does not read which parts there are."""

    def note_list(self: Any, actor: Any, entry: object) -> None:
        self._read.add(actor)

    return planted(StateRecords, "_note_list", note_list)


@plant
def parts_are_deleted_before_another_state_is_there() -> AbstractContextManager[object]:
    """A node that loads the state meanwhile finds some of its parts missing."""
    original = StateRecords.save

    async def save(self: Any, name: str, epoch: int, *state: Any) -> None:
        actor = ActorId(name, epoch)
        if (parts := self._parts.get(actor)) is not None:
            await self._delete(actor, parts, list(parts.groups))
        await original(self, name, epoch, *state)

    return planted(StateRecords, "save", save)


@plant
def parts_are_numbered_alike() -> AbstractContextManager[object]:
    """Each state of an epoch has its parts under the keys of the one before."""
    original = StateRecords.__init__

    def begin(self: Any, *given: Any, **options: Any) -> None:
        original(self, *given, **options)
        self._numbers = repeat(0)

    return planted(StateRecords, "__init__", begin)


@contextmanager
def with_bug(name: str) -> Iterator[None]:
    """The runtime with one bug. The tables are not looked through: a plant leaves some of them
    wrong by design, and the other checks, which see what users would see, are to find it.
    """
    with PLANTS[name](), planted(SimulatedCluster, "check_invariants", lambda self: None):
        yield


def first_found(name: str, seeds: int) -> tuple[int | None, list[str]]:
    """The first seed that finds the bug, and the checks that fail."""
    with with_bug(name):
        for seed in range(seeds):
            try:
                report = RUNS.get(name, simulate_once)(seed)
            except trio.TrioInternalError as error:
                return seed, [f"a node's event loop ended: {error.__cause__!r}"]
            if not report.holds:
                return seed, [result.name for result in report.wrong]
    return None, []
