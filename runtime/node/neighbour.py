"""The node as the actors in processes of their own use it, through `runtime.isolation`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs

from actors.actor import Actor
from actors.handle import Handle
from actors.method import Address
from actors.node import Member
from actors.options import SpawnOptions
from actors.reference import Reference
from actors.watching import ActorGroups, Ended
from runtime.hosting.cell import Cell
from runtime.hosting.services import actor_class
from runtime.isolation import StandIn
from runtime.membership.lookups import Lookups
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.node.starting import Starting
from runtime.watching.watching import ActorSide

if TYPE_CHECKING:
    from runtime.node.node import Node


class Neighbour:
    """See `runtime.isolation.Neighbourhood`."""

    def __init__(self, node: Node, names: Names, lookups: Lookups, members: Members, starting: Starting) -> None:
        self._node = node
        self._names = names
        self._lookups = lookups
        self._members = members
        self._starting = starting

    @property
    def name(self) -> str:
        """See `Neighbourhood.name`."""
        return self._node.name

    @property
    def incarnation(self) -> int:
        """See `Neighbourhood.incarnation`."""
        return self._node.incarnation

    def members(self) -> tuple[Member, ...]:
        """See `Neighbourhood.members`."""
        return self._node.members()

    def watch_members(self) -> AsyncIterator[tuple[Member, ...]]:
        """See `Neighbourhood.watch_members`."""
        return self._node.watch_members()

    async def start(self, class_path: str, args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions) -> Address:
        """See `Neighbourhood.start`."""
        if options.on is None and not options.labels and not options.resources and options.placement is None:
            options = attrs.evolve(options, on=self._node.name)
        with self._node.lifetime.asking(f"{options.name or class_path} was not started", acts=True):
            return await self._starting.start_actor(class_path, args, dict(kwargs), options, "")

    async def find(self, name: str, *, waits: bool) -> Address | None:
        """See `Neighbourhood.find`."""
        with self._node.lifetime.asking(f"{name} could not be looked up, and may live"):
            return await self._starting.find_started(name, waits=waits)

    async def lookup(self, name: str) -> Address:
        """See `Neighbourhood.lookup`."""
        with self._node.lifetime.asking(f"{name} could not be looked up, and may live"):
            return await self._lookups.locate(name)

    async def locate(self, name: str) -> Address:
        """See `Neighbourhood.locate`."""
        return await self._node.locate(name)

    async def place(self, node: str, incarnation: int) -> Member | None:
        """See `Neighbourhood.place`."""
        with self._node.lifetime.asking(f"where node {node} is could not be found out"):
            await self._members.caught_up(incarnation)
        seen = self._members.find(node)
        if seen is None or seen.member.incarnation != incarnation or self._members.is_dead((node, incarnation)):
            return None
        return seen.member

    async def stop(self, address: Address, reason: str) -> None:
        """See `Neighbourhood.stop`."""
        await self._node.stop(cast("Handle", self._node.station.make_handle(address)), reason=reason)

    async def save(self, name: str, epoch: int, state: object, answers: tuple[object, ...], *, in_turn: bool) -> None:
        """See `Neighbourhood.save`."""
        host = self._node.station.host
        cell = host.cells.get(name)
        if cell is None or cell.address.epoch != epoch:
            await self._names.save(name, epoch, state)
            return
        turn = cell.turn if in_turn else None
        call = turn.call.identity if turn is not None and turn.call is not None else None
        await host.once.save_with(cell, call, state, answers[0] if answers else attrs.NOTHING)

    async def saved(self, name: str) -> Any:
        """See `Neighbourhood.saved`."""
        return await self._names.saved(name)

    async def put(self, value: object) -> Reference[object]:
        """See `Neighbourhood.put`."""
        return await self._node.put(value)

    async def stand(self, class_path: str, args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions) -> Address:
        """See `Neighbourhood.stand`."""
        cls = await actor_class(class_path, self._node.name, self._node.station.host.in_thread)
        with self._node.lifetime.asking(f"node {self._node.name} does not stand for {options.name}", acts=True):
            return cast("Handle", await self._starting.stand(cls, args, kwargs, options, self._node.candidacies)).address

    async def wait_ended(self, address: Address) -> Ended:
        """See `Neighbourhood.wait_ended`."""
        return await self._node.wait_ended(self._node.station.make_handle(address))

    async def watch_group(self, group: str) -> AsyncIterator[tuple[Address, ...]]:
        """See `Neighbourhood.watch_group`."""
        async for members in self._node.group(group, Actor).watch():
            yield tuple(cast("Handle", member).address for member in members)

    async def watch(self, name: str, epoch: int, address: Address) -> tuple[int, str, int]:
        """See `Neighbourhood.watch`."""
        watch = await self._watching(name, epoch).watch(self._node.station.make_handle(address))
        return watch.number, watch.name, watch.epoch

    async def unwatch(self, name: str, epoch: int, number: int) -> None:
        """See `Neighbourhood.unwatch`."""
        cell = self._cell(name, epoch)
        self._watching(name, epoch).cancel(number)
        if isinstance(cell.instance, StandIn):
            await cell.instance.told(number)

    async def link(self, name: str, epoch: int, address: Address) -> None:
        """See `Neighbourhood.link`."""
        await self._watching(name, epoch).link(self._node.station.make_handle(address))

    async def unlink(self, name: str, epoch: int, address: Address) -> None:
        """See `Neighbourhood.unlink`."""
        await self._watching(name, epoch).unlink(self._node.station.make_handle(address))

    async def join(self, name: str, epoch: int, group: str) -> None:
        """See `Neighbourhood.join`."""
        await self._groups(name, epoch).join(group)

    async def leave(self, name: str, epoch: int, group: str) -> bool:
        """See `Neighbourhood.leave`."""
        return await self._groups(name, epoch).leave(group)

    def _watching(self, name: str, epoch: int) -> ActorSide:
        return cast("ActorSide", self._node.station.host.extensions.of("watching", self._cell(name, epoch)))

    def _groups(self, name: str, epoch: int) -> ActorGroups:
        return cast("ActorGroups", self._node.station.host.extensions.of("groups", self._cell(name, epoch)))

    def _cell(self, name: str, epoch: int) -> Cell:
        cell = self._node.station.host.cells.get(name)
        if cell is None or cell.address.epoch != epoch:
            raise RuntimeError(f"{name} has ended on node {self._node.name}; it can watch nothing and be in no group any more")
        return cell
