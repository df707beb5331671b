"""What an isolated actor sees of the world: its node, through the node's service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

import attrs
import trio

from actors.actor import Actor
from actors.errors import ActorNotFoundError, CallError, EncodeError, NameTakenError, RemoteError
from actors.groups import Group
from actors.handle import Handle
from actors.messages import import_path
from actors.method import Address
from actors.node import Member
from actors.options import SpawnChanges, SpawnOptions
from actors.reference import Reference
from actors.watching import Ended
from runtime.calls.arguments import class_to_start, refused_in_start
from runtime.calls.failures import Place, plain_error, rebuild
from runtime.calls.station import Station
from runtime.groups.process_group import ProcessGroup
from runtime.isolation.following import GroupsNextDoor
from runtime.isolation.orders import ISOLATION_SERVICE, Answer
from runtime.links.link import Link
from runtime.wire.introduction import Peer

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")


class Service:
    """The node's `IsolationService`, with the errors of the node raised here as they would be there."""

    def __init__(self, handle: Any, station: Station) -> None:
        self._handle = handle
        self.station = station

    async def ask(self, question: str, *args: object) -> Any:
        """Ask the method called `question`. Raises what the node would."""
        answer: Answer = await getattr(self._handle, question)(*args)
        if not answer.code:
            return answer.value
        place = Place(ISOLATION_SERVICE, question, self._handle.address.node, 0)
        error = rebuild(answer.code, answer.plain, place, self.station.codec.find_class)
        if isinstance(error, RemoteError):
            raise plain_error(error) or error
        raise error


class Directory:
    """Where actors and nodes are, for the calls of this process. `node`: its own, which is connected already."""

    def __init__(self, node: tuple[str, int]) -> None:
        self._node = node
        self._service: Service | None = None

    def use(self, service: Service) -> None:
        """The node can be asked from now on."""
        self._service = service

    async def locate(self, name: str) -> Address:
        """See `Directory.locate` of the calls."""
        if self._service is None:
            raise ActorNotFoundError(f"{name} cannot be looked up before this process is connected to its node", actor=name)
        return cast("Address", await self._service.ask("locate", name))

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        """See `Directory.link_to` of the calls."""
        await trio.lowlevel.checkpoint()
        if self._service is None:
            return None
        peers = self._service.station.peers
        link = peers.links.get((node, incarnation))
        if link is not None and link.ended is None:
            return link
        if (node, incarnation) == self._node:
            return None
        member: Member | None = await self._service.ask("place", node, incarnation)
        if member is None:
            return None
        return peers.link(Peer(name=node, incarnation=incarnation, role="node", addresses=member.addresses, host=member.host))


@attrs.frozen
class _Options:
    """A way to start actors with options; see `actors.node.Spawner`."""

    _node: NodeNextDoor
    _options: SpawnOptions

    def options(self, **changes: Unpack[SpawnChanges]) -> _Options:
        return _Options(self._node, attrs.evolve(self._options, **changes))

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return cast("A", await self._node.start(actor, args, kwargs, self._options))

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return cast("A", await self._node.get_or_start(actor, args, kwargs, self._options))

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return cast("A", await self._node.stand(actor, args, kwargs, self._options))


