"""Groups: write this node's memberships to the store, and follow the groups that are asked for
here.

A node knows its own members without the store. A group is followed as long as its `Followed` object
is referenced; the following task checks this every `GROUP_LOOK_SECONDS`. `KeptGroups` references
it for a while after it was asked for.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

import attrs
import trio

from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    BadArgumentsError,
    CallError,
    ConnectionLostError,
    DecodeError,
    EmptyGroupError,
    LeaseLostError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    StaleEpochError,
    StoreCompactedError,
    StoreError,
    StoreOutcomeUnknownError,
)
from actors.groups import Answer, checked_group_name
from actors.identifiers import NodeId
from actors.method import Address, BoundMethod, Method
from actors.options import NO_CALL_OPTIONS, CallChanges, CallOptions
from actors.own_logger import own_logger
from actors.short_repr import short_repr
from actors.supervision import ExitReason
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.routes import passed_over
from runtime.environment import Environment, first, raise_as_it_is
from runtime.error_to_raise import ErrorToRaise
from runtime.groups.followed_groups import Followed, KeptGroups
from runtime.groups.memberships import (
    GroupMembership,
    GroupRecord,
    GroupWrite,
    LocalMemberships,
    from_plain,
    plain,
    prefix_of,
)
from runtime.hosting.cell import ActorCell
from runtime.limited_log import LimitedLog
from runtime.membership.members import Members
from runtime.printable import many
from runtime.store.interface import Compare, Delete, Entry, Get, Put, Store

GROUP_RETRY_SECONDS = 0.5
"""Seconds between two attempts while the store cannot be reached."""


GROUP_LOOK_SECONDS = 30.0
"""Seconds between two checks whether a followed group is still held."""


logger = own_logger("understudy.groups")

P = ParamSpec("P")

R = TypeVar("R")

A = TypeVar("A")

_ENDED: Final = (
    ActorDiedError,
    ActorNotFoundError,
    ConnectionLostError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    StaleEpochError,
)
"""What a one-way call of a member raises that, or whose node, has ended or cannot be reached."""

MOST_AT_ONCE = 100
"""How many calls of one `call_all` may be under way at once."""


class Groups:
    """The groups of one node; implements `runtime.hosting.host.HostExtension`. `lease`: the node's;
    when it ends, the store drops the node's memberships.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        store: Store,
        members: Members,
        lease: int,
        environment: Environment,
        nursery: trio.Nursery,
    ) -> None:
        self.endpoint = endpoint
        self.identity = endpoint.identity
        self.environment = environment
        self._log = LimitedLog(logger, environment.now)
        self._store = store
        self._members = members
        self._lease = lease
        self._nursery = nursery
        self._memberships = LocalMemberships(*endpoint.identity)
        self._dirty = trio.Event()
        self._followed: weakref.WeakValueDictionary[str, Followed] = weakref.WeakValueDictionary()
        self._kept = KeptGroups()

    def of(self, cell: ActorCell) -> ActorGroupsAdapter:
        """Return the memberships of one actor, as it sees them."""
        return ActorGroupsAdapter(self, cell)

    def on_ending(self, cell: ActorCell) -> None:
        """The actor takes no more mail: it leaves all its groups."""
        for group in self._memberships.on_ended(cell.address.actor_id):
            self._changed(group)

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """Does nothing: the actor left its groups when it began to end."""

    def join(self, group: str, address: Address) -> None:
        """Add an actor of this node to the group, once more if it is a member already."""
        self._memberships.join(group, address)
        self._changed(group)

    def leave(self, group: str, address: Address) -> bool:
        """Undo one `join`; False if it is not a member."""
        left = self._memberships.leave(group, address.actor_id)
        if left:
            self._changed(group)
        return left

    def followed(self, group: str) -> Followed:
        """Return the view of a group, which is followed from now on. Raises ValueError for an
        invalid name.
        """
        group = checked_group_name(group)
        followed = self._followed.get(group)
        if followed is None:
            followed = self._followed[group] = Followed(group, self.endpoint.identity[1])
            self._nursery.start_soon(
                self._follow, group, weakref.ref(followed), followed.scope, name=f"group {group}"
            )
        self._kept.keep(followed)
        return followed

    def members(self, followed: Followed) -> tuple[object, list[GroupMembership]]:
        """Return a value that changes with the members, and the members, those of this node
        first.
        """
        # A node that drains is left out by all others, and so by itself.
        here = [] if self.endpoint.host.draining else self._memberships.members(followed.name)
        return self.state(followed), here + followed.view.members(self._lives)

    def state(self, followed: Followed) -> object:
        """Return a value that is equal as long as the members are the same."""
        live = frozenset(filter(self._lives, followed.view.nodes()))
        return (
            self.endpoint.host.draining,
            self._memberships.version(followed.name),
            followed.view.version,
            live,
        )

    def on_members_changed(self) -> None:
        """The members of the cluster have changed, or one is known to have ended."""
        for followed in list(self._followed.values()):
            followed.notify()

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every member: for tests and
        simulations.
        """
        self._memberships.check_invariants()
        for followed in self._followed.values():
            followed.view.check_invariants()

    def loads(self) -> dict[str, int]:
        """Counts of the present entries, by name."""
        return {"memberships": len(self._memberships), "groups followed": len(self._followed)}

    async def run(self) -> None:
        """Write this node's changes to the store, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_members)
            nursery.start_soon(self._write)

    def _lives(self, node: NodeId) -> bool:
        seen = self._members.current(node)
        return seen is not None and seen.member.state != "draining"

    def _changed(self, group: str) -> None:
        self._dirty.set()
        followed = self._followed.get(group)
        if followed is not None:
            followed.notify()

    async def _follow_members(self) -> None:
        while True:
            await self._members.wait_changed()
            self.on_members_changed()

    async def _write(self) -> None:
        while True:
            await self._dirty.wait()
            # Renewed before the batches are taken: a change during the last write counts.
            self._dirty = trio.Event()
            while self._memberships.is_dirty:
                if not await self._write_batch(self._memberships.batch()):
                    await trio.sleep(GROUP_RETRY_SECONDS)

    async def _write_batch(self, writes: list[GroupWrite]) -> bool:
        """Write one batch; False if it must be tried again after a while."""
        try:
            result = await self._store.transaction(
                # Conditional on the revisions that this node knows: an earlier write of unknown
                # outcome that arrived late makes this one fail, and then its revisions are read.
                [Compare(write.key, "mod_revision", write.revision) for write in writes],
                [
                    Delete(write.key)
                    if write.record is None
                    else Put(write.key, self._encode(write.record), self._lease)
                    for write in writes
                ],
                [Get(write.key) for write in writes],
            )
        except trio.Cancelled:
            # The transaction may be on its way.
            self._memberships.on_doubtful()
            raise
        except StoreOutcomeUnknownError:
            self._memberships.on_doubtful()
            return False
        except StoreError as error:
            self._memberships.on_not_written()
            if isinstance(error, LeaseLostError):
                # The node is about to leave: nothing of it is in the store any more.
                await trio.sleep_forever()
            return False
        if result.succeeded:
            self._memberships.on_written(result.revision, writes)
        else:
            found = dict(zip((write.key for write in writes), result.responses, strict=True))
            self._memberships.on_refused(
                {
                    key: entry.mod_revision if isinstance(entry, Entry) else 0
                    for key, entry in found.items()
                }
            )
        return True

    async def _follow(
        self, group: str, reference: weakref.ref[Followed], scope: trio.CancelScope
    ) -> None:
        """Keep a view up to date while its group is held. This task has only a weak reference to it
        while it waits for the store.
        """
        prefix, seen = prefix_of(group), 0
        next_look = trio.current_time() + GROUP_LOOK_SECONDS
        with scope:
            while True:  # noqa: ASYNC913  whatever it comes to, it waits for the store
                # The poll is interrupted from time to time to check whether the group is still
                # held. A first read is not: it ends by itself, and who waits for the group hears
                # how.
                with trio.move_on_at(next_look if seen else math.inf):
                    try:
                        seen = await self._read(prefix, seen, reference)
                    except StoreCompactedError:
                        # Changes were missed: everything is read again.
                        seen = 0
                    except StoreError as error:
                        await self._on_unread(prefix, error, reference)
                now = trio.current_time()
                if now >= next_look:
                    next_look = now + GROUP_LOOK_SECONDS
                    if reference() is not None:  # Otherwise another one has the name, perhaps.
                        self._kept.release(group)
                # The group is not held any more.
                if reference() is None:
                    return

    async def _read(self, prefix: str, seen: int, reference: weakref.ref[Followed]) -> int:
        """Read a group for the first time, or the next changes after the revision `seen`. Returns
        the revision that the view has then.
        """
        # No strong reference may be held during a wait for the store: it would keep the group
        # followed.
        if not seen:
            found = await self._store.range(prefix)
            revision = found.revision
            records = {entry.key: self._decode(entry.key, entry.value) for entry in found.entries}
            if (followed := reference()) is not None:
                followed.view.replace(
                    {key: record for key, record in records.items() if record is not None},
                    revision,
                )
        else:
            batch = await self._store.poll(prefix, seen + 1)
            revision = batch.revision
            changes = [
                (event.key, self._decode(event.key, event.value) if event.kind == "put" else None)
                for event in batch.events
            ]
            if (followed := reference()) is not None:
                followed.view.change(changes, revision)
        if followed is not None:
            followed.problem = None
            followed.ready.set()
            followed.notify()
        return revision

    async def _on_unread(
        self, prefix: str, error: StoreError, reference: weakref.ref[Followed]
    ) -> None:
        logger.info(
            "cannot read group %s from the store; its members are those last seen: %s",
            prefix,
            error,
        )
        if (followed := reference()) is not None:
            followed.problem = error
            followed.notify()
        # It would keep the group followed.
        del followed
        await trio.sleep(GROUP_RETRY_SECONDS)

    def _encode(self, record: GroupRecord) -> bytes:
        segments: list[Any] = []
        return self.endpoint.codec.encode(plain(record), segments)

    def _decode(self, key: str, value: bytes) -> GroupRecord | None:
        try:
            return from_plain(self.endpoint.codec.decode_stored(value))
        except (DecodeError, TypeError, ValueError) as error:
            self._log.log(
                logging.ERROR,
                "the record %s in the store cannot be decoded as a group record; it is ignored: %s",
                key,
                error,
            )
            return None


