"""Starting actors where they belong, and what supervisors do through their node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import trio

from actors.actor import Actor
from actors.errors import (
    ActorClassError,
    ActorNotFoundError,
    CallError,
    NameTakenError,
    NodeNotFoundError,
    NoPlacementError,
    RemoteError,
)
from actors.messages import import_path, path_by_file
from actors.method import Address
from actors.node import Member
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime.calls.failures import plain_error
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.supervision.work import choose_node

TAKE_BACK_SECONDS = 1.0
"""How long a spawn that is cancelled may take to undo itself."""


class Starting:
    """Actors, started and stopped from this node on any. Implements `runtime.supervision.work.Operations`."""

    def __init__(self, station: Station, names: Names, members: Members, environment: Environment) -> None:
        self._station = station
        self._names = names
        self._members = members
        self._environment = environment

    async def start(
        self, actor: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """Start an actor and return its handle; see `Spawner.spawn`."""
        if not (isinstance(actor, type) and issubclass(actor, Actor)):
            raise TypeError(f"spawn takes a subclass of actors.Actor, not {actor!r}")
        if options.on in (None, self._station.identity[0]) and not options.labels:
            codec = self._station.codec
            copied = tuple(codec.copy(argument, f"args[{index}]") for index, argument in enumerate(args))
            copied_kwargs = {key: codec.copy(value, key) for key, value in kwargs.items()}
            address = await self._station.host.start(actor, copied, copied_kwargs, options, import_path(actor))
        else:
            address = await self.start_actor(import_path(actor), args, dict(kwargs), options, "")
        handle = self._station.make_handle(address, actor)
        return handle if options.call_options().is_default else handle.options(timeout=options.timeout, retry=options.retry)

    async def get_or_start(
        self, actor: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """See `Spawner.get_or_spawn`."""
        if options.name is None:
            raise ValueError("get_or_spawn needs a name: node.options(name=...).get_or_spawn(...)")
        while True:
            found = await self._names.find(options.name)
            if found is not None:
                return self._station.make_handle(found, actor)
            try:
                return await self.start(actor, args, kwargs, options)
            except NameTakenError:
                # Somebody else was faster; unless that one has ended again meanwhile, it is found now.
                continue

    async def start_actor(
        self, class_path: str, args: Sequence[object], kwargs: dict[str, object], options: SpawnOptions, supervisor: str
    ) -> Address:
        """See `runtime.supervision.work.Operations.start_actor`."""
        member = await self._place(options)
        by_file = path_by_file(class_path)
        try:
            return await self._spawn_on(member, class_path, args, kwargs, options, supervisor)
        except ActorClassError:
            if by_file is None:
                raise
        # A class of this script itself: nodes of a local cluster know it as that, others by the name of its file.
        return await self._spawn_on(member, by_file, args, kwargs, options, supervisor)

    async def _spawn_on(
        self, member: Member, path: str, args: Sequence[object], kwargs: dict[str, object], options: SpawnOptions, supervisor: str
    ) -> Address:
        service = self._station.node_service(member.name, member.incarnation)
        ticket = self._environment.token(8).hex()
        try:
            return cast("Address", await service.spawn(path, tuple(args), kwargs, options, supervisor, ticket))
        except trio.Cancelled:
            # It may have started, and the answer be on its way: nobody else knows of it.
            with trio.CancelScope(shield=True), trio.move_on_after(TAKE_BACK_SECONDS):
                await service.take_back.send(ticket)
            raise
        except RemoteError as error:
            plain = plain_error(error)
            if plain is None:
                raise
            raise plain from None

    async def stop_address(self, address: Address, reason: ExitReason) -> None:
        """See `Operations.stop_address`."""
        try:
            await self._station.node_service(address.node, address.incarnation).stop_actor(address.name, address.epoch, reason)
        except ActorNotFoundError:
            return

    async def watch_address(self, address: Address) -> ExitReason:
        """See `Operations.watch_address`."""
        while True:
            try:
                ended = await self._station.node_service(address.node, address.incarnation).watch_actor(address.name, address.epoch)
                if ended is None:
                    continue
                return cast("ExitReason", ended)
            except CallError as error:
                seen = self._members.find(address.node)
                if seen is None or seen.member.incarnation != address.incarnation:
                    return ExitReason("node died", f"node {address.node} is gone: {error}")
            # The node lives and only the session with it was lost: watch again.
            await trio.sleep(0.05)

    async def promise(self, name: str, supervisor: str) -> None:
        """See `Operations.promise`."""
        await self._names.promise(name, supervisor)

    async def withdraw(self, name: str) -> None:
        """See `Operations.withdraw`."""
        await self._names.withdraw(name)

    async def _place(self, options: SpawnOptions) -> Member:
        if options.on is not None:
            seen = self._members.find(options.on)
            if seen is None:
                await self._members.caught_up(self._members.revision + 1)
                seen = self._members.find(options.on)
            if seen is None:
                known = ", ".join(member.name for member in self._members.all())
                raise NodeNotFoundError(f"there is no node called {options.on!r} in the cluster; its nodes are: {known}", node=options.on)
            return seen.member
        load: dict[str, int] = {}
        for address in await self._names.all():
            load[address.node] = load.get(address.node, 0) + 1
        chosen = choose_node(self._members.all(), dict(options.labels), self._environment.random(), load)
        if chosen is None:
            raise NoPlacementError(f"no node carries the labels {dict(options.labels)!r}", actor=options.name)
        return chosen
