"""Refuse calls to services of the runtime that a peer makes in the name of another node.

The arguments of some methods of the runtime's own services name the node that asks, and the service
keeps something for that node. The handshake has proven who the peer of a link is, so a call in
another node's name is refused before it runs. Otherwise one peer could have things kept in the
names of thousands of others, past all limits for one peer, and take back what others had asked for.
Nothing legitimate passes such calls on: they are made by the node that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, cast

from actors.actor import Actor
from actors.errors import BadArgumentsError, CallError
from actors.method import Address
from runtime.wire.handshake import Peer

Asker = Callable[[Sequence[object]], object]
"""Returns the name and incarnation of the node that the positional arguments name; any other value
if they name none.
"""

NOBODY: Final = object()
"""What an `Asker` returns for a call in which no node is named, as it may be."""


def named_at(place: int) -> Asker:
    """Read the asking node's name at position `place` and its incarnation at the next one."""
    return lambda args: tuple(args[place : place + 2])


def hosting_at(place: int) -> Asker:
    """Read the asking node from the address of one of its actors, at position `place`."""

    def asker(args: Sequence[object]) -> object:
        address = args[place] if len(args) > place else None
        return (address.node, address.incarnation) if isinstance(address, Address) else None

    return asker


def reader_at(place: int) -> Asker:
    """Read the asking node from the list at position `place`, which begins with its name and
    incarnation, and which may be left out.
    """

    def asker(args: Sequence[object]) -> object:
        reader = args[place] if len(args) > place else None
        if reader is None:
            return NOBODY
        return tuple(cast("list[object]", reader)[:2]) if isinstance(reader, list) else None

    return asker


class RequesterChecked(Actor):
    """A service with methods whose arguments name the node that asks."""

    askers: ClassVar[Mapping[str, Asker]]
    """How to read the asking node from the arguments, by the names of those methods."""


def not_its_own(
    instance: Actor, method: str, args: Sequence[object], kwargs: Mapping[str, object], peer: Peer
) -> CallError | None:
    """Return the error for a call that `peer` makes in another node's name; None for all others."""
    asker = instance.askers.get(method) if isinstance(instance, RequesterChecked) else None
    # Positional arguments only: a node named by position and by keyword could be named differently.
    if asker is None:
        return None
    if not kwargs:
        named = asker(args)
        if named is NOBODY or named == peer.identity:
            return None
    # A class of error that is not retried: a repeat would be refused as well.
    return BadArgumentsError(
        f"node {peer.name} (incarnation {peer.incarnation}) may call {method} in its own name "
        "only; pass the calling node's own name and incarnation"
    )
