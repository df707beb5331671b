"""A group as users hold it; see `actors.groups.Group`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

import attrs
import trio

from actors.errors import CallError, EmptyGroupError, NodeUnreachableError
from actors.groups import Answer
from actors.method import BoundMethod, Method
from actors.options import NO_CALL_OPTIONS, CallChanges, CallOptions
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.exception_groups import first
from runtime.groups.groups import Followed
from runtime.groups.records import Membership

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

MOST_AT_ONCE = 100
"""Calls of one `call_all` under way."""


class Sight(Protocol):
    """What is seen of groups, and whose calls reach their members: a node, or a process of an isolated actor."""

    @property
    def identity(self) -> tuple[str, int]:
        """The node whose members come first."""
        ...

    @property
    def station(self) -> Station:
        """It makes the calls."""
        ...

    @property
    def environment(self) -> Environment:
        """It draws among members."""
        ...

    def members(self, followed: Followed) -> tuple[object, list[Membership]]:
        """The state of a group, and its members, those of the node first."""
        ...

    def state(self, followed: Followed) -> object:
        """Equal as long as the members are the same."""
        ...


class ProcessGroup(Generic[A]):
    """A group, seen from one node. To hold it is what keeps it followed."""

    def __init__(self, groups: Sight, followed: Followed, actor: Callable[..., A], options: CallOptions = NO_CALL_OPTIONS) -> None:
        self._groups = groups
        self._followed = followed
        self._actor = actor
        self._options = options
        self._state: object = None
        self._handles: tuple[A, ...] = ()
        self._nodes: tuple[tuple[str, int], ...] = ()
        """Where they are, one by one."""
        self._local = 0

    @property
    def name(self) -> str:
        """The group's name."""
        return self._followed.name

    def options(self, **changes: Unpack[CallChanges]) -> ProcessGroup[A]:
        """See `Group.options`."""
        return ProcessGroup(self._groups, self._followed, self._actor, CallOptions(**changes).over(self._options))

    async def ready(self) -> ProcessGroup[A]:
        """See `Group.ready`."""
        followed = self._followed
        with self._groups.station.lifetime.asking(f"the members of the group {self.name!r} could not be read"):
            while not followed.ready.is_set():
                await followed.wait_changed()
                if followed.problem is not None:
                    raise followed.problem
            await trio.lowlevel.checkpoint()
        return self

    def members(self) -> tuple[A, ...]:
        """See `Group.members`."""
        self._groups.station.lifetime.check()
        state = self._groups.state(self._followed)
        if state != self._state:
            self._state, found = self._groups.members(self._followed)
            here = self._groups.identity
            self._handles = tuple(handle for one in found for handle in [self._handle(one)] * one.times)
            self._nodes = tuple(_node(one) for one in found for _ in range(one.times))
            self._local = sum(one.times for one in found if _node(one) == here)
        return self._handles

    def choose(self) -> A:
        """See `Group.choose`."""
        members, draw = self.members(), self._groups.environment.random()
        if not members:
            raise EmptyGroupError(
                f"the group {self.name!r} has no members that node {self._groups.identity[0]} knows of; "
                "wait with `async for members in group.watch()` until it has"
            )
        drawn = int(draw * (self._local or len(members)))
        if not self._is_unreachable(self._nodes[drawn]):
            return members[drawn]
        reachable = [member for member, node in zip(members, self._nodes, strict=True) if not self._is_unreachable(node)]
        if not reachable:
            raise EmptyGroupError(
                f"the group {self.name!r} has {len(members)} members, and node {self._groups.identity[0]} cannot reach the node of any of "
                "them at the moment; call a handle of one of `members()` to wait until it can"
            )
        return reachable[int(draw * len(reachable))]

    async def broadcast(self, method: Method[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """See `Group.broadcast`."""
        handed = 0
        lifetime = self._groups.station.lifetime

        async def send(bounds: Iterable[BoundMethod[P, object]]) -> None:
            nonlocal handed
            for bound in bounds:
                try:
                    await bound.send(*args, **kwargs)
                except CallError:
                    # It has just ended, or its node has: no member any more. Of this node itself that is news.
                    lifetime.check()
                    continue
                handed += 1

        by_node: dict[str, list[BoundMethod[P, object]]] = {}
        for one, bound in await self._bound(method):
            if not self._is_unreachable(_node(one)):
                by_node.setdefault(one.address.node, []).append(bound)
        try:
            # A node that has no room holds up its own members only.
            async with trio.open_nursery() as nursery:
                for bounds in by_node.values():
                    nursery.start_soon(send, bounds)
        except BaseExceptionGroup as group:
            # What cannot be sent cannot be sent to any of them.
            raise first(group) from None
        return handed

    async def call_all(self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[Answer[R]]:
        """See `Group.call_all`."""
        asked = await self._bound(method)
        answers: list[Answer[R] | None] = [None] * len(asked)
        limit = trio.CapacityLimiter(MOST_AT_ONCE)

        async def call(index: int, one: Membership, bound: BoundMethod[P, R]) -> None:
            if self._is_unreachable(_node(one)):
                answers[index] = Answer(self._handle(one), None, _passed_over(one, bound))
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
            raise first(group) from None
        return [answer for answer in answers if answer is not None]

    def watch(self) -> GroupWatch[A]:
        """See `Group.watch`."""
        return GroupWatch(self)

    async def wait_other_than(self, seen: object) -> tuple[object, tuple[A, ...]]:
        """The members, and what tells them from others, as soon as they are not those of `seen`."""
        await self.ready()
        with self._groups.station.lifetime.asking(f"the group {self.name!r} cannot be watched"):
            while True:
                _, found = self._groups.members(self._followed)
                if found != seen:
                    return found, self.members()
                await self._followed.wait_changed()

    async def _bound(self, method: Method[P, R]) -> list[tuple[Membership, BoundMethod[P, R]]]:
        """The method of each member, as often as it is one."""
        if not isinstance(method, Method):
            raise TypeError(f"a group is called by a method of its class, group.broadcast(Reader.on_news, ...), not by {method!r}")
        await self.ready()
        _, found = self._groups.members(self._followed)
        name = method.definition.name
        # The member is this epoch of the actor: nothing is to be waited for when it is gone.
        there = [(one, attrs.evolve(one, address=attrs.evolve(one.address, registered=False))) for one in found]
        return [(one, cast("BoundMethod[P, R]", getattr(self._handle(fixed), name))) for one, fixed in there for _ in range(one.times)]

    def _is_unreachable(self, node: tuple[str, int]) -> bool:
        return self._groups.station.peers.is_unreachable(node)

    def _handle(self, one: Membership) -> Any:
        handle = self._groups.station.make_handle(one.address, self._actor)
        options = self._options
        return handle if options.is_default else handle.options(timeout=options.timeout, retry=options.retry)


def _node(one: Membership) -> tuple[str, int]:
    return one.address.node, one.address.incarnation


def _passed_over(one: Membership, bound: BoundMethod[..., Any]) -> NodeUnreachableError:
    name, method, node = one.address.name, bound.definition.name, one.address.node
    return NodeUnreachableError(
        f"{name}.{method} was not called: node {node} cannot be reached at the moment", actor=name, method=method, node=node
    )


class GroupWatch(Generic[A]):
    """The members, again after every change. Needs no closing."""

    def __init__(self, group: ProcessGroup[A]) -> None:
        self._group = group
        self._seen: object = None

    def __aiter__(self) -> GroupWatch[A]:
        return self

    async def __anext__(self) -> tuple[A, ...]:
        """The members, as soon as they are others than the last time."""
        await trio.lowlevel.checkpoint()
        self._seen, members = await self._group.wait_other_than(self._seen)
        return members