@attrs.frozen
class ActorGroupsAdapter:
    """The memberships of one actor, as `actors.actor.ActorGroups` offers them to it."""

    _groups: Groups
    _cell: ActorCell

    async def join(self, group: str) -> None:
        """Join a group. Raises ValueError for an invalid name, and RuntimeError if the actor has
        ended.
        """
        group = checked_group_name(group)
        await trio.lowlevel.checkpoint()
        if self._cell.ended is not None:
            raise RuntimeError(f"{self._cell.address.name} has ended; it can no longer join groups")
        self._groups.join(group, self._cell.address)

    async def leave(self, group: str) -> bool:
        """Undo one `join`; False if there is none left."""
        await trio.lowlevel.checkpoint()
        return self._groups.leave(group, self._cell.address)


# A group as users have it: the implementation of `actors.groups.Group`.


class GroupSource(Protocol):
    """Provides groups and calls to their members: `Groups` in a node, and a client of the node in
    the process of an isolated actor.
    """

    @property
    def identity(self) -> NodeId:
        """The node whose members come first."""
        ...

    @property
    def endpoint(self) -> RpcEndpoint:
        """The endpoint that makes the calls."""
        ...

    @property
    def environment(self) -> Environment:
        """The environment, for random choices among members."""
        ...

    def followed(self, group: str) -> Followed:
        """Return a group, which is followed from now on. Raises ValueError for an invalid name."""
        ...

    def members(self, followed: Followed) -> tuple[object, list[GroupMembership]]:
        """Return the state of a group, and its members, those of the node first."""
        ...

    def state(self, followed: Followed) -> object:
        """Return a value that is equal as long as the members are the same."""
        ...


