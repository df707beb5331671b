"""The groups of an isolated actor. Its node keeps the memberships, and is asked to change them;
what the actor sees of a group follows the node's view, a moment later.
"""

from __future__ import annotations

import weakref
from contextlib import aclosing

import attrs
import trio

from actors.errors import CallError
from actors.groups import checked_group_name
from actors.identifiers import NodeId
from actors.method import Address
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.groups.followed_groups import Followed, KeptGroups
from runtime.groups.memberships import GroupMembership
from runtime.hosting.cell import ActorCell
from runtime.isolation.node_api import NodeApi

FOLLOWED_GROUP_LOOK_SECONDS = 5.0
"""Seconds between two checks whether the actor still holds a group that is followed. A group is
followed for at least that long.
"""

GROUP_AGAIN_SECONDS = 0.5
"""Seconds until the node is asked again for a group that it could not read."""


class GroupsClient:
    """The groups that the isolated actor holds; implements `runtime.groups.groups.GroupSource`.
    `identity`: the node's.
    """

    def __init__(
        self,
        identity: NodeId,
        endpoint: RpcEndpoint,
        environment: Environment,
        api: NodeApi,
        nursery: trio.Nursery,
    ) -> None:
        self.identity = identity
        self.endpoint = endpoint
        self.environment = environment
        self._api = api
        self._nursery = nursery
        self._followed: weakref.WeakValueDictionary[str, Followed] = weakref.WeakValueDictionary()
        self._kept = KeptGroups()
        self._seen: weakref.WeakKeyDictionary[Followed, tuple[int, list[GroupMembership]]] = (
            weakref.WeakKeyDictionary()
        )
        self._version = 0

    def followed(self, group: str) -> Followed:
        """Return the group, and follow it from now on. Raises ValueError if this cannot be the name
        of a group.
        """
        group = checked_group_name(group)
        followed = self._followed.get(group)
        if followed is None:
            followed = self._followed[group] = Followed(group, self.identity[1])
            self._nursery.start_soon(
                self._follow, group, weakref.ref(followed), followed.scope, name=f"group {group}"
            )
        self._kept.keep(followed)
        return followed

    def members(self, followed: Followed) -> tuple[object, list[GroupMembership]]:
        """Return a value that changes with the members of a group, and the members, those of the
        node first.
        """
        return self._seen.get(followed, (0, []))

    def state(self, followed: Followed) -> object:
        """Return a value that is equal as long as the members are the same."""
        return self._seen.get(followed, (0, []))[0]

    async def _follow(
        self, group: str, reference: weakref.ref[Followed], scope: trio.CancelScope
    ) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, group, reference)
                while (followed := reference()) is not None:
                    # A weak reference has no event for the end of its object, so this task looks
                    # now and then. It drops its own reference meanwhile, which would keep the
                    # object alive.
                    del followed
                    await trio.sleep(FOLLOWED_GROUP_LOOK_SECONDS)
                    if reference() is not None:  # Otherwise another one has the name, perhaps.
                        self._kept.release(group)
                nursery.cancel_scope.cancel()

    async def _read(self, group: str, reference: weakref.ref[Followed]) -> None:
        while True:
            try:
                async with aclosing(self._api.watch_group(group)) as all_members:
                    async for addresses in all_members:
                        self._see(reference(), addresses)
            except CallError as error:
                # The node cannot read the group, as while the store is away. Or the connection to
                # the node is gone, and soon this process: then this is cancelled.
                self._fail(reference(), error)
            await trio.sleep(GROUP_AGAIN_SECONDS)

    def _fail(self, followed: Followed | None, error: CallError) -> None:
        """Tell those who wait for the group why it cannot be followed at the moment. Its members
        are those last seen.
        """
        if followed is not None:
            # Without the frames, which those who wait must not share.
            followed.problem = error.with_traceback(None)
            followed.notify()

    def _see(self, followed: Followed | None, addresses: tuple[Address, ...]) -> None:
        if followed is not None:
            self._version += 1
            self._seen[followed] = (
                self._version,
                [GroupMembership(address, 1) for address in addresses],
            )
            followed.problem = None
            followed.ready.set()
            followed.notify()


class JoiningClient:
    """The memberships of the actor in this process; see
    `runtime.hosting.host.HostExtension`.
    """

    def __init__(self, api: NodeApi) -> None:
        self._api = api

    def of(self, cell: ActorCell) -> ActorGroupsClient:
        """Return the memberships of one actor, as it sees them."""
        return ActorGroupsClient(self._api, cell)

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: the node does it."""

    def on_ended(self, address: object, reason: object) -> None:
        """Does nothing: the node does it."""


@attrs.frozen
class ActorGroupsClient:
    """The group methods of one actor; see `actors.actor.ActorGroups`."""

    _api: NodeApi
    _cell: ActorCell

    async def join(self, group: str) -> None:
        """Join a group, through the node. Raises ValueError for an invalid name."""
        group = checked_group_name(group)
        own = self._cell.address
        if self._cell.ended is not None:
            raise RuntimeError(f"{own.name} has ended; it can no longer join groups")
        await self._api.join(own.name, own.epoch, group)

    async def leave(self, group: str) -> bool:
        """Undo one `join`; False if there is none left."""
        return await self._api.leave(self._cell.address.name, self._cell.address.epoch, group)
