"""What the actors in processes of their own ask of their node, and the service through which they do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from actors.actor import Actor
from actors.errors import ActorNotFoundError, UnderstudyError
from actors.method import Address, method
from actors.node import Member
from actors.options import SpawnOptions
from actors.reference import Reference
from actors.supervision import ExitReason
from actors.watching import Ended
from runtime.calls.failures import describe
from runtime.isolation.orders import Answer, Order, StartFailure


class Neighbourhood(Protocol):
    """A node, as its isolated actors need it."""

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    @property
    def incarnation(self) -> int:
        """This start of the node."""
        ...

    def members(self) -> tuple[Member, ...]:
        """See `NodeInterface.members`."""
        ...

    def watch_members(self) -> AsyncIterator[tuple[Member, ...]]:
        """The members, again after every change."""
        ...

    async def start(self, class_path: str, args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions) -> Address:
        """Start an actor, on this node unless the options say otherwise. See `Spawner.spawn`."""
        ...

    async def find(self, name: str, *, waits: bool) -> Address | None:
        """Where the actor of this name is, if there is one; with `waits` once it has started. Raises the ActorStartError of its start."""
        ...

    async def lookup(self, name: str) -> Address:
        """See `NodeInterface.lookup`."""
        ...

    async def locate(self, name: str) -> Address:
        """See `Directory.locate`."""
        ...

    async def place(self, node: str, incarnation: int) -> Member | None:
        """That start of that node; None if it is known to have ended."""
        ...

    async def stop(self, address: Address, reason: str) -> None:
        """See `NodeInterface.stop`."""
        ...

    async def save(self, name: str, epoch: int, state: object, answers: tuple[object, ...], *, in_turn: bool) -> None:
        """See `Actor.save`; `answers` are none or one. `in_turn`: the call whose turn it is led to the state."""
        ...

    async def saved(self, name: str) -> Any:
        """See `Actor.saved`."""
        ...

    async def put(self, value: object) -> Reference[object]:
        """See `NodeInterface.put`."""
        ...

    async def stand(self, class_path: str, args: tuple[object, ...], kwargs: Mapping[str, object], options: SpawnOptions) -> Address:
        """See `Spawner.singleton`; this node is the candidate."""
        ...

    async def wait_ended(self, address: Address) -> Ended:
        """See `NodeInterface.wait_ended`."""
        ...

    def watch_group(self, group: str) -> AsyncIterator[tuple[Address, ...]]:
        """The members of a group, those on this node first, as often as each is one; again after every change."""
        ...

    # For the actor of that name and epoch, which is one of this node. Each raises RuntimeError if it has ended.

    async def watch(self, name: str, epoch: int, address: Address) -> tuple[int, str, int]:
        """See `Observing.watch`; the number of the watch, and the name and epoch that are watched."""
        ...

    async def unwatch(self, name: str, epoch: int, number: int) -> None:
        """See `Watch.cancel`. Returns when no notice of that watch is on its way to the actor any more."""
        ...

    async def link(self, name: str, epoch: int, address: Address) -> None:
        """See `Observing.link`."""
        ...

    async def unlink(self, name: str, epoch: int, address: Address) -> None:
        """See `Observing.unlink`."""
        ...

    async def join(self, name: str, epoch: int, group: str) -> None:
        """See `Observing.join`."""
        ...

    async def leave(self, name: str, epoch: int, group: str) -> bool:
        """See `Observing.leave`."""
        ...


class Lodger(Protocol):
    """A process of this node, as the service tells it what the process says."""

    async def wanted(self) -> str:
        """It is ready: wait until there is something to run for it. Returns the path of its class."""
        ...

    def order(self) -> Order:
        """What it is to run. It asks only now, so that one that was killed while it was spare has certainly run nothing."""
        ...

    def begun(self, failure: StartFailure | None) -> None:
        """Its actor has started, or has failed to."""
        ...

    def ended(self, reason: ExitReason) -> None:
        """Its actor has ended by itself."""
        ...


class IsolationService(Actor):
    """What isolated actors use of their node. `lodgers`: the processes that are expected or there, by ticket."""

    def __init__(self, neighbourhood: Neighbourhood, lodgers: Mapping[str, Lodger], size_of: Callable[[object], int | None]) -> None:
        self._neighbourhood = neighbourhood
        self._lodgers = lodgers
        self._size_of = size_of

    @method(concurrent=True)
    async def wait(self, ticket: str) -> str:
        """Wait until there is something to run for the process with this ticket; the path of its class, to be imported before it is told
        what else there is. Raises ActorNotFoundError if it is not expected.
        """
        return await self._lodger(ticket).wanted()

    @method(concurrent=True)
    async def take(self, ticket: str) -> Order:
        """What that is."""
        return self._lodger(ticket).order()

    @method(concurrent=True)
    async def begun(self, ticket: str, failure: StartFailure | None) -> None:
        """The actor has started, or has failed to."""
        self._lodger(ticket).begun(failure)

    @method(concurrent=True)
    async def ended(self, ticket: str, reason: ExitReason) -> None:
        """The actor has ended by itself."""
        self._lodger(ticket).ended(reason)

    @method(concurrent=True)
    async def members(self) -> AsyncIterator[tuple[Member, ...]]:
        """The members, again after every change."""
        async for members in self._neighbourhood.watch_members():
            yield members

    @method(concurrent=True)
    async def start(self, class_path: str, args: tuple[object, ...], kwargs: dict[str, object], options: SpawnOptions) -> Answer:
        """See `Neighbourhood.start`; answers with an Address."""
        return await self._answer(self._neighbourhood.start(class_path, args, kwargs, options))

    @method(concurrent=True)
    async def find(self, name: str, waits: bool) -> Answer:
        """See `Neighbourhood.find`; answers with an Address or None."""
        return await self._answer(self._neighbourhood.find(name, waits=waits))

    @method(concurrent=True)
    async def lookup(self, name: str) -> Answer:
        """See `Neighbourhood.lookup`; answers with an Address."""
        return await self._answer(self._neighbourhood.lookup(name))

    @method(concurrent=True)
    async def locate(self, name: str) -> Answer:
        """See `Neighbourhood.locate`; answers with an Address."""
        return await self._answer(self._neighbourhood.locate(name))

    @method(concurrent=True)
    async def place(self, node: str, incarnation: int) -> Answer:
        """See `Neighbourhood.place`; answers with a Member or None."""
        return await self._answer(self._neighbourhood.place(node, incarnation))

    @method(concurrent=True)
    async def stop(self, address: Address, reason: str) -> Answer:
        """See `Neighbourhood.stop`."""
        return await self._answer(self._neighbourhood.stop(address, reason))

    @method(concurrent=True)
    async def save_state(self, name: str, epoch: int, state: object, answers: tuple[object, ...], in_turn: bool) -> Answer:
        """See `Neighbourhood.save`."""
        return await self._answer(self._neighbourhood.save(name, epoch, state, answers, in_turn=in_turn))

    @method(concurrent=True)
    async def saved_state(self, name: str) -> Answer:
        """See `Neighbourhood.saved`; answers with the state."""
        return await self._answer(self._neighbourhood.saved(name))

    @method(concurrent=True)
    async def put(self, value: object) -> Answer:
        """See `Neighbourhood.put`; answers with a reference."""
        return await self._answer(self._neighbourhood.put(value))

    @method(concurrent=True)
    async def stand(self, class_path: str, args: tuple[object, ...], kwargs: dict[str, object], options: SpawnOptions) -> Answer:
        """See `Neighbourhood.stand`; answers with an Address."""
        return await self._answer(self._neighbourhood.stand(class_path, args, kwargs, options))

    @method(concurrent=True)
    async def wait_ended(self, address: Address) -> Answer:
        """See `Neighbourhood.wait_ended`; answers with an Ended."""
        return await self._answer(self._neighbourhood.wait_ended(address))

    @method(concurrent=True)
    async def group_members(self, group: str) -> AsyncIterator[tuple[Address, ...]]:
        """See `Neighbourhood.watch_group`."""
        async for addresses in self._neighbourhood.watch_group(group):
            yield addresses

    @method(concurrent=True)
    async def watch_for(self, name: str, epoch: int, address: Address) -> Answer:
        """See `Neighbourhood.watch`."""
        return await self._answer(self._neighbourhood.watch(name, epoch, address))

    @method(concurrent=True)
    async def unwatch_for(self, name: str, epoch: int, number: int) -> Answer:
        """See `Neighbourhood.unwatch`."""
        return await self._answer(self._neighbourhood.unwatch(name, epoch, number))

    @method(concurrent=True)
    async def link_for(self, name: str, epoch: int, address: Address) -> Answer:
        """See `Neighbourhood.link`."""
        return await self._answer(self._neighbourhood.link(name, epoch, address))

    @method(concurrent=True)
    async def unlink_for(self, name: str, epoch: int, address: Address) -> Answer:
        """See `Neighbourhood.unlink`."""
        return await self._answer(self._neighbourhood.unlink(name, epoch, address))

    @method(concurrent=True)
    async def join_for(self, name: str, epoch: int, group: str) -> Answer:
        """See `Neighbourhood.join`."""
        return await self._answer(self._neighbourhood.join(name, epoch, group))

    @method(concurrent=True)
    async def leave_for(self, name: str, epoch: int, group: str) -> Answer:
        """See `Neighbourhood.leave`; answers with a bool."""
        return await self._answer(self._neighbourhood.leave(name, epoch, group))

    async def _answer(self, asked: Awaitable[object]) -> Answer:
        """The errors of the runtime as data: what a method raises is for its caller a `RemoteError`, and these are the node's own."""
        try:
            return Answer(await asked)
        except UnderstudyError as error:
            return Answer(None, *describe(error, self._size_of))

    def _lodger(self, ticket: str) -> Lodger:
        lodger = self._lodgers.get(ticket)
        if lodger is None:
            raise ActorNotFoundError("nobody waits for this process any more")
        return lodger
