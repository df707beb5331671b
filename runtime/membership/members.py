"""The members: every node's record in the store, and each node's view of all of them, in the
store's order.

A record lives under the lease of its node; when it is gone, so is the node. Its incarnation is the
store's revision at which it was written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from contextlib import suppress

import attrs
import trio

from actors.actor import Member
from actors.errors import (
    DecodeError,
    EncryptionError,
    ExpelledError,
    LeaseLostError,
    NodeNameTakenError,
    NotAllowedError,
    StoreCompactedError,
    StoreError,
)
from actors.identifiers import NodeId
from actors.messages import message
from actors.options import checked_labels, checked_resources
from actors.own_logger import own_logger
from runtime.environment import Environment, Process
from runtime.hosting.leased_names import LeasedNames
from runtime.lifetime import Lifetime
from runtime.limited_log import LimitedLog
from runtime.links.link import Link
from runtime.links.transports import Network
from runtime.membership.expulsions import MARK, Expulsion, Expulsions
from runtime.membership.lease import LeaseClock
from runtime.store.interface import Compare, Entry, Get, Put, Store, WatchBatch
from runtime.wire.codec import Codec
from runtime.wire.handshake import Peer

logger = own_logger("understudy.membership")

# Checks whether a node of the same name that is still in the store has ended: then its successor
# need not wait for its lease.

PREDECESSOR_DIAL_SECONDS = 1.0
"""How long one address of the predecessor may take to accept a connection."""

PREFIX = "nodes/"

PROOF_DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds between looks at a process whose connection has broken: it may take a moment to
be gone.
"""

LAST_ANSWERS_SECONDS = 1.0
"""How long what a process has sent before its end may take to be read here."""


def is_certainly_over(record: NodeRecord, environment: Environment, ended_lease: int = 0) -> bool:
    """True if the node's process ran on this machine and has ended, or if its lease is
    `ended_lease`, of which that is known.
    """
    return record.lease == ended_lease != 0 or environment.has_ended(record.process)


async def accepts_connections(record: NodeRecord, own: Container[str], network: Network) -> bool:
    """True if one of its addresses accepts a connection. If none does, the node may still be alive,
    so this decides only how long to wait.

    `own`: the addresses of the node that asks. It listens there already, so nothing is learned by
    dialling them: it would answer itself, and count a dead node of its own name as alive.
    """
    for address in record.addresses:
        if address.startswith("tcp:") and address not in own:
            with trio.move_on_after(PREDECESSOR_DIAL_SECONDS):
                try:
                    (await network.connect(address)).close()
                except (OSError, ValueError):
                    continue
                except EncryptionError:
                    # Something answers there, if only without TLS.
                    return True
                return True
    return False


def expulsion_key(name: str) -> str:
    """Return the key whose presence means that the node of this name is expelled."""
    return f"{PREFIX}{MARK}{name}"


@message
@attrs.frozen
class NodeRecord:
    """The record that a node writes about itself. `started` tells its process from a later one with
    the same process id; `lease` is the store's lease under which all keys of the node are.
    """

    name: str
    addresses: tuple[str, ...]
    host: str
    pid: int
    started: str
    lease: int
    joined: float
    state: str = "joining"
    labels: dict[str, str] = attrs.field(factory=dict)
    resources: dict[str, float] = attrs.field(factory=dict)

    @property
    def process(self) -> Process:
        """The process in which the node runs."""
        return Process(self.host, self.pid, self.started)


def _is_sound(record: NodeRecord) -> bool:
    """True if all fields but labels and resources have their declared types."""
    addresses: object = record.addresses
    texts: tuple[object, ...] = (record.name, record.host, record.started, record.state)
    numbers: tuple[object, ...] = (record.pid, record.lease, record.joined)
    return (
        isinstance(addresses, tuple | list)
        and all(isinstance(text, str) for text in (*texts, *addresses))
        and all(isinstance(number, int | float) for number in numbers)
    )


