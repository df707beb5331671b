"""The node as an actor sees it: the interface behind `self.node`, which `runtime.node` implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, Unpack, overload

import attrs

from actors.groups import Group
from actors.messages import message
from actors.options import SpawnChanges
from actors.reference import Reference
from actors.watching import Ended

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")


@message
@attrs.frozen
class Member:
    """A node of the cluster as every other node sees it.

    `incarnation` is new at every start and ordered by the store. `state` is "joining", "up" or "draining". `host` is equal for nodes of one
    machine; `pid` is meaningful there only. `addresses` are where it can be dialled. `joined` is in seconds since 1970 UTC by that node's
    own clock, for people to read. `resources` are amounts by name, as the node was started with.
    """

    name: str
    incarnation: int
    addresses: tuple[str, ...]
    host: str
    pid: int
    state: str = "up"
    labels: dict[str, str] = attrs.field(factory=dict)
    joined: float = 0.0
    resources: dict[str, float] = attrs.field(factory=dict)


class Spawner(Protocol):
    """A way to start actors with options; `options(...)` returns a changed copy."""

    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """The same with other options; see `SpawnOptions`. Raises TypeError or ValueError for values that make no sense."""
        ...

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor of class `actor` and return its handle once `on_start` has returned.

        Raises `BadArgumentsError` for arguments that the constructor does not take, before anything is sent. Raises `NameTakenError`,
        `ActorClassError`, `ActorStartError`, `NodeNotFoundError`, `NoPlacementError`.
        """
        ...

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """The handle of the actor that has the name already, once it has started, or of a new one. Arguments count only for a new one.

        Raises what `spawn` does, but for `NameTakenError`: its start may be somebody else's, and fails for all who wait for it. Raises
        `ClassMismatchError` if the actor that has the name is none of class `actor`.
        """
        ...

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Make this node a candidate for an actor of which the cluster has one, and return its handle once it runs anywhere.

        All nodes that ask for the name are candidates, and one of them runs it: elected through the store. When that node dies or leaves,
        or loses its lease, another one starts it again; a supervisor then adopts its children that live. It ends for all when it is
        stopped, or gives up. Raises what `spawn` does, but for `NameTakenError`.
        """
        ...


class NodeInterface(Spawner, Protocol):
    """What an actor may ask of the node that hosts it."""

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    @property
    def incarnation(self) -> int:
        """This start of the node."""
        ...

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """The handle of the actor of this name, wherever it runs.

        Raises `ActorNotFoundError`, and `ClassMismatchError` if it is none of class `actor`.
        """
        ...

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. Stopping one that has ended already is no error."""
        ...

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, this one included, by name."""
        ...

    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended; at once with "no such actor" for one that is dead or unknown."""
        ...

    async def put(self, value: T) -> Reference[T]:
        """Keep a copy of a value on this node, for as long as anybody has a reference to it. Raises `EncodeError`."""
        ...

    def group(self, name: str, actor: Callable[..., A]) -> Group[A]:
        """The group of this name, whose members are called as `actor`s. Raises ValueError for what cannot be a group's name."""
        ...
