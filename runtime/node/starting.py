"""Starting actors where they belong, and what supervisors do through their node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import trio

from actors.actor import Actor
from actors.children import ChildSpec
from actors.errors import (
    ActorClassError,
    ActorNotFoundError,
    ActorStartError,
    CallError,
    EncodeError,
    MethodNotFoundError,
    NameTakenError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    RemoteError,
)
from actors.handle import Handle
from actors.messages import import_path, path_by_file
from actors.method import Address
from actors.node import Member
from actors.options import SpawnOptions
from actors.supervision import ExitReason, Shutdown
from runtime.calls.arguments import class_to_start, refused_in_start
from runtime.calls.failures import plain_error
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.hosting.family import birthplace
from runtime.hosting.stopping import STOP_SECONDS
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.membership.promises import CLUSTER
from runtime.node.placing import Placing
from runtime.supervision.singletons import Singleton

MOST_STARTED = 10_000
LOOK_AGAIN = 0.05

TAKE_BACK_SECONDS = 1.0
"""How long a spawn that is cancelled may take to undo itself."""


class Starting:
    """Actors, started and stopped from this node on any. Implements `runtime.supervision.operations.Operations`."""

    def __init__(self, station: Station, names: Names, members: Members, environment: Environment, placing: Placing) -> None:
        self._placing = placing
        self._station = station
        self._names = names
        self._members = members
        self._environment = environment
        self._started: dict[str, int] = {}
        """Actors that are known to have started, by name, with their epochs: of those nobody is asked again."""

    async def start(
        self, actor: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """Start an actor and return its handle; see `Spawner.spawn`."""
        cls = class_to_start("spawn", actor, args, kwargs, options)
        if options.on in (None, self._station.identity[0]) and not options.labels and not options.resources and options.placement is None:
            address = await self._start_here(cls, args, kwargs, options)
        else:
            try:
                address = await self.start_actor(import_path(cls), args, dict(kwargs), options, "")
            except EncodeError as error:
                raise refused_in_start(self._station.codec, error, cls, args, kwargs) from error.__cause__
        handle = self._station.make_handle(address, cls)
        return handle if options.call_options().is_default else handle.options(timeout=options.timeout, retry=options.retry)

    async def _start_here(
        self, actor: type[Actor], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions, on_behalf_of: str = ""
    ) -> Address:
        codec = self._station.codec
        try:
            copied = tuple(map(codec.copy, args))
            copied_kwargs = {key: codec.copy(value, key) for key, value in kwargs.items()}
        except EncodeError as error:
            raise refused_in_start(codec, error, actor, args, kwargs) from error.__cause__
        return await self._station.host.start(actor, copied, copied_kwargs, options, import_path(actor), on_behalf_of)

    async def stand(
        self,
        actor: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
        nursery: trio.Nursery,
    ) -> object:
        """See `Spawner.singleton`. The candidacy lives in `nursery`."""
        cls = class_to_start("singleton", actor, args, kwargs, options)
        if options.name is None:
            raise ValueError("a singleton needs a name: node.options(name=...).singleton(...)")
        candidate = Singleton(options.name, self, lambda: self._start_here(cls, args, kwargs, options, CLUSTER), self._environment)
        address = await nursery.start(candidate.run, name=f"candidate for {options.name}")
        return self._station.typed_handle(address, cls)

    async def stand_for(self, name: str) -> None:
        """See `Election.stand_for`."""
        await self._names.promises.stand_for(name, self._station.identity[0])

    async def stand_down(self, name: str, *, for_good: bool) -> None:
        """See `Election.stand_down`."""
        await self._names.promises.stand_down(name, self._station.identity[0], for_good=for_good)

    async def find(self, name: str) -> Address | None:
        """See `Election.find`."""
        return await self._names.find(name)

    async def is_supervised(self, name: str) -> bool:
        """True if the supervisor of this name lives, or will again."""
        born = birthplace(name)
        if born is not None:
            seen = self._members.find(born[0])
            if seen is not None and seen.member.incarnation == born[1]:
                return True
        return await self._names.promises.supervised(name)

    async def get_or_start(
        self, actor: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """See `Spawner.get_or_spawn`."""
        if options.name is None:
            raise ValueError("get_or_spawn needs a name: node.options(name=...).get_or_spawn(...)")
        class_to_start("get_or_spawn", actor, args, kwargs, options)
        while True:
            found = await self.find_started(options.name)
            if found is not None:
                return self._station.typed_handle(found, actor)
            try:
                return await self.start(actor, args, kwargs, options)
            except NameTakenError:
                # Somebody else was faster; unless that one has ended again meanwhile, it is found now.
                continue

    async def find_started(self, name: str, *, waits: bool = True) -> Address | None:
        """The address of the actor that has `name` now, once it has started. Raises the ActorStartError of its start.

        It is not waited for (`waits`) in the start of another actor: the two might wait for each other.
        """
        while True:
            found = await self._names.find(name)
            if found is None or not waits or self._station.host.is_within_start() or self._started.get(name) == found.epoch:
                return found
            if await self._has_started(found):
                self._started[name] = found.epoch
                if len(self._started) > MOST_STARTED:
                    del self._started[next(iter(self._started))]
                return found
            # It has ended, or its node has: its name is about to be free.
            await trio.sleep(LOOK_AGAIN)

    async def _has_started(self, address: Address) -> bool:
        """Wait while the actor there is being started; False if it is not there. Raises its ActorStartError."""
        try:
            while (started := await self._ask_whether_started(address)) is None:
                continue
        except MethodNotFoundError:
            # A node of the version before does not tell.
            return True
        except ActorStartError as error:
            failure = error
        except (ActorNotFoundError, NodeDiedError, NodeUnreachableError):
            # Its node is no more.
            return False
        else:
            return started
        if await self._names.is_promised(address.name):
            # Its supervisor tries again: calls through a handle wait for that.
            return True
        raise failure

    async def _ask_whether_started(self, address: Address) -> bool | None:
        if (address.node, address.incarnation) == self._station.identity:
            return await self._station.host.wait_started(address.name, address.epoch)
        try:
            service = self._station.node_service(address.node, address.incarnation)
            return cast("bool | None", await service.wait_started(address.name, address.epoch))
        except RemoteError as error:
            plain = plain_error(error)
            if plain is None:
                raise
            raise plain from None

    async def start_actor(
        self, class_path: str, args: Sequence[object], kwargs: dict[str, object], options: SpawnOptions, supervisor: str
    ) -> Address:
        """See `Operations.start_actor`."""
        member = await self._placing.place(options)
        by_file = path_by_file(class_path)
        with self._placing.starting(options, member):
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
            if error.remote_type == import_path(NodeDrainingError):
                # Of a call that has run that can only be what it says of the node that it ran on.
                raise NodeDrainingError(str(error).removeprefix("NodeDrainingError: "), node=member.name) from None
            plain = plain_error(error)
            if plain is None:
                raise
            raise plain from None

    async def stop_address(self, address: Address, reason: ExitReason, shutdown: Shutdown = STOP_SECONDS) -> ExitReason | None:
        """See `Operations.stop_address`."""
        service = self._station.node_service(address.node, address.incarnation)
        try:
            return cast("ExitReason | None", await service.stop_actor(address.name, address.epoch, reason, shutdown))
        except ActorNotFoundError:
            return None

    async def watch_address(self, address: Address) -> ExitReason:
        """See `Operations.watch_address`."""
        while True:
            try:
                ended = await self._station.node_service(address.node, address.incarnation).watch_actor(address.name, address.epoch)
                if ended is None:
                    continue
                return cast("ExitReason", ended)
            except CallError:
                seen = self._members.find(address.node)
                if seen is None or seen.member.incarnation != address.incarnation:
                    return ExitReason("node died", f"node {address.node} is gone")
            # The node lives and only the session with it was lost: watch again.
            await trio.sleep(0.05)

    async def living(self, supervisor: str, names: Sequence[str]) -> dict[str, Address]:
        """See `Operations.living`."""
        found: dict[str, Address] = {}
        for name, (address, started_for) in (await self._names.owned(names)).items():
            await self._members.caught_up(address.incarnation)
            seen = self._members.find(address.node)
            identity = (address.node, address.incarnation)
            lives = seen is not None and seen.member.incarnation == address.incarnation and not self._members.is_dead(identity)
            if started_for == supervisor and lives:
                found[name] = address
        return found

    async def is_promised(self, name: str) -> bool:
        """See `Operations.is_promised`."""
        return await self._names.is_promised(name)

    async def promise(self, name: str, supervisor: Address, *, lasting: bool, added: ChildSpec | None) -> None:
        """See `Operations.promise`."""
        await self._names.promises.give(name, supervisor.name, _epoch(supervisor), lasting=lasting, added=added)

    async def begin(self, supervisor: Address, names: Sequence[str]) -> None:
        """See `Operations.begin`."""
        await self._names.promises.begin(supervisor.name, _epoch(supervisor), names)

    async def withdraw(self, supervisor: Address, names: Sequence[str], forget: Sequence[str] = (), *, last: bool = False) -> None:
        """See `Operations.withdraw`."""
        await self._names.promises.withdraw(supervisor.name, _epoch(supervisor), names, forget=forget, last=last)

    async def tell(self, ends: Mapping[str, str]) -> None:
        """See `Operations.tell`."""
        await self._names.promises.tell(ends)

    async def added(self, supervisor: Address) -> list[ChildSpec]:
        """See `Operations.added`."""
        return await self._names.promises.added(supervisor.name)

    async def members_changed(self, seconds: float) -> None:
        """See `Operations.members_changed`."""
        with trio.move_on_after(seconds):
            await self._members.wait_changed()

    def handle(self, address: Address) -> Handle:
        """See `Operations.handle`."""
        return cast("Handle", self._station.make_handle(address))


def _epoch(supervisor: Address) -> int | None:
    return supervisor.epoch if supervisor.registered else None