@attrs.frozen
class SeenMember:
    """A member with the parts of its record that only the runtime needs."""

    member: Member
    record: NodeRecord

    @property
    def incarnation(self) -> int:
        """That of the member."""
        return self.member.incarnation


@attrs.frozen(eq=False)
class UnreadMember:
    """A record as the store has it, until someone asks for the member. `before`: what was known of
    this incarnation, which stays if the record is malformed.
    """

    incarnation: int
    value: bytes
    before: SeenMember | None


class Members:
    """This node's view of the members. `run` keeps it up to date; `gone` is called once for each
    incarnation that has ended.
    """

    def __init__(
        self,
        store: Store,
        codec: Codec,
        gone: Callable[[Member], None],
        retry: float,
        expulsions: Expulsions,
        pause: Callable[[int], float],
    ) -> None:
        """`retry`: seconds between two attempts while the store cannot be reached. `expulsions`:
        kept up to date with the members. `pause`: seconds from one answer of the store to the next
        question, for so many members.
        """
        # What writes to the store may cause these lines, one with each write.
        self._log = LimitedLog(logger, trio.current_time)
        self._expulsions = expulsions
        self._pause = pause
        self._store = store
        self._retry = retry
        self._codec = codec
        self._gone = gone
        self._seen: dict[str, SeenMember | UnreadMember] = {}
        # Read when they are asked for: where N nodes start, each would read the records of all
        # others, and most of them never ask for more than a few.
        self._changed = trio.Event()
        # Incarnations that are proven to have ended, while the store still shows them: a subset of
        # `_seen`, so it needs no bound of its own.
        self._dead: set[NodeId] = set()
        self._ends: dict[NodeId, trio.Event] = {}
        """For tasks that wait for the end of an incarnation; dropped with it."""
        self.revision = 0
        """All changes up to this revision of the store are in the view."""

    def all(self) -> tuple[Member, ...]:
        """The members, by name."""
        found = [self.find(name) for name in sorted(self._seen)]
        return tuple(seen.member for seen in found if seen is not None)

    def living(self) -> list[Member]:
        """The members that are not proven to have ended, by name."""
        return [member for member in self.all() if self.is_current(member.node_id)]

    def find(self, name: str) -> SeenMember | None:
        """The member of this name."""
        seen = self._seen.get(name)
        return self._taken_up(name, seen) if isinstance(seen, UnreadMember) else seen

    def mark_dead(self, node: NodeId) -> None:
        """Note that an incarnation is proven to have ended. `all` and `find` show it until the
        store has ended its lease; `is_current` is False from now on.
        """
        # Only what the view shows: nothing else is taken out again, and a store that was lost may
        # give the same incarnation to a later node.
        if self._of(node) is not None:
            self._dead.add(node)
            self._wake_at_end(node)

    def current(self, node: NodeId) -> SeenMember | None:
        """The member that is this incarnation of the node, unless it is proven to have ended."""
        seen = self._of(node)
        return seen if seen is not None and node not in self._dead else None

    def is_current(self, node: NodeId) -> bool:
        """True if this incarnation is a member, and is not proven to have ended. If it is neither
        current nor gone (see `is_gone`), it is newer than the view.
        """
        return self.current(node) is not None

    async def wait_ended(self, node: NodeId) -> None:
        """Wait until this incarnation, which is current, is so no more."""
        while self.is_current(node):
            await self._ends.setdefault(node, trio.Event()).wait()

    def _wake_at_end(self, node: NodeId) -> None:
        ended = self._ends.pop(node, None)
        if ended is not None:
            ended.set()

    def is_gone(self, node: NodeId) -> bool:
        """True if this incarnation has certainly ended: that is proven, or the view is as new as
        the incarnation and does not show it.
        """
        seen = self._of(node)
        return node in self._dead if seen is not None else node.incarnation <= self.revision

    def staying(self, own: str) -> list[NodeId]:
        """The nodes other than `own` that are neither joining nor leaving, and are not proven to
        have ended.
        """
        others = [
            member.node_id for member in self.all() if member.state == "up" and member.name != own
        ]
        return [node for node in others if self.is_current(node)]

    def _of(self, node: NodeId) -> SeenMember | None:
        held = self._seen.get(node.name)
        return self.find(node.name) if held and held.incarnation == node.incarnation else None

    async def wait_changed(self) -> None:
        """Wait for the next change of the view."""
        await self._changed.wait()

    async def caught_up(self, revision: int) -> None:
        """Wait until the view has all changes up to `revision`, or up to the store's latest
        revision if that is lower.
        """
        if self.revision < revision:
            found = await self._store.range(PREFIX)
            self._replace(found.entries, found.revision)

    async def caught_up_with_write(self, revision: int) -> None:
        """Wait until the view has all changes up to `revision`, at which a record of a node was
        written. Reads the changes alone, where `caught_up` reads all records.
        """
        while self.revision < revision:
            try:
                self._apply(await self._store.poll(PREFIX, self.revision + 1))
            except StoreCompactedError:
                await self.caught_up(revision)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the store until cancelled; started when the first view is complete. While the
        store cannot be reached, the view stays as it is.

        The first change after a quiet time is seen at once. After it there is a pause that grows
        with the number of members, so that changes in quick succession come together: without it,
        the start or the end of N nodes would cost each of N nodes an answer for each of the others.
        """
        # Started only with a complete view: `is_gone` takes a node that is not in it for dead.
        found = await self._store.range(PREFIX)
        self._replace(found.entries, found.revision)
        task_status.started()
        away = False
        while True:
            try:
                batch = await self._store.poll(PREFIX, self.revision + 1)
                away = False
            except StoreCompactedError:
                found = await self._store.range(PREFIX)
                self._replace(found.entries, found.revision)
                continue
            except StoreError as error:
                # A store that closes together with its node is no news.
                await trio.lowlevel.checkpoint_if_cancelled()
                if not away:
                    logger.warning(
                        "cannot reach the store; the members are those last seen: %s", error
                    )
                away = True
                await trio.sleep(self._retry)
                continue
            self._apply(batch)
            if (seconds := self._pause(len(self._seen))) > 0:
                await trio.sleep(seconds)

    def _apply(self, batch: WatchBatch) -> None:
        for event in batch.events:
            # `caught_up` may have read further meanwhile than this poll had come.
            if event.revision > self.revision:
                name = event.key.removeprefix(PREFIX)
                if name.startswith(MARK):
                    self._on_expulsion(name, event.value if event.kind == "put" else None)
                elif event.kind == "put":
                    self._enter(name, event.value, event.create_revision)
                else:
                    self._leave(name)
        self._moved_to(batch.revision)

    def _replace(self, entries: tuple[Entry, ...], revision: int) -> None:
        if revision <= self.revision:
            # It holds all that already. Who waits for a change is not woken, or would ask again at
            # once, for ever.
            return
        # The store was read afresh: members that are not there have left, though no event of it was
        # seen.
        found = {entry.key.removeprefix(PREFIX): entry for entry in entries}
        present = {name: entry for name, entry in found.items() if not name.startswith(MARK)}
        expelled = {name: entry for name, entry in found.items() if name not in present}
        self._expulsions.keep_only({name.removeprefix(MARK) for name in expelled})
        for name in [name for name in self._seen if name not in present]:
            self._leave(name)
        for name, entry in present.items():
            self._enter(name, entry.value, entry.create_revision)
        for name, entry in expelled.items():
            self._on_expulsion(name, entry.value)
        self._moved_to(revision)

    def _on_expulsion(self, key: str, value: bytes | None) -> None:
        """Enter an expulsion; None: it was taken back."""
        name = key.removeprefix(MARK)
        if value is None:
            self._expulsions.drop(name)
        else:
            self._expulsions.put(Expulsion.decoded(name, value))

    def _enter(self, name: str, value: bytes, created: int) -> None:
        held = self._seen.get(name)
        if held is not None and held.incarnation != created:
            # The record was deleted and written again between two polls: both ends are reported.
            self._leave(name)
            held = None
        before = held.before if isinstance(held, UnreadMember) else held
        self._seen[name] = UnreadMember(created, value, before)

    def _taken_up(self, name: str, unread: UnreadMember) -> SeenMember | None:
        """Read a record, and keep what is in it; None for a malformed one, which is no member."""
        record = self._read(name, unread.value)
        if record is None:
            self._log.log(
                logging.ERROR, "the record of node %s in the store is malformed; ignored", name
            )
            if unread.before is None:
                del self._seen[name]
            else:
                self._seen[name] = unread.before
            return unread.before
        member = Member(
            name=name,
            incarnation=unread.incarnation,
            addresses=record.addresses,
            host=record.host,
            pid=record.pid,
            state=record.state,
            labels=dict(record.labels),
            joined=record.joined,
            resources=dict(record.resources),
        )
        seen = self._seen[name] = SeenMember(member, record)
        return seen

    def _read(self, name: str, value: bytes) -> NodeRecord | None:
        """Decode the record that a node has written about itself; None if it is malformed. Invalid
        labels and resources are left out. One malformed record must not disturb the other nodes.
        """
        try:
            record = self._codec.decode_stored(value)
        except DecodeError:
            return None
        if not isinstance(record, NodeRecord) or not _is_sound(record):
            return None
        try:
            checked_labels(record.labels)
            checked_resources(record.resources)
        except (TypeError, ValueError) as error:
            self._log.log(
                logging.ERROR,
                "node %s has invalid labels or resources; actors are not placed there by "
                "labels or resources: %s",
                name,
                error,
            )
            return attrs.evolve(record, labels={}, resources={})
        return record

    def _leave(self, name: str) -> None:
        before = self.find(name)
        # Out of the view before the callback, which may ask whether the incarnation is current.
        self._seen.pop(name, None)
        if before is not None:
            self._end(before.member)

    def _end(self, member: Member) -> None:
        self._dead.discard((member.name, member.incarnation))
        self._gone(member)
        self._wake_at_end(member.node_id)

    def check_invariants(self) -> None:
        """Assert what must hold between any two changes. Looks at all members: for tests and
        simulations.
        """
        for name, seen in self._seen.items():
            assert seen.incarnation > 0, "an incarnation is a revision of the store"
            if isinstance(seen, UnreadMember):
                assert seen.before is None or seen.before.incarnation == seen.incarnation
                continue
            assert name == seen.member.name
            assert seen.member.state == seen.record.state
            assert seen.member.addresses == seen.record.addresses
        for name, incarnation in self._dead:
            assert name in self._seen, "a proof of death is dropped with its member"
            assert self._seen[name].incarnation == incarnation, (
                "a proof of death is dropped with its member"
            )
        for node in self._ends:
            assert self.is_current(node), "no task waits for an end that is known"

    def _moved_to(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        # The new event is there before the old one wakes its waiters: they may wait again at once.
        changed, self._changed = self._changed, trio.Event()
        changed.set()


def peer_of_member(member: Member) -> Peer:
    """Return a member as a peer to dial."""
    return Peer(
        name=member.name,
        incarnation=member.incarnation,
        role="node",
        addresses=member.addresses,
        host=member.host,
    )


class MembersWatch:
    """The members, again after every change of the view. Changes between two requests are seen as
    one change. Needs no closing.
    """

    def __init__(self, members: Members, lifetime: Lifetime) -> None:
        self._members = members
        self._lifetime = lifetime
        self._seen: tuple[Member, ...] | None = None

    def __aiter__(self) -> MembersWatch:
        return self

    async def __anext__(self) -> tuple[Member, ...]:
        """The members, as soon as they differ from the last ones."""
        await trio.lowlevel.checkpoint()
        with self._lifetime.asking("the members cannot be watched"):
            while self._members.all() == self._seen:
                await self._members.wait_changed()
        # Read again, without an await since the loop saw a difference.
        self._seen = self._members.all()
        return self._seen


class Registration:
    """This node's own record and lease."""

    def __init__(
        self, store: Store, environment: Environment, record: NodeRecord, ended_lease: int = 0
    ) -> None:
        """`ended_lease`: the lease of a node whose process has certainly ended, 0 if none is known:
        its record is replaced at once.
        """
        self._store = store
        self._environment = environment
        self._timings = environment.timings
        self._ended_lease = ended_lease
        self._codec = Codec(sentinel=environment.token(8))
        self._log = LimitedLog(logger, environment.now)
        self.clock = LeaseClock(self._timings.held, environment.now())
        """Until when this node may rely on its lease."""
        self._explain: Callable[[float], str] = lambda since: ""
        self.store_is_away = False
        """True from a renewal that failed to the next that succeeded."""
        self._failed: tuple[float, float] | None = None
        """When the first and the latest of the renewals were asked for that have failed since."""
        self.record = record
        self.incarnation = 0

    def use(self, store: Store) -> None:
        """Use this access to the cluster's store from now on: a node joins as a client, and has its
        own link later.
        """
        self._store = store

    def explain_by(self, explain: Callable[[float], str]) -> None:
        """Set the function that explains a loss of the lease, which was last renewed at a time on
        the node's clock; "" if it knows no reason.
        """
        self._explain = explain

    async def enter(self, network: Network) -> int:
        """Write this node's record; returns its incarnation.

        A node of the same name whose process is known to have ended is replaced at once. For one
        that accepts no connection, its lease is waited for. Raises `NodeNameTakenError` if a live
        member has the name, and `ExpelledError` if the node of this name was expelled.
        """
        # Before the grant is asked for: the lease counts in the store from when it arrives there,
        # so this node gives up its names before the store gives them to others.
        self.clock = LeaseClock(self._timings.held, self._environment.now())
        lease = await self._store.grant(self._timings.lease)
        self.record = attrs.evolve(self.record, lease=lease)
        key = PREFIX + self.record.name
        patience = self._environment.now() + self._timings.succession
        while True:
            expelled = expulsion_key(self.record.name)
            result = await self._store.transaction(
                [Compare(key, "create_revision", 0), Compare(expelled, "create_revision", 0)],
                [Put(key, self._encoded(), lease)],
                [Get(key), Get(expelled)],
            )
            if result.succeeded:
                self.incarnation = result.revision
                return self.incarnation
            entry, expulsion = result.responses
            if isinstance(expulsion, Entry):
                await self._store.revoke(lease)
                raise ExpelledError(str(Expulsion.decoded(self.record.name, expulsion.value)))
            if isinstance(entry, Entry) and not await self._is_ending(
                entry, result.revision, patience, network
            ):
                # Given back at once, or the record of this attempt's lease would stay for its whole
                # time.
                await self._store.revoke(lease)
                raise NodeNameTakenError(
                    f"a live node is called {self.record.name!r} already; choose another name, or "
                    "wait "
                    f"{self._timings.lease:g} s if that node has just died"
                )
            # Before the request: a lease counts from when its renewal was asked for.
            self.clock.on_renewed(self._environment.now())
            await self._store.keep_alive(lease)

    async def _is_ending(
        self, entry: Entry, revision: int, patience: float, network: Network
    ) -> bool:
        """True if the node of this `entry` has ended, or may end soon."""
        try:
            before = self._codec.decode_stored(entry.value)
        except DecodeError:
            return False
        if not isinstance(before, NodeRecord):
            return False
        if is_certainly_over(before, self._environment, self._ended_lease):
            try:
                await self._store.revoke(before.lease)
            except LeaseLostError:
                # It ended of itself meanwhile.
                pass
            return True
        if self._environment.now() > patience or await accepts_connections(
            before, self.record.addresses, network
        ):
            return False
        # Less than a lease, because this node's own new lease must be renewed meanwhile.
        with trio.move_on_after(self._timings.lease / 2):
            await self._store.poll(entry.key, revision + 1)
        return True

    async def set_state(self, state: str) -> int:
        """Write this node's state into its record, for example "draining". Returns the revision of
        the write.
        """
        self.record = attrs.evolve(self.record, state=state)
        return await self._store.put(PREFIX + self.record.name, self._encoded(), self.record.lease)

    async def keep(self, names: LeasedNames) -> None:
        """Renew the lease until it is lost. Notifies `names` how long it holds, when it is in
        doubt, and when it is lost.
        """
        renewed = True
        renew_every, retry = self._timings.renew_every, self._timings.renewal_retry
        try:
            while True:
                held = self._report(names)
                # From when the last one was asked for, as the lease is counted: an answer that was
                # long in coming, from a store or a loop with much to do, must not put off the next
                # question as well.
                now = self._environment.now()
                due = self.clock.asked + renew_every if held and renewed else now + retry
                if held:
                    # The names pause in time, also between two questions that are refused.
                    due = min(due, self.clock.doubtful_at)
                await trio.sleep_until(max(due, now))
                renewed = await self._renewed(self._report(names))
        except LeaseLostError:
            silent = self._environment.now() - self.clock.asked
            why = self._explain(self.clock.asked) or self._silence()
            names.lose(
                f"its lease of {self._timings.lease:g} s has ended, last renewed {silent:.1f} s "
                f"ago{why and '; '}{why}"
            )

    def _report(self, names: LeasedNames) -> bool:
        """Notify `names` whether the lease holds, and return it. Decided by the clock: the answer
        to a renewal may have waited in this process while it was stopped.
        """
        held = self.clock.is_held(self._environment.now())
        if held:
            names.hold_until(self.clock.doubtful_at)
        else:
            names.doubt()
        return held

    async def _renewed(self, held: bool) -> bool:
        """Ask for a renewal; False if there was no answer in time."""
        asked = self._environment.now()
        # While the lease is held, a renewal may not take longer than it: the names must pause in
        # time, even while the answer is awaited.
        with trio.move_on_at(self.clock.doubtful_at if held else asked + self._timings.renew_every):
            try:
                await self._store.keep_alive(self.record.lease)
            except LeaseLostError:
                raise
            except StoreError as error:
                # `Members` logs that the store cannot be reached; the host logs that named actors
                # pause.
                # Several times a second, for as long as the store is away or is another one.
                self._log.log(logging.INFO, "the lease could not be renewed: %s", error)
                self._note_failed(asked)
                return False
            # With the time of the question, not of the answer: the store counts from when the
            # renewal reached it, which may be long before the answer is here.
            self.clock.on_renewed(asked)
            self.store_is_away, self._failed = False, None
            return True
        # No answer is the same as an error: a store whose process is stopped refuses nothing.
        self._note_failed(asked)
        return False

    def _note_failed(self, asked: float) -> None:
        self.store_is_away = True
        self._failed = (self._failed[0] if self._failed is not None else asked, asked)

    def _silence(self) -> str:
        """How long the store did not answer; "" if this node may have stood still itself, so that
        it did not ask.
        """
        first, latest = self._failed or (0.0, 0.0)
        if latest - first < self._timings.renew_every:
            return ""
        return f"the store did not answer for {latest - first:.0f} s"

    async def leave(self) -> None:
        """Revoke the lease, which deletes the record and all names."""
        try:
            await self._store.revoke(self.record.lease)
        except LeaseLostError:
            pass

    def _encoded(self) -> bytes:
        segments: list[object] = []
        encoded = self._codec.encode(self.record, segments)  # type: ignore[arg-type]
        # A record with segments is none that others can read: labels, resources, names and
        # addresses are bounded where they are given (`actors.options`).
        assert not segments, "the record of a node is small"
        return encoded


