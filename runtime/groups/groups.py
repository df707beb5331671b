"""Groups at work: this node's memberships go to the store, and the groups that somebody here asks for are followed.

Its own members a node knows without the store. A group is followed as long as anyone holds it; the task that does so looks now and then.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import attrs
import trio

from actors.errors import DecodeError, LeaseLostError, StoreCompactedError, StoreError, StoreOutcomeUnknownError
from actors.groups import check_group_name
from actors.method import Address
from actors.supervision import ExitReason
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.groups.holdings import Holdings, Write
from runtime.groups.records import Membership, Record, from_plain, plain, prefix_of
from runtime.groups.view import GroupView
from runtime.hosting.cell import Cell
from runtime.membership.members import Members
from runtime.store.interface import Compare, Delete, Entry, Get, Put, Store

ASK_AGAIN = 0.5
"""Seconds between two attempts while the store is away."""

LOOK_SECONDS = 30.0
"""How often it is looked at whether anyone still holds a group that is followed."""

logger = logging.getLogger("understudy.groups")


class Followed:
    """A group that somebody on this node holds."""

    def __init__(self, name: str, own: int) -> None:
        self.name = name
        self.view = GroupView(own)
        self.ready = trio.Event()
        """Set when the view has been complete once."""
        self.problem: StoreError | None = None
        """Why it cannot be followed at the moment."""
        self._changed = trio.Event()

    def tell(self) -> None:
        """Wake those who wait for a change."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        """Wait for something that may have changed the members."""
        await self._changed.wait()


class Groups:
    """Those of one node; see `runtime.hosting.extensions.Extension`. `lease`: the node's, which ends its memberships."""

    def __init__(
        self, station: Station, store: Store, members: Members, lease: int, environment: Environment, nursery: trio.Nursery
    ) -> None:
        self.station = station
        self.identity = station.identity
        self.environment = environment
        self._store = store
        self._members = members
        self._lease = lease
        self._nursery = nursery
        self._holdings = Holdings(*station.identity)
        self._dirty = trio.Event()
        self._followed: weakref.WeakValueDictionary[str, Followed] = weakref.WeakValueDictionary()

    def of(self, cell: Cell) -> ActorSide:
        """See `Extension.of`."""
        return ActorSide(self, cell)

    def ending(self, cell: Cell) -> None:
        """See `Extension.ending`: it is in no group any more."""
        for group in self._holdings.ended((cell.address.name, cell.address.epoch)):
            self._changed(group)

    def ended(self, address: Address, reason: ExitReason) -> None:
        """See `Extension.ended`."""

    def join(self, group: str, address: Address) -> None:
        """An actor of this node is in the group once more."""
        self._holdings.join(group, address)
        self._changed(group)

    def leave(self, group: str, address: Address) -> bool:
        """It is once less; False if it was not in it."""
        left = self._holdings.leave(group, (address.name, address.epoch))
        if left:
            self._changed(group)
        return left

    def followed(self, group: str) -> Followed:
        """The group, followed from now on. Raises ValueError for what cannot be a group's name."""
        check_group_name(group)
        followed = self._followed.get(group)
        if followed is None:
            followed = self._followed[group] = Followed(group, self.station.identity[1])
            self._nursery.start_soon(self._follow, prefix_of(group), weakref.ref(followed), name=f"group {group}")
        return followed

    def members(self, followed: Followed) -> tuple[object, list[Membership]]:
        """The members, those of this node first, and what changes whenever they do."""
        here = [] if self.station.host.draining else self._holdings.members(followed.name)
        return self.state(followed), here + followed.view.members(self._lives)

    def state(self, followed: Followed) -> object:
        """Equal as long as the members are the same."""
        live = frozenset(filter(self._lives, followed.view.nodes()))
        return self.station.host.draining, self._holdings.version(followed.name), followed.view.version, live

    def look(self) -> None:
        """The members of the cluster have changed, or one is known to have ended."""
        for followed in list(self._followed.values()):
            followed.tell()

    def loads(self) -> dict[str, int]:
        """How much is kept at the moment."""
        return {"memberships": len(self._holdings), "groups followed": len(self._followed)}

    async def run(self) -> None:
        """Write what changes here, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._write)

    def _lives(self, node: tuple[str, int]) -> bool:
        seen = self._members.find(node[0])
        here = seen is not None and seen.member.incarnation == node[1] and seen.member.state != "draining"
        return here and not self._members.is_dead(node)

    def _changed(self, group: str) -> None:
        self._dirty.set()
        followed = self._followed.get(group)
        if followed is not None:
            followed.tell()

    async def _look(self) -> None:
        while True:
            await self._members.wait_changed()
            self.look()

    async def _write(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty = trio.Event()
            while self._holdings.is_dirty:
                if not await self._write_batch(self._holdings.batch()):
                    await trio.sleep(ASK_AGAIN)

    async def _write_batch(self, writes: list[Write]) -> bool:
        """False if it must be tried again after a while."""
        try:
            result = await self._store.transaction(
                [Compare(write.key, "mod_revision", write.revision) for write in writes],
                [
                    Delete(write.key) if write.record is None else Put(write.key, self._encode(write.record), self._lease)
                    for write in writes
                ],
                [Get(write.key) for write in writes],
            )
        except trio.Cancelled:
            self._holdings.doubtful()
            raise
        except StoreOutcomeUnknownError:
            self._holdings.doubtful()
            return False
        except StoreError as error:
            self._holdings.not_written()
            if isinstance(error, LeaseLostError):
                # The node is about to leave: nothing of it is in the store any more.
                await trio.sleep_forever()
            return False
        if result.succeeded:
            self._holdings.written(result.revision, writes)
        else:
            found = dict(zip((write.key for write in writes), result.responses, strict=True))
            self._holdings.refused({key: entry.mod_revision if isinstance(entry, Entry) else 0 for key, entry in found.items()})
        return True

    async def _follow(self, prefix: str, reference: weakref.ref[Followed]) -> None:
        """Keep a view up to date while anyone holds it. Between two answers of the store only that one does."""
        seen = 0
        while True:  # noqa: ASYNC913  whatever it comes to, it waits for the store
            with trio.move_on_after(LOOK_SECONDS):
                try:
                    if not seen:
                        found = await self._store.range(prefix)
                        records = {entry.key: self._decode(entry.key, entry.value) for entry in found.entries}
                        seen = found.revision
                        if (followed := reference()) is not None:
                            followed.view.replace({key: record for key, record in records.items() if record is not None}, seen)
                    else:
                        batch = await self._store.poll(prefix, seen + 1)
                        seen = batch.revision
                        changes = [
                            (event.key, self._decode(event.key, event.value) if event.kind == "put" else None) for event in batch.events
                        ]
                        if (followed := reference()) is not None:
                            followed.view.change(changes, seen)
                    if followed is not None:
                        followed.problem = None
                        followed.ready.set()
                        followed.tell()
                    followed = None
                except StoreCompactedError:
                    seen = 0
                except StoreError as error:
                    logger.info("group %s is not followed while the store is away: %s", prefix, error)
                    if (followed := reference()) is not None:
                        followed.problem = error
                        followed.tell()
                    followed = None
                    await trio.sleep(ASK_AGAIN)
            if reference() is None:
                return

    def _encode(self, record: Record) -> bytes:
        segments: list[Any] = []
        return self.station.codec.encode(plain(record), segments)

    def _decode(self, key: str, value: bytes) -> Record | None:
        try:
            return from_plain(self.station.codec.decode(value))
        except (DecodeError, TypeError, ValueError) as error:
            logger.error("the record %s in the store is none of ours; ignored: %s", key, error)
            return None


@attrs.frozen
class ActorSide:
    """What one actor sees; see `actors.watching.ActorGroups`."""

    _groups: Groups
    _cell: Cell

    async def join(self, group: str) -> None:
        """See `Observing.join`."""
        check_group_name(group)
        await trio.lowlevel.checkpoint()
        if self._cell.ended is not None:
            raise RuntimeError(f"{self._cell.address.name} has ended; it can join no group any more")
        self._groups.join(group, self._cell.address)

    async def leave(self, group: str) -> bool:
        """See `Observing.leave`."""
        await trio.lowlevel.checkpoint()
        return self._groups.leave(group, self._cell.address)