class NodeNextDoor:
    """The node of an isolated actor, as that sees it: see `actors.node.NodeInterface`. Also its `NameClaims`."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self._members: tuple[Member, ...] = ()
        self._service: Service | None = None
        self._groups: GroupsNextDoor | None = None

    def use(self, service: Service, groups: GroupsNextDoor) -> None:
        """The node can be asked from now on."""
        self._service = service
        self._groups = groups

    def see(self, members: tuple[Member, ...]) -> None:
        """These are the members now. Links to those that were, and are no more, end."""
        before = {(member.name, member.incarnation) for member in self._members}
        self._members = members
        for identity in before - {(member.name, member.incarnation) for member in members}:
            if identity != (self.name, self.incarnation):
                self._asked().station.ended(identity, "it has left the cluster or its lease has ended")

    async def follow(self, handle: Any) -> None:
        """See every change of the members, until the node ends."""
        try:
            async for members in handle.members():
                self.see(members)
        except CallError:
            # The connection to the node is gone, and soon this process.
            return

    def options(self, **changes: Unpack[SpawnChanges]) -> _Options:
        """See `Spawner.options`."""
        return _Options(self, SpawnOptions(**changes))

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """See `Spawner.spawn`."""
        return await self.options().spawn(actor, *args, **kwargs)

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """See `Spawner.get_or_spawn`."""
        return await self.options().get_or_spawn(actor, *args, **kwargs)

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """See `Spawner.singleton`: the node is the candidate, for as long as it lives."""
        return await self.options().singleton(actor, *args, **kwargs)

    async def wait_ended(self, handle: object) -> Ended:
        """See `NodeInterface.wait_ended`."""
        if not isinstance(handle, Handle):
            raise TypeError(f"wait_ended takes a handle, not {handle!r}")
        return cast("Ended", await self.ask("wait_ended", handle.address))

    async def put(self, value: T) -> Reference[T]:
        """See `NodeInterface.put`: the node keeps it."""
        return cast("Reference[T]", await self.ask("put", value))

    def group(self, name: str, actor: Callable[..., A]) -> Group[A]:
        """See `NodeInterface.group`: what the node sees of it, a moment later."""
        assert self._groups is not None
        return ProcessGroup(self._groups, self._groups.followed(name), actor)

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """See `NodeInterface.lookup`."""
        address = await self._asked().ask("lookup", name)
        return cast("A", self._asked().station.typed_handle(address, actor))

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """See `NodeInterface.stop`. An actor that stops itself ends when its method has returned."""
        if not isinstance(handle, Handle):
            raise TypeError(f"stop takes a handle, not {handle!r}")
        station = self._asked().station
        job = station.host.workers.running.get(trio.lowlevel.current_task())
        if job is not None and job.cell.address.name == handle.name:
            station.host.home(job.cell).start_soon(self._stop, handle.address, reason)
            await trio.lowlevel.checkpoint()
        else:
            await self._stop(handle.address, reason)

    def members(self) -> tuple[Member, ...]:
        """See `NodeInterface.members`."""
        return self._members

    # What `_Options` and the host of this process need.

    async def start(
        self, actor: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """Have an actor started and return its handle; see `Spawner.spawn`."""
        cls = class_to_start("spawn", actor, args, kwargs, options)
        address = await self._start("start", cls, args, kwargs, options)
        handle = self._asked().station.make_handle(address, cls)
        return handle if options.call_options().is_default else handle.options(timeout=options.timeout, retry=options.retry)

    async def stand(
        self, actor: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """See `Spawner.singleton`."""
        cls = class_to_start("singleton", actor, args, kwargs, options)
        if options.name is None:
            raise ValueError("a singleton needs a name: node.options(name=...).singleton(...)")
        address = await self._start("stand", cls, args, kwargs, options)
        return self._asked().station.typed_handle(address, cls)

    async def _start(
        self, question: str, cls: type[Actor], args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> Any:
        try:
            return await self.ask(question, import_path(cls), args, dict(kwargs), options)
        except EncodeError as error:
            raise refused_in_start(self._asked().station.codec, error, cls, args, kwargs) from error.__cause__

    async def ask(self, question: str, *args: object) -> Any:
        """Ask the node; see `Service.ask`."""
        return await self._asked().ask(question, *args)

    async def get_or_start(
        self, actor: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions
    ) -> object:
        """See `Spawner.get_or_spawn`."""
        if options.name is None:
            raise ValueError("get_or_spawn needs a name: node.options(name=...).get_or_spawn(...)")
        class_to_start("get_or_spawn", actor, args, kwargs, options)
        while True:
            waits = not self._asked().station.host.is_within_start()
            found = await self._asked().ask("find", options.name, waits)
            if found is not None:
                return self._asked().station.typed_handle(found, actor)
            try:
                return await self.start(actor, args, kwargs, options)
            except NameTakenError:
                # Somebody else was faster; unless that one has ended again meanwhile, it is found now.
                continue

    async def release(self, name: str, epoch: int) -> None:
        """See `NameClaims.release`: the node does that."""
        await trio.lowlevel.checkpoint()

    async def save_with(self, name: str, epoch: int, state: object, answers: tuple[object, ...], *, in_turn: bool) -> None:
        """See `Neighbourhood.save`."""
        await self._asked().ask("save_state", name, epoch, state, answers, in_turn)

    async def saved(self, name: str) -> Any:
        """See `Actor.saved`."""
        return await self._asked().ask("saved_state", name)

    async def _stop(self, address: Address, reason: str) -> None:
        await self._asked().ask("stop", address, reason)

    def _asked(self) -> Service:
        assert self._service is not None
        return self._service