class ProcessGroup(Generic[A]):
    """A group, seen from one node. It is followed as long as this object is referenced."""

    def __init__(
        self,
        groups: GroupSource,
        followed: Followed,
        actor: Callable[..., A],
        options: CallOptions = NO_CALL_OPTIONS,
    ) -> None:
        self._groups = groups
        self._followed = followed
        self._actor = actor
        self._options = options
        self._state: object = None
        self._handles: tuple[A, ...] = ()
        self._nodes: tuple[NodeId, ...] = ()
        """The node of each of `_handles`."""
        self._local = 0
        """How many of them, at the beginning, are on this node."""

    @property
    def name(self) -> str:
        """The group's name."""
        return self._followed.name

    def options(self, **changes: Unpack[CallChanges]) -> ProcessGroup[A]:
        """Return a copy whose members are called with these options."""
        return ProcessGroup(
            self._groups, self._followed, self._actor, CallOptions(**changes).over(self._options)
        )

    async def ready(self) -> ProcessGroup[A]:
        """Wait until this node has seen all members once; returns this group. Raises `StoreError`
        if they cannot be read.
        """
        followed = self._followed
        with self._groups.endpoint.lifetime.asking(
            f"the members of the group {self.name!r} could not be read"
        ):
            while not followed.ready.is_set():
                await followed.wait_changed()
                if followed.problem is not None:
                    # The same for all who wait: without the frames of the others.
                    raise followed.problem.with_traceback(None)
            await trio.lowlevel.checkpoint()
        return self

    def members(self) -> tuple[A, ...]:
        """Return the handles of the members, those on this node first. Never waits."""
        self._groups.endpoint.lifetime.check()
        state = self._groups.state(self._followed)
        if state != self._state:
            self._state, found = self._groups.members(self._followed)
            here = self._groups.identity
            self._handles = tuple(
                handle for one in found for handle in [self._handle(one)] * one.times
            )
            self._nodes = tuple(one.address.node_id for one in found for _ in range(one.times))
            self._local = sum(one.times for one in found if one.address.node_id == here)
            assert len(self._nodes) == len(self._handles) >= self._local
        return self._handles

    def choose(self) -> A:
        """Return a random member: of this node if it has any, otherwise of a node that can be
        reached now. Raises `EmptyGroupError`.
        """
        members, draw = self.members(), self._groups.environment.random()
        if not members:
            raise EmptyGroupError(
                f"the group {self.name!r} has no members that node {self._groups.identity[0]} "
                "knows of; "
                "wait with `async for members in group.watch()` until it has"
            )
        drawn = int(draw * (self._local or len(members)))
        if not self._is_unreachable(self._nodes[drawn]):
            return members[drawn]
        reachable = [
            member
            for member, node in zip(members, self._nodes, strict=True)
            if not self._is_unreachable(node)
        ]
        if not reachable:
            raise EmptyGroupError(
                f"the group {self.name!r} has {len(members)} members, and node "
                f"{self._groups.identity[0]} cannot reach the node of any of "
                "them at the moment; call a handle of one of `members()` to wait until it can"
            )
        return reachable[int(draw * len(reachable))]

    async def broadcast(self, method: Method[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Call a method of all reachable members one way; returns how many it was sent to. Waits
        while a connection has no room. Raises TypeError for another object than a method,
        `BadArgumentsError` for arguments that it does not take, and `EncodeError`; once all others
        are done, what the call of a member has raised for another reason than the member's end.
        """
        handed = 0
        refusals: list[CallError] = []
        lifetime = self._groups.endpoint.lifetime

        async def send(bounds: Iterable[BoundMethod[P, object]]) -> None:
            nonlocal handed
            for bound in bounds:
                try:
                    await bound.send(*args, **kwargs)
                except BadArgumentsError:
                    # They fit the method of no member.
                    raise
                except _ENDED:
                    # The member or its node has just ended, so it is no member any more. If this
                    # node itself has ended, this raises.
                    lifetime.check()
                except CallError as error:
                    lifetime.check()
                    # A filter has refused it, for example: that says nothing about the others.
                    refusals.append(error)
                else:
                    handed += 1

        by_node: dict[str, list[BoundMethod[P, object]]] = {}
        for one, bound in await self._bound(method):
            if not self._is_unreachable(one.address.node_id):
                by_node.setdefault(one.address.node, []).append(bound)
        try:
            # One task for each node: a node whose link has no room delays only its own members.
            async with trio.open_nursery() as nursery:
                for bounds in by_node.values():
                    nursery.start_soon(send, bounds)
        except BaseExceptionGroup as group:
            # What cannot be encoded cannot be sent to any of them: one error is enough.
            raise_as_it_is(first(group))
        if refusals:
            refusal = ErrorToRaise(refusals[0])
            refusals[0].add_note(f"a broadcast, which was sent to {many(handed, 'member')}")
            # No circle with this frame, which the traceback has.
            refusals.clear()
            refusal.raise_it()
        return handed

    async def call_all(
        self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members in parallel, `MOST_AT_ONCE` at a time; returns one answer
        for each of `members()`, in that order. Raises TypeError for another object than a method,
        and `EncodeError`.
        """
        asked = await self._bound(method)
        answers: list[Answer[R] | None] = [None] * len(asked)
        limit = trio.CapacityLimiter(MOST_AT_ONCE)

        async def call(index: int, one: GroupMembership, bound: BoundMethod[P, R]) -> None:
            # Before it takes one of the places: it would keep it until its deadline.
            if self._is_unreachable(one.address.node_id):
                error = passed_over(one.address, bound._definition.name)
                answers[index] = Answer(self._handle(one), None, error)
                return
            async with limit:
                try:
                    answers[index] = Answer(self._handle(one), await bound(*args, **kwargs))
                except CallError as error:
                    answers[index] = Answer(self._handle(one), None, error)

        try:
            async with trio.open_nursery() as nursery:
                for index, (one, bound) in enumerate(asked):
                    nursery.start_soon(call, index, one, bound)
        except BaseExceptionGroup as group:
            raise_as_it_is(first(group))
        return [answer for answer in answers if answer is not None]

    def watch(self) -> GroupWatch[A]:
        """Return an iterator over the members: at once, and again after each change."""
        return GroupWatch(self)

    async def wait_other_than(self, seen: object) -> tuple[object, tuple[A, ...]]:
        """Wait until the members differ from `seen`. Returns a value to pass as the next `seen`,
        and the members.
        """
        await self.ready()
        with self._groups.endpoint.lifetime.asking(f"the group {self.name!r} cannot be watched"):
            while True:
                _, found = self._groups.members(self._followed)
                if found != seen:
                    return found, self.members()
                await self._followed.wait_changed()

    async def _bound(self, method: Method[P, R]) -> list[tuple[GroupMembership, BoundMethod[P, R]]]:
        """Return each member with its method, as often as it is a member."""
        if not isinstance(method, Method):
            raise TypeError(
                "a group is called by a method of its class, group.broadcast(Reader.on_news, "
                f"...), not by {short_repr(method)}"
            )
        await self.ready()
        _, found = self._groups.members(self._followed)
        name = method.definition.name
        # The member is this epoch of the actor: if it has ended, the call must not wait for the
        # name's next epoch.
        there = [
            (one, attrs.evolve(one, address=attrs.evolve(one.address, registered=False)))
            for one in found
        ]
        return [
            (one, cast("BoundMethod[P, R]", getattr(self._handle(fixed), name)))
            for one, fixed in there
            for _ in range(one.times)
        ]

    def _is_unreachable(self, node: NodeId) -> bool:
        return self._groups.endpoint.peers.is_unreachable(node)

    def _handle(self, one: GroupMembership) -> Any:
        handle = self._groups.endpoint.make_handle(one.address, self._actor)
        options = self._options
        return (
            handle
            if options.is_default
            else handle.options(timeout=options.timeout, retry=options.retry)
        )


class GroupWatch(Generic[A]):
    """Yields the members of a group after every change. It need not be closed."""

    def __init__(self, group: ProcessGroup[A]) -> None:
        self._group = group
        self._seen: object = None

    def __aiter__(self) -> GroupWatch[A]:
        return self

    async def __anext__(self) -> tuple[A, ...]:
        """Return the members, once they differ from those that were returned last."""
        await trio.lowlevel.checkpoint()
        self._seen, members = await self._group.wait_other_than(self._seen)
        return members
