"""What nodes ask of each other for watches and links; a system actor like those in `runtime.hosting.services`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.actor import Actor
from actors.method import Address, method
from actors.supervision import ExitReason

WATCHING_SERVICE = "@watching"

Told = tuple[str, int, ExitReason]
"""Name and epoch of an actor, and how it ended."""


class Desk(Protocol):
    """Where what is asked is decided."""

    def asked(self, name: str, epoch: int, asker: tuple[str, int], serial: int, *, before: bool) -> ExitReason | None:
        """See `WatchingService.ask`."""
        ...

    def taken_back(self, name: str, epoch: int, asker: tuple[str, int], serial: int) -> None:
        """See `WatchingService.take_back`."""
        ...

    def told(self, name: str, epoch: int, node: tuple[str, int], reason: ExitReason) -> None:
        """See `WatchingService.tell`."""
        ...

    def linked(self, name: str, epoch: int, linker: Address) -> None:
        """See `WatchingService.link`."""
        ...

    def unlinked(self, name: str, epoch: int, linker: Address) -> None:
        """See `WatchingService.unlink`."""
        ...


class WatchingService(Actor):
    """Asks for and tells of the ends of actors. All of it may be repeated without harm."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @method(concurrent=True, idempotent=True)
    async def ask(self, name: str, epoch: int, node: str, incarnation: int, serial: int, before: bool) -> ExitReason | None:
        """None: that epoch of the actor is here, and its end will be told to the node that asks. Otherwise why it is not.

        `before`: it was here when whoever asks learned of it, so that its own reason is asked for if it has ended since.
        """
        return self._desk.asked(name, epoch, (node, incarnation), serial, before=before)

    @method(concurrent=True, idempotent=True)
    async def take_back(self, actors: Sequence[tuple[str, int, int]], node: str, incarnation: int) -> None:
        """That node does not want to know any more: name, epoch and serial of each."""
        for name, epoch, serial in actors:
            self._desk.taken_back(name, epoch, (node, incarnation), serial)

    @method(concurrent=True, idempotent=True)
    async def tell(self, ends: Sequence[Told], node: str, incarnation: int) -> None:
        """Actors of that node have ended."""
        for name, epoch, reason in ends:
            self._desk.told(name, epoch, (node, incarnation), reason)

    @method(concurrent=True, idempotent=True)
    async def link_actor(self, name: str, epoch: int, linker: Address) -> None:
        """An actor elsewhere is linked to one here from now on; nothing if that is not here any more, which is told apart."""
        self._desk.linked(name, epoch, linker)

    @method(concurrent=True, idempotent=True)
    async def unlink_actor(self, name: str, epoch: int, linker: Address) -> None:
        """An actor elsewhere ends its link to one here."""
        self._desk.unlinked(name, epoch, linker)
