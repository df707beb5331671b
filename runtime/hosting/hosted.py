"""What a hosted actor sees of its host, and what a host needs of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from actors.errors import SpawnError
from actors.node import NodeInterface
from runtime.hosting.cell import Cell
from runtime.hosting.home import Home
from runtime.hosting.once import SavedStates
from runtime.hosting.threads import on_loop
from runtime.hosting.turns import StartTurn

if TYPE_CHECKING:
    from runtime.hosting.host import Host


class NameClaims(SavedStates, Protocol):
    """Who owns which name: a program over the store."""

    async def claim(self, name: str, class_path: str, on_behalf_of: str, resources: Mapping[str, float]) -> int:
        """Take a name for this node; returns the epoch. Raises `NameTakenError`."""
        ...

    async def release(self, name: str, epoch: int) -> None:
        """Give a name back if this epoch still has it."""
        ...

    async def saved(self, name: str) -> Any:
        """See `Actor.saved`."""
        ...


class Hosted:
    """What a hosted actor sees of its host; see `actors.actor.ActorContext`. One for each actor, so it holds nothing of its own."""

    __slots__ = ("_cell", "_host", "start_turn")

    def __init__(self, host: Host, cell: Cell) -> None:
        self._host = host
        self._cell = cell
        self.start_turn: StartTurn | None = None
        """There while it starts."""

    @property
    def node(self) -> NodeInterface:
        """See `Actor.node`."""
        return self._host.node

    @property
    def name(self) -> str:
        """See `Actor.name`."""
        return self._cell.address.name

    @property
    def epoch(self) -> int:
        """See `Actor.epoch`."""
        return self._cell.address.epoch

    @property
    def nursery(self) -> Home:
        """See `Actor.nursery`."""
        return on_loop(self._host.home, self._cell)

    @property
    def handle(self) -> Any:
        """See `Actor.handle`."""
        return self._host.make_handle(self._cell.address)

    async def save(self, state: object, answer: object) -> None:
        """See `Actor.save`."""
        if not self._cell.address.registered:
            raise SpawnError(
                f"{self.name} has no name of its own, so nobody could find its state again; spawn it with a name", actor=self.name
            )
        await self._host.once.save(self._cell, state, answer)

    async def saved(self) -> Any:
        """See `Actor.saved`."""
        return await self._host.claims().saved(self.name) if self._cell.address.registered else None

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """See `ActorContext.in_thread`."""
        return await self._host.threads.method(function, self._cell.threads)

    @property
    def watching(self) -> Any:
        """See `ActorContext.watching`."""
        return self._host.extensions.of("watching", self._cell)

    @property
    def groups(self) -> Any:
        """See `ActorContext.groups`."""
        return self._host.extensions.of("groups", self._cell)

    def supervise(self, supervisor: Any) -> Any:
        """See `ActorContext.supervise`."""
        self._cell.supervises_since = self._host.now()
        work = self._host.make_supervision(supervisor, self._cell.address)
        if self.start_turn is not None:
            work.begin_in_start = partial(self._host.turns.take_part, self.start_turn)
        return work
