"""The groups that an isolated actor holds: what its node sees of each is followed, a moment later."""

from __future__ import annotations

import weakref
from typing import Any

import trio

from actors.errors import CallError
from actors.groups import check_group_name
from actors.method import Address
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.groups.groups import Followed
from runtime.groups.records import Membership

LOOK_SECONDS = 5.0
"""How often it is looked at whether the actor still holds a group that is followed. As long at least is it followed."""


class GroupsNextDoor:
    """See the module, and `runtime.groups.process_group.Sight`. `identity`: the node's. `handle`: of its `IsolationService`."""

    def __init__(self, identity: tuple[str, int], station: Station, environment: Environment, handle: Any, nursery: trio.Nursery) -> None:
        self.identity = identity
        self.station = station
        self.environment = environment
        self._handle = handle
        self._nursery = nursery
        self._followed: weakref.WeakValueDictionary[str, Followed] = weakref.WeakValueDictionary()
        self._seen: weakref.WeakKeyDictionary[Followed, tuple[int, list[Membership]]] = weakref.WeakKeyDictionary()
        self._version = 0

    def followed(self, group: str) -> Followed:
        """The group, followed from now on. Raises ValueError for what cannot be a group's name."""
        check_group_name(group)
        followed = self._followed.get(group)
        if followed is None:
            followed = self._followed[group] = Followed(group, self.identity[1])
            self._nursery.start_soon(self._follow, group, weakref.ref(followed), name=f"group {group}")
        return followed

    def members(self, followed: Followed) -> tuple[object, list[Membership]]:
        """See `Sight.members`."""
        return self._seen.get(followed, (0, []))

    def state(self, followed: Followed) -> object:
        """See `Sight.state`."""
        return self._seen.get(followed, (0, []))[0]

    async def _follow(self, group: str, reference: weakref.ref[Followed]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, group, reference)
            while (followed := reference()) is not None:
                await trio.sleep(LOOK_SECONDS)
                del followed
            nursery.cancel_scope.cancel()

    async def _read(self, group: str, reference: weakref.ref[Followed]) -> None:
        try:
            async with self._handle.group_members(group) as all_members:
                async for addresses in all_members:
                    self._see(reference(), addresses)
        except CallError:
            # The connection to the node is gone, and soon this process.
            return

    def _see(self, followed: Followed | None, addresses: tuple[Address, ...]) -> None:
        if followed is not None:
            self._version += 1
            self._seen[followed] = (self._version, [Membership(address, 1) for address in addresses])
            followed.ready.set()
            followed.tell()