# The failure detector: proof that another node's process has ended.
#
# A broken connection proves nothing. The end of the process does, and on the same machine the
# kernel reports it. Then the lease is revoked, so that all nodes learn of the death at once and not
# when the lease runs out.


class FailureDetector:
    """Calls `ended(identity, reason)` for each incarnation of a node that is proven to have ended,
    and `client_ended(peer, reason)` for each client: the process that is no member's.

    `revokes`: end the leases of those nodes in the store. Otherwise members do so themselves.
    """

    def __init__(
        self,
        members: Members,
        store: Store,
        environment: Environment,
        nursery: trio.Nursery,
        links: Mapping[NodeId, Link],
        ended: Callable[[NodeId, str], None],
        client_ended: Callable[[Peer, str], None],
        *,
        revokes: bool,
    ) -> None:
        self._links = links
        self._revokes = revokes
        self._client_ended = client_ended
        self._members = members
        self._environment = environment
        self._store = store
        self._nursery = nursery
        self._ended = ended

    def is_outdated(self, peer: Peer) -> bool:
        """True for an incarnation of a node that has certainly ended; see `Members.is_gone`."""
        return peer.role == "node" and self._members.is_gone(peer.identity)

    def connection_broken(self, link: Link) -> None:
        """Check whether the process at the other end of a broken connection still exists."""
        self._nursery.start_soon(self._look_for_proof, link)

    async def _look_for_proof(self, link: Link) -> None:
        seen = self._members.current(link.peer.identity)
        if seen is not None:
            if await self._is_proven(link, seen.record.process):
                await self._on_proven(seen)
        # A client has no record: over a Unix socket the kernel reports which process it is. The
        # processes of this node's own actors are watched by the code that starts them.
        elif (
            link.peer.role == "client"
            and not link.watched
            and link.process is not None
            and await self._is_proven(link, link.process)
        ):
            self._client_ended(link.peer, f"its process {link.process.pid} has ended")

    async def _on_proven(self, seen: SeenMember) -> None:
        self._ended(seen.member.node_id, f"its process {seen.record.pid} has ended")
        # A process that is no member has no right to it: its request would be refused, and that
        # would be a line of the audit log, though no operator has anything to look into.
        if self._revokes:
            # Another node has revoked it, or the store ended with that node. One without the right,
            # by its certificate or by an `authorize` of the application, leaves it to others.
            with suppress(StoreError, NotAllowedError):
                await self._store.revoke(seen.record.lease)

    async def see_end(self, name: str, pid: int) -> None:
        """The process `pid` of this machine, in which the node called `name` ran, has ended. Return
        when this node knows the incarnation as ended, so that no later call is sent to it: such a
        call may have an unknown outcome, though it certainly does not run. After
        `LAST_ANSWERS_SECONDS` in any case.
        """
        seen = self._members.find(name)
        # The record may be that of a successor, also one with the same process id.
        if (
            seen is None
            or seen.record.pid != pid
            or not self._environment.has_ended(seen.record.process)
        ):
            return
        node = seen.member.node_id
        link = self._links.get(node)
        if self._members.is_current(node) and (link is None or not link.connected):
            # Nothing that it has sent waits to be read.
            self._nursery.start_soon(self._on_proven, seen)
        # The answers that it has sent come before the end of its connection, which is proof. Its
        # end may also come from the store, before its connection breaks.
        with trio.move_on_after(LAST_ANSWERS_SECONDS):
            await self._members.wait_ended(node)

    async def _is_proven(self, link: Link, process: Process) -> bool:
        """True if the process at the other end of a broken connection has ended; False if it cannot
        be seen from here, has come back, or still runs after a while.
        """
        if not process.host or process.host != self._environment.process().host:
            return False
        for delay in PROOF_DELAYS:
            await trio.sleep(delay)
            if link.connected or link.ended is not None:
                return False
            if self._environment.has_ended(process):
                return True
        return False
